"""Ids and decoded texts against tiktoken, Hugging Face's tokenizers and SentencePiece.

Run by ctest over a short mix of texts. Over more, with every text as long as it asks for:

    PYTHONPATH=tests/python LSSAR_VENVS=build/ci/venvs LSSAR_NUM_BYTES=6000000 \\
        LSSAR_TOKENIZE_TEXTS=build/ci/bin/tokenize_texts \\
        python3 tests/models/tokenizer_differential_test.py -v

The packages are those of tests/requirements.txt, installed once. Skipped where PyPI cannot be
reached.
"""

import base64
import importlib.util
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPT2 = ROOT / 'tests' / 'models' / 'gpt2'
PROGRAM = os.environ.get('LSSAR_TOKENIZE_TEXTS', str(ROOT / 'build/ci/bin/tokenize_texts'))
NUM_BYTES = int(os.environ.get('LSSAR_NUM_BYTES', '60000'))
SPACE = '\u2581'

CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
          r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = '|'.join([rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}",
                  rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)",
                  r"\s+"])
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def is_common(char):
    """True for characters that every side's version of Unicode knows: those of Unicode 13."""
    return (unicodedata.category(char) not in ('Cn', 'Cs') and
            not 0x870 <= ord(char) <= 0x8FF and not 0x1DFA <= ord(char) <= 0x1DFF)


def random_text(rng, num_chars):
    """Runs of characters of one block: scripts, emoji, control characters, combining marks."""
    blocks = [(0x01, 0x7F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x5D0, 0x6D3),
              (0x900, 0x97F), (0xE01, 0xE5B), (0x1100, 0x11FF), (0x1E00, 0x1FFE), (0x2000, 0x206F),
              (0x2150, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FEF), (0xAC00, 0xD7A3),
              (0xFB00, 0xFDFD), (0xFE00, 0xFFFD), (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F64F),
              (0x1F680, 0x1F6D7), (0x20000, 0x2A6DD), (0xE0100, 0xE01EF)]
    parts, size = [], 0
    while size < num_chars:
        first, last = rng.choice(blocks)
        run = ''.join(chr(rng.randint(first, last)) for _ in range(rng.choice((1, 1, 2, 5, 9))))
        run = ''.join(char for char in run if is_common(char))
        parts += [run, rng.choice(('', '', ' ', '  ', '\n', ' the', "'s", 'A', '7', '\u3000'))]
        size += len(run) + len(parts[-1])
    return ''.join(parts)


