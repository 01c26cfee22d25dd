"""Keys, CORS, drain, loading, and many connections, each against a server of its own.

The standard library alone. Run by ctest from the repository's root with LSSAR_SERVER set.
"""

import contextlib
import http.client
import json
import resource
import signal
import socket
import tempfile
import threading
import time
import unittest
from typing import Any

from http_fixture import Server
from server_process import IS_SANITIZED

USER = "user-key-of-sixteen"
ADMIN = "admin-key-of-sixteen"


def raise_file_limit() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class KeysTest(unittest.TestCase):
    def setUp(self) -> None:
        keys = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.addCleanup(keys.close)
        keys.write(f'[alice]\nkey = "{USER}"\nrequests-per-minute = 1\n'
                   f'[root]\nkey = "{ADMIN}"\nrole = "admin"\n')
        keys.flush()
        self.server = Server("--api-keys", keys.name)
        self.addCleanup(self.server.stop)

    def test_keys_roles_and_limits(self) -> None:
        body = {"prompt": "Hi", "max_tokens": 1}

        def ask(key: str | None, path: str = "/v1/completions") -> tuple[int, dict[str, str]]:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            method = "POST" if path.startswith("/v1/comp") else "GET"
            reply = self.server.request(method, path, body if method == "POST" else None, headers)
            return reply.status, reply.headers

        for path in ("/v1/completions", "/v1/models", "/metrics"):
            status, headers = ask(None, path)
            self.assertEqual((status, headers["WWW-Authenticate"]), (401, "Bearer"), path)
            self.assertEqual(ask("some-other-key-of-sixteen", path)[0], 401)
        self.assertEqual(ask(USER, "/metrics")[0], 403)
        self.assertEqual(ask(ADMIN, "/metrics")[0], 200)
        for path in ("/healthz", "/readyz", "/openapi.json"):
            self.assertEqual(ask(None, path)[0], 200)
        self.assertEqual(ask(USER)[0], 200)
        status, headers = ask(USER)
        self.assertEqual(status, 429)
        self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        while (line := self.server.wait_for("call"))["status"] != "RESOURCE_EXHAUSTED":
            self.assertNotIn("reason", line)
        self.assertEqual(line["reason"], "REQUESTS_PER_MINUTE")
        self.assertEqual(ask(ADMIN)[0], 200)
        refused = self.server.request("POST", "/v1/completions", body)
        self.assertEqual(refused.error()["code"], "invalid_api_key")


