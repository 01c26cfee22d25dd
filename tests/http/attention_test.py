"""POST /v1/attention, and the web page's files as a client without a browser sees them."""

import math
import tempfile
import unittest

from http_fixture import Server

TEXT = "The cat sat on the mat. The cat"
server: Server


def setUpModule() -> None:
    global server
    server = Server()


def tearDownModule() -> None:
    assert server.stop() == 0


class AttentionTest(unittest.TestCase):
    def test_rows_are_distributions_over_earlier_keys(self) -> None:
        answer = server.post("/v1/attention", {"prompt": TEXT, "rows": [3, -1]})
        tokens = [token["token"] for token in answer["tokens"]]
        self.assertEqual("".join(tokens[1:]), " " + TEXT)
        self.assertEqual(answer["usage"]["prompt_tokens"], len(tokens))
        last = len(tokens) - 1
        self.assertEqual(
            sorted((row["layer"], row["head"], row["row"]) for row in answer["rows"]),
            [(layer, head, row) for layer in range(6) for head in range(4) for row in (3, last)],
        )
        for row in answer["rows"]:
            self.assertEqual(row["keys"], sorted(set(row["keys"])))
            self.assertEqual(len(row["keys"]), row["num_nonzero"])
            self.assertLessEqual(row["num_zero"], row["row"] + 1 - row["num_nonzero"])
            self.assertLessEqual(row["keys"][-1], row["row"])
            self.assertAlmostEqual(sum(row["weights"]), 1, places=5)
            entropy = -sum(weight * math.log(weight) for weight in row["weights"] if weight > 0)
            self.assertAlmostEqual(row["entropy"], entropy, places=4)

    def test_a_stream_has_the_same_rows(self) -> None:
        body = {"prompt": TEXT, "layers": [2, 5], "heads": [1], "rows": [5, 7]}
        whole = server.post("/v1/attention", body)
        first, *parts, end, done = server.stream("/v1/attention", body)
        self.assertEqual(done, "[DONE]")
        self.assertEqual(first["tokens"], whole["tokens"])
        self.assertEqual([row for part in parts for row in part["rows"]], whole["rows"])
        self.assertEqual(end["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"])

    def test_top_k_keeps_the_largest_and_says_what_it_dropped(self) -> None:
        ask = {"prompt": TEXT, "layers": [5], "heads": [0]}
        [every] = server.post("/v1/attention", ask)["rows"]
        [some] = server.post("/v1/attention", {**ask, "top_k": 2})["rows"]
        self.assertGreater(len(every["keys"]), 2)
        self.assertEqual(sorted(some["weights"]), sorted(every["weights"])[-2:])
        self.assertAlmostEqual(some["dropped_mass"], 1 - sum(some["weights"]), places=5)
        self.assertEqual(some["entropy"], every["entropy"])

    def test_takes_ids_and_chats(self) -> None:
        ids = server.post("/tokenize", {"prompt": TEXT})["tokens"]
        by_text = server.post("/v1/attention", {"prompt": TEXT})
        self.assertEqual(server.post("/v1/attention", {"prompt": ids})["rows"], by_text["rows"])
        chat = server.post("/v1/attention", {"messages": [{"role": "user", "content": "Hello"}]})
        self.assertIn("<|user|>", [token["token"] for token in chat["tokens"]])

    def test_bad_requests_name_field_value_and_limit(self) -> None:
        for fields, param, sentence in (
            ({}, "prompt", "prompt is missing"),
            ({"prompt": TEXT, "rows": [99]}, "rows", r"rows\[0\] is 99.*the prompt has 12"),
            ({"prompt": TEXT, "layers": [6]}, "layers", r"layers\[0\] is 6"),
            ({"prompt": TEXT, "heads": [-5]}, "heads", r"heads\[0\] is -5"),
            ({"prompt": TEXT, "top_k": -1}, "top_k", "top_k is -1"),
            (
                {"prompt": [2] * 2000, "rows": list(range(2000))},
                "rows",
                "48024000 weights in one reply; the limit is 1048576",
            ),
            (
                {"prompt": [2] * 16001, "rows": list(range(0, 16001, 8)), "stream": True},
                None,
                "all 2001 rows.*at most 67108864",
            ),
        ):
            reply = server.request("POST", "/v1/attention", fields)
            self.assertEqual(reply.status, 400, fields)
            self.assertRegex(reply.error()["message"], sentence)
            if param is not None:
                self.assertRegex(reply.error()["param"] or reply.error()["message"], param)


class WebPageTest(unittest.TestCase):
    def test_files_have_types_and_a_strict_policy(self) -> None:
        for path, content_type in (
            ("/", "text/html"),
            ("/web/main.js", "text/javascript"),
            ("/web/style.css", "text/css"),
            ("/web/icon.svg", "image/svg+xml"),
        ):
            reply = server.request("GET", path)
            self.assertEqual(reply.status, 200, path)
            self.assertTrue(reply.headers["Content-Type"].startswith(content_type), path)
            self.assertEqual(reply.headers["X-Content-Type-Options"], "nosniff")
            self.assertIn("default-src 'none'", reply.headers["Content-Security-Policy"])

    def test_only_its_own_files(self) -> None:
        for path in ("/web/", "/web/../main.js", "/web/none.js", "/web", "/index.html"):
            self.assertEqual(server.request("GET", path).status, 404, path)

    def test_needs_no_key_and_can_be_off(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as keys:
            keys.write('[alice]\nkey = "a-long-and-secret-key-0123456789"\n')
            keys.flush()
            locked = Server("--api-keys", keys.name)
            self.assertEqual(locked.request("GET", "/").status, 200)
            self.assertEqual(locked.request("GET", "/web/main.js").status, 200)
            self.assertEqual(locked.request("POST", "/v1/attention", {"prompt": "x"}).status, 401)
            self.assertEqual(locked.stop(), 0)
        off = Server("--web-page", "off")
        self.assertEqual(off.request("GET", "/").status, 404)
        self.assertEqual(off.request("GET", "/web/main.js").status, 404)
        self.assertEqual(off.stop(), 0)


if __name__ == "__main__":
    unittest.main()
