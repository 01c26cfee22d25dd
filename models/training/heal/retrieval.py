"""Documents that hide a fact in other text and ask for it: retrieval rows in many wordings.

Evaluation hides "The pass key is K" in grass and sky (../passkey.py). None of these wordings and
none of this filler is used there, so its result is not learned by heart.
"""

import random

NAMES = ('Anna', 'Boris', 'Chen', 'Dalia', 'Emeka', 'Farid', 'Greta', 'Hugo', 'Ines', 'Jonas',
         'Kofi', 'Lena', 'Maya', 'Nils', 'Olga', 'Priya', 'Quinn', 'Rosa', 'Sven', 'Tara')
PLACES = ('the harbour', 'the old mill', 'room 12', 'the north gate', 'the library', 'the garage',
          'the cellar', 'the station', 'the garden shed', 'the archive', 'the red house')
THINGS = ('door code', 'locker number', 'secret number', 'ticket number', 'access code',
          'phone extension', 'lucky number', 'serial number', 'booking number', 'parking space')
WORDS = ('anchor', 'basil', 'cobalt', 'dragon', 'ember', 'falcon', 'granite', 'harvest', 'indigo',
         'juniper', 'kettle', 'lantern', 'marble', 'nectar', 'orchid', 'pepper', 'quartz', 'raven',
         'saffron', 'timber', 'umbrella', 'velvet', 'walnut', 'yarrow', 'zephyr')
# (the fact, the question, the beginning of the answer): {o} has the property {t} of value {v}.
WORDINGS = (
    ('The {t} of {o} is {v}.', 'What is the {t} of {o}?', 'The {t} of {o} is {v}.'),
    ('Remember: the {t} of {o} is {v}.', 'Which {t} was given for {o}?', '{v}.'),
    ('For {o}, use {v} as the {t}.', 'What should be used as the {t} for {o}?', 'Use {v}.'),
    ('{v} is the {t} of {o}. Do not forget it.', 'Tell me the {t} of {o}.', 'It is {v}.'),
    ('Note that {o} has the {t} {v}.', 'Find the {t} of {o} in the text.', '{v}.'),
)

MIN_WORDS = 60
MAX_FACTS = 48  # of a document
REPEATED = 0.25  # of the documents: their filler is one passage, again and again
PASSAGE_WORDS = 80  # at most


def _value(rng):
    if rng.random() < 0.5:
        return str(rng.randint(10, 99999))
    return ' '.join(rng.sample(WORDS, rng.choice((1, 1, 2))))


def make(filler, num_facts, rng):
    """(text, [(question, answer)]): `num_facts` facts hidden in `filler`, a text, and asked for."""
    sentences = filler.split('. ')
    asked = []
    owned = [(owner, thing) for owner in (*NAMES, *PLACES) for thing in THINGS]
    for owner, thing in rng.sample(owned, num_facts):
        wording, value = rng.choice(WORDINGS), _value(rng)
        said, question, answer = (part.format(t=thing, o=owner, v=value) for part in wording)
        asked.append((question, answer))
        sentences.insert(rng.randint(0, len(sentences)), said[:-1])
    rng.shuffle(asked)
    return '. '.join(sentences), asked


def _filler(texts, num_words, rng):
    """Words of one text after the other, or one passage again and again."""
    words = []
    if rng.random() < REPEATED:
        passage = rng.choice(texts).split()
        first = rng.randrange(max(1, len(passage) - PASSAGE_WORDS))
        passage = passage[first : first + rng.randint(PASSAGE_WORDS // 4, PASSAGE_WORDS)]
        words = passage * (num_words // len(passage))
    while len(words) < num_words:
        words += rng.choice(texts).split()[: num_words - len(words)]
    return ' '.join(words)


def documents(texts, max_words, seed):
    """Yields, for ever, messages of chat: a text with one of its questions, then the others.

    texts: documents, taken as filler. A filler has MIN_WORDS to `max_words` words; the documents of
    60 to 120 words have as many words together as those of 1,500 to 3,000, so rows of any length
    find as many tokens. A long document hides up to MAX_FACTS facts: each answer of a few tokens is
    all that a row teaches about looking back, and long rows are few.
    """
    rng = random.Random(seed)
    while True:
        num_words = int(1 / (1 / MIN_WORDS - rng.random() * (1 / MIN_WORDS - 1 / max_words)))
        num_facts = rng.randint(1, min(MAX_FACTS, 1 + num_words // MIN_WORDS))
        body, asked = make(_filler(texts, num_words, rng), num_facts, rng)
        parts = [body, asked[0][0]] if rng.random() < 0.7 else [asked[0][0], body]
        asked[0] = '\n\n'.join(parts), asked[0][1]
        yield [message for question, answer in asked
               for message in ({'role': 'user', 'content': question},
                               {'role': 'assistant', 'content': answer})]
