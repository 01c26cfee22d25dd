"""The error of this package, and checked access to files and JSON."""

import json
import math
import os
import stat
import typing
from typing import TypeAlias

JsonObject: TypeAlias = dict[str, object]

MAX_JSON_BYTES = 100_000_000


class CheckpointError(Exception):
    """Something in a source, a checkpoint or the command line is wrong: a sentence for the user."""


class UsageError(CheckpointError):
    """The command line is wrong or incomplete."""


def is_there(path: str) -> bool:
    """Whether an optional file is there. Errors: CheckpointError for a link to nothing, which is
    not left out in silence."""
    if os.path.islink(path) and not os.path.exists(path):
        raise CheckpointError(f'{path}: is a link to a file that does not exist')
    return os.path.exists(path)


def quote(text: str, limit: int = 200) -> str:
    """A text of a file for an error: in quotes, without control characters, cut at `limit`."""
    shown = text[:limit] + ('...' if len(text) > limit else '')
    return json.dumps(shown, ensure_ascii=not shown.isprintable())


def show(value: object) -> str:
    """A value of a file or of the command line for an error: JSON where it can be, cut if long.

    No more than what is shown is written: a list of a pickle may hold the same list many times.
    """
    text = ''
    for part in json.JSONEncoder(default=repr).iterencode(value):
        text += part
        if len(text) > 100:
            return text[:100] + '...'
    return text


def _unique(pairs: list[tuple[str, object]]) -> JsonObject:
    """Members of a JSON object. Errors: CheckpointError where a name appears twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise CheckpointError(f'{quote(name)} appears twice')
            names.add(name)
    return members


def _refuse(word: str) -> typing.NoReturn:
    """NaN and Infinity, which Python would take and the server does not."""
    raise ValueError(f'{word} is no number')


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text[:100])


def parse_json_object(text: bytes, source: str) -> JsonObject:
    """The object in `text`. Errors: CheckpointError that starts with `source`."""
    if len(text) > MAX_JSON_BYTES:
        raise CheckpointError(f'{source}: {len(text)} bytes of JSON; the limit is {MAX_JSON_BYTES}')
    try:
        parsed: object = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse,
                                    parse_float=_finite)
    except CheckpointError as error:
        raise CheckpointError(f'{source}: {error}') from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f'{source}: not JSON: {error}') from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f'{source}: must be a JSON object')
    return parsed


def open_regular(path: str) -> typing.BinaryIO:
    """Opens a regular file without waiting: a FIFO has no end. Errors: CheckpointError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(f'{path}: {error.strerror}') from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f'{path}: is no regular file')
    return os.fdopen(descriptor, 'rb')


def read_json_object(path: str) -> JsonObject:
    """The object in a file. Errors: CheckpointError that starts with the path."""
    with open_regular(path) as file:
        return parse_json_object(file.read(MAX_JSON_BYTES + 1), path)
