"""Runs client.responses of the openai package against the server at argv[1] and its model argv[2].
Exit code 0: all checks pass."""

import asyncio
import json
import sys
from typing import Any

import openai

BASE_URL, MODEL = sys.argv[1], sys.argv[2]
CALL: dict[str, Any] = {"model": MODEL, "input": "Tell me a story about a dog.",
                        "max_output_tokens": 4, "temperature": 0}

client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)


def expect(condition: bool, what: object) -> None:
    if not condition:
        raise SystemExit(f"unexpected: {what!r}")


def chat_text(messages: list[Any]) -> str:
    reply = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4,
                                           temperature=0)
    return reply.choices[0].message.content or ""


def sync_calls() -> str:
    response = client.responses.create(**CALL)
    expect(response.output_text == chat_text([{"role": "user", "content": CALL["input"]}]),
           response)
    expect(response.status == "incomplete", response)
    expect(response.incomplete_details.reason == "max_output_tokens", response)
    expect(response.usage.output_tokens == 4, response.usage)
    expect(response.model == MODEL and response.metadata == {}, response)
    # The earlier answer goes back as it came.
    turns = [{"role": "user", "content": CALL["input"]}, *response.output,
             {"role": "user", "content": "Go on."}]
    more = client.responses.create(**{**CALL, "input": turns}, instructions="Be kind.")
    expect(more.output_text == chat_text([
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": CALL["input"]},
        {"role": "assistant", "content": response.output_text},
        {"role": "user", "content": "Go on."}]), more)
    scored = client.responses.create(**CALL, include=["message.output_text.logprobs"],
                                     top_logprobs=2)
    logprobs = scored.output[0].content[0].logprobs
    expect(len(logprobs) == 4 and len(logprobs[0].top_logprobs) == 2, scored)
    return response.output_text


def sync_streams(text: str) -> None:
    events = list(client.responses.create(**CALL, stream=True))
    expect("".join(event.delta for event in events
                   if event.type == "response.output_text.delta") == text, events)
    expect(events[-1].type == "response.incomplete", events[-1])
    expect(events[-1].response.output_text == text, events[-1])
    with client.responses.stream(**CALL) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    expect("".join(deltas) == text, deltas)
    with client.responses.stream(**{**CALL, "max_output_tokens": 4000},
                                 extra_body={"stop": ["."]}) as stream:
        final = stream.get_final_response()
    expect(final.status == "completed" and bool(final.output_text), final)


def errors() -> None:
    for more, param in (({"previous_response_id": "resp_1"}, "previous_response_id"),
                        ({"background": True}, "background"),
                        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
                        ({"top_p": 2}, "top_p")):
        try:
            client.responses.create(**CALL, **more)
            expect(False, more)
        except openai.BadRequestError as error:
            expect(error.param == param, error)
    try:
        client.responses.delete("resp_none")
        expect(False, "delete")
    except openai.NotFoundError as error:
        expect("resp_none" in str(error), error)


def calls_of_functions() -> None:
    """Forced, whole and streamed; the result goes back; and where the model decides."""
    tool: Any = {"type": "function", "name": "find", "strict": True, "parameters": {
        "type": "object", "properties": {"place": {"type": "string", "maxLength": 8}},
        "required": ["place"], "additionalProperties": False}}
    forced: Any = {**CALL, "max_output_tokens": 200, "temperature": 1, "tools": [tool],
                   "tool_choice": "required", "extra_body": {"seed": 1}}
    response = client.responses.create(**forced)
    [call] = response.output
    expect(call.type == "function_call" and call.name == "find", call)
    expect(list(json.loads(call.arguments)) == ["place"], call)
    with client.responses.stream(**forced) as stream:
        deltas = "".join(event.delta for event in stream
                         if event.type == "response.function_call_arguments.delta")
        [streamed] = stream.get_final_response().output
    expect(deltas == call.arguments and streamed.arguments == call.arguments, streamed)
    again = client.responses.create(**{**CALL, "tools": [tool], "input": [
        {"role": "user", "content": CALL["input"]}, call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "found"}]})
    [item] = again.output
    expect(item.type in ("message", "function_call") and again.tool_choice == "auto", again)


async def async_calls(text: str) -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0) as other:
        replies = await asyncio.gather(*(other.responses.create(**CALL) for _ in range(8)))
        expect({reply.output_text for reply in replies} == {text}, replies)
        spoken = ""
        async for event in await other.responses.create(**CALL, stream=True):
            if event.type == "response.output_text.delta":
                spoken += event.delta
        expect(spoken == text, spoken)
        # A reader that leaves early, and a call that is ended by its id.
        stream = await other.responses.create(**{**CALL, "max_output_tokens": 4000}, stream=True,
                                              extra_body={"min_tokens": 4000})
        async for event in stream:
            if event.type == "response.created":
                await other.responses.delete(event.response.id)
        expect(event.type == "response.failed", event)


if __name__ == "__main__":
    whole = sync_calls()
    sync_streams(whole)
    errors()
    calls_of_functions()
    asyncio.run(async_calls(whole))
    print("ok")
