"""lssar-server as a process of a test, on free ports, with its log lines as they arrive.

LSSAR_SERVER is the program. Run from the repository's root.
"""

import atexit
import functools
import json
import os
import pathlib
import queue
import re
import resource
import signal
import struct
import subprocess
import tempfile
import threading
import time
from typing import Any

from unchecked_model import UNCHECKED as MODEL

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


@functools.cache
def unchecked_model() -> str:
    """MODEL without golden rows: their check is four fifths of the time that a server takes to
    start. tests/golden checks them, and every start of the program by the Python package."""
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    copy = pathlib.Path(directory.name, pathlib.Path(MODEL).name)
    copy.mkdir()
    for file in pathlib.Path(MODEL).iterdir():
        if file.is_file() and file.name != "golden.safetensors":
            (copy / file.name).symlink_to(file.resolve())
    return str(copy)


@functools.cache
def shallow_model() -> str:
    """The first layer of MODEL, by the same name: a third of the work for a token, where any text
    does. Without golden rows."""
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    copy = pathlib.Path(directory.name, pathlib.Path(MODEL).name)
    copy.mkdir()
    for file in pathlib.Path(MODEL).glob("tokenizer*"):
        (copy / file.name).symlink_to(file.resolve())
    config = json.loads(pathlib.Path(MODEL, "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "n_layer": 1}))
    data = pathlib.Path(MODEL, "model.safetensors").read_bytes()
    (header_size,) = struct.unpack_from("<Q", data)
    begin, header, content = 8 + header_size, {}, b""
    for name, tensor in json.loads(data[8:begin]).items():
        if not re.search(r"\.h\.[1-9]", name) and name != "__metadata__":
            first, last = tensor["data_offsets"]
            header[name] = {**tensor, "data_offsets": [len(content), len(content) + last - first]}
            content += data[begin + first:begin + last]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content)
    return str(copy)


class ServerProcess:
    def __init__(self, *flags: str, listen: str = "127.0.0.1:0", model: str = MODEL,
                 state: str = "serving", max_files: int | None = None,
                 environment: dict[str, str] | None = None):
        """Returns once the server has logged the event `state`."""
        if model == MODEL and not {"--device", "--dtype", "--kv-cache-dtype"} & {*flags}:
            model = unchecked_model()
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
