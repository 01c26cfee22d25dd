"""GGUF files, versions 2 and 3: a reader that checks every length and offset before it uses it.

PyPI's `gguf` turns quantized blocks into numbers. The rest is read here: a damaged or hostile file
is one error, in bounded memory and time.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import dataclasses
import math
import mmap
import os
import struct
import tempfile
import typing

import numpy as np

from lssar.checkpoints import tensor_file
from lssar.checkpoints.arrays import BF16, Array, DType
from lssar.checkpoints.errors import CheckpointError, quote, show

MAGIC = b'GGUF'
VERSIONS = (2, 3)
MAX_FIELDS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = 1 << 16
MAX_TEXT_BYTES = 16 << 20
MAX_ELEMENTS = 1 << 22  # of all arrays together
MAX_METADATA_BYTES = 256 << 20
MAX_DIMS = 4
MAX_EXTENT = 1 << 40
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
BLOCK_BYTES = 1 << 24

_NUMBERS = {0: '<u1', 1: '<i1', 2: '<u2', 3: '<i2', 4: '<u4', 5: '<i4', 6: '<f4', 10: '<u8',
            11: '<i8', 12: '<f8'}
_BOOL, _TEXT, _ARRAY = 7, 8, 9


@dataclasses.dataclass(frozen=True)
class TensorType:
    """A type of ggml: blocks of `block` elements, `num_bytes` each."""

    name: str
    block: int
    num_bytes: int


PLAIN: dict[int, tuple[str, DType]] = {
    0: ('F32', np.dtype('<f4')), 1: ('F16', np.dtype('<f2')), 28: ('F64', np.dtype('<f8')),
    30: ('BF16', BF16)}
TENSOR_TYPES = {
    **{number: TensorType(name, 1, dtype.itemsize) for number, (name, dtype) in PLAIN.items()},
    2: TensorType('Q4_0', 32, 18), 3: TensorType('Q4_1', 32, 20), 6: TensorType('Q5_0', 32, 22),
    7: TensorType('Q5_1', 32, 24), 8: TensorType('Q8_0', 32, 34), 10: TensorType('Q2_K', 256, 84),
    11: TensorType('Q3_K', 256, 110), 12: TensorType('Q4_K', 256, 144),
    13: TensorType('Q5_K', 256, 176), 14: TensorType('Q6_K', 256, 210),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor: its rows are the last axis. begin and end are bytes from the start of the file."""

    type: int
    shape: tuple[int, ...]
    begin: int
    end: int


Value: typing.TypeAlias = 'int | float | bool | str | list[str] | list[int] | list[float]'


