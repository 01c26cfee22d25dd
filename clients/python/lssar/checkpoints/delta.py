"""A delta: what training changed in a checkpoint, small enough to keep and to send.

A directory of two files.

delta.json  {"format": "lssar-delta-1",
             "base": {FILE: sha256, ...},       the files that `lssar import` reads, by their names
             "import": {"dtype": T, "set": {FIELD: VALUE}, "ignore": [FIELD]},
             "config": {FIELD: VALUE},          fields of config.json that the delta replaces
             "checkpoint": sha256}              content_hash() of what import builds
delta.safetensors  a matrix NAME [rows, cols]: I8 of that shape and NAME_scale, BF16
             [rows, ceil(cols / 64)], whose product is added to the base's matrix; a vector: F32,
             added to the base's. Sums are rounded from float32 to the type of the base's tensor.

The base is checked before anything is built, and the result before it gets its name. Every step is
arithmetic on single elements, so the result has the same bits on every machine.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping

import numpy as np

from lssar.checkpoints import tensor_file
from lssar.checkpoints.arrays import NAMES, Array, convert, to_bytes, type_name, widen
from lssar.checkpoints.errors import CheckpointError, JsonObject, read_json_object, show
from lssar.checkpoints.quantize import GROUP_COLS, quantize

FORMAT = 'lssar-delta-1'
MANIFEST = 'delta.json'
TENSORS = 'delta.safetensors'
SCALE = '_scale'


def content_hash(config: Mapping[str, object], tensors: Mapping[str, Array]) -> str:
    """SHA-256 of config and tensors, in whatever order and file they are stored."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f'\n{name} {NAMES[tensor.dtype]} {list(tensor.shape)}\n'.encode())
        digest.update(to_bytes(tensor))
    return digest.hexdigest()


def _object(manifest: JsonObject, field: str, path: str) -> JsonObject:
    value = manifest.get(field)
    if not isinstance(value, dict):
        raise CheckpointError(f'{path}: {field} must be an object')
    return value


