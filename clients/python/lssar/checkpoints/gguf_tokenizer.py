"""The tokenizer of a GGUF file as the files that the server reads.

A vocabulary "gpt2" (BPE over bytes) becomes tokenizer.json; a vocabulary "llama" (SentencePiece's
BPE) becomes tokenizer.model. tokenizer_config.json gets BOS, EOS and the chat template.

Source: llama.cpp, src/llama-vocab.cpp; sentencepiece_model.proto of SentencePiece.
"""

import dataclasses
import json
import struct
from collections.abc import Iterable, Mapping

from lssar.checkpoints.errors import CheckpointError, JsonObject, quote
from lssar.checkpoints.gguf_file import Value

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')
_QWEN2 = _LLAMA3.replace(r'\p{N}{1,3}', r'\p{N}')


@dataclasses.dataclass(frozen=True)
class _Words:
    """How a text is split into words: a value of tokenizer.ggml.pre."""

    pattern: str = ''  # '': GPT-2's
    has_digits: bool = False  # each digit is a word
    has_nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


_GPT2, _NEOX, _DIGITS = _Words(), _Words(has_nfc=True), _Words(has_digits=True)
WORDS = {
    'gpt-2': _GPT2, 'gpt2': _GPT2, 'phi-2': _GPT2, 'jais': _GPT2,
    'mpt': _NEOX, 'olmo': _NEOX, 'gpt-neox': _NEOX,
    'smollm': _DIGITS, 'starcoder': _DIGITS, 'refact': _DIGITS, 'codeshell': _DIGITS,
    'qwen2': _Words(_QWEN2, has_nfc=True),
    **dict.fromkeys(('llama3', 'llama-v3', 'llama-bpe'),
                    _Words(_LLAMA3, ignores_merges=True, adds_bos=True)),
}


def _texts(fields: Mapping[str, Value], key: str) -> list[str]:
    value = fields.get(key)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise CheckpointError(f'{key} must be an array of texts')
    return [str(each) for each in value]


def _json(value: JsonObject, keys: str, indent: int | None = None) -> bytes:
    """A file of texts of the fields `keys`.

    Errors: CheckpointError for bytes that are no UTF-8, which the reader keeps as surrogates.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f'{keys}: the byte {ord(text[error.start]) & 0xff:#x} is no UTF-8'
                              ) from None


def _types(fields: Mapping[str, Value], count: int) -> list[int]:
    value = fields.get('tokenizer.ggml.token_type', [NORMAL] * count)
    if not isinstance(value, list) or len(value) != count or not all(
            each in range(NORMAL, BYTE + 1) for each in value):
        raise CheckpointError(f'tokenizer.ggml.token_type must be an array of {count} numbers in '
                              '[1, 6]')
    return [int(each) for each in value]


def _tokenizer_json(fields: Mapping[str, Value], tokens: list[str], types: list[int],
                    words: _Words) -> bytes:
    merges = _texts(fields, 'tokenizer.ggml.merges')
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocabulary[token] != i)
        raise CheckpointError(f'tokenizer.ggml.tokens has {quote(twice)} twice')
    added = [{'id': i, 'content': token, 'single_word': False, 'lstrip': False, 'rstrip': False,
              'normalized': False, 'special': kind == CONTROL}
             for i, (token, kind) in enumerate(zip(tokens, types))
             if kind in (CONTROL, USER_DEFINED, UNKNOWN)]
    byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True,
                  'use_regex': not words.pattern}
    steps: list[JsonObject] = []
    if words.has_digits:
        steps.append({'type': 'Digits', 'individual_digits': True})
    if words.pattern:
        steps.append({'type': 'Split', 'pattern': {'Regex': words.pattern}, 'behavior': 'Isolated',
                      'invert': False})
    return _json({
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added,
        'normalizer': {'type': 'NFC'} if words.has_nfc else None,
        'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [*steps, byte_level]},
        'post_processor': None,
        'decoder': {**byte_level, 'add_prefix_space': True, 'use_regex': True},
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': None,
                  'continuing_subword_prefix': None, 'end_of_word_suffix': None,
                  'fuse_unk': False, 'byte_fallback': False,
                  'ignore_merges': words.ignores_merges, 'vocab': vocabulary, 'merges': merges},
    }, 'tokenizer.ggml.tokens or tokenizer.ggml.merges')


def _varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1  # negative int32: ten bytes
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: int | float | bytes) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack('<f', value)
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(int(value))


def _message(fields: Iterable[tuple[int, int | float | bytes]]) -> bytes:
    return b''.join(_field(*each) for each in fields)


def _tokenizer_model(fields: Mapping[str, Value], tokens: list[str], types: list[int]) -> bytes:
    """SentencePiece's ModelProto."""
    scores = fields.get('tokenizer.ggml.scores')
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(
            isinstance(each, float) for each in scores):
        raise CheckpointError(f'tokenizer.ggml.scores must be an array of {len(tokens)} floats')
    if UNUSED in types:
        raise CheckpointError(f'token {types.index(UNUSED)} is unused, and others follow it; a '
                              'BPE vocabulary cannot have unused pieces')
    pieces = [_message([(1, token.encode('utf-8', 'surrogateescape')), (2, float(str(score))),
                        (3, kind)]) for token, score, kind in zip(tokens, scores, types)]
    ids = [(number, _token_id(fields, name, -1)) for number, name in (
        (40, 'unknown'), (41, 'bos'), (42, 'eos'), (43, 'padding'))]
    unknown = types.index(UNKNOWN) if UNKNOWN in types else 0
    ids[0] = (40, unknown)
    trainer = _message([(3, 2), (4, len(tokens)), (35, int(BYTE in types)), *ids])
    normalizer = _message([(1, b'identity'),
                           (3, int(bool(fields.get('tokenizer.ggml.add_space_prefix', True)))),
                           (4, 0), (5, 1)])
    return _message([*((1, piece) for piece in pieces), (2, trainer), (3, normalizer)])


