"""models/training/heal: the decoder, the two stages, resuming, and the delta, on tiny models."""

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import io
import itertools
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import numpy as np
import torch

import recipe
import attention
import checkpoint_files

sys.path.append(str(recipe.FOLDER.parents[1] / 'models/training/heal'))

import answers  # noqa: E402
import budgets  # noqa: E402
import curve  # noqa: E402
import decoder  # noqa: E402
import differences  # noqa: E402
import heal  # noqa: E402
import retrieval  # noqa: E402
import rows  # noqa: E402
import stages  # noqa: E402
import streams  # noqa: E402

VOCABULARY = 64
LLAMA = {
    'vocab_size': VOCABULARY, 'n_positions': 256, 'n_layer': 2, 'n_head': 4,
    'num_key_value_heads': 2, 'n_embd': 32, 'n_inner': 48, 'attention': {'kind': 'softmax'},
    'normalization': 'rms_norm', 'layer_norm_epsilon': 1e-5, 'mlp_kind': 'gated',
    'activation_function': 'silu', 'attention_bias': False, 'mlp_bias': False, 'rope_theta': 10000,
    'tie_word_embeddings': True}
NEOX = {
    **LLAMA, 'num_key_value_heads': 4, 'normalization': 'layer_norm', 'mlp_kind': 'plain',
    'activation_function': 'gelu', 'attention_bias': True, 'mlp_bias': True,
    'parallel_residual': True, 'partial_rotary_factor': 0.5, 'rope_layout': 'interleaved',
    'tie_word_embeddings': False}
GPT2 = {**NEOX, 'parallel_residual': False, 'positions': 'learned', 'tie_word_embeddings': True}
for field in ('rope_theta', 'partial_rotary_factor', 'rope_layout'):
    del GPT2[field]
NOPE = {**LLAMA, 'nope_layers': [1]}


