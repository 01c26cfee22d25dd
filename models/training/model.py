"""LSSAR-GPT in PyTorch: the reference that checkpoints are trained with.

GPT-2 blocks (pre-LayerNorm, biases, tanh GELU, tied embeddings) with rotary
position embeddings and, in place of softmax, Length Scaled Softplus Attention
with Re-weighting (arXiv 2501.13428, Algorithm 1). `attention()` is the plain
transcription of the algorithm and the oracle for everything faster.
"""

import ctypes
import dataclasses
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass
class Config:
    vocab_size: int = 4096
    n_layer: int = 6
    n_head: int = 4
    n_embd: int = 256
    n_ctx: int = 512  # training length
    attention: str = 'lssar'  # 'lssar' | 'lssa' | 'softmax'
    p: int = 15
    rope_theta: float = 10000.0
    layer_norm_eps: float = 1e-5


def add_arguments(parser, n_ctx):
    """The flags that config_of reads."""
    parser.add_argument('--attention', default='lssar', choices=('lssar', 'lssa', 'softmax'))
    parser.add_argument('--p', type=int, default=15)
    parser.add_argument('--layers', type=int, default=6)
    parser.add_argument('--heads', type=int, default=4)
    parser.add_argument('--width', type=int, default=256)
    parser.add_argument('--ctx', type=int, default=n_ctx, help='training length, tokens')


def config_of(args, vocab_size):
    return Config(vocab_size, args.layers, args.heads, args.width, args.ctx, args.attention, args.p)


def attention(q, k, v, kind='lssar', p=15):
    """q, k, v: [..., L, d] -> [..., L, d]. Any float dtype; use float64 as an oracle."""
    L, d = q.shape[-2:]
    n = torch.arange(1, L + 1, dtype=q.dtype, device=q.device)[:, None]
    mask = torch.ones(L, L, dtype=torch.bool, device=q.device).tril()
    if kind == 'softmax':
        s = (q @ k.transpose(-1, -2)) / math.sqrt(d)
        return s.masked_fill(~mask, float('-inf')).softmax(-1) @ v
    q = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    k = k / k.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    a = F.softplus(math.log(d) * n.log() * (q @ k.transpose(-1, -2)), threshold=40) * mask
    a = a / a.sum(-1, keepdim=True)
    if kind == 'lssar':
        x = F.relu(a * n - (n > 3).to(q.dtype)) * mask
        peak = x.amax(-1, keepdim=True)
        y = (x / peak.clamp_min(1e-12)) ** p
        a = torch.where(peak > 1e-6, y / y.sum(-1, keepdim=True).clamp_min(1e-30), a)
    return a @ v


def rope(x, theta, positions=None):
    """x: [..., L, d]; rotates the pairs (i, i + d/2), the half-split layout."""
    L, d = x.shape[-2:]
    if positions is None:
        positions = torch.arange(L, device=x.device)
    pos = positions.double()
    f = pos[:, None] * theta ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    c, s = f.cos().to(x.dtype), f.sin().to(x.dtype)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


class _Tensors(ctypes.Structure):
    """struct Tensors of attention_cpu.cc."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ('q', 'k', 'v', 'out', 'stats', 'grad_out', 'grad_q', 'grad_k', 'grad_v')
    ] + [(name, ctypes.c_int) for name in ('heads', 'length', 'dim', 'p')]


class _Fused(torch.autograd.Function):
    """attention_cpu.cc: same function as attention(kind='lssar'), q and k already normalised."""

    library = None

    @staticmethod
    def run(function, p, **tensors):
        if _Fused.library is None:
            here = os.path.dirname(os.path.abspath(__file__))
            _Fused.library = ctypes.CDLL(os.path.join(here, 'attention_cpu.so'))
        length, dim = tensors['q'].shape[-2:]
        arguments = _Tensors(
            heads=tensors['q'].numel() // (length * dim), length=length, dim=dim, p=p,
            **{name: tensor.data_ptr() for name, tensor in tensors.items()})
        if getattr(_Fused.library, function)(ctypes.byref(arguments)) != 0:
            raise ValueError(f'p={p} is not compiled in')

    @staticmethod
    def forward(ctx, q, k, v, p):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out, stats = torch.empty_like(q), q.new_empty(*q.shape[:-1], 3)
        _Fused.run('lssar_forward', p, q=q, k=k, v=v, out=out, stats=stats)
        ctx.save_for_backward(q, k, v, stats)
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, stats = ctx.saved_tensors
        grads = [torch.empty_like(t) for t in (q, k, v)]
        _Fused.run('lssar_backward', ctx.p, q=q, k=k, v=v, stats=stats,
                   grad_out=grad_out.contiguous(), grad_q=grads[0], grad_k=grads[1],
                   grad_v=grads[2])
        return *grads, None


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

    def forward(self, x, fused):
        c = self.c
        B, L, D = x.shape
        parts = self.c_attn(self.ln_1(x)).split(D, -1)
        q, k, v = (t.view(B, L, c.n_head, -1).transpose(1, 2) for t in parts)
        q, k = rope(q, c.rope_theta), rope(k, c.rope_theta)
        if fused and c.attention == 'lssar':
            o = _Fused.apply(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, c.p)
        else:
            o = attention(q, k, v, c.attention, c.p)
        x = x + self.c_proj(o.transpose(1, 2).reshape(B, L, D))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate='tanh'))


class GPT(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.h = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd, eps=c.layer_norm_eps)
        for name, w in self.named_parameters():
            if w.dim() == 2:
                scale = 0.02 / math.sqrt(2 * c.n_layer) if name.endswith('_proj.weight') else 0.02
                nn.init.normal_(w, std=scale)
            elif name.endswith('bias'):
                nn.init.zeros_(w)

    def forward(self, tokens, targets=None, fused=True):
        """Logits [B, L, vocab]; with targets (-1: none) the loss of each, [B * L], in nats."""
        x = self.wte(tokens)
        for block in self.h:
            x = block(x, fused)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, self.c.vocab_size), targets.reshape(-1),
                               ignore_index=-1, reduction='none')
