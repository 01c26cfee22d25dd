"""Makes the lm-eval tasks in tasks/ from a file of token ids with documents.

    python3 make_tasks.py models/zoo/lssar-6m [--out deploy/evaluation/tasks]

Reads held_out.bin and tokenizer.model of the directory; needs sentencepiece. The same input gives
the same bytes. Documents are joined by the id of </s>; those with chat roles are left out.
"""

import argparse
import json
import pathlib
import random
import re

import sentencepiece

SEED = 7
TEXT_CHARACTERS = 1500
NUM_TEXTS = 40
NUM_ITEMS = 100
NUM_CHOICES = 4
NUM_PAIRS = 40  # of each phenomenon
MIN_PASSAGE_WORDS = 40
ROLE = '<|user|>'


def read_documents(directory: pathlib.Path) -> list[str]:
    """Texts of the documents."""
    tokenizer = sentencepiece.SentencePieceProcessor(
        model_file=str(directory / 'tokenizer.model'))
    data = (directory / 'held_out.bin').read_bytes()
    documents: list[list[int]] = [[]]
    for i in range(0, len(data), 2):
        token = int.from_bytes(data[i:i + 2], 'little')
        if token == tokenizer.eos_id():
            documents.append([])
        else:
            documents[-1].append(token)
    texts = [tokenizer.decode(document) for document in documents if document]
    return [text for text in texts if ROLE not in text]


def sentences(text: str) -> list[str]:
    """Sentences of the paragraphs, without headings and lists."""
    found = []
    for paragraph in text.split('\n'):
        if len(paragraph) > 200:
            found += re.split(r'(?<=[a-z][.!?]) (?=[A-Z])', paragraph)
    return [sentence for sentence in found if 40 < len(sentence) < 300]


def last_words(documents: list[str]) -> list[dict[str, str]]:
    """LAMBADA's form: passages whose last word is to be predicted, and occurred before."""
    items = []
    for text in documents:
        words = text.split()
        for end in range(MIN_PASSAGE_WORDS, min(len(words), 4000), MIN_PASSAGE_WORDS):
            passage = words[end - MIN_PASSAGE_WORDS:end]
            last = passage[-1]
            if len(last) > 4 and last.isalpha() and last in passage[:-1]:
                items.append({'passage': ' '.join(passage[:-1]), 'word': last})
    return items


def next_sentences(documents: list[str], draw: random.Random) -> list[dict[str, object]]:
    """Three sentences, and the next one among sentences of other documents."""
    per_document = [sentences(text) for text in documents]
    items: list[dict[str, object]] = []
    for i, own in enumerate(per_document):
        others = [sentence for j, each in enumerate(per_document) if j != i for sentence in each]
        for start in range(0, len(own) - 3, 12):
            choices = [own[start + 3], *draw.sample(others, NUM_CHOICES - 1)]
            draw.shuffle(choices)
            items.append({'context': ' '.join(own[start:start + 3]), 'choices': choices,
                          'answer': choices.index(own[start + 3])})
    return items


# (singular, plural) nouns and verb forms of the minimal pairs: words that a small model has seen.
NOUNS = (('king', 'kings'), ('soldier', 'soldiers'), ('teacher', 'teachers'), ('child', 'children'),
         ('woman', 'women'), ('man', 'men'), ('doctor', 'doctors'), ('student', 'students'),
         ('player', 'players'), ('writer', 'writers'), ('lawyer', 'lawyers'), ('friend', 'friends'))
THINGS = (('house', 'houses'), ('book', 'books'), ('ship', 'ships'), ('letter', 'letters'),
          ('city', 'cities'), ('church', 'churches'), ('song', 'songs'), ('school', 'schools'))
VERBS = (('was', 'were'), ('is', 'are'), ('has', 'have'))
REST = {'was': ('known to the public', 'in the old town', 'very happy'),
        'is': ('known to the public', 'in the old town', 'very happy'),
        'has': ('a new name', 'two brothers', 'left the country')}
PAST = ('saw', 'helped', 'killed', 'loved', 'described', 'called')
PREPOSITIONS = ('near', 'behind', 'of', 'with')


def minimal_pairs(draw: random.Random) -> list[dict[str, object]]:
    """Two sentences that differ in one word, one of them grammatical (the form of BLiMP)."""
    items: list[dict[str, object]] = []
    known: set[str] = set()

    def add(phenomenon: str, good: str, bad: str) -> None:
        num_own = sum(item['phenomenon'] == phenomenon for item in items)
        if good + bad in known or num_own == NUM_PAIRS:
            return
        known.add(good + bad)
        choices = [good, bad]
        draw.shuffle(choices)
        items.append({'phenomenon': phenomenon, 'choices': choices, 'answer': choices.index(good)})

    while len(items) < 4 * NUM_PAIRS:
        number = draw.randrange(2)
        noun, verb, thing = draw.choice(NOUNS), draw.choice(VERBS), draw.choice(THINGS)
        rest, other = draw.choice(REST[verb[0]]), 1 - number
        add('subject and verb', f'The {noun[number]} {verb[number]} {rest}.',
            f'The {noun[number]} {verb[other]} {rest}.')
        between = f'The {noun[number]} {draw.choice(PREPOSITIONS)} the {thing[other]}'
        add('subject and verb across a phrase', f'{between} {verb[number]} {rest}.',
            f'{between} {verb[other]} {rest}.')
        demonstrative = draw.choice((('this', 'these'), ('that', 'those')))
        seen = f'The {draw.choice(NOUNS)[0]} {draw.choice(PAST)}'
        add('determiner and noun', f'{seen} {demonstrative[number]} {thing[number]}.',
            f'{seen} {demonstrative[number]} {thing[other]}.')
        person, own = draw.choice(((('king', 'man'), 'himself'), (('woman', 'queen'), 'herself')))
        wrong = draw.choice(('themselves', {'himself': 'herself', 'herself': 'himself'}[own]))
        begin = f'The {draw.choice(person)} {draw.choice(PAST)}'
        add('reflexive pronoun', f'{begin} {own}.', f'{begin} {wrong}.')
    return items


def write(path: pathlib.Path, rows: list[dict[str, object]] | list[dict[str, str]]) -> None:
    """JSON lines."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('model', type=pathlib.Path)
    parser.add_argument('--out', type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent / 'tasks')
    given = parser.parse_args()
    documents = read_documents(given.model)
    draw = random.Random(SEED)
    texts = [{'text': text[:TEXT_CHARACTERS].rpartition(' ')[0]} for text in documents[:NUM_TEXTS]]
    write(given.out / 'text.jsonl', texts)
    words = last_words(documents)
    write(given.out / 'last_word.jsonl', draw.sample(words, NUM_ITEMS))
    following = next_sentences(documents, draw)
    write(given.out / 'next_sentence.jsonl', draw.sample(following, NUM_ITEMS))
    write(given.out / 'minimal_pairs.jsonl', minimal_pairs(random.Random(SEED)))


if __name__ == '__main__':
    main()
