"""/v1/files and /v1/batches of a real server on the shipped model.

The standard library alone; foreign_tools_test.py runs the openai package. Run by ctest from the
repository's root with LSSAR_SERVER set.
"""

import json
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import unittest
from typing import Any

from http_fixture import Reply, Server, form, wait_until
from server_process import MODEL, SERVER

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
END_STATES = ("completed", "failed", "expired", "cancelled")


def line(number: int, url: str = COMPLETIONS, **body: Any) -> str:
    fields = {"prompt": f"Once upon a time, {number}", "max_tokens": 4, "temperature": 0, **body}
    return json.dumps({"custom_id": f"row-{number}", "method": "POST", "url": url,
                       "body": fields})


class BatchTestCase(unittest.TestCase):
    """Servers on one directory, one after the other."""

    server: Server

    def setUp(self) -> None:
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def start(self, *flags: str) -> Server:
        self.server = Server("--batch-dir", str(self.directory), *flags)
        self.addCleanup(self.server.stop)
        return self.server

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None,
            **headers: str) -> Reply:
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return self.server.request(method, path, body, headers)

    def json(self, method: str, path: str, body: Any = None, key: str | None = None
             ) -> dict[str, Any]:
        reply = self.ask(method, path, body, key)
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json()

    def send_form(self, *parts: tuple[str, str | None, bytes], key: str | None = None) -> Reply:
        body, content_type = form(*parts)
        return self.ask("POST", "/v1/files", body, key, **{"Content-Type": content_type})

    def upload(self, lines: list[str], key: str | None = None) -> str:
        content = "\n".join(lines).encode()
        reply = self.send_form(("purpose", None, b"batch"), ("file", "in.jsonl", content), key=key)
        self.assertEqual(reply.status, 200, reply.body)
        file = reply.json()
        self.assertEqual((file["object"], file["bytes"], file["filename"], file["purpose"]),
                         ("file", len(content), "in.jsonl", "batch"))
        return file["id"]

    def create(self, lines: list[str], key: str | None = None, **fields: Any) -> dict[str, Any]:
        return self.json("POST", "/v1/batches", {
            "input_file_id": self.upload(lines, key), "endpoint": COMPLETIONS,
            "completion_window": "24h", **fields}, key)

    def wait(self, batch_id: str) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            batch = self.json("GET", f"/v1/batches/{batch_id}")
            return batch if batch["status"] in END_STATES else None

        return wait_until(ended)

    def rows(self, file_id: str | None, key: str | None = None) -> dict[str, dict[str, Any]]:
        """The rows of an output by custom_id; each is there once."""
        if file_id is None:
            return {}
        reply = self.ask("GET", f"/v1/files/{file_id}/content", key=key)
        self.assertEqual((reply.status, reply.headers["Content-Type"]),
                         (200, "application/octet-stream"))
        self.assertTrue(reply.body.endswith(b"\n"))
        rows = [json.loads(text) for text in reply.body.splitlines()]
        found = {row["custom_id"] or row["id"]: row for row in rows}
        self.assertEqual(len(found), len(rows))
        return found

    def answers(self, batch: dict[str, Any], key: str | None = None
                ) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """The output and the errors, which have no row in common."""
        output, errors = (self.rows(batch[name], key)
                          for name in ("output_file_id", "error_file_id"))
        self.assertFalse(output.keys() & errors.keys())
        counts = batch["request_counts"]
        self.assertEqual((counts["completed"], counts["failed"]), (len(output), len(errors)))
        return output, errors

    def num_rows(self, *states: str) -> float:
        """By /metrics, at one time."""
        page = self.server.request("GET", "/metrics").body.decode()
        rows = dict(re.findall(r'^lssar_batch_rows\{state="(\w+)"\} (\d+)$', page, flags=re.M))
        return sum(int(rows[state]) for state in states)

    def num_lines_on_disk(self) -> int:
        """Rows that are answered, whatever the server says."""
        return sum(path.read_bytes().count(b'{"id":"batch_req_')
                   for path in self.directory.glob("file-*.jsonl"))

    def is_ended_on_disk(self) -> bool:
        [path] = self.directory.glob("batch_*.json")
        return json.loads(path.read_text())["ended_at"] > 0


