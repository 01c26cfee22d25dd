"""int4 weights: the rule of kernels/quantize.h, and error feedback (GPTQ).

An element is a code in [0, 15] and stands for VALUES[code] times the bf16 scale of its row and
group of 32 columns.

Source of the error feedback: Frantar et al., GPTQ, arXiv 2210.17323.
"""

import torch

GROUP_COLS = 32
VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
ENDS = (-127.0, 113.0)
STRETCHES = (1.0, 1 / 0.75, 1 / 0.8, 1 / 0.85, 1 / 0.9, 1 / 0.95, 1 / 1.05, 1 / 1.1)
# Added to the diagonal of a Hessian, in units of its mean.
DAMPING = 0.01

_FLOAT = torch.finfo(torch.float32)


def _values() -> torch.Tensor:
    return torch.tensor(VALUES, dtype=torch.float32)


def _nearest_codes() -> torch.Tensor:
    """By x + 127 for integers x in [-127, 127]; the smaller code of a tie."""
    steps = torch.arange(-127, 128, dtype=torch.float32)
    return (steps[:, None] - _values()).abs().argmin(-1)


def codes_of(steps: torch.Tensor) -> torch.Tensor:
    """Values in units of their scale -> codes, int64."""
    return _nearest_codes()[(steps.round().clamp(-127, 127) + 127).long()]


def inverse(scales: torch.Tensor) -> torch.Tensor:
    """1 / scale; 0 of a scale of 0."""
    return torch.where(scales == 0, torch.zeros(()), 1 / scales)


def best_scales(groups: torch.Tensor, importance: torch.Tensor | None = None) -> torch.Tensor:
    """[..., n] fp32 -> bf16 values in fp32 [...], as QuantizeInt4Group chooses them.

    importance: [n] weights of the squared errors; None: all 1.
    """
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]
    best_error = torch.full(largest.shape, torch.inf)
    best = torch.zeros_like(largest)
    values = _values()
    for end in ENDS:
        for stretch in STRETCHES:
            divisor = torch.tensor(end) * torch.tensor(stretch)
            scales = (largest / divisor).to(torch.bfloat16).float()
            usable = (scales.abs() >= _FLOAT.tiny) & torch.isfinite(127 * scales)
            steps = groups * inverse(scales)[..., None]
            rests = values[codes_of(torch.where(usable[..., None], steps, torch.zeros(())))] - steps
            error = torch.zeros_like(largest)
            for column in range(groups.shape[-1]):  # in order: rounding decides ties
                square = rests[..., column] * rests[..., column]
                error = error + (square if importance is None else square * importance[column])
            relative = scales / largest
            error = error * (relative * relative)
            better = usable & (error < best_error)
            best_error = torch.where(better, error, best_error)
            best = torch.where(better, scales, best)
    return best


def quantize(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds to nearest. [rows, cols] -> (codes uint8 [rows, cols], bf16 scales [rows, groups])."""
    num_rows, num_cols = matrix.shape
    values = torch.nn.functional.pad(matrix.float(), (0, -num_cols % GROUP_COLS))
    groups = values.reshape(num_rows, -1, GROUP_COLS)
    scales = best_scales(groups)
    codes = codes_of(groups * inverse(scales)[..., None])
    return (codes.reshape(num_rows, -1)[:, :num_cols].to(torch.uint8),
            scales.to(torch.bfloat16))


def quantize_with_feedback(matrix: torch.Tensor,
                           hessian: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """GPTQ: columns are rounded in order, and later columns take up the error of earlier ones.

    hessian: [cols, cols], the sum of x x^T over calibration inputs x. Result: as of quantize().
    """
    num_rows, num_cols = matrix.shape
    mean = hessian.diagonal().mean()
    if not mean > 0:
        return quantize(matrix)  # no input was ever non-zero
    damped = hessian.double() + DAMPING * mean.double() * torch.eye(num_cols, dtype=torch.double)
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor = torch.linalg.cholesky(covariance).t().contiguous().float()  # upper
    importance = damped.diagonal().float()
    rest = matrix.float().clone()
    codes = torch.zeros(num_rows, num_cols, dtype=torch.uint8)
    all_scales = []
    for first in range(0, num_cols, GROUP_COLS):
        end = min(first + GROUP_COLS, num_cols)
        group = rest[:, first:end]
        scales = best_scales(group, importance[first:end])
        inverses = inverse(scales)
        errors = torch.zeros_like(group)
        for column in range(end - first):
            k = first + column
            code = codes_of(group[:, column] * inverses)
            codes[:, k] = code.to(torch.uint8)
            error = (group[:, column] - _values()[code] * scales) / factor[k, k]
            group[:, column:] -= error[:, None] * factor[k, k:end]
            errors[:, column] = error
        rest[:, end:] -= errors @ factor[first:end, end:]
        all_scales.append(scales)
    return codes, torch.stack(all_scales, -1).to(torch.bfloat16)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [rows, cols] -> two codes a byte [rows, ceil(cols / 2)], the even column low."""
    padded = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return padded[:, ::2] | padded[:, 1::2] << 4