def _token_id(fields: Mapping[str, Value], name: str, default: int) -> int:
    value = fields.get(f'tokenizer.ggml.{name}_token_id', default)
    return value if isinstance(value, int) else default


NO_TOKEN = 0xffffffff  # llama.cpp's -1


def _check_ids(fields: Mapping[str, Value], count: int) -> None:
    """Errors: CheckpointError for a special token that is none of the `count` tokens."""
    for name in ('bos', 'eos', 'eot', 'eom'):
        token = _token_id(fields, name, NO_TOKEN)
        if not 0 <= token < count and token != NO_TOKEN:
            raise CheckpointError(f'tokenizer.ggml.{name}_token_id is {token}; must be below '
                                  f'{count}, the number of tokens. --tokenizer PATH names the '
                                  'tokenizer that the model was trained with')


def files(fields: Mapping[str, Value]) -> dict[str, bytes]:
    """{name: content} of the tokenizer's files; empty: the file has no tokenizer.

    Errors: CheckpointError for a kind that is not known, and for special tokens that it lacks;
    --tokenizer PATH goes on.
    """
    model = fields.get('tokenizer.ggml.model')
    if model is None or model == 'no_vocab':
        return {}
    tokens = _texts(fields, 'tokenizer.ggml.tokens')
    types = _types(fields, len(tokens))
    _check_ids(fields, len(tokens))
    while types and types[-1] == UNUSED:  # padding of the vocabulary
        tokens.pop()
        types.pop()
    if model == 'gpt2':
        pre = fields.get('tokenizer.ggml.pre')
        if not isinstance(pre, str) or pre not in WORDS:
            shown = quote(pre) if isinstance(pre, str) else 'absent'
            raise CheckpointError(f'tokenizer.ggml.pre is {shown}, so how texts are split into '
                                  f'words is not known; known are {", ".join(WORDS)}. --tokenizer '
                                  'PATH names the tokenizer that the model was trained with')
        found = {'tokenizer.json': _tokenizer_json(fields, tokens, types, WORDS[pre])}
        adds_bos = WORDS[pre].adds_bos
    elif model == 'llama':
        found = {'tokenizer.model': _tokenizer_model(fields, tokens, types)}
        adds_bos = True
    else:
        shown = quote(model) if isinstance(model, str) else repr(model)
        raise CheckpointError(f'tokenizer.ggml.model is {shown}; "gpt2" and "llama" are read. '
                              '--tokenizer PATH names the tokenizer that the model was trained '
                              'with')
    if fields.get('tokenizer.ggml.add_eos_token') is True:
        raise CheckpointError('tokenizer.ggml.add_eos_token is true: EOS behind each prompt is not '
                              'supported')
    found['tokenizer_config.json'] = _config(fields, tokens, adds_bos)
    ends = [_token_id(fields, name, -1) for name in ('eos', 'eot', 'eom')]
    ends = [*dict.fromkeys(token for token in ends if 0 <= token < len(tokens))]
    if len(ends) > 1:  # the end of a text, of a turn and of a message
        found['generation_config.json'] = json.dumps({'eos_token_id': ends}).encode()
    return found


def _config(fields: Mapping[str, Value], tokens: list[str], adds_bos: bool) -> bytes:
    config: JsonObject = {
        'add_bos_token': bool(fields.get('tokenizer.ggml.add_bos_token', adds_bos))}
    for name in ('bos', 'eos', 'unknown', 'padding'):
        token = _token_id(fields, name, -1)
        if 0 <= token < len(tokens):
            short = {'unknown': 'unk', 'padding': 'pad'}.get(name, name)
            config[short + '_token'] = tokens[token]
    if 'bos_token' not in config:
        config['add_bos_token'] = False
    template = fields.get('tokenizer.chat_template')
    if isinstance(template, str):
        config['chat_template'] = template
    return _json(config, 'tokenizer.ggml.tokens or tokenizer.chat_template', indent=2)
