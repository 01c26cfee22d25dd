"""The share of LSSAR attention weights that count: a kernel can skip the V rows of the others.

    sparsity.py --model DIR [--tokens 8192] [--rows 256]

Over the last rows of one held-out text, all layers and heads: the share of weights that are not
zero, and the share whose (x / x_m)^p is above 2^-32, below which float32 sums do not change.
"""

import argparse

import torch

import attention
import evaluate

NEGLIGIBLE = 2.0**-32


def shares(net, tokens, num_rows):
    """(share of weights that are not zero, share above NEGLIGIBLE of the row's peak)."""
    layers, original = [], attention.fastest_attention

    def measured(q, k, v, kind, p):
        qk = attention.unit(q)[..., -num_rows:, :] @ attention.unit(k).mT
        weights = attention.attention_weights(qk, q.shape[-2] - num_rows, q.shape[-1], kind, p)
        relative = weights / weights.amax(-1, keepdim=True)
        seen = weights.shape[:-2].numel() * sum(
            range(q.shape[-2] - num_rows + 1, q.shape[-2] + 1))
        layers.append([(weights > 0).sum().item() / seen,
                     (relative > NEGLIGIBLE).sum().item() / seen])
        return original(q, k, v, kind, p)

    attention.fastest_attention = measured
    try:
        with torch.no_grad():
            net.hidden(tokens[None])
    finally:
        attention.fastest_attention = original
    return [sum(layer) / len(layers) for layer in zip(*layers)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--model', required=True)
    parser.add_argument('--tokens', type=int, default=8192)
    parser.add_argument('--rows', type=int, default=256)
    args = parser.parse_args()
    net, val, _ = evaluate.load_checkpoint(args.model)
    row = evaluate.evaluation_rows(val, 1, args.tokens - 1)[0].to(evaluate.device_at_hand())
    not_zero, counts = shares(net, row, args.rows)
    print(f'{args.tokens} tokens, the last {args.rows} rows: {not_zero:.0%} of the weights are not '
          f'zero, {counts:.0%} count')


if __name__ == '__main__':
    main()
