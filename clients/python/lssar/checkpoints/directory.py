"""Writes checkpoint directories: complete or not at all."""

import contextlib
import hashlib
import json
import os
import pathlib
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from lssar.checkpoints.errors import CheckpointError

WEIGHTS = 'model.safetensors'
CONFIG = 'config.json'
MODEL_TYPE = 'lssar_gpt'
ORIGIN = 'origin.json'
METADATA = {'format': 'pt'}  # of model.safetensors, for transformers
BLOCK_BYTES = 1 << 20


def check_target(path: str, overwrite: bool, read: Iterable[str | None] = ()) -> None:
    """Errors: CheckpointError where `path` is '', where it exists and is not empty, unless
    `overwrite`; also then where it holds one of the files and directories that are `read`, or what
    links in them lead to, and where it is no checkpoint of this server, because it would be deleted
    with all that is in it.
    """
    check_named(path)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise CheckpointError(f'{path}: is no directory')
    if os.path.isdir(path) and os.listdir(path):
        if not overwrite:
            raise CheckpointError(f'{path}: exists; --overwrite replaces it')
        if not os.path.exists(os.path.join(path, CONFIG)):
            raise CheckpointError(f'{path}: has no {CONFIG}, so it is no checkpoint; not replaced')
        for each in filter(None, read):
            _refuse_inside(path, each)
        _refuse_foreign(path)


def check_named(path: str) -> None:
    """Errors: CheckpointError where `path` is '', which realpath() takes as the working directory.
    """
    if not path:
        raise CheckpointError("--out: '' is no path; it must have a character at least")


def is_own(config: object) -> bool:
    """True for the content of a config.json of this server."""
    return (isinstance(config, dict) and config.get('model_type') in (MODEL_TYPE, None)
            and isinstance(config.get('attention'), (dict, list)))


def _refuse_foreign(folder: str) -> None:
    """Errors: CheckpointError where `folder` is no checkpoint that this package wrote."""
    path = os.path.join(folder, CONFIG)
    try:
        with open(path, encoding='utf-8') as file:
            config = json.load(file)
    except (OSError, ValueError):
        config = None
    if not is_own(config):
        raise CheckpointError(f'{path}: has no model_type "{MODEL_TYPE}" with attention, so '
                              f'{folder} is no checkpoint of this server; not replaced')
    for name in sorted(os.listdir(folder)):
        if os.path.isdir(os.path.join(folder, name)):
            raise CheckpointError(f'{folder}: holds the directory {name}, which no checkpoint '
                                  'has; not replaced')


def _refuse_inside(folder: str, source: str) -> None:
    """Errors: CheckpointError where `source` or a file in it lies in `folder`."""
    files = [os.path.join(source, name) for name in os.listdir(source)
             ] if os.path.isdir(source) else []
    for path in source, *(file for file in files if not os.path.isdir(file)):
        if pathlib.Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise CheckpointError(f'{folder}: holds {path}, which is read; --overwrite would '
                                  'delete it, --out must name another directory')


@contextlib.contextmanager
def new_directory(path: str, overwrite: bool) -> Iterator[str]:
    """A directory beside `path` that takes its place at the end, unless an error is raised.

    Errors: those of check_target(); CheckpointError where it cannot be written.
    """
    check_target(path, overwrite)
    path = os.path.realpath(path)  # a link to a directory stays a link
    os.makedirs(os.path.dirname(path), exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=os.path.basename(path) + '.', dir=os.path.dirname(path))
    try:
        yield scratch
        os.chmod(scratch, 0o755)
        if overwrite and os.path.isdir(path):
            check_target(path, overwrite)  # again: the import took a while
            shutil.rmtree(path)
        os.rename(scratch, path)  # an error where others wrote there meanwhile
    except OSError as error:
        # A write has no name, a copy that of its source too.
        place = error.filename if error.filename and not error.filename2 else path
        raise CheckpointError(f'{place}: cannot be written: {error.strerror or error}') from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_config(config: Mapping[str, object], directory: str) -> None:
    """config.json."""
    with open(os.path.join(directory, CONFIG), 'w', encoding='utf-8') as file:
        json.dump({'model_type': MODEL_TYPE, **config}, file, indent=2)
        file.write('\n')


def sha256(path: str) -> str:
    """The hash of a file, in hex. Errors: CheckpointError."""
    digest = hashlib.sha256()
    try:
        with open(path, 'rb') as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise CheckpointError(f'{path}: {error.strerror}') from None
    return digest.hexdigest()


def checkpoint_hash(directory: str) -> str:
    """What `lssar info` shows: of config.json and the weights, 16 hex digits."""
    digest = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        with open(os.path.join(directory, name), 'rb') as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()[:16]


def write_origin(directory: str, command: str, **sources: object) -> None:
    """origin.json: what the checkpoint was made of, and how.

    Not the metadata of model.safetensors, which checkpoint_hash() covers: the same model has the
    same hash, whatever the names of its folders and the version of Python.
    """
    with open(os.path.join(directory, ORIGIN), 'w', encoding='utf-8') as file:
        json.dump({**sources, 'command': command,
                   'versions': f'python {platform.python_version()}, numpy {np.__version__}'},
                  file, indent=2)
        file.write('\n')
