"""int4 weights: the rule of kernels/quantize.h, and error feedback (GPTQ).

An element is a code in [0, 15] and stands for VALUES[code] times the bf16 scale of its row and
group of 32 columns.

Source of the error feedback: Frantar et al., GPTQ, arXiv 2210.17323.
"""

import numpy as np

from lssar.checkpoints.arrays import Array, convert, widen

GROUP_COLS = 32
VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
ENDS = (-127.0, 113.0)
STRETCHES = (1.0, 1 / 0.75, 1 / 0.8, 1 / 0.85, 1 / 0.9, 1 / 0.95, 1 / 1.05, 1 / 1.1)
# Added to the diagonal of a Hessian, in units of its mean.
DAMPING = 0.01

_VALUES = np.array(VALUES, np.float32)
# By x + 127 for integers x in [-127, 127]; the smaller code of a tie.
_NEAREST = np.abs(np.arange(-127, 128, dtype=np.float32)[:, None] - _VALUES).argmin(-1)


def codes_of(steps: Array) -> Array:
    """Values in units of their scale -> codes, int64."""
    codes: Array = _NEAREST[(np.clip(np.rint(steps), -127, 127) + 127).astype(np.int64)]
    return codes


def inverse(scales: Array) -> Array:
    """1 / scale; 0 of a scale of 0."""
    result: Array = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    return result


def _round_to_bf16(values: Array) -> Array:
    return widen(convert(values, 'BF16'), np.float32)


def best_scales(groups: Array, importance: Array | None = None) -> Array:
    """[..., n] fp32 -> bf16 values in fp32 [...], as QuantizeInt4Group chooses them.

    importance: [n] weights of the squared errors; None: all 1.
    """
    place = np.abs(groups).argmax(-1)[..., None]
    largest = np.take_along_axis(groups, place, -1)[..., 0]
    best_error = np.full(largest.shape, np.inf, np.float32)
    best = np.zeros_like(largest)
    with np.errstate(all='ignore'):
        for end in ENDS:
            for stretch in STRETCHES:
                scales = _round_to_bf16(largest / (np.float32(end) * np.float32(stretch)))
                usable = (np.abs(scales) >= np.finfo(np.float32).tiny) & np.isfinite(
                    np.float32(127) * scales)
                steps = groups * inverse(scales)[..., None]
                rests = _VALUES[codes_of(np.where(usable[..., None], steps, np.float32(0)))] - steps
                error = np.zeros_like(largest)
                for column in range(groups.shape[-1]):  # in order: rounding decides ties
                    square = rests[..., column] * rests[..., column]
                    error = error + (square if importance is None else square * importance[column])
                relative = scales / largest
                error = error * (relative * relative)
                better = usable & (error < best_error)
                best_error = np.where(better, error, best_error)
                best = np.where(better, scales, best)
    return best


def quantize(matrix: Array) -> tuple[Array, Array]:
    """Rounds to nearest. [rows, cols] -> (codes uint8 [rows, cols], BF16 scales [rows, groups])."""
    num_rows, num_cols = matrix.shape
    values = np.pad(widen(matrix, np.float32), ((0, 0), (0, -num_cols % GROUP_COLS)))
    groups = values.reshape(num_rows, -1, GROUP_COLS)
    scales = best_scales(groups)
    codes = codes_of(groups * inverse(scales)[..., None])
    return codes.reshape(num_rows, -1)[:, :num_cols].astype(np.uint8), convert(scales, 'BF16')


def quantize_with_feedback(matrix: Array, hessian: Array) -> tuple[Array, Array]:
    """GPTQ: columns are rounded in order, and later columns take up the error of earlier ones.

    hessian: [cols, cols], the sum of x x^T over calibration inputs x. Result: as of quantize().
    """
    num_rows, num_cols = matrix.shape
    mean = np.diagonal(hessian).mean()
    if not mean > 0:
        return quantize(matrix)  # no input was ever non-zero
    damped = hessian.astype(np.float64) + DAMPING * float(mean) * np.eye(num_cols)
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)  # upper
    importance = np.diagonal(damped).astype(np.float32)
    rest = widen(matrix, np.float32).copy()
    codes = np.zeros((num_rows, num_cols), np.uint8)
    all_scales = []
    for first in range(0, num_cols, GROUP_COLS):
        end = min(first + GROUP_COLS, num_cols)
        group = rest[:, first:end]
        scales = best_scales(group, importance[first:end])
        inverses = inverse(scales)
        errors = np.zeros_like(group)
        for column in range(end - first):
            k = first + column
            code = codes_of(group[:, column] * inverses)
            codes[:, k] = code
            error = (group[:, column] - _VALUES[code] * scales) / factor[k, k]
            group[:, column:] -= error[:, None] * factor[k, k:end]
            errors[:, column] = error
        rest[:, end:] -= errors @ factor[first:end, end:]
        all_scales.append(scales)
    return codes, convert(np.stack(all_scales, -1), 'BF16')


def pack(codes: Array) -> Array:
    """uint8 [rows, cols] -> two codes a byte [rows, ceil(cols / 2)], the even column low."""
    padded = np.pad(codes, ((0, 0), (0, codes.shape[-1] % 2)))
    packed: Array = padded[:, ::2] | padded[:, 1::2] << 4
    return packed
