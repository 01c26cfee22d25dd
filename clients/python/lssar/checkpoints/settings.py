"""config.json of an imported checkpoint: every field with the place that says it.

A value comes from the source's own records, from the command line, from the shapes of the tensors,
or from the code of the program that wrote the source. Two that contradict each other are an error,
except that the first three may correct the last, and the command line REPLACEABLE fields. What
nobody says is an error, but for ASSUMED, which the report names.
"""

import dataclasses
import json
import re
import typing
from collections.abc import Mapping

from lssar.checkpoints.arrays import Array
from lssar.checkpoints.errors import CheckpointError, JsonObject, UsageError, show
from lssar.checkpoints.forward import FORMS

RECORDED, GIVEN, DERIVED, FIXED = 'source', 'command line', 'tensors', 'format'
DEFAULT = 'default'  # nobody says it; the report names it

# Fields that differ between models and that no tensor shows, with what to give.
REQUIRED = {
    'n_head': '--set n_head=12 (heads of attention)',
    'n_positions': '--set n_positions=1024 (the trained length in tokens)',
    'attention': '--attention lssar --p 15 (or softmax, lssa, ...: models/README.md)',
    'activation_function': '--set activation_function=gelu (erf; nn.GELU() of PyTorch), gelu_new '
                           '(tanh; GPT-2), relu, relu2 or silu',
    'normalization': '--set normalization=layer_norm or rms_norm',
    'layer_norm_epsilon': '--set layer_norm_epsilon=1e-5',
    'rope_theta': '--set rope_theta=10000 (the base of the rotary embedding), or --set '
                  'positions=none for a model that has no positions',
    'rope_layout': '--set rope_layout=half (pairs i, i + d/2) or interleaved (2i, 2i + 1)',
    'embedding_norm': '--set embedding_norm=true if the embedding is normalised before the first '
                      'block, else false',
    'final_logit_softcapping': '--set final_logit_softcapping=30 (30 tanh(logits / 30)), or null',
    'parallel_residual': '--set parallel_residual=true (attention and MLP read the same x; '
                         'use_parallel_residual of GPT-NeoX), or false',
    'partial_rotary_factor': '--set partial_rotary_factor=0.25 (of a head, what rotates; '
                             'rotary_pct of GPT-NeoX), or 1',
}

# What no tensor shows, and is so in nearly every model: assumed for tensors alone, and reported.
ASSUMED: Mapping[str, object] = {
    'parallel_residual': False, 'partial_rotary_factor': 1, 'rope_scaling': None, 'qk_norm': None}

NULLABLE = ('final_logit_softcapping',)  # of them

# Fields that --set replaces: they change nothing that the model computes.
REPLACEABLE = ('bos_token_id', 'eos_token_id')

# config.json's fields, in the order in which they are written.
FIELDS = (
    'vocab_size', 'unpadded_vocab_size', 'n_positions', 'n_layer', 'n_head', 'num_key_value_heads',
    'n_embd', 'head_dim', 'n_inner', 'attention', 'normalization', 'norm_weight', 'norm_bias',
    'layer_norm_epsilon', 'norm_position', 'embedding_norm', 'mlp_kind', 'activation_function',
    'attention_bias', 'attention_out_bias', 'mlp_bias', 'mlp_out_bias', 'parallel_residual',
    'attention_residual_scale', 'mlp_residual_scale', 'qk_norm', 'positions', 'nope_layers',
    'rope_theta', 'rope_layout', 'partial_rotary_factor', 'rope_scaling',
    'final_logit_softcapping', 'tie_word_embeddings', 'bos_token_id', 'eos_token_id',
)
# Fields of models with rotary positions.
ROTARY = ('nope_layers', 'rope_theta', 'rope_layout', 'partial_rotary_factor', 'rope_scaling')


@dataclasses.dataclass(frozen=True)
class Value:
    """A field's value and who says it."""

    value: object
    origin: str


