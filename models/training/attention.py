"""LSSAR, LSSA and softmax attention, causal, in PyTorch.

`attention` transcribes the paper's Algorithm 1 (arXiv 2501.13428); in float64 it is the reference
for the faster forms. `attention_in_blocks` computes the same function in blocks of query rows and
recomputes each block in the backward pass: no length x length matrix outlives its block, and a
compiler sees one row-wise kernel between two matmuls. `fused_attention` calls attention_cpu.cc;
on a GPU, attention_gpu.py has Triton kernels.
"""

import ctypes
import functools
import math
import os

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

BLOCK_ROWS = 256
KINDS = ('lssar', 'lssa', 'softmax')
NORM_FLOOR = 1e-12
PEAK_FLOOR = 1e-6  # below it no key stands out: the weights are those of stage 1
X_FLOOR = 1e-30  # keeps gradients of x^p, p < 1, finite where x is 0 (and masked)


def unit(x):
    """x / max(||x||, 1e-12); no gradient below the floor, where x has no direction."""
    norm = x.norm(dim=-1, keepdim=True)
    return torch.where(norm > NORM_FLOOR, x / norm.clamp_min(NORM_FLOOR), (x / NORM_FLOOR).detach())


def attention_weights(qk, first, dim, kind, p):
    """Weights of the rows first.. (0-based) from qk = <q, k>, [..., rows, first + rows]."""
    rows, keys = qk.shape[-2:]
    n = torch.arange(first + 1, first + rows + 1, device=qk.device)[:, None]
    seen = torch.arange(1, keys + 1, device=qk.device) <= n
    if kind == 'softmax':
        return (qk / math.sqrt(dim)).masked_fill(~seen, float('-inf')).softmax(-1)
    offset = (n > 3).to(qk.dtype)
    n = n.to(qk.dtype)
    a = F.softplus(math.log(dim) * n.log() * qk, threshold=40) * seen
    a = a / a.sum(-1, keepdim=True)
    if kind == 'lssa':
        return a
    x = F.relu(n * a - offset) * seen
    peak = x.amax(-1, keepdim=True).detach()  # no gradient: it cancels out
    y = (x.clamp_min(X_FLOOR) / peak.clamp_min(PEAK_FLOOR)) ** p * (x > 0)
    return torch.where(peak > PEAK_FLOOR, y / y.sum(-1, keepdim=True).clamp_min(X_FLOOR), a)


def attend(q, k, v, first, kind, p):
    """Query rows first.. over keys up to the last row; q and k are unit() except for softmax."""
    return attention_weights(q @ k.transpose(-1, -2), first, q.shape[-1], kind, p) @ v


def attention(q, k, v, kind='lssar', p=15):
    """q, k, v: [..., L, d] -> [..., L, d]. Any float dtype; float64 as the reference."""
    if kind != 'softmax':
        q, k = unit(q), unit(k)
    return attend(q, k, v, 0, kind, p)


def attention_in_blocks(q, k, v, kind, p, block_rows=BLOCK_ROWS):
    """attention() in blocks of query rows. A block reads only the keys up to its last row."""
    if kind != 'softmax':
        q, k = unit(q), unit(k)
    length, outs = q.shape[-2], []
    for first in range(0, length, block_rows):
        end = min(first + block_rows, length)
        part = q[..., first:end, :], k[..., :end, :], v[..., :end, :], first, kind, p
        if torch.is_grad_enabled():
            outs.append(checkpoint(attend, *part, use_reentrant=False, preserve_rng_state=False))
        else:
            outs.append(attend(*part))
    return torch.cat(outs, -2)