class CorsTest(unittest.TestCase):
    def test_listed_origins_alone(self) -> None:
        server = Server("--http-cors-origins", "https://a.example,http://localhost:3000")
        self.addCleanup(server.stop)
        for origin, allowed in (("https://a.example", True), ("http://localhost:3000", True),
                                ("https://b.example", False), ("null", False)):
            reply = server.request("GET", "/healthz", headers={"Origin": origin})
            self.assertEqual(reply.headers.get("Access-Control-Allow-Origin"),
                             origin if allowed else None)
            self.assertEqual(reply.headers["Vary"], "Origin")
        # The page of this server may call them too.
        policy = server.request("GET", "/").headers["Content-Security-Policy"]
        self.assertIn("; connect-src 'self' https://a.example http://localhost:3000; ", policy)
        preflight = server.request("OPTIONS", "/v1/completions", headers={
            "Origin": "https://a.example", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type"})
        self.assertEqual(preflight.status, 204)
        self.assertIn("POST", preflight.headers["Access-Control-Allow-Methods"])
        self.assertIn("Authorization", preflight.headers["Access-Control-Allow-Headers"])
        refused = server.request("OPTIONS", "/v1/completions", headers={
            "Origin": "https://b.example", "Access-Control-Request-Method": "POST"})
        self.assertNotIn("Access-Control-Allow-Headers", refused.headers)

    def test_listed_origins_send_the_headers_of_openais_sdk(self) -> None:
        server = Server("--http-cors-origins", "http://*:3000,app://obsidian.md")
        self.addCleanup(server.stop)
        asked = ("authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,"
                 "x-stainless-retry-count,x-stainless-timeout")
        for origin in ("http://localhost:3000", "app://obsidian.md"):
            preflight = server.request("OPTIONS", "/v1/chat/completions", headers={
                "Origin": origin, "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": asked})
            self.assertEqual(preflight.headers["Access-Control-Allow-Origin"], origin)
            allowed = {name.strip().lower() for name in
                       preflight.headers["Access-Control-Allow-Headers"].split(",")}
            self.assertLessEqual(set(asked.split(",")), allowed)

    def test_pages_of_other_origins_make_no_calls(self) -> None:
        server = Server("--http-cors-origins", "https://a.example")
        self.addCleanup(server.stop)

        def call(**headers: str) -> Any:
            return server.request("POST", "/tokenize", {"prompt": "x"}, headers={
                name.replace("_", "-"): value for name, value in headers.items()})

        # What a browser sends for a form or a script of another page, without asking before.
        refused = call(Origin="https://b.example", Content_Type="text/plain",
                       Sec_Fetch_Site="cross-site")
        self.assertEqual(refused.status, 403)
        self.assertIn("--http-cors-origins", refused.error()["message"])
        self.assertEqual(call(Origin=f"http://{server.host}:{server.port}").status, 200)
        self.assertEqual(call(Origin="https://a.example", Sec_Fetch_Site="cross-site").status, 200)

    def test_names_that_others_may_point_here_are_refused_without_keys(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        for path, status in (("/v1/models", 403), ("/metrics", 403), ("/", 403), ("/healthz", 200),
                             ("/readyz", 200)):
            for host in ("evil.example", "evil.example:8080"):
                reply = server.request("GET", path, headers={"Host": host})
                self.assertEqual(reply.status, status, path)
        for host in ("localhost", "127.0.0.1:1", "[::1]"):
            self.assertEqual(server.request("GET", "/v1/models", headers={"Host": host}).status,
                             200)
        proxied = Server("--max-connections-per-address", "0")
        self.addCleanup(proxied.stop)
        reply = proxied.request("GET", "/v1/models", headers={"Host": "edge.example:8443"})
        self.assertEqual(reply.status, 200)


class WaitingStreamTest(unittest.TestCase):
    def test_a_stream_that_waits_in_the_queue_has_its_head_and_gets_comments(self) -> None:
        server = Server("--max-num-seqs", "1", "--sse-comment-interval", "100ms")
        self.addCleanup(server.stop)
        body = {"prompt": "Hi", "max_tokens": 16000, "ignore_eos": True, "stream": True}
        running = server.connect()
        self.addCleanup(running.close)
        running.request("POST", "/v1/completions", json.dumps(body))
        first = running.getresponse()
        while (line := first.readline()).startswith(b":") or line == b"\n":
            pass  # comments, if the first token takes long
        self.assertTrue(line.startswith(b"data: "), line)
        for path, prompt in (("/v1/completions", {"prompt": "Hi"}),
                             ("/v1/attention", {"prompt": "Hi"}),
                             ("/v1/chat/completions",
                              {"messages": [{"role": "user", "content": "Hi"}]})):
            waiting = server.connect()
            waiting.request("POST", path, json.dumps({**prompt, "stream": True}))
            reply = waiting.getresponse()
            self.assertEqual(reply.status, 200)
            for _ in range(2):
                self.assertEqual(reply.readline(), b": nothing yet\n", path)
                self.assertEqual(reply.readline(), b"\n", path)
            waiting.close()


class DrainTest(unittest.TestCase):
    def test_running_streams_finish_and_new_requests_are_refused(self) -> None:
        # The longest drain: on a busy machine the stream takes longer than a minute.
        server = Server("--drain-timeout", "1h", "--slow-client-timeout", "0", "--stream-buffer",
                        "4K")
        self.addCleanup(server.stop)
        # Not read before the other requests, the stream, of 6 MB, is more than the buffers hold: it
        # waits.
        client = socket.socket()
        client.settimeout(300)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.connect((server.host, server.port))
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "n": 16,
                           "max_tokens": 240, "ignore_eos": True, "logprobs": True,
                           "top_logprobs": 20, "stream": True}).encode()
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                       b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.addCleanup(client.close)
        received = bytearray()
        while b"data: " not in received:
            received += client.recv(1000)
        self.assertTrue(received.startswith(b"HTTP/1.1 200"))
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        deadline = time.monotonic() + 120
        while server.request("GET", "/readyz").status != 503:  # the log line comes first
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        refused = server.request("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 1})
        self.assertEqual(refused.status, 503)
        self.assertIn("Retry-After", refused.headers)
        self.assertEqual(server.request("GET", "/readyz").status, 503)
        self.assertEqual(server.request("GET", "/healthz").status, 200)
        while chunk := client.recv(65536):
            received += chunk
        self.assertTrue(received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), received[-200:])
        # No second signal, which would abort the rest of the drain.
        self.assertEqual(server.process.wait(300), 0)


class ManyConnectionsTest(unittest.TestCase):
    def test_idle_streams_are_cheap_and_the_bound_holds(self) -> None:
        file_limit = raise_file_limit()
        num_streams = min(2000, (file_limit - 256) // 4 - 100)  # the bound fits under the limit
        # The last sixteenth is for other addresses.
        server = Server("--max-connections", str((num_streams + 100) * 16 // 15),
                        "--max-connections-per-address", "0", "--max-calls", "8192",
                        "--max-queued-requests", "8192", "--max-num-seqs", "1",
                        "--max-model-len", "16384", "--slow-client-timeout", "0")
        self.addCleanup(server.stop)
        request = json.dumps({"prompt": "Hi", "max_tokens": 16000, "ignore_eos": True,
                              "stream": True}).encode()
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
                % len(request))
        before = server.resident_bytes()
        clients = []
        for _ in range(num_streams):
            client = socket.create_connection((server.host, server.port), timeout=120)
            client.sendall(head + request)
            clients.append(client)
        deadline = time.monotonic() + 120
        while server.metric("lssar_num_requests_waiting") < num_streams - 1:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
        grown = server.resident_bytes() - before
        print(f"{num_streams} streams cost {grown / 1e6:.1f} MB")
        self.assertLess(grown, 200e6)
        # Others are answered.
        self.assertEqual(server.request("GET", "/healthz").status, 200)
        # One too many is told so, or closed.
        extra = [socket.create_connection((server.host, server.port), timeout=120)
                 for _ in range(120)]
        refused = 0
        for client in extra[100:]:
            try:
                data = client.recv(1000)
                self.assertTrue(data == b"" or b"--max-connections" in data, data)
                refused += 1
            except ConnectionResetError:
                refused += 1
        self.assertGreaterEqual(refused, 15)
        for client in clients + extra:
            client.close()
        server.wait_until_idle()

    @unittest.skipIf(IS_SANITIZED, "the sanitizer checks types with descriptors of its own")
    def test_running_out_of_file_descriptors_is_survived(self) -> None:
        # The limit of the child is lower than the bound of connections.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        server = Server()
        self.addCleanup(server.stop)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (120, hard))
        clients = []
        for _ in range(200):
            client = socket.socket()
            client.settimeout(120)
            client.connect((server.host, server.port))
            clients.append(client)
        time.sleep(0.5)
        for client in clients:
            client.close()
        deadline = time.monotonic() + 120
        while True:
            try:
                # 503: not one of the descriptors is free yet.
                if server.request("GET", "/healthz").status == 200:
                    break
            except OSError:
                pass
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
        self.assertIsNone(server.process.poll())


class FloodTest(unittest.TestCase):
    def test_connections_over_the_bound_are_refused_and_others_are_served(self) -> None:
        file_limit = raise_file_limit()
        num_connections = min(10000, file_limit - 200)
        bound = min(num_connections // 2, (file_limit - 256) // 3)
        server = Server("--max-connections", str(bound), "--max-connections-per-address", "0")
        self.addCleanup(server.stop)
        before = server.resident_bytes()
        begin = time.monotonic()
        clients = [socket.create_connection((server.host, server.port), timeout=120)
                   for _ in range(num_connections)]
        try:
            refused = 0
            served = bound - bound // 16  # the rest is for other addresses
            for client in clients[served:]:
                refused += client.recv(4096).startswith(b"HTTP/1.1 503")
            self.assertEqual(refused, num_connections - served)
            with socket.create_connection((server.host, server.port), timeout=120,
                                          source_address=("127.0.0.2", 0)) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertTrue(probe.recv(4096).startswith(b"HTTP/1.1 200"))
            self.assertLess(server.resident_bytes() - before, 100e6)
            # The server closes a connection that has said nothing for 75 seconds.
            if time.monotonic() - begin < 60:
                clients[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertTrue(clients[0].recv(4096).startswith(b"HTTP/1.1 200"))
        finally:
            for client in clients:
                client.close()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):  # still one too many
                if server.request("GET", "/healthz").status == 200:
                    return
            time.sleep(0.1)
        self.fail("no new connection is served after the others have closed")


class SlowHeadTest(unittest.TestCase):
    def test_a_head_that_never_ends_is_answered_with_408(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        answers: list[bytes] = []

        def dribble() -> None:
            with socket.create_connection((server.host, server.port), timeout=120) as client:
                client.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
                client.settimeout(0.2)
                deadline = time.monotonic() + 120
                while time.monotonic() < deadline:
                    try:
                        client.sendall(b"x")
                        answers.append(client.recv(1000))
                        return
                    except TimeoutError:
                        continue
                    except OSError:
                        answers.append(b"")
                        return

        threads = [threading.Thread(target=dribble) for _ in range(20)]
        for thread in threads:
            thread.start()
        self.assertEqual(server.request("GET", "/healthz").status, 200)
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), 20)
        self.assertTrue(any(b" 408 " in answer for answer in answers))


if __name__ == "__main__":
    unittest.main(verbosity=2)
