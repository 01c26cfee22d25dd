"""The forward pass in numpy, written from the formulas: golden rows of an imported checkpoint.

It reads config.json's fields (models/README.md) and tensors under our names. It is slow and plain
on purpose: float64, one row of tokens, whole score matrices. Matrices are widened in blocks of
rows, so that memory is bounded.

Source: arXiv 2501.13428, Algorithm 1 and Table 1.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lssar.checkpoints.arrays import BLOCK_ELEMENTS, Array, convert, widen
from lssar.checkpoints.errors import CheckpointError

MIN_NORM = 1e-12  # a zero vector normalises to zero
EXP_SCORE = -40.0  # sigmoid is e^s below it; in a row that is divided by its sum, without underflow
DEGENERATE_PEAK = 1e-6  # below it no key stands out: the weights are those of stage 1


@dataclasses.dataclass(frozen=True)
class Form:
    """A row of the paper's Table 1."""

    phi: str
    divisor: str = 'sum'  # 'sum', 'abs' (sum of absolute values), 'one', 'length' (trained)
    reweights: bool = False
    shift: str = ''  # '': none; 'length': -ln L (trained length); 'keys': -ln N
    is_length_scaled: bool = False


FORMS = {
    'softmax': Form('exp'),
    'lssa': Form('softplus', is_length_scaled=True),
    'lssar': Form('softplus', reweights=True, is_length_scaled=True),
    'softmax_r': Form('exp', reweights=True),
    'sigmoid': Form('sigmoid', 'one', shift='length'),
    'sigmoid_n': Form('sigmoid', 'one', shift='keys'),
    'sigmoid_n_l1': Form('sigmoid', shift='keys'),
    'sigmoid_r': Form('sigmoid', reweights=True, shift='keys'),
    'relu_wortsman': Form('relu', 'length'),
}
# erf by its Taylor series of order 6 around the multiples of ERF_STEP: within 1e-15.
ERF_STEP, ERF_END = 1 / 256, 6.0
_ERF_TABLE = np.array([math.erf(i * ERF_STEP) for i in range(int(ERF_END / ERF_STEP) + 1)])


def erf(x: Array) -> Array:
    """The error function, in the type of x."""
    size = np.abs(np.clip(x, -ERF_END, ERF_END)).astype(np.float64)
    place = np.rint(size / ERF_STEP).astype(np.int64)
    c = place * ERF_STEP
    d = size - c
    slope = 2 / math.sqrt(math.pi) * np.exp(-c * c)
    terms = (1, -c, (2 * c * c - 1) * (1 / 3), (3 - 2 * c * c) * c / 6,
             (4 * c ** 4 - 12 * c * c + 3) / 30, (-4 * c ** 4 + 20 * c * c - 15) * c / 90)
    total = np.zeros_like(d)
    for term in reversed(terms):
        total = (total + term) * d
    result: Array = np.copysign(_ERF_TABLE[place] + slope * total, x).astype(x.dtype)
    return result


def _relu(x: Array) -> Array:
    result: Array = np.maximum(x, 0)
    return result


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1, small) / (1 + small)
    return result


def _softplus(x: Array) -> Array:
    result: Array = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return result


def _gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + erf(x * math.sqrt(0.5)))
    return result


def _gelu_tanh(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return result


PHIS: dict[str, Callable[[Array], Array]] = {
    'relu': _relu,
    'relu2': lambda x: np.square(_relu(x)),
    'relu6': lambda x: np.clip(x, 0, 6),
    'gelu': _gelu,
    'sigmoid': _sigmoid,
    'softplus': _softplus,
    'mish': lambda x: x * np.tanh(_softplus(x)),
}
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    'gelu_new': _gelu_tanh,
    'gelu_pytorch_tanh': _gelu_tanh,
    'gelu': _gelu,
    'relu': _relu,
    'relu2': lambda x: np.square(_relu(x)),
    'silu': lambda x: x * _sigmoid(x),
}


def attention_form(attention: Mapping[str, object]) -> Form:
    """The form of config.json's attention object."""
    kind = attention.get('kind')
    if kind == 'phi':
        phi = str(attention['phi'])
        return Form(phi, 'sum' if phi == 'exp' else 'abs')
    if not isinstance(kind, str) or kind not in FORMS:
        raise CheckpointError(f'attention kind is {kind!r}; must be one of '
                              f'{", ".join([*FORMS, "phi"])}')
    return FORMS[kind]


def alibi_slopes(num_heads: int) -> list[float]:
    """What a score loses for each token of distance, by head (arXiv 2108.12409)."""
    power = 1 << (num_heads.bit_length() - 1)
    return [2.0 ** (-8 * (head + 1) / power) if head < power
            else 2.0 ** (-8 * (2 * (head - power) + 1) / (2 * power))
            for head in range(num_heads)]


