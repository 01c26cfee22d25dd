"""PyTorch's .pt and .bin files: torch's weights-only loader reads them, after checks of our own.

The weights-only loader executes no code of a file. Before it sees a file, this module checks what
the loader leaves open: the zip archive stores its records uncompressed and without overlap, its
pickle has nothing but dicts, lists, numbers, texts and tensors, and each storage has the size of
its record. The check walks the opcodes of the pickle and builds no object.
"""

import dataclasses
import mmap
import pickletools
import re
import struct
import zipfile

import numpy as np
import torch

from lssar.checkpoints.arrays import BF16, Array
from lssar.checkpoints.errors import CheckpointError, JsonObject, open_regular, show

# The weights-only loader of earlier versions can be made to execute code (CVE-2025-32434), and that
# of 1.13 refuses floats.
MIN_TORCH = (2, 6)
MAX_PICKLE_BYTES = 64 << 20
MAX_OPCODES = 1 << 21  # torch.save writes about 40 for a tensor
MAX_RECORDS = 1 << 20

STORAGE_BYTES = {
    'DoubleStorage': 8, 'FloatStorage': 4, 'HalfStorage': 2, 'BFloat16Storage': 2,
    'LongStorage': 8, 'IntStorage': 4, 'ShortStorage': 2, 'CharStorage': 1, 'ByteStorage': 1,
    'BoolStorage': 1,
}
DTYPES = ('float64', 'float32', 'float16', 'bfloat16', 'int64', 'int32', 'int16', 'int8', 'uint8',
          'bool')

# What torch.save writes for dicts, lists, numbers, texts and tensors. Sets, classes of other
# modules and protocol 4 are not among them.
OPCODES = frozenset((
    'PROTO', 'STOP', 'MARK', 'NONE', 'NEWTRUE', 'NEWFALSE', 'BININT', 'BININT1', 'BININT2', 'LONG1',
    'BINFLOAT', 'BINUNICODE', 'EMPTY_DICT', 'EMPTY_LIST', 'EMPTY_TUPLE', 'TUPLE', 'TUPLE1',
    'TUPLE2', 'TUPLE3', 'APPEND', 'APPENDS', 'SETITEM', 'SETITEMS', 'BINPUT', 'LONG_BINPUT',
    'BINGET', 'LONG_BINGET', 'GLOBAL', 'REDUCE', 'BUILD', 'BINPERSID'))

HOW_TO_RESAVE = (
    'load it where it was made and save only dicts, lists, numbers, texts and tensors, such as '
    "torch.save({'model': model.state_dict(), 'model_args': dict(...)}, PATH)")


GLOBALS = frozenset((
    'collections OrderedDict', 'torch._utils _rebuild_tensor_v2', 'torch._utils _rebuild_parameter',
    'torch Size', *(f'torch {name}' for name in STORAGE_BYTES),
    *(f'torch {name}' for name in DTYPES)))


@dataclasses.dataclass(frozen=True)
class _Record:
    """Bytes of the file."""

    begin: int
    num_bytes: int


def _check_storage(values: list[object], records: dict[str, _Record]) -> None:
    """The id of a storage: ('storage', type, key, device, number of elements)."""
    if len(values) != 5 or values[0] != 'storage':
        raise CheckpointError(f'a persistent id that is not a storage: {show(values)}')
    _, kind, key, _, num_elements = values
    item_bytes = STORAGE_BYTES.get(str(kind).removeprefix('torch '))
    if item_bytes is None or not isinstance(key, str) or not isinstance(num_elements, int):
        raise CheckpointError(f'a storage without type, key or size: {show(values)}')
    if key not in records:
        raise CheckpointError(f'storage {key} has no record')
    if num_elements * item_bytes != records[key].num_bytes:
        raise CheckpointError(f'storage {key} claims {num_elements} elements of {item_bytes} '
                              f'bytes; its record has {records[key].num_bytes} bytes')


