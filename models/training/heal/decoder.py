"""The forward pass of an imported checkpoint, written for training: batches, bfloat16, gradients.

Weights have the names of models/README.md without `transformer.`. The teacher and the student are
two Decoders that share every frozen tensor: the student has tensors of its own for what it trains.
"""

import dataclasses

import torch
import torch.nn.functional as F

import attention
from compiled import fused
from differences import client

ACTIVATIONS = {
    'gelu_new': lambda x: F.gelu(x, approximate='tanh'),
    'gelu_pytorch_tanh': lambda x: F.gelu(x, approximate='tanh'),
    'gelu': F.gelu,
    'relu': F.relu,
    'relu2': lambda x: F.relu(x).square(),
    'silu': F.silu,
}
# Fields of config.json that change the function and that this file does not compute.
REFUSED = {
    'embedding_norm': (None, False),
    'norm_position': (None, 'pre'),
    'qk_norm': (None,),
    'positions': (None, 'none', 'learned', 'rotary'),
    'final_logit_softcapping': (None,),
    'attention_residual_scale': (None, 1),
    'mlp_residual_scale': (None, 1),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What config.json says of the model, besides its attention."""

    positions: int  # that it was trained at
    position_kind: str  # 'rotary', 'learned' (then no text is longer than `positions`), 'none'
    nope_layers: tuple  # of a rotary model, without positions
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_layout: str
    config: dict  # config.json, as the client's forward.py reads its rotary embedding
    norm: str
    epsilon: float
    activation: str
    is_gated: bool
    is_parallel: bool


def shape_of(config):
    """The Shape of a config.json. Exits if it asks for what is not computed here."""
    for field, computed in REFUSED.items():
        if config.get(field) not in computed:
            known = ', '.join(repr(value) for value in computed if value is not None) or None
            raise SystemExit(f'config.json: {field} is {config[field]!r}; models/training/heal '
                             f'computes {known} alone')
    heads = config['n_head']
    head_dim = config.get('head_dim') or config['n_embd'] // heads
    return Shape(
        config['n_positions'], config.get('positions') or 'rotary',
        tuple(config.get('nope_layers') or ()), config['n_layer'], heads,
        config.get('num_key_value_heads') or heads, head_dim,
        config.get('rope_layout', 'half'), config, config.get('normalization', 'layer_norm'),
        config.get('layer_norm_epsilon', 1e-5), config['activation_function'],
        config.get('mlp_kind') == 'gated', bool(config.get('parallel_residual')))


def rope_length(config, length):
    """The length whose rotary angles the server gives a row of `length` tokens.

    Dynamic NTK takes the next power-of-two multiple of the trained length (models/DESIGN.md).
    """
    scaling = config.get('rope_scaling')
    if scaling is None or client('forward').scaling_kind(scaling) != 'dynamic':
        return length
    budget = config['n_positions']
    while budget < length:
        budget *= 2
    return budget


@fused
def normed(x, weight, bias, epsilon, is_centred, dtype):
    """Layer norm or RMS norm of x [positions, n_embd], in `dtype`."""
    if is_centred:
        x = x - x.mean(-1, keepdim=True)
    x = x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    x = x if weight is None else x * weight
    return (x if bias is None else x + bias).to(dtype)


@fused
def rotated(x, cos, sin, layout, dtype):
    """Rotary embedding of x [positions, heads, head_dim], in `dtype`; cos, sin [positions, pairs].

    """
    x, cos, sin, pairs = x.float(), cos[:, None], sin[:, None], cos.shape[-1]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if layout == 'half':
        a, b = turned[..., :pairs], turned[..., pairs:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    return (torch.cat((turned, rest), -1) if rest.shape[-1] else turned).to(dtype)


@fused
def gated(gate, up, activation):
    return ACTIVATIONS[activation](gate) * up


class Decoder:
    """Hidden states are float32. Products run in `dtype`, LSSAR's attention as DESIGN.md says.

    weights: {name: tensor}. kind, p: of the attention (attention.py); p of every layer, or a
    sequence with one for each.
    """

    def __init__(self, shape, weights, kind, p=15, dtype=torch.float32):
        self.shape, self.weights, self.kind, self.dtype = shape, weights, kind, dtype
        self.powers = [p] * shape.layers if isinstance(p, (int, float)) else list(p)
        if len(self.powers) != shape.layers:
            raise ValueError(f'p has {len(self.powers)} values; the model has {shape.layers} '
                             'layers')
        self.angles = {}

    def linear(self, x, name, rows=slice(None)):
        """x W^T + b with the chosen rows of W, in `dtype`."""
        weight, bias = self.weights[name + '.weight'], self.weights.get(name + '.bias')
        bias = None if bias is None else bias[rows].to(self.dtype)
        return F.linear(x.to(self.dtype), weight[rows].to(self.dtype), bias)

    def norm(self, x, name, dtype=None):
        """Layer norm or RMS norm, in `dtype`; None: as products read it."""
        return normed(x.flatten(0, -2), self.weights.get(name + '.weight'),
                      self.weights.get(name + '.bias'), self.shape.epsilon,
                      self.shape.norm == 'layer_norm', dtype or self.dtype).view(x.shape)

    def rotate(self, x, layer):
        """x [batch, length, heads, head_dim] of q or k, with its rotary embedding if it has one."""
        dtype = self.dtype if self.kind == 'softmax' else torch.float32
        if self.shape.position_kind != 'rotary' or layer in self.shape.nope_layers:
            return x.to(dtype)
        batch, length = x.shape[:2]
        key = batch, length, x.device
        if key not in self.angles:
            frequencies, factor = client('forward').rope_frequencies(
                self.shape.config, rope_length(self.shape.config, length))
            angles = torch.arange(length)[:, None] * torch.from_numpy(frequencies)
            self.angles[key] = [(factor * part).float().to(x.device).repeat(batch, 1)
                                for part in (angles.cos(), angles.sin())]
        return rotated(x.flatten(0, 1), *self.angles[key], self.shape.rope_layout,
                       dtype).view(x.shape)

    def project(self, y, layer, part):
        """'q', 'k' or 'v' of normed hidden states y: [batch, heads or kv_heads, length, dim]."""
        dim, queries, keys = self.shape.head_dim, self.shape.heads, self.shape.kv_heads
        first = {'q': 0, 'k': queries, 'v': queries + keys}[part] * dim
        count = queries if part == 'q' else keys
        x = self.linear(y, f'h.{layer}.attn.c_attn', slice(first, first + count * dim))
        x = x.unflatten(-1, (count, dim))
        return (x if part == 'v' else self.rotate(x, layer)).transpose(1, 2)

    def attend(self, q, k, v, layer):
        """Causal attention, each head with its K/V head: [batch, length, heads * dim]."""
        group = self.shape.heads // self.shape.kv_heads
        if group > 1 and not attention.has_groups(q, self.kind):
            k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        if self.kind == 'softmax' and hasattr(F, 'scaled_dot_product_attention'):
            q, k, v = (x.to(self.dtype) for x in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            out = attention.fastest_attention(q, k, v, self.kind, self.powers[layer])
        return out.transpose(1, 2).flatten(2)

    def attended(self, y, layer):
        """The attention's contribution to the hidden states, from normed hidden states y."""
        q, k, v = (self.project(y, layer, part) for part in 'qkv')
        return self.linear(self.attend(q, k, v, layer), f'h.{layer}.attn.c_proj')

    def after_attention(self, x, attended, layer):
        """The hidden states behind a block, from those before it and attended()."""
        middle = x + attended
        y = self.norm(x if self.shape.is_parallel else middle, f'h.{layer}.ln_2')
        up = self.linear(y, f'h.{layer}.mlp.c_fc')
        if self.shape.is_gated:
            gate = self.linear(y, f'h.{layer}.mlp.c_gate')
            up = gated(gate.flatten(0, 1), up.flatten(0, 1), self.shape.activation).view(up.shape)
        else:
            up = ACTIVATIONS[self.shape.activation](up)
        return middle + self.linear(up, f'h.{layer}.mlp.c_proj')

    def block(self, x, layer):
        return self.after_attention(x, self.attended(self.norm(x, f'h.{layer}.ln_1'), layer), layer)

    def embed(self, tokens):
        x = self.weights['wte.weight'][tokens].float()
        if self.shape.position_kind == 'learned':
            x = x + self.weights['wpe.weight'][: tokens.shape[-1]].float()
        return x

    def hidden(self, tokens):
        """What the output projection reads: tokens [batch, length] -> [batch, length, n_embd]."""
        x = self.embed(tokens)
        for layer in range(self.shape.layers):
            x = self.block(x, layer)
        return self.norm(x, 'ln_f', torch.float32)

    def head(self):
        """The output projection [vocab_size, n_embd]."""
        return self.weights.get('lm_head.weight', self.weights['wte.weight'])
