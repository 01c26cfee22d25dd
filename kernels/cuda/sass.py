"""Properties of the kernels' machine code for sm_90a, checked against a table of budgets.

    python3 kernels/cuda/sass.py OBJECT...            prints the table
    python3 kernels/cuda/sass.py --check TABLE OBJECT...
        exit code 1: a kernel exceeds its budget, or has none. Another compiler than the table's
        passes with a message.

Columns:
    loads      wide global loads (8 bytes or more) that are issued before the first instruction to
               need the result of one, in kernels with MMAs; at least. They set the bytes in flight
    score      instructions of the longest innermost loop with MMAs, ldmatrix excluded; at most
    weigh      instructions of the longest innermost loop with ldmatrix; at most
    tile       instructions of the shortest branch-free stretch among those with the most MMAs, if
               those are at least 16; at most. In prefill: scores of 32 pairs of row and key a
               thread, 64 with blocks of 128 rows, in a tile without masks
    weigh LDG  global loads in that loop; at most
    local      loads and stores of local memory; at most. Kernels that call AttendFlat pass its
               argument on the stack.
    CAS        compare-and-swap on shared memory; at most

Decodes the 16-byte instructions of sm_90 itself, so that no disassembler is needed: opcode in bits
0 to 11, registers in bits 16 to 39 and 64 to 71, size of a load in bits 73 to 75, branch offset in
bits 16 to 23 and 34 to 81.
"""

import struct
import sys
from typing import Iterator, NamedTuple

from resources import compiler, device_programs, sections, short_name

LDG, HMMA, LDSM, BRA, SHARED_CAS = 0x981, 0x23C, 0x83B, 0x947, 0x38D
LOCAL = {0x983, 0x387, 0x987}
STORES_AND_BRANCHES = {0x986, 0x988, 0x388, BRA, 0x94D, 0x941, 0x945}  # no destination register
WIDE = {5: 2, 6: 4}  # size field of a load -> registers
NO_REGISTER = 255
COLUMNS = ('loads', 'score', 'tile', 'weigh', 'weigh LDG', 'local', 'CAS')
LEAST_MMAS_OF_TILE = 16


class Instruction(NamedTuple):
    low: int
    high: int

    @property
    def opcode(self) -> int:
        return self.low & 0xFFF

    @property
    def destination(self) -> int:
        return self.low >> 16 & 0xFF

    def sources(self) -> list[int]:
        """Registers that it may read; the first one of a wide operand."""
        registers = [self.low >> 24 & 0xFF, self.high & 0xFF]
        if self.opcode >> 9 == 1:  # the second operand is a register
            registers.append(self.low >> 32 & 0xFF)
        return [register for register in registers if register != NO_REGISTER]

    def wide_load_registers(self) -> int:
        return WIDE.get(self.high >> 9 & 7, 0) if self.opcode == LDG else 0

    def branch_offset(self) -> int:
        """In instructions, from the next one."""
        high = (self.low >> 34) | (self.high & 0x3FFFF) << 30
        if high >> 47:
            high -= 1 << 48
        return ((high << 10) + (self.low >> 16 & 0xFF) * 4) // 16


def loads_in_flight(code: list[Instruction]) -> int:
    if all(at.opcode != HMMA for at in code):
        return 0
    pending: set[int] = set()
    count = 0
    for at in code:
        if pending.intersection(at.sources()) and not at.wide_load_registers():
            return count
        registers = at.wide_load_registers()
        if registers:
            pending.update(range(at.destination, at.destination + registers))
            count += 1
        elif at.opcode not in STORES_AND_BRANCHES:
            pending.discard(at.destination)
    return count


def innermost_loops(code: list[Instruction], opcode: int) -> list[list[Instruction]]:
    """The innermost loop around each instruction of this kind."""
    loops = []
    for end, at in enumerate(code):
        if at.opcode == BRA and 0 <= (begin := end + 1 + at.branch_offset()) < end:
            loops.append((end - begin, begin, end))
    found = set()
    for place, at in enumerate(code):
        around = [loop for loop in loops if loop[1] <= place <= loop[2]]
        if at.opcode == opcode and around:
            found.add(min(around))
    return [code[begin:end + 1] for _, begin, end in sorted(found)]