def _unit(x: Array) -> Array:
    result: Array = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), MIN_NORM)
    return result


def _exp(scores: Array) -> Array:
    result: Array = np.exp(scores - scores.max(-1, keepdims=True))
    return result


def attention(q: Array, k: Array, v: Array, spec: Mapping[str, object], trained_length: int,
              has_alibi: bool = False, has_stored_keys: bool = False) -> Array:
    """q, k, v: [heads, length, head_dim], after rotary embedding. -> [heads, length, head_dim].

    has_stored_keys: k is what a cache holds, of unit length, rounded, where the kind needs it.
    """
    form = attention_form(spec)
    length, dim = q.shape[-2:]
    n = np.arange(1, length + 1, dtype=q.dtype)[:, None]
    seen = np.tri(length, dtype=bool)
    if spec.get('window') is not None:
        seen &= ~np.tri(length, k=-int(str(spec['window'])), dtype=bool)
    if form.is_length_scaled:
        q, k = _unit(q), k if has_stored_keys else _unit(k)
        scores = math.log(dim) * np.log(n) * (q @ k.swapaxes(-1, -2))
    else:
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(dim)
    if has_alibi:
        distance = np.arange(length)[:, None] - np.arange(length)
        slopes = np.array(alibi_slopes(len(q)), q.dtype)[:, None, None]
        scores = scores - slopes * distance.astype(q.dtype)
    if form.shift:
        scores = scores - (np.log(n) if form.shift == 'keys' else math.log(trained_length))
    if form.phi == 'exp':
        weights = _exp(np.where(seen, scores, -math.inf))
    else:
        weights = np.where(seen, PHIS[form.phi](scores), 0)
    if form.phi == 'sigmoid' and form.divisor == 'sum':
        masked = np.where(seen, scores, -math.inf)
        is_exp = masked.max(-1, keepdims=True) < EXP_SCORE
        weights = np.where(is_exp, _exp(masked), weights)
    if form.divisor == 'sum':
        weights = weights / weights.sum(-1, keepdims=True)
    elif form.divisor == 'abs':
        weights = weights / np.maximum(np.abs(weights).sum(-1, keepdims=True), MIN_NORM)
    elif form.divisor == 'length':
        weights = weights / trained_length
    if form.reweights:
        x = np.where(seen, np.maximum(n * weights - (n > 3), 0), 0)
        peak = x.max(-1, keepdims=True)
        sharp = (x / np.maximum(peak, MIN_NORM)) ** float(str(spec['p']))
        sharp = sharp / np.maximum(sharp.sum(-1, keepdims=True), MIN_NORM)
        weights = np.where(peak > DEGENERATE_PEAK, sharp, weights)
    result: Array = weights.astype(v.dtype, copy=False) @ v
    return result


def scaling_kind(scaling: Mapping[str, object]) -> str:
    """The type of a rope_scaling."""
    return str(scaling.get('type', scaling.get('rope_type')))


