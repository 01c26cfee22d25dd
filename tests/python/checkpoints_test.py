"""`lssar import`, `quantize`, `export` and `verify` on tiny checkpoints of every source format.

Runs itself in an environment with PyTorch from PyPI: .pt files need a weights-only loader that is
safe, which Debian 12's is not. The models of the sources are tests/training/foreign_models.py.
"""

import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
if __name__ == '__main__':
    import environments
    environments.run_in('import-torch', OMP_NUM_THREADS='1')

sys.path.insert(0, str(ROOT / 'tests/training'))

import numpy as np  # noqa: E402
import torch  # noqa: E402

import foreign_models as foreign  # noqa: E402
from lssar.checkpoints import (arrays, calibration, convert, export,  # noqa: E402
                                      forward, golden, int4, llmc_file, names, quantize, served,
                                      settings, sources, tensor_file,
                                      tokenizer_files, torch_file, verify)
from lssar.checkpoints.errors import CheckpointError, UsageError  # noqa: E402

SERVER = os.environ['LSSAR_SERVER']
LSSAR = settings.given_attention('lssar', 15, None)
NANO = {**LSSAR, 'activation_function': 'gelu', 'rope_theta': 10000, 'rope_layout': 'half'}
LLMC = {**LSSAR, 'rope_theta': 10000, 'rope_layout': 'half'}
MODDED = {**LSSAR, 'n_head': 4, 'n_positions': 64, 'embedding_norm': True,
          'final_logit_softcapping': 30}
TOKENS = torch.randint(160, (60,), generator=torch.Generator().manual_seed(3)).tolist()


def served_logprobs(directory, *flags):
    """The server's log-probability of each of TOKENS after the first, and its description."""
    with served.running(SERVER, directory, '--kv-cache-dtype', 'fp32', '--max-model-len', '64',
                        *flags) as client:
        [score] = client.score(TOKENS[:1], [TOKENS[1:]], per_token=True)
        return torch.tensor([token.logprob for token in score.tokens]), client.get_info()


def expected_logprobs(net):
    with torch.no_grad():
        logprobs = net(torch.tensor(TOKENS)[None])[0].log_softmax(-1)
    return logprobs[torch.arange(len(TOKENS) - 1), torch.tensor(TOKENS[1:])]


