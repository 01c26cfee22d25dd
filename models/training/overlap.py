"""N-grams of words that training text shares with evaluation text.

A document is split into lower-case words. Two documents overlap if they share an n-gram of NGRAM
words. N-grams are compared by 64-bit hashes.
"""

import re

import numpy as np

NGRAM = 13
WORD = re.compile(r'\w+')
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that powers of it stay invertible modulo 2^64


def hashes(text):
    """The hash of every n-gram, uint64."""
    words = WORD.findall(text.lower())
    num_ngrams = len(words) - NGRAM + 1
    if num_ngrams <= 0:
        return np.empty(0, np.uint64)
    each = np.fromiter(map(hash, words), np.int64, len(words)).view(np.uint64)
    ngrams = np.zeros(num_ngrams, np.uint64)
    for i in range(NGRAM):
        ngrams = ngrams * FACTOR + each[i : i + num_ngrams]
    return ngrams


class Evaluation:
    """The n-grams of all evaluation texts."""

    def __init__(self, texts):
        parts = [hashes(text) for text in texts]
        self.ngrams = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))

    def shares(self, text):
        """The number of n-grams of the text that are also in the evaluation text."""
        if len(self.ngrams) == 0:
            return 0
        ngrams = hashes(text)
        at = np.searchsorted(self.ngrams, ngrams).clip(max=len(self.ngrams) - 1)
        return int((self.ngrams[at] == ngrams).sum())
