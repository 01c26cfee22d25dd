"""Attacks on the gRPC port's connections, over plain sockets, each against a server of its own.

The standard library alone. Run by ctest from the repository's root with LSSAR_SERVER set.
"""

import os
import resource
import signal
import socket
import struct
import time
import unittest
from typing import Callable

from raw_http2 import (CANCEL, CONTINUATION, END_HEADERS, END_STREAM, GENERATE, HEADERS, REFLECTION,
                       RST_STREAM, Http2, ask_health, frame, gzip_of_zeros, header_block, message)
from server_process import IS_SANITIZED, ServerProcess, check_health


class Server(ServerProcess):
    """With a small context, raw connections and its metrics."""

    def __init__(self, *flags: str, max_files: int | None = None):
        super().__init__("--max-model-len", "2048", "--threads", "1", *flags, max_files=max_files)
        self.port = int(self.address.rsplit(":", 1)[1])
        self.http_port = int(self.http_address.rsplit(":", 1)[1])

    def connect(self, source: str = "", settings: bool = True) -> Http2:
        return Http2("127.0.0.1", self.port, source, settings)

    def get(self, path: str) -> tuple[int, str]:
        with socket.create_connection(("127.0.0.1", self.http_port), timeout=120) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
                           f"Connection: close\r\n\r\n".encode())
            received = b""
            while chunk := client.recv(65536):
                received += chunk
        head, _, body = received.decode().partition("\r\n\r\n")
        return int(head.split()[1]), body

    def metric(self, series: str) -> float:
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(series + " "):
                return float(line.split()[-1])
        raise AssertionError(f"no {series}")

    def num_threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def check_health(self) -> int:
        return check_health("--listen", f"127.0.0.1:{self.port}",
                            "--http-listen", f"127.0.0.1:{self.http_port}").returncode


