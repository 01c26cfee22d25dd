"""The lssar-server program as a process: output, exit codes, a client with generated stubs.

Run by ctest with LSSAR_SERVER set to the program, from the repository's root.
"""

import contextlib
import importlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import grpc

from server_process import MODEL, SERVER, ServerProcess, check_health
from quick_models import SHIPPED

SECRET = "Marmalade"  # occurs in prompts; must never occur in a log

_stubs = tempfile.TemporaryDirectory()
pb = None
rpc = None


def setUpModule():
    global pb, rpc
    subprocess.run(
        ["protoc", "-I", "proto", f"--python_out={_stubs.name}", f"--grpc_out={_stubs.name}",
         f"--plugin=protoc-gen-grpc={shutil.which('grpc_python_plugin')}",
         "lssar/v1/inference.proto"],
        check=True)
    sys.path.insert(0, _stubs.name)
    pb = importlib.import_module("lssar.v1.inference_pb2")
    rpc = importlib.import_module("lssar.v1.inference_pb2_grpc")


def tearDownModule():
    _stubs.cleanup()


class Server(ServerProcess):
    """With a channel and a stub."""

    def __init__(self, *flags, **options):
        super().__init__(*flags, **options)
        self.channel = grpc.insecure_channel(
            self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.stub = rpc.InferenceStub(self.channel)

    def stop(self):
        self.channel.close()
        return super().stop()


def health(channel, service=b""):
    """grpc.health.v1 Check; 1 is SERVING, 2 NOT_SERVING."""
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    request = b"\x0a" + bytes([len(service)]) + service if service else b""
    return check(request)[1]


def greedy(text, max_tokens, **fields):
    return pb.GenerateRequest(text=text, max_tokens=max_tokens,
                              sampling=pb.Sampling(temperature=0), **fields)


def text_of(replies):
    return "".join(reply.delta.text for reply in replies)


class ClientTest(unittest.TestCase):
    """A Python client."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "2048")
        cls.stub = cls.server.stub

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, code
        assert SECRET not in cls.server.log

    def test_generate_streams_started_deltas_finished(self):
        replies = list(self.stub.Generate(greedy(f"{SECRET} is a", 20, logprobs=3)))
        self.assertEqual(replies[0].WhichOneof("event"), "started")
        self.assertEqual(replies[-1].WhichOneof("event"), "finished")
        tokens = [token for reply in replies for token in reply.delta.tokens]
        self.assertEqual(len(tokens), replies[-1].finished.usage.num_generated_tokens)
        for token in tokens:
            self.assertEqual(token.token.logprob, token.top[0].logprob)  # greedy
        self.assertTrue(text_of(replies))

    def test_seeded_sampling_repeats(self):
        request = pb.GenerateRequest(text="Once", max_tokens=20, sampling=pb.Sampling(seed=7))
        texts = {text_of(self.stub.Generate(request)) for _ in range(3)}
        self.assertEqual(len(texts), 1)

    def test_chat(self):
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", content=f"Hello, {SECRET}!")])
        replies = list(self.stub.Generate(pb.GenerateRequest(chat=chat, max_tokens=20)))
        self.assertEqual(replies[-1].WhichOneof("event"), "finished")

    def test_score(self):
        item = pb.ScoreItem(context=pb.TextOrTokens(text="The United"),
                            continuations=[pb.TextOrTokens(text=" States"),
                                           pb.TextOrTokens(text=" xyz")])
        replies = list(self.stub.Score(pb.ScoreRequest(items=[item] * 40)))
        scores = [reply.score for reply in replies if reply.HasField("score")]
        self.assertEqual(len(scores), 80)
        self.assertEqual(len({score.logprob for score in scores}), 2)
        self.assertEqual(replies[-1].WhichOneof("event"), "finished")

    def test_tokenize_and_detokenize(self):
        ids = self.stub.Tokenize(pb.TokenizeRequest(text="Grüße, 你好", add_bos=False)).ids
        self.assertEqual(self.stub.Detokenize(pb.DetokenizeRequest(ids=ids)).text, "Grüße, 你好")

    def test_invalid_field(self):
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.stub.Generate(greedy(SECRET, 2049)))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("max_tokens is 2049; it must be in [1, ", raised.exception.details())

    def test_the_log_line_of_a_call(self):
        trace_id, parent_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        metadata = (("x-request-id", "line.1"), ("traceparent", f"00-{trace_id}-{parent_id}-01"))
        call = self.stub.Generate(greedy(f"{SECRET} is", 9, ignore_eos=True), metadata=metadata)
        list(call)
        span_id = dict(call.trailing_metadata())["traceparent"].split("-")[2]
        while (line := self.server.wait_for("call"))["request_id"] != "line.1":
            pass
        expected = {"trace_id": trace_id, "parent_id": parent_id, "span_id": span_id,
                    "rpc": "Generate", "status": "OK", "num_generated_tokens": 9,
                    "num_preemptions": 0, "finish": "LENGTH", "level": "info"}
        self.assertEqual({name: line.get(name) for name in expected}, expected)
        self.assertGreaterEqual(line["elapsed_us"], line["prefill_us"] + line["decode_us"])
        self.assertTrue(0 < line["value_rows_read"] <= 1, line)

    def test_health(self):
        self.assertEqual(health(self.server.channel), 1)
        self.assertEqual(health(self.server.channel, b"lssar.v1.Inference"), 1)

    def test_threads_have_names(self):
        pid = self.server.process.pid
        names = set()
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/comm") as file:
                names.add(file.read().strip())
        self.assertLessEqual({"engine", "reply-writer", "parser", "acceptor", "http", "signals"},
                             names)

    def test_check_health_probes_the_running_server(self):
        asked = check_health(f"--http-listen={self.server.http_address}")
        self.assertEqual((asked.returncode, asked.stdout, asked.stderr), (0, "ok\n", ""))
        asked = subprocess.run([SERVER, "--check-health", "--http-listen=127.0.0.1:1"],
                               capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((asked.returncode, asked.stdout), (1, ""))
        self.assertIn("no answer from a server at 127.0.0.1:1", asked.stderr)

    def test_a_port_in_use_fails_the_start(self):
        for flag, address, others in [
                ("--listen", self.server.address, ["--http-listen=off"]),
                ("--http-listen", self.server.http_address, ["--listen=127.0.0.1:0"])]:
            second = subprocess.run([SERVER, "--model", MODEL, flag, address, *others],
                                    capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(second.returncode, 1)
            self.assertIn(f"{flag} {address}: the port is in use", second.stderr)
            self.assertRegex(second.stderr, f"set {flag} to .*port 0")
        # No machine has it (RFC 5737).
        other = subprocess.run([SERVER, "--model", MODEL, "--listen", "192.0.2.1:0"],
                               capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(other.returncode, 1)
        self.assertIn("--listen 192.0.2.1:0: the address does not belong to this machine",
                      other.stderr)


def write_slow_checkpoint(directory):
    """The shipped model with a golden row that the reference device computes for minutes."""
    shutil.copytree(MODEL, directory, symlinks=True, dirs_exist_ok=True)
    tensors = {"tokens_0": ("I32", [16384], bytes(4 * 16384)),
               "rows_0": ("I32", [1], struct.pack("<i", 16383)),
               "logits_0": ("F32", [1, 4096], bytes(4 * 4096))}
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    with open(f"{directory}/golden.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class EndTest(unittest.TestCase):
    """Shutdown of the server."""

    def begin_stream(self, server):
        """A long-running stream."""
        stream = server.stub.Generate(greedy(SECRET, 15000, ignore_eos=True))
        self.assertEqual(next(stream).WhichOneof("event"), "started")
        return stream

    def test_sigterm_drains(self):
        server = Server("--drain-timeout", "1h")
        stream = server.stub.Generate(greedy(SECRET, 400, ignore_eos=True))
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        replies = list(stream)
        self.assertEqual(replies[-1].finished.usage.num_generated_tokens, 400)
        self.assertEqual(server.wait(), 0)
        self.assertNotIn(SECRET, server.log)

    def test_sigterm_while_loading_exits_at_once(self):
        with tempfile.TemporaryDirectory() as model:
            write_slow_checkpoint(model)
            for sign in (signal.SIGTERM, signal.SIGINT):
                server = Server("--device", "reference", model=model, state="loading")
                self.assertEqual(health(server.channel), 2)
                self.assertEqual(health(server.channel, b"lssar.v1.Inference"), 2)
                with self.assertRaises(grpc.RpcError) as raised:
                    list(server.stub.Generate(greedy(SECRET, 1)))
                self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)
                self.assertIn("loading", raised.exception.details())
                self.assertEqual(self.status_of(server, "/healthz"), 200)
                self.assertEqual(self.status_of(server, "/readyz"), 503)
                watch = server.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
                self.assertEqual(next(watch)[1], 2)  # NOT_SERVING; the watch stays open
                server.process.send_signal(sign)
                self.assertEqual(server.wait(), 0)
                self.assertNotIn("serving", [line["event"] for line in server.lines])
                self.assertFalse(server.wait_for("stopped")["aborted_calls"])

    def status_of(self, server, path):
        try:
            return urllib.request.urlopen(f"http://{server.http_address}{path}", timeout=60).status
        except urllib.error.HTTPError as error:
            return error.code

    def test_a_drain_has_a_limit_and_rejects_new_calls(self):
        server = Server("--drain-timeout", "1s")
        stream = self.begin_stream(server)
        server.process.send_signal(signal.SIGINT)
        server.wait_for("draining")
        self.wait_until_not_serving(server)
        with self.assertRaises(grpc.RpcError) as raised:
            list(server.stub.Generate(greedy(SECRET, 1)))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)
        with self.assertRaises(grpc.RpcError) as raised:
            list(stream)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(server.wait(), 1)

    def test_signals_that_were_ignored_at_its_start_do_not_stop_it(self):
        """As behind `&` in a shell script, whose Ctrl-C is for the program in the foreground."""
        signals = signal.SIGINT, signal.SIGQUIT
        before = [signal.signal(each, signal.SIG_IGN) for each in signals]
        try:
            server = Server()
        finally:
            for each, handler in zip(signals, before, strict=True):
                signal.signal(each, handler)
        for each in *signals, signal.SIGHUP:
            server.process.send_signal(each)
        self.assertEqual(server.wait_for("reload")["signal"], "Hangup")
        self.assertEqual(health(server.channel), 1)
        self.assertEqual(server.stop(), 0)
        # Signals that wait are taken by their numbers, and that of SIGTERM is the highest.
        self.assertEqual(server.wait_for("draining")["signal"], "Terminated")

    def test_callers_that_go_on_get_a_code_that_clients_repeat(self):
        server = Server("--drain-timeout", "1h")
        codes = set()

        def call_until_the_port_is_closed():
            while server.process.poll() is None:
                try:
                    list(server.stub.Generate(greedy("x", 1)))
                except grpc.RpcError as error:
                    codes.add(error.code())

        callers = [threading.Thread(target=call_until_the_port_is_closed) for _ in range(4)]
        for caller in callers:
            caller.start()
        server.process.send_signal(signal.SIGTERM)
        for caller in callers:
            caller.join()
        self.assertEqual(codes, {grpc.StatusCode.UNAVAILABLE})
        self.assertEqual(server.stop(), 0)

    def wait_until_not_serving(self, server):
        """Or until the server has ended."""
        with contextlib.suppress(grpc.RpcError):
            while health(server.channel) == 1:
                time.sleep(0.01)

    def test_a_second_signal_exits_at_once(self):
        server = Server("--drain-timeout", "1h")
        self.begin_stream(server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 1)  # 0: the stream has ended before


class SelfCheckTest(unittest.TestCase):
    """A checkpoint whose golden logits are not what the server computes."""

    def test_it_is_served_with_the_flag_alone_and_says_so(self):
        with tempfile.TemporaryDirectory() as directory:
            shutil.copytree(MODEL, directory, symlinks=True, dirs_exist_ok=True)
            with open(f"{SHIPPED}/golden.safetensors", "rb") as file:
                golden = bytearray(file.read())
            size = struct.unpack("<Q", golden[:8])[0]
            begin = 8 + size + json.loads(golden[8:8 + size])["logits_0"]["data_offsets"][0]
            golden[begin:begin + 4] = struct.pack("<f", 1000.0)
            with open(f"{directory}/golden.safetensors", "wb") as file:
                file.write(golden)
            refused = subprocess.run(
                [SERVER, "--model", directory, "--listen", "127.0.0.1:0", "--http-listen", "off"],
                capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("the logits differ from the golden ones", refused.stderr)
            server = Server("--allow-failed-self-check", model=directory)
            info = server.stub.GetInfo(pb.GetInfoRequest())
            self.assertEqual(server.stop(), 0)
        self.assertIn("the logits differ from the golden ones", info.self_check_failure)
        self.assertFalse(info.HasField("self_check_error"))
        self.assertEqual(info.http_address, server.http_address)
        warnings = [line for line in server.lines if line["event"] == "self-check failed"]
        self.assertEqual([line["message"] for line in warnings], [info.self_check_failure])


class SecurityTest(unittest.TestCase):
    """Log lines about keys and open ports."""

    KEY = "the-key-of-alice-0123456789"

    def test_the_log_has_the_name_of_a_key_but_not_the_key(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as keys:
            keys.write(f'[alice]\nkey = "{self.KEY}"\n')
            keys.flush()
            server = Server("--api-keys", keys.name)
            metadata = [("authorization", f"Bearer {self.KEY}")]
            list(server.stub.Generate(greedy(SECRET, 2), metadata=metadata))
            self.assertEqual(server.wait_for("call")["key"], "alice")
            for wrong in (f"Bearer {self.KEY}x", f"Basic {self.KEY}", self.KEY):
                with self.assertRaises(grpc.RpcError) as raised:
                    list(server.stub.Generate(greedy(SECRET, 2),
                                              metadata=[("authorization", wrong)]))
                self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
                self.assertEqual(server.wait_for("call")["status"], "UNAUTHENTICATED")
            self.assertEqual(server.stop(), 0)
            self.assertNotIn(self.KEY, server.log)

    def test_an_open_port_is_served_with_a_warning(self):
        server = Server(listen="0.0.0.0:0")
        warnings = [line["message"] for line in server.lines if line["event"] == "security"]
        self.assertEqual(len(warnings), 2)
        self.assertIn("set --tls-cert FILE and --tls-key FILE", warnings[0])
        self.assertIn("set --api-keys FILE", warnings[1])
        self.assertEqual(server.stop(), 0)


class UsageTest(unittest.TestCase):
    """Exit codes: 0 ok, 2 usage, 1 failure."""

    def run_server(self, *flags, **variables):
        return subprocess.run([SERVER, *flags], capture_output=True, text=True, timeout=60,
                              check=False, env={**os.environ, **variables})

    def test_help_and_version(self):
        shown = self.run_server("--help")
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertIn("Examples:", shown.stdout)
        self.assertEqual(self.run_server("--version").returncode, 0)

    def test_usage_errors(self):
        for flags, sentence in [([], "--model DIR is missing"),
                                (["--modle", "x"], "did you mean --model?"),
                                (["--model", MODEL, "--page-size", "17"], "16, 32, 64")]:
            result = self.run_server(*flags)
            self.assertEqual((result.returncode, result.stdout), (2, ""), flags)
            self.assertIn(sentence, result.stderr)

    def test_files_that_cannot_be_used(self):
        """A sentence and an exit code, never a signal or a wait."""
        with tempfile.TemporaryDirectory() as directory:
            fifo = os.path.join(directory, "fifo")
            os.mkfifo(fifo)
            empty = os.path.join(directory, "empty")
            with open(empty, "w", encoding="utf-8"):
                pass
            dotted = os.path.join(directory, "dotted")
            with open(dotted, "w", encoding="utf-8") as file:
                file.write('alice.key = "short"\n')
            common = ("--model", MODEL, "--listen", "127.0.0.1:0", "--http-listen", "off")
            for flags, code, sentence in [
                    (("--api-keys", directory), 1, "is a directory, must be a regular file"),
                    (("--api-keys", fifo), 1, "is a FIFO, must be a regular file"),
                    (("--api-keys", dotted), 1, "[alice]: key must have 16 to 256"),
                    (("--config", directory), 2, "is a directory, must be a regular file"),
                    (("--config", fifo), 2, "is a FIFO, must be a regular file"),
                    (("--tls-cert", empty, "--tls-key", empty), 1, "contains no PEM certificate"),
                    (("--tls-cert", directory, "--tls-key", fifo), 1, "is a directory")]:
                result = self.run_server(*common, *flags)
                self.assertEqual(result.returncode, code, (flags, result.stderr))
                self.assertIn(sentence, result.stderr)

    def test_failures(self):
        result = self.run_server("--model", "models/zoo/none", "--listen", "127.0.0.1:0",
                                 "--http-listen", "off")
        self.assertEqual(result.returncode, 1)
        self.assertIn("models/zoo/none", result.stderr)
        result = self.run_server("--model", MODEL, LSSAR_LISTEN="192.0.2.1:1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--listen 192.0.2.1:1", result.stderr)


if __name__ == "__main__":
    unittest.main()
