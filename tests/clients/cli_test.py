"""`lssar` end to end on the shipped checkpoint, mostly in-process."""

import json
import math
import os
import pathlib
import shutil
import socket
import statistics
import struct
import subprocess
import tempfile
import unittest

from programs import CLI, MODEL, SERVER, SHIPPED, RunningServer, clean_environment, run_cli


class GenerateTest(unittest.TestCase):

    def test_streams_text_and_repeats_it_for_a_seed(self):
        arguments = 'generate', 'The river', '--max-tokens', '24', '--seed', '5', '--ignore-eos'
        first, second = run_cli(*arguments), run_cli(*arguments)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertGreater(len(first.stdout), 20)
        self.assertEqual(first.stdout, second.stdout)
        self.assertEqual(first.stderr, '')

    def test_prompt_from_argument_file_and_stdin(self):
        flags = '--max-tokens', '8', '--temperature', '0'
        from_argument = run_cli('generate', 'The river', *flags)
        with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
            file.write('The river\n')
            file.flush()
            from_file = run_cli('generate', '--prompt-file', file.name, *flags)
        from_stdin = run_cli('generate', '-', *flags, stdin='The river\n')
        self.assertEqual(from_argument.returncode, 0, from_argument.stderr)
        self.assertEqual(from_argument.stdout, from_file.stdout)
        self.assertEqual(from_argument.stdout, from_stdin.stdout)

    def test_json_has_every_choice_with_its_tokens(self):
        done = run_cli('generate', 'The river', '--n', '3', '--max-tokens', '5', '--ignore-eos',
                       '--logprobs', '2', '--seed', '1', '--json')
        reply = json.loads(done.stdout)
        self.assertEqual(reply['seed'], 1)
        self.assertEqual(len(reply['choices']), 3)
        for choice in reply['choices']:
            self.assertEqual(choice['finish_reason'], 'LENGTH')
            self.assertEqual(len(choice['tokens']), 5)
            self.assertTrue(all(token['logprob'] < 0 and len(token['top']) == 2
                                for token in choice['tokens']))
        self.assertEqual(reply['usage']['num_generated_tokens'], 15)

    def test_stop_string_is_not_shown(self):
        whole = run_cli('generate', 'The river', '--temperature', '0', '--max-tokens', '40').stdout
        stop = whole.split()[3]
        done = run_cli('generate', 'The river', '--temperature', '0', '--max-tokens', '40',
                       '--stop', stop)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, whole[:whole.index(stop)] + '\n')

    def test_structured_output(self):
        done = run_cli('generate', 'The river', '--regex', '[0-9]{3}(a|b)', '--seed', '1')
        if done.returncode and 'has no xgrammar' in done.stderr:
            self.assertIn('regex: this build has no xgrammar', done.stderr)
            self.skipTest('this build has no xgrammar')
        self.assertRegex(done.stdout, r'^[0-9]{3}[ab]\n$')
        schema = {'type': 'object', 'properties': {'b': {'enum': [1, 2]}, 'a': {'type': 'null'}},
                  'required': ['b', 'a']}
        with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
            json.dump(schema, file)
            file.flush()
            # Without a seed a text of white space may fill all its tokens.
            done = run_cli('generate', 'The river', '--json-schema', file.name, '--seed', '1')
            self.assertEqual(list(json.loads(done.stdout)), ['b', 'a'])
        done = run_cli('generate', 'The river', '--grammar', '-', '--choice', 'a')
        self.assertIn('give one of them', done.stderr)
        done = run_cli('generate', 'The river', '--grammar', '-', stdin='root ::= "x" "x"? "y"\n')
        self.assertRegex(done.stdout, r'^xx?y\n$')
        done = run_cli('chat', '--choice', 'yes', '--choice', 'no', stdin='Is it?\n')
        self.assertRegex(done.stdout, r'(yes|no)\n')
        done = run_cli('generate', 'x', '--json-schema', 'missing.json')
        self.assertIn('missing.json', done.stderr)

    def test_ids_from_a_list_and_a_file(self):
        shown = json.loads(run_cli('attention', 'The river', '--json').stdout)
        ids = [token['id'] for token in shown['tokens']]
        flags = '--max-tokens', '4', '--temperature', '0'
        plain = run_cli('generate', 'The river', *flags).stdout
        from_list = run_cli('generate', '--ids', ','.join(map(str, ids)), *flags)
        self.assertEqual((from_list.returncode, from_list.stdout), (0, plain), from_list.stderr)
        with tempfile.NamedTemporaryFile(suffix='.bin') as file:
            file.write(struct.pack(f'<{len(ids) + 2}H', *ids, 7, 7))
            file.flush()
            from_file = run_cli('generate', '--ids', file.name, '--length', str(len(ids)), *flags)
        self.assertEqual((from_file.returncode, from_file.stdout), (0, plain), from_file.stderr)

    def test_ids_of_a_model_without_a_tokenizer(self):
        arguments = ('generate', '--ids', '1,2,3', '--max-tokens', '4', '--temperature', '0',
                     '--model', 'tests/golden/gpt_lssar')
        reply = json.loads(run_cli(*arguments, '--json', model=False).stdout)
        [choice] = reply['choices']
        ids = ','.join(str(token['id']) for token in choice['tokens'])
        self.assertEqual((ids.count(','), choice['text']), (3, ''))
        for flags, output in (([], f'{ids}\n'), (['--echo'], f'1,2,3,{ids}\n'),
                              (['--n', '2'], f'--- 0\n{ids}\n--- 1\n{ids}\n')):
            done = run_cli(*arguments, *flags, model=False)
            self.assertEqual((done.returncode, done.stdout), (0, output), done.stderr)

    def test_stats_go_to_stderr(self):
        done = run_cli('generate', 'The river', '--max-tokens', '8', '--ignore-eos', '--stats')
        self.assertRegex(done.stderr, r'8 tokens, [0-9.]+ tokens/s')
        self.assertNotIn('tokens/s', done.stdout)


