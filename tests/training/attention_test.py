"""Compares the faster forms of attention with the plain one in float64: outputs, gradients."""

import itertools
import pathlib
import sys
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'models/training'))
import attention  # noqa: E402

# Rows 1 to 3 subtract no offset; row 4 is the first that does.
LENGTHS = (1, 3, 4, 5, 130)
POWERS = (0.5, 1, 2.5, 3, 15)


def draw(length, dim=16, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, length, dim, generator=generator, dtype=torch.float64).to(dtype)
            for _ in range(3)]


def outputs_and_gradients(function, tensors):
    """[out, and the gradients of a fixed sum of it at each tensor], in float64."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = function(*leaves)
    weights = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).view_as(out)
    (out.double() * weights).sum().backward()
    return [out.detach().double(), *(leaf.grad.double() for leaf in leaves)]


def relative_error(got, want):
    return ((got - want).norm() / want.norm().clamp_min(1e-30)).item()


def float32_limits(plain, tensors, want):
    """20 times what a change of the inputs by float32's last bit changes, in float64.

    Where p < 1, the gradient of x^p has no bound near x = 0, and that bit alone may change a
    gradient by 5e-4; where p is 15, by 7e-7. How much of it arises depends on the CPU's kernels.
    """
    generator = torch.Generator().manual_seed(1)
    limits = [1e-6] * len(want)
    for _ in range(8):
        changed = [tensor * (1 + 2**-23 * (2 * torch.rand(tensor.shape, generator=generator,
                                                          dtype=tensor.dtype) - 1))
                   for tensor in tensors]
        limits = [max(limit, 20 * relative_error(got, each)) for limit, got, each in
                  zip(limits, outputs_and_gradients(plain, changed), want)]
    return limits


class AttentionTest(unittest.TestCase):

    def assert_close(self, got, want, limits, case):
        for name, each, expected, limit in zip(('out', 'dq', 'dk', 'dv'), got, want, limits):
            self.assertTrue(torch.isfinite(each).all(), case)
            self.assertLess(relative_error(each, expected), limit, f'{name}, {case}')

    def compare(self, function, dtype, **changes):
        """Every power and length; `function` has attention()'s arguments."""
        for length, p in itertools.product(LENGTHS, POWERS):
            def plain(q, k, v, power=p):
                return attention.attention(q, k, v, 'lssar', power)

            tensors = draw(length)
            for tensor, value in changes.items():
                tensors['qkv'.index(tensor)][:, :value] = 0
            want = outputs_and_gradients(plain, tensors)
            got = outputs_and_gradients(lambda *t: function(*t, 'lssar', p),
                                        [tensor.to(dtype) for tensor in tensors])
            limits = (float32_limits(plain, tensors, want) if dtype == torch.float32
                      else [1e-9] * len(want))
            self.assert_close(got, want, limits, f'length {length}, p {p}, zeros {changes}')

    def test_gradients_of_the_plain_form(self):
        # The other kinds have no power.
        kinds = [('lssar', p) for p in POWERS] + [('lssa', 1), ('softmax', 1)]
        self.assertEqual({kind for kind, _ in kinds}, set(attention.KINDS))
        for (kind, p), length in itertools.product(kinds, (1, 3, 4, 9)):
            tensors = [tensor[:1].requires_grad_() for tensor in draw(length, dim=4, seed=3)]
            self.assertTrue(torch.autograd.gradcheck(
                lambda q, k, v: attention.attention(q, k, v, kind, p), tensors))

    def test_weights_sum_to_one_and_are_causal(self):
        for kind in attention.KINDS:
            q, k, _ = draw(40)
            qk = attention.unit(q) @ attention.unit(k).mT
            weights = attention.attention_weights(qk, 0, 16, kind, 15)
            self.assertLess((weights.sum(-1) - 1).abs().max().item(), 1e-12)
            self.assertEqual(weights.triu(1).abs().max().item(), 0)

    def test_rows_without_a_peak_use_stage_1(self):
        q, k, v = draw(9)
        for zero in (q, k):
            original = zero.clone()
            zero.zero_()
            out = attention.attention(q, k, v, 'lssar', 15)
            means = v.cumsum(-2) / torch.arange(1, 10)[:, None]
            self.assertLess((out - means).abs().max().item(), 1e-12)
            zero.copy_(original)

    def test_blocks_match_the_plain_form(self):
        def in_blocks(q, k, v, kind, p):
            return attention.attention_in_blocks(q, k, v, kind, p, block_rows=32)

        for zeros in ({}, {'q': 200}, {'k': 200}, {'q': 5}, {'k': 2}):
            self.compare(in_blocks, torch.float64, **zeros)
        for kind in ('lssa', 'softmax'):
            tensors = draw(130)
            want = outputs_and_gradients(lambda *t: attention.attention(*t, kind), tensors)
            got = outputs_and_gradients(lambda *t: in_blocks(*t, kind, 15), tensors)
            self.assert_close(got, want, [1e-9] * 4, kind)

    def test_blocks_in_float32(self):
        self.compare(attention.attention_in_blocks, torch.float32)

    @unittest.skipUnless(attention.has_fused(), 'attention_cpu.so was not built')
    def test_fused_matches_the_plain_form(self):
        def fused(q, k, v, kind, p):
            self.assertEqual(kind, 'lssar')
            return attention.fused_attention(q, k, v, p)

        for zeros in ({}, {'q': 200}, {'k': 200}, {'q': 5}):
            self.compare(fused, torch.float32, **zeros)


if __name__ == '__main__':
    unittest.main()
