"""Safetensors files: a reader that checks every offset, and a writer that streams.

Source: https://github.com/huggingface/safetensors (format description).
"""

import dataclasses
import json
import math
import mmap
import os
import struct
import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lssar.checkpoints.arrays import TYPES, Array, DType, convert, to_bytes, type_name
from lssar.checkpoints.errors import (CheckpointError, open_regular, parse_json_object,
                                      show)

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_EXTENT = 1 << 40

ITEM_BYTES = {name: dtype.itemsize for name, dtype in TYPES.items()}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor of the header; begin and end are bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _integers(value: object, what: str, source: str) -> tuple[int, ...]:
    """A list of integers in [0, MAX_EXTENT]."""
    if not isinstance(value, list):
        raise CheckpointError(f'{source}: {what} must be a list of integers')
    for each in value:
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= MAX_EXTENT:
            raise CheckpointError(f'{source}: {what} holds {show(each)}; must be in [0, 2^40]')
    return tuple(value)


def _entry(name: str, value: object, data_begin: int, path: str) -> Entry:
    """One tensor of the header."""
    source = f'{path}: tensor "{name}"'
    if not isinstance(value, dict) or set(value) != {'dtype', 'shape', 'data_offsets'}:
        raise CheckpointError(f'{source}: must be an object of dtype, shape and data_offsets')
    dtype = value['dtype']
    if not isinstance(dtype, str) or dtype not in TYPES:
        raise CheckpointError(f'{source}: dtype is {show(dtype)}; must be one of '
                              f'{", ".join(TYPES)}')
    shape = _integers(value['shape'], 'shape', source)
    offsets = _integers(value['data_offsets'], 'data_offsets', source)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f'{source}: data_offsets is {list(offsets)}; must be [begin, end]')
    num_bytes = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != num_bytes:
        raise CheckpointError(f'{source}: data_offsets hold {offsets[1] - offsets[0]} bytes; '
                              f'{dtype} {list(shape)} has {num_bytes}')
    return Entry(dtype, shape, data_begin + offsets[0], data_begin + offsets[1])


def parse_header(data: mmap.mmap | bytes, path: str) -> tuple[dict[str, Entry], dict[str, str]]:
    """(tensors in file order, metadata). The tensors cover the data without gap or overlap.

    Errors: CheckpointError that names the file, the tensor, the value and the limit.
    """
    if len(data) < 8:
        raise CheckpointError(f'{path}: {len(data)} bytes; a safetensors file has 8 at least')
    [size] = struct.unpack('<Q', data[:8])
    if size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise CheckpointError(f'{path}: the header claims {size} bytes; the file has '
                              f'{len(data) - 8} behind its length, and the limit is '
                              f'{MAX_HEADER_BYTES}')
    header = parse_json_object(data[8:8 + size], path)
    metadata = header.pop('__metadata__', {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f'{path}: __metadata__ must be an object of strings')
    entries = {name: _entry(name, value, 8 + size, path) for name, value in header.items()}
    ordered = sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end))
    place = 8 + size
    for name, entry in ordered:
        if entry.begin != place:
            what = 'overlaps the tensor before it' if entry.begin < place else 'follows a gap'
            raise CheckpointError(f'{path}: tensor "{name}" {what}: it begins at byte '
                                  f'{entry.begin}, expected {place}')
        place = entry.end
    if place != len(data):
        raise CheckpointError(f'{path}: the tensors end at byte {place}, the file at {len(data)}')
    return dict(ordered), metadata


def map_file(path: str) -> mmap.mmap | bytes:
    """The bytes of a file, read-only. Errors: CheckpointError."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b''
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f'{path}: {error.strerror}') from None


def view(data: mmap.mmap | bytes, dtype: DType, count: int, offset: int) -> Array:
    """[count] elements that share the memory of `data`, read-only."""
    return np.frombuffer(data, dtype, count, offset)


class TensorFile:
    """A memory-mapped file. Tensors share its memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._data = map_file(path)
        self.entries, self.metadata = parse_header(self._data, path)

    def tensor(self, name: str) -> Array:
        """The tensor of a name in `entries`."""
        entry = self.entries[name]
        if entry.begin == entry.end:
            return np.empty(entry.shape, TYPES[entry.dtype])
        count = (entry.end - entry.begin) // ITEM_BYTES[entry.dtype]
        return view(self._data, TYPES[entry.dtype], count, entry.begin).reshape(entry.shape)

    def tensors(self) -> dict[str, Array]:
        """All of them."""
        return {name: self.tensor(name) for name in self.entries}


@dataclasses.dataclass(frozen=True)
class Output:
    """A tensor to write: made when its turn comes, so that one at a time is in memory."""

    name: str
    dtype: str
    shape: Sequence[int]
    make: Callable[[], Array]


def write(path: str, outputs: Sequence[Output], metadata: Mapping[str, str]) -> None:
    """Writes a file; it appears under its name when it is complete.

    Wide types come first, so that every tensor is aligned to its element.
    """
    ordered = sorted(outputs, key=lambda output: -ITEM_BYTES[output.dtype])
    header: dict[str, object] = {'__metadata__': dict(metadata)}
    offset = 0
    for output in ordered:
        end = offset + math.prod(output.shape) * ITEM_BYTES[output.dtype]
        header[output.name] = {'dtype': output.dtype, 'shape': list(output.shape),
                               'data_offsets': [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path + '.tmp', 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for output in ordered:
            tensor = output.make()
            if tuple(tensor.shape) != tuple(output.shape) or type_name(tensor) != output.dtype:
                raise AssertionError(f'{output.name}: {tensor.dtype} {tuple(tensor.shape)} was '
                                     f'announced as {output.dtype} {tuple(output.shape)}')
            file.write(to_bytes(tensor))
    os.replace(path + '.tmp', path)


def output_of(name: str, tensor: Array, dtype: str | None = None) -> Output:
    """`tensor` under `name`, converted to `dtype` when it is written."""
    target = dtype or type_name(tensor)
    return Output(name, target, tuple(tensor.shape), lambda: convert(tensor, target))
