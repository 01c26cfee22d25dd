"""deploy/evaluation/report.py on short texts: numbers, figures, going on where it stopped."""

import contextlib
import io
import json
import math
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from environments import HERE, OWN_TASKS_ALONE, changed, environment, isolated

from lssar import Client
from programs import CLI, SERVER, RunningServer
from quick_models import UNCHECKED as MODEL

ROOT = HERE.parents[1]
sys.path.append(str(ROOT / 'deploy' / 'evaluation'))

import compare  # noqa: E402

FLAGS = ['--lengths', '128,256', '--trials', '2', '--p', '5,15']


class EvaluationTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.python = environment('foreign')
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.out = folder / 'out'
        cls.ids = folder / 'ids.bin'
        cls.ids.write_bytes(pathlib.Path(MODEL, 'held_out.bin').read_bytes()[:2400])
        cls.tasks = folder / 'tasks'
        cls.tasks.mkdir()
        text = (HERE / 'tasks' / 'choice.yaml').read_text(encoding='utf-8')
        (cls.tasks / 'choice.yaml').write_text(text, encoding='utf-8')
        cls.modules = changed(folder / 'modules', 'lm_eval', OWN_TASKS_ALONE)
        cls.first = cls.report()
        cls.text = (cls.out / 'report.md').read_text(encoding='utf-8')
        cls.html = (cls.out / 'report.html').read_text(encoding='utf-8')

    @classmethod
    def report(cls, *flags, code=0, cli=CLI, out=None):
        """Runs the program. -> its output."""
        command = [cls.python, ROOT / 'deploy' / 'evaluation' / 'report.py', MODEL, out or cls.out,
                   '--ids', cls.ids, '--tasks', cls.tasks, *FLAGS, *flags]
        done = subprocess.run([str(part) for part in command], text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                              env=isolated(LSSAR_CLI=str(cli), LSSAR_SERVER=SERVER,
                                           PYTHONPATH=cls.modules))
        if done.returncode != code:
            raise AssertionError(done.stdout)
        return done.stdout

    def read(self, name):
        return json.loads((self.out / f'{name}.json').read_text(encoding='utf-8'))

    def test_numbers_are_the_servers(self):
        ids = self.ids.read_bytes()
        tokens = [int.from_bytes(ids[i:i + 2], 'little') for i in range(0, len(ids), 2)]
        loss = self.read('loss')['lengths'][0]
        with RunningServer(model=MODEL) as server, Client(server.address) as client:
            scores = []
            step = (len(tokens) - 128 - 1) // loss['num_rows']
            for row in range(loss['num_rows']):
                part = tokens[row * step:row * step + 129]
                [score] = client.score(part[:1], [part[1:]])
                scores.append(-score.logprob / 128)
        self.assertEqual(loss['length'], 128)
        self.assertAlmostEqual(loss['loss'], sum(scores) / len(scores), places=12)
        # The sweep's p of the checkpoint is the checkpoint.
        own = next(value for value in self.read('sweep')['values'] if value['p'] == 15)
        self.assertEqual(own['lengths'][0]['loss'], loss['loss'])
        self.assertEqual(len(self.read('statistics')['statistics']), 24)
        self.assertEqual(set(self.read('tasks')['results']), {'lssar_choice'})

    def test_the_report_has_every_number_with_its_command(self):
        for name in ('tasks', 'loss', 'positions', 'passkey', 'sweep', 'statistics', 'attention'):
            self.assertIn(f'Data: `{name}.json`', self.text)
        for at in self.read('loss')['lengths']:
            self.assertIn(f'| {at["num_rows"]} | {at["loss"]:.4f} |', self.text)
        commands = re.findall(r'^    (lssar(?:-lm-eval)? .*)$', self.text, re.MULTILINE)
        self.assertEqual(sum('--json' in command for command in commands), 6)
        for figure in re.findall(r'\]\(([a-z.]+)\)', self.text):
            self.assertGreater((self.out / figure).stat().st_size, 1000)
        self.assertEqual(self.html.count('<img '), 5)
        self.assertEqual(self.html.count('src="data:image/'), 5)
        self.assertIn('<table>', self.html)

    def test_finished_steps_are_kept(self):
        before = self.read('statistics')
        (self.out / 'statistics.json').unlink()
        again = self.report()
        self.assertEqual(again.count(': kept'), 6)
        self.assertIn('statistics: lssar attention', again)
        self.assertEqual(self.read('statistics'), before)

    def test_a_stopped_step_goes_on(self):
        out = self.out.parent / 'stopped'
        shutil.copytree(self.out, out)
        (out / 'passkey.json').unlink()
        key = json.loads((out / 'steps.json').read_text())['passkey']['key']
        partial = out / f'passkey-{key[:16]}.jsonl'
        other = out / 'passkey-0123456789abcdef.jsonl'
        other.write_text('{}\n')
        subprocess.run([CLI, 'passkey', '--model', MODEL, '--lengths', '256', '--trials', '2',
                        '--output', partial], check=True, timeout=300, env=isolated(),
                       stdout=subprocess.DEVNULL)
        line, *lines = partial.read_text().splitlines()
        partial.write_text('\n'.join([json.dumps({**json.loads(line), 'answer': 'kept'}), *lines])
                           + '\n')
        self.report('--steps', 'passkey', out=out)
        trials = json.loads((out / 'passkey.json').read_text())['trials']
        self.assertIn('kept', [trial['answer'] for trial in trials])
        self.assertEqual(list(out.glob('passkey-*')), [])

    def test_a_figure_that_was_cut_off_is_drawn_again(self):
        """`lssar` ends within a figure: what it left has another name."""
        whole = (self.out / 'loss.svg').read_bytes()
        (self.out / 'loss.svg').unlink()
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        program = folder / 'lssar'
        program.write_text(f'''#!/bin/sh
if [ "$1" = figure ]; then echo '<svg' >"$3"; exit 9; fi
exec {pathlib.Path(CLI).resolve()} "$@"
''')
        program.chmod(0o755)
        self.report('--steps', 'loss', code=1, cli=program)
        self.report('--steps', 'loss')
        self.assertEqual((self.out / 'loss.svg').read_bytes(), whole)
        self.assertEqual(list(self.out.glob('partial-*')), [])

    def test_a_list_of_steps_that_was_cut_off(self):
        path = self.out / 'steps.json'
        whole = path.read_text()
        path.write_text(whole[:20])
        self.assertNotIn('kept', self.report('--steps', 'statistics'))
        self.assertIn('statistics', json.loads(path.read_text()))
        path.write_text(whole)  # for the other tests

    def test_steps_can_be_chosen(self):
        said = self.report('--steps', 'loss,passkey')
        self.assertEqual(said.count(': kept'), 2)
        self.assertNotIn('sweep', said)
        self.assertIn("--steps: 'speed' is none of tasks, loss,",
                      self.report('--steps', 'loss,speed', code=1))

    def test_the_device_is_the_servers(self):
        said = self.report('--steps', 'loss', '--device', 'tpu', code=1)
        self.assertRegex(said, r'--device.* "?tpu')

    def test_evaluations_side_by_side(self):
        other = self.out.parent / 'other'
        shutil.copytree(self.out, other, dirs_exist_ok=True)
        loss = self.read('loss')
        loss['lengths'] = [
            {**at, 'loss': at['loss'] + 1,
             'row_losses': [row + 1 + (-1) ** i / 100 for i, row in enumerate(at['row_losses'])]}
            for at in loss['lengths'][:1]]
        (other / 'loss.json').write_text(json.dumps(loss), encoding='utf-8')
        passkey = self.read('passkey')
        for trial in passkey['trials']:
            trial['is_hit'] = not trial['is_hit']
        (other / 'passkey.json').write_text(json.dumps(passkey), encoding='utf-8')
        owner = {'path': '/b/out', 'checkpoint_hash': '5'}
        (other / 'checkpoint.json').write_text(json.dumps(owner))
        both = self.out.parent / 'both'
        command = [self.python, ROOT / 'deploy' / 'evaluation' / 'compare.py', both, self.out,
                   other]
        subprocess.run([str(part) for part in command], check=True, timeout=300, env=isolated())
        text = (both / 'comparison.md').read_text(encoding='utf-8')
        at = self.read('loss')['lengths'][0]
        error = f'± {at["standard_error"]:.3f}'
        self.assertIn(f'| out | {at["loss"]:.3f} {error} |', text)
        self.assertIn(f'| other | {at["loss"] + 1:.3f} {error} |', text)
        self.assertIn('| lssar_choice | acc |', text)
        # Paired with the first: rows differ by 1.01 and 0.99 in turns.
        rows = at['row_losses']
        self.assertEqual(len(rows), at['num_rows'])
        self.assertAlmostEqual(statistics.fmean(rows), at['loss'], places=6)
        apart = [1 + (-1) ** i / 100 for i in range(len(rows))]
        spread = statistics.stdev(apart) / len(apart) ** 0.5
        self.assertIn(f'| other | {statistics.fmean(apart):+.3f} ± {spread:.3f} |', text)
        # The same items differ by nothing, the passkeys by what was turned.
        num_items = len(self.read('tasks')['items']['lssar_choice']['acc'])
        self.assertIn(f'| lssar_choice | acc | {num_items} | +0.0000 ± 0.0000 |', text)
        hits = [trial['is_hit'] for trial in self.read('passkey')['trials']
                if trial['length'] == 256]
        mean = sum(1 - 2 * hit for hit in hits) / len(hits)
        self.assertRegex(text, rf'\| other \| .*{re.escape(f"{mean:+.3f}")} ± ')
        self.assertIn('| other | `5` | `/b/out` |', text)
        for name in ('loss.svg', 'passkey.svg'):
            self.assertIn('other', (both / name).read_text(encoding='utf-8'))

    def test_an_item_of_perplexity_is_a_log_likelihood(self):
        """Two items with probabilities 1/2 and 1/8, and 1/2 and 1/2: perplexities 4 and 2."""
        def evaluation(*probabilities):
            logs = list(map(math.log, probabilities))
            return {'tasks': {'items': {'words': {'perplexity': logs, 'acc': [1.0, 0.0]}}}}

        lines = compare.task_difference_table([('a', evaluation(1 / 2, 1 / 8)),
                                               ('b', evaluation(1 / 2, 1 / 2))])
        self.assertIn('| words | log-likelihood (nats, higher is better) | 2 | '
                      f'{math.log(4) / 2:+.4f} ± {math.log(4) / 2:.4f} |', lines)
        self.assertIn('| words | acc | 2 | +0.0000 ± 0.0000 |', lines)

    def test_rows_of_other_tokens_are_not_paired(self):
        def evaluation(is_last_left_out):
            return {'loss': {'lengths': [
                {'length': 128, 'row_losses': [3.0, 4.0], 'is_last_left_out': False},
                {'length': 256, 'row_losses': [5.0], 'is_last_left_out': is_last_left_out}]}}

        whole, cut = ('a', evaluation(False)), ('b', evaluation(True))
        self.assertEqual(compare.difference_table([whole, ('b', evaluation(False))], 'loss')[-2],
                         '| b | +0.000 ± 0.000 | +0.000 |')
        self.assertEqual(compare.difference_table([whole, cut], 'loss')[-2],
                         '| b | +0.000 ± 0.000 | other tokens |')

    def test_other_texts_are_not_paired(self):
        """The same lengths, keys, depths and counts, of another text or tokenizer."""
        def evaluation(text):
            trial = {'length': 128, 'key': '12345', 'depth': 0.5, 'is_hit': True}
            loss = {'length': 128, 'row_losses': [3.0, 4.0]}
            return {'loss': {'lengths': [loss], 'inputs_hash': text},
                    'passkey': {'lengths': [{'length': 128}], 'trials': [trial],
                                'inputs_hash': text},
                    'tasks': {'items': {'words': {'acc': [1.0, 0.0]}}, 'inputs_hash': text}}

        first, same, other = ('a', evaluation('1')), ('b', evaluation('1')), ('b', evaluation('2'))
        for step, cell in (('loss', 'other tokens'), ('passkey', 'other documents')):
            self.assertIn('+0.000', compare.difference_table([first, same], step)[-2])
            self.assertEqual(compare.difference_table([first, other], step)[-2], f'| b | {cell} |')
        self.assertIn('+0.0000', compare.task_difference_table([first, same])[-2])
        self.assertEqual(compare.task_difference_table([first, other])[0],
                         'Not paired: the tasks of b are other files than those of a.')
        hashes = {step: self.read(step)['inputs_hash'] for step in ('loss', 'passkey', 'tasks')}
        self.assertEqual(len(set(hashes.values())), 3)
        self.assertEqual(self.read('positions')['inputs_hash'], hashes['loss'])

    def test_nothing_is_compared_with_itself(self):
        """Two directories of one name, or of one checkpoint, are refused."""
        twin = self.out.parent / 'deeper' / 'out'
        shutil.copytree(self.out, twin, dirs_exist_ok=True)
        renamed = self.out.parent / 'renamed'
        shutil.copytree(self.out, renamed, dirs_exist_ok=True)
        for other, sentence in ((twin, 'have the same name, out'), (self.out, 'the same name, out'),
                                (renamed, 'have the same checkpoint, ')):
            words = ['compare.py', str(self.out.parent / 'both'), str(self.out), str(other)]
            with contextlib.redirect_stderr(io.StringIO()) as errors, \
                    unittest.mock.patch('sys.argv', words):
                self.assertEqual(compare.main(), 1)
            self.assertIn(sentence, errors.getvalue())

    def test_the_scripts_refuse_equal_names_before_they_build(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for parent in 'a', 'b':
            (folder / parent / 'final').mkdir(parents=True)
            (folder / parent / 'final' / 'config.json').write_text('{}')
        one, other = folder / 'a' / 'final', folder / 'b' / 'final'
        for arguments, sentence in (
                ([one, other], 'two checkpoints are called final: give NAME=MODEL_DIR'),
                ([f'x={one}', f'y={one}'], f'{one.resolve()} is given twice'),
                ([one, folder / 'none'], 'there is no such directory'),
                ([f'a/b={one}', other], "the name 'a/b' has a slash")):
            done = subprocess.run(['sh', str(ROOT / 'deploy' / 'compare.sh'), str(folder / 'out'),
                                   *map(str, arguments)], check=False, timeout=300, text=True,
                                  stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(sentence, done.stderr)
        done = subprocess.run(['sh', str(ROOT / 'deploy' / 'evaluate.sh'), str(one)], check=False,
                              timeout=300, text=True, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn('model.safetensors does not exist', done.stderr)

    def test_results_of_another_checkpoint_are_not_overwritten(self):
        model = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / 'other'
        shutil.copytree(MODEL, model)
        command = [self.python, ROOT / 'deploy' / 'evaluation' / 'report.py', model, self.out,
                   '--ids', self.ids, '--tasks', self.tasks, *FLAGS]
        done = subprocess.run([str(part) for part in command], text=True, check=False, timeout=300,
                              stderr=subprocess.PIPE, env=isolated())
        self.assertEqual(done.returncode, 1)
        self.assertIn('give another OUT', done.stderr)

    def test_files_are_checked_first(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        latin1 = folder / 'latin1.txt'
        latin1.write_bytes('Er war müde.'.encode('latin-1'))
        foreign = folder / 'mine'
        foreign.mkdir()
        (foreign / 'report.md').write_text('precious')
        for flags, sentence in ((['--text', 'none.txt', '--check'], 'none.txt is no file'),
                                (['--p', '3,x', '--check'], "--p: 'x' is no number above 0"),
                                (['--tasks', 'none', '--check'], 'none is no directory'),
                                (['--text', str(latin1), '--check'],
                                 f'--text: {latin1} is not UTF-8 at byte 8'),
                                (['--check'], f'{foreign} has other files and no checkpoint.json: '
                                              'give another OUT')):
            out = foreign if flags == ['--check'] else self.out
            command = ['/usr/bin/python3', '-B', ROOT / 'deploy' / 'evaluation' / 'report.py',
                       MODEL, out, *flags]
            done = subprocess.run([str(part) for part in command], text=True, check=False,
                                  timeout=300, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(sentence, done.stderr)

    def test_errors_are_sentences(self):
        self.assertIn("'x' is no number of tokens", self.report('--lengths', 'x', code=1))
        self.assertIn('1200 ids are too few for rows of 4096',
                      self.report('--lengths', '4K', code=1))


if __name__ == '__main__':
    unittest.main()
