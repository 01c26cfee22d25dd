"""Runs the official openai package against the server at argv[1]. Exit code 0: all checks pass."""

import asyncio
import sys

import openai

BASE_URL, MODEL = sys.argv[1], sys.argv[2]
PROMPT = "Once upon a time"
CHAT = [{"role": "user", "content": "Hello"}]

client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)


def expect(condition: bool, what: object) -> None:
    if not condition:
        raise SystemExit(f"unexpected: {what!r}")


def sync_calls() -> tuple[str, str]:
    expect([model.id for model in client.models.list()] == [MODEL], "models")
    expect(client.models.retrieve(MODEL).id == MODEL, "model")
    reply = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0,
                                      logprobs=2, echo=True, seed=1)
    choice = reply.choices[0]
    expect(choice.text.startswith(PROMPT), choice)
    expect(choice.logprobs.token_logprobs[0] is None, choice.logprobs)
    expect(len(choice.logprobs.tokens) == reply.usage.prompt_tokens + 8, choice.logprobs)
    expect(reply.usage.prompt_tokens_details.cached_tokens >= 0, reply.usage)
    chat = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8, temperature=0,
                                          logprobs=True, top_logprobs=2)
    message = chat.choices[0].message
    expect(message.role == "assistant" and bool(message.content), chat)
    expect(len(chat.choices[0].logprobs.content[0].top_logprobs) == 2, chat)
    extra = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4,
                                      extra_body={"top_k": 1, "ignore_eos": True})
    expect(extra.usage.completion_tokens == 4, extra)
    return choice.text, message.content


def sync_streams(text: str, content: str) -> None:
    events = list(client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8,
                                            temperature=0, echo=True, stream=True,
                                            stream_options={"include_usage": True}))
    expect("".join(e.choices[0].text for e in events if e.choices) == text, events)
    expect(events[-1].usage.completion_tokens == 8, events[-1])
    with client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8, temperature=0,
                                        stream=True) as stream:
        spoken = "".join(event.choices[0].delta.content or "" for event in stream)
    expect(spoken == content, spoken)


def errors() -> None:
    try:
        client.completions.create(model="other", prompt=PROMPT)
        expect(False, "another model")
    except openai.NotFoundError as error:
        expect(error.code == "model_not_found" and error.param == "model", error)
    try:
        client.completions.create(model=MODEL, prompt=PROMPT, top_p=2)
        expect(False, "top_p")
    except openai.BadRequestError as error:
        expect(error.param == "top_p", error)


def embeddings() -> None:
    many = client.embeddings.create(model=MODEL, input=[PROMPT, "Tom had a ball."])
    expect([one.index for one in many.data] == [0, 1], many.usage)
    one = client.embeddings.create(model=MODEL, input=PROMPT, encoding_format="float")
    pairs = list(zip(one.data[0].embedding, many.data[0].embedding, strict=True))
    expect(all(abs(a - b) <= 1e-6 * max(1, abs(a)) for a, b in pairs), pairs[:3])
    unit = client.embeddings.create(model=MODEL, input=PROMPT, encoding_format="float",
                                    extra_body={"pooling": "mean", "normalize": True})
    expect(abs(sum(x * x for x in unit.data[0].embedding) - 1) < 1e-6, "L2 norm")
    for body, field in (({"dimensions": 4}, "dimensions"), ({"pooling": "max"}, "pooling")):
        try:
            client.embeddings.create(model=MODEL, input=PROMPT, extra_body=body)
            expect(False, field)
        except openai.BadRequestError as error:
            expect(error.param == field, error)
    try:
        client.embeddings.create(model=MODEL, input=PROMPT, extra_body={"apply_head": True})
        expect(False, "apply_head")
    except openai.BadRequestError as error:
        expect("regression head" in str(error), error)


async def async_calls(text: str, content: str) -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0) as other:
        replies = await asyncio.gather(*(
            other.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0,
                                     echo=True) for _ in range(8)))
        expect({reply.choices[0].text for reply in replies} == {text}, replies)
        stream = await other.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8,
                                                     temperature=0, stream=True)
        spoken = ""
        async for event in stream:
            spoken += event.choices[0].delta.content or ""
        expect(spoken == content, spoken)
        # A reader that leaves early.
        stream = await other.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4000,
                                                stream=True)
        async for _ in stream:
            break
        await stream.close()


if __name__ == "__main__":
    whole = sync_calls()
    sync_streams(*whole)
    errors()
    embeddings()
    asyncio.run(async_calls(*whole))
    print("ok")
