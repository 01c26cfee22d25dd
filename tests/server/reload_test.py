"""SIGHUP with another checkpoint in the served directory, under load.

Run by ctest with LSSAR_SERVER set to the program, from the repository's root.
"""

import http.client
import os
import pathlib
import shutil
import signal
import tempfile
import threading
import unittest

from http_fixture import Server, form, wait_until
from quick_models import unchecked

TWINS = pathlib.Path("models/zoo/twins")
# Without golden rows, whose check is most of a load.
LSSAR, SOFTMAX = (pathlib.Path(unchecked(TWINS / name)) for name in ("lssar", "softmax"))
NUM_CALLERS = 4


def complete(server, stream):
    """A greedy completion -> (fingerprint of the checkpoint, text)."""
    body = {"prompt": "The old house stood", "max_tokens": 60, "temperature": 0}
    if not stream:
        replies = [server.post("/v1/completions", body)]
    else:
        *replies, last = server.stream("/v1/completions", body)
        assert last == "[DONE]"
    [fingerprint] = {each["system_fingerprint"] for each in replies}
    return fingerprint, "".join(each["choices"][0]["text"] for each in replies)


class Callers:
    """Calls without a pause, for a with block, which begins when one has been answered.
    `answers`: what they returned, or their errors."""

    def __init__(self, server):
        self.answers = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(server, i % 2 == 0))
                         for i in range(NUM_CALLERS)]

    def _call(self, server, stream):
        while not self._stop.is_set():
            try:
                self.answers.append(complete(server, stream))
            except (OSError, http.client.HTTPException, AssertionError, ValueError) as error:
                self.answers.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.answers)
        return self

    def __exit__(self, *exception):
        self._stop.set()
        for thread in self._threads:
            thread.join()


class ReloadTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.current = self.folder / "current"
        self.serve(LSSAR)
        self.server = Server("--threads", "1", "--max-model-len", "2048", model=str(self.current))
        self.addCleanup(self.server.stop)

    def serve(self, checkpoint):
        """Makes `current` a link to it, at once."""
        link = self.folder / "next"
        link.symlink_to(checkpoint.absolute())
        os.replace(link, self.current)

    def copy(self, name):
        """A copy of a twin, to be broken."""
        return pathlib.Path(shutil.copytree(TWINS / name, self.folder / f"copy-of-{name}"))

    def reload(self, event):
        self.server.process.send_signal(signal.SIGHUP)
        return self.server.wait_for(event)

    def test_under_load_every_answer_is_of_one_checkpoint(self):
        before = complete(self.server, stream=False)
        with Callers(self.server) as callers:
            self.serve(SOFTMAX)
            served = self.reload("serving")
            retired = self.server.wait_for("model retired")
            after = complete(self.server, stream=False)
        self.assertNotEqual(before[1], after[1])
        self.assertEqual((before[0], after[0]), (f"fp_{retired['hash']}", f"fp_{served['hash']}"))
        self.assertEqual(set(callers.answers) - {before, after}, set())
        self.assertIn(before, callers.answers)
        page = self.server.request("GET", "/metrics").body.decode()
        self.assertRegex(page, f'(?m)^lssar_model_info.*"{served["hash"]}"')
        # And back: the same bits as at first.
        self.serve(LSSAR)
        self.assertEqual(self.reload("serving")["hash"], retired["hash"])
        self.assertEqual(complete(self.server, stream=True), before)
        self.assertEqual(self.server.stop(), 0)

    def test_what_cannot_be_served_changes_nothing(self):
        before = complete(self.server, stream=False)

        def is_kept(reason):
            with Callers(self.server) as callers:
                kept = self.reload("model kept")
            self.assertRegex(kept["reason"], reason)
            self.assertEqual(f"fp_{kept['hash']}", before[0])
            self.assertEqual(set(callers.answers), {before})
            return self.server.metric("lssar_last_reload_successful") == 1

        self.assertTrue(is_kept("have not changed"))
        broken = self.copy("softmax")
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        self.serve(broken)
        self.assertFalse(is_kept("model.safetensors"))
        other = self.copy("lssar")
        shutil.copy(TWINS / "softmax" / "golden.safetensors", other)
        self.serve(other)
        self.assertFalse(is_kept("golden"))
        self.serve(self.folder / "nowhere")
        self.assertFalse(is_kept("No such file"))
        self.serve(LSSAR)
        self.assertTrue(is_kept("have not changed"))
        self.assertEqual(self.server.stop(), 0)

    def test_a_download_does_not_keep_the_old_model(self):
        batches = self.folder / "batches"
        batches.mkdir()
        server = Server("--max-model-len", "2048", "--batch-dir", str(batches),
                        model=str(self.current))
        self.addCleanup(server.stop)
        # More than the system's buffers and the stream's take.
        content = b'{"custom_id": "1"}\n' * 1_500_000
        body, content_type = form(("purpose", None, b"batch"), ("file", "in", content))
        file = server.request("POST", "/v1/files", body, {"Content-Type": content_type}).json()
        connection = server.connect()
        self.addCleanup(connection.close)
        connection.request("GET", f"/v1/files/{file['id']}/content")
        download = connection.getresponse()
        begun = download.read(1000)
        self.serve(SOFTMAX)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("model retired")
        self.assertTrue(begun + download.read() == content)
        self.assertEqual(server.stop(), 0)

    def test_an_old_model_leaves_no_memory(self):
        resident = []
        for name in ["softmax", "lssar"] * 3:
            self.serve(TWINS / name)
            self.reload("model retired")
            complete(self.server, stream=False)
            resident.append(self.server.resident_bytes())
        # A model has 12 MB and its K/V. The last call may hold the old one for a moment.
        wait_until(lambda: self.server.resident_bytes() - resident[1] < 32 << 20)

    def test_a_signal_ends_a_server_that_reloads(self):
        self.serve(TWINS / "softmax")
        self.reload("loading")
        self.server.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.wait(), 0)


if __name__ == "__main__":
    unittest.main()
