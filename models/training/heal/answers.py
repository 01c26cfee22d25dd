"""Asks a model the questions of a corpus and writes its answers as dialogs, for heal.py to read.

    answers.py RUN/teacher CORPUS CORPUS/teacher.jsonl [--count 10000]

Distillation on what the teacher itself says teaches a student to chat; on dialogs of other people
it learns how the teacher continues sentences that it would never write. Needs lssar (the package,
or its parts in PATH and PYTHONPATH): the server answers many questions at a time. The same command
goes on where it was stopped.
"""

import argparse
import json
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import corpus  # noqa: E402

AT_A_TIME = 64
MAX_CHARACTERS = 300  # of a question


def questions(directory, but):
    """What dialogs begin with, each once, in an order that depends on the corpus alone.

    but: a file of the directory that is not read.
    """
    found = set()
    for first, *_ in corpus.messages(directory, but):
        if first['role'] == 'user' and len(first['content']) <= MAX_CHARACTERS:
            found.add(first['content'].strip())
    ordered = sorted(found - {''})
    random.Random(0).shuffle(ordered)
    return ordered


def whole_lines(path):
    """Number of lines of a file; cuts off what a stopped run left of another. 0 if there is none.
    """
    if not os.path.exists(path):
        return 0
    data = pathlib.Path(path).read_bytes()
    end = data.rfind(b'\n') + 1
    if end < len(data):
        os.truncate(path, end)
    return data.count(b'\n')


def write(chat, asked, path, out=None):
    """Appends the answers of `chat` to the questions that `path` does not have yet.

    chat: (questions, index of the first) -> (answers, number of their tokens).
    """
    start_s, num_tokens = time.monotonic(), 0
    with open(path, 'a', encoding='utf-8') as file:
        for first in range(whole_lines(path), len(asked), AT_A_TIME):
            part = asked[first : first + AT_A_TIME]
            answers, count = chat(part, first)
            for question, answer in zip(part, answers):
                messages = [{'role': 'user', 'content': question},
                            {'role': 'assistant', 'content': answer}]
                file.write(json.dumps({'source': 'teacher', 'messages': messages}) + '\n')
            file.flush()
            num_tokens += count
            rate = num_tokens / (time.monotonic() - start_s)
            done = first + len(part)
            print(f'\r{done:,} of {len(asked):,} questions, {num_tokens:,} tokens, {rate:.0f}/s ',
                  end='', flush=True, file=out)
    print(flush=True, file=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('model', metavar='MODEL_DIR')
    parser.add_argument('corpus', metavar='CORPUS', help='directory of *.jsonl, plain or .xz')
    parser.add_argument('out', metavar='OUT', help='*.jsonl; in CORPUS, heal.py reads it, too')
    parser.add_argument('--count', type=int, default=10000, help='questions [default: 10000]')
    parser.add_argument('--max-tokens', type=int, default=160, help='of an answer [default: 160]')
    parser.add_argument('--temperature', type=float, default=0.8, help='[default: 0.8]')
    parser.add_argument('--device', help='cpu or cuda[:N] [default: cpu]')
    parser.add_argument('--dtype', help="of weights, as lssar-server's: int8 is fastest on a CPU")
    args = parser.parse_args()
    asked = questions(args.corpus, args.out)[: args.count]
    if not asked:
        raise SystemExit(f'{args.corpus}: no dialog begins with a question of at most '
                         f'{MAX_CHARACTERS} characters')
    try:
        from lssar import LLM, SamplingParams
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} is not installed: pip install ./clients/python in lssar's "
                         'repository') from None
    with LLM(args.model, device=args.device, dtype=args.dtype) as model:
        def chat(part, first):
            params = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature,
                                    seed=first)
            outputs = [each.outputs[0] for each in model.chat(
                [[{'role': 'user', 'content': question}] for question in part], params)]
            return [each.text for each in outputs], sum(len(each.tokens) for each in outputs)
        write(chat, asked, args.out)


if __name__ == '__main__':
    main()
