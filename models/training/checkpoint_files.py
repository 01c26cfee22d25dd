"""Reads and writes checkpoint directories: safetensors and config.json (fields: ../README.md)."""

import json
import os
import struct

import torch

import model

TYPES = {
    'F32': torch.float32,
    'F16': torch.float16,
    'BF16': torch.bfloat16,
    'I32': torch.int32,
}
PARTS = {
    'c_attn': 'attn.c_attn',
    'c_proj': 'attn.c_proj',
    'c_fc': 'mlp.c_fc',
    'mlp_proj': 'mlp.c_proj',
}


def write_safetensors(tensors, path, metadata=None):
    """Writes {name: tensor}, each in its own dtype, which must be one of TYPES."""
    names = {dtype: name for name, dtype in TYPES.items()}
    header, blobs, offset = {'__metadata__': metadata or {}}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        blob = bits.numpy().tobytes()
        header[name] = {
            'dtype': names[tensor.dtype],
            'shape': list(tensor.shape),
            'data_offsets': [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path + '.tmp', 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for blob in blobs:
            file.write(blob)
    os.replace(path + '.tmp', path)


def read_safetensors(path):
    """{name: tensor} of a file that write_safetensors wrote."""
    with open(path, 'rb') as file:
        size, = struct.unpack('<Q', file.read(8))
        header, blobs = json.loads(file.read(size)), bytearray(file.read())
    header.pop('__metadata__', None)
    tensors = {}
    for name, entry in header.items():
        first, end = entry['data_offsets']
        flat = torch.frombuffer(blobs[first:end], dtype=TYPES[entry['dtype']])
        tensors[name] = flat.view(entry['shape'])
    return tensors


def gpt2_name(name):
    """GPT-2's name of a parameter of model.GPT."""
    words = name.split('.')
    if words[0] == 'h':
        words[2] = PARTS.get(words[2], words[2])
    return 'transformer.' + '.'.join(words)


def read_model(directory):
    """The model.GPT of a directory that write_model wrote, in float32."""
    with open(f'{directory}/config.json') as file:
        config = json.load(file)
    net = model.GPT(model.Config(
        config['vocab_size'], config['n_layer'], config['n_head'], config['n_embd'],
        config['n_positions'], config['attention']['kind'], config['attention'].get('p', 15),
        config['rope_theta'], config['layer_norm_epsilon']))
    tensors = read_safetensors(f'{directory}/model.safetensors')
    net.load_state_dict({name: tensors[gpt2_name(name)].float() for name in net.state_dict()})
    return net


def write_model(net, directory, dtype, head=None, **more_config):
    """model.safetensors and config.json of a model.GPT. `head`: a torch.nn.Linear over the final
    hidden states, the checkpoint's regression head, in float32."""
    c = net.c
    attention = {'kind': c.attention}
    if c.attention == 'lssar':
        attention['p'] = int(c.p) if c.p == int(c.p) else c.p
    config = {
        'architectures': ['LssarGPT'],
        'model_type': 'lssar_gpt',
        'vocab_size': c.vocab_size,
        'n_layer': c.n_layer,
        'n_head': c.n_head,
        'n_embd': c.n_embd,
        'n_inner': 4 * c.n_embd,
        'n_positions': c.n_ctx,
        'activation_function': 'gelu_new',
        'layer_norm_epsilon': c.layer_norm_eps,
        'tie_word_embeddings': True,
        'rope_theta': c.rope_theta,
        'rope_scaling': None,
        'attention': attention,
        **more_config,
    }
    os.makedirs(directory, exist_ok=True)
    weights = {gpt2_name(name): weight.to(TYPES[dtype])
               for name, weight in net.state_dict().items()}
    if head is not None:
        weights |= {'head.weight': head.weight.float(), 'head.bias': head.bias.float()}
    write_safetensors(weights, f'{directory}/model.safetensors', {'format': 'pt'})
    with open(f'{directory}/config.json', 'w') as file:
        json.dump(config, file, indent=2)
