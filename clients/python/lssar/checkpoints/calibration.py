"""The inputs of a model's matrices on a calibration text, for error feedback (int4.py)."""

from collections.abc import Mapping

import numpy as np

from lssar.checkpoints import forward, served
from lssar.checkpoints.arrays import Array
from lssar.checkpoints.errors import CheckpointError

MAX_TOKENS = 16384
MAX_ROW_TOKENS = 1024
MAX_BYTES = 256 << 10


class _Recorder(forward.Model):
    """Sums x x^T over the inputs x of every matrix."""

    def __init__(self, config: Mapping[str, object], tensors: Mapping[str, Array]) -> None:
        super().__init__(config, tensors.get, np.float32)
        self.hessians: dict[str, Array] = {}
        self._head = 'wte' if config.get('tie_word_embeddings', True) else 'lm_head'

    def _record(self, x: Array, name: str) -> None:
        product = x.T @ x
        known = self.hessians.get(name + '.weight')
        self.hessians[name + '.weight'] = product if known is None else known + product

    def _linear(self, x: Array, name: str) -> Array:
        self._record(x, name)
        return super()._linear(x, name)

    def _norm(self, x: Array, name: str, kind: str = '',
              epsilon: float | None = None) -> Array:
        y = super()._norm(x, name, kind, epsilon)
        if name == 'ln_f':
            self._record(y, self._head)
        return y


def tokenize(directory: str, text_path: str) -> list[int]:
    """The first tokens of a text file, by the checkpoint's tokenizer. Errors: CheckpointError."""
    try:
        with open(text_path, 'rb') as file:
            text = file.read(MAX_BYTES).decode('utf-8', errors='ignore')
    except OSError as error:
        raise CheckpointError(f'{text_path}: {error.strerror}') from error
    server = served.find_server()  # for its tokenizer
    with served.running(server, directory, '--max-model-len', '256') as client:
        if not client.get_info().tokenizer_hash:
            raise CheckpointError(f'{directory}: has no tokenizer, which --calibration needs')
        tokens = client.tokenize(text, add_bos=False)[:MAX_TOKENS]
    if len(tokens) < MAX_ROW_TOKENS:
        raise CheckpointError(f'{text_path}: has {len(tokens)} tokens, must have at least '
                              f'{MAX_ROW_TOKENS}')
    return tokens


def hessians(config: Mapping[str, object], tensors: Mapping[str, Array],
             tokens: list[int]) -> dict[str, Array]:
    """Sums of x x^T by the name of the matrix that multiplies x."""
    recorder = _Recorder(config, tensors)
    length = min(MAX_ROW_TOKENS, int(str(config['n_positions'])))
    for first in range(0, len(tokens), length):
        row = tokens[first:first + length]
        recorder.logits(row, range(len(row)))
    return recorder.hessians
