"""Runs of words that training text shares with evaluation text.

A document is split into lower-case words; two documents overlap where a run of NGRAM words of one
stands in the other. Runs are compared by 64-bit hashes.
"""

import re

import numpy as np

NGRAM = 13
WORD = re.compile(r'\w+')
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that powers of it stay invertible modulo 2^64


def hashes(text):
    """A uint64 for every run of NGRAM words."""
    words = WORD.findall(text.lower())
    num_runs = len(words) - NGRAM + 1
    if num_runs <= 0:
        return np.empty(0, np.uint64)
    each = np.fromiter(map(hash, words), np.int64, len(words)).view(np.uint64)
    runs = np.zeros(num_runs, np.uint64)
    for i in range(NGRAM):
        runs = runs * FACTOR + each[i : i + num_runs]
    return runs


class Evaluation:
    """The runs of all evaluation texts."""

    def __init__(self, texts):
        parts = [hashes(text) for text in texts]
        self.runs = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))

    def shares(self, text):
        """How many runs of the text stand in the evaluation text too."""
        if len(self.runs) == 0:
            return 0
        runs = hashes(text)
        at = np.searchsorted(self.runs, runs).clip(max=len(self.runs) - 1)
        return int((self.runs[at] == runs).sum())
