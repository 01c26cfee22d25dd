"""Models of other programs, with LSSAR attention: what `lssar import` is tested with.

Each class follows the named program's code, so it is independent of the importer and the server.
The attention is models/training/attention.py's transcription of Algorithm 1, and nanoGPT's and
llm.c's learned positions are replaced by rotary ones, as LSSAR models have them.

    foreign_models.py --shape nanogpt|modded --corpus TEXT --tokenizer tokenizer.model --out FILE.pt
        [--seconds 60]

trains one for that much CPU time and saves it as that program does.
"""

import argparse
import dataclasses
import math
import struct
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import recipe  # noqa: F401
import attention

P = 15


@dataclasses.dataclass
class Shape:
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64
    block_size: int = 64
    vocab_size: int = 160
    bias: bool = True
    n_kv_head: int = 2  # Llama only


def lssar(q, k, v):
    """q, k, v: [B, heads, T, d]."""
    return attention.attention(q, k, v, 'lssar', P)


def angles(length, dim, dtype):
    positions = torch.arange(length, dtype=torch.float64)[:, None]
    table = positions * 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return table.cos().to(dtype), table.sin().to(dtype)


def rotate_half(x, dims):
    """Llama's and GPT-NeoX's rotation of the first `dims` elements."""
    cos, sin = angles(x.shape[-2], dims, x.dtype)
    turned, rest = x[..., :dims], x[..., dims:]
    a, b = turned.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


# ---- nanoGPT, model.py

class NanoNorm(nn.Module):
    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class NanoAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)
        mask = torch.tril(torch.ones(c.block_size, c.block_size))
        self.register_buffer('bias', mask.view(1, 1, c.block_size, c.block_size))

    def forward(self, x):
        B, T, C = x.size()
        d = C // self.c.n_head
        q, k, v = (t.view(B, T, self.c.n_head, d).transpose(1, 2)
                   for t in self.c_attn(x).split(C, dim=2))
        y = lssar(rotate_half(q, d), rotate_half(k, d), v)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class NanoMLP(nn.Module):
    def __init__(self, c, approximate):
        super().__init__()
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)
        self.gelu = nn.GELU(approximate=approximate)

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


class NanoBlock(nn.Module):
    def __init__(self, c, approximate):
        super().__init__()
        self.ln_1 = NanoNorm(c.n_embd, c.bias)
        self.attn = NanoAttention(c)
        self.ln_2 = NanoNorm(c.n_embd, c.bias)
        self.mlp = NanoMLP(c, approximate)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """nanoGPT with rotary positions. `approximate`: 'none' since May 2023, before it 'tanh'."""

    def __init__(self, c, approximate='none'):
        super().__init__()
        self.c = c
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(c.vocab_size, c.n_embd),
            h=nn.ModuleList([NanoBlock(c, approximate) for _ in range(c.n_layer)]),
            ln_f=NanoNorm(c.n_embd, c.bias)))
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, tokens):
        x = self.transformer.wte(tokens)
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))

    def checkpoint(self):
        """As train.py saves a compiled model under DDP."""
        names = ('n_layer', 'n_head', 'n_embd', 'block_size', 'bias', 'vocab_size')
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {'model': {'_orig_mod.module.' + name: each
                          for name, each in self.state_dict().items()},
                'optimizer': optimizer.state_dict(),
                'model_args': {**{name: getattr(self.c, name) for name in names}, 'dropout': 0.0},
                'iter_num': 5, 'best_val_loss': torch.tensor(3.25), 'config': {'lr': 1e-3}}


# ---- modded-nanogpt, train_gpt2.py of November 2024

def rms_norm(x):
    eps = torch.finfo(x.dtype).eps if x.dtype != torch.float64 else torch.finfo(torch.float32).eps
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def rotate_back(x):
    """modded-nanogpt's apply_rotary_emb: by the negative angle."""
    cos, sin = angles(x.shape[-2], x.shape[-1], x.dtype)
    x1, x2 = x.chunk(2, -1)
    return torch.cat((x1 * cos + x2 * sin, x1 * -sin + x2 * cos), -1)


class ModdedAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.c_q, self.c_k, self.c_v, self.c_proj = (
            nn.Linear(c.n_embd, c.n_embd, bias=False) for _ in range(4))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (w(x).view(B, T, self.c.n_head, -1).transpose(1, 2)
                   for w in (self.c_q, self.c_k, self.c_v))
        y = lssar(rotate_back(rms_norm(q)), rotate_back(rms_norm(k)), v)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class ModdedMLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=False)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=False)

    def forward(self, x):
        return self.c_proj(F.relu(self.c_fc(x)).square())


class ModdedBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attn, self.mlp = ModdedAttention(c), ModdedMLP(c)

    def forward(self, x):
        x = x + self.attn(rms_norm(x))
        return x + self.mlp(rms_norm(x))


class ModdedGPT(nn.Module):
    """RMSNorm without weight, QK-norm, ReLU^2, no biases, untied head, soft-capped logits."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(c.vocab_size, c.n_embd),
            h=nn.ModuleList([ModdedBlock(c) for _ in range(c.n_layer)])))
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)

    def forward(self, tokens):
        x = rms_norm(self.transformer.wte(tokens))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(rms_norm(x))
        return 30 * torch.tanh(logits / 30)

    def checkpoint(self):
        return {'step': 5, 'code': '# the source of the training script\n',
                'model': {'_orig_mod.' + name: each for name, each in self.state_dict().items()},
                'optimizers': [torch.optim.AdamW(self.parameters(), lr=1e-3).state_dict()]}


# ---- transformers, modeling_llama.py and modeling_gpt_neox.py

class LlamaNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt())


class LlamaAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.d = c, c.n_embd // c.n_head
        self.q_proj = nn.Linear(c.n_embd, c.n_head * self.d, bias=False)
        self.k_proj = nn.Linear(c.n_embd, c.n_kv_head * self.d, bias=False)
        self.v_proj = nn.Linear(c.n_embd, c.n_kv_head * self.d, bias=False)
        self.o_proj = nn.Linear(c.n_head * self.d, c.n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (w(x).view(B, T, -1, self.d).transpose(1, 2)
                   for w in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate_half(q, self.d), rotate_half(k, self.d)
        groups = self.c.n_head // self.c.n_kv_head
        y = lssar(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))


class LlamaMLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.up_proj = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.down_proj = nn.Linear(3 * c.n_embd, c.n_embd, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(c), LlamaMLP(c)
        self.input_layernorm = LlamaNorm(c.n_embd)
        self.post_attention_layernorm = LlamaNorm(c.n_embd)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.model = nn.ModuleDict(dict(
            embed_tokens=nn.Embedding(c.vocab_size, c.n_embd),
            layers=nn.ModuleList([LlamaLayer(c) for _ in range(c.n_layer)]),
            norm=LlamaNorm(c.n_embd)))
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))

    def config(self):
        c = self.c
        return {'model_type': 'llama', 'architectures': ['LlamaForCausalLM'],
                'vocab_size': c.vocab_size, 'hidden_size': c.n_embd,
                'intermediate_size': 3 * c.n_embd, 'num_hidden_layers': c.n_layer,
                'num_attention_heads': c.n_head, 'num_key_value_heads': c.n_kv_head,
                'max_position_embeddings': c.block_size, 'rms_norm_eps': 1e-6,
                'rope_theta': 10000.0, 'hidden_act': 'silu', 'tie_word_embeddings': False,
                'torch_dtype': 'float32', 'rope_scaling': None}


class NeoxAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.query_key_value = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.dense = nn.Linear(c.n_embd, c.n_embd)

    def forward(self, x):
        B, T, C = x.shape
        d = C // self.c.n_head
        joined = self.query_key_value(x).view(B, T, self.c.n_head, 3 * d).transpose(1, 2)
        q, k, v = joined.chunk(3, -1)
        y = lssar(rotate_half(q, d // 2), rotate_half(k, d // 2), v)
        return self.dense(y.transpose(1, 2).reshape(B, T, C))


class NeoxMLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(c.n_embd, 4 * c.n_embd)
        self.dense_4h_to_h = nn.Linear(4 * c.n_embd, c.n_embd)

    def forward(self, x):
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)))


class NeoxLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(c.n_embd)
        self.post_attention_layernorm = nn.LayerNorm(c.n_embd)
        self.attention, self.mlp = NeoxAttention(c), NeoxMLP(c)

    def forward(self, x):
        attended = self.attention(self.input_layernorm(x))
        return x + attended + self.mlp(self.post_attention_layernorm(x))


class Neox(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.gpt_neox = nn.ModuleDict(dict(
            embed_in=nn.Embedding(c.vocab_size, c.n_embd),
            layers=nn.ModuleList([NeoxLayer(c) for _ in range(c.n_layer)]),
            final_layer_norm=nn.LayerNorm(c.n_embd)))
        self.embed_out = nn.Linear(c.n_embd, c.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.gpt_neox.embed_in(tokens)
        for layer in self.gpt_neox.layers:
            x = layer(x)
        return self.embed_out(self.gpt_neox.final_layer_norm(x))

    def config(self):
        c = self.c
        return {'model_type': 'gpt_neox', 'vocab_size': c.vocab_size, 'hidden_size': c.n_embd,
                'intermediate_size': 4 * c.n_embd, 'num_hidden_layers': c.n_layer,
                'num_attention_heads': c.n_head, 'max_position_embeddings': c.block_size,
                'layer_norm_eps': 1e-5, 'rotary_pct': 0.5, 'rotary_emb_base': 10000,
                'hidden_act': 'gelu', 'use_parallel_residual': True,
                'tie_word_embeddings': False}


# ---- llm.c, train_gpt2.py

def write_llmc(net, path, dtype=torch.float32, wpe=0.0, padding=8, magic=20240326, version=None):
    """A NanoGPT (tanh GELU) as write_model of llm.c's train_gpt2.py writes it."""
    c = net.c
    version = version or {torch.float32: 3, torch.bfloat16: 5}[dtype]
    header = [magic, version, c.block_size, c.vocab_size, c.n_layer, c.n_head, c.n_embd,
              c.vocab_size + padding]
    state = net.transformer.state_dict()
    wte = F.pad(state['wte.weight'], (0, 0, 0, padding), value=7.0)
    order = ('ln_1.weight', 'ln_1.bias', 'attn.c_attn.weight', 'attn.c_attn.bias',
             'attn.c_proj.weight', 'attn.c_proj.bias', 'ln_2.weight', 'ln_2.bias',
             'mlp.c_fc.weight', 'mlp.c_fc.bias', 'mlp.c_proj.weight', 'mlp.c_proj.bias')
    tensors = [wte, torch.full((c.block_size, c.n_embd), wpe)]
    tensors += [state[f'h.{i}.{name}'] for name in order for i in range(c.n_layer)]
    tensors += [state['ln_f.weight'], state['ln_f.bias']]
    with open(path, 'wb') as file:
        file.write(struct.pack('<256i', *header, *[0] * (256 - len(header))))
        for tensor in tensors:
            tensor = tensor.detach().to(dtype)
            bits = tensor.view(torch.int16) if dtype == torch.bfloat16 else tensor
            file.write(bits.numpy().tobytes())


