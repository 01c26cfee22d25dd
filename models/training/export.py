"""Exports train.py's state.pt as a checkpoint directory.

    export.py --data DATA --run RUN --out DIR [--twin RUN] [--dtype F16]

Writes model.safetensors, config.json, tokenizer.model, tokenizer_config.json (chat template),
held_out.bin (the ids of the loss), golden.safetensors (a few token rows with the float64 logits of
the exported, rounded weights) and, if evaluate.py has measured RUN, README.md with length.svg.
"""

import argparse
import json
import os
import shutil

import numpy as np
import torch

import card
import checkpoint_files
import evaluate

TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|user|>' if m['role'] == 'user' else '<|assistant|>' }}{{ m['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# SentencePiece's name of the id that starts and ends a document.
EOS = '</s>'
GOLDEN_ROWS = ((0.0, 64), (0.25, 200), (0.5, 1100))  # (where in held_out.bin, tokens)


def golden_tensors(net, val, bos_id):
    """The tensors tokens_i, rows_i (positions) and logits_i (float64 arithmetic) of each row."""
    net, tensors = net.double(), {}
    for i, (place, n) in enumerate(GOLDEN_ROWS):
        start, n = int(place * len(val)), min(n, len(val) // 3)
        text = val[start : start + n - 1].astype(np.int64)
        row = torch.from_numpy(np.concatenate([[bos_id], text]))
        with torch.no_grad():
            logits = net(row[None])[0]
        positions = torch.tensor(sorted({0, 1, 2, 3, n // 2, n - 2, n - 1}))
        tensors[f'tokens_{i}'] = row.int()
        tensors[f'rows_{i}'] = positions.int()
        tensors[f'logits_{i}'] = logits[positions].float()
    return tensors


def run(args, directory, source, out):
    """Returns the net with its weights rounded to the exported dtype."""
    net, state = evaluate.load_net(f'{source}/state.pt')
    net = net.cpu()
    with open(f'{directory}/prepare.json') as file:
        prepared = json.load(file)
    for weight in net.parameters():
        weight.data = weight.data.to(checkpoint_files.TYPES[args.dtype]).float()
    eos_id = prepared['eos_id']
    checkpoint_files.write_model(net, out, args.dtype, bos_token_id=eos_id, eos_token_id=eos_id)
    shutil.copy(f'{directory}/tokenizer.model', f'{out}/tokenizer.model')
    shutil.copy(f'{directory}/val.bin', f'{out}/held_out.bin')
    tokenizer_config = {
        'tokenizer_class': 'sentencepiece',
        'add_bos_token': True,
        'bos_token': EOS,
        'eos_token': EOS,
        'chat_template': TEMPLATE,
        'stop_strings': ['<|user|>'],
    }
    with open(f'{out}/tokenizer_config.json', 'w') as file:
        json.dump(tokenizer_config, file, indent=2)
    val = np.fromfile(f'{out}/held_out.bin', dtype=np.uint16)
    golden = golden_tensors(net, val, eos_id)
    checkpoint_files.write_safetensors(golden, f'{out}/golden.safetensors')
    if os.path.exists(f'{source}/passkey.json'):
        card.write(out, source, args.twin, prepared, state)
    print(f'{out}: {os.path.getsize(f"{out}/model.safetensors") / 1e6:.1f} MB of weights')
    return net.float()


def add_arguments(parser):
    parser.add_argument('--dtype', default='F16', choices=('F32', 'F16', 'BF16'))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data', required=True)
    parser.add_argument('--run', required=True, help='directory of state.pt')
    parser.add_argument('--out', required=True)
    parser.add_argument('--twin', help='directory of another run, which the card compares')
    add_arguments(parser)
    args = parser.parse_args()
    run(args, args.data, args.run, args.out)


if __name__ == '__main__':
    main()
