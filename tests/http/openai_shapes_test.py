"""OpenAI's API of a real server on the shipped model: shapes and values.

The standard library alone. Run by ctest from the repository's root with LSSAR_SERVER set.
"""

import tempfile
import unittest
from typing import Any

from http_fixture import NAME, Server
from json_schema import problems

server: Server
api: dict[str, Any]

PROMPT = "Once upon a time there was a little girl"


def setUpModule() -> None:
    global server, api
    directory = unittest.enterModuleContext(tempfile.TemporaryDirectory())
    server = Server("--speculative", "ngram", "--batch-dir", directory)
    api = server.request("GET", "/openapi.json").json()


def tearDownModule() -> None:
    assert server.stop() == 0


def complete(**fields: Any) -> dict[str, Any]:
    return server.post("/v1/completions",
                       {"model": NAME, "prompt": PROMPT, "max_tokens": 8, "temperature": 0,
                        **fields})


def chat(**fields: Any) -> dict[str, Any]:
    return server.post("/v1/chat/completions",
                       {"model": NAME, "messages": [{"role": "user", "content": "Hello"}],
                        "max_tokens": 8, "temperature": 0, **fields})


def tokenize(text: str, **fields: Any) -> list[int]:
    return server.post("/tokenize", {"prompt": text, **fields})["tokens"]


