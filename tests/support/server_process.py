"""lssar-server as a process of a test, on free ports, with its log lines as they arrive.

LSSAR_SERVER is the program. Run from the repository's root.
"""

import json
import os
import queue
import resource
import signal
import subprocess
import threading
import time
from typing import Any

from quick_models import UNCHECKED as MODEL

# A test that runs behind a shell's `&` inherits that they are ignored, and a server would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

SERVER = os.environ["LSSAR_SERVER"]
IS_SANITIZED = os.environ.get("LSSAR_SANITIZED") == "1"


def check_health(*flags: str, environment: dict[str, str] | None = None
                 ) -> subprocess.CompletedProcess[str]:
    """`lssar-server --check-health`, until it succeeds. It waits for three seconds; a machine may
    stall for longer."""
    deadline = time.monotonic() + 120
    while True:
        done = subprocess.run([SERVER, "--check-health", *flags], env=environment, text=True,
                              capture_output=True, timeout=120, check=False)
        if done.returncode == 0 or time.monotonic() > deadline:
            return done


class ServerProcess:
    def __init__(self, *flags: str, listen: str = "127.0.0.1:0", model: str = MODEL,
                 state: str = "serving", max_files: int | None = None,
                 environment: dict[str, str] | None = None):
        """Returns once the server has logged the event `state`."""
        # Not subprocess' preexec_fn: it makes Python fork, and gRPC's handlers may write to stderr.
        limit = [] if max_files is None else ["prlimit", f"--nofile={max_files}"]
        command = [*limit, SERVER, "--model", model, "--listen", listen,
                   "--http-listen", "127.0.0.1:0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                        env=environment)
        self._texts: list[str] = []
        self.lines: list[dict[str, Any]] = []  # of the log
        self._unread: queue.Queue[dict[str, Any] | None] = queue.Queue()  # None: the log has ended
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        begun = self.wait_for(state)
        self.address: str = begun["address"]
        self.http_address: str = begun["http_address"]

    @property
    def log(self) -> str:
        return "".join(self._texts)

    def _read(self) -> None:
        try:
            for text in self.process.stderr:
                self._texts.append(text)
                line = json.loads(text)
                self.lines.append(line)
                self._unread.put(line)
        finally:
            self._unread.put(None)
            self.process.stderr.close()

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next line of the log that tells of it."""
        deadline = time.monotonic() + 120
        while True:
            line = self._unread.get(timeout=max(0.1, deadline - time.monotonic()))
            if line is None:
                self._unread.put(None)
                raise AssertionError(f"the server ended before {event}:\n{self.log}")
            if line["event"] == event:
                return line

    def resident_bytes(self) -> int:
        """0 of a sanitized server: shadow memory and the memory that it keeps after free count."""
        if IS_SANITIZED:
            return 0
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def wait(self) -> int:
        """Its exit code."""
        code = self.process.wait(timeout=120)
        self._reader.join()
        return code

    def stop(self) -> int:
        """Asks it to end, unless it has; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()
