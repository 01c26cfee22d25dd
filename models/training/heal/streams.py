"""Turns a corpus into streams of the teacher's token ids.

Writes to DATA text.bin, dialogs.bin and retrieval.bin (training), val.bin (documents held out),
ids of uint16 or uint32, dialogs.lengths and retrieval.lengths (ids of each document, uint32),
retrieval.answers (for each id 1 if it belongs to an answer, else 0, uint8), and prepare.json
(counts, and the id that begins a text, if one does). Only this stage needs Jinja2 and tokenizers
or sentencepiece.
"""

import contextlib
import importlib
import json
import os
import random
import re
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
        library, files = package('tokenizers'), files_beside(directory)
        model = library.Tokenizer.from_file(path)
        with open(path, 'rb') as file:
            files.contents['tokenizer.json'] = file.read()
        files.origins['tokenizer.json'] = path
        missing = differences.client('tokenizer_files').missing_tokens(files)
        for token, is_special in missing:  # as the server, and transformers
            added = library.AddedToken(token, special=is_special, normalized=not is_special)
            (model.add_special_tokens if is_special else model.add_tokens)([added])

        def place(text):
            encoded = model.encode(text, add_special_tokens=False)
            return encoded.ids, [begin for begin, _ in encoded.offsets]

        return (lambda texts: [each.ids for each in model.encode_batch(
            texts, add_special_tokens=False)], place, model.token_to_id)
    path = f'{directory}/tokenizer.model'
    if not os.path.exists(path):
        raise SystemExit(f'{directory}: neither tokenizer.json nor tokenizer.model is there; '
                         'training needs the tokenizer of the teacher')
    pieces = SentencePieces(directory)
    return pieces.encode, pieces.place, pieces.id_of


class SentencePieces:
    """tokenizer.model and the tokens beside it, with the server's ids (models/text)."""

    # Stands before a part that continues a text, as one piece, so that the part gets no dummy
    # prefix and keeps its first space.
    CONTINUATION = '\ufdd0\ufdef\ufdd1\ufdee'

    def __init__(self, directory):
        with open(f'{directory}/tokenizer.model', 'rb') as file:
            model = file.read()
        piece = self.CONTINUATION.encode()
        # Field 1 of ModelProto: piece (1), score (2, 0) and type (3, USER_DEFINED = 4) of a piece.
        piece = b'\x0a' + bytes([len(piece)]) + piece + b'\x15\0\0\0\0\x18\x04'
        self.pieces = package('sentencepiece').SentencePieceProcessor(
            model_proto=model + b'\x0a' + bytes([len(piece)]) + piece)
        self.mark = self.pieces.get_piece_size() - 1
        files = files_beside(directory)
        files.contents['tokenizer.model'], files.origins['tokenizer.model'] = model, directory
        self.tokens = differences.client('tokenizer_files').tokens_beside(files)
        # The longest of those that begin at one place.
        longest_first = sorted(self.tokens, key=len, reverse=True)
        self.pattern = re.compile('|'.join(map(re.escape, longest_first)) or '(?!)')

    def id_of(self, piece):
        """The id of a token or a piece, or None."""
        if piece in self.tokens:
            return self.tokens[piece]
        found = self.pieces.piece_to_id(piece)
        return found if self.pieces.id_to_piece(found) == piece else None

    def encode(self, texts):
        """The ids of each text."""
        return [[i for part in self._parts(text) for i in self._ids(*part)] for text in texts]

    def _parts(self, text):
        """Yields (part, where it begins, its id or None): a token beside the model is one id
        wherever it occurs, and what is between them is encoded by itself.
        """
        if self.CONTINUATION in text:
            raise SystemExit('a text must not hold the noncharacters U+FDD0 U+FDEF U+FDD1 U+FDEE '
                             'in a row')
        at = 0
        for token in self.pattern.finditer(text):
            if at < token.start():
                yield text[at : token.start()], at, None
            yield token.group(), token.start(), self.tokens[token.group()]
            at = token.end()
        if at < len(text):
            yield text[at:], at, None

    def _ids(self, part, begin, token):
        if token is not None:
            return [token]
        if not begin:
            return self.pieces.encode(part)
        ids = self.pieces.encode(self.CONTINUATION + part)
        return ids[ids.index(self.mark) + 1 :]  # a dummy prefix may stand before the mark

    def place(self, text):
        """(ids, where each begins)."""
        ids, begins = [], []
        for part, begin, token in self._parts(text):
            if token is not None:
                ids.append(token)
                begins.append(begin)
                continue
            before = self.CONTINUATION if begin else ''
            found = self.pieces.encode(before + part, out_type='immutable_proto').pieces
            found = [(each.id, begin - len(before) + each.begin) for each in found]
            if before:
                del found[: [i for i, _ in found].index(self.mark) + 1]
            ids += [i for i, _ in found]
            begins += [place for _, place in found]
        return ids, begins


