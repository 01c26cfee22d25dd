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


def _value(rng):
    if rng.random() < 0.5:
        return str(rng.randint(10, 99999))
    return ' '.join(rng.sample(WORDS, rng.choice((1, 1, 2))))


def make(filler, rng):
    """(text before the question, question, answer) with 1 to 4 facts hidden in `filler`, a text."""
    sentences = filler.split('. ')
    facts = []
    for owner in rng.sample((*NAMES, *PLACES), rng.randint(1, 4)):
        wording, thing, value = rng.choice(WORDINGS), rng.choice(THINGS), _value(rng)
        said, question, answer = (part.format(t=thing, o=owner, v=value) for part in wording)
        facts.append((question, answer))
        sentences.insert(rng.randint(0, len(sentences)), said[:-1])
    return '. '.join(sentences), *rng.choice(facts)


def documents(texts, num_documents, max_words, seed):
    """Yields messages of chat: the text and its question, the answer.

    texts: documents, taken as filler from the start; a document's filler has up to `max_words`.
    """
    rng = random.Random(seed)
    for _ in range(num_documents):
        num_words, words = rng.randint(60, max_words), []
        while len(words) < num_words:
            words += rng.choice(texts).split()[: num_words - len(words)]
        body, question, answer = make(' '.join(words), rng)
        parts = [body, question] if rng.random() < 0.7 else [question, body]
        yield [{'role': 'user', 'content': '\n\n'.join(parts)},
               {'role': 'assistant', 'content': answer}]
