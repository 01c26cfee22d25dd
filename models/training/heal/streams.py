"""Turns a corpus into streams of the teacher's token ids.

Writes to DATA text.bin, dialogs.bin and retrieval.bin (training), val.bin (documents held out),
ids of uint16 or uint32, dialogs.lengths and retrieval.lengths (ids of each document, uint32),
retrieval.answers (for each id 1 if it belongs to an answer, else 0, uint8), and prepare.json
(counts). Only this stage needs Jinja2 and tokenizers or sentencepiece.
"""

import contextlib
import importlib
import json
import os
import random
import signal
import threading

import numpy as np

import corpus
import differences
import overlap
import retrieval

BLOCK = 512  # documents encoded at a time
MAX_REFUSED = 1000  # dialogs, before one is taken
HELD_OUT = 0.004  # default share of the documents


def package(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise SystemExit(f'{name} is not installed: pip install {name}') from None


def open_tokenizer(directory):
    """(encode, place, id_of) of tokenizer.json or tokenizer.model.

    encode(texts): their ids. place(text): (ids, where each begins in the text). id_of(piece): its
    id or None.
    """
    path = f'{directory}/tokenizer.json'
    if os.path.exists(path):
        model = package('tokenizers').Tokenizer.from_file(path)

        def place(text):
            encoded = model.encode(text, add_special_tokens=False)
            return encoded.ids, [begin for begin, _ in encoded.offsets]

        return (lambda texts: [each.ids for each in model.encode_batch(
            texts, add_special_tokens=False)], place, model.token_to_id)
    path = f'{directory}/tokenizer.model'
    if not os.path.exists(path):
        raise SystemExit(f'{directory}: neither tokenizer.json nor tokenizer.model is there; '
                         'training needs the tokenizer of the teacher')
    pieces = package('sentencepiece').SentencePieceProcessor(model_file=path)

    def id_of(piece):
        found = pieces.piece_to_id(piece)
        return found if pieces.id_to_piece(found) == piece else None

    def place(text):
        found = pieces.encode(text, out_type='immutable_proto').pieces
        return [each.id for each in found], [each.begin for each in found]

    return pieces.encode, place, id_of


def chat_settings(directory):
    """(chat template or None, {bos_token and others: their texts}) of a checkpoint directory, as
    the import and the server read them.
    """
    reader = differences.client('tokenizer_files')
    files = reader.Files()
    try:
        for name in (reader.CONFIG, reader.TEMPLATE):
            if os.path.exists(f'{directory}/{name}'):
                files.add(name, f'{directory}/{name}')
        return reader.chat_template(files), reader.special_tokens(files)[0]
    except differences.client('errors').CheckpointError as error:
        raise SystemExit(f'{directory}: {error}') from None


@contextlib.contextmanager
def at_most(seconds, what):
    """Exits where the block takes longer; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal, _frame):
        raise SystemExit(f'{what} takes more than {seconds} s')

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Tokenizer:
    """The tokenizer and the chat template of a checkpoint directory."""

    def __init__(self, directory):
        package('jinja2')
        self.encode, self.place, self.id_of = open_tokenizer(directory)
        template, self.special = chat_settings(directory)
        with open(f'{directory}/config.json', encoding='utf-8') as file:
            config = json.load(file)
        self.vocabulary = config['vocab_size']
        names = (self.special.get('eos_token'), '<|endoftext|>', '</s>')
        ends = [self.id_of(name) for name in names if name is not None]
        self.end = self._end_of_document(config, ends)
        self.template, self.roles = None, differences.client('chat_roles')
        if not template:
            return
        # The template may come from anywhere: the import's sandbox bounds what it does.
        try:
            self.template = self.roles.renderer(template, self.special)
        except self.roles.NoTable as error:
            raise SystemExit(f'{directory}: the chat template cannot be read: {error}') from None

    def _end_of_document(self, config, ends):
        """<|endoftext|> where the vocabulary has it, else the end of a text."""
        document = self.id_of('<|endoftext|>')
        if document is not None:
            return document
        found = [end for end in (*ends, config.get('eos_token_id')) if end is not None]
        if not found:
            raise SystemExit('the tokenizer has no token that ends a document')
        return found[0]

    def chat(self, messages):
        """The text of a dialog, by the checkpoint's template; '' if that refuses the dialog."""
        if self.template is None:
            return '\n'.join(f'{each["role"]}: {each["content"]}' for each in messages)
        try:
            with at_most(self.roles.WALL_S, 'the chat template'):
                text = self.template(messages, False)
        except (self.roles.NoTable, MemoryError) as error:
            raise SystemExit(f'the chat template {error}') from None
        if self.template.is_attack:
            raise SystemExit('the chat template does what no template may' + self.why())
        return text or ''

    def why(self):
        """The last error of the template, for a sentence."""
        return self.roles.why(self.template) if self.template else ''


def some_chats(dialogs, tokenizer):
    """Yields (text, messages) of the dialogs that the template takes. Exits where it refuses the
    first MAX_REFUSED, or all.
    """
    num_taken = num_refused = 0
    for messages in dialogs:
        text = tokenizer.chat(messages)
        if text:
            num_taken += 1
            yield text, messages
            continue
        num_refused += 1
        if not num_taken and num_refused == MAX_REFUSED:
            break
    if num_refused and not num_taken:
        raise SystemExit(f'the chat template refuses each of the first {num_refused} dialogs'
                         f'{tokenizer.why()}')


def id_type(vocabulary):
    return np.uint16 if vocabulary <= 1 << 16 else np.uint32


def pack(texts, tokenizer, path, max_ids, end=None):
    """Writes ids of the texts, each followed by `end`, until max_ids. -> ids of each text."""
    dtype, lengths, block = id_type(tokenizer.vocabulary), [], []
    tail = [] if end is None else [end]

    def write(file):
        encoded = [np.array([*each, *tail], dtype) for each in tokenizer.encode(block)]
        file.write(np.concatenate(encoded).tobytes())
        block.clear()
        lengths.extend(map(len, encoded))

    with open(path + '.tmp', 'wb') as file:
        for text in texts:
            block.append(text)
            if len(block) == BLOCK:
                write(file)
                print(f'\r  {os.path.basename(path)}: {sum(lengths):,} ids', end='', flush=True)
                if sum(lengths) >= max_ids:
                    break
        if block:
            write(file)
    os.replace(path + '.tmp', path)
    print(f'\r  {os.path.basename(path)}: {sum(lengths):,} ids', flush=True)
    return lengths


def is_answer(text, messages, begins):
    """For each token of a dialog's text, whether it belongs to something the assistant says."""
    flags, at, token = np.zeros(len(begins), np.uint8), 0, 0
    for message in messages:
        content = message['content'].strip()
        at = text.find(content, at)
        if at < 0:
            raise SystemExit(f'the chat template changes what is said, "{content[:40]}"; retrieval '
                             'rows need it as it is')
        end = at + len(content)
        while token < len(begins) and begins[token] < at:
            token += 1
        while token < len(begins) and begins[token] < end:
            flags[token] = message['role'] == 'assistant'
            token += 1
        at = end
    return flags


def pack_retrieval(dialogs, tokenizer, directory, max_ids):
    """Writes retrieval.bin, .lengths and .answers of (text, messages) until max_ids. -> ids."""
    lengths, num_ids = [], 0
    with open(f'{directory}/retrieval.bin', 'wb') as file, \
            open(f'{directory}/retrieval.answers', 'wb') as answers:
        for text, messages in dialogs:
            ids, begins = tokenizer.place(text)
            file.write(np.array(ids, id_type(tokenizer.vocabulary)).tobytes())
            answers.write(is_answer(text, messages, begins).tobytes())
            lengths.append(len(ids))
            num_ids += len(ids)
            print(f'\r  retrieval.bin: {num_ids:,} ids', end='', flush=True)
            if num_ids >= max_ids:
                break
    print(flush=True)
    np.array(lengths, np.uint32).tofile(f'{directory}/retrieval.lengths')
    return num_ids


def run(directory, tokenizer, out, max_ids, max_words, evaluation=(), share=HELD_OUT, val_ids=1):
    """Prepares a corpus directory (format: ../corpus.py).

    max_ids: of the text and of the dialogs. max_words: of a retrieval document.
    evaluation: files whose text the streams must not contain (13-grams, ../overlap.py).
    share: of the documents that are held out. val_ids: that they must have. Exits where the
    documents are too few for that; prepare.json is written last, so a later run begins anew.
    """
    os.makedirs(out, exist_ok=True)
    shown = []
    for path in evaluation:
        with open(path, encoding='utf-8') as file:
            shown.append(file.read())
    unwanted, report = overlap.Evaluation(shown), {'dropped_for_overlap': 0}

    def clean(texts):
        for text in texts:
            if unwanted.shares(text):
                report['dropped_for_overlap'] += 1
            elif text:
                yield text

    texts = [text for text in corpus.texts(directory) if text]
    random.Random(1).shuffle(texts)
    held_out = [text for text in texts if corpus.is_held_out(text, share)]
    report['val'] = sum(pack(held_out, tokenizer, f'{out}/val.bin', 1 << 20, tokenizer.end))
    if report['val'] < val_ids or len(held_out) == len(texts):
        raise SystemExit(
            f'{directory}: {len(held_out)} of {len(texts)} documents are held out, with '
            f'{report["val"]} ids; they must have {val_ids} or more, and others must be left: '
            'give another --held-out, or more documents, each ended by a line <|endoftext|>')
    texts = [text for text in texts if not corpus.is_held_out(text, share)]
    dialogs = list(corpus.messages(directory))
    random.Random(2).shuffle(dialogs)
    facts = retrieval.documents(texts[:2000], max_words, seed=3)
    report['text'] = sum(pack(clean(texts), tokenizer, f'{out}/text.bin', max_ids, tokenizer.end))
    chats = clean(text for text, _ in some_chats(dialogs, tokenizer))
    lengths = pack(chats, tokenizer, f'{out}/dialogs.bin', max_ids)
    np.array(lengths, np.uint32).tofile(f'{out}/dialogs.lengths')
    report['dialogs'] = sum(lengths)
    asking = ((text, messages) for text, messages in some_chats(facts, tokenizer)
              if not unwanted.shares(text))
    report['retrieval'] = pack_retrieval(asking, tokenizer, out, max_ids // 4)
    with open(f'{out}/prepare.json', 'w', encoding='utf-8') as file:
        json.dump({'vocabulary': tokenizer.vocabulary, **report}, file, indent=2)
