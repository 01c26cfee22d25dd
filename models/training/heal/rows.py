"""Training rows: what step n sees depends on the seed, the stage and n alone, so a run resumes."""

import os

import numpy as np
import torch

import streams


class Rows:
    """Draws rows from the streams of streams.py by their shares.

    bos: the id that begins a text, or None. Rows that begin amid a document have it in place of
    their first id, as a server reads them.
    """

    def __init__(self, directory, vocabulary, shares, seed, bos=None):
        self.seed, self.bos, dtype = seed, bos, streams.id_type(vocabulary)
        self.ids = {name: np.memmap(f'{directory}/{name}.bin', dtype, 'r') for name in shares
                        if os.path.getsize(f'{directory}/{name}.bin')}
        self.documents = {name: _documents(f'{directory}/{name}.lengths')
                          for name in ('dialogs', 'retrieval')}
        self.answers = np.memmap(f'{directory}/retrieval.answers', np.uint8, 'r')
        self.shares = shares

    def draw(self, stage, step, num_rows, length):
        """(ids, whether each belongs to an answer about the row's own text): [num_rows, length]."""
        rng = np.random.default_rng([self.seed, stage, step])
        rows, answers = [], torch.zeros(num_rows, length, dtype=torch.bool)
        begins = {name: self._begins(name, length) for name in self.ids}
        for which in rng.choice(list(self.ids), num_rows, p=self._chances(begins)):
            ids = self.ids[which]
            if len(ids) < length:
                raise SystemExit(f'{which}.bin has {len(ids)} ids; a row takes {length}')
            if len(begins[which]):
                first = rng.choice(begins[which])
            else:
                first = rng.integers(0, len(ids) - length + 1)
            if which == 'retrieval' and len(begins[which]):
                flags = np.asarray(self.answers[first : first + length])
                answers[len(rows)] = torch.from_numpy(flags.astype(bool))
            row = np.array(ids[first : first + length], np.int64)
            if self.bos is not None and which not in self.documents:
                row[0] = self.bos
            rows.append(row)
        return torch.from_numpy(np.stack(rows)), answers

    def _begins(self, name, length):
        """Where a stream's rows begin; empty if anywhere.

        Dialogs: where one begins, as in use. In rows that begin anywhere, hardly a chat is the
        row's first. Retrieval: where a document begins that the row holds whole and that fills half
        of it or more. A question without its document teaches nothing. Nor do answers in a row that
        begins amid a document; those of later documents, which begin in the row, do.
        """
        if name not in self.documents:
            return ()
        firsts, lengths = self.documents[name]
        fits = firsts + length <= len(self.ids[name])
        if name == 'retrieval':
            fits &= (lengths <= length) & (2 * lengths >= length)
        return firsts[fits]

    def _chances(self, begins):
        """A row's chance of each stream. Retrieval has none where rows hold no document."""
        chances = np.array([self.shares[name] for name in self.ids], float)
        holds = np.array([name != 'retrieval' or len(begins[name]) > 0 for name in self.ids])
        if chances[holds].sum() > 0:
            chances[~holds] = 0
        return chances / chances.sum()


def _documents(path):
    """(first ids, lengths) of the documents of a stream, from the file of their lengths."""
    lengths = np.fromfile(path, np.uint32).astype(np.int64)
    return np.cumsum(lengths) - lengths, lengths


def held_out(directory, vocabulary, length, num_rows, bos=None):
    """int64 [rows, length + 1], evenly spaced in val.bin; fewer rows where it is short. Each begins
    with `bos`, if that is an id.
    """
    ids = np.fromfile(f'{directory}/val.bin', streams.id_type(vocabulary))
    num_rows = min(num_rows, len(ids) // (length + 1))
    if num_rows == 0:
        raise SystemExit(f'{directory}/val.bin has {len(ids)} ids; a row takes {length + 1}')
    starts = np.linspace(0, len(ids) - length - 1, num_rows).astype(int)
    found = np.stack([ids[i : i + length + 1] for i in starts]).astype(np.int64)
    if bos is not None:
        found[:, 0] = bos
    return torch.from_numpy(found)
