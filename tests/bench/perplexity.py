"""Perplexity of a text by type of weights and of K/V, beside llama.cpp on files of the same model.

    PYTHONPATH=build/ci/python:clients/python python3 -B tests/bench/perplexity.py \\
        build/ci/bin/lssar-server MODEL TEXT --peer DIR/llama-perplexity --peer-gguf q8.gguf q4.gguf

Rows of 512 tokens, of which the last 255 are scored: what llama-perplexity does. The tokens of
llama.cpp are the same where its vocabulary is the checkpoint's; the numbers of rows are compared.
"""

import argparse
import math
import pathlib
import re
import statistics
import subprocess
import tempfile

from lssar import LLM

ROW = 512
FIRST = ROW // 2 + 1  # the first token that is scored
ESTIMATE = re.compile(r'Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)')
ROWS = re.compile(r'calculating perplexity over (\d+) chunks')


def ours(program: str, model: str, text: str, dtype: str, kv: str, most_rows: int) -> list[float]:
    """Nats of each row."""
    with LLM(model, program=program, dtype=dtype, kv_cache_dtype=kv, max_model_len=ROW) as llm:
        ids = []
        for start in range(0, len(text), 200_000):
            ids += llm.encode(text[start:start + 200_000], add_bos=False)
        rows = [ids[i:i + ROW] for i in range(0, len(ids) - ROW + 1, ROW)][:most_rows]
        bos = llm.encode('a')[:-1]  # none where the checkpoint's prompts have none
        rows = [[*bos, *row[len(bos):]] for row in rows]
        scores = llm.score([(row[:FIRST], [row[FIRST:]]) for row in rows])
    return [-each[0].logprob for each in scores]


def peers(program: str, gguf: str, text: str, num_rows: int) -> tuple[float, float]:
    """Perplexity and its standard error."""
    with tempfile.NamedTemporaryFile('w') as file:
        file.write(text)
        file.flush()
        done = subprocess.run([program, '-m', gguf, '-f', file.name, '-c', str(ROW), '-b', str(ROW),
                               '--chunks', str(num_rows)], check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    rows = ROWS.search(done.stdout)
    found = ESTIMATE.search(done.stdout)
    assert rows is not None and int(rows[1]) == num_rows and found is not None, done.stdout[-2000:]
    return float(found[1]), float(found[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('program', help='lssar-server')
    parser.add_argument('model', help='checkpoint directory')
    parser.add_argument('text', help='text file, UTF-8')
    parser.add_argument('--dtype', default='fp16,int8,int4', help='types of the weights')
    parser.add_argument('--kv', default='fp32,fp16,int8', help='types of K/V')
    parser.add_argument('--rows', type=int, default=64, help='at most so many rows')
    parser.add_argument('--peer', help='llama-perplexity')
    parser.add_argument('--peer-gguf', nargs='*', default=[], help='its files')
    flags = parser.parse_args()
    text = pathlib.Path(flags.text).read_text(encoding='utf-8')
    num_rows = 0
    print('| engine | weights | K/V | perplexity | standard error |\n|---|---|---|---|---|')
    for dtype in flags.dtype.split(','):
        for kv in flags.kv.split(','):
            nats = ours(flags.program, flags.model, text, dtype, kv, flags.rows)
            num_rows, tokens = len(nats), ROW - FIRST
            perplexity = math.exp(sum(nats) / (num_rows * tokens))
            error = statistics.stdev(nats) / tokens / math.sqrt(num_rows) if num_rows > 1 else 0.0
            print(f'| lssar | {dtype} | {kv} | {perplexity:.3f} | {perplexity * error:.3f} |',
                  flush=True)
    for gguf in flags.peer_gguf:
        perplexity, error = peers(flags.peer, gguf, text, num_rows)
        print(f'| llama.cpp | {pathlib.Path(gguf).name} | fp16 | {perplexity:.3f} | {error:.3f} |',
              flush=True)


if __name__ == '__main__':
    main()
