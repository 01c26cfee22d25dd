"""Finds the files of a tokenizer and reads them under the names that the server knows."""

import base64
import binascii
import dataclasses
import os
from collections.abc import Iterator

from lssar.checkpoints.errors import (MAX_JSON_BYTES, CheckpointError, JsonObject,
                                             is_there, open_regular, parse_json_object,
                                             quote, read_json_object, show)

# File sets, best first: the source's names and ours.
SETS = (
    {'tokenizer.model': 'tokenizer.model'},
    {'tokenizer.json': 'tokenizer.json'},
    {'vocab.json': 'vocab.json', 'merges.txt': 'merges.txt'},
    {'encoder.json': 'vocab.json', 'vocab.bpe': 'merges.txt'},
)
# Encodings whose word pattern the server knows; the file does not have it.
TIKTOKEN = ('gpt2', 'r50k_base', 'p50k_base', 'cl100k_base', 'o200k_base')
CONFIG, TEMPLATE, ADDED = 'tokenizer_config.json', 'chat_template.jinja', 'added_tokens.json'
BESIDE = (CONFIG, TEMPLATE, ADDED)
SPECIAL_MAP = 'special_tokens_map.json'
GENERATION = 'generation_config.json'


def _is_tiktoken(path: str) -> bool:
    """True if the first line is a token in base64 and its rank."""
    with open(path, 'rb') as file:
        words = file.readline(4096).split()
    try:
        return len(words) == 2 and words[1].isdigit() and bool(
            base64.b64decode(words[0], validate=True))
    except binascii.Error:
        return False


def _tiktoken_name(path: str) -> str:
    """The name under which the server reads a tiktoken file. Errors: CheckpointError."""
    stem = os.path.basename(path).removesuffix('.tiktoken')
    if stem not in TIKTOKEN:
        raise CheckpointError(
            f'{path}: is a tiktoken file, which does not say its word pattern; name it after its '
            f'encoding, one of {", ".join(name + ".tiktoken" for name in TIKTOKEN)}')
    return stem + '.tiktoken'


def _in_folder(folder: str) -> dict[str, str]:
    """{path: our name} of the best set in a folder; empty: none."""
    for files in SETS:
        paths = {os.path.join(folder, theirs): ours for theirs, ours in files.items()}
        if all(is_there(path) for path in paths):
            [first, *_] = paths
            if len(paths) == 1 and first.endswith('.model') and _is_tiktoken(first):
                return {first: _tiktoken_name(first)}
            return paths
    for name in TIKTOKEN:
        path = os.path.join(folder, name + '.tiktoken')
        if is_there(path):
            return {path: name + '.tiktoken'}
    return {}


@dataclasses.dataclass
class Files:
    """The files of a tokenizer by our names, and where they come from."""

    contents: dict[str, bytes] = dataclasses.field(default_factory=dict)
    origins: dict[str, str] = dataclasses.field(default_factory=dict)  # our name: theirs
    notes: list[str] = dataclasses.field(default_factory=list)

    def add(self, name: str, path: str, limit: int = MAX_JSON_BYTES) -> None:
        """Reads a file. Errors: CheckpointError."""
        with open_regular(path) as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise CheckpointError(f'{path}: more than {limit} bytes, which is the limit')
        self.contents[name], self.origins[name] = content, os.path.basename(path)

    def json(self, name: str) -> JsonObject:
        """The object in one of the files; {} where there is no such file. Errors: CheckpointError.

        """
        content = self.contents.get(name)
        return {} if content is None else parse_json_object(content, self.origins[name])


def read(folder: str, given: str | None) -> Files:
    """The tokenizer, given or beside the source, with its settings and its chat template; and the
    generation_config.json of the source, or else that beside the tokenizer.

    Errors: CheckpointError where the given path has none, or where two tokenizers disagree.
    """
    files = Files()
    found = _find(folder, given)
    for path, ours in found.items():
        files.add(ours, path)
    beside = os.path.dirname(next(iter(found))) if found else folder
    for place in folder, beside:
        if GENERATION not in files.contents and is_there(os.path.join(place, GENERATION)):
            files.add(GENERATION, os.path.join(place, GENERATION))
    if not found:
        return files
    for name in BESIDE:
        if is_there(os.path.join(beside, name)):
            files.add(name, os.path.join(beside, name))
    # transformers and the server read it only then, and before tokenizer_config.json.
    if 'added_tokens_decoder' not in files.json(CONFIG) and is_there(
            os.path.join(beside, SPECIAL_MAP)):
        files.add(SPECIAL_MAP, os.path.join(beside, SPECIAL_MAP))
    other = os.path.join(beside, 'tokenizer.json')
    is_named = given is not None and os.path.isfile(given)
    if 'tokenizer.model' in files.contents and is_there(other) and not is_named:
        _choose(files, other)
    for field in ('truncation', 'padding'):
        value = files.json('tokenizer.json').get(field)
        if value is not None:
            raise CheckpointError(f'{files.origins["tokenizer.json"]}: {field} is {show(value)}; '
                                  'must be null: prompts are neither cut nor padded')
    return files


