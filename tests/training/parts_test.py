"""Units of the training recipe: documents, overlap, rows, passkey documents, resuming."""

import argparse
import collections
import contextlib
import dataclasses
import io
import json
import pathlib
import random
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree as ElementTree

import numpy as np
import torch

import recipe  # noqa: F401
import batches
import corpus
import evaluate
import optimizers
import overlap
import passkey
import plot_lengths
import prepare
import presets
import run
import train

WORDS = [f'word{i}' for i in range(400)]


def sentence(seed, num_words=60):
    return ' '.join(random.Random(seed).choices(WORDS, k=num_words))


class CorpusTest(unittest.TestCase):

    def test_documents_and_dialogs_are_parsed(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / 'a.txt').write_text('One.\nTwo.\n<|endoftext|>\nThree.\n<|endoftext|>\nFour.\n')
            (root / 'b.jsonl').write_text(json.dumps({'messages': [
                {'role': 'user', 'content': 'Hi '}, {'role': 'assistant', 'content': 'Ho'}]}))
            self.assertEqual(list(corpus.texts(root)), ['One.\nTwo.', 'Three.', 'Four.'])
            self.assertEqual(list(corpus.dialogs(root)), ['<|user|>Hi<|assistant|>Ho'])

    def test_a_line_that_is_no_dialog_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, 'b.jsonl')
            good = json.dumps({'messages': [{'role': 'user', 'content': 'Hi'}]})
            path.write_text(f'{good}\n\n  \n{good}\n')
            self.assertEqual(list(corpus.dialogs(folder)), ['<|user|>Hi'] * 2)
            for wrong in ('{', '[]', '{"messages": []}', '{"messages": [{"role": "user"}]}',
                          '{"messages": 5}', '{"messages": [{"role": "user", "content": null}]}'):
                path.write_text(f'{good}\n\n{wrong}\n')
                with self.assertRaisesRegex(SystemExit, f'{path}:3: must be '):
                    list(corpus.dialogs(folder))
            path.write_text(good.replace('user', 'system'))
            with self.assertRaisesRegex(
                    SystemExit, f"{path}:1: the role 'system' must be one of user, assistant"):
                list(corpus.dialogs(folder))
            self.assertEqual(list(corpus.messages(folder)),
                             [[{'role': 'system', 'content': 'Hi'}]])

    def test_split_is_by_document_without_duplicates(self):
        documents = [sentence(seed) for seed in range(400)]
        train_part, held_out = prepare.split(documents + documents[::-1], 0.2)
        self.assertEqual(sorted(train_part + held_out), sorted(documents))
        self.assertTrue(40 < len(held_out) < 120)


class OverlapTest(unittest.TestCase):

    def test_shared_13_grams_are_found_in_any_case_and_punctuation(self):
        words = sentence(1).split()
        evaluation = overlap.Evaluation([' '.join(words), sentence(2)])
        shared = ', '.join(words[20:33]).upper()
        self.assertEqual(evaluation.shares(f'{sentence(3)} {shared} {sentence(4)}'), 1)
        self.assertEqual(evaluation.shares(f'{sentence(3)} {shared[:-1]} {sentence(4)}'), 0)
        self.assertEqual(evaluation.shares(' '.join(words[:12])), 0)
        self.assertEqual(evaluation.shares(' '.join(words)), 48)

    def test_overlapping_documents_are_dropped_and_counted(self):
        documents = [sentence(seed) for seed in range(10)]
        evaluation = overlap.Evaluation([f'{sentence(99)} {documents[4]}'])
        clean, num_dropped, num_shared = prepare.drop_overlaps(documents, evaluation)
        self.assertEqual(clean, documents[:4] + documents[5:])
        self.assertEqual((num_dropped, num_shared), (1, 48))