class CompletionTest(unittest.TestCase):
    def test_every_form_of_prompt_gives_the_same_text(self) -> None:
        ids = tokenize(PROMPT)
        text = complete()["choices"][0]["text"]
        self.assertTrue(text)
        self.assertEqual(complete(prompt=ids)["choices"][0]["text"], text)
        for prompt in ([PROMPT, "The"], [ids, tokenize("The")]):
            reply = complete(prompt=prompt)
            self.assertEqual([c["index"] for c in reply["choices"]], [0, 1])
            self.assertEqual(reply["choices"][0]["text"], text)
            self.assertEqual(reply["choices"][1]["text"],
                             complete(prompt="The")["choices"][0]["text"])
            self.assertEqual(reply["usage"]["prompt_tokens"], len(ids) + len(tokenize("The")))

    def test_top_p_0_is_greedy(self) -> None:
        for seed in range(3):
            reply = complete(temperature=1, top_p=0, seed=seed)
            self.assertEqual(reply["choices"][0]["text"], complete()["choices"][0]["text"])
            self.assertEqual(reply["receipt"]["sampling"]["top_p"], 0)

    def test_eos_and_stop_ids_are_not_sampled_before_min_tokens(self) -> None:
        fields = {"max_tokens": 6, "min_tokens": 4, "allowed_token_ids": [2, 300], "logprobs": 0,
                  "return_tokens_as_token_ids": True}
        for body in ({"logit_bias": {"2": 100}}, {"ignore_eos": True, "stop_token_ids": [2],
                                                  "logit_bias": {"2": 100}}):
            choice = complete(**fields, **body)["choices"][0]
            self.assertEqual(choice["logprobs"]["tokens"], ["token_id:300"] * 4 + ["token_id:2"])
            self.assertEqual(choice["finish_reason"], "stop")

    def test_n_choices_of_each_prompt_in_order(self) -> None:
        reply = complete(prompt=[PROMPT, "The"], n=3, temperature=1, seed=7)
        self.assertEqual([c["index"] for c in reply["choices"]], list(range(6)))
        again = complete(prompt=[PROMPT, "The"], n=3, temperature=1, seed=7)
        self.assertEqual([c["text"] for c in reply["choices"]],
                         [c["text"] for c in again["choices"]])
        self.assertGreater(len({c["text"] for c in reply["choices"]}), 1)

    def test_usage_counts(self) -> None:
        usage = complete(max_tokens=5, ignore_eos=True)["usage"]
        self.assertEqual(usage["prompt_tokens"], len(tokenize(PROMPT)))
        self.assertEqual(usage["completion_tokens"], 5)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 5)
        self.assertIn("cached_tokens", usage["prompt_tokens_details"])

    # A loop of one token: drafts are right. Where drafts seem to cost too much, 4 tokens are
    # drafted every 256 steps nevertheless.
    def test_speculative_decoding_changes_the_usage_alone(self) -> None:
        options = {"max_tokens": 600, "ignore_eos": True, "allowed_token_ids": [300], "logprobs": 1}
        reply, plain = complete(**options), complete(**options, speculative_tokens=0)
        self.assertEqual(reply["choices"], plain["choices"])
        details = reply["usage"]["completion_tokens_details"]
        self.assertGreaterEqual(details["accepted_prediction_tokens"], 4)
        self.assertEqual(plain["usage"]["completion_tokens_details"],
                         {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0})

    def test_the_default_is_sixteen_tokens(self) -> None:
        reply = server.post("/v1/completions", {"prompt": PROMPT, "ignore_eos": True})
        self.assertEqual(reply["usage"]["completion_tokens"], 16)

    def test_attention_override_is_off_by_default(self) -> None:
        [model] = server.request("GET", "/v1/models").json()["data"]
        self.assertIs(model["attention_override_allowed"], False)
        reply = server.request("POST", "/v1/completions",
                               {"prompt": PROMPT, "attention_override": {"p": 15}})
        self.assertEqual(reply.status, 400)
        self.assertIn("--allow-attention-override", reply.error()["message"])

    def test_finish_reasons(self) -> None:
        self.assertEqual(complete(ignore_eos=True)["choices"][0]["finish_reason"], "length")
        text = complete(max_tokens=12)["choices"][0]["text"]
        stop = text[4:7]
        stopped = complete(max_tokens=12, stop=[stop])["choices"][0]
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual(stopped["stop_reason"], stop)
        self.assertEqual(stopped["text"], text[:text.index(stop)])
        first = complete(max_tokens=1, logprobs=0, return_tokens_as_token_ids=True)
        token = int(first["choices"][0]["logprobs"]["tokens"][0].removeprefix("token_id:"))
        stopped = complete(stop_token_ids=[token])["choices"][0]
        self.assertEqual((stopped["text"], stopped["finish_reason"], stopped["stop_reason"]),
                         ("", "stop", token))

    def test_echo_with_logprobs_is_what_lm_evaluation_harness_reads(self) -> None:
        ids = tokenize(PROMPT)
        reply = complete(prompt=[ids], echo=True, max_tokens=1, logprobs=1, seed=1234)
        choice = reply["choices"][0]
        logprobs = choice["logprobs"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(len(logprobs[name]), len(ids) + 1, name)
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertIsNone(logprobs["top_logprobs"][0])
        # The generated token is greedy, and equal to the best to the last bit.
        self.assertEqual(logprobs["token_logprobs"][-1], max(logprobs["top_logprobs"][-1].values()))
        for value, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:]):
            self.assertLessEqual(value, max(top.values()))
            self.assertLessEqual(len(top), 2)
        self.assertTrue(choice["text"].startswith(PROMPT))

    def test_echoed_logprobs_are_those_of_score(self) -> None:
        ids = tokenize(PROMPT)
        echoed = complete(prompt=[ids], echo=True, max_tokens=1, logprobs=1)
        values = echoed["choices"][0]["logprobs"]["token_logprobs"][3:-1]
        scored = server.post("/v1/score", {"items": [
            {"context": ids[:3], "continuations": [ids[3:]]}], "logprobs": 1})
        one = scored["data"][0]["continuations"][0]
        self.assertEqual([t["logprob"] for t in one["logprobs"]["content"]], values)
        self.assertAlmostEqual(one["logprob"], sum(values), places=4)

    def test_max_tokens_0_scores_the_prompt_without_sampling(self) -> None:
        ids = tokenize(PROMPT)
        server.wait_until_idle()  # a step is counted after its last token
        before = server.metric("lssar_generation_tokens_total")
        reply = complete(prompt=ids, echo=True, max_tokens=0, logprobs=2)
        self.assertEqual(server.metric("lssar_generation_tokens_total"), before)
        self.assertEqual(reply["usage"]["completion_tokens"], 0)
        choice = reply["choices"][0]
        self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(choice["text"], PROMPT)
        one_more = complete(prompt=ids, echo=True, max_tokens=1, logprobs=2)["choices"][0]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(choice["logprobs"][name], one_more["logprobs"][name][:-1], name)
        self.assertEqual(complete(max_tokens=0)["choices"][0]["text"], "")
        single = complete(prompt=[ids[1]], echo=True, max_tokens=0, logprobs=1)["choices"][0]
        self.assertEqual(single["logprobs"]["token_logprobs"], [None])

    def test_one_token_is_generated_even_when_it_is_eos(self) -> None:
        info = server.request("GET", "/tokenizer_info").json()
        eos = info["eos_token_id"]
        reply = complete(max_tokens=1, logprobs=1, logit_bias={str(eos): 100})
        choice = reply["choices"][0]
        self.assertEqual(choice["text"], "")
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(choice["logprobs"]["tokens"], [info["eos_token"]])
        self.assertEqual(reply["usage"]["completion_tokens"], 1)

    def test_text_offsets_point_into_the_text(self) -> None:
        choice = complete(echo=True, logprobs=1, max_tokens=6)["choices"][0]
        logprobs = choice["logprobs"]
        for token, offset in zip(logprobs["tokens"][2:], logprobs["text_offset"][2:]):
            if not token.startswith(("bytes:", "<")):
                self.assertEqual(choice["text"][offset:offset + len(token)], token)

    def test_logprobs_without_echo_start_at_the_text(self) -> None:
        choice = complete(logprobs=3, max_tokens=4, ignore_eos=True)["choices"][0]
        self.assertEqual(choice["logprobs"]["text_offset"][0], 0)
        self.assertEqual(len(choice["logprobs"]["tokens"]), 4)
        self.assertEqual("".join(choice["logprobs"]["tokens"]), choice["text"])

    def test_prompt_logprobs_in_the_shape_of_vllm(self) -> None:
        ids = tokenize(PROMPT)
        choice = complete(prompt=ids, prompt_logprobs=2, max_tokens=1)["choices"][0]
        entries = choice["prompt_logprobs"]
        self.assertEqual(len(entries), len(ids))
        self.assertIsNone(entries[0])
        for token, entry in zip(ids[1:], entries[1:]):
            self.assertIn(str(token), entry)
            self.assertIn(1, [value["rank"] for value in entry.values()])

    def test_sampling_fields_reach_the_engine(self) -> None:
        text = complete()["choices"][0]["text"]
        # One token to choose from is greedy, whatever the temperature.
        self.assertEqual(complete(temperature=2, top_k=1)["choices"][0]["text"], text)
        self.assertEqual(complete(temperature=2, min_p=1)["choices"][0]["text"], text)
        self.assertEqual(complete(top_k=-1)["choices"][0]["text"], text)
        longer = complete(min_tokens=8, repetition_penalty=1.5, presence_penalty=1,
                          frequency_penalty=1, priority=-5, cache_salt="salt")
        self.assertEqual(longer["usage"]["completion_tokens"], 8)
        # Without BOS the same text is another prompt.
        plain = complete(add_special_tokens=False)
        self.assertEqual(plain["usage"]["prompt_tokens"], len(tokenize(PROMPT)) - 1)

    def test_a_stream_says_what_the_whole_reply_says(self) -> None:
        fields = {"model": NAME, "prompt": [PROMPT, "The"], "n": 2, "max_tokens": 9, "seed": 3,
                  "logprobs": 1, "echo": True}
        whole = server.post("/v1/completions", fields)
        seen = server.stream("/v1/completions",
                             {**fields, "stream_options": {"include_usage": True}})
        self.assertEqual(seen[-1], "[DONE]")
        self.assertEqual(seen[-2]["choices"], [])
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            self.assertEqual(seen[-2]["usage"][name], whole["usage"][name])
        for index, choice in enumerate(whole["choices"]):
            parts = [event["choices"][0] for event in seen[:-2]
                     if event["choices"][0]["index"] == index]
            self.assertEqual("".join(part["text"] for part in parts), choice["text"])
            for name in ("tokens", "token_logprobs", "text_offset"):
                self.assertEqual(sum((part["logprobs"][name] for part in parts), []),
                                 choice["logprobs"][name])
            self.assertEqual([part["finish_reason"] for part in parts if part["finish_reason"]],
                             [choice["finish_reason"]])
        self.assertTrue(all(event["usage"] is None for event in seen[:-2]))