def _wide(file: tensor_file.TensorFile, name: str) -> Array:
    """The float32 difference of a tensor."""
    codes = file.tensor(name)
    if codes.ndim != 2:
        if type_name(codes) != 'F32':
            raise CheckpointError(f'{file.path}: tensor "{name}" is {type_name(codes)} of '
                                  f'{codes.ndim} axes; must be F32, or I8 of two')
        return codes
    groups = -(-codes.shape[1] // GROUP_COLS)
    scales = file.tensor(name + SCALE) if name + SCALE in file.entries else None
    if (type_name(codes) != 'I8' or scales is None or type_name(scales) != 'BF16'
            or scales.shape != (codes.shape[0], groups)):
        raise CheckpointError(f'{file.path}: tensor "{name}" must be I8 with "{name}{SCALE}", BF16 '
                              f'[{codes.shape[0]}, {groups}]')
    steps = np.repeat(widen(scales, np.float32), GROUP_COLS, 1)[:, :codes.shape[1]]
    difference: Array = codes.astype(np.float32) * steps
    return difference


@dataclasses.dataclass(frozen=True)
class Delta:
    """A delta of a directory, checked."""

    path: str
    base: dict[str, str]  # file name: sha256
    dtype: str | None  # of `lssar import`
    given: JsonObject
    ignored: set[str]
    config: JsonObject
    checkpoint: str
    differences: dict[str, Array]  # by our names, float32

    def check_base(self, hashes: Mapping[str, str]) -> None:
        """hashes: {path: sha256} of the source. Errors: CheckpointError if it is another base."""
        found = {os.path.basename(path): digest for path, digest in hashes.items()}
        for name, digest in self.base.items():
            # One file may have been renamed; several are told apart by their names.
            actual = found.get(name) or (list(found.values())[0] if len(found) == 1 else None)
            if actual != digest:
                raise CheckpointError(
                    f'{self.path}: made for a base whose {name} has sha256 {digest}; this one has '
                    f'{actual or "no such file"}')
        if len(found) != len(self.base):
            raise CheckpointError(f'{self.path}: made for a base of {len(self.base)} files '
                                  f'({", ".join(self.base)}); this one has {len(found)}')

    def apply(self, config: JsonObject, tensors: Mapping[str, Array]
              ) -> tuple[JsonObject, dict[str, Array]]:
        """(config, tensors) of the base -> those of the trained checkpoint.

        Errors: CheckpointError for a tensor that the base does not have, or has in another shape.
        """
        changed = dict(tensors)
        for name, difference in self.differences.items():
            base = tensors.get(name)
            if base is None or base.shape != difference.shape:
                shape = None if base is None else list(base.shape)
                raise CheckpointError(f'{self.path}: tensor "{name}" is {list(difference.shape)}; '
                                      f'the base has {shape or "none"}')
            changed[name] = convert(widen(base, np.float32) + difference, type_name(base))
        return {**config, **self.config}, changed

    def check_result(self, config: Mapping[str, object], tensors: Mapping[str, Array]) -> None:
        """Errors: CheckpointError unless this is the checkpoint that the delta was made from."""
        actual = content_hash(config, tensors)
        if actual != self.checkpoint:
            raise CheckpointError(f'{self.path}: the checkpoint that it builds has content sha256 '
                                  f'{actual}; must be {self.checkpoint}')


def read(path: str) -> Delta:
    """Errors: CheckpointError that names the file, the field or tensor and what it must be."""
    source = os.path.join(path, MANIFEST)
    manifest = read_json_object(source)
    if manifest.get('format') != FORMAT:
        raise CheckpointError(f'{source}: format is {show(manifest.get("format"))}; must be '
                              f'"{FORMAT}"')
    base, imported = _object(manifest, 'base', source), _object(manifest, 'import', source)
    dtype, ignored = imported.get('dtype'), imported.get('ignore', [])
    if dtype not in (None, 'fp32', 'fp16', 'bf16'):
        raise CheckpointError(f'{source}: import.dtype is {show(dtype)}; must be fp32, fp16, bf16 '
                              'or null')
    if not isinstance(ignored, list):
        raise CheckpointError(f'{source}: import.ignore must be a list of names')
    checkpoint = manifest.get('checkpoint')
    if not isinstance(checkpoint, str) or not base:
        raise CheckpointError(f'{source}: checkpoint must be a sha256, and base must name files')
    file = tensor_file.TensorFile(os.path.join(path, TENSORS))
    differences = {name: _wide(file, name) for name in file.entries if not name.endswith(SCALE)}
    return Delta(path, {name: str(digest) for name, digest in base.items()},
                 None if dtype is None else str(dtype), _object(imported, 'set', source),
                 {str(name) for name in ignored}, _object(manifest, 'config', source), checkpoint,
                 differences)


def write(path: str, base: Mapping[str, str], imported: JsonObject,
          base_config: JsonObject, base_tensors: Mapping[str, Array],
          config: JsonObject, trained: Mapping[str, Array]) -> Delta:
    """Writes a delta: `trained` tensors (float32) against those of the imported base.

    base: {file name: sha256}. imported: dtype, set and ignore of the import. config: the fields
    that change. Tensors that are equal to the base's are left out.
    """
    outputs = []
    for name, tensor in trained.items():
        difference = widen(tensor, np.float32) - widen(base_tensors[name], np.float32)
        if not difference.any():
            continue
        if difference.ndim == 2:
            codes, scales = quantize(difference)
            outputs += [tensor_file.output_of(name, codes),
                        tensor_file.output_of(name + SCALE, scales)]
        else:
            outputs.append(tensor_file.output_of(name, difference))
    os.makedirs(path, exist_ok=True)
    tensor_file.write(os.path.join(path, TENSORS), outputs, {'format': FORMAT})
    manifest = {'format': FORMAT, 'base': dict(base), 'import': imported, 'config': config,
                'checkpoint': ''}
    target = os.path.join(path, MANIFEST)
    with open(target, 'w', encoding='utf-8') as text:
        json.dump(manifest, text, indent=2)
    manifest['checkpoint'] = content_hash(*read(path).apply(base_config, base_tensors))
    with open(target + '.tmp', 'w', encoding='utf-8') as text:
        json.dump(manifest, text, indent=2)
        text.write('\n')
    os.replace(target + '.tmp', target)
    return read(path)
