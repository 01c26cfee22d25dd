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
        # [first id, length] of each document that asks for what it hides.
        lengths = np.fromfile(f'{directory}/retrieval.lengths', np.uint32).astype(np.int64)
        self.asking = np.stack([np.cumsum(lengths) - lengths, lengths], 1)
        self.answers = np.memmap(f'{directory}/retrieval.answers', np.uint8, 'r')
        weights = np.array([shares[name] for name in self.ids], float)
        self.shares = weights / weights.sum()

    def draw(self, stage, step, num_rows, length):
        """(ids, whether each belongs to an answer about the row's own text): [num_rows, length]."""
        rng = np.random.default_rng([self.seed, stage, step])
        rows, answers = [], torch.zeros(num_rows, length, dtype=torch.bool)
        for which in rng.choice(list(self.ids), num_rows, p=self.shares):
            ids = self.ids[which]
            if len(ids) < length:
                raise SystemExit(f'{which}.bin has {len(ids)} ids; a row takes {length}')
            first = rng.integers(0, len(ids) - length + 1)
            if which == 'retrieval':
                fits = self._first_of_whole(length, len(ids))
                if len(fits):
                    first = rng.choice(fits)
                    flags = np.asarray(self.answers[first : first + length])
                    answers[len(rows)] = torch.from_numpy(flags.astype(bool))
            rows.append(np.asarray(ids[first : first + length], np.int64))
        return torch.from_numpy(np.stack(rows)), answers

    def _first_of_whole(self, length, num_ids):
        """Where documents begin that a row holds whole and that fill half of it or more.

        A question without its document teaches nothing. Nor do answers in a row that begins amid a
        document; those of later documents, which begin in the row, do.
        """
        firsts, lengths = self.asking.T
        return firsts[(lengths <= length) & (2 * lengths >= length) & (firsts + length <= num_ids)]


def held_out(directory, vocabulary, length, num_rows):
    """int64 [rows, length + 1], evenly spaced in val.bin; fewer rows where it is short."""
    ids = np.fromfile(f'{directory}/val.bin', streams.id_type(vocabulary))
    num_rows = min(num_rows, len(ids) // (length + 1))
    if num_rows == 0:
        raise SystemExit(f'{directory}/val.bin has {len(ids)} ids; a row takes {length + 1}')
    starts = np.linspace(0, len(ids) - length - 1, num_rows).astype(int)
    return torch.from_numpy(np.stack([ids[i : i + length + 1] for i in starts]).astype(np.int64))
