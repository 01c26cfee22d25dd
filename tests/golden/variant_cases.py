"""Tiny models, one for each variant of the architecture: config.json, random weights, and files.

Used by variants_oracle.py (float64 golden vectors, numpy) and variants_pytorch_test.py.
"""

import json
import os
import struct

import numpy as np

VOCAB, LAYERS, HEADS, WIDTH, HEAD_DIM, INNER, TRAINED_LENGTH = 61, 2, 4, 32, 32, 48, 32
NUM_TOKENS = 40

RMS = {'normalization': 'rms_norm', 'layer_norm_epsilon': 1e-6}
NO_BIASES = {'norm_bias': False, 'attention_bias': False, 'mlp_bias': False}
LSSAR3 = {'kind': 'lssar', 'p': 3.0}
SOFTMAX = {'kind': 'softmax'}

# Fields of config.json beyond BASE. `golden`: also a golden vector.
CASES = {
    'gpt2_erf': {'activation_function': 'gelu'},
    'relu': {'activation_function': 'relu', 'attention': SOFTMAX},
    'relu2': {'activation_function': 'relu2'},
    'silu': {'activation_function': 'silu'},
    'rms_norm': {**RMS, **NO_BIASES},
    'rms_norm_bias': {**RMS, 'norm_bias': True, 'attention_bias': False,
                      'attention_out_bias': True, 'mlp_out_bias': False},
    'weightless_layer_norm': {'normalization': 'layer_norm', 'norm_weight': False,
                              'norm_bias': False},
    # modded-nanogpt
    'modded': {**RMS, **NO_BIASES, 'norm_weight': False, 'activation_function': 'relu2',
               'embedding_norm': True, 'final_logit_softcapping': 15.0,
               'attention_residual_scale': 0.35, 'tie_word_embeddings': False,
               'unpadded_vocab_size': 57,
               'qk_norm': {'kind': 'rms_norm', 'position': 'before_rotary', 'weight': False,
                           'epsilon': 1e-6}},
    # Llama 3: SwiGLU, grouped-query heads
    'llama': {**RMS, **NO_BIASES, 'activation_function': 'silu', 'mlp_kind': 'gated',
              'num_key_value_heads': 2, 'rope_theta': 5e5, 'tie_word_embeddings': False},
    # Qwen 2: biases of q, k and v alone
    'qwen2': {**RMS, 'norm_bias': False, 'attention_out_bias': False, 'mlp_bias': False,
              'activation_function': 'silu', 'mlp_kind': 'gated', 'num_key_value_heads': 1,
              'attention': SOFTMAX},
    # Qwen 3: QK-norm
    'qwen3': {**RMS, **NO_BIASES, 'activation_function': 'silu', 'mlp_kind': 'gated',
              'num_key_value_heads': 2, 'attention': SOFTMAX,
              'qk_norm': {'kind': 'rms_norm', 'position': 'before_rotary', 'weight': True}},
    'qk_norm_after': {'qk_norm': {'kind': 'layer_norm', 'position': 'after_rotary', 'weight': True,
                                  'bias': True}, 'num_key_value_heads': 1},
    # Gemma 2: norms on both sides, GeGLU, soft-cap
    'gemma2': {**RMS, **NO_BIASES, 'norm_position': 'sandwich', 'mlp_kind': 'gated',
               'activation_function': 'gelu_pytorch_tanh', 'num_key_value_heads': 2,
               'final_logit_softcapping': 30.0, 'attention': SOFTMAX},
    'sandwich_scaled': {'norm_position': 'sandwich', 'attention_residual_scale': 0.5,
                        'mlp_residual_scale': 0.25},
    # GPT-NeoX: parallel branches, a quarter of each head rotates
    'neox': {'activation_function': 'gelu', 'parallel_residual': True,
             'partial_rotary_factor': 0.25, 'tie_word_embeddings': False},
    # GPT-J: the same, neighbours rotate
    'gptj': {'parallel_residual': True, 'partial_rotary_factor': 0.5,
             'rope_layout': 'interleaved', 'attention_bias': False, 'attention': SOFTMAX},
    'bloom_norm': {'embedding_norm': True},
    'mixed_attention': {'attention': [LSSAR3, SOFTMAX]},
    'ntk_partial': {'partial_rotary_factor': 0.5,
                    'rope_scaling': {'type': 'dynamic', 'factor': 2.0}},
}
GOLDEN = ('gpt2_erf', 'modded', 'llama', 'qwen3', 'qk_norm_after', 'gemma2', 'neox', 'gptj',
          'mixed_attention', 'ntk_partial')


