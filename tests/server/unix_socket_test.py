"""--listen unix:PATH: the gRPC port as a Unix socket."""

import os
import signal
import subprocess
import tempfile
import unittest
import urllib.request

import grpc

from server_process import SERVER, ServerProcess, check_health

HEALTH = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"


def health(address):
    with grpc.insecure_channel(address) as channel:
        return channel.unary_unary(HEALTH)(b"", timeout=120, wait_for_ready=True)


class UnixSocketTest(unittest.TestCase):

    def setUp(self):
        # Not in TMPDIR, which may be longer than a socket's path.
        self.directory = self.enterContext(tempfile.TemporaryDirectory(dir="/tmp"))
        self.address = f"unix:{self.directory}/socket"

    def test_serves_and_is_ready_and_leaves_no_socket(self):
        server = ServerProcess(listen=self.address)
        self.addCleanup(server.stop)
        self.assertEqual(server.address, self.address)
        self.assertEqual(health(self.address), SERVING)
        with urllib.request.urlopen(f"http://{server.http_address}/readyz") as reply:
            self.assertEqual(reply.status, 200)
        probe = check_health("--listen", self.address, "--http-listen", "off")
        self.assertEqual(probe.returncode, 0, probe.stdout + probe.stderr)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(os.listdir(self.directory), [])

    def test_replaces_the_socket_of_a_killed_server(self):
        killed = ServerProcess(listen=self.address)
        killed.process.send_signal(signal.SIGKILL)
        killed.wait()
        self.assertTrue(os.path.exists(f"{self.directory}/socket"))
        server = ServerProcess(listen=self.address)
        self.addCleanup(server.stop)
        self.assertEqual(health(self.address), SERVING)

    def test_leaves_a_running_server_its_socket(self):
        server = ServerProcess(listen=self.address)
        self.addCleanup(server.stop)
        done = subprocess.run([SERVER, "--model", "models/zoo/lssar-6m", "--listen", self.address,
                               "--http-listen", "off"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"--listen {self.address}: another process listens on this socket",
                      done.stderr)
        self.assertEqual(health(self.address), SERVING)

    def test_refuses_bad_paths(self):
        def refused(address):
            done = subprocess.run([SERVER, "--model", "models/zoo/lssar-6m", "--listen", address,
                                   "--http-listen", "off"], capture_output=True, text=True,
                                  check=False)
            self.assertNotEqual(done.returncode, 0)
            return done.stderr

        self.assertIn("1 to 107 bytes, this one has 0", refused("unix:"))
        self.assertIn("1 to 107 bytes, this one has 108", refused("unix:" + "x" * 108))
        self.assertIn("its directory must exist", refused(f"unix:{self.directory}/no/socket"))


if __name__ == "__main__":
    unittest.main()
