"""Passkey-retrieval documents (Mohtashami & Jaggi 2023) for training and evaluation.

A document hides 'The pass key is K. Remember it. K is the pass key.' at a random depth in
irrelevant text and ends by asking for K. `make` returns it as text. `Documents` builds the same
document from ids, so neither training nor evaluation needs a tokenizer.
"""

HEAD = (
    'There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. '
    'I will quiz you about the important information there.'
)
FILL = 'The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.'
KEY = 'The pass key is {k}. Remember it. {k} is the pass key.'
ASK = 'What is the pass key? The pass key is'
MAX_KEY = 50000
FRAME_TOKENS = 110  # upper limit for everything except the filler


class Random:
    """SplitMix64, as in clients/cli/passkey.cc: a seed gives the documents of `lssar passkey`."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        """64 random bits."""
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        bits = self.state
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        return bits ^ bits >> 31

    def randint(self, first, last):
        """As random.Random's."""
        return first + self.next() % (last - first + 1)

    def random(self):
        """As random.Random's."""
        return (self.next() >> 11) / 2**53


def make(n_filler: int, rng, depth=None, filler=None):
    """Returns (prompt, key).

    n_filler: filler units; rng: Random or random.Random; depth in [0, 1]; filler(): one unit of
    text.
    """
    key = str(rng.randint(1, MAX_KEY))
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


def pieces(tokenizer):
    """The parts of a document as ids. No piece crosses a blank or a digit, so ids can be joined."""
    def after_digit(text):
        return tokenizer.encode('0' + text)[2:]

    blank, _ = tokenizer.encode('0')
    digits = [tokenizer.encode(str(digit))[1] for digit in range(10)]
    return {
        'eos': tokenizer.eos_id(), 'blank': blank, 'digits': digits, 'stop': after_digit('.'),
        'head': tokenizer.encode(HEAD), 'fill': tokenizer.encode(FILL),
        'before': tokenizer.encode('The pass key is'), 'between': after_digit('. Remember it.'),
        'after': tokenizer.encode('is the pass key.'), 'ask': tokenizer.encode(ASK),
    }


class Documents:
    """Documents as ids, from the result of pieces(). Draws from rng in the same order as make()."""

    def __init__(self, parts):
        self.parts = parts

    def num_filler(self, length):
        """Number of FILL units in a document of about `length` tokens at most."""
        return max(0, (length - FRAME_TOKENS) // len(self.parts['fill']))

    def make(self, n_filler, rng, depth=None, filler=None):
        """Returns (prompt ids, ids of key and full stop, depth). filler(): ids of one unit."""
        parts, unit = self.parts, filler or (lambda: self.parts['fill'])
        digits = str(rng.randint(1, MAX_KEY))
        key = [parts['blank'], *(parts['digits'][int(digit)] for digit in digits)]
        depth = rng.random() if depth is None else depth
        at = round(depth * n_filler)
        ids = list(parts['head'])
        for _ in range(at):
            ids += unit()
        ids += parts['before'] + key + parts['between'] + key + parts['after']
        for _ in range(n_filler - at):
            ids += unit()
        return ids + parts['ask'], key + parts['stop'], depth
