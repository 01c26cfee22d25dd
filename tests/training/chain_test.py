"""Runs every stage of the recipe at toy size and serves its checkpoint with the C++ program."""

import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np
import sentencepiece
import torch

import recipe
import checkpoint_files
import evaluate
import passkey
import run
import sparsity

SCRIPT = recipe.FOLDER.parent / 'gpu/train.sh'
VOCABULARY = 600
LENGTHS = (256, 512)
STEPS = 16


def lssar(*arguments):
    done = subprocess.run([os.environ['LSSAR_CLI'], *map(str, arguments)], capture_output=True,
                          text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f'{arguments}: {done.stderr}')
    return json.loads(done.stdout)


class ChainTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        torch.set_num_threads(1)  # at this size a second thread only waits
        cls.out, cls.said = folder.name, io.StringIO()
        cls.words = ['--corpus', str(recipe.CORPUS), '--out', cls.out, '--preset', 'smoke',
                     '--vocabulary', str(VOCABULARY), '--held-out', '0.2', '--trials', '2',
                     '--lengths', ','.join(map(str, LENGTHS)), '--threads', '1',
                     '--steps', str(STEPS)]
        with contextlib.redirect_stdout(cls.said):
            cls.net = run.run(run.arguments(cls.words))
        cls.model = f'{cls.out}/model'
        cls.tokenizer = sentencepiece.SentencePieceProcessor(
            model_file=f'{cls.model}/tokenizer.model')

    def report(self):
        return json.loads(pathlib.Path(f'{self.out}/data/prepare.json').read_text())

    def test_preparation_leaves_no_overlap(self):
        report = self.report()
        self.assertGreater(report['evaluation_ngrams'], 1000)
        for kind in ('text', 'dialogs'):
            self.assertGreater(report[kind]['held_out'], 0)
            self.assertEqual(report[kind]['shared_ngrams_left'], 0)
            ids = np.fromfile(f'{self.out}/data/{kind}.bin', np.uint16)
            self.assertEqual(len(ids), report[kind]['ids'])
            self.assertEqual((ids == report['eos_id']).sum(), report[kind]['documents'])
            self.assertLess(ids.max(), VOCABULARY)

    def test_tokenizer_has_digits_roles_newlines_and_bytes(self):
        pieces = self.tokenizer.encode('<|user|>1234\n<|assistant|>日', out_type=str)
        self.assertEqual(pieces[1:7], ['<|user|>', '1', '2', '3', '4', '\n'])
        self.assertEqual(pieces[-4:], ['<|assistant|>', '<0xE6>', '<0x97>', '<0xA5>'])

    def test_passkey_documents_as_ids_and_text_agree(self):
        with open(f'{self.out}/data/passkey.json') as file:
            documents = passkey.Documents(json.load(file))
        for seed in range(20):
            text, key = passkey.make(3, random.Random(seed))
            ids, answer, _ = documents.make(3, random.Random(seed))
            self.assertEqual(ids + answer, self.tokenizer.encode(f'{text} {key}.'))

    def test_training_lowers_the_loss_of_both_models(self):
        for kind in ('lssar', 'softmax'):
            with open(f'{self.out}/{kind}/loss.json') as file:
                loss = json.load(file)['lengths'][0]['loss']
            self.assertLess(loss, 0.95 * np.log(VOCABULARY))

    def test_checkpoint_passes_its_self_check(self):
        described = lssar('info', '--model', self.model, '--json')
        self.assertEqual((described['attention_kind'], described['attention_p']), ('lssar', 15))
        self.assertEqual(described['max_position_embeddings'], 256)
        self.assertTrue(0 < described['self_check_error'] < 3e-2, described)

    def test_losses_match_pytorch(self):
        val = np.fromfile(f'{self.model}/held_out.bin', np.uint16)
        for length in LENGTHS:
            served, = lssar('score', '--model', self.model, '--ids', f'{self.model}/held_out.bin',
                            '--lengths', length, '--rows', 2, '--kv-cache-dtype', 'fp32',
                            '--max-model-len', length + 1, '--json')['lengths']
            expected = evaluate.loss_at(self.net, val, length, 2)
            self.assertEqual(served['num_tokens'], expected['num_tokens'])
            self.assertLess(abs(served['loss'] - expected['loss']), 1e-4)

    def test_checkpoint_round_trips(self):
        net = checkpoint_files.read_model(self.model)
        self.assertEqual(net.c, self.net.c)
        for name, weight in self.net.state_dict().items():
            self.assertTrue(torch.equal(net.state_dict()[name], weight), name)

    def test_checkpoint_evaluates_as_its_state(self):
        net, val, documents = evaluate.load_checkpoint(self.model)
        with open(f'{self.out}/lssar/loss.json') as file:
            loss = json.load(file)['lengths'][0]['loss']
        self.assertLess(abs(evaluate.loss_at(net, val, 256)['loss'] - loss), 1e-3)
        with open(f'{self.out}/data/passkey.json') as file:
            self.assertEqual(documents.parts, json.load(file))

    def test_some_non_zero_weights_are_negligible(self):
        row = evaluate.evaluation_rows(np.fromfile(f'{self.model}/held_out.bin', np.uint16), 1, 255)
        not_zero, counts = sparsity.shares(self.net, row[0], 64)
        self.assertTrue(0 < counts < not_zero < 0.9, (counts, not_zero))

    def test_token_logprobs_match_pytorch(self):
        context, rest = '<|user|>What is a synonym of', " 'happy'?<|assistant|>A synonym is 'glad'."
        scored = lssar('score', '--model', self.model, '--kv-cache-dtype', 'fp32',
                       '--context', context, '--continuation', rest, '--tokens',
                       '--json')['continuations'][0]['tokens']
        ids = [self.report()['eos_id'], *self.tokenizer.encode(context + rest)]
        losses = evaluate.row_losses(self.net, torch.tensor(ids))[-len(scored):]
        self.assertEqual([token['id'] for token in scored], ids[-len(scored):])
        for token, loss in zip(scored, losses):
            self.assertLess(abs(token['logprob'] + loss.item()), 1e-3)

    def test_passkey_cells_match_the_program(self):
        served = lssar('passkey', '--model', self.model, '--lengths', 512, '--trials', 2,
                       '--max-model-len', 1024, '--json')
        with open(f'{self.out}/lssar/passkey.json') as file:
            expected = json.load(file)
        self.assertEqual(served['seed'], expected['seed'])
        self.assertEqual(served['lengths'][0].keys(), expected['lengths'][1].keys())
        self.assertEqual(served['depths'], expected['depths'])
        self.assertEqual(served['cells'], [cell for cell in expected['cells']
                                           if cell['length'] == 512])

    def test_card_has_numbers_and_commands(self):
        card = pathlib.Path(f'{self.model}/README.md').read_text()
        with open(f'{self.out}/softmax/loss.json') as file:
            twin = json.load(file)['lengths'][1]['loss']
        for part in (f'{twin:.3f}', 'lssar score --model .', '--preset smoke', 'length.svg',
                     f'{self.report()["text"]["ids"]:,}'):
            self.assertIn(part, card)
        self.assertIn('</svg>', pathlib.Path(f'{self.model}/length.svg').read_text())

    def test_finished_stages_are_skipped(self):
        self.assertIn(f'step {STEPS}', self.said.getvalue())
        self.assertEqual(self.said.getvalue().count('tokenizer\n'), 1)

    def test_a_run_with_other_settings_is_evaluated_anew(self):
        def again(*flags):
            """(what was evaluated, losses) of the same run in another folder, with these flags."""
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                run.run(run.arguments([*self.words, '--out', folder, '--no-twin', *flags]))
            with open(f'{folder}/lssar/loss.json') as file:
                losses = [row['loss'] for row in json.load(file)['lengths']]
            card = pathlib.Path(f'{folder}/model/README.md').read_text()
            for loss in losses:
                self.assertIn(f'{loss:.3f}', card)
            return [line.split(':')[0] for line in said.getvalue().splitlines()
                    if line.startswith('length ')], losses

        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.out, folder, dirs_exist_ok=True)
            evaluated, first = again()
            self.assertEqual(evaluated, [])
            steps = '--steps', str(STEPS + 2)
            evaluated, more = again(*steps)
            self.assertEqual(evaluated, ['length 256', 'length 512'])
            self.assertNotEqual(first, more)
            self.assertEqual(again(*steps), ([], more))
            self.assertEqual(again(*steps, '--lengths', '256')[0], ['length 256'])
            evaluated, _ = again(*steps, '--lengths', '256', '--trials', '1')
            self.assertEqual(evaluated, ['length 256'])

    def test_training_on_another_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            def script(*arguments, part_mib='1'):
                return subprocess.run(
                    ['sh', str(SCRIPT), *arguments], check=True, capture_output=True, text=True,
                    env={**os.environ, 'PYTHON': sys.executable, 'ALLOW_CPU': '1',
                         'PART_MIB': part_mib}).stdout

            packed, work, results = f'{folder}/packed', f'{folder}/work', f'{folder}/results'
            script('pack', f'{self.out}/data', packed)
            first, last = f'{packed}/part.00', f'{folder}/part.00'
            os.rename(first, last)
            self.assertIn('still to come', script('take', packed, work))
            os.rename(last, first)
            self.assertIn('all parts are here', script('take', packed, work))
            script('start', work, '--preset', 'smoke', '--steps', '3', '--no-twin', '--lengths',
                   '256', '--trials', '1')
            deadline_s = time.monotonic() + 600
            while 'not running' not in (shown := script('show', work)):
                self.assertLess(time.monotonic(), deadline_s, shown)
                time.sleep(0.2)
            self.assertIn('MB of weights', shown)
            script('collect', work, results)
            subprocess.run(f'cat {results}/part.* | tar -xJ -C {folder}', shell=True, check=True)
            checked = lssar('info', '--model', f'{folder}/runs/model', '--json')
            self.assertLess(checked['self_check_error'], 3e-2)


if __name__ == '__main__':
    unittest.main()
