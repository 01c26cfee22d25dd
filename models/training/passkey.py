"""Passkey-retrieval documents (Mohtashami & Jaggi 2023) for training and probing.

A document hides 'The pass key is K. Remember it. K is the pass key.' at a
random depth in irrelevant text and ends by asking for K.
"""

import random

HEAD = (
    'There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. '
    'I will quiz you about the important information there.'
)
FILL = 'The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.'
KEY = "The pass key is {k}. Remember it. {k} is the pass key."
ASK = 'What is the pass key? The pass key is'


def make(n_filler: int, rng: random.Random, depth=None, filler=None):
    """Returns (prompt, key).

    n_filler: filler units; depth in [0, 1]; filler(): one unit of text.
    """
    key = str(rng.randint(1, 50000))
    at = round((rng.random() if depth is None else depth) * n_filler)
    unit = filler or (lambda: FILL)
    parts = (
        [HEAD]
        + [unit() for _ in range(at)]
        + [KEY.format(k=key)]
        + [unit() for _ in range(n_filler - at)]
        + [ASK]
    )
    return ' '.join(parts), key