def _choose(files: Files, path: str) -> None:
    """tokenizer.model and tokenizer.json stand side by side: they must be one vocabulary.

    tokenizer.json is read where it is BPE, as by transformers' fast tokenizers: its normalizer and
    pre-tokenizer need not be those of tokenizer.model.

    Errors: CheckpointError where they disagree.
    """
    model = files.contents['tokenizer.model']
    pieces, tokenizer = sentence_pieces(model), read_json_object(path)
    tokens, kind = _tokens_of_json(tokenizer, path)
    both = 'tokenizer.model and tokenizer.json are not one tokenizer'
    for i, piece in enumerate(pieces):
        if i in tokens and tokens[i] != piece:
            raise CheckpointError(
                f'{both}: token {i} is {quote(piece)} in the one and {quote(tokens[i])} in the '
                'other; --tokenizer FILE names the one that the model was trained with')
    if kind == 'BPE':
        del files.contents['tokenizer.model'], files.origins['tokenizer.model']
        files.add('tokenizer.json', path)
        files.notes.append("tokenizer.json is read, as by transformers' fast tokenizers, not "
                           'tokenizer.model, whose ids may be others; --tokenizer FILE names one')
        return
    added = {i: token for i, token in tokens.items() if i >= len(pieces)}
    if added:
        shown = ', '.join(quote(added[i]) for i in sorted(added)[:5])
        raise CheckpointError(
            f'{both}: tokenizer.json adds {len(added)} tokens ({shown}), and its kind, {kind}, is '
            'not read; --tokenizer tokenizer.model goes on without them')
    field = _field_of_other_rules(tokenizer, adds_dummy_prefix(model))
    if field is not None:
        raise CheckpointError(
            f'{both}: {field} of tokenizer.json is {show(tokenizer.get(field))}, which is not what '
            f'tokenizer.model does, and its kind, {kind}, is not read; --tokenizer tokenizer.model '
            'goes on with the other')


def _field_of_other_rules(tokenizer: JsonObject, has_prefix: bool) -> str | None:
    """None: what transformers makes of a tokenizer.model that is no BPE; else the field that is
    not.
    """
    def steps(field: str, listed: str) -> list[JsonObject]:
        step = tokenizer.get(field)
        inner = step.get(listed) if isinstance(step, dict) and step.get(
            'type') == 'Sequence' else [step] if step is not None else []
        return [each if isinstance(each, dict) else {} for each in
                (inner if isinstance(inner, list) else [None])]

    for step in steps('normalizer', 'normalizers'):
        joins_spaces = step.get('type') == 'Replace' and step.get('pattern') == {'Regex': ' {2,}'}
        if step.get('type') not in ('Precompiled', 'Strip') and not joins_spaces:
            return 'normalizer'
    words = steps('pre_tokenizer', 'pretokenizers')
    if words and words[0].get('type') == 'WhitespaceSplit':
        words = words[1:]
    if len(words) != 1 or words[0].get('type') != 'Metaspace':
        return 'pre_tokenizer'
    scheme = words[0].get('prepend_scheme', 'never' if words[0].get(
        'add_prefix_space') is False else 'always')
    return 'pre_tokenizer' if (scheme != 'never') != has_prefix else None


def adds_dummy_prefix(content: bytes) -> bool:
    """True if a tokenizer.model puts a space before a text. Errors: CheckpointError where it is
    damaged.
    """
    for number, value in _protobuf(content):
        if number == 3 and isinstance(value, bytes):  # normalizer_spec
            return next((each != 0 for inner, each in _protobuf(value) if inner == 3), True)
    return True


def _tokens_of_json(tokenizer: JsonObject, path: str) -> tuple[dict[int, str], str]:
    """({id: token}, kind of the model) of a tokenizer.json. Errors: CheckpointError."""
    model, added = tokenizer.get('model'), tokenizer.get('added_tokens', [])
    if not isinstance(model, dict) or not isinstance(added, list):
        raise CheckpointError(f'{path}: model must be an object and added_tokens a list')
    vocabulary = model.get('vocab')
    tokens: dict[int, str] = {}
    if isinstance(vocabulary, dict):
        tokens = {i: token for token, i in vocabulary.items() if isinstance(i, int)}
    elif isinstance(vocabulary, list):  # unigram: [token, score]
        tokens = {i: str(entry[0]) for i, entry in enumerate(vocabulary)
                  if isinstance(entry, list) and entry}
    for entry in added:
        if isinstance(entry, dict) and isinstance(entry.get('id'), int):
            tokens[entry['id']] = str(entry.get('content'))
    # Old files do not say the type.
    return tokens, str(model.get('type') or ('BPE' if isinstance(vocabulary, dict) else 'Unigram'))