class ScoreTest(unittest.TestCase):

    def test_sum_of_tokens_and_is_greedy(self):
        greedy = run_cli('generate', 'The river', '--temperature', '0', '--max-tokens', '4')
        text = greedy.stdout[:-1]
        done = run_cli('score', '--context', 'The river', '--continuation', text,
                       '--continuation', ' zzz', '--tokens', '--json')
        first, second = json.loads(done.stdout)['continuations']
        self.assertTrue(first['is_greedy'], done.stdout)
        self.assertFalse(second['is_greedy'])
        for each in first, second:
            self.assertEqual(len(each['tokens']), each['num_tokens'])
            self.assertAlmostEqual(sum(token['logprob'] for token in each['tokens']),
                                   each['logprob'], places=4)

    def test_file_and_stdin_of_json_lines(self):
        lines = '\n'.join(json.dumps({'context': f'Item {i}', 'continuations': [' a', ' b']})
                          for i in range(70))
        done = run_cli('score', '--file', '-', '--json', stdin=lines)
        self.assertEqual(done.returncode, 0, done.stderr)
        items = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(items), 70)
        self.assertTrue(all(len(item['continuations']) == 2 for item in items))
        one = run_cli('score', '--context', 'Item 69', '--continuation', ' a',
                      '--continuation', ' b', '--json')
        self.assertEqual(json.loads(one.stdout), items[69])

    def test_precision_of_the_kv_cache_is_named(self):
        arguments = 'score', '--context', 'The river', '--continuation', ' is'
        done = run_cli(*arguments)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn('the K/V cache is fp16: log-probabilities may differ', done.stderr)
        self.assertIn('--kv-cache-dtype fp32', done.stderr)
        self.assertEqual(run_cli(*arguments, '--kv-cache-dtype', 'fp32').stderr, '')
        half = run_cli(*arguments, '--json')
        self.assertEqual(half.stderr, '')
        self.assertEqual(json.loads(half.stdout)['kv_cache_dtype'], 'fp16')

    def test_loss_by_length(self):
        ids = [2] + [300 + i % 97 for i in range(2400)]
        with tempfile.NamedTemporaryFile(suffix='.bin') as file:
            file.write(struct.pack(f'<{len(ids)}H', *ids))
            file.flush()
            done = run_cli('score', '--ids', file.name, '--lengths', '64,256', '--json')
            most = run_cli('score', '--ids', file.name, '--lengths', '300', '--json')
            overlap = run_cli('score', '--ids', file.name, '--lengths', '64,300', '--rows', '8')
            table = run_cli('score', '--ids', file.name, '--lengths', '64')
            full = run_cli('score', '--ids', file.name, '--lengths', '128', '--max-model-len',
                           '128')
            over = run_cli('score', '--ids', file.name, '--lengths', '4K')
        lengths = json.loads(done.stdout)['lengths']
        self.assertEqual([(at['length'], at['num_rows'], at['num_tokens']) for at in lengths],
                         [(64, 8, 512), (256, 8, 2048)])
        self.assertTrue(all(0 < at['loss'] < 20 for at in lengths))
        for at in lengths:
            self.assertEqual(len(at['row_losses']), at['num_rows'])
            self.assertAlmostEqual(statistics.fmean(at['row_losses']), at['loss'], places=9)
            self.assertAlmostEqual(
                statistics.stdev(at['row_losses']) / at['num_rows'] ** 0.5, at['standard_error'],
                places=9)
        self.assertIn(f"{lengths[0]['loss']:.4f}", table.stdout)
        self.assertIn('without the last token of each row', full.stdout)
        self.assertEqual(over.returncode, 2)
        self.assertIn('4096 needs more ids than the file\'s 2401', over.stderr)
        self.assertEqual(json.loads(most.stdout)['lengths'][0]['num_rows'], 7)
        self.assertEqual(overlap.returncode, 2)
        self.assertIn('--rows: 8 rows of 300 tokens overlap in the file\'s 2401 ids',
                      overlap.stderr)
        self.assertIn('at most 7 fit\n', overlap.stderr)

    def test_loss_by_length_of_a_text(self):
        text = 'The river runs through the old town.\n' * 40
        done = run_cli('score', '--text', '-', '--lengths', '64', '--json', stdin=text)
        swept = run_cli('sweep', '--text', '-', '--lengths', '64', '--p', '15', '--json',
                        stdin=text)
        self.assertEqual(json.loads(done.stdout)['lengths'],
                         json.loads(swept.stdout)['values'][0]['lengths'])
        for arguments, message in (
                (('--ids', '2,3', '--text', '-'), '--ids and --text exclude each other'),
                (('--text', '-', '--context', 'x'), '--ids and --text exclude --context'),
                (('--text', '-', '--tokens'),
                 '--tokens applies with --continuation, --file and --input only'),
                (('--ids', '2,3', '--max-concurrency', '2'),
                 '--max-concurrency applies with --file and --input only'),
                (('--continuation', 'x', '--max-concurrency', '2'),
                 '--max-concurrency applies with --file and --input only'),
                (('--continuation', 'x', '--rows', '2'), '--rows applies with --ids and --text'),
                (('--file', '-', '--lengths', '1K'), '--lengths applies with --ids and --text')):
            done = run_cli('score', *arguments, model=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)


