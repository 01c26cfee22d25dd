"""Runs LangChain and LiteLLM against the server at argv[1] and its model argv[2]. Exit code 0: all
checks pass."""

import asyncio
import sys
from typing import Literal

import langchain_core.messages
import langchain_openai
import litellm
import openai
import pydantic

ADDRESS, MODEL = sys.argv[1], sys.argv[2]
QUESTION = "Tell me a story about a dog."
CHAT = [{"role": "user", "content": QUESTION}]


class Pet(pydantic.BaseModel):
    """A pet."""
    kind: Literal["cat", "dog"]
    age: int = pydantic.Field(ge=0, le=30)


def expect(condition: bool, what: object) -> None:
    if not condition:
        raise SystemExit(f"unexpected: {what!r}")


def reference() -> str:
    client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="none")
    reply = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=4,
                                           temperature=0)
    return reply.choices[0].message.content or ""


def langchain(text: str) -> None:
    for uses_responses in (False, True):
        model = langchain_openai.ChatOpenAI(model=MODEL, base_url=f"{ADDRESS}/v1", api_key="none",
                                            temperature=0, max_tokens=4, max_retries=0,
                                            use_responses_api=uses_responses)
        answer = model.invoke(QUESTION)
        expect(answer.text == text, answer)
        expect(answer.usage_metadata["output_tokens"] == 4, answer)
        expect("".join(part.text for part in model.stream(QUESTION)) == text, "stream")
    # White space between tokens is drawn too: by a seed, with room for much of it.
    drawn = {"max_tokens": 2000, "extra_body": {"seed": 1}}
    structured = langchain_openai.ChatOpenAI(
        model=MODEL, base_url=f"{ADDRESS}/v1", api_key="none", max_retries=0, **drawn,
    ).with_structured_output(Pet, method="function_calling")
    expect(isinstance(structured.invoke(QUESTION), Pet), "function_calling")
    # Tools that the model may call, and the way back of a call's result.
    for uses_responses in (False, True):
        model = langchain_openai.ChatOpenAI(
            model=MODEL, base_url=f"{ADDRESS}/v1", api_key="none", max_retries=0,
            use_responses_api=uses_responses, **drawn).bind_tools([Pet])
        free = model.bind(max_tokens=40).invoke(QUESTION)
        expect(bool(free.content) != bool(free.tool_calls), free)
        forced = model.bind(tool_choice="required").invoke(QUESTION)
        [call] = forced.tool_calls
        expect(call["name"] == "Pet" and isinstance(Pet(**call["args"]), Pet), forced)
        result = langchain_core.messages.ToolMessage("found", tool_call_id=call["id"])
        model.invoke([("user", QUESTION), forced, result])
    completion = langchain_openai.OpenAI(model=MODEL, base_url=f"{ADDRESS}/v1", api_key="none",
                                         temperature=0, max_tokens=5, max_retries=0)
    expect(bool(completion.invoke("Once upon a")), "completion")
    vectors = langchain_openai.OpenAIEmbeddings(
        model=MODEL, base_url=f"{ADDRESS}/v1", api_key="none", check_embedding_ctx_length=False)
    expect(len(vectors.embed_documents(["a", "b"])) == 2, "embeddings")


async def langchain_batches(text: str) -> None:
    """In one event loop: LangChain keeps the connections of one for the next model."""
    for uses_responses in (False, True):
        model = langchain_openai.ChatOpenAI(model=MODEL, base_url=f"{ADDRESS}/v1", api_key="none",
                                            temperature=0, max_tokens=4, max_retries=0,
                                            use_responses_api=uses_responses)
        several = await model.abatch([QUESTION] * 4)
        expect({one.text for one in several} == {text}, several)


def lite_llm(text: str) -> None:
    common = {"api_key": "none", "messages": CHAT, "max_tokens": 4, "temperature": 0}
    for provider, base in (("openai", f"{ADDRESS}/v1"), ("hosted_vllm", f"{ADDRESS}/v1"),
                           ("anthropic", ADDRESS)):
        call = {"model": f"{provider}/{MODEL}", "api_base": base, **common}
        reply = litellm.completion(**call)
        expect(reply.choices[0].message.content == text, reply)
        expect(reply.usage.completion_tokens == 4, reply.usage)
        parts = [part.choices[0].delta.content or "" for part in litellm.completion(**call,
                                                                                   stream=True)]
        expect("".join(parts) == text, parts)
        reply = asyncio.run(litellm.acompletion(**call))
        expect(reply.choices[0].message.content == text, reply)
    plain = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="Once upon a",
                                    api_base=f"{ADDRESS}/v1", api_key="none", max_tokens=5,
                                    temperature=0)
    expect(bool(plain.choices[0].text), plain)
    vectors = litellm.embedding(model=f"openai/{MODEL}", input=["a", "b"], api_key="none",
                                api_base=f"{ADDRESS}/v1")
    expect(len(vectors.data) == 2, "embeddings")


if __name__ == "__main__":
    whole = reference()
    langchain(whole)
    asyncio.run(langchain_batches(whole))
    lite_llm(whole)
    print("ok")
