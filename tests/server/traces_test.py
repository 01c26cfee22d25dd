"""--otlp-endpoint: the spans that a collector gets, and what a bad collector does to the callers.

The collector is otlp_receiver.py, of OpenTelemetry's own packages. Run by ctest with LSSAR_SERVER
and, for the packages, LSSAR_VENVS, from the repository's root. Skipped where PyPI cannot be
reached.
"""

import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import grpc

from http_fixture import Reply, Server, wait_until
from server_process import SERVER

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import environments

TIMEOUT_S = 120  # of what would otherwise never end
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "Rumpelstiltskin"  # in every prompt
python: pathlib.Path


def setUpModule() -> None:
    global python
    python = environments.environment("traces", has_client=False)


def traceparent(flags: str) -> str:
    return f"00-{TRACE}-{PARENT}-{flags}"


class Receiver:
    """otlp_receiver.py as a process; its lines as they arrive."""

    def __init__(self, *flags: str):
        self.process = subprocess.Popen([python, HERE / "otlp_receiver.py", *flags],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environments.isolated())
        self.lines: queue.Queue[dict] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.port = self.next()["port"]

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def next(self) -> dict:
        line = self.lines.get(timeout=TIMEOUT_S)
        if "error" in line:
            raise AssertionError(line["error"])
        return line

    def stop(self) -> None:
        """Every line has been read then."""
        self.process.stdin.close()
        self.process.wait(TIMEOUT_S)
        self.reader.join()
        self.process.stdout.close()


def complete(server: Server, **headers: str) -> Reply:
    return server.request("POST", "/v1/completions",
                          {"prompt": SECRET, "max_tokens": 8, "ignore_eos": True}, headers)


