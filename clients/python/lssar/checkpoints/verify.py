"""`lssar verify`: a checkpoint as lssar-server computes it, on every device at hand."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence

from lssar import Client, ContinuationScore, LssarError
from lssar.checkpoints import forward, golden, served
from lssar.checkpoints.arrays import log_softmax
from lssar.checkpoints.directory import CONFIG
from lssar.checkpoints.errors import CheckpointError, is_there, read_json_object

TOP = 20  # log-probabilities compared at a golden position
# The limit for a log-probability with float weights and fp32 K/V: ten times what fp32
# arithmetic gives.
MAX_ERROR = 1e-3
MAX_LENGTH = 2048
# Lengths whose speed is measured: the last that MIN_SPEED_S do not pass before.
PREFILL_TOKENS = 16, 128, 512
DECODE_TOKENS = 8, 64
MIN_SPEED_S = 2.0
ALL_FLAGS = ('--kv-cache-dtype', 'fp32')
# Flags that must not change a bit: name and flags of a server, for the cpu.
VARIANTS = {
    'one thread': ('--threads', '1'),
    'two threads': ('--threads', '2'),
    'steps of 16 tokens': ('--max-num-batched-tokens', '16'),
}


@dataclasses.dataclass
class DeviceReport:
    """What one device does."""

    device: str
    description: str
    dtype: str
    self_check_error: float | None = None  # of the largest logit
    golden_error: float | None = None  # of a log-probability, nats
    num_compared: int = 0
    same_bits: dict[str, bool] = dataclasses.field(default_factory=dict)
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    problem: str = ''
    is_at_hand: bool = True


@dataclasses.dataclass
class Report:
    """All devices."""

    devices: list[DeviceReport]
    is_ok: bool


Scores = list[list[ContinuationScore]]
Item = tuple[list[int], list[list[int]]]


def _items(directory: str) -> tuple[list[Item], list[list[dict[int, float]]]]:
    """Score items, and for each of their tokens the golden log-probability of each id; {}: no
    golden row. A whole row is one item, so that all of its positions cost one pass. Prefixes of
    its half and its quarter make a batch of several lengths."""
    config = read_json_object(os.path.join(directory, CONFIG))
    scaling, longest = config.get('rope_scaling'), int(str(config['n_positions']))
    kind = forward.scaling_kind(scaling) if isinstance(scaling, dict) else ''
    is_by_length = kind in ('dynamic', 'longrope')
    if isinstance(scaling, dict) and kind == 'longrope':
        longest = int(scaling.get('original_max_position_embeddings', longest))
    items: list[Item] = []
    expected: list[list[dict[int, float]]] = []
    for tokens, positions, logits in golden.read(directory):
        rows = {position: row for position, row in zip(positions, log_softmax(logits))}
        ends = {max(positions), *(position for position in positions
                                  if position in (len(tokens) // 2, len(tokens) // 4))}
        # Dynamic NTK and LongRoPE: the server's angles are those of the item's own length. Learned
        # positions end there.
        if (is_by_length or config.get('positions') == 'learned') and len(tokens) + 1 > longest:
            ends = {position for position in positions if position + 2 <= longest}
        for end in sorted(ends):
            is_whole = end == max(positions) and not is_by_length
            scored = [*(tokens[1:end + 1] if is_whole else []), int(rows[end].argmax())]
            first = 0 if is_whole else end  # position of the first scored token's row
            items.append((tokens[:first + 1], [scored]))
            expected.append([dict(enumerate(rows[at].tolist())) if at in rows else {}
                             for at in range(first, end + 1)])
    return items, expected


def _score(client: Client, items: Sequence[Item], together: bool) -> Scores:
    """Scores of the items: all in one call, or one at a time."""
    if together:
        return list(client.score_many(items, per_token=True, top_logprobs=TOP,
                                      use_prefix_cache=False))
    return [scores for item in items for scores in client.score_many(
        [item], per_token=True, top_logprobs=TOP, use_prefix_cache=False)]


def _bits(scores: Scores) -> list[list[tuple[int, float | None]]]:
    """All ids and log-probabilities."""
    return [[(token.id, token.logprob) for score in each for first in score.tokens
             for token in (first, *first.top)] for each in scores]


def _compare(scores: Scores, expected: list[list[dict[int, float]]]) -> tuple[float, int]:
    """(largest error of a log-probability, number compared)."""
    worst, count = 0.0, 0
    for [score], rows in zip(scores, expected, strict=True):
        for token, row in zip(score.tokens, rows, strict=True):
            for each in (token, *token.top) if row else ():
                error = abs(row[each.id] - each.logprob) if each.logprob is not None else math.nan
                worst = error if not error <= worst else worst
                count += 1
    return worst, count


def _rate(lengths: Sequence[int], longest: int, run_length: Callable[[int], object]) -> float:
    """Tokens/s of the first length that takes MIN_SPEED_S, or of the last."""
    rate = 0.0
    for length in dict.fromkeys(min(length, longest) for length in lengths):
        start_s = time.monotonic()
        run_length(length)
        seconds = time.monotonic() - start_s
        rate = length / seconds
        if seconds >= MIN_SPEED_S:
            break
    return rate


def _speeds(client: Client, vocabulary: int, max_length: int) -> tuple[float, float]:
    """(prefill, decode) tokens/s of one request."""
    def run_length(num_prompt: int, num_new: int) -> None:
        client.complete([i % vocabulary for i in range(num_prompt)], max_tokens=num_new,
                        temperature=0, use_prefix_cache=False, ignore_eos=True)

    longest = max_length - 2
    return (_rate(PREFILL_TOKENS, longest, lambda length: run_length(length, 1)),
            _rate(DECODE_TOKENS, longest, lambda length: run_length(1, length)))


def _measure(server: str, directory: str, report: DeviceReport) -> None:
    """Fills in the report. What it has when an error ends it stays. Errors: CheckpointError of a
    server that does not start, LssarError of a call."""
    device = report.device
    items, expected = _items(directory) if is_there(
        os.path.join(directory, golden.NAME)) else ([], [])
    flags = (*ALL_FLAGS, '--device', device, '--max-model-len', str(MAX_LENGTH))
    with served.running(server, directory, *flags) as client:
        info = client.get_info()
        report.description, report.dtype = info.backend, info.dtype
        report.self_check_error = info.self_check_error
        alone = _score(client, items, together=False)
        if items:
            report.golden_error, report.num_compared = _compare(alone, expected)
            report.same_bits['batch'] = _bits(_score(client, items, together=True)) == _bits(alone)
        report.prefill_tokens_per_s, report.decode_tokens_per_s = _speeds(
            client, info.vocab_size, info.max_model_len)
        may_differ = info.bits_depend_on_batch
    for name, extra in VARIANTS.items():
        if device != 'cpu' and 'thread' in name or not items:
            continue
        with served.running(server, directory, *flags, *extra) as client:
            report.same_bits[name] = _bits(_score(client, items, together=True)) == _bits(alone)
    if report.golden_error is None:
        report.problem = 'no golden rows to compare with'
    elif report.dtype not in ('int8', 'int4') and not report.golden_error <= MAX_ERROR:
        report.problem = f'log-probabilities are off by {report.golden_error:.2g}'
    elif not all(report.same_bits.values()) and not may_differ:
        report.problem = 'bits differ'


def _devices_at_hand() -> list[str]:
    return ['cpu', 'reference', *(['cuda'] if os.path.exists('/dev/nvidiactl') else [])]


def run(directory: str, devices: list[str] | None,
        on_report: Callable[[DeviceReport], None] | None = None) -> Report:
    """Verifies on the devices; `on_report` gets each report as it is finished. Errors:
    CheckpointError without server or checkpoint."""
    server = served.find_server()
    if not os.path.isdir(directory):
        raise CheckpointError(f'{directory}: no such directory')
    reports = []
    for device in devices or _devices_at_hand():
        report = DeviceReport(device, '', '')
        try:
            _measure(server, directory, report)
        except (CheckpointError, LssarError) as error:
            report.problem = str(error)
            report.is_at_hand = devices is not None or device != 'cuda' or bool(report.description)
        reports.append(report)
        if on_report is not None:
            on_report(report)
    return Report(reports, all(not report.problem for report in reports if report.is_at_hand))


def render(each: DeviceReport) -> str:
    """The report of a device as text."""
    state = '' if each.is_at_hand else 'not at hand: '
    lines = [f'{each.device}: {state}{each.problem or "ok"}']
    if not each.description:
        return lines[0]
    lines.append(f'  computes with  {each.description}, weights {each.dtype}, K/V fp32')
    if each.self_check_error is not None:
        lines.append(f'  self-check     largest error {each.self_check_error:.2g} of the '
                     'largest logit')
    if each.golden_error is not None:
        lines.append(f'  golden rows    largest error {each.golden_error:.2g} of '
                     f'{each.num_compared} log-probabilities')
    for name, is_same in each.same_bits.items():
        lines.append(f'  bits           {"same" if is_same else "DIFFERENT"}: {name}')
    if each.prefill_tokens_per_s > 0:
        lines.append(f'  tokens/s       {each.prefill_tokens_per_s:.1f} prefill, '
                     f'{each.decode_tokens_per_s:.1f} decode')
    return '\n'.join(lines)