def tensors_of(config, seed=0):
    """Random tensors of a config.json. Large W_q and W_k, so that attention is far from even."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, dim = config['n_embd'], config['n_inner'], config['n_embd'] // config['n_head']
    qkv = (config['n_head'] + 2 * config['num_key_value_heads']) * dim
    shapes = {'wte': (VOCABULARY, hidden), 'ln_f': (hidden,)}
    if not config['tie_word_embeddings']:
        shapes['lm_head'] = (VOCABULARY, hidden)
    if config.get('positions') == 'learned':
        shapes['wpe'] = (config['n_positions'], hidden)
    for i in range(config['n_layer']):
        shapes.update({f'h.{i}.ln_1': (hidden,), f'h.{i}.ln_2': (hidden,),
                       f'h.{i}.attn.c_attn': (qkv, hidden),
                       f'h.{i}.attn.c_proj': (hidden, hidden),
                       f'h.{i}.mlp.c_fc': (inner, hidden), f'h.{i}.mlp.c_proj': (hidden, inner)})
        if config['mlp_kind'] == 'gated':
            shapes[f'h.{i}.mlp.c_gate'] = (inner, hidden)
    tensors = {}
    for name, shape in shapes.items():
        scale = 0.4 if len(shape) == 2 else 0.1
        tensors[name + '.weight'] = torch.randn(shape, generator=generator) * scale + (
            len(shape) == 1)
        has_bias = config['attention_bias'] and name not in ('wte', 'wpe', 'lm_head')
        if has_bias:
            tensors[name + '.bias'] = torch.randn(shape[0], generator=generator) * 0.1
    return tensors


def write_run(folder, config=LLAMA):
    """RUN/teacher and RUN/data with random weights and ids."""
    teacher, data = pathlib.Path(folder, 'teacher'), pathlib.Path(folder, 'data')
    teacher.mkdir()
    data.mkdir()
    (teacher / 'config.json').write_text(json.dumps({'model_type': 'lssar_gpt', **config}))
    (teacher / 'import.json').write_text(json.dumps({'dtype': None, 'set': {}, 'ignore': []}))
    checkpoint_files.write_safetensors(tensors_of(config), f'{teacher}/model.safetensors',
                                       {'source_sha256': json.dumps({'base.bin': '0' * 64})})
    rng = np.random.default_rng(0)
    for name in (*budgets.shares(), 'val'):
        rng.integers(0, VOCABULARY, 5000).astype(np.uint16).tofile(f'{data}/{name}.bin')
    np.array([30, 40, 10, 4920], np.uint32).tofile(f'{data}/retrieval.lengths')
    np.array([20, 25, 4955], np.uint32).tofile(f'{data}/dialogs.lengths')
    (np.arange(5000) % 10 == 7).astype(np.uint8).tofile(f'{data}/retrieval.answers')


class RunFolder(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        write_run(self.folder)
        self.enterContext(unittest.mock.patch('heal.HELD_OUT_TOKENS', 256))

    def make_run(self, preset=budgets.PRESETS['smoke'], **options):
        """A run whose rows of held-out text are short, and few."""
        run = heal.Run(preset, self.folder, **options)
        run.lengths = (32,)
        return run

    def with_steps(self, steps, **changes):
        """A run with so many steps of distillation."""
        smoke = budgets.PRESETS['smoke']
        return self.make_run(dataclasses.replace(smoke, distil=dataclasses.replace(
            smoke.distil, steps=steps, **changes)))

    def finished(self, run, is_stopped=lambda: False):
        heal.train(run, is_stopped, out=io.StringIO())
        return torch.load(f'{self.folder}/state.pt')


class DecoderTest(unittest.TestCase):

    def test_lssar_is_the_papers_function(self):
        shape = decoder.shape_of({**LLAMA, 'num_key_value_heads': 4})
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 4, 70, 8) for _ in range(3))
        for p in (3, 15, 7.5):
            found = decoder.Decoder(shape, {}, 'lssar', p).attend(q, k, v, 0)
            expected = attention.attention(q.double(), k.double(), v.double(), 'lssar', p)
            self.assertLess((found - expected.transpose(1, 2).flatten(2)).abs().max(), 1e-5)

    def test_logits_are_those_of_the_import(self):
        forward = differences.client('forward')
        tokens = list(range(3, 43))
        scaled = [{**LLAMA, 'n_positions': 20, 'rope_scaling': {'type': kind, 'factor': 3}}
                  for kind in ('dynamic', 'linear', 'yarn')]
        for base in (LLAMA, NEOX, GPT2, NOPE, {**LLAMA, 'positions': 'none'}, *scaled):
            for kind, p in (('softmax', 15), ('lssar', 15), ('lssar', (12.5, 3))):
                spec = {'kind': kind} if kind == 'softmax' else differences.attention_of(p)
                config, tensors = {**base, 'attention': spec}, tensors_of(base)
                net = decoder.Decoder(decoder.shape_of(config), tensors, kind, p)
                found = net.hidden(torch.tensor(tokens)[None])[0] @ net.head().T
                model = forward.Model(config, lambda name: tensors[name].double().numpy()
                                      if name in tensors else None)
                expected = model.logits(tokens, range(len(tokens)))
                self.assertLess(np.abs(found.numpy() - expected).max(), 1e-3, (base, spec))

    def test_powers_by_layer_are_one_for_each(self):
        with self.assertRaisesRegex(ValueError, 'p has 3 values; the model has'):
            decoder.Decoder(decoder.shape_of(LLAMA), {}, 'lssar', (12, 15, 15))
        self.assertEqual(heal.arguments(['--out', 'x', '--p', '12,10.5']).p, (12, 10.5))
        self.assertEqual(heal.arguments(['--out', 'x', '--p', '7']).p, 7)
        rows_given = heal.arguments(['--out', 'x', '--rows', '32x1024,1x8192']).rows
        self.assertEqual(rows_given, ((32, 1024), (1, 8192)))
        for wrong in ('32', '32x', '0x8', '4x5x6'):
            with self.assertRaises(SystemExit), unittest.mock.patch('sys.stderr', io.StringIO()):
                heal.arguments(['--out', 'x', '--rows', wrong])
        shipped = recipe.FOLDER.parents[1] / 'models/zoo/smollm2-lssar'
        self.assertEqual(differences.powers_of(shipped),
                         (12,) * 5 + (10,) * 5 + (12,) * 5 + (15,) * 15)

    def test_what_is_not_computed_is_refused_by_name(self):
        with self.assertRaisesRegex(SystemExit, 'qk_norm'):
            decoder.shape_of({**LLAMA, 'qk_norm': {'kind': 'rms_norm'}})
        with self.assertRaisesRegex(
                SystemExit, "positions is 'alibi'; .* computes 'none', 'learned', 'rotary' alone"):
            decoder.shape_of({**LLAMA, 'positions': 'alibi'})

    def test_dynamic_ntk_is_the_servers(self):
        config = {**LLAMA, 'n_positions': 64, 'rope_scaling': {'type': 'dynamic', 'factor': 3}}
        lengths = [decoder.rope_length(config, length) for length in (1, 64, 65, 128, 129)]
        self.assertEqual(lengths, [64, 64, 128, 128, 256])
        config['rope_scaling'] = {'type': 'linear', 'factor': 2}
        self.assertEqual(decoder.rope_length(config, 65), 65)


class StagesTest(RunFolder):

    def test_transfer_lowers_the_error_of_every_layer(self):
        run = self.make_run()
        same_rows = run.rows.draw(0, 0, 4, 64)
        run.rows.draw = lambda *_: same_rows
        losses = [run.train_step()[0] for _ in range(5)]
        self.assertLess(losses[-1], 0.9 * losses[0], losses)
        for name, tensor in run.trained.items():
            is_moved = not torch.equal(tensor.detach(), run.teacher.weights[name])
            self.assertEqual(is_moved, '.c_attn.' in name, name)

    def test_divergence_has_the_gradient_of_autograd(self):
        torch.manual_seed(0)
        mine, theirs = torch.randn(90, 16, requires_grad=True), torch.randn(90, 16)
        head = torch.randn(VOCABULARY, 16)
        targets = torch.randint(-1, 3, (90,)) * 7
        targets[targets < 0] = -1
        weights = torch.rand(90)
        found = stages.Divergence.apply(mine, theirs, head, head, targets, weights)
        grad, = torch.autograd.grad(found, mine)
        log_p, log_q = (theirs @ head.T).log_softmax(-1), (mine @ head.T).log_softmax(-1)
        kl = (log_p.exp() * (log_p - log_q)).sum(-1)
        known = -log_q.gather(1, targets.clamp_min(0)[:, None])[:, 0]
        expected = (torch.where(targets < 0, kl, known) * weights).sum()
        self.assertAlmostEqual(float(found), float(expected), places=4)
        self.assertTrue(torch.allclose(grad, torch.autograd.grad(expected, mine)[0], atol=1e-5))

    def test_a_teacher_reads_rows_beyond_its_reach_in_windows(self):
        teacher = self.make_run().teacher
        teacher.shape = dataclasses.replace(teacher.shape, positions=8)
        tokens = torch.arange(32).view(2, 16)
        hidden = stages.within_reach(teacher, tokens)
        self.assertEqual(hidden.shape[:2], tokens.shape)
        for first, end, skipped in ((0, 8, 0), (4, 12, 4), (8, 16, 4)):
            window = teacher.hidden(tokens[:, first:end])[:, skipped:]
            self.assertLess(float((hidden[:, first + skipped : end] - window).abs().max()), 1e-5)
        with self.assertRaisesRegex(ValueError, 'rows of 10 tokens are no whole number'):
            stages.within_reach(teacher, tokens[:, :10])

    def test_a_student_that_is_the_teacher_has_no_divergence(self):
        run = self.make_run()
        tokens, answers = run.rows.draw(1, 0, 2, 40)
        teacher = run.teacher.hidden(tokens).flatten(0, 1)
        student = run.student.hidden(tokens).flatten(0, 1)
        rule = stages.rule_of(tokens, torch.zeros_like(answers))
        for mine, low, high in ((teacher, -1e-5, 1e-5), (student, 0.01, 10)):
            loss = stages.Divergence.apply(mine, teacher, run.teacher.head(), run.student.head(),
                                           *rule)
            self.assertTrue(low < float(loss) < high, loss)

    def test_answers_are_learned_from_the_text(self):
        tokens, answers = torch.tensor([[5, 6, 7, 8], [9, 1, 2, 3]]), torch.zeros(2, 4).bool()
        answers[0, 2] = answers[0, 0] = answers[1, 3] = True  # no token comes before the first
        targets, weights = stages.rule_of(tokens, answers)
        self.assertEqual(targets.tolist(), [-1, 7, -1, -1, -1, -1, 3, -1])
        for index, weight in enumerate(weights):
            expected = stages.ANSWERS / 2 if index in (1, 6) else 1 / 6
            self.assertAlmostEqual(float(weight), expected, places=6)

        parts = [stages.rule_of(tokens[i : i + 1], answers[i : i + 1], stages.counts_of(answers))
                 for i in range(2)]
        for whole, each in zip((targets, weights), zip(*parts)):
            self.assertTrue(torch.equal(whole, torch.cat(each)))

        run = self.make_run()
        run.next_stage()
        asking = rows.Rows(f'{self.folder}/data', VOCABULARY, {'retrieval': 1}, seed=0)
        same_rows = asking.draw(1, 0, 4, 50)
        run.rows.draw = lambda *_: same_rows

        def loss_on_answers():
            targets, _ = stages.rule_of(*same_rows)
            logits = run.student.hidden(same_rows[0]).flatten(0, 1) @ run.student.head().T
            return float(torch.nn.functional.cross_entropy(logits[targets >= 0],
                                                           targets[targets >= 0]).detach())
        before = loss_on_answers()
        for _ in range(6):
            run.train_step()
        self.assertLess(loss_on_answers(), before - 0.05)


    def test_a_step_does_not_depend_on_the_rows_at_a_time(self):
        tokens, answers = self.make_run().rows.draw(1, 0, 4, 64)
        answers[:] = False
        answers[0, 10:14] = answers[3, 5] = True
        found = []
        for at_a_time in 1, 2, 4:
            run = self.make_run()
            run.next_stage()
            run.rows.draw = lambda *_: (tokens, answers)
            run.preset = dataclasses.replace(run.preset, distil=dataclasses.replace(
                run.preset.distil, micro_tokens=64 * at_a_time))
            run.optimizer.zero_grad = lambda *_, **__: None  # the gradients stay
            loss, _ = run.train_step()
            found.append((loss, torch.cat([each.grad.flatten()
                                           for each in run.parameters().values()])))
        for loss, gradient in found[:2]:
            self.assertAlmostEqual(loss, found[2][0], places=4)
            self.assertLess((gradient - found[2][1]).norm() / found[2][1].norm(), 1e-4)


class LearnedPositionsTest(unittest.TestCase):

    def test_rows_are_no_longer_than_the_positions(self):
        with tempfile.TemporaryDirectory() as folder:
            write_run(folder, GPT2)
            preset = budgets.PRESETS['cpu']
            run = heal.Run(preset, folder)
            self.assertEqual(run.preset.distil.cycle, ((8, 256), (8, 256), (16, 256), (8, 256)))
            self.assertEqual(list(run.losses((run.teacher,))), [256])
            self.assertEqual(preset.distil.longest, 4096, 'the preset itself is as it was')
            run.train_step()


class ResumeTest(RunFolder):

    def test_resumed_run_has_the_bits_of_an_uninterrupted_one(self):
        whole = self.finished(self.make_run())
        for stop in (3, 6, 10):  # in transfer, between the stages, in distillation
            pathlib.Path(f'{self.folder}/state.pt').unlink()
            first, count = self.make_run(), iter(range(100))
            self.finished(first, is_stopped=lambda: next(count) == stop)
            self.assertEqual((first.stage, first.step), (stop // 6, stop % 6))
            second = self.make_run()
            second.resume(torch.load(f'{self.folder}/state.pt'))
            resumed = self.finished(second)
            self.assertEqual(resumed['tokens'], whole['tokens'])
            for part in ('trained', 'average'):
                for name, tensor in whole[part].items():
                    self.assertTrue(torch.equal(tensor, resumed[part][name]), (stop, name))

    def test_a_new_learning_rate_holds_after_resuming(self):
        self.finished(self.make_run(), is_stopped=iter([False] * 8 + [True]).__next__)
        smoke = budgets.PRESETS['smoke']
        changed = dataclasses.replace(smoke, distil=dataclasses.replace(smoke.distil, lr=0.5))
        run = heal.Run(changed, self.folder)
        run.resume(torch.load(f'{self.folder}/state.pt'))
        run.train_step()
        self.assertEqual(run.optimizer.param_groups[0]['lr'], 0.5 * changed.distil.rate_scale(2))

    def test_products_keep_their_type_unless_another_is_given(self):
        state = self.finished(self.make_run())
        self.assertIs(state['bf16'], False)
        cpu, smoke = budgets.PRESETS['cpu'], budgets.PRESETS['smoke']
        for is_faster in (False, True):
            with unittest.mock.patch('heal.is_bf16_faster', return_value=is_faster):
                self.assertIs(heal.chosen_bf16(None, None, cpu, 'cpu'), is_faster)
                self.assertIs(heal.chosen_bf16(None, None, smoke, 'cpu'), False)
                self.assertIs(heal.chosen_bf16(None, {'bf16': True}, cpu, 'cpu'), True)
                self.assertIs(heal.chosen_bf16(None, state, cpu, 'cpu'), False)
                self.assertIs(heal.chosen_bf16(True, state, smoke, 'cpu'), True)

    def test_the_best_time_after_the_first_decides_the_type(self):
        for bf16, fp32, is_faster in (((9, 3, 1, 3), (1, 2, 2, 2), True),
                                      ((1, 2, 2, 2), (9, 3, 1, 3), False)):
            clock = [edge for seconds in bf16 + fp32 for edge in (0.0, seconds)]
            with unittest.mock.patch('heal.time.perf_counter', side_effect=clock):
                self.assertIs(heal.is_bf16_faster('cpu'), is_faster)

    def test_a_finished_run_goes_on_with_more_steps(self):
        state = self.finished(self.with_steps(6))
        self.assertEqual((state['stage'], state['step']), (2, 6))
        same, more, old = self.with_steps(6), self.with_steps(9), self.with_steps(9)
        same.resume(state)
        before = pathlib.Path(f'{self.folder}/state.pt').read_bytes()
        self.finished(same)  # nothing to do
        self.assertEqual(pathlib.Path(f'{self.folder}/state.pt').read_bytes(), before)
        more.resume(state)
        self.assertEqual((more.stage, more.step), (1, 6))
        self.assertEqual(more.optimizer.state_dict()['state'].keys(),
                         state['optimizer']['state'].keys())
        more.train_step()
        self.assertEqual((more.step, more.tokens > state['tokens']), (7, True))
        old.resume({**state, 'step': 0})  # of a version that did not say how many there were
        self.assertTrue(old.is_finished())

    def test_another_base_or_corpus_is_refused(self):
        words = ['--out', self.folder, '--base', 'a.gguf', '--corpus', 'texts']
        for made in 'teacher/config.json', 'data/prepare.json':
            pathlib.Path(self.folder, made).unlink(missing_ok=True)
        heal.check_sources(heal.arguments([*words[:2], '--base', 'wrong']))  # imported nothing
        heal.check_sources(heal.arguments(words))
        for made in 'teacher/config.json', 'data/prepare.json':
            pathlib.Path(self.folder, made).touch()
        for given in words, words[:2], words[:4]:
            heal.check_sources(heal.arguments(given))
        for flag, first in ('base', 'a.gguf'), ('corpus', 'texts'):
            with self.assertRaisesRegex(SystemExit, f'--{flag} /.*/{first}, not /.*/other: '):
                heal.check_sources(heal.arguments([*words, f'--{flag}', 'other']))
        pathlib.Path(self.folder, 'sources.json').unlink()  # as in a run of an earlier version
        heal.check_sources(heal.arguments(words))

    def test_a_run_that_diverges_ends_and_keeps_its_state(self):
        self.finished(self.with_steps(6), is_stopped=iter([False] * 8 + [True]).__next__)
        before = pathlib.Path(f'{self.folder}/state.pt').read_bytes()
        run = self.with_steps(6, lr=1e30, vector_lr=1e30)
        run.resume(torch.load(f'{self.folder}/state.pt'))
        with self.assertRaisesRegex(SystemExit, 'distil, step [4-6]: .* not finite'):
            self.finished(run)
        self.assertEqual(pathlib.Path(f'{self.folder}/state.pt').read_bytes(), before)
        self.assertNotIn('NaN', pathlib.Path(f'{self.folder}/log.jsonl').read_text())
        next(iter(run.trained.values())).data[0] = math.nan
        with self.assertRaisesRegex(SystemExit, 'has values that are not finite'):
            run.save(f'{self.folder}/state.pt')
        next(iter(run.average.values())).data[0] = math.nan
        with self.assertRaisesRegex(SystemExit, 'is not finite: the run has diverged'):
            differences.write(run)

    def test_rows_that_the_teacher_cannot_read_are_refused_at_the_start(self):
        with self.assertRaisesRegex(SystemExit, '--rows: rows of 300 tokens are no whole number'):
            self.with_steps(6, cycle=((4, 64), (1, 300)))

    def test_another_seed_is_refused(self):
        self.finished(self.make_run())
        with self.assertRaises(SystemExit):
            self.make_run(seed=1).resume(torch.load(f'{self.folder}/state.pt'))


class MinutesTest(RunFolder):

    def test_rate_falls_to_zero_until_the_time_is_over(self):
        with unittest.mock.patch('heal.time.monotonic', return_value=100.0) as clock:
            run = self.make_run(minutes=2)
            clock.return_value = 190.0
            self.assertEqual(run.time_scale(), 1.0)  # transfer is short: it keeps its schedule
            run.next_stage()
            self.assertEqual(run.time_scale(), 0.25)
            run.train_step()
            rate = run.preset.distil.lr * run.preset.distil.rate_scale(0)
            self.assertEqual(run.optimizer.param_groups[0]['lr'], 0.25 * rate)
            clock.return_value = 221.0
            self.finished(run)
        self.assertEqual((run.stage, run.step, run.time_scale()), (1, 1, 0.0))
        last = pathlib.Path(f'{self.folder}/log.jsonl').read_text().splitlines()[-1]
        self.assertIn('held_out', json.loads(last))


class DeltaTest(RunFolder):

    def test_round_trip_and_start(self):
        run = self.make_run()
        self.finished(run)
        written = differences.write(run)
        again = self.make_run()
        differences.start(again, f'{self.folder}/delta')
        self.assertEqual((again.stage, again.step), (1, 0))
        for name, tensor in run.average.items():
            base = run.teacher.weights[name]
            # int8 of a group's largest difference, and the scale's 8 bits
            bound = float((tensor - base).abs().max()) / 127 + 1e-6
            self.assertLess(float((again.trained[name] - tensor).abs().max()), bound, name)
        self.assertEqual(written.config, {'attention': {'kind': 'lssar', 'p': 15}})

    def test_a_package_that_the_import_needs_is_named(self):
        missing = ModuleNotFoundError(name='gguf')
        with (unittest.mock.patch.object(differences.client('convert'), 'run', side_effect=missing),
              self.assertRaisesRegex(SystemExit, '^gguf is not installed: pip install gguf$')):
            differences.import_base('base.gguf', f'{self.folder}/teacher')

    def test_powers_by_layer_are_in_the_delta(self):
        run = self.make_run(p=(12.0, 3.5))
        written = differences.write(run)
        self.assertEqual(written.config['attention'],
                         [{'kind': 'lssar', 'p': 12}, {'kind': 'lssar', 'p': 3.5}])
        differences.start(self.make_run(p=(12.0, 3.5)), f'{self.folder}/delta')
        with self.assertRaisesRegex(SystemExit, "the run has {'kind': 'lssar', 'p': 15}"):
            differences.start(self.make_run(), f'{self.folder}/delta')

    def test_a_run_from_a_delta_imports_the_base_as_the_delta_does(self):
        differences.write(self.make_run())
        manifest = pathlib.Path(f'{self.folder}/delta/delta.json')
        scaling = {'type': 'dynamic', 'factor': 2}
        asked = {'dtype': 'fp16', 'set': {'rope_scaling': scaling, 'eos_token_id': 2},
                 'ignore': ['old']}
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), 'import': asked}))
        imported = pathlib.Path(self.folder, 'imported')
        imported.mkdir()
        with unittest.mock.patch.object(differences.client('convert'), 'run'):
            differences.import_base('base.gguf', imported, assignments=['eos_token_id=7'],
                                    ignored=['new'], start=f'{self.folder}/delta')
        self.assertEqual(json.loads((imported / 'import.json').read_text()), {
            'dtype': 'fp16', 'ignore': ['new', 'old'],
            'set': {'attention': {'kind': 'softmax'}, 'rope_scaling': scaling,
                    'eos_token_id': 7}})

    def test_the_delta_of_an_imported_base(self):
        base, run = pathlib.Path(self.folder, 'base'), pathlib.Path(self.folder, 'run')
        base.mkdir()
        (base / 'config.json').write_text(json.dumps({'model_type': 'lssar_gpt', **LLAMA}))
        checkpoint_files.write_safetensors(
            {'transformer.' * (name != 'lm_head.weight') + name: tensor
             for name, tensor in tensors_of(LLAMA).items()}, f'{base}/model.safetensors')
        run.mkdir()
        differences.import_base(str(base), f'{run}/teacher')
        pathlib.Path(self.folder, 'data').rename(run / 'data')
        healed = heal.Run(budgets.PRESETS['smoke'], str(run))
        written = differences.write(healed)
        found = {name: hashlib.sha256((base / name).read_bytes()).hexdigest()
                 for name in ('config.json', 'model.safetensors')}
        written.check_base(found)
        with self.assertRaises(differences.client('errors').CheckpointError):
            written.check_base({**found, 'model.safetensors': '0' * 64})
        differences.start(heal.Run(budgets.PRESETS['smoke'], str(run)), f'{run}/delta')

    def test_another_base_is_refused(self):
        run = self.make_run()
        differences.write(run)
        change = differences.client('delta').read(f'{self.folder}/delta')
        error = differences.client('errors').CheckpointError
        with self.assertRaisesRegex(error, 'base.bin has sha256 0000'):
            change.check_base({'x/base.bin': '1' * 64})
        change.check_base({'x/renamed.bin': '0' * 64})
        manifest = pathlib.Path(f'{self.folder}/delta/delta.json')
        manifest.write_text(manifest.read_text().replace(change.checkpoint, 'f' * 64))
        with self.assertRaisesRegex(error, 'must be ffff'):
            differences.start(self.make_run(), f'{self.folder}/delta')


def package_of_test(name):
    """Jinja2 is not needed by what does not render."""
    return None if name == 'jinja2' else importlib.import_module(name)


class TokenizerTest(unittest.TestCase):

    def test_tokenizer_model_is_read(self):
        encode, place, id_of = streams.open_tokenizer(
            recipe.FOLDER.parents[1] / 'models/zoo/lssar-6m')
        (sea, empty), end = encode(['The sea', '']), id_of('</s>')
        self.assertEqual((len(sea), empty, end), (2, [], 2))
        self.assertEqual(place('Thé sea')[0], encode(['Thé sea'])[0])
        self.assertEqual(place('The sea'), (sea, [0, 3]))
        self.assertEqual(place('Thé sea')[1][-1], 3)  # characters, not bytes
        self.assertIsNone(id_of('<|endoftext|>'))
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(
                SystemExit, 'neither tokenizer.json nor tokenizer.model'):
            streams.open_tokenizer(folder)


    def write_model(self, folder, config, vocabulary=4100):
        zoo = recipe.FOLDER.parents[1] / 'models/zoo/lssar-6m'
        shutil.copy(zoo / 'tokenizer.model', folder)
        said = {'vocab_size': vocabulary, 'bos_token_id': 1, 'eos_token_id': 2}
        pathlib.Path(folder, 'config.json').write_text(json.dumps(said))
        pathlib.Path(folder, 'tokenizer_config.json').write_text(json.dumps(config))

    # As a part of each text between them: spaces, a newline, and what is no piece.
    TEXTS = ('<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nThe sea. </s>',
             'Hi</s>\n', '</s>the', '</s> the  sea', ' the<|im_end|> the ', '<s>Hi', '<|im_end|>',
             '', 'Th\u00e9 \u65e5\u65e5<|im_end|>\u65e5 <|im_end|><|im_end|> \u65e5',
             '<pad> <|im_start', '<|user|>the<|user|> the')
    CONFIG = {'bos_token': '<s>', 'eos_token': '</s>', 'pad_token': '<pad>',
              'additional_special_tokens': ['<|im_end|>'],
              'added_tokens_decoder': {'4096': {'content': '<|im_start|>'}}}

    def test_tokens_beside_tokenizer_model_are_one_id(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write_model(folder, self.CONFIG)
            encode, place, id_of = streams.open_tokenizer(folder)
            plain, = encode(['Hi the'])
            chat, = encode([self.TEXTS[0]])
            self.assertEqual([chat[0], chat[-1]], [4096, 2])
            self.assertEqual(chat.count(4096), 2)
            self.assertEqual(chat.count(4098), 1, 'additional_special_tokens come behind <pad>')
            self.assertEqual((id_of('<|im_end|>'), id_of('<pad>')), (4098, 4097))
            self.assertEqual(encode(['Hi the<|im_end|>'])[0], [*plain, 4098])
            self.assertNotEqual(encode(['<|im_end|>Hi the'])[0], [4098, *plain], 'no dummy prefix')
            for text, ids in zip(self.TEXTS, encode(self.TEXTS)):
                placed, begins = place(text)
                self.assertEqual(placed, ids)
                self.assertEqual(begins, sorted(begins))
                for i, begin in zip(ids, begins):
                    if i == 4098:
                        self.assertTrue(text.startswith('<|im_end|>', begin), (text, begins))
            self.assertEqual(place('a</s>the sea')[1], [0, 1, 5, 8])

    @unittest.skipUnless('LSSAR_TOKENIZE_TEXTS' in os.environ, 'LSSAR_TOKENIZE_TEXTS is not set')
    def test_ids_are_those_of_the_server(self):
        for config in self.CONFIG, {**self.CONFIG, 'added_tokens_decoder': None}, {}:
            with tempfile.TemporaryDirectory() as folder:
                self.write_model(folder, config)
                texts = [each.encode() for each in self.TEXTS]
                found = subprocess.run(
                    [os.environ['LSSAR_TOKENIZE_TEXTS'], folder, '4100'], check=True,
                    input=b''.join(struct.pack('<I', len(each)) + each for each in texts),
                    stdout=subprocess.PIPE).stdout
                for text, ids in zip(self.TEXTS, streams.open_tokenizer(folder)[0](self.TEXTS)):
                    count, = struct.unpack_from('<I', found)
                    theirs = struct.unpack_from(f'<{count}i', found, 4)
                    self.assertEqual(ids, [*theirs], (config, text))
                    size, = struct.unpack_from('<I', found, 4 + 4 * count)
                    found = found[8 + 4 * count + size :]
                self.assertEqual(found, b'')

    def test_bos_begins_where_the_checkpoint_says_so(self):
        said = [{'role': 'user', 'content': 'the sea'}]
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch('streams.package',
                                                                          package_of_test):
            for adds_bos, bos in (True, 1), (False, None), (None, None):
                self.write_model(folder, {**self.CONFIG, 'add_bos_token': adds_bos})
                tokenizer = streams.Tokenizer(folder)
                self.assertEqual((tokenizer.bos, tokenizer.chat_bos), (bos, bos))
            self.write_model(folder, {**self.CONFIG, 'add_bos_token': True, 'chat_template': 'x'})
            pathlib.Path(folder, 'chat_roles.json').write_text('{}')
            roles = streams.differences.client('chat_roles')
            with unittest.mock.patch.object(roles, 'renderer'):
                tokenizer = streams.Tokenizer(folder)
            self.assertEqual((tokenizer.bos, tokenizer.chat_bos), (1, None), 'the table says all')

            tokenizer.chat_bos = 1
            text = '<|im_start|>the sea<|im_end|>'
            with contextlib.redirect_stdout(io.StringIO()):
                lengths = streams.pack([text, f'<s>{text}'], tokenizer, f'{folder}/x.bin', 99, 2, 1)
                streams.pack_retrieval([(text, said)], tokenizer, folder, 1)
            ids = np.fromfile(f'{folder}/x.bin', np.uint16).tolist()
            self.assertEqual(ids[:2], [1, 4096])
            self.assertEqual(ids, ids[: lengths[0]] * 2)
            ids = np.fromfile(f'{folder}/retrieval.bin', np.uint16).tolist()
            self.assertEqual(ids[:2], [1, 4096])
            self.assertEqual(np.fromfile(f'{folder}/retrieval.lengths', np.uint32), [len(ids)])
            self.assertEqual(pathlib.Path(folder, 'retrieval.answers').stat().st_size, len(ids))

    def test_chat_templates_are_those_of_the_import(self):
        with tempfile.TemporaryDirectory() as folder:
            settings, template = (pathlib.Path(folder, name) for name in (
                'tokenizer_config.json', 'chat_template.jinja'))
            settings.write_text(json.dumps({
                'eos_token': {'content': '<end>'}, 'bos_token': '<s>',
                'chat_template': [{'name': 'tool_use', 'template': 'x'},
                                  {'name': 'default', 'template': 'listed'}]}))
            special = {'bos_token': '<s>', 'eos_token': '<end>'}
            self.assertEqual(streams.chat_settings(folder), ('listed', special))
            template.write_text('a file of its own')
            self.assertEqual(streams.chat_settings(folder), ('a file of its own', special))
            template.unlink()
            settings.write_text('{"chat_template": 5}')
            with self.assertRaisesRegex(SystemExit, 'chat_template must be a text'):
                streams.chat_settings(folder)

    def write_tokenizer(self, folder, template):
        zoo = recipe.FOLDER.parents[1] / 'models/zoo/lssar-6m'
        for name in 'tokenizer.model', 'config.json':
            shutil.copy(zoo / name, folder)
        pathlib.Path(folder, 'chat_template.jinja').write_text(template)

    def test_chat_templates_run_as_the_import_runs_them(self):
        said = [{'role': 'user', 'content': 'Hi'}]
        roles = streams.differences.client('chat_roles')
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch('streams.package'), \
                unittest.mock.patch('streams.open_tokenizer',
                                    lambda _: (None, None, {'</s>': 2}.get)), \
                unittest.mock.patch.object(roles, 'renderer') as renderer:
            self.write_tokenizer(folder, 'text')
            run = renderer.return_value
            run.return_value, run.is_attack, run.errors = 'said', False, ['TemplateError: no']
            tokenizer = streams.Tokenizer(folder)
            renderer.assert_called_once_with('text', {})
            self.assertEqual(tokenizer.chat(said), 'said')
            run.assert_called_once_with(said, False)
            self.assertEqual([*streams.some_chats([said] * 2, tokenizer)], [('said', said)] * 2)
            run.return_value = None
            self.assertEqual(tokenizer.chat(said), '')
            with self.assertRaisesRegex(SystemExit, 'each of the first 2 dialogs .TemplateErr'):
                list(streams.some_chats([said] * 2, tokenizer))
            with self.assertRaisesRegex(SystemExit, f'first {streams.MAX_REFUSED:} dialogs'):
                list(streams.some_chats(itertools.repeat(said), tokenizer))
            run.side_effect = [None, 'said', None]
            self.assertEqual([*streams.some_chats([said] * 3, tokenizer)], [('said', said)])
            run.side_effect = roles.NoTable('writes more than 5 characters')
            with self.assertRaisesRegex(SystemExit, 'the chat template writes more than 5'):
                tokenizer.chat(said)
            run.side_effect = lambda *_: max(i for i in itertools.count() if i < 0)
            with unittest.mock.patch.object(roles, 'WALL_S', 0.1), \
                    self.assertRaisesRegex(SystemExit, 'the chat template takes more than 0.1 s'):
                tokenizer.chat(said)

    @unittest.skipUnless(importlib.util.find_spec('jinja2'), 'jinja2 is not installed')
    def test_chat_templates_run_no_code(self):
        said = [{'role': 'user', 'content': 'Hi'}]
        with tempfile.TemporaryDirectory() as folder:
            ran = pathlib.Path(folder, 'ran')
            self.write_tokenizer(
                folder, "{{ cycler.__init__.__globals__.os.popen('touch %s').read() }}" % ran)
            with self.assertRaisesRegex(SystemExit, 'does what no template may'):
                streams.Tokenizer(folder).chat(said)
            self.assertFalse(ran.exists())
            self.write_tokenizer(folder, '{% if %}')
            with self.assertRaisesRegex(SystemExit, 'the chat template cannot be read'):
                streams.Tokenizer(folder)
            self.write_tokenizer(folder, '{{ messages[0].content }}{{ eos_token }}')
            self.assertEqual(streams.Tokenizer(folder).chat(said), 'Hi')
            self.write_tokenizer(folder, "{% if tools is none %}{% for m in messages %}"
                                 "{% generation %}{{ m.content }}{% endgeneration %}"
                                 "{% break %}{% endfor %}{% endif %}")
            self.assertEqual(streams.Tokenizer(folder).chat(said * 2), 'Hi')
            self.write_tokenizer(folder, "{{ raise_exception('no') }}")
            tokenizer = streams.Tokenizer(folder)
            with self.assertRaisesRegex(SystemExit, 'first 1 dialogs .TemplateError: no'):
                list(streams.some_chats([said], tokenizer))


class RowsTest(RunFolder):

    def test_shares_and_lengths(self):
        run = self.make_run()
        drawn, again, other = (run.rows.draw(1, step, 3, 40) for step in (5, 5, 6))
        self.assertEqual([each.shape for each in drawn], [(3, 40), (3, 40)])
        self.assertTrue(torch.equal(drawn[0], again[0]))
        self.assertFalse(torch.equal(drawn[0], other[0]))
        with self.assertRaisesRegex(SystemExit, 'bin has 5000 ids; a row takes 6000'):
            run.rows.draw(1, 0, 1, 6000)
        for name in ('retrieval', 'dialogs'):
            with self.assertRaisesRegex(SystemExit, f'--{name} is a share from 0 to 1, not 2'):
                budgets.shares(**{name: 2})
        self.assertEqual(budgets.shares(0.5, 0.75),
                         {'text': 0.125, 'dialogs': 0.375, 'retrieval': 0.5})

    def begins_of(self, shares, length, name):
        """Where in stream `name` drawn rows begin; it must be all of them."""
        drawing = rows.Rows(f'{self.folder}/data', VOCABULARY, shares, seed=0)
        ids = np.fromfile(f'{self.folder}/data/{name}.bin', np.uint16).astype(int).tolist()
        begins = {tuple(ids[first : first + length]): first for first in range(len(ids))}
        drawn, _ = drawing.draw(1, 0, 50, length)
        return {begins[tuple(row.tolist())] for row in drawn}

    def test_rows_of_dialogs_begin_with_one(self):
        self.assertEqual(self.begins_of({'dialogs': 1}, 30, 'dialogs'), {0, 20, 45})
        self.assertEqual(self.begins_of({'dialogs': 1}, 4960, 'dialogs'), {0, 20})

    def test_retrieval_has_no_rows_that_hold_no_document(self):
        shares = {'dialogs': 0.01, 'retrieval': 0.99}
        self.assertEqual(self.begins_of(shares, 25, 'dialogs'), {0, 20, 45})  # 30, 40: too long

    def test_retrieval_rows_hold_a_whole_document(self):
        asking = rows.Rows(f'{self.folder}/data', VOCABULARY, {'retrieval': 1}, seed=0)
        ids = np.fromfile(f'{self.folder}/data/retrieval.bin', np.uint16).astype(int).tolist()
        begins = [ids[first : first + 50] for first in (0, 30)]  # of 30 and 40 ids, not 10 or 4920
        seen = []
        for step in range(20):
            drawn, answers = asking.draw(1, step, 2, 50)
            seen += [begins.index(row.tolist()) for row in drawn]
            self.assertEqual(answers[0].nonzero().flatten().tolist(), [7, 17, 27, 37, 47])
        self.assertEqual(set(seen), {0, 1})
        drawn, answers = asking.draw(1, 0, 1, 1000)  # no document fits: any place, and no answers
        self.assertEqual((drawn.shape, int(answers.sum())), ((1, 1000), 0))

    def test_answers_of_retrieval_rows_are_in_their_text(self):
        filler = ['The quick brown fox jumps over the lazy dog. It sleeps. ' * 20]
        for messages in itertools.islice(retrieval.documents(filler, 2000, seed=0), 50):
            self.assertEqual([each['role'] for each in messages],
                             ['user', 'assistant'] * (len(messages) // 2))
            questions = [each['content'] for each in messages[2::2]]
            self.assertEqual(len(questions), len(set(questions)))
            for answer in messages[1::2]:
                key = answer['content'].rstrip('.').split(' is ')[-1].replace('Use ', '')
                self.assertIn(key.replace('It is ', ''), messages[0]['content'])

    def test_rows_of_text_begin_with_bos(self):
        data = f'{self.folder}/data'
        for bos in None, 63:
            drawing = rows.Rows(data, VOCABULARY, {'text': 0.5, 'dialogs': 0.5}, 0, bos)
            drawn, _ = drawing.draw(0, 0, 40, 40)
            held_out = rows.held_out(data, VOCABULARY, 40, 9, bos)
            self.assertEqual(bool((held_out[:, 0] == 63).all()), bos is not None)
            begun = (drawn[:, 0] == 63).sum()
            self.assertTrue(10 < begun < 30 if bos else begun < 5, begun)
            if bos is None:
                plain, before = drawn, held_out
        self.assertTrue(torch.equal(drawn[:, 1:], plain[:, 1:]))
        self.assertTrue(torch.equal(held_out[:, 1:], before[:, 1:]))
        prepared = pathlib.Path(data, 'prepare.json')
        for text, bos in ('{"vocabulary": 64}', None), ('{"bos": 1}', 1):
            prepared.write_text(text)
            self.assertEqual(self.make_run().rows.bos, bos)

    def test_streams_are_packed_to_the_limit(self):
        class Bytes:
            vocabulary, end = 256, 0

            def encode(self, texts):
                return [list(text.encode()) for text in texts]

        path = f'{self.folder}/x.bin'
        self.assertEqual(streams.pack(['ab', 'c'], Bytes(), path, 100, end=0), [3, 2])
        self.assertEqual(np.fromfile(path, np.uint16).tolist(), [97, 98, 0, 99, 0])
        many = sum(streams.pack((str(i) for i in range(10**6)), Bytes(), path, 1000))
        self.assertTrue(1000 <= many < 3000, many)

    def test_too_few_documents_are_named_before_anything_is_kept(self):
        class Bytes:
            vocabulary, end, bos, chat_bos = 256, 0, None, None

            def encode(self, texts):
                return [list(text.encode()) for text in texts]

            def place(self, text):
                return list(text.encode()), range(len(text))

            def chat(self, messages):
                return ''.join(each['content'].strip() for each in messages)

        corpus = pathlib.Path(self.folder, 'corpus')
        corpus.mkdir()
        (corpus / 'a.txt').write_text('<|endoftext|>\n'.join(
            f'Document {i}. It has words. ' * 9 + '\n' for i in range(40)))

        def run(share, val_ids):
            with contextlib.redirect_stdout(io.StringIO()):
                streams.run(corpus, Bytes(), self.folder + '/new', 1000, 50, (), share, val_ids)

        for share, val_ids, counts in ((0.004, 99, '0 of 40 .* 0 ids'), (1, 99, '40 of 40'),
                                       (0.5, 10**6, r'\d+ of 40 .* must have 1000000 or more')):
            with self.assertRaisesRegex(SystemExit, f'corpus: {counts}.*give another --held-out'):
                run(share, val_ids)
            self.assertFalse(pathlib.Path(self.folder, 'new/prepare.json').exists())
        run(0.5, 99)
        self.assertTrue(pathlib.Path(self.folder, 'new/prepare.json').exists())

    def test_answers_are_marked_by_token(self):
        class Words:
            vocabulary, chat_bos = 256, None

            def place(self, text):
                begins = [i for i, letter in enumerate(text) if letter != ' ' and (
                    i == 0 or text[i - 1] == ' ')]
                return [len(text) % 256] * len(begins), begins

        said = [{'role': 'user', 'content': 'is it 12 ?'}, {'role': 'assistant', 'content': '12'},
                {'role': 'user', 'content': 'and'}, {'role': 'assistant', 'content': 'no 3 '}]
        text = 'U is it 12 ? A 12 U and A no 3 E'
        once = streams.pack_retrieval([(text, said), (text, said)], Words(), self.folder, 5)
        self.assertEqual(once, 13)
        flags = np.fromfile(f'{self.folder}/retrieval.answers', np.uint8).tolist()
        self.assertEqual(flags, [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0])
        self.assertEqual(np.fromfile(f'{self.folder}/retrieval.lengths', np.uint32).tolist(), [13])
        with self.assertRaisesRegex(SystemExit, 'the chat template changes what is said, "and"'):
            streams.pack_retrieval([(text.replace('and', 'AND'), said)], Words(), self.folder, 5)


class AnswersTest(unittest.TestCase):

    def test_a_stopped_run_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            def dialog(*contents):
                return json.dumps({'messages': [
                    {'role': ('user', 'assistant')[i % 2], 'content': content}
                    for i, content in enumerate(contents)]}) + '\n'
            pathlib.Path(folder, 'a.jsonl').write_text(''.join(
                [dialog(f'What is {i}?', 'A number.') for i in range(100)]
                + [dialog('What is 7? '), dialog('x' * 301), dialog(' ')]))
            out = pathlib.Path(folder, 'teacher.jsonl')
            asked = answers.questions(folder, out)
            self.assertEqual(sorted(asked), sorted(f'What is {i}?' for i in range(100)))
            calls = []

            def chat(part, first):
                calls.append((first, len(part)))
                if len(calls) == 2:
                    raise KeyboardInterrupt
                return [question.upper() for question in part], 3 * len(part)

            with self.assertRaises(KeyboardInterrupt):
                answers.write(chat, asked, out, io.StringIO())
            whole = out.read_bytes()
            with open(out, 'ab') as file:
                file.write(b'{"source": "tea')  # the end of a run that was killed
            answers.write(chat, asked, out, io.StringIO())
            self.assertEqual(calls, [(0, 64), (64, 36), (64, 36)])
            self.assertTrue(out.read_bytes().startswith(whole))
            said = [[each['content'] for each in json.loads(line)['messages']]
                    for line in out.read_text().splitlines()]
            self.assertEqual(said, [[question, question.upper()] for question in asked])
            with (unittest.mock.patch.dict(sys.modules, lssar=None),
                  unittest.mock.patch('sys.argv', ['answers.py', 'model', folder, f'{folder}/b']),
                  self.assertRaisesRegex(SystemExit, '^lssar is not installed: pip install ./cli')):
                answers.main()
            self.assertEqual(answers.questions(folder, out), asked)


class CurveTest(RunFolder):

    def test_a_log_that_was_cut_is_no_obstacle(self):
        log = pathlib.Path(f'{self.folder}/log.jsonl')
        log.write_bytes(b'{"stage": "transfer", "tokens": 1, "loss": 1}\n{"stage": "tr\xc3')
        self.finished(self.with_steps(6), is_stopped=lambda: True)
        self.assertEqual(log.read_bytes().splitlines()[1], b'{"stage": "tr\xc3')
        self.assertEqual(curve.read(log)[1]['device'], 'cpu')
        with unittest.mock.patch('curve.draw', side_effect=ValueError), \
                self.assertRaises(ValueError):
            heal.finish(self.make_run())
        self.assertTrue(pathlib.Path(f'{self.folder}/delta/delta.json').exists())

    def test_figure_shows_both_stages(self):
        run = self.make_run()
        run.lengths = heal.evaluation_lengths(run.teacher.shape)
        with unittest.mock.patch('heal.HELD_OUT_TOKENS', 2048):
            self.finished(run)
        curve.draw(curve.read(f'{self.folder}/log.jsonl'), f'{self.folder}/curve.svg')
        figure = pathlib.Path(f'{self.folder}/curve.svg').read_text()
        for part in ('relative error', 'KL', 'teacher, 512 tokens', '</svg>'):
            self.assertIn(part, figure)


if __name__ == '__main__':
    unittest.main()