def randomize(net, seed=1):
    """Weights far from zero and one, so that every part changes the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in net.parameters():
            size = 0.2 if weight.dim() == 1 else 1.2 / math.sqrt(weight.shape[-1])
            weight.copy_((1.0 if weight.dim() == 1 else 0.0)
                         + size * torch.randn(weight.shape, generator=generator))
    return net


SHAPES = {'nanogpt': NanoGPT, 'modded': ModdedGPT}


def train(net, ids, seconds, steps=1 << 30, rows=8):
    """AdamW on random rows until CPU time or steps are over. -> loss of the last step, steps."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.95))
    length, start_s, step = net.c.block_size, time.process_time(), 0
    generator = torch.Generator().manual_seed(1)
    while step < steps and time.process_time() - start_s < seconds:
        starts = torch.randint(len(ids) - length - 1, (rows,), generator=generator)
        batch = torch.stack([ids[start:start + length + 1] for start in starts.tolist()])
        loss = F.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    return loss.item(), step


def main():
    import sentencepiece

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--shape', choices=SHAPES, required=True)
    parser.add_argument('--corpus', required=True, help='a text file')
    parser.add_argument('--tokenizer', required=True, help='a tokenizer.model')
    parser.add_argument('--out', required=True)
    parser.add_argument('--seconds', type=float, default=60, help='of CPU')
    args = parser.parse_args()
    torch.manual_seed(1)
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=args.tokenizer)
    with open(args.corpus) as file:
        ids = torch.tensor(tokenizer.encode(file.read()))
    net = SHAPES[args.shape](Shape(3, 4, 128, 128, tokenizer.vocab_size()))
    for name, weight in net.named_parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.02 if 'c_proj' not in name else 0.01)
    loss, steps = train(net, ids, args.seconds)
    torch.save(net.checkpoint(), args.out)
    print(f'{args.out}: {steps} steps, loss {loss:.3f}')


if __name__ == '__main__':
    main()