def _check_pickle(data: bytes, records: dict[str, _Record]) -> None:
    """Walks the opcodes.

    torch.save writes the id of a storage as MARK, five values, TUPLE, BINPERSID. `values` are those
    since the last MARK; what is neither text, name nor number counts as None.

    Errors: CheckpointError for an opcode or a name that torch.save does not write for dicts, lists,
    numbers, texts and tensors, and for a storage that differs from its record. ValueError: damaged.
    """
    values: list[object] = []
    memo: dict[object, object] = {}
    before = ''  # the opcode before this one, other than BINPUT
    for i, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if i >= MAX_OPCODES:
            raise CheckpointError(f'its pickle has more than {MAX_OPCODES} opcodes, which is the '
                                  'limit')
        if name == 'GLOBAL' and argument not in GLOBALS:
            raise CheckpointError(f'it holds an object of {str(argument).replace(" ", ".")}, which '
                                  f'takes code to load; {HOW_TO_RESAVE}')
        if name not in OPCODES:
            raise CheckpointError(f'its pickle has the opcode {name}, which torch.save does not '
                                  f'write for tensors; {HOW_TO_RESAVE}')
        if name in ('BINPUT', 'LONG_BINPUT'):
            is_scalar = before in ('BINUNICODE', 'GLOBAL') and values
            memo[argument] = values[-1] if is_scalar else None
            continue
        if name == 'BINPERSID':
            if before != 'TUPLE':
                raise CheckpointError('a persistent id that is not a storage')
            _check_storage(values, records)
        if name == 'MARK':
            values = []
        elif name in ('BINGET', 'LONG_BINGET'):
            values.append(memo.get(argument))
        elif name != 'TUPLE':
            values.append(argument)
        before = name


def _record_begin(data: mmap.mmap, entry: zipfile.ZipInfo) -> int:
    """The first byte of a record, behind its local header."""
    header = data[entry.header_offset:entry.header_offset + 30]
    if len(header) != 30 or header[:4] != b'PK\x03\x04':
        raise CheckpointError(f'record {entry.filename} has no local header')
    name_bytes = int.from_bytes(header[26:28], 'little')
    extra_bytes = int.from_bytes(header[28:30], 'little')
    begin = entry.header_offset + 30
    if data[begin:begin + name_bytes] != entry.filename.encode():
        raise CheckpointError(f'record {entry.filename} has another name in its local header')
    return begin + name_bytes + extra_bytes


def _read_records(archive: zipfile.ZipFile, data: mmap.mmap) -> dict[str, _Record]:
    """The records by name, uncompressed and without overlap."""
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    if len(entries) > MAX_RECORDS:
        raise CheckpointError(f'{len(entries)} records; the limit is {MAX_RECORDS}')
    records: dict[str, _Record] = {}
    place = 0
    for entry in entries:
        if entry.filename in records:
            raise CheckpointError(f'two records are called {entry.filename}')
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise CheckpointError(f'record {entry.filename} is compressed; torch.save compresses '
                                  'nothing')
        if entry.header_offset < place:
            raise CheckpointError(f'record {entry.filename} overlaps the one before it')
        begin = _record_begin(data, entry)
        place = begin + entry.file_size
        if place > len(data):
            raise CheckpointError(f'record {entry.filename} ends at byte {place}, the file at '
                                  f'{len(data)}')
        records[entry.filename] = _Record(begin, entry.file_size)
    return records


def _check_directory(data: mmap.mmap) -> None:
    """The list of records ends where the archive's end begins. A reader may look for the list at
    the place that the end states, as torch's does, or before the end, as Python's does: elsewhere
    there would be another list.

    Source: PKWARE's APPNOTE 4.3.14 to 4.3.16. Errors: CheckpointError.
    """
    place = len(data) - 22
    if data[place:place + 4] != b'PK\x05\x06':
        raise CheckpointError('its zip archive is cut, or has a comment: torch.save writes none')
    num_bytes, begin = struct.unpack('<12xII2x', data[place:])
    if data[place - 20:place - 16] == b'PK\x06\x07':
        [stated] = struct.unpack('<8xQ4x', data[place - 20:place])
        place -= 20 + 56
        if stated != place:
            raise CheckpointError(f'its zip64 end is at byte {place}, and said to be at {stated}')
        num_bytes, begin = struct.unpack('<40xQQ', data[place:place + 56])
    if begin + num_bytes != place:
        raise CheckpointError(f'its list of records is said to end at byte {begin + num_bytes}, '
                              f'but the archive ends at {place}')


