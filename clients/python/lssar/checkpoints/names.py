"""Tensor names of every source format, and the way from its tensors to ours.

A rule is a pattern of a source's name and our name. Ours are those of models/README.md, and parts
of them where a source splits what we keep in one tensor: `attn.q`, `attn.k` and `attn.v` become
`attn.c_attn`.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from lssar.checkpoints.arrays import BF16, Array, widen
from lssar.checkpoints.errors import CheckpointError

MAX_LAYERS = 1024  # as in config.json

Rules = Sequence[tuple[str, str]]

# DDP, FSDP, torch.compile and activation checkpointing put these before and into names.
WRAPPERS = re.compile(
    r'(?<![^.])(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|module)\.')

# Our names, which are GPT-2's: nanoGPT, llm.c, Hugging Face's GPT-2, this project.
GPT2: Rules = (
    (r'(wte|wpe)\.weight', r'\1.weight'),
    (r'h\.(\d+)\.(ln_1|ln_2|ln_1_post|ln_2_post)\.(weight|bias)', r'h.\1.\2.\3'),
    (r'h\.(\d+)\.attn\.(c_attn|c_proj|q_norm|k_norm)\.(weight|bias)', r'h.\1.attn.\2.\3'),
    (r'h\.(\d+)\.mlp\.(c_fc|c_gate|c_proj)\.(weight|bias)', r'h.\1.mlp.\2.\3'),
    (r'(ln_f|ln_emb)\.(weight|bias)', r'\1.\2'),
    (r'lm_head\.weight', 'lm_head.weight'),
)
MODDED: Rules = (
    (r'(?:wte|embed)\.weight', 'wte.weight'),
    (r'(?:h|blocks)\.(\d+)\.attn\.c_([qkv])\.(weight|bias)', r'h.\1.attn.\2.\3'),
    (r'(?:h|blocks)\.(\d+)\.attn\.qkv_w', r'h.\1.attn.stacked.weight'),
    (r'(?:h|blocks)\.(\d+)\.attn\.c_proj\.(weight|bias)', r'h.\1.attn.c_proj.\2'),
    (r'(?:h|blocks)\.(\d+)\.mlp\.(c_fc|c_gate|c_proj)\.(weight|bias)', r'h.\1.mlp.\2.\3'),
    (r'lm_head\.weight', 'lm_head.weight'),
)
TRAINING: Rules = (
    (r'wte\.weight', 'wte.weight'),
    (r'h\.(\d+)\.(ln_1|ln_2)\.(weight|bias)', r'h.\1.\2.\3'),
    (r'h\.(\d+)\.(c_attn|c_proj)\.(weight|bias)', r'h.\1.attn.\2.\3'),
    (r'h\.(\d+)\.c_fc\.(weight|bias)', r'h.\1.mlp.c_fc.\2'),
    (r'h\.(\d+)\.mlp_proj\.(weight|bias)', r'h.\1.mlp.c_proj.\2'),
    (r'ln_f\.(weight|bias)', r'ln_f.\1'),
)
LLAMA: Rules = (
    (r'(?:model\.)?embed_tokens\.weight', 'wte.weight'),
    (r'(?:model\.)?layers\.(\d+)\.self_attn\.([qkv])_proj\.(weight|bias)', r'h.\1.attn.\2.\3'),
    (r'(?:model\.)?layers\.(\d+)\.self_attn\.o_proj\.(weight|bias)', r'h.\1.attn.c_proj.\2'),
    (r'(?:model\.)?layers\.(\d+)\.self_attn\.([qk]_norm)\.weight', r'h.\1.attn.\2.weight'),
    (r'(?:model\.)?layers\.(\d+)\.input_layernorm\.weight', r'h.\1.ln_1.weight'),
    (r'(?:model\.)?layers\.(\d+)\.post_attention_layernorm\.weight', r'h.\1.ln_2.weight'),
    (r'(?:model\.)?layers\.(\d+)\.mlp\.gate_proj\.(weight|bias)', r'h.\1.mlp.c_gate.\2'),
    (r'(?:model\.)?layers\.(\d+)\.mlp\.up_proj\.(weight|bias)', r'h.\1.mlp.c_fc.\2'),
    (r'(?:model\.)?layers\.(\d+)\.mlp\.down_proj\.(weight|bias)', r'h.\1.mlp.c_proj.\2'),
    (r'(?:model\.)?norm\.weight', 'ln_f.weight'),
    (r'lm_head\.weight', 'lm_head.weight'),
)
NEOX: Rules = (
    (r'(?:gpt_neox\.)?embed_in\.weight', 'wte.weight'),
    (r'(?:gpt_neox\.)?layers\.(\d+)\.input_layernorm\.(weight|bias)', r'h.\1.ln_1.\2'),
    (r'(?:gpt_neox\.)?layers\.(\d+)\.post_attention_layernorm\.(weight|bias)', r'h.\1.ln_2.\2'),
    (r'(?:gpt_neox\.)?layers\.(\d+)\.attention\.query_key_value\.(weight|bias)',
     r'h.\1.attn.by_head.\2'),
    (r'(?:gpt_neox\.)?layers\.(\d+)\.attention\.dense\.(weight|bias)', r'h.\1.attn.c_proj.\2'),
    (r'(?:gpt_neox\.)?layers\.(\d+)\.mlp\.dense_h_to_4h\.(weight|bias)', r'h.\1.mlp.c_fc.\2'),
    (r'(?:gpt_neox\.)?layers\.(\d+)\.mlp\.dense_4h_to_h\.(weight|bias)', r'h.\1.mlp.c_proj.\2'),
    (r'(?:gpt_neox\.)?final_layer_norm\.(weight|bias)', r'ln_f.\1'),
    (r'embed_out\.weight', 'lm_head.weight'),
)
BLOOM: Rules = (
    (r'word_embeddings\.weight', 'wte.weight'),
    (r'word_embeddings_layernorm\.(weight|bias)', r'ln_emb.\1'),
    (r'h\.(\d+)\.input_layernorm\.(weight|bias)', r'h.\1.ln_1.\2'),
    (r'h\.(\d+)\.post_attention_layernorm\.(weight|bias)', r'h.\1.ln_2.\2'),
    (r'h\.(\d+)\.self_attention\.query_key_value\.(weight|bias)', r'h.\1.attn.by_head.\2'),
    (r'h\.(\d+)\.self_attention\.dense\.(weight|bias)', r'h.\1.attn.c_proj.\2'),
    (r'h\.(\d+)\.mlp\.dense_h_to_4h\.(weight|bias)', r'h.\1.mlp.c_fc.\2'),
    (r'h\.(\d+)\.mlp\.dense_4h_to_h\.(weight|bias)', r'h.\1.mlp.c_proj.\2'),
    (r'ln_f\.(weight|bias)', r'ln_f.\1'),
    (r'lm_head\.weight', 'lm_head.weight'),
)
# (ours, GGUF's) without the last word; {} is the layer.
GGUF_NAMES = (
    ('wte', 'token_embd'), ('wpe', 'position_embd'), ('ln_emb', 'token_embd_norm'),
    ('h.{}.ln_1', 'blk.{}.attn_norm'),
    ('h.{}.attn.c_attn', 'blk.{}.attn_qkv'), ('h.{}.attn.q_norm', 'blk.{}.attn_q_norm'),
    ('h.{}.attn.k_norm', 'blk.{}.attn_k_norm'), ('h.{}.attn.c_proj', 'blk.{}.attn_output'),
    ('h.{}.ln_1_post', 'blk.{}.post_attention_norm'), ('h.{}.ln_2', 'blk.{}.ffn_norm'),
    ('h.{}.mlp.c_fc', 'blk.{}.ffn_up'), ('h.{}.mlp.c_gate', 'blk.{}.ffn_gate'),
    ('h.{}.mlp.c_proj', 'blk.{}.ffn_down'), ('h.{}.ln_2_post', 'blk.{}.post_ffw_norm'),
    ('ln_f', 'output_norm'), ('lm_head', 'output'),
)


def _rule(ours: str, theirs: str) -> tuple[str, str]:
    """The rule that renames theirs to ours."""
    pattern = re.escape(theirs).replace(r'\{\}', r'(\d+)') + r'\.(weight|bias)'
    has_layer = '{}' in ours
    return pattern, ours.replace('{}', r'\1') + (r'.\2' if has_layer else r'.\1')


GGUF: Rules = (
    *(_rule(ours, theirs) for ours, theirs in GGUF_NAMES),
    (r'blk\.(\d+)\.attn_([qkv])\.(weight|bias)', r'h.\1.attn.\2.\3'),
)


def gguf_name(name: str) -> str:
    """GGUF's name of one of our tensors."""
    stem, _, last = name.rpartition('.')
    layer = stem.split('.')[1] if stem.startswith('h.') else ''
    pattern = re.sub(r'^h\.\d+', 'h.{}', stem)
    for ours, theirs in GGUF_NAMES:
        if ours == pattern:
            return f'{theirs.replace("{}", layer)}.{last}'
    raise CheckpointError(f'tensor "{name}" has no name in GGUF')


