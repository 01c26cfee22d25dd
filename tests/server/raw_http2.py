"""Just enough HTTP/2 to send what no client library sends: single frames over a plain socket.

The standard library alone (RFC 9113 for frames, RFC 7541 for header blocks).
"""

import socket
import struct
import time
import zlib

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
CANCEL = 8
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
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
                 timeout: float = 30):
        self.socket = socket.create_connection((host, port), timeout=timeout,
                                               source_address=(source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.next_stream = 1
        if settings:
            self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

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
        blocks = [data[i:i + 16384] for i in range(0, len(data), 16384)] or [b""]
        return b"".join(frame(DATA, END_STREAM if end and i == len(blocks) - 1 else 0, stream, block)
                        for i, block in enumerate(blocks))

    def read_frames(self, seconds: float):
        """Yields (kind, flags, stream, payload); ends at the time limit or with the connection."""
        deadline = time.monotonic() + seconds
        buffer = b""
        while True:
            while len(buffer) >= 9:
                length = int.from_bytes(buffer[:3], "big")
                if len(buffer) < 9 + length:
                    break
                kind, flags = buffer[3], buffer[4]
                stream = int.from_bytes(buffer[5:9], "big") & 0x7fffffff
                payload, buffer = buffer[9:9 + length], buffer[9 + length:]
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
            except (TimeoutError, ConnectionResetError):
                return
            if not data:
                return
            buffer += data

    def finish(self, stream: int, seconds: float = 10) -> bytes | None:
        """The bytes of the frames of `stream` until it ends; None: it did not end in time."""
        received = b""
        for kind, flags, number, payload in self.read_frames(seconds):
            if number != stream:
                continue
            received += payload
            if kind == RST_STREAM or flags & END_STREAM and kind in (DATA, HEADERS):
                return received
        return None

    def is_closed(self, seconds: float) -> bool:
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


def ask_health(host: str, port: int, seconds: float = 10) -> bool:
    """Whether a new connection to the gRPC port answers SERVING."""
    try:
        with Http2(host, port, timeout=seconds) as client:
            answer = client.finish(client.start(HEALTH_CHECK, b""), seconds)
            return answer is not None and b"\x00\x00\x00\x00\x02\x08\x01" in answer
    except OSError:
        return False
