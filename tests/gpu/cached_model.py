"""The model of models/training with a K/V cache: what a user of PyTorch has today.

The cache has a fixed length, so that a compiler sees the same shapes in every step. Slots after a
row's position are masked.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import attention
import model


def weigh_row(products, n, dim, p):
    """attention_weights() of one row with n keys (a tensor): [..., 1, keys] -> weights."""
    seen = (torch.arange(products.shape[-1], device=products.device) < n).to(products.dtype)
    length = n.to(products.dtype)
    a = F.softplus(math.log(dim) * length.log() * products, threshold=40) * seen
    a = a / a.sum(-1, keepdim=True)
    x = F.relu(length * a - (n > 3).to(products.dtype)) * seen
    peak = x.amax(-1, keepdim=True)
    y = (x / peak.clamp_min(attention.PEAK_FLOOR)) ** p
    return torch.where(peak > attention.PEAK_FLOOR,
                       y / y.sum(-1, keepdim=True).clamp_min(attention.X_FLOOR), a)


def at_least_float(x):
    """In fp32: scores reach ln(d) ln(N) = 41 and weights are powers of them."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Cache(nn.Module):
    """Keys and values of one layer. Buffers: torch.compile may treat addresses as fixed."""

    def __init__(self, like, shape):
        super().__init__()
        self.register_buffer('k', like.new_zeros(shape), persistent=False)
        self.register_buffer('v', like.new_zeros(shape), persistent=False)


class CachedModel(nn.Module):
    """A model.GPT of kind lssar, and `batch` sequences of up to `length` tokens."""

    def __init__(self, net, batch, length):
        super().__init__()
        assert net.c.attention == 'lssar'
        self.net = net
        weight = net.wte.weight
        shape = (batch, net.c.n_head, length, net.c.n_embd // net.c.n_head)
        cos, sin = net.rotations(length, weight.device)
        wide = at_least_float(weight).dtype
        self.register_buffer('cos', cos.to(wide), persistent=False)
        self.register_buffer('sin', sin.to(wide), persistent=False)
        self.caches = nn.ModuleList(Cache(weight, shape) for _ in net.h)

    def _qkv(self, block, x, cos, sin):
        """Heads [batch, heads, rows, dim]; q and k rotated and of unit length."""
        batch, rows, width = x.shape
        parts = block.c_attn(block.ln_1(x)).split(width, -1)
        q, k, v = (t.view(batch, rows, self.net.c.n_head, -1).transpose(1, 2) for t in parts)
        q, k = (attention.unit(model.rotate(t, cos, sin)).to(v.dtype) for t in (q, k))
        return q, k, v

    def _finish(self, block, x, attended):
        """The rest of a block."""
        x = x + block.c_proj(attended.transpose(1, 2).reshape(x.shape))
        hidden = F.gelu(block.c_fc(block.ln_2(x)), approximate='tanh')
        return x + block.mlp_proj(hidden)

    def _logits(self, x):
        """Logits of the last row: [batch, vocab]."""
        return self.net.logits(self.net.ln_f(x[:, -1]))

    def prefill(self, tokens):
        """tokens [batch, rows] from position 0 on -> the last row's logits."""
        rows = tokens.shape[1]
        x = self.net.wte(tokens)
        for block, cache in zip(self.net.h, self.caches):
            q, k, v = self._qkv(block, x, self.cos[:rows], self.sin[:rows])
            cache.k[:, :, :rows], cache.v[:, :, :rows] = k, v
            out = []
            for first in range(0, rows, attention.BLOCK_ROWS):
                end = first + attention.BLOCK_ROWS
                products = at_least_float(q[:, :, first:end] @ k[:, :, :end].transpose(-1, -2))
                weights = attention.attention_weights(products, first, q.shape[-1], 'lssar',
                                                      self.net.c.p)
                out.append(weights.to(v.dtype) @ v[:, :, :end])
            x = self._finish(block, x, torch.cat(out, -2))
        return self._logits(x)

    def step(self, tokens, position):
        """tokens [batch] at `position`, a tensor [1] -> logits of the next."""
        cos, sin = self.cos[position], self.sin[position]
        x = self.net.wte(tokens[:, None])
        for block, cache in zip(self.net.h, self.caches):
            q, k, v = self._qkv(block, x, cos, sin)
            cache.k.index_copy_(2, position, k)
            cache.v.index_copy_(2, position, v)
            products = at_least_float(q @ cache.k.transpose(-1, -2))
            weights = weigh_row(products, position + 1, q.shape[-1], self.net.c.p)
            x = self._finish(block, x, weights.to(v.dtype) @ cache.v)
        return self._logits(x)