class Settings:
    """The fields of config.json while they are collected."""

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}

    def add(self, field: str, value: object, origin: str, where: str = '') -> None:
        """Errors: CheckpointError for an unknown field or a contradiction."""
        if field not in FIELDS:
            raise UsageError(f'{field} is no field of config.json; they are {", ".join(FIELDS)}')
        origin = f'{origin}: {where}' if where else origin
        present = self._values.get(field)
        if (present is None or present.origin.startswith(FIXED)
                or field in REPLACEABLE and origin == GIVEN):
            self._values[field] = Value(value, origin)
        elif not origin.startswith(FIXED) and not _is_same(present.value, value):
            raise CheckpointError(
                f'{field} is {show(present.value)} ({present.origin}), but '
                f'{show(value)} ({origin}); they must be equal')

    def add_all(self, values: Mapping[str, object], origin: str, where: str = '') -> None:
        """Several fields of one origin."""
        for field, value in values.items():
            self.add(field, value, origin, where)

    def get(self, field: str) -> object:
        """The value, or None."""
        present = self._values.get(field)
        return present.value if present else None

    def origin(self, field: str) -> str:
        """Who says the field; empty: nobody."""
        present = self._values.get(field)
        return present.origin if present else ''

    def has(self, field: str) -> bool:
        """True if somebody says it, null included."""
        return field in self._values

    def leave_out(self, field: str) -> None:
        """Forgets what the code of the source's program says."""
        present = self._values.get(field)
        if present is not None and present.origin.startswith(FIXED):
            del self._values[field]

    def integer(self, field: str) -> int:
        """A value that must be a positive integer. Errors: CheckpointError."""
        value = self.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f'{field} is {show(value)}; must be a positive integer')
        return value

    def require(self, *fields: str) -> None:
        """Errors: UsageError that lists all fields that nobody says, with what to give. null says
        something of NULLABLE only."""
        missing = [field for field in fields if self.get(field) is None
                   and not (field in NULLABLE and self.has(field))]
        if missing:
            raise UsageError(
                'the source does not say these, and models differ in them; give\n'
                + '\n'.join(f'  {REQUIRED[field]}' for field in missing))

    def config(self) -> JsonObject:
        """config.json without the fields that are null."""
        return {field: self._values[field].value for field in FIELDS
                if self.get(field) is not None}

    def origins(self) -> dict[str, str]:
        """Who says each field."""
        return {field: self._values[field].origin for field in FIELDS if field in self._values}


def _is_same(a: object, b: object) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    same = ('gelu_new', 'gelu_pytorch_tanh')
    return a == b or a in same and b in same if isinstance(a, str) else a == b


KINDS = (*FORMS, 'phi')
KINDS_WITH_P = tuple(kind for kind, form in FORMS.items() if form.reweights)
PHI_NAMES = ('relu', 'relu2', 'relu6', 'gelu', 'sigmoid', 'softplus', 'mish', 'exp')
ACTIVATION_NAMES = ('gelu_new', 'gelu_pytorch_tanh', 'gelu', 'relu', 'relu2', 'silu')
WORDS = {
    'activation_function': ACTIVATION_NAMES, 'normalization': ('layer_norm', 'rms_norm'),
    'norm_position': ('pre', 'sandwich'), 'mlp_kind': ('plain', 'gated'),
    'rope_layout': ('half', 'interleaved'),
    'positions': ('rotary', 'none', 'learned', 'alibi'),
}
INTEGERS = {
    'vocab_size': 1 << 20, 'n_positions': 1 << 20, 'n_layer': 1024, 'n_head': 1024,
    'num_key_value_heads': 1024, 'n_embd': 1 << 16, 'head_dim': 512, 'n_inner': 1 << 18,
}


