"""state.pt of train.py -> a checkpoint directory.

    export.py --state state.pt --data DIR --out DIR [--dtype F16]

Writes model.safetensors, config.json, tokenizer.model, tokenizer_config.json (chat template) and
golden.safetensors: a few token rows with the float64 logits of the exported (rounded) weights.
"""

import argparse
import json
import shutil

import numpy as np
import sentencepiece
import torch

import checkpoint_files
import model

TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|user|>' if m['role'] == 'user' else '<|assistant|>' }}{{ m['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GOLDEN_ROWS = ((0, 64), (5000, 200), (20000, 1100))  # (first token in val.bin, tokens)


def golden_tensors(net, val, bos_id):
    """tokens_i, and at the positions rows_i the float64 logits_i of a row."""
    net, tensors = net.double(), {}
    for i, (start, n) in enumerate(GOLDEN_ROWS):
        text = val[start : start + n - 1].astype(np.int64)
        row = torch.from_numpy(np.concatenate([[bos_id], text]))
        with torch.no_grad():
            logits = net(row[None], fused=False)[0]
        keep = torch.tensor(sorted({0, 1, 2, 3, n // 2, n - 2, n - 1}))
        tensors[f'tokens_{i}'] = row.int()
        tensors[f'rows_{i}'] = keep.int()
        tensors[f'logits_{i}'] = logits[keep].float()
    return tensors


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--state', required=True)
    parser.add_argument('--data', required=True, help='tokenizer.model and val.bin')
    parser.add_argument('--out', required=True)
    parser.add_argument('--dtype', default='F16', choices=('F32', 'F16', 'BF16'))
    model.add_arguments(parser, n_ctx=1024)
    return parser.parse_args()


def main():
    args = arguments()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=f'{args.data}/tokenizer.model')
    net = model.GPT(model.config_of(args, tokenizer.vocab_size()))
    net.load_state_dict(torch.load(args.state, map_location='cpu')['net'])
    for weight in net.parameters():
        weight.data = weight.data.to(checkpoint_files.TYPES[args.dtype]).float()
    eos_id = tokenizer.eos_id()
    checkpoint_files.write_model(net, args.out, args.dtype, bos_token_id=eos_id,
                                 eos_token_id=eos_id)
    shutil.copy(f'{args.data}/tokenizer.model', f'{args.out}/tokenizer.model')
    tokenizer_config = {
        'tokenizer_class': 'sentencepiece',
        'add_bos_token': True,
        'bos_token': tokenizer.id_to_piece(eos_id),
        'eos_token': tokenizer.id_to_piece(eos_id),
        'chat_template': TEMPLATE,
        'stop_strings': ['<|user|>'],
    }
    with open(f'{args.out}/tokenizer_config.json', 'w') as file:
        json.dump(tokenizer_config, file, indent=2)
    val = np.memmap(f'{args.data}/val.bin', dtype=np.uint16, mode='r')
    golden = golden_tensors(net, val, eos_id)
    checkpoint_files.write_safetensors(golden, f'{args.out}/golden.safetensors')


if __name__ == '__main__':
    main()
