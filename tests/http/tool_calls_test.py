"""Calls of functions over HTTP, in each of the dialects: forced, and where the model decides.

Run by ctest with LSSAR_SERVER. In a build without xgrammar: tools are refused by name.
"""

import json
import unittest
from typing import Any

from http_fixture import Server
import quick_models

CHAT, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/responses", "/v1/messages"
MESSAGES = [{"role": "user", "content": "Name a colour."}]
FIND = {"type": "function", "function": {
    "name": "find", "description": "Finds a place.", "parameters": {
        "type": "object", "properties": {"z": {"$ref": "#/$defs/level"},
                                         "a": {"enum": ["up", "down"]}},
        "required": ["z", "a"], "additionalProperties": False,
        "$defs": {"level": {"type": "integer", "minimum": -9, "maximum": 99}}}}}
# Its name is a key of a call, and its references are its own.
OTHER = {"type": "function", "function": {
    "name": "arguments", "parameters": {
        "$id": "o", "type": "object", "properties": {"level": {"$ref": "#/$defs/level"}},
        "required": ["level"], "additionalProperties": False,
        "$defs": {"level": {"enum": ["}", {"x": {}}]}}}}}
STOP = {"type": "function", "function": {"name": "stop", "parameters": {}}}

server: Server
has_xgrammar = True


def setUpModule() -> None:
    global server, has_xgrammar
    server = Server(model=quick_models.shallow())
    reply = server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1,
                                                       "guided_regex": "a"})
    has_xgrammar = reply.status == 200


def tearDownModule() -> None:
    assert server.stop() == 0


def flat(tool: dict[str, Any]) -> dict[str, Any]:
    """As /v1/responses has it."""
    return {"type": "function", **tool["function"]}


def anthropic(tool: dict[str, Any]) -> dict[str, Any]:
    """As /v1/messages has it."""
    fields = dict(tool["function"])
    fields["input_schema"] = fields.pop("parameters")
    return fields


def without_ids(item: Any) -> Any:
    """Ids have that of the request."""
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


def brace() -> int:
    """The id of the token that is {."""
    return server.post("/tokenize", {"prompt": "{", "add_special_tokens": False})["tokens"][-1]


class RefusalTest(unittest.TestCase):
    def setUp(self) -> None:
        if has_xgrammar:
            self.skipTest("this build has xgrammar")

    def test_tools_are_refused_by_their_name(self) -> None:
        for path, body in ((CHAT, {"messages": MESSAGES, "tools": [FIND]}),
                           (RESPONSES, {"input": "x", "tools": [flat(FIND)]}),
                           (ANTHROPIC, {"messages": MESSAGES, "max_tokens": 5,
                                        "tools": [anthropic(FIND)]})):
            reply = server.request("POST", path, body)
            self.assertEqual((reply.status, reply.error()["param"]), (400, "tools"), reply.body)


