"""Just enough HTTP/2 to send what no client library sends: single frames over a plain socket.

The standard library alone (RFC 9113 for frames, RFC 7541 for header blocks).
"""

import socket
import struct
import time
import zlib

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
INITIAL_WINDOW_SIZE = 4  # a setting
DEFAULT_WINDOW = 65535
MAX_FRAME = 16384
END_STREAM, ACK, END_HEADERS = 1, 1, 4
CANCEL = 8
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
GENERATE = "/lssar.v1.Inference/Generate"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header field without indexing and without Huffman coding; parts shorter than 127 bytes."""
    return (b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode())


def header_block(path: str, **extra: str) -> bytes:
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x",
              "content-type": "application/grpc", "te": "trailers"}
    fields.update({name.replace("_", "-"): value for name, value in extra.items()})
    return b"".join(literal(name, value) for name, value in fields.items())


def message(payload: bytes, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(payload)) + payload


def gzip_of_zeros(num_bytes: int) -> bytes:
    """A gzip stream that inflates to `num_bytes` zeros, made without holding them."""

    engine = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    parts = [engine.compress(block) for _ in range(num_bytes >> 20)]
    return b"".join(parts) + engine.flush()


class Http2:
    """One connection. `settings` false: the socket alone, nothing sent."""

    def __init__(self, host: str, port: int, source: str = "", settings: bool = True,
                 timeout: float = 120):
        self.socket = socket.create_connection((host, port), timeout=timeout,
                                               source_address=(source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.next_stream = 1
        self.is_gone = False  # the server has closed the connection
        self._window = DEFAULT_WINDOW  # what the server allows for the connection
        self._unparsed = b""
        if settings:
            self.send(PREFACE + frame(SETTINGS, 0, 0))

    def __enter__(self) -> "Http2":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def take_stream(self) -> int:
        stream = self.next_stream
        self.next_stream += 2
        return stream

    def send(self, data: bytes) -> bool:
        """False: the server has closed the connection."""
        try:
            self.socket.sendall(data)
            return True
        except (BrokenPipeError, ConnectionResetError):
            self.is_gone = True
            return False

    def start(self, path: str, payload: bytes | None = None, compressed: bool = False,
              **extra: str) -> int:
        """Begins a call and, with a payload, sends its only message."""
        stream = self.take_stream()
        data = frame(HEADERS, END_HEADERS, stream, header_block(path, **extra))
        if payload is not None:
            data += self.data_frames(stream, message(payload, compressed))
        self.send(data)
        return stream

    @staticmethod
    def data_frames(stream: int, data: bytes, end: bool = True) -> bytes:
        blocks = [data[i:i + MAX_FRAME] for i in range(0, len(data), MAX_FRAME)] or [b""]
        last = len(blocks) - 1 if end else -1
        return b"".join(frame(DATA, END_STREAM if i == last else 0, stream, block)
                        for i, block in enumerate(blocks))

    def read_frames(self, seconds: float):
        """Yields (kind, flags, stream, payload); ends at the time limit or with the connection."""
        deadline = time.monotonic() + seconds
        while True:
            while len(self._unparsed) >= 9:
                length = int.from_bytes(self._unparsed[:3], "big")
                if len(self._unparsed) < 9 + length:
                    break
                kind, flags = self._unparsed[3], self._unparsed[4]
                stream = int.from_bytes(self._unparsed[5:9], "big") & 0x7fffffff
                payload = self._unparsed[9:9 + length]
                self._unparsed = self._unparsed[9 + length:]
                if kind == SETTINGS and not flags & ACK:
                    self.send(frame(SETTINGS, ACK, 0))
                if kind == PING and not flags & ACK:
                    self.send(frame(PING, ACK, 0, payload))
                yield kind, flags, stream, payload
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self.is_gone = True
                return
            self._unparsed += data

    def upload(self, stream: int, data: bytes, end: bool = True,
               seconds: float = 180) -> bytes | None:
        """Sends `data` as the server's flow control allows.

        With `end`, returns as `finish`; without, ends when all is sent.
        """
        window = DEFAULT_WINDOW
        sent = 0
        received = b""

        def send_allowed() -> None:
            nonlocal window, sent
            while sent < len(data) and min(window, self._window) > 0 and not self.is_gone:
                size = min(MAX_FRAME, window, self._window, len(data) - sent)
                is_last = end and sent + size == len(data)
                self.send(frame(DATA, END_STREAM if is_last else 0, stream,
                                data[sent:sent + size]))
                sent += size
                window -= size
                self._window -= size

        send_allowed()
        if not end and sent == len(data):
            return None
        for kind, flags, number, payload in self.read_frames(seconds):
            if kind == SETTINGS and not flags & ACK:
                for i in range(0, len(payload), 6):
                    if int.from_bytes(payload[i:i + 2], "big") == INITIAL_WINDOW_SIZE:
                        window += int.from_bytes(payload[i + 2:i + 6], "big") - DEFAULT_WINDOW
            if kind == WINDOW_UPDATE and number == 0:
                self._window += int.from_bytes(payload, "big")
            elif kind == WINDOW_UPDATE and number == stream:
                window += int.from_bytes(payload, "big")
            elif number == stream:
                received += payload
                if kind == RST_STREAM or flags & END_STREAM and kind in (DATA, HEADERS):
                    return received
            send_allowed()
            if not end and sent == len(data):
                return None
        return None

    def finish(self, stream: int, seconds: float = 120) -> bytes | None:
        """The bytes of the frames of `stream` until it ends; None: it did not end in time."""
        received = b""
        for kind, flags, number, payload in self.read_frames(seconds):
            if number != stream:
                continue
            received += payload
            if kind == RST_STREAM or flags & END_STREAM and kind in (DATA, HEADERS):
                return received
        return None

    def has_shaken_hands(self) -> bool:
        """Whether the server acknowledges the client's settings before it closes the connection."""
        return any(kind == SETTINGS and flags & ACK for kind, flags, _, _ in self.read_frames(120))

    def is_closed(self, seconds: float = 120) -> bool:
        """Whether the server closes the connection within this time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(65536):
                    return True
            except ConnectionResetError:
                return True
            except TimeoutError:
                return False
        return False


def ask_health(host: str, port: int, seconds: float = 120) -> bool:
    """Whether a new connection to the gRPC port answers SERVING."""
    try:
        with Http2(host, port, timeout=seconds) as client:
            answer = client.finish(client.start(HEALTH_CHECK, b""), seconds)
            return answer is not None and b"\x00\x00\x00\x00\x02\x08\x01" in answer
    except OSError:
        return False
