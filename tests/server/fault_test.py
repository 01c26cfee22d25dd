"""A server whose model hangs or fails: statuses for clients and probes, and exit codes.

Run by ctest with LSSAR_SERVER set to the program with fault points, from the repository's root.
"""

import concurrent.futures
import os
import signal
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import grpc

import binary_test

ENGINE_FAILURE = 3
DEVICE_LOST = 4
TINY_MODEL = "tests/golden/gpt_lssar"  # without a tokenizer; slow on the emulated GPU


def setUpModule():
    binary_test.setUpModule()


def tearDownModule():
    binary_test.tearDownModule()


def start(fault, *flags, not_before=None, **more):
    """`not_before`: a file that the step with the fault waits for."""
    os.environ["LSSAR_FAULT"] = fault
    os.environ.pop("LSSAR_FAULT_NOT_BEFORE", None)
    if not_before is not None:
        os.environ["LSSAR_FAULT_NOT_BEFORE"] = not_before
    return binary_test.Server("--max-model-len", "2048", *flags, **more)


def page(server, path):
    """GETs a page; returns (status, text)."""
    try:
        with urllib.request.urlopen(f"http://{server.http_address}{path}", timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class HealthWatch(threading.Thread):
    """The statuses of grpc.health.v1 Watch until the server exits."""

    def __init__(self, server):
        super().__init__()
        self.statuses = []
        watch = server.channel.unary_stream("/grpc.health.v1.Health/Watch")
        self.call = watch(b"")
        self.statuses.append(next(self.call)[1])
        self.start()

    def run(self):
        try:
            for reply in self.call:
                self.statuses.append(reply[1])
        except grpc.RpcError:
            pass  # the server has exited


class FaultTest(unittest.TestCase):
    """Each fault occurs in the 20th step."""

    def generate(self, server, max_tokens):
        """Returns (code, number of tokens)."""
        num_tokens = 0
        try:
            for reply in server.stub.Generate(
                    binary_test.greedy("Once", max_tokens, ignore_eos=True)):
                num_tokens += len(reply.delta.tokens)
        except grpc.RpcError as error:
            return error.code(), num_tokens
        return grpc.StatusCode.OK, num_tokens

    def event(self, server, name):
        return [line for line in server.lines if line["event"] == name]

    def test_a_hang_exits(self):
        """While the server serves, and while it drains: both wait at the same time."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(self.hang), pool.submit(self.hang_in_a_drain)]:
                done.result()

    def hang(self):
        server = start("hang:20", "--step-timeout", "15s")  # no step of a busy machine takes it
        watch = HealthWatch(server)
        self.assertEqual(page(server, "/readyz")[0], 200)
        code, num_tokens = self.generate(server, 100)
        self.assertEqual(code, grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(num_tokens, 19)
        self.assertEqual(server.wait(), ENGINE_FAILURE)
        watch.join()
        self.assertEqual(watch.statuses, [1, 2])
        self.assertEqual(len(self.event(server, "engine stuck")), 1)
        server.channel.close()

    def hang_in_a_drain(self):
        server = start("hang:20", "--step-timeout", "15s", "--drain-timeout", "1h")
        stream = server.stub.Generate(binary_test.greedy("Once", 100, ignore_eos=True))
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        while page(server, "/readyz")[0] == 200:
            time.sleep(0.01)
        self.assertIn("shutting down", page(server, "/readyz")[1])
        self.assertEqual(page(server, "/healthz")[0], 200)
        with self.assertRaises(grpc.RpcError) as raised:
            list(stream)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(server.wait(), ENGINE_FAILURE)
        server.channel.close()

    def test_repeated_failures_exit(self):
        server = start("fail-from:20")
        watch = HealthWatch(server)
        codes = []
        while not codes or codes[-1] == grpc.StatusCode.INTERNAL:
            codes.append(self.generate(server, 100)[0])
        self.assertEqual(codes[-1], grpc.StatusCode.UNAVAILABLE)
        self.assertGreater(len(codes), 1)
        self.assertEqual(server.wait(), ENGINE_FAILURE)
        watch.join()
        self.assertEqual(watch.statuses, [1, 2])
        self.assertEqual(len(self.event(server, "engine failed")), 1)
        server.channel.close()

    def test_a_lost_device_exits_at_once(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        both_have_come = os.path.join(folder, "both")
        server = start("lose:20", "--max-num-seqs", "1", model=TINY_MODEL,
                       not_before=both_have_come)
        watch = HealthWatch(server)
        ids = binary_test.pb.TokenIds(ids=[3, 1, 4])
        request = binary_test.pb.GenerateRequest(tokens=ids, max_tokens=200, ignore_eos=True)
        calls = [server.stub.Generate(request) for _ in range(2)]
        info = binary_test.pb.GetInfoRequest()
        while server.stub.GetInfo(info).num_waiting != 1:  # one runs, one is queued
            time.sleep(0.01)
        with open(both_have_come, "w"):
            pass
        for call in calls:
            with self.assertRaises(grpc.RpcError) as raised:
                list(call)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INTERNAL)
            self.assertIn("CUDA error 700", raised.exception.details())
        self.assertEqual(server.wait(), DEVICE_LOST)
        watch.join()
        self.assertEqual(watch.statuses, [1, 2])
        self.assertEqual(len(self.event(server, "device lost")), 1)
        server.channel.close()

    def test_a_failed_step_ends_only_its_own_request(self):
        server = start("fail:20")
        self.assertEqual(self.generate(server, 100), (grpc.StatusCode.INTERNAL, 19))
        self.assertEqual(self.generate(server, 30), (grpc.StatusCode.OK, 30))
        self.assertEqual(page(server, "/readyz")[0], 200)
        text = page(server, "/metrics")[1]
        self.assertIn('lssar_request_failure_total{code="INTERNAL"} 1\n', text)
        self.assertEqual(server.stop(), 0)
        failed = [line for line in self.event(server, "call") if line["status"] == "INTERNAL"]
        self.assertEqual([line["level"] for line in failed], ["error"])


if __name__ == "__main__":
    unittest.main()
