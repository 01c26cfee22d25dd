"""Tokens per second of constrained streams beside free ones, on one server, one after another.

    PYTHONPATH=build/ci/python:clients/python python3 -B tests/bench/constraint_rate.py \\
        build/ci/bin/lssar-server models/zoo/lssar-6m

Prints the median of each kind over the rounds, and its ratio to that of free streams.
"""

import argparse
import json
import statistics
import time

from lssar import LLM, SamplingParams

ITEM = {'type': 'object', 'properties': {
    'name': {'type': 'string', 'maxLength': 30}, 'count': {'type': 'integer'},
    'kind': {'enum': ['small', 'large', 'other']}, 'tags': {
        'type': 'array', 'items': {'type': 'string', 'maxLength': 12}, 'maxItems': 5}},
    'required': ['name', 'count', 'kind', 'tags']}
# Each may go on for longer than it is asked to.
KINDS = {
    'free': {},
    'json_schema': {'json_schema': json.dumps({'type': 'array', 'items': ITEM, 'minItems': 999})},
    'regex': {'regex': '([A-Z][a-z]{0,9}( [a-z]{1,9}){2,8}[.!?] ?){1,2000}'},
}


def rate(llm: LLM, kind: str, num_streams: int, num_tokens: int, seed: int) -> float:
    """Tokens per second of streams that begin together."""
    options = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=seed, **KINDS[kind])
    begun = time.monotonic()
    outputs = llm.generate(['The list of things:'] * num_streams, options, concurrency=num_streams)
    seconds = time.monotonic() - begun
    total = sum(len(output.outputs[0].tokens) for output in outputs)
    assert total == num_streams * num_tokens, (kind, total)
    return total / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('program')
    parser.add_argument('model')
    parser.add_argument('--streams', type=int, default=16)
    parser.add_argument('--tokens', type=int, default=200)
    parser.add_argument('--rounds', type=int, default=9)
    flags = parser.parse_args()
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with LLM(flags.model, program=flags.program) as llm:
        for kind in KINDS:  # compiles the constraint
            rate(llm, kind, 1, 8, 0)
        for seed in range(flags.rounds):
            for kind, measured in rates.items():
                measured.append(rate(llm, kind, flags.streams, flags.tokens, seed))
    free = statistics.median(rates['free'])
    for kind, measured in rates.items():
        median = statistics.median(measured)
        print(f'{kind:12} {median:8.0f} tokens/s  {median / free:.3f} of free  '
              f'({min(measured):.0f} to {max(measured):.0f})')


if __name__ == '__main__':
    main()
