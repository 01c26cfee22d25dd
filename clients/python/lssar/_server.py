"""A server of one's own: the executable lssar-server as a child process."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Self

LAST_LINES = 20  # of the log that an error quotes
MAX_SOCKET_PATH = 107  # bytes; sockaddr_un


def _end_with_parent() -> list[str]:
    """A command before the server's: the kernel kills the server when the thread that started it
    ends, however that ends. Not subprocess' preexec_fn: it makes Python fork, and gRPC's handlers
    of a fork may wait for each other for ever where a channel was used before."""
    setpriv = shutil.which('setpriv')  # util-linux, a part of every Debian
    return [setpriv, '--pdeathsig', 'KILL'] if setpriv else []


def _private_directory() -> str:
    """A new directory that only this user can enter, with a name that a socket's path has room
    for."""
    directory = tempfile.mkdtemp(prefix='lssar-')
    if len(directory.encode()) + len('/socket') > MAX_SOCKET_PATH:
        shutil.rmtree(directory)
        directory = tempfile.mkdtemp(prefix='lssar-', dir='/tmp')
    return directory


def _without_log_level(flags: Sequence[str]) -> list[str]:
    """The flags but --log-level, which the server takes once."""
    left = []
    words = iter(flags)
    for word in words:
        if word == '--log-level':
            next(words, None)
        elif not word.startswith('--log-level='):
            left.append(word)
    return left


def _serving_event(line: str) -> dict[str, str] | None:
    """The event of a log line that says that the server serves, else None."""
    if not line.startswith('{'):
        return None
    try:
        event: dict[str, str] = json.loads(line)
    except (ValueError, RecursionError):  # not a line of its log
        return None
    return event if event.get('event') == 'serving' else None


def server_program() -> str:
    """The lssar-server that LSSAR_SERVER names (`lssar` names the one beside itself), else the one
    that belongs to this package, else the one in PATH.

    Errors: FileNotFoundError.
    """
    if named := os.environ.get('LSSAR_SERVER'):
        if shutil.which(named) is None:
            raise FileNotFoundError(f'LSSAR_SERVER is {named}: no such program')
        return named
    bundled = pathlib.Path(__file__).parent / 'bin' / 'lssar-server'
    found = str(bundled) if bundled.exists() else shutil.which('lssar-server')
    if found is None:
        raise FileNotFoundError('lssar-server: not part of this installation, not in PATH, and not '
                                'named by LSSAR_SERVER')
    return found


class OwnServer:
    """lssar-server on a Unix socket that only this user can reach, for a with block.

    Attributes:
        address: unix:PATH, for Client.
        http_address: HOST:PORT on this machine, where it has an HTTP port; else empty.
    """

    def __init__(self, model: str, *, program: str = 'lssar-server',
                 flags: Sequence[str] = (), has_http: bool = False,
                 environment: Mapping[str, str] | None = None) -> None:
        """Starts it and waits until it serves. It ends with close(), or with this process.

        Args:
            model: checkpoint directory.
            program: path of the executable, or its name in PATH.
            flags: of lssar-server, such as ('--threads', '4'). --log-level has no effect: the log
                is read here.
            has_http: also opens an HTTP port, which each user of this machine can reach.
            environment: of the process; default: that of this one, with its LSSAR_ variables. Steps
                have no limit of time where neither this nor a flag sets one.

        Errors: RuntimeError with the end of its log, where it does not start; FileNotFoundError.
        """
        path = shutil.which(program)
        if path is None:
            raise FileNotFoundError(f'{program}: no such program')
        self._directory = _private_directory()
        self.address = f'unix:{self._directory}/socket'
        self._command = [*_end_with_parent(), path, '--model', model, '--listen', self.address,
                         '--http-listen', '127.0.0.1:0' if has_http else 'off',
                         # A flag, so that no LSSAR_LOG_LEVEL hides the line "serving".
                         '--log-level', 'info', *_without_log_level(flags)]
        self.http_address = ''
        # A slow device, or a process that waits for busy ones, is not a stuck one, and nobody would
        # start this server again.
        self._environment = {'LSSAR_STEP_TIMEOUT': '0',
                             **(os.environ if environment is None else environment)}
        self._log: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._process: subprocess.Popen[str]  # or the error, once it has started
        self._error: Exception | None = None
        self._has_started, self._is_serving = threading.Event(), threading.Event()
        # The thread starts the server and lives as long as it does, since the server ends with the
        # thread that started it. It reads the log: a pipe that is not read would block the server.
        self._reader = threading.Thread(target=self._run, daemon=True)
        self._reader.start()
        try:
            self._is_serving.wait()
        except BaseException:  # Ctrl-C, which the server does not get
            self._has_started.wait()
            self.close()
            raise
        if self._error is not None:
            self._remove_directory()
            raise self._error
        if self._process.poll() is not None:
            self._remove_directory()
            raise RuntimeError(f'{self._command!r} ended with code {self._process.returncode}:\n'
                               + ''.join(self._log))

    def _run(self) -> None:
        try:
            process = self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors='replace', env=self._environment,
                process_group=0)  # Ctrl-C is for this process
        except Exception as error:  # raised where the server was asked for
            self._error = error
            self._is_serving.set()
            return
        finally:
            self._has_started.set()
        assert process.stdout
        with process.stdout:
            for line in process.stdout:
                self._log.append(line)
                if not self._is_serving.is_set() and (event := _serving_event(line)) is not None:
                    self.http_address = event.get('http_address', '')
                    self._is_serving.set()
        process.wait()
        self._is_serving.set()

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def last_log_lines(self) -> str:
        """The end of its log."""
        return ''.join(self._log)

    def is_running(self) -> bool:
        """False once it has ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it. Idempotent."""
        if self._error is None:
            self._process.kill()  # no drain: its calls are over
            self._process.wait()
        self._reader.join()
        self._remove_directory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
