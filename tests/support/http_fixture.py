"""Shared by the tests of the HTTP API: a running lssar-server, raw requests, stream events."""

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any, Iterator

from server_process import MODEL, ServerProcess

NAME = "lssar-6m"


def wait_until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """What `condition` gives once it is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen")


class Server(ServerProcess):
    """With requests to its HTTP port."""

    def __init__(self, *flags: str, model: str = MODEL, state: str = "serving",
                 environment: dict[str, str] | None = None):
        super().__init__(*flags, model=model, state=state, environment=environment)
        self.host, port = self.http_address.rsplit(":", 1)
        self.port = int(port)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=120)

    def raw(self, data: bytes, timeout: float = 120) -> bytes:
        """Sends bytes and reads until the server closes."""
        with socket.create_connection((self.host, self.port), timeout=timeout) as client:
            try:
                client.sendall(data)
            except OSError:
                pass  # refused before its end: the answer is there to read
            received = b""
            try:
                while chunk := client.recv(65536):
                    received += chunk
            except ConnectionResetError:
                pass
            return received

    def request(self, method: str, path: str, body: Any = None,
                headers: dict[str, str] | None = None) -> "Reply":
        connection = self.connect()
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            connection.request(method, path, body,
                               {"Content-Type": "application/json", **(headers or {})})
            reply = connection.getresponse()
            return Reply(reply.status, dict(reply.getheaders()), reply.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> dict[str, Any]:
        """The JSON of a request that must succeed."""
        reply = self.request("POST", path, body, headers)
        if reply.status != 200:
            raise AssertionError(f"{path}: {reply.status} {reply.body!r}")
        return reply.json()

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, parsed; the last is "[DONE]"."""
        reply = self.request("POST", path, {**body, "stream": True})
        if reply.status != 200:
            raise AssertionError(f"{path}: {reply.status} {reply.body!r}")
        if not reply.headers["Content-Type"].startswith("text/event-stream"):
            raise AssertionError(reply.headers)
        return list(events(reply.body.decode()))

    def named_events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, parsed. Their names are those of their types."""
        reply = self.request("POST", path, {**body, "stream": True})
        if reply.status != 200:
            raise AssertionError(f"{path}: {reply.status} {reply.body!r}")
        found = []
        for block in reply.body.decode().split("\n\n"):
            if not block or block.startswith(":"):  # a comment
                continue
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            if name != f"event: {found[-1]['type']}":
                raise AssertionError(block)
        return found

    def metric(self, series: str) -> float:
        for line in self.request("GET", "/metrics").body.decode().splitlines():
            if line.startswith(series + " "):
                return float(line.split()[-1])
        return 0.0

    def wait_until_idle(self, seconds: float = 120) -> None:
        wait_until(lambda: self.metric("lssar_num_requests_running") == 0
                   and self.metric("lssar_num_requests_waiting") == 0, seconds)


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes):
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        return self.json()["error"]


def form(*parts: tuple[str, str | None, bytes]) -> tuple[bytes, str]:
    """A body of multipart/form-data, and its Content-Type."""
    body = b""
    for name, filename, content in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        body += (f'--limit\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
                 ).encode() + content + b"\r\n"
    return body + b"--limit--\r\n", "multipart/form-data; boundary=limit"


def events(text: str) -> Iterator[Any]:
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):  # a comment
            continue
        if not block.startswith("data: "):
            raise AssertionError(f"not an event: {block!r}")
        data = block[len("data: "):]
        yield data if data == "[DONE]" else json.loads(data)
