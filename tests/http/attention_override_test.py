"""attention_override, checkpoint_hash, statistics and receipts of the HTTP API, on the shipped
model.

The standard library alone. Run by ctest from the repository's root with LSSAR_SERVER set.
"""

import json
import pathlib
import tempfile
import unittest
from typing import Any

from http_fixture import MODEL, Server
from json_schema import problems

server: Server
api: dict[str, Any]

PROMPT = "Once upon a time there was a little girl"
SCORE = {"items": [{"context": PROMPT, "continuations": [" who lived by the sea.", " zzz"]}],
         "logprobs": 1}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4,
                             "temperature": 0},
    "/v1/score": SCORE,
    "/v1/embeddings": {"input": PROMPT},
    "/v1/attention": {"prompt": PROMPT, "layers": [0], "heads": [1]},
}
SCHEMAS = {"/v1/completions": "Completion", "/v1/chat/completions": "ChatCompletion",
           "/v1/score": "Scores", "/v1/embeddings": "Embeddings", "/v1/attention": "Attention"}
# What a reply has besides its results.
META = ("id", "created", "receipt", "usage", "timings", "model", "system_fingerprint")


def setUpModule() -> None:
    global server, api
    server = Server("--allow-attention-override", "--max-model-len", "1024")
    api = server.request("GET", "/openapi.json").json()


def tearDownModule() -> None:
    assert server.stop() == 0


