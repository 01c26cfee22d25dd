"""`lssar export`: a checkpoint directory for other programs. `lssar import` reads each format."""

import json
import os
import shutil

import numpy as np

from lssar.checkpoints import directory, golden, names, settings, sources, tensor_file
from lssar.checkpoints.arrays import Array
from lssar.checkpoints.errors import CheckpointError, JsonObject

TOKENIZERS = ('tokenizer.model', 'tokenizer.json', 'vocab.json', 'merges.txt', 'encoder.json',
              'vocab.bpe', 'tokenizer_config.json', 'chat_template.jinja', 'chat_roles.json',
              'generation_config.json', 'added_tokens.json')


def load(path: str) -> tuple[JsonObject, dict[str, Array]]:
    """(config.json with our names only, tensors by our names as [out, in]) of a directory.

    Errors: CheckpointError where it is no directory of this server, or has int8 or int4 weights.
    """
    source = sources.read(path, set())
    if source.format != 'lssar':
        raise CheckpointError(f'{path}: is a source, not a checkpoint of this server; import it '
                              'first')
    integral = [name for name in source.tensors if name.endswith('.weight_scale')]
    if integral:
        raise CheckpointError(f'{path}: has int8 or int4 weights ({integral[0]}); give the '
                              'checkpoint that was quantized')
    mapped = names.apply(source.rules, source.tensors)
    if mapped.unknown:
        raise CheckpointError(f'{path}: unknown tensors: {", ".join(mapped.unknown[:10])}')
    tensors = {name: np.ascontiguousarray(tensor.T) if source.is_transposed and tensor.ndim == 2
               and name.startswith('h.') else tensor for name, tensor in mapped.tensors.items()}
    config = {field: source.recorded[field] for field in settings.FIELDS
              if field in source.recorded}
    return config, tensors


def copy_others(path: str, out: str) -> None:
    """Tokenizer and golden rows."""
    for name in os.listdir(path):
        if name in TOKENIZERS or name == golden.NAME or name.endswith('.tiktoken'):
            shutil.copyfile(os.path.join(path, name), os.path.join(out, name))


def check_file(path: str, out: str, overwrite: bool) -> None:
    """Errors: CheckpointError where the file `out` cannot be written, or is there, unless
    `overwrite`; also then where it is a file of the checkpoint `path`."""
    directory.check_named(out)
    if os.path.isdir(out):
        raise CheckpointError(f'{out}: is a directory, not a file')
    if os.path.lexists(out):
        if not overwrite:
            raise CheckpointError(f'{out}: exists; --overwrite replaces it')
        read = [path, *(os.path.join(path, name) for name in os.listdir(path))]
        if os.path.realpath(out) in map(os.path.realpath, read):
            raise CheckpointError(f'{out}: is read; --overwrite would delete it, --out must name '
                                  'another file')


def _write_torch(config: JsonObject, tensors: dict[str, Array], out: str) -> None:
    """A .pt as nanoGPT writes it."""
    import torch

    from lssar.checkpoints import torch_file

    model = {name if name == 'lm_head.weight' else 'transformer.' + name:
             torch_file.from_array(tensor)
             for name, tensor in tensors.items()}
    torch.save({'model': model, 'model_args': config}, out + '.tmp')
    os.replace(out + '.tmp', out)


def run(path: str, kind: str, out: str, overwrite: bool) -> str:
    """Exports. -> what was written. Errors: CheckpointError."""
    if kind != 'torch':
        directory.check_target(out, overwrite, [path])
    elif os.path.isdir(path):
        check_file(path, out, overwrite)
    config, tensors = load(path)
    if kind == 'torch':
        _write_torch(config, tensors, out)
        return f'{out}: {len(tensors)} tensors, model and model_args'
    metadata = {'format': 'pt', 'exported_from': json.dumps(directory.checkpoint_hash(path))}
    with directory.new_directory(out, overwrite) as scratch:
        directory.write_config(config, scratch)
        tensor_file.write(os.path.join(scratch, directory.WEIGHTS), [
            tensor_file.output_of(_name(name, kind), tensor) for name, tensor in tensors.items()],
            metadata)
        copy_others(path, scratch)
    return f'{out}: {len(tensors)} tensors, names of {"GGUF" if kind == "gguf-names" else "GPT-2"}'


def _name(name: str, kind: str) -> str:
    if kind == 'gguf-names':
        return names.gguf_name(name)
    return name if name == 'lm_head.weight' else 'transformer.' + name