def config_of(name):
    return {
        'vocab_size': VOCAB,
        'n_layer': LAYERS,
        'n_head': HEADS,
        'n_embd': WIDTH,
        'head_dim': HEAD_DIM,
        'n_inner': INNER,
        'n_positions': TRAINED_LENGTH,
        'activation_function': 'gelu_new',
        'layer_norm_epsilon': 1e-5,
        'rope_theta': 10000.0,
        'attention': LSSAR3,
        'model_type': 'lssar_gpt',
        **CASES[name],
    }


def shapes_of(config):
    """{name: shape} of every tensor that the config asks for."""
    width, inner, dim = config['n_embd'], config['n_inner'], config['head_dim']
    heads = config['n_head']
    kv_heads = config.get('num_key_value_heads', heads)
    is_rms = config.get('normalization') == 'rms_norm'
    norm_weight = config.get('norm_weight', True)
    norm_bias = config.get('norm_bias', not is_rms)
    attention_bias, mlp_bias = config.get('attention_bias', True), config.get('mlp_bias', True)
    shapes = {'wte.weight': (config['vocab_size'], width)}

    def norm(name, size=width, weight=norm_weight, bias=norm_bias):
        if weight:
            shapes[name + '.weight'] = (size,)
        if bias:
            shapes[name + '.bias'] = (size,)

    def linear(name, out, inputs, bias):
        shapes[name + '.weight'] = (out, inputs)
        if bias:
            shapes[name + '.bias'] = (out,)

    if config.get('embedding_norm'):
        norm('ln_emb')
    for layer in range(config['n_layer']):
        prefix = f'h.{layer}.'
        norm(prefix + 'ln_1')
        linear(prefix + 'attn.c_attn', (heads + 2 * kv_heads) * dim, width, attention_bias)
        qk_norm = config.get('qk_norm')
        if qk_norm:
            for part in 'qk':
                norm(f'{prefix}attn.{part}_norm', dim, qk_norm['weight'],
                     qk_norm.get('bias', False))
        linear(prefix + 'attn.c_proj', width, heads * dim,
               config.get('attention_out_bias', attention_bias))
        norm(prefix + 'ln_2')
        if config.get('mlp_kind') == 'gated':
            linear(prefix + 'mlp.c_gate', inner, width, mlp_bias)
        linear(prefix + 'mlp.c_fc', inner, width, mlp_bias)
        linear(prefix + 'mlp.c_proj', width, inner, config.get('mlp_out_bias', mlp_bias))
        if config.get('norm_position') == 'sandwich':
            norm(prefix + 'ln_1_post')
            norm(prefix + 'ln_2_post')
    norm('ln_f')
    if not config.get('tie_word_embeddings', True):
        shapes['lm_head.weight'] = (config['vocab_size'], width)
    return shapes


def random_tensors(config, seed, dtype):
    """Weights far from zero and one, so that every part changes the logits."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes_of(config).items():
        if len(shape) == 2:
            std = 1.0 if name == 'wte.weight' else 1.2 / np.sqrt(shape[1])
            values = rng.normal(0, std, shape)
        else:
            values = rng.normal(1.0 if name.endswith('weight') else 0.0, 0.2, shape)
        tensors[name] = values.astype(dtype)
    return tensors


def random_tokens(seed):
    return np.random.default_rng(1000 + seed).integers(0, VOCAB, NUM_TOKENS)


def write_safetensors(tensors, path):
    types = {'float32': 'F32', 'float16': 'F16', 'int32': 'I32'}
    header, blobs, offset = {}, [], 0
    for name, array in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {'dtype': types[array.dtype.name], 'shape': list(array.shape),
                        'data_offsets': [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text + b''.join(blobs))


def write_case(folder, config, tensors, tokens, logits):
    """A folder that golden_check runs."""
    os.makedirs(folder, exist_ok=True)
    with open(f'{folder}/config.json', 'w') as file:
        json.dump(config, file, indent=1)
        file.write('\n')
    write_safetensors(tensors, f'{folder}/model.safetensors')
    write_safetensors({'tokens': tokens.astype(np.int32), 'logits': logits.astype(np.float32)},
                      f'{folder}/expected.safetensors')
