"""LSSAR attention on a GPU, forward and backward, in Triton: no length x length matrix in memory.

The function and its names are those of attention.py. Per row: n keys, c = ln(d) ln(n), softplus
s_j of c <q, k_j>, S = sum s_j, x_j = max(0, n s_j / S - o), r_j = x_j / max x, w_j = r_j^p / Y.

Forward: one sweep over K for S and the peak, one over K and V for the output. Backward: with
u_j = n dL/dx_j and E = sum a_j u_j, dL/ds_j = (u_j - E) / S. `_grad_q` keeps the sums of
u_j s'_j k_j and of s'_j k_j apart, so that one sweep gives E and dq; `_grad_kv` then reads E.

Scores are products of float16 unit vectors, summed in float32; weights and gradients are bfloat16
where they meet V and the gradient of the output. Softplus is in units of ln 2, which cancel out.

Tensors are [batch, length, heads, dim], as projections write them; figures of rows are [batch,
length, heads]. Keys and values may have fewer heads: each serves a group of query heads.
"""

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from compiled import fused

ROWS = 128  # lengths are padded to a multiple of it
# (queries, keys, warps) of a program: the fastest of those tried on an H200.
FORWARD, GRAD_Q, GRAD_KV = (64, 32, 4), (64, 32, 4), (32, 64, 4)
DIMS = (16, 32, 64, 128)
SCORES, VALUES = torch.float16, torch.bfloat16  # types of q and k, and of v and gradients


@triton.jit
def _softplus(t):
    """log2(1 + 2^t)."""
    return tl.maximum(t, 0.0) + tl.log2(1.0 + tl.exp2(-tl.abs(t)))


@triton.jit
def _sigmoid(t):
    """1 / (1 + 2^-t)."""
    e = tl.exp2(-tl.abs(t))
    low = e / (1.0 + e)
    return tl.where(t >= 0, 1.0 - low, low)


@triton.jit
def _stage_2(s, seen, n_over_sum, o, peak, P: tl.constexpr):
    """(r^P, r^(P-1), softplus of the seen) of softplus s. A degenerate row's weights are s."""
    s = tl.where(seen, s, 0.0)
    x = tl.maximum(n_over_sum * s - o, 0.0)
    x = tl.where(seen, x, 0.0)
    is_flat = peak <= 1e-6
    r = x / tl.where(is_flat, 1.0, peak)
    if P == 15:  # the power that the paper recommends: products alone
        r2 = r * r
        r4 = r2 * r2
        below = r4 * r4 * r4 * r2
        y = below * r
    else:
        log = tl.log2(tl.maximum(r, 1e-30))
        y = tl.where(x > 0, tl.exp2(P * log), 0.0)
        below = tl.where(x > 0, tl.exp2((P - 1) * log), 0.0)
    return tl.where(is_flat, s, y), below, s


