"""A GGUF model as a source: config.json fields, tensors by our names, tokenizer and template.

Source: llama.cpp, docs of GGUF, gguf-py/gguf/constants.py and convert_hf_to_gguf.py.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from lssar.checkpoints import forward, names
from lssar.checkpoints.arrays import Array
from lssar.checkpoints.errors import CheckpointError, JsonObject, quote, show
from lssar.checkpoints.gguf_file import GgufFile, Value

COMMON = {
    'vocab_size': 'vocab_size', 'context_length': 'n_positions', 'embedding_length': 'n_embd',
    'block_count': 'n_layer', 'feed_forward_length': 'n_inner',
    'attention.head_count': 'n_head', 'attention.head_count_kv': 'num_key_value_heads',
    'attention.key_length': 'head_dim', 'rope.freq_base': 'rope_theta',
    'attention.layer_norm_rms_epsilon': 'layer_norm_epsilon',
    'attention.layer_norm_epsilon': 'layer_norm_epsilon',
    'use_parallel_residual': 'parallel_residual',
}
# Fields that must have this value, if they are there.
MUST_BE: Mapping[str, tuple[object, ...]] = {
    'expert_count': (0,), 'expert_used_count': (0,), 'attention.causal': (True,),
    'rope.scaling.type': ('none',), 'rope.scaling.finetuned': (False, True),
    'attention.sliding_window': (0,), 'tensor_data_layout': ('Meta AI original pth',),
    'attention.clamp_kqv': (0.0,), 'attention.max_alibi_bias': (0.0,),
    'logit_scale': (1.0, 0.0), 'residual_scale': (1.0, 0.0), 'embedding_scale': (1.0, 0.0),
    'attention.scale': (0.0,), 'rope.scale_linear': (1.0,), 'pooling_type': (0,),
}
# A GGUF file says less of a scaling than the server needs.
ROPE_ADVICE = (' of a GGUF file; import the Hugging Face directory of the model, whose '
               'config.json has the rope_scaling')
GATED: JsonObject = {
    'normalization': 'rms_norm', 'activation_function': 'silu', 'rope_layout': 'half',
    'embedding_norm': False, 'final_logit_softcapping': None, 'attention': {'kind': 'softmax'},
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A value of general.architecture."""

    fixed: JsonObject  # what its code computes, by our names
    is_permuted: bool = False  # rows of q and k are in the order of interleaved rotary pairs
    note: str = ''


ARCHITECTURES = {
    'llama': Architecture({**GATED, 'rope_theta': 10000.0}, is_permuted=True),
    'qwen2': Architecture({**GATED, 'rope_theta': 10000.0}),
    'qwen3': Architecture({
        **GATED, 'rope_theta': 10000.0,
        'qk_norm': {'kind': 'rms_norm', 'position': 'before_rotary', 'weight': True}}),
    'gptneox': Architecture(
        {**GATED, 'normalization': 'layer_norm', 'activation_function': 'gelu',
         'rope_theta': 10000.0},
        note='GGUF does not say which GELU gptneox has: gelu (erf) is that of transformers; '
             '--set activation_function=gelu_new is that of llama.cpp'),
    'gpt2': Architecture({
        **GATED, 'normalization': 'layer_norm', 'activation_function': 'gelu_new'}),
}


def _one(value: Value, key: str) -> Value:
    """A number, or the one number that all layers have."""
    if not isinstance(value, list):
        return value
    if not value or any(each != value[0] for each in value):
        raise CheckpointError(f'{key} differs between layers: {value[:8]}; layers must be equal')
    return value[0]


def architecture(file: GgufFile) -> tuple[str, Architecture]:
    """Errors: CheckpointError for one that is not computed."""
    name = file.fields.get('general.architecture')
    if not isinstance(name, str) or name not in ARCHITECTURES:
        shown = quote(name) if isinstance(name, str) else repr(name)
        raise CheckpointError(f'{file.path}: general.architecture is {shown}; must be one of '
                              f'{", ".join(ARCHITECTURES)}')
    parts = file.fields.get('split.count', 0)
    if isinstance(parts, int) and parts > 1:
        raise CheckpointError(f'{file.path}: is one of {parts} parts; join them with llama.cpp\'s '
                              'llama-gguf-split --merge')
    return name, ARCHITECTURES[name]


