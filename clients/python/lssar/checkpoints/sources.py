"""Finds out what a source is and reads it: tensors, and the fields of config.json that it says."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Mapping

import numpy as np

from lssar.checkpoints import directory, gguf_source, gguf_tokenizer, llmc_file, names, settings
from lssar.checkpoints.arrays import FLOATS, Array, type_name, widen
from lssar.checkpoints.errors import (CheckpointError, JsonObject, UsageError,
                                             is_there, open_regular, quote, read_json_object, show)
from lssar.checkpoints.gguf_file import MAGIC as GGUF_MAGIC
from lssar.checkpoints.gguf_file import GgufFile
from lssar.checkpoints.settings import FIELDS
from lssar.checkpoints.tensor_file import TensorFile

# torch's default epsilon of rms_norm on float32, which modded-nanogpt uses.
RMS_EPSILON = 1.1920928955078125e-07

GPT2_BLOCK: JsonObject = {
    'normalization': 'layer_norm', 'layer_norm_epsilon': 1e-5, 'embedding_norm': False,
    'final_logit_softcapping': None,
}
MODDED_BLOCK: JsonObject = {
    'normalization': 'rms_norm', 'layer_norm_epsilon': RMS_EPSILON, 'activation_function': 'relu2',
    'qk_norm': {'kind': 'rms_norm', 'position': 'before_rotary', 'weight': False,
                'epsilon': RMS_EPSILON},
    'rope_theta': 10000.0, 'rope_layout': 'half',
}

# Keys of nanoGPT's model_args under our names; None: no part of the function.
MODEL_ARGS = {'n_layer': 'n_layer', 'n_head': 'n_head', 'n_embd': 'n_embd', 'dropout': None,
              'block_size': 'n_positions', 'vocab_size': 'vocab_size', 'bias': 'bias',
              'n_kv_head': 'num_key_value_heads'}
# The fields that nanoGPT's `bias` sets.
BIASES = ('norm_bias', 'attention_bias', 'attention_out_bias', 'mlp_bias', 'mlp_out_bias')
# Fields of models/training's model.Config, and ours.
TRAINING_CONFIG = {'vocab_size': 'vocab_size', 'n_layer': 'n_layer', 'n_head': 'n_head',
                   'n_embd': 'n_embd', 'n_ctx': 'n_positions', 'rope_theta': 'rope_theta',
                   'layer_norm_eps': 'layer_norm_epsilon'}


@dataclasses.dataclass
class Source:
    """What a source holds, before its tensors get our names."""

    path: str
    format: str
    files: list[str]
    tensors: dict[str, Array]
    rules: names.Rules
    recorded: JsonObject = dataclasses.field(default_factory=dict)
    fixed: JsonObject = dataclasses.field(default_factory=dict)  # by the program that wrote it
    required: tuple[str, ...] = ()  # what it leaves open
    not_read: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    is_transposed: bool = False  # Conv1D: matrices but the embedding are [in, out]
    is_rotated_back: bool = False  # modded-nanogpt: rotary by the negative angle
    is_permuted: bool = False  # llama.cpp's order of q and k
    matrix_type: str | None = None  # of --dtype, where the source's cannot be stored
    tokenizer: dict[str, bytes] | None = None  # files by our names; None: beside the source
    ends: list[int] = dataclasses.field(default_factory=list)  # ids that end a text, if several
    assumes_defaults: bool = False  # settings.ASSUMED: nothing else says them

    @property
    def folder(self) -> str:
        """Where the tokenizer is looked for."""
        return self.path if os.path.isdir(self.path) else os.path.dirname(self.path) or '.'


def refuse_unknown(path: str, unknown: Mapping[str, object], ignored: set[str]) -> None:
    """Refuses fields that are not known and not ignored, and --ignore of any others.

    Errors: UsageError that names all of those fields, and the command that goes on.
    """
    for name in sorted(ignored - unknown.keys()):
        raise UsageError(f'--ignore {name}: must name a field of {path} that is not known; a known '
                         'one is read, because it may change what the model computes, or it '
                         'changes nothing')
    fields = {name: value for name, value in unknown.items() if name not in ignored}
    if not fields:
        return
    listed = '\n'.join(f'  {quote(name)}: {show(value)}' for name, value in fields.items())
    flags = ' '.join(f'--ignore {shlex.quote(name)}' for name in fields)
    raise UsageError(f'{path}: these fields are not known, and may change what the model '
                     f'computes:\n{listed}\nIf they do not, go on with\n'
                     f'  {shlex.join(["lssar", *sys.argv[1:]])} {flags}')


ALWAYS = ('n_head', 'n_positions', 'attention', 'rope_theta', 'rope_layout')


def _looks_modded(tensors: Mapping[str, Array]) -> bool:
    return any(name.endswith(('.attn.c_q.weight', '.attn.qkv_w')) for name in tensors)


def _rules_of(tensors: Mapping[str, Array]) -> names.Rules:
    """The rules that know most names."""
    candidates = (names.GPT2, names.MODDED, names.LLAMA, names.NEOX, names.BLOOM, names.GGUF,
                  names.TRAINING)
    return max(candidates, key=lambda rules: len(names.apply(rules, tensors).tensors))


def _from_model_args(arguments: Mapping[object, object], ignored: set[str],
                     path: str) -> JsonObject:
    """config.json fields that nanoGPT's model_args say.

    Errors: UsageError for a key that is not known and not ignored.
    """
    recorded: JsonObject = {}
    unknown: JsonObject = {}
    for key, value in arguments.items():
        name = str(key)
        field = MODEL_ARGS.get(name, name)
        if field is None or value is None and name == 'vocab_size':
            continue
        if name in ('p', 'phi') and isinstance(arguments.get('attention'), str):
            continue  # of attention
        if field == 'bias':
            recorded.update({each: bool(value) for each in BIASES})
        elif field == 'attention':
            recorded[field] = settings.as_attention(
                value, {str(k): v for k, v in arguments.items()})
        elif field in FIELDS:
            recorded[field] = value
        else:
            unknown[name] = value
    refuse_unknown(f'{path}: model_args', unknown, ignored)
    return recorded


def _read_nanogpt(path: str, content: JsonObject, ignored: set[str]) -> Source:
    from lssar.checkpoints import torch_file

    arguments = content['model_args']
    if not isinstance(arguments, dict) or not torch_file.is_state_dict(content['model']):
        raise CheckpointError(f'{path}: model_args must be a dict and model a dict of tensors')
    tensors = names.unwrap(_state_dict(content, 'model'))
    recorded = _from_model_args(arguments, ignored, path)
    if _looks_modded(tensors):
        return dataclasses.replace(_read_modded(path, content, 'model'), recorded=recorded)
    return Source(path, 'nanoGPT', [path], tensors, names.GPT2, recorded, GPT2_BLOCK,
                  (*ALWAYS, 'activation_function'), _others(content, 'model', 'model_args'))


def _state_dict(content: JsonObject, key: str) -> dict[str, Array]:
    """content[key], which is a state dict of PyTorch, as arrays."""
    from lssar.checkpoints import torch_file

    value = content[key]
    assert isinstance(value, dict)
    return {str(name): torch_file.to_array(tensor) for name, tensor in value.items()}


def _others(content: JsonObject, *read: str) -> list[str]:
    return [key for key in content if key not in read]


def _read_modded(path: str, content: JsonObject, key: str) -> Source:
    return Source(path, 'modded-nanogpt', [path], names.unwrap(_state_dict(content, key)),
                  names.MODDED, {}, MODDED_BLOCK,
                  (*ALWAYS, 'embedding_norm', 'final_logit_softcapping'), _others(content, key),
                  ["rotary angles are negative in modded-nanogpt: the halves of each head's q and "
                   'k are swapped, which computes the same'], is_rotated_back=True)


def _read_training(path: str, content: JsonObject) -> Source:
    from lssar.checkpoints import torch_file

    config = content['config']
    if not isinstance(config, dict) or not torch_file.is_state_dict(content['net']):
        raise CheckpointError(f'{path}: config must be a dict and net a dict of tensors')
    known = {*TRAINING_CONFIG, 'attention', 'p'}
    unknown = [key for key in config if key not in known]
    missing = [key for key in known if key not in config]
    if unknown or missing:
        raise CheckpointError(f'{path}: config has unknown {unknown} and lacks {missing}')
    recorded: JsonObject = {field: config[key] for key, field in TRAINING_CONFIG.items()}
    attention: JsonObject = {'kind': config['attention']}
    if config['attention'] == 'lssar':
        attention['p'] = int(config['p']) if config['p'] == int(config['p']) else config['p']
    recorded['attention'] = attention
    fixed = {**GPT2_BLOCK, 'activation_function': 'gelu_new', 'rope_layout': 'half'}
    return Source(path, 'models/training', [path], names.unwrap(_state_dict(content, 'net')),
                  names.TRAINING, recorded, fixed, ALWAYS, _others(content, 'net', 'config'))


def _plain(path: str, tensors: Mapping[str, Array], not_read: list[str]) -> Source:
    unwrapped = names.unwrap(tensors)
    rules = _rules_of(unwrapped)
    # GPT-NeoX's own defaults are not ours, and its models differ.
    more = ('parallel_residual', 'partial_rotary_factor') if rules is names.NEOX else ()
    return Source(path, 'state dict', [path], unwrapped, rules, {}, {},
                  (*ALWAYS, 'activation_function', 'normalization', 'layer_norm_epsilon',
                   'embedding_norm', 'final_logit_softcapping', *more), not_read,
                  assumes_defaults=True)


def _read_torch(path: str, ignored: set[str]) -> Source:
    from lssar.checkpoints import torch_file

    content = torch_file.load(path)
    if 'model' in content and 'model_args' in content:
        return _read_nanogpt(path, content, ignored)
    refuse_unknown(path, {}, ignored)
    if 'net' in content and 'config' in content:
        return _read_training(path, content)
    for key in ('model', 'state_dict', 'model_state_dict'):
        if key in content and torch_file.is_state_dict(content[key]):
            tensors = _state_dict(content, key)
            if _looks_modded(names.unwrap(tensors)):
                return _read_modded(path, content, key)
            return _plain(path, tensors, _others(content, key))
    if torch_file.is_state_dict(content):
        if _looks_modded(names.unwrap(_state_dict({'': content}, ''))):
            return _read_modded(path, {'': content}, '')
        return _plain(path, _state_dict({'': content}, ''), [])
    raise CheckpointError(
        f'{path}: holds {", ".join(list(content)[:20])}; must hold model and model_args (nanoGPT), '
        'model (modded-nanogpt), net and config (models/training), or tensors only')


def _read_llmc(path: str) -> Source:
    recorded, tensors, num_padding = llmc_file.load(path)
    notes = [f'{num_padding} rows of padding of wte are left out: llm.c does not use them'
             ] if num_padding else []
    fixed = {**GPT2_BLOCK, 'activation_function': 'gelu_new'}
    return Source(path, 'llm.c', [path], tensors, names.GPT2, recorded, fixed, ALWAYS, notes=notes)


def _read_gguf(path: str, ignored: set[str]) -> Source:
    file = GgufFile(path)
    name, architecture = gguf_source.architecture(file)
    recorded, unknown = gguf_source.recorded(file)
    refuse_unknown(path, {key: file.fields[key] for key in unknown}, ignored)
    if 'rope_freqs.weight' in file.entries and not (file.tensor('rope_freqs.weight') == 1).all():
        raise CheckpointError(f'{path}: has rope_freqs.weight, the rope scaling of Llama 3.1, '
                              f'which is not computed{gguf_source.ROPE_ADVICE}')
    fixed, is_permuted = architecture.fixed, architecture.is_permuted
    if is_permuted and 'partial_rotary_factor' in recorded:
        # llama.cpp rotates neighbours. Only the whole head's can be put into two halves.
        fixed, is_permuted = {**fixed, 'rope_layout': 'interleaved'}, False
    notes = [architecture.note] if architecture.note else []
    quantized = file.quantized_types
    if quantized:
        notes.append(f'{", ".join(quantized)} blocks are dequantized; matrices are stored as '
                     'fp16 unless --dtype says another type')
    try:
        tokenizer = gguf_tokenizer.files(file.fields)
    except CheckpointError as error:
        raise CheckpointError(f'{path}: {error}') from None
    return Source(path, f'GGUF {name}', [path], file.tensors(), names.GGUF, recorded,
                  fixed, (*ALWAYS, 'activation_function', 'layer_norm_epsilon'),
                  notes=notes, is_permuted=is_permuted,
                  matrix_type='fp16' if quantized else None, tokenizer=tokenizer)


# ---- Hugging Face directories.

ACTIVATIONS = {'gelu': 'gelu', 'gelu_new': 'gelu_new', 'gelu_fast': 'gelu_new', 'relu': 'relu',
               'gelu_pytorch_tanh': 'gelu_pytorch_tanh', 'relu2': 'relu2', 'silu': 'silu',
               'swish': 'silu'}


@dataclasses.dataclass(frozen=True)
class Family:
    """A model_type of transformers: its fields under our names, and its defaults."""

    rules: names.Rules
    fields: Mapping[str, str]
    defaults: Mapping[str, object]  # of transformers' configuration class, by its names
    fixed: Mapping[str, object]  # what its code computes, by our names
    must_be: Mapping[str, tuple[object, ...]] = dataclasses.field(default_factory=dict)  # its names
    harmless: frozenset[str] = frozenset()  # beside HARMLESS
    window: str = ''  # the layers with sliding_window where layer_types does not say; '': no window
    is_transposed: bool = False


# Which layers have the window.
ALL_LAYERS, LATER_LAYERS, NOPE_LAYERS = 'all', 'later', 'nope'

_LLAMA_FIELDS = {
    'vocab_size': 'vocab_size', 'max_position_embeddings': 'n_positions', 'hidden_size': 'n_embd',
    'num_hidden_layers': 'n_layer', 'num_attention_heads': 'n_head',
    'num_key_value_heads': 'num_key_value_heads', 'head_dim': 'head_dim',
    'intermediate_size': 'n_inner', 'rms_norm_eps': 'layer_norm_epsilon',
    'hidden_act': 'activation_function', 'rope_theta': 'rope_theta',
    'tie_word_embeddings': 'tie_word_embeddings', 'attention_bias': 'attention_bias',
    'mlp_bias': 'mlp_bias'}
_LLAMA_DEFAULTS = {'hidden_act': 'silu', 'rms_norm_eps': 1e-6, 'tie_word_embeddings': False,
                   'rope_theta': 10000.0}
# Softmax is what the code of every family computes; --attention says another one.
_SOFTMAX: JsonObject = {'attention': {'kind': 'softmax'}, 'embedding_norm': False,
                        'final_logit_softcapping': None, 'rope_layout': 'half'}
_LLAMA_FIXED: JsonObject = {**_SOFTMAX, 'normalization': 'rms_norm'}
_LLAMA_MUST_BE = {'rope_interleaved': (False,), 'use_mrope': (False,)}

FAMILIES = {
    'gpt2': Family(
        names.GPT2,
        {**{name: name for name in ('vocab_size', 'n_positions', 'n_embd', 'n_layer', 'n_head',
                                    'n_inner', 'layer_norm_epsilon', 'tie_word_embeddings',
                                    'activation_function')}, 'n_ctx': 'n_positions'},
        {'activation_function': 'gelu_new', 'layer_norm_epsilon': 1e-5,
         'tie_word_embeddings': True},
        {**GPT2_BLOCK, 'attention': {'kind': 'softmax'}},
        {'scale_attn_weights': (True,), 'scale_attn_by_inverse_layer_idx': (False,)},
        is_transposed=True),
    'llama': Family(names.LLAMA, _LLAMA_FIELDS,
                    {**_LLAMA_DEFAULTS, 'attention_bias': False, 'mlp_bias': False}, _LLAMA_FIXED,
                    _LLAMA_MUST_BE),
    'mistral': Family(names.LLAMA, _LLAMA_FIELDS, _LLAMA_DEFAULTS, _LLAMA_FIXED, _LLAMA_MUST_BE,
                      window=ALL_LAYERS),
    # Biases of q, k and v, not of the output projection: the tensors show them.
    'qwen2': Family(names.LLAMA, _LLAMA_FIELDS, _LLAMA_DEFAULTS, _LLAMA_FIXED, _LLAMA_MUST_BE,
                    window=LATER_LAYERS),
    'smollm3': Family(
        names.LLAMA, _LLAMA_FIELDS,
        {**_LLAMA_DEFAULTS, 'rope_theta': 2000000.0, 'tie_word_embeddings': True,
         'attention_bias': False, 'mlp_bias': False}, _LLAMA_FIXED, _LLAMA_MUST_BE,
        window=NOPE_LAYERS),
    'bloom': Family(
        names.BLOOM,
        {'vocab_size': 'vocab_size', 'hidden_size': 'n_embd', 'n_embed': 'n_embd',
         'n_layer': 'n_layer', 'num_hidden_layers': 'n_layer', 'n_head': 'n_head',
         'num_attention_heads': 'n_head', 'seq_length': 'n_positions',
         'layer_norm_epsilon': 'layer_norm_epsilon', 'tie_word_embeddings': 'tie_word_embeddings'},
        {'layer_norm_epsilon': 1e-5, 'tie_word_embeddings': True},
        # The published models were trained on 2,048 tokens.
        {**GPT2_BLOCK, 'attention': {'kind': 'softmax'}, 'positions': 'alibi',
         'embedding_norm': True, 'activation_function': 'gelu_new', 'n_positions': 2048},
        # With slow_but_exact and pretraining_tp transformers leaves biases out.
        {'apply_residual_connection_post_layernorm': (False,), 'skip_bias_add_qkv': (False,),
         'slow_but_exact': (False,)},
        harmless=frozenset(('attention_softmax_in_fp32', 'bias_dropout_fusion',
                            'masked_softmax_fusion', 'n_inner', 'offset_alibi',
                            'skip_bias_add'))),
    'qwen3': Family(
        names.LLAMA, _LLAMA_FIELDS, {**_LLAMA_DEFAULTS, 'head_dim': 128},
        {**_LLAMA_FIXED,
         'qk_norm': {'kind': 'rms_norm', 'position': 'before_rotary', 'weight': True}},
        _LLAMA_MUST_BE, window=LATER_LAYERS),
    'gpt_neox': Family(
        names.NEOX,
        {'vocab_size': 'vocab_size', 'max_position_embeddings': 'n_positions',
         'hidden_size': 'n_embd', 'num_hidden_layers': 'n_layer', 'num_attention_heads': 'n_head',
         'intermediate_size': 'n_inner', 'layer_norm_eps': 'layer_norm_epsilon',
         'hidden_act': 'activation_function', 'rotary_emb_base': 'rope_theta',
         'rope_theta': 'rope_theta', 'rotary_pct': 'partial_rotary_factor',
         'partial_rotary_factor': 'partial_rotary_factor',
         'use_parallel_residual': 'parallel_residual',
         'tie_word_embeddings': 'tie_word_embeddings', 'attention_bias': 'attention_bias'},
        {'hidden_act': 'gelu', 'layer_norm_eps': 1e-5, 'rotary_emb_base': 10000,
         'rotary_pct': 0.25, 'use_parallel_residual': True, 'tie_word_embeddings': False,
         'attention_bias': True},
        {**_SOFTMAX, 'normalization': 'layer_norm'}),
}
# Fields of transformers that change nothing that a server computes: from the config.json files of
# GPT-2, Pythia, Llama, TinyLlama, SmolLM2, Mistral, Qwen2, Qwen2.5 and Qwen3, and from
# transformers' PretrainedConfig of versions 4 and 5.
HARMLESS = frozenset((
    '_attn_implementation', '_attn_implementation_autoset', '_attn_implementation_internal',
    '_commit_hash', '_flash_attn_2_enabled', '_name_or_path', 'architectures', 'attention_dropout',
    'attn_implementation', 'attn_pdrop', 'auto_map', 'bad_words_ids', 'begin_suppress_tokens',
    'chunk_size_feed_forward', 'classifier_dropout', 'cls_token_id', 'cross_attention_hidden_size',
    'custom_pipelines', 'decoder_start_token_id', 'diversity_penalty', 'do_sample', 'dropout',
    'dtype', 'early_stopping', 'embd_pdrop', 'encoder_no_repeat_ngram_size',
    'exponential_decay_length_penalty', 'finetuning_task', 'forced_bos_token_id',
    'forced_eos_token_id', 'gradient_checkpointing', 'hidden_dropout', 'id2label',
    'initializer_range', 'is_decoder', 'is_llama_config',
    'keys_to_ignore_at_inference', 'label2id', 'length_penalty', 'linear_layout', 'mask_token_id',
    'max_length', 'max_window_layers', 'min_length', 'model_type', 'no_repeat_ngram_size',
    'num_beam_groups', 'num_beams', 'num_return_sequences', 'output_attentions',
    'output_hidden_states', 'output_scores', 'pad_token_id', 'prefix', 'pretraining_tp',
    'problem_type', 'pruned_heads', 'remove_invalid_values', 'reorder_and_upcast_attn',
    'repetition_penalty',
    'resid_pdrop', 'return_dict', 'return_dict_in_generate', 'sep_token_id', 'summary_activation',
    'summary_first_dropout', 'summary_proj_to_labels', 'summary_type', 'summary_use_proj',
    'suppress_tokens', 'task_specific_params', 'temperature', 'tf_legacy_loss',
    'tokenizer_class', 'top_k', 'top_p', 'torch_dtype', 'torchscript',
    'transformers.js_config', 'transformers_version', 'typical_p', 'unk_token_id',
    'unsloth_fixed', 'unsloth_version', 'use_bfloat16', 'use_cache'))
# The server's tables of models/config_fields.cc: other programs' names of our fields, and fields
# that make another function unless they have one value.
OTHER_NAMES: Mapping[str, str] = {
    'hidden_size': 'n_embd', 'num_hidden_layers': 'n_layer', 'num_attention_heads': 'n_head',
    'intermediate_size': 'n_inner', 'max_position_embeddings': 'n_positions',
    'hidden_act': 'activation_function', 'hidden_activation': 'activation_function',
    'rms_norm_eps': 'layer_norm_epsilon', 'layer_norm_eps': 'layer_norm_epsilon',
    'norm_eps': 'layer_norm_epsilon', 'use_parallel_residual': 'parallel_residual',
    'rotary_pct': 'partial_rotary_factor', 'rotary_emb_base': 'rope_theta',
    'n_ctx': 'n_positions', 'block_size': 'n_positions', 'max_seq_len': 'n_positions',
    'n_kv_head': 'num_key_value_heads', 'model_dim': 'n_embd', 'num_layers': 'n_layer',
    'num_heads': 'n_head', 'logit_softcap': 'final_logit_softcapping',
    'padded_vocab_size': 'vocab_size'}
FIXED_FIELDS: Mapping[str, object] = {
    'scale_attn_weights': True, 'scale_attn_by_inverse_layer_idx': False,
    'add_cross_attention': False, 'is_encoder_decoder': False, 'tie_encoder_decoder': False,
    'bias': None, 'attn_scale': None, 'learned_positions': False, 'value_embeddings': False,
    'value_residual': False, 'unet_skips': False, 'x0_lambdas': None, 'resid_lambdas': None,
    'attn_logit_softcapping': None, 'sliding_window': None, 'sliding_window_pattern': None,
    'use_sliding_window': False, 'layer_types': None, 'attention_chunk_size': None,
    'clip_qkv': None, 'query_pre_attn_scalar': None, 'attention_multiplier': None,
    'embedding_multiplier': 1, 'residual_multiplier': 1, 'logits_scaling': 1, 'logit_scale': 1,
    'scale_emb': 1, 'scale_depth': None, 'rope_parameters': None, 'rope_local_base_freq': None,
    'rope_interleaved': False, 'rotary_interleaved': False, 'rotary_dim': None,
    'no_rope_layers': None, 'no_rope_layer_interval': None, 'use_qk_norm': False,
    'qk_layernorm': False, 'qkv_bias': None, 'skip_bias_add_qkv': False, 'slow_but_exact': False,
    'use_mrope': False, 'use_bias': None, 'lm_head_bias': False, 'num_experts': 0,
    'num_local_experts': 0, 'n_routed_experts': 0, 'num_experts_per_tok': 0, 'alibi': False,
    'rotary': True, 'parallel_attn': None, 'multi_query': False, 'new_decoder_architecture': False,
    'position_embedding_type': 'rope', 'apply_residual_connection_post_layernorm': False,
    'norm_type': None, 'normalization_type': None, 'use_rms_norm': None, 'use_post_norm': False,
    'layernorm_embedding': False, 'mlp': None, 'glu': None}
# Fields that must have these values in every family.
MUST_BE: Mapping[str, tuple[object, ...]] = {
    'add_cross_attention': (False,), 'is_encoder_decoder': (False,),
    'tie_encoder_decoder': (False,)}


def _rope_scaling(value: object) -> object:
    """Our rope_scaling, or None; settings.check() looks at what it holds."""
    if not isinstance(value, dict):
        return value
    if not value:
        return None
    kind = value.get('rope_type', value.get('type'))
    if kind == 'default':
        return None
    # transformers takes the length of these two from the config.
    unused = ('original_max_position_embeddings',) if kind in ('linear', 'dynamic') else ()
    given = {name: each for name, each in value.items()
             if name not in ('type', 'rope_type', *unused) and each is not None}
    return {'type': 'longrope' if kind == 'su' else kind, **given}


def _without_rope_parameters(config: JsonObject, family: Family, path: str) -> JsonObject:
    """The fields of transformers 5's rope_parameters under the names of transformers 4.

    Errors: CheckpointError for what is not computed, and for another value of the older names.
    """
    config = dict(config)
    given = config.pop('rope_parameters', None)
    if given is None:
        return config
    if not isinstance(given, dict):
        raise CheckpointError(f'{path}: rope_parameters is {show(given)}; must be an object')
    for name, value in given.items():
        if isinstance(value, dict):
            raise CheckpointError(f'{path}: rope_parameters holds an object for {quote(name)}; '
                                  'only one rotary embedding for all layers is computed')
    rope = {name: value for name, value in given.items() if value is not None}
    for name in ('rope_theta', 'partial_rotary_factor'):
        value = rope.pop(name, None)
        if value is None or value == 1 and name not in family.fields.values():
            continue  # such a family rotates whole heads
        if config.get(name) is None:
            config[name] = value
        elif config[name] != value:
            raise CheckpointError(f'{path}: {name} is {config[name]!r}, but {value!r} in '
                                  'rope_parameters; they must be equal')
    # Without a type the others mean nothing: settings.check() refuses them.
    older = config.get('rope_scaling')
    if older is None:
        config['rope_scaling'] = rope or None
    elif rope and _rope_scaling(rope) != _rope_scaling(older):
        raise CheckpointError(f'{path}: rope_scaling is {show(older)}, but rope_parameters is '
                              f'{show(given)}; they must say the same')
    return config


def _with_length_inside(config: JsonObject, path: str) -> JsonObject:
    """original_max_position_embeddings that stands beside rope_scaling, within it.

    Errors: CheckpointError where it has another one: transformers 4 takes one, 5 the other.
    """
    name = 'original_max_position_embeddings'
    length, scaling = config.get(name), config.get('rope_scaling')
    if length is None or not isinstance(scaling, dict) or not scaling:
        return config
    own = scaling.get(name)
    if own is not None and own != length:
        raise CheckpointError(f'{path}: {name} is {show(length)}, but {show(own)} in rope_scaling; '
                              'they must be equal')
    others = {key: value for key, value in config.items() if key != name}
    return {**others, 'rope_scaling': {**scaling, name: length}}


def _ends(config: JsonObject, path: str) -> list[int]:
    """The ids of a list that end a text. Errors: CheckpointError."""
    value = config.get('eos_token_id')
    if not isinstance(value, list):
        return []
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        raise CheckpointError(f'{path}: eos_token_id is {show(value)}; must be a list of ids')
    return value


def _eos(value: object, path: str) -> int | None:
    """The id that ends a text. Errors: CheckpointError."""
    if isinstance(value, list):
        value = value[0] if value else None
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise CheckpointError(f'{path}: eos_token_id is {value!r}; must be an id or a list of ids')
    return value


def _ignored_fields(config: JsonObject, known: Callable[[str], bool], path: str) -> set[str]:
    """What `ignored_fields` names: fields that change nothing. Errors: CheckpointError for one that
    changes what the model computes, as the server's.
    """
    listed = config.get('ignored_fields')
    if listed is None:
        return set()
    if not isinstance(listed, list):
        raise CheckpointError(f'{path}: ignored_fields is {show(listed)}; must be a list of names')
    for name in listed:
        if not isinstance(name, str):
            raise CheckpointError(f'{path}: ignored_fields holds {show(name)}; must hold names of '
                                  'fields')
        if known(name) or name in OTHER_NAMES or name in FIXED_FIELDS:
            raise CheckpointError(f'{path}: ignored_fields names {quote(name)}, which changes what '
                                  'the model computes; it cannot be ignored')
        if name not in config:
            raise CheckpointError(f'{path}: ignored_fields names {quote(name)}, which the file '
                                  'does not have')
    return set(listed)


def _is_fixed(name: str, value: object) -> bool:
    """Whether a field of FIXED_FIELDS has the value that is computed."""
    fixed = FIXED_FIELDS.get(name)
    return fixed is not None and fixed == value and isinstance(fixed, bool) is isinstance(
        value, bool)


def _computed(field: str, family: Family, recorded: JsonObject) -> object:
    """What the code of a family computes by a field of ours that its class does not read. None:
    nothing.
    """
    has_bias, is_rotary = family.rules is not names.LLAMA, family.rules in (names.LLAMA, names.NEOX)
    known: JsonObject = {
        'attention_residual_scale': 1, 'mlp_residual_scale': 1, 'parallel_residual': False,
        'embedding_norm': False, 'partial_rotary_factor': 1 if is_rotary else None,
        'attention_bias': has_bias, 'mlp_bias': has_bias, **family.fixed, **recorded}
    known = {'attention_out_bias': known['attention_bias'], 'mlp_out_bias': known['mlp_bias'],
             **known}
    if field in known:
        return known[field]
    size, heads = recorded.get('n_embd'), recorded.get('n_head')
    if type(size) is not int or type(heads) is not int or heads < 1:
        return None
    return {'num_key_value_heads': heads, 'n_inner': 4 * size,
            'head_dim': None if size % heads else size // heads,
            'unpadded_vocab_size': recorded.get('vocab_size')}.get(field)


def _check_computed(name: str, value: object, family: Family, recorded: JsonObject,
                    config: JsonObject, path: str) -> None:
    """A field that the class of the family does not read may only say what is computed anyway.

    Errors: CheckpointError.
    """
    field = OTHER_NAMES.get(name, name)
    computed = _computed(field, family, recorded)
    if field == 'activation_function':
        value = ACTIVATIONS.get(str(value), value)
    if computed is not None and computed == value and (
            isinstance(computed, bool) is isinstance(value, bool)):
        return
    raise CheckpointError(
        f'{path}: {name} is {show(value)}, but the code of model_type {config["model_type"]} '
        + ('does not read it; it must be absent' if computed is None else
           f'computes {show(computed)}; it must be that or absent'))


def _check_names(config: JsonObject, family: Family, path: str) -> None:
    """Errors: CheckpointError where two names of one field have different values."""
    names_of: dict[str, str] = {}
    for name, field in family.fields.items():
        if config.get(name) is None:
            continue
        first = names_of.setdefault(field, name)
        if config[first] != config[name]:
            raise CheckpointError(f'{path}: {first} is {show(config[first])}, but {name} is '
                                  f'{show(config[name])}; they must be equal')


def _from_hugging_face(config: JsonObject, family: Family, ignored: set[str],
                       path: str) -> JsonObject:
    """config.json fields that a Hugging Face config says.

    Errors: CheckpointError for a value that is not computed; UsageError that names all fields that
    are not known.
    """
    config = _with_length_inside(_without_rope_parameters(config, family, path), path)
    _check_names(config, family, path)
    recorded: JsonObject = {}
    unknown: JsonObject = {}
    not_read: JsonObject = {}
    listed = _ignored_fields(config, lambda name: name in FIELDS or name in family.fields
                             or name in family.must_be or name in LAYER_FIELDS, path)
    for name, value in {**family.defaults, **config}.items():
        must_be = family.must_be.get(name, MUST_BE.get(name))
        if value is None or name in HARMLESS or name in family.harmless or name in listed or (
                name == 'ignored_fields'):
            continue
        if must_be is not None:
            if value not in must_be:
                raise CheckpointError(f'{path}: {name} is {value!r}; only {must_be[0]!r} is '
                                      'computed')
        elif name == 'rope_scaling':
            recorded[name] = _rope_scaling(value)
        elif name in LAYER_FIELDS and (family.window == NOPE_LAYERS or name in ANY_LAYER_FIELDS):
            continue
        elif name == 'eos_token_id':
            recorded[name] = _eos(value, path)
        elif family.fields.get(name) == 'activation_function':
            if str(value) not in ACTIVATIONS:
                raise CheckpointError(f'{path}: {name} is {value!r}; must be one of '
                                      f'{", ".join(ACTIVATIONS)}')
            recorded['activation_function'] = ACTIVATIONS[str(value)]
        elif name in family.fields or name == 'bos_token_id':
            recorded[family.fields.get(name, name)] = value
        elif name in FIELDS and name != 'attention' or name in OTHER_NAMES:
            not_read[name] = value
        elif not _is_fixed(name, value):
            unknown[name] = value
    refuse_unknown(path, unknown, ignored)
    for name, value in not_read.items():
        _check_computed(name, value, family, recorded, config, path)
    recorded.update(_layers(config, family, recorded, path))
    return recorded


# Read by _layers.
ANY_LAYER_FIELDS = ('sliding_window', 'use_sliding_window', 'layer_types')
LAYER_FIELDS = (*ANY_LAYER_FIELDS, 'no_rope_layers', 'no_rope_layer_interval')


def _integer(config: JsonObject, name: str, least: int, default: int, path: str) -> int:
    value = config.get(name)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise CheckpointError(f'{path}: {name} is {show(value)}; must be an integer, at least '
                              f'{least}')
    return value


def _nope_layers(config: JsonObject, count: int, path: str) -> list[int]:
    """Layers without positions, of smollm3. Errors: CheckpointError."""
    flags = config.get('no_rope_layers')
    if flags is None:
        interval = _integer(config, 'no_rope_layer_interval', 1, 4, path)
        return [i for i in range(count) if (i + 1) % interval == 0]
    if not isinstance(flags, list) or len(flags) < count or any(each not in (0, 1)
                                                                for each in flags):
        raise CheckpointError(f'{path}: no_rope_layers is {show(flags)}; must have 0 or 1 for '
                              f'each of {count} layers')
    return [i for i in range(count) if flags[i] == 0]


def _cuts_off(window: object, length: object) -> bool:
    """Whether a window hides tokens of a text of the trained length."""
    return window is not None and not (
        isinstance(window, (int, float)) and isinstance(length, (int, float))
        and not isinstance(window, bool) and not isinstance(length, bool) and window >= length)


def _layers(config: JsonObject, family: Family, recorded: JsonObject, path: str) -> JsonObject:
    """What differs between layers, as transformers' code of the family computes it: windows of
    attention, and nope_layers.

    Errors: CheckpointError for what it does not compute.
    """
    types, flag = config.get('layer_types'), config.get('use_sliding_window')
    if flag is not None and not isinstance(flag, bool):
        raise CheckpointError(f'{path}: use_sliding_window is {show(flag)}; must be true or false')
    if not family.window:
        if flag or flag is None and _cuts_off(config.get('sliding_window'),
                                              config.get('max_position_embeddings')):
            raise CheckpointError(f'{path}: sliding_window is {config.get("sliding_window")!r}; '
                                  'the code of this model_type has no window')
        if types is not None and any(each != 'full_attention' for each in _list(types, path)):
            raise CheckpointError(f'{path}: layer_types is {show(types)}; only '
                                  '"full_attention" is computed for this model_type')
        return {}
    count = recorded.get('n_layer')
    if type(count) is not int or not 1 <= count <= 1024:
        return {}  # settings.derive() says so
    nope = _nope_layers(config, count, path) if family.window == NOPE_LAYERS else []
    is_used = family.window == ALL_LAYERS or flag is True
    # transformers' default; null is no window
    absent = 0 if 'sliding_window' in config or family.window == NOPE_LAYERS else 4096
    length = _integer(config, 'sliding_window', 1, absent, path) if is_used else 0
    first = (_integer(config, 'max_window_layers', 0, 28, path)
             if family.window == LATER_LAYERS else 0)
    windows = [length if i >= first and (family.window != NOPE_LAYERS or i in nope) else 0
               for i in range(count)]
    if types is not None:
        types = _list(types, path)
        is_known = len(types) == count and all(
            each == 'full_attention' or each == 'sliding_attention' and length for each in types)
        typed = [length if each == 'sliding_attention' else 0 for each in types]
        if not is_known or family.window == ALL_LAYERS and typed != windows:
            raise CheckpointError(f'{path}: layer_types is {show(types)}, with '
                                  f'{"a" if length else "no"} sliding window; the code of this '
                                  'model_type does not compute that')
        windows = typed
    found: JsonObject = {'nope_layers': nope} if nope else {}
    if any(windows):
        found['attention'] = [{'kind': 'softmax', **({'window': each} if each else {})}
                              for each in windows]
    return found


def _list(value: object, path: str) -> list[object]:
    if not isinstance(value, list):
        raise CheckpointError(f'{path}: layer_types is {show(value)}; must be a list')
    return value


def _shards(folder: str, index: str) -> dict[str, list[str]]:
    """{file: its tensors} of an index. Errors: CheckpointError for a name with a folder."""
    weights = read_json_object(index).get('weight_map')
    if not isinstance(weights, dict) or not weights:
        raise CheckpointError(f'{index}: weight_map must be an object that is not empty')
    tensors_of: dict[str, list[str]] = {}
    for tensor, file in sorted(weights.items()):
        tensors_of.setdefault(os.path.join(folder, str(file)), []).append(tensor)
        file = str(file)
        if os.path.basename(file) != file or file in ('', '.', '..'):
            raise CheckpointError(f'{index}: weight_map names "{file}"; must be a file beside it')
        if index.endswith('.safetensors.index.json') and not file.endswith('.safetensors'):
            raise CheckpointError(f'{index}: weight_map names "{file}"; must end in .safetensors')
    return dict(sorted(tensors_of.items()))


def _load_tensors(folder: str) -> tuple[list[str], dict[str, Array]]:
    """(files, tensors) of a Hugging Face directory. Errors: CheckpointError."""
    for name in ('model.safetensors', 'pytorch_model.bin'):
        single, index = os.path.join(folder, name), os.path.join(folder, name + '.index.json')
        if is_there(single):
            return [single], _tensors_of(single)
        if is_there(index):
            shards = _shards(folder, index)
            return list(shards), _tensors_of_shards(shards, index)
    raise CheckpointError(f'{folder}: has neither model.safetensors nor pytorch_model.bin, nor an '
                          'index of their shards')


def _tensors_of(file: str) -> dict[str, Array]:
    """All tensors of a file of weights. Errors: CheckpointError."""
    if file.endswith('.safetensors'):
        return TensorFile(file).tensors()
    from lssar.checkpoints import torch_file

    content = torch_file.load(file)
    if not torch_file.is_state_dict(content):
        raise CheckpointError(f'{file}: must hold tensors only')
    return _state_dict({'': content}, '')


def _tensors_of_shards(shards: Mapping[str, list[str]], index: str) -> dict[str, Array]:
    """The tensors of all shards. Errors: CheckpointError, also where the index of safetensors says
    otherwise, as the server's.
    """
    tensors: dict[str, Array] = {}
    is_checked = index.endswith('.safetensors.index.json')
    for file, listed in shards.items():
        loaded = _tensors_of(file)
        twice = sorted(set(tensors) & set(loaded))
        if twice:
            raise CheckpointError(f'{file}: tensor "{twice[0]}" is in another shard too')
        tensors.update(loaded)
        missing = [name for name in listed if name not in loaded]
        if missing and is_checked:
            raise CheckpointError(f'{index}: tensor {quote(missing[0])} is not in '
                                  f'{os.path.basename(file)}')
    others = sorted(tensors.keys() - {name for listed in shards.values() for name in listed})
    if others and is_checked:
        raise CheckpointError(f'{index}: tensor {quote(others[0])} is in a shard, but not in the '
                              'index')
    return tensors


def _read_directory(path: str, ignored: set[str]) -> Source:
    config_path = os.path.join(path, 'config.json')
    config = read_json_object(config_path)
    model_type = config.get('model_type')
    files, loaded = _load_tensors(path)
    tensors = names.unwrap(loaded)
    if directory.is_own(config):
        recorded = {name: value for name, value in config.items()
                    if name in FIELDS and value is not None}
        listed = _ignored_fields(config, lambda name: name in FIELDS, config_path)
        unknown = {name: value for name, value in config.items()
                   if name not in FIELDS and name not in HARMLESS and name not in listed
                   and name not in OTHER_NAMES and name != 'ignored_fields'
                   and value is not None and not _is_fixed(name, value)}
        refuse_unknown(config_path, unknown, ignored)
        for name, field in OTHER_NAMES.items():
            if config.get(name) not in (None, config.get(field)):
                raise CheckpointError(
                    f'{config_path}: {name} is {show(config[name])}, but {field} is '
                    f'{show(config.get(field))}; they must be equal')
        fixed: JsonObject = {'normalization': 'layer_norm', 'layer_norm_epsilon': 1e-5,
                             'embedding_norm': False, 'rope_layout': 'half',
                             'final_logit_softcapping': None}
        return Source(path, 'lssar', [config_path, *files], tensors, _rules_of(tensors), recorded,
                      fixed, (*ALWAYS, 'activation_function'),
                      is_transposed=config.get('linear_layout') == 'conv1d')
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise CheckpointError(f'{config_path}: model_type is {model_type!r}; must be one of '
                              f'{", ".join(FAMILIES)}, or lssar_gpt')
    family = FAMILIES[model_type]
    return Source(path, f'Hugging Face {model_type}', [config_path, *files], tensors, family.rules,
                  _from_hugging_face(config, family, ignored, config_path), dict(family.fixed),
                  (*ALWAYS, 'activation_function', 'layer_norm_epsilon'),
                  is_transposed=family.is_transposed, ends=_ends(config, config_path))


def read(path: str, ignored: set[str]) -> Source:
    """Reads a source of any format.

    Errors: CheckpointError that names what is wrong and what is read.
    """
    if os.path.isdir(path):
        return _read_directory(path, ignored)
    with open_regular(path) as file:
        start = file.read(8)
    if start[:4] == GGUF_MAGIC or path.endswith('.gguf'):
        return _read_gguf(path, ignored)
    if start[:2] == b'PK' or path.endswith(('.pt', '.pth', '.ckpt')):
        return _read_torch(path, ignored)
    refuse_unknown(path, {}, ignored)
    if llmc_file.is_llmc(start) or path.endswith('.bin') and start[:1] not in b'\x80':
        return _read_llmc(path)
    if path.endswith('.safetensors'):
        return _plain(path, TensorFile(path).tensors(), [])
    raise CheckpointError(
        f'{path}: no known format; must be a GGUF file, a .pt of PyTorch, a model_*.bin '
        'of llm.c, a .safetensors file, or a directory with config.json')


def check_finite(name: str, tensor: Array) -> None:
    """Errors: CheckpointError that names the first NaN or infinity and its place."""
    if type_name(tensor) not in FLOATS:
        raise CheckpointError(f'tensor "{name}" has type {type_name(tensor)}; must be float')
    values = widen(tensor, np.float32) if tensor.itemsize <= 4 else tensor
    finite = np.isfinite(values)
    if bool(finite.all()):
        return
    place = [int(i) for i in np.unravel_index(int((~finite).argmax()), tensor.shape)]
    raise CheckpointError(f'tensor "{name}" holds {float(values[tuple(place)])} at {place}; '
                          'must be finite')