class PackedTest(unittest.TestCase):

    def test_rows_cover_an_epoch_and_shift_in_the_next(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f'{folder}/text.bin'
            np.arange(1000, dtype=np.uint16).tofile(path)
            rows = batches.Packed(path, 10, seed=1)
            epochs = [[rows.row(epoch * rows.num_rows + i) for i in range(rows.num_rows)]
                      for epoch in range(2)]
            starts = [sorted(row[0] for row in epoch) for epoch in epochs]
            for epoch, first in zip(epochs, starts):
                self.assertTrue(all((np.diff(row) == 1).all() and len(row) == 11 for row in epoch))
                self.assertEqual(set(np.diff(first)), {10})
            self.assertNotEqual([row[0] for row in epochs[0]], starts[0])
            self.assertNotEqual(starts[0], starts[1])


class OptimizerTest(unittest.TestCase):

    def test_muon_updates_are_nearly_orthogonal(self):
        torch.manual_seed(0)
        for shape in ((24, 8), (8, 24)):
            w = torch.nn.Parameter(torch.zeros(shape))
            w.grad = torch.randn(shape)
            optimizers.Muon([w], lr=1.0).step()
            singular = torch.linalg.svdvals(w.detach() / max(1, shape[0] / shape[1]) ** 0.5)
            self.assertTrue((singular > 0.6).all() and (singular < 1.3).all(), singular)
            self.assertLess((w.detach() * w.grad).sum().item(), 0)


class EvaluateTest(unittest.TestCase):

    def test_wilson_interval(self):  # Newcombe 1998, table I
        low, high = evaluate.wilson(81, 263)
        self.assertAlmostEqual(low, 0.2553, places=4)
        self.assertAlmostEqual(high, 0.3662, places=4)
        self.assertEqual(evaluate.wilson(0, 20)[0], 0)
        self.assertEqual(evaluate.wilson(20, 20)[1], 1)

    def test_rows_longer_than_the_held_out_text_are_refused(self):
        val = np.arange(4000, dtype=np.uint16)
        self.assertEqual(evaluate.evaluation_rows(val, 1, 3999).shape, (1, 4000))
        for length in 4000, 8192, 16384:
            for num_rows in 1, 2, 8:
                with self.assertRaisesRegex(SystemExit, f'has 4000 ids; a row of {length} tokens'):
                    evaluate.evaluation_rows(val, num_rows, length)
        with self.assertRaisesRegex(SystemExit, 'a row of 4000 tokens'):
            evaluate.measure(argparse.Namespace(lengths=[1, 4000]), None, val, None, '')

    def test_rows_that_overlap_are_refused(self):
        val = np.arange(4001, dtype=np.uint16)
        rows = evaluate.evaluation_rows(val, 7, 500)
        self.assertTrue((np.diff(rows[:, 0]) >= 500).all())
        with self.assertRaisesRegex(
                SystemExit, '8 rows of 500 tokens overlap in .* 4001 ids: give --eval-rows 7 or'):
            evaluate.evaluation_rows(val, 8, 500)
        for length in range(100, 4001):
            most = evaluate.most_rows(length, len(val))
            self.assertTrue(most == 1 or (len(val) - length - 1) // most >= length, length)
            self.assertLess((len(val) - length - 1) // (most + 1), length)

    def test_a_run_checks_the_rows_before_it_trains(self):
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder, 'data')
            data.mkdir()
            (data / 'prepare.json').touch()
            np.arange(4000, dtype=np.uint16).tofile(data / 'val.bin')
            with unittest.mock.patch('train.run', side_effect=AssertionError), \
                    self.assertRaisesRegex(SystemExit, 'data/val.bin has 4000 ids; a row of 16384'):
                run.run(run.arguments(['--out', folder]))

    def test_ticks_span_every_loss(self):
        for losses in ([3.5, 3.6], [5.2, 9.9], [0.1, 0.11], [6.0, 6.0]):
            ticks = plot_lengths.loss_ticks(losses)
            self.assertLessEqual(ticks[0], min(losses))
            self.assertGreaterEqual(ticks[-1], max(losses))
            self.assertEqual(len(ticks), 5)

    def test_a_figure_of_many_runs_with_any_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, row in (('loss', {'loss': 4.0}),
                              ('passkey', {'accuracy': 0.5, 'interval95': [0.2, 0.8]})):
                pathlib.Path(folder, f'{name}.json').write_text(json.dumps({
                    'lengths': [{'length': length, **row} for length in (256, 512)]}))
            path = f'{folder}/figure.svg'
            names = ['R&D', 'a<b', '"', "'", *'efgh']
            plot_lengths.draw(path, [(name, folder) for name in names], 256)
            texts = [each.text for each in ElementTree.parse(path).iter()
                     if each.tag.endswith('text')]
            self.assertEqual([text for text in texts if text in names], names)
            error = io.StringIO()
            with unittest.mock.patch('sys.argv', ['plot_lengths.py', path, *[folder] * 9]), \
                    contextlib.redirect_stderr(error), self.assertRaises(SystemExit):
                plot_lengths.main()
            self.assertIn('RUN: 9 are given; at most 8 have a colour', error.getvalue())


class PresetTest(unittest.TestCase):

    def test_shares_sum_below_one_and_rates_decay(self):
        for preset in presets.PRESETS.values():
            for progress in np.linspace(0, 1, 101):
                self.assertLess(sum(presets.shares(preset, progress).values()), 0.95)
            self.assertLess(presets.rate_scale(preset, 10**6, 0.999), 0.05)
            self.assertEqual(presets.changes(preset), '')

    def test_numbers_out_of_their_limits(self):
        parser = argparse.ArgumentParser()
        train.add_arguments(parser)
        evaluate.add_arguments(parser)
        for words, said in (
                ('--steps 0', '--steps: 0: must be at least 1'),
                ('--warmup 0', '--warmup: 0: must be at least 1'),
                ('--micro-rows 0', '--micro-rows: 0: must be at least 1'),
                ('--rows -4', '--rows: -4: must be at least 1'),
                ('--minutes nan', '--minutes: nan: must be above 0 and finite'),
                ('--lr 0', '--lr: 0: must be above 0 and finite'),
                ('--passkey 1.5', '--passkey: 1.5: must be from 0 to 1'),
                ('--lengths 256,0', '--lengths: 0: must be at least 1'),
                ('--trials 0', '--trials: 0: must be at least 1'),
                ('--steps x', "--steps: invalid int value: 'x'")):
            error = io.StringIO()
            with self.subTest(words), contextlib.redirect_stderr(error), \
                    self.assertRaises(SystemExit) as raised:
                parser.parse_args(words.split())
            self.assertEqual(raised.exception.code, 2)
            self.assertIn(f'error: argument {said}\n', error.getvalue())
        given = parser.parse_args(['--passkey', '0', '--repeat', '1', '--lr', '1e-3'])
        self.assertEqual((given.passkey, given.repeat, given.lr), (0, 1, 1e-3))

    def test_aimed_tokens_fit_the_steps(self):
        smoke = presets.PRESETS['smoke']
        self.assertLessEqual(abs(smoke.steps * smoke.rows * smoke.ctx / smoke.aim_tokens - 1), 0.1)


class ResumeTest(unittest.TestCase):
    """A tiny vocabulary without SentencePiece: ids are numbers."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        rng = np.random.default_rng(0)
        for kind in ('text', 'dialogs'):
            rng.integers(3, 60, 4000).astype(np.uint16).tofile(f'{self.folder}/{kind}.bin')
        parts = {name: [60, 61] for name in ('head', 'before', 'between', 'after', 'ask', 'stop')}
        with open(f'{self.folder}/passkey.json', 'w') as file:
            json.dump({**parts, 'eos': 2, 'blank': 62, 'fill': [5, 6, 7],
                       'digits': list(range(10, 20))}, file)
        self.preset = presets.Preset('smoke', '', 1, 2, 16, 128, rows=4, micro_rows=2,
                                     aim_tokens=0, steps=12, warmup=3)

    def make_run(self, **changes):
        config = presets.config_of(self.preset, 'lssar', 15, 64)
        return train.Run(self.preset, config, self.folder, **changes)

    def trained(self, run, is_stopped=lambda: False):
        train.train(run, f'{self.folder}/state.pt', io.StringIO(), is_stopped)
        return torch.load(f'{self.folder}/state.pt')

    def test_resumed_run_has_the_bits_of_an_uninterrupted_one(self):
        whole = self.trained(self.make_run())
        first = self.make_run()
        self.trained(first, is_stopped=lambda: first.step == 5)
        self.assertEqual(first.step, 5)
        second = self.make_run()
        second.load(f'{self.folder}/state.pt')
        self.assertEqual(second.step, 5)
        resumed = self.trained(second)
        self.assertEqual((resumed['step'], resumed['rows']), (whole['step'], whole['rows']))
        for name, weight in whole['net'].items():
            self.assertTrue(torch.equal(weight, resumed['net'][name]), name)

    def test_other_settings_are_refused(self):
        self.trained(self.make_run())
        usual = self.preset
        for name, value in (('lr', 1e-3), ('muon_lr', 0.01), ('rows', 8), ('warmup', 4),
                            ('passkey', 0.5), ('repeat', 0.0)):
            self.preset = dataclasses.replace(usual, **{name: value})
            flag, was = '--' + name.replace('_', '-'), getattr(usual, name)
            with self.subTest(name), self.assertRaisesRegex(
                    SystemExit, f'was trained with {flag} {was}, not {value}: give {flag} {was}'):
                self.make_run().load(f'{self.folder}/state.pt')
        self.preset = dataclasses.replace(usual, name='', steps=0, minutes=9.0, micro_rows=1)
        self.make_run().load(f'{self.folder}/state.pt')

    def test_seeds_give_different_runs(self):
        state = self.trained(self.make_run())
        other = self.trained(self.make_run(seed=1))
        self.assertFalse(torch.equal(state['net']['wte.weight'], other['net']['wte.weight']))
        with self.assertRaises(SystemExit):
            self.make_run().load(f'{self.folder}/state.pt')

    def test_row_kinds_follow_the_shares(self):
        rows = self.make_run().batches
        before = collections.Counter()
        for step in range(200):
            tokens, weight, kinds = rows.step(step, 0.3)
            self.assertEqual(tokens.shape, (4, 129))
            self.assertEqual(weight.shape, (4, 129))
            before += kinds
        self.assertEqual(sum(before.values()), 800)
        self.assertTrue(0.06 < before['passkey'] / 800 < 0.18, before)
        self.assertTrue(0.13 < before['repeat'] / 800 < 0.27, before)
        self.assertEqual(before['dialogs'], 0)
        last = sum((rows.step(step, 0.95)[2] for step in range(200)), collections.Counter())
        self.assertTrue(0.65 < last['dialogs'] / 800 < 0.85, last)

    def test_gradients_do_not_depend_on_the_rows_of_a_pass(self):
        rows = self.make_run().batches
        batch = next(batch for batch in (rows.step(step, 0.3) for step in range(100))
                     if len(batch[2]) == 3)  # text, passkeys and a repeated segment
        found = {}
        for micro in 1, 2, 4:
            self.preset.micro_rows = micro
            run = self.make_run()
            run.net.double()
            loss = run.gradients(*batch[:2])
            found[micro] = loss, torch.cat([each.grad.flatten() for each in run.net.parameters()])
        for micro in 1, 2:
            self.assertLess(((found[micro][1] - found[4][1]).norm() / found[4][1].norm()).item(),
                            1e-6)
            self.assertAlmostEqual(found[micro][0][0], found[4][0][0], places=5)
            self.assertAlmostEqual(found[micro][0][1], found[4][0][1], places=5)

    def test_weights_of_answers_and_first_segments(self):
        rows, rng, num_digits = self.make_run().batches, random.Random(1), 0
        for _ in range(20):
            ids, weight = rows.passkey_row(rng)
            answers = [i for i, each in zip(ids, weight) if each > 1]
            self.assertLessEqual(set(answers), {62, 60, 61, *range(10, 20)})
            num_digits += sum(10 <= i < 20 for i in answers)
            ids, weight = rows.repeat_row(rng)
            n = int((weight == 0).sum()) - 1
            self.assertTrue(1 <= n <= 128 and (ids[n:] == ids[:-n]).all())
        self.assertGreater(num_digits, 20)

    def test_documents_draw_in_the_order_of_their_text(self):
        with open(f'{self.folder}/passkey.json') as file:
            documents = passkey.Documents(json.load(file))
        for seed in range(20):
            text, key = passkey.make(7, random.Random(seed))
            ids, answer, depth = documents.make(7, random.Random(seed))
            self.assertEqual(''.join(str(i - 10) for i in answer[1:-2]), key)
            place = text[:text.index('The pass key is ' + key)].count(passkey.FILL)
            self.assertEqual(round(depth * 7), place)


if __name__ == '__main__':
    unittest.main()
