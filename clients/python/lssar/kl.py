"""How far one model is from another: Kullback-Leibler divergence over the whole vocabulary.

    from lssar import LLM, kl
    with LLM('model') as a, LLM('model', kv_cache_dtype='int8') as b:
        result = kl.compare(a.client, b.client, ids)
    print(result.kl.mean(), result.same_top.mean(), (result.loss_b - result.loss_a).mean())

`lssar kl` runs main(). Both servers stream their distributions side by side; no more than a few
steps of them are in memory. Needs numpy.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

from lssar._extras import how_to_install

try:
    import numpy
    import numpy.typing
except ModuleNotFoundError as missing:
    missing.msg = f'{missing.msg}: kl needs {how_to_install("import")}'
    raise

from lssar import _tls_flags, types
from lssar._exit_code import exit_code
from lssar.client import Client
from lssar.llm import LLM

Floats = numpy.typing.NDArray[numpy.float64]
Bools = numpy.typing.NDArray[numpy.bool_]
Spans = Iterator[types.Distributions]

# Settings of a side: flags of lssar-server, and fields of an attention_override.
SERVER_SETTINGS = ('dtype', 'kv-cache-dtype', 'device', 'threads', 'max-model-len',
                   'kv-cache-memory')
OVERRIDE_SETTINGS = ('p', 'kind', 'phi')
BUCKETS = (16, 64, 256, 1024, 4096, 16384, 65536)
EXAMPLES = '''
A and B are checkpoint directories, or HOST:PORT or unix:PATH of servers, each with settings behind
commas: those of lssar-server for a directory (dtype, kv-cache-dtype, device, threads,
max-model-len, kv-cache-memory), and p, kind, phi for another attention than the checkpoint's.
Servers with API keys: LSSAR_API_KEY.

Examples:
  lssar kl model model,kv-cache-dtype=int8 --ids held_out.bin
  lssar kl model,dtype=fp32 model-int4,dtype=int4 --text book.txt --length 512 --rows 16
  lssar kl model model,p=14 --ids held_out.bin --json
'''


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two models at the same positions. Each array has one element for each token of the ids but
    the first, which is only read."""

    kl: Floats  # KL(A || B) in nats: the mean under A of log p_A - log p_B, over all of vocab_size
    same_top: Bools  # both have the same most probable token (of equal ones the lowest id)
    loss_a: Floats  # -log p_A of the token that follows
    loss_b: Floats

    @staticmethod
    def join(parts: Sequence['Comparison']) -> 'Comparison':
        """One after the other."""
        return Comparison(*(numpy.concatenate([getattr(part, field.name) for part in parts])
                            for field in dataclasses.fields(Comparison)))


def compare(client_a: Client, client_b: Client, ids: types.TokenIds, *,
            options_a: types.SchedulingOptions | None = None,
            options_b: types.SchedulingOptions | None = None) -> Comparison:
    """Compares the distributions after each beginning of `ids`, which has two tokens or more.

    Args:
        options_a: of Client.distributions(), such as attention_override.
        options_b: the same for the other side.

    Errors: ValueError where the vocabularies have different sizes; LssarError.
    """
    tokens = [int(each) for each in ids]  # type: ignore[union-attr]
    if len(tokens) < 2:
        raise ValueError(f'ids has {len(tokens)} tokens; it must have 2 or more')
    with contextlib.ExitStack() as stack:
        spans = [stack.enter_context(contextlib.closing(  # type: ignore[type-var]  # generators
            client.distributions(tokens[:1], tokens[1:], **(options or {}))))
                 for client, options in ((client_a, options_a), (client_b, options_b))]
        return Comparison.join([_compare_rows(a, b, tokens[first + 1:first + 1 + len(a)])
                                for first, a, b in _side_by_side(*spans)])


def _side_by_side(left: Spans, right: Spans) -> Iterator[
        tuple[int, numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]]]:
    """Yields (first, log-probabilities of A, of B) of the same positions."""
    first = 0
    none = numpy.empty((0, 0), numpy.float32)
    a = b = none
    while True:
        a = a if len(a) else next((span.logprobs for span in left), none)
        b = b if len(b) else next((span.logprobs for span in right), none)
        if not len(a) or not len(b):
            return
        if a.shape[1] != b.shape[1]:
            raise ValueError(f'the vocabularies have {a.shape[1]} and {b.shape[1]} tokens; they '
                             'must be the same')
        count = min(len(a), len(b))
        yield first, a[:count], b[:count]
        a, b, first = a[count:], b[count:], first + count