def _yarn(scaling: Mapping[str, object], base: float, frequencies: Array, original: float,
          number: Callable[[str, float], float]) -> tuple[Array, float]:
    """Source: arXiv 2309.00071, and transformers."""
    dims, factor = 2 * len(frequencies), number('factor', 1.0)

    def pair(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(number('beta_fast', 32.0)), pair(number('beta_slow', 1.0))
    if scaling.get('truncate', True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    high += 0.001 * (low == high)
    ramp = np.clip((np.arange(len(frequencies)) - low) / (high - low), 0, 1)

    def mscale(m: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1

    a, b = number('mscale', 0.0), number('mscale_all_dim', 0.0)
    computed = mscale(a) / mscale(b) if a > 0 and b > 0 else mscale(1.0)
    return (frequencies * (1 - ramp + ramp / factor), number('attention_factor', computed))


def rope_frequencies(config: Mapping[str, object], length: int) -> tuple[Array, float]:
    """(frequencies of rotary pairs, factor of cosines and sines) of a row of `length` tokens."""
    dims, base = rotary_dims(config), rope_base(config, length)
    frequencies: Array = base ** (-np.arange(0, dims, 2) / dims)
    scaling, trained = config.get('rope_scaling'), float(str(config['n_positions']))
    if not isinstance(scaling, dict):
        return frequencies, 1.0

    def number(name: str, default: float) -> float:
        value = scaling.get(name)
        return default if value is None else float(str(value))

    kind, factor = scaling_kind(scaling), number('factor', 1.0)
    original = number('original_max_position_embeddings', trained)
    if kind == 'linear':
        frequencies = frequencies / factor
    elif kind == 'llama3':
        turns = original * frequencies / (2 * math.pi)
        low, high = number('low_freq_factor', 0.0), number('high_freq_factor', 0.0)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        frequencies = frequencies * ((1 - smooth) / factor + smooth)
    elif kind == 'yarn':
        return _yarn(scaling, base, frequencies, original, number)
    elif kind == 'longrope':
        factors = scaling['long_factor' if length > original else 'short_factor']
        ratio = number('factor', trained / original)
        computed = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
        return frequencies / np.array(factors), number('attention_factor', computed)
    return frequencies, 1.0


def rope_base(config: Mapping[str, object], length: int) -> float:
    """The rotary base of a row of exactly `length` tokens (dynamic NTK: arXiv 2501.13428v1)."""
    theta, scaling = float(str(config['rope_theta'])), config.get('rope_scaling')
    trained = int(str(config['n_positions']))
    if not isinstance(scaling, dict) or scaling_kind(scaling) != 'dynamic' or length <= trained:
        return theta
    factor, dim = float(scaling['factor']), rotary_dims(config)
    stretch: float = (factor * length / trained - (factor - 1)) ** (dim / (dim - 2))
    return theta * stretch


def head_dim(config: Mapping[str, object]) -> int:
    """Elements of a head."""
    given = config.get('head_dim')
    return int(str(given)) if given else int(str(config['n_embd'])) // int(str(config['n_head']))


def rotary_factor(dims: int, whole: int) -> float:
    """The partial_rotary_factor of which rotary_dims, and the server, make `dims` again."""
    factor = dims / whole
    return factor if int(whole * factor) == dims else math.nextafter(factor, 1)


def rotary_dims(config: Mapping[str, object]) -> int:
    """Elements of a head that are rotated."""
    return int(head_dim(config) * float(str(config.get('partial_rotary_factor', 1.0))))


def rotate(x: Array, config: Mapping[str, object]) -> Array:
    """x: [heads, length, head_dim]; rotates the first rotary_dims elements of each head."""
    length, dims = x.shape[-2], rotary_dims(config)
    frequencies, factor = rope_frequencies(config, length)
    angles = np.arange(length)[:, None] * frequencies
    cos, sin = (factor * np.cos(angles)).astype(x.dtype), (factor * np.sin(angles)).astype(x.dtype)
    turned, rest = x[..., :dims], x[..., dims:]
    if config.get('rope_layout', 'half') == 'half':
        a, b = turned[..., :dims // 2], turned[..., dims // 2:]
        turned = np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = np.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(turned.shape)
    return np.concatenate((turned, rest), -1)


class Model:
    """The net of a config.json and a function that gives tensors by our names, of any type."""

    def __init__(self, config: Mapping[str, object], tensor: Callable[[str], Array | None],
                 dtype: type[np.floating[typing.Any]] = np.float64,
                 kv_dtype: str | None = None) -> None:
        self._config, self._tensor, self._dtype = config, tensor, dtype
        self._kv_dtype = kv_dtype  # 'F16' or 'I8': keys and values are rounded to it
        self._epsilon = float(str(config.get('layer_norm_epsilon', 1e-5)))

    def _text(self, name: str, default: str) -> str:
        return str(self._config.get(name, default))

    def _number(self, name: str, default: float) -> float:
        value = self._config.get(name)
        return default if value is None else float(str(value))

    def _multiply(self, x: Array, weight: Array | None) -> Array:
        """x W^T."""
        assert weight is not None
        num_rows = max(1, BLOCK_ELEMENTS // weight.shape[1])
        return np.concatenate([x @ widen(weight[first:first + num_rows], self._dtype).T
                               for first in range(0, len(weight), num_rows)], -1)

    def _linear(self, x: Array, name: str) -> Array:
        y, bias = self._multiply(x, self._tensor(name + '.weight')), self._tensor(name + '.bias')
        return y if bias is None else y + widen(bias, self._dtype)

    def _norm(self, x: Array, name: str, kind: str = '', epsilon: float | None = None) -> Array:
        """Norm of the last axis; weight and bias are used where the checkpoint has them."""
        epsilon = self._epsilon if epsilon is None else epsilon
        if (kind or self._text('normalization', 'layer_norm')) != 'rms_norm':
            x = x - x.mean(-1, keepdims=True)
        with np.errstate(over='ignore', invalid='ignore'):  # callers look at the logits
            x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self._dtype(epsilon))
        weight, bias = self._tensor(name + '.weight'), self._tensor(name + '.bias')
        x = x if weight is None else x * widen(weight, self._dtype)
        return x if bias is None else x + widen(bias, self._dtype)

    def _qk_norm(self, q: Array, k: Array, prefix: str, position: str) -> tuple[Array, Array]:
        norm = self._config.get('qk_norm')
        if not isinstance(norm, dict) or norm.get('position') != position:
            return q, k
        kind, epsilon = str(norm['kind']), float(norm.get('epsilon', self._epsilon))
        return (self._norm(q, prefix + 'attn.q_norm', kind, epsilon),
                self._norm(k, prefix + 'attn.k_norm', kind, epsilon))

    def _attention(self, x: Array, prefix: str, layer: int) -> Array:
        heads = int(self._number('n_head', 0))
        kv_heads = int(self._number('num_key_value_heads', heads))
        dim = head_dim(self._config)
        parts = np.split(self._linear(x, prefix + 'attn.c_attn'),
                         [heads * dim, (heads + kv_heads) * dim], -1)
        q, k, v = (part.reshape(len(x), -1, dim).swapaxes(0, 1) for part in parts)
        q, k = self._qk_norm(q, k, prefix, 'before_rotary')
        positions = self._text('positions', 'rotary')
        nope = self._config.get('nope_layers')
        if positions == 'rotary' and not (isinstance(nope, list) and layer in nope):
            q, k = rotate(q, self._config), rotate(k, self._config)
        q, k = self._qk_norm(q, k, prefix, 'after_rotary')
        k, v = (part.repeat(heads // kv_heads, 0) for part in (k, v))
        specs = self._config['attention']
        spec = specs[layer] if isinstance(specs, list) else specs
        assert isinstance(spec, dict)
        if self._kv_dtype:
            if attention_form(spec).is_length_scaled:
                k = _unit(k)
            k, v = (self._rounded(each) for each in (k, v))
        out = attention(q, k, v, spec, int(self._number('n_positions', 0)), positions == 'alibi',
                        has_stored_keys=bool(self._kv_dtype))
        return self._linear(out.swapaxes(0, 1).reshape(len(x), -1), prefix + 'attn.c_proj')

    def _rounded(self, rows: Array) -> Array:
        """Rows of keys or values as the server's cache holds them: int8 with one scale each."""
        if self._kv_dtype != 'I8':
            return widen(convert(rows, str(self._kv_dtype)), self._dtype)
        scales = np.maximum(np.abs(rows).max(-1, keepdims=True) / 127, MIN_NORM)
        result: Array = np.rint(rows / scales) * scales
        return result

    def _mlp(self, x: Array, prefix: str) -> Array:
        activation = ACTIVATIONS[self._text('activation_function', '')]
        up = self._linear(x, prefix + 'mlp.c_fc')
        if self._text('mlp_kind', 'plain') == 'gated':
            up = activation(self._linear(x, prefix + 'mlp.c_gate')) * up
        else:
            up = activation(up)
        return self._linear(up, prefix + 'mlp.c_proj')

    def _block(self, x: Array, layer: int) -> Array:
        prefix = f'h.{layer}.'
        is_sandwich = self._text('norm_position', 'pre') == 'sandwich'
        attended = self._attention(self._norm(x, prefix + 'ln_1'), prefix, layer)
        if is_sandwich:
            attended = self._norm(attended, prefix + 'ln_1_post')
        attended = self._number('attention_residual_scale', 1.0) * attended
        middle = x + attended
        source = x if self._config.get('parallel_residual') else middle
        computed = self._mlp(self._norm(source, prefix + 'ln_2'), prefix)
        if is_sandwich:
            computed = self._norm(computed, prefix + 'ln_2_post')
        return middle + self._number('mlp_residual_scale', 1.0) * computed

    def logits(self, tokens: Sequence[int], positions: Sequence[int]) -> Array:
        """[len(positions), vocab] of one row of tokens."""
        embedding = self._tensor('wte.weight')
        assert embedding is not None
        x = widen(embedding[np.array(tokens)], self._dtype)
        if self._text('positions', 'rotary') == 'learned':
            places = self._tensor('wpe.weight')
            assert places is not None
            x = x + widen(places[:len(tokens)], self._dtype)
        if self._config.get('embedding_norm'):
            x = self._norm(x, 'ln_emb')
        for layer in range(int(self._number('n_layer', 0))):
            x = self._block(x, layer)
        x = self._norm(x[np.array(positions)], 'ln_f')
        tied = self._config.get('tie_word_embeddings', True)
        logits = self._multiply(x, embedding if tied else self._tensor('lm_head.weight'))
        cap = self._number('final_logit_softcapping', 0.0)
        return cap * np.tanh(logits / cap) if cap else logits
