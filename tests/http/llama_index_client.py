"""Runs LlamaIndex against the server at argv[1] and its model argv[2]. Exit code 0: all checks
pass."""

import asyncio
import sys

import openai
import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

ADDRESS, MODEL = sys.argv[1], sys.argv[2]
PROMPT = "Once upon a time there was a girl."
CHAT = [ChatMessage(role="user", content="Tell me a story.")]


class Pet(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=5)


def expect(condition: bool, what: object) -> None:
    if not condition:
        raise SystemExit(f"unexpected: {what!r}")


def references() -> tuple[str, str, list[list[float]]]:
    """A completion, a chat's answer and embeddings by the openai package."""
    with openai.OpenAI(base_url=ADDRESS, api_key="none") as client:
        completion = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=5,
                                               temperature=0)
        chat = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": CHAT[0].content or ""}],
            max_tokens=5, temperature=0)
        vectors = client.embeddings.create(model=MODEL, input=["a", "b"])
        return (completion.choices[0].text, chat.choices[0].message.content or "",
                [one.embedding for one in vectors.data])


def model(is_chat_model: bool, **options: object) -> OpenAILike:
    return OpenAILike(model=MODEL, api_base=ADDRESS, api_key="none", temperature=0, max_retries=0,
                      context_window=16384, is_chat_model=is_chat_model,
                      **{"max_tokens": 5, **options})


async def check_async(llm: OpenAILike, prompt: str, text: str) -> None:
    expect((await llm.acomplete(prompt)).text == text, "acomplete")
    stream = await llm.astream_complete(prompt)
    expect("".join([part.delta or "" async for part in stream]) == text, "astream_complete")
    if llm.is_chat_model:
        expect((await llm.achat(CHAT)).message.content == text, "achat")
        messages = await llm.astream_chat(CHAT)
        expect("".join([part.delta or "" async for part in messages]) == text, "astream_chat")


def check_model(llm: OpenAILike, prompt: str, text: str) -> None:
    reply = llm.complete(prompt)
    expect(reply.text == text, reply)
    expect(reply.additional_kwargs["completion_tokens"] == 5, reply)
    expect("".join(part.delta or "" for part in llm.stream_complete(prompt)) == text,
           "stream_complete")
    if llm.is_chat_model:
        answer = llm.chat(CHAT)
        expect(answer.message.content == text, answer)
        expect("".join(part.delta or "" for part in llm.stream_chat(CHAT)) == text, "stream_chat")
    asyncio.run(check_async(llm, prompt, text))


def check_embeddings(expected: list[list[float]]) -> None:
    vectors = OpenAILikeEmbedding(model_name=MODEL, api_base=ADDRESS, api_key="none")
    expect(vectors.get_text_embedding_batch(["a", "b"]) == expected, "embeddings")
    expect(vectors.get_query_embedding("b") == expected[1], "an embedding")
    expect(asyncio.run(vectors.aget_text_embedding("a")) == expected[0], "an async embedding")


if __name__ == "__main__":
    whole, told, embedded = references()
    check_model(model(is_chat_model=False), PROMPT, whole)
    check_model(model(is_chat_model=True), CHAT[0].content or "", told)
    check_embeddings(embedded)
    structured = model(is_chat_model=True, should_use_structured_outputs=True, max_tokens=300)
    expect(isinstance(structured.as_structured_llm(Pet).complete("A pet.").raw, Pet), "a pet")
    print("ok")