@dataclasses.dataclass(frozen=True)
class Interval:
    """The numbers from `low` to `high`."""

    low: float
    high: float
    has_low: bool = False
    is_whole: bool = False  # integers only

    def holds(self, value: object) -> bool:
        """Whether `value` is one of them."""
        if type(value) not in ((int,) if self.is_whole else (int, float)):
            return False
        number = typing.cast(float, value)
        return (self.low <= number if self.has_low else self.low < number) and number <= self.high

    def __str__(self) -> str:
        return (f'an integer in [{self.low}, {self.high}]' if self.is_whole else
                f'in {"[" if self.has_low else "("}{self.low:g}, {self.high:g}]')


NUMBERS = {
    **{name: Interval(1, high, True, True) for name, high in INTEGERS.items()},
    'layer_norm_epsilon': Interval(0, 1), 'rope_theta': Interval(1, 1e12, True),
    'partial_rotary_factor': Interval(0, 1), 'attention_residual_scale': Interval(0, 1000),
    'mlp_residual_scale': Interval(0, 1000), 'final_logit_softcapping': Interval(0, 1e6),
}
# The fields of each type of rope_scaling, as models/config.cc reads them: those that must be there,
# and the others.
ROPE_SCALINGS = {
    'dynamic': (('factor',), ()), 'linear': (('factor',), ()),
    'llama3': (('factor', 'original_max_position_embeddings', 'low_freq_factor',
                'high_freq_factor'), ()),
    'yarn': (('factor',), ('original_max_position_embeddings', 'attention_factor', 'beta_fast',
                           'beta_slow', 'mscale', 'mscale_all_dim', 'truncate')),
    'longrope': (('short_factor', 'long_factor'),
                 ('original_max_position_embeddings', 'factor', 'attention_factor')),
}
_ROPE_FACTOR = Interval(0, 1e6)  # of the fields that are not named here
ROPE_NUMBERS = {
    'factor': Interval(1, 1024, True), 'mscale': Interval(0, 1e6, True),
    'mscale_all_dim': Interval(0, 1e6, True),
    'original_max_position_embeddings': Interval(1, 1 << 20, True, True),
}
LONGROPE_NUMBERS = {**ROPE_NUMBERS, 'factor': Interval(0, 1024)}
QK_NORM_WORDS = {'kind': WORDS['normalization'], 'position': ('before_rotary', 'after_rotary')}
FLAGS = ('norm_weight', 'norm_bias', 'embedding_norm', 'attention_bias', 'attention_out_bias',
         'mlp_bias', 'mlp_out_bias', 'parallel_residual', 'tie_word_embeddings')


def check_attention(spec: object, where: str = 'attention') -> None:
    """Errors: UsageError for a kind, a p or a phi that the server would refuse."""
    if not isinstance(spec, dict):
        raise UsageError(f'{where} is {show(spec)}; must be an object such as '
                         '{"kind": "lssar", "p": 15}')
    kind, p, phi = spec.get('kind'), spec.get('p'), spec.get('phi')
    unknown = [name for name in spec if name not in ('kind', 'p', 'phi', 'window')]
    if unknown:
        raise UsageError(f'{where} has {show(unknown[0])}; its fields are kind, p, phi and '
                         'window')
    window = spec.get('window')
    if 'window' in spec and (type(window) is not int or not 1 <= window <= 1 << 20):
        raise UsageError(f'{where}: window is {show(window)}; must be an integer in [1, '
                         f'{1 << 20}]')
    if window is not None and kind != 'softmax':
        raise UsageError(f'{where}: window is given, and the kind is {kind}; only softmax has a '
                         'window')
    if kind not in KINDS:
        raise UsageError(f'{where}: kind is {show(kind)}; must be one of {", ".join(KINDS)}')
    if kind in KINDS_WITH_P and p is None:
        raise UsageError(f'{where}: {kind} needs p, such as --attention {kind} --p 15')
    if kind not in KINDS_WITH_P and p is not None:
        raise UsageError(f'{where}: {kind} has no p; leave it out, or give a kind that re-weights: '
                         f'{", ".join(KINDS_WITH_P)}')
    if p is not None and not Interval(0, 1000).holds(p):
        raise UsageError(f'{where}: p is {show(p)}; must be in (0, 1000]')
    if (kind == 'phi') != (phi is not None):
        raise UsageError(f'{where}: kind phi needs phi, such as --attention phi --phi relu2'
                         if kind == 'phi' else
                         f'{where}: phi is given, and the kind is {kind}; it goes with kind phi')
    if phi is not None and phi not in PHI_NAMES:
        raise UsageError(f'{where}: phi is {show(phi)}; must be one of '
                         f'{", ".join(PHI_NAMES)}')


