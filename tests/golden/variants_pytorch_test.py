"""Every variant of the architecture against PyTorch in fp32: log-probabilities within 1e-4.

    /usr/bin/python3 -B tests/golden/variants_pytorch_test.py build/ci/bin/golden_check

The models are torch.nn modules written as their users write them. Weights are stored as F32.
"""

import json
import math
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

import variant_cases

LIMIT = 1e-4

ACTIVATIONS = {
    'gelu_new': lambda x: F.gelu(x, approximate='tanh'),
    'gelu_pytorch_tanh': lambda x: F.gelu(x, approximate='tanh'),
    'gelu': F.gelu,
    'relu': F.relu,
    'relu2': lambda x: F.relu(x).square(),
    'silu': F.silu,
}


class Norm(torch.nn.Module):
    def __init__(self, size, kind, epsilon, weight, bias):
        super().__init__()
        self.size, self.kind, self.epsilon = size, kind, epsilon
        self.weight = torch.nn.Parameter(torch.ones(size)) if weight else None
        self.bias = torch.nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x):
        if self.kind == 'layer_norm':
            return F.layer_norm(x, (self.size,), self.weight, self.bias, self.epsilon)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)
        y = y if self.weight is None else y * self.weight
        return y if self.bias is None else y + self.bias


def lssar(q, k, v, p):
    length, dim = q.shape[-2:]
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    n = torch.arange(1, length + 1)[:, None]
    seen = torch.ones(length, length).tril()
    a = F.softplus(math.log(dim) * n.log() * (q @ k.transpose(-1, -2)), threshold=40) * seen
    a = a / a.sum(-1, keepdim=True)
    x = F.relu(n * a - (n > 3).float()) * seen
    y = (x / x.amax(-1, keepdim=True)) ** p
    return y / y.sum(-1, keepdim=True) @ v


class Attention(torch.nn.Module):
    def __init__(self, config, spec):
        super().__init__()
        self.config, self.spec = config, spec
        self.heads, self.dim = config['n_head'], config['head_dim']
        self.kv_heads = config.get('num_key_value_heads', self.heads)
        bias = config.get('attention_bias', True)
        self.c_attn = torch.nn.Linear(config['n_embd'],
                                      (self.heads + 2 * self.kv_heads) * self.dim, bias)
        self.c_proj = torch.nn.Linear(self.heads * self.dim, config['n_embd'],
                                      config.get('attention_out_bias', bias))
        self.qk = config.get('qk_norm')
        if self.qk:
            args = (self.dim, self.qk['kind'],
                    self.qk.get('epsilon', config['layer_norm_epsilon']), self.qk['weight'],
                    self.qk.get('bias', False))
            self.q_norm, self.k_norm = Norm(*args), Norm(*args)

    def rotate(self, x):
        length, r = x.shape[-2], int(self.dim * self.config.get('partial_rotary_factor', 1.0))
        base, trained = self.config['rope_theta'], self.config['n_positions']
        scaling = self.config.get('rope_scaling')
        if scaling and length > trained:
            f = scaling['factor']
            base *= (f * length / trained - (f - 1)) ** (r / (r - 2))
        frequencies = 1.0 / base ** (torch.arange(0, r, 2).double() / r)
        angles = torch.outer(torch.arange(length).double(), frequencies)
        turn = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
        head, rest = x[..., :r], x[..., r:]
        if self.config.get('rope_layout') == 'interleaved':
            pairs = torch.view_as_complex(head.unflatten(-1, (-1, 2)).contiguous()) * turn
            turned = torch.view_as_real(pairs).flatten(-2)
        else:
            pairs = torch.complex(*head.chunk(2, -1)) * turn
            turned = torch.cat((pairs.real, pairs.imag), -1)
        return torch.cat((turned, rest), -1)

    def forward(self, x):
        length = x.shape[0]
        sizes = [self.heads * self.dim] + 2 * [self.kv_heads * self.dim]
        q, k, v = (t.view(length, -1, self.dim).transpose(0, 1)
                   for t in self.c_attn(x).split(sizes, -1))
        if self.qk and self.qk['position'] == 'before_rotary':
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rotate(q), self.rotate(k)
        if self.qk and self.qk['position'] == 'after_rotary':
            q, k = self.q_norm(q), self.k_norm(k)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 0) for t in (k, v))
        if self.spec['kind'] == 'softmax':
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.dim)
            mask = torch.ones(length, length).tril() == 0
            y = scores.masked_fill(mask, float('-inf')).softmax(-1) @ v
        else:
            y = lssar(q, k, v, self.spec['p'])
        return self.c_proj(y.transpose(0, 1).reshape(length, -1))