def stretches(code: list[Instruction]) -> list[list[Instruction]]:
    """The code, divided at branches and their targets."""
    cuts = {0, len(code)}
    for place, at in enumerate(code):
        if at.opcode == BRA:
            cuts |= {place + 1, place + 1 + at.branch_offset()}
    places = sorted(place for place in cuts if 0 <= place <= len(code))
    return [code[begin:end] for begin, end in zip(places, places[1:])]


def measure(text: bytes) -> dict[str, int]:
    code = [Instruction(*words) for words in struct.iter_unpack('<QQ', text)]

    def count(part: list[Instruction], *opcodes: int) -> int:
        return sum(at.opcode in opcodes for at in part)

    mmas = [(count(part, HMMA), len(part)) for part in stretches(code)]
    most = max((number for number, _ in mmas), default=0)
    tile = min((size for number, size in mmas if number == most), default=0)
    weigh = max(innermost_loops(code, LDSM), key=len, default=[])
    score = max((loop for loop in innermost_loops(code, HMMA) if count(loop, LDSM) == 0),
                key=len, default=[])
    return {'loads': loads_in_flight(code), 'score': len(score),
            'tile': tile if most >= LEAST_MMAS_OF_TILE else 0, 'weigh': len(weigh),
            'weigh LDG': count(weigh, LDG), 'local': count(code, *LOCAL),
            'CAS': count(code, SHARED_CAS)}


def kernels(paths: list[str]) -> Iterator[tuple[str, dict[str, int]]]:
    for path in paths:
        for program in device_programs(path):
            if b'sm_90a' not in program:
                continue
            for name, content in sections(program):
                if name.startswith('.text.') and 'AttendFlat' not in name:
                    yield short_name(name.removeprefix('.text.')), measure(content)


def table(found: dict[str, dict[str, int]]) -> str:
    lines = [f"| kernel | {' | '.join(COLUMNS)} |", '|---' * (len(COLUMNS) + 1) + '|']
    for name, row in sorted(found.items()):
        lines.append(f"| `{name}` | {' | '.join(str(row[column]) for column in COLUMNS)} |")
    return '\n'.join(lines) + '\n'


def read_table(text: str) -> dict[str, dict[str, int]]:
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if cells[0].startswith('`'):
            rows[cells[0].strip('`')] = dict(zip(COLUMNS, map(int, cells[1:])))
    return rows


def over_budget(name: str, row: dict[str, int], budget: dict[str, int]) -> Iterator[str]:
    for column in COLUMNS:
        is_worse = row[column] < budget[column] if column == 'loads' else \
            row[column] > budget[column]
        if is_worse:
            yield f'{name}: {column} is {row[column]}, budget {budget[column]}'


def main(arguments: list[str]) -> int:
    checked = arguments[1] if arguments[:1] == ['--check'] else None
    paths = arguments[2:] if checked else arguments
    found = dict(kernels(paths))
    if not found:
        print('sass.py: no kernels for sm_90a in the objects', file=sys.stderr)
        return 1
    if not checked:
        print(f'Made by nvcc {compiler(paths[0])}.\n\n{table(found)}', end='')
        return 0
    with open(checked, encoding='utf-8') as file:
        recorded = file.read()
    if f'Made by nvcc {compiler(paths[0])}.' not in recorded:
        print(f'{checked} is for another compiler: not compared')
        return 0
    budgets = read_table(recorded)
    faults = [f'{name}: no budget' for name in sorted(found) if name not in budgets]
    for name, row in sorted(found.items()):
        if name in budgets:
            faults.extend(over_budget(name, row, budgets[name]))
    print('\n'.join(faults) or f'{len(found)} kernels within their budgets')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
