"""Times the model of models/training with a K/V cache on the work of model_bench, eager and with
torch.compile. Rewrites one JSON array after each figure, so that a compiler that takes too long
loses only its own figure. A peer that fails is listed with the reason.

    peers_model.py CHECKPOINT OUT [--device cuda] [--seconds 2] [--prompt 1024]
                   [--depths 0,16384] [--batch 64] [--batch-depth 1024]
"""

import argparse
import json
import pathlib
import sys
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE if (HERE / 'model.py').exists() else HERE.parents[1] /
                       'models/training'))

import cached_model  # noqa: E402
import checkpoint_files  # noqa: E402

STEPS = 64  # decoded in a row before the sequences start again


class Clock:
    """Times rounds of a call, device work included, until its time is up."""

    def __init__(self, device, seconds):
        self.device, self.seconds = device, seconds

    def now(self):
        if self.device.type == 'cuda':
            torch.cuda.synchronize()
        return time.perf_counter()

    def best(self, call):
        """Seconds of the fastest of at least three calls, after a warm-up call."""
        call()
        best, begin = float('inf'), self.now()
        rounds = 0
        while rounds < 3 or self.now() - begin < self.seconds:
            start = self.now()
            call()
            best, rounds = min(best, self.now() - start), rounds + 1
        return best


def decode_row(net, clock, batch, depth, compiled):
    """Greedy decoding; the next token stays on the device."""
    cached = cached_model.CachedModel(net, batch, depth + STEPS)
    for cache in cached.caches:  # unit vectors, as after a prompt
        cache.k.normal_()
        cache.k /= cache.k.norm(dim=-1, keepdim=True)
        cache.v.normal_()
    device = clock.device
    step = torch.compile(cached.step, mode='reduce-overhead') if compiled else cached.step
    first = torch.arange(batch, device=device) % net.c.vocab_size
    positions = torch.arange(depth, depth + STEPS, device=device)

    def run():
        tokens = first
        for i in range(STEPS):
            tokens = step(tokens, positions[i:i + 1]).argmax(-1).clone()

    return {'work': 'decode', 'batch': batch, 'depth': depth,
            'tokens_per_s': batch * STEPS / clock.best(run)}


def prefill_row(net, clock, prompt, compiled):
    cached = cached_model.CachedModel(net, 1, prompt)
    prefill = torch.compile(cached.prefill) if compiled else cached.prefill
    tokens = (torch.arange(prompt, device=clock.device) * 7919 % net.c.vocab_size)[None]
    return {'work': 'prefill', 'batch': 1, 'depth': prompt,
            'tokens_per_s': prompt / clock.best(lambda: prefill(tokens))}


def measure(net, clock, options):
    """Rows of eager and compiled, work by work."""
    works = [lambda compiled, d=depth: decode_row(net, clock, 1, d, compiled)
             for depth in options.depths]
    works.append(lambda compiled: prefill_row(net, clock, options.prompt, compiled))
    works.append(lambda compiled: decode_row(net, clock, options.batch, options.batch_depth,
                                             compiled))
    for work in works:
        for peer, compiled in (('torch eager', False), ('torch compile', True)):
            try:
                yield {'peer': peer, **work(compiled)}
            except Exception as error:  # a failing peer must not lose the other figures
                yield {'peer': peer, 'left_out': f'{type(error).__name__}: {error}'[:300]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('checkpoint')
    parser.add_argument('out', type=pathlib.Path)
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--seconds', type=float, default=2)
    parser.add_argument('--prompt', type=int, default=1024)
    parser.add_argument('--depths', type=lambda s: [int(d) for d in s.split(',')],
                        default=[0, 16384])
    parser.add_argument('--batch', type=int, default=64)
    parser.add_argument('--batch-depth', type=int, default=1024)
    options = parser.parse_args()
    device = torch.device(options.device)
    net = checkpoint_files.read_model(options.checkpoint).to(device)
    if device.type == 'cuda':
        net = net.half()
    rows = []
    with torch.no_grad():
        for row in measure(net.eval(), Clock(device, options.seconds), options):
            rows.append(row)
            options.out.write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
    main()