def _shared_prefix(names: list[str]) -> str:
    """The words that all names begin with, such as `model.`. A model has an embedding and layers,
    so the names of its parts are not all alike.
    """
    prefix = os.path.commonprefix(names)
    return prefix[:prefix.rfind('.') + 1] if len(names) > 1 else ''


def unwrap(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Names without the wrappers of PyTorch, a prefix that all names have (the `model.` of
    Lightning) and `transformer.`.

    Errors: CheckpointError where two tensors get the same name.
    """
    unwrapped: dict[str, Array] = {}
    stripped = {name: WRAPPERS.sub('', name) for name in tensors}
    shared = _shared_prefix(list(stripped.values()))
    for name, tensor in tensors.items():
        short = stripped[name][len(shared):].removeprefix('transformer.')
        if short in unwrapped:
            raise CheckpointError(f'two tensors are called "{short}" without their prefixes')
        unwrapped[short] = tensor
    return unwrapped


@dataclasses.dataclass
class Mapped:
    """Tensors under our names, and those that are not part of the model."""

    tensors: dict[str, Array] = dataclasses.field(default_factory=dict)
    sources: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # by our name
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)  # name and shape -> why
    unknown: list[str] = dataclasses.field(default_factory=list)  # name and shape
    rotary_bases: dict[str, tuple[int, float]] = dataclasses.field(default_factory=dict)


def show(name: str, tensor: Array) -> str:
    """`name [3, 4]`."""
    return f'{name} {list(tensor.shape)}'


def _is_causal_mask(tensor: Array) -> bool:
    """True for [1, 1, T, T] or [T, T] with ones (or True) on and below the diagonal."""
    if tensor.ndim not in (2, 4) or tensor.shape[-1] != tensor.shape[-2]:
        return False
    if tensor[..., 0, 0].size != 1:
        return False
    square = widen(tensor.reshape(tensor.shape[-2:]), np.float32) != 0
    return bool(np.array_equal(square, np.tri(len(square), dtype=bool)))


def _left_out(name: str, tensor: Array, mapped: Mapped) -> str:
    """Why a tensor is no parameter, or ''."""
    last = name.rpartition('.')[2]
    if re.fullmatch(r'.*\.(attn|attention|self_attn)\.(bias|mask|causal_mask)', name):
        return 'causal mask' if _is_causal_mask(tensor) else ''
    if last == 'masked_bias' and tensor.size == 1:
        return 'score of masked keys'
    if last == 'inv_freq' and tensor.ndim == 1 and len(tensor) > 1:
        values = widen(tensor)
        base = float((values[0] / values[1])) ** len(values)
        expected = base ** (-np.arange(len(values)) / len(values))
        if not np.allclose(values, expected, rtol=1e-2 if tensor.itemsize < 4 else 1e-4):
            return ''
        mapped.rotary_bases[name] = (2 * len(values), base)
        return 'rotary frequencies, of base %.6g' % base
    if last in ('cos', 'sin', 'cos_cached', 'sin_cached') and 'rot' in name:
        return 'table of rotary angles'
    if name == 'rope_freqs.weight' and bool((widen(tensor) == 1).all()):
        return 'factors of rotary frequencies that are all one'
    return ''


def apply(rules: Rules, tensors: Mapping[str, Array]) -> Mapped:
    """Renames what the rules know and leaves out what is no parameter."""
    mapped = Mapped()
    compiled = [(re.compile(pattern), ours) for pattern, ours in rules]
    for name, tensor in tensors.items():
        for pattern, ours in compiled:
            match = pattern.fullmatch(name)
            if match:
                target = match.expand(ours)
                if target in mapped.tensors:
                    raise CheckpointError(f'two tensors are "{target}": {mapped.sources[target][0]}'
                                          f' and {name}')
                mapped.tensors[target] = tensor
                mapped.sources[target] = [name]
                break
        else:
            why = _left_out(name, tensor, mapped)
            if why:
                mapped.left_out[show(name, tensor)] = why
            else:
                mapped.unknown.append(show(name, tensor))
    return mapped


# What nanochat has beside the parts of a modded-nanogpt block (github.com/karpathy/nanochat,
# nanochat/gpt.py): lambdas of the residual stream, value embeddings and their gates, the smear of
# the previous token's embedding, and the middle layer's output that is taken back at the end.
NANOCHAT = re.compile(r'(resid_lambdas|x0_lambdas|smear_gate\.weight|smear_lambda|backout_lambda'
                      r'|value_embeds\.\d+\.weight|h\.\d+\.attn\.ve_gate\.weight) \[.*')


def is_nanochat(unknown: Sequence[str]) -> bool:
    """True if tensors that nothing maps (name and shape) are those of nanochat's own parts."""
    parts = {match.group(1) for match in map(NANOCHAT.fullmatch, unknown) if match}
    return bool({'smear_lambda', 'backout_lambda'} & parts) or {'resid_lambdas',
                                                                'x0_lambdas'} <= parts


def num_layers(tensors: Mapping[str, Array]) -> int:
    """One more than the highest index of a layer. Errors: CheckpointError above MAX_LAYERS."""
    indices = [int(name.split('.')[1][:6]) for name in tensors if name.startswith('h.')]
    count = max(indices) + 1 if indices else 0
    if count > MAX_LAYERS:
        raise CheckpointError(f'the tensors are of {count} layers, must be at most {MAX_LAYERS}')
    return count


def _concatenated(tensors: dict[str, Array], parts: list[str]) -> Array:
    """Removes the parts and returns them as one, in the wider type if they differ."""
    arrays_of = [tensors[part] for part in parts]
    widths = {array.shape[1:] for array in arrays_of}
    if len(widths) > 1 or any(array.ndim == 0 for array in arrays_of):
        raise CheckpointError(', '.join(show(part, tensors[part]) for part in parts) +
                              ': must have one width')
    for part in parts:
        del tensors[part]
    if len({array.dtype for array in arrays_of}) > 1:  # NumPy joins others, but not its void type
        arrays_of = [widen(array, np.float32) if array.dtype == BF16 else array
                     for array in arrays_of]
    return np.concatenate(arrays_of)


def fuse(mapped: Mapped, num_heads: int) -> None:
    """Joins q, k and v of each layer to attn.c_attn: every head's q, then every head's k, then v.

    `by_head` is GPT-NeoX's order: q, k and v of the first head, then of the second, and so on.
    `stacked` is [3, out, in].
    """
    tensors = mapped.tensors
    for i in range(num_layers(tensors)):
        for kind in ('weight', 'bias'):
            target = f'h.{i}.attn.c_attn.{kind}'
            parts = [f'h.{i}.attn.{part}.{kind}' for part in 'qkv']
            by_head, stacked = f'h.{i}.attn.by_head.{kind}', f'h.{i}.attn.stacked.{kind}'
            if by_head in tensors:
                joined = tensors.pop(by_head)
                if joined.shape[0] % (3 * num_heads):
                    raise CheckpointError(f'{show(mapped.sources[by_head][0], joined)}: the first '
                                          f'size must be a multiple of 3 n_head, {3 * num_heads}')
                split = joined.reshape(num_heads, 3, -1, *joined.shape[1:]).swapaxes(0, 1)
                tensors[target] = split.reshape(joined.shape)
                mapped.sources[target] = mapped.sources.pop(by_head)
            elif stacked in tensors:
                joined = tensors.pop(stacked)
                if joined.ndim != 3 or joined.shape[0] != 3:
                    raise CheckpointError(f'{show(mapped.sources[stacked][0], joined)}: must be '
                                          '[3, out, in]')
                tensors[target] = joined.reshape(-1, joined.shape[-1])
                mapped.sources[target] = mapped.sources.pop(stacked)
            elif any(part in tensors for part in parts):
                missing = [part for part in parts if part not in tensors]
                if missing:
                    raise CheckpointError(f'{", ".join(missing)}: no such tensor, but the others '
                                          'of q, k and v are there')
                tensors[target] = _concatenated(tensors, parts)
                mapped.sources[target] = [mapped.sources.pop(part)[0] for part in parts]


def reverse_rotation(mapped: Mapped, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """Swaps the halves of each head's q and k.

    modded-nanogpt rotates by the negative angle. Swapped halves rotated by the positive angle give
    the same products <q, k>.
    """
    num_rotated = num_heads + num_kv_heads
    for name, tensor in list(mapped.tensors.items()):
        if re.fullmatch(r'h\.\d+\.attn\.c_attn\.(weight|bias)', name):
            rotated = tensor[:num_rotated * head_dim]
            halves = rotated.reshape(num_rotated, 2, head_dim // 2, *tensor.shape[1:])
            mapped.tensors[name] = np.concatenate((halves[:, ::-1].reshape(rotated.shape),
                                                   tensor[num_rotated * head_dim:]))
        elif re.fullmatch(r'h\.\d+\.attn\.[qk]_norm\.(weight|bias)', name):
            mapped.tensors[name] = tensor.reshape(2, -1)[::-1].reshape(-1)
