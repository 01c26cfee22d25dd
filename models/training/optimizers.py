"""Muon for the blocks' matrices, AdamW for the rest."""

import torch


def orthogonalise(x):
    """Five Newton-Schulz steps from x [n, rows, cols] towards the nearest orthogonal matrices."""
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz (Jordan et al. 2024), batched by weight shape."""

    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    def directions(self, group):
        """{shape: [(weight, momentum applied to its gradient)]}."""
        by_shape = {}
        for w in group['params']:
            if w.grad is not None:
                m = self.state[w].setdefault('m', torch.zeros_like(w))
                m.lerp_(w.grad, 1 - group['momentum'])
                by_shape.setdefault(w.shape, []).append((w, w.grad.lerp(m, group['momentum'])))
        return by_shape

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for shape, pairs in self.directions(group).items():
                x = torch.stack([direction for _, direction in pairs])
                x = orthogonalise(x.bfloat16() if x.is_cuda else x).to(x.dtype)
                alpha = -group['lr'] * max(1, shape[0] / shape[1]) ** 0.5
                for (w, _), update in zip(pairs, x):
                    w.mul_(1 - group['lr'] * group['weight_decay']).add_(update, alpha=alpha)


def optimizers_of(net, lr, muon_lr):
    """[AdamW, Muon]. The blocks are net.h, or those of a part of the net."""
    named = list(net.named_parameters())
    inner = [w for name, w in named if w.dim() == 2 and '.h.' in f'.{name}']
    other = [w for name, w in named if w.dim() < 2 or '.h.' not in f'.{name}']
    return [torch.optim.AdamW(other, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
            Muon(inner, lr=muon_lr)]
