"""Golden rows: logits that the server compares at every start (models/README.md)."""

import os
from collections.abc import Callable, Mapping

import numpy as np

from lssar.checkpoints import forward, tensor_file
from lssar.checkpoints.arrays import Array, widen
from lssar.checkpoints.errors import CheckpointError

SEED = 20250114
NAME = 'golden.safetensors'
# Tokens of the rows, and the number of positions of each whose logits are kept. Short, because the
# server computes them at every start: about 0.3 s for 124M parameters on two cores.
LENGTHS = (96, 12)


def _positions(length: int) -> list[int]:
    """The first rows, which have no offset, and some that have."""
    return sorted({0, 1, 2, 3, length // 2, length - 1} & set(range(length)))


def rows(config: Mapping[str, object]) -> list[tuple[list[int], list[int]]]:
    """(tokens, positions) of each row: random ids that are no padding of the vocabulary."""
    trained = int(str(config['n_positions']))
    lengths = [min(length, trained) for length in LENGTHS]
    if isinstance(config.get('rope_scaling'), dict) and trained <= LENGTHS[0]:
        lengths.append(2 * trained)  # beyond the trained length, where the rotary base differs
    vocabulary = int(str(config.get('unpadded_vocab_size', config['vocab_size'])))
    generator = np.random.default_rng(SEED)
    return [(generator.integers(vocabulary, size=length).tolist(), _positions(length))
            for length in lengths]


def compute(config: Mapping[str, object],
            tensor: Callable[[str], Array | None]) -> list[Array]:
    """The logits of rows(config), [positions, vocab] float64 each."""
    model = forward.Model(config, tensor)
    return [model.logits(tokens, positions) for tokens, positions in rows(config)]


def conditioning(config: Mapping[str, object], tensor: Callable[[str], Array | None],
                 logits: list[Array]) -> dict[str, float]:
    """What rounding alone changes: the largest change of a logit over the largest logit of its
    position, with arithmetic in fp32, and with keys and values of a type. The self-check at start
    takes its limits from it: a model with a large p is ill-conditioned in every program.
    """
    models = {'fp32': forward.Model(config, tensor, np.float32),
              'fp16': forward.Model(config, tensor, kv_dtype='F16'),
              'int8': forward.Model(config, tensor, kv_dtype='I8')}
    if not all(np.isfinite(each).all() for each in logits):
        raise CheckpointError('the logits of the golden rows hold a NaN or an infinity: some '
                              'weights are too large')
    changes = {}
    for name, model in models.items():
        rounded = [model.logits(tokens, positions) for tokens, positions in rows(config)]
        # A head of zeros gives logits of zero, however it is rounded.
        changes[name] = max(float((np.abs(a - b).max(-1) /
                                   np.maximum(np.abs(b).max(-1), np.finfo(np.float64).tiny)).max())
                            for a, b in zip(rounded, logits))
        changes[name] = min(changes[name], 1.0)
    return changes


def write(config: Mapping[str, object], logits: list[Array], directory: str,
          changes: Mapping[str, float] | None = None) -> None:
    """Writes golden.safetensors. changes: conditioning()."""
    outputs = []
    for i, ((tokens, positions), values) in enumerate(zip(rows(config), logits)):
        outputs += [
            tensor_file.output_of(f'tokens_{i}', np.array(tokens, np.int32)),
            tensor_file.output_of(f'rows_{i}', np.array(positions, np.int32)),
            tensor_file.output_of(f'logits_{i}', values, 'F32')]
    if changes:
        outputs.append(tensor_file.output_of('conditioning', np.array(
            [changes[name] for name in ('fp32', 'fp16', 'int8')], np.float32)))
    tensor_file.write(os.path.join(directory, NAME), outputs, {})


def read(directory: str) -> list[tuple[list[int], list[int], Array]]:
    """(tokens, positions, logits) of each row. Errors: CheckpointError."""
    file = tensor_file.TensorFile(os.path.join(directory, NAME))
    found: list[tuple[list[int], list[int], Array]] = []
    while f'tokens_{len(found)}' in file.entries:
        i = len(found)
        found.append((file.tensor(f'tokens_{i}').tolist(), file.tensor(f'rows_{i}').tolist(),
                      widen(file.tensor(f'logits_{i}'))))
    return found
