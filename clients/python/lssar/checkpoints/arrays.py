"""Tensors as numpy arrays. numpy has no bfloat16: such an array has the type BF16, two plain bytes.

Reshaping, slicing, transposing and joining work on BF16 arrays; widen() before any arithmetic.
"""

import typing

import numpy as np

Array: typing.TypeAlias = np.ndarray

DType: typing.TypeAlias = np.dtype[typing.Any]

BF16: DType = np.dtype('V2')
# By the names of safetensors.
TYPES: dict[str, DType] = {
    'F64': np.dtype('<f8'), 'F32': np.dtype('<f4'), 'F16': np.dtype('<f2'), 'BF16': BF16,
    'I64': np.dtype('<i8'), 'I32': np.dtype('<i4'), 'I16': np.dtype('<i2'), 'I8': np.dtype('i1'),
    'U64': np.dtype('<u8'), 'U32': np.dtype('<u4'), 'U16': np.dtype('<u2'), 'U8': np.dtype('u1'),
    'BOOL': np.dtype('?'),
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
FLOATS = ('F64', 'F32', 'F16', 'BF16')
BLOCK_ELEMENTS = 1 << 24


def type_name(array: Array) -> str:
    """The name in TYPES of an array's type."""
    return NAMES[array.dtype]


def widen(array: Array, dtype: typing.Any = np.float64) -> Array:
    """The values in a wider type: exact, or float32 rounded from float64."""
    if array.dtype == BF16:
        bits = array.view(np.dtype('<u2')).astype(np.uint32) << 16
        return bits.view(np.float32).astype(dtype, copy=False)
    return array.astype(dtype, copy=False)


def _to_bf16(array: Array) -> Array:
    """Rounds float32 values to the nearest bfloat16, ties to even. NaN stays NaN."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + (0x7fff + (bits >> 16 & 1))) >> 16
    rounded = np.where(np.isnan(array), 0x7fc0, rounded)
    return rounded.astype(np.dtype('<u2')).view(BF16)


def convert(array: Array, name: str) -> Array:
    """The array in a type of TYPES, rounded to nearest."""
    if NAMES.get(array.dtype) == name:
        return array
    with np.errstate(over='ignore'):  # to fp16: checked by who asks for it
        if name == 'BF16':
            return _to_bf16(widen(array, np.float32))
        return widen(array, TYPES[name])


def equal(a: Array, b: Array) -> bool:
    """True if shapes, types and values are the same."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype == BF16:
        a, b = a.view(np.dtype('<u2')), b.view(np.dtype('<u2'))
    return bool(np.array_equal(a, b))


def to_bytes(array: Array) -> memoryview:
    """The elements in memory order."""
    flat: Array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.data


def log_softmax(logits: Array) -> Array:
    """The log-softmax over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
