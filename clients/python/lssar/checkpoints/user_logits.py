"""`lssar import --logits FILE`: an import against the logits of the user's own model.

FILE is an .npz or .safetensors with `tokens` [length] or [rows, length] and `logits`, the same and
[vocabulary] behind. For any PyTorch model:

    import numpy as np, torch
    tokens = torch.randint(VOCABULARY, (1, 2 * TRAINED_LENGTH))
    with torch.no_grad():
        logits = model.float().eval()(tokens)   # [1, length, vocabulary]; transformers: .logits
    np.savez('logits.npz', tokens=tokens.numpy(), logits=logits.float().numpy())

Our forward pass runs in float64 on the weights as the source has them. Where it differs by more
than float32 explains, other values of the fields that sources leave open are tried.
"""

import dataclasses
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from lssar.checkpoints import forward, tensor_file
from lssar.checkpoints.arrays import FLOATS, Array, log_softmax, type_name, widen
from lssar.checkpoints.errors import CheckpointError, JsonObject, open_regular

MAX_BYTES = 16 << 30
MAX_POSITIONS, FIRST_POSITIONS = 64, 24  # compared of each row: evenly spaced, and the first ones
TRIAL_TOKENS = 64  # of the first row, where other values are tried
MAX_ROWS = 16
# The limit for a log-probability: this much, and this many times what float32 changes in our own
# forward pass. PyTorch's float32 differs from ours in the order of its sums only.
MIN_LIMIT, FACTOR = 1e-4, 20.0
LEAST_LOGPROB = -20.0

Tensors = Callable[[str], Array | None]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of tokens, and the logits of the user's model at some of its positions."""

    tokens: list[int]
    positions: list[int]
    logits: Array


@dataclasses.dataclass(frozen=True)
class Result:
    """How far the import is from the user's model."""

    error: float  # largest difference of a log-probability
    limit: float
    num_positions: int
    num_beyond: int  # of them, beyond the trained length

    def render(self) -> str:
        """One line."""
        return (f'within {self.error:.2g} of a log-probability at {self.num_positions} positions, '
                f'{self.num_beyond} of them beyond the trained length (limit {self.limit:.2g})')


def _arrays(path: str) -> dict[str, Array]:
    """tokens and logits of a file. Errors: CheckpointError."""
    if path.endswith('.safetensors'):
        tensors = tensor_file.TensorFile(path)
        return {name: tensors.tensor(name) for name in ('tokens', 'logits')
                if name in tensors.entries}
    found = {}
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            for name in ('tokens', 'logits'):
                if name + '.npy' not in archive.namelist():
                    continue
                entry = archive.getinfo(name + '.npy')
                if entry.file_size > MAX_BYTES or entry.compress_size != entry.file_size:
                    raise CheckpointError(f'{path}: {name} is compressed or has more than '
                                          f'{MAX_BYTES} bytes; write it with numpy.savez')
                with archive.open(entry) as content:
                    found[name] = np.lib.format.read_array(content, allow_pickle=False)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged archive raises nearly anything
        raise CheckpointError(f'{path}: is neither an .npz of numpy.savez nor .safetensors: '
                              f'{type(error).__name__}: {error}') from None
    return found


def read(path: str, config: Mapping[str, object]) -> list[Row]:
    """The rows of a file. Errors: CheckpointError that names what is wrong."""
    found = _arrays(path)
    missing = [name for name in ('tokens', 'logits') if name not in found]
    if missing:
        raise CheckpointError(f'{path}: has no {" and no ".join(missing)}; must have tokens '
                              '[length] and logits [length, vocabulary]')
    tokens, logits = found['tokens'], found['logits']
    if tokens.ndim == 1:
        tokens, logits = tokens[None], logits[None]
    if tokens.ndim != 2 or logits.ndim != 3 or logits.shape[:2] != tokens.shape or not tokens.size:
        raise CheckpointError(f'{path}: tokens are {list(found["tokens"].shape)} and logits '
                              f'{list(found["logits"].shape)}; must be [length] and [length, '
                              'vocabulary], or [rows, length] and [rows, length, vocabulary]')
    vocabulary = int(str(config['vocab_size']))
    if logits.shape[2] > vocabulary:
        raise CheckpointError(f'{path}: logits of {logits.shape[2]} ids; the model has '
                              f'{vocabulary}')
    if type_name(logits) not in FLOATS or tokens.dtype.kind not in 'iu':
        raise CheckpointError(f'{path}: tokens must be integers and logits floats')
    if len(tokens) > MAX_ROWS:
        raise CheckpointError(f'{path}: {len(tokens)} rows; the limit is {MAX_ROWS}')
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary:
        raise CheckpointError(f'{path}: tokens are in [{tokens.min()}, {tokens.max()}]; must be in '
                              f'[0, {vocabulary})')
    length = tokens.shape[1]
    positions = sorted({*range(min(length, FIRST_POSITIONS)),
                        *np.linspace(0, length - 1, MAX_POSITIONS).astype(int).tolist()})
    rows = [Row(row.tolist(), positions, widen(each[positions]))
            for row, each in zip(tokens, logits)]
    if not all(np.isfinite(row.logits).all() for row in rows):
        raise CheckpointError(f'{path}: logits must be finite')
    return rows


