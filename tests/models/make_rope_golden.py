"""Writes the table of rope_test.cc: rotary frequencies of transformers' own code, in fp32.

    python3 tests/models/make_rope_golden.py     # PyPI's transformers and torch, once
"""

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

PAIRS = 8
CASES = {
    'linear': {'factor': 4.0},
    'llama3': {'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
               'original_max_position_embeddings': 8192},
    'yarn': {'factor': 4.0, 'original_max_position_embeddings': 4096},
    'longrope': {'short_factor': [1.0 + 0.1 * i for i in range(PAIRS)],
                 'long_factor': [2.0 + i for i in range(PAIRS)],
                 'original_max_position_embeddings': 4096},
}


def main():
    for name, fields in CASES.items():
        config = transformers.LlamaConfig(
            hidden_size=64, num_attention_heads=4, max_position_embeddings=16384,
            rope_parameters={'rope_type': name, 'rope_theta': 10000.0, **fields})
        for length in (4096, 4097):
            frequencies, factor = ROPE_INIT_FUNCTIONS[name](config, torch.device('cpu'), length)
            print(name, length, factor, ', '.join(f'{x:.9g}' for x in frequencies.tolist()))


if __name__ == '__main__':
    main()
