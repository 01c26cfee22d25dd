"""A server of one's own: the executable lssar-server as a child process."""

from __future__ import annotations

import collections
import json
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Self

LAST_LINES = 20  # of the log that an error quotes


def _end_with_parent() -> list[str]:
    """A command before the server's: the kernel kills the server when its parent ends, however that
    ends. Not subprocess' preexec_fn: it makes Python fork, and gRPC's handlers of a fork may wait
    for each other for ever where a channel was used before."""
    setpriv = shutil.which('setpriv')  # util-linux, a part of every Debian
    return [setpriv, '--pdeathsig', 'KILL'] if setpriv else []


class OwnServer:
    """lssar-server on a free port of the loopback interface, for a with block.

    Attributes:
        address: HOST:PORT, for Client.
    """

    def __init__(self, model: str, *, program: str = 'lssar-server',
                 flags: Sequence[str] = (),
                 environment: Mapping[str, str] | None = None) -> None:
        """Starts it and waits until it serves.

        Args:
            model: checkpoint directory.
            program: path of the executable, or its name in PATH.
            flags: of lssar-server, such as ('--threads', '4').
            environment: of the process; default: that of this one, with its LSSAR_ variables.

        Errors: RuntimeError with the end of its log, where it does not start; FileNotFoundError.
        """
        path = shutil.which(program)
        if path is None:
            raise FileNotFoundError(f'{program}: no such program')
        command = [*_end_with_parent(), path, '--model', model, '--listen', '127.0.0.1:0',
                   '--http-listen', 'off', *flags]
        self._log: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                         text=True, errors='replace', env=environment)
        self.address = self._wait_for_address()
        # A pipe that is not read would block the server.
        threading.Thread(target=self._read_log, daemon=True).start()

    def _wait_for_address(self) -> str:
        assert self._process.stdout
        for line in self._process.stdout:
            self._log.append(line)
            event = json.loads(line) if line.startswith('{') else {}
            if event.get('event') == 'serving':
                return str(event['address'])
        code = self._process.wait()
        raise RuntimeError(f'{self._process.args!r} ended with code {code}:\n'
                           + ''.join(self._log))

    def _read_log(self) -> None:
        assert self._process.stdout
        self._log.extend(self._process.stdout)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def is_running(self) -> bool:
        """False once it has ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it."""
        self._process.kill()  # no drain: its calls are over
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