class PerplexityTest(unittest.TestCase):

    TEXT = 'The river runs through the old town.\n' * 12

    def test_a_text_that_fits_is_scored_whole(self):
        done = run_cli('perplexity', '-', '--json', stdin=self.TEXT)
        self.assertEqual(done.returncode, 0, done.stderr)
        got = json.loads(done.stdout)
        scored = run_cli('score', '--continuation', self.TEXT, '--json')
        want = json.loads(scored.stdout)['continuations'][0]
        self.assertEqual(got['num_windows'], 1)
        self.assertEqual(got['num_tokens'], want['num_tokens'])
        self.assertEqual(got['num_bytes'], len(self.TEXT))
        self.assertEqual(got['num_words'], 7 * 12)
        self.assertEqual(got['logprob'], want['logprob'])
        self.assertAlmostEqual(got['loss'] * got['num_tokens'], -got['logprob'], places=9)

    def test_max_length_is_that_of_lm_evaluation_harness(self):
        # 150 tokens after the first id; a window of max_length N predicts N tokens.
        ids = [2] + [300 + i * i % 97 for i in range(150)]
        listed = ','.join(map(str, ids))
        for max_length, num_windows in ((149, 2), (150, 1), (50, 3)):
            done = run_cli('perplexity', '--ids', listed, '--max-length', str(max_length), '--json')
            self.assertEqual(json.loads(done.stdout)['num_windows'], num_windows, done.stderr)
        helped = run_cli('perplexity', '--help', model=False).stdout
        self.assertIn('lm-evaluation-harness', helped)

    def test_windows_equal_separate_scores(self):
        ids = [2] + [300 + i * i % 97 for i in range(150)]
        with tempfile.NamedTemporaryFile(suffix='.bin') as file:
            file.write(struct.pack(f'<{len(ids)}H', *ids))
            file.flush()
            done = run_cli('perplexity', '--ids', file.name, '--max-length', '63', '--stride', '32',
                           '--json')
        got = json.loads(done.stdout)
        items = [(0, 1, 64), (32, 64, 96), (64, 96, 128), (87, 128, 151)]
        lines = '\n'.join(json.dumps({'context': ids[first:scored],
                                      'continuations': [ids[scored:end]]})
                          for first, scored, end in items)
        scores = [json.loads(line)['continuations'][0]['logprob'] for line in
                  run_cli('score', '--file', '-', '--json', stdin=lines).stdout.splitlines()]
        self.assertEqual((got['num_windows'], got['num_tokens']), (4, 150))
        self.assertEqual(got['logprob'], sum(scores))
        self.assertNotIn('num_words', got)

    def test_several_texts_and_their_sum(self):
        with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
            file.write(self.TEXT)
            file.flush()
            done = run_cli('perplexity', file.name, file.name)
        rows = [line.split() for line in done.stdout.splitlines()[2:]]
        self.assertEqual([row[-1] for row in rows], [file.name, file.name, 'all'], done.stdout)
        self.assertEqual(int(rows[2][0]), 2 * int(rows[0][0]))
        self.assertEqual(rows[2][2:6], rows[0][2:6])

    def test_loss_by_position(self):
        ids = [2] + [300 + i * i % 97 for i in range(150)]
        done = run_cli('perplexity', '--ids', ','.join(map(str, ids)), '--max-length', '70',
                       '--by-position', '--json')
        got = json.loads(done.stdout)
        # Windows of 70 tokens: position 1 is the first token after the window's first id.
        losses = {}
        for first, scored, end in ((0, 1, 71), (70, 71, 141), (80, 141, 151)):
            item = json.dumps({'context': ids[first:scored], 'continuations': [ids[scored:end]]})
            scores = run_cli('score', '--file', '-', '--json', '--tokens', stdin=item).stdout
            for i, token in enumerate(json.loads(scores)['continuations'][0]['tokens']):
                losses.setdefault(scored - first + i, []).append(-token['logprob'])
        self.assertEqual([at['first'] for at in got['positions']], list(range(1, 71, 3)))
        self.assertEqual(got['positions'][-1]['end'], 71)
        for at in got['positions']:
            want = [loss for position in range(at['first'], at['end'])
                    for loss in losses[position]]
            self.assertEqual(at['num_tokens'], len(want))
            self.assertAlmostEqual(at['loss'], statistics.mean(want), places=6)
            self.assertAlmostEqual(at['standard_error'],
                                   statistics.stdev(want) / len(want) ** 0.5, places=6)

    def test_impossible_flags_are_wrong_usage(self):
        for arguments, message in (((), 'give one or more FILE'),
                                   (('-', '--figure', 'a.svg'), 'it needs --by-position'),
                                   (('-', '--max-length', '99999'),
                                    'needs a served context of 100000'),
                                   (('-', '--max-length', '8', '--stride', '9'),
                                    'is more than --max-length'),
                                   (('-',), 'no token to score')):
            done = run_cli('perplexity', *arguments, stdin='')
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr)


def read_safetensors(path):
    """-> {name: (dtype, shape, bytes)}."""
    with open(path, 'rb') as file:
        header = json.loads(file.read(struct.unpack('<Q', file.read(8))[0]))
        content = file.read()
    return {name: (entry['dtype'], entry['shape'], content[slice(*entry['data_offsets'])])
            for name, entry in header.items() if name != '__metadata__'}


def write_safetensors(path, tensors):
    header, content = {}, b''
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': shape,
                        'data_offsets': [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text + content)