class Folder(unittest.TestCase):
    """A test with a scratch folder and nets whose every part changes the logits."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def path(self, name):
        return str(self.folder / name)

    def run_import(self, source, given, **options):
        out = self.path(f'out-{self._testMethodName}')
        return out, convert.run(convert.Options(str(source), out, given, overwrite=True, **options))

    def refused(self, pattern, function, *arguments, **options):
        with self.assertRaisesRegex(CheckpointError, pattern):
            function(*arguments, **options)

    def write_hugging_face(self, name, net, file='model.safetensors', num_shards=1, state=None,
                           config=None):
        folder = self.folder / name
        folder.mkdir()
        (folder / 'config.json').write_text(json.dumps({**net.config(), **(config or {})}
                                                       if config is not False else {}))
        state = net.state_dict() if state is None else state
        parts = [dict(list(state.items())[i::num_shards]) for i in range(num_shards)]
        stem, _, last = file.rpartition('.')
        files = [file] if num_shards == 1 else [f'{stem}-{i}.{last}' for i in range(num_shards)]
        for part, each in zip(parts, files):
            if last == 'bin':
                torch.save(part, folder / each)
            else:
                tensor_file.write(str(folder / each), [
                    tensor_file.output_of(n, torch_file.to_array(t)) for n, t in part.items()], {})
        if num_shards > 1:
            index = {n: each for part, each in zip(parts, files) for n in part}
            (folder / (file + '.index.json')).write_text(json.dumps({'weight_map': index}))
        return folder


class FormatsTest(Folder):
    """Every format: log-probabilities of the server within 1e-4 of the source's own model."""

    def check(self, net, source, given, **options):
        out, report = self.run_import(source, given, **options)
        logprobs, info = served_logprobs(out)
        self.assertLess((logprobs - expected_logprobs(net)).abs().max().item(), 1e-4)
        self.assertLess(info.self_check_error, 1e-4)
        self.assertEqual(info.checkpoint_hash, report.checkpoint_hash)
        self.assertEqual(info.num_parameters, report.num_parameters)
        return out, report

    def save(self, name, net):
        torch.save(net.checkpoint(), self.path(name))
        return self.path(name)

    def test_nanogpt(self):
        net = foreign.randomize(foreign.NanoGPT(foreign.Shape()))
        source = self.save('nano.pt', net)
        out, report = self.check(net, source, NANO)
        self.assertEqual(report.format, 'nanoGPT')
        self.assertEqual(set(report.left_out.values()),
                         {'causal mask', 'equals the embedding (tied)'})
        self.assertIn('optimizer', report.not_read)
        self.assertEqual(report.origins['n_head'], 'source: nanoGPT')
        with open(f'{out}/origin.json', encoding='utf-8') as file:
            origin = json.load(file)
        self.assertEqual(origin['source_sha256'], {'nano.pt': list(report.sources.values())[0]})
        self.assertIn('numpy', origin['versions'])

        # Stored as bf16: golden rows are of the rounded weights, the report says what they changed.
        out, report = self.run_import(source, NANO, dtype='bf16')
        _, info = served_logprobs(out)
        self.assertEqual(info.dtype, 'bf16')
        self.assertLess(info.self_check_error, 1e-4)
        self.assertTrue(1e-4 < report.rounding < 1, report.rounding)

        # A field that differs from the source's, and one of another function, are found.
        self.refused('n_head is 4 .source: nanoGPT.* but 2', self.run_import, source,
                     {**NANO, 'n_head': 2})
        tanh, _ = self.run_import(source, {**NANO, 'activation_function': 'gelu_new'})
        difference = (served_logprobs(tanh)[0] - expected_logprobs(net)).abs().max().item()
        self.assertGreater(difference, 1e-4)
        with self.assertRaises(UsageError) as raised:
            self.run_import(source, {})
        for field in 'attention', 'activation_function', 'rope_theta', 'rope_layout':
            self.assertIn(field, str(raised.exception))

    def test_logits_of_the_users_model(self):
        """The recipe of models/README.md, in float32, to twice the trained length."""
        net = foreign.randomize(foreign.NanoGPT(foreign.Shape()))
        source = self.save('proved.pt', net)
        tokens = torch.randint(160, (1, 128), generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            logits = net.float().eval()(tokens)
        np.savez(self.path('logits.npz'), tokens=tokens.numpy(), logits=logits.float().numpy())
        _, report = self.run_import(source, NANO, logits=self.path('logits.npz'))
        self.assertIn('beyond the trained length', report.proof)
        for wrong, right in (({'activation_function': 'gelu_new'}, 'activation_function=gelu'),
                             ({'rope_layout': 'interleaved'}, 'rope_layout=half'),
                             (settings.given_attention('lssar', 14, None), 'lssar --p 15')):
            with self.assertRaisesRegex(CheckpointError, f'these would fit: .*{right}'):
                self.run_import(source, {**NANO, **wrong}, logits=self.path('logits.npz'))

    def test_nanogpt_without_biases(self):
        net = foreign.randomize(foreign.NanoGPT(foreign.Shape(bias=False), 'tanh'))
        self.check(net, self.save('bare.pt', net), {**NANO, 'activation_function': 'gelu_new'})

    def test_modded_nanogpt(self):
        net = foreign.randomize(foreign.ModdedGPT(foreign.Shape()))
        source = self.save('modded.pt', net)
        out, report = self.check(net, source, MODDED)
        self.assertEqual(report.format, 'modded-nanogpt')
        with self.assertRaises(UsageError) as raised:
            self.run_import(source, LSSAR)
        for field in 'n_head', 'n_positions', 'embedding_norm', 'final_logit_softcapping':
            self.assertIn(field, str(raised.exception))

        # Export and import again: the same tensors, from each format.
        config, tensors = export.load(out)
        for kind in 'safetensors', 'gguf-names', 'torch':
            exported = self.path(f'exported-{kind}{".pt" if kind == "torch" else ""}')
            export.run(out, kind, exported, False)
            again, _ = self.run_import(exported, {})
            config_again, tensors_again = export.load(again)
            self.assertEqual(config_again, config, kind)
            self.assertEqual(tensors_again.keys(), tensors.keys())
            for name, tensor in tensors.items():
                self.assertTrue(arrays.equal(tensors_again[name], tensor), name)
            if kind != 'torch':
                self.refused('--overwrite', export.run, out, kind, exported, False)
        shapes = tensor_file.TensorFile(f'{self.path("exported-gguf-names")}/model.safetensors')
        self.assertIn('blk.1.attn_qkv.weight', shapes.entries)

        # int8: smaller, and the bits of --dtype int8 on the original.
        small = self.path('small')
        quantize.run(out, small, False, 'a test')
        logprobs, info = served_logprobs(small)
        self.assertEqual(info.dtype, 'int8')
        self.assertEqual(logprobs.tolist(), served_logprobs(out, '--dtype', 'int8')[0].tolist())
        self.assertLess(os.path.getsize(f'{small}/model.safetensors'),
                        0.3 * os.path.getsize(f'{out}/model.safetensors'))
        reference = served_logprobs(small, '--device', 'reference')[0]
        self.assertLess((reference - logprobs).abs().max().item(), 2e-2)
        self.refused('int8', export.run, small, 'safetensors', self.path('never'), False)

        # int4: the same, and with the head as int8.
        smaller = self.path('smaller')
        quantize.run(out, smaller, False, 'a test', quantize.Options('int4'))
        logprobs, info = served_logprobs(smaller)
        self.assertEqual(info.dtype, 'int4')
        self.assertEqual(logprobs.tolist(), served_logprobs(out, '--dtype', 'int4')[0].tolist())
        self.assertLess(os.path.getsize(f'{smaller}/model.safetensors'),
                        0.6 * os.path.getsize(f'{small}/model.safetensors'))
        reference = served_logprobs(smaller, '--device', 'reference')[0]
        self.assertLess((reference - logprobs).abs().max().item(), 2e-2)
        quantize.run(out, smaller, True, 'a test', quantize.Options('int4', head='int8'))
        entries = tensor_file.TensorFile(f'{smaller}/model.safetensors').entries
        self.assertEqual(entries['transformer.wte.weight'].dtype, 'I8')
        self.assertEqual(entries['transformer.h.0.attn.c_attn.weight'].dtype, 'U8')
        self.assertEqual(served_logprobs(smaller)[1].dtype, 'int4')
        self.refused('for --dtype int4', quantize.run, out, self.path('never'), False, '',
                     quantize.Options('int8', head='int8'))
        self.refused('has no tokenizer', quantize.run, out, self.path('never'), False, '',
                     quantize.Options('int4', calibration=__file__))

    def test_llmc(self):
        net = foreign.randomize(foreign.NanoGPT(foreign.Shape(), 'tanh'))
        foreign.write_llmc(net, self.path('model_fp32.bin'))
        _, report = self.check(net, self.path('model_fp32.bin'), LLMC)
        self.assertIn('learned positions that are all zero', report.left_out.values())
        self.assertEqual(report.config['vocab_size'], 160)
        for weight in net.parameters():
            weight.data = weight.data.bfloat16().float()
        foreign.write_llmc(net, self.path('model_bf16.bin'), torch.bfloat16)
        self.check(net, self.path('model_bf16.bin'), LLMC)

    def test_hugging_face(self):
        llama = foreign.randomize(foreign.Llama(foreign.Shape()))
        source = self.write_hugging_face('llama', llama, num_shards=3)
        _, report = self.check(llama, source, LSSAR)
        self.assertEqual((report.config['num_key_value_heads'], report.config['mlp_kind']),
                         (2, 'gated'))
        neox = foreign.randomize(foreign.Neox(foreign.Shape()))
        self.check(neox, self.write_hugging_face('neox', neox, 'pytorch_model.bin', 2), LSSAR)

        net = foreign.randomize(foreign.NanoGPT(foreign.Shape(), 'tanh'))
        state = {n: t.t().contiguous() if '.h.' in n and t.dim() == 2 else t  # Conv1D
                 for n, t in net.state_dict().items() if n != 'lm_head.weight'}
        net.config = lambda: {'model_type': 'gpt2', 'vocab_size': 160, 'n_positions': 64,
                              'n_embd': 64, 'n_layer': 2, 'n_head': 4,
                              'activation_function': 'gelu_new', 'layer_norm_epsilon': 1e-5}
        source = self.write_hugging_face('gpt2', net, 'pytorch_model.bin', state=state)
        self.check(net, source, LLMC)

    def test_training_run(self):
        import model
        net = foreign.randomize(model.GPT(model.Config(160, 2, 4, 64, 64)))
        config = vars(net.c)
        torch.save({'net': net.state_dict(), 'config': config, 'opt': [], 'step': 3,
                    'rows': {'text': 3}, 'spent_s': 1.5}, self.path('state.pt'))
        _, report = self.check(net, self.path('state.pt'), {})
        self.assertEqual(report.config['attention'], {'kind': 'lssar', 'p': 15})

    def test_verify(self):
        net = foreign.randomize(foreign.NanoGPT(foreign.Shape(1), 'none'))
        out, _ = self.run_import(self.save('verified.pt', net), NANO)
        report = verify.run(out, ['cpu', 'reference'])
        self.assertTrue(report.is_ok, [verify.render(each) for each in report.devices])
        self.assertEqual(set(report.devices[0].same_bits), {'batch', *verify.VARIANTS})
        self.assertLess(report.devices[0].golden_error, 1e-4)
        # Golden rows of another model: found by the self-check at the latest.
        config, tensors = export.load(out)
        tensors['h.0.mlp.c_fc.bias'] = tensors['h.0.mlp.c_fc.bias'] + 0.1
        wrong = golden.compute(config, tensors.get)
        golden.write(config, wrong, out)
        report = verify.run(out, ['cpu'])
        self.assertFalse(report.is_ok)
        self.assertIn('golden', report.devices[0].problem)


class ForwardTest(unittest.TestCase):
    """The forward pass of golden rows, against the oracle's vectors of every attention kind."""

    def test_attention_kinds(self):
        cases = json.loads((ROOT / 'tests/golden/index.json').read_text())
        kinds = set()
        for case in cases:
            if case.get('model') or case['first'] or case['rows'] > 200:
                continue
            file = tensor_file.TensorFile(str(ROOT / f'tests/golden/{case["name"]}.safetensors'))
            q, k, v, out = (arrays.widen(file.tensor(name)) for name in ('q', 'k', 'v', 'out'))
            spec = {'kind': case['kind'], 'p': case['p'], 'phi': case.get('phi')}
            error = np.abs(forward.attention(q, k, v, spec, case['keys']) - out).max()
            self.assertLess(error / np.abs(v).max(), 1e-6, case['name'])
            kinds.add(case['kind'])
        self.assertEqual(kinds, {*forward.FORMS, 'phi'})


class RefusedTest(Folder):
    """Sources that are not what they seem, or that would be served as another function."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.net = foreign.randomize(foreign.NanoGPT(foreign.Shape(1)))
        cls.good = cls.net.checkpoint()

    def save(self, content, name='source.pt'):
        torch.save(content, self.path(name))
        return self.path(name)

    def changed(self, **tensors):
        """The good checkpoint with some tensors replaced, or left out where None."""
        model = {name: each for name, each in self.good['model'].items()
                 if tensors.get(name.rpartition('module.')[2], each) is not None}
        model.update({'_orig_mod.module.' + name: each for name, each in tensors.items()
                      if each is not None})
        return self.save({**self.good, 'model': model})

    def test_tensors_that_do_not_fit(self):
        first = 'transformer.h.0.'
        for pattern, tensors in (
                (r'(?s)no part of a model.*transformer.?|extra \[3\]', {'extra': torch.ones(3)}),
                ('rope_theta is given, and positions is "learned"',
                 {'transformer.wpe.weight': torch.ones(64, 64)}),
                ('n_positions is 64 .source: nanoGPT.*65 .tensors: wpe.weight',
                 {'transformer.wpe.weight': torch.ones(65, 64)}),
                ('mlp_out_bias is true .source: nanoGPT.*false .tensors: h.0.mlp.c_proj.bias',
                 {first + 'mlp.c_proj.bias': None}),
                (r'missing: h.0.ln_2.weight \[64\]', {first + 'ln_2.weight': None}),
                (r'h.0.mlp.c_fc.bias: \[5\]; .* must be \[256\]',
                 {first + 'mlp.c_fc.bias': torch.ones(5)}),
                (r'h.0.ln_1.weight" holds nan at \[7\]',
                 {first + 'ln_1.weight': torch.tensor([1.0] * 7 + [float('nan')] + [1.0] * 56)}),
                (r'holds inf at \[1, 2\]', {first + 'attn.c_proj.weight': torch.eye(64).index_put(
                    (torch.tensor(1), torch.tensor(2)), torch.tensor(float('inf')))}),
                (r'attn.bias \[1, 1, 64, 64\]',  # a band, not a causal mask
                 {first + 'attn.bias': torch.ones(64, 64).tril().triu(-8)[None, None]}),
        ):
            with self.subTest(pattern):
                self.refused(pattern, self.run_import, self.changed(**tensors), NANO)
        self.assertEqual(list(self.folder.glob(f'out-{self._testMethodName}*')), [])

    def test_fields_that_change_the_function(self):
        arguments = {**self.good['model_args'], 'sink_tokens': 4}
        source = self.save({**self.good, 'model_args': arguments})
        self.refused('(?s)"sink_tokens": 4.*--ignore sink_tokens', self.run_import, source, NANO)
        self.run_import(source, NANO, ignored={'sink_tokens'})
        for name in ('n_head', 'sink_token'):  # known, and in none
            self.refused(f'--ignore {name}: must name a field of .* that is not known',
                         self.run_import, source, NANO, ignored={'sink_tokens', name})
        self.refused('is no field of config.json', self.run_import, source, {**NANO, 'n_heads': 4},
                     ignored={'sink_tokens'})
        llama = foreign.Llama(foreign.Shape(1))
        for i, (field, value) in enumerate({
                'rope_scaling': {'rope_type': 'mrope', 'factor': 2.0}, 'pretraining_tp': 2,
                'sliding_window': 4096, 'hidden_act': 'tanh', 'model_type': 'gpt_bigcode'}.items()):
            source = self.write_hugging_face(f'llama-{i}', llama, config={field: value})
            self.refused(field, self.run_import, source, LSSAR)
        self.refused('below 65520', self.run_import, self.changed(
            **{'transformer.h.0.mlp.c_fc.weight': torch.full((256, 64), 1e5)}), NANO, dtype='fp16')

    def test_names_of_wrapped_models(self):
        wrapped = {name.replace('h.0.attn', 'h.0._orig_mod.attn').replace(
            'h.0.mlp', 'h.0._checkpoint_wrapped_module._fsdp_wrapped_module.mlp'): tensor
            for name, tensor in self.good['model'].items()}
        out, _ = self.run_import(self.save({**self.good, 'model': wrapped}), NANO)
        expected, _ = self.run_import(self.save(self.good), NANO)
        self.assertEqual(pathlib.Path(out, 'model.safetensors').stat().st_size,
                         pathlib.Path(expected, 'model.safetensors').stat().st_size)
        # Lightning: `model.` before every name.
        lightning = {'state_dict': {'model.' + name.removeprefix('_orig_mod.module.'): tensor
                                    for name, tensor in self.good['model'].items()},
                     'pytorch-lightning_version': '2.5'}
        _, report = self.run_import(self.save(lightning), {
            **NANO, 'n_head': 4, 'n_positions': 64, 'normalization': 'layer_norm',
            'layer_norm_epsilon': 1e-5, 'embedding_norm': False, 'final_logit_softcapping': None})
        self.assertEqual(report.config['n_layer'], 1)

    def test_model_args_that_say_the_attention(self):
        arguments = {**self.good['model_args'], 'attention': 'lssar', 'p': 15.0}
        _, report = self.run_import(self.save({**self.good, 'model_args': arguments}), NANO)
        self.assertEqual(report.config['attention'], {'kind': 'lssar', 'p': 15})
        self.refused('they must be equal', self.run_import,
                     self.save({**self.good, 'model_args': {**arguments, 'p': 14.0}}), NANO)

    def test_rotary_tables_say_the_base(self):
        table = 500.0 ** (-torch.arange(0, 16, 2) / 16)
        source = self.changed(**{'transformer.h.0.attn.rotary.inv_freq': table})
        given = {name: value for name, value in NANO.items() if name != 'rope_theta'}
        _, report = self.run_import(source, given)
        self.assertEqual(report.config['rope_theta'], 500.0)
        self.refused('rope_theta is 10000', self.run_import, source, NANO)

    def test_pickles_with_code(self):
        ran = self.path('ran')

        class Code:
            def __reduce__(self):
                return (os.system, (f'touch {ran}',))

        for content in ({'model': Code()}, {'model': {'a': torch.ones(2)}, 'x': [Code()]}):
            self.refused('posix.system.*takes code', sources.read, self.save(content), set())
        raw = self.folder / 'raw.pt'
        raw.write_bytes(pickle.dumps(Code(), 2))
        self.refused('not a zip archive', sources.read, str(raw), set())
        self.save({'model': foreign.Shape()})
        self.refused('foreign_models.Shape.*save only dicts', sources.read,
                     self.path('source.pt'), set())
        self.assertFalse(os.path.exists(ran))

    def rewrite(self, name='data.pkl', data=None, compress=zipfile.ZIP_STORED, extra=()):
        """The good archive with one record replaced."""
        source, target = self.save(self.good), self.path('rewritten.pt')
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, 'w', compress) as new:
            for entry in old.infolist():
                content = old.read(entry)
                if entry.filename.endswith('/' + name) and data is not None:
                    content = data(content) if callable(data) else data
                new.writestr(entry.filename, content)
            for each in extra:
                new.writestr(*each)
        return target

    def test_hostile_archives(self):
        self.refused('compressed', torch_file.check, self.rewrite(compress=zipfile.ZIP_DEFLATED))
        bomb = self.rewrite('data/0', b'\0' * 50_000_000, zipfile.ZIP_DEFLATED)
        self.assertLess(os.path.getsize(bomb), 1_000_000)
        self.refused('compressed', torch_file.check, bomb)
        self.refused('storage 0 claims', torch_file.check, self.rewrite('data/0', b'\0' * 64))
        self.refused('has 2 records NAME/data.pkl', torch_file.check,
                     self.rewrite(extra=[('other/data.pkl', b'')]))
        with self.assertWarns(UserWarning):
            twice = self.rewrite(extra=[('rewritten/data.pkl', b'')] * 2)
        self.refused('two records', torch_file.check, twice)
        # Python's zipfile looks for the list of records before the end, torch where the end says.
        archive = pathlib.Path(self.save(self.good)).read_bytes()
        end = archive.rindex(b'PK\x06\x06')
        for changed, why in (
                (archive[:end] + b' ' + archive[end:], 'zip64 end is at byte'),
                (archive[:end + 48] + struct.pack('<Q', 4) + archive[end + 56:],
                 'list of records is said to end at'),
                (archive[:end] + archive[-22:-10] + struct.pack('<IIH', 46, 4, 0),
                 'list of records is said to end at')):
            file = self.folder / 'lists.pt'
            file.write_bytes(changed)
            self.refused(why, torch_file.check, str(file))
        # A memo index of 2^31, for which C's unpickler would reserve 32 GiB.
        self.refused('refuses it', torch_file.load,
                     self.rewrite(data=b'\x80\x02r\xff\xff\xff\x7f.x'))
        self.refused('opcode', torch_file.check, self.rewrite(data=pickle.dumps({'a': {1}}, 4)))
        self.refused('persistent id', torch_file.check, self.rewrite(data=b'\x80\x02NQ.'))
        start_s = time.process_time()
        self.refused('opcodes', torch_file.check,
                     self.rewrite(data=b'\x80\x02' + b'N' * 60_000_000))
        self.assertLess(time.process_time() - start_s, 120)  # of CPU
        os.mkfifo(self.path('fifo.pt'))
        self.refused('no regular file', sources.read, self.path('fifo.pt'), set())
        whole = pathlib.Path(self.save(self.good)).read_bytes()
        for length in 0, 3, 100, len(whole) // 2, len(whole) - 10:
            cut = self.folder / 'cut.pt'
            cut.write_bytes(whole[:length])
            self.refused('cut.pt', sources.read, str(cut), set())

    def test_hostile_safetensors(self):
        path = self.path('hostile.safetensors')

        def write(header, data=b'\0' * 16, size=None):
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            pathlib.Path(path).write_bytes(
                struct.pack('<Q', len(text) if size is None else size) + text + data)

        def entry(begin, end, shape=(2,), dtype='F32'):
            return {'dtype': dtype, 'shape': list(shape), 'data_offsets': [begin, end]}

        whole = json.dumps(entry(0, 16, (4,)))
        for pattern, *arguments in (
                ('overlaps', {'a': entry(0, 8), 'b': entry(4, 12)}),
                ('gap', {'a': entry(0, 8), 'b': entry(12, 20)}),
                ('2.40', {'a': entry(0, 16, (1 << 63,))}),
                ('2.40', {'a': entry(0, 16, (-4,))}),
                ('hold 16 bytes', {'a': entry(0, 16, (1 << 39, 1 << 39))}),
                ('appears twice', f'{{"a": {whole}, "a": {whole}}}'.encode()),
                ('the file at', {'a': entry(0, 8)}),
                ('claims', {'a': entry(0, 16, (4,))}, b'', 1 << 62),
                ('dtype', {'a': entry(0, 16, (4,), 'F99')}),
                ('not JSON', b'[' * 100_000),
                ('must be a JSON object', b'[1]'),
                ('must be an object', {'a': 3})):
            write(*arguments)
            self.refused(pattern, tensor_file.TensorFile, path)
        for short in b'', b'\0' * 7:
            pathlib.Path(path).write_bytes(short)
            self.refused('bytes', tensor_file.TensorFile, path)

    def test_hostile_llmc(self):
        path = self.path('model.bin')
        for pattern, options in (
                ('magic 20240520 is training tokens', {'magic': 20240520}),
                ('magic is 7', {'magic': 7}), ('version 1', {'version': 1}),
                ('version 9', {'version': 9}),
                ('positions is "learned"', {'wpe': 0.5})):
            foreign.write_llmc(self.net, path, **options)
            self.refused(pattern, self.run_import, path, LLMC)
        foreign.write_llmc(self.net, path)
        whole = pathlib.Path(path).read_bytes()
        huge = struct.pack('<2i6i', 20240326, 3, 64, 160, 1024, 4, 65536, 168) + whole[32:]
        for content, pattern in ((whole[:-4], 'bytes'), (whole[:500], 'bytes'), (huge, 'bytes'),
                                 (whole[:16] + struct.pack('<i', -1) + whole[20:], 'layers is -1')):
            pathlib.Path(path).write_bytes(content)
            self.refused(pattern, llmc_file.load, path)

    def test_shards(self):
        llama = foreign.Llama(foreign.Shape(1))
        for i, name in enumerate(('../model.safetensors', '/etc/passwd', '')):
            folder = self.write_hugging_face(f'shards-{i}', llama, num_shards=2)
            index = folder / 'model.safetensors.index.json'
            index.write_text(json.dumps({'weight_map': {'a': name}}))
            self.refused('must be a file beside it', sources.read, str(folder), set())
        folder = self.write_hugging_face('twice', llama, num_shards=2)
        first, second = (folder / f'model-{i}.safetensors' for i in range(2))
        second.write_bytes(first.read_bytes())
        self.refused('in another shard too', sources.read, str(folder), set())


class PartsTest(Folder):

    def test_names_have_their_way_back(self):
        for ours, _ in names.GGUF_NAMES:
            name = ours.replace('{}', '7') + '.weight'
            mapped = names.apply(names.GGUF, {names.gguf_name(name): np.ones(1)})
            self.assertEqual(list(mapped.tensors), [name])

    def test_int8_rule(self):
        values = np.zeros((3, 70), np.float32)
        values[0, :3] = [127.0, 0.5, 1.5]  # ties to even
        values[1, 65:] = -3.0
        steps, scales = quantize.quantize(values)
        self.assertEqual(tuple(scales.shape), (3, 2))
        self.assertEqual(steps[0, :3].tolist(), [127, 0, 2])
        self.assertEqual(steps[1, 65:].tolist(), [-127] * 5)
        self.assertEqual(np.abs(steps[2]).max(), 0)

    def test_int4_rule(self):
        codes = np.arange(70) % 16
        values = np.zeros((3, 70), np.float32)
        values[0] = np.array(int4.VALUES)[codes] * 0.5
        values[1] = np.array(int4.VALUES)[codes] * -2.0
        found, scales = int4.quantize(values)
        self.assertEqual(tuple(scales.shape), (3, 3))
        self.assertEqual(arrays.widen(scales).tolist(), [[0.5] * 3, [-2.0] * 3, [0.0] * 3])
        self.assertEqual(found[:2].tolist(), [codes.tolist()] * 2)
        packed = int4.pack(found[:, :5])
        self.assertEqual(packed[0].tolist(), [0 | 1 << 4, 2 | 3 << 4, 4])

    def test_int4_error_feedback_is_nearer_on_its_inputs(self):
        generator = np.random.default_rng(1)
        matrix = generator.standard_normal((48, 100)).astype(np.float32)
        inputs = (generator.standard_normal((500, 100))
                  @ generator.standard_normal((100, 100))).astype(np.float32)
        hessian = inputs.T @ inputs

        def error(codes, scales):
            wide = arrays.widen(scales, np.float32).repeat(32, 1)[:, :100]
            rounded = np.array(int4.VALUES)[codes] * wide
            return float(np.square(inputs @ (rounded - matrix).T).mean())

        nearest = error(*int4.quantize(matrix))
        self.assertLess(error(*int4.quantize_with_feedback(matrix, hessian)), 0.6 * nearest)
        none = int4.quantize_with_feedback(matrix, np.zeros((100, 100)))
        self.assertEqual(error(*none), nearest)

    def test_calibration_sums_the_inputs_of_every_matrix(self):
        config, tensors = export.load(str(ROOT / 'models/zoo/lssar-6m'))
        sums = calibration.hessians(config, tensors, list(range(100)))
        self.assertEqual(set(sums), {name for name, tensor in tensors.items() if tensor.ndim == 2})
        for name, hessian in sums.items():
            self.assertEqual(tuple(hessian.shape), (tensors[name].shape[1],) * 2, name)
            self.assertTrue(np.linalg.eigvalsh(hessian).min() > -1e-3 * hessian.max(), name)

    def test_bf16_rounds_as_pytorch_does(self):
        values = torch.randn(10000, generator=torch.Generator().manual_seed(1))
        values[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3.4e38, 1e-45])
        values[6:9] = torch.tensor([1.00390625, 1.01171875, 1.00390637])  # ties and beyond
        rounded = arrays.convert(values.numpy(), 'BF16')
        self.assertTrue(arrays.equal(rounded, torch_file.to_array(values.bfloat16())))
        self.assertTrue(np.array_equal(arrays.widen(rounded, np.float32),
                                       values.bfloat16().float().numpy()))
        self.assertTrue(np.isnan(arrays.widen(arrays.convert(np.array([np.nan]), 'BF16'))).all())

    def test_erf(self):
        x = torch.linspace(-7, 7, 20001, dtype=torch.float64)
        self.assertLess(np.abs(forward.erf(x.numpy()) - torch.erf(x).numpy()).max(), 1e-15)

    def test_tokenizer_files(self):
        def write(folder, *files):
            path = self.folder / folder
            path.mkdir(exist_ok=True)
            for file in files:
                (path / file).write_text('IQ== 0\nIg== 1\n')
            return str(path)

        gpt2 = write('gpt2', 'encoder.json', 'vocab.bpe', 'tokenizer_config.json')
        self.assertEqual(sorted(tokenizer_files.read(gpt2, None).contents),
                         ['merges.txt', 'tokenizer_config.json', 'vocab.json'])
        self.assertEqual(tokenizer_files.read(write('none'), None).contents, {})
        self.refused('has none of', tokenizer_files.read, gpt2, write('none'))
        self.refused('no such file', tokenizer_files.read, gpt2, '/nonexistent')
        self.refused('needs .*vocab.bpe', tokenizer_files.read, gpt2,
                     write('half', 'encoder.json') + '/encoder.json')
        tiktoken = write('tiktoken', 'r50k_base.tiktoken', 'my.tiktoken')
        self.assertEqual(list(tokenizer_files.read(tiktoken, None).contents),
                         ['r50k_base.tiktoken'])
        self.refused('does not say its word pattern', tokenizer_files.read, tiktoken,
                     tiktoken + '/my.tiktoken')

    def test_program(self):
        """The command through `lssar`: exit codes, help that knows every flag."""
        source = self.path('program.pt')
        torch.save(foreign.randomize(foreign.NanoGPT(foreign.Shape(1))).checkpoint(), source)
        environment = {**os.environ, 'PATH': f'{os.path.dirname(sys.executable)}:/usr/bin:/bin'}
        cli = os.environ['LSSAR_CLI']

        def run(*arguments):
            return subprocess.run([cli, *arguments], env=environment, capture_output=True,
                                  text=True, timeout=120, check=False)

        done = run('import', source, '--out', self.path('program'), '--attention', 'lssar', '--p',
                   '15', '--set', 'activation_function=gelu', '--set', 'rope_theta=10000', '--set',
                   'rope_layout=half')
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        self.assertIn('generated   ids 0, ', done.stdout)
        done = run('import', source, '--out', self.path('program'), '--attention', 'lssar')
        self.assertEqual(done.returncode, 1)
        self.assertIn('exists; --overwrite replaces it', done.stderr)
        done = run('import', source, '--out', self.path('another'))
        self.assertEqual(done.returncode, 2)
        self.assertIn('--attention lssar --p 15', done.stderr)


if __name__ == '__main__':
    unittest.main()
