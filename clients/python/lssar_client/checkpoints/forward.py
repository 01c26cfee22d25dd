"""The forward pass in PyTorch, written from the formulas: golden rows of an imported checkpoint.

It reads config.json's fields (models/README.md) and tensors under our names. It is slow and plain
on purpose: float64, one row of tokens, whole score matrices.

Source: arXiv 2501.13428, Algorithm 1 and Table 1.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from lssar_client.checkpoints.errors import CheckpointError

MIN_NORM = 1e-12  # a zero vector normalises to zero
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
PHIS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    'relu': F.relu,
    'relu2': lambda x: F.relu(x).square(),
    'relu6': F.relu6,
    'gelu': F.gelu,
    'sigmoid': torch.sigmoid,
    'softplus': lambda x: F.softplus(x, threshold=700),
    'mish': F.mish,
}
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    'gelu_new': lambda x: F.gelu(x, approximate='tanh'),
    'gelu_pytorch_tanh': lambda x: F.gelu(x, approximate='tanh'),
    'gelu': F.gelu,
    'relu': F.relu,
    'relu2': lambda x: F.relu(x).square(),
    'silu': F.silu,
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


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: Mapping[str, object],
              trained_length: int) -> torch.Tensor:
    """q, k, v: [heads, length, head_dim], after rotary embedding. -> [heads, length, head_dim]."""
    form = attention_form(spec)
    length, dim = q.shape[-2:]
    n = torch.arange(1, length + 1, dtype=q.dtype)[:, None]
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    if form.is_length_scaled:
        q = q / q.norm(dim=-1, keepdim=True).clamp_min(MIN_NORM)
        k = k / k.norm(dim=-1, keepdim=True).clamp_min(MIN_NORM)
        scores = math.log(dim) * n.log() * (q @ k.transpose(-1, -2))
    else:
        scores = q @ k.transpose(-1, -2) / math.sqrt(dim)
    if form.shift:
        scores = scores - (n.log() if form.shift == 'keys' else math.log(trained_length))
    if form.phi == 'exp':
        scores = scores.masked_fill(~seen, -math.inf)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
    else:
        weights = PHIS[form.phi](scores).masked_fill(~seen, 0.0)
    if form.divisor == 'sum':
        weights = weights / weights.sum(-1, keepdim=True)
    elif form.divisor == 'abs':
        weights = weights / weights.abs().sum(-1, keepdim=True).clamp_min(MIN_NORM)
    elif form.divisor == 'length':
        weights = weights / trained_length
    if form.reweights:
        offset = (n > 3).to(q.dtype)
        x = F.relu(n * weights - offset).masked_fill(~seen, 0.0)
        peak = x.amax(-1, keepdim=True)
        sharp = (x / peak.clamp_min(MIN_NORM)) ** float(str(spec['p']))
        sharp = sharp / sharp.sum(-1, keepdim=True).clamp_min(MIN_NORM)
        weights = torch.where(peak > DEGENERATE_PEAK, sharp, weights)
    return weights @ v


def rope_base(config: Mapping[str, object], length: int) -> float:
    """The rotary base of a row of exactly `length` tokens (dynamic NTK: arXiv 2501.13428v1)."""
    theta, scaling = float(str(config['rope_theta'])), config.get('rope_scaling')
    trained = int(str(config['n_positions']))
    if not isinstance(scaling, dict) or length <= trained:
        return theta
    factor, dim = float(scaling['factor']), rotary_dims(config)
    stretch: float = (factor * length / trained - (factor - 1)) ** (dim / (dim - 2))
    return theta * stretch


def head_dim(config: Mapping[str, object]) -> int:
    """Elements of a head."""
    given = config.get('head_dim')
    return int(str(given)) if given else int(str(config['n_embd'])) // int(str(config['n_head']))


def rotary_dims(config: Mapping[str, object]) -> int:
    """Elements of a head that are rotated."""
    return int(head_dim(config) * float(str(config.get('partial_rotary_factor', 1.0))))


def rotate(x: torch.Tensor, config: Mapping[str, object]) -> torch.Tensor:
    """x: [heads, length, head_dim]; rotates the first rotary_dims elements of each head."""
    length, dims = x.shape[-2], rotary_dims(config)
    pairs = torch.arange(0, dims, 2, dtype=x.dtype)
    angles = torch.arange(length, dtype=x.dtype)[:, None] * rope_base(config, length) ** (
        -pairs / dims)
    cos, sin = angles.cos(), angles.sin()
    turned, rest = x[..., :dims], x[..., dims:]
    if config.get('rope_layout', 'half') == 'half':
        a, b = turned[..., :dims // 2], turned[..., dims // 2:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    return torch.cat((turned, rest), -1)


class Model:
    """The net of a config.json and a function that gives tensors by our names in float64."""

    def __init__(self, config: Mapping[str, object],
                 tensor: Callable[[str], torch.Tensor | None]) -> None:
        self._config, self._tensor = config, tensor
        self._epsilon = float(str(config.get('layer_norm_epsilon', 1e-5)))

    def _text(self, name: str, default: str) -> str:
        return str(self._config.get(name, default))

    def _number(self, name: str, default: float) -> float:
        value = self._config.get(name)
        return default if value is None else float(str(value))

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self._tensor(name + '.weight'), self._tensor(name + '.bias'))

    def _norm(self, x: torch.Tensor, name: str, kind: str = '',
              epsilon: float | None = None) -> torch.Tensor:
        """Norm of the last axis; weight and bias are used where the checkpoint has them."""
        epsilon = self._epsilon if epsilon is None else epsilon
        if (kind or self._text('normalization', 'layer_norm')) == 'rms_norm':
            x = x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        else:
            x = x - x.mean(-1, keepdim=True)
            x = x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        weight, bias = self._tensor(name + '.weight'), self._tensor(name + '.bias')
        x = x if weight is None else x * weight
        return x if bias is None else x + bias

    def _qk_norm(self, q: torch.Tensor, k: torch.Tensor, prefix: str,
                 position: str) -> tuple[torch.Tensor, torch.Tensor]:
        norm = self._config.get('qk_norm')
        if not isinstance(norm, dict) or norm.get('position') != position:
            return q, k
        kind, epsilon = str(norm['kind']), float(norm.get('epsilon', self._epsilon))
        return (self._norm(q, prefix + 'attn.q_norm', kind, epsilon),
                self._norm(k, prefix + 'attn.k_norm', kind, epsilon))

    def _attention(self, x: torch.Tensor, prefix: str, layer: int) -> torch.Tensor:
        heads = int(self._number('n_head', 0))
        kv_heads = int(self._number('num_key_value_heads', heads))
        dim = head_dim(self._config)
        parts = self._linear(x, prefix + 'attn.c_attn').split(
            [heads * dim, kv_heads * dim, kv_heads * dim], -1)
        q, k, v = (part.reshape(len(x), -1, dim).transpose(0, 1) for part in parts)
        q, k = self._qk_norm(q, k, prefix, 'before_rotary')
        q, k = rotate(q, self._config), rotate(k, self._config)
        q, k = self._qk_norm(q, k, prefix, 'after_rotary')
        k, v = (part.repeat_interleave(heads // kv_heads, 0) for part in (k, v))
        specs = self._config['attention']
        spec = specs[layer] if isinstance(specs, list) else specs
        assert isinstance(spec, dict)
        out = attention(q, k, v, spec, int(self._number('n_positions', 0)))
        return self._linear(out.transpose(0, 1).reshape(len(x), -1), prefix + 'attn.c_proj')

    def _mlp(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        activation = ACTIVATIONS[self._text('activation_function', '')]
        up = self._linear(x, prefix + 'mlp.c_fc')
        if self._text('mlp_kind', 'plain') == 'gated':
            up = activation(self._linear(x, prefix + 'mlp.c_gate')) * up
        else:
            up = activation(up)
        return self._linear(up, prefix + 'mlp.c_proj')

    def _block(self, x: torch.Tensor, layer: int) -> torch.Tensor:
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

    def logits(self, tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """float64 [len(positions), vocab] of one row of tokens."""
        embedding = self._tensor('wte.weight')
        assert embedding is not None
        x = embedding[torch.tensor(tokens)]
        if self._config.get('embedding_norm'):
            x = self._norm(x, 'ln_emb')
        for layer in range(int(self._number('n_layer', 0))):
            x = self._block(x, layer)
        x = self._norm(x[torch.tensor(positions)], 'ln_f')
        tied = self._config.get('tie_word_embeddings', True)
        logits = F.linear(x, embedding if tied else self._tensor('lm_head.weight'))
        cap = self._number('final_logit_softcapping', 0.0)
        return cap * torch.tanh(logits / cap) if cap else logits
