"""Golden vectors of the architecture's variants: an independent float64 forward pass in numpy.

    /usr/bin/python3 tests/golden/variants_oracle.py tests/golden

Writes the folders variant_NAME and their entries in index.json. It shares no code with the model:
it reads config.json's fields (models/README.md) and computes one token and one head at a time.
"""

import json
import math
import sys

import numpy as np

import variant_cases


def norm(x, weight, bias, kind, epsilon):
    if kind == 'layer_norm':
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def erf(x):
    return np.vectorize(math.erf)(x)


ACTIVATIONS = {
    'gelu_new': lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    'gelu': lambda x: x / 2 * (1 + erf(x / math.sqrt(2))),
    'relu': lambda x: np.maximum(x, 0),
    'relu2': lambda x: np.maximum(x, 0) ** 2,
    'silu': lambda x: x / (1 + np.exp(-x)),
}
ACTIVATIONS['gelu_pytorch_tanh'] = ACTIVATIONS['gelu_new']


def attend(q, k, v, spec):
    """One head: q, k, v [L, d]; the formulas of arXiv 2501.13428, one query row at a time."""
    out = np.zeros_like(q)
    dim = q.shape[1]
    if spec['kind'] != 'softmax':
        q, k = (t / np.maximum(np.linalg.norm(t, axis=-1, keepdims=True), 1e-12) for t in (q, k))
    for i in range(len(q)):
        n = i + 1
        dots = k[:n] @ q[i]
        if spec['kind'] == 'softmax':
            scores = dots / math.sqrt(dim)
            weights = np.exp(scores - scores.max())
        else:
            scores = math.log(dim) * math.log(n) * dots
            a = np.maximum(scores, 0) + np.log1p(np.exp(-np.abs(scores)))
            x = np.maximum(0, n * a / a.sum() - (0 if n <= 3 else 1))
            weights = a if x.max() <= 1e-6 else (x / x.max()) ** spec['p']
        out[i] = weights @ v[:n] / weights.sum()
    return out


def rotate(x, config):
    """x [L, d] of one head."""
    length, dim = x.shape
    r = int(dim * config.get('partial_rotary_factor', 1.0))
    base = config['rope_theta']
    scaling, trained = config.get('rope_scaling'), config['n_positions']
    if scaling and length > trained:
        f = scaling['factor']
        base *= (f * length / trained - (f - 1)) ** (r / (r - 2))
    angles = np.arange(length)[:, None] * base ** (-np.arange(0, r, 2) / r)
    a, b = (np.arange(0, r, 2), np.arange(1, r, 2)) if config.get('rope_layout') == 'interleaved' \
        else (np.arange(r // 2), np.arange(r // 2, r))
    out = x.copy()
    out[:, a] = x[:, a] * np.cos(angles) - x[:, b] * np.sin(angles)
    out[:, b] = x[:, b] * np.cos(angles) + x[:, a] * np.sin(angles)
    return out


def forward(config, tensors, tokens):
    """Logits [L, vocab]."""
    w = {name: array.astype(np.float64) for name, array in tensors.items()}
    kind, epsilon = config.get('normalization', 'layer_norm'), config['layer_norm_epsilon']
    heads, dim = config['n_head'], config['head_dim']
    kv_heads = config.get('num_key_value_heads', heads)
    is_sandwich = config.get('norm_position') == 'sandwich'
    activation = ACTIVATIONS[config['activation_function']]

    def hidden_norm(x, name):
        return norm(x, w.get(name + '.weight'), w.get(name + '.bias'), kind, epsilon)

    def linear(x, name):
        y = x @ w[name + '.weight'].T
        return y + w[name + '.bias'] if name + '.bias' in w else y

    def head_vectors(x, prefix, part):
        settings = config.get('qk_norm')
        apply = (lambda t: norm(t, w.get(f'{prefix}attn.{part}_norm.weight'),
                                w.get(f'{prefix}attn.{part}_norm.bias'), settings['kind'],
                                settings.get('epsilon', epsilon))) if settings else None
        if settings and settings['position'] == 'before_rotary':
            x = apply(x)
        x = rotate(x, config)
        return apply(x) if settings and settings['position'] == 'after_rotary' else x

    def attention(x, layer, prefix):
        specs = config['attention']
        spec = specs[layer] if isinstance(specs, list) else specs
        qkv = linear(x, prefix + 'attn.c_attn')
        parts = [qkv[:, i * dim:(i + 1) * dim] for i in range(heads + 2 * kv_heads)]
        outs = []
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            outs.append(attend(head_vectors(parts[head], prefix, 'q'),
                               head_vectors(parts[heads + kv_head], prefix, 'k'),
                               parts[heads + kv_heads + kv_head], spec))
        y = linear(np.concatenate(outs, -1), prefix + 'attn.c_proj')
        y = hidden_norm(y, prefix + 'ln_1_post') if is_sandwich else y
        return y * config.get('attention_residual_scale', 1.0)

    def mlp(x, prefix):
        if config.get('mlp_kind') == 'gated':
            y = activation(linear(x, prefix + 'mlp.c_gate')) * linear(x, prefix + 'mlp.c_fc')
        else:
            y = activation(linear(x, prefix + 'mlp.c_fc'))
        y = linear(y, prefix + 'mlp.c_proj')
        y = hidden_norm(y, prefix + 'ln_2_post') if is_sandwich else y
        return y * config.get('mlp_residual_scale', 1.0)

    x = w['wte.weight'][tokens]
    if config.get('embedding_norm'):
        x = hidden_norm(x, 'ln_emb')
    for layer in range(config['n_layer']):
        prefix = f'h.{layer}.'
        attended = x + attention(hidden_norm(x, prefix + 'ln_1'), layer, prefix)
        mlp_in = x if config.get('parallel_residual') else attended
        x = attended + mlp(hidden_norm(mlp_in, prefix + 'ln_2'), prefix)
    logits = hidden_norm(x, 'ln_f') @ w.get('lm_head.weight', w['wte.weight']).T
    cap = config.get('final_logit_softcapping')
    return cap * np.tanh(logits / cap) if cap else logits


def main():
    directory = sys.argv[1]
    with open(f'{directory}/index.json') as file:
        index = [c for c in json.load(file) if not c['name'].startswith('variant_')]
    for seed, name in enumerate(variant_cases.GOLDEN):
        config = variant_cases.config_of(name)
        tensors = variant_cases.random_tensors(config, seed, np.float16)
        tokens = variant_cases.random_tokens(seed)
        logits = forward(config, tensors, tokens)
        variant_cases.write_case(f'{directory}/variant_{name}', config, tensors, tokens, logits)
        index.append({'name': f'variant_{name}', 'model': True, 'tokens': len(tokens)})
    with open(f'{directory}/index.json', 'w') as file:
        json.dump(index, file, indent=1)


if __name__ == '__main__':
    main()