@triton.jit
def _forward(Q, K, V, Out, Narrow, Stats, length, heads, kv_heads, log_dim, P: tl.constexpr,
             DIM: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Out in float32, Narrow in V's type. Stats [3, ...]: S, the peak of x, Y."""
    batch, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * M  # long rows first
    rows, dims = first + tl.arange(0, M), tl.arange(0, DIM)
    stride, kv_stride = heads * DIM, kv_heads * DIM
    at = batch * length * stride + head * DIM + rows[:, None] * stride + dims[None, :]
    kv = batch * length * kv_stride + head // (heads // kv_heads) * DIM
    q = tl.load(Q + at)
    n = (rows + 1).to(tl.float32)
    c = log_dim * tl.log2(n)
    o = tl.where(rows < 3, 0.0, 1.0)

    total = tl.zeros([M], tl.float32)
    top = tl.full([M], -1e30, tl.float32)
    for begin in range(0, first, N):
        keys = begin + tl.arange(0, N)
        k = tl.load(K + kv + keys[None, :] * kv_stride + dims[:, None])
        t = tl.dot(q, k) * c[:, None]
        total += tl.sum(_softplus(t), 1)
        top = tl.maximum(top, tl.max(t, 1))
    for begin in range(first, first + M, N):
        keys = begin + tl.arange(0, N)
        k = tl.load(K + kv + keys[None, :] * kv_stride + dims[:, None])
        t = tl.where(keys[None, :] <= rows[:, None], tl.dot(q, k) * c[:, None], -1e30)
        total += tl.sum(_softplus(t), 1)
        top = tl.maximum(top, tl.max(t, 1))
    n_over_sum = n / total
    peak = n_over_sum * _softplus(top) - o

    weight = tl.zeros([M], tl.float32)
    out = tl.zeros([M, DIM], tl.float32)
    for begin in range(0, first + M, N):
        keys = begin + tl.arange(0, N)
        k = tl.load(K + kv + keys[None, :] * kv_stride + dims[:, None])
        v = tl.load(V + kv + keys[:, None] * kv_stride + dims[None, :])
        seen = keys[None, :] <= rows[:, None]
        s = _softplus(tl.dot(q, k) * c[:, None])
        y, _, _ = _stage_2(s, seen, n_over_sum[:, None], o[:, None], peak[:, None], P)
        weight += tl.sum(y, 1)
        out += tl.dot(y.to(v.dtype), v)
    out = out / weight[:, None]
    tl.store(Out + at, out)
    tl.store(Narrow + at, out.to(V.dtype.element_ty))
    figures = Stats + (batch * length + rows) * heads + head
    step = tl.num_programs(2).to(tl.int64) * length * heads
    tl.store(figures, total)
    tl.store(figures + step, peak)
    tl.store(figures + 2 * step, weight)


@triton.jit
def _slopes(t, gv, seen, n, total, peak, weight, delta, o, P: tl.constexpr):
    """(w_j, u_j, a_j, s'_j) of scores t and gv = <grad_out, v_j>, with delta = sum w_j gv_j."""
    y, below, s = _stage_2(_softplus(t), seen, n / total, o, peak, P)
    a = s / total
    is_flat = peak <= 1e-6
    scale = tl.where(is_flat, 0.0, P * n / (weight * tl.where(is_flat, 1.0, peak)))
    u = tl.where(is_flat, gv, scale * below * (gv - delta))
    u = tl.where(seen, u, 0.0)
    slope = tl.where(seen, _sigmoid(t), 0.0)
    return y / weight, u, a, slope


@triton.jit
def _grad_q(Q, K, V, Grad, Stats, Delta, Mean, GradQ, length, heads, kv_heads, log_dim,
            P: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """GradQ, and Mean: E of each row."""
    batch, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * M
    rows, dims = first + tl.arange(0, M), tl.arange(0, DIM)
    stride, kv_stride = heads * DIM, kv_heads * DIM
    at = batch * length * stride + head * DIM + rows[:, None] * stride + dims[None, :]
    kv = batch * length * kv_stride + head // (heads // kv_heads) * DIM
    q, g = tl.load(Q + at), tl.load(Grad + at)
    figure = (batch * length + rows) * heads + head
    step = tl.num_programs(2).to(tl.int64) * length * heads
    total, peak = tl.load(Stats + figure)[:, None], tl.load(Stats + step + figure)[:, None]
    weight, delta = tl.load(Stats + 2 * step + figure)[:, None], tl.load(Delta + figure)[:, None]
    n = (rows + 1).to(tl.float32)[:, None]
    c = log_dim * tl.log2(n)
    o = tl.where(rows < 3, 0.0, 1.0)[:, None]

    mean = tl.zeros([M], tl.float32)
    with_u = tl.zeros([M, DIM], tl.float32)
    plain = tl.zeros([M, DIM], tl.float32)
    for begin in range(0, first + M, N):
        keys = begin + tl.arange(0, N)
        k = tl.load(K + kv + keys[:, None] * kv_stride + dims[None, :])
        v = tl.load(V + kv + keys[:, None] * kv_stride + dims[None, :])
        seen = keys[None, :] <= rows[:, None]
        t = tl.dot(q, tl.trans(k)) * c
        gv = tl.dot(g, tl.trans(v))
        _, u, a, slope = _slopes(t, gv, seen, n, total, peak, weight, delta, o, P)
        mean += tl.sum(a * u, 1)
        wide = k.to(g.dtype)
        with_u += tl.dot((u * slope).to(g.dtype), wide)
        plain += tl.dot(slope.to(g.dtype), wide)
    tl.store(GradQ + at, (with_u - mean[:, None] * plain) * (c / total))
    tl.store(Mean + figure, mean)


@triton.jit
def _grad_kv(Q, K, V, Grad, Stats, Delta, Mean, GradK, GradV, length, heads, kv_heads, log_dim,
             P: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """GradK and GradV of N keys, from all later rows of the head's group, M at a time."""
    batch, kv_head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    first = tl.program_id(0) * N
    keys, dims = first + tl.arange(0, N), tl.arange(0, DIM)
    stride, kv_stride = heads * DIM, kv_heads * DIM
    kv = batch * length * kv_stride + kv_head * DIM + keys[:, None] * kv_stride + dims[None, :]
    k, v = tl.load(K + kv), tl.load(V + kv)
    step = tl.num_programs(2).to(tl.int64) * length * heads
    group = heads // kv_heads
    blocks = (length - first) // M

    grad_k = tl.zeros([N, DIM], tl.float32)
    grad_v = tl.zeros([N, DIM], tl.float32)
    for i in range(0, group * blocks):
        head = kv_head * group + i // blocks
        rows = first + i % blocks * M + tl.arange(0, M)
        at = batch * length * stride + head * DIM + rows[:, None] * stride + dims[None, :]
        q, g = tl.load(Q + at), tl.load(Grad + at)
        figure = (batch * length + rows) * heads + head
        total, peak = tl.load(Stats + figure)[None, :], tl.load(Stats + step + figure)[None, :]
        weight = tl.load(Stats + 2 * step + figure)[None, :]
        delta, mean = tl.load(Delta + figure)[None, :], tl.load(Mean + figure)[None, :]
        n = (rows + 1).to(tl.float32)[None, :]
        c = log_dim * tl.log2(n)
        o = tl.where(rows < 3, 0.0, 1.0)[None, :]
        seen = keys[:, None] <= rows[None, :]
        t = tl.dot(k, tl.trans(q)) * c  # [keys, rows]
        gv = tl.dot(v, tl.trans(g))
        w, u, _, slope = _slopes(t, gv, seen, n, total, peak, weight, delta, o, P)
        grad_v += tl.dot(w.to(g.dtype), g)
        into = (u - mean) * slope * (c / total)
        grad_k += tl.dot(into.to(g.dtype), q.to(g.dtype))
    tl.store(GradK + kv, grad_k)
    tl.store(GradV + kv, grad_v)


@fused
def _unit(x, dtype):
    """(x / max(||x||, 1e-12) in `dtype`, 1 / max(||x||, 1e-12))."""
    x = x.float()
    inverse = x.norm(dim=-1, keepdim=True).clamp_min(1e-12).reciprocal()
    return (x * inverse).to(dtype), inverse


@fused
def _grad_of_unit(grad, unit, inverse):
    """The gradient at x; a zero vector has none."""
    unit = unit.float()
    along = (grad * unit).sum(-1, keepdim=True)
    return torch.where(inverse < 1e12, (grad - along * unit) * inverse, 0.0)


@fused
def _row_sums(a, b):
    return (a.float() * b).sum(-1)


class _Fused(torch.autograd.Function):
    """q, k, v: [batch, length, heads, dim], contiguous, length a multiple of ROWS."""

    @staticmethod
    def forward(ctx, q, k, v, p):
        batch, length, heads, dim = q.shape
        sizes = length, heads, k.shape[2], math.log(dim), p, dim
        ctx.types = q.dtype, k.dtype, v.dtype
        (q, q_inverse), (k, k_inverse) = _unit(q, SCORES), _unit(k, SCORES)
        v = v.to(VALUES)
        out = torch.empty(q.shape, device=q.device)  # float32: gradients are differences from it
        narrow = torch.empty_like(q, dtype=VALUES)
        stats = torch.empty(3, batch, length, heads, device=q.device)
        *tile, warps = FORWARD
        _forward[length // tile[0], heads, batch](q, k, v, out, narrow, stats, *sizes, *tile,
                                                  num_warps=warps)
        ctx.save_for_backward(q, k, v, out, stats, q_inverse, k_inverse)
        ctx.sizes = sizes
        return narrow

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, out, stats, q_inverse, k_inverse = ctx.saved_tensors
        batch, length, heads, _ = q.shape
        grad = grad_out.to(VALUES).contiguous()
        delta = _row_sums(grad, out)
        mean = torch.empty_like(delta)
        grad_q, grad_k = (torch.empty(each.shape, device=q.device) for each in (q, k))
        grad_v = torch.empty(v.shape, dtype=ctx.types[2], device=v.device)
        given = q, k, v, grad, stats, delta, mean
        *tile, warps = GRAD_Q
        _grad_q[length // tile[0], heads, batch](*given, grad_q, *ctx.sizes, *tile,
                                                 num_warps=warps)
        *tile, warps = GRAD_KV
        _grad_kv[length // tile[1], k.shape[2], batch](*given, grad_k, grad_v, *ctx.sizes, *tile,
                                                       num_warps=warps)
        return (_grad_of_unit(grad_q, q, q_inverse).to(ctx.types[0]),
                _grad_of_unit(grad_k, k, k_inverse).to(ctx.types[1]), grad_v, None)


def fused_attention(q, k, v, p):
    """attention() of kind lssar. q: [batch, heads, length, dim], k, v: [batch, kv_heads, ...].

    dim is one of DIMS. Returns VALUES, a view of [batch, length, heads, dim]: no copy is made of
    views of that form. Lengths are padded to a multiple of ROWS: no row reads a later key.
    """
    length = q.shape[-2]
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    if length % ROWS:
        q, k, v = (F.pad(each, (0, 0, 0, 0, 0, -length % ROWS)) for each in (q, k, v))
    return _Fused.apply(*(each.contiguous() for each in (q, k, v)), p)[:, :length].transpose(1, 2)
