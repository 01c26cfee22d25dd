"""`lssar import` without PyTorch: GGUF files and Hugging Face directories.

Runs itself in an environment with the packages of the [import] extra from PyPI. The models that
sources are compared with are plain_models.py; GGUF files are written by PyPI's gguf.
"""

import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import warnings

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
if __name__ == '__main__':
    import environments
    environments.run_in('import', OPENBLAS_NUM_THREADS='1')

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import tokenizers  # noqa: E402

import plain_models  # noqa: E402
from lssar.checkpoints import (arrays, chat_roles, command, convert,  # noqa: E402
                               delta, directory, export, forward, gguf_file, gguf_tokenizer,
                               golden, names, quantize, served, settings, sources, tensor_file,
                               tokenizer_files, verify)
from lssar.checkpoints import errors as errors_of_files  # noqa: E402
from lssar.checkpoints.errors import CheckpointError  # noqa: E402

SERVER = os.environ['LSSAR_SERVER']
CONFIG = {'model_type': 'llama', 'vocab_size': 160, 'hidden_size': 64, 'intermediate_size': 96,
          'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
          'max_position_embeddings': 64, 'rms_norm_eps': 1e-5, 'rope_theta': 50000.0,
          'hidden_act': 'silu', 'tie_word_embeddings': False}
NEOX = {'model_type': 'gpt_neox', 'vocab_size': 160, 'hidden_size': 64, 'intermediate_size': 256,
        'num_hidden_layers': 2, 'num_attention_heads': 4, 'max_position_embeddings': 64,
        'layer_norm_eps': 1e-5, 'rotary_pct': 0.5, 'rotary_emb_base': 10000, 'hidden_act': 'gelu',
        'use_parallel_residual': True, 'tie_word_embeddings': False}
TOKENS = np.random.default_rng(3).integers(160, size=60).tolist()
# gguf's names of Hugging Face's tensors.
GGUF_NAMES = {
    'self_attn.q_proj': 'attn_q', 'self_attn.k_proj': 'attn_k', 'self_attn.v_proj': 'attn_v',
    'self_attn.o_proj': 'attn_output', 'mlp.gate_proj': 'ffn_gate', 'mlp.up_proj': 'ffn_up',
    'mlp.down_proj': 'ffn_down', 'input_layernorm': 'attn_norm',
    'post_attention_layernorm': 'ffn_norm', 'self_attn.q_norm': 'attn_q_norm',
    'self_attn.k_norm': 'attn_k_norm', 'attention.query_key_value': 'attn_qkv',
    'attention.dense': 'attn_output', 'mlp.dense_h_to_4h': 'ffn_up',
    'mlp.dense_4h_to_h': 'ffn_down'}
WHOLE = {'model.embed_tokens': 'token_embd', 'model.norm': 'output_norm', 'lm_head': 'output',
         'gpt_neox.embed_in': 'token_embd', 'gpt_neox.final_layer_norm': 'output_norm',
         'embed_out': 'output'}


def gguf_name(name):
    stem, _, last = name.rpartition('.')
    if stem in WHOLE:
        return f'{WHOLE[stem]}.{last}'
    layer, part = stem.removeprefix('model.').removeprefix('gpt_neox.').removeprefix(
        'layers.').split('.', 1)
    return f'blk.{layer}.{GGUF_NAMES[part]}.{last}'


def permute(weights, num_heads):
    """LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py."""
    return (weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, *weights.shape[1:])
            .swapaxes(1, 2).reshape(weights.shape))


