"""The scripts of deploy/ delete nothing that is not theirs, and go on after a run that was stopped.

Each runs in a tree of its own, with programs that stand in for what it would install or build.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class ScriptsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tree = self.folder / 'tree'
        self.bin = self.folder / 'bin'
        self.bin.mkdir()

    def copy(self, *paths):
        for path in paths:
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.tree / path)

    def program(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('#!/bin/sh\n' + text)
        path.chmod(0o755)

    def run_script(self, path, *arguments, cwd=None, **variables):
        """(exit code, output) of a script of the tree."""
        done = subprocess.run(
            ['sh', self.tree / path, *arguments], cwd=cwd or self.tree, text=True, timeout=60,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            env={**os.environ, 'PATH': f'{self.bin}:{os.environ["PATH"]}', **variables})
        return done.returncode, done.stdout

    def test_a_prefix_of_others_is_not_replaced(self):
        self.copy('deploy/xgrammar.sh', 'deploy/xgrammar/CMakeLists.txt',
                  'deploy/xgrammar/requirements.txt', 'deploy/xgrammar/work_limit.h')
        prefix = self.folder / 'usr'
        (prefix / 'lib').mkdir(parents=True)
        # Without a folder for its work it would end.
        code, said = self.run_script('deploy/xgrammar.sh', LSSAR_XGRAMMAR_PREFIX=str(prefix),
                                     TMPDIR=str(self.folder / 'no folder'))
        self.assertEqual((code, said), (2, f'LSSAR_XGRAMMAR_PREFIX: {prefix} has other files; it '
                                           'must be new or empty\n'))

    def test_a_suite_is_a_name(self):
        self.copy('deploy/prove-wheel.sh', 'deploy/packages.sh', 'deploy/steps.sh')
        for suite in '..', '':
            code, said = self.run_script('deploy/prove-wheel.sh', '--suite', suite, 'none.whl')
            self.assertEqual((code, said), (2, f'prove-wheel: --suite is "{suite}"; it must be '
                                               'bookworm, trixie or bullseye\n'))

    def test_the_folder_of_the_gpu_tests(self):
        self.copy('tests/gpu/build.sh')
        self.program(self.bin / 'cmake', 'exit 1\n')
        (self.folder / 'mine').mkdir()
        (self.folder / 'mine' / 'a.txt').write_text('precious')
        done = subprocess.run(
            ['bash', self.tree / 'tests/gpu/build.sh', self.folder / 'mine'], text=True,
            capture_output=True, timeout=60, check=False,
            env={**os.environ, 'PATH': f'{self.bin}:{os.environ["PATH"]}'})
        self.assertEqual((done.returncode, done.stderr), (
            2, f'build.sh: FOLDER {self.folder / "mine"} has other files; it must be new, empty or '
               'of an earlier build\n'))


if __name__ == '__main__':
    unittest.main()