class EmbedTest(unittest.TestCase):

    def vectors(self, *arguments, **options):
        done = run_cli('embed', *arguments, '--json', **options)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        return [json.loads(line)['vectors'] for line in done.stdout.splitlines()]

    def expect_golden(self, got, data, size):
        """The vectors of all tokens are those of PyTorch (models/training/hidden_golden.py)."""
        want = struct.unpack(f'<{len(data) // 4}f', data)
        got = [value for vectors in got for vector in vectors for value in vector]
        self.assertEqual(len(got), len(want))
        self.assertEqual(len(want) % size, 0)
        worst = max(abs(a - b) for a, b in zip(got, want))
        self.assertLess(worst, 1e-4 * max(map(abs, want)))

    def test_vectors_are_those_of_pytorch(self):
        golden = read_safetensors('tests/models/hidden_golden.safetensors')
        _, (num_rows, length), data = golden['tokens']
        ids = struct.unpack(f'<{num_rows * length}i', data)
        arguments = ['--pooling', 'token', '--dtype', 'fp32', '--kv-cache-dtype', 'fp32']
        for first in range(0, len(ids), length):
            arguments += ['--ids', ','.join(map(str, ids[first:first + length]))]
        self.expect_golden(self.vectors(*arguments), golden['hidden'][2], 256)
        with tempfile.TemporaryDirectory() as directory:
            shutil.copytree(MODEL, directory, dirs_exist_ok=True)
            weights = os.path.join(directory, 'model.safetensors')
            tensors = read_safetensors(weights)
            tensors |= {name: golden[name] for name in ('head.weight', 'head.bias')}
            write_safetensors(weights, tensors)
            outputs = self.vectors(*arguments, '--apply-head', '--model', directory, model=False)
            info = run_cli('info', '--model', directory, model=False)
        self.expect_golden(outputs, golden['outputs'][2], 3)
        self.assertIn('regression, 3 outputs', info.stdout)

    def test_one_line_per_input_with_size_norm_and_elements(self):
        texts = ['The river', 'a, b', '[INST] hi, you [/INST]', '[a, b]']
        done = run_cli('embed', *texts)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        lines = done.stdout.splitlines()
        vectors = self.vectors(*texts)
        self.assertEqual(lines[0].split(), ['size', 'norm', 'elements', 'input'])
        self.assertEqual([line[line.index('...') + 5:] for line in lines[1:]], texts)
        for line, [vector] in zip(lines[1:], vectors):
            size, norm, *elements = line[:line.index('...')].split()
            self.assertEqual(int(size), len(vector))
            self.assertAlmostEqual(float(norm), math.hypot(*vector), places=3)
            self.assertEqual(elements, [f'{value:.4f}' for value in vector[:4]])

    def test_pooling_and_norm(self):
        tokens, = self.vectors('The river', '--pooling', 'token')
        (last,), = self.vectors('The river')
        (mean,), = self.vectors('-', '--pooling', 'mean', stdin='The river\n')
        (unit,), = self.vectors('The river', '--normalize')
        self.assertEqual(last, tokens[-1])
        for got, column in zip(mean, zip(*tokens)):
            self.assertAlmostEqual(got, sum(column) / len(tokens), places=4)
        for got, value in zip(unit, last):
            self.assertAlmostEqual(got, value / math.hypot(*last), places=5)
        lines = run_cli('embed', 'The river', '--pooling', 'token').stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines],
                         ['token', *map(str, range(len(tokens)))])

    def test_steering(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, 'v.f32')
            with open(path, 'wb') as file:
                file.write(struct.pack('<256f', *([0.5] * 256)))
            own, steered = (self.vectors('The river', '--layers', '3', *more)[0][0][0]
                            for more in ((), ('--steer', f'3:{path}:-2')))
            for got, value in zip(steered, own, strict=True):
                self.assertAlmostEqual(got, value - 1, places=5)
            for entry, message in (
                    ('x', 'LAYER:FILE'), ('3:' + path + ':a', 'LAYER:FILE'),
                    ('3:/nothing', '/nothing'), ('7:' + path, 'steering[0].layer is 7')):
                done = run_cli('embed', 'x', '--steer', entry)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(message, done.stderr)

    def test_layers_and_positions(self):
        tokens, = self.vectors('The river', '--pooling', 'token')
        layers, = self.vectors('The river', '--pooling', 'token', '--layers', '0..2,6,-1')
        self.assertEqual([len(vectors) for vectors in layers], [5] * len(tokens))
        self.assertEqual([vectors[-1] for vectors in layers], tokens)
        (last,), = self.vectors('The river', '--pooling', 'token', '--positions', '-1', '--layers',
                                '0..2,6,-1')
        self.assertEqual(last, layers[-1])
        half, = self.vectors('The river', '--layers', '6', '--fp16')
        [want] = struct.unpack('<e', struct.pack('<e', layers[-1][3][0]))
        self.assertEqual(half[0][0][0], want)
        lines = run_cli('embed', 'The river', '--layers', '0,-1').stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines], ['layer', '0', '-1'])
        for arguments, status, message in (
                (('--layers', 'x'), 2, '--layers has "x"'), (('--layers', '2..1'), 2, '2..1'),
                (('--layers', '7'), 2, 'layers[0] is 7'),
                (('--positions', '0'), 2, 'positions is set')):
            with self.subTest(arguments):
                done = run_cli('embed', 'x', *arguments)
                self.assertEqual((done.returncode, done.stdout), (status, ''), done.stderr)
                self.assertIn(message, done.stderr)

    def test_a_file_of_lines(self):
        lines = ''.join(f'In {1900 + i} the river\n' for i in range(150))
        vectors = self.vectors('--file', '-', stdin=lines)
        self.assertEqual(len(vectors), 150)
        self.assertEqual(vectors[149], self.vectors('In 2049 the river')[0])

    def test_wrong_usage(self):
        for arguments, stdin, message in (
                ((), '', 'give one or more TEXT, or --ids, or --file FILE'),
                (('x', '--file', '-'), '', 'give one or more TEXT'),
                (('--file', '-'), '', 'the file is empty'),
                (('x', '--pooling', 'max'), '', '--pooling'),
                (('--file', '-', '--max-model-len', '16'), 'a\n\n' + 'a b ' * 20,
                 'line 3 is 42 tokens long')):
            with self.subTest(arguments):
                done = run_cli('embed', *arguments, stdin=stdin)
                self.assertEqual((done.returncode, done.stdout), (2, ''), done.stderr)
                self.assertIn(message, done.stderr)
        done = run_cli('embed', 'x', '--apply-head')
        self.assertEqual(done.returncode, 1)
        self.assertIn('no regression head', done.stderr)


