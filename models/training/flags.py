"""Types of the flags: numbers within limits. argparse's error names the flag, this the rest."""

import argparse
import math


def _bounded(kind, is_good, limit):
    def parse(text):
        value = kind(text)
        if not is_good(value):
            raise argparse.ArgumentTypeError(f'{text}: must be {limit}')
        return value
    parse.__name__ = kind.__name__  # in the error about a text that is no number
    return parse


count = _bounded(int, lambda value: value >= 1, 'at least 1')
above_0 = _bounded(float, lambda value: 0 < value < math.inf, 'above 0 and finite')
share = _bounded(float, lambda value: 0 <= value <= 1, 'from 0 to 1')


def counts(text):
    """'1,2' -> [1, 2]"""
    return [count(word) for word in text.split(',')]
