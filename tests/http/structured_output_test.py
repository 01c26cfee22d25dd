"""Texts that fit a schema, a regular expression, a grammar or a list, over HTTP.

Run by ctest with LSSAR_SERVER. In a build without xgrammar: constraints are refused by name.
"""

import concurrent.futures
import json
import re
import time
import unittest
from typing import Any

from http_fixture import NAME, Server
import quick_models

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "Name a colour."}]
COLOURS = ["red", "green", "greenish blue", "b\u00e9ige \"x\""]
POINT = {"type": "object", "properties": {
    "z": {"type": "integer", "minimum": -9, "maximum": 99},
    "a": {"enum": ["up", "down"]}}, "required": ["z", "a"], "additionalProperties": False}

server: Server
has_xgrammar = True


def setUpModule() -> None:
    global server, has_xgrammar
    server = Server(model=quick_models.shallow())
    reply = server.request("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1,
                                                 "guided_regex": "a"})
    has_xgrammar = reply.status == 200
    if not has_xgrammar:
        assert "has no xgrammar" in reply.error()["message"], reply.body


def tearDownModule() -> None:
    assert server.stop() == 0


def complete(**fields: Any) -> list[dict[str, Any]]:
    """The choices."""
    return server.post(COMPLETIONS, {"prompt": "The", "max_tokens": 400, "seed": 1, **fields}
                       )["choices"]


def text_of(**fields: Any) -> str:
    [choice] = complete(**fields)
    assert choice["finish_reason"] == "stop", choice
    return choice["text"]


def ids_of_digits(first: int, last: int) -> list[int]:
    """The ids from `first` up to `last` whose text has a digit."""
    tokens = list(range(first, last))
    if not re.search("[0-9]", server.post("/detokenize", {"tokens": tokens})["prompt"]):
        return []
    if len(tokens) == 1:
        return tokens
    middle = (first + last) // 2
    return ids_of_digits(first, middle) + ids_of_digits(middle, last)


class RefusalTest(unittest.TestCase):
    def setUp(self) -> None:
        if has_xgrammar:
            self.skipTest("this build has xgrammar")

    def test_each_field_is_refused_by_its_name(self) -> None:
        for field, value in (("guided_json", {}), ("guided_regex", "a"), ("guided_choice", ["a"]),
                             ("guided_grammar", "root ::= \"a\""), ("json_schema", {}),
                             ("response_format", {"type": "json_object"}),
                             ("structured_outputs", {"regex": "a"})):
            for path, prompt in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": MESSAGES})):
                reply = server.request("POST", path, {**prompt, field: value})
                self.assertEqual(reply.status, 400)
                self.assertTrue(reply.error()["param"].startswith(field), reply.body)
        for format_ in {"type": "json_object"}, {"type": "json_schema", "schema": {}}:
            reply = server.request("POST", RESPONSES, {"input": "x", "text": {"format": format_}})
            self.assertEqual(reply.status, 400)
            self.assertTrue(reply.error()["param"].startswith("text.format"), reply.body)
        server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2,
                                  "response_format": {"type": "text"}})