def write_gguf(path, config, weights, arch=None, types=None, fields=None, extra=None,
               has_head_count_kv=True):
    """A file as convert_hf_to_gguf.py writes it. types: {end of a name: quantization type}."""
    arch = arch or {'mistral': 'llama', 'gpt_neox': 'gptneox'}.get(config['model_type'],
                                                                    config['model_type'])
    writer = gguf.GGUFWriter(path, arch)
    heads, hidden = config['num_attention_heads'], config['hidden_size']
    kv = config.get('num_key_value_heads', heads)
    writer.add_name('a model')
    writer.add_block_count(config['num_hidden_layers'])
    writer.add_context_length(config['max_position_embeddings'])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config['intermediate_size'])
    writer.add_head_count(heads)
    if arch == 'gptneox':
        writer.add_layer_norm_eps(config['layer_norm_eps'])
        writer.add_parallel_residual(True)
        writer.add_rope_dimension_count(int(hidden // heads * config['rotary_pct']))
    else:
        if has_head_count_kv:
            writer.add_head_count_kv(kv)
        writer.add_layer_norm_rms_eps(config['rms_norm_eps'])
        writer.add_rope_freq_base(config['rope_theta'])
    if 'head_dim' in config:
        writer.add_key_length(config['head_dim'])
        writer.add_value_length(config['head_dim'])
    for key, value in (fields or {}).items():
        {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32,
         float: writer.add_float32, list: writer.add_array}[type(value)](key, value)
    for name, tensor in weights.items():
        if arch == 'llama' and '.q_proj' in name:
            tensor = permute(tensor, heads)
        if arch == 'llama' and '.k_proj' in name:
            tensor = permute(tensor, kv)
        if 'query_key_value' in name:  # GPTNeoXModel.modify_tensors: q, k and v of all heads
            rest = tensor.shape[1:]
            tensor = tensor.reshape(heads, 3, -1, *rest).swapaxes(0, 1).reshape(-1, *rest)
        kind = next((kind for end, kind in (types or {}).items() if name.endswith(end)), None)
        if kind is None:
            writer.add_tensor(gguf_name(name), tensor)
        elif isinstance(kind, np.dtype):
            writer.add_tensor(gguf_name(name), tensor.astype(kind))
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class Folder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def path(self, name):
        return str(self.folder / name)

    def run_import(self, source, given=None, **options):
        out = self.path(f'out-{self._testMethodName}')
        return out, convert.run(convert.Options(str(source), out, given or {}, overwrite=True,
                                                **options))

    def refused(self, pattern, function, *arguments, **options):
        with self.assertRaisesRegex(CheckpointError, pattern) as raised:
            function(*arguments, **options)
        return str(raised.exception)

    def write_hugging_face(self, name, config, weights, **files):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / 'config.json').write_text(json.dumps(config))
        tensor_file.write(str(folder / 'model.safetensors'), [
            tensor_file.output_of(each, tensor) for each, tensor in weights.items()], {})
        for each, content in files.items():
            (folder / each.replace('__', '.')).write_text(content)
        return str(folder)

    def check(self, out, logits, bound=1e-4, kv_cache_dtype='fp32'):
        """The server's log-probabilities against those of `logits`."""
        expected = log_softmax(logits)[np.arange(len(TOKENS) - 1), TOKENS[1:]]
        with served.running(SERVER, out, '--kv-cache-dtype', kv_cache_dtype, '--max-model-len',
                            '64', '--threads', '1') as client:
            [score] = client.score(TOKENS[:1], [TOKENS[1:]], per_token=True)
        found = np.array([token.logprob for token in score.tokens])
        self.assertLess(np.abs(found - expected).max(), bound)


class ModelsTest(Folder):
    """Each family from both formats: log-probabilities within 1e-4 of the plain model."""

    def check_both(self, config, weights, model):
        logits = model(config, weights, TOKENS)
        source = self.write_hugging_face(config['model_type'], config, weights)
        out, report = self.run_import(source)
        self.assertEqual(report.config['attention'], {'kind': 'softmax'})
        self.assertIn('format', report.origins['attention'])
        self.check(out, logits)
        source = write_gguf(self.path(config['model_type'] + '.gguf'), config, weights)
        again, report = self.run_import(source)
        self.check(again, logits)
        return report

    def test_llama(self):
        self.check_both(CONFIG, plain_models.llama_weights(CONFIG), plain_models.llama)

    def test_projections_of_several_types(self):
        weights = plain_models.llama_weights(CONFIG)
        logits = plain_models.llama(CONFIG, weights, TOKENS)
        mixed = {name: arrays.convert(tensor.astype(np.float32), 'BF16')
                 if '.q_proj.' in name or '.k_proj.' in name else tensor
                 for name, tensor in weights.items()}
        out, _ = self.run_import(self.write_hugging_face('mixed', CONFIG, mixed))
        self.check(out, logits, bound=0.05)

    def test_heads_of_zeros_and_of_the_embedding(self):
        weights = plain_models.llama_weights(CONFIG)
        for head in (np.zeros_like(weights['model.embed_tokens.weight']),
                     weights['model.embed_tokens.weight']):
            changed = {**weights, 'lm_head.weight': head}
            out, report = self.run_import(self.write_hugging_face('head', CONFIG, changed))
            self.assertIs(report.config['tie_word_embeddings'], False)
            self.check(out, plain_models.llama(CONFIG, changed, TOKENS))

    def test_layers_and_scalings_that_nothing_reads(self):
        weights = plain_models.llama_weights(CONFIG)
        norm = 'model.layers.{}.input_layernorm.weight'
        for layer in '99999999999', '9' * 5000:
            source = self.write_hugging_face('layers', CONFIG, {
                **weights, norm.format(layer): weights[norm.format(0)]})
            self.refused('must be at most 1024', self.run_import, source)
        untyped = {**CONFIG, 'rope_parameters': {'rope_theta': 50000.0, 'factor': 2}}
        self.refused('its type must be one of', self.run_import,
                     self.write_hugging_face('untyped', untyped, weights))
        for scaling in 'linear', []:
            source = self.write_hugging_face('scaling', {**CONFIG, 'rope_scaling': scaling},
                                             weights)
            self.refused('rope_scaling is .*; must be an object', self.run_import, source)

    def test_mistral(self):
        config = {**CONFIG, 'model_type': 'mistral', 'sliding_window': None, 'head_dim': 32}
        self.check_both(config, plain_models.llama_weights(config), plain_models.llama)

    def test_qwen2(self):
        config = {**CONFIG, 'model_type': 'qwen2', 'tie_word_embeddings': True,
                  'use_sliding_window': False, 'sliding_window': 32, 'max_window_layers': 2}
        self.check_both(config, plain_models.llama_weights(config), plain_models.llama)

    def test_qwen3(self):
        config = {**CONFIG, 'model_type': 'qwen3', 'head_dim': 32, 'attention_bias': False}
        self.check_both(config, plain_models.llama_weights(config), plain_models.llama)

    def test_gpt_neox(self):
        report = self.check_both(NEOX, plain_models.gpt_neox_weights(NEOX), plain_models.gpt_neox)
        self.assertIn('gelu_new is that of llama.cpp', report.notes[0])

    def test_gguf_without_the_number_of_kv_heads(self):
        weights = plain_models.llama_weights(CONFIG)
        out, report = self.run_import(write_gguf(self.path('kv.gguf'), CONFIG, weights,
                                                 has_head_count_kv=False))
        self.assertEqual(report.config['num_key_value_heads'], 2)
        self.check(out, plain_models.llama(CONFIG, weights, TOKENS))

    def test_gguf_with_the_epsilon_of_another_norm(self):
        weights = plain_models.llama_weights(CONFIG)
        other = 'llama.attention.layer_norm_epsilon'
        same = write_gguf(self.path('same.gguf'), CONFIG, weights,
                          fields={other: CONFIG['rms_norm_eps']})
        out, _ = self.run_import(same)
        self.check(out, plain_models.llama(CONFIG, weights, TOKENS))
        self.refused(f'{other} is 0.1, and another field of the same meaning', self.run_import,
                     write_gguf(self.path('other.gguf'), CONFIG, weights, fields={other: 0.1}))

    def test_gguf_that_rotates_a_part_of_each_head(self):
        """llama.cpp turns the pairs (2i, 2i + 1) of a file's rows."""
        weights = plain_models.llama_weights(CONFIG)
        source = write_gguf(self.path('part.gguf'), CONFIG, weights, fields={
            'llama.rope.dimension_count': 8})
        out, report = self.run_import(source)
        self.assertEqual(report.config['partial_rotary_factor'], 0.5)
        halves = [0, 2, 4, 6, 1, 3, 5, 7, *range(8, 16)]
        for name in weights:
            for part, count in ('.q_proj.', 4), ('.k_proj.', 2):
                if part in name:
                    of_heads = permute(weights[name], count).reshape(count, 16, -1)
                    weights[name] = of_heads[:, halves].reshape(weights[name].shape)
        whole = plain_models.rotate_half
        with unittest.mock.patch.object(plain_models, 'rotate_half',
                                        lambda x, theta, _: whole(x, theta, 8)):
            self.check(out, plain_models.llama(CONFIG, weights, TOKENS))

    def test_another_attention(self):
        weights = plain_models.llama_weights(CONFIG)
        source = self.write_hugging_face('lssar', CONFIG, weights)
        _, report = self.run_import(source, {'attention': {'kind': 'lssar', 'p': 3}})
        self.assertEqual(report.config['attention'], {'kind': 'lssar', 'p': 3})
        self.assertIn('command line', report.origins['attention'])


class TransformersTest(Folder):
    """Directories that transformers wrote, with its own logits (tests/models/make_hf_golden.py)."""

    def test_log_probabilities(self):
        folders = sorted((ROOT / 'tests/models/hf').iterdir())
        self.assertEqual(len(folders), 20)
        for folder in folders:
            with self.subTest(folder.name):
                loaded = convert.load(convert.Options(str(folder), self.path('never')))
                model = forward.Model(loaded.config, loaded.stored)
                for tokens, positions, logits in golden.read(str(folder)):
                    found = log_softmax(model.logits(tokens, positions))
                    self.assertLess(np.abs(found - log_softmax(logits)).max(), 1e-4)

    def served(self, source, name, given=None, **options):
        """An import by the server: its log-probabilities are those of transformers."""
        out, report = self.run_import(source, given, **options)
        [(tokens, positions, logits)] = golden.read(str(ROOT / 'tests/models/hf' / name))
        expected = log_softmax(logits)
        with served.running(SERVER, out, '--kv-cache-dtype', 'fp32', '--threads', '1') as client:
            for row, position in enumerate(positions[:-1]):
                best = int(expected[row].argmax())
                [score] = client.score(tokens[:position + 1], [[best]], per_token=True)
                self.assertLess(abs(score.tokens[0].logprob - expected[row][best]), 1e-4)
        return report

    def test_positions_are_served(self):
        for name, said in (('gpt2', 'learned'), ('bloom_heads', 'alibi'), ('smollm3_window', None)):
            with self.subTest(name):
                report = self.served(ROOT / 'tests/models/hf' / name, name)
                self.assertEqual(report.config.get('positions'), said)

    def gpt2(self):
        """hf/gpt2 as tensors by our names, [out, in]."""
        loaded = convert.load(convert.Options(str(ROOT / 'tests/models/hf/gpt2'),
                                              self.path('never')))
        return {name: np.ascontiguousarray(tensor)
                for name, tensor in loaded.mapped.tensors.items()}

    def test_gguf_gpt2(self):
        path = self.path('gpt2.gguf')
        writer = gguf.GGUFWriter(path, 'gpt2')
        writer.add_block_count(2)
        writer.add_context_length(96)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(128)
        writer.add_head_count(4)
        writer.add_layer_norm_eps(1e-5)
        for name, tensor in self.gpt2().items():
            writer.add_tensor(names.gguf_name(name), tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        report = self.served(path, 'gpt2')
        self.assertIn('wpe.weight', report.origins['positions'])

    def test_llmc(self):
        """model_*.bin as llm.c publishes it, with wpe."""
        tensors, padding = self.gpt2(), np.full((3, 32), 7, np.float32)
        order = ('ln_1.weight', 'ln_1.bias', 'attn.c_attn.weight', 'attn.c_attn.bias',
                 'attn.c_proj.weight', 'attn.c_proj.bias', 'ln_2.weight', 'ln_2.bias',
                 'mlp.c_fc.weight', 'mlp.c_fc.bias', 'mlp.c_proj.weight', 'mlp.c_proj.bias')
        parts = [np.concatenate((tensors['wte.weight'], padding)), tensors['wpe.weight'],
                 *(tensors[f'h.{i}.{name}'] for name in order for i in range(2)),
                 tensors['ln_f.weight'], tensors['ln_f.bias']]
        header = np.zeros(256, np.int32)
        header[:8] = 20240326, 3, 96, 61, 2, 4, 32, 64
        path = self.path('model.bin')
        pathlib.Path(path).write_bytes(header.tobytes() + b''.join(
            part.astype(np.float32).tobytes() for part in parts))
        report = self.served(path, 'gpt2', {'attention': {'kind': 'softmax'}})
        self.assertEqual(report.config['positions'], 'learned')
        self.assertNotIn('rope_theta', report.config)
        self.refused('rope_theta is given, and positions is "learned"', self.run_import, path,
                     {'attention': {'kind': 'softmax'}, 'rope_theta': 10000})

    def test_what_is_refused(self):
        def refused(pattern, name, **fields):
            source = ROOT / 'tests/models/hf' / name
            config = {**json.loads((source / 'config.json').read_text()), **fields}
            folder = self.write_hugging_face('changed', config, {})
            (pathlib.Path(folder) / 'model.safetensors').write_bytes(
                (source / 'model.safetensors').read_bytes())
            self.refused(pattern, self.run_import, folder)

        refused('layer_types is .*no sliding window', 'qwen2',
                layer_types=['full_attention', 'sliding_attention'])
        refused('layer_types is', 'qwen2_window', layer_types=['full_attention'])
        refused('layer_types is', 'mistral_window', layer_types=['full_attention'] * 2)
        refused('sliding_window is 0; must be an integer, at least 1', 'mistral_window',
                sliding_window=0)
        refused('no_rope_layers is .1.; must have 0 or 1', 'smollm3', no_rope_layers=[1])
        refused('apply_residual_connection_post_layernorm is True', 'bloom',
                apply_residual_connection_post_layernorm=True)
        refused('slow_but_exact is True', 'bloom', slow_but_exact=True)
        refused('scale_attn_by_inverse_layer_idx is True', 'gpt2',
                scale_attn_by_inverse_layer_idx=True)
        refused('n_positions is 64 .source', 'gpt2', n_positions=64)
        refused('n_positions is 96, but n_ctx is 64; they must be equal', 'gpt2', n_ctx=64)
        refused('hidden_size is 32, but n_embed is 64; they must be equal', 'bloom', n_embed=64)
        refused('tie_word_embeddings is true .source: Hugging Face qwen2., but lm_head.weight is '
                'not the embedding; .* say false there, else remove it', 'qwen2',
                tie_word_embeddings=True)
        refused('type linear it must have factor', 'llama', rope_parameters=None,
                rope_theta=10000.0, rope_scaling={'rope_type': 'linear', 'beta_fast': 32})
        self.refused('only --attention softmax', self.run_import, ROOT / 'tests/models/hf/bloom',
                     {'attention': {'kind': 'lssar', 'p': 15}})


class NanochatTest(Folder):
    """Models of nanochat are refused by name, from their tensors."""

    def tensors(self, *left_out):
        rng, hidden, layers = np.random.default_rng(7), 64, 2
        shapes = {'transformer.wte.weight': (160, hidden), 'lm_head.weight': (160, hidden),
                  'resid_lambdas': (layers,), 'x0_lambdas': (layers,),
                  'smear_gate.weight': (1, 24), 'smear_lambda': (1,), 'backout_lambda': (1,),
                  'value_embeds.1.weight': (160, hidden)}
        for i in range(layers):
            for name in ('attn.c_q', 'attn.c_k', 'attn.c_v', 'attn.c_proj'):
                shapes[f'transformer.h.{i}.{name}.weight'] = (hidden, hidden)
            shapes[f'transformer.h.{i}.mlp.c_fc.weight'] = (4 * hidden, hidden)
            shapes[f'transformer.h.{i}.mlp.c_proj.weight'] = (hidden, 4 * hidden)
        shapes['transformer.h.1.attn.ve_gate.weight'] = (4, 12)
        return {f'_orig_mod.{name}': rng.normal(size=shape).astype(np.float32)
                for name, shape in shapes.items() if name not in left_out}

    def source(self, tensors):
        path = self.path('nanochat.safetensors')
        tensor_file.write(path, [tensor_file.output_of(name, tensor)
                                 for name, tensor in tensors.items()], {})
        return path

    def test_refused_by_name(self):
        new = ('smear_gate.weight', 'smear_lambda', 'backout_lambda')
        for left_out in ((), new):  # also before smear and backout
            self.refused('is a model of nanochat.*value embeddings, lambdas .*smear and backout',
                         self.run_import, self.source(self.tensors(*left_out)))

    def test_other_tensors_are_listed(self):
        tensors = self.tensors('resid_lambdas', 'x0_lambdas', 'smear_gate.weight', 'smear_lambda',
                               'backout_lambda', 'transformer.h.1.attn.ve_gate.weight')
        message = self.refused('no part of a model computed here', self.run_import,
                               self.source(tensors))
        self.assertIn('value_embeds.1.weight', message)
        self.assertNotIn('nanochat,', message)


class GgufTypesTest(Folder):
    """Every tensor type comes out as gguf dequantizes it."""

    def test_quantized_types(self):
        rng = np.random.default_rng(5)
        # 256 columns for the K types.
        config = {**CONFIG, 'hidden_size': 256, 'intermediate_size': 256, 'num_hidden_layers': 1}
        weights = plain_models.llama_weights(config)
        types = gguf.GGMLQuantizationType
        for kind in (types.Q8_0, types.Q4_0, types.Q4_1, types.Q5_0, types.Q5_1):
            source = write_gguf(self.path(kind.name), config, weights, types={'proj.weight': kind})
            file = gguf_file.GgufFile(source)
            self.assertEqual(file.quantized_types, [kind.name])
            expected = gguf.quants.dequantize(gguf.quants.quantize(
                weights['model.layers.0.mlp.down_proj.weight'], kind), kind)
            self.assertTrue(np.array_equal(file.tensor('blk.0.ffn_down.weight'), expected))
        # gguf cannot quantize to K types: blocks of random bytes, with scales that are finite.
        for kind in (types.Q2_K, types.Q3_K, types.Q4_K, types.Q5_K, types.Q6_K):
            _, num_bytes = gguf.GGML_QUANT_SIZES[kind]
            blocks = rng.integers(0, 0x38, size=(160, num_bytes), dtype=np.uint8)
            path = self.path(kind.name)
            writer = gguf.GGUFWriter(path, 'llama')
            writer.add_tensor('x', blocks, raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            tensor = gguf_file.GgufFile(path).tensor('x')
            self.assertEqual(tensor.shape, (160, 256))
            self.assertTrue(np.array_equal(tensor, gguf.quants.dequantize(blocks, kind)), kind)

    def test_plain_types(self):
        weights = plain_models.llama_weights(CONFIG)
        source = write_gguf(self.path('half'), CONFIG, weights,
                            types={'proj.weight': np.dtype(np.float16)})
        out, report = self.run_import(source)
        entries = tensor_file.TensorFile(out + '/model.safetensors').entries
        self.assertEqual(entries['transformer.h.0.mlp.c_fc.weight'].dtype, 'F16')
        self.assertEqual(entries['transformer.h.0.ln_1.weight'].dtype, 'F32')
        self.assertIsNone(report.rounding)
        kind = gguf.GGMLQuantizationType.BF16
        source = write_gguf(self.path('bf16'), CONFIG, weights, types={'proj.weight': kind})
        out, _ = self.run_import(source)
        entries = tensor_file.TensorFile(out + '/model.safetensors').entries
        self.assertEqual(entries['transformer.h.0.mlp.c_fc.weight'].dtype, 'BF16')

    def test_quantized_model(self):
        """Served as the plain model of the dequantized weights, in fp16 unless told otherwise."""
        weights = plain_models.llama_weights(CONFIG)
        kind = gguf.GGMLQuantizationType.Q8_0
        source = write_gguf(self.path('q8.gguf'), CONFIG, weights, types={
            'proj.weight': kind, 'tokens.weight': kind})
        rounded = {name: gguf.quants.dequantize(gguf.quants.quantize(tensor, kind), kind)
                   if name.endswith(('proj.weight', 'tokens.weight')) else tensor
                   for name, tensor in weights.items()}
        out, report = self.run_import(source, dtype='fp32')
        self.assertIsNone(report.rounding)
        self.check(out, plain_models.llama(CONFIG, rounded, TOKENS))
        out, report = self.run_import(source)
        self.assertIn('Q8_0 blocks are dequantized', report.notes[0])
        self.assertTrue(0 < report.rounding < 0.1, report.rounding)
        half = {name: tensor.astype(np.float16) if tensor.ndim == 2 else tensor
                for name, tensor in rounded.items()}
        self.check(out, plain_models.llama(CONFIG, half, TOKENS))


class OriginTest(Folder):
    """The hash is of the model; where it came from is in origin.json."""

    def test_hash_of_the_same_model_from_another_place(self):
        weights = plain_models.llama_weights(CONFIG)
        hashes, small = set(), set()
        for name in 'first', 'second':
            source = write_gguf(self.path(f'{name}.gguf'), CONFIG, weights)
            with unittest.mock.patch('platform.python_version', return_value=name):
                out, report = self.run_import(source, command=f'lssar import {name}.gguf')
                quantize.run(out, self.path('int8'), True, f'lssar quantize {name}')
            hashes.add(report.checkpoint_hash)
            small.add(directory.checkpoint_hash(self.path('int8')))
            origin = json.loads(pathlib.Path(out, 'origin.json').read_text())
            self.assertEqual(origin, {
                'source_format': 'GGUF llama',
                'source_sha256': {f'{name}.gguf': directory.sha256(source)},
                'command': f'lssar import {name}.gguf',
                'versions': f'python {name}, numpy {np.__version__}'})
            origin = json.loads((self.folder / 'int8' / 'origin.json').read_text())
            self.assertEqual(origin['command'], f'lssar quantize {name}')
            self.assertEqual(origin['quantized_from'], report.checkpoint_hash)
        self.assertEqual((len(hashes), len(small)), (1, 1))


class DeltaTest(Folder):
    """--base and --delta build the trained checkpoint, or nothing."""

    def setUp(self):
        kind = gguf.GGMLQuantizationType.Q4_1
        weights = plain_models.llama_weights(CONFIG)
        self.base = write_gguf(self.path('base.gguf'), CONFIG, weights,
                               types={'proj.weight': kind, 'tokens.weight': kind})
        self.imported, report = self.run_import(self.base)
        tensors = {name.removeprefix('transformer.'): tensor for name, tensor in
                   tensor_file.TensorFile(self.imported + '/model.safetensors').tensors().items()}
        rng, trained = np.random.default_rng(0), {}
        for name in ('h.0.attn.c_attn.weight', 'h.1.ln_1.weight', 'h.1.ln_2.weight'):
            wide = arrays.widen(tensors[name], np.float32)
            trained[name] = wide + rng.normal(size=wide.shape).astype(np.float32) * (
                name != 'h.1.ln_2.weight')
        hashes = {os.path.basename(path): digest for path, digest in report.sources.items()}
        self.tensors, self.trained = tensors, trained
        self.written = delta.write(
            self.path('delta'), hashes, {'dtype': None, 'set': {}, 'ignore': []}, report.config,
            tensors, {'attention': {'kind': 'lssar', 'p': 15}}, trained)

    def build(self, base, *more):
        """The exit code of `lssar import` and what it wrote to stderr."""
        with unittest.mock.patch('sys.argv', [
                'lssar', 'import', '--base', base, '--delta', self.path('delta'), '--out',
                self.path('built'), '--overwrite', '--no-generate', *more]):
            with contextlib.redirect_stderr(io.StringIO()) as said, (
                    contextlib.redirect_stdout(io.StringIO())):
                return command.main(), said.getvalue()

    def test_build(self):
        self.assertEqual(self.build(self.base), (0, ''))
        with open(self.path('built') + '/config.json') as file:
            self.assertEqual(json.load(file)['attention'], {'kind': 'lssar', 'p': 15})
        built = tensor_file.TensorFile(self.path('built') + '/model.safetensors').tensors()
        self.assertNotIn('h.1.ln_2.weight', self.written.differences)
        for name, tensor in self.tensors.items():
            found = arrays.widen(built['transformer.' * (name != 'lm_head.weight') + name])
            expected = self.trained.get(name, arrays.widen(tensor))
            bound = {'h.0.attn.c_attn.weight': 0.05, 'h.1.ln_1.weight': 1e-6}.get(name, 0)
            self.assertLessEqual(np.abs(found - expected).max(), bound, name)
        # The golden rows are those of the new attention, so the server's self-check passes.
        self.assertNotEqual(
            *([logits[-1].tolist() for _, _, logits in golden.read(folder)][0]
              for folder in (self.imported, self.path('built'))))
        with served.running(SERVER, self.path('built'), '--threads', '1') as client:
            self.assertEqual(client.get_info().attention_kind, 'lssar')

    def test_another_base(self):
        with open(self.base, 'rb') as file:
            changed = bytearray(file.read())
        changed[-1] ^= 1
        pathlib.Path(self.path('other.gguf')).write_bytes(changed)
        code, said = self.build(self.path('other.gguf'))
        self.assertEqual(code, 1)
        self.assertRegex(said, 'made for a base whose base.gguf has sha256 [0-9a-f]{64}; this one')
        self.assertFalse(os.path.exists(self.path('built')))

    def test_another_result(self):
        manifest = pathlib.Path(self.path('delta') + '/delta.json')
        manifest.write_text(manifest.read_text().replace(self.written.checkpoint, '0' * 64))
        code, said = self.build(self.base)
        self.assertEqual(code, 1)
        self.assertIn('must be ' + '0' * 64, said)
        self.assertFalse(os.path.exists(self.path('built')))

    def test_flags_that_contradict(self):
        code, said = self.build(self.base, '--p', '3')
        self.assertEqual(code, 2)
        self.assertIn('--p and --delta are both given', said)

    def test_damaged_deltas(self):
        tensors = self.path('delta') + '/delta.safetensors'
        manifest = pathlib.Path(self.path('delta') + '/delta.json')
        for old, new, pattern in (('lssar-delta-1', 'x', 'format is'),
                                  ('"base": {', '"base": {"a": "b",', 'base'),
                                  ('"dtype": null', '"dtype": "fp8"', 'import.dtype')):
            content = manifest.read_text()
            self.assertIn(old, content)
            manifest.write_text(content.replace(old, new))
            self.assertRegex(self.build(self.base)[1], pattern)
            manifest.write_text(content)
        codes = np.zeros((3, 64), np.int8)
        for outputs, pattern in (
                ({'x': codes}, 'must be I8 with "x_scale"'),
                ({'x': np.zeros(3, np.float32)}, r'"x" is \[3\]; the base has none'),
                ({'ln_f.weight': np.zeros(3, np.float32)}, r'is \[3\]; the base has \[64\]')):
            tensor_file.write(tensors, [tensor_file.output_of(name, each)
                                        for name, each in outputs.items()], {})
            code, said = self.build(self.base)
            self.assertEqual(code, 1)
            self.assertRegex(said, pattern)


def text(value):
    return struct.pack('<Q', len(value)) + value


def header(num_tensors=0, num_fields=0, version=3):
    return b'GGUF' + struct.pack('<IQQ', version, num_tensors, num_fields)


def field(key, kind, value):
    return text(key) + struct.pack('<I', kind) + value


def described(name=b'x', shape=(32,), kind=0, offset=0):
    return text(name) + struct.pack(f'<I{len(shape)}QIQ', len(shape), *shape, kind, offset)


class GgufRefusedTest(Folder):
    """Damaged and hostile files: one error, at once, in little memory."""

    def read(self, content):
        path = self.folder / 'hostile.gguf'
        path.write_bytes(content)
        return gguf_file.GgufFile(str(path))

    def test_hostile_files(self):
        data = b'\0' * 256
        array = struct.pack('<IQ', 4, 1 << 62)
        nested = struct.pack('<IQ', 9, 1)
        for pattern, content in (
                ('the magic', b'GG'), ('is no GGUF', b'GGML' + data),
                ('version is 1', header(version=1) + data),
                ('big-endian', b'GGUF' + struct.pack('>IQQ', 3, 0, 0)),
                ('claims', header(1 << 62) + data), ('claims', header(0, 1 << 62) + data),
                ('claims', header(1 << 62, (1 << 64) - 1)),
                ('the length of the name of field 0', header(0, 1)),
                ('claims .* the limit is 65536', header(0, 1) + struct.pack('<Q', 1 << 63) + data),
                ('the file ends', header(0, 1) + struct.pack('<Q', 60000) + data),
                ('has type 13', header(0, 1) + field(b'k', 13, data)),
                ('elements; the limit', header(0, 1) + field(b'k', 9, array)),
                ('array of type 9', header(0, 1) + field(b'k', 9, nested * 1000)),
                ('a bool is 0 or 1', header(0, 1) + field(b'k', 7, b'\2')),
                ('twice', header(0, 2) + field(b'k', 0, b'1') * 2),
                ('claims 4611686018427387904 bytes', header(0, 1) + field(
                    b'k', 8, struct.pack('<Q', 1 << 62))),
                ('has 5 axes', header(1) + described(shape=(1,) * 5) + data),
                ('has 0 axes', header(1) + described(shape=()) + data),
                ('2.40', header(1) + described(shape=(1 << 63,)) + data),
                ('2.40', header(1) + described(shape=(0,)) + data),
                ('ends at byte', header(1) + described(shape=(1 << 40,) * 4) + data),
                ('ends at byte', header(1) + described(offset=1 << 63) + data),
                ('multiple of 32', header(1) + described(offset=8) + data),
                ('overlaps', header(2) + described() + described(b'y') + data),
                ('twice', header(2) + described() + described() + data),
                ('type IQ1_S', header(1) + described(shape=(256,), kind=19) + data),
                ('type 77', header(1) + described(kind=77) + data),
                ('multiple of 256', header(1) + described(kind=12) + data),
                ('general.alignment', header(0, 1) + field(
                    b'general.alignment', 4, struct.pack('<I', 0))),
                ('general.alignment', header(0, 1) + field(
                    b'general.alignment', 4, struct.pack('<I', 48)))):
            start_s = time.process_time()
            message = self.refused(pattern, self.read, content)
            self.assertIn('hostile.gguf', message)
            self.assertLess(len(message), 1000)
            self.assertLess(time.process_time() - start_s, 60)  # of CPU: it is not computed with

    def test_errors_about_large_values(self):
        """They take no more time than what they show."""
        value = ['x']
        for _ in range(60):  # 2^60 texts, as a pickle may hold them
            value = [value, value]
        shown = errors_of_files.show(value)
        self.assertEqual((len(shown), shown[:64]), (103, '[' * 61 + '"x"'))
        self.assertEqual(errors_of_files.show({'a': [1, 'b']}), '{"a": [1, "b"]}')
        members = [f'"{i}":1' for i in range(200_000)] + ['"199999":1']
        start_s = time.process_time()
        with self.assertRaisesRegex(CheckpointError, '^it: "199999" appears twice$'):
            errors_of_files.parse_json_object(f'{{{",".join(members)}}}'.encode(), 'it')
        self.assertLess(time.process_time() - start_s, 60)  # of CPU; all with all took an hour

    def test_control_characters_in_errors(self):
        message = self.refused('twice', self.read, header(0, 2) + field(
            b'\x1b[2Jk\n', 0, b'1') * 2)
        self.assertTrue(message.isprintable(), message)

    def test_truncated_files(self):
        source = write_gguf(self.path('whole'), CONFIG, plain_models.llama_weights(CONFIG))
        whole = pathlib.Path(source).read_bytes()
        for length in [*range(0, 2000, 37), len(whole) // 2, len(whole) - 1]:
            self.refused('hostile.gguf', self.read, whole[:length])

    def test_changed_bytes(self):
        """Any byte of the header: a checked error or a model, never another exception."""
        source = write_gguf(self.path('changed'), CONFIG, plain_models.llama_weights(CONFIG),
                            fields={'tokenizer.ggml.model': 'gpt2'})
        whole = bytearray(pathlib.Path(source).read_bytes())
        rng = np.random.default_rng(1)
        for place in rng.integers(4000, size=300):
            changed = bytearray(whole)
            changed[place] = rng.integers(256)
            (self.folder / 'mutant.gguf').write_bytes(changed)
            try:
                sources.read(self.path('mutant.gguf'), set())
            except CheckpointError as error:
                self.assertLess(len(str(error)), 5000)

    def test_a_fifo_and_a_directory(self):
        os.mkfifo(self.path('fifo.gguf'))
        self.refused('no regular file', sources.read, self.path('fifo.gguf'), set())
        self.refused('No such file', sources.read, self.path('none.gguf'), set())

    def test_fields_that_change_the_function(self):
        weights = plain_models.llama_weights(CONFIG)

        def refused(pattern, arch=None, **fields):
            source = write_gguf(self.path('fields.gguf'), CONFIG, weights, arch, fields={
                name.replace('__', '.'): value for name, value in fields.items()})
            return self.refused(pattern, self.run_import, source)

        refused('expert_count is 8', llama__expert_count=8)
        refused("rope.scaling.type is .yarn.; only .none. is computed of a GGUF file; import",
                llama__rope__scaling__type='yarn')
        refused('must be one of llama', arch='mamba')
        scaled = self.path('scaled.gguf')
        write_gguf(scaled, CONFIG, weights, extra={
            'rope_freqs.weight': np.array([1, 8] * 4, np.float32)})
        self.refused('rope scaling of Llama 3.1, which is not computed of a GGUF file; import the '
                     'Hugging Face directory', self.run_import, scaled)
        write_gguf(scaled, CONFIG, weights, extra={'rope_freqs.weight': np.ones(8, np.float32)})
        _, report = self.run_import(scaled)
        self.assertIn('all one', next(iter(report.left_out.values())))
        write_gguf(scaled, CONFIG, weights, extra={
            'position_embd.weight': np.ones((64, 64), np.float32)})
        self.refused('rope_theta is given, and positions is "learned"', self.run_import, scaled)
        refused('is one of 3 parts', split__count=3)
        message = refused('(?s)llama.new_thing.*llama.other', llama__new_thing=1, llama__other='x')
        self.assertIn('--ignore llama.new_thing --ignore llama.other', message)
        refused('they must be equal', llama__attention__head_count=8)
        refused('attn_q.weight .*: the first size must be a multiple of the elements of a head, an '
                'even number; 5 heads of q have 64', llama__attention__head_count=5)

    def test_tokenizers_that_are_not_known(self):
        weights = plain_models.llama_weights(CONFIG)
        vocabulary = {'tokenizer.ggml.tokens': ['a', 'b'], 'tokenizer.ggml.merges': ['a b']}
        for pattern, fields in (
                ('pre is absent.*--tokenizer', {'tokenizer.ggml.model': 'gpt2'}),
                ('pre is "default"', {'tokenizer.ggml.model': 'gpt2',
                                      'tokenizer.ggml.pre': 'default'}),
                ('model is "bert".*--tokenizer', {'tokenizer.ggml.model': 'bert'}),
                ('scores must be', {'tokenizer.ggml.model': 'llama'})):
            source = write_gguf(self.path('words.gguf'), CONFIG, weights,
                                fields={**vocabulary, **fields})
            self.refused(pattern, self.run_import, source)
        byte = b'\x80'.decode('utf-8', 'surrogateescape')  # as the reader keeps it
        for field, value in (('tokens', ['a', byte]), ('merges', [byte]), ('bos_token_id', 0)):
            self.refused('or tokenizer.*: the byte 0x80 is no UTF-8', gguf_tokenizer.files, {
                **vocabulary, 'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'gpt-2',
                'tokenizer.chat_template': byte, f'tokenizer.ggml.{field}': value})

        for name in 'bos', 'eos', 'eot', 'eom':
            for value in 2, 99999, -1:
                self.refused(f'{name}_token_id is {value}; must be below 2, the number of tokens',
                             gguf_tokenizer.files, {
                                 **vocabulary, 'tokenizer.ggml.model': 'gpt2',
                                 'tokenizer.ggml.pre': 'gpt-2',
                                 f'tokenizer.ggml.{name}_token_id': value})

    def test_unknown_fields_of_hugging_face(self):
        weights = plain_models.llama_weights(CONFIG)
        source = self.write_hugging_face('unknown', {
            **CONFIG, 'new_thing': 3, 'other thing': [1] * 99, 'is_llama_config': True,
            'rope_interleaved': False, 'transformers.js_config': {'kv_cache_dtype': {}}}, weights)
        message = self.refused('(?s)new_thing.*: 3.*other thing', self.run_import, source)
        self.assertIn("--ignore new_thing --ignore 'other thing'", message)
        self.assertIn('lssar ', message)
        self.assertNotIn('is_llama', message)
        self.run_import(source, ignored={'new_thing', 'other thing'})
        self.refused('--ignore rms_norm_eps: must name a field', self.run_import, source,
                     ignored={'new_thing', 'other thing', 'rms_norm_eps'})
        for field, value in {'rope_interleaved': True, 'sliding_window': 32, 'use_mrope': True,
                             'layer_types': ['sliding_attention'] * 2, 'hidden_act': 'tanh',
                             'is_encoder_decoder': True,
                             'rope_scaling': {'rope_type': 'foo', 'factor': 2.0}}.items():
            source = self.write_hugging_face('fields', {**CONFIG, field: value}, weights)
            self.refused(field, self.run_import, source)

    def test_rope_parameters(self):
        """transformers 5: rope_theta stands inside."""
        config = {**CONFIG, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 777.0}}
        del config['rope_theta']
        weights = plain_models.llama_weights(CONFIG)
        source = self.write_hugging_face('five', config, weights)
        self.assertEqual(self.run_import(source)[1].config['rope_theta'], 777.0)
        source = self.write_hugging_face('two', {**config, 'rope_theta': 778.0}, weights)
        self.refused('rope_theta is 778.0, but 777.0', self.run_import, source)
        linear = {'rope_type': 'linear', 'factor': 2.0, 'rope_theta': 777.0}
        factors = {'short_factor': [1.0] * 8, 'long_factor': [2.0] * 8}
        for fields, expected in (
                ({'rope_parameters': linear, 'rope_scaling': None, 'rope_theta': None},
                 {'type': 'linear', 'factor': 2.0}),
                ({'rope_parameters': linear, 'rope_scaling': {'type': 'linear', 'factor': 2.0}},
                 {'type': 'linear', 'factor': 2.0}),
                ({'rope_parameters': {'type': 'longrope', **factors}},
                 {'type': 'longrope', **factors}),
                ({'rope_parameters': None, 'rope_scaling': {}}, None),
                ({'rope_parameters': None, 'rope_scaling': {'type': 'longrope', **factors},
                  'original_max_position_embeddings': 32},
                 {'type': 'longrope', **factors, 'original_max_position_embeddings': 32})):
            source = self.write_hugging_face('scaled', {**config, **fields}, weights)
            self.assertEqual(self.run_import(source)[1].config.get('rope_scaling'), expected)
        for pattern, fields in (
                ('rope_parameters is .1.; must be an object', {'rope_parameters': [1]}),
                ('rope_parameters holds an object for "full_attention"; only one rotary',
                 {'rope_parameters': {'full_attention': linear, 'sliding_attention': linear}}),
                ('its type must be one of', {'rope_parameters': factors}),
                ('original_max_position_embeddings is 64, but 32 in rope_scaling; they must be',
                 {'rope_parameters': None, 'original_max_position_embeddings': 64,
                  'rope_scaling': {'type': 'longrope', **factors,
                                   'original_max_position_embeddings': 32}}),
                ('partial_rotary_factor is 0.5, but the code of model_type llama computes 1',
                 {'rope_parameters': {**linear, 'partial_rotary_factor': 0.5}}),
                ('rope_scaling is .*4.0.*, but rope_parameters is .*2.0.*; they must say the same',
                 {'rope_parameters': linear, 'rope_scaling': {'type': 'linear', 'factor': 4.0}})):
            source = self.write_hugging_face('scaled', {**config, **fields}, weights)
            self.refused(pattern, self.run_import, source)

    def test_two_names_of_one_field(self):
        weights = plain_models.gpt_neox_weights(NEOX)
        source = self.write_hugging_face('same', {
            **NEOX, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5}, weights)
        self.assertEqual(self.run_import(source)[1].config['partial_rotary_factor'], 0.5)
        for pattern, fields in (
                ('rotary_emb_base is 10000, but rope_theta is 500; they must be equal',
                 {'rope_theta': 500}),
                ('rotary_pct is 0.5, but partial_rotary_factor is 0.25; they must be equal',
                 {'partial_rotary_factor': 0.25}),
                ('rotary_emb_base is 10000, but rope_theta is 500',
                 {'rope_parameters': {'rope_type': 'default', 'rope_theta': 500}})):
            source = self.write_hugging_face('names', {**NEOX, **fields}, weights)
            self.refused(pattern, self.run_import, source)

    def test_a_field_of_training_is_harmless(self):
        config = {**CONFIG, 'pretraining_tp': 2}
        self.run_import(self.write_hugging_face('tp', config, plain_models.llama_weights(CONFIG)))
        source = self.write_hugging_face('exact', {**config, 'slow_but_exact': True},
                                         plain_models.llama_weights(CONFIG))
        self.refused('slow_but_exact', self.run_import, source)

    def test_tokens_beside_tokenizer_json_count(self):
        def files(config, **others):
            contents = {'tokenizer.json': {
                'model': {'vocab': {'a': 0, 'b': 1}},
                'added_tokens': [{'id': 2, 'content': '</s>'}]}, 'tokenizer_config.json': config,
                **{f'{name}.json': each for name, each in others.items()}}
            return tokenizer_files.Files(
                {name: json.dumps(each).encode() for name, each in contents.items()},
                {name: name for name in contents})

        token = {'content': '<x>', 'special': True}
        for count, given in (
                (3, files({'pad_token': '</s>', 'unk_token': 'a'})),
                (4, files({'added_tokens_decoder': {'2': {'content': '</s>'}, '3': token}},
                          added_tokens={'<y>': 4})),
                (5, files({'pad_token': '<pad>', 'additional_special_tokens': [token]})),
                (5, files({}, added_tokens={'<y>': 4, '<x>': 3})),
                (4, files({'extra_special_tokens': {'image': '<x>'}})),
                (5, files({}, special_tokens_map={'pad_token': '<pad>', 'cls_token': token}))):
            self.assertEqual(tokenizer_files.num_tokens(given), count, given.contents)
            self.assertEqual(len(tokenizer_files.missing_tokens(given)), count - 3)
        self.assertEqual(tokenizer_files.missing_tokens(files(
            {'pad_token': '<pad>', 'added_tokens_decoder': {
                '4': {'content': '<y>', 'special': False}, '3': token}})),
            [('<x>', True), ('<y>', False), ('<pad>', True)])
        specials = tokenizer_files.special_tokens(files({'additional_special_tokens': [token]}))
        self.assertIn('<x>', specials[1])

    def test_what_tensors_alone_do_not_show(self):
        given = {'n_head': 4, 'n_positions': 64, 'attention': {'kind': 'softmax'},
                 'rope_theta': 10000.0, 'rope_layout': 'half', 'activation_function': 'gelu',
                 'normalization': 'layer_norm', 'layer_norm_epsilon': 1e-5,
                 'embedding_norm': False, 'final_logit_softcapping': None}
        folder = self.write_hugging_face('neox', NEOX, plain_models.gpt_neox_weights(NEOX))
        refused = self.refused('(?s)parallel_residual=true.*partial_rotary_factor=',
                               self.run_import, folder + '/model.safetensors', given)
        self.assertNotIn('n_head', refused)
        _, report = self.run_import(folder + '/model.safetensors', {
            **given, 'parallel_residual': True, 'partial_rotary_factor': 0.5})
        self.assertIn('rope_scaling null, qk_norm null;', '\n'.join(report.notes))
        folder = self.write_hugging_face('llama', CONFIG, plain_models.llama_weights(CONFIG))
        _, report = self.run_import(folder + '/model.safetensors', {
            **given, 'activation_function': 'silu', 'normalization': 'rms_norm'})
        [note] = [each for each in report.notes if each.startswith('ASSUMED')]
        self.assertIn('parallel_residual false, partial_rotary_factor 1, rope_scaling null', note)
        self.assertEqual({report.origins[field] for field in (
            'parallel_residual', 'partial_rotary_factor', 'rope_scaling')}, {'default'})

    def test_our_names_in_a_hugging_face_config(self):
        weights = plain_models.llama_weights(CONFIG)
        for field, value in (('partial_rotary_factor', 0.5), ('rope_layout', 'interleaved'),
                             ('n_inner', 100)):
            source = self.write_hugging_face('ours', {**CONFIG, field: value}, weights)
            self.refused(f'{field} is .*, but the code of model_type llama computes',
                         self.run_import, source)
        for kind in 'lssa', 'softmax':
            source = self.write_hugging_face('ours', {**CONFIG, 'attention': {'kind': kind}},
                                             weights)
            self.refused('(?s)not known.*"attention"', self.run_import, source)
        same = {'partial_rotary_factor': 1.0, 'rope_layout': 'half', 'n_inner': 96}
        self.run_import(self.write_hugging_face('ours', {**CONFIG, **same}, weights))
        for flag in 1, 'true':
            source = self.write_hugging_face('flag', {
                **CONFIG, 'model_type': 'qwen2', 'use_sliding_window': flag, 'sliding_window': 4,
                'max_window_layers': 0}, weights)
            self.refused('use_sliding_window is .*; must be true or false', self.run_import,
                         source)


class ImportAndServerTest(Folder):
    """`lssar import` and the server say the same of a Hugging Face directory."""

    def problems(self, source):
        """(error of the import, error of the server), '' for none."""
        found = []
        for run in (lambda: self.run_import(source),
                    lambda: served.running(SERVER, source, '--max-model-len', '64',
                                           '--threads', '1').__enter__()):
            try:
                run()
                found.append('')
            except CheckpointError as error:
                found.append(str(error))
        return found

    def check(self, pattern, source):
        """Both errors have the pattern, or, without one, there is none."""
        for who, problem in zip(('import', 'server'), self.problems(source)):
            if pattern is None:
                self.assertEqual(problem, '', (who, source))
            else:
                self.assertRegex(problem, pattern, (who, source))

    def test_fields(self):
        qwen2, mistral = ({**CONFIG, 'model_type': name} for name in ('qwen2', 'mistral'))
        weights = plain_models.llama_weights(CONFIG)
        cases = (
            (None, CONFIG, {'sliding_window': 64}),
            (None, CONFIG, {'sliding_window': 100}),
            (None, CONFIG, {'sliding_window': 32, 'use_sliding_window': False}),
            ('sliding_window is 32', CONFIG, {'sliding_window': 32}),
            (None, mistral, {'sliding_window': 64}),
            (None, CONFIG, {'max_window_layers': 28}),
            (None, CONFIG, {'partial_rotary_factor': 1.0, 'n_ctx': 64}),
            ('n_ctx is 32, but the code of model_type llama computes 64;', CONFIG, {'n_ctx': 32}),
            ('partial_rotary_factor is 0.5, but the code of model_type llama computes 1;', CONFIG,
             {'partial_rotary_factor': 0.5}),
            (None, mistral, {'mlp_bias': False, 'attention_bias': False, 'sliding_window': None}),
            (None, qwen2, {'attention_bias': True, 'mlp_bias': False}),
            ('new_thing', CONFIG, {'new_thing': 3}),
            (None, CONFIG, {'num_experts': 0, 'attn_logit_softcapping': None, 'alibi': False}),
            ('num_experts', CONFIG, {'num_experts': 8}),
            ('clip_qkv', CONFIG, {'clip_qkv': 8}),
            (None, CONFIG, {'new_thing': 3, 'ignored_fields': ['new_thing']}),
            ('ignored_fields names "?new_thing"?, which', CONFIG,
             {'ignored_fields': ['new_thing']}),
            ('ignored_fields names "?clip_qkv"?, which changes what the model computes', CONFIG,
             {'clip_qkv': 8, 'ignored_fields': ['clip_qkv']}),
            ('ignored_fields names "?rms_norm_eps"?, which changes what', CONFIG,
             {'ignored_fields': ['rms_norm_eps']}),
            ('ignored_fields names "?mlp_kind"?, which changes what', CONFIG,
             {'mlp_kind': 'plain', 'ignored_fields': ['mlp_kind']}),
            ('ignored_fields holds 3, must hold|ignored_fields holds 3; must hold', CONFIG,
             {'ignored_fields': [3]}),
            ('config.json: not JSON', CONFIG, {'rms_norm_eps': float('nan')}),
            ('config.json: not JSON', CONFIG, {'new_thing': float('inf')}))
        for pattern, base, fields in cases:
            with self.subTest(base['model_type'], **fields):
                own = plain_models.llama_weights(base) if base is qwen2 else weights
                self.check(pattern, self.write_hugging_face('fields', {**base, **fields}, own))

    def test_indices(self):
        weights = plain_models.llama_weights(CONFIG)
        folder = pathlib.Path(self.write_hugging_face('shards', CONFIG, weights))
        (folder / 'model.safetensors').unlink()
        parts = dict(list(weights.items())[::2]), dict(list(weights.items())[1::2])
        files = 'one.safetensors', 'two.safetensors'
        for part, file in zip(parts, files):
            tensor_file.write(str(folder / file), [
                tensor_file.output_of(each, tensor) for each, tensor in part.items()], {})
        index = {each: file for part, file in zip(parts, files) for each in part}
        first, second = list(parts[0])[1], list(parts[1])[1]
        for pattern, changed in (
                (None, index),
                (f'tensor "{first}" is in a shard, but not in the index',
                 {each: file for each, file in index.items() if each != first}),
                (f'tensor "{first}" is not in two.safetensors', {**index, first: files[1]}),
                (f'tensor "{second}" is not in one.safetensors', {**index, second: files[0]}),
                ('tensor "nothing" is not in one', {**index, 'nothing': files[0]})):
            (folder / 'model.safetensors.index.json').write_text(
                json.dumps({'weight_map': changed}))
            self.check(pattern, folder)

    def test_types_of_tensors(self):
        weights = plain_models.llama_weights(CONFIG)
        projection = 'model.layers.0.self_attn.{}_proj.weight'
        half = {projection.format('q'): weights[projection.format('q')].astype(np.float16)}
        for name in 'F64', 'BOOL', 'I16', 'U32':
            buffer = (1 / 50000 ** (np.arange(8) / 8)) if name == 'F64' else np.ones(
                (1, 1, 8, 8), arrays.TYPES[name])
            buffer = np.tril(buffer) if buffer.ndim > 1 else buffer
            last = 'rotary_emb.inv_freq' if buffer.ndim == 1 else 'attn.bias'
            source = self.write_hugging_face('types', CONFIG, {
                f'model.layers.0.self_attn.{last}' if buffer.ndim == 1 else
                f'model.layers.0.{last}': buffer, **weights, **half})
            self.check(None, source)
        norm = 'model.norm.weight'
        for name in 'BOOL', 'I16':
            source = self.write_hugging_face('types', CONFIG, {
                **weights, norm: weights[norm].astype(arrays.TYPES[name])})
            self.check(f'"{norm}" has (d?type) {name}', source)

    def test_the_names_of_fields_are_those_of_the_server(self):
        source = (ROOT / 'models/config_fields.cc').read_text()

        def table(name):
            return source.partition(f' {name}[] = {{')[2].partition('\n};')[0]

        aliases = dict(re.findall(r'{"(\w+)", "(\w+)"}', table('kAliases')))
        self.assertEqual(aliases, sources.OTHER_NAMES)
        fixed = {name: json.loads(value.replace('\\"', '"')) for name, value in re.findall(
            r'{"(\w+)",\s+"((?:\\"|[^"])*)"', table('kFixed'))}
        self.assertEqual(len(fixed), table('kFixed').count('{"'))
        self.assertEqual(fixed, sources.FIXED_FIELDS)
        read = set(re.findall(r'"(\w+)"', table('kRead')))
        self.assertEqual(read - {'ignored_fields', 'linear_layout', 'tensor_names'},
                         set(settings.FIELDS))


# config.json of published models, every field, and what is asked about it.
PUBLISHED = {
    'SmolLM2-135M-Instruct': {
        'architectures': ['LlamaForCausalLM'], 'attention_bias': False, 'attention_dropout': 0.0,
        'bos_token_id': 1, 'eos_token_id': 2, 'hidden_act': 'silu', 'hidden_size': 576,
        'initializer_range': 0.041666666666666664, 'intermediate_size': 1536,
        'is_llama_config': True, 'max_position_embeddings': 8192, 'mlp_bias': False,
        'model_type': 'llama', 'num_attention_heads': 9, 'num_hidden_layers': 30,
        'num_key_value_heads': 3, 'pad_token_id': 2, 'pretraining_tp': 1, 'rms_norm_eps': 1e-05,
        'rope_interleaved': False, 'rope_scaling': None, 'rope_theta': 100000,
        'tie_word_embeddings': True, 'torch_dtype': 'bfloat16',
        'transformers.js_config': {'kv_cache_dtype': {'q4f16': 'float16', 'fp16': 'float16'}},
        'transformers_version': '4.42.3', 'use_cache': True, 'vocab_size': 49152},
    'TinyLlama-1.1B-Chat': {
        'architectures': ['LlamaForCausalLM'], 'attention_bias': False, 'bos_token_id': 1,
        'eos_token_id': 2, 'hidden_act': 'silu', 'hidden_size': 2048, 'initializer_range': 0.02,
        'intermediate_size': 5632, 'max_position_embeddings': 2048, 'model_type': 'llama',
        'num_attention_heads': 32, 'num_hidden_layers': 22, 'num_key_value_heads': 4,
        'pretraining_tp': 1, 'rms_norm_eps': 1e-05, 'rope_scaling': None, 'rope_theta': 10000.0,
        'tie_word_embeddings': False, 'torch_dtype': 'bfloat16',
        'transformers_version': '4.35.0', 'use_cache': True, 'vocab_size': 32000},
    'Llama-3-8B-Instruct': {
        'architectures': ['LlamaForCausalLM'], 'attention_bias': False, 'attention_dropout': 0.0,
        'bos_token_id': 128000, 'eos_token_id': [128001, 128009], 'hidden_act': 'silu',
        'hidden_size': 4096, 'initializer_range': 0.02, 'intermediate_size': 14336,
        'max_position_embeddings': 8192, 'mlp_bias': False, 'model_type': 'llama',
        'num_attention_heads': 32, 'num_hidden_layers': 32, 'num_key_value_heads': 8,
        'pretraining_tp': 1, 'rms_norm_eps': 1e-05, 'rope_scaling': None, 'rope_theta': 500000.0,
        'tie_word_embeddings': False, 'torch_dtype': 'bfloat16',
        'transformers_version': '4.40.0.dev0', 'use_cache': True, 'vocab_size': 128256},
    'Mistral-7B-Instruct-v0.3': {
        'architectures': ['MistralForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 1,
        'eos_token_id': 2, 'hidden_act': 'silu', 'hidden_size': 4096, 'initializer_range': 0.02,
        'intermediate_size': 14336, 'max_position_embeddings': 32768, 'model_type': 'mistral',
        'num_attention_heads': 32, 'num_hidden_layers': 32, 'num_key_value_heads': 8,
        'rms_norm_eps': 1e-05, 'rope_theta': 1000000.0, 'sliding_window': None,
        'tie_word_embeddings': False, 'torch_dtype': 'bfloat16',
        'transformers_version': '4.42.0.dev0', 'use_cache': True, 'vocab_size': 32768},
    'Qwen2.5-0.5B-Instruct': {
        'architectures': ['Qwen2ForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 151643,
        'eos_token_id': 151645, 'hidden_act': 'silu', 'hidden_size': 896,
        'initializer_range': 0.02, 'intermediate_size': 4864, 'max_position_embeddings': 32768,
        'max_window_layers': 21, 'model_type': 'qwen2', 'num_attention_heads': 14,
        'num_hidden_layers': 24, 'num_key_value_heads': 2, 'rms_norm_eps': 1e-06,
        'rope_theta': 1000000.0, 'sliding_window': 32768, 'tie_word_embeddings': True,
        'torch_dtype': 'bfloat16', 'transformers_version': '4.43.1', 'use_cache': True,
        'use_sliding_window': False, 'use_mrope': False, 'vocab_size': 151936},
    'Qwen3-0.6B': {
        'architectures': ['Qwen3ForCausalLM'], 'attention_bias': False, 'attention_dropout': 0.0,
        'bos_token_id': 151643, 'eos_token_id': 151645, 'head_dim': 128, 'hidden_act': 'silu',
        'hidden_size': 1024, 'initializer_range': 0.02, 'intermediate_size': 3072,
        'max_position_embeddings': 40960, 'max_window_layers': 28, 'model_type': 'qwen3',
        'num_attention_heads': 16, 'num_hidden_layers': 28, 'num_key_value_heads': 8,
        'rms_norm_eps': 1e-06, 'rope_scaling': None, 'rope_theta': 1000000,
        'sliding_window': None, 'tie_word_embeddings': True, 'torch_dtype': 'bfloat16',
        'transformers_version': '4.51.0', 'use_cache': True, 'use_sliding_window': False,
        'vocab_size': 151936},
    'Qwen3 of transformers 5': {
        'architectures': ['Qwen3ForCausalLM'], 'attention_bias': False, 'attention_dropout': 0.0,
        'bos_token_id': 151643, 'dtype': 'bfloat16', 'eos_token_id': 151645, 'head_dim': 128,
        'hidden_act': 'silu', 'hidden_size': 1024, 'initializer_range': 0.02,
        'intermediate_size': 3072, 'layer_types': ['full_attention'] * 28,
        'max_position_embeddings': 40960, 'max_window_layers': 28, 'model_type': 'qwen3',
        'num_attention_heads': 16, 'num_hidden_layers': 28, 'num_key_value_heads': 8,
        'pad_token_id': None, 'rms_norm_eps': 1e-06,
        'rope_parameters': {'rope_theta': 1000000, 'rope_type': 'default'},
        'sliding_window': None, 'tie_word_embeddings': True, 'transformers_version': '5.0.0',
        'use_cache': True, 'use_sliding_window': False, 'vocab_size': 151936},
    'gpt2': {
        'activation_function': 'gelu_new', 'architectures': ['GPT2LMHeadModel'],
        'attn_pdrop': 0.1, 'bos_token_id': 50256, 'embd_pdrop': 0.1, 'eos_token_id': 50256,
        'initializer_range': 0.02, 'layer_norm_epsilon': 1e-05, 'model_type': 'gpt2',
        'n_ctx': 1024, 'n_embd': 768, 'n_head': 12, 'n_layer': 12, 'n_positions': 1024,
        'resid_pdrop': 0.1, 'summary_activation': None, 'summary_first_dropout': 0.1,
        'summary_proj_to_labels': True, 'summary_type': 'cls_index', 'summary_use_proj': True,
        'task_specific_params': {'text-generation': {'do_sample': True, 'max_length': 50}},
        'vocab_size': 50257},
    'pythia-70m': {
        'architectures': ['GPTNeoXForCausalLM'], 'bos_token_id': 0, 'eos_token_id': 0,
        'hidden_act': 'gelu', 'hidden_size': 512, 'initializer_range': 0.02,
        'intermediate_size': 2048, 'layer_norm_eps': 1e-05, 'max_position_embeddings': 2048,
        'model_type': 'gpt_neox', 'num_attention_heads': 8, 'num_hidden_layers': 6,
        'rotary_emb_base': 10000, 'rotary_pct': 0.25, 'tie_word_embeddings': False,
        'torch_dtype': 'float16', 'transformers_version': '4.24.0', 'use_cache': True,
        'use_parallel_residual': True, 'vocab_size': 50304},
}


class PublishedConfigsTest(unittest.TestCase):
    """Every field of these config.json files is known."""

    def test_published_configs(self):
        for name, config in PUBLISHED.items():
            with self.subTest(name):
                family = sources.FAMILIES[config['model_type']]
                found = sources._from_hugging_face(config, family, set(), name)
                self.assertEqual(found['n_embd'], config.get('hidden_size', config.get('n_embd')))
                self.assertEqual(found['vocab_size'], config['vocab_size'])
                ends = config['eos_token_id']
                self.assertEqual(found['eos_token_id'], ends[0] if isinstance(ends, list) else ends)
                if config['model_type'] != 'gpt2':
                    theta = config.get('rope_theta', config.get('rotary_emb_base', 1000000))
                    self.assertEqual(found['rope_theta'], theta)


class LogitsTest(Folder):
    """--logits: the import against the logits of the user's own model."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.weights = plain_models.llama_weights(CONFIG)
        cls.tokens = np.random.default_rng(9).integers(160, size=(2, 128))
        cls.logits = np.stack([plain_models.llama(CONFIG, cls.weights, row) for row in cls.tokens])

    def import_with(self, config=None, given=None, weights=None, **saved):
        source = self.write_hugging_face('model', {**CONFIG, **(config or {})},
                                         weights or self.weights)
        np.savez(self.path('logits.npz'), **{
            'tokens': self.tokens, 'logits': self.logits.astype(np.float32), **saved})
        return self.run_import(source, given, logits=self.path('logits.npz'))

    def test_the_same_model(self):
        _, report = self.import_with()
        self.assertRegex(report.proof, r'within .*e-0[5-9] .* at 1[0-9][0-9] positions, .*trained')
        self.assertNotIn(' 0 of them', report.proof)
        _, report = self.import_with(tokens=self.tokens[0], logits=self.logits[0])
        self.assertIsNotNone(report.proof)

    def test_another_model(self):
        for wrong, fits in (({'rms_norm_eps': 1e-2}, '--set layer_norm_epsilon=1e-05'),
                            ({'hidden_act': 'gelu'}, '--set activation_function=silu'),
                            ({'rope_theta': 1e4}, 'the nearest is')):
            message = self.refused('differ by.*Nothing is written', self.import_with, wrong)
            self.assertIn(fits, message)
            self.assertFalse(os.path.exists(self.path(f'out-{self._testMethodName}')))
        message = self.refused('differ', self.import_with, None,
                               {'attention': {'kind': 'lssar', 'p': 3}})
        self.assertIn('--attention softmax', message)
        message = self.refused('differ', self.import_with,
                               {'rms_norm_eps': 1e-2, 'hidden_act': 'gelu'})
        self.assertIn('--set layer_norm_epsilon=1e-05', message)
        self.assertIn('--set activation_function=silu', message)

    def test_lssar(self):
        """p and the layout are found."""
        source = self.write_hugging_face('lssar', CONFIG, self.weights)
        given = {'attention': {'kind': 'lssar', 'p': 6}, 'rope_layout': 'interleaved'}
        loaded = convert.load(convert.Options(source, '', given))
        model = forward.Model(loaded.config, loaded.mapped.tensors.get)
        row = self.tokens[0].tolist()
        logits = model.logits(row, range(len(row)))
        message = self.refused('differ', self.import_with, None,
                               {'attention': {'kind': 'lssar', 'p': 15}},
                               tokens=self.tokens[0], logits=logits)
        self.assertIn('--attention lssar --p 6', message)
        self.assertIn('--set rope_layout=interleaved', message)

    def test_bad_files(self):
        for pattern, saved in (
                ('tokens are in .*160', {'tokens': self.tokens + 160}),
                ('must be .length. and', {'logits': self.logits[0]}),
                ('logits of 161 ids', {'logits': np.zeros((2, 128, 161))}),
                ('must be integers', {'tokens': self.tokens * 1.0}),
                ('must be finite', {'logits': self.logits * np.nan})):
            self.refused(pattern, self.import_with, **saved)
        source = self.path('model')
        for name, content in (('x.npz', b'PK'), ('x.safetensors', b'12'), ('y.npz', b'')):
            pathlib.Path(self.path(name)).write_bytes(content)
            self.refused(name, self.run_import, source, logits=self.path(name))
        np.savez(self.path('z.npz'), tokens=np.array([{}]), logits=self.logits)
        self.refused('z.npz', self.run_import, source, logits=self.path('z.npz'))
        np.savez(self.path('z.npz'), tokens=self.tokens)
        self.refused('has no logits', self.run_import, source, logits=self.path('z.npz'))


class CheckedBeforeWritingTest(Folder):
    """Values that the server would refuse are refused before anything is written."""

    def test_values(self):
        weights = plain_models.llama_weights(CONFIG)
        source = self.write_hugging_face('model', CONFIG, weights)
        attention = settings.given_attention
        for pattern, given in (
                ('lssar needs p', attention('lssar', None, None)),
                ('softmax has no p', attention('softmax', 15, None)),
                ('p is 0; must be in .0, 1000', attention('lssar', 0, None)),
                ('p is 1001', attention('lssar', 1001, None)),
                ('p is -1', attention('softmax_r', -1, None)),
                ('kind is "lsar"; must be one of', attention('lsar', 3, None)),
                ('kind phi', attention('lssa', None, 'relu')),
                ('kind phi', attention('phi', None, None)),
                ('phi is "tanh"', attention('phi', None, 'tanh')),
                ('must be an object', {'attention': 15}),
                ('attention has 1 objects', {'attention': [{'kind': 'lssa'}]}),
                ('attention has "q"', {'attention': {'kind': 'lssa', 'q': 1}}),
                ('must be one of half', {'rope_layout': 'halves'}),
                ('eos_token_id is 160', {'eos_token_id': 160}),
                ('bos_token_id is -1', {'bos_token_id': -1}),
                ('norm_weight', {'norm_weight': 1}),
                ('mlp_residual_scale is 1000', {'mlp_residual_scale': 10 ** 400}),
                ('kind is ."softmax".; must be one of', {'attention': {'kind': ['softmax']}}),
                ('attention_residual_scale is 0', {'attention_residual_scale': 0})):
            with self.subTest(pattern):
                given = {'normalization': 'rms_norm', **given}
                self.refused(pattern, self.run_import, source, given)
                self.assertFalse(os.path.exists(self.path('out-test_values')))
        self.refused('must be one of gelu_new', settings.check, {
            **attention('lssa', None, None), 'activation_function': 'tanh'})
        self.refused('the source does not say.*\n.*activation_function=gelu', self.run_import,
                     write_gguf(self.path('null.gguf'), CONFIG, weights),
                     {'activation_function': None})
        self.refused('p is NaN', self.run_import, source, attention('lssar', float('nan'), None))

    def test_ids_that_the_source_says(self):
        source = self.write_hugging_face('ids', {**CONFIG, 'eos_token_id': 50256},
                                         plain_models.llama_weights(CONFIG))
        self.refused('ids/config.json: eos_token_id is 50256; must be in .0, 160.; change it there,'
                     ' or give --set eos_token_id=ID', self.run_import, source)
        _, report = self.run_import(source, {'eos_token_id': 2})
        self.assertEqual(report.config['eos_token_id'], 2)
        _, report = self.run_import(source, {'eos_token_id': None})
        self.assertNotIn('eos_token_id', report.config)
        source = self.write_hugging_face('ids', {**CONFIG, 'eos_token_id': [2, 50256]},
                                         plain_models.llama_weights(CONFIG))
        out, _ = self.run_import(source, {'eos_token_id': 2})
        self.assertFalse(os.path.exists(out + '/generation_config.json'))

    def test_weights_beyond_float32(self):
        weights = {name: tensor.astype(np.float64) * (1e39 if 'embed' in name else 1)
                   for name, tensor in plain_models.llama_weights(CONFIG).items()}
        source = self.write_hugging_face('large', CONFIG, weights)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            self.refused('some weights are too large', self.run_import, source)

    def test_gpt2_without_positions(self):
        folder = ROOT / 'tests/models/hf/gpt2'
        tensors = tensor_file.TensorFile(str(folder / 'model.safetensors')).tensors()
        wpe = next(name for name in tensors if name.endswith('wpe.weight'))
        source = self.write_hugging_face('none', json.loads((folder / 'config.json').read_text()), {
            **tensors, wpe: np.zeros_like(tensors[wpe])})
        self.refused('--set positions=none for a model that has no positions', self.run_import,
                     source)
        _, report = self.run_import(source, {'positions': 'none'})
        self.assertEqual(report.config['positions'], 'none')

    def test_what_the_server_refuses(self):
        """The same values in config.json, one by one: both refuse them."""
        source = self.write_hugging_face('base', CONFIG, plain_models.llama_weights(CONFIG))
        out, report = self.run_import(source)
        llama3 = {'type': 'llama3', 'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': 4,
                  'original_max_position_embeddings': 32}
        yarn = {'type': 'yarn', 'factor': 2}
        longrope = {'type': 'longrope', 'short_factor': [1] * 8, 'long_factor': [2] * 8}
        norm = {'kind': 'rms_norm', 'position': 'before_rotary', 'weight': False}
        for pattern, change in (
                ('head_dim is 15; must be even .* 512', {'head_dim': 15}),
                ('num_key_value_heads is 3; must divide n_head, 4', {'num_key_value_heads': 3}),
                ('partial_rotary_factor is 0.2; it rotates 3', {'partial_rotary_factor': 0.2}),
                ('rope_scaling: low_freq_factor is 4; must be below high_freq_factor, 4',
                 {'rope_scaling': {**llama3, 'low_freq_factor': 4}}),
                ('rope_scaling: factor is 0.5; must be in .1, 1024',
                 {'rope_scaling': {**llama3, 'factor': 0.5}}),
                ('rope_scaling: factor is 0.5', {'rope_scaling': {**yarn, 'factor': 0.5}}),
                ('rope_scaling: factor is 2000', {'rope_scaling': {**yarn, 'factor': 2000}}),
                ('rope_scaling: factor is true', {'rope_scaling': {**yarn, 'factor': True}}),
                ('rope_scaling: beta_fast is 0; must be in .0, 1e.06',
                 {'rope_scaling': {**yarn, 'beta_fast': 0}}),
                ('rope_scaling: mscale is -1; must be in .0, 1e.06',
                 {'rope_scaling': {**yarn, 'mscale': -1}}),
                ('rope_scaling: truncate is "yes"; must be true or false',
                 {'rope_scaling': {**yarn, 'truncate': 'yes'}}),
                ('rope_theta is 1; must be above 1', {'rope_scaling': yarn, 'rope_theta': 1}),
                ('rope_scaling: original_max_position_embeddings is 1.5; must be an integer',
                 {'rope_scaling': {**yarn, 'original_max_position_embeddings': 1.5}}),
                ('rope_scaling: original_max_position_embeddings is 1; must be at least 2',
                 {'rope_scaling': {**longrope, 'original_max_position_embeddings': 1}}),
                ('rope_scaling: short_factor is 1; must be a list of 8 numbers in .0, 1e.06',
                 {'rope_scaling': {**longrope, 'short_factor': 1}}),
                ('rope_scaling: long_factor is .2, 2.; must be a list of 8 numbers',
                 {'rope_scaling': {**longrope, 'long_factor': [2, 2]}}),
                ('rope_scaling: long_factor is', {'rope_scaling': {**longrope,
                                                                   'long_factor': [0] * 8}}),
                ('of type yarn it must have factor', {'rope_scaling': {'type': 'yarn'}}),
                ('may have no other', {'rope_scaling': {**llama3, 'beta_fast': 1}}),
                ('its type must be one of', {'rope_scaling': {'factor': 2}}),
                ('its type must be one of', {'rope_scaling': {'type': ['yarn'], 'factor': 2}}),
                ('rope_scaling is "yarn"; must be an object', {'rope_scaling': 'yarn'}),
                ('dynamic needs at least 4 rotary elements',
                 {'rope_scaling': {'type': 'dynamic', 'factor': 2},
                  'partial_rotary_factor': 0.125}),
                ('nope_layers is 5; must be a list of layers in .0, 2', {'nope_layers': 5}),
                ('nope_layers is .2.; must be a list', {'nope_layers': [2]}),
                ('nope_layers is ..0..; must be a list', {'nope_layers': [[0]]}),
                ('qk_norm: kind is null; must be one of layer_norm, rms_norm', {'qk_norm': {}}),
                ('qk_norm is true; must be an object', {'qk_norm': True}),
                ('qk_norm: position is "after"', {'qk_norm': {**norm, 'position': 'after'}}),
                ('qk_norm: weight is null; must be true or false',
                 {'qk_norm': {**norm, 'weight': None}}),
                ('qk_norm: bias is 1; must be true', {'qk_norm': {**norm, 'bias': 1}}),
                ('qk_norm: epsilon is 0; must be in .0, 1.', {'qk_norm': {**norm, 'epsilon': 0}}),
                ('qk_norm has "scale"', {'qk_norm': {**norm, 'scale': 1}}),
                ('unpadded_vocab_size is 161; must be an integer in .1, 160',
                 {'unpadded_vocab_size': 161}),
                ('unpadded_vocab_size is 0; must be an integer in .1, 160',
                 {'unpadded_vocab_size': 0})):
            with self.subTest(change):
                config = {**report.config, **change}
                self.refused(pattern, settings.check, config)
                (pathlib.Path(out) / 'config.json').write_text(json.dumps(config))
                done = subprocess.run([SERVER, '--model', out, '--listen', '127.0.0.1:0',
                                       '--http-listen', 'off'], capture_output=True, text=True,
                                      timeout=120, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn('lssar-server: ' + out + '/config.json: ', done.stderr)
        for change in (
                {'rope_scaling': llama3}, {'rope_scaling': {**yarn, 'truncate': False}},
                {'rope_scaling': {**longrope, 'factor': 0.5}}, {'nope_layers': [1]},
                {'rope_scaling': {**longrope, 'original_max_position_embeddings': 2}},
                {'qk_norm': norm}, {'rope_scaling': {'rope_type': 'linear', 'factor': 1}}):
            with self.subTest(change):
                out, _ = self.run_import(source, change)
                with served.running(SERVER, out) as client:
                    client.complete(TOKENS[:4], max_tokens=2)
        for given in {'qk_norm': {}}, {'nope_layers': 5}, {'rope_scaling': yarn | {'factor': 0}}:
            self.refused(next(iter(given)), self.run_import, source, given)

    def test_the_command(self):
        source = self.write_hugging_face('model\x1b[2J', {
            **CONFIG, 'new\x1b[31m': 1}, plain_models.llama_weights(CONFIG))
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), unittest.mock.patch('sys.argv', [
                'lssar', 'import', source, '--out', self.path('out-x'), '--attention', 'lssar']):
            self.assertEqual(command.main(), 2)
        self.assertTrue(errors.getvalue().replace('\n', '').isprintable(), errors.getvalue())
        self.assertIn('new\\u001b', errors.getvalue())

    def test_the_program(self):
        """`lssar import` of a GGUF file, and the sentence at the end of its report."""
        source = write_gguf(self.path('x.gguf'), CONFIG, plain_models.llama_weights(CONFIG))
        environment = {**os.environ, 'PATH': f'{os.path.dirname(sys.executable)}:/usr/bin:/bin'}
        done = subprocess.run(
            [os.environ['LSSAR_CLI'], 'import', source, '--out', self.path('program')],
            env=environment, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        self.assertIn('{"kind": "softmax"}  [format: GGUF llama]', done.stdout)
        self.assertIn('generated   ids ', done.stdout)

    def test_conditioning(self):
        """A large p is ill-conditioned, and golden.safetensors says so."""
        weights = plain_models.llama_weights(CONFIG)
        source = self.write_hugging_face('model', CONFIG, weights)
        found = {}
        for p in (1, 40):
            out, report = self.run_import(source, {'attention': {'kind': 'lssar', 'p': p}})
            stored = tensor_file.TensorFile(f'{out}/golden.safetensors').tensor('conditioning')
            self.assertEqual(stored.tolist(), np.float32([*report.conditioning.values()]).tolist())
            found[p] = report.conditioning
            self.assertTrue(0 < found[p]['fp32'] < found[p]['fp16'] < found[p]['int8'], found[p])
        self.assertGreater(found[40]['int8'], 10 * found[1]['int8'])

    def test_lssar_with_scaled_rotary(self):
        """q and k have unit length behind the rotation, which YaRN's attention factor scales."""
        scaling = {'type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16}
        config = {**CONFIG, 'rope_scaling': scaling}
        source = self.write_hugging_face('yarn', config, plain_models.llama_weights(CONFIG))
        for part in (1.0, 0.5):
            out, report = self.run_import(source, {'attention': {'kind': 'lssar', 'p': 3},
                                                   'partial_rotary_factor': part})
            model = forward.Model(report.config, convert.load(convert.Options(out, '')).stored)
            self.check(out, model.logits(TOKENS, range(len(TOKENS))))

    def test_rounded_keys(self):
        """forward.py and the server attend with the same int8 keys."""
        source = self.write_hugging_face('rounded', CONFIG, plain_models.llama_weights(CONFIG))
        out, report = self.run_import(source, {'attention': {'kind': 'lssar', 'p': 3}})
        stored = convert.load(convert.Options(out, '')).stored
        model = forward.Model(report.config, stored, kv_dtype='I8')
        self.check(out, model.logits(TOKENS, range(len(TOKENS))), 3e-3, 'int8')

    def test_parts_of_a_head(self):
        """The factor gives the number of elements back."""
        for whole in range(2, 513, 2):
            for dims in range(2, whole + 1, 2):
                factor = forward.rotary_factor(dims, whole)
                self.assertEqual(int(whole * factor), dims, (dims, whole))
                self.assertLessEqual(factor, 1)

    def test_limits_of_the_self_check(self):
        """A right import of an ill-conditioned model is served, with fp16 K/V; a well-conditioned
        one that computes another function is not.
        """
        deep = {**CONFIG, 'num_hidden_layers': 8}
        source = self.write_hugging_face('deep', deep, plain_models.llama_weights(deep))
        out, report = self.run_import(source, {'attention': {'kind': 'lssar', 'p': 15}})
        self.assertGreater(report.conditioning['fp16'], 3e-2)
        with served.running(SERVER, out, '--max-model-len', '128') as client:
            self.assertGreater(client.get_info().self_check_error, 3e-2)  # the limit without it
        weights = plain_models.llama_weights(CONFIG)
        source = self.write_hugging_face('shallow', CONFIG, weights)
        out, report = self.run_import(source, {'attention': {'kind': 'lssar', 'p': 2}})
        config = json.loads(pathlib.Path(out, 'config.json').read_text())
        config['layer_norm_epsilon'] = 3e-2
        pathlib.Path(out, 'config.json').write_text(json.dumps(config))
        with self.assertRaisesRegex(CheckpointError, 'must be within 0.00'):
            with served.running(SERVER, out, '--max-model-len', '128'):
                pass


TEMPLATES = HERE / 'chat_templates'
SPECIALS = {'bos_token': '<s>', 'eos_token': '</s>'}
CHAT = [{'role': 'system', 'content': ' Be brief.'}, {'role': 'user', 'content': ' Hi '},
        {'role': 'assistant', 'content': '<think>\nhm\n</think>\n\nHello\n'},
        {'role': 'user', 'content': 'Bye\t'}]
# What the templates write for CHAT, or for its end where they know no system message.
EXPECTED = {
    'chatml': '<|im_start|>system\n Be brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n'
              '<|im_start|>assistant\n<think>\nhm\n</think>\n\nHello\n<|im_end|>\n'
              '<|im_start|>user\nBye\t<|im_end|>\n<|im_start|>assistant\n',
    'qwen3': '<|im_start|>system\n Be brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n'
             '<|im_start|>assistant\nHello\n<|im_end|>\n'
             '<|im_start|>user\nBye\t<|im_end|>\n<|im_start|>assistant\n',
    'mistral_v3': '<s>[INST]  Hi [/INST] <think>\nhm\n</think>\n\nHello</s>'
                  '[INST]  Be brief.\n\nBye\t[/INST]',
    'gemma3': '<s><start_of_turn>user\n Be brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n'
              '<think>\nhm\n</think>\n\nHello<end_of_turn>\n'
              '<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n',
    'deepseek_r1': '<s> Be brief.<｜User｜> Hi <｜Assistant｜>\n\nHello\n<｜end▁of▁sentence｜>'
                   '<｜User｜>Bye\t<｜Assistant｜><think>\n',
}
STOPS = {'chatml': '<|im_end|>', 'llama3': '<|eot_id|>', 'llama3_1': '<|eot_id|>',
         'mistral_v1': '</s>', 'gemma2': '<end_of_turn>', 'phi3': '<|end|>', 'phi4': '<|im_end|>',
         'deepseek_v3': '<｜end▁of▁sentence｜>', 'zephyr': '</s>'}


class ChatRolesTest(Folder):
    """Role tables of published templates, against jinja2."""

    @classmethod
    def setUpClass(cls):
        """Imports a model with each template. `outs`: {name: its folder}."""
        super().setUpClass()
        case = cls()
        source = case.write_hugging_face('model', CONFIG, plain_models.llama_weights(CONFIG))
        pieces = ['<unk>', '<s>', '</s>', *map(chr, range(33, 127))]
        (pathlib.Path(source) / 'tokenizer.model').write_bytes(gguf_tokenizer._tokenizer_model(
            {'tokenizer.ggml.scores': [0.0] * len(pieces)}, pieces,
            [2, 3, 3] + [1] * (len(pieces) - 3)))
        (pathlib.Path(source) / 'tokenizer_config.json').write_text(json.dumps(SPECIALS))
        cls.outs = {}
        for path in sorted(TEMPLATES.glob('*.jinja')):
            shutil.copy(path, pathlib.Path(source) / 'chat_template.jinja')
            cls.outs[path.stem] = cls.folder / path.stem
            convert.run(convert.Options(source, str(cls.outs[path.stem]), {}))

    def table(self, name):
        return json.loads((self.outs[name] / 'chat_roles.json').read_text())

    def test_published_templates(self):
        for name in self.outs:
            with self.subTest(name):
                table = self.table(name)
                # Other conversations than those of derive(), in this process.
                run = chat_roles.renderer((TEMPLATES / f'{name}.jinja').read_text(), SPECIALS)
                self.assertIsNone(chat_roles.disagreement(table, run, 300, seed=2))
                self.assertIn('user', table['generate_after'])
                if name in EXPECTED:
                    self.assertEqual(chat_roles.render(table, CHAT), EXPECTED[name])
                if name in STOPS:
                    self.assertEqual(table['stop_strings'], [STOPS[name]])
                has_system = name not in ('gemma2', 'mistral_v1', 'llama2')
                self.assertEqual('system' in table['next'][''], has_system)
                if not has_system:
                    self.assertIsNone(table['system'])

    def test_the_server_reads_the_tables(self):
        for name, out in self.outs.items():
            with self.subTest(name), served.running(SERVER, str(out), '--threads', '1') as client:
                [generation] = client.complete(CHAT[1:2], max_tokens=1)
                self.assertEqual(len(generation.tokens), 1)

    def test_default_system_texts(self):
        for name, text in {'smollm2': 'named SmolLM', 'qwen2_5': 'You are Qwen',
                           'llama3_1': 'Today Date: 26 Jul 2024'}.items():
            table = self.table(name)
            self.assertIn(text, table['no_system'])
            self.assertIn(text, chat_roles.render(table, CHAT[1:]))

    def test_orders_that_are_refused(self):
        table = self.table('mistral_v3')
        for messages in (CHAT[2:], CHAT[:1], [CHAT[1], CHAT[1]], [CHAT[1], CHAT[0], CHAT[1]]):
            with self.assertRaisesRegex(ValueError, 'the chat template allows'):
                chat_roles.render(table, messages)

    def test_hostile_templates(self):
        loop = '{% for i in range(99999) %}'
        for pattern, template in (
                ('takes more than 1 s', loop * 2 + '{% endfor %}' * 2),
                ('MiB of memory', "{% set x = 'a' * 10000000000 %}{{ x }}"),
                ('MiB of memory', "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(40) %}"
                                  '{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}'),
                ('more than 4194304', loop + "{{ 'a' * 100 }}{% endfor %}"),
                ('SecurityError', "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
                ('SecurityError', '{{ messages.__init__.__globals__ }}'),
                ('SecurityError', "{{ messages.append('x') }}"),
                ('RecursionError', '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}'),
                ('no loader', "{% include '/etc/passwd' %}"),
                ('no template that jinja2 reads', '{% for m in messages %}'),
                ('does not write it once', 'x'), ('does not write it once',
                                                  '{{ messages[0].content | upper }}'),
                ("'strftime_now' is undefined", "{{ strftime_now('%Y') }}"),
                ('has more than 1048576 bytes', ' ' * (1 << 21)),
                ('depends on its place|in another way', '{% for m in messages %}{{ loop.index }}'
                 '{{ m.role }}{{ m.content }}{% endfor %}')):
            with self.assertRaisesRegex(chat_roles.NoTable, pattern):
                chat_roles.derive(template, SPECIALS, cpu_s=1 if '1 s' in pattern else 9)


class TokenizerFilesTest(Folder):
    """What stands beside the weights: tokenizers, templates, ids that end a text."""

    def import_with(self, name, files, config=None):
        source = self.write_hugging_face(name, {**CONFIG, **(config or {})},
                                         plain_models.llama_weights(CONFIG))
        for each, content in files.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            (pathlib.Path(source) / each).write_bytes(data)
        return self.run_import(source)

    def tokenizer_json(self, added=(), kind='BPE', first='<unk>'):
        vocabulary = {first: 0, 'a': 1, 'b': 2}
        return {'model': {'type': kind, 'vocab': vocabulary, 'merges': []}, 'added_tokens': [
            {'id': 3 + i, 'content': token, 'special': True} for i, token in enumerate(added)]}

    def tokenizer_model(self):
        return gguf_tokenizer._tokenizer_model(
            {'tokenizer.ggml.scores': [0.0, -1.0, -2.0]}, ['<unk>', 'a', 'b'], [2, 1, 1])

    def test_two_tokenizers(self):
        model = self.tokenizer_model()
        self.assertEqual(tokenizer_files.sentence_pieces(model), ['<unk>', 'a', 'b'])
        out, report = self.import_with('same', {
            'tokenizer.model': model, 'tokenizer.json': self.tokenizer_json()})
        self.assertEqual(report.tokenizer, ['tokenizer.json -> tokenizer.json'])
        self.assertIn('not tokenizer.model, whose ids may be others', report.notes[0])
        self.assertFalse((pathlib.Path(out) / 'tokenizer.model').exists())
        out, report = self.import_with('added', {
            'tokenizer.model': model, 'tokenizer.json': self.tokenizer_json(['<|im_start|>'])})
        self.assertEqual(report.tokenizer, ['tokenizer.json -> tokenizer.json'])
        self.assertIn('the tokenizer has 4 tokens, the model 160', report.notes[1])
        self.refused('token 0 is "<unk>" in the one and "x" in the other', self.import_with,
                     'differ', {'tokenizer.model': model,
                                'tokenizer.json': self.tokenizer_json(first='x')})
        _, report = self.import_with('small', {'tokenizer.model': model})
        self.assertIn('the tokenizer has 3 tokens, the model 160: ids from 3 on', report.notes[0])
        self.refused('has 161 tokens, the model 160', self.import_with, 'large', {
            'tokenizer.json': self.tokenizer_json([f'<{i}>' for i in range(158)])})
        self.refused('Unigram', self.import_with, 'unigram', {
            'tokenizer.model': model, 'tokenizer.json': self.tokenizer_json(['x'], 'Unigram')})
        self.assertTrue(tokenizer_files.adds_dummy_prefix(b'\x1a\x04\x0a\x00\x18\x01'))
        self.assertFalse(tokenizer_files.adds_dummy_prefix(b'\x1a\x02\x18\x00'))
        has_prefix = tokenizer_files.adds_dummy_prefix(model)
        word = {'type': 'Metaspace', 'prepend_scheme': 'always' if has_prefix else 'never'}
        charsmap = {'type': 'Sequence', 'normalizers': [
            {'type': 'Precompiled'}, {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}}]}
        rules = {'pre_tokenizer': word, 'normalizer': charsmap}

        def import_unigram(**changed):
            return self.import_with('unigram', {'tokenizer.model': model, 'tokenizer.json': {
                **self.tokenizer_json(kind='Unigram'), **rules, **changed}})[1]

        self.assertEqual(import_unigram().tokenizer, ['tokenizer.model -> tokenizer.model'])
        self.assertEqual(import_unigram(normalizer=None, pre_tokenizer={
            'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, word]}).tokenizer,
                         ['tokenizer.model -> tokenizer.model'])
        for field, value in (('pre_tokenizer', None), ('pre_tokenizer', {'type': 'Whitespace'}),
                             ('pre_tokenizer', {**word, 'prepend_scheme':
                                                'never' if has_prefix else 'first'}),
                             ('normalizer', {'type': 'Lowercase'}), ('normalizer', 'x'),
                             ('normalizer', {'type': 'Sequence', 'normalizers': [7]})):
            self.refused(f'{field} of tokenizer.json is .* not what tokenizer.model does',
                         import_unigram, **{field: value})
        self.refused('damaged', tokenizer_files.sentence_pieces, model[:-1])

    def test_ids_that_end_a_text(self):
        """The first is in config.json, all of them in generation_config.json."""
        out, report = self.import_with('ends', {'tokenizer.json': self.tokenizer_json()},
                                       {'eos_token_id': [2, 7]})
        self.assertEqual(report.config['eos_token_id'], 2)
        self.assertIn('eos_token_id is a list, [2, 7]', report.notes[0])
        kept = json.loads((pathlib.Path(out) / 'generation_config.json').read_text())
        self.assertEqual(kept, {'eos_token_id': [2, 7]})
        out, _ = self.import_with('ends', {'generation_config.json': {'eos_token_id': [7, 3]}},
                                  {'eos_token_id': 2})
        kept = json.loads((pathlib.Path(out) / 'generation_config.json').read_text())
        self.assertEqual(kept, {'eos_token_id': [7, 3]})
        self.refused('list of ids', self.import_with, 'ends', {}, {'eos_token_id': [2, 'x']})
        for field in [2, 160], [2, -1]:
            self.refused('eos_token_id of config.json: eos_token_id is .*; must be an id in .0, 16',
                         self.import_with, 'listed', {}, {'eos_token_id': field})
        for field in 'x', [2, 'x'], [2, 160], [True], {'a': 2}, 2.5:
            self.refused('generation_config.json: eos_token_id is .*; must be an id in .0, 160',
                         self.import_with, 'ends', {'generation_config.json':
                                                    {'eos_token_id': field}})

    def test_generation_config_of_the_model(self):
        """It is the model's, wherever the tokenizer is."""
        ends = {'generation_config.json': {'eos_token_id': [2, 7]}}
        elsewhere = self.folder / 'elsewhere'
        elsewhere.mkdir()
        (elsewhere / 'tokenizer.json').write_text(json.dumps(self.tokenizer_json()))
        (elsewhere / 'generation_config.json').write_text('{"eos_token_id": [3]}')

        def written(out):
            return json.loads((pathlib.Path(out) / 'generation_config.json').read_text())

        out, _ = self.import_with('alone', ends)
        self.assertEqual(written(out), {'eos_token_id': [2, 7]})
        out, _ = self.run_import(self.path('alone'), tokenizer=str(elsewhere))
        self.assertEqual(written(out), {'eos_token_id': [2, 7]})
        self.import_with('listed_alone', {}, {'eos_token_id': [2, 9]})
        out, _ = self.run_import(self.path('listed_alone'), tokenizer=str(elsewhere))
        self.assertEqual(written(out), {'eos_token_id': [2, 9]})
        self.refused('generation_config.json: not JSON', self.import_with, 'broken',
                     {'generation_config.json': b'{'})

    def test_added_tokens(self):
        vocabulary = {'vocab.json': {'a': 0, 'b': 1}, 'merges.txt': b'#version: 0.2\n'}
        for name, files, count in (('model', {'tokenizer.model': self.tokenizer_model()}, 3),
                                   ('vocabulary', vocabulary, 2)):
            added = {'<|im_start|>': count, '<|im_end|>': count + 1}
            out, report = self.import_with(name, {**files, 'added_tokens.json': added})
            self.assertEqual(json.loads((pathlib.Path(out) / 'added_tokens.json').read_text()),
                             added)
            self.assertIn(f'the tokenizer has {count + 2} tokens', report.notes[0])
            _, report = self.import_with(name, {**files, 'tokenizer_config.json': {
                'added_tokens_decoder': {'9': {'content': '<x>'}}}})
            self.assertIn('the tokenizer has 10 tokens', report.notes[0])
            for config, more in (
                    ({'additional_special_tokens': ['<x>', {'content': '<y>'}]}, 2),
                    ({'pad_token': '<x>', 'additional_special_tokens': ['<x>']}, 1),
                    ({'mask_token': '<y>',
                      'added_tokens_decoder': {str(count): {'content': '<x>'}}}, 2)):
                _, report = self.import_with(f'{name}_special', {
                    **files, 'tokenizer_config.json': config})
                self.assertIn(f'the tokenizer has {count + more} tokens', report.notes[0])
        contents = {'vocab.json': b'{"a": 0, "b": 1}', 'added_tokens.json': b'{"<x>": 2}',
                    'special_tokens_map.json': b'{"pad_token": "<y>", "unk_token": "a"}'}
        files = tokenizer_files.Files(contents, {name: name for name in contents})
        self.assertEqual(tokenizer_files.tokens_beside(files), {'<x>': 2, 'a': 0, '<y>': 3})
        self.refused('added_tokens.json: not JSON', self.import_with, 'model',
                     {'added_tokens.json': b'['})

    def test_what_the_server_refuses_of_a_tokenizer(self):
        for field in 'truncation', 'padding':
            self.refused(f'tokenizer.json: {field} is "yes"; must be null', self.import_with, field,
                         {'tokenizer.json': {**self.tokenizer_json(), field: 'yes'}})
        self.refused('has no tokens', self.import_with, 'empty', {'tokenizer.json': {
            **self.tokenizer_json(), 'model': {'type': 'BPE', 'vocab': {}, 'merges': []}}})

    def test_chat_template(self):
        """chat_template.jinja is read before tokenizer_config.json, and both are kept."""
        chatml = (TEMPLATES / 'chatml.jinja').read_bytes()
        phi = (TEMPLATES / 'phi3.jinja').read_text()
        beside = {'eos_token': {'content': '<|im_end|>'}, 'chat_template': phi}
        out, report = self.import_with('template', {
            'tokenizer.json': self.tokenizer_json(), 'chat_template.jinja': chatml,
            'tokenizer_config.json': beside})
        table = json.loads((pathlib.Path(out) / 'chat_roles.json').read_text())
        self.assertEqual(table['template_sha256'], hashlib.sha256(chatml).hexdigest())
        self.assertEqual(table['stop_strings'], ['<|im_end|>'])
        self.assertEqual((pathlib.Path(out) / 'chat_template.jinja').read_bytes(), chatml)
        self.assertIn('without tools and dates', report.notes[-1])
        beside['chat_template'] = [{'name': 'tool_use', 'template': 'x'},
                                   {'name': 'default', 'template': phi}]
        out, report = self.import_with('template', {'tokenizer_config.json': beside})
        os.remove(self.path('template/chat_template.jinja'))
        out, report = self.import_with('template', {'tokenizer_config.json': beside})
        table = json.loads((pathlib.Path(out) / 'chat_roles.json').read_text())
        self.assertEqual(table['stop_strings'], ['<|end|>'])
        listed = {'bos_token': '<unk>', 'eos_token': {'content': '<|im_end|>'}}
        for config, start in ({}, '<unk>'), ({'bos_token': 'a'}, '<unk>'), (
                {'bos_token': 'a', 'added_tokens_decoder': {}}, 'a'):
            out, report = self.import_with('template', {
                'special_tokens_map.json': listed,
                'tokenizer_config.json': {**config, 'chat_template': '{{ bos_token }}' + phi}})
            written = json.loads((pathlib.Path(out) / 'chat_roles.json').read_text())
            self.assertEqual(written['start'], start)
            self.assertEqual((pathlib.Path(out) / 'special_tokens_map.json').exists(),
                             start == '<unk>')
        os.remove(self.path('template/special_tokens_map.json'))
        _, report = self.import_with('template', {
            'tokenizer_config.json': {'chat_template': '{{ messages[0].x.y }}'}})
        self.assertIn('no role table', report.notes[-1])


class OutputTest(Folder):
    """Where an import is written: nothing that is read is deleted, nothing half written stays."""

    def setUp(self):
        self.source = self.write_hugging_face('source', CONFIG, plain_models.llama_weights(CONFIG))
        self.out = pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def command(self, *arguments):
        """The exit code of `lssar import` and what it wrote to stderr."""
        with unittest.mock.patch('sys.argv', ['lssar', 'import', *map(str, arguments),
                                              '--no-generate']):
            with contextlib.redirect_stderr(io.StringIO()) as said, (
                    contextlib.redirect_stdout(io.StringIO())):
                return command.main(), said.getvalue()

    def test_sources_in_the_output(self):
        def import_to(out, source, **options):
            convert.run(convert.Options(str(source), str(out), overwrite=True, **options))

        import_to(self.out, self.source)
        before = sorted(self.out.iterdir())
        inner = self.out / 'inner'
        shutil.copytree(self.source, inner)
        link = self.folder / 'link'
        link.symlink_to(inner)
        linked = self.folder / 'linked'
        linked.mkdir()
        for name in 'config.json', 'model.safetensors':
            (linked / name).symlink_to(inner / name)
        for source in self.out, inner, link, linked, inner / 'model.safetensors':
            self.refused('is read; --overwrite would delete it, --out must name another',
                         import_to, self.out, source)
        for option in 'tokenizer', 'logits', 'delta':
            self.refused('inner/config.json, which is read', import_to, self.out, self.source,
                         **{option: str(inner / 'config.json')})
        self.refused('is read; --overwrite', quantize.run, str(self.out), str(self.out), True, '')
        self.refused('is read; --overwrite', export.run, str(self.out), 'safetensors',
                     str(self.out), True)
        self.assertEqual(sorted(self.out.iterdir()), sorted([*before, inner]))
        below = pathlib.Path(self.source) / 'out'  # beside what is read
        import_to(below, self.source)
        import_to(below, self.source)

    def test_an_empty_output(self):
        """An unset variable: once all of the working directory was deleted."""
        def import_to(out, overwrite):
            convert.run(convert.Options(str(self.source), out, overwrite=overwrite))

        import_to(str(self.out), True)
        mine = self.folder / 'mine'
        mine.mkdir()
        (mine / 'a.txt').write_text('precious')
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(mine)
        said = "--out: '' is no path; it must have a character at least"
        for overwrite in False, True:
            self.refused(said, import_to, '', overwrite)
            self.refused(said, quantize.run, str(self.out), '', overwrite, '')
            for kind in 'safetensors', 'gguf-names', 'torch':
                self.refused(said, export.run, str(self.out), kind, '', overwrite)
        self.assertEqual(os.listdir(), ['a.txt'])

    def test_outputs_that_are_no_checkpoints(self):
        def import_over():
            convert.run(convert.Options(str(self.source), str(self.out), overwrite=True))

        config = self.out / 'config.json'
        for text in '{"port": 80}', '[]', '{', '{"model_type": "llama", "attention": {}}':
            config.write_text(text)
            self.refused('has no model_type "lssar_gpt" with attention, so', import_over)
            self.assertEqual(config.read_text(), text)
        config.write_text('{"attention": {}}')
        import_over()
        (self.out / 'notes').mkdir()
        self.refused('holds the directory notes, which no checkpoint has; not replaced',
                     import_over)
        self.refused('is a directory, not a file', export.run, str(self.out), 'torch',
                     str(self.out), True)
        weights = self.out / 'model.safetensors'
        before = weights.read_bytes()
        self.refused('model.safetensors: is read; --overwrite would delete it', export.run,
                     str(self.out), 'torch', str(weights), True)
        self.assertEqual(weights.read_bytes(), before)

    def test_an_output_that_another_writes_meanwhile(self):
        for overwrite in False, True:
            out = self.folder / f'meanwhile{overwrite}'
            with self.subTest(overwrite=overwrite), self.assertRaises(CheckpointError):
                with directory.new_directory(str(out), overwrite):
                    out.mkdir()
                    (out / 'a.txt').write_text('precious')
            self.assertEqual(os.listdir(out), ['a.txt'])

    def test_a_link_to_a_directory(self):
        link = self.folder / 'link_to_out'
        link.symlink_to(self.out)
        self.assertEqual(self.command(self.source, '--out', link), (0, ''))
        self.assertTrue(link.is_symlink())
        self.assertIn('config.json', os.listdir(self.out))

    def limit_files(self):
        """No file can be larger than 4096 bytes: a write fails as on a full disk."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))

    def test_a_full_disk(self):
        self.limit_files()
        code, said = self.command(self.source, '--out', self.out)
        self.assertEqual((code, said), (1, f'lssar: {os.path.realpath(self.out)}: cannot be '
                                           'written: File too large\n'))
        self.assertEqual(list(self.folder.glob(self.out.name + '.*')), [])

    def test_a_full_scratch_folder(self):
        source = write_gguf(self.path('q8.gguf'), CONFIG, plain_models.llama_weights(CONFIG),
                            types={'proj.weight': gguf.GGMLQuantizationType.Q8_0})
        self.limit_files()
        self.refused(f'{tempfile.gettempdir()}: File too large; dequantized tensors need 245,760 '
                     'bytes there; TMPDIR names another', gguf_file.GgufFile(source).tensors)

    def test_sigterm(self):
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # where the command does not set it

        def stopped(*_):
            signal.raise_signal(signal.SIGTERM)  # this thread's: it is handled at once
            raise AssertionError('went on')

        with unittest.mock.patch.object(tensor_file, 'write', stopped):
            with self.assertRaises(SystemExit) as raised:
                self.command(self.source, '--out', self.out)
        self.assertEqual(raised.exception.code, 143)
        self.assertEqual(list(self.folder.glob(self.out.name + '.*')), [])


class GgufTokenizerTest(Folder):
    """Tokenizers out of GGUF files give the ids of the tokenizers that they were made of."""

    def test_bpe(self):
        texts = ['Hello world 123, it\'s  here\n\n x', 'ünïcödé 漢字 🙂 1½', '  tabs\t\tend ']
        vocabulary = {c: i for i, c in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}
        merges = []
        for a, b in ('he', 'll'), ('h', 'e'), ('l', 'l'), ('Ġ', 'w'), ('1', '2'), ('he', 'll'):
            if a in vocabulary and b in vocabulary and a + b not in vocabulary:
                vocabulary[a + b] = len(vocabulary)
                merges.append(f'{a} {b}')
        tokens = [*vocabulary, '<|im_start|>']
        types = [1] * len(vocabulary) + [3]
        for pre, count in {'gpt-2': 1, 'smollm': 1, 'qwen2': 1, 'llama-bpe': 1}.items():
            files = gguf_tokenizer.files({
                'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': pre,
                'tokenizer.ggml.tokens': tokens, 'tokenizer.ggml.token_type': types,
                'tokenizer.ggml.merges': merges, 'tokenizer.ggml.eos_token_id': len(tokens) - 1})
            made = tokenizers.Tokenizer.from_str(files['tokenizer.json'].decode())
            for text in texts:
                encoded = made.encode(text)
                self.assertEqual(made.decode(encoded.ids), text)
            self.assertEqual(made.encode('<|im_start|>').ids, [len(tokens) - 1])
            digits = made.encode('123').ids
            self.assertEqual(len(digits), {'gpt-2': 2, 'llama-bpe': 2}.get(pre, 3), pre)
            config = json.loads(files['tokenizer_config.json'])
            self.assertEqual(config['eos_token'], '<|im_start|>')

    def test_sentence_piece(self):
        import sentencepiece
        pieces = ['<unk>', '<s>', '</s>', *(f'<0x{i:02X}>' for i in range(256)), '▁', 'h', 'e', 'l',
                  'o', '▁h', 'll', '▁he', 'llo', '▁hello', '<tool>']
        types = [2, 3, 3] + [6] * 256 + [1] * 10 + [4]
        scores = [0.0] * 259 + [-float(i) for i in range(10, 20)] + [0.0]
        files = gguf_tokenizer.files({
            'tokenizer.ggml.model': 'llama', 'tokenizer.ggml.tokens': pieces,
            'tokenizer.ggml.token_type': types, 'tokenizer.ggml.scores': scores,
            'tokenizer.ggml.bos_token_id': 1, 'tokenizer.ggml.eos_token_id': 2,
            'tokenizer.ggml.unknown_token_id': 0})
        made = sentencepiece.SentencePieceProcessor(model_proto=files['tokenizer.model'])
        self.assertEqual(made.encode('hello <tool>', out_type=str), ['▁hello', '▁', '<tool>'])
        self.assertEqual(made.encode('é', out_type=str), ['▁', '<0xC3>', '<0xA9>'])
        self.assertEqual((made.bos_id(), made.eos_id(), made.unk_id()), (1, 2, 0))
        self.assertTrue(json.loads(files['tokenizer_config.json'])['add_bos_token'])


class VerifyTest(Folder):

    def test_a_device_that_fails_midway_leaves_the_reports_of_the_others(self):
        config = {**CONFIG, 'hidden_size': 128, 'intermediate_size': 512,
                  'max_position_embeddings': 512}
        out, _ = self.run_import(self.write_hugging_face(
            'llama', config, plain_models.llama_weights(config)))
        program = self.folder / 'server'
        # Its first step takes far longer than a millisecond, so its watchdog ends it.
        program.write_text('#!/usr/bin/python3\n'
                           'import os, sys\n'
                           'if "reference" in sys.argv:\n'
                           '    os.environ["LSSAR_STEP_TIMEOUT"] = "1ms"\n'
                           f'os.execv({SERVER!r}, [{SERVER!r}, *sys.argv[1:]])\n')
        program.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, LSSAR_SERVER=str(program)):
            shown = []
            report = verify.run(out, ['cpu', 'reference', 'cpu'],
                                lambda each: shown.append(verify.render(each)))
        self.assertFalse(report.is_ok)
        self.assertEqual([bool(each.problem) for each in report.devices], [False, True, False])
        self.assertEqual(len(shown), 3)
        self.assertIn('self-check', shown[1])  # what was known before the failure

    def test_a_link_to_nothing_is_no_missing_file(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in 'config.json', 'model.safetensors':
            (folder / name).symlink_to(ROOT / 'models' / 'zoo' / 'lssar-6m' / name)
        (folder / 'golden.safetensors').symlink_to(folder / 'gone')
        report = verify.run(str(folder), ['cpu'])
        self.assertIn('is a link to a file that does not exist', report.devices[0].problem)
        (folder / 'tokenizer.model').symlink_to(folder / 'gone')
        with self.assertRaisesRegex(CheckpointError, 'tokenizer.model: is a link to a file'):
            tokenizer_files._in_folder(str(folder))


if __name__ == '__main__':
    unittest.main()
