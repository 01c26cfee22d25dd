"""Virtual environments with packages from PyPI, kept between runs.

Their programs run without -B: a package is compiled where it is first imported. To compile all that
is installed costs three minutes of a core."""

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / 'clients' / 'python'
PROTO = HERE.parents[1] / 'proto' / 'lssar' / 'v1' / 'inference.proto'
# Requirements files by environment. Tests that use the same one hold ctest's lock of its name.
REQUIREMENTS = {'foreign': HERE.parent / 'requirements.txt',
                'tools': HERE.parent / 'requirements-tools.txt',
                'guidellm': HERE.parent / 'requirements-guidellm.txt',
                'benchmarks': HERE.parent / 'requirements-benchmarks.txt',
                'llama-index': HERE.parent / 'requirements-llama-index.txt',
                'import': HERE.parent / 'requirements-import.txt',
                'real': HERE.parent / 'requirements-real.txt',
                'import-torch': HERE.parent / 'requirements-import-torch.txt',
                'types': HERE / 'requirements-types.txt',
                'ruler': HERE.parent / 'requirements-ruler.txt',
                'ray': HERE.parent / 'requirements-ray.txt',
                'deployment': HERE.parent / 'requirements-deployment.txt',
                'examples': HERE.parent / 'requirements-examples.txt',
                'schemathesis': HERE.parent / 'requirements-schemathesis.txt',
                'structured': HERE.parent / 'requirements-structured.txt',
                'traces': HERE.parent / 'requirements-traces.txt',
                'xgrammar': HERE.parent / 'requirements-xgrammar.txt',
                'docs': HERE.parents[1] / 'docs' / 'requirements.txt'}
DIRECTORY = pathlib.Path(os.environ.get('LSSAR_VENVS', 'build/venvs')).resolve()
UV = 'uv==0.13.9'  # installs in a third of pip's time
# Where pip looks for packages, as uv's flags.
PIP_INDEXES = {'PIP_INDEX_URL': '--index-url', 'PIP_EXTRA_INDEX_URL': '--extra-index-url'}
PIP_VARIABLES = {**PIP_INDEXES, 'PIP_FIND_LINKS': '--find-links'}
# What requirements depend on has no versions in their files: a release of tomorrow changes no test.
# To be moved together with the versions in requirements*.txt.
NEWEST = '2026-11-30'
UNREACHABLE = re.compile(r'NewConnectionError|ConnectionError|ConnectTimeout|ReadTimeout|ProxyError'
                         r'|Temporary failure in name resolution|Connection refused'
                         r'|tcp connect error|dns error|operation timed out|network timeout')
TIMEOUT_S = 900  # an installation on a busy machine; alone it takes 25 s
# uv's 30 are too few for a proxy that reads a package before it hands it on. uv tries four times.
NETWORK_TIMEOUT_S = 180


def run(*command, **options):
    """Runs a command. -> CompletedProcess of text. Errors: AssertionError with its output."""
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False, **options)
    if done.returncode:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}')
    return done


def isolated(**extra):
    """The environment without this test's own paths."""
    return {**{name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}, **extra}


def run_online(*command):
    """Runs a command that needs PyPI, and if it fails once more: a proxy may cut a download.
    Errors: SkipTest where PyPI cannot be reached."""
    variables = isolated(UV_HTTP_TIMEOUT=str(NETWORK_TIMEOUT_S))
    try:
        return run(*command, env=variables)
    except AssertionError as error:
        if UNREACHABLE.search(str(error)):
            raise unittest.SkipTest('PyPI cannot be reached') from None
    return run(*command, env=variables)


def pip(python, *arguments):
    """Runs pip. Errors: SkipTest where PyPI cannot be reached."""
    return run_online(python, '-m', 'pip', '--retries', '1', '--timeout', '30', *arguments)


def uv():
    """The program uv, which all tests share. Errors: SkipTest where PyPI cannot be reached."""
    directory = DIRECTORY / 'uv'
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with open(DIRECTORY / 'uv.lock', 'w', encoding='utf-8') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_current(directory / 'version', UV):
            shutil.rmtree(directory, ignore_errors=True)
            run(sys.executable, '-m', 'venv', directory)
            pip(directory / 'bin' / 'python', 'install', '-q', UV)
            (directory / 'version').write_text(UV)
    return directory / 'bin' / 'uv'


