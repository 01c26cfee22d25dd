"""RULER from PyPI, unmodified, on the shipped checkpoint at 1K: `lssar ruler`."""

import importlib.util
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

import environments
from environments import environment, isolated, run
from lssar import Client
from lssar._server import OwnServer
from programs import SERVER, RunningServer
from quick_models import UNCHECKED as MODEL

SAMPLES = 2
MAX_TOKENS = {'niah': 128, 'vt': 30}  # the package's, by the first part of a task's name
# Four keys in essays, and chains of variables.
TASKS = ('niah_multikey_1', 'vt')
# Before its first prompt, each task of needles sorts all pairs of an adjective and a noun: nine
# million, in 12 s of the CPU.
FEWER_WORDS = '''
every = wonderwords.random_word._get_words_from_text_file
wonderwords.random_word._get_words_from_text_file = lambda name: every(name)[:100]
'''
TIE = 1e-3  # logits that may fall either way in another program's float32


class RulerTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.python = environment('ruler')
        cls.server = cls.enterClassContext(RunningServer(
            '--max-model-len', '1280', '--dtype', 'fp32', '--kv-cache-dtype', 'fp32',
            model=MODEL))
        cls.client = cls.enterClassContext(Client(cls.server.address, timeout_s=120))
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.modules = environments.changed(folder / 'modules', 'wonderwords', FEWER_WORDS)
        cls.out = folder / 'out'
        cls.arguments = ['--lengths', '1K', '--samples', str(SAMPLES), '--tasks', ','.join(TASKS)]
        cls.table = cls.ruler(cls.out, '--server', cls.server.address, *cls.arguments).stdout
        cls.results = json.loads((cls.out / 'results.json').read_text(encoding='utf-8'))

    @classmethod
    def ruler(cls, *arguments, **variables):
        done = subprocess.run(
            [cls.python, '-m', 'lssar.ruler', *map(str, arguments)], capture_output=True, text=True,
            timeout=environments.TIMEOUT_S, check=False,
            env=isolated(LSSAR_SERVER=os.path.abspath(SERVER), PYTHONPATH=cls.modules,
                         **variables))
        if done.returncode:
            raise AssertionError(f'{arguments}: {done.returncode}\n{done.stdout}{done.stderr}')
        return done

    def lines(self, kind, name):
        """The objects of a file that the package wrote."""
        [path] = self.out.glob(f'*/synthetic/1024/{kind}/{name}')
        return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]

    def predictions(self):
        """(task, what the package kept of a prompt) of all."""
        return [(task, each) for task in TASKS for each in self.lines('pred', f'{task}.jsonl')]

    def test_prompts_are_as_long_as_the_server_counts(self):
        for task in TASKS:
            for sample in self.lines('data', f'{task}/validation.jsonl'):
                tokens = len(self.client.tokenize(sample['input'], add_bos=False))
                room = MAX_TOKENS[task.split('_')[0]]
                if task == 'vt':  # counts its example apart from the rest
                    self.assertAlmostEqual(sample['length'], tokens + room, delta=20)
                else:
                    self.assertEqual(sample['length'], tokens + room)
                self.assertLessEqual(sample['length'], 1024)
                if task != 'niah_multikey_1':  # its essays grow by 500 words: none fit here
                    self.assertGreater(sample['length'], 600)

    def test_multi_key_prompts_have_their_needles(self):
        for sample in self.lines('data', 'niah_multikey_1/validation.jsonl'):
            self.assertEqual(sample['input'].count('One of the special magic numbers for'), 4)
            self.assertIn(sample['outputs'][0], sample['input'])

    def test_answers_are_the_servers_greedy_ones_and_pytorchs(self):
        rows = []
        for task, kept in self.predictions():
            [answer] = self.client.complete(kept['input'], temperature=0,
                                            max_tokens=MAX_TOKENS[task.split('_')[0]])
            self.assertEqual(kept['pred'], answer.text)
            rows.append([self.client.tokenize(kept['input']), [each.id for each in answer.tokens]])
        self.assertEqual(len(rows), len(TASKS) * SAMPLES)
        if not all(map(importlib.util.find_spec, ('sentencepiece', 'torch'))):
            self.skipTest('no PyTorch for this interpreter')
        path = self.out / 'rows.json'
        path.write_text(json.dumps(rows))
        done = run(sys.executable, environments.HERE / 'pytorch_greedy.py', MODEL, path)
        worst = json.loads(done.stdout)
        self.assertEqual(len(worst), len(rows))
        self.assertLess(max(worst), TIE)

    def test_scores_are_shares_of_found_answers(self):
        [at] = self.results['lengths']
        self.assertEqual((at['length'], at['not_built']), (1024, {}))
        self.assertEqual(list(at['tasks']), list(TASKS))
        for task in TASKS:
            shares = [sum(answer.lower() in each['pred'].lower() for answer in each['outputs'])
                      / len(each['outputs']) for each in self.lines('pred', f'{task}.jsonl')]
            score = at['tasks'][task]
            self.assertAlmostEqual(score['score'], sum(shares) / SAMPLES)
            self.assertEqual(score['samples'], SAMPLES)
            low, high = score['interval95']
            self.assertTrue(0 <= low <= score['score'] <= high <= 1)
            self.assertGreater(high - low, 0.5)  # of two samples

    def test_the_same_arguments_go_on_where_it_was_on_its_own_server(self):
        again = self.out.with_name('again')
        shutil.copytree(self.out, again)
        [path] = again.glob('*/synthetic/1024/pred/vt.jsonl')
        whole = path.read_text(encoding='utf-8')
        path.write_text(whole[:-100], encoding='utf-8')  # the last line is cut off
        done = self.ruler(again, '--model', MODEL, *self.arguments, '--json', LSSAR_DTYPE='fp32',
                          LSSAR_KV_CACHE_DTYPE='fp32')
        self.assertEqual(json.loads(done.stdout), self.results)
        self.assertEqual(path.read_text(encoding='utf-8'), whole)

    def test_report_table_and_figure(self):
        self.assertEqual(self.table.split()[:2], ['task', '1K'])
        report = (self.out / 'report.md').read_text(encoding='utf-8')
        for task in TASKS:
            self.assertRegex(report, rf'\| {task} \| \d+% \(\d+% to \d+%\) \|')
        self.assertIn('trained on the essays', report)
        figure = (self.out / 'ruler.svg').read_text(encoding='utf-8')
        for task in TASKS:
            self.assertIn(task, figure)
        two = self.out / 'two.svg'
        run(self.python, '-m', 'lssar.figures', 'ruler', two, f'a={self.out / "results.json"}',
            f'b={self.out / "results.json"}', env=isolated())
        self.assertIn('mean score of the tasks', two.read_text(encoding='utf-8'))

    def test_a_task_that_cannot_be_built_ends(self):
        """The package tries for ever, without asking the tokenizer."""
        program = ('import lssar.ruler as r\nr.IDLE_CPU_S = 0.2\n'
                   f'r.ServerTokenizer({self.server.address!r})\nwhile True: pass')
        done = subprocess.run([self.python, '-c', program], capture_output=True, text=True,
                              env=isolated(), timeout=environments.TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 3)
        self.assertIn('short enough', done.stderr)

    def test_an_outage_is_no_refusal(self):
        """The same command builds the prompts once the server is back."""
        out = self.out.with_name('outage')
        shutil.copytree(self.out, out)
        [folder] = out.glob('*/synthetic/1024/data/vt')
        (folder / 'validation.jsonl').unlink()
        refused = folder / 'refused.txt'
        program = """if True:
            import argparse, pathlib, sys, tempfile
            from lssar import ruler
            out, address = pathlib.Path(sys.argv[1]), sys.argv[2]
            given = argparse.Namespace(out=out, samples=2, api_key=None, prepare_timeout=100.0)
            server = ruler.read_server(address, None)
            for server.address in sys.argv[3:]:
                with tempfile.TemporaryDirectory() as scratch:
                    one = ruler.Ruler(given, ruler.find_package(), server, pathlib.Path(scratch))
                    try:
                        print(repr(one.prepare(1024, 'vt')))
                    except ruler.RulerError as error:
                        print(str(error).replace(chr(10), ' '))
            """

        def prepare(*addresses):
            done = subprocess.run([self.python, '-c', program, out, *addresses], text=True,
                                  check=False, capture_output=True, env=isolated(),
                                  timeout=environments.TIMEOUT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.splitlines()

        with socket.create_server(('127.0.0.1', 0)) as closed:
            away = f'127.0.0.1:{closed.getsockname()[1]}'
        here = self.server.address
        refused.write_text('UNAVAILABLE: of an earlier version', encoding='utf-8')
        said, again = prepare(here, away, here)
        self.assertIn('no prompts of vt at 1K: no connection to', said)
        self.assertEqual(again, "''")
        self.assertFalse(refused.exists())
        for reason in ('no prompt of this task is short enough',
                       'ValueError: Sample larger than population or is negative'):
            refused.write_text(reason, encoding='utf-8')
            self.assertEqual(prepare(here, away), [repr(reason)])

    def test_bad_input(self):
        server = '--server', self.server.address
        other = self.enterContext(OwnServer(MODEL, program=SERVER))
        changed = []
        for name in 'dtype', 'kv_cache_dtype', 'device', 'config_hash', 'tokenizer_hash':
            folder = self.out.with_name(f'other_{name}')
            folder.mkdir()
            settings = json.loads((self.out / 'settings.json').read_text(encoding='utf-8'))
            settings[name] += 'x'
            (folder / 'settings.json').write_text(json.dumps(settings), encoding='utf-8')
            changed.append((f'has results with {name} {settings[name]}, not '
                            f'{settings[name][:-1]}: give another OUT', folder, *server,
                            '--lengths', '1K', '--samples', '2'))
        cases = [
            *changed,
            ("'niah' is none of niah_single_1", self.out, *server, '--tasks', 'niah'),
            ("'1M' must be a number", self.out, *server, '--lengths', '1M'),
            ("'100' must be a number", self.out, *server, '--lengths', '100'),
            ('--samples: 0 must be above 0', self.out, *server, '--samples', '0'),
            ('applies to --model', self.out, *server, '--max-model-len', '2000'),
            ('samples 2, not 3: give another OUT', self.out, *server, '--lengths', '1K',
             '--samples', '3'),
            ('has --max-model-len 1280', self.out.with_name('long'), *server, '--lengths', '2K',
             '--tasks', 'vt', '--samples', '1'),
            ('no directory', self.out, '--model', self.out / 'nothing'),
            ('has no HTTP port', self.out, '--server', other.address)]
        program = ('import json, sys\nfrom lssar.ruler import main\n'
                   'for words in json.loads(sys.argv[1]):\n'
                   '    print("code", main(words), file=sys.stderr)')
        words = [list(map(str, words)) for _, *words in cases]
        done = subprocess.run([self.python, '-c', program, json.dumps(words)], check=True,
                              env=isolated(LSSAR_SERVER=os.path.abspath(SERVER)), text=True,
                              stderr=subprocess.PIPE, timeout=environments.TIMEOUT_S)
        self.assertNotIn('Traceback', done.stderr)
        *found, rest = done.stderr.split('code 1\n')
        self.assertEqual(rest, '')
        for (sentence, *_), said in zip(cases, found, strict=True):
            self.assertIn(sentence, said)


if __name__ == '__main__':
    unittest.main()
