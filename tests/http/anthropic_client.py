"""Runs the anthropic package against the server at argv[1] and its model argv[2]. Exit code 0: all
checks pass."""

import asyncio
import json
import sys
from typing import Any

import anthropic

BASE_URL, MODEL = sys.argv[1], sys.argv[2]
# The package has no parameter for the temperature any more.
GREEDY = {"temperature": 0}
CALL: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "extra_body": GREEDY,
                        "messages": [{"role": "user", "content": "Tell me a story about a dog."}]}

client = anthropic.Anthropic(base_url=BASE_URL, api_key="none", max_retries=0)


def expect(condition: bool, what: object) -> None:
    if not condition:
        raise SystemExit(f"unexpected: {what!r}")


def sync_calls() -> str:
    message = client.messages.create(**CALL)
    text = message.content[0].text
    expect(bool(text) and message.role == "assistant" and message.model == MODEL, message)
    expect(message.stop_reason == "max_tokens" and message.usage.output_tokens == 4, message)
    count = client.messages.count_tokens(model=MODEL, messages=CALL["messages"])
    usage = message.usage
    expect(count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, count)
    told = client.messages.create(**CALL, system="Be kind.")
    expect(told.stop_reason == "max_tokens" and told.content[0].text != text, told)
    expect(told.usage.input_tokens + told.usage.cache_read_input_tokens > count.input_tokens, told)
    stop = text[4:7]
    stopped = client.messages.create(**CALL, stop_sequences=[stop])
    expect((stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop), stopped)
    expect(stopped.content[0].text == text[:text.index(stop)], stopped)
    # The assistant's message is continued.
    word = text[:text.index(" ", 4)]
    begun = client.messages.create(**{**CALL, "messages": [
        *CALL["messages"], {"role": "assistant", "content": word}]})
    expect((word + begun.content[0].text).startswith(text), begun)
    return text


def sync_streams(text: str) -> None:
    with client.messages.stream(**CALL) as stream:
        expect("".join(stream.text_stream) == text, "text_stream")
        final = stream.get_final_message()
    expect(final.content[0].text == text and final.stop_reason == "max_tokens", final)
    expect(final.usage.output_tokens == 4, final)
    types = [event.type for event in client.messages.create(**CALL, stream=True)]
    expect(types[0] == "message_start" and types[-1] == "message_stop", types)


def errors() -> None:
    try:
        client.messages.create(**{**CALL, "model": "other"})
        expect(False, "another model")
    except anthropic.NotFoundError as error:
        expect(error.body["error"]["type"] == "not_found_error", error)
    try:
        client.messages.create(**CALL, tools=[{"type": "web_search_20250305",
                                               "name": "web_search"}])
        expect(False, "tools")
    except anthropic.BadRequestError as error:
        expect("tools[0].type" in str(error), error)


def calls_of_functions() -> None:
    """Forced, whole and streamed; the result goes back; and where the model decides."""
    tool: Any = {"name": "find", "description": "Finds a place.", "input_schema": {
        "type": "object", "properties": {"place": {"type": "string", "maxLength": 8}},
        "required": ["place"], "additionalProperties": False}}
    forced: Any = {**CALL, "max_tokens": 200, "tools": [tool], "tool_choice": {"type": "any"},
                   "extra_body": {"temperature": 1, "seed": 1}}
    message = client.messages.create(**forced)
    [use] = message.content
    expect(message.stop_reason == "tool_use" and use.type == "tool_use", message)
    expect(use.name == "find" and list(use.input) == ["place"], use)
    with client.messages.stream(**forced) as stream:
        deltas = "".join(event.partial_json for event in stream if event.type == "input_json")
        [streamed] = stream.get_final_message().content
    expect(json.loads(deltas) == use.input and streamed.input == use.input, streamed)
    again = client.messages.create(**{**CALL, "messages": [
        *CALL["messages"], {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id,
                                      "content": "found"}]}]}, tools=[tool])
    expect(again.content[0].type in ("text", "tool_use"), again)


async def async_calls(text: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=BASE_URL, api_key="none", max_retries=0) as other:
        replies = await asyncio.gather(*(other.messages.create(**CALL) for _ in range(8)))
        expect({reply.content[0].text for reply in replies} == {text}, replies)
        async with other.messages.stream(**CALL) as stream:
            spoken = "".join([part async for part in stream.text_stream])
        expect(spoken == text, spoken)


if __name__ == "__main__":
    whole = sync_calls()
    sync_streams(whole)
    errors()
    calls_of_functions()
    asyncio.run(async_calls(whole))
    print("ok")