class TracesTest(unittest.TestCase):

    def start(self, *flags: str, receiver: Receiver | None = None, url: str = "",
              **options) -> Server:
        if receiver is not None:
            url = f"http://127.0.0.1:{receiver.port}"
        server = Server("--otlp-endpoint", url, "--threads", "1", *flags, **options)
        self.addCleanup(server.process.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.process.kill)
        return server

    def receive(self, *flags: str) -> Receiver:
        receiver = Receiver(*flags)
        self.addCleanup(receiver.stop)
        return receiver

    def drain(self, server: Server, receiver: Receiver) -> list[list[dict]]:
        """Ends both. -> the spans that are left, by call, that of the server first."""
        self.assertEqual(server.stop(), 0)
        receiver.stop()
        spans = []
        while not receiver.lines.empty():
            spans.append(receiver.next())
        calls = [span for span in spans if span["kind"] == "SPAN_KIND_SERVER"]
        families = [[call, *(span for span in spans if span["parent"] == call["id"])]
                    for call in calls]
        self.assertEqual(sum(map(len, families)), len(spans))
        return families

    def check_family(self, spans: list[dict]) -> None:
        """Ids, order and times of the spans of one call."""
        call, *stages = spans
        self.assertEqual([span["name"] for span in stages], ["queue", "prefill", "decode"])
        self.assertEqual(call["kind"], "SPAN_KIND_SERVER")
        self.assertEqual(len({span["id"] for span in spans}), len(spans))
        for before, span in zip([None, *stages], stages):
            self.assertEqual(span["kind"], "SPAN_KIND_INTERNAL")
            self.assertEqual((span["trace"], span["parent"]), (call["trace"], call["id"]))
            self.assertGreaterEqual(span["start"], call["start"])
            self.assertLessEqual(span["end"], call["end"])
            if before is not None:
                self.assertEqual(span["start"], before["end"])
        self.assertNotIn(SECRET, json.dumps(spans))

    def test_calls_over_http(self) -> None:
        receiver = self.receive()
        server = self.start(receiver=receiver)
        reply = complete(server, **{"X-Request-Id": "mine", "Traceparent": traceparent("01")})
        self.assertEqual(reply.status, 200)
        server.stream("/v1/chat/completions",
                      {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4})
        self.assertEqual(server.request("POST", "/v1/embeddings", {"input": 1}).status, 400)
        families = {spans[0]["name"]: spans for spans in self.drain(server, receiver)}
        self.assertEqual(len(families), 3)
        call, *stages = families["POST /v1/completions"]
        self.check_family([call, *stages])
        self.assertEqual((call["trace"], call["parent"]), (TRACE, PARENT))
        self.assertEqual(reply.headers["Traceparent"], f"00-{TRACE}-{call['id']}-01")
        line = next(line for line in server.lines if line.get("request_id") == "mine")
        self.assertEqual((line["trace_id"], line["span_id"]), (TRACE, call["id"]))
        model = line["queue_us"], line["prefill_us"], line["decode_us"]
        self.assertEqual(tuple((span["end"] - span["start"]) // 1000 for span in stages), model)
        self.assertEqual((call["end"] - call["start"]) // 1000, line["elapsed_us"])
        found = call["attributes"]
        num_prompt_tokens = line["num_prompt_tokens"]
        self.assertGreater(num_prompt_tokens, 0)
        for name, expected in {
                "http.request.method": "POST", "http.route": "/v1/completions",
                "url.path": "/v1/completions", "url.scheme": "http",
                "http.response.status_code": 200, "client.address": "127.0.0.1",
                "lssar.request_id": "mine", "gen_ai.operation.name": "text_completion",
                "gen_ai.provider.name": "lssar", "gen_ai.request.model": "lssar-6m",
                "gen_ai.response.model": "lssar-6m",
                "gen_ai.usage.input_tokens": num_prompt_tokens, "gen_ai.usage.output_tokens": 8,
                "gen_ai.response.finish_reasons": ["length"],
                "lssar.finish_reason": "LENGTH"}.items():
            self.assertEqual(found.get(name), expected, name)
        self.assertEqual(call["resource"]["service.name"], "lssar")
        self.assertEqual(call["resource"]["process.pid"], server.process.pid)

        chat_spans = families["POST /v1/chat/completions"]
        self.check_family(chat_spans)
        self.assertEqual(chat_spans[0]["attributes"]["gen_ai.operation.name"], "chat")
        self.assertEqual(chat_spans[0]["parent"], "")
        self.assertNotEqual(chat_spans[0]["trace"], TRACE)
        [refused] = families["POST /v1/embeddings"]
        self.assertEqual(refused["attributes"]["http.response.status_code"], 400)
        self.assertEqual(refused["attributes"]["gen_ai.operation.name"], "embeddings")
        self.assertEqual(refused["status"], "STATUS_CODE_UNSET")  # the client's error

    def test_calls_over_grpc(self) -> None:
        receiver = self.receive()
        server = self.start(receiver=receiver)
        with grpc.insecure_channel(server.address) as channel:
            get_info = channel.unary_unary("/lssar.v1.Inference/GetInfo")
            _, call = get_info.with_call(b"", metadata=[("traceparent", traceparent("01"))],
                                         timeout=TIMEOUT_S)
            returned = dict(call.trailing_metadata())["traceparent"]
            with self.assertRaises(grpc.RpcError):
                list(channel.unary_stream("/lssar.v1.Inference/Generate")(
                    b"", metadata=[("traceparent", traceparent("01")),
                                   ("x-lssar-model", "lssar-6m")], timeout=TIMEOUT_S))
        families = {spans[0]["name"]: spans for spans in self.drain(server, receiver)}
        self.assertEqual(len(families), 2)
        [info] = families["lssar.v1.Inference/GetInfo"]
        [generate] = families["lssar.v1.Inference/Generate"]
        self.assertEqual((info["trace"], info["parent"]), (TRACE, PARENT))
        self.assertEqual(returned, f"00-{TRACE}-{info['id']}-01")
        self.assertEqual(info["flags"], 0x301)  # sampled; the parent is remote, and known to be
        self.assertEqual(info["attributes"]["rpc.response.status_code"], "OK")
        self.assertEqual(generate["attributes"]["rpc.response.status_code"], "INVALID_ARGUMENT")
        self.assertEqual(generate["attributes"]["gen_ai.operation.name"], "text_completion")
        self.assertEqual(generate["attributes"]["gen_ai.request.model"], "lssar-6m")

    def test_the_callers_flag_and_the_ratio_choose_what_is_traced(self) -> None:
        receiver = self.receive()
        server = self.start("--otlp-sample", "0", receiver=receiver)
        for flags in ("00", "02"):
            headers = complete(server, Traceparent=traceparent(flags)).headers
            self.assertTrue(headers["Traceparent"].endswith(f"-{flags}"))
        self.assertTrue(complete(server).headers["Traceparent"].endswith("-00"))
        headers = complete(server, Traceparent=traceparent("03")).headers
        self.assertTrue(headers["Traceparent"].endswith("-03"))
        [spans] = self.drain(server, receiver)
        self.check_family(spans)

    def test_the_items_of_a_call(self) -> None:
        receiver = self.receive()
        server = self.start(receiver=receiver)
        prompts = [f"{SECRET} {i}" for i in range(20)]
        server.post("/v1/completions", {"prompt": prompts, "max_tokens": 2, "ignore_eos": True})
        [[call, *stages]] = self.drain(server, receiver)
        self.assertEqual(call["attributes"]["lssar.num_items"], 20)
        self.assertEqual(call["attributes"]["gen_ai.usage.output_tokens"], 40)
        # The first 16 that have ended.
        for name in ("queue", "prefill", "decode"):
            items = [span["attributes"]["lssar.item"] for span in stages if span["name"] == name]
            self.assertEqual(len(set(items)), 16, name)
            self.assertEqual(len(items), 16, name)
        for span in stages:
            self.assertEqual(span["parent"], call["id"])
            self.assertTrue(call["start"] <= span["start"] <= span["end"] <= call["end"])

    def test_a_call_that_fails(self) -> None:
        receiver = self.receive()
        server = self.start(receiver=receiver)
        self.assertEqual(complete(server, **{"X-Request-Timeout": "0.000001"}).status, 504)
        [[call, *_]] = self.drain(server, receiver)
        self.assertEqual(call["status"], "STATUS_CODE_ERROR")
        self.assertEqual(call["attributes"]["error.type"], "DEADLINE_EXCEEDED")
        self.assertEqual(call["attributes"]["http.response.status_code"], 504)

    def test_a_collector_that_refuses(self) -> None:
        receiver = self.receive("--status", "400")
        server = self.start(receiver=receiver)
        self.assertEqual(complete(server).status, 200)
        self.assertIn("answers 400", server.wait_for("otlp")["message"])
        wait_until(lambda: server.metric("lssar_otlp_spans_dropped_total") == 4)
        self.assertEqual(server.metric("lssar_otlp_spans_exported_total"), 0)
        self.assertEqual(server.stop(), 0)

    def test_a_dead_collector(self) -> None:
        with socket.socket() as bound:  # and does not listen
            bound.bind(("127.0.0.1", 0))
            server = self.start(url=f"http://127.0.0.1:{bound.getsockname()[1]}")
            self.assertEqual(complete(server).status, 200)
            self.assertIn("refused", server.wait_for("otlp")["message"])
            self.assertEqual(complete(server).status, 200)
            self.assertEqual(server.stop(), 0)

    def test_a_collector_that_never_answers(self) -> None:
        receiver = self.receive("--silent")
        server = self.start(receiver=receiver)
        self.assertEqual(complete(server).status, 200)
        self.check_family([receiver.next() for _ in range(4)])
        self.assertEqual(complete(server).status, 200)
        server.process.send_signal(signal.SIGTERM)  # ends although one batch is under way
        self.assertEqual(server.wait(), 0)

    def test_passes_by_proxies(self) -> None:
        receiver = self.receive()
        proxy = "http://127.0.0.1:9"
        server = self.start(receiver=receiver, environment={
            **os.environ, "http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy,
            "HTTP_PROXY": proxy, "no_proxy": ""})
        self.assertEqual(server.request("GET", "/v1/models").status, 200)
        [[call]] = self.drain(server, receiver)
        self.assertEqual(call["name"], "GET /v1/models")

    def test_tls(self) -> None:
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        certificate, key = directory / "cert.pem", directory / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=collector", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                       check=True, capture_output=True)
        receiver = self.receive("--certificate", str(certificate), "--key", str(key))
        url = f"https://127.0.0.1:{receiver.port}"
        server = self.start(url=url, environment={**os.environ, "SSL_CERT_FILE": str(certificate)})
        self.assertEqual(complete(server).status, 200)
        self.check_family([receiver.next() for _ in range(4)])
        self.assertEqual(server.stop(), 0)
        # A certificate that no root of the system has signed.
        server = self.start(url=url)
        self.assertEqual(complete(server).status, 200)
        self.assertIn("TLS handshake failed", server.wait_for("otlp")["message"])
        self.assertEqual(self.drain(server, receiver), [])

    def test_bad_flags(self) -> None:
        for flags, expected in ((["--otlp-endpoint", "localhost:4318"], "http://HOST:PORT"),
                                (["--otlp-sample", "nan"], "a number in [0, 1]")):
            done = subprocess.run([SERVER, "--model", "x", *flags], capture_output=True, text=True,
                                  check=False, timeout=TIMEOUT_S)
            self.assertEqual(done.returncode, 2)
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