def install(python, *arguments):
    """Installs packages as `pip install` does. Errors: SkipTest where PyPI cannot be reached."""
    sources = [word for name, flag in PIP_VARIABLES.items()
               for each in os.environ.get(name, '').split() for word in (flag, each)]
    # Other indexes need not say when a package came.
    dated = [] if any(map(os.environ.get, PIP_INDEXES)) else ['--exclude-newer', NEWEST]
    run_online(uv(), 'pip', 'install', '-q', '--system-certs', *sources, *dated, '--python', python,
               *arguments)


def source_files():
    """Files of the client, without what Python writes on its own."""
    return sorted(path for path in CLIENT.rglob('*')
                  if path.is_file() and '__pycache__' not in path.parts)


def is_current(stamp, key):
    """True where an earlier run finished the same work."""
    return stamp.exists() and stamp.read_text() == key


def environment(name, has_client=True, is_debian=False, is_complete=False):
    """The Python of an environment with the requirements of `name` and, mostly, the client.
    `is_debian`: what they depend on are packages of Debian. `is_complete`: the requirements list
    all that is needed of what they depend on."""
    directory = DIRECTORY / name
    python = directory / 'bin' / 'python'
    requirements = REQUIREMENTS[name]
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not is_current(directory / 'requirements.sha256', key):
        shutil.rmtree(directory, ignore_errors=True)
        if is_debian:
            run('/usr/bin/python3', '-m', 'venv', '--system-site-packages', directory)
        else:
            run(sys.executable, '-m', 'venv', directory)
        options = ['--no-deps'] if is_debian or is_complete else []
        install(python, *options, '-r', requirements)
        (directory / 'requirements.sha256').write_text(key)
    if not has_client:
        return python
    content = b''.join(path.read_bytes() for path in [*source_files(), PROTO])
    key = hashlib.sha256(content).hexdigest()
    if not is_current(directory / 'client.sha256', key):
        pip(python, 'install', '-q', '--no-build-isolation', '--no-deps', '--force-reinstall',
            CLIENT)
        (directory / 'client.sha256').write_text(key)
    return python


def changed(folder, package, statements):
    """Makes `folder` an entry for PYTHONPATH where `package` is the installed one, as `statements`
    leave it: so that a test need not wait for what a foreign program does before its work."""
    directory = pathlib.Path(folder) / package
    directory.mkdir(parents=True)
    (directory / '__init__.py').write_text(
        f'import sys\nsys.path.remove({str(folder)!r})\ndel sys.modules[{package!r}]\n'
        f'import {package}\n{statements}\n', encoding='utf-8')
    return str(folder)


# lm-eval's program reads its own thousands of task files first, in 13 s of the CPU. So it knows
# those of --include_path alone.
OWN_TASKS_ALONE = '''
import lm_eval.tasks
*others, _, metadata = lm_eval.tasks.TaskManager.__init__.__defaults__
lm_eval.tasks.TaskManager.__init__.__defaults__ = *others, False, metadata
'''


def run_in(name, *packages, **variables):
    """Runs this program again with the Python of environment `name`, unless it runs there already,
    and exits as that did. Where PyPI cannot be reached it says so and exits with 0.

    The package is that of the source tree, not the copy that was installed.

    Args:
        packages: more requirements, without what they depend on.
        variables: of the program's environment.
    """
    inside = 'LSSAR_TEST_ENVIRONMENT'
    if os.environ.get(inside) == name:
        return
    try:
        python = environment(name)
        if packages:
            install(python, '--no-deps', *packages)
    except unittest.SkipTest as error:
        print(error)
        sys.exit(0)
    path = [str(CLIENT), *os.environ.get('PYTHONPATH', '').split(':')]
    sys.exit(subprocess.run(
        [python, *sys.argv], check=False,
        env={**os.environ, **variables, inside: name, 'PYTHONPATH': ':'.join(path)}).returncode)