class StructuredOutputTest(unittest.TestCase):
    def setUp(self) -> None:
        if not has_xgrammar:
            self.skipTest("this build has no xgrammar")

    def refuse(self, body: dict[str, Any], param: str, message: str, path: str = COMPLETIONS,
               ) -> None:
        prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "x"}
        reply = server.request("POST", path, {**prompt, "max_tokens": 20, **body})
        self.assertEqual(reply.status, 400, reply.body)
        self.assertEqual(reply.error()["param"], param, reply.body)
        self.assertIn(message, reply.error()["message"])

    def test_every_name_of_a_constraint(self) -> None:
        colours = "root ::= \"red\" | \"green\""
        for fields, fits in (
                ({"guided_regex": "[A-Z]{3}-[0-9]{2}"}, r"[A-Z]{3}-[0-9]{2}"),
                ({"regex": "(ab|c){1,9}d"}, r"(ab|c){1,9}d"),
                ({"structured_outputs": {"regex": "x{3,5}"}}, r"x{3,5}"),
                ({"guided_grammar": colours}, r"red|green"), ({"ebnf": colours}, r"red|green"),
                ({"grammar": colours}, r"red|green"),
                ({"structured_outputs": {"grammar": colours}}, r"red|green"),
                ({"guided_choice": COLOURS}, "|".join(map(re.escape, COLOURS))),
                ({"structured_outputs": {"choice": ["7"], "disable_fallback": True}}, "7")):
            with self.subTest(**fields):
                for seed in range(5):
                    self.assertRegex(text_of(**fields, seed=seed), f"^(?:{fits})$")
        for fields in ({"guided_json": POINT}, {"guided_json": json.dumps(POINT)},
                       {"json_schema": POINT}, {"structured_outputs": {"json": POINT}},
                       {"response_format": {"type": "json_schema", "json_schema": {
                           "name": "point", "strict": True, "schema": POINT}}}):
            with self.subTest(**fields):
                text = text_of(**fields)
                point = json.loads(text)
                # In the order of the schema, which is not that of the alphabet.
                self.assertEqual(list(point), ["z", "a"])
                self.assertIn(point["z"], range(-9, 100))
                self.assertIn(point["a"], ["up", "down"])
        for fields in ({"response_format": {"type": "json_object"}},
                       {"structured_outputs": {"json_object": True}}):
            [choice] = complete(**fields, max_tokens=400, temperature=0.7)
            self.assertTrue(choice["text"].startswith("{"))
            if choice["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(choice["text"]), dict)

    def test_chats_streams_and_choices(self) -> None:
        format_ = {"type": "json_schema", "json_schema": {"name": "p", "schema": POINT}}
        body = {"messages": MESSAGES, "response_format": format_, "n": 4, "seed": 3,
                "max_tokens": 400}
        choices = server.post(CHAT, body)["choices"]
        texts = [choice["message"]["content"] for choice in choices]
        for text in texts:
            self.assertEqual(set(json.loads(text)), {"a", "z"})
        streamed = [""] * 4
        for event in server.stream(CHAT, {**body, "stream": True}):
            if event == "[DONE]":
                continue
            for choice in event["choices"]:
                streamed[choice["index"]] += choice["delta"].get("content") or ""
        self.assertEqual(streamed, texts)

    def test_responses_have_the_text_of_the_chat(self) -> None:
        schema = {"name": "p", "strict": True, "schema": POINT}
        for response_format, format_ in (
                ({"type": "json_schema", "json_schema": schema}, {"type": "json_schema", **schema}),
                ({"type": "json_object"}, {"type": "json_object"}), ({"type": "text"},) * 2):
            chat = server.post(CHAT, {"messages": MESSAGES, "seed": 3, "max_tokens": 400,
                                      "response_format": response_format})["choices"][0]
            body = {"input": MESSAGES, "seed": 3, "max_output_tokens": 400,
                    "text": {"format": format_, "verbosity": "medium"}}
            response = server.post(RESPONSES, body)
            text = response["output"][0]["content"][0]["text"]
            self.assertEqual(text, chat["message"]["content"])
            self.assertEqual(response["text"]["format"], format_)
            self.assertEqual(response["status"],
                             "incomplete" if chat["finish_reason"] == "length" else "completed")
            if "schema" in format_:
                self.assertEqual(list(json.loads(text)), ["z", "a"])
        for format_, param in (({"type": "json_schema", "schema": {"type": "x"}},
                                "text.format.schema"),
                               ({"type": "json_schema", "schema": {}, "json_schema": {}},
                                "text.format.json_schema")):
            reply = server.request("POST", RESPONSES, {"input": "x", "text": {"format": format_}})
            self.assertEqual((reply.status, reply.error()["param"]), (400, param), reply.body)

    def test_the_same_text_with_and_without_speculation(self) -> None:
        for fields in ({"guided_regex": "(the cat |the dog ){6}"}, {"guided_json": POINT}):
            with self.subTest(**fields):
                texts = [complete(**fields, n=3, speculative_tokens=draft, logprobs=2)
                         for draft in (0, 64)]
                self.assertEqual(texts[0], texts[1])

    def test_a_request_without_a_constraint_keeps_its_bits(self) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 60, "seed": 5, "logprobs": 3}
        alone = server.post(COMPLETIONS, body)["choices"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            others = [pool.submit(complete, guided_json=POINT, n=4, seed=seed)
                      for seed in range(16)]
            beside = [pool.submit(server.post, COMPLETIONS, body) for _ in range(8)]
            for reply in beside:
                self.assertEqual(reply.result()["choices"], alone)
            for reply in others:
                for choice in reply.result():
                    json.loads(choice["text"])

    def test_how_a_text_ends(self) -> None:
        [cut] = complete(guided_regex="[a-z]{40}", max_tokens=3)
        self.assertEqual(cut["finish_reason"], "length")
        [stopped] = complete(guided_regex="a{20}b", stop="aaab")
        self.assertEqual(stopped["stop_reason"], "aaab")
        # EOS is ignored, so nothing can follow.
        [complete_] = complete(guided_choice=["yes"], ignore_eos=True)
        self.assertEqual((complete_["text"], complete_["finish_reason"], complete_["stop_reason"]),
                         ("yes", "stop", "complete"))
        [early] = complete(guided_choice=["yes"], min_tokens=50)
        self.assertEqual((early["text"], early["stop_reason"]), ("yes", "complete"))
        # The ids of a digit are banned, so the text cannot go on.
        ids = ids_of_digits(0, 4096)
        [dead] = complete(guided_regex="a{2}[0-9]", banned_token_ids=ids)
        self.assertEqual((dead["text"], dead["finish_reason"], dead["stop_reason"]),
                         ("aa", "abort", "dead_end"))
        format_ = {"type": "json_schema", "schema": {"type": "string", "pattern": "^a{2}[0-9]$"}}
        response = server.post(RESPONSES, {"input": "x", "max_output_tokens": 50,
                                           "text": {"format": format_}, "banned_token_ids": ids})
        self.assertEqual((response["status"], response["incomplete_details"]),
                         ("incomplete", {"reason": "dead_end"}))
        self.refuse({"guided_regex": "[0-9]", "banned_token_ids": ids}, "guided_regex",
                    "allows no first token that may be sampled")

    def test_bad_constraints(self) -> None:
        schema = {"type": "json_schema", "json_schema": {"schema": {"type": "array",
                                                                    "uniqueItems": True}}}
        for path in (COMPLETIONS, CHAT):
            self.refuse({"response_format": schema}, "response_format.json_schema.schema",
                        "uniqueItems", path)
        self.refuse({"response_format": {"type": "xml"}}, "response_format.type", "\"xml\"")
        self.refuse({"response_format": {}}, "response_format.type", "is missing")
        self.refuse({"response_format": {"type": "json_schema"}}, "response_format.json_schema",
                    "is missing")
        self.refuse({"response_format": {"type": "json_object", "strict": True}},
                    "response_format.strict", "is not known here")
        self.refuse({"guided_json": 5}, "guided_json", "is a number; it must be a JSON Schema")
        self.refuse({"guided_json": "{"}, "guided_json", "is not JSON")
        self.refuse({"guided_regex": "a", "guided_json": {}}, "guided_regex",
                    "and guided_json are both there; send one")
        self.refuse({"guided_regex": ["a"]}, "guided_regex", "guided_regex")
        self.refuse({"guided_regex": "("}, "guided_regex", "is refused")
        self.refuse({"guided_regex": "x" * (1 << 19)}, "guided_regex", "262144")
        self.refuse({"guided_choice": []}, "guided_choice", "0 entries; it must have 1 to 1024")
        self.refuse({"guided_choice": ["a", 1]}, "guided_choice[1]", "guided_choice[1]")
        self.refuse({"guided_choice": ["a"] * 1025}, "guided_choice", "1024")
        self.refuse({"guided_grammar": "start ::= \"a\""}, "guided_grammar", "is refused")
        self.refuse({"structured_outputs": {"structural_tag": "x"}},
                    "structured_outputs.structural_tag", "is not known here")
        self.refuse({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
                    "structured_outputs.disable_any_whitespace", "is true")
        self.refuse({"guided_json": False}, "guided_json", "fitted by no finite value")
        self.refuse({"guided_json": {"$ref": "#"}}, "guided_json", "fitted by no finite value")
        self.refuse({"guided_json": {"type": "integer", "minimum": 3, "maximum": 2}},
                    "guided_json", "is refused")
        self.refuse({"guided_json": {"enum": [0] * 1_000_000}}, "guided_json", "")
        self.refuse({"prompt": ["x"] * 1024, "guided_regex": "x" * 200_000}, "guided_regex",
                    "1024 prompts")

    def test_costly_constraints_leave_others_alone(self) -> None:
        """Each ends, with a text or an error, and requests without one are answered meanwhile."""
        costly = [{"guided_regex": regex} for regex in (
            "(a|b)*a(a|b){30}", "((a{1,100}){1,100}){1,100}", "(a?){3000}a{3000}")]
        costly.append({"guided_json": {"type": "object", "properties": {
            f"p{i}": {"type": "string", "pattern": f"(a|b)*{i}(a|b){{9}}"} for i in range(300)}}})
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            begun = [pool.submit(server.request, "POST", COMPLETIONS,
                                 {"prompt": "x", "max_tokens": 8, **fields}) for fields in costly]
            while not all(each.done() for each in begun):
                server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2})
                time.sleep(0.05)
            for each in begun:
                self.assertIn(each.result().status, (200, 400, 429), each.result().body)

    def test_the_model_is_named(self) -> None:
        reply = server.post(COMPLETIONS, {"model": NAME, "prompt": "x", "guided_choice": ["a"]})
        self.assertEqual(reply["choices"][0]["text"], "a")


if __name__ == "__main__":
    unittest.main()
