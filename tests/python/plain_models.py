"""Models of transformers in numpy and float64, written from their definitions: llama, mistral,
qwen2, qwen3 and gpt_neox. They share no code with the importer or the server.
"""

import math

import numpy as np


def rms(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def layer_norm(x, weight, bias, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight + bias


def rotate_half(x, theta, dims):
    """x: [heads, length, head_dim]."""
    inverse = theta ** (-np.arange(0, dims, 2) / dims)
    angles = np.outer(np.arange(x.shape[1]), inverse)
    angles = np.concatenate((angles, angles), -1)
    part = x[..., :dims]
    turned = np.concatenate((-part[..., dims // 2:], part[..., :dims // 2]), -1)
    return np.concatenate((part * np.cos(angles) + turned * np.sin(angles), x[..., dims:]), -1)


def softmax_attention(q, k, v):
    scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
    scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def heads(x, count):
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


def llama(config, w, tokens):
    """Also mistral, qwen2 (biases of q, k, v) and qwen3 (norms of q and k). -> logits."""
    w = {name: np.asarray(each, np.float64) for name, each in w.items()}
    h, kv = config['num_attention_heads'], config['num_key_value_heads']
    eps, theta = config['rms_norm_eps'], config['rope_theta']
    x = w['model.embed_tokens.weight'][tokens]
    for i in range(config['num_hidden_layers']):
        p = f'model.layers.{i}.'
        y = rms(x, w[p + 'input_layernorm.weight'], eps)
        q, k, v = (heads(y @ w[f'{p}self_attn.{n}_proj.weight'].T
                         + w.get(f'{p}self_attn.{n}_proj.bias', 0), h if n == 'q' else kv)
                   for n in 'qkv')
        if p + 'self_attn.q_norm.weight' in w:
            q = rms(q, w[p + 'self_attn.q_norm.weight'], eps)
            k = rms(k, w[p + 'self_attn.k_norm.weight'], eps)
        dims = q.shape[-1]
        q, k = rotate_half(q, theta, dims), rotate_half(k, theta, dims)
        out = softmax_attention(q, k.repeat(h // kv, 0), v.repeat(h // kv, 0))
        x = x + out.swapaxes(0, 1).reshape(len(x), -1) @ w[p + 'self_attn.o_proj.weight'].T
        y = rms(x, w[p + 'post_attention_layernorm.weight'], eps)
        gate = y @ w[p + 'mlp.gate_proj.weight'].T
        up = y @ w[p + 'mlp.up_proj.weight'].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + 'mlp.down_proj.weight'].T
    return rms(x, w['model.norm.weight'], eps) @ w.get(
        'lm_head.weight', w['model.embed_tokens.weight']).T


def gpt_neox(config, w, tokens):
    """With parallel residuals and erf-GELU. -> logits."""
    w = {name: np.asarray(each, np.float64) for name, each in w.items()}
    h, eps = config['num_attention_heads'], config['layer_norm_eps']
    x = w['gpt_neox.embed_in.weight'][tokens]
    for i in range(config['num_hidden_layers']):
        p = f'gpt_neox.layers.{i}.'
        y = layer_norm(x, w[p + 'input_layernorm.weight'], w[p + 'input_layernorm.bias'], eps)
        joined = y @ w[p + 'attention.query_key_value.weight'].T + w[
            p + 'attention.query_key_value.bias']
        q, k, v = np.split(joined.reshape(len(x), h, -1).swapaxes(0, 1), 3, -1)
        dims = int(q.shape[-1] * config['rotary_pct'])
        theta = config['rotary_emb_base']
        out = softmax_attention(rotate_half(q, theta, dims), rotate_half(k, theta, dims), v)
        attended = out.swapaxes(0, 1).reshape(len(x), -1) @ w[
            p + 'attention.dense.weight'].T + w[p + 'attention.dense.bias']
        y = layer_norm(x, w[p + 'post_attention_layernorm.weight'],
                       w[p + 'post_attention_layernorm.bias'], eps)
        up = y @ w[p + 'mlp.dense_h_to_4h.weight'].T + w[p + 'mlp.dense_h_to_4h.bias']
        up = 0.5 * up * (1 + np.vectorize(math.erf)(up / math.sqrt(2)))
        x = x + attended + up @ w[p + 'mlp.dense_4h_to_h.weight'].T + w[
            p + 'mlp.dense_4h_to_h.bias']
    return layer_norm(x, w['gpt_neox.final_layer_norm.weight'],
                      w['gpt_neox.final_layer_norm.bias'], eps) @ w['embed_out.weight'].T


def llama_weights(config, seed=1):
    """Random weights far from zero and one, by Hugging Face's names. float32."""
    rng = np.random.default_rng(seed)
    c, h = config['hidden_size'], config['num_attention_heads']
    d = config.get('head_dim', c // h)
    kv, inner, v = config['num_key_value_heads'], config['intermediate_size'], config['vocab_size']

    def matrix(rows, cols):
        return (rng.standard_normal((rows, cols)) * 1.2 / math.sqrt(cols)).astype(np.float32)

    def vector(size, mean):
        return (mean + 0.2 * rng.standard_normal(size)).astype(np.float32)

    w = {'model.embed_tokens.weight': matrix(v, c), 'model.norm.weight': vector(c, 1)}
    if not config.get('tie_word_embeddings'):
        w['lm_head.weight'] = matrix(v, c)
    for i in range(config['num_hidden_layers']):
        p = f'model.layers.{i}.'
        for n, rows in (('q', h * d), ('k', kv * d), ('v', kv * d)):
            w[f'{p}self_attn.{n}_proj.weight'] = matrix(rows, c)
            if config['model_type'] == 'qwen2':
                w[f'{p}self_attn.{n}_proj.bias'] = vector(rows, 0)
        if config['model_type'] == 'qwen3':
            w[p + 'self_attn.q_norm.weight'] = vector(d, 1)
            w[p + 'self_attn.k_norm.weight'] = vector(d, 1)
        w[p + 'self_attn.o_proj.weight'] = matrix(c, h * d)
        w[p + 'mlp.gate_proj.weight'] = matrix(inner, c)
        w[p + 'mlp.up_proj.weight'] = matrix(inner, c)
        w[p + 'mlp.down_proj.weight'] = matrix(c, inner)
        w[p + 'input_layernorm.weight'] = vector(c, 1)
        w[p + 'post_attention_layernorm.weight'] = vector(c, 1)
    return w


def gpt_neox_weights(config, seed=1):
    """As llama_weights()."""
    rng = np.random.default_rng(seed)
    c, inner, v = config['hidden_size'], config['intermediate_size'], config['vocab_size']

    def matrix(rows, cols):
        return (rng.standard_normal((rows, cols)) * 1.2 / math.sqrt(cols)).astype(np.float32)

    w = {'gpt_neox.embed_in.weight': matrix(v, c), 'embed_out.weight': matrix(v, c)}
    sizes = {'attention.query_key_value': (3 * c, c), 'attention.dense': (c, c),
             'mlp.dense_h_to_4h': (inner, c), 'mlp.dense_4h_to_h': (c, inner)}
    norms = ['gpt_neox.final_layer_norm']
    for i in range(config['num_hidden_layers']):
        p = f'gpt_neox.layers.{i}.'
        norms += [p + 'input_layernorm', p + 'post_attention_layernorm']
        for name, (rows, cols) in sizes.items():
            w[p + name + '.weight'] = matrix(rows, cols)
            w[p + name + '.bias'] = (0.2 * rng.standard_normal(rows)).astype(np.float32)
    for name in norms:
        w[name + '.weight'] = (1 + 0.2 * rng.standard_normal(c)).astype(np.float32)
        w[name + '.bias'] = (0.2 * rng.standard_normal(c)).astype(np.float32)
    return w
