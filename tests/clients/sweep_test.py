"""`lssar sweep`, `attention --statistics` and `verify --server` on the shipped checkpoint."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

from lssar import Client, LssarError
from lssar.checkpoints import replay

from programs import MODEL, FigureProgram, RunningServer, run_cli

# `lssar verify` runs the python3 of PATH: the one that runs this test, which has grpc.
PYTHON = {'PATH': f'{os.path.dirname(sys.executable)}:{os.environ["PATH"]}',
          'PYTHONDONTWRITEBYTECODE': '1'}
IDS = f'{MODEL}/held_out.bin'
server: RunningServer


def setUpModule():
    global server
    server = RunningServer('--allow-attention-override', '--max-model-len', '1024')
    server.__enter__()


def tearDownModule():
    server.__exit__(None, None, None)


def run(*arguments, **extra):
    return run_cli(*arguments, '--server', server.address, model=False, **extra)


class SweepTest(unittest.TestCase):

    def test_each_p_has_the_loss_of_score(self):
        flags = '--ids', IDS, '--lengths', '64,256', '--rows', '2', '--json'
        done = run('sweep', '--p', '1,15,100', *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        swept = json.loads(done.stdout)
        self.assertEqual([value['p'] for value in swept['values']], [1, 15, 100])
        self.assertEqual([value['attention'] for value in swept['values']],
                         ['lssar p=1', 'lssar p=15', 'lssar p=100'])
        own = json.loads(run('score', *flags).stdout)
        self.assertEqual(swept['values'][1]['lengths'], own['lengths'])
        changed = json.loads(run('score', *flags, '--attention-p', '100').stdout)
        self.assertEqual(swept['values'][2]['lengths'], changed['lengths'])
        losses = [value['lengths'][1]['loss'] for value in swept['values']]
        self.assertEqual(min(losses), losses[1], 'the model was trained with p = 15')

    def test_a_checkpoint_without_p(self):
        done = run_cli('sweep', '--ids', IDS, '--lengths', '64', '--rows', '1', '--p', '2',
                       '--kind', 'lssar', '--json', '--model', 'models/zoo/twins/softmax',
                       model=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        swept = json.loads(done.stdout)
        self.assertIsNone(swept['attention_p'])
        self.assertIsNone(swept['values'][0]['lengths'][0]['standard_error'], 'of one row')

    def test_table_and_text(self):
        with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
            file.write('The river runs to the sea. ' * 60)
            file.flush()
            done = run('sweep', '--text', file.name, '--lengths', '64', '--rows', '1', '--p',
                       '3,15')
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertIn('nats per token', lines[0])
        self.assertRegex(lines[3], r'^ *3 +[0-9.]+ .*lssar p=3$')
        self.assertRegex(lines[4], r"^ *15 +[0-9.]+ .*lssar p=15, the checkpoint's p$")
        self.assertEqual(sum(' <' in line for line in lines[3:]), 1)

    def test_figure(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, 'sweep.svg')
            program = FigureProgram(folder)
            done = run('sweep', '--ids', IDS, '--lengths', '64,128', '--rows', '1', '--p', '3,15',
                       '--figure', str(path), PATH=program.path)
            self.assertEqual(done.returncode, 0, done.stderr)
            program.draw()
            self.assertIn('p = 15', path.read_text())

    def test_in_process(self):
        done = run_cli('sweep', '--ids', IDS, '--lengths', '64', '--rows', '1', '--p', '5',
                       '--kind', 'softmax_r', '--json')
        self.assertEqual(done.returncode, 0, done.stderr)
        [value] = json.loads(done.stdout)['values']
        self.assertEqual(value['attention'], 'softmax_r p=5')

    def test_best_p_by_tokens_read(self):
        flags = '--ids', IDS, '--lengths', '256', '--rows', '3', '--json'
        done = run('sweep', '--p', '3,15', '--buckets', '16,128', *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        swept = json.loads(done.stdout)
        plain = json.loads(run('sweep', '--p', '3,15', *flags).stdout)
        for value, other in zip(swept['values'], plain['values'], strict=True):
            [at], [whole] = value['lengths'], other['lengths']
            buckets = at.pop('buckets')
            self.assertEqual(at, whole)
            self.assertEqual([(each['first'], each['end']) for each in buckets],
                             [(1, 16), (16, 128), (128, 257)])
            self.assertEqual(sum(each['num_tokens'] for each in buckets), 3 * 256)
            mean = sum(each['loss'] * each['num_tokens'] for each in buckets) / (3 * 256)
            self.assertAlmostEqual(mean, whole['loss'], places=9)
            value['buckets'] = buckets
        best = swept['best']
        self.assertEqual(best['uniform_p'], 15)
        for i, bucket in enumerate(best['buckets']):
            losses = {value['p']: value['buckets'][i]['loss'] for value in swept['values']}
            self.assertEqual(bucket['p'], min(losses, key=losses.__getitem__))
            self.assertAlmostEqual(bucket['gain'], losses[15] - losses[bucket['p']])
            self.assertGreaterEqual(bucket['gain'], 0)

    def test_steps_are_scored_as_one_function(self):
        flags = '--ids', IDS, '--lengths', '128', '--rows', '2', '--json'
        best = json.loads(run('sweep', '--p', '2,15', '--buckets', '16,64', *flags).stdout)['best']
        self.assertEqual([bucket['p'] for bucket in best['buckets']], [15, 15, 15])
        self.assertNotIn('steps', best)
        self.assertEqual(best['flags'], '--attention-p 15')
        # Softer attention loses less where there are three tokens at most, by 0.2 nats.
        best = json.loads(run('sweep', '--p', '2,15', '--buckets', '4,64', *flags).stdout)['best']
        self.assertEqual([bucket['p'] for bucket in best['buckets']], [2, 15, 15])
        self.assertEqual(best['flags'], '--attention-p 2 --attention-p-by-length 4:15')
        own = json.loads(run('score', *flags, *best['flags'].split()).stdout)
        [steps] = best['steps']['lengths']
        steps.pop('buckets')
        self.assertEqual([steps], own['lengths'])
        self.assertIn('N>=', best['steps']['attention'])

    def test_powers_of_score(self):
        flags = '--ids', IDS, '--lengths', '128', '--rows', '1', '--json'
        def loss(*more):
            done = run('score', *flags, *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)['lengths'][0]['loss']
        own = loss()
        self.assertEqual(loss('--attention-p-by-layer', '15,15,15,15,15,15'), own)
        self.assertEqual(loss('--attention-p-by-head', '15,15,15,15'), own)
        self.assertEqual(loss('--attention-p-by-length', '129:3'), own)  # no row has 129 keys
        self.assertEqual(loss('--attention-p', '3', '--attention-p-by-length', '2:15'), own)
        self.assertEqual(loss('--attention-p-by-length', '2:3'), loss('--attention-p', '3'))
        for change in (('--attention-p-by-layer', '15,15,15,15,15,3'),
                       ('--attention-p-by-head', '15,15,15,3'),
                       ('--attention-p-by-length', '64:3')):
            self.assertNotEqual(loss(*change), own)

    def test_table_of_buckets(self):
        done = run('sweep', '--ids', IDS, '--lengths', '64', '--rows', '2', '--p', '3,15',
                   '--buckets', '2,16')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r'(?m)^ *p +1 +2-15 +16-64 +64 +attention$')
        self.assertRegex(done.stdout, r'(?m)^Best p by tokens read, in rows of 64; \+- is the '
                                      r'standard error over 2 rows$')
        self.assertRegex(done.stdout, r'(?m)^ *16-64 +\d+ +[0-9.]+ +-?[0-9.]+ \+- [0-9.]+$')

    def test_figure_of_buckets(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, 'buckets.svg')
            program = FigureProgram(folder)
            done = run('sweep', '--ids', IDS, '--lengths', '128', '--rows', '1', '--p', '3,15',
                       '--buckets', '16,64', '--figure', str(path), PATH=program.path)
            self.assertEqual(done.returncode, 0, done.stderr)
            program.draw()
            self.assertIn('tokens read before', path.read_text())

    def test_wrong_usage(self):
        for message, *arguments in (
                ('give --ids FILE or --text FILE', ),
                ("--buckets: '1' is not a whole number from 2", '--ids', IDS, '--buckets', '1'),
                ('--buckets: 16 must be above 64', '--ids', IDS, '--lengths', '128', '--buckets',
                 '64,16'),
                ('--buckets: 129 must be above 1 and at most 128', '--ids', IDS, '--lengths',
                 '128', '--buckets', '129'),
                ("--p: '0' is not a number in (0, 1000]", '--ids', IDS, '--p', '1,0'),
                ("--p: '' is not a number", '--ids', IDS, '--p', '3,'),
                ('--lengths', '--ids', IDS, '--lengths', '4K'),
                ('attention_override.kind is "lsar"', '--ids', IDS, '--lengths', '64', '--kind',
                 'lsar')):
            done = run('sweep', *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr)


class StatisticsTest(unittest.TestCase):

    def test_means_are_those_of_the_weights(self):
        prompt = 'attention', 'The President of the United States met the', '--layers', '2'
        rows = json.loads(run(*prompt, '--rows', 'all', '--json').stdout)['rows']
        shown = json.loads(run(*prompt, '--statistics', '--json').stdout)
        self.assertEqual(shown['attention'], 'lssar p=15')
        self.assertEqual(len(shown['statistics']), 4)
        for head in shown['statistics']:
            own = [row for row in rows if row['head'] == head['head']]
            num_keys = sum(row['row'] + 1 for row in own)
            self.assertEqual(head['num_keys'], num_keys)
            negligible = 1 - sum(row['num_nonzero'] for row in own) / num_keys
            self.assertAlmostEqual(head['negligible'], negligible)
            zero = sum(row['num_zero'] for row in own) / num_keys
            self.assertAlmostEqual(head['zero'], zero)
            self.assertLessEqual(zero, negligible)
            self.assertAlmostEqual(sum(head['distance_mass']), 1)
        table = run(*prompt, '--statistics').stdout.splitlines()
        self.assertIn('Attention (lssar p=15) of 9 rows of 9 tokens', table[0])
        self.assertEqual(len(table), 3 + 4)
        self.assertRegex(table[1], 'zero +negligible +effective keys +first token '
                                   '+self +1-7 +8-63$')

    def test_another_attention(self):
        prompt = 'attention', '--ids', IDS, '--length', '200', '--statistics', '--json'
        own = json.loads(run(*prompt).stdout)['statistics']
        flat = json.loads(run(*prompt, '--attention-kind', 'softmax').stdout)['statistics']
        self.assertEqual(own[0]['num_rows'], 64)
        self.assertTrue(all(head['negligible'] == 0 for head in flat))
        self.assertGreater(sum(head['negligible'] for head in own), len(own) / 4)

    def test_wrong_usage(self):
        done = run('attention', 'The', '--statistics', '--map')
        self.assertEqual(done.returncode, 2)
        self.assertIn('--statistics excludes --map, --figure and --top-k', done.stderr)


class PythonClientTest(unittest.TestCase):

    def test_override_hash_receipt_and_statistics(self):
        with Client(server.address) as client:
            info = client.get_info()
            self.assertTrue(info.attention_override_allowed)
            [own] = client.score('The river', [' is wide'])
            [flat] = client.score('The river', [' is wide'],
                                  attention_override={'kind': 'softmax'},
                                  checkpoint_hash=info.checkpoint_hash)
            self.assertNotEqual(own.logprob, flat.logprob)
            with client.stream('The river', max_tokens=2, attention_override={'p': 3}) as stream:
                self.assertTrue(list(stream))
            self.assertEqual(stream.started.attention, 'lssar p=3')
            self.assertEqual(stream.finished.receipt.attention, 'lssar p=3')
            self.assertEqual(stream.finished.receipt.config_hash, info.config_hash)
            sampling = stream.finished.receipt.sampling
            self.assertEqual(sampling['seed'], stream.started.seed)
            self.assertEqual(sampling['temperature'], 1)
            with client.stream('The river', max_tokens=2, attention_override={'p': 3},
                               **sampling) as again:
                self.assertTrue(list(again))
            self.assertEqual(again.finished.receipt, stream.finished.receipt)
            with self.assertRaises(LssarError) as caught:
                client.score('The river', [' is'], checkpoint_hash='0' * 16)
            self.assertEqual(caught.exception.code, 'FAILED_PRECONDITION')
            with self.assertRaisesRegex(TypeError, 'attention_override must be a dict'):
                client.score('The river', [' is'], attention_override=5)
            self.check_powers(client)
            attention = client.attention('The river', layers=[-1], rows=[0, -1], statistics=True)
            self.assertEqual([head.head for head in attention.statistics], [0, 1, 2, 3])
            self.assertTrue(all(head.num_rows == 2 for head in attention.statistics))
            self.assertEqual(attention.rows, [])


    def check_powers(self, client):
        def attention(override):
            with client.stream('The river', max_tokens=1, attention_override=override) as stream:
                list(stream)
            return stream.finished.receipt.attention
        self.assertEqual(attention({'p_by_layer': range(1, 7)}),
                         ', '.join(f'lssar p={p} ({p - 1})' for p in range(1, 7)))
        self.assertEqual(attention({'p_by_head': (3, 5, 7, 9)}), 'lssar p=3/5/7/9')
        rows = [[3, 5, 7, 9]] * 5 + [[1, 1, 1, 1]]
        self.assertEqual(attention({'p_by_head': rows}), 'lssar p=3/5/7/9 (0-4), lssar p=1 (5)')
        self.assertEqual(attention({'p': 3, 'p_by_length': [
            {'min_keys': 8, 'p': 5}, {'min_keys': 64, 'p_by_head': [1, 2, 3, 4]}]}),
            'lssar p=3 N>=8:5 N>=64:1/2/3/4')
        for override, error, message in (
                ({'p_by_layer': []}, ValueError, 'attention_override.p_by_layer is empty'),
                ({'p_by_head': 5}, TypeError, 'attention_override.p_by_head must be a list'),
                ({'p_by_length': [5]}, TypeError, 'p_by_length must be a list of dicts'),
                ({'p_by_length': {'min_keys': 5}}, TypeError, 'p_by_length must be a list of'),
                ({'p_by_length': [{'min_keys': 5, 'q': 3}]}, ValueError, 'attention_override is'),
                ({'p_by_layer': [3, 5]}, LssarError, 'it must have num_hidden_layers = 6')):
            with self.subTest(override), self.assertRaisesRegex(error, message):
                client.score('The river', [' is'], attention_override=override)


class VerifyTest(unittest.TestCase):

    def save(self, *flags):
        folder = tempfile.mkdtemp()
        self.addCleanup(lambda: [file.unlink() for file in pathlib.Path(folder).iterdir()])
        path = pathlib.Path(folder, 'request.json')
        done = run('generate', 'The river', '--max-tokens', '12', '--ignore-eos', '--logprobs', '2',
                   '--save-request', str(path), *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def verify(self, path, *arguments):
        return run_cli('verify', *arguments, '--server', server.address, '--request', str(path),
                       model=False, **PYTHON)

    def test_a_saved_reply_has_the_same_bits(self):
        path = self.save('--n', '2', '--attention-p', '5')
        done = self.verify(path, '--json')
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        report = json.loads(done.stdout)
        self.assertEqual(report['receipt']['attention'], 'lssar p=5')
        names = [each['name'] for each in report['replays']]
        self.assertEqual(names[:4], ['receipt', 'the saved reply', 'again, from the prefix cache',
                                     'without the prefix cache'])
        self.assertEqual(len(names), 4 + replay.NUM_COPIES)
        self.assertGreater(report['num_values'], 2 * 12 * 6)

    def test_says_where_bits_part(self):
        path = self.save('--temperature', '0')
        saved = json.loads(path.read_text())
        token = saved['replies'][0]['delta']['tokens'][7]['token']
        token['logprob'] *= 1 + 2e-7
        path.write_text(json.dumps(saved))
        done = self.verify(path)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout,
                         r'the saved reply +DIFFERENT: choice 0 token 7\.logprob: .* expected')
        saved['replies'][-1]['finished']['receipt']['checkpoint_hash'] = '0' * 16
        path.write_text(json.dumps(saved))
        self.assertIn("receipt checkpoint_hash: ", self.verify(path).stdout)

    def test_what_the_request_left_to_the_server_is_the_receipts(self):
        path = self.save()
        saved = json.loads(path.read_text())
        for name in ('max_tokens', 'maxTokens'):
            saved['generate'].pop(name, None)
        self.assertEqual(saved['replies'][-1]['finished']['receipt']['max_tokens'], 12)
        path.write_text(json.dumps(saved))
        done = self.verify(path)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)

    def test_servers_of_its_own_and_requests_without_replies(self):
        with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
            json.dump({'score': {
                'items': [{'context': {'text': 'The river'},
                           'continuations': [{'text': ' is wide'}, {'text': ' zzz'}]}],
                'per_token': True, 'attention_override': {'p': 3}}}, file)
            file.flush()
            done = self.verify(file.name, MODEL, '--json')
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        names = {each['name'] for each in json.loads(done.stdout)['replays']}
        self.assertLessEqual(set(replay.VARIANTS), names)

    def test_files_that_are_no_request(self):
        for text, message in (('{}', 'must have one of generate, score, embed, attention'),
                              ('{"generate": {"txt": "a"}}', 'txt'),
                              ('[]', 'object'),
                              ('{"generate": {"text": ""}}', 'INVALID_ARGUMENT: text is empty')):
            with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
                file.write(text)
                file.flush()
                done = self.verify(file.name)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(message, done.stderr)
        done = run_cli('verify', '--server', server.address, model=False, **PYTHON)
        self.assertEqual(done.returncode, 2)
        self.assertIn('--server and --request go together', done.stderr)


if __name__ == '__main__':
    unittest.main()
