"""Training rows: what step n sees depends on the seed, the stage and n alone, so a run resumes."""

import os

import numpy as np
import torch

import streams


class Rows:
    """Draws rows from the streams of streams.py by their shares."""

    def __init__(self, directory, vocabulary, shares, seed):
        self.seed, dtype = seed, streams.id_type(vocabulary)
        self.ids = {name: np.memmap(f'{directory}/{name}.bin', dtype, 'r') for name in shares
                        if os.path.getsize(f'{directory}/{name}.bin')}
        weights = np.array([shares[name] for name in self.ids], float)
        self.shares = weights / weights.sum()

    def draw(self, stage, step, num_rows, length):
        """int64 [num_rows, length]."""
        rng = np.random.default_rng([self.seed, stage, step])
        rows = []
        for which in rng.choice(len(self.shares), num_rows, p=self.shares):
            ids = list(self.ids.values())[which]
            if len(ids) < length:
                raise SystemExit(f'a stream has {len(ids)} ids; a row takes {length}')
            first = rng.integers(0, len(ids) - length + 1)
            rows.append(np.asarray(ids[first : first + length], np.int64))
        return torch.from_numpy(np.stack(rows))


def held_out(directory, vocabulary, length, num_rows):
    """int64 [rows, length + 1], evenly spaced in val.bin; fewer rows where it is short."""
    ids = np.fromfile(f'{directory}/val.bin', streams.id_type(vocabulary))
    num_rows = min(num_rows, len(ids) // (length + 1))
    if num_rows == 0:
        raise SystemExit(f'{directory}/val.bin has {len(ids)} ids; a row takes {length + 1}')
    starts = np.linspace(0, len(ids) - length - 1, num_rows).astype(int)
    return torch.from_numpy(np.stack([ids[i : i + length + 1] for i in starts]).astype(np.int64))
