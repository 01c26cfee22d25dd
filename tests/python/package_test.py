"""The package as users get it: installed by pip, built as wheel and sdist, checked by mypy."""

import json
import pathlib
import shutil
import sys
import tempfile
import tomllib
import unittest
import zipfile

from environments import (CLIENT, HERE, environment, is_current, isolated, pip, run,
                          source_files)


# Debian 12's pip, and today's; they are kept in the environment.
PIPS = '23.0.1', '26.3'
EXTRAS = {'import': {'gguf', 'jinja2', 'numpy'},
          'import-torch': {'gguf', 'jinja2', 'numpy', 'torch'},
          'lm-eval': {'lm-eval'}, 'plot': {'matplotlib'}, 'progress': {'tqdm'}, 'ray': {'ray'}}
# Each requirement with the packages that pip would install for it; a start of pip takes half a
# second.
RESOLVE = '''
import json, sys
from pip._internal.cli.main import main
report, index, *requirements = sys.argv[1:]
found = []
for each in requirements:
    code = main(['install', '--dry-run', '--report', report, '--ignore-installed', '--no-index',
                 '--find-links', index, each])
    if code:
        sys.exit(code)
    with open(report) as file:
        found.append([package['metadata']['name'] for package in json.load(file)['install']])
print(json.dumps(found))
'''


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
        spellings = [(extra, spelled) for extra in EXTRAS
                     for spelled in sorted({extra, extra.replace('-', '_')})]
        for version in PIPS:
            home = self.python.parents[1] / f'pip-{version}'
            if not is_current(home / 'version', version):
                shutil.rmtree(home, ignore_errors=True)
                pip(self.python, 'install', '-q', '--no-deps', '--target', home, f'pip=={version}')
                (home / 'version').write_text(version)
            done = run(self.python, '-c', RESOLVE, self.scratch / 'report.json', index,
                       *(f'{wheel}[{spelled}]' for _, spelled in spellings),
                       env=isolated(PYTHONPATH=str(home)))
            self.assertNotIn('does not provide the extra', done.stdout)
            found = json.loads(done.stdout.splitlines()[-1])
            for (extra, spelled), names in zip(spellings, found, strict=True):
                self.assertEqual(set(names), {'lssar', 'grpcio', 'protobuf'} | EXTRAS[extra],
                                 f'pip {version}, [{spelled}]')

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
        """The package's, and those of a program that uses it."""
        done = run(self.python, '-m', 'mypy', '--config-file', CLIENT / 'pyproject.toml',
                   '--cache-dir', self.python.parents[1] / 'mypy', '-p', 'lssar',
                   '-m', 'typed_program', cwd=self.scratch, env=isolated(MYPYPATH=str(HERE)))
        self.assertIn('no issues found', done.stdout)

    def test_zz_nothing_was_left_in_the_source_tree(self):
        files = [path for path in CLIENT.rglob('*') if '__pycache__' not in path.parts]
        self.assertEqual(files, self.files_before)


if __name__ == '__main__':
    unittest.main()
