"""Wrong bodies and clients against a real server: clear errors, and nothing lost for others.

The standard library alone. Run by ctest from the repository's root with LSSAR_SERVER set.
"""

import json
import socket
import struct
import threading
import time
import unittest
from typing import Any

from http_fixture import Server, events, wait_until

server: Server

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def setUpModule() -> None:
    global server
    server = Server()


def tearDownModule() -> None:
    assert server.stop() == 0


class BadRequestTest(unittest.TestCase):
    """The body is wrong: 400 with the field's name, and the server goes on."""

    def refuse(self, body: Any, param: str | None, words: str,
               path: str = "/v1/completions") -> None:
        reply = server.request("POST", path, body)
        self.assertEqual(reply.status, 400, reply.body[:1000])
        error = reply.error()
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["param"], param, error)
        self.assertIn(words, error["message"])

    def test_bodies_that_are_not_json(self) -> None:
        for body in (b"", b"{", b"[1,2", b"nonsense", b'{"prompt": "x"} {}', b"\xff\xfe",
                     b'{"prompt": "\xff"}', b'{"a":1,}', b"{'a':1}"):
            with self.subTest(body=body):
                self.refuse(body, None, "the body is")
        self.refuse(b'{"prompt":"x","temperature":NaN}', None, "not JSON")
        self.refuse(b'{"prompt":"x","temperature":Infinity}', None, "not JSON")
        self.refuse(b'{"prompt":"x","temperature":1e999}', None, "not JSON")
        self.refuse(b'{"prompt":"\\ud800"}', None, "not JSON")
        self.refuse(b'{"prompt":"x","prompt":"y"}', None, 'the key "prompt" twice')
        self.refuse(b'{"prompt":"x","a":{"b":1,"b":2}}', None, 'the key "b" twice')
        self.refuse(b"[" * 100000, None, "nests deeper than 32")
        self.refuse(b'{"prompt":' + b"[" * 40 + b"]" * 40 + b"}", None, "nests deeper than 32")
        self.refuse([], None, "the body is a list; it must be an object")
        self.refuse('"text"', None, "it must be an object")

    def test_wrong_types_at_every_field(self) -> None:
        wrong: dict[str, list[Any]] = {
            "prompt": [5, True, {"a": 1}], "model": [5], "max_tokens": ["x", 1.5, True, [1]],
            "n": ["2", 1.5], "temperature": ["hot", [1], True], "top_p": ["x"], "top_k": [1.5, "x"],
            "min_p": [{}], "seed": ["x", 1.5], "stop": [5, {"a": "b"}], "echo": [1, "yes"],
            "logprobs": [True, "1"], "stream": ["true", 1], "logit_bias": [[1], "x"],
            "presence_penalty": ["x"], "frequency_penalty": [True], "repetition_penalty": ["x"],
            "min_tokens": ["x"], "ignore_eos": [1], "prompt_logprobs": ["x"], "priority": ["x"],
            "cache_salt": [1], "stop_token_ids": ["x", 5], "add_special_tokens": ["x"],
            "best_of": ["x"], "return_tokens_as_token_ids": [1], "speculative_tokens": ["x", 1.5],
        }
        for field, values in wrong.items():
            for value in values:
                with self.subTest(field=field, value=value):
                    self.refuse({"prompt": "x", field: value}, field, f"{field} is ")
        for body, param in (
                ({"prompt": ["a", 5]}, "prompt[1]"), ({"prompt": [1, "a"]}, "prompt[1]"),
                ({"prompt": [[1], ["a"]]}, "prompt[1][0]"), ({"prompt": [[1], "a"]}, "prompt[1]"),
                ({"prompt": [1, -1]}, "prompt[1]"), ({"prompt": [1.5]}, "prompt[0]"),
                ({"prompt": [2**40]}, "prompt[0]"), ({"prompt": [None]}, "prompt[0]"),
                ({"prompt": []}, "prompt"), ({"prompt": ""}, "prompt"), ({}, "prompt"),
                ({"prompt": [[]]}, "prompt"), ({"prompt": ["x", ""]}, "prompt[1]"),
                ({"prompt": "x", "stop": ["a", 5]}, "stop[1]"),
                ({"prompt": "x", "stop_token_ids": [1, "a"]}, "stop_token_ids[1]"),
                ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias"),
                ({"prompt": "x", "logit_bias": {"5": "a"}}, "logit_bias.5"),
                ({"prompt": "x", "stream": True, "stream_options": 5}, "stream_options"),
                ({"prompt": "x", "stream": True, "stream_options": {"include_usage": 1}},
                 "stream_options.include_usage")):
            with self.subTest(body=body):
                self.refuse(body, param, param)

    def test_ranges_by_the_names_of_this_api(self) -> None:
        for field, value in (("temperature", -1), ("temperature", 1e30), ("top_p", 1.5),
                             ("top_p", -0.5), ("top_k", -2), ("min_p", 2), ("n", 0), ("n", 17),
                             ("logprobs", 21), ("logprobs", -1), ("max_tokens", -1),
                             ("max_tokens", 10**6), ("max_tokens", 2**63), ("min_tokens", 100),
                             ("presence_penalty", 3), ("frequency_penalty", -3),
                             ("repetition_penalty", 0), ("prompt_logprobs", 21),
                             ("priority", 11), ("cache_salt", "x" * 200),
                             ("speculative_tokens", -1), ("speculative_tokens", 65)):
            with self.subTest(field=field, value=value):
                self.refuse({"prompt": "x", field: value}, field, field)
        self.refuse({"prompt": [10**6]}, "prompt[0]", "in [0, 4096)")
        self.refuse({"prompt": "x", "allowed_token_ids": []}, "allowed_token_ids", "is empty")
        self.refuse({"prompt": "x", "stop": [""]}, "stop[0]", "stop[0]")
        self.refuse({"prompt": "x", "stop": ["x"] * 17}, "stop", "16")
        self.refuse({"prompt": [5] * 20000}, "prompt", "max_model_len")
        self.refuse({"prompt": ["x", [5]]}, "prompt[1]", "strings")
        self.refuse({"prompt": "x", "logit_bias": {"5": 200}}, "logit_bias[5]", "logit_bias[5]")

    def test_what_would_change_the_result_is_refused_by_name(self) -> None:
        for field, value in (("best_of", 3), ("suffix", "end"), ("use_beam_search", True),
                             ("guided_json", {"type": "array", "uniqueItems": True}),
                             ("response_format", {"type": "json"}),
                             ("logits_processors", ["x"]), ("bad_words", [""]),
                             ("truncate_prompt_tokens", 5)):
            with self.subTest(field=field):
                reply = server.request("POST", "/v1/completions", {"prompt": "x", field: value})
                self.assertEqual(reply.status, 400)
                self.assertIn(field, reply.error()["message"])
        self.refuse({**CHAT, "tools": [{"type": "function", "function": {"name": "a b"}}]},
                    "tools[0].function.name", "1 to 64 letters", "/v1/chat/completions")
        for field, value in (("tool_choice", "required"), ("functions", [{}]),
                             ("modalities", ["audio"]), ("echo", True),
                             ("top_logprobs", 2)):
            with self.subTest(field=field):
                self.refuse({**CHAT, field: value}, field, field, "/v1/chat/completions")

    def test_what_changes_nothing_is_ignored(self) -> None:
        body = {"prompt": "Hi", "max_tokens": 4, "temperature": 0}
        extra = {"user": "me", "metadata": {"a": "b"}, "best_of": 1, "suffix": "", "tools": [],
                 "use_beam_search": False, "nonsense": None, "stop": None,
                 "logit_bias": None, "seed": None, "response_format": {"type": "text"}}
        plain = server.post("/v1/completions", body)["choices"]
        self.assertEqual(server.post("/v1/completions", {**body, **extra})["choices"], plain)

    def test_chats(self) -> None:
        path = "/v1/chat/completions"
        for body, param in (
                ({}, "messages"), ({"messages": "x"}, "messages"), ({"messages": []}, "messages"),
                ({"messages": [5]}, "messages[0]"), ({"messages": [{}]}, "messages[0].role"),
                ({"messages": [{"role": "user"}]}, "messages[0].content"),
                ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
                ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
                ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
                ({"messages": [{"role": "user", "content": [
                    {"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0]"),
                ({**CHAT, "logprobs": 5}, "logprobs"), ({**CHAT, "max_tokens": 0}, "max_tokens")):
            with self.subTest(body=body):
                self.refuse(body, param, param, path)

    def test_scores(self) -> None:
        for body, param in (
                ({}, "items"), ({"items": 5}, "items"), ({"items": []}, "items"),
                ({"items": [5]}, "items[0]"), ({"items": [{}]}, "items[0].continuations"),
                ({"items": [{"continuations": "letters"}]}, "items[0].continuations"),
                ({"items": [{"continuations": []}]}, "items[0].continuations"),
                ({"items": [{"continuations": [5]}]}, "items[0].continuations[0]"),
                ({"items": [{"context": 5, "continuations": ["x"]}]}, "items[0].context"),
                ({"items": [{"continuations": ["x"]}], "logprobs": 99}, "logprobs")):
            with self.subTest(body=body):
                self.refuse(body, param, param, "/v1/score")

    def test_replies_that_are_too_large(self) -> None:
        prompt = [5] * 15000
        for path, body, param in (
                # Each of the n choices repeats those of its prompt.
                ("/v1/completions", {"prompt": prompt, "n": 16, "max_tokens": 1,
                                     "prompt_logprobs": 20}, "prompt_logprobs"),
                ("/v1/completions", {"prompt": prompt, "n": 16, "max_tokens": 1,
                                     "echo": True, "logprobs": 20}, "logprobs"),
                ("/v1/score", {"items": [{"continuations": [prompt] * 14}], "logprobs": 20},
                 "logprobs")):
            with self.subTest(body=path):
                self.refuse(body, param, "in one reply; it may have 4194304", path)

    def test_tokens(self) -> None:
        self.refuse({}, "prompt", "prompt", "/tokenize")
        self.refuse({"prompt": 5}, "prompt", "prompt", "/tokenize")
        self.refuse({}, "tokens", "tokens", "/detokenize")
        self.refuse({"tokens": [5, 10**6]}, "tokens[1]", "tokens[1]", "/detokenize")
        self.refuse({"tokens": "x"}, "tokens", "tokens", "/detokenize")

    def test_another_model(self) -> None:
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", CHAT),
                           ("/v1/score", {"items": []}), ("/tokenize", {"prompt": "x"})):
            reply = server.request("POST", path, {**body, "model": "gpt-4\u00e9\u0001"})
            self.assertEqual(reply.status, 404)
            self.assertEqual(reply.error()["code"], "model_not_found")
            self.assertEqual(reply.error()["param"], "model")


class HttpTest(unittest.TestCase):
    """HTTP itself, with clients that do not behave."""

    def alive(self) -> None:
        self.assertEqual(server.request("GET", "/healthz").status, 200)

    def status_of(self, data: bytes) -> int:
        received = server.raw(data)
        self.assertTrue(received.startswith(b"HTTP/1.1 "), received[:200])
        return int(received.split()[1])

    @staticmethod
    def post(body: bytes, version: str = "1.1", headers: str = "") -> bytes:
        return (f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\n"
                f"Content-Length: {len(body)}\r\n{headers}\r\n").encode() + body

    def test_paths_and_methods(self) -> None:
        self.assertEqual(server.request("GET", "/v1/nothing").status, 404)
        reply = server.request("GET", "/v1/completions")
        self.assertEqual((reply.status, reply.headers["Allow"]), (405, "POST, OPTIONS"))
        self.assertEqual(server.request("DELETE", "/healthz").status, 405)
        head = server.request("HEAD", "/healthz")
        self.assertEqual((head.status, head.body, head.headers["Content-Length"]), (200, b"", "3"))
        options = server.request("OPTIONS", "/v1/completions")
        self.assertEqual(options.status, 204)
        self.assertNotIn("Access-Control-Allow-Origin", options.headers)

    def test_keep_alive_and_pipelining(self) -> None:
        connection = server.connect()
        for _ in range(3):
            connection.request("GET", "/healthz")
            self.assertEqual(connection.getresponse().read(), b"ok\n")
        connection.close()
        body = json.dumps({"prompt": "Hi", "max_tokens": 2}).encode()
        close = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        received = server.raw(self.post(body) + health + close)
        self.assertEqual(received.count(b"HTTP/1.1 200 OK"), 3)
        self.assertLess(received.index(b"text_completion"), received.index(b"ok\n"))
        # Garbage after a request: the request is answered, the garbage refused.
        received = server.raw(health + b"\x01\x02 garbage\r\n\r\n")
        self.assertEqual(received.count(b"HTTP/1.1 200 OK"), 1)
        self.assertEqual(received.count(b"HTTP/1.1 400 Bad Request"), 1)
        self.alive()

    def test_chunked_bodies_and_expect(self) -> None:
        body = json.dumps({"prompt": "Hi", "max_tokens": 2}).encode()
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n")
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part)
                          for part in (body[:5], body[5:])) + b"0\r\n\r\n"
        self.assertEqual(self.status_of(head + chunks), 200)
        with socket.create_connection((server.host, server.port), timeout=60) as client:
            for part in (head, b"0\r\n", b"\r", b"\n"):  # an empty body
                client.sendall(part)
                time.sleep(0.05)
            self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 400"))
        with socket.create_connection((server.host, server.port), timeout=60) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Connection: close\r\nExpect: 100-continue\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body))
            self.assertEqual(client.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            client.sendall(body)
            self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 200"))
        self.assertEqual(self.status_of(self.post(body, headers="Expect: magic\r\n")), 417)

    def test_a_body_that_is_too_large_is_refused_before_it_is_read(self) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
        self.assertEqual(self.status_of(head % (33 << 20) + b"\r\n"), 413)
        self.assertEqual(
            self.status_of(head % (33 << 20) + b"Expect: 100-continue\r\n\r\n"), 413)
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        endless = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                   b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 40)
        self.assertEqual(self.status_of(endless), 413)
        # Within the limit, and of no use.
        large = b'{"prompt":[' + b"5," * 5_000_000 + b"5]}"
        reply = server.request("POST", "/v1/completions", large)
        self.assertEqual(reply.status, 400)
        self.assertEqual(reply.error()["param"], "prompt")
        # Within the limit of bytes, but each number takes eight times its two bytes of memory.
        large = b'{"prompt":[' + b"5," * (15 << 20) + b"5]}"
        many = server.request("POST", "/v1/completions", large)
        self.assertEqual(many.status, 400)
        self.assertIn("more than 5242880 values", many.error()["message"])
        self.alive()

    def test_one_host(self) -> None:
        for version, num_hosts, status in (("1.1", 0, 400), ("1.1", 1, 200), ("1.1", 2, 400),
                                           ("1.0", 0, 200), ("1.0", 2, 400)):
            head = f"GET /healthz HTTP/{version}\r\n" + "Host: localhost\r\n" * num_hosts
            received = server.raw((head + "Connection: close\r\n\r\n").encode())
            self.assertTrue(received.startswith(b"HTTP/1.1 %d " % status), (head, received[:300]))

    def test_a_head_that_is_too_long(self) -> None:
        self.assertEqual(
            self.status_of(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n"), 431)
        self.assertEqual(self.status_of(b"GET /" + b"x" * 20000 + b" HTTP/1.1\r\n\r\n"), 431)

    def test_encodings(self) -> None:
        self.assertEqual(
            self.status_of(self.post(b"{}", headers="Content-Encoding: gzip\r\n")), 415)
        self.assertEqual(self.status_of(
            b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
            501)
        self.assertEqual(self.status_of(
            b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked"
            b"\r\n\r\n{}"), 400)

    def test_the_end_of_the_connection_ends_a_stream_over_http_1_0(self) -> None:
        request = {"prompt": "Hi", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        body = json.dumps({**request, "stream": True}).encode()
        received = server.raw(self.post(body, version="1.0", headers="Connection: keep-alive\r\n"))
        head, _, stream = received.partition(b"\r\n\r\n")
        self.assertIn(b" 200 ", head.splitlines()[0])
        self.assertIn(b"Connection: close", head)
        self.assertNotIn(b"Transfer-Encoding", head)
        *chunks, last = events(stream.decode())
        self.assertEqual(last, "[DONE]")
        self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in chunks),
                         server.post("/v1/completions", request)["choices"][0]["text"])
        whole = json.dumps({"prompt": "Hi", "max_tokens": 2}).encode()
        self.assertIn(b"text_completion", server.raw(self.post(whole, version="1.0")))

    def test_other_protocols(self) -> None:
        self.assertIn(b"gRPC has a port of its own",
                      server.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        self.assertEqual(self.status_of(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"), 400)

    def test_truncated_bodies_cost_nothing(self) -> None:
        for _ in range(20):
            with socket.create_connection((server.host, server.port)) as client:
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                               b"Content-Length: 1000\r\n\r\n{")
        self.alive()

    def test_clients_that_go_away_cancel_their_requests(self) -> None:
        for stream in (True, False):
            body = json.dumps({"prompt": "Hi", "max_tokens": 12000, "ignore_eos": True,
                               "stream": stream}).encode()
            with socket.create_connection((server.host, server.port)) as client:
                client.sendall(self.post(body))
                if stream:
                    self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 200"))
                else:
                    wait_until(lambda: server.metric("lssar_num_requests_running") == 1)
                # A reset, as of a process that was killed.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            server.wait_until_idle()
        # A call's line is written after its end.
        wait_until(lambda: len([line for line in list(server.lines)
                                if line.get("status") == "CANCELLED"]) >= 2)

    def test_a_slow_reader_holds_up_no_one_else(self) -> None:
        body = json.dumps({"prompt": "Hi", "max_tokens": 12000, "ignore_eos": True, "n": 4,
                           "logprobs": 20, "stream": True}).encode()
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((server.host, server.port))
        slow.sendall(self.post(body))
        self.assertTrue(slow.recv(100).startswith(b"HTTP/1.1 200"))
        reply = server.post("/v1/completions",
                            {"prompt": "Hi", "max_tokens": 4, "ignore_eos": True})
        self.assertEqual(reply["usage"]["completion_tokens"], 4)
        slow.close()
        server.wait_until_idle()

    def test_many_at_once(self) -> None:
        texts: list[str] = []

        def ask() -> None:
            reply = server.post("/v1/completions",
                                {"prompt": "Once upon", "max_tokens": 6, "temperature": 0})
            texts.append(reply["choices"][0]["text"])

        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(texts), 24)
        self.assertEqual(len(set(texts)), 1)

    def test_request_ids_and_traces_come_back(self) -> None:
        reply = server.request("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 1},
                               {"X-Request-Id": "my-id.1", "traceparent":
                                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
        self.assertEqual(reply.headers["X-Request-Id"], "my-id.1")
        self.assertEqual(reply.json()["id"], "cmpl-my-id.1")
        self.assertIn("0af7651916cd43dd8448eb211c80319c", reply.headers["Traceparent"])
        bad = server.request("POST", "/v1/completions", {}, {"X-Request-Id": "a b"})
        self.assertNotEqual(bad.headers["X-Request-Id"], "a b")


class MissingPartsTest(unittest.TestCase):
    """A checkpoint without a tokenizer, a chat template and a head, on a server that allows little:
    the errors have this API's names for the fields."""

    def test_each_field_is_named(self) -> None:
        ids = {"prompt": [1, 2, 3], "max_tokens": 2}
        cases: tuple[tuple[str, dict[str, Any], str, str], ...] = (
            ("/v1/completions", {"prompt": "x"}, "prompt",
             "prompt is text, and this checkpoint has no tokenizer; send token ids"),
            ("/v1/chat/completions", CHAT, "messages",
             "messages is set, and checkpoint gpt_lssar has no chat template; send text"),
            ("/v1/messages", {**CHAT, "max_tokens": 2}, "messages",
             "messages is set, and checkpoint gpt_lssar has no chat template; send text"),
            ("/v1/responses", {"input": "x"}, "input",
             "input is set, and checkpoint gpt_lssar has no chat template; send text"),
            ("/v1/completions", {**ids, "stop": ["x"]}, "stop",
             "stop is set, and this checkpoint has no tokenizer, so its output has no text"),
            ("/v1/completions", {**ids, "guided_regex": "a"}, "guided_regex",
             "guided_regex is set, and this checkpoint has no tokenizer"),
            ("/v1/completions", {**ids, "attention_override": {"p": 3}}, "attention_override",
             "attention_override is set, and this server does not allow it"),
            ("/v1/completions", {**ids, "checkpoint_hash": "0"}, "checkpoint_hash",
             'checkpoint_hash is "0"; this server serves gpt_lssar'),
            ("/v1/score", {"items": [{"context": "x", "continuations": [[1]]}]},
             "items[0].context", "items[0].context is text, and this checkpoint has no tokenizer"),
            ("/tokenize", {"prompt": "x"}, "prompt", "prompt is text, and this checkpoint has no"),
        )
        other = Server(model="tests/golden/gpt_lssar")
        try:
            for path, body, param, message in cases:
                with self.subTest(path=path, param=param):
                    reply = other.request("POST", path, body)
                    self.assertEqual(reply.status, 400, reply.body)
                    error = reply.error()
                    self.assertIn(message, error["message"])
                    self.assertEqual(error["param"], param)
            self.assertEqual(other.request("POST", "/v1/completions", ids).status, 200)
        finally:
            self.assertEqual(other.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
