"""Training rows: text, dialogs, passkey documents, repeated segments.

A step's rows depend only on the seed, the step and the shares: resuming needs no generator state.
"""

import collections
import json
import random

import numpy as np
import torch

import passkey
import presets

ANSWER_WEIGHT = 8.0  # weight of a key's digits in the loss; other tokens have 1
LEAST_DOCUMENT = 120  # tokens of the shortest passkey documents


class Packed:
    """A file of ids as rows of length + 1: each once an epoch, at a new offset in each epoch."""

    def __init__(self, path, length, seed):
        self.ids = np.memmap(path, dtype=np.uint16, mode='r')
        self.length, self.seed, self.epoch = length, seed, -1
        self.num_rows = (len(self.ids) - 1) // length - 1
        if self.num_rows < 1:
            raise SystemExit(f'{path}: {len(self.ids)} ids are too few for rows of {length}')

    def row(self, index):
        epoch, i = divmod(index, self.num_rows)
        if epoch != self.epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self.epoch, self.order = epoch, rng.permutation(self.num_rows)
            self.shift = rng.integers(self.length)
        start = self.order[i] * self.length + self.shift
        return self.ids[start : start + self.length + 1].astype(np.int64)


class Batches:
    """The rows of each step. step() depends only on its arguments."""

    def __init__(self, directory, preset, seed):
        self.preset, self.seed, self.length = preset, seed, preset.ctx
        self.packed = {kind: Packed(f'{directory}/{kind}.bin', preset.ctx, seed)
                       for kind in ('text', 'dialogs')}
        self.text = self.packed['text'].ids
        with open(f'{directory}/passkey.json') as file:
            self.passkeys = passkey.Documents(json.load(file))
        self.digits = np.array(self.passkeys.parts['digits'])

    def step(self, step, progress):
        """(tokens [rows, length + 1], weights of the same shape, {kind: rows})."""
        rng = random.Random(f'{self.seed} {step}')
        shares = presets.shares(self.preset, progress)
        rows, weights, kinds = [], [], collections.Counter()
        for i in range(self.preset.rows):
            kind, = rng.choices([*shares, 'text'], [*shares.values(), 1 - sum(shares.values())])
            kinds[kind] += 1
            if kind in self.packed:
                row = self.packed[kind].row(step * self.preset.rows + i)
                weight = np.ones(self.length + 1, np.float32)
            else:
                row, weight = getattr(self, f'{kind}_row')(rng)
            rows.append(row)
            weights.append(weight)
        return torch.from_numpy(np.stack(rows)), torch.from_numpy(np.stack(weights)), kinds

    def filler(self, rng):
        """A piece of the training text within one document."""
        start = rng.randrange(len(self.text) - 64)
        ids = self.text[start : start + rng.randint(10, 40)].tolist()
        return [i for i in ids if i != self.passkeys.parts['eos']]

    def passkey_document(self, length, rng):
        """(ids, number of ids at their end that are the answer), about `length` tokens at most."""
        filler = (lambda: self.filler(rng)) if rng.random() < 0.5 else None
        ids, answer, _ = self.passkeys.make(self.passkeys.num_filler(length), rng, filler=filler)
        answer = answer + [self.passkeys.parts['eos']]
        return ids + answer, len(answer)

    def passkey_row(self, rng):
        """Text, then passkey documents of log-uniform lengths. Answers weigh more in the loss."""
        ids, weight, size = [], [], self.length + 1
        while True:
            least = min(LEAST_DOCUMENT, self.length)
            wish = int(least * (self.length / least) ** rng.random())
            document, n = self.passkey_document(wish, rng)
            if len(ids) + len(document) > size:
                break
            ids += document
            weight += [1.0] * (len(document) - n) + [ANSWER_WEIGHT] * (n - 1) + [1.0]
        num_text = size - len(ids)
        start = rng.randrange(len(self.text) - num_text)
        before = self.text[start : start + num_text].astype(np.int64)
        return (np.concatenate([before, np.array(ids, np.int64)]),
                np.array([1.0] * num_text + weight, np.float32))

    def repeat_row(self, rng):
        """A random segment repeated: it teaches copying early. Only the copies are scored."""
        n = min(self.length, int(8 * (self.length / 16) ** rng.random()))
        places = np.array([rng.randrange(len(self.text)) for _ in range(n)])
        segment = self.text[places].astype(np.int64)
        if rng.random() < 0.5:  # digits between words, as in passkey documents
            digits = self.digits[[rng.randrange(10) for _ in range(n)]]
            segment = np.where([rng.random() < 0.7 for _ in range(n)], digits, segment)
        weight = np.ones(self.length + 1, np.float32)
        weight[: n + 1] = 0
        return np.tile(segment, self.length // n + 2)[: self.length + 1], weight
