"""model_*.bin of llm.c: GPT-2 in fp32 (version 3) or bf16 (version 5).

Source: https://github.com/karpathy/llm.c, train_gpt2.py (write_model) and train_gpt2.cu.
"""

import math
import struct

from lssar.checkpoints import tensor_file
from lssar.checkpoints.arrays import TYPES, Array, DType
from lssar.checkpoints.errors import CheckpointError, JsonObject

MAGIC = 20240326
HEADER_INTS = 256
DTYPES: dict[int, DType] = {3: TYPES['F32'], 5: TYPES['BF16']}
OTHER_MAGIC = {
    20240327: 'the activations that train_gpt2.py writes for tests (gpt2_*_debug_state.bin)',
    20240328: 'a tokenizer of llm.c; it cannot encode, so it is not read',
    20240520: 'training tokens of llm.c',
    20240522: 'evaluation data of llm.c',
    20240801: 'training tokens of llm.c for Llama 3',
    20240803: 'a Llama 3 model of llm.c; import the Hugging Face directory that it was made from',
}
OTHER_VERSION = {
    1: 'version 1, whose vocabulary is not padded, is not read; write it again with train_gpt2.py '
       'of May 2024 or later',
    2: 'version 2 is no version that llm.c released',
    4: 'version 4 was never released',
}
LIMITS = {'maximum length': 1 << 20, 'vocabulary': 1 << 20, 'layers': 1024, 'heads': 1024,
          'hidden size': 1 << 16, 'padded vocabulary': 1 << 20}


def is_llmc(start: bytes) -> bool:
    """True if the file that begins so is of llm.c, whatever it holds."""
    return len(start) >= 4 and (struct.unpack('<i', start[:4])[0] == MAGIC
                                or struct.unpack('<i', start[:4])[0] in OTHER_MAGIC)


def _layout(num_layers: int, c: int, max_length: int,
            padded: int) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) in file order; tensors of the layers are stacked."""
    return [
        ('wte.weight', (padded, c)), ('wpe.weight', (max_length, c)),
        ('ln_1.weight', (num_layers, c)), ('ln_1.bias', (num_layers, c)),
        ('attn.c_attn.weight', (num_layers, 3 * c, c)), ('attn.c_attn.bias', (num_layers, 3 * c)),
        ('attn.c_proj.weight', (num_layers, c, c)), ('attn.c_proj.bias', (num_layers, c)),
        ('ln_2.weight', (num_layers, c)), ('ln_2.bias', (num_layers, c)),
        ('mlp.c_fc.weight', (num_layers, 4 * c, c)), ('mlp.c_fc.bias', (num_layers, 4 * c)),
        ('mlp.c_proj.weight', (num_layers, c, 4 * c)), ('mlp.c_proj.bias', (num_layers, c)),
        ('ln_f.weight', (c,)), ('ln_f.bias', (c,)),
    ]


def load(path: str) -> tuple[JsonObject, dict[str, Array], int]:
    """(config.json fields that the header records, tensors by GPT-2's names, padding rows of wte).

    Errors: CheckpointError that names the value and what is read.
    """
    data = tensor_file.map_file(path)
    size = len(data)
    if size < HEADER_INTS * 4:
        raise CheckpointError(f'{path}: {size} bytes; the header of llm.c has {HEADER_INTS * 4}')
    header = struct.unpack(f'<{HEADER_INTS}i', data[:HEADER_INTS * 4])
    magic, version = header[:2]
    if magic in OTHER_MAGIC:
        raise CheckpointError(f'{path}: magic {magic} is {OTHER_MAGIC[magic]}')
    if magic != MAGIC:
        raise CheckpointError(f'{path}: magic is {magic}; must be {MAGIC}, a GPT-2 of llm.c')
    if version not in DTYPES:
        why = OTHER_VERSION.get(version, f'version {version} is not known')
        raise CheckpointError(f'{path}: {why}; must be version 3 (fp32) or 5 (bf16)')
    sizes = dict(zip(LIMITS, header[2:8]))
    for name, value in sizes.items():
        if not 1 <= value <= LIMITS[name]:
            raise CheckpointError(f'{path}: {name} is {value}; must be in [1, {LIMITS[name]}]')
    max_length, vocabulary, num_layers, num_heads, c, padded = sizes.values()
    if vocabulary > padded:
        raise CheckpointError(f'{path}: vocabulary is {vocabulary}; the padded one is {padded}')
    layout = _layout(num_layers, c, max_length, padded)
    dtype = DTYPES[version]
    item_bytes = dtype.itemsize
    expected = HEADER_INTS * 4 + item_bytes * sum(math.prod(shape) for _, shape in layout)
    if size != expected:
        raise CheckpointError(f'{path}: {size} bytes; version {version} of these sizes has '
                              f'{expected}')
    tensors, offset = {}, HEADER_INTS * 4
    for name, shape in layout:
        count = math.prod(shape)
        tensor = tensor_file.view(data, dtype, count, offset).reshape(shape)
        offset += count * item_bytes
        if name.startswith(('wte', 'wpe', 'ln_f')):
            tensors[name] = tensor
        else:
            tensors.update({f'h.{i}.{name}': tensor[i] for i in range(num_layers)})
    tensors['wte.weight'] = tensors['wte.weight'][:vocabulary]
    recorded: JsonObject = {
        'vocab_size': vocabulary, 'n_positions': max_length, 'n_layer': num_layers,
        'n_head': num_heads, 'n_embd': c,
    }
    return recorded, tensors, padded - vocabulary