def files_beside(directory):
    """What stands beside the tokenizer of a checkpoint directory, as the import and the server read
    it.
    """
    reader = differences.client('tokenizer_files')
    files = reader.Files()
    try:
        for name in (*reader.BESIDE, reader.SPECIAL_MAP):
            is_read = name != reader.SPECIAL_MAP or (
                'added_tokens_decoder' not in files.json(reader.CONFIG))
            if is_read and os.path.exists(f'{directory}/{name}'):
                files.add(name, f'{directory}/{name}')
                if name != reader.TEMPLATE:
                    files.json(name)
    except differences.client('errors').CheckpointError as error:
        raise SystemExit(f'{directory}: {error}') from None
    return files


def chat_settings(directory):
    """(chat template or None, {bos_token and others: their texts}) of a checkpoint directory."""
    reader, files = differences.client('tokenizer_files'), files_beside(directory)
    try:
        return reader.chat_template(files), reader.special_tokens(files)[0]
    except differences.client('errors').CheckpointError as error:
        raise SystemExit(f'{directory}: {error}') from None


def adds_bos(directory):
    """Whether a text begins with BOS."""
    name = differences.client('tokenizer_files').CONFIG
    return files_beside(directory).json(name).get('add_bos_token') is True


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
        self.bos = config.get('bos_token_id') if adds_bos(directory) else None
        # As the server does: a role table says all that is written.
        has_table = os.path.exists(f'{directory}/{differences.client("chat_roles").NAME}')
        self.chat_bos = None if template and has_table else self.bos
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


def behind(start, ids):
    """The ids behind `start`, if that is one and they do not begin with it."""
    return [*ids] if start is None or [*ids[:1]] == [start] else [start, *ids]


def pack(texts, tokenizer, path, max_ids, end=None, start=None):
    """Writes ids of the texts, each from `start` to `end`, until max_ids. -> ids of each text."""
    dtype, lengths, block = id_type(tokenizer.vocabulary), [], []
    tail = [] if end is None else [end]

    def write(file):
        encoded = [np.array([*behind(start, each), *tail], dtype)
                   for each in tokenizer.encode(block)]
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
            own, begins = tokenizer.place(text)
            ids = behind(tokenizer.chat_bos, own)
            file.write(np.array(ids, id_type(tokenizer.vocabulary)).tobytes())
            answers.write(bytes(len(ids) - len(own)))
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
    around = tokenizer.end, tokenizer.bos
    report['val'] = sum(pack(held_out, tokenizer, f'{out}/val.bin', 1 << 20, *around))
    if report['val'] < val_ids or len(held_out) == len(texts):
        raise SystemExit(
            f'{directory}: {len(held_out)} of {len(texts)} documents are held out, with '
            f'{report["val"]} ids; they must have {val_ids} or more, and others must be left: '
            'give another --held-out, or more documents, each ended by a line <|endoftext|>')
    texts = [text for text in texts if not corpus.is_held_out(text, share)]
    dialogs = list(corpus.messages(directory))
    random.Random(2).shuffle(dialogs)
    facts = retrieval.documents(texts[:2000], max_words, seed=3)
    report['text'] = sum(pack(clean(texts), tokenizer, f'{out}/text.bin', max_ids, *around))
    chats = clean(text for text, _ in some_chats(dialogs, tokenizer))
    lengths = pack(chats, tokenizer, f'{out}/dialogs.bin', max_ids, start=tokenizer.chat_bos)
    np.array(lengths, np.uint32).tofile(f'{out}/dialogs.lengths')
    report['dialogs'] = sum(lengths)
    asking = ((text, messages) for text, messages in some_chats(facts, tokenizer)
              if not unwanted.shares(text))
    report['retrieval'] = pack_retrieval(asking, tokenizer, out, max_ids // 4)
    if tokenizer.bos is not None:
        report['bos'] = tokenizer.bos
    with open(f'{out}/prepare.json', 'w', encoding='utf-8') as file:
        json.dump({'vocabulary': tokenizer.vocabulary, **report}, file, indent=2)


def bos_of(data):
    """The id that begins a text of a corpus directory, or None."""
    if not os.path.exists(f'{data}/prepare.json'):
        return None
    with open(f'{data}/prepare.json', encoding='utf-8') as file:
        return json.load(file).get('bos')