def sentence_pieces(content: bytes) -> list[str]:
    """The pieces of a tokenizer.model by id. Errors: CheckpointError where it is damaged."""
    pieces = []
    for number, value in _protobuf(content):
        if number == 1 and isinstance(value, bytes):
            text = next((each for inner, each in _protobuf(value) if inner == 1), b'')
            pieces.append(text.decode('utf-8', 'replace') if isinstance(text, bytes) else '')
    return pieces


def _protobuf(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field, value) of a message; numbers of fixed size are bytes."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = 0
        for shift in range(0, 70, 7):
            if place >= len(message):
                break
            byte = message[place]
            place += 1
            value |= (byte & 0x7f) << shift
            if byte < 0x80:
                return value
        raise CheckpointError(f'tokenizer.model: damaged at byte {place}')

    while place < len(message):
        tag = varint()
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(kind, -1)
        if kind == 2:
            size = varint()
        if not 0 <= size <= len(message) - place:
            raise CheckpointError(f'tokenizer.model: damaged at byte {place}')
        yield number, message[place:place + size]
        place += size


def _find(folder: str, given: str | None) -> dict[str, str]:
    """{path: our name} of the tokenizer; empty: there is none. Errors: CheckpointError."""
    if given is None:
        return _in_folder(folder)
    if os.path.isdir(given):
        found = _in_folder(given)
        if not found:
            raise CheckpointError(f'--tokenizer {given}: has none of tokenizer.model, '
                                  'tokenizer.json, vocab.json with merges.txt, encoder.json with '
                                  'vocab.bpe, and NAME.tiktoken')
        return found
    if os.path.isfile(given):
        return _of_file(given)
    raise CheckpointError(f'--tokenizer {given}: no such file or directory')


def _of_file(path: str) -> dict[str, str]:
    """The set that a file belongs to."""
    folder, name = os.path.dirname(path), os.path.basename(path)
    for files in SETS:
        if name in files and len(files) > 1:
            paths = {os.path.join(folder, theirs): ours for theirs, ours in files.items()}
            missing = [each for each in paths if not os.path.isfile(each)]
            if missing:
                raise CheckpointError(f'--tokenizer {path}: needs {missing[0]} too')
            return paths
    if name.endswith('.tiktoken') or _is_tiktoken(path):
        return {path: _tiktoken_name(path)}
    if name.endswith('.json'):
        return {path: 'tokenizer.json'}
    return {path: 'tokenizer.model'}


def num_tokens(files: Files) -> int | None:
    """One more than the largest id; None: not known. Errors: CheckpointError."""
    if 'tokenizer.json' in files.contents:
        return max(_with_tokens_beside(files), default=-1) + 1
    pieces = _pieces(files)
    if pieces is None:
        return None
    return max([*pieces.values(), *tokens_beside(files).values()]) + 1 if pieces else 0


def _pieces(files: Files) -> dict[str, int] | None:
    """{piece: id} of tokenizer.model or vocab.json. Errors: CheckpointError."""
    if 'tokenizer.model' in files.contents:
        return {piece: i for i, piece in
                enumerate(sentence_pieces(files.contents['tokenizer.model']))}
    ids = {token: i for token, i in files.json('vocab.json').items() if isinstance(i, int)}
    return ids or None


def tokens_beside(files: Files) -> dict[str, int]:
    """{token: id} of what stands beside tokenizer.model or vocab.json, as the server and
    transformers number them: those with an id, then the special ones without, which are pieces or
    get the next ids. Errors: CheckpointError.
    """
    pieces = _pieces(files) or {}
    decoder, special = files.json(CONFIG).get('added_tokens_decoder'), _special_texts(files)
    tokens = {_text(entry): int(i) for i, entry in decoder.items()
              if i.isdecimal()} if isinstance(decoder, dict) else {}
    for token, i in files.json(ADDED).items():
        is_stale = isinstance(decoder, dict) and token in special
        if isinstance(i, int) and not is_stale:
            tokens.setdefault(token, i)
    tokens.pop('', None)
    following = max([*pieces.values(), *tokens.values()], default=-1) + 1
    for token in special:
        if token not in tokens:
            tokens[token] = pieces.get(token, following)
            following = max(following, tokens[token] + 1)
    return tokens


