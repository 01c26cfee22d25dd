"""kernels/cuda/sass.py on instructions whose meaning cuobjdump 13.2 gave, and on budgets.

Run by ctest from the repository's root.
"""

import pathlib
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path('kernels/cuda')))

import sass  # noqa: E402

LOAD_R64 = (0x00000008AA407981, 0x000EA4000C1E1D00)  # LDG.E.128 R64, desc[UR8][R170.64]
LOAD_R68 = (0x00000008A8447981, 0x000EE4000C1E1D00)  # LDG.E.128 R68, desc[UR8][R168.64]
SCALAR_R66 = (0x0000000842427981, 0x000EA6000C1E1900)  # LDG.E R66, desc[UR8][R66.64]
BACK_0X810 = (0xFFFFFFF400FC3947, 0x000FEA000383FFFF)  # @P3 BRA, 0x810 bytes back
FORWARD_0XC50 = (0x0000000C00140947, 0x000FEA0003800000)  # @P0 BRA, 0xc50 bytes forward
SHARED_ADD = (0x000000202312738C, 0x000E640000000000)  # ATOMS.ADD R18, [R35], R32
MMA_OF_R64 = (0x000000004028723C | 64 << 24, 0)  # HMMA R40, R64, ...


def measure(*code):
    return sass.measure(b''.join(struct.pack('<QQ', *words) for words in code))


class DecoderTest(unittest.TestCase):

    def test_branch_offsets(self):
        self.assertEqual(sass.Instruction(*BACK_0X810).branch_offset() * 16, -0x810)
        self.assertEqual(sass.Instruction(*FORWARD_0XC50).branch_offset() * 16, 0xC50)

    def test_loads_before_the_first_use_of_one(self):
        self.assertEqual(measure(LOAD_R64, LOAD_R68, MMA_OF_R64)['loads'], 2)
        self.assertEqual(measure(LOAD_R64, MMA_OF_R64, LOAD_R68)['loads'], 1)
        self.assertEqual(measure(LOAD_R68, SCALAR_R66, LOAD_R64, MMA_OF_R64)['loads'], 2)
        self.assertEqual(measure(LOAD_R64, LOAD_R68)['loads'], 0)  # no MMA

    def test_loops_and_shared_atomics(self):
        body = [MMA_OF_R64] + [SHARED_ADD] * 127
        self.assertEqual(measure(*body, BACK_0X810)['score'], 129)
        self.assertEqual(measure(*body, FORWARD_0XC50)['score'], 0)
        self.assertEqual(measure(SHARED_ADD)['CAS'], 0)
        compare_and_swap = (SHARED_ADD[0] & ~0xFFF | sass.SHARED_CAS, 0)
        self.assertEqual(measure(compare_and_swap)['CAS'], 1)

    def test_the_shortest_of_the_stretches_with_most_mmas(self):
        masked = [MMA_OF_R64] * 40 + [SHARED_ADD] * 20 + [FORWARD_0XC50]
        unmasked = [MMA_OF_R64] * 40 + [SHARED_ADD] * 10 + [FORWARD_0XC50]
        few = [MMA_OF_R64] * 5 + [FORWARD_0XC50]
        self.assertEqual(measure(*masked, *unmasked, *few)['tile'], 51)
        self.assertEqual(measure(*few)['tile'], 0)


class BudgetTest(unittest.TestCase):

    def test_worse_fails_and_better_passes(self):
        row = {column: 5 for column in sass.COLUMNS}
        read = sass.read_table(sass.table({'K<F16, 1>': row}))
        self.assertEqual(read, {'K<F16, 1>': row})
        self.assertEqual(list(sass.over_budget('K', row, row)), [])
        for column in sass.COLUMNS:
            worse = {**row, column: 4 if column == 'loads' else 6}
            better = {**row, column: 6 if column == 'loads' else 4}
            self.assertEqual(len(list(sass.over_budget('K', worse, row))), 1)
            self.assertEqual(list(sass.over_budget('K', better, row)), [])


if __name__ == '__main__':
    unittest.main()