def _check(path: str) -> None:
    """Errors: CheckpointError, and others where the file is damaged."""
    with open_regular(path) as file:
        if file.read(4) != b'PK\x03\x04':
            raise CheckpointError(
                'it is not a zip archive of torch.save; the format of PyTorch before 1.6 is not '
                'read: load it with a current PyTorch and save it again')
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        _check_directory(data)
        with zipfile.ZipFile(file) as archive:
            records = _read_records(archive, data)
    pickles = [name for name in records if name.endswith('/data.pkl') and name.count('/') == 1]
    if len(pickles) != 1:
        raise CheckpointError(f'it has {len(pickles)} records NAME/data.pkl; must have one')
    folder = pickles[0].removesuffix('data.pkl')
    text, order = records[pickles[0]], records.get(folder + 'byteorder')
    if text.num_bytes > MAX_PICKLE_BYTES:
        raise CheckpointError(f'{pickles[0]} has {text.num_bytes} bytes; the limit is '
                              f'{MAX_PICKLE_BYTES}')
    if order and data[order.begin:order.begin + order.num_bytes] != b'little':
        raise CheckpointError('it was written on a big-endian machine')
    storages = {name.removeprefix(folder + 'data/'): record for name, record in records.items()
                if name.startswith(folder + 'data/')}
    _check_pickle(data[text.begin:text.begin + text.num_bytes], storages)


def check(path: str) -> None:
    """Errors: CheckpointError where the file is no archive of torch.save, or damaged or hostile."""
    try:
        _check(path)
    except CheckpointError as error:
        raise CheckpointError(f'{path}: {error}') from None
    except OSError as error:
        raise CheckpointError(f'{path}: {error.strerror or error}') from None
    except Exception as error:  # a damaged archive or pickle raises nearly anything
        raise CheckpointError(f'{path}: damaged: {type(error).__name__}: {error}') from None


def _require_torch() -> None:
    """Errors: CheckpointError where the loader of this PyTorch is not safe."""
    found = re.match(r'(\d+)\.(\d+)', str(torch.__version__))
    if not found or (int(found[1]), int(found[2])) < MIN_TORCH:
        raise CheckpointError(
            f'reading .pt and .bin files needs PyTorch {MIN_TORCH[0]}.{MIN_TORCH[1]} or later, '
            f'this is {torch.__version__}: the weights-only loader of earlier versions can be made '
            "to execute code (CVE-2025-32434); pip install 'torch>=2.6'")


def load(path: str) -> JsonObject:
    """The dict in a file of torch.save. Its tensors share the memory-mapped file.

    Errors: CheckpointError where check() fails, where the file needs code to be loaded, or where it
    holds no dict with texts as keys.
    """
    check(path)
    _require_torch()
    try:
        loaded: object = torch.load(path, map_location='cpu', weights_only=True, mmap=True)
    except Exception as error:
        raise CheckpointError(f"{path}: torch's weights-only loader refuses it: {error}") from None
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise CheckpointError(f'{path}: holds a {type(loaded).__name__}; must be a dict whose keys '
                              'are texts')
    return loaded


def is_state_dict(value: object) -> bool:
    """True for a dict of tensors by name."""
    return isinstance(value, dict) and bool(value) and all(
        isinstance(key, str) and isinstance(tensor, torch.Tensor) for key, tensor in value.items())


def to_array(tensor: torch.Tensor) -> Array:
    """An array that shares the tensor's memory."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(BF16)
    array: Array = tensor.numpy()
    return array


def from_array(array: Array) -> torch.Tensor:
    """A tensor with a copy of the array's elements."""
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