def recorded(file: GgufFile) -> tuple[JsonObject, list[str]]:
    """(config.json fields that the metadata says, names of fields that may change the function).

    Errors: CheckpointError for a value that is not computed.
    """
    arch, _ = architecture(file)
    found: JsonObject = {}
    unknown: list[str] = []
    dims: object = None
    for key, value in file.fields.items():
        if key.startswith(('general.', 'tokenizer.', 'quantize.', 'split.')):
            continue
        name = key.removeprefix(arch + '.')
        if name == 'rope.dimension_count':
            dims = _one(value, key)
        elif name in ('attention.value_length', 'attention.key_length'):
            found['head_dim'] = _same_length(found.get('head_dim'), _one(value, key), file.path)
        elif name in COMMON:
            field, number = COMMON[name], _rounded(_one(value, key))
            if found.setdefault(field, number) != number:  # of the norm that the model has not
                raise CheckpointError(f'{file.path}: {key} is {show(number)}, and another field of '
                                      f'the same meaning {show(found[field])}: which one applies '
                                      f'is unclear; give the file one of them')
        elif name in MUST_BE:
            if value not in MUST_BE[name]:
                allowed = ' or '.join(map(show, MUST_BE[name]))
                other = ROPE_ADVICE if name.startswith('rope.scal') else ''
                raise CheckpointError(f'{file.path}: {key} is {show(value)}; only {allowed} is '
                                      f'computed{other}')
        else:
            unknown.append(key)
    if isinstance(dims, int):
        _add_rotary_dims(found, dims, file.path)
    for ours, theirs in (('bos_token_id', 'bos'), ('eos_token_id', 'eos')):
        token = file.fields.get(f'tokenizer.ggml.{theirs}_token_id')
        if isinstance(token, int):
            found[ours] = token
    return found, unknown


def _rounded(value: Value) -> Value:
    """A float32 of the file as the shortest decimal that has its value: 1e-05, not 9.99999974e-06.

    """
    with np.errstate(over='ignore'):  # infinity is refused by settings.check()
        return float(str(np.float32(value))) if isinstance(value, float) else value


def _same_length(a: object, b: object, path: str) -> object:
    if a is not None and a != b:
        raise CheckpointError(f'{path}: heads of {a} elements for keys and {b} for values; must be '
                              'equal')
    return b


def _add_rotary_dims(found: JsonObject, dims: int, path: str) -> None:
    hidden, heads = found.get('n_embd'), found.get('n_head')
    whole = found.get('head_dim')
    if whole is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        whole = hidden // heads
    if not isinstance(whole, int) or not 0 < dims <= whole:
        raise CheckpointError(f'{path}: rope.dimension_count is {dims}; must be in [1, {whole}]')
    if dims != whole:
        found['partial_rotary_factor'] = forward.rotary_factor(dims, whole)


def unpermute(mapped: names.Mapped, num_heads: int) -> None:
    """Undoes llama.cpp's order of the rows of q and k: pairs (2i, 2i + 1) become (i, i + d/2).

    The number of K/V heads is that of the tensors: metadata may leave it out.
    """
    for name, tensor in list(mapped.tensors.items()):
        parts = name.split('.')
        if parts[0] != 'h' or parts[2:4] not in (['attn', 'q'], ['attn', 'k']):
            continue
        queries = mapped.tensors.get('.'.join([*parts[:3], 'q', *parts[4:]]))
        dim, rest = divmod(0 if queries is None else queries.shape[0], num_heads)
        if rest or dim % 2 or dim == 0 or tensor.shape[0] % dim:
            raise CheckpointError(
                f'{names.show(mapped.sources[name][0], tensor)}: the first size must be a multiple '
                f'of the elements of a head, an even number; {num_heads} heads of q have '
                f'{num_heads * dim + rest}')
        pairs: Array = tensor.reshape(-1, dim // 2, 2, *tensor.shape[1:])
        mapped.tensors[name] = pairs.swapaxes(1, 2).reshape(tensor.shape)