def check_qk_norm(norm: object) -> None:
    """Errors: UsageError for a qk_norm that the server would refuse."""
    if not isinstance(norm, dict):
        raise UsageError(f'qk_norm is {show(norm)}; must be an object such as {{"kind": '
                         '"rms_norm", "position": "before_rotary", "weight": true}')
    known = (*QK_NORM_WORDS, 'weight', 'bias', 'epsilon')
    unknown = [name for name in norm if name not in known]
    if unknown:
        raise UsageError(f'qk_norm has {show(unknown[0])}; its fields are {", ".join(known)}')
    for name, words in QK_NORM_WORDS.items():
        if norm.get(name) not in words:
            raise UsageError(f'qk_norm: {name} is {show(norm.get(name))}; must be one of '
                             f'{", ".join(words)}')
    for name, allowed in (('weight', (bool,)), ('bias', (bool, type(None)))):
        if not isinstance(norm.get(name), allowed):
            raise UsageError(f'qk_norm: {name} is {show(norm.get(name))}; must be true or false')
    epsilon = norm.get('epsilon')
    if epsilon is not None and not NUMBERS['layer_norm_epsilon'].holds(epsilon):
        raise UsageError(f'qk_norm: epsilon is {show(epsilon)}; must be '
                         f'{NUMBERS["layer_norm_epsilon"]}')


def check_rope_scaling(scaling: object, num_pairs: int) -> None:
    """Errors: UsageError for a rope_scaling that the server would refuse."""
    shown = show(scaling)
    if not isinstance(scaling, dict):
        raise UsageError(f'rope_scaling is {shown}; must be an object such as {{"type": "linear", '
                         '"factor": 2}')
    kind = scaling.get('type', scaling.get('rope_type'))
    if not isinstance(kind, str) or kind not in ROPE_SCALINGS:
        raise UsageError(f'rope_scaling is {shown}; its type must be one of '
                         f'{", ".join(ROPE_SCALINGS)}')
    required, optional = ROPE_SCALINGS[kind]
    known = (*required, *optional)
    unknown = [name for name in scaling if name not in (*known, 'type', 'rope_type')]
    missing = [name for name in required if scaling.get(name) is None]
    if unknown or missing:
        raise UsageError(f'rope_scaling is {shown}; of type {kind} it must have '
                         f'{", ".join(required)} and may have {", ".join(optional) or "no other"}')
    limits = LONGROPE_NUMBERS if kind == 'longrope' else ROPE_NUMBERS
    for name in known:
        value = scaling.get(name)
        limit = limits.get(name, _ROPE_FACTOR)
        if value is None:
            continue
        if name == 'truncate':
            if not isinstance(value, bool):
                raise UsageError(f'rope_scaling: {name} is {show(value)}; must be true or '
                                 'false')
        elif name in ('short_factor', 'long_factor'):
            if not isinstance(value, list) or len(value) != num_pairs or not all(
                    limit.holds(each) for each in value):
                raise UsageError(f'rope_scaling: {name} is {show(value)}; must be a list of '
                                 f'{num_pairs} numbers {limit}, one for each rotary pair')
        elif not limit.holds(value):
            raise UsageError(f'rope_scaling: {name} is {show(value)}; must be {limit}')
    if kind == 'llama3' and not scaling['low_freq_factor'] < scaling['high_freq_factor']:
        raise UsageError(f'rope_scaling: low_freq_factor is {scaling["low_freq_factor"]}; must be '
                         f'below high_freq_factor, {scaling["high_freq_factor"]}')