class ChatTest(unittest.TestCase):
    def test_a_chat_is_its_template_as_a_prompt(self) -> None:
        reply = chat()
        message = reply["choices"][0]["message"]
        self.assertEqual(message["role"], "assistant")
        ids = server.post("/tokenize", {"messages": [{"role": "user", "content": "Hello"}]})
        self.assertEqual(reply["usage"]["prompt_tokens"], ids["count"])
        plain = complete(prompt=ids["tokens"], stop=["<|user|>"])
        self.assertEqual(plain["choices"][0]["text"], message["content"])

    def test_logprobs_in_the_chat_shape(self) -> None:
        choice = chat(logprobs=True, top_logprobs=2)["choices"][0]
        content = choice["logprobs"]["content"]
        self.assertTrue(content)
        for entry in content:
            self.assertEqual(len(entry["top_logprobs"]), 2)
            self.assertEqual(entry["logprob"], entry["top_logprobs"][0]["logprob"])
        spoken = b"".join(bytes(entry["bytes"]) for entry in content)
        self.assertTrue(spoken.decode(errors="replace").startswith(choice["message"]["content"]))

    def test_a_stream_begins_with_the_role(self) -> None:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8,
                "temperature": 0, "logprobs": True}
        seen = server.stream("/v1/chat/completions", body)
        self.assertEqual(seen[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(seen[-1], "[DONE]")
        self.assertTrue(seen[-2]["choices"][0]["finish_reason"])
        text = "".join(event["choices"][0]["delta"]["content"] for event in seen[:-1])
        self.assertEqual(text, chat()["choices"][0]["message"]["content"])

    def test_content_as_parts_and_the_developer_role(self) -> None:
        whole = chat()["choices"][0]["message"]
        parts = chat(messages=[{"role": "user", "content": [
            {"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}])
        self.assertEqual(parts["choices"][0]["message"], whole)
        system = chat(messages=[{"role": "system", "content": "Be kind."},
                                {"role": "user", "content": "Hello"}])
        developer = chat(messages=[{"role": "developer", "content": "Be kind."},
                                   {"role": "user", "content": "Hello"}])
        self.assertEqual(system["choices"], developer["choices"])

    def test_limits_by_both_names(self) -> None:
        body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0,
                "max_completion_tokens": 3, "ignore_eos": True}
        reply = server.post("/v1/chat/completions", body)
        self.assertEqual(reply["usage"]["completion_tokens"], 3)


class OpenApiTest(unittest.TestCase):
    """Real answers are what /openapi.json says."""

    def check(self, path: str, method: str, value: Any, kind: str = "application/json",
              status: str = "200") -> None:
        response = api["paths"][path][method]["responses"][status]
        if "$ref" in response:
            response = api["components"]["responses"][response["$ref"].rpartition("/")[2]]
        self.assertEqual(problems(value, response["content"][kind]["schema"], api), [])

    def test_answers(self) -> None:
        for fields in ({}, {"logprobs": 2, "echo": True}, {"prompt_logprobs": 1}, {"max_tokens": 0},
                       {"stop": ["a"], "n": 2, "temperature": 1}):
            self.check("/v1/completions", "post", complete(**fields))
        for fields in ({}, {"logprobs": True, "top_logprobs": 3}, {"prompt_logprobs": 0}):
            self.check("/v1/chat/completions", "post", chat(**fields))
        for fields in ({}, {"stream": False, "stop": ["a"]}, {"instructions": "x", "metadata": {}},
                       {"include": ["message.output_text.logprobs"], "top_logprobs": 2}):
            self.check("/v1/responses", "post", server.post("/v1/responses", {
                "input": "Hi", "max_output_tokens": 5, **fields}))
        for fields in ({}, {"system": "x", "stop_sequences": ["a", "e"]}):
            self.check("/v1/messages", "post", server.post("/v1/messages", {
                "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, **fields}))
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            wrong = server.request("POST", path, {"messages": [], "max_tokens": 1})
            self.assertEqual(wrong.status, 400)
            self.check(path, "post", wrong.json(), status="default")
        gone = server.request("DELETE", "/v1/messages/msg_none")
        self.check("/v1/messages/{id}", "delete", gone.json(), status="default")
        self.check("/v1/score", "post", server.post("/v1/score", {"items": [
            {"context": "One", "continuations": [" two", " three"]}, {"continuations": ["x"]}],
            "logprobs": 2}))
        self.check("/tokenize", "post",
                   server.post("/tokenize", {"prompt": "Hi", "return_token_strs": True}))
        self.check("/detokenize", "post", server.post("/detokenize", {"tokens": [5, 6, 7]}))
        for path in ("/v1/models", "/tokenizer_info"):
            self.check(path, "get", server.request("GET", path).json())
        self.check("/version", "get", server.request("GET", "/version").json())
        self.check("/v1/models/{model}", "get",
                   server.request("GET", f"/v1/models/{NAME}").json())

    def test_operations_have_names(self) -> None:
        # Generators of clients call their methods by them. A path that another refers to has none:
        # a name must be there once.
        aliased = {item["$ref"] for item in api["paths"].values() if "$ref" in item}
        names = []
        for path, item in api["paths"].items():
            for method in {"get", "post", "delete"} & item.keys():
                is_aliased = f"#/paths/{path.replace('/', '~1')}" in aliased
                self.assertEqual("operationId" in item[method], not is_aliased, f"{method} {path}")
                if not is_aliased:
                    names.append(item[method]["operationId"])
        self.assertEqual(len(names), len(set(names)))

    def test_events(self) -> None:
        for event in server.stream("/v1/completions", {
                "prompt": "Hi", "logprobs": 1, "stream_options": {"include_usage": True}})[:-1]:
            self.check("/v1/completions", "post", event, "text/event-stream")
        for event in server.stream("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})[:-1]:
            self.check("/v1/chat/completions", "post", event, "text/event-stream")

    def test_errors(self) -> None:
        for body in (b"{", {}, {"prompt": "x", "n": 99}, {"prompt": "x", "model": "gpt-4"}):
            reply = server.request("POST", "/v1/completions", body)
            self.assertGreaterEqual(reply.status, 400)
            self.check("/v1/completions", "post", reply.json(), status="default")

    def test_every_path_is_described_and_there(self) -> None:
        listed = server.request("GET", "/nothing").error()["message"]
        paths = [path for path in api["paths"] if "{model}" not in path]
        num_methods = 0
        for path in paths:
            item = api["paths"][path]
            if "$ref" in item:
                item = api["paths"][item["$ref"].removeprefix("#/paths/").replace("~1", "/")]
            num_methods += len(item)
            for method in item:
                self.assertIn(f"{method.upper()} {path}", listed)
                if "{" not in path:
                    self.assertNotEqual(server.request(method.upper(), path).status, 404)
        # The web page, GET /, is listed and not part of the API.
        self.assertEqual(listed.split("there are ")[1].split(", ").count("GET /"), 1)
        self.assertEqual(listed.count(","), num_methods)


class LmEvalPathTest(unittest.TestCase):
    """/lm_eval/v1/completions adds the BOS that lm-eval leaves out. tests/python compares whole
    evaluations."""

    def echo(self, ids: list[int], path: str = "/lm_eval/v1/completions",
             on: Server | None = None, **fields: Any) -> Any:
        reply = (on or server).post(path, {"prompt": [ids], "echo": True, "logprobs": 1,
                                           "max_tokens": 1, "temperature": 0, **fields})
        return reply["choices"][0]["logprobs"]

    def test_ids_are_scored_after_bos_and_come_back_without_it(self) -> None:
        ids = tokenize("The old house stood", add_special_tokens=False)
        [bos] = tokenize("</s>", add_special_tokens=False)
        plain = self.echo([bos, *ids], path="/v1/completions")
        found = self.echo(ids)
        self.assertEqual(found["token_logprobs"], [*plain["token_logprobs"][1:-1], None])
        self.assertEqual(found["tokens"], [*plain["tokens"][1:-1], ""])
        # With BOS already there, nothing is added or left out.
        self.assertEqual(self.echo([bos, *ids])["token_logprobs"],
                         [*plain["token_logprobs"][:-1], None])

    def test_what_fills_the_context_has_no_room_for_bos(self) -> None:
        length = 40
        small = Server("--max-model-len", str(length))
        self.addCleanup(small.stop)
        ids = tokenize("one two three four five six seven " * 9, add_special_tokens=False)
        ids = ids[:length]
        plain = self.echo(ids, path="/v1/completions", max_tokens=0, on=small)
        self.assertEqual(self.echo(ids, on=small)["token_logprobs"],
                         [*plain["token_logprobs"], None])
        reply = small.request("POST", "/lm_eval/v1/completions", {
            "prompt": [[*ids, 5]], "echo": True, "logprobs": 1, "max_tokens": 1})
        self.assertEqual(reply.status, 400)

    def test_generation(self) -> None:
        ids = tokenize("The old house stood", add_special_tokens=False)
        [bos] = tokenize("</s>", add_special_tokens=False)
        fields = {"max_tokens": 6, "temperature": 0}
        expected = server.post("/v1/completions", {"prompt": [bos, *ids], **fields})
        reply = server.post("/lm_eval/v1/completions", {"prompt": [ids], **fields})
        self.assertEqual(reply["choices"][0]["text"], expected["choices"][0]["text"])
        expected = server.post("/v1/completions", {"prompt": [bos], **fields})
        reply = server.post("/lm_eval/v1/completions", {"prompt": [[]], **fields})
        self.assertEqual(reply["choices"][0]["text"], expected["choices"][0]["text"])


class TokenizerTest(unittest.TestCase):
    def test_there_and_back(self) -> None:
        for text in ("Hello world", "na\u00efve caf\u00e9 \u2013 \u6771\u4eac", "a\tb\nc"):
            ids = tokenize(text, add_special_tokens=False)
            self.assertEqual(server.post("/detokenize", {"tokens": ids})["prompt"], text)

    def test_special_tokens(self) -> None:
        info = server.request("GET", "/tokenizer_info").json()
        self.assertEqual(tokenize("Hi")[0], info["bos_token_id"])
        self.assertEqual(tokenize("Hi")[1:], tokenize("Hi", add_special_tokens=False))
        self.assertEqual(tokenize(info["eos_token"], add_special_tokens=False),
                         [info["eos_token_id"]])
        self.assertIn("assistant", info["chat_template"])

    def test_special_tokens_have_their_text_unless_they_are_skipped(self) -> None:
        info = server.request("GET", "/tokenizer_info").json()
        ids = [info["bos_token_id"], *tokenize("Hi", add_special_tokens=False),
               info["eos_token_id"]]
        text = info["bos_token"] + " Hi" + info["eos_token"]  # as Hugging Face's tokenizers
        for fields, expected in (({}, text), ({"skip_special_tokens": False}, text),
                                 ({"skip_special_tokens": True}, "Hi")):
            reply = server.post("/detokenize", {"tokens": ids, **fields})
            self.assertEqual(reply["prompt"], expected)
        labels = server.post("/tokenize", {"prompt": "Hi" + info["eos_token"],
                                           "return_token_strs": True})["token_strs"]
        self.assertEqual((labels[0], "".join(labels[1:-1]), labels[-1]),
                         (info["bos_token"], " Hi", info["eos_token"]))

    def test_options_of_a_chat(self) -> None:
        info = server.request("GET", "/tokenizer_info").json()
        messages = [{"role": "user", "content": "Hello"}]

        def ids(**fields: Any) -> list[int]:
            return server.post("/tokenize", {"messages": messages, **fields})["tokens"]

        # A text begins with a space of its own.
        assistant = tokenize("<|assistant|>", add_special_tokens=False)[-1]
        whole = ids()
        self.assertEqual((whole[0], whole[-1]), (info["bos_token_id"], assistant))
        self.assertEqual(ids(add_special_tokens=True), whole)
        self.assertEqual(ids(add_special_tokens=False), whole[1:])
        reply = server.post("/tokenize", {"messages": messages, "return_token_strs": True})
        self.assertEqual(len(reply["token_strs"]), len(whole))
        self.assertEqual((reply["token_strs"][0], reply["token_strs"][-1]),
                         (info["bos_token"], "<|assistant|>"))

    def test_models(self) -> None:
        models = server.request("GET", "/v1/models").json()["data"]
        self.assertEqual([model["id"] for model in models], [NAME])
        self.assertEqual(server.request("GET", f"/v1/models/{NAME}").json(), models[0])
        self.assertEqual(server.request("GET", "/v1/models/other").status, 404)
        escaped = NAME.replace("-", "%2D")
        self.assertEqual(server.request("GET", f"/v1/models/{escaped}").json(), models[0])
        ids = {"max_tokens": 3, "temperature": 0}
        floats, whole = (server.post("/v1/completions", {**ids, "prompt": prompt})["choices"]
                         for prompt in ([5.0, 1.452e3], [5, 1452]))
        self.assertEqual(floats, whole)
        unknown = server.request("GET", "/v1/models/a%2Fb%zz")
        self.assertIn("a/b%zz", unknown.error()["message"])


class ScoreTest(unittest.TestCase):
    def test_continuations_share_a_context(self) -> None:
        reply = server.post("/v1/score", {"model": NAME, "items": [
            {"context": "The cat sat on the", "continuations": [" mat", " moon", " mat and"]}]})
        scores = reply["data"][0]["continuations"]
        self.assertEqual([score["index"] for score in scores], [0, 1, 2])
        self.assertTrue(all(score["logprob"] < 0 for score in scores))
        self.assertGreater(scores[0]["logprob"], scores[2]["logprob"])
        self.assertEqual(reply["usage"]["completion_tokens"], 0)

    def test_many_items(self) -> None:
        items = [{"context": f"Item {i}", "continuations": [" is here"]} for i in range(40)]
        reply = server.post("/v1/score", {"items": items})
        self.assertEqual([item["index"] for item in reply["data"]], list(range(40)))
        alone = server.post("/v1/score", {"items": items[7:8]})
        self.assertEqual(alone["data"][0]["continuations"], reply["data"][7]["continuations"])

    def test_a_bad_item_is_its_own_error(self) -> None:
        items = [{"context": "One", "continuations": [" two"]},
                 {"context": "One", "continuations": [" two", ""]},
                 {"context": [10**6], "continuations": ["x"]}]
        reply = server.post("/v1/score", {"items": items})
        self.assertEqual(problems(
            reply, {"$ref": "#/components/schemas/Scores"}, api), [])
        good = server.post("/v1/score", {"items": items[:1]})["data"][0]
        self.assertEqual(reply["data"][0], good)
        for index, param in ((1, "items[1].continuations[1]"),
                             (2, "items[2].context[0]")):
            item = reply["data"][index]
            self.assertEqual((item["index"], item["error"]["param"]), (index, param))
            self.assertEqual(item["error"]["type"], "invalid_request_error")
            self.assertNotIn("continuations", item)
        refused = server.request("POST", "/v1/score", {"items": items[1:]})
        self.assertEqual((refused.status, refused.error()["param"]),
                         (400, "items[0].continuations[1]"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
