"""LSSAR-GPT in PyTorch: GPT-2 blocks (pre-LayerNorm, biases, tanh GELU, tied embeddings) with
rotary position embedding and an attention kind of attention.py."""

import dataclasses
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import attention


@dataclasses.dataclass
class Config:
    vocab_size: int = 8192
    n_layer: int = 6
    n_head: int = 4
    n_embd: int = 256
    n_ctx: int = 512  # trained length, tokens
    attention: str = 'lssar'  # one of attention.KINDS
    p: float = 15
    rope_theta: float = 10000.0
    layer_norm_eps: float = 1e-5


def rotations(length, dim, theta, device=None):
    """(cos, sin) of every position, [length, dim / 2], in float64."""
    positions = torch.arange(length, dtype=torch.float64, device=device)
    pairs = torch.arange(0, dim, 2, dtype=torch.float64, device=device)
    angles = positions[:, None] * theta ** (-pairs / dim)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """x: [..., L, d]; rotates the pairs (i, i + d/2): the half-split layout."""
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.ln_1 = nn.LayerNorm(c.n_embd, eps=c.layer_norm_eps)
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd)
        self.ln_2 = nn.LayerNorm(c.n_embd, eps=c.layer_norm_eps)
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd)
        self.mlp_proj = nn.Linear(4 * c.n_embd, c.n_embd)

    def forward(self, x, cos, sin):
        c = self.c
        B, L, D = x.shape
        parts = self.c_attn(self.ln_1(x)).split(D, -1)
        q, k, v = (t.view(B, L, c.n_head, -1).transpose(1, 2) for t in parts)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        o = attention.fastest_attention(q, k, v, c.attention, c.p).to(v.dtype)
        x = x + self.c_proj(o.transpose(1, 2).reshape(B, L, D))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate='tanh'))


class GPT(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.h = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd, eps=c.layer_norm_eps)
        # Stored, because a compiler would repeat float64 cosines in forward() for every head.
        cos, sin = self.rotations(c.n_ctx)
        self.register_buffer('cos', cos, persistent=False)
        self.register_buffer('sin', sin, persistent=False)
        for name, w in self.named_parameters():
            if w.dim() == 2:
                scale = 0.02 / math.sqrt(2 * c.n_layer) if name.endswith('_proj.weight') else 0.02
                nn.init.normal_(w, std=scale)
            elif name.endswith('bias'):
                nn.init.zeros_(w)

    def rotations(self, length, device=None):
        return rotations(length, self.c.n_embd // self.c.n_head, self.c.rope_theta, device)

    def hidden(self, tokens):
        """[B, L] -> [B, L, n_embd], the input of logits()."""
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        if length > self.c.n_ctx:
            cos, sin = self.rotations(length, tokens.device)
        x = self.wte(tokens)
        for block in self.h:
            x = block(x, cos, sin)
        return self.ln_f(x)

    def logits(self, hidden):
        return F.linear(hidden, self.wte.weight)

    def forward(self, tokens, targets=None):
        """Logits [B, L, vocab]; with targets, the loss of each token in nats, [B * L]."""
        logits = self.logits(self.hidden(tokens))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, self.c.vocab_size), targets.reshape(-1),
                               reduction='none')
