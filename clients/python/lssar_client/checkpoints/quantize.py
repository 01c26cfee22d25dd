"""`lssar quantize`: int8 weights on disk, the bits that --dtype int8 makes at load.

A matrix NAME [rows, cols] becomes NAME of I8 and NAME_scale of BF16 [rows, ceil(cols / 64)]. The
rule is kernels/quantize.h: scale = the group's largest magnitude / 127 rounded to bf16, element =
value / scale rounded to the nearest integer, ties to even.
"""

import os

import torch

from lssar_client.checkpoints import directory, export, golden, names, tensor_file
from lssar_client.checkpoints.errors import CheckpointError

GROUP_COLS = 64


def quantize(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, cols] of a float type -> (int8 [rows, cols], bf16 scales [rows, groups])."""
    num_rows, num_cols = matrix.shape
    padding = -num_cols % GROUP_COLS
    values = torch.nn.functional.pad(matrix.float(), (0, padding))
    groups = values.reshape(num_rows, -1, GROUP_COLS)
    scales = (groups.abs().amax(-1) / 127.0).to(torch.bfloat16)
    wide = scales.float()[..., None]
    steps = torch.where(wide == 0, torch.zeros(()), groups / wide).round().clamp(-127, 127)
    return steps.to(torch.int8).reshape(num_rows, -1)[:, :num_cols].contiguous(), scales


def run(path: str, out: str, overwrite: bool, command: str) -> str:
    """Writes `out`. -> what was written. Errors: CheckpointError."""
    directory.check_target(out, overwrite)
    config, tensors = export.load(path)
    outputs = []
    for name, tensor in tensors.items():
        ours = name if name == 'lm_head.weight' else 'transformer.' + name
        if tensor.dim() != 2:
            outputs.append(tensor_file.output_of(ours, tensor))
            continue
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f'{path}: tensor "{name}" is not finite')
        steps, scales = quantize(tensor)
        outputs += [tensor_file.output_of(ours, steps),
                    tensor_file.output_of(ours + '_scale', scales)]
    metadata = {'format': 'pt', 'command': command, 'versions': directory.versions(),
                'quantized_from': directory.checkpoint_hash(path)}
    with directory.new_directory(out, overwrite) as scratch:
        directory.write_config(config, scratch)
        tensor_file.write(os.path.join(scratch, directory.WEIGHTS), outputs, metadata)
        export.copy_others(path, scratch)
        num_bytes = os.path.getsize(os.path.join(scratch, directory.WEIGHTS))
        checksum = directory.checkpoint_hash(scratch)
    has_golden = os.path.exists(os.path.join(path, golden.NAME))
    rows = 'those of the checkpoint before quantization' if has_golden else 'none'
    return (f'{out}: {names.num_layers(tensors)} layers, int8, {num_bytes:,} bytes\n'
            f'checksum    {checksum} (as `lssar info` shows it)\n'
            f'golden rows {rows}')
