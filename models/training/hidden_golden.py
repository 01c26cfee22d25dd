"""Writes golden hidden states of a checkpoint, computed by PyTorch in float64, and those of a
regression head with random weights:

    /usr/bin/python3 models/training/hidden_golden.py CHECKPOINT OUT.safetensors

tests/models/embedding_test.cc compares them with the C++ forward pass. Tensors: tokens [rows,
length], hidden [rows, length, hidden_size] after the final norm, head.weight [3, hidden_size],
head.bias [3], outputs [rows, length, 3].
"""

import sys

import torch

import checkpoint_files


def main():
    directory, out = sys.argv[1:]
    net = checkpoint_files.read_model(directory).double()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(300, net.c.vocab_size, (2, 20), generator=generator)
    weight = torch.randn(3, net.c.n_embd, generator=generator)
    bias = torch.randn(3, generator=generator)
    with torch.no_grad():
        hidden = net.hidden(tokens)
        outputs = hidden @ weight.double().T + bias.double()
    checkpoint_files.write_safetensors({
        'tokens': tokens.int(), 'hidden': hidden.float(), 'head.weight': weight,
        'head.bias': bias, 'outputs': outputs.float()}, out)


if __name__ == '__main__':
    main()
