"""The error of K/V types whose row sums come from a first plane of few bits, in numpy.

    python3 -B tests/bench/first_plane_error.py models/zoo/lssar-6m TEXT 1024 4096 --types fp16,4

Log-probabilities of a text's next tokens beside those over exact K and V: what kv_error.cc prints
for the types that exist. MODEL: model_type lssar_gpt, kind lssar. TEXT: token ids, 16 bits each.

Types: fp16, fx16, or the bits of the first plane, one scale for 32 dims: sums come from it, every
other number as over fx16. With "c" the candidates' terms of the sum come from all planes. Also
printed, of long rows that are not flat: the share of keys that are candidates by the first plane's
bound, by that of 8 bits, and that have a weight; and the share of rows that are flat.
"""

import argparse
import json
import math
import pathlib

import numpy as np

SHORT_ROW_KEYS = 256  # as in kernels/two_planes.h
NEGLIGIBLE = 2.0**-32
GROUP = 32
BLOCK = 256  # rows
LEAST = np.float32(-1e30)


def tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], 'little')
    read = {}
    for name, at in json.loads(data[8 : 8 + size]).items():
        if name != '__metadata__':
            begin, end = (8 + size + offset for offset in at['data_offsets'])
            kind = {'F32': np.float32, 'F16': np.float16}[at['dtype']]
            values = np.frombuffer(data[begin:end], kind).reshape(at['shape'])
            read[name.removeprefix('transformer.')] = values.astype(np.float32)
    return read


def softplus(s):
    return np.maximum(s, 0) + np.log1p(np.exp(-np.abs(s)))


def rounded(k, levels, group):
    """k in steps of its group's scale, and the scales."""
    groups = k.reshape(*k.shape[:-1], -1, group)
    scale = np.maximum(np.abs(groups).max(-1, keepdims=True) / levels, 1e-30)
    return (np.rint(groups / scale) * scale).reshape(k.shape), scale[..., 0]


def weigh(s, sums, n, p, is_key):
    """u^p, from scores and the sums of softplus."""
    x = np.where(is_key, np.maximum(n * softplus(s) / sums - (n > 3), 0), 0)
    peak = x.max(-1, keepdims=True)
    w = (x / np.maximum(peak, 1e-30)) ** np.float32(p)
    return np.where(peak > 1e-6, np.where(w < NEGLIGIBLE, 0, w), softplus(s) * is_key)


def norms(q, group):
    return np.abs(q).reshape(len(q), -1, group).sum(-1)


class Counts:
    """Sums over rows of the shares of their keys."""

    def __init__(self):
        self.rows = self.flat = 0
        self.shares = np.zeros(3)


def attend(q, k, v, p, kind, counts):
    length, dim = q.shape
    out = np.empty_like(q)
    v = v if kind == 'exact' else v.astype(np.float16).astype(np.float32)
    k = k.astype(np.float16).astype(np.float32) if kind == 'fp16' else k
    in_planes = kind not in ('exact', 'fp16')
    if in_planes:
        k, _ = rounded(k, 32512, dim)
        q, _ = rounded(q, 32512, dim)
        q_high, _ = rounded(q, 127, dim)
        group = dim if kind == 'fx16' else GROUP
        first, scale = rounded(k, 127 if kind == 'fx16' else 2 ** (int(kind[0]) - 1) - 1, group)
        second, second_scale = rounded(k, 127, dim)
    least_u = NEGLIGIBLE ** (1 / p)
    for begin in range(0, length, BLOCK):
        end = min(length, begin + BLOCK)
        rows = slice(begin, end)
        n = np.arange(begin, end, dtype=np.float32)[:, None] + 1
        unit = (math.log(dim) * np.log(n)).astype(np.float32)
        is_key = np.arange(end)[None] < n
        s = unit * (q[rows] @ k[:end].T)
        sums = (softplus(s) * is_key).sum(-1, keepdims=True)

        def candidates_of(high, bound, total, n=n, is_key=is_key):
            lower = np.where(is_key, high - bound, LEAST).max(-1, keepdims=True)
            x_low = n * softplus(lower) / total - 1
            u = (n * softplus(high + bound) / total - 1) / np.maximum(x_low, 1e-30)
            return x_low, (u > least_u) & is_key

        if in_planes:
            high = unit * (q[rows] @ first[:end].T)
            bound = unit * (norms(q[rows], group) @ (scale[:end] / 2).T)
            terms = softplus(high) * is_key
            total = terms.sum(-1, keepdims=True)
            x_low, is_candidate = candidates_of(high, bound, total)
            is_long = n > SHORT_ROW_KEYS
            by_first = is_long & (x_low >= 0.03 * min(p, 15))
            if 'c' in kind:
                total = np.where(is_candidate, softplus(s), terms).sum(-1, keepdims=True)
            sums = np.where(by_first, total, sums)
            if kind == 'fx16':  # the low plane meets q's high byte alone
                low = unit * (q_high[rows] @ (k - first)[:end].T)
                s = np.where(by_first, high + low, s)
            s = np.where(by_first & ~is_candidate & is_key, LEAST, s)
        w = weigh(s, sums, n, p, is_key)
        if in_planes:
            bound = unit * (norms(q[rows], dim) @ (second_scale[:end] / 2).T)
            _, by_second = candidates_of(unit * (q[rows] @ second[:end].T), bound, sums)
            for i, mask in enumerate((is_candidate, is_candidate & by_second, w > 0)):
                counts.shares[i] += (mask.sum(-1) / n[:, 0])[by_first[:, 0]].sum()
            counts.rows += by_first.sum()
            counts.flat += (is_long & ~by_first).sum()
        out[rows] = (w / w.sum(-1, keepdims=True)) @ v[:end]
    return out