def schema(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def results(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in META}


class OverrideTest(unittest.TestCase):
    def test_bits_are_those_of_a_checkpoint_with_that_p(self) -> None:
        changed = {path: server.post(path, {**body, "attention_override": {"p": 5}})
                   for path, body in REQUESTS.items()}
        own = {path: server.post(path, body) for path, body in REQUESTS.items()}
        with tempfile.TemporaryDirectory() as folder:
            source, copy = pathlib.Path(MODEL).absolute(), pathlib.Path(folder, "lssar-p5")
            copy.mkdir()
            for file in source.iterdir():
                # Golden logits are those of p = 15.
                if file.name not in ("config.json", "golden.safetensors"):
                    (copy / file.name).symlink_to(file)
            config = json.loads((source / "config.json").read_text())
            config["attention"]["p"] = 5
            (copy / "config.json").write_text(json.dumps(config))
            other = Server("--max-model-len", "1024", model=str(copy))
            try:
                for path, body in REQUESTS.items():
                    with self.subTest(path):
                        reply = other.post(path, body)
                        self.assertEqual(results(changed[path]), results(reply))
                        self.assertEqual(reply["receipt"]["attention"], "lssar p=5")
            finally:
                self.assertEqual(other.stop(), 0)
        for path in REQUESTS:
            self.assertEqual(changed[path]["receipt"]["attention"], "lssar p=5")
            self.assertEqual(own[path]["receipt"]["attention"], "lssar p=15")
        self.assertNotEqual(results(own["/v1/score"]), results(changed["/v1/score"]))
        # Cached pages of the one function are not those of the other.
        self.assertEqual(results(server.post("/v1/score", SCORE)), results(own["/v1/score"]))

    def test_every_prompt_of_a_call_has_it(self) -> None:
        body = {**REQUESTS["/v1/completions"], "attention_override": {"p": 5}}
        prompts = [PROMPT, "The river", "The old house"]
        together = server.post("/v1/completions", {**body, "prompt": prompts})["choices"]
        for prompt, choice in zip(prompts, together, strict=True):
            [alone] = server.post("/v1/completions", {**body, "prompt": prompt})["choices"]
            self.assertEqual({**choice, "index": 0}, alone)

    def test_replies_fit_the_description(self) -> None:
        for path, body in REQUESTS.items():
            with self.subTest(path):
                reply = server.post(path, {**body, "attention_override": {"kind": "softmax"}})
                self.assertEqual(problems(reply, schema(SCHEMAS[path]), api), [])
                self.assertEqual(reply["receipt"]["attention"], "softmax")

    def test_powers_by_layer_head_and_length(self) -> None:
        for override, name in (
                ({"p_by_layer": [5] * 6}, "lssar p=5"),
                ({"p_by_layer": [3, 3, 3, 3, 3, 15]}, "lssar p=3 (0-4), lssar p=15 (5)"),
                ({"p_by_head": [3, 5, 2.5, 15]}, "lssar p=3/5/2.5/15"),
                ({"kind": None, "p_by_head": None, "p": 7,
                  "p_by_length": [{"min_keys": 4, "p": 3},
                                  {"min_keys": 6, "p_by_head": [1, 2, 3, 4]}]},
                 "lssar p=7 N>=4:3 N>=6:1/2/3/4"),
        ):
            for path, body in REQUESTS.items():
                with self.subTest(path=path, override=override):
                    reply = server.post(path, {**body, "attention_override": override})
                    self.assertEqual(reply["receipt"]["attention"], name)
                    self.assertEqual(problems(reply, schema(SCHEMAS[path]), api), [])
        uniform, by_head = (server.post("/v1/score", {**SCORE, "attention_override": override})
                            for override in ({"p": 5}, {"p_by_head": [5] * 24}))
        self.assertEqual(results(uniform), results(by_head))

    def test_models_say_that_it_is_allowed(self) -> None:
        [model] = server.request("GET", "/v1/models").json()["data"]
        self.assertIs(model["attention_override_allowed"], True)

    def test_bad_values_name_the_field(self) -> None:
        for override, message in (
                ({"p": 0}, "attention_override.p is 0; it must be in (0, 1000]"),
                ({"p": "5"}, "attention_override.p is a string"),
                ({"kind": "lsar"}, 'attention_override.kind is "lsar"; it must be one of'),
                ({"kind": "softmax", "p": 3}, "softmax does not re-weight"),
                ({"power": 5}, 'attention_override has a field "power"; it may have p, kind'),
                ({}, "attention_override.p and kind are not set"),
                ({"p_by_layer": [3, 5]}, "attention_override.p_by_layer has 2 numbers; it must "
                                         "have num_hidden_layers = 6"),
                ({"p_by_layer": []}, "attention_override.p_by_layer is empty; leave it out"),
                ({"p_by_layer": 3}, "attention_override.p_by_layer is a number; it must be a list"),
                ({"p_by_head": [3, "5", 3, 3]}, "attention_override.p_by_head[1] is a string"),
                ({"p_by_head": [3, 5, 3, 0]}, "attention_override.p_by_head[3] is 0; it must be"),
                ({"p": 3, "p_by_head": [3, 5, 3, 1]}, "attention_override.p_by_head is set beside"),
                ({"p_by_length": []}, "attention_override.p_by_length is empty; leave it out"),
                ({"p_by_length": [3]}, "attention_override.p_by_length[0] is a number"),
                ({"p_by_length": [{"p": 3}]},
                 "attention_override.p_by_length[0].min_keys is missing"),
                ({"p_by_length": [{"min_keys": 9}]},
                 "attention_override.p_by_length[0].p is missing"),
                ({"p_by_length": [{"min_keys": 9, "p": 3, "q": 1}]},
                 'attention_override.p_by_length[0] has a field "q"; it may have min_keys, p,'),
                (5, "attention_override is a number"),
        ):
            for path, body in REQUESTS.items():
                with self.subTest(path=path, override=override):
                    reply = server.request("POST", path, {**body, "attention_override": override})
                    self.assertEqual(reply.status, 400, reply.body)
                    self.assertIn(message, reply.error()["message"])
                    self.assertTrue(reply.error()["param"].startswith("attention_override"))

    def test_another_checkpoint_is_refused(self) -> None:
        [model] = server.request("GET", "/v1/models").json()["data"]
        for path, body in REQUESTS.items():
            server.post(path, {**body, "checkpoint_hash": model["checkpoint_hash"]})
            reply = server.request("POST", path, {**body, "checkpoint_hash": "0" * 16})
            self.assertEqual(reply.status, 400)
            self.assertIn('checkpoint_hash is "0000000000000000"; this server serves',
                          reply.error()["message"])
            self.assertEqual(reply.error()["param"], "checkpoint_hash")


class ReceiptTest(unittest.TestCase):
    def test_sampling_has_every_value_and_repeats_the_text(self) -> None:
        body = {"prompt": PROMPT, "max_tokens": 8, "top_p": 0.9, "ignore_eos": True}
        reply = server.post("/v1/completions", body)
        sampling = reply["receipt"]["sampling"]
        self.assertAlmostEqual(sampling["top_p"], 0.9, places=6)
        self.assertEqual((sampling["temperature"], sampling["top_k"]), (1, 0))
        again = server.post("/v1/completions", {**body, "seed": sampling["seed"]})
        self.assertEqual(reply["choices"], again["choices"])
        self.assertEqual(reply["receipt"], again["receipt"])

    def test_prompts_with_different_seeds(self) -> None:
        body = {"prompt": [PROMPT, PROMPT], "max_tokens": 8, "ignore_eos": True}
        reply = server.post("/v1/completions", body)
        self.assertNotIn("seed", reply["receipt"]["sampling"])
        for choice, seed in zip(reply["choices"], reply["receipt"]["seeds"], strict=True):
            alone = server.post("/v1/completions", {**body, "prompt": PROMPT, "seed": seed})
            self.assertEqual(alone["choices"][0]["text"], choice["text"])

    def test_max_tokens(self) -> None:
        """Those of the request, the endpoint's default, and what each prompt leaves of 1024."""
        def receipt(**body: object) -> dict[str, Any]:
            return server.post("/v1/completions", body)["receipt"]

        self.assertEqual(receipt(prompt=PROMPT, max_tokens=8)["max_tokens"], 8)
        self.assertEqual(receipt(prompt=PROMPT, max_tokens=0, echo=True)["max_tokens"], 0)
        self.assertEqual(receipt(prompt=PROMPT)["max_tokens"], 16)
        [bos] = server.post("/tokenize", {"prompt": "</s>", "add_special_tokens": False})["tokens"]
        scored = [server.post("/lm_eval/v1/completions", {
            "prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 1})["receipt"]
            for ids in ([bos], [bos, 5])]
        self.assertEqual(scored[0]["max_tokens"], 0)  # that token is never sampled
        self.assertNotIn("sampling", scored[1])  # the receipt of a score
        of_two = receipt(prompt=[[5] * 3, [5] * 1020])
        self.assertNotIn("max_tokens", of_two)
        self.assertEqual(of_two["max_tokens_by_prompt"], [16, 4])

    def test_the_last_event_of_each_choice_has_it(self) -> None:
        *events, done = server.stream("/v1/completions", {
            "prompt": PROMPT, "max_tokens": 3, "n": 2, "seed": 1, "ignore_eos": True})
        self.assertEqual(done, "[DONE]")
        for event in events:
            self.assertEqual("receipt" in event,
                             event["choices"][0]["finish_reason"] is not None)
        self.assertEqual(sum("receipt" in event for event in events), 2)


class StatisticsTest(unittest.TestCase):
    def test_statistics_equal_those_of_the_weights(self) -> None:
        body = {"prompt": PROMPT, "layers": [1, 4], "rows": [0, 3, -1]}
        rows = server.post("/v1/attention", body)["rows"]
        whole = server.post("/v1/attention", {**body, "statistics": True})
        *_, event, last, done = server.stream("/v1/attention", {**body, "statistics": True})
        self.assertEqual(done, "[DONE]")
        self.assertIn("receipt", last)
        self.assertEqual(event["statistics"], whole["statistics"])
        self.assertEqual(whole["rows"], [])
        self.assertEqual(problems(whole, schema("Attention"), api), [])
        self.assertEqual(len(whole["statistics"]), 2 * 4)
        for head in whole["statistics"]:
            own = [row for row in rows
                   if (row["layer"], row["head"]) == (head["layer"], head["head"])]
            self.assertEqual(head["num_rows"], 3)
            self.assertEqual(head["num_keys"], sum(row["row"] + 1 for row in own))
            for count in ("num_nonzero", "num_zero"):
                self.assertEqual(head[count], sum(row[count] for row in own))
            first = sum(weight for row in own
                        for key, weight in zip(row["keys"], row["weights"]) if key == 0)
            self.assertAlmostEqual(head["first_token_mass"], first, places=5)
            self.assertAlmostEqual(sum(head["distance_mass"]), 3, places=5)

    def test_top_k_is_excluded(self) -> None:
        reply = server.request("POST", "/v1/attention",
                               {"prompt": PROMPT, "top_k": 3, "statistics": True})
        self.assertEqual((reply.status, reply.error()["param"]), (400, "top_k"))


if __name__ == "__main__":
    unittest.main()
