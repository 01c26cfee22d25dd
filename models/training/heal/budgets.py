"""Budgets of a run. The number of steps is what ends it; --steps N of heal.py overrides it."""

import dataclasses


RETRIEVAL_SHARE = 0.1
DIALOG_SHARE = 0.44


def shares(retrieval=RETRIEVAL_SHARE, dialogs=DIALOG_SHARE):
    """{stream: share of the rows}. retrieval: of the rows that hold such a document. dialogs: of
    all others.
    """
    for name, share in (('retrieval', retrieval), ('dialogs', dialogs)):
        if not 0 <= share <= 1:
            raise SystemExit(f'--{name} is a share from 0 to 1, not {share}')
    rest = 1 - retrieval
    return {'text': (1 - dialogs) * rest, 'dialogs': dialogs * rest, 'retrieval': retrieval}


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage. Step n takes the (rows, tokens a row) of cycle[n % len(cycle)]."""

    steps: int
    cycle: tuple
    micro_tokens: int  # at a time, by memory; at least one row
    lr: float  # of matrices
    vector_lr: float = 2e-4  # of norms and biases
    warmup: int = 20

    def row_count(self, step):
        """(rows, length, rows at a time) of a step."""
        rows, length = self.cycle[step % len(self.cycle)]
        return rows, length, min(rows, max(1, self.micro_tokens // length))

    def within(self, positions):
        """The same tokens, in rows of at most `positions`."""
        return dataclasses.replace(self, cycle=tuple(
            (rows * max(1, length // positions), min(length, positions))
            for rows, length in self.cycle))

    @property
    def longest(self):
        return max(length for _, length in self.cycle)

    def rate_scale(self, step):
        """Warm-up, constant, linear decay over the last fifth."""
        left = (self.steps - step) / max(1, 0.2 * self.steps)
        return min(1.0, (step + 1) / self.warmup, max(0.02, left))


@dataclasses.dataclass(frozen=True)
class Preset:
    what: str
    transfer: Stage
    distil: Stage
    max_ids: int  # of text and of dialogs in the prepared streams
    bf16: bool  # products in bfloat16 if the device has them faster
    save_s: float = 900
    shares: dict = dataclasses.field(default_factory=shares)


PRESETS = {
    'smoke': Preset(
        'seconds: tests the whole chain',
        Stage(steps=6, cycle=((4, 64),), micro_tokens=128, lr=0.01, warmup=2),
        Stage(steps=6, cycle=((4, 64), (4, 64), (1, 128)), micro_tokens=128, lr=2e-3, warmup=2),
        max_ids=20_000, bf16=False, save_s=1e9),
    'cpu': Preset(
        'two cores, 12 hours or more: 31M tokens',
        Stage(steps=120, cycle=((2, 512),), micro_tokens=1024, lr=0.01, warmup=10),
        Stage(steps=12_000, cycle=((4, 512), (1, 2048), (1, 4096), (1, 2048)),
              micro_tokens=2048, lr=5e-4),
        max_ids=24_000_000, bf16=True),
    'gpu-25min': Preset(
        'one GPU, 25 minutes: about 100M tokens',
        Stage(steps=200, cycle=((32, 1024),), micro_tokens=32768, lr=0.01),
        Stage(steps=3000, micro_tokens=32768, lr=1e-3, warmup=50, cycle=(
            (128, 256), (128, 256), (128, 256), (2, 16384), (128, 256), (128, 256), (32, 1024),
            (2, 16384), (128, 256), (128, 256), (128, 256), (4, 8192), (128, 256), (2, 16384),
            (128, 256), (128, 256), (32, 1024), (2, 16384), (128, 256), (1, 32768))),
        max_ids=60_000_000, bf16=True, save_s=120),
}