def _with_tokens_beside(files: Files) -> dict[int, str]:
    """{id: token} of tokenizer.json, and of the tokens beside it that it lacks: transformers and
    the server give each of those the next id. Errors: CheckpointError.
    """
    document = files.json('tokenizer.json')
    tokens, _ = _tokens_of_json(document, 'tokenizer.json')
    model, added = document['model'], document.get('added_tokens', [])
    assert isinstance(model, dict) and isinstance(added, list)
    ids = [entry['id'] for entry in added if isinstance(entry, dict)
           and isinstance(entry.get('id'), int)]
    following = max([len(model.get('vocab') or ()), *(i + 1 for i in ids)])
    known = set(tokens.values())
    for token in [*_listed_beside(files), *_special_texts(files)]:
        if token not in known:
            tokens[following] = token
            known.add(token)
            following += 1
    return tokens


def missing_tokens(files: Files) -> list[tuple[str, bool]]:
    """(token, whether it is special) of what stands beside tokenizer.json and is not in it, in
    order of their ids. Errors: CheckpointError.
    """
    tokens, _ = _tokens_of_json(files.json('tokenizer.json'), 'tokenizer.json')
    decoder, special = files.json(CONFIG).get('added_tokens_decoder'), _special_texts(files)
    entries = list(decoder.values()) if isinstance(decoder, dict) else []
    special += [_text(entry) for entry in entries if isinstance(entry, dict)
                and entry.get('special', True) is not False]
    found = dict.fromkeys([*_listed_beside(files), *_special_texts(files)])
    return [(each, each in special) for each in found if each not in tokens.values()]


def _listed_beside(files: Files) -> list[str]:
    """The tokens of added_tokens_decoder, or else of added_tokens.json, by id."""
    decoder = files.json(CONFIG).get('added_tokens_decoder')
    if not isinstance(decoder, dict):
        ids = {token: i for token, i in files.json(ADDED).items() if isinstance(i, int)}
        return sorted(filter(None, ids), key=lambda token: ids[token])
    texts = {int(i): _text(entry) for i, entry in decoder.items() if i.isdecimal()}
    return [text for _, text in sorted(texts.items()) if text]


def _special_texts(files: Files) -> list[str]:
    """bos_token and so on, then the further special tokens, in transformers' order."""
    config = {**files.json(CONFIG), **files.json(SPECIAL_MAP)}
    texts = [_text(config.get(f'{name}_token')) for name in (
        'bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask')]
    for name in 'additional_special_tokens', 'extra_special_tokens':
        listed = config.get(name)
        if isinstance(listed, (list, dict)):
            texts += map(_text, listed.values() if isinstance(listed, dict) else listed)
    return [text for text in texts if text]


def _text(token: object) -> str:
    """The text of a token, "" where it has none."""
    value = token.get('content') if isinstance(token, dict) else token
    return value if isinstance(value, str) else ''


def special_tokens(files: Files) -> tuple[dict[str, str], list[str]]:
    """(bos_token and so on by transformers' names, further special tokens).

    Errors: CheckpointError.
    """
    config, listed = files.json(CONFIG), files.json(SPECIAL_MAP)
    named = {}
    for name in ('bos_token', 'eos_token', 'unk_token', 'pad_token', 'sep_token', 'cls_token'):
        value = (listed if name in listed else config).get(name)
        if isinstance(value, dict):
            value = value.get('content')
        if isinstance(value, str):
            named[name] = value
    others = [token for token in [*files.json(ADDED), *_special_texts(files)] if token]
    entries: list[object] = []
    decoder = config.get('added_tokens_decoder')
    if isinstance(decoder, dict):
        entries += decoder.values()
    added = files.json('tokenizer.json').get('added_tokens')
    if isinstance(added, list):
        entries += added
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get('content'), str) and entry['content']:
            others.append(entry['content'])
    return named, others


def chat_template(files: Files) -> str | None:
    """The chat template: chat_template.jinja, or the default one of tokenizer_config.json.

    Errors: CheckpointError where it is no text.
    """
    content = files.contents.get(TEMPLATE)
    if content is not None:
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise CheckpointError(f'{TEMPLATE}: is not UTF-8') from None
    template = files.json(CONFIG).get('chat_template')
    if isinstance(template, list):  # transformers 4: [{"name": ..., "template": ...}]
        named = {each.get('name'): each.get('template') for each in template
                 if isinstance(each, dict)}
        template = named.get('default')
    if template is None or isinstance(template, str):
        return template
    raise CheckpointError(f'{CONFIG}: chat_template must be a text')
