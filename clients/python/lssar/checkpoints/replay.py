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
from typing import Generic, TypeVar

import grpc
from google.protobuf import json_format

from lssar.v1 import inference_pb2 as pb
from lssar import Client, LssarError, ServerInfo, Tls
from lssar.checkpoints import served
from lssar.checkpoints.errors import CheckpointError, read_json_object

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
    receipt: dict[str, object]
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


def _tokens(path: Path, tokens: Iterable[pb.Token]) -> Bits:
    bits: Bits = []
    for index, token in enumerate(tokens):
        _append_token(bits, f'{path} token {index}', token)
    return bits


# Each function below gives everything in the replies that must be equal, with its place, however
# the reply was cut into messages.


def generate_bits(replies: Sequence[pb.GenerateReply]) -> Bits:
    """Ids, log-probabilities, texts and ends of all choices."""
    prompt: list[pb.Token] = []
    tokens: dict[int, list[pb.Token]] = {}
    texts: dict[int, str] = {}
    ends: dict[int, Bits] = {}
    for reply in replies:
        prompt.extend(reply.prompt_logprobs.tokens)
        if not reply.HasField('delta'):
            continue
        delta = reply.delta
        tokens.setdefault(delta.choice, []).extend(delta.tokens)
        texts[delta.choice] = texts.get(delta.choice, '') + delta.text
        if delta.finish_reason:
            path = f'choice {delta.choice}'
            ends[delta.choice] = [(f'{path} finish_reason', delta.finish_reason),
                                  (f'{path} stop_string', delta.stop_string)]
    bits = _tokens('prompt', prompt)
    for choice in sorted(texts):
        bits += _tokens(f'choice {choice}', tokens[choice])
        bits += [(f'choice {choice} text', texts[choice]), *ends.get(choice, [])]
    return bits


def score_bits(replies: Sequence[pb.ScoreReply]) -> Bits:
    """Log-probabilities of all continuations."""
    tokens: dict[tuple[int, int], list[pb.Token]] = {}
    logprobs: dict[tuple[int, int], list[float]] = {}
    scores: dict[tuple[int, int], pb.ContinuationScore] = {}
    for reply in replies:
        if reply.HasField('tokens'):
            tokens.setdefault((reply.tokens.item, reply.tokens.continuation),
                              []).extend(reply.tokens.tokens)
        elif reply.HasField('logprobs'):
            logprobs.setdefault((reply.logprobs.item, reply.logprobs.continuation),
                                []).extend(reply.logprobs.values)
        elif reply.HasField('score'):
            scores[reply.score.item, reply.score.continuation] = reply.score
    bits: Bits = []
    for (item, continuation), score in sorted(scores.items(), key=lambda each: each[0]):
        path = f'item {item} continuation {continuation}'
        bits += _tokens(path, tokens.get((item, continuation), []))
        bits += [(f'{path} logprobs[{i}]', _float_bits(value))
                 for i, value in enumerate(logprobs.get((item, continuation), []))]
        bits += [(f'{path} logprob', _float_bits(score.logprob)),
                 (f'{path} is_greedy', score.is_greedy)]
    return bits


def embed_bits(replies: Sequence[pb.EmbedReply]) -> Bits:
    """Elements of all vectors."""
    values: dict[int, list[float]] = {}
    for reply in replies:
        if reply.HasField('vectors'):
            halves = reply.vectors.fp16_values
            values.setdefault(reply.vectors.input, []).extend(
                struct.unpack(f'<{len(halves) // 2}e', halves) if halves else
                reply.vectors.values)
    return [(f'input {index} element {i}', _float_bits(value))
            for index, vector in sorted(values.items()) for i, value in enumerate(vector)]


def attention_bits(replies: Sequence[pb.CaptureAttentionReply]) -> Bits:
    """Weights of all rows, or statistics of all heads."""
    bits: Bits = []
    for reply in replies:
        for row in reply.weights.rows:
            path = f'layer {row.layer} head {row.head} row {row.row}'
            bits += [(f'{path} key {key}', _float_bits(weight))
                     for key, weight in zip(row.keys, row.weights)]
        for head in reply.statistics.heads:
            path = f'layer {head.layer} head {head.head}'
            bits += [(f'{path} num_nonzero', head.num_nonzero),
                     (f'{path} num_zero', head.num_zero),
                     (f'{path} effective_keys', _float_bits(head.effective_keys)),
                     (f'{path} first_token_mass', _float_bits(head.first_token_mass)),
                     *((f'{path} distance_mass[{i}]', _float_bits(mass))
                       for i, mass in enumerate(head.distance_mass))]
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