class AttentionTest(unittest.TestCase):

    def test_json_has_all_weights_of_the_chosen_rows(self):
        done = run_cli('attention', 'The cat sat on the mat', '--layers', '0,-1',
                       '--rows', '-2..-1', '--json')
        self.assertEqual(done.returncode, 0, done.stderr)
        reply = json.loads(done.stdout)
        num_tokens = len(reply['tokens'])
        self.assertEqual(''.join(token['piece'] for token in reply['tokens']),
                         ' The cat sat on the mat')
        self.assertEqual([(row['row'], row['layer'], row['head']) for row in reply['rows']],
                         [(row, layer, head) for row in (num_tokens - 2, num_tokens - 1)
                          for layer in (0, 5) for head in range(4)])
        for row in reply['rows']:
            self.assertAlmostEqual(sum(row['weights']), 1, places=6)
            self.assertEqual(len(row['keys']), row['num_nonzero'])
            self.assertLessEqual(max(row['keys']), row['row'])
        # Parts of characters have their bytes.
        parts = json.loads(run_cli('attention', 'ñ', '--json').stdout)['tokens']
        self.assertEqual([part['piece'] for part in parts][-2:], [r'bytes:\xc3', r'bytes:\xb1'])
        # The engine reads the V rows whose weights are not zero, in all heads of all layers.
        every = json.loads(run_cli('attention', 'The cat sat on the mat', '--rows', 'all',
                                   '--json').stdout)
        self.assertAlmostEqual(sum(row['num_nonzero'] for row in every['rows']),
                               every['usage']['num_value_rows_read'], delta=3)

    def test_bars_and_map_in_a_pipe(self):
        flags = '--layers', '5', '--heads', '1'
        bars = run_cli('attention', 'The cat sat on the mat', *flags, '--top-k', '2')
        self.assertEqual(bars.returncode, 0, bars.stderr)
        self.assertRegex(bars.stdout,
                         r"layer 5, head 1, row \d+ ' mat': \d+ of \d+ keys, effectively")
        self.assertRegex(bars.stdout, r"0\.\d{4}  #+ +\d+  '")
        self.assertRegex(bars.stdout, r'0\.\d{4}  in \d+ others?')
        shown = run_cli('attention', '-', *flags, '--map', stdin='The cat sat on the mat\n')
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r"\n +0 [^|]+@\|\n")
        self.assertNotIn('\x1b', bars.stdout + shown.stdout)

    def test_ids_from_a_file(self):
        with tempfile.NamedTemporaryFile(suffix='.bin') as file:
            file.write(struct.pack('<600H', *(2 + i % 400 for i in range(600))))
            file.flush()
            done = run_cli('attention', '--ids', file.name, '--length', '500', '--layers', '2',
                           '--heads', '0', '--top-k', '3', '--json')
            both = run_cli('attention', 'x', '--ids', file.name)
        reply = json.loads(done.stdout)
        self.assertEqual(reply['num_prompt_tokens'], 500)
        self.assertEqual([row['row'] for row in reply['rows']], [499])
        row = reply['rows'][0]
        self.assertEqual(len(row['keys']), 3)
        self.assertAlmostEqual(sum(row['weights']) + row['dropped_mass'], 1, places=6)
        self.assertEqual((both.returncode, both.stdout), (2, ''))


class ChatTest(unittest.TestCase):

    def test_answers_line_by_line(self):
        done = run_cli('chat', '--max-tokens', '12', '--seed', '3', '--json',
                       stdin='How are you?\n\nWhat is new?\n')
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([answer['role'] for answer in answers], ['assistant'] * 2)
        self.assertGreater(answers[1]['num_prompt_tokens'], answers[0]['num_prompt_tokens'])

    def test_commands(self):
        done = run_cli('chat', '--max-tokens', '6', '--json',
                       stdin='/help\nHello\n/stats\n/system Be brief.\n/reset\n/stats\n/rest\n'
                       '//slash\n/quit\nnever said\n')
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ('/system TEXT', '1 answers', 'system text set', 'starts over',
                     'context: 0 of 16384', 'did you mean /reset?'):
            self.assertIn(part, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 2)  # to Hello and to /slash

    def test_full_context_says_how_to_continue(self):
        done = run_cli('chat', '--max-model-len', '64', '--min-tokens', '20', '--max-tokens',
                       '20', stdin='Tell me all of it, please.\n' * 4 + '/reset\nHello\n')
        self.assertIn('the context is full', done.stderr)
        self.assertIn('/reset removes the messages', done.stderr)
        self.assertIn('the chat starts over', done.stderr)