def _compare_rows(a: numpy.typing.NDArray[numpy.float32], b: numpy.typing.NDArray[numpy.float32],
                  targets: Sequence[int]) -> Comparison:
    wide_a, wide_b = a.astype(numpy.float64), b.astype(numpy.float64)
    rows = numpy.arange(len(targets))
    return Comparison(kl=(numpy.exp(wide_a) * (wide_a - wide_b)).sum(axis=1),
                      same_top=a.argmax(axis=1) == b.argmax(axis=1),
                      loss_a=-wide_a[rows, targets], loss_b=-wide_b[rows, targets])


def summary(result: Comparison) -> dict[str, float]:
    """Means over the positions, and how KL is spread."""
    return {'num_positions': len(result.kl), 'kl': float(result.kl.mean()),
            'kl_median': float(numpy.median(result.kl)),
            'kl_p99': float(numpy.quantile(result.kl, 0.99)), 'kl_max': float(result.kl.max()),
            'same_top': float(result.same_top.mean()), 'loss_a': float(result.loss_a.mean()),
            'loss_b': float(result.loss_b.mean()),
            'loss_difference': float((result.loss_b - result.loss_a).mean())}


def by_position(rows: Sequence[Comparison]) -> list[dict[str, float]]:
    """Summaries of ranges of positions [first, end) over rows."""
    summaries = []
    begin = 1
    for end in BUCKETS:
        parts = [Comparison(*(getattr(row, field.name)[begin - 1:end - 1]
                              for field in dataclasses.fields(Comparison))) for row in rows]
        if any(len(part.kl) for part in parts):
            longest = max(len(row.kl) for row in rows)
            summaries.append({'first': begin, 'end': min(end, longest + 1),
                              **summary(Comparison.join(parts))})
        begin = end
    return summaries


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two models: what main() was given."""

    where: str
    flags: list[str]
    options: types.SchedulingOptions

    @staticmethod
    def parse(text: str) -> 'Side':
        """Errors: ValueError."""
        where, *settings = text.split(',')
        flags: list[str] = []
        override: types.AttentionOverride = {}
        for setting in settings:
            name, equals, value = setting.partition('=')
            if not equals or name not in (*SERVER_SETTINGS, *OVERRIDE_SETTINGS):
                raise ValueError(f'{text!r} has {setting!r}; a setting is NAME=VALUE, with one of '
                                 + ', '.join((*SERVER_SETTINGS, *OVERRIDE_SETTINGS)))
            if name == 'p':
                override['p'] = float(value)
            elif name == 'kind':
                override['kind'] = value
            elif name == 'phi':
                override['phi'] = value
            else:
                flags += ['--' + name, value]
        if flags and not os.path.isdir(where):
            raise ValueError(f'{text!r}: {flags[0][2:]} is a setting of a directory, and there is '
                             f'none called {where!r}')
        return Side(where, flags, {'attention_override': override} if override else {})

    def open(self, stack: contextlib.ExitStack, tls: types.Tls | None = None) -> Client:
        """Connects, to a private server for a directory."""
        if not os.path.isdir(self.where):
            return stack.enter_context(Client(self.where, tls=tls,
                                              api_key=os.environ.get('LSSAR_API_KEY')))
        return stack.enter_context(LLM(self.where, flags=self.flags,
                                       allow_attention_override=bool(self.options))).client


def read_ids(given: argparse.Namespace, client_a: Client, client_b: Client) -> list[int]:
    """The ids of --ids or --text. Errors: ValueError, OSError, LssarError."""
    infos = [client.get_info() for client in (client_a, client_b)]
    sizes = [info.vocab_size for info in infos]
    if sizes[0] != sizes[1]:
        raise ValueError(f'the vocabularies have {sizes[0]} and {sizes[1]} tokens; they must be '
                         'the same')
    if given.text is None:
        ids: list[int] = numpy.fromfile(given.ids, '<u2').tolist()
        return ids
    hashes = [info.tokenizer_hash for info in infos]
    if hashes[0] != hashes[1]:
        raise ValueError(f'--text needs one tokenizer; A and B have {hashes[0]} and {hashes[1]}')
    return client_a.tokenize(pathlib.Path(given.text).read_text(encoding='utf-8'))


def print_table(ranges: Sequence[dict[str, float]], whole: dict[str, float]) -> None:
    """By position, and all together."""
    print(f"{'positions':>13} {'KL(A||B)':>10} {'median':>10} {'99%':>10} {'max':>10} "
          f"{'same top':>9} {'loss A':>8} {'loss B':>8} {'B - A':>10}")
    for each in (*ranges, whole):
        name = f"{each['first']}-{each['end'] - 1}" if 'first' in each else 'all'
        print(f"{name:>13} {each['kl']:10.3e} {each['kl_median']:10.3e} {each['kl_p99']:10.3e} "
              f"{each['kl_max']:10.3e} {each['same_top']:9.2%} {each['loss_a']:8.4f} "
              f"{each['loss_b']:8.4f} {each['loss_difference']:10.2e}")


def run(given: argparse.Namespace) -> None:
    """Compares, and prints. Errors: ValueError, OSError, RuntimeError, LssarError."""
    side_a, side_b = Side.parse(given.a), Side.parse(given.b)
    tls = _tls_flags.of(given)
    if tls is not None and all(os.path.isdir(side.where) for side in (side_a, side_b)):
        raise ValueError('--tls, --ca, --cert and --key apply to a server, and A and B are '
                         'directories')
    with contextlib.ExitStack() as stack:
        client_a, client_b = side_a.open(stack, tls), side_b.open(stack, tls)
        ids = read_ids(given, client_a, client_b)
        length = min(given.length, len(ids))
        if length < 2:
            raise ValueError(f'{length} tokens are too few: give 2 or more')
        num_rows = min(given.rows, len(ids) // length)
        step = (len(ids) - length) // (num_rows - 1) if num_rows > 1 else 0
        rows = []
        for i in range(num_rows):
            rows.append(compare(client_a, client_b, ids[i * step:i * step + length],
                                options_a=side_a.options, options_b=side_b.options))
            if sys.stderr.isatty():
                print(f'\r{i + 1}/{num_rows} rows', end='' if i + 1 < num_rows else '\r',
                      file=sys.stderr, flush=True)
        ranges, whole = by_position(rows), summary(Comparison.join(rows))
    if given.json:
        print(json.dumps({'a': given.a, 'b': given.b, 'length': length, 'num_rows': num_rows,
                          **whole, 'by_position': ranges}))
    else:
        print(f'{num_rows} rows of {length} tokens')
        print_table(ranges, whole)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. -> exit code."""
    parser = argparse.ArgumentParser(
        prog='lssar kl', epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description='Kullback-Leibler divergence of two models over the whole vocabulary, '
        'agreement of the most probable token, and difference of losses, by position.')
    parser.add_argument('a', metavar='A')
    parser.add_argument('b', metavar='B')
    texts = parser.add_mutually_exclusive_group(required=True)
    texts.add_argument('--ids', metavar='FILE', help='token ids as uint16')
    texts.add_argument('--text', metavar='FILE', help='UTF-8, tokenized by A')
    parser.add_argument('--length', type=int, default=1024,
                        help='tokens of a row; the first is only read [default 1024]')
    parser.add_argument('--rows', type=int, default=8,
                        help='rows, evenly spaced in the text, at most [default 8]')
    parser.add_argument('--json', action='store_true', help='one JSON object')
    _tls_flags.add(parser)
    given = parser.parse_args(arguments)

    def work() -> None:
        if given.rows < 1 or given.length < 2:
            raise ValueError(f'--rows is {given.rows} and --length {given.length}; they must be at '
                             'least 1 and 2')
        run(given)

    return exit_code('kl', work, (ValueError, OSError, RuntimeError, types.LssarError))


if __name__ == '__main__':
    sys.exit(main())