Request = TypeVar('Request', pb.GenerateRequest, pb.ScoreRequest, pb.EmbedRequest,
                  pb.CaptureAttentionRequest)
Reply = TypeVar('Reply', pb.GenerateReply, pb.ScoreReply, pb.EmbedReply, pb.CaptureAttentionReply)
KINDS = 'generate', 'score', 'embed', 'attention'


@dataclasses.dataclass
class _Saved(Generic[Request, Reply]):
    """FILE.json as messages of its kind."""

    kind: str
    request: Request
    replies: list[Reply]
    bits: Callable[[Sequence[Reply]], Bits]
    method: Callable[[Client], grpc.UnaryStreamMultiCallable[Request, Reply]]

    def receipt(self, replies: Sequence[Reply]) -> pb.Receipt:
        """The receipt of a reply; an empty one where it has none."""
        return next((reply.finished.receipt for reply in reversed(replies)
                     if reply.HasField('finished')), pb.Receipt())

    def call(self, client: Client, use_prefix_cache: bool = True) -> list[Reply]:
        """All replies. Errors: CheckpointError."""
        request = type(self.request)()
        request.CopyFrom(self.request)
        if not use_prefix_cache:
            request.use_prefix_cache = False
        try:
            return list(self.method(client)(request, timeout=served.TIMEOUT_S,
                                            metadata=client._metadata))
        except grpc.RpcError as error:
            raise CheckpointError(f'the server refuses the request: {error.code().name}: '
                                  f'{error.details()}') from None


def _parse(path: str, document: dict[str, object], kind: str, request: Request,
           reply_type: type[Reply], bits: Callable[[Sequence[Reply]], Bits],
           method: Callable[[Client], grpc.UnaryStreamMultiCallable[Request, Reply]]
           ) -> _Saved[Request, Reply]:
    replies = document.get('replies', [])
    if not isinstance(replies, list):
        raise CheckpointError(f'{path}: replies must be a list')
    try:
        json_format.Parse(json.dumps(document[kind]), request)
        parsed = [json_format.Parse(json.dumps(reply), reply_type()) for reply in replies]
    except json_format.ParseError as error:
        raise CheckpointError(f'{path}: {error}') from None
    return _Saved(kind, request, parsed, bits, method)


def _receipt_difference(receipt: pb.Receipt, saved: pb.Receipt) -> str:
    """Names fields of the receipts that differ and must not."""
    found, expected = _receipt_fields(receipt), _receipt_fields(saved)
    return '; '.join(f'receipt {name}: {found.get(name, "")!r}, saved {expected[name]!r}'
                     for name in expected
                     if name not in FREE_FIELDS and found.get(name) != expected[name])


def _receipt_fields(receipt: pb.Receipt) -> dict[str, object]:
    fields = json_format.MessageToDict(receipt, preserving_proto_field_name=True)
    return {str(name): value for name, value in fields.items()}


