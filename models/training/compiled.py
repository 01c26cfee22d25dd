"""`fused`: functions of tensors, compiled where these are on a GPU."""

import functools

import torch

MAX_VARIANTS = 64  # of shapes and gradients of one function


def fused(function):
    """`function`, compiled (by PyTorch 2) where its first argument is on a GPU.

    On a GPU each operation on hidden states is a pass over memory, and they take most of a step.
    """
    compiled = []

    @functools.wraps(function)
    def call(x, *others):
        if not x.is_cuda or not hasattr(torch, 'compile'):
            return function(x, *others)
        if not compiled:
            torch._dynamo.config.recompile_limit = MAX_VARIANTS
            compiled.append(torch.compile(function, dynamic=False))
        return compiled[0](x, *others)

    return call