class ToolCallsTest(unittest.TestCase):
    def setUp(self) -> None:
        if not has_xgrammar:
            self.skipTest("this build has no xgrammar")

    def refuse(self, path: str, fields: dict[str, Any], param: str, message: str) -> None:
        body = {RESPONSES: {"input": "x"}, CHAT: {"messages": MESSAGES, "max_tokens": 20},
                ANTHROPIC: {"messages": MESSAGES, "max_tokens": 20}}[path]
        reply = server.request("POST", path, {**body, **fields})
        self.assertEqual((reply.status, reply.error()["param"]), (400, param), reply.body)
        self.assertIn(message, reply.error()["message"])

    def check_call(self, name: str, arguments: Any) -> None:
        if name == "find":
            self.assertEqual(list(arguments), ["z", "a"])
            self.assertIn(arguments["z"], range(-9, 100))
        elif name == "stop":
            self.assertEqual(arguments, {})
        else:
            self.assertEqual(name, "arguments")
            self.assertIn(arguments, ({"level": "}"}, {"level": {"x": {}}}))

    def test_forced_calls(self) -> None:
        """Whole and streamed, of one function and of several."""
        one = {"type": "function", "function": {"name": "find"}}
        names: set[str] = set()
        for tools, choice in (([FIND], "required"), ([STOP, FIND], one), ([STOP], "required"),
                              ([FIND, OTHER, STOP], "required")):
            body = {"messages": MESSAGES, "tools": tools, "tool_choice": choice, "n": 4,
                    "temperature": 5, "max_tokens": 400}
            for seed in range(4):
                with self.subTest(tools=tools, seed=seed):
                    choices = server.post(CHAT, {**body, "seed": seed})["choices"]
                    calls = []
                    for each in choices:
                        self.assertEqual(each["finish_reason"], "tool_calls", each)
                        self.assertIsNone(each["message"]["content"])
                        [call] = each["message"]["tool_calls"]
                        self.assertEqual(call["type"], "function")
                        calls.append(call["function"])
                        self.check_call(call["function"]["name"],
                                        json.loads(call["function"]["arguments"]))
                        names.add(call["function"]["name"])
                    streamed = [{"name": "", "arguments": ""} for _ in range(4)]
                    for event in server.stream(CHAT, {**body, "seed": seed, "stream": True}):
                        for each in [] if event == "[DONE]" else event["choices"]:
                            delta = each["delta"]
                            self.assertIsNone(delta.get("content"))
                            for call in delta.get("tool_calls", []):
                                for key, text in call["function"].items():
                                    streamed[each["index"]][key] += text
                    self.assertEqual(streamed, calls)
        self.assertEqual(names, {"find", "arguments", "stop"})

    def test_a_call_that_is_cut(self) -> None:
        # Where the temperature is high there is less white space in a text.
        body = {"messages": MESSAGES, "tools": [FIND, OTHER], "tool_choice": "required", "seed": 3,
                "temperature": 5}
        reply = server.post(CHAT, {**body, "max_tokens": 400})
        [whole], num_tokens = reply["choices"], reply["usage"]["completion_tokens"]
        self.assertEqual(whole["finish_reason"], "tool_calls")
        [call] = whole["message"]["tool_calls"]
        texts = set()
        for max_tokens in (*range(1, num_tokens - 8, 3), *range(num_tokens - 8, num_tokens)):
            [choice] = server.post(CHAT, {**body, "max_tokens": max_tokens})["choices"]
            self.assertEqual(choice["finish_reason"], "length")
            for cut in choice["message"].get("tool_calls", []):
                self.assertEqual(cut["function"]["name"], call["function"]["name"])
                texts.add(cut["function"]["arguments"])
            self.assertEqual(choice["message"]["content"] is None,
                             "tool_calls" in choice["message"])
        arguments = call["function"]["arguments"]
        self.assertGreater(len(texts), 2)
        self.assertTrue(all(arguments.startswith(text) for text in texts), texts)
        self.assertIn(arguments, texts, "it is cut before the end of what is around them")

    def test_the_model_reads_the_functions_and_the_calls(self) -> None:
        """The same text as that of messages that say so."""
        call = {"id": "a", "type": "function",
                "function": {"name": "find", "arguments": "{\"z\": 3, \"a\": \"up\"}"}}
        tools = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]},
                 {"role": "tool", "tool_call_id": "a", "content": "blue"}]
        body = {"max_tokens": 300, "seed": 2, "logprobs": True}
        forced = server.post(CHAT, {**body, "messages": tools, "tools": [FIND],
                                    "tool_choice": "required"})
        task = ("Call this function:\n" + json.dumps(FIND["function"], separators=(",", ":")) +
                "\nAnswer with its arguments alone, as JSON.")
        said = [{"role": "user", "content": task + "\n\n" + MESSAGES[0]["content"]},
                {"role": "assistant", "content":
                 "{\"name\": \"find\", \"arguments\": {\"z\": 3, \"a\": \"up\"}}"},
                {"role": "user", "content": "Result of find:\nblue"}]
        plain = server.post(CHAT, {**body, "messages": said, "response_format": {
            "type": "json_schema", "json_schema": {
                "name": "p", "schema": FIND["function"]["parameters"]}}})
        self.assertEqual(forced["choices"][0]["logprobs"], plain["choices"][0]["logprobs"])
        self.assertEqual(forced["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"],
                         plain["choices"][0]["message"]["content"])
        # With "none" they change nothing.
        self.assertEqual(*(server.post(CHAT, {**body, **fields, "messages": MESSAGES})["choices"]
                           for fields in ({}, {"tools": [FIND], "tool_choice": "none"})))

    def test_the_model_decides(self) -> None:
        """A call where its first character is {, else the text that it writes without tools."""
        task = ("You may call this function:\n" +
                json.dumps(FIND["function"], separators=(",", ":")) +
                "\nTo call, answer with the call alone, as JSON: "
                "{\"name\": \"...\", \"arguments\": {...}}\nElse answer in words.\n\n")
        plain = {"messages": [{"role": "user", "content": task + MESSAGES[0]["content"]}]}
        asked: dict[str, Any] = {"messages": MESSAGES, "tools": [FIND]}
        greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "logprobs": True}
        expected = server.post(CHAT, {**plain, **greedy})["choices"]
        self.assertNotEqual(expected[0]["message"]["content"].strip()[0], "{")
        for choice in ({}, {"tool_choice": "auto"}):
            self.assertEqual(server.post(CHAT, {**asked, **choice, **greedy})["choices"], expected)
        text = expected[0]["message"]["content"]
        streamed = [each["delta"] for event in server.stream(CHAT, {**asked, **greedy})[:-1]
                    for each in event["choices"]]
        self.assertEqual("".join(delta.get("content") or "" for delta in streamed), text)
        self.assertFalse([delta for delta in streamed if "tool_calls" in delta])

        calls = {**asked, "logit_bias": {brace(): 100}, "seed": 1, "n": 3, "temperature": 5,
                 "max_tokens": 400, "tools": [FIND, OTHER]}
        choices = server.post(CHAT, calls)["choices"]
        streamed_calls = [{"name": "", "arguments": ""} for _ in choices]
        for event in server.stream(CHAT, calls)[:-1]:
            for each in event["choices"]:
                self.assertIsNone(each["delta"].get("content"))
                for call in each["delta"].get("tool_calls", []):
                    for key, part in call["function"].items():
                        streamed_calls[each["index"]][key] += part
        for each, streamed_call in zip(choices, streamed_calls, strict=True):
            self.assertEqual(each["finish_reason"], "tool_calls", each)
            [call] = each["message"]["tool_calls"]
            self.assertEqual(call["function"], streamed_call)
            self.check_call(call["function"]["name"], json.loads(call["function"]["arguments"]))
        # A call that is cut before its name is a text.
        [cut] = server.post(CHAT, {**calls, "n": 1, "max_tokens": 2})["choices"]
        self.assertEqual((cut["finish_reason"], cut["message"]["content"].strip()[0]),
                         ("length", "{"))

    def test_responses(self) -> None:
        """Whole and streamed; forced, chosen, and where the model decides."""
        one, biased = {"type": "function", "name": "find"}, {"logit_bias": {brace(): 100}}
        for tools, more in (([FIND], {"tool_choice": "required"}),
                            ([STOP, FIND], {"tool_choice": one}),
                            ([FIND, OTHER, STOP], {"tool_choice": "required"}),
                            ([OTHER, FIND], biased)):
            body = {"input": MESSAGES, "tools": [flat(tool) for tool in tools],
                    "temperature": 5, "max_output_tokens": 400, "seed": 2, **more}
            with self.subTest(body=body):
                whole = server.post(RESPONSES, body)
                [item] = whole["output"]
                self.assertEqual((whole["status"], item["type"], item["status"]),
                                 ("completed", "function_call", "completed"))
                self.check_call(item["name"], json.loads(item["arguments"]))
                self.assertEqual((whole["tools"], whole["tool_choice"]),
                                 (body["tools"], body.get("tool_choice", "auto")))
                seen = server.named_events(RESPONSES, body)
                types = [event["type"].removeprefix("response.") for event in seen]
                self.assertEqual(types[:3], ["created", "in_progress", "output_item.added"])
                self.assertEqual(types[-3:], ["function_call_arguments.done", "output_item.done",
                                              "completed"])
                self.assertEqual(set(types[3:-3]), {"function_call_arguments.delta"})
                self.assertEqual((seen[2]["item"]["name"], seen[2]["item"]["arguments"]),
                                 (item["name"], ""))
                self.assertEqual("".join(event["delta"] for event in seen[3:-3]),
                                 item["arguments"])
                self.assertEqual((seen[-3]["arguments"], seen[-3]["name"]),
                                 (item["arguments"], item["name"]))
                self.assertEqual(seen[-2]["item"], seen[-1]["response"]["output"][0])
                self.assertEqual(without_ids(seen[-2]["item"]), without_ids(item))
                cut = server.post(RESPONSES, {**body, "tools": [flat(FIND)], **more,
                                              "tool_choice": one, "max_output_tokens": 3})
                self.assertEqual((cut["status"], cut["output"][0]["status"]), ("incomplete",) * 2)
        # A text, which begins as one does: its item is known with its first character.
        body = {"input": MESSAGES, "tools": [flat(FIND)], "max_output_tokens": 8, "temperature": 0,
                "banned_token_ids": [brace()]}
        whole = server.post(RESPONSES, body)
        self.assertEqual(whole["output"][0]["type"], "message")
        seen = server.named_events(RESPONSES, body)
        self.assertEqual([event["type"] for event in seen[:4]], [
            "response.created", "response.in_progress", "response.output_item.added",
            "response.content_part.added"])
        self.assertEqual("".join(event["delta"] for event in seen
                                 if event["type"] == "response.output_text.delta"),
                         whole["output"][0]["content"][0]["text"])

    def test_messages(self) -> None:
        """Whole and streamed; forced, chosen, and where the model decides."""
        biased = {"logit_bias": {brace(): 100}}
        for tools, more in (([FIND], {"tool_choice": {"type": "any"}}),
                            ([STOP, FIND], {"tool_choice": {"type": "tool", "name": "find"}}),
                            ([FIND, OTHER, STOP], {"tool_choice": {
                                "type": "any", "disable_parallel_tool_use": True}}),
                            ([OTHER, FIND], biased)):
            body = {"messages": MESSAGES, "tools": [anthropic(tool) for tool in tools],
                    "temperature": 5, "max_tokens": 400, "seed": 2, **more}
            with self.subTest(body=body):
                whole = server.post(ANTHROPIC, body)
                [block] = whole["content"]
                self.assertEqual((whole["stop_reason"], block["type"]), ("tool_use", "tool_use"))
                self.check_call(block["name"], block["input"])
                seen = server.named_events(ANTHROPIC, body)
                self.assertEqual([event["type"] for event in seen[:3]],
                                 ["message_start", "content_block_start", "ping"])
                self.assertEqual([event["type"] for event in seen[-3:]],
                                 ["content_block_stop", "message_delta", "message_stop"])
                self.assertEqual(without_ids(seen[1]["content_block"]),
                                 {**without_ids(block), "input": {}})
                self.assertEqual({event["delta"]["type"] for event in seen[3:-3]},
                                 {"input_json_delta"})
                self.assertEqual(json.loads("".join(event["delta"]["partial_json"]
                                                    for event in seen[3:-3])), block["input"])
                self.assertEqual(seen[-2]["delta"]["stop_reason"], "tool_use")
        cut = server.post(ANTHROPIC, {**body, "max_tokens": 3})
        self.assertEqual((cut["stop_reason"], cut["content"][0]["type"]), ("max_tokens", "text"))
        text = server.post(ANTHROPIC, {"messages": MESSAGES, "max_tokens": 8, "temperature": 0,
                                       "tools": [anthropic(FIND)], "banned_token_ids": [brace()]})
        self.assertEqual((text["stop_reason"], text["content"][0]["type"]), ("max_tokens", "text"))

    def test_calls_and_results_of_each_dialect_are_the_same_text(self) -> None:
        call = {"id": "a", "type": "function",
                "function": {"name": "find", "arguments": "{\"a\":\"up\",\"z\":3}"}}
        chat = [*MESSAGES, {"role": "assistant", "content": "Wait.", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "a", "content": "blue"}]
        said = [*MESSAGES, {"role": "assistant", "content":
                            "Wait.\n{\"name\": \"find\", \"arguments\": {\"a\":\"up\",\"z\":3}}"},
                {"role": "user", "content": "Result of find:\nblue"}]
        items = [*MESSAGES, {"role": "assistant", "content": "Wait."},
                 {"type": "function_call", "id": "fc_1", "call_id": "a", "status": "completed",
                  **call["function"]},
                 {"type": "function_call_output", "call_id": "a", "output": "blue"}]
        parts = [*MESSAGES, {"role": "assistant", "content": [
            {"type": "text", "text": "Wait."},
            {"type": "tool_use", "id": "a", "name": "find", "input": {"z": 3, "a": "up"}}]},
                 {"role": "user", "content": [
                     {"type": "tool_result", "tool_use_id": "a", "content": [
                         {"type": "text", "text": "blue"}]}]}]
        greedy = {"temperature": 0, "max_tokens": 12}
        expected = server.post(CHAT, {"messages": said, **greedy})["choices"][0]["message"]
        [answer] = server.post(CHAT, {"messages": chat, **greedy})["choices"]
        texts = [answer["message"]["content"],
                 server.post(RESPONSES, {"input": items, "temperature": 0, "max_output_tokens": 12}
                             )["output"][0]["content"][0]["text"],
                 server.post(ANTHROPIC, {"messages": parts, **greedy})["content"][0]["text"]]
        self.assertEqual(texts, [expected["content"]] * 3)
        # The functions count as they are read, with count_tokens as in the answer.
        body = {"messages": parts, "tools": [anthropic(FIND)]}
        counted = server.post("/v1/messages/count_tokens", body)["input_tokens"]
        answer = server.post(ANTHROPIC, {**body, "max_tokens": 1, "use_prefix_cache": False})
        self.assertEqual(counted, answer["usage"]["input_tokens"])
        self.assertGreater(counted, server.post("/v1/messages/count_tokens", {"messages": parts}
                                                )["input_tokens"] + 30)
        # A failed call is told as one.
        parts[-1]["content"][0]["is_error"] = True
        said[-1]["content"] = "Error of find:\nblue"
        self.assertEqual(
            server.post(ANTHROPIC, {"messages": parts, **greedy})["content"][0]["text"],
            server.post(CHAT, {"messages": said, **greedy})["choices"][0]["message"]["content"])

    def test_bad_tools(self) -> None:
        find, function = FIND["function"], {"type": "function", "function": {"name": "f"}}
        for fields, param, message in (
                ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
                ({"tools": [FIND], "tool_choice": "any"}, "tool_choice", "is \"any\"; it must be"),
                ({"tools": [FIND], "tool_choice": function}, "tool_choice.function.name",
                 "is \"f\", which is not in tools"),
                ({"tools": [FIND], "tool_choice": {**function, "more": 1}}, "tool_choice.more",
                 "is no field"),
                ({"tools": [FIND] * 2}, "tools[1].function.name", "an entry before it"),
                ({"tools": [function] * 129}, "tools", "129 entries; it may have 128"),
                ({"tools": FIND}, "tools", "must be a list"),
                ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be \"function\""),
                ({"tools": [{"type": "function", "function": {"name": "a b"}}]},
                 "tools[0].function.name", "1 to 64 letters"),
                ({"tools": [{"type": "function", "function": {
                    **find, "parameters": {"type": "array"}}}]},
                 "tools[0].function.parameters", "of type object"),
                ({"tools": [{"type": "function", "function": {
                    **find, "parameters": {"anyOf": [{"type": "object"}, {"type": "null"}]}}}]},
                 "tools[0].function.parameters", "of type object"),
                ({"tools": [FIND, {"type": "function", "function": {
                    "name": "g", "parameters": {"type": "object", "not": {}}}}], "tool_choice": {
                        "type": "function", "function": {"name": "g"}}},
                 "tools[1].function.parameters", "has not, which is not enforced"),
                ({"tools": [FIND, {"type": "function", "function": {
                    "name": "g", "parameters": {"type": "object", "not": {}}}}],
                  "tool_choice": "required"},
                 "tools", "has not, which is not enforced (at \"#/$defs/1\")"),
                ({"tools": [FIND], "tool_choice": "required", "guided_regex": "a"}, "guided_regex",
                 "both constrain the text"),
                ({"tools": [{"type": "function", "function": {
                    **find, "description": "x" * 300_000}}], "tool_choice": "required"}, "tools",
                 "it may have 262144")):
            with self.subTest(fields=str(fields)[:200]):
                self.refuse(CHAT, fields, param, message)
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for message_, param in (
                ({"role": "user", "content": "x", "tool_calls": [call]}, "messages[0].tool_calls"),
                ({"role": "user", "content": "x", "tool_call_id": "a"}, "messages[0].tool_call_id"),
                ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
                ({"role": "tool", "content": "x", "tool_call_id": "b"}, "messages[0].tool_call_id"),
                ({"role": "assistant", "tool_calls": []}, "messages[0].content"),
                ({"role": "assistant", "tool_calls": [{**call, "id": None}]},
                 "messages[0].tool_calls[0].id"),
                ({"role": "assistant", "tool_calls": [{**call, "type": "x"}]},
                 "messages[0].tool_calls[0].type")):
            self.refuse(CHAT, {"messages": [message_]}, param, param)
        schema = {"type": "json_schema", "name": "p", "schema": {"type": "object"}}
        for fields, param, message in (
                ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
                ({"tools": [FIND]}, "tools[0].function", "is no field of this request"),
                ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be \"function\""),
                ({"tools": [flat(FIND)], "tool_choice": {"type": "function", "name": "f"}},
                 "tool_choice.name", "is \"f\", which is not in tools"),
                ({"tools": [flat(FIND)], "tool_choice": {"type": "file_search"}},
                 "tool_choice.type", "must be \"function\""),
                ({"tools": [flat(FIND)], "text": {"format": schema}}, "text.format.schema",
                 "both constrain the text"),
                ({"tools": [flat(FIND), {**flat(OTHER), "parameters": {
                    "type": "object", "not": {}}}]}, "tools", "has not, which is not enforced"),
                ({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]},
                 "input[0].call_id", "no message before it calls with this id"),
                ({"input": [{"type": "function_call_output", "call_id": "a"}]},
                 "input[0].output", "is missing"),
                ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]},
                 "input[0].arguments", "is missing"),
                ({"input": [{"type": "reasoning"}]}, "input[0].type", "it must be \"message\"")):
            self.refuse(RESPONSES, fields, param, message)
        use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
        for fields, param, message in (
                ({"tool_choice": {"type": "any"}}, "tool_choice", "there are no tools"),
                ({"tool_choice": "any", "tools": [anthropic(FIND)]}, "tool_choice",
                 "must be an object"),
                ({"tool_choice": {"type": "required"}}, "tool_choice.type", "it must be \"auto\""),
                ({"tool_choice": {"type": "tool"}, "tools": [anthropic(FIND)]},
                 "tool_choice.name", "is missing"),
                ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type",
                 "must be \"custom\""),
                ({"tools": [{**anthropic(FIND), "parameters": {}}]}, "tools[0].parameters",
                 "is no field"),
                ({"tools": [{**anthropic(FIND), "input_schema": {"type": "array"}}]},
                 "tools[0].input_schema", "of type object"),
                ({"messages": [{"role": "user", "content": [use]}]},
                 "messages[0].content[0].type", "only an assistant's"),
                ({"messages": [{"role": "assistant", "content": [result]}]},
                 "messages[0].content[0].type", "only a user's"),
                ({"messages": [{"role": "user", "content": [result]}]},
                 "messages[0].content[0].tool_use_id", "no message before it"),
                ({"messages": [{"role": "assistant", "content": [{**use, "input": "x"}]}]},
                 "messages[0].content[0].input", "object"),
                ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
                 "messages[0].tool_calls", "is no field")):
            self.refuse(ANTHROPIC, fields, param, message)


if __name__ == "__main__":
    unittest.main()
