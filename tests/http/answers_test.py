"""/v1/responses and /v1/messages of a real server on the shipped model.

The standard library alone; foreign_clients_test.py runs the openai and anthropic packages. Run by
ctest from the repository's root with LSSAR_SERVER set.
"""

import json
import tempfile
import unittest
from typing import Any

from http_fixture import NAME, Server

server: Server

CHAT = [{"role": "user", "content": "Tell me a story about a dog."}]
GREEDY = {"temperature": 0, "seed": 1}


def setUpModule() -> None:
    global server
    server = Server()


def tearDownModule() -> None:
    assert server.stop() == 0


def respond(**fields: Any) -> dict[str, Any]:
    return server.post("/v1/responses", {"input": CHAT[0]["content"], "max_output_tokens": 4,
                                         **GREEDY, **fields})


def message(**fields: Any) -> dict[str, Any]:
    return server.post("/v1/messages", {"messages": CHAT, "max_tokens": 4, **GREEDY, **fields})


def chat(**fields: Any) -> dict[str, Any]:
    return server.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 4, **GREEDY,
                                                **fields})


def chat_text(**fields: Any) -> str:
    return chat(**fields)["choices"][0]["message"]["content"]


class ResponsesTest(unittest.TestCase):
    def text(self, response: dict[str, Any]) -> str:
        [item] = response["output"]
        [part] = item["content"]
        self.assertEqual((item["type"], item["role"], part["type"]),
                         ("message", "assistant", "output_text"))
        return part["text"]

    def test_a_response_is_the_chat_of_its_input(self) -> None:
        response = respond(metadata={"a": "b"})
        self.assertEqual(self.text(response), chat_text())
        self.assertEqual((response["object"], response["model"], response["metadata"]),
                         ("response", NAME, {"a": "b"}))
        self.assertEqual((response["status"], response["incomplete_details"]),
                         ("incomplete", {"reason": "max_output_tokens"}))
        usage, plain = response["usage"], chat()["usage"]
        self.assertEqual((usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]),
                         (plain["prompt_tokens"], plain["completion_tokens"],
                          plain["total_tokens"]))
        self.assertEqual(response["receipt"]["checkpoint_hash"],
                         chat()["receipt"]["checkpoint_hash"])

    def test_forms_of_the_input(self) -> None:
        turns = [*CHAT, {"role": "assistant", "content": "Once"}, {"role": "user", "content": "Go"}]
        expected = chat_text(messages=[{"role": "system", "content": "Be kind."}, *turns])
        earlier = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                   "content": [{"type": "output_text", "text": "Once", "annotations": [],
                                "logprobs": []}]}
        items = [turns[0], earlier, {"role": "user", "content": [{"type": "input_text",
                                                                  "text": "Go"}]}]
        self.assertEqual(self.text(respond(input=items, instructions="Be kind.")), expected)
        developer = [{"role": "developer", "content": "Be kind."}, *turns]
        self.assertEqual(self.text(respond(input=developer)), expected)

    def test_a_response_that_ends_by_itself_is_completed(self) -> None:
        response = respond(max_output_tokens=4000, stop=["."])
        self.assertEqual((response["status"], response["incomplete_details"]), ("completed", None))

    def test_log_probabilities(self) -> None:
        response = respond(include=["message.output_text.logprobs"], top_logprobs=2)
        logprobs = response["output"][0]["content"][0]["logprobs"]
        self.assertEqual(logprobs, chat(logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]
                         ["content"])
        deltas = [event for event in server.named_events("/v1/responses", {
            "input": CHAT, "max_output_tokens": 4, **GREEDY, "top_logprobs": 2,
            "include": ["message.output_text.logprobs"]})
            if event["type"] == "response.output_text.delta"]
        self.assertEqual(sum((event["logprobs"] for event in deltas), []), logprobs)

    def test_a_stream_builds_the_response(self) -> None:
        for more in ({}, {"stop": ["."], "max_output_tokens": 4000}):
            whole = respond(**more)
            seen = server.named_events("/v1/responses", {
                "input": CHAT, "max_output_tokens": 4, **GREEDY, **more})
            types = [event["type"] for event in seen]
            self.assertEqual(types[:4], ["response.created", "response.in_progress",
                                         "response.output_item.added",
                                         "response.content_part.added"])
            self.assertEqual(types[-4:], ["response.output_text.done", "response.content_part.done",
                                          "response.output_item.done",
                                          f"response.{whole['status']}"])
            self.assertEqual(set(types[4:-4]), {"response.output_text.delta"})
            self.assertEqual([event["sequence_number"] for event in seen], list(range(len(seen))))
            text = "".join(event["delta"] for event in seen[4:-4])
            self.assertEqual(text, self.text(whole))
            self.assertEqual(seen[-4]["text"], text)
            last = seen[-1]["response"]
            self.assertEqual(self.text(last), text)
            self.assertEqual(last["output"][0], seen[-2]["item"])
            self.assertEqual(last["usage"]["output_tokens"], whole["usage"]["output_tokens"])
            self.assertEqual(seen[0]["response"]["id"], last["id"])
            self.assertEqual(seen[0]["response"]["status"], "in_progress")

    def test_what_needs_a_store_or_tools_is_refused_by_name(self) -> None:
        for fields, param in (({"previous_response_id": "resp_1"}, "previous_response_id"),
                              ({"conversation": "conv_1"}, "conversation"),
                              ({"background": True}, "background"),
                              ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
                              ({"tool_choice": "required"}, "tool_choice"),
                              ({"truncation": "auto"}, "truncation"),
                              ({"prompt": {"id": "pmpt_1"}}, "prompt"),
                              ({"reasoning": {"effort": "high"}}, "reasoning"),
                              ({"max_tokens": 5}, "max_tokens"),
                              ({"max_output_tokens": 0}, "max_output_tokens"),
                              ({"top_logprobs": 2}, "top_logprobs"),
                              ({"include": ["everything"]}, "include[0]"),
                              ({"text": {"format": {"type": "nothing"}}}, "text.format.type"),
                              ({"text": {"format": {}}}, "text.format.type"),
                              ({"text": {"format": {"type": "json_schema"}}},
                               "text.format.schema"),
                              ({"text": {"format": {"type": "text", "schema": {}}}},
                               "text.format.schema"),
                              ({"text": {"formt": {"type": "text"}}}, "text.formt"),
                              ({"response_format": {"type": "text"}}, "response_format"),
                              ({"input": []}, "input"), ({"input": 7}, "input"),
                              ({"input": [{"type": "item_reference", "id": "x"}]},
                               "input[0].type"),
                              ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
                              ({"input": [{"role": "user", "content": [
                                  {"type": "input_image", "image_url": "x"}]}]},
                               "input[0].content[0]")):
            reply = server.request("POST", "/v1/responses", {"input": "Hi", **fields})
            self.assertEqual((reply.status, reply.error()["param"]), (400, param), fields)