class ConnectionsTest(unittest.TestCase):
    def start(self, *flags: str, max_files: int | None = None) -> Server:
        server = Server(*flags, max_files=max_files)
        self.addCleanup(server.stop)
        return server

    def wait_until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def expect_serving(self, server: Server) -> None:
        self.assertTrue(ask_health("127.0.0.1", server.port))
        # Not at once after a stall: the server's own probe of the gRPC port has to come first.
        self.wait_until(lambda: server.get("/readyz") == (200, "ok\n"))
        self.assertIsNone(server.process.poll())

    def test_idle_connections_at_the_limit_of_open_files(self) -> None:
        server = self.start(max_files=512)
        limited = next(line for line in server.lines if line["event"] == "connections limited")
        self.assertEqual(limited["max_connections"], (512 - 256) // 3)
        clients = [server.connect(settings=False) for _ in range(600)]
        self.wait_until(lambda: any("connections refused" == line["event"]
                                    for line in server.lines))
        for client in clients:
            client.close()
        self.wait_until(lambda: server.metric('lssar_connections{port="grpc"}') < 10)
        self.expect_serving(server)
        self.assertEqual(server.check_health(), 0)

    @unittest.skipIf(IS_SANITIZED, "the sanitizer checks types with descriptors of its own")
    def test_out_of_descriptors_after_the_start(self) -> None:
        server = self.start()
        num_files = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE,
                         (num_files + 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        clients = [server.connect(settings=False) for _ in range(60)]
        # The connections that are one too many are closed at once.
        self.assertTrue(clients[-1].is_closed())
        for client in clients:
            client.close()
        self.wait_until(lambda: ask_health("127.0.0.1", server.port, 10))
        refused = 'lssar_connections_refused_total{port="grpc",reason="no_descriptors"}'
        self.wait_until(lambda: server.metric(refused) > 0)
        self.expect_serving(server)

    def test_limits_in_total_and_per_address(self) -> None:
        server = self.start("--max-connections", "32", "--max-connections-per-address", "10")
        first = [server.connect("127.0.0.2") for _ in range(11)]
        self.assertTrue(first[-1].is_closed())
        self.wait_until(lambda: server.metric(
            'lssar_connections_refused_total{port="grpc",reason="max_connections_per_address"}'
        ) == 1)
        # The last two of 32 are for addresses without a connection: 127.0.0.5 gets one of them.
        second = [server.connect(f"127.0.0.{3 + i // 10}") for i in range(22)]
        self.assertTrue(second[-1].is_closed())
        self.assertFalse(second[-2].is_closed(0.2))
        for client in first + second:
            client.close()
        self.wait_until(lambda: server.metric('lssar_connections{port="grpc"}') < 2)
        self.expect_serving(server)
        self.assertFalse(server.connect("127.0.0.2").is_closed(0.2))

    def test_handshake_has_a_deadline(self) -> None:
        server = self.start("--handshake-timeout", "1s")
        client = server.connect()
        # A machine may stall for longer between the connection and its first bytes: once more then.
        deadline = time.monotonic() + 120
        while not client.has_shaken_hands():
            self.assertLess(time.monotonic(), deadline)
            client.close()
            client = server.connect()
        with client, server.connect(settings=False) as silent:
            self.assertTrue(silent.is_closed())
            self.assertFalse(client.is_closed(0.5))

    def test_compressed_message_is_refused_and_never_inflated(self) -> None:
        server = self.start()
        bomb = gzip_of_zeros(64 << 20)  # to 64 KiB
        before = server.resident_bytes()
        for path in (GENERATE, "/grpc.health.v1.Health/Check"):
            with server.connect() as client:
                answer = client.finish(client.start(path, bomb[:60000], compressed=True,
                                                    grpc_encoding="gzip"))
                self.assertIsNotNone(answer)
                self.assertIn(b"12", answer)  # UNIMPLEMENTED
                self.assertIn(b"is disabled", answer)
        self.assertLess(server.resident_bytes() - before, 16 << 20)
        self.expect_serving(server)

    def test_idle_reflection_streams_hold_no_threads(self) -> None:
        server = self.start()
        with server.connect() as client:
            before = server.num_threads()
            streams = [client.start(REFLECTION) for _ in range(200)]
            # Beyond 128 they are refused.
            self.assertIsNotNone(client.finish(streams[-1]))
            # Not one each. gRPC has some more where its threads do not run in time.
            self.assertLess(server.num_threads() - before, 64)
        self.expect_serving(server)

    def test_a_large_reflection_request_is_refused(self) -> None:
        server = self.start()
        name = b"x" * (20 << 20)
        request = message(b"\x1a" + b"\x80\x80\x80\x0a" + name)  # file_by_filename
        with server.connect() as client:
            before = server.resident_bytes()
            answer = client.upload(client.start(REFLECTION), request)
            self.assertIn(b"it may have 4096", answer)
            self.wait_until(lambda: server.resident_bytes() < before + (50 << 20))
        self.expect_serving(server)

    def test_calls_without_a_request_are_bounded_per_address(self) -> None:
        server = self.start()
        before = server.resident_bytes()
        others = server.connect("127.0.0.9")
        others.start(GENERATE)
        clients = []
        for _ in range(20):
            client = server.connect("127.0.0.8")
            for _ in range(1000):
                client.start(GENERATE)
            clients.append(client)
        closed = 'lssar_connections_closed_total{reason="idle_streams"}'
        self.wait_until(lambda: server.metric(closed) >= 4)
        time.sleep(0.5)
        self.assertEqual(server.metric(closed), 4)
        self.assertFalse(others.is_closed(0.1))
        self.assertLess(server.resident_bytes() - before, 400 << 20)
        for client in clients:
            client.close()
        self.expect_serving(server)

    def test_calls_that_the_server_reads_late_are_counted(self) -> None:
        server = self.start()
        clients = [server.connect("127.0.0.8") for _ in range(100)]
        for client in clients:
            self.assertIsNotNone(next(client.read_frames(120), None))  # gRPC has the connection
        os.kill(server.process.pid, signal.SIGSTOP)
        for client in clients:  # so few that the kernel has received all before gRPC reads any
            for _ in range(200):
                client.start(GENERATE)
        os.kill(server.process.pid, signal.SIGCONT)
        closed = 'lssar_connections_closed_total{reason="idle_streams"}'
        self.wait_until(lambda: server.metric(closed) >= 18)
        for client in clients:
            client.close()
        self.expect_serving(server)

    def test_reflection_describes_the_services(self) -> None:
        server = self.start()
        symbol = b"lssar.v1.Inference"
        with server.connect() as client:
            names = client.finish(client.start(REFLECTION, b"\x3a\x01*"))  # list_services
            for name in (symbol, b"grpc.health.v1.Health",
                         b"grpc.reflection.v1alpha.ServerReflection"):
                self.assertIn(name, names)
            request = b"\x22" + bytes([len(symbol)]) + symbol  # file_containing_symbol
            files = client.finish(client.start(REFLECTION, request))
            self.assertIn(b"lssar/v1/inference.proto", files)
            missing = client.finish(client.start(REFLECTION, b"\x22\x03x.Y"))
            self.assertIn(b"the server has no such file", missing)

    def test_idle_http_connections_do_not_delay_probes(self) -> None:
        server = self.start()
        clients = [socket.create_connection(("127.0.0.1", server.http_port)) for _ in range(200)]
        self.assertEqual(server.get("/healthz")[0], 200)
        self.assertEqual(server.check_health(), 0)
        for client in clients:  # all the time they were open
            with self.assertRaises(BlockingIOError):
                client.recv(1, socket.MSG_DONTWAIT)
            client.close()

    def test_rapid_reset_closes_the_connection_and_then_blocks_the_address(self) -> None:
        server = self.start()
        block = header_block("/no.such.Service/Method")
        before = server.resident_bytes()
        closed = 'lssar_connections_closed_total{reason="resets"}'

        def flood() -> None:
            with server.connect("127.0.0.9") as client:
                def send_resets() -> bool:
                    data = b""
                    for _ in range(500):
                        stream = client.take_stream()
                        data += (frame(HEADERS, END_HEADERS, stream, block)
                                 + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))
                    return client.send(data)

                deadline = time.monotonic() + 120
                while send_resets():
                    self.assertLess(time.monotonic(), deadline)

        # The third within ten seconds blocks the address for ten: again where it took longer.
        for attempt in range(1, 6):
            begin = time.monotonic()
            for _ in range(3):
                flood()
            self.wait_until(lambda: server.metric(closed) == 3 * attempt)
            with server.connect("127.0.0.9") as client:
                is_blocked = client.is_closed(20)
            if is_blocked or time.monotonic() - begin < 8:
                break
            time.sleep(10)
        self.assertTrue(is_blocked)
        self.assertLess(server.resident_bytes() - before, 400 << 20)
        self.expect_serving(server)

    def test_header_floods_close_their_connections(self) -> None:
        server = self.start()
        # The length of a header's name, which never ends.
        begin = frame(HEADERS, 0, 1, b"\x00\x7f" + b"\x80" * 16382)
        continuation = frame(CONTINUATION, 0, 1, b"\x80" * 16384)
        # More than one: whether gRPC parses the first bytes within the call that hands it the
        # connection, and for how long, depends on when they arrive.
        for i in range(3):
            with server.connect(f"127.0.0.{10 + i}") as client:
                client.send(begin)
                num_bytes = 0
                deadline = time.monotonic() + 120
                while client.send(continuation):
                    num_bytes += len(continuation)
                    self.assertLess(time.monotonic(), deadline, f"{num_bytes} bytes sent")
        self.wait_until(lambda: server.metric(
            'lssar_connections_closed_total{reason="header_flood"}') == 3)
        self.wait_until(lambda: ask_health("127.0.0.1", server.port, 10))
        self.expect_serving(server)

    def test_large_upload_is_served(self) -> None:
        server = self.start()
        with server.connect() as client:
            # 20 MiB of an unknown field: read whole, then refused by its handler.
            request = b"\x92\x7d" + b"\x80\x80\x80\x0a" + bytes(20 << 20)
            stream = client.start(GENERATE)
            answer = client.upload(stream, message(request))
            self.assertIsNotNone(answer)
        for reason in ("header_flood", "stalled_upload", "upload_memory"):
            self.assertEqual(
                server.metric(f'lssar_connections_closed_total{{reason="{reason}"}}'), 0)

    def test_uploads_that_miss_their_last_byte_do_not_starve_others(self) -> None:
        server = self.start()
        clients = []
        for _ in range(14):
            client = server.connect("127.0.0.8")
            clients.append(client)
            data = message(bytes(32 << 20))[:-1]
            client.upload(client.start(GENERATE), data, end=False)
            if client.is_gone:
                break
        # The last upload may be complete before the server's next look at its connections. Where
        # all of them take longer than 20 s, the first ones are closed as stalled before.
        closed = ['lssar_connections_closed_total{reason="%s"}' % reason
                  for reason in ("upload_memory", "stalled_upload")]
        self.wait_until(lambda: any(server.metric(name) > 0 for name in closed))
        self.expect_serving(server)
        self.assertLess(server.resident_bytes(), 700 << 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