class _Tensors(ctypes.Structure):
    """struct Tensors of attention_cpu.cc."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ('q', 'k', 'v', 'out', 'stats', 'grad_out', 'grad_q', 'grad_k', 'grad_v')
    ] + [(name, ctypes.c_int) for name in ('heads', 'length', 'dim')] + [('p', ctypes.c_float)]


def _load_library():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'attention_cpu.so')
    # DEEPBIND: its cblas_sgemm is OpenBLAS's, not the one inside PyTorch's own library.
    return ctypes.CDLL(path, os.RTLD_DEEPBIND) if os.path.exists(path) else None


class _Fused(torch.autograd.Function):
    """attention_cpu.cc: kind lssar, q and k are unit()."""

    library = _load_library()

    @staticmethod
    def run(function, p, **tensors):
        length, dim = tensors['q'].shape[-2:]
        function(ctypes.byref(_Tensors(
            heads=tensors['q'].numel() // (length * dim), length=length, dim=dim, p=p,
            **{name: tensor.data_ptr() for name, tensor in tensors.items()})))

    @staticmethod
    def forward(ctx, q, k, v, p):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out, stats = torch.empty_like(q), q.new_empty(*q.shape[:-1], 3)
        _Fused.run(_Fused.library.lssar_forward, p, q=q, k=k, v=v, out=out, stats=stats)
        ctx.save_for_backward(q, k, v, stats)
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, stats = ctx.saved_tensors
        grads = [torch.empty_like(t) for t in (q, k, v)]
        _Fused.run(_Fused.library.lssar_backward, ctx.p, q=q, k=k, v=v, stats=stats,
                   grad_out=grad_out.contiguous(), grad_q=grads[0], grad_k=grads[1],
                   grad_v=grads[2])
        return *grads, None


def has_fused():
    """True if attention_cpu.cc was built (README.md)."""
    return _Fused.library is not None


def fused_attention(q, k, v, p):
    """attention() of kind lssar on float32 CPU tensors."""
    return _Fused.apply(unit(q), unit(k), v, p)


@functools.cache
def gpu_kernels():
    """attention_gpu.py; None without Triton."""
    try:
        import attention_gpu
    except ModuleNotFoundError:
        return None
    return attention_gpu


def warn_if_slow(device, kind):
    """Says on 'cpu' or 'cuda' what would make fastest_attention() several times faster."""
    reason = ''
    if kind == 'lssar' and device == 'cpu' and not has_fused():
        reason = 'the fused attention is not built (training_attention in README.md)'
    elif kind == 'lssar' and device == 'cuda' and gpu_kernels() is None:
        reason = 'Triton is not installed'
    if reason:
        print(f'{reason}: training takes several times as long', flush=True)


def has_groups(q, kind):
    """True if fastest_attention() runs attention_gpu.py: PyTorch 2 on a GPU with Triton.

    Not within torch.compile, which cannot trace its launches: there blocks are compiled.
    """
    if not q.is_cuda or kind != 'lssar' or not hasattr(torch, 'compiler'):
        return False
    if torch.compiler.is_compiling():
        return False
    return gpu_kernels() is not None and q.shape[-1] in gpu_kernels().DIMS


def fastest_attention(q, k, v, kind, p):
    """attention() by the fastest form available, [batch, heads, length, dim].

    q and k are float32 or wider, v of any dtype. Only where has_groups() may k and v have fewer
    heads than q.
    """
    if has_groups(q, kind):
        return gpu_kernels().fused_attention(q, k, v, p)
    if not q.is_cuda and q.dtype == torch.float32 and kind == 'lssar' and has_fused():
        return fused_attention(q, k, v.to(q.dtype), p)
    has_fused_softmax = hasattr(F, 'scaled_dot_product_attention')
    if q.is_cuda and kind == 'softmax' and has_fused_softmax:
        return F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
    # Scores reach ln(d) ln(N) = 41, and weights are powers of them: too much for bfloat16. On a CPU
    # softmax runs in float32 too.
    with torch.autocast(q.device.type, enabled=False):
        if kind == 'softmax' and has_fused_softmax and q.dtype == torch.float32:
            return F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return attention_in_blocks(q, k, v.to(q.dtype), kind, p)