def mixed_texts(num_bytes):
    """Code, English prose, random Unicode and hostile runs, about num_bytes of UTF-8 in all."""
    rng = random.Random(1)
    texts = ['', ' ', '\n', '\0', 'a' * 3000, ' ' * 3000 + 'x', '\t \r\n' * 500, 'aB' * 999,
             '\u0301' * 500, 'e\u0301\u0327\u0323' * 200, '日本語' * 300, '1' * 1000,
             '👩‍👩‍👧‍👦🇩🇪👍🏽' * 50, '<|endoftext|>' * 20, 'x<|endoftext|> y <s></s><unk>', SPACE * 9,
             ' ' + SPACE + ' a' + SPACE]
    # Not of build/: there, other tests install packages with texts of their own, or remove them.
    documents = sorted([*ROOT.glob('*.md'), *(
        path for folder in ROOT.iterdir() if folder.name not in ('.git', 'build')
        for path in folder.glob('**/*.md'))])
    files = [*documents, *sorted(ROOT.glob('models/*.cc')),
             *sorted(pathlib.Path('/usr/lib/python3.11').rglob('*.py'))]
    size = sum(len(text.encode()) for text in texts)
    while size < num_bytes:
        texts.append(random_text(rng, rng.choice((10, 100, 2000))))
        size += len(texts[-1].encode())
        if files:
            source = files.pop(rng.randrange(min(len(files), 400)) if num_bytes < 1e6 else 0)
            text = source.read_text(errors='ignore')
            text = ''.join(filter(is_common, text))[:max(20000, num_bytes // 50)]
            texts.append(text)
            size += len(text.encode())
    return texts


TEXTS = []


class Tokenized:
    """What tokenize_texts gives for texts."""

    def __init__(self, directory, vocab_size, texts):
        given = b''.join(struct.pack('<I', len(text)) + text
                         for text in (text.encode() for text in texts))
        done = subprocess.run([PROGRAM, str(directory), str(vocab_size)], input=given,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            raise AssertionError(done.stderr.decode())
        self.ids, self.texts = [], []
        at = 0
        while at < len(done.stdout):
            size, = struct.unpack_from('<I', done.stdout, at)
            self.ids.append(list(struct.unpack_from(f'<{size}i', done.stdout, at + 4)))
            at += 4 + 4 * size
            size, = struct.unpack_from('<I', done.stdout, at)
            self.texts.append(done.stdout[at + 4:at + 4 + size].decode())
            at += 4 + size


class Differential(unittest.TestCase):
    """Every case builds a directory, and an oracle over the same files."""

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)

    def compare(self, vocab_size, encode, decode=None, texts=None, is_tie=lambda a, b: False):
        texts = texts or TEXTS
        ours = Tokenized(self.directory, vocab_size, texts)
        self.assertEqual(len(ours.ids), len(texts))
        for text, ids, decoded in zip(texts, ours.ids, ours.texts):
            wanted = encode(text)
            if ids != wanted and not is_tie(ids, wanted):
                at = next((i for i, (a, b) in enumerate(zip(ids, wanted)) if a != b), -1)
                self.fail(f'{text[:300]!r}: id {at} of {len(ids)}: {ids[at:at + 8]}, '
                          f'must be {wanted[at:at + 8]} of {len(wanted)}')
            if decode and '\ufffd' not in decoded:
                self.assertEqual(decoded, decode(ids), text[:300])

    def write(self, name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (self.directory / name).write_text(text)

    # tiktoken

    def ranks(self):
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks
        return data_gym_to_mergeable_bpe_ranks(str(GPT2 / 'merges.txt'), str(GPT2 / 'vocab.json'))

    def tiktoken(self, pattern):
        import tiktoken
        encoding = tiktoken.Encoding('test', pat_str=pattern, mergeable_ranks=self.ranks(),
                                     special_tokens={'<|endoftext|>': 50256})
        return lambda text: encoding.encode(text, allowed_special='all')

    def test_gpt2_files(self):
        for name in ('vocab.json', 'merges.txt'):
            shutil.copy(GPT2 / name, self.directory)
        self.compare(50257, self.tiktoken(GPT2_PATTERN))

    def test_tiktoken_files(self):
        lines = [f'{base64.b64encode(piece).decode()} {rank}'
                 for piece, rank in self.ranks().items()]
        self.write('tokenizer.tiktoken', '\n'.join(lines))
        for name, pattern in (('cl100k_base', CL100K), ('o200k_base', O200K)):
            with self.subTest(name):
                self.write('tokenizer_config.json', {
                    'tiktoken_pattern': name,
                    'added_tokens_decoder': {'50256': {'content': '<|endoftext|>'}}})
                self.compare(50257, self.tiktoken(pattern))

    # Hugging Face's tokenizers

    def hugging_face(self, document, texts=None):
        import tokenizers
        self.write('tokenizer.json', document)
        oracle = tokenizers.Tokenizer.from_str(json.dumps(document))
        size = max([*document['model']['vocab'].values(),
                    *(token['id'] for token in document['added_tokens'])]) + 3
        self.compare(size, lambda text: oracle.encode(text, add_special_tokens=False).ids,
                     lambda ids: oracle.decode(ids, skip_special_tokens=True), texts)

    def lines(self):
        return [line for path in sorted(ROOT.glob('*/*.md'))
                for line in path.read_text().splitlines() if line]

    def train(self, **parts):
        """A trained BPE as the dict of its tokenizer.json."""
        from tokenizers import Tokenizer, models, trainers
        tokenizer = Tokenizer(models.BPE(unk_token='<unk>', fuse_unk=True))
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        tokenizer.train_from_iterator(self.lines(), trainers.BpeTrainer(
            vocab_size=1200, special_tokens=['<unk>', '<s>', '</s>'], show_progress=False))
        return json.loads(tokenizer.to_str())

    def test_llama_style(self):
        from tokenizers import normalizers, pre_tokenizers
        metaspace = pre_tokenizers.Metaspace(prepend_scheme='always', split=True)
        trained = self.train(pre_tokenizer=metaspace)
        vocab = trained['model']['vocab']
        size = len(vocab)
        for byte in range(256):
            vocab[f'<0x{byte:02X}>'] = size + byte
        trained['model']['byte_fallback'] = True
        decoders = [{'type': 'Replace', 'pattern': {'String': SPACE}, 'content': ' '},
                    {'type': 'ByteFallback'}, {'type': 'Fuse'},
                    {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]
        sequence = {'type': 'Sequence', 'decoders': decoders}
        escape = {'type': 'Replace', 'pattern': {'String': ' '}, 'content': SPACE}
        prepend = {'type': 'Sequence',
                   'normalizers': [{'type': 'Prepend', 'prepend': SPACE}, escape]}
        def as_metaspace(scheme, split):
            return {'type': 'Metaspace', 'replacement': SPACE, 'prepend_scheme': scheme,
                    'split': split}
        shorter = {'type': 'Sequence', 'decoders': decoders[:3]}
        pairs = trained['model']['merges']
        strings = [' '.join(pair) for pair in pairs]
        for name, normalizer, pre_tokenizer, decoder, merges, fallback in (
                ('prepend', prepend, None, sequence, pairs, True),
                ('prepend, strings', prepend, None, sequence, strings, True),
                ('no prefix', escape, None, shorter, pairs, True),
                ('first', None, as_metaspace('first', False), sequence, pairs, True),
                ('always', None, as_metaspace('always', True), sequence, pairs, True),
                ('unknown', prepend, None, sequence, pairs, False)):
            with self.subTest(name):
                trained.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer, decoder=decoder)
                trained['model'].update(merges=merges, byte_fallback=fallback)
                self.hugging_face(trained)

    def test_gpt_neox_style(self):
        from tokenizers import decoders, normalizers, pre_tokenizers
        for name, normalizer, prefix in (('nfc', normalizers.NFC(), False),
                                         ('nfkc, prefix', normalizers.NFKC(), True),
                                         ('nfd', normalizers.NFD(), False)):
            with self.subTest(name):
                trained = self.train(
                    normalizer=normalizer, decoder=decoders.ByteLevel(),
                    pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=prefix))
                vocab = trained['model']['vocab']
                for char in pre_tokenizers.ByteLevel.alphabet():
                    vocab.setdefault(char, len(vocab))
                trained['model'].update(unk_token=None, fuse_unk=False)
                size = len(vocab)
                trained['added_tokens'] += [
                    {'id': size + i, 'content': ' ' * (2 + i), 'single_word': False,
                     'lstrip': False, 'rstrip': False, 'normalized': True, 'special': False}
                    for i in range(22)]
                self.hugging_face(trained)

    def test_missing_bytes(self):
        """A byte without a piece is unknown, or dropped where there is no unk_token."""
        from tokenizers import decoders, pre_tokenizers
        for name, unknown, fuse in (('dropped', None, False), ('unknown', '<unk>', False),
                                    ('fused', '<unk>', True)):
            with self.subTest(name):
                trained = self.train(decoder=decoders.ByteLevel(),
                                     pre_tokenizer=pre_tokenizers.Sequence([
                                         pre_tokenizers.Digits(True),
                                         pre_tokenizers.ByteLevel(add_prefix_space=False)]))
                trained['model'].update(unk_token=unknown, fuse_unk=fuse)
                self.hugging_face(trained)
        trained = self.train(pre_tokenizer=pre_tokenizers.Metaspace())
        vocab = trained['model']['vocab']
        for byte in range(0x20, 0xE4):
            vocab.setdefault(f'<0x{byte:02X}>', len(vocab))
        trained['decoder'] = {'type': 'Sequence', 'decoders': [
            {'type': 'Replace', 'pattern': {'String': SPACE}, 'content': ' '},
            {'type': 'ByteFallback'}, {'type': 'Fuse'},
            {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}
        for fallback, unknown, fuse in ((True, None, False), (True, '<unk>', True),
                                        (True, '<unk>', False), (False, None, False)):
            with self.subTest(f'{fallback} {unknown} {fuse}'):
                trained['model'].update(byte_fallback=fallback, unk_token=unknown, fuse_unk=fuse)
                self.hugging_face(trained)

    def test_files_of_packages(self):
        """Every tokenizer.json with a BPE that an installed package carries."""
        import site
        import tokenizers
        count = 0
        for folder in site.getsitepackages():
            for path in sorted(pathlib.Path(folder).rglob('*tokenizer*.json')):
                document = json.loads(path.read_text())
                if not isinstance(document, dict) or 'model' not in document or \
                        document['model'].get('type', 'BPE') != 'BPE':
                    continue
                with self.subTest(path.name):
                    # A package may limit lengths, which transformers and this project take off.
                    document.update(truncation=None, padding=None)
                    self.hugging_face(document)
                    count += 1
        print(f'{count} files of packages, tokenizers {tokenizers.__version__}')

    def test_llama3_style(self):
        from tokenizers import Regex, decoders, pre_tokenizers
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        for name, steps in (
                ('llama3', [pre_tokenizers.Split(Regex(LLAMA3), 'isolated')]),
                ('digits', [pre_tokenizers.Digits(True),
                            pre_tokenizers.Split(Regex(r'\s+|[^\s]+'), 'isolated')]),
                ('literal', [pre_tokenizers.Split('.', 'isolated'), pre_tokenizers.Digits(False)])):
            with self.subTest(name):
                trained = self.train(decoder=decoders.ByteLevel(),
                                     pre_tokenizer=pre_tokenizers.Sequence([*steps, byte_level]))
                vocab = trained['model']['vocab']
                for char in pre_tokenizers.ByteLevel.alphabet():
                    vocab.setdefault(char, len(vocab))
                trained['model'].update(unk_token=None, fuse_unk=False, ignore_merges=True)
                trained['post_processor'] = {
                    'type': 'Sequence', 'processors': [
                        {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': False,
                         'use_regex': True},
                        {'type': 'TemplateProcessing',
                         'single': [{'SpecialToken': {'id': '<s>', 'type_id': 0}},
                                    {'Sequence': {'id': 'A', 'type_id': 0}}],
                         'pair': [{'Sequence': {'id': 'A', 'type_id': 0}},
                                  {'Sequence': {'id': 'B', 'type_id': 1}}],
                         'special_tokens': {'<s>': {'id': '<s>', 'ids': [vocab['<s>']],
                                                    'tokens': ['<s>']}}}]}
                self.write('tokenizer_config.json', {'add_bos_token': True})
                self.hugging_face(trained)

    # SentencePiece

    def test_sentence_piece(self):
        import io
        import sentencepiece
        zoo = ROOT / 'models' / 'zoo' / 'lssar-6m' / 'tokenizer.model'
        models = {'zoo': zoo.read_bytes()}
        for name, options in (
                ('bpe', {'model_type': 'bpe'}), ('unigram', {'model_type': 'unigram'}),
                ('unigram bytes', {'model_type': 'unigram', 'byte_fallback': True}),
                ('bpe bytes', {'model_type': 'bpe', 'byte_fallback': True,
                               'normalization_rule_name': 'identity'})):
            out = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(self.lines()), model_writer=out, vocab_size=900,
                hard_vocab_limit=False, minloglevel=2, **options)
            models[name] = out.getvalue()
        for name, model in models.items():
            with self.subTest(name):
                (self.directory / 'tokenizer.model').write_bytes(model)
                oracle = sentencepiece.SentencePieceProcessor(model_proto=model)
                # Ours are the ids of 0.1.97 (sentence_piece_test.cc). Newer versions normalize a
                # NUL otherwise, and add a unigram model's scores up otherwise, in floats: of two
                # segmentations whose sums differ by less than their rounding, either may be the
                # best. Short texts have small sums.
                texts = [text for text in TEXTS if '\0' not in text]
                if 'unigram' not in name:
                    self.compare(oracle.get_piece_size(), oracle.encode, texts=texts)
                    continue
                texts = [text[at:at + 1000] for text in texts
                         for at in range(0, len(text) or 1, 1000)]

                def is_tie(ids, wanted, oracle=oracle):
                    sums = [math.fsum(map(oracle.get_score, side)) for side in (ids, wanted)]
                    rounding = max(len(ids), len(wanted)) * 2**-24 * abs(sums[1])
                    unknown = oracle.unk_id()
                    return (abs(sums[0] - sums[1]) <= rounding and
                            ids.count(unknown) == wanted.count(unknown))

                self.compare(oracle.get_piece_size(), oracle.encode, texts=texts, is_tie=is_tie)


if __name__ == '__main__':
    if importlib.util.find_spec('tokenizers') is None:
        import environments
        python = environments.environment('foreign')
        os.execv(python, [str(python), __file__, *sys.argv[1:]])
    TEXTS += mixed_texts(NUM_BYTES)
    sys.exit(unittest.main())