class BatchesTest(BatchTestCase):
    def test_answers_are_those_of_the_path(self) -> None:
        self.start()
        messages = [{"role": "user", "content": "Hi"}]
        for url, bodies in (
                (COMPLETIONS, [{"prompt": "Once", "max_tokens": 5, "seed": 3},
                               {"prompt": ["a", "b"], "max_tokens": 3, "n": 2, "seed": 4}]),
                (CHAT, [{"messages": messages, "max_tokens": 5, "seed": 1}]),
                ("/v1/embeddings", [{"input": ["Once", "upon"]}]),
                ("/v1/responses", [{"input": "Hi", "max_output_tokens": 3, "seed": 1}])):
            batch = self.create([json.dumps({"custom_id": str(i), "method": "POST", "url": url,
                                             "body": body}) for i, body in enumerate(bodies)],
                                endpoint=url, metadata={"a": "b"})
            self.assertEqual((batch["object"], batch["endpoint"], batch["metadata"],
                              batch["request_counts"]["total"], batch["output_file_id"]),
                             ("batch", url, {"a": "b"}, len(bodies), None))
            self.assertEqual(batch["expires_at"] - batch["created_at"], 24 * 3600)
            batch = self.wait(batch["id"])
            self.assertEqual((batch["status"], batch["error_file_id"]), ("completed", None))
            self.assertGreaterEqual(batch["completed_at"], batch["created_at"])
            output, _ = self.answers(batch)
            for i, body in enumerate(bodies):
                response = output[str(i)]["response"]
                self.assertEqual((response["status_code"], response["request_id"],
                                  output[str(i)]["error"]),
                                 (200, f"{batch['id']}-{i + 1}", None))
                expected = self.server.post(url, body)
                for part in ("choices", "data", "receipt"):
                    self.assertEqual(response["body"].get(part), expected.get(part))
                if url == "/v1/responses":
                    self.assertEqual(response["body"]["output"][0]["content"],
                                     expected["output"][0]["content"])

    def test_broken_lines_are_errors_of_their_own(self) -> None:
        self.start()
        lines = [line(1), '{"custom_id": "x"', "[1]", "", line(5, top_p=2), line(6, url=CHAT),
                 line(1), line(8, stream=True), line(9, model="gpt-4"), line(10, temprature=1),
                 "x" * (4 << 20) + "x", line(12)]
        batch = self.wait(self.create(lines)["id"])
        self.assertEqual((batch["status"], batch["errors"]), ("completed", None))
        self.assertEqual(batch["request_counts"], {"total": 11, "completed": 2, "failed": 9})
        output = self.rows(batch["output_file_id"])
        self.assertEqual(set(output), {"row-1", "row-12"})
        reply = self.ask("GET", f"/v1/files/{batch['error_file_id']}/content")
        errors = {row["id"]: row for row in map(json.loads, reply.body.splitlines())}
        for number, status, code, text in (
                (2, None, "invalid_json", "line 2: not JSON"), (3, None, "invalid_request", ""),
                (5, 400, "invalid_request", "top_p is 2"),
                (6, None, "invalid_request", "url is"),
                (7, None, "duplicate_custom_id", '"row-1"'),
                (8, None, "invalid_request", "stream"), (9, 404, "model_not_found", "gpt-4"),
                (10, 400, "invalid_request", "did you mean temperature?"),
                (11, None, "line_too_long", "it may have 4194304")):
            row = errors.pop(f"batch_req_{number}")
            self.assertEqual(row["error"]["code"], code, row)
            self.assertIn(text, row["error"]["message"])
            self.assertEqual(row["response"] and row["response"]["status_code"], status)
        self.assertEqual(errors, {})

    def test_lists_have_pages(self) -> None:
        self.start()
        self.assertEqual(self.json("GET", "/v1/batches"),
                         {"object": "list", "data": [], "first_id": None, "last_id": None,
                          "has_more": False})
        ids = [self.create([line(1)])["id"] for _ in range(3)]
        for batch_id in ids:
            self.wait(batch_id)
        page = self.json("GET", "/v1/batches?limit=2")
        self.assertEqual(([item["id"] for item in page["data"]], page["has_more"]),
                         ([ids[2], ids[1]], True))
        page = self.json("GET", f"/v1/batches?limit=2&after={page['last_id']}")
        self.assertEqual(([item["id"] for item in page["data"]], page["has_more"]),
                         ([ids[0]], False))
        files = self.json("GET", "/v1/files")["data"]
        self.assertEqual(len(files), 6)
        self.assertEqual(self.json("GET", "/v1/files?order=asc")["data"], files[::-1])
        inputs = self.json("GET", "/v1/files?purpose=batch")["data"]
        self.assertEqual({file["purpose"] for file in inputs}, {"batch"})
        self.assertEqual(self.json("GET", f"/v1/files/{files[0]['id']}"), files[0])
        for file in files:
            self.assertEqual(self.json("DELETE", f"/v1/files/{file['id']}"),
                             {"id": file["id"], "object": "file", "deleted": True})
            self.assertEqual(self.ask("GET", f"/v1/files/{file['id']}").status, 404)
        self.assertEqual(list(self.directory.glob("file-*")), [])

    def test_bad_requests_name_the_field(self) -> None:
        self.start()
        purpose, file = ("purpose", None, b"batch"), ("file", "x", line(1).encode())
        for parts, param, text in (
                ((file,), "purpose", "is missing"), ((purpose,), "file", "is missing"),
                ((("purpose", None, b"fine-tune"), file), "purpose", '"fine-tune"'),
                ((purpose, file, file), "file", "twice"),
                ((purpose, file, ("expires_after[seconds]", None, b"3600")),
                 "expires_after[seconds]", "until they are deleted"),
                ((purpose, file, ("zzz", None, b"")), "zzz", "file and purpose"),
                ((purpose, ("file", "x" * 256, b"{}")), "file", "at most 255 bytes"),
                ((purpose, ("file", "x", b"\n \n")), None, "no lines")):
            reply = self.send_form(*parts)
            self.assertEqual((reply.status, reply.error()["param"]), (400, param), reply.body)
            self.assertIn(text, reply.error()["message"])
        reply = self.ask("POST", "/v1/files", {"purpose": "batch"})
        self.assertEqual(reply.status, 415)
        self.assertIn("multipart/form-data", reply.error()["message"])
        body, content_type = form(purpose, file)
        self.assertEqual(self.ask("POST", COMPLETIONS, body,
                                  **{"Content-Type": content_type}).status, 415)
        reply = self.ask("POST", "/v1/files", body[:-20], **{"Content-Type": content_type})
        self.assertIn("cut off", reply.error()["message"])
        refused = self.server.raw(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" % (33 << 20))
        self.assertTrue(refused.startswith(b"HTTP/1.1 413 "), refused)

        file_id = self.upload([line(1)])
        good = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"}
        for fields, param, text in (
                ({"input_file_id": "file-none"}, "input_file_id", "there is no file"),
                ({"input_file_id": None}, "input_file_id", "is missing"),
                ({"endpoint": "/v1/files"}, "endpoint", CHAT), ({"endpoint": 5}, "endpoint", ""),
                ({"completion_window": "0s"}, "completion_window", "from 1s to 168h"),
                ({"completion_window": "1000h"}, "completion_window", "from 1s to 168h"),
                ({"completion_window": "soon"}, "completion_window", "from 1s to 168h"),
                ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "it may have 16"),
                ({"metadata": {"a": 5}}, "metadata", "a value is a string"),
                ({"metadata": {"a": "x" * 513}}, "metadata", "at most 512"),
                ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
                 "output_expires_after", "until they are deleted"),
                ({"endpont": 1}, "endpont", "did you mean endpoint?")):
            reply = self.ask("POST", "/v1/batches", {**good, **fields})
            self.assertEqual((reply.status, reply.error()["param"]), (400, param), reply.body)
            self.assertIn(text, reply.error()["message"])
        for path, param in (("/v1/batches?limit=0", "limit"), ("/v1/batches?limit=101", "limit"),
                            ("/v1/batches?after=batch_x", "after"), ("/v1/batches?a=1", "a"),
                            ("/v1/files?order=up", "order"), ("/v1/files?limit=x", "limit")):
            reply = self.ask("GET", path)
            self.assertEqual((reply.status, reply.error()["param"]), (400, param), reply.body)
        for method, path in (("GET", "/v1/batches/batch_x"), ("GET", "/v1/files/..%2Flock"),
                             ("POST", "/v1/batches/batch_x/cancel"), ("GET", "/v1/files/a/b"),
                             ("GET", "/v1/files/lock/content"), ("DELETE", "/v1/files/lock"),
                             ("GET", "/v1/files//content")):
            self.assertEqual(self.ask(method, path).status, 404, path)
        reply = self.ask("GET", "/v1/batches/")
        self.assertEqual((reply.status, reply.headers["Location"]), (307, "/v1/batches"))
        reply = self.ask("PUT", "/v1/files")
        self.assertEqual((reply.status, reply.headers["Allow"]),
                         (405, "POST, GET, HEAD, OPTIONS"))
        batch = self.json("POST", "/v1/batches", good)
        self.wait(batch["id"])
        reply = self.ask("POST", f"/v1/batches/{batch['id']}/cancel")
        self.assertEqual(reply.status, 400)
        self.assertIn("is completed", reply.error()["message"])

    def test_off_by_default(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        for method, path in (("GET", "/v1/files"), ("GET", "/v1/batches"),
                             ("GET", "/v1/files/file-x/content")):
            reply = server.request(method, path)
            self.assertEqual(reply.status, 404)
            self.assertIn("--batch-dir", reply.error()["message"])

    def test_a_file_larger_than_the_buffer(self) -> None:
        """It goes out in parts; what the client does not read is not in memory."""
        self.start("--stream-buffer", "4K")
        content = "\n".join(line(i, note="x" * 1000) for i in range(5000)).encode()
        reply = self.send_form(("purpose", None, b"batch"), ("file", "in", content))
        path = f"/v1/files/{reply.json()['id']}/content"
        self.assertEqual(self.ask("GET", path).body, content)
        head = self.ask("HEAD", path)
        self.assertEqual((head.headers["Content-Length"], head.body), (str(len(content)), b""))
        connection = self.server.connect()
        connection.request("GET", path)
        connection.getresponse().read(1000)
        connection.close()  # leaves early
        self.server.wait_until_idle()
        self.assertEqual(self.ask("GET", path).body, content)

    def test_cancelled_and_expired_rows_get_an_error(self) -> None:
        self.start()
        lines = [line(i, max_tokens=4000, ignore_eos=True) for i in range(1, 101)] + ["{"]
        cancelled = self.create(lines)
        reply = self.ask("DELETE", f"/v1/files/{cancelled['input_file_id']}")
        self.assertEqual(reply.status, 400)
        self.assertIn("is in use", reply.error()["message"])
        wait_until(lambda: self.server.metric("lssar_num_requests_running") > 0)
        self.assertEqual(self.server.metric('lssar_batches{status="in_progress"}'), 1)
        self.assertEqual(self.num_rows("waiting", "completed", "failed"), 101)
        # Other calls go on beside it.
        self.server.post(COMPLETIONS, {"prompt": "Once", "max_tokens": 4})
        reply = self.json("POST", f"/v1/batches/{cancelled['id']}/cancel")
        self.assertIn(reply["status"], ("cancelling", "cancelled"))
        expired = self.create(lines, completion_window="1s")
        for batch, status in ((cancelled, "cancelled"), (expired, "expired")):
            ended = self.wait(batch["id"])
            self.assertEqual(ended["status"], status)
            self.assertGreater(ended[f"{status}_at"], 0)
            output, errors = self.answers(ended)
            self.assertEqual(len(output) + len(errors), 101)
            codes = {row["error"]["code"] for row in errors.values()}
            self.assertIn(f"batch_{status}", codes)
            self.assertEqual(self.server.metric(f'lssar_batches{{status="{status}"}}'), 1)
        self.server.wait_until_idle()
        self.assertEqual(self.num_rows("waiting"), 0)
        self.assertEqual(self.num_rows("completed", "failed"), 2 * 101)


    def test_an_end_that_cannot_be_written_is_tried_again(self) -> None:
        self.start()
        batch = self.create([line(1, max_tokens=15000, ignore_eos=True)])
        path = f"/v1/batches/{batch['id']}"
        wait_until(lambda: self.server.metric("lssar_num_requests_running") > 0)
        obstacle = self.directory / f"{batch['id']}.json.new"
        obstacle.mkdir()
        self.assertEqual(self.ask("DELETE", f"{COMPLETIONS}/{batch['id']}-1").status, 200)
        wait_until(lambda: self.json("GET", path)["request_counts"]["failed"] == 1)
        # The server tries each second.
        wait_until(lambda: any(entry.get("event") == "batch" for entry in list(self.server.lines)))
        found = self.json("GET", path)
        self.assertEqual((found["status"], found["error_file_id"]), ("in_progress", None))
        obstacle.rmdir()
        ended = self.wait(batch["id"])
        self.assertEqual(ended["status"], "completed")
        self.assertEqual(set(self.answers(ended)[1]), {"row-1"})
        self.assertTrue(self.is_ended_on_disk())

    def test_a_stream_that_nobody_reads_holds_up_no_rows(self) -> None:
        self.start("--stream-buffer", "64K", "--max-n", "4")
        body = json.dumps({"prompt": "a", "max_tokens": 15000, "ignore_eos": True, "n": 4,
                           "stream": True, "logprobs": 5}).encode()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect((self.server.host, self.server.port))
            reader.sendall((f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n"
                            "Content-Type: application/json\r\n"
                            f"Content-Length: {len(body)}\r\n\r\n"
                            ).encode() + body)
            wait_until(lambda: self.server.metric("lssar_num_requests_running") == 1)
            batch = self.create([line(i, max_tokens=15000, ignore_eos=True) for i in range(4)])
            # As soon as the stream is paused: more than the one row that goes on beside a call.
            wait_until(lambda: self.server.metric("lssar_num_requests_running") == 5)
        self.json("POST", f"/v1/batches/{batch['id']}/cancel")
        self.assertEqual(self.wait(batch["id"])["status"], "cancelled")


class KeysTest(BatchTestCase):
    def keys(self, **limits: str) -> str:
        path = self.directory.parent / f"{self.directory.name}-keys.toml"
        self.addCleanup(path.unlink, missing_ok=True)
        path.write_text("".join(f'[{name}]\nkey = "{name}-secret-key-0123456789"\n{limit}\n'
                                for name, limit in limits.items()))
        return str(path)

    def test_a_key_sees_its_own(self) -> None:
        self.start("--api-keys", self.keys(alice="", bob="", chief='role = "admin"'))
        alice, *others = (f"{name}-secret-key-0123456789" for name in ("alice", "bob", "chief"))
        batch = self.create([line(1)], alice)
        batch = wait_until(lambda: next(
            (found for found in [self.json("GET", f"/v1/batches/{batch['id']}", key=alice)]
             if found["status"] in END_STATES), None))
        self.assertEqual(set(self.answers(batch, alice)[0]), {"row-1"})
        for other in others:
            for method, path in (("GET", f"/v1/batches/{batch['id']}"),
                                 ("POST", f"/v1/batches/{batch['id']}/cancel"),
                                 ("GET", f"/v1/files/{batch['output_file_id']}"),
                                 ("GET", f"/v1/files/{batch['output_file_id']}/content"),
                                 ("DELETE", f"/v1/files/{batch['input_file_id']}")):
                self.assertEqual(self.ask(method, path, key=other).status, 404, path)
            for path in ("/v1/files", "/v1/batches"):
                self.assertEqual(self.json("GET", path, key=other)["data"], [])
            reply = self.ask("POST", "/v1/batches", {
                "input_file_id": batch["input_file_id"], "endpoint": COMPLETIONS,
                "completion_window": "24h"}, other)
            self.assertEqual((reply.status, reply.error()["param"]), (400, "input_file_id"))
        self.assertEqual(self.ask("GET", "/v1/files").status, 401)
        # The rows were calls of the key. At its end the server has written every line of its log.
        self.assertEqual(self.server.stop(), 0)
        calls = [entry for entry in self.server.lines
                 if entry.get("request_id") == f"{batch['id']}-1"]
        self.assertEqual([(entry["key"], entry["rpc"], entry["status"]) for entry in calls],
                         [("alice", "POST /v1/completions", "OK")])

    def test_limits_of_the_key_are_waited_for_or_end_the_row(self) -> None:
        self.start("--api-keys", self.keys(alice="tokens-per-minute = 1000"))
        key = "alice-secret-key-0123456789"
        lines = [line(1), line(2, max_tokens=2000), line(3)]
        self.create(lines, key)
        wait_until(self.is_ended_on_disk)
        [batch] = self.json("GET", "/v1/batches", key=key)["data"]
        output, errors = self.answers(batch, key)
        self.assertEqual(set(output), {"row-1", "row-3"})
        self.assertEqual(errors["row-2"]["response"]["status_code"], 429)
        self.assertIn("tokens-per-minute", errors["row-2"]["error"]["message"])

    def test_a_batch_takes_no_place_from_its_owners_calls(self) -> None:
        limits = "max-concurrent = 1\nmax-sequences = 1"
        self.start("--api-keys", self.keys(alice=limits, chief='role = "admin"'))
        key, admin = (f"{name}-secret-key-0123456789" for name in ("alice", "chief"))
        batch = self.create([line(i, max_tokens=15000, ignore_eos=True) for i in (1, 2)], key)
        wait_until(lambda: b"\nlssar_num_requests_running 1\n"
                   in self.ask("GET", "/metrics", key=admin).body)
        self.assertEqual(self.ask("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 2},
                                  key).status, 200)
        path = f"/v1/batches/{batch['id']}"
        self.assertEqual(self.json("GET", path, key=key)["status"], "in_progress")
        self.json("POST", f"{path}/cancel", key=key)
        wait_until(lambda: self.json("GET", path, key=key)["status"] == "cancelled")

    def test_a_download_counts_for_its_key_until_its_last_part(self) -> None:
        self.start("--api-keys", self.keys(alice="max-concurrent = 1", bob=""))
        alice, bob = (f"{name}-secret-key-0123456789" for name in ("alice", "bob"))
        # More than the system's buffers and the stream's take.
        content = b'{"custom_id": "1"}\n' * 1_500_000
        reply = self.send_form(("purpose", None, b"batch"), ("file", "in", content), key=alice)
        ask = {"prompt": "a", "max_tokens": 1}
        for _ in range(2):
            connection = self.server.connect()
            connection.request("GET", f"/v1/files/{reply.json()['id']}/content",
                               headers={"Authorization": f"Bearer {alice}"})
            download = connection.getresponse()
            begun = download.read(1000)
            refused = self.ask("POST", COMPLETIONS, ask, alice)
            self.assertEqual(refused.status, 429)
            self.assertIn("max-concurrent = 1", refused.error()["message"])
            self.assertEqual(self.ask("POST", COMPLETIONS, ask, bob).status, 200)
            self.assertTrue(begun + download.read() == content)
            self.assertEqual(self.ask("POST", COMPLETIONS, ask, alice).status, 200)
            connection.close()
        for _ in range(20):
            path = f"/v1/files/{reply.json()['id']}/content"
            self.assertEqual(self.ask("HEAD", path, key=alice).status, 200)
            self.assertEqual(self.ask("GET", "/v1/files/none/content", key=alice).status, 404)
            self.assertEqual(self.ask("POST", COMPLETIONS, ask, alice).status, 200)

    def test_rows_that_a_limit_refuses_hold_up_no_others(self) -> None:
        self.start("--max-num-seqs", "16", "--api-keys",
                   self.keys(alice="max-sequences = 2", chief='role = "admin"'))
        key, admin = (f"{name}-secret-key-0123456789" for name in ("alice", "chief"))
        batch = self.create([line(i) for i in range(60)], key)
        wait_until(self.is_ended_on_disk)
        page = self.ask("GET", "/metrics", key=admin).body
        self.assertIn(b'\nlssar_request_failure_total{code="RESOURCE_EXHAUSTED"} 0\n', page)
        # The upload, the batch and each row once.
        self.assertIn(b'\nlssar_key_calls_total{key="alice"} 62\n', page)
        self.assertEqual(self.server.stop(), 0)
        refused = [entry for entry in self.server.lines if entry.get("event") == "call"
                   and entry["request_id"].startswith(batch["id"])
                   and entry["status"] == "RESOURCE_EXHAUSTED"]
        # Six at the start, then one each time that the runner tries, which is seldom.
        self.assertGreaterEqual(len(refused), 1)
        self.assertLess(len(refused), 60)

    def test_a_key_that_is_gone_ends_its_batches(self) -> None:
        flags = ("--api-keys", self.keys(alice="requests-per-minute = 10"))
        self.start(*flags)
        key = "alice-secret-key-0123456789"
        self.create([line(i) for i in range(100)], key)
        wait_until(lambda: self.num_lines_on_disk() >= 2)
        self.assertEqual(self.server.stop(), 0)
        self.keys(bob="")
        self.start(*flags)
        wait_until(self.is_ended_on_disk)
        [path] = self.directory.glob("batch_*.json")
        self.assertEqual(json.loads(path.read_text())["error_code"], "invalid_api_key")
        self.assertEqual(self.server.stop(), 0)

    def test_killed_and_started_again(self) -> None:
        """The key's rate makes sure that the server is killed in the middle of the batch."""
        flags = ("--api-keys", self.keys(alice="requests-per-minute = 42"))
        key = "alice-secret-key-0123456789"
        self.start(*flags)
        count = 36
        lines = [line(i, seed=i, temperature=1) for i in range(1, count + 1)]
        lines[2] = "{"
        self.create(lines, key)
        wait_until(lambda: self.num_lines_on_disk() >= 15)
        self.server.process.send_signal(signal.SIGKILL)
        self.server.wait()
        # As if it had been killed within a write.
        output = max(self.directory.glob("file-*.jsonl"),
                     key=lambda path: path.read_bytes().count(b'"response":{'))
        whole = output.read_bytes().count(b"\n")
        output.write_bytes(output.read_bytes()[:-30])
        self.assertLess(whole, count - 1)
        self.start(*flags)
        wait_until(lambda: self.num_lines_on_disk() >= whole + 5)
        self.server.process.send_signal(signal.SIGKILL)
        self.server.wait()
        self.start(*flags)
        wait_until(self.is_ended_on_disk)
        self.assertEqual(self.server.stop(), 0)

        self.start("--api-keys", self.keys(alice=""))
        [batch] = self.json("GET", "/v1/batches", key=key)["data"]
        self.assertEqual(batch["status"], "completed")
        output_rows, errors = self.answers(batch, key)
        self.assertEqual(set(output_rows), {f"row-{i}" for i in range(1, count + 1) if i != 3})
        self.assertEqual([row["id"] for row in errors.values()], ["batch_req_3"])
        for number in (1, 15, 16, count):
            body = json.loads(lines[number - 1])["body"]
            reply = self.ask("POST", COMPLETIONS, body, key).json()
            self.assertEqual(output_rows[f"row-{number}"]["response"]["body"]["choices"],
                             reply["choices"])


class StopTest(BatchTestCase):
    def test_a_stop_is_clean_and_the_next_start_goes_on(self) -> None:
        # Rows are given up in the middle of the drain; the rest is for machines that stand still.
        self.start("--max-num-seqs", "2", "--drain-timeout", "10s")
        # The first row is longer than the drain: it runs again, and is no aborted call.
        lines = [line(1, prompt=["Once"] * 40, max_tokens=15000, ignore_eos=True)] + [
            line(i) for i in range(2, 31)]
        batch = self.create(lines)
        wait_until(lambda: self.server.metric("lssar_num_requests_running") > 0)
        self.assertEqual(self.server.stop(), 0)
        self.assertFalse(self.is_ended_on_disk())
        self.start("--max-model-len", "1024")  # now the first row is refused
        ended = self.wait(batch["id"])
        output, errors = self.answers(ended)
        self.assertEqual(len(output), 29)
        self.assertEqual(errors["row-1"]["response"]["status_code"], 400)

    def test_a_directory_serves_one_server(self) -> None:
        self.start()
        for directory, reason in ((self.directory, "another server uses this directory"),
                                  (self.directory / "none", "No such file or directory")):
            other = subprocess.run([SERVER, "--model", MODEL, "--listen", "127.0.0.1:0",
                                    "--http-listen", "127.0.0.1:0", "--batch-dir", str(directory)],
                                   capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(other.returncode, 1)
            self.assertIn(f"--batch-dir {directory}", other.stderr)
            self.assertIn(reason, other.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
