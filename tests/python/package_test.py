"""The package as users get it: installed by pip, built as wheel and sdist, checked by mypy."""

import json
import pathlib
import sys
import tempfile
import tomllib
import unittest
import zipfile

from environments import CLIENT, HERE, environment, isolated, pip, run, source_files


# Debian 12's pip, and today's.
PIPS = '23.0.1', '26.3'
EXTRAS = {'import': {'gguf', 'jinja2', 'numpy'},
          'import-torch': {'gguf', 'jinja2', 'numpy', 'torch'},
          'lm-eval': {'lm-eval'}, 'plot': {'matplotlib'}, 'progress': {'tqdm'}, 'ray': {'ray'}}


def empty_wheel(directory, name, extra=None):
    """Writes a wheel of version 999 without files, and with an extra that needs nothing."""
    info = f'{name.replace("-", "_")}-999.dist-info'
    extras = f'Provides-Extra: {extra}\n' if extra else ''
    wheel = f'{name.replace("-", "_")}-999-py3-none-any.whl'
    with zipfile.ZipFile(directory / wheel, 'w') as file:
        file.writestr(f'{info}/METADATA',
                      f'Metadata-Version: 2.1\nName: {name}\nVersion: 999\n{extras}')
        file.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\n'
                                       'Tag: py3-none-any\n')
        file.writestr(f'{info}/RECORD', '')


class PackageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.files_before = [path for path in CLIENT.rglob('*') if '__pycache__' not in path.parts]
        cls.python = environment('types')
        cls.scratch = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def test_the_installed_package_works_without_the_repository(self):
        script = ('import lssar, lssar.v1.inference_pb2 as pb; '
                  'print(lssar.Client.__name__, pb.FinishReason.Name(1), lssar.__version__)')
        done = run(self.python, '-I', '-c', script, cwd=self.scratch)
        version = tomllib.loads((CLIENT / 'pyproject.toml').read_text())['project']['version']
        self.assertEqual(done.stdout, f'Client FINISH_REASON_EOS {version}\n')

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

    def test_extras_by_every_spelling(self):
        """What pip would install, of an index of empty packages."""
        index = self.scratch / 'index'
        index.mkdir()
        for name in {'grpcio', 'protobuf'}.union(*EXTRAS.values()):
            empty_wheel(index, name, {'lm-eval': 'api', 'ray': 'data'}.get(name))
        pip(self.python, 'wheel', '-q', '--no-build-isolation', '--no-deps', '-w', index, CLIENT)
        [wheel] = index.glob('lssar-*.whl')
        for version in PIPS:
            home = self.scratch / f'pip-{version}'
            pip(self.python, 'install', '-q', '--no-deps', '--target', home, f'pip=={version}')
            for extra, packages in EXTRAS.items():
                for spelled in {extra, extra.replace('-', '_')}:
                    report = self.scratch / 'report.json'
                    done = run(self.python, '-m', 'pip', 'install', '--dry-run', '--report', report,
                               '--ignore-installed', '--no-index', '--find-links', index,
                               f'{wheel}[{spelled}]', env=isolated(PYTHONPATH=str(home)))
                    names = {each['metadata']['name']
                             for each in json.loads(report.read_text())['install']}
                    self.assertEqual(names, {'lssar', 'grpcio', 'protobuf'} | packages,
                                     f'pip {version}, [{spelled}]')
                    self.assertNotIn('does not provide the extra', done.stdout)

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