class MessagesTest(unittest.TestCase):
    def text(self, reply: dict[str, Any]) -> str:
        [block] = reply["content"]
        self.assertEqual(block["type"], "text")
        return block["text"]

    def test_a_message_is_the_chat_of_its_messages(self) -> None:
        reply = message(cache_salt="once")
        self.assertEqual(self.text(reply), chat_text())
        self.assertEqual((reply["type"], reply["role"], reply["model"]),
                         ("message", "assistant", NAME))
        self.assertEqual((reply["stop_reason"], reply["stop_sequence"]), ("max_tokens", None))
        usage, plain = reply["usage"], chat()["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"],
                         plain["prompt_tokens"])
        self.assertEqual(usage["output_tokens"], plain["completion_tokens"])

    def test_system_and_blocks(self) -> None:
        expected = chat_text(messages=[{"role": "system", "content": "Be kind."}, *CHAT])
        block = {"type": "text", "text": CHAT[0]["content"],
                 "cache_control": {"type": "ephemeral"}}
        for system in ("Be kind.", [{"type": "text", "text": "Be "},
                                    {"type": "text", "text": "kind."}]):
            self.assertEqual(self.text(message(system=system)), expected)
            self.assertEqual(self.text(message(system=system, messages=[
                {"role": "user", "content": [block]}])), expected)

    def test_the_answer_continues_the_assistants_message(self) -> None:
        said = [*CHAT, {"role": "assistant", "content": "Once upon a"}]
        self.assertEqual(self.text(message(messages=said)),
                         chat_text(messages=said, continue_final_message=True))

    def test_stop_reasons(self) -> None:
        text = chat_text(max_tokens=40)
        stop = text[6:9]
        reply = message(max_tokens=40, stop_sequences=["zzz", stop])
        self.assertEqual((reply["stop_reason"], reply["stop_sequence"]), ("stop_sequence", stop))
        self.assertEqual(self.text(reply), text[:text.index(stop)])
        # The end of the text, and of the chat template's turn.
        for end in ({"allowed_token_ids": [2]}, {"allowed_token_ids": self.ids("<|user|>")[-1:]}):
            ended = message(**end)
            self.assertEqual((ended["stop_reason"], ended["stop_sequence"]), ("end_turn", None))
            self.assertEqual(self.text(ended), "")

    def ids(self, text: str) -> list[int]:
        return server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def test_a_stream_builds_the_message(self) -> None:
        whole = message()
        seen = server.named_events("/v1/messages", {"messages": CHAT, "max_tokens": 4, **GREEDY})
        types = [event["type"] for event in seen]
        self.assertEqual(types[:3], ["message_start", "content_block_start", "ping"])
        self.assertEqual(types[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(set(types[3:-3]), {"content_block_delta"})
        self.assertEqual("".join(event["delta"]["text"] for event in seen[3:-3]),
                         self.text(whole))
        start = seen[0]["message"]
        self.assertEqual((start["content"], start["stop_reason"]), ([], None))
        usage = whole["usage"]
        self.assertEqual(start["usage"]["input_tokens"] + start["usage"]["cache_read_input_tokens"],
                         usage["input_tokens"] + usage["cache_read_input_tokens"])
        self.assertEqual(seen[-2]["delta"], {"stop_reason": "max_tokens", "stop_sequence": None})
        self.assertEqual(seen[-2]["usage"]["output_tokens"], whole["usage"]["output_tokens"])

    def test_tokens_are_counted_as_they_are_read(self) -> None:
        for body in ({"messages": CHAT}, {"messages": CHAT, "system": "Be kind."}):
            count = server.post("/v1/messages/count_tokens", {"model": NAME, **body})
            usage = message(**body, cache_salt="count")["usage"]
            self.assertEqual(count["input_tokens"],
                             usage["input_tokens"] + usage["cache_read_input_tokens"])

    def test_errors_have_anthropics_shape(self) -> None:
        for fields, param in (({"max_tokens": None}, "max_tokens"),
                              ({"max_tokens": 0}, "max_tokens"),
                              ({"messages": []}, "messages"),
                              ({"messages": [{"role": "system", "content": "x"}]},
                               "messages[0].role"),
                              ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
                               "messages[0].content[0]"),
                              ({"messages": [*CHAT, {"role": "assistant", "content": " "}]},
                               "messages"),
                              ({"tools": [{"name": "a b"}]}, "tools[0].name"),
                              ({"thinking": {"type": "enabled", "budget_tokens": 1024}},
                               "thinking"),
                              ({"stop": ["a"]}, "stop"), ({"temperature": -1}, "temperature")):
            reply = server.request("POST", "/v1/messages",
                                   {"messages": CHAT, "max_tokens": 5, **fields})
            body = reply.json()
            self.assertEqual((reply.status, body["type"], body["error"]["type"],
                              body["error"]["param"]),
                             (400, "error", "invalid_request_error", param), fields)
        other = server.request("POST", "/v1/messages",
                               {"model": "other", "messages": CHAT, "max_tokens": 5})
        self.assertEqual((other.status, other.error()["type"]), (404, "not_found_error"))
        wrong = server.request("GET", "/v1/messages")
        self.assertEqual((wrong.status, wrong.json()["type"]), (405, "error"))

    def test_a_key_in_the_header_that_anthropics_clients_send(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as keys:
            keys.write('[alice]\nkey = "a-long-and-secret-key-0123456789"\n')
            keys.flush()
            guarded = Server("--api-keys", keys.name)
            self.addCleanup(guarded.stop)
            body = {"messages": CHAT, "max_tokens": 3}
            sent = {"x-api-key": "a-long-and-secret-key-0123456789"}
            self.assertEqual(guarded.request("POST", "/v1/messages", body, sent).status, 200)
            for headers in ({}, {"x-api-key": "another-key-0123456789"}):
                reply = guarded.request("POST", "/v1/messages", body, headers)
                self.assertEqual((reply.status, reply.error()["type"]),
                                 (401, "authentication_error"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
