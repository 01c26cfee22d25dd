"""Loss by length and passkey accuracy by length of a state.pt of train.py.

    evaluate.py --state state.pt --data DIR [--lengths 1024,2048,...] [--trials 50,30,...]
"""

import argparse

import numpy as np
import sentencepiece
import torch

import model
import train


def counts(text):
    return [int(word) for word in text.split(',')]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--state', required=True)
    parser.add_argument('--data', required=True, help='tokenizer.model and val.bin')
    parser.add_argument('--lengths', type=counts, default='1024,2048,4096,8192,16384')
    parser.add_argument('--trials', type=counts, default='50,30,20,10,6')
    model.add_arguments(parser, n_ctx=1024)
    args = parser.parse_args()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=f'{args.data}/tokenizer.model')
    net = model.GPT(model.config_of(args, tokenizer.vocab_size()))
    net.load_state_dict(torch.load(args.state, map_location='cpu')['net'])
    net.eval()
    val = np.memmap(f'{args.data}/val.bin', dtype=np.uint16, mode='r')
    device = torch.device('cpu')
    for length, trials in zip(args.lengths, args.trials):
        loss = train.evaluate(net, val, device, [length])[length]
        hit = train.probe(net, tokenizer, device, length - 20, trials=trials)
        print(f'length {length}: loss {loss:.4f}  passkey {hit:.2f} ({trials} trials)', flush=True)


if __name__ == '__main__':
    main()
