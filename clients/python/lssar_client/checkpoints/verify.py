"""`lssar verify`: a checkpoint as lssar-server computes it, on every device at hand."""

import dataclasses
import math
import os
import time
from collections.abc import Sequence

from lssar_client import Client, ContinuationScore
from lssar_client.checkpoints import golden, served
from lssar_client.checkpoints.arrays import log_softmax
from lssar_client.checkpoints.directory import CONFIG
from lssar_client.checkpoints.errors import CheckpointError, read_json_object

TOP = 20  # log-probabilities compared at a golden position
# The limit for a log-probability with float weights and fp32 K/V: ten times what fp32
# arithmetic gives.
MAX_ERROR = 1e-3
MAX_LENGTH = 2048
PREFILL_TOKENS = 512
DECODE_TOKENS = 64
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
    """Score items, one for each golden position, and the golden log-probability of each id."""
    config = read_json_object(os.path.join(directory, CONFIG))
    has_ntk, trained_length = bool(config.get('rope_scaling')), int(str(config['n_positions']))
    items: list[Item] = []
    expected: list[list[dict[int, float]]] = []
    for tokens, positions, logits in golden.read(directory):
        logprobs = log_softmax(logits)
        for position, row in zip(positions, logprobs):
            # Dynamic NTK: the server's base is that of the item's own length.
            if has_ntk and position + 2 > trained_length:
                continue
            best = int(row.argmax())
            items.append((tokens[:position + 1], [[best]]))
            expected.append([dict(enumerate(row.tolist()))])
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
    for bits, [golden_row] in zip(_bits(scores), expected):
        for token_id, logprob in bits:
            error = abs(golden_row[token_id] - logprob) if logprob is not None else math.nan
            worst = error if not error <= worst else worst
            count += 1
    return worst, count


def _speeds(client: Client, vocabulary: int, max_length: int) -> tuple[float, float]:
    """(prefill, decode) tokens/s of one request."""
    length = min(PREFILL_TOKENS, max_length - 2)
    prompt = [i % vocabulary for i in range(length)]
    start_s = time.monotonic()
    client.complete(prompt, max_tokens=1, temperature=0, use_prefix_cache=False, ignore_eos=True)
    middle_s = time.monotonic()
    decoded = min(DECODE_TOKENS, max_length - 2)
    client.complete(prompt[:1], max_tokens=decoded, temperature=0, use_prefix_cache=False,
                    ignore_eos=True)
    return length / (middle_s - start_s), decoded / (time.monotonic() - middle_s)


def _device(server: str, directory: str, device: str) -> DeviceReport:
    items, expected = _items(directory) if os.path.exists(
        os.path.join(directory, golden.NAME)) else ([], [])
    flags = (*ALL_FLAGS, '--device', device, '--max-model-len', str(MAX_LENGTH))
    with served.running(server, directory, *flags) as client:
        info = client.get_info()
        report = DeviceReport(device, info.backend, info.dtype, info.self_check_error)
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
    return report


def _devices_at_hand() -> list[str]:
    return ['cpu', 'reference', *(['cuda'] if os.path.exists('/dev/nvidiactl') else [])]


def run(directory: str, devices: list[str] | None) -> Report:
    """Verifies on the devices. Errors: CheckpointError without server or checkpoint."""
    server = served.find_server()
    if server is None:
        raise CheckpointError('lssar-server is neither in PATH nor named by LSSAR_SERVER')
    if not os.path.isdir(directory):
        raise CheckpointError(f'{directory}: no such directory')
    reports = []
    for device in devices or _devices_at_hand():
        try:
            reports.append(_device(server, directory, device))
        except CheckpointError as error:
            reports.append(DeviceReport(device, '', '', problem=str(error),
                                        is_at_hand=devices is not None or device != 'cuda'))
    return Report(reports, all(not report.problem for report in reports if report.is_at_hand))


def render(report: Report) -> str:
    """The report as text."""
    lines = []
    for each in report.devices:
        state = '' if each.is_at_hand else 'not at hand: '
        lines.append(f'{each.device}: {state}{each.problem or "ok"}')
        if not each.description:
            continue
        lines.append(f'  computes with  {each.description}, weights {each.dtype}, K/V fp32')
        if each.self_check_error is not None:
            lines.append(f'  self-check     largest error {each.self_check_error:.2g} of the '
                         'largest logit')
        if each.golden_error is not None:
            lines.append(f'  golden rows    largest error {each.golden_error:.2g} of '
                         f'{each.num_compared} log-probabilities')
        for name, is_same in each.same_bits.items():
            lines.append(f'  bits           {"same" if is_same else "DIFFERENT"}: {name}')
        lines.append(f'  tokens/s       {each.prefill_tokens_per_s:.1f} prefill, '
                     f'{each.decode_tokens_per_s:.1f} decode')
    return '\n'.join(lines)