class PasskeyTest(unittest.TestCase):

    def test_finds_keys_in_short_text(self):
        done = run_cli('passkey', '--lengths', '256,512', '--trials', '3,2', '--json')
        self.assertEqual(done.returncode, 0, done.stderr)
        reply = json.loads(done.stdout)
        # SplitMix64(7) draws these first.
        self.assertEqual([trial['key'] for trial in reply['trials']],
                         ['24488', '9347', '23675', '24488', '9347'])
        self.assertEqual([(at['length'], at['num_trials']) for at in reply['lengths']],
                         [(256, 3), (512, 2)])
        # The shipped model finds every key at its trained length (models/zoo/lssar-6m/README.md).
        self.assertEqual([at['accuracy'] for at in reply['lengths']], [1, 1])
        for trial in reply['trials']:
            self.assertEqual(trial['answer'], f" {trial['key']}.")
            self.assertLess(trial['num_prompt_tokens'], trial['length'] - 6)

    def test_a_stopped_run_is_resumed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, 'trials.jsonl')
            arguments = ('passkey', '--lengths', '256,512', '--output', str(path), '--json')
            whole = run_cli(*arguments, '--trials', '3')
            self.assertEqual(whole.returncode, 0, whole.stderr)
            lines = path.read_text().splitlines(keepends=True)
            self.assertEqual(sorted((at['length'], at['trial']) for at in map(json.loads, lines)),
                             [(length, trial) for length in (256, 512) for trial in range(3)])

            again = run_cli(*arguments, '--trials', '3')
            self.assertEqual(again.returncode, 1)
            self.assertIn('exists; continue it with --resume', again.stderr)
            # Killed while it wrote the third line; one of the others did not happen as it says.
            changed = json.loads(lines[1])
            changed['answer'], changed['is_hit'] = 'kept', False
            path.write_text(lines[0] + json.dumps(changed) + '\n' + lines[2][:20])
            resumed = run_cli(*arguments, '--trials', '3', '--resume')
            self.assertEqual(resumed.returncode, 0, resumed.stderr)
            expected = json.loads(whole.stdout)['trials']
            for trial in expected:
                if (trial['length'], trial['key']) == (changed['length'], changed['key']):
                    trial['answer'], trial['is_hit'] = 'kept', False
            self.assertEqual(json.loads(resumed.stdout)['trials'], expected)
            self.assertEqual(len(path.read_text().splitlines()), 6)
            # More trials, and one length less.
            more = run_cli('passkey', '--lengths', '256', '--output', str(path), '--json',
                           '--trials', '4', '--resume')
            self.assertEqual(json.loads(more.stdout)['lengths'][0]['num_trials'], 4)
            self.assertEqual(len(path.read_text().splitlines()), 7)

            for flags, message in ((('--seed', '8'), 'another document as trial'),
                                   (('--attention-p', '3'), 'attention_override null, not {"p":3'),
                                   (('--dtype', 'int8'), 'dtype "fp16", not "int8"')):
                done = run_cli(*arguments, '--resume', *flags)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(message, done.stderr)
            other = shutil.copytree(MODEL, pathlib.Path(folder, 'other'))
            settings = json.loads((other / 'tokenizer_config.json').read_text())
            (other / 'tokenizer_config.json').write_text(json.dumps({**settings, 'own': 1}))
            done = run_cli(*arguments, '--resume', '--model', str(other), model=False)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertRegex(done.stderr, 'has lines with config_hash "[0-9a-f]+", not "')
            path.write_text('{"line": 1}\nthe last line, without an end')
            done = run_cli(*arguments, '--resume')
            self.assertIn('is not an output of this command', done.stderr)
            self.assertIn('without an end', path.read_text())  # a file of others stays whole
        done = run_cli('passkey', '--resume')
        self.assertEqual(done.returncode, 2)
        self.assertIn('--resume needs --output FILE', done.stderr)

    def test_table_and_map_in_a_pipe(self):
        done = run_cli('passkey', '--depths', '0.5,.5')
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn('--depths: a depth is given twice', done.stderr)
        done = run_cli('passkey', '--lengths', '256', '--trials', '1', '--depths', '0,1')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r'256 +\d+ +2 +2 +100% +34-100%')
        self.assertRegex(done.stdout, r'100% +100\n')
        self.assertNotIn('\x1b', done.stdout + done.stderr)

    def test_another_attention(self):
        arguments = 'passkey', '--lengths', '256', '--trials', '2', '--json'
        own = json.loads(run_cli(*arguments).stdout)
        other = json.loads(run_cli(*arguments, '--attention-p', '3').stdout)
        self.assertEqual((own['attention'], other['attention']), ('lssar p=15', 'lssar p=3'))
        softmax = json.loads(run_cli(*arguments, '--attention-kind', 'softmax').stdout)
        self.assertEqual(softmax['attention'], 'softmax')
        self.assertEqual(softmax['lengths'][0]['num_hits'], 0)  # it was not trained with it

    def test_length_over_the_context(self):
        done = run_cli('passkey', '--lengths', '512', '--max-model-len', '256')
        self.assertEqual(done.returncode, 2)
        self.assertIn('512 is more than the served context of 256', done.stderr)