def _check_heads(config: Mapping[str, object]) -> None:
    """Errors: UsageError for sizes of heads that the server would refuse."""
    hidden, heads = config.get('n_embd'), config.get('n_head')
    if type(hidden) is not int or type(heads) is not int:
        return  # of a part of a config.json
    dim = config.get('head_dim', hidden // heads)
    assert isinstance(dim, int)
    if not 2 <= dim <= INTEGERS['head_dim'] or dim % 2:
        name = 'head_dim' if 'head_dim' in config else 'n_embd / n_head'
        raise UsageError(f'{name} is {dim}; must be even (rotary pairs) and in [2, '
                         f'{INTEGERS["head_dim"]}]')
    kv_heads = config.get('num_key_value_heads', heads)
    if type(kv_heads) is int and heads % kv_heads:
        raise UsageError(f'num_key_value_heads is {kv_heads}; must divide n_head, {heads}')
    if config.get('positions', 'rotary') != 'rotary':
        return
    part = config.get('partial_rotary_factor', 1)
    dims = int(dim * typing.cast(float, part))  # as the server rounds
    if dims < 2 or dims % 2:
        raise UsageError(f'partial_rotary_factor is {part}; it rotates {dims} of a head\'s {dim} '
                         'elements, must be an even number, at least 2')
    scaling = config.get('rope_scaling')
    if scaling is None:
        return
    check_rope_scaling(scaling, dims // 2)
    assert isinstance(scaling, dict)
    kind = scaling.get('type', scaling.get('rope_type'))
    if kind == 'dynamic' and dims == 2:
        raise UsageError('rope_scaling of type dynamic needs at least 4 rotary elements in a head; '
                         'this model has 2')
    length = scaling.get('original_max_position_embeddings') or config.get('n_positions')
    if kind == 'longrope' and length == 1:  # its logarithm divides
        raise UsageError('rope_scaling: original_max_position_embeddings is 1; must be at least 2')
    if kind == 'yarn' and config.get('rope_theta') == 1:  # so does that of the base
        raise UsageError('rope_theta is 1; must be above 1 with rope_scaling of type yarn')


def _check_nope_layers(layers: object, num_layers: object) -> None:
    """Errors: UsageError."""
    if not isinstance(layers, list) or type(num_layers) is not int or not all(
            type(each) is int and 0 <= each < num_layers for each in layers):
        raise UsageError(f'nope_layers is {show(layers)}; must be a list of layers in [0, '
                         f'{num_layers})')


def check_ends(ids: object, config: Mapping[str, object], where: str) -> None:
    """Errors: CheckpointError for an eos_token_id, one or a list, that the server would refuse."""
    end = config.get('unpadded_vocab_size', config.get('vocab_size'))
    for each in ids if isinstance(ids, list) else [ids]:
        if type(each) is not int or type(end) is not int or not 0 <= each < end:
            raise CheckpointError(f'{where}: eos_token_id is {show(ids)}; must be an id in '
                                  f'[0, {end}) or a list of ids')


def check(config: Mapping[str, object], file: str = '', origins: Mapping[str, str] = {}) -> None:
    """Errors: UsageError for a value that the server would refuse, before anything is computed.

    file: what says the fields whose origin is the source.
    """
    attention = config.get('attention')
    if isinstance(attention, list):
        if len(attention) != config.get('n_layer'):
            raise UsageError(f'attention has {len(attention)} objects; must have one for each of '
                             f'{config.get("n_layer")} layers')
        for i, spec in enumerate(attention):
            check_attention(spec, f'attention[{i}]')
    else:
        check_attention(attention)
    positions = config.get('positions', 'rotary')
    given = [field for field in ROTARY if config.get(field) is not None]
    if positions != 'rotary' and given:
        raise UsageError(f'{given[0]} is given, and positions is {show(positions)}; it goes '
                         'with "rotary"')
    specs = attention if isinstance(attention, list) else [attention]
    kinds = [spec.get('kind') for spec in specs if isinstance(spec, dict)]
    if positions == 'alibi' and any(kind != 'softmax' for kind in kinds):
        raise UsageError('positions is "alibi"; only --attention softmax is computed with it')
    for field, value in config.items():
        shown = show(value)
        if field in WORDS and value not in WORDS[field]:
            raise UsageError(f'{field} is {shown}; must be one of {", ".join(WORDS[field])}')
        if field in FLAGS and not isinstance(value, bool):
            raise UsageError(f'{field} is {shown}; must be true or false')
        if field in NUMBERS and not NUMBERS[field].holds(value):
            raise UsageError(f'{field} is {shown}; must be {NUMBERS[field]}')
    _check_heads(config)
    if config.get('nope_layers') is not None:
        _check_nope_layers(config['nope_layers'], config.get('n_layer'))
    if config.get('qk_norm') is not None:
        check_qk_norm(config['qk_norm'])
    vocabulary, limit = config.get('vocab_size'), config.get('unpadded_vocab_size')
    if limit is not None:
        sizes = Interval(1, typing.cast(int, vocabulary), True, True)
        if not sizes.holds(limit):
            raise UsageError(f'unpadded_vocab_size is {show(limit)}; must be {sizes} '
                             '(vocab_size)')
    limit = vocabulary if limit is None else limit
    for field, end in (('bos_token_id', vocabulary), ('eos_token_id', limit)):
        token = config.get(field)
        if token is not None and (type(token) is not int or type(end) is not int
                                  or not 0 <= token < end):
            is_recorded = origins.get(field, '').startswith(RECORDED)
            raise UsageError(
                f'{file}: {field} is {show(token)}; must be in [0, {end}); change it there, or '
                f'give --set {field}=ID, or --set {field}=null for none' if is_recorded else
                f'{field} is {show(token)}; must be in [0, {end})')


def as_attention(value: object, others: Mapping[str, object]) -> object:
    """An attention object. A source may say it in words: attention = "lssar", p = 15."""
    if not isinstance(value, str):
        return value
    spec: JsonObject = {'kind': value}
    for name in ('p', 'phi'):
        if others.get(name) is not None:
            spec[name] = others[name]
    return spec


def parse_assignments(assignments: list[str]) -> JsonObject:
    """--set FIELD=VALUE. The value is JSON, or a bare word for a text."""
    values: JsonObject = {}
    for assignment in assignments:
        field, equals, text = assignment.partition('=')
        if not equals or not field:
            raise UsageError(f'--set {assignment}: must be FIELD=VALUE')
        if field in values:
            raise UsageError(f'--set {field} is given twice')
        try:
            values[field] = json.loads(text)
        except ValueError:
            if not re.fullmatch(r'\w+', text):
                raise UsageError(f'--set {assignment}: {text} is neither JSON nor a word') from None
            values[field] = text
    return values


def given_attention(kind: str | None, p: float | int | None, phi: str | None) -> JsonObject:
    """--attention, --p and --phi as fields. Empty if none is given."""
    if kind is None:
        if p is not None or phi is not None:
            raise UsageError('--p and --phi need --attention')
        return {}
    spec: JsonObject = {'kind': kind}
    if p is not None:
        p = float(p)
        spec['p'] = int(p) if p.is_integer() else p
    if phi is not None:
        spec['phi'] = phi
    return {'attention': spec}


def leave_out_rotary(settings: Settings) -> None:
    """A model without rotary positions has no base and no layout, whatever its program's has."""
    if settings.get('positions') not in (None, 'rotary'):
        for field in ROTARY:
            settings.leave_out(field)


def required(settings: Settings) -> list[str]:
    """The fields of REQUIRED that this model has."""
    is_rotary = settings.get('positions') in (None, 'rotary')
    return [field for field in REQUIRED if is_rotary or field not in ROTARY]


def assume(settings: Settings) -> list[str]:
    """Adds what of ASSUMED nobody says. -> notes."""
    is_rotary = settings.get('positions') in (None, 'rotary')
    missing = [field for field in ASSUMED
               if not settings.has(field) and (is_rotary or field not in ROTARY)]
    for field in missing:
        settings.add(field, ASSUMED[field], DEFAULT)
    shown = ', '.join(f'{field} {json.dumps(ASSUMED[field])}' for field in missing)
    return [f'ASSUMED, for no tensor shows them: {shown}; --set FIELD=VALUE says otherwise'
            ] if missing else []


def _presence(tensors: Mapping[str, Array], pattern: str, num_layers: int) -> bool:
    """True if some layer has the tensor; missing ones in other layers are found later."""
    return any(pattern.format(i) in tensors for i in range(num_layers))


def derive(tensors: Mapping[str, Array], settings: Settings, num_layers: int) -> None:
    """Adds what the tensors show. The order of additions is that of the error that helps most."""
    embedding = tensors.get('wte.weight')
    if embedding is None or embedding.ndim != 2:
        raise CheckpointError('no embedding [vocab_size, n_embd] among the tensors')
    if num_layers == 0:
        raise CheckpointError('no layers among the tensors')
    where = 'wte.weight'
    settings.add('vocab_size', embedding.shape[0], DERIVED, where)
    settings.add('n_embd', embedding.shape[1], DERIVED, where)
    settings.add('n_layer', num_layers, DERIVED, 'names')
    mlp = tensors.get('h.0.mlp.c_fc.weight')
    if mlp is not None and mlp.ndim == 2:
        settings.add('n_inner', mlp.shape[0], DERIVED, 'mlp.c_fc')
    for field, pattern in (
            ('norm_weight', 'h.{}.ln_1.weight'), ('norm_bias', 'h.{}.ln_1.bias'),
            ('attention_out_bias', 'h.{}.attn.c_proj.bias'),
            ('mlp_bias', 'h.{}.mlp.c_fc.bias'), ('mlp_out_bias', 'h.{}.mlp.c_proj.bias')):
        settings.add(field, _presence(tensors, pattern, num_layers), DERIVED, pattern.format(0))
    is_gated = _presence(tensors, 'h.{}.mlp.c_gate.weight', num_layers)
    settings.add('mlp_kind', 'gated' if is_gated else 'plain', DERIVED, 'mlp.c_gate')
    if _presence(tensors, 'h.{}.ln_1_post.weight', num_layers):
        settings.add('norm_position', 'sandwich', DERIVED, 'ln_1_post')
    positions = tensors.get('wpe.weight')
    if positions is not None:
        settings.add('positions', 'learned', DERIVED, 'wpe.weight')
        settings.add('n_positions', positions.shape[0], DERIVED, 'wpe.weight')
    if 'ln_emb.weight' in tensors:
        settings.add('embedding_norm', True, DERIVED, 'ln_emb.weight')
    is_tied = 'lm_head.weight' not in tensors
    if settings.get('tie_word_embeddings') is True and not is_tied:
        raise CheckpointError(
            f'tie_word_embeddings is true ({settings.origin("tie_word_embeddings")}), but '
            'lm_head.weight is not the embedding; if the model was trained with it, say false '
            'there, else remove it from the weights')
    settings.add('tie_word_embeddings', is_tied, DERIVED, 'lm_head.weight')


def derive_attention_bias(tensors: Mapping[str, Array], settings: Settings) -> None:
    """Whether q, k and v have a bias, where they are one tensor."""
    has_bias = any(name.endswith('.attn.c_attn.bias') for name in tensors)
    settings.add('attention_bias', has_bias, DERIVED, 'attn.c_attn.bias')


def derive_heads(tensors: Mapping[str, Array], settings: Settings) -> tuple[int, int, int]:
    """(heads, K/V heads, head_dim), from the sizes of c_proj and c_attn."""
    heads = settings.integer('n_head')
    out, qkv = tensors.get('h.0.attn.c_proj.weight'), tensors.get('h.0.attn.c_attn.weight')
    if out is None or qkv is None or out.ndim != 2 or qkv.ndim != 2:
        raise CheckpointError('no attn.c_proj and attn.c_attn of two axes in the first layer')
    attention_size = out.shape[1]
    if attention_size % heads:
        raise CheckpointError(f'the output projection takes {attention_size} elements; must be a '
                              f'multiple of n_head, {heads}')
    head_dim = attention_size // heads
    kv_size = qkv.shape[0] - attention_size
    if kv_size < 2 * head_dim or kv_size % (2 * head_dim):
        raise CheckpointError(f'q, k and v have {qkv.shape[0]} rows; with {heads} heads of '
                              f'{head_dim} elements, k and v must share the other {kv_size}')
    kv_heads = kv_size // (2 * head_dim)
    settings.add('num_key_value_heads', kv_heads, DERIVED, 'attn.c_attn')
    if heads * head_dim != settings.integer('n_embd') or settings.has('head_dim'):
        settings.add('head_dim', head_dim, DERIVED, 'attn.c_proj')
    return heads, kv_heads, head_dim


def expected_shapes(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the model that config.json describes."""
    def size(name: str, default: int = 0) -> int:
        value = config.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def flag(name: str, default: bool) -> bool:
        value = config.get(name)
        return value if isinstance(value, bool) else default

    hidden, heads = size('n_embd'), size('n_head')
    inner = size('n_inner', 4 * hidden)
    dim = size('head_dim', hidden // heads)
    qkv = (heads + 2 * size('num_key_value_heads', heads)) * dim
    shapes: dict[str, tuple[int, ...]] = {'wte.weight': (size('vocab_size'), hidden)}
    if config.get('positions') == 'learned':
        shapes['wpe.weight'] = (size('n_positions'), hidden)
    has_weight = flag('norm_weight', True)
    has_bias = flag('norm_bias', config.get('normalization') != 'rms_norm' and has_weight)
    qk_norm = config.get('qk_norm')

    def norm(name: str) -> None:
        if has_weight:
            shapes[name + '.weight'] = (hidden,)
        if has_bias:
            shapes[name + '.bias'] = (hidden,)

    def linear(name: str, num_out: int, num_in: int, bias: bool) -> None:
        shapes[name + '.weight'] = (num_out, num_in)
        if bias:
            shapes[name + '.bias'] = (num_out,)

    if flag('embedding_norm', False):
        norm('ln_emb')
    attention_bias, mlp_bias = flag('attention_bias', True), flag('mlp_bias', True)
    for i in range(size('n_layer')):
        prefix = f'h.{i}.'
        norm(prefix + 'ln_1')
        linear(prefix + 'attn.c_attn', qkv, hidden, attention_bias)
        if isinstance(qk_norm, dict):
            for kind in ('weight', 'bias'):
                if qk_norm.get(kind):
                    shapes[f'{prefix}attn.q_norm.{kind}'] = (dim,)
                    shapes[f'{prefix}attn.k_norm.{kind}'] = (dim,)
        linear(prefix + 'attn.c_proj', hidden, heads * dim,
               flag('attention_out_bias', attention_bias))
        norm(prefix + 'ln_2')
        if config.get('mlp_kind') == 'gated':
            linear(prefix + 'mlp.c_gate', inner, hidden, mlp_bias)
        linear(prefix + 'mlp.c_fc', inner, hidden, mlp_bias)
        linear(prefix + 'mlp.c_proj', hidden, inner, flag('mlp_out_bias', mlp_bias))
        if config.get('norm_position') == 'sandwich':
            norm(prefix + 'ln_1_post')
            norm(prefix + 'ln_2_post')
    norm('ln_f')
    if not flag('tie_word_embeddings', True):
        shapes['lm_head.weight'] = (size('vocab_size'), hidden)
    return shapes
