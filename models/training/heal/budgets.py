"""Budgets of a run. The number of steps is what ends it; --steps N of heal.py overrides it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage. A step takes `rows` rows of `length` tokens, `micro_rows` at a time, by memory."""

    steps: int
    rows: int
    micro_rows: int
    length: int
    lr: float  # of matrices
    vector_lr: float = 2e-4  # of norms and biases
    warmup: int = 20
    # Every `long_every`-th step takes long_rows rows of long_length instead; 0: none does.
    long_every: int = 0
    long_rows: int = 1
    long_length: int = 2048

    def row_count(self, step):
        """(rows, length, rows at a time) of a step."""
        if self.long_every and step % self.long_every == self.long_every - 1:
            at_a_time = max(1, self.micro_rows * self.length // self.long_length)
            return self.long_rows, self.long_length, min(at_a_time, self.long_rows)
        return self.rows, self.length, self.micro_rows

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
    bf16: bool
    save_s: float = 900


SHARES = {'text': 0.5, 'dialogs': 0.4, 'retrieval': 0.1}
PRESETS = {
    'smoke': Preset(
        'seconds: tests the whole chain',
        Stage(steps=6, rows=4, micro_rows=2, length=64, lr=0.01, warmup=2),
        Stage(steps=6, rows=4, micro_rows=2, length=64, lr=2e-3, warmup=2, long_every=3,
              long_length=128), max_ids=20_000, bf16=False, save_s=1e9),
    'cpu': Preset(
        'two cores, 12 hours or more: 26M tokens',
        Stage(steps=120, rows=2, micro_rows=2, length=512, lr=0.01, warmup=10),
        Stage(steps=12_000, rows=4, micro_rows=4, length=512, lr=5e-4, warmup=20, long_every=8,
              long_length=2048), max_ids=24_000_000, bf16=True),
    'gpu-25min': Preset(
        'one GPU, 25 minutes: about 100M tokens',
        Stage(steps=200, rows=64, micro_rows=16, length=1024, lr=0.01),
        Stage(steps=1500, rows=64, micro_rows=16, length=1024, lr=5e-4, warmup=50, long_every=8,
              long_rows=16, long_length=4096), max_ids=120_000_000, bf16=True, save_s=120),
}
