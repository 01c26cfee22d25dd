"""Runs client.files and client.batches of the openai package against the server at argv[1] and its
model argv[2]. Exit code 0: all checks pass."""

import asyncio
import io
import json
import sys
import time
from typing import Any

import openai

BASE_URL, MODEL = sys.argv[1], sys.argv[2]

client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)


def expect(condition: bool, what: object) -> None:
    if not condition:
        raise SystemExit(f"unexpected: {what!r}")


def input_file(url: str, bodies: list[dict[str, Any]]) -> io.BytesIO:
    file = io.BytesIO("".join(json.dumps({
        "custom_id": f"row-{i}", "method": "POST", "url": url, "body": {"model": MODEL, **body}})
        + "\n" for i, body in enumerate(bodies)).encode())
    file.name = "input.jsonl"
    return file


def run(url: str, bodies: list[dict[str, Any]]) -> Any:
    uploaded = client.files.create(file=input_file(url, bodies), purpose="batch")
    expect(uploaded.filename == "input.jsonl" and uploaded.status == "processed", uploaded)
    expect(client.files.content(uploaded.id).read() == input_file(url, bodies).read(), uploaded)
    batch = client.batches.create(input_file_id=uploaded.id, endpoint=url,
                                  completion_window="24h", metadata={"for": "test"})
    deadline = time.monotonic() + 120
    while batch.status not in ("completed", "failed") and time.monotonic() < deadline:
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    expect(batch.status == "completed" and batch.metadata == {"for": "test"}, batch)
    return batch


def rows(file_id: str) -> dict[str, Any]:
    text = client.files.content(file_id).text
    return {row["custom_id"]: row for row in map(json.loads, text.splitlines())}


def chats() -> None:
    bodies = [{"messages": [{"role": "user", "content": f"Story {i}"}], "max_tokens": 4,
               "temperature": 0} for i in range(20)]
    bodies[7]["top_p"] = 2
    batch = run("/v1/chat/completions", bodies)
    counts = batch.request_counts
    expect((counts.total, counts.completed, counts.failed) == (20, 19, 1), counts)
    output, errors = rows(batch.output_file_id), rows(batch.error_file_id)
    expect(set(errors) == {"row-7"} and len(output) == 19, errors)
    expect(errors["row-7"]["response"]["status_code"] == 400, errors)
    for i in (0, 19):
        reply = client.chat.completions.create(model=MODEL, **bodies[i])
        answer = openai.types.chat.ChatCompletion.model_validate(
            output[f"row-{i}"]["response"]["body"])
        expect(answer.choices[0].message.content == reply.choices[0].message.content, answer)


def other_endpoints() -> None:
    batch = run("/v1/completions", [{"prompt": "Once", "max_tokens": 3}])
    expect(len(rows(batch.output_file_id)) == 1 and batch.error_file_id is None, batch)
    batch = run("/v1/embeddings", [{"input": "Once"}, {"input": ["a", "b"]}])
    expect(len(rows(batch.output_file_id)["row-1"]["response"]["body"]["data"]) == 2, batch)


def lists() -> None:
    # Auto-paging goes by `after`.
    batches = [batch.id for batch in client.batches.list(limit=1)]
    expect(len(batches) == 3 and len(set(batches)) == 3, batches)
    files = [file.id for file in client.files.list(limit=2, purpose="batch")]
    expect(len(files) == 3, files)
    for file in client.files.list():
        expect(client.files.retrieve(file.id).id == file.id, file)
        expect(client.files.delete(file.id).deleted, file)
    expect(client.files.list().data == [], "files")


def errors() -> None:
    for call, kind in (
            (lambda: client.files.retrieve("file-none"), openai.NotFoundError),
            (lambda: client.batches.retrieve("batch_none"), openai.NotFoundError),
            (lambda: client.files.create(file=b"{}", purpose="fine-tune"), openai.BadRequestError),
            (lambda: client.batches.create(input_file_id="file-none", endpoint="/v1/completions",
                                           completion_window="24h"), openai.BadRequestError)):
        try:
            call()
            expect(False, kind)
        except kind as error:
            expect(bool(error.message), error)


async def cancel() -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0) as other:
        bodies = [{"prompt": "Once", "max_tokens": 4000, "ignore_eos": True}] * 50
        file = await other.files.create(file=input_file("/v1/completions", bodies),
                                        purpose="batch")
        batch = await other.batches.create(input_file_id=file.id, endpoint="/v1/completions",
                                           completion_window="24h")
        batch = await other.batches.cancel(batch.id)
        deadline = time.monotonic() + 120
        while batch.status == "cancelling" and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            batch = await other.batches.retrieve(batch.id)
        expect(batch.status == "cancelled", batch)
        counts = batch.request_counts
        expect(counts.completed + counts.failed == 50, counts)


if __name__ == "__main__":
    chats()
    other_endpoints()
    lists()
    errors()
    asyncio.run(cancel())
    print("ok")
