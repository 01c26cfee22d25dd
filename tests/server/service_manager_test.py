"""systemd's protocol, Type=notify and WatchdogSec=: what the server tells the manager's socket."""

import os
import socket
import tempfile
import unittest

from server_process import ServerProcess

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")


def environment(**variables):
    return {**{name: value for name, value in os.environ.items() if name not in VARIABLES},
            **variables}


class ServiceManagerTest(unittest.TestCase):

    def listener(self, path):
        """The manager's socket."""
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind(path)
        manager.settimeout(120)
        return manager

    def test_ready_then_watched_then_stopping(self):
        # Not in TMPDIR, which may be longer than a socket's path.
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory(dir="/tmp")), "notify")
        manager = self.listener(path)
        # Rarely: the socket holds ten messages, and the server does not wait to write one more.
        server = ServerProcess(environment=environment(NOTIFY_SOCKET=path, WATCHDOG_USEC="2000000"))
        self.addCleanup(server.stop)
        self.assertEqual([manager.recv(100) for _ in range(3)],
                         [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"])
        self.assertEqual(server.stop(), 0)
        said = b"WATCHDOG=1"
        while said == b"WATCHDOG=1":
            said = manager.recv(100)
        self.assertEqual(said, b"STOPPING=1")

    def test_an_abstract_socket_and_a_watchdog_of_another_process(self):
        name = f"lssar-test-{os.getpid()}"
        manager = self.listener("\0" + name)
        server = ServerProcess(environment=environment(NOTIFY_SOCKET="@" + name, WATCHDOG_PID="1",
                                                       WATCHDOG_USEC="1000"))
        self.addCleanup(server.stop)
        self.assertEqual(manager.recv(100), b"READY=1")
        self.assertEqual(server.stop(), 0)
        self.assertEqual(manager.recv(100), b"STOPPING=1")

    def test_nobody_listens(self):
        for path in "/nowhere/socket", "relative", "/" + "a" * 200:
            with self.subTest(path):
                server = ServerProcess(environment=environment(NOTIFY_SOCKET=path))
                self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