def logprobs(config, weights, ids, kind, counts):
    heads, width = config['n_head'], config['n_embd']
    dim = width // heads
    angles = np.arange(len(ids))[:, None] / config['rope_theta'] ** (np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def turned(x):
        a, b = x[:, : dim // 2], x[:, dim // 2 :]
        x = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)

    def linear(y, name):
        return y @ weights[name + '.weight'].T + weights[name + '.bias']

    def norm(y, name):
        mean, var = y.mean(-1, keepdims=True), y.var(-1, keepdims=True)
        y = (y - mean) / np.sqrt(var + config['layer_norm_epsilon'])
        return y * weights[name + '.weight'] + weights[name + '.bias']

    x = weights['wte.weight'][ids]
    for layer in range(config['n_layer']):
        name = f'h.{layer}.'
        q, k, v = np.split(linear(norm(x, name + 'ln_1'), name + 'attn.c_attn'), 3, -1)
        out = np.empty_like(q)
        for head in range(heads):
            at = slice(head * dim, (head + 1) * dim)
            p = config['attention']['p']
            out[:, at] = attend(turned(q[:, at]), turned(k[:, at]), v[:, at], p, kind, counts)
        x = x + linear(out, name + 'attn.c_proj')
        y = linear(norm(x, name + 'ln_2'), name + 'mlp.c_fc')
        y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, name + 'mlp.c_proj')
    logits = (norm(x, 'ln_f')[:-1] @ weights['wte.weight'].T).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    found = logits[np.arange(len(ids) - 1), ids[1:]]
    return found - np.log(np.exp(logits).sum(-1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('model', type=pathlib.Path)
    parser.add_argument('text')
    parser.add_argument('lengths', type=int, nargs='+')
    parser.add_argument('--types', default='fp16,fx16,4,4c,5,6')
    args = parser.parse_args()
    config = json.loads((args.model / 'config.json').read_text())
    weights = tensors(args.model / 'model.safetensors')
    print('tokens type      mean    p99.9      max loss-exact candidates  8 bits  weight    flat')
    for length in args.lengths:
        ids = np.fromfile(args.text, np.uint16)[:length].astype(int)
        exact = logprobs(config, weights, ids, 'exact', Counts())
        for kind in args.types.split(','):
            counts = Counts()
            found = logprobs(config, weights, ids, kind, counts)
            error = np.sort(np.abs(found - exact))
            shares = counts.shares / max(1, counts.rows)
            print(
                f'{length:6} {kind:4} {error.mean():9.1e}'
                f' {error[int(0.999 * (len(error) - 1))]:8.1e} {error[-1]:8.1e}'
                f' {(exact - found).mean():+10.1e} {shares[0]:10.3f} {shares[1]:7.3f}'
                f' {shares[2]:7.3f} {counts.flat / max(1, counts.rows + counts.flat):7.3f}',
                flush=True,
            )


if __name__ == '__main__':
    main()
