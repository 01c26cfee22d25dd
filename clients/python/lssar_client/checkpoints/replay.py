"""`lssar verify --server ADDRESS --request FILE.json`: a saved request in other batches, chunks and
thread counts, and where bits part.

FILE.json is one object: {"generate": {...}} with the fields of lssar.v1's GenerateRequest (or
"score", "embed", "attention" with those of their requests) and, where a reply was saved too,
{"replies": [...]} with its messages. `lssar generate --save-request FILE.json` writes it.
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from lssar.v1 import inference_pb2 as pb
from lssar_client import Client, LssarError, ServerInfo
from lssar_client.checkpoints import served
from lssar_client.checkpoints.errors import CheckpointError, read_json_object

KINDS: dict[str, tuple[type[Message], type[Message]]] = {
    'generate': (pb.GenerateRequest, pb.GenerateReply),
    'score': (pb.ScoreRequest, pb.ScoreReply),
    'embed': (pb.EmbedRequest, pb.EmbedReply),
    'attention': (pb.CaptureAttentionRequest, pb.CaptureAttentionReply),
}
# Flags of servers that must not change a bit.
VARIANTS = {
    'one thread': ('--threads', '1'),
    'two threads': ('--threads', '2'),
    'steps of 16 tokens': ('--max-num-batched-tokens', '16'),
    'steps of 100 tokens': ('--max-num-batched-tokens', '100'),
    'pages of 16 tokens': ('--page-size', '16'),
    'no prefix cache': ('--no-enable-prefix-caching',),
}
NUM_COPIES = 4  # of the request, at once
NUM_NEIGHBOURS = 8  # other requests at the same time
NEIGHBOUR_TOKENS = 200
# Fields of a receipt that may differ between equal bits: the backend's text names its threads.
FREE_FIELDS = frozenset({'backend', 'version'})

Path = str
Bits = list[tuple[Path, object]]


@dataclasses.dataclass
class Replay:
    """The request once more."""

    name: str
    is_same: bool
    difference: str = ''


@dataclasses.dataclass
class ReplayReport:
    """All replays."""

    kind: str
    server: str
    receipt: dict[str, Any]
    replays: list[Replay]
    may_differ: bool  # GetInfo's bits_depend_on_batch
    num_values: int  # compared in each replay

    @property
    def is_ok(self) -> bool:
        """True if every replay that must have the same bits has them."""
        return self.may_differ or all(replay.is_same for replay in self.replays)


def _float_bits(value: float) -> tuple[str, float]:
    """Equal only for equal bits: NaN is equal to itself, and 0 is not -0."""
    return struct.pack('<d', value).hex(), value


def _append_token(bits: Bits, path: Path, token: pb.Token) -> None:
    for name, each in (('', token.token), *((f'.top[{i}]', top) for i, top in
                                            enumerate(token.top))):
        bits.append((f'{path}{name}.id', each.id))
        if each.HasField('logprob'):
            bits.append((f'{path}{name}.logprob', _float_bits(each.logprob)))


def bits_of(replies: Iterable[Any]) -> Bits:
    """Everything in the replies that must be equal, with its place, independently of how the reply
    was cut into messages."""
    parts: dict[tuple[int, int, int], Bits] = {}
    num_tokens: dict[tuple[int, int, int], int] = {}
    texts: dict[int, str] = {}

    def add_tokens(key: tuple[int, int, int], path: Path, tokens: Sequence[pb.Token]) -> None:
        for token in tokens:
            index = num_tokens.get(key, 0)
            num_tokens[key] = index + 1
            _append_token(parts.setdefault(key, []), f'{path} token {index}', token)

    for reply in replies:
        event = reply.WhichOneof('event')
        part = getattr(reply, event) if event else None
        if event == 'prompt_logprobs':
            add_tokens((0, 0, 0), 'prompt', part.tokens)
        elif event == 'delta':
            add_tokens((1, part.choice, 0), f'choice {part.choice}', part.tokens)
            texts[part.choice] = texts.get(part.choice, '') + part.text
            if part.finish_reason:
                end = parts.setdefault((2, part.choice, 0), [])
                end.append((f'choice {part.choice} finish_reason', part.finish_reason))
                end.append((f'choice {part.choice} stop_string', part.stop_string))
        elif isinstance(reply, pb.ScoreReply) and event == 'tokens':
            add_tokens((1, part.item, part.continuation),
                       f'item {part.item} continuation {part.continuation}', part.tokens)
        elif event == 'score':
            path = f'item {part.item} continuation {part.continuation}'
            parts.setdefault((2, part.item, part.continuation), []).extend(
                [(f'{path} logprob', _float_bits(part.logprob)),
                 (f'{path} is_greedy', part.is_greedy)])
        elif event == 'vectors':
            key = 1, part.input, 0
            values = parts.setdefault(key, [])
            values.extend((f'input {part.input} element {len(values) + i}', _float_bits(value))
                          for i, value in enumerate(part.values))
        elif event == 'weights':
            for row in part.rows:
                path = f'layer {row.layer} head {row.head} row {row.row}'
                parts.setdefault((row.row, row.layer, row.head), []).extend(
                    (f'{path} key {key}', _float_bits(weight))
                    for key, weight in zip(row.keys, row.weights))
        elif event == 'statistics':
            for head in part.heads:
                path = f'layer {head.layer} head {head.head}'
                parts.setdefault((1, head.layer, head.head), []).extend(
                    [(f'{path} num_nonzero', head.num_nonzero),
                     (f'{path} effective_keys', _float_bits(head.effective_keys)),
                     *((f'{path} distance_mass[{i}]', _float_bits(mass))
                       for i, mass in enumerate(head.distance_mass))])
    bits = [bit for key in sorted(parts) for bit in parts[key]]
    bits.extend((f'choice {choice} text', text) for choice, text in sorted(texts.items()))
    return bits


def _show(value: object) -> str:
    return f'{value[1]!r} (bits {value[0]})' if isinstance(value, tuple) else repr(value)


def difference(bits: Bits, expected: Bits) -> str:
    """Where the two part first, in words. Empty: nowhere."""
    for (path, value), (expected_path, expected_value) in zip(bits, expected):
        if path != expected_path:
            return f'{path} where {expected_path} was expected'
        if value != expected_value:
            return f'{path}: {_show(value)}, expected {_show(expected_value)}'
    if len(bits) != len(expected):
        longer, what = (bits, 'not expected') if len(bits) > len(expected) else (expected,
                                                                                 'missing')
        return f'{longer[min(len(bits), len(expected))][0]}: {what}'
    return ''


@dataclasses.dataclass
class SavedRequest:
    """FILE.json."""

    kind: str
    request: Any
    replies: list[Any]


def load(path: str) -> SavedRequest:
    """Errors: CheckpointError."""
    document = read_json_object(path)
    kinds = [kind for kind in KINDS if kind in document]
    if len(kinds) != 1:
        raise CheckpointError(f'{path}: must have one of {", ".join(KINDS)}, has '
                              f'{", ".join(kinds) or "none"}')
    [kind] = kinds
    request_type, reply_type = KINDS[kind]
    try:
        request = json_format.ParseDict(document[kind], request_type())
        replies = [json_format.ParseDict(reply, reply_type())
                   for reply in document.get('replies', [])]
    except (json_format.ParseError, TypeError, AttributeError) as error:
        raise CheckpointError(f'{path}: {error}') from None
    return SavedRequest(kind, request, replies)


def _call(client: Client, kind: str, request: Any) -> list[Any]:
    """All replies. Errors: CheckpointError."""
    method = {'generate': client._generate, 'score': client._score, 'embed': client._embed,
              'attention': client._capture}[kind]
    try:
        return list(method(request, timeout=client._timeout_s, metadata=client._metadata))
    except grpc.RpcError as error:
        raise CheckpointError(f'the server refuses the request: {error.code().name}: '
                              f'{error.details()}') from None


def _receipt(replies: Sequence[Any]) -> pb.Receipt:
    for reply in reversed(replies):
        if reply.WhichOneof('event') == 'finished':
            return reply.finished.receipt
    return pb.Receipt()


def _receipt_difference(receipt: pb.Receipt, saved: pb.Receipt) -> str:
    """Names fields of the receipts that differ and must not."""
    found, expected = (json_format.MessageToDict(each, preserving_proto_field_name=True)
                       for each in (receipt, saved))
    return '; '.join(f'receipt {name}: {found.get(name, "")!r}, saved {expected[name]!r}'
                     for name in expected
                     if name not in FREE_FIELDS and found.get(name) != expected[name])


def _with_neighbours(client: Client, info: ServerInfo, kind: str, request: Any) -> list[list[Any]]:
    """Replies to NUM_COPIES of the request, while the server scores other texts."""
    length = min(NEIGHBOUR_TOKENS, info.max_model_len - 2)
    draw = random.Random(0)
    results: list[list[Any]] = [[] for _ in range(NUM_COPIES)]
    errors: list[Exception] = []

    def guarded(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except (CheckpointError, LssarError) as error:
                errors.append(error)
        return run

    def copy(index: int) -> Callable[[], object]:
        def run() -> None:
            results[index] = _call(client, kind, request)
        return run

    def neighbour(ids: list[int]) -> Callable[[], object]:
        return lambda: client.score(ids[:1], [ids[1:]], use_prefix_cache=False)

    works = [copy(i) for i in range(NUM_COPIES)]
    for i in range(NUM_NEIGHBOURS):
        ids = [draw.randrange(info.vocab_size) for _ in range(1 + length * (i + 1) // NUM_NEIGHBOURS
                                                              + 1)]
        works.insert(draw.randrange(len(works) + 1), neighbour(ids[:info.max_model_len]))
    threads = [threading.Thread(target=guarded(work)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise CheckpointError(str(errors[0]))
    return results


def _without_cache(request: Any) -> Any:
    changed = type(request)()
    changed.CopyFrom(request)
    changed.use_prefix_cache = False
    return changed


def _fix_seed(saved: SavedRequest, receipt: pb.Receipt) -> None:
    """Sets the seed that a reply used, where the request has none."""
    if (saved.kind == 'generate' and not saved.request.sampling.HasField('seed')
            and receipt.HasField('sampling')):
        saved.request.sampling.seed = receipt.sampling.seed


def _own_servers(saved: SavedRequest, info: ServerInfo, directory: str,
                 compare: Callable[[str, list[Any]], None]) -> None:
    server = served.find_server()
    if server is None:
        raise CheckpointError('lssar-server is neither in PATH nor named by LSSAR_SERVER')
    flags = ('--device', info.device, '--dtype', info.dtype, '--kv-cache-dtype',
             info.kv_cache_dtype, '--max-model-len', str(info.max_model_len),
             '--allow-attention-override')
    for name, extra in VARIANTS.items():
        if info.device != 'cpu' and 'thread' in name:
            continue
        with served.running(server, directory, *flags, *extra) as client:
            own = client.get_info()
            if own.checkpoint_hash != info.checkpoint_hash:
                raise CheckpointError(f'{directory} holds checkpoint {own.checkpoint_hash}; the '
                                      f'server serves {info.checkpoint_hash}')
            compare(name, _call(client, saved.kind, saved.request))


def run(address: str, request_path: str, directory: str | None,
        api_key: str | None = None) -> ReplayReport:
    """Replays the request. Errors: CheckpointError."""
    saved = load(request_path)
    replays: list[Replay] = []
    try:
        with Client(address, timeout_s=served.START_TIMEOUT_S, api_key=api_key) as client:
            info = client.get_info()
            saved_receipt = _receipt(saved.replies)
            _fix_seed(saved, saved_receipt)
            first = _call(client, saved.kind, saved.request)
            receipt = _receipt(first)
            _fix_seed(saved, receipt)
            expected = bits_of(saved.replies) if saved.replies else bits_of(first)

            def compare(name: str, replies: list[Any]) -> None:
                parted = difference(bits_of(replies), expected)
                replays.append(Replay(name, not parted, parted))

            if saved.replies:
                differs = _receipt_difference(receipt, saved_receipt)
                replays.append(Replay('receipt', not differs, differs))
                compare('the saved reply', first)
            compare('again, from the prefix cache', _call(client, saved.kind, saved.request))
            compare('without the prefix cache',
                    _call(client, saved.kind, _without_cache(saved.request)))
            for i, replies in enumerate(_with_neighbours(client, info, saved.kind,
                                                         saved.request)):
                compare(f'beside other requests, copy {i + 1} of {NUM_COPIES}', replies)
            if directory is not None:
                _own_servers(saved, info, directory, compare)
    except LssarError as error:
        raise CheckpointError(f'{address}: {error}') from None
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    return ReplayReport(saved.kind, address,
                        json_format.MessageToDict(receipt, preserving_proto_field_name=True),
                        replays, info.bits_depend_on_batch, len(expected))


def render(report: ReplayReport) -> str:
    """The report as text."""
    width = max(len(replay.name) for replay in report.replays)
    lines = [f'{report.kind} request on {report.server}: {report.receipt.get("attention", "")}, '
             f'checkpoint {report.receipt.get("checkpoint_hash", "")}, '
             f'{report.num_values} values compared']
    lines += [f'  {replay.name:{width}}  {"same bits" if replay.is_same else "DIFFERENT"}'
              f'{": " + replay.difference if replay.difference else ""}'
              for replay in report.replays]
    if report.may_differ:
        lines.append('  this server says that bits depend on the batch (bits_depend_on_batch)')
    return '\n'.join(lines)


def to_json(report: ReplayReport) -> str:
    """The report as one JSON object."""
    return json.dumps({**dataclasses.asdict(report), 'is_ok': report.is_ok})
