"""Writes the table of rope_test.cc: rotary frequencies of transformers' own code, in fp32.

    python3 tests/models/make_rope_golden.py     # PyPI's transformers and torch, once
"""

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

PAIRS = 8
LONG_ROPE = {'short_factor': [1.0 + 0.1 * i for i in range(PAIRS)],
             'long_factor': [2.0 + i for i in range(PAIRS)],
             'original_max_position_embeddings': 4096}
CASES = [
    ('linear', {'factor': 4.0}),
    ('llama3', {'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
                'original_max_position_embeddings': 8192}),
    ('yarn', {'factor': 4.0, 'original_max_position_embeddings': 4096}),
    ('yarn', {'factor': 8.0, 'original_max_position_embeddings': 4096, 'beta_fast': 16,
              'beta_slow': 2, 'mscale': 0.7, 'mscale_all_dim': 1.3}),
    ('yarn', {'factor': 3.0, 'original_max_position_embeddings': 2048, 'attention_factor': 1.25,
              'truncate': False}),
    ('longrope', LONG_ROPE),
    ('longrope', LONG_ROPE | {'factor': 32.0}),
    ('longrope', LONG_ROPE | {'attention_factor': 1.5}),
]


def main():
    for name, fields in CASES:
        config = transformers.LlamaConfig(
            hidden_size=64, num_attention_heads=4, max_position_embeddings=16384,
            rope_parameters={'rope_type': name, 'rope_theta': 10000.0, **fields})
        for length in (4096, 4097):
            frequencies, factor = ROPE_INIT_FUNCTIONS[name](config, torch.device('cpu'), length)
            print(name, length, factor, ', '.join(f'{x:.9g}' for x in frequencies.tolist()))


if __name__ == '__main__':
    main()
