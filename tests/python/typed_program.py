"""A program that uses the client, for mypy --strict. It is not run."""

import numpy as np

from lssar import (AsyncClient, Client, ContinuationScore, GenerateOptions, Generation,
                          LssarError, Retry, Tls)


def best(scores: list[ContinuationScore]) -> int:
    return max(range(len(scores)), key=lambda i: scores[i].logprob)


def ask(server: str) -> list[Generation]:
    options: GenerateOptions = {'top_p': 0.5, 'stop_strings': ['.'], 'logit_bias': {3: 1.0}}
    with Client(server, tls=Tls(ca='ca.pem'), retry=Retry(max_attempts=2), timeout_s=3) as client:
        ids = np.array(client.tokenize('The river'), dtype=np.int32)
        texts: list[str] = list(client.generate(ids, **options))
        client.complete([('user', 'Hi')])
        client.complete([{'role': 'user', 'content': 'Hi'}])
        choices: list[int] = [best(scores) for scores in client.score_many(
            (text, [' a', [1, 2], ids]) for text in texts)]
        with client.stream('x', n=2) as stream:
            for delta in stream:
                print(delta.choice, delta.text, choices)
            if stream.finished is not None:
                print(stream.finished.usage.num_generated_tokens)
        vector: tuple[float, ...] = client.embed(ids, pooling='mean', normalize=True).vector
        norms: list[float] = [sum(each.vector) for each in client.embed_many(texts)]
        print(vector, norms)
        try:
            print(client.attention(ids, layers=[-1]).rows[0].weights[0] + 1.0)
        except LssarError as error:
            print(error.code.lower(), error.retry_delay_s)
        return client.complete('x', n=2)


async def ask_asynchronously(server: str) -> list[str]:
    async with AsyncClient(server) as client:
        answers = [answer[0].text async for answer in client.complete_many(['a', 'b'], seed=1)]
        print((await client.score('a', [' b']))[0].is_greedy)
        print([each.vector[0] async for each in client.embed_many(['a', [1, 2]])])
        return answers


def wrong(client: Client) -> None:
    client.complete('x', temprature=1)  # type: ignore[call-arg]
    client.complete('x', max_tokens='5')  # type: ignore[arg-type]
    client.score('x', [1.5])  # type: ignore[list-item]
    client.embed('x', pooling='max')  # type: ignore[arg-type]
    client.complete(3)  # type: ignore[arg-type]
    client.get_info().max_model_len.upper()  # type: ignore[attr-defined]
