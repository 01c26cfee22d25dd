"""What an operator's machine does to lssar-server: readers of the log, signals, proxies.

Run by ctest with LSSAR_SERVER set to the program, from the repository's root.
"""

import fcntl
import json
import os
import signal
import subprocess
import tempfile
import unittest
import urllib.request

from server_process import MODEL, SERVER, ServerProcess, check_health

TIMEOUT_S = 180  # of what would otherwise never end
# A pipe of one page takes some ten lines.
NUM_CALLS = 40


def complete(http_address):
    """The status of a call, which writes a log line."""
    request = urllib.request.Request(f"http://{http_address}/v1/completions",
                                     json.dumps({"prompt": "a", "max_tokens": 1}).encode())
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        return reply.status


class LogReaderTest(unittest.TestCase):

    def start(self):
        """The server, its log as a file that nobody reads any more, and its HTTP address."""
        read_end, write_end = os.pipe()
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        server = subprocess.Popen(
            [SERVER, "--model", MODEL, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
             "--threads", "1"], stderr=write_end)
        self.addCleanup(server.kill)
        os.close(write_end)
        log = os.fdopen(read_end, "rb", buffering=0)
        self.addCleanup(log.close)
        text = b""
        while b'"serving"' not in text or not text.endswith(b"\n"):
            text += log.read(1)
        return server, log, json.loads(text.splitlines()[-1])["http_address"]

    def test_a_reader_that_stops_delays_neither_calls_nor_the_drain(self):
        server, _, http_address = self.start()
        for _ in range(NUM_CALLS):
            self.assertEqual(complete(http_address), 200)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(TIMEOUT_S), 0)

    def test_a_reader_that_stops_does_not_delay_a_second_signal_during_the_drain(self):
        server, _, http_address = self.start()
        for _ in range(NUM_CALLS):
            complete(http_address)
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGTERM)
        self.assertIn(server.wait(TIMEOUT_S), (0, 1))

    def test_a_reader_that_ends_does_not_end_the_server(self):
        server, log, http_address = self.start()
        log.close()
        for _ in range(3):
            self.assertEqual(complete(http_address), 200)
        url = f"http://{http_address}/metrics"
        num_dropped = 0.0
        while num_dropped == 0:  # the log has a thread of its own
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as page:
                [dropped] = [line for line in page.read().decode().splitlines()
                             if line.startswith("lssar_log_lines_dropped_total ")]
            num_dropped = float(dropped.split()[1])
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(TIMEOUT_S), 0)


class SignalTest(unittest.TestCase):

    def test_hup_reads_the_keys_without_a_call_and_again_though_nothing_changed(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as keys:
            keys.write('[alice]\nkey = "the-key-of-alice-0123456789"\n')
            keys.flush()
            server = ServerProcess("--api-keys", keys.name, "--threads", "1")
            for _ in range(2):
                server.process.send_signal(signal.SIGHUP)
                server.wait_for("reload")
                self.assertEqual(server.wait_for("api keys")["num_keys"], 1)
            keys.write("[bob")
            keys.flush()
            for _ in range(2):
                server.process.send_signal(signal.SIGHUP)
                self.assertIn("the old keys stay", server.wait_for("api keys")["message"])
            self.assertEqual(server.stop(), 0)

    def test_changed_keys_are_read_without_a_call_or_a_signal(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as keys:
            keys.write('[alice]\nkey = "the-key-of-alice-0123456789"\n')
            keys.flush()
            server = ServerProcess("--api-keys", keys.name, "--threads", "1")
            keys.write("[bob")
            keys.flush()
            self.assertIn("the old keys stay", server.wait_for("api keys")["message"])
            self.assertEqual(server.stop(), 0)

    def test_user_signals_change_nothing_and_quit_drains(self):
        server = ServerProcess("--threads", "1")
        server.process.send_signal(signal.SIGUSR1)
        server.process.send_signal(signal.SIGUSR2)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reload")
        self.assertEqual(complete(server.http_address), 200)
        server.process.send_signal(signal.SIGQUIT)
        self.assertEqual(server.wait_for("draining")["signal"], "Quit")
        self.assertFalse(server.wait_for("stopped")["aborted_calls"])
        self.assertEqual(server.wait(), 0)


class CertificateTest(unittest.TestCase):

    def test_a_certificate_without_the_loopback_address_is_no_error(self):
        with tempfile.TemporaryDirectory() as directory:
            cert, key = f"{directory}/cert.pem", f"{directory}/key.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                            "ec_paramgen_curve:P-256", "-nodes", "-days", "365", "-keyout", key,
                            "-out", cert, "-subj", "/CN=lssar.example",
                            "-addext", "subjectAltName=DNS:lssar.example"],
                           check=True, capture_output=True)
            flags = ("--tls-cert", cert, "--tls-key", key)
            server = ServerProcess("--threads", "1", *flags)
            probe = check_health("--http-listen", "off", "--listen", server.address, *flags)
            self.assertEqual((probe.returncode, probe.stdout), (0, "ok\n"), probe.stderr)
            self.assertEqual(server.stop(), 0)
        self.assertEqual([line for line in server.lines if line["level"] != "info"
                          and line["event"] != "connections limited"], [])  # ulimit -n


class StartTest(unittest.TestCase):

    def test_a_failed_start_logs_one_line_and_shows_no_control_characters_of_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in os.listdir(MODEL):
                if name != "config.json":
                    os.symlink(os.path.abspath(f"{MODEL}/{name}"), f"{directory}/{name}")
            with open(f"{MODEL}/config.json", encoding="utf-8") as file:
                config = json.load(file)
            config["\x1b[31m\u009b2J\x07\x7fred"] = 1
            with open(f"{directory}/config.json", "w", encoding="utf-8") as file:
                json.dump(config, file)
            result = subprocess.run(
                [SERVER, "--model", directory, "--listen", "127.0.0.1:0", "--http-listen", "off"],
                capture_output=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(result.returncode, 1)
        *lines, sentence = result.stderr.decode().splitlines()
        events = [json.loads(line)["event"] for line in lines]
        self.assertEqual([event for event in events if event != "connections limited"],
                         ["loading", "stopped", "start failed"])
        self.assertEqual("lssar-server: " + json.loads(lines[-1])["message"], sentence)
        self.assertIn("red", sentence)
        for byte in (b"\x1b", b"\x07", b"\x7f", "\u009b".encode()):
            self.assertNotIn(byte, result.stderr)


class ProxyTest(unittest.TestCase):
    """A proxy in the environment that nothing on this machine may be asked through."""

    def test_the_probes_of_the_server_itself_pass_by_the_proxy(self):
        proxy = "http://127.0.0.1:9"
        environment = {name: value for name, value in os.environ.items()
                       if not name.lower().endswith("_proxy")}
        environment.update(http_proxy=proxy, https_proxy=proxy, grpc_proxy=proxy,
                           HTTP_PROXY=proxy, no_proxy="localhost")
        server = ServerProcess("--threads", "1", environment=environment)
        for http_listen in (server.http_address, "off"):  # off: the probe behind /readyz itself
            probe = check_health("--http-listen", http_listen, "--listen", server.address,
                                 environment=environment)
            self.assertEqual((probe.returncode, probe.stdout), (0, "ok\n"), probe.stderr)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
