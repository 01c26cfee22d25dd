"""Golden vectors from the float64 reference, in the format of tests/golden.

    golden.py --out DIR [--seed 1]
    build/release/bin/golden_check DIR --backend cpu

Writes to DIR index.json, a NAME.safetensors for each attention case (q, k, v and the float64 out)
and a folder for each model (config.json, model.safetensors, expected.safetensors).
"""

import argparse
import json
import os

import torch

import attention
import checkpoint_files
import model

ATTENTION_CASES = (
    # name, kind, p, heads, rows, dim
    ('rows_1', 'lssar', 15, 1, 1, 16),
    ('rows_5', 'lssar', 15, 2, 5, 8),
    ('lssar_d64', 'lssar', 15, 2, 150, 64),
    ('lssar_d96', 'lssar', 15, 1, 90, 96),
    ('lssar_p3', 'lssar', 3, 1, 70, 64),
    ('lssar_p1_5', 'lssar', 1.5, 1, 70, 64),
    ('lssa_d32', 'lssa', 15, 3, 66, 32),
    ('softmax_d48', 'softmax', 15, 1, 66, 48),
)
MODEL_CASES = (
    # name, kind, p, layers, heads, hidden size, tokens
    ('model_lssar', 'lssar', 15, 3, 3, 96, 120),
    ('model_softmax', 'softmax', 15, 2, 2, 64, 70),
)
VOCAB = 257
TRAINED_LENGTH = 64


def attention_case(case, directory):
    name, kind, p, heads, rows, dim = case
    q, k, v = (torch.randn(heads, rows, dim) for _ in range(3))
    out = attention.attention(q.double(), k.double(), v.double(), kind, p).float()
    checkpoint_files.write_safetensors({'q': q, 'k': k, 'v': v, 'out': out},
                                       f'{directory}/{name}.safetensors')
    return {'name': name, 'first': 0, 'heads': heads, 'rows': rows, 'keys': rows, 'dim': dim,
            'kind': kind, 'p': p}


def model_case(case, directory):
    name, kind, p, layers, heads, hidden_size, num_tokens = case
    net = model.GPT(model.Config(VOCAB, layers, heads, hidden_size, TRAINED_LENGTH, kind, p))
    for weight in net.parameters():  # far from zero, so that every part changes the logits
        torch.nn.init.normal_(weight, mean=1.0 if weight.dim() == 1 else 0.0, std=0.1)
    folder = f'{directory}/{name}'
    checkpoint_files.write_model(net, folder, 'F32')
    tokens = torch.randint(0, VOCAB, (num_tokens,))
    with torch.no_grad():
        logits = net.double()(tokens[None])[0].float()
    checkpoint_files.write_safetensors({'tokens': tokens.int(), 'logits': logits},
                                       f'{folder}/expected.safetensors')
    return {'name': name, 'model': True, 'tokens': num_tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', required=True)
    parser.add_argument('--seed', type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    os.makedirs(args.out, exist_ok=True)
    index = [attention_case(case, args.out) for case in ATTENTION_CASES]
    index += [model_case(case, args.out) for case in MODEL_CASES]
    with open(f'{args.out}/index.json', 'w') as file:
        json.dump(index, file, indent=1)


if __name__ == '__main__':
    main()
