"""The Triton kernels of attention_gpu.py, run by Triton's interpreter on a CPU, in float32.

Runs itself in an environment with PyTorch and Triton from PyPI: Debian 12 has no Triton.
"""

import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / 'tests/python'), str(ROOT / 'models/training')]
if __name__ == '__main__':
    import environments
    environments.run_in('import-torch', OMP_NUM_THREADS='1', TRITON_INTERPRET='1')

import torch  # noqa: E402

import attention  # noqa: E402
import attention_gpu  # noqa: E402
from attention_test import outputs_and_gradients, relative_error  # noqa: E402

LENGTHS = (1, 3, 4, 130, 300)  # rows 1 to 3 subtract no offset; 128 is the padding
POWERS = (1, 2.5, 3, 15)


def draw(length, heads=2, kv_heads=2, dim=16):
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, count, length, dim, generator=generator, dtype=torch.float64)
            for count in (heads, kv_heads, kv_heads)]


def grouped(p):
    """attention() of grouped heads, in float64."""
    def function(q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(group, 1) for each in (k, v))
        return attention.attention(q, k, v, 'lssar', p)
    return function


class AttentionGpuTest(unittest.TestCase):

    def compare(self, tensors, p, limits, dtype):
        attention_gpu.SCORES = attention_gpu.VALUES = dtype
        want = outputs_and_gradients(grouped(p), tensors)
        got = outputs_and_gradients(lambda *t: attention_gpu.fused_attention(*t, p),
                                    [tensor.float() for tensor in tensors])
        for name, each, expected, limit in zip(('out', 'dq', 'dk', 'dv'), got, want, limits):
            self.assertTrue(torch.isfinite(each).all(), (name, p))
            # A first row's weight is 1 whatever its score, so that short gradients are rounding.
            small = 1e-6 * max(1, float(want[3].norm()))
            self.assertLess(float((each - expected).norm()), limit * float(expected.norm()) + small,
                            f'{name}, length {tensors[0].shape[2]}, p {p}')

    def test_outputs_and_gradients(self):
        for length in LENGTHS:
            for p in POWERS:
                self.compare(draw(length), p, [2e-6, 2e-4, 2e-4, 2e-6], torch.float32)

    def test_heads_that_share_keys_and_values(self):
        self.compare(draw(200, heads=6), 15, [2e-6, 2e-5, 2e-5, 2e-6], torch.float32)

    def test_rows_without_a_peak(self):
        for zero in range(2):
            tensors = draw(140)
            tensors[zero].zero_()
            want = outputs_and_gradients(grouped(15), tensors)
            got = outputs_and_gradients(lambda *t: attention_gpu.fused_attention(*t, 15),
                                        [tensor.float() for tensor in tensors])
            for at in (0, 3):
                self.assertLess(relative_error(got[at], want[at]), 1e-5)
            self.assertEqual(float(got[1 + zero].abs().max()), 0)

    def test_scores_of_float16(self):
        self.compare(draw(300), 15, [2e-3, 2e-2, 2e-2, 2e-3], torch.float16)

    def test_views_of_projections_are_not_copied(self):
        q, k, v = draw(128)
        laid_out = [each.float().transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v)]
        out = attention_gpu.fused_attention(*laid_out, 15)
        self.assertTrue(out.transpose(1, 2).is_contiguous())


if __name__ == '__main__':
    unittest.main()