class UsageTest(unittest.TestCase):

    def test_stats(self):
        stats = json.loads(run_cli('info', '--stats', '--json').stdout)
        self.assertEqual(stats['num_running'], 0)
        self.assertEqual(stats['num_free_pages'], stats['num_pages'])
        self.assertEqual(stats['num_finished'], {})
        self.assertGreaterEqual(stats['uptime_ns'], stats['stages']['idle_ns'])
        shown = run_cli('info', '--stats').stdout
        self.assertIn('0 running, 0 queued', shown)
        self.assertIn('engine: forward', shown)

    def test_get_info(self):
        shipped = json.loads(run_cli('info', '--json', '--model', SHIPPED, model=False).stdout)
        self.assertTrue(0 < shipped['self_check_error'] < 0.01, shipped)
        facts = json.loads(run_cli('info', '--json').stdout)
        self.assertIsNone(facts['self_check_error'])
        self.assertEqual((facts['model_name'], facts['attention_kind'], facts['attention_p']),
                         ('lssar-6m', 'lssar', 15))
        self.assertIn('trained at 1024 tokens', run_cli('info').stdout)

    def expect_usage(self, part, *arguments, model=False):
        done = run_cli(*arguments, model=model)
        self.assertEqual(done.returncode, 2, done)
        self.assertIn(part, done.stderr)
        self.assertEqual(done.stdout, '')

    def test_a_file_that_cannot_be_written_says_why(self):
        for path, why in (('/no/folder/x.json', 'No such file or directory (NOT_FOUND)'),
                          ('/dev/full', 'No space left on device (RESOURCE_EXHAUSTED)')):
            done = run_cli('generate', 'x', '--max-tokens', '1', '--save-request', path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f'lssar: cannot write {path}: {why}', done.stderr)

    def test_wrong_usage_exits_2_and_suggests_names(self):
        self.expect_usage("did you mean '--temperature'?", 'generate', 'x', '--temprature=0.5')
        self.expect_usage("did you mean 'generate'?", 'genrate', 'x')
        self.expect_usage("did you mean '--lengths'?", 'passkey', '--length', '1K')
        self.expect_usage("unexpected argument 'river'", 'generate', 'The', 'river')
        for flag, what in ('batch-invariant', 'true or false'), ('max-n', 'a whole number'):
            variable = 'LSSAR_' + flag.upper().replace('-', '_')
            self.expect_usage(f'lssar: --{flag} (or {variable}) is "banana"; it must be {what}',
                              'info', f'--{flag}=banana', model=True)
        self.expect_usage('Usage: lssar')
        self.expect_usage('give one prompt', 'generate')
        self.expect_usage('exclude each other', 'info', '--server', 'localhost:1', model=True)
        self.expect_usage("'x' is not a whole number", 'passkey', '--lengths', 'x')
        self.expect_usage("--layers: '6' is not an index of 6", 'attention', 'x', '--layers', '6',
                          model=True)
        self.expect_usage('top_k is -1; it must be in [0, 1048576]', 'attention', 'x', '--top-k=-1',
                          model=True)
        for seed in '-1', '18446744073709551616', '010', '0x10':
            self.expect_usage(f'--seed: is "{seed}"; it must be a whole number in [0, '
                              '18446744073709551615]', 'generate', 'x', f'--seed={seed}')
        self.expect_usage('--max-tokens: is "010"', 'generate', 'x', '--max-tokens', '010')
        self.expect_usage("'17' is not ID:BIAS", 'generate', 'x', '--logit-bias', '17')

    def test_names_of_other_programs_and_no_wild_guesses(self):
        self.expect_usage("unknown flag --n-predict; did you mean '--max-tokens'?", 'generate', 'x',
                          '--n-predict', '5')
        self.expect_usage("unknown flag --ctx-size; did you mean '--max-model-len'?", 'generate',
                          'x', '--ctx-size', '5')
        self.expect_usage("did you mean '--max-concurrency'?", 'bench', '--concurrency', '5')
        self.expect_usage('give the prompt as an argument', 'generate', '-p', 'x')
        done = run_cli('generate', 'x', '--p', '0.9', model=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn('unknown flag --p (', done.stderr)
        self.assertNotIn('did you mean', done.stderr)

    def test_flags_that_do_not_apply(self):
        for flags in ('--max-model-len', '64'), ('--dtype', 'fp16'), ('--kv-cache-dtype', 'fp32'):
            self.expect_usage(f'{flags[0]} applies with --model DIR only', 'info', *flags)
            self.expect_usage(f'{flags[0]} applies with --model DIR only', 'info', '--server',
                              'localhost:1', *flags)
        self.expect_usage('--tls applies to a server', 'info', '--tls', model=True)
        self.assertNotIn('server=', run_cli('info').stdout)  # there is none to name
        # A server's own variable does not make a model of this process.
        done = run_cli('info', '--dtype', 'fp16', model=False, LSSAR_MODEL=MODEL)
        self.assertEqual(done.returncode, 2)
        self.assertIn('--dtype applies with --model DIR only', done.stderr)
        # A variable of the environment is no mistake of this command line.
        with RunningServer() as server:
            done = run_cli('info', '--server', server.address, model=False,
                           LSSAR_MAX_MODEL_LEN='64', LSSAR_MODEL=MODEL)
        self.assertEqual((done.returncode, done.stderr), (0, ''))

    def test_a_misspelt_variable_is_named(self):
        done = run_cli('info', '--json', LSSAR_MAX_MODEL_LENGTH='64', LSSAR_API_KEY='x')
        self.assertEqual((done.returncode, done.stderr), (
            0, 'lssar: the variable LSSAR_MAX_MODEL_LENGTH of the environment is not read; did you '
            'mean LSSAR_MAX_MODEL_LEN?\n'))

    def test_addresses_that_are_not_of_the_grpc_port(self):
        self.expect_usage('is a URL; give HOST:PORT', 'info', '--server', 'http://localhost:8080')
        self.expect_usage('has no port', 'info', '--server', 'localhost')
        for port in ('0', '65536', '111846', '99999999999'):
            self.expect_usage(f"the port of '127.0.0.1:{port}' must be in [1, 65535]",
                              'info', '--server', f'127.0.0.1:{port}')
        with RunningServer() as server:
            done = run_cli('info', '--server', server.http_address, model=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f'{server.http_address} is an HTTP port, not a gRPC port', done.stderr)

    def test_help_command(self):
        for command in 'generate', 'bench':
            by_command = run_cli('help', command, model=False)
            by_flag = run_cli(command, '--help', model=False)
            self.assertEqual((by_command.returncode, by_command.stdout), (0, by_flag.stdout))
            self.assertIn('  --batch-invariant,--no-batch-invariant\n', by_flag.stdout)
        self.assertEqual(run_cli('help', model=False).stdout,
                         run_cli('--help', model=False).stdout)
        self.expect_usage("unknown command 'genrate'; did you mean 'generate'?", 'help', 'genrate')
        self.expect_usage("unknown command 'serve'; start the server: lssar-server", 'serve', 'x')

    def test_output_that_cannot_be_written_is_a_failure(self):
        for program, arguments in ((CLI, ['--help']), (CLI, ['--version']), (CLI, ['help']),
                                   (CLI, ['generate', '--help']),
                                   (CLI, ['info', '--model', MODEL]), (SERVER, ['--help']),
                                   (SERVER, ['--version'])):
            with self.subTest(arguments), open('/dev/full', 'w') as full:
                done = subprocess.run([program, *arguments], stdout=full, stderr=subprocess.PIPE,
                                      text=True, env=clean_environment(), check=False)
                self.assertEqual((done.returncode, done.stderr), (
                    1, f'{os.path.basename(program)}: cannot write to standard output\n'))

    def test_checkpoint_commands_run_python(self):
        done = run_cli('import', '/nonexistent', '--out', 'x', model=False, PATH='/nonexistent')
        self.assertEqual(done.returncode, 1)
        self.assertIn('python3 cannot be started', done.stderr)
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, 'lssar-checkpoint')
            script.write_text('#!/bin/sh\necho "$LSSAR_SERVER" "$@"; exit 7\n')
            script.chmod(0o755)
            done = run_cli('verify', 'a b', '--json', model=False,
                           PATH=f'{folder}:{os.environ["PATH"]}')
        self.assertEqual((done.returncode, done.stdout),
                         (7, f'{os.path.realpath(SERVER)} verify a b --json\n'))

    def test_modules_in_the_working_directory_are_not_run(self):
        """It may be that of a checkpoint that somebody else made."""
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, 'argparse.py').write_text('raise SystemExit(9)\n')
            done = subprocess.run([os.path.realpath(CLI), 'verify', '--help'], cwd=folder,
                                  env=clean_environment(PATH='/usr/bin'), check=False,
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn('usage: lssar verify', done.stdout)

    def test_the_servers_limits_are_wrong_usage_too(self):
        self.expect_usage('temperature', 'generate', 'x', '--temperature', '-1', model=True)
        self.expect_usage('max_tokens', 'generate', 'x', '--max-tokens', '99999', model=True)
        score = 'score', '--continuation', 'x'
        for command in ('generate', 'x'), score:
            self.expect_usage('priority is 11', *command, '--priority', '11', model=True)
            self.expect_usage('cache_salt has 129 bytes', *command, '--cache-salt', 's' * 129,
                              model=True)

    def test_help_ends_with_examples(self):
        for command in ('generate', 'chat', 'score', 'perplexity', 'passkey', 'embed', 'attention',
                        'kl', 'sweep', 'ruler', 'figure', 'run-batch', 'bench', 'info', 'import',
                        'quantize', 'export', 'verify'):
            done = run_cli(command, '--help', model=False, PATH='/usr/bin')
            self.assertEqual(done.returncode, 0, done.stderr)
            examples = done.stdout[done.stdout.index('Examples:'):].replace('\\\n', '')
            examples = examples.strip().splitlines()
            self.assertGreaterEqual(len(examples), 3, command)  # two at least
            self.assertTrue(all(f'lssar {command}' in line for line in examples[1:]), command)
            if command in ('figure', 'ruler', 'import'):  # written in Python
                self.assertIn(f'usage: lssar {command} [-h]', done.stdout)

    def test_help_of_python_commands_is_pythons(self):
        done = run_cli('help', 'import', model=False, PATH='/usr/bin')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('usage: lssar import [-h]', done.stdout)
        done = run_cli('help', 'import', model=False, PATH='/usr/bin', PYTHONPATH='')
        self.assertEqual(done.returncode, 1)
        self.assertIn("pip install './clients/python[import]'", done.stderr)

    def test_no_server(self):
        with socket.socket() as taken:
            taken.bind(('127.0.0.1', 0))  # bound, not listening: connections are refused
            address = f'127.0.0.1:{taken.getsockname()[1]}'
            done = run_cli('info', '--server', address, model=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f'no server at {address}; start one with', done.stderr)
        self.assertIn('--model DIR', done.stderr)

    def test_missing_model_and_file(self):
        done = run_cli('info', '--model', os.path.join(MODEL, 'nothing'), model=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn('nothing', done.stderr)
        done = run_cli('generate', '--prompt-file', '/nonexistent')
        self.assertEqual(done.returncode, 1)
        self.assertIn('/nonexistent', done.stderr)


if __name__ == '__main__':
    unittest.main()