def _beside_others(saved: _Saved[Request, Reply], client: Client,
                   info: ServerInfo) -> list[list[Reply]]:
    """Replies to NUM_COPIES of the request, while the server scores other texts."""
    length = min(NEIGHBOUR_TOKENS, info.max_model_len - 2)
    draw = random.Random(0)
    results: list[list[Reply]] = [[] for _ in range(NUM_COPIES)]
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
            results[index] = saved.call(client)
        return run

    def neighbour(ids: list[int]) -> Callable[[], object]:
        return lambda: client.score(ids[:1], [ids[1:]], use_prefix_cache=False)

    works = [copy(i) for i in range(NUM_COPIES)]
    for i in range(NUM_NEIGHBOURS):
        num_ids = 2 + length * (i + 1) // NUM_NEIGHBOURS
        ids = [draw.randrange(info.vocab_size) for _ in range(min(num_ids, info.max_model_len))]
        works.insert(draw.randrange(len(works) + 1), neighbour(ids))
    threads = [threading.Thread(target=guarded(work)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise CheckpointError(str(errors[0]))
    return results


def _on_own_servers(saved: _Saved[Request, Reply], info: ServerInfo, directory: str,
                    compare: Callable[[str, list[Reply]], None]) -> None:
    server = served.find_server()
    flags = ('--device', info.device, '--dtype', info.dtype, '--kv-cache-dtype',
             info.kv_cache_dtype, '--max-model-len', str(info.max_model_len),
             '--allow-attention-override', '--allow-steering')
    for name, extra in VARIANTS.items():
        if info.device != 'cpu' and 'thread' in name:
            continue
        with served.running(server, directory, *flags, *extra) as client:
            own = client.get_info()
            if own.checkpoint_hash != info.checkpoint_hash:
                raise CheckpointError(f'{directory} holds checkpoint {own.checkpoint_hash}; the '
                                      f'server serves {info.checkpoint_hash}')
            compare(name, saved.call(client))


def _fix_defaults(saved: _Saved[Request, Reply], receipt: pb.Receipt) -> None:
    """Sets the seed and max_tokens that a reply used, where the request has none: they come from
    the server, and max_tokens of its --max-model-len."""
    request = saved.request
    if not isinstance(request, pb.GenerateRequest):
        return
    if not request.sampling.HasField('seed') and receipt.HasField('sampling'):
        request.sampling.seed = receipt.sampling.seed
    if not request.HasField('max_tokens') and receipt.max_tokens:
        request.max_tokens = receipt.max_tokens


def _replay(saved: _Saved[Request, Reply], client: Client, directory: str | None) -> ReplayReport:
    replays: list[Replay] = []
    info = client.get_info()
    saved_receipt = saved.receipt(saved.replies)
    _fix_defaults(saved, saved_receipt)
    first = saved.call(client)
    receipt = saved.receipt(first)
    _fix_defaults(saved, receipt)
    expected = saved.bits(saved.replies or first)

    def compare(name: str, replies: list[Reply]) -> None:
        parted = difference(saved.bits(replies), expected)
        replays.append(Replay(name, not parted, parted))

    if saved.replies:
        differs = _receipt_difference(receipt, saved_receipt)
        replays.append(Replay('receipt', not differs, differs))
        compare('the saved reply', first)
    compare('again, from the prefix cache', saved.call(client))
    compare('without the prefix cache', saved.call(client, use_prefix_cache=False))
    for i, replies in enumerate(_beside_others(saved, client, info)):
        compare(f'beside other requests, copy {i + 1} of {NUM_COPIES}', replies)
    if directory is not None:
        _on_own_servers(saved, info, directory, compare)
    return ReplayReport(saved.kind, client._server, _receipt_fields(receipt), replays,
                        info.bits_depend_on_batch, len(expected))


def _replay_file(path: str, client: Client, directory: str | None) -> ReplayReport:
    document = read_json_object(path)
    kinds = [kind for kind in KINDS if kind in document]
    if len(kinds) != 1:
        raise CheckpointError(f'{path}: must have one of {", ".join(KINDS)}, has '
                              f'{", ".join(kinds) or "none"}')
    [kind] = kinds
    if kind == 'generate':
        return _replay(_parse(path, document, kind, pb.GenerateRequest(), pb.GenerateReply,
                              generate_bits, lambda each: each._generate), client, directory)
    if kind == 'score':
        return _replay(_parse(path, document, kind, pb.ScoreRequest(), pb.ScoreReply, score_bits,
                              lambda each: each._score), client, directory)
    if kind == 'embed':
        return _replay(_parse(path, document, kind, pb.EmbedRequest(), pb.EmbedReply, embed_bits,
                              lambda each: each._embed), client, directory)
    return _replay(_parse(path, document, kind, pb.CaptureAttentionRequest(),
                          pb.CaptureAttentionReply, attention_bits,
                          lambda each: each._capture), client, directory)


def run(address: str, request_path: str, directory: str | None,
        api_key: str | None = None, tls: Tls | None = None) -> ReplayReport:
    """Replays the request. Errors: CheckpointError."""
    try:
        with Client(address, timeout_s=served.TIMEOUT_S, api_key=api_key,
                    tls=tls) as client:
            return _replay_file(request_path, client, directory)
    except LssarError as error:
        raise CheckpointError(f'{address}: {error}') from None
    except ValueError as error:
        raise CheckpointError(str(error)) from None


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
