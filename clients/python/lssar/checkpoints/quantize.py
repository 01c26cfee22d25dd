"""`lssar quantize`: int8 or int4 weights on disk.

int8: the bits that --dtype int8 makes at load. A matrix NAME [rows, cols] becomes NAME of I8 and
NAME_scale of BF16 [rows, ceil(cols / 64)]. The rule is kernels/quantize.h: scale = the group's
largest magnitude / 127 rounded to bf16, element = value / scale rounded to the nearest integer,
ties to even.

int4: NAME of U8 [rows, ceil(cols / 2)], two codes a byte, and NAME_scale of BF16
[rows, ceil(cols / 32)]: int4.py. Without calibration, the bits of --dtype int4.
"""

import dataclasses
import os

import numpy as np

from lssar.checkpoints import directory, export, golden, int4, names, tensor_file
from lssar.checkpoints.arrays import Array, convert, widen
from lssar.checkpoints.errors import CheckpointError, UsageError, is_there

GROUP_COLS = 64


def quantize(matrix: Array) -> tuple[Array, Array]:
    """[rows, cols] of a float type -> (int8 [rows, cols], BF16 scales [rows, groups])."""
    num_rows, num_cols = matrix.shape
    values = np.pad(widen(matrix, np.float32), ((0, 0), (0, -num_cols % GROUP_COLS)))
    groups = values.reshape(num_rows, -1, GROUP_COLS)
    scales = convert(np.abs(groups).max(-1) / np.float32(127), 'BF16')
    wide = widen(scales, np.float32)[..., None]
    steps = np.clip(np.rint(np.divide(groups, wide, out=np.zeros_like(groups), where=wide != 0)),
                    -127, 127)
    return steps.astype(np.int8).reshape(num_rows, -1)[:, :num_cols], scales


@dataclasses.dataclass(frozen=True)
class Options:
    """What `lssar quantize` is asked for."""

    dtype: str = 'int8'
    head: str = ''  # type of wte and lm_head; '': dtype
    calibration: str = ''  # a text file; '': round to nearest

    def check(self) -> None:
        """Errors: UsageError."""
        if self.dtype != 'int4' and (self.head or self.calibration):
            flag = '--head' if self.head else '--calibration'
            raise UsageError(f'{flag} is for --dtype int4')


def _outputs(name: str, tensor: Array, dtype: str,
             hessian: Array | None) -> list[tensor_file.Output]:
    if dtype == 'int8':
        elements, scales = quantize(tensor)
    else:
        codes, scales = (int4.quantize(tensor) if hessian is None else
                         int4.quantize_with_feedback(tensor, hessian))
        elements = int4.pack(codes)
    return [tensor_file.output_of(name, elements), tensor_file.output_of(name + '_scale', scales)]


def run(path: str, out: str, overwrite: bool, command: str, options: Options = Options()) -> str:
    """Writes `out`. -> what was written. Errors: CheckpointError, UsageError."""
    options.check()
    directory.check_target(out, overwrite, (path, options.calibration))
    config, tensors = export.load(path)
    hessians: dict[str, Array] = {}
    scheme = ''
    if options.dtype == 'int4':
        scheme = ', rounded to nearest'
    if options.calibration:
        from lssar.checkpoints import calibration  # runs a server, so it needs gRPC

        tokens = calibration.tokenize(path, options.calibration)
        hessians = calibration.hessians(config, tensors, tokens)
        scheme = f', error feedback from {len(tokens):,} tokens'
    outputs = []
    for name, tensor in tensors.items():
        ours = name if name == 'lm_head.weight' else 'transformer.' + name
        if tensor.ndim != 2 or name == 'wpe.weight':  # which the server holds in fp32
            outputs.append(tensor_file.output_of(ours, tensor))
            continue
        if not bool(np.isfinite(widen(tensor, np.float32)).all()):
            raise CheckpointError(f'{path}: tensor "{name}" is not finite')
        is_head = name in ('wte.weight', 'lm_head.weight')
        dtype = options.head if is_head and options.head else options.dtype
        outputs += _outputs(ours, tensor, dtype, hessians.get(name))
    with directory.new_directory(out, overwrite) as scratch:
        directory.write_config(config, scratch)
        tensor_file.write(os.path.join(scratch, directory.WEIGHTS), outputs,
                          directory.METADATA)
        directory.write_origin(scratch, command, quantized_from=directory.checkpoint_hash(path))
        export.copy_others(path, scratch)
        num_bytes = os.path.getsize(os.path.join(scratch, directory.WEIGHTS))
        checksum = directory.checkpoint_hash(scratch)
    has_golden = is_there(os.path.join(path, golden.NAME))
    rows = 'those of the checkpoint before quantization' if has_golden else 'none'
    head = f', head {options.head}' if options.head else ''
    return (f'{out}: {names.num_layers(tensors)} layers, {options.dtype}{scheme}{head}, '
            f'{num_bytes:,} bytes\n'
            f'checksum    {checksum} (as `lssar info` shows it)\n'
            f'golden rows {rows}')
