"""Writes tests/models/hf: tiny models with random weights as transformers saves them, and logits.

    python3 tests/models/make_hf_golden.py [NAME...]    # PyPI's transformers 5 and torch; once
    python3 tests/models/make_hf_golden.py --hidden     # hidden_states.safetensors, of the models

golden.safetensors has one row of tokens, logits of six of its positions, computed in float64 (the
rotary angles in float32, as transformers has them).

tests/models/hidden_states.safetensors has for each of HIDDEN at the same positions, in float64 too:
NAME.hidden [num_hidden_layers + 2, positions, hidden_size]: output_hidden_states, and before its
last entry, which transformers takes after the final norm, the output of the last block;
NAME.vector [hidden_size], and NAME.steered [positions, vocab_size]: the logits where a hook adds
STEERING_SCALE times the vector to the output of block STEERED_LAYER from STEERED_POSITION on.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent / 'hf'
LENGTH = 96
POSITIONS = [0, 1, 31, 63, 64, 95]
SMALL = {'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 2,
         'num_attention_heads': 4, 'num_key_value_heads': 2, 'vocab_size': 61,
         'max_position_embeddings': 64, 'bos_token_id': 1, 'eos_token_id': 2}


def rope(kind, **fields):
    return {'rope_parameters': {'rope_type': kind, 'rope_theta': 10000.0, **fields}}


LLAMA = 'LlamaConfig'
CASES = {
    'llama': (LLAMA, {'tie_word_embeddings': True}),
    'llama_bias': (LLAMA, {'attention_bias': True, 'mlp_bias': True}),
    'llama_linear': (LLAMA, rope('linear', factor=4.0)),
    'llama_dynamic': (LLAMA, rope('dynamic', factor=2.0)),
    'llama_llama3': (LLAMA, rope('llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=32)),
    'llama_yarn': (LLAMA, rope('yarn', factor=4.0, original_max_position_embeddings=32)),
    'llama_longrope': (LLAMA, rope('longrope', original_max_position_embeddings=32,
                                   short_factor=[1.0, 1.1, 1.2, 1.5],
                                   long_factor=[1.0, 2.0, 3.0, 5.0], factor=2.0)),
    'mistral': ('MistralConfig', {'sliding_window': None, 'head_dim': 16}),
    'qwen2': ('Qwen2Config', {}),
    'qwen3': ('Qwen3Config', {'head_dim': 16}),
    'mistral_window': ('MistralConfig', {'sliding_window': 24, 'head_dim': 16}),
    'qwen2_window': ('Qwen2Config', {'use_sliding_window': True, 'sliding_window': 20,
                                     'max_window_layers': 1}),
    'smollm3': ('SmolLM3Config', {'no_rope_layers': [1, 0], 'pad_token_id': 0}),
    'smollm3_window': ('SmolLM3Config', {'no_rope_layer_interval': 2, 'use_sliding_window': True,
                                         'sliding_window': 33, 'pad_token_id': 0}),
    'gpt2': ('GPT2Config', {'n_positions': 96}),
    'gpt2_untied': ('GPT2Config', {'n_positions': 96, 'tie_word_embeddings': False,
                                   'activation_function': 'relu', 'n_inner': 40}),
    'bloom': ('BloomConfig', {'n_head': 4}),
    'bloom_heads': ('BloomConfig', {'n_head': 6, 'hidden_size': 24}),
    'gpt_neox': ('GPTNeoXConfig', {'rotary_pct': 0.5}),
    'gpt_neox_serial': ('GPTNeoXConfig',
                        {'use_parallel_residual': False, 'hidden_act': 'gelu_new'}),
}


# Families with other names.
RENAMED = {
    'GPT2Config': {'hidden_size': 'n_embd', 'num_hidden_layers': 'n_layer',
                   'num_attention_heads': 'n_head', 'vocab_size': 'vocab_size',
                   'bos_token_id': 'bos_token_id', 'eos_token_id': 'eos_token_id'},
    'BloomConfig': {'hidden_size': 'hidden_size', 'num_hidden_layers': 'n_layer',
                    'vocab_size': 'vocab_size', 'bos_token_id': 'bos_token_id',
                    'eos_token_id': 'eos_token_id'},
}


def write(name, kind, fields):
    small = {key: value for key, value in SMALL.items()
             if key != 'num_key_value_heads' or kind != 'GPTNeoXConfig'}
    if kind in RENAMED:
        small = {theirs: SMALL[ours] for ours, theirs in RENAMED[kind].items()}
    config = getattr(transformers, kind)(**{**small, **fields})
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation='eager')
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 +
                            (1 if parameter.ndim == 1 and not parameter.sum() == 0 else 0))
    directory = ROOT / name
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    tokens = torch.randint(0, SMALL['vocab_size'], (1, LENGTH), dtype=torch.int64)
    model = model.double().eval()
    with torch.no_grad():
        logits = model(tokens).logits[0, POSITIONS]
    save_file({'tokens_0': tokens[0].to(torch.int32),
               'rows_0': torch.tensor(POSITIONS, dtype=torch.int32),
               'logits_0': logits.float().contiguous()}, directory / 'golden.safetensors')
    print(name, sum(path.stat().st_size for path in directory.iterdir()),
          json.loads((directory / 'config.json').read_text()).get('rope_parameters'))


HIDDEN = ['llama', 'gpt2', 'bloom']
STEERED_LAYER, STEERED_POSITION, STEERING_SCALE = 1, 40, 1.5


def blocks_of(model):
    return model.model.layers if hasattr(model, 'model') else model.transformer.h


def hidden_states(name):
    golden = load_file(ROOT / name / 'golden.safetensors')
    model = transformers.AutoModelForCausalLM.from_pretrained(
        ROOT / name, attn_implementation='eager').double().eval()
    tokens = golden['tokens_0'][None].long()
    last_block = []

    def keep(_, __, output):
        last_block.append(output[0] if isinstance(output, tuple) else output)

    vector = torch.randn(model.config.hidden_size, dtype=torch.float64)

    def steer(_, __, output):
        states = (output[0] if isinstance(output, tuple) else output).clone()
        states[:, STEERED_POSITION:] += STEERING_SCALE * vector
        return (states, *output[1:]) if isinstance(output, tuple) else states

    blocks = blocks_of(model)
    with torch.no_grad():
        kept = blocks[-1].register_forward_hook(keep)
        states = model(tokens, output_hidden_states=True).hidden_states
        kept.remove()
        blocks[STEERED_LAYER - 1].register_forward_hook(steer)
        steered = model(tokens).logits[0, POSITIONS]
    rows = torch.stack([*states[:-1], last_block[0], states[-1]]).reshape(
        len(states) + 1, LENGTH, -1)[:, POSITIONS]
    return {f'{name}.hidden': rows, f'{name}.vector': vector, f'{name}.steered': steered}


def write_hidden():
    torch.manual_seed(1)
    tensors = {key: value.float().contiguous()
               for name in HIDDEN for key, value in hidden_states(name).items()}
    save_file(tensors, ROOT.parent / 'hidden_states.safetensors')


if __name__ == '__main__':
    if sys.argv[1:] == ['--hidden']:
        write_hidden()
        sys.exit()
    for each, (kind, fields) in CASES.items():
        if not sys.argv[1:] or each in sys.argv[1:]:
            write(each, kind, fields)
