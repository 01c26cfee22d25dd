"""Runs the built programs. ctest gives their paths in the environment."""

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import threading
import unittest.mock

from quick_models import SHIPPED, UNCHECKED as MODEL  # noqa: F401

CLI = os.environ['LSSAR_CLI']
SERVER = os.environ['LSSAR_SERVER']
TIMEOUT_S = 240  # far longer than any call takes; only a hang reaches it


def clean_environment(**extra):
    """The environment without LSSAR_ variables, so that a user's settings do not change a test."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith('LSSAR_') and name != 'NO_COLOR'}
    return {**kept, **extra}


def run_cli(*arguments, stdin='', model=True, **extra):
    """Runs `lssar` with pipes, by default on the shipped model. -> CompletedProcess of text."""
    command = [CLI, *arguments, *(['--model', MODEL] if model else [])]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S,
                          env=clean_environment(LSSAR_HISTORY='', **extra), check=False)


class FigureProgram:
    """A `lssar-figure`, in a folder that PATH begins with, that keeps what a command gives it:
    matplotlib then draws it in this process, which has imported it once."""

    def __init__(self, folder):
        self.path = f'{folder}:{os.environ["PATH"]}'
        self._program = pathlib.Path(folder, 'lssar-figure')
        self._program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"$0.arguments"\necho ready\n'
                                 'cat >"$0.result"\n')
        self._program.chmod(0o755)

    def draw(self):
        """Writes the figure that the last command asked for."""
        from lssar import figures  # with matplotlib, which few tests need
        arguments = pathlib.Path(f'{self._program}.arguments').read_text().splitlines()
        with (open(f'{self._program}.result', encoding='utf-8') as result,
              unittest.mock.patch('sys.stdin', result), contextlib.redirect_stdout(io.StringIO())):
            if code := figures.main(arguments):
                raise AssertionError(f'{arguments}: {code}')


def run_page(page, python, environment):
    """Runs the Python program of a page of the documentation, which starts servers of its own.
    -> the lines that it prints."""
    [program] = re.findall(r'```python\n(.*?)```', pathlib.Path(page).read_text(encoding='utf-8'),
                           re.DOTALL)
    path = f"{os.path.dirname(os.path.abspath(SERVER))}:{environment['PATH']}"
    done = subprocess.run([python, '-c', program], text=True, timeout=TIMEOUT_S, check=True,
                          stdout=subprocess.PIPE, env={**environment, 'PATH': path})
    return done.stdout.splitlines()


class RunningServer:
    """`lssar-server` on free ports, for a with block; `address` and `http_address` name them."""

    def __init__(self, *flags, model=MODEL):
        self._command = [SERVER, '--model', model, '--listen', '127.0.0.1:0',
                         '--http-listen', '127.0.0.1:0', *flags]

    def __enter__(self):
        self._server = subprocess.Popen(self._command, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True,
                                        env=clean_environment())
        log = ''
        for line in self._server.stdout:
            log += line
            event = json.loads(line) if line.startswith('{') else {}
            if event.get('event') == 'serving':
                self.address, self.http_address = event['address'], event['http_address']
                # A pipe that is not read would block the server.
                threading.Thread(target=self._server.stdout.read, daemon=True).start()
                return self
        raise RuntimeError(f'the server ended with {self._server.wait()}:\n{log}')

    def __exit__(self, *unused):
        self._server.terminate()
        self._server.wait(timeout=TIMEOUT_S)