class _Reader:
    """A place in the bytes of a file. Errors: CheckpointError that names the byte."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self.place = 0
        self._end = min(len(data), MAX_METADATA_BYTES)
        self._elements = 0

    def take(self, count: int, what: str) -> bytes:
        """The next bytes."""
        if count > self._end - self.place:
            limit = ('the file ends' if self._end == len(self._data)
                     else 'the limit of metadata lies')
            raise CheckpointError(f'{what} at byte {self.place} has {count} bytes; {limit} at byte '
                                  f'{self._end}')
        begin, self.place = self.place, self.place + count
        return self._data[begin:self.place]

    def number(self, code: str, what: str) -> typing.Any:
        """A number by its struct code."""
        return struct.unpack('<' + code, self.take(struct.calcsize(code), what))[0]

    def text(self, limit: int, what: str) -> str:
        """A length and UTF-8. Vocabularies hold pieces that are no UTF-8: they keep their bytes as
        surrogates.
        """
        size = self.number('Q', f'the length of {what}')
        if size > limit:
            raise CheckpointError(f'{what} at byte {self.place} claims {size} bytes; the limit is '
                                  f'{limit}')
        return self.take(size, what).decode('utf-8', 'surrogateescape')

    def value(self, kind: int, what: str) -> Value:
        """A value of metadata."""
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            number: Value = np.frombuffer(self.take(dtype.itemsize, what), dtype)[0].item()
            return number
        if kind == _BOOL:
            flag = self.number('B', what)
            if flag > 1:
                raise CheckpointError(f'{what} is {flag}; a bool is 0 or 1')
            return bool(flag)
        if kind == _TEXT:
            return self.text(MAX_TEXT_BYTES, what)
        if kind != _ARRAY:
            raise CheckpointError(f'{what} has type {kind}; must be in [0, 12]')
        kind, count = self.number('I', what), self.number('Q', what)
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            raise CheckpointError(f'{what} claims {count} elements; the limit of all arrays is '
                                  f'{MAX_ELEMENTS}')
        if kind == _TEXT:
            return [self.text(MAX_TEXT_BYTES, what) for _ in range(count)]
        if kind not in _NUMBERS and kind != _BOOL:
            raise CheckpointError(f'{what} is an array of type {kind}; must be numbers, bools or '
                                  'texts')
        dtype = np.dtype(_NUMBERS.get(kind, '<u1'))
        numbers: list[int] = np.frombuffer(self.take(count * dtype.itemsize, what), dtype).tolist()
        return numbers


class GgufFile:
    """A memory-mapped file: `fields` is its metadata, `entries` its tensors in file order."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._data = tensor_file.map_file(path)
        self.fields: dict[str, Value] = {}
        self.entries: dict[str, Entry] = {}
        try:
            self._parse()
        except CheckpointError as error:
            raise CheckpointError(f'{path}: {error}') from None

    def _parse(self) -> None:
        reader = _Reader(self._data)
        if reader.take(4, 'the magic') != MAGIC:
            raise CheckpointError('is no GGUF file')
        version = reader.number('I', 'the version')
        if version not in VERSIONS:
            big = ' (a big-endian file is not read)' if version >= 1 << 16 else ''
            raise CheckpointError(f'GGUF version is {version}; must be 2 or 3{big}')
        num_tensors = reader.number('Q', 'the number of tensors')
        num_fields = reader.number('Q', 'the number of fields')
        if num_tensors > MAX_TENSORS or num_fields > MAX_FIELDS:
            raise CheckpointError(f'claims {num_tensors} tensors and {num_fields} fields; the '
                                  f'limits are {MAX_TENSORS} and {MAX_FIELDS}')
        for i in range(num_fields):
            key = reader.text(MAX_NAME_BYTES, f'the name of field {i}')
            kind = reader.number('I', f'the type of {quote(key)}')
            value = reader.value(kind, f'field {quote(key)}')
            if key in self.fields:
                raise CheckpointError(f'field {quote(key)} appears twice')
            self.fields[key] = value
        described = [self._describe(reader, i) for i in range(num_tensors)]
        alignment = self.fields.get('general.alignment', DEFAULT_ALIGNMENT)
        if (not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT
                or alignment & alignment - 1):
            raise CheckpointError(f'general.alignment is {show(alignment)}; must be a power of two '
                                  f'up to {MAX_ALIGNMENT}')
        data_begin = -(-reader.place // alignment) * alignment
        self._place(described, data_begin, alignment)

    def _describe(self, reader: _Reader, i: int) -> tuple[str, int, tuple[int, ...], int]:
        """-> (name, type, shape, offset in the data)."""
        name = reader.text(MAX_NAME_BYTES, f'the name of tensor {i}')
        what = f'tensor {quote(name)}'
        num_dims = reader.number('I', what)
        if not 1 <= num_dims <= MAX_DIMS:
            raise CheckpointError(f'{what} has {num_dims} axes; must be in [1, {MAX_DIMS}]')
        extents = [reader.number('Q', what) for _ in range(num_dims)]
        for extent in extents:
            if not 1 <= extent <= MAX_EXTENT:
                raise CheckpointError(f'{what} has the size {extent}; must be in [1, 2^40]')
        kind, offset = reader.number('I', what), reader.number('Q', what)
        return name, kind, tuple(reversed(extents)), offset

    def _place(self, described: list[tuple[str, int, tuple[int, ...], int]], data_begin: int,
               alignment: int) -> None:
        size, entries = len(self._data), {}
        for name, kind, shape, offset in described:
            what = f'tensor {quote(name)}'
            if name in entries:
                raise CheckpointError(f'{what} appears twice')
            layout = TENSOR_TYPES.get(kind)
            if layout is None:
                known = ', '.join(each.name for each in TENSOR_TYPES.values())
                raise CheckpointError(f'{what} has type {kind_name(kind)}; must be one of {known}')
            if shape[-1] % layout.block:
                raise CheckpointError(f'{what}: rows have {shape[-1]} elements; must be a multiple '
                                      f'of {layout.block} for {layout.name}')
            num_bytes = math.prod(shape) // layout.block * layout.num_bytes
            begin = data_begin + offset
            if begin + num_bytes > size:
                raise CheckpointError(f'{what} of {list(shape)} {layout.name} ends at byte '
                                      f'{begin + num_bytes}, the file at {size}')
            if offset % alignment:
                raise CheckpointError(f'{what} begins at byte {offset} of the data; must be a '
                                      f'multiple of {alignment}')
            entries[name] = Entry(kind, shape, begin, begin + num_bytes)
        ordered = sorted(entries.items(), key=lambda item: item[1].begin)
        for (before, first), (name, second) in zip(ordered, ordered[1:]):
            if first.end > second.begin:
                raise CheckpointError(f'tensor {quote(name)} overlaps tensor {quote(before)}')
        self.entries = dict(ordered)

    @property
    def quantized_types(self) -> list[str]:
        """The names of the block types in the file."""
        return sorted({TENSOR_TYPES[entry.type].name for entry in self.entries.values()
                       if entry.type not in PLAIN})

    def tensor(self, name: str) -> Array:
        """The tensor of a name in `entries`: a view of the file, or dequantized to float32.

        Dequantized elements are in a mapped scratch file, so that a large model takes disk and not
        memory.
        """
        entry = self.entries[name]
        if entry.type in PLAIN:
            dtype = PLAIN[entry.type][1]
            count = math.prod(entry.shape)
            return tensor_file.view(self._data, dtype, count, entry.begin).reshape(entry.shape)
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        layout = TENSOR_TYPES[entry.type]
        row_bytes = entry.shape[-1] // layout.block * layout.num_bytes
        blocks = np.frombuffer(self._data, np.uint8, entry.end - entry.begin, entry.begin)
        rows = blocks.reshape(-1, row_bytes)
        folder = tempfile.gettempdir()
        try:
            with tempfile.TemporaryFile(dir=folder) as scratch:
                # A full disk is an error here, and not a signal at the first write.
                os.posix_fallocate(scratch.fileno(), 0, 4 * math.prod(entry.shape))
                flat: Array = np.memmap(scratch, np.float32, 'r+',
                                        shape=(len(rows), entry.shape[-1]))
        except OSError as error:
            needed = 4 * sum(math.prod(each.shape) for each in self.entries.values()
                             if each.type not in PLAIN)
            raise CheckpointError(
                f'{folder}: {error.strerror}; dequantized tensors need {needed:,} '
                'bytes there; TMPDIR names another directory') from None
        num_rows = max(1, BLOCK_BYTES // row_bytes)
        for first in range(0, len(rows), num_rows):
            flat[first:first + num_rows] = dequantize(rows[first:first + num_rows],
                                                      GGMLQuantizationType(entry.type))
        return np.asarray(flat.reshape(entry.shape))

    def tensors(self) -> dict[str, Array]:
        """All of them."""
        return {name: self.tensor(name) for name in self.entries}


def kind_name(kind: int) -> str:
    """The name of a tensor type that is not read, as ggml has it, or its number."""
    from gguf.constants import GGMLQuantizationType

    try:
        return f'{GGMLQuantizationType(kind).name} ({kind})'
    except ValueError:
        return str(kind)