def _difference(ours: Array, theirs: Array) -> float:
    """The largest difference of log-probabilities that are not tiny."""
    ours = ours[:, :theirs.shape[1]]
    ours, theirs = log_softmax(ours), log_softmax(theirs)
    differences = np.abs(ours - theirs)[theirs > LEAST_LOGPROB]
    return float(differences.max()) if np.isfinite(differences).all() else float('inf')


def compare(config: Mapping[str, object], tensor: Tensors, rows: list[Row]) -> Result:
    """Our forward pass against the user's."""
    trained = int(str(config['n_positions']))
    error, single = 0.0, 0.0
    exact, rough = forward.Model(config, tensor), forward.Model(config, tensor, np.float32)
    for row in rows:
        ours = exact.logits(row.tokens, row.positions)
        error = max(error, _difference(ours, row.logits))
        single = max(single, _difference(widen(rough.logits(row.tokens, row.positions)), ours))
    beyond = sum(position >= trained for row in rows for position in row.positions)
    return Result(error, MIN_LIMIT + FACTOR * single,
                  sum(len(row.positions) for row in rows), beyond)


def _changes(config: Mapping[str, object]) -> Iterator[tuple[str, JsonObject]]:
    """(what to give, changed fields): other values of what sources leave open."""
    for value in ('gelu', 'gelu_new', 'relu', 'relu2', 'silu'):
        if value != str(config['activation_function']).replace('pytorch_tanh', 'new'):
            yield f'--set activation_function={value}', {'activation_function': value}
    is_rotary = config.get('positions', 'rotary') == 'rotary'
    for value in ('half', 'interleaved') if is_rotary else ():
        if value != config.get('rope_layout', 'half'):
            yield f'--set rope_layout={value}', {'rope_layout': value}
    for epsilon in (1e-5, 1e-6, 1e-8, 1e-12, 1.1920928955078125e-07):
        if epsilon != config.get('layer_norm_epsilon', 1e-5):
            yield f'--set layer_norm_epsilon={epsilon}', {'layer_norm_epsilon': epsilon}
    for theta in (1e4, 1e5, 5e5, 1e6) if is_rotary else ():
        if theta != config['rope_theta']:
            yield f'--set rope_theta={theta:g}', {'rope_theta': theta}
    spec = config['attention']
    if not isinstance(spec, dict):
        return
    powers = [p for p in (*range(1, 21), 25, 30, 40, 50, 100) if p != spec.get('p')]
    for kind in ('softmax', 'lssa', 'lssar'):
        if kind != spec['kind'] and kind != 'lssar':
            yield f'--attention {kind}', {'attention': {'kind': kind}}
    kind = str(spec['kind']) if spec.get('p') is not None else 'lssar'
    for p in powers:
        yield f'--attention {kind} --p {p}', {'attention': {'kind': kind, 'p': p}}


def advise(config: Mapping[str, object], tensor: Tensors, rows: list[Row],
           limit: float) -> str:
    """What would fit: one changed field, or two. A sentence."""
    first = rows[0]
    tokens = first.tokens[:TRIAL_TOKENS]
    places = [i for i, position in enumerate(first.positions) if position < len(tokens)]
    positions, theirs = [first.positions[i] for i in places], first.logits[places]

    def error(fields: Mapping[str, object]) -> float:
        with np.errstate(all='ignore'):
            ours = forward.Model({**config, **fields}, tensor).logits(tokens, positions)
        return _difference(ours, theirs)

    tried = sorted(((error(fields), flag, fields) for flag, fields in _changes(config)),
                   key=lambda each: each[0])
    fits = [flag for found, flag, _ in tried if found <= limit]
    if fits:
        return f'these would fit: {"; or ".join(fits[:3])}'
    for _, flag, fields in tried[:2]:
        for other, more in _changes(config):
            if set(more) != set(fields) and error({**fields, **more}) <= limit:
                return f'these would fit: {flag} {other}'
    found, flag, _ = tried[0]
    return (f'no other activation, rotary layout, base, norm epsilon, kind of attention or p fits; '
            f'the nearest is {flag}, {found:.2g}')


def check(path: str, config: Mapping[str, object], tensor: Tensors) -> Result:
    """Errors: CheckpointError where the model of `config` is not the one of the file."""
    rows = read(path, config)
    result = compare(config, tensor, rows)
    if not result.error <= result.limit:
        raise CheckpointError(
            f'{path}: the imported model is not the one that made these logits: log-probabilities '
            f'differ by {result.error:.3g}, and float32 explains {result.limit:.2g}. With the '
            f'attention {json.dumps(config["attention"])}: '
            f'{advise(config, tensor, rows, result.limit)}. Nothing is written')
    return result
