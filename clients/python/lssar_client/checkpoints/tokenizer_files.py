"""Finds the files of a tokenizer and copies them under the names that the server reads."""

import base64
import binascii
import os
import shutil

from lssar_client.checkpoints.errors import CheckpointError

# File sets, best first: the source's names and ours.
SETS = (
    {'tokenizer.model': 'tokenizer.model'},
    {'tokenizer.json': 'tokenizer.json'},
    {'vocab.json': 'vocab.json', 'merges.txt': 'merges.txt'},
    {'encoder.json': 'vocab.json', 'vocab.bpe': 'merges.txt'},
)
# Encodings whose word pattern the server knows; the file does not have it.
TIKTOKEN = ('gpt2', 'r50k_base', 'p50k_base', 'cl100k_base', 'o200k_base')
BESIDE = 'tokenizer_config.json'
MAX_BYTES = 1 << 30


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
        if all(os.path.isfile(path) for path in paths):
            [first, *_] = paths
            if len(paths) == 1 and first.endswith('.model') and _is_tiktoken(first):
                return {first: _tiktoken_name(first)}
            return paths
    for name in TIKTOKEN:
        path = os.path.join(folder, name + '.tiktoken')
        if os.path.isfile(path):
            return {path: name + '.tiktoken'}
    return {}


def find(folder: str, given: str | None) -> dict[str, str]:
    """{path: our name} of the tokenizer, given or beside the source; empty: there is none.

    Errors: CheckpointError where the given path has none.
    """
    if given is None:
        found = _in_folder(folder)
    elif os.path.isdir(given):
        found = _in_folder(given)
        if not found:
            raise CheckpointError(f'--tokenizer {given}: has none of tokenizer.model, '
                                  'tokenizer.json, vocab.json with merges.txt, encoder.json with '
                                  'vocab.bpe, and NAME.tiktoken')
    elif os.path.isfile(given):
        found = _of_file(given)
    else:
        raise CheckpointError(f'--tokenizer {given}: no such file or directory')
    if found:
        beside = os.path.join(os.path.dirname(next(iter(found))), BESIDE)
        if os.path.isfile(beside):
            found[beside] = BESIDE
    for path in found:
        if os.path.getsize(path) > MAX_BYTES:
            raise CheckpointError(f'{path}: {os.path.getsize(path)} bytes; the limit is '
                                  f'{MAX_BYTES}')
    return found


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


def copy(found: dict[str, str], directory: str) -> None:
    """Copies the files that find() found."""
    for path, ours in found.items():
        shutil.copyfile(path, os.path.join(directory, ours))
