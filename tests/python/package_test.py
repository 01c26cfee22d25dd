"""The package as users get it: installed by pip, built as wheel and sdist, checked by mypy."""

import pathlib
import sys
import tempfile
import unittest
import zipfile

from environments import CLIENT, HERE, environment, isolated, pip, run, source_files


class PackageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.files_before = [path for path in CLIENT.rglob('*') if '__pycache__' not in path.parts]
        cls.python = environment('types')
        cls.scratch = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def test_the_installed_package_works_without_the_repository(self):
        script = ('import lssar, lssar.v1.inference_pb2 as pb; '
                  'print(lssar.Client.__name__, pb.FinishReason.Name(1))')
        done = run(self.python, '-I', '-c', script, cwd=self.scratch)
        self.assertEqual(done.stdout, 'Client FINISH_REASON_EOS\n')

    def test_wheel_and_sdist(self):
        run(self.python, '-m', 'build', '--no-isolation', '-o', self.scratch, CLIENT,
            env=isolated())
        [wheel] = self.scratch.glob('lssar-*-py3-none-any.whl')
        names = set(zipfile.ZipFile(wheel).namelist())
        for path in source_files():
            if 'lssar' in path.relative_to(CLIENT).parts:
                self.assertIn(str(path.relative_to(CLIENT)), names)
        self.assertLessEqual({'lssar/v1/inference_pb2.py', 'lssar/v1/inference_pb2.pyi',
                              'lssar/py.typed'}, names)
        self.assertEqual([name for name in names if name.endswith('_grpc.py')], [])
        # `build` makes the wheel from the sdist: it holds all that a wheel needs.
        self.assertEqual(len(list(self.scratch.glob('lssar-*.tar.gz'))), 1)

    def test_debians_grpc_and_protobuf_serve_as_well(self):
        target = self.scratch / 'target'
        pip(self.python, 'install', '-q', '--no-build-isolation', '--no-deps', '--target', target,
            CLIENT)
        done = run(sys.executable, '-B', HERE / 'client_unit_test.py', 'SurfaceTest',
                   env=isolated(PYTHONPATH=f'{target}:{HERE}:{self.generated()}'))
        self.assertIn('OK', done.stdout)

    def generated(self):
        """The service classes that the scripted server needs, generated beside the package's."""
        directory = self.scratch / 'generated'
        run(sys.executable, '-B', CLIENT / 'generate_stubs.py', directory, '--grpc')
        return directory

    def test_types_are_strict(self):
        cache = self.scratch / 'mypy'
        done = run(self.python, '-m', 'mypy', '--config-file', CLIENT / 'pyproject.toml',
                   '--cache-dir', cache, cwd=self.scratch, env=isolated())
        self.assertIn('no issues found', done.stdout)
        done = run(self.python, '-m', 'mypy', '--strict', '--warn-unused-ignores', '--cache-dir',
                   cache, HERE / 'typed_program.py', cwd=self.scratch, env=isolated())
        self.assertIn('no issues found', done.stdout)

    def test_zz_nothing_was_left_in_the_source_tree(self):
        files = [path for path in CLIENT.rglob('*') if '__pycache__' not in path.parts]
        self.assertEqual(files, self.files_before)


if __name__ == '__main__':
    unittest.main()
