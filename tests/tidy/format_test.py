"""Checks that clang-format would change no C++ or CUDA source of the tree.

    python3 tests/tidy/format_test.py
"""

import subprocess
import unittest

import tidy_test


class FormatTest(unittest.TestCase):

    def test_clang_format_changes_nothing(self):
        sources = [path for path in tidy_test.tracked_paths()
                   if path.endswith(('.h', '.cc', '.cu', '.cuh'))
                   and (tidy_test.ROOT / path).exists()]
        self.assertTrue(sources, 'no sources found')
        checked = subprocess.run(['clang-format', '--dry-run', '--Werror', *sources],
                                 cwd=tidy_test.ROOT, capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0,
                         'run clang-format -i on these files:\n' + checked.stderr[:8000])


if __name__ == '__main__':
    unittest.main()