class Mlp(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner, bias = config['n_embd'], config['n_inner'], config.get('mlp_bias', True)
        self.activation = ACTIVATIONS[config['activation_function']]
        self.is_gated = config.get('mlp_kind') == 'gated'
        if self.is_gated:
            self.c_gate = torch.nn.Linear(width, inner, bias)
        self.c_fc = torch.nn.Linear(width, inner, bias)
        self.c_proj = torch.nn.Linear(inner, width, config.get('mlp_out_bias', bias))

    def forward(self, x):
        if self.is_gated:
            return self.c_proj(self.activation(self.c_gate(x)) * self.c_fc(x))
        return self.c_proj(self.activation(self.c_fc(x)))


class Block(torch.nn.Module):
    def __init__(self, config, spec, make_norm):
        super().__init__()
        self.config = config
        self.is_sandwich = config.get('norm_position') == 'sandwich'
        self.ln_1, self.ln_2 = make_norm(), make_norm()
        if self.is_sandwich:
            self.ln_1_post, self.ln_2_post = make_norm(), make_norm()
        self.attn, self.mlp = Attention(config, spec), Mlp(config)

    def forward(self, x):
        c = self.config
        attended = self.attn(self.ln_1(x))
        if self.is_sandwich:
            attended = self.ln_1_post(attended)
        after = x + c.get('attention_residual_scale', 1.0) * attended
        y = self.mlp(self.ln_2(x if c.get('parallel_residual') else after))
        if self.is_sandwich:
            y = self.ln_2_post(y)
        return after + c.get('mlp_residual_scale', 1.0) * y


class Gpt(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        is_rms = config.get('normalization') == 'rms_norm'

        def make_norm():
            return Norm(config['n_embd'], 'rms_norm' if is_rms else 'layer_norm',
                        config['layer_norm_epsilon'], config.get('norm_weight', True),
                        config.get('norm_bias', not is_rms))

        specs = config['attention']
        specs = specs if isinstance(specs, list) else [specs] * config['n_layer']
        self.wte = torch.nn.Embedding(config['vocab_size'], config['n_embd'])
        if config.get('embedding_norm'):
            self.ln_emb = make_norm()
        self.h = torch.nn.ModuleList(Block(config, spec, make_norm) for spec in specs)
        self.ln_f = make_norm()
        self.is_tied = config.get('tie_word_embeddings', True)
        if not self.is_tied:
            self.lm_head = torch.nn.Linear(config['n_embd'], config['vocab_size'], False)

    def forward(self, tokens):
        x = self.wte(tokens)
        if self.config.get('embedding_norm'):
            x = self.ln_emb(x)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        logits = F.linear(x, self.wte.weight) if self.is_tied else self.lm_head(x)
        cap = self.config.get('final_logit_softcapping')
        return cap * torch.tanh(logits / cap) if cap else logits


def write_models(directory):
    index = []
    for seed, name in enumerate(variant_cases.CASES):
        config = variant_cases.config_of(name)
        tensors = variant_cases.random_tensors(config, seed, np.float32)
        tokens = variant_cases.random_tokens(seed)
        net = Gpt(config)
        net.load_state_dict({key: torch.from_numpy(value) for key, value in tensors.items()})
        with torch.no_grad():
            logits = net(torch.from_numpy(tokens)).numpy()
        variant_cases.write_case(f'{directory}/{name}', config, tensors, tokens, logits)
        index.append({'name': name, 'model': True, 'tokens': len(tokens)})
    with open(f'{directory}/index.json', 'w') as file:
        json.dump(index, file)


def main():
    golden_check = sys.argv[1]
    torch.set_num_threads(1)
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        write_models(directory)
        for backend in ('reference', 'cpu'):
            run = subprocess.run([golden_check, directory, '--backend', backend, '--threads',
                                  '0' if backend == 'reference' else '2', '--json'],
                                 stdout=subprocess.PIPE, check=False)
            report = json.loads(run.stdout)
            assert len(report['cases']) == len(variant_cases.CASES), report
            for case in report['cases']:
                error = case.get('worst_logprob_error')
                passed = error is not None and error <= LIMIT
                failures += not passed
                print(f'{backend:10} {case["case"]:24} {error} {"" if passed else "FAILED "}'
                      f'{case.get("message", "")}')
    if failures:
        sys.exit(f'{failures} models differ from PyTorch by more than {LIMIT}')


if __name__ == '__main__':
    main()
