"""lssar.ray on the real Ray. Started by ray_test.py in an environment that has it."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy
import pyarrow
import pyarrow.parquet
import ray
import ray.data

import lssar.ray
from lssar import Client, LssarError, Retry
from lssar._server import OwnServer

SERVER = str(pathlib.Path(os.environ['LSSAR_SERVER']).resolve())
MODEL = str(pathlib.Path('models/zoo/lssar-6m').resolve())
OWN = {'model': MODEL, 'program': SERVER}
NUM_ROWS = 300


def is_server(pid):
    """True while process `pid` is lssar-server."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f'/proc/{pid}/cmdline').read_bytes().startswith(f'{SERVER}\0'.encode())
    return False


def rows(count=NUM_ROWS):
    """Rows with a number, so that lost and doubled ones are seen."""
    return [{'id': i, 'context': f'Item {i} is', 'continuation': f' river number {i % 7}'}
            for i in range(count)]


def score(table, **settings):
    """The rows with their scores, by id."""
    data = ray.data.from_items(table) if isinstance(table, list) else table
    batches = data.map_batches(
        lssar.ray.Score, batch_size=settings.pop('batch_size', 64), num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=settings.pop('actors', 1)),
        fn_constructor_kwargs=settings)
    return sorted(batches.take_all(), key=lambda row: row['id'])


class RayTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        os.environ['PATH'] = f'{pathlib.Path(SERVER).parent}:{os.environ["PATH"]}'  # of actors too
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level='ERROR')
        ray.data.DataContext.get_current().enable_progress_bars = False
        cls.addClassCleanup(ray.shutdown)
        cls.server = cls.enterClassContext(OwnServer(MODEL, program=SERVER,
                                                     flags=('--threads', '1')))
        cls.client = cls.enterClassContext(Client(cls.server.address))
        cls.expected = [score.logprob for [score] in cls.client.score_many(
            (row['context'], [row['continuation']]) for row in rows())]

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def expect_all(self, results):
        """Every row once, with one server's bits."""
        self.assertEqual([row['id'] for row in results], list(range(len(results))))
        self.assertEqual([row['logprob'] for row in results], self.expected[:len(results)])
        self.assertEqual({row['error'] for row in results}, {''})

    def test_two_actors_with_servers_of_their_own(self):
        results = score(rows(), actors=2, flags=['--no-enable-prefix-caching'], **OWN)
        self.assertEqual(len(results), NUM_ROWS)
        self.expect_all(results)

    def test_a_server_that_runs(self):
        self.expect_all(score(rows(), server=self.server.address))

    def test_lists_of_continuations(self):
        table = [{'id': 0, 'question': 'The capital of France is', 'choices': [' Paris', ' Rome']},
                 {'id': 1, 'question': 'One and', 'choices': [' two']},
                 {'id': 2, 'question': 'One and', 'choices': ['']}]
        first, second, third = score(table, server=self.server.address, context='question',
                                     continuations='choices', prefix='lssar_')
        one = self.client.score('The capital of France is', [' Paris', ' Rome'])
        self.assertEqual(list(first['lssar_logprob']), [each.logprob for each in one])
        self.assertEqual(len(second['lssar_logprob']), 1)
        self.assertEqual(len(third['lssar_logprob']), 0)
        self.assertIn('INVALID_ARGUMENT', third['lssar_error'])

    def test_a_row_that_is_too_long_has_its_error(self):
        table = rows(20)
        table[7]['context'] = 'x ' * 40_000
        results = score(table, server=self.server.address)
        self.assertIn('INVALID_ARGUMENT', results[7]['error'])
        self.assertTrue(numpy.isnan(results[7]['logprob']))
        del results[7]
        self.assertEqual([row['logprob'] for row in results],
                         self.expected[:7] + self.expected[8:20])

    def test_bad_cells_are_errors_of_their_rows(self):
        """Without actors: a batch as Ray gives it."""
        def column(*cells):
            found = numpy.empty(len(cells), dtype=object)
            found[:] = cells
            return found

        where = {'server': self.server.address, 'context': None}
        task = lssar.ray.Score(continuation='text', **where)
        bad = ['\ud800', None, float('nan'), numpy.array([2**31]), [-1], {'a': 1}]
        found = task({'text': column(' river', *bad, ' rain')})
        expected = [score.logprob for [score] in self.client.score_many(
            [('', [' river']), ('', [' rain'])])]
        self.assertEqual([found['logprob'][0], found['logprob'][-1]], expected)
        self.assertEqual([found['error'][0], found['error'][-1]], ['', ''])
        for error, said in zip(found['error'][1:-1], (
                'surrogates not allowed', 'has None', 'has nan', 'the token id 2147483648; must be '
                'from 0 to 2147483647', 'the token id -1', "has {'a': 1}"), strict=True):
            self.assertRegex(error, '^INVALID_ARGUMENT: .*' + said)
        found = lssar.ray.Score(continuations='texts', **where)(
            {'texts': column([], [' river'], None)})
        self.assertEqual([len(cells) for cells in found['logprob']], [0, 1, 0])
        self.assertRegex(found['error'][0], r"'texts' has \[\]: a cell of continuations is a list")
        for name, other in (('prompt', lssar.ray.Generate(server=self.server.address, options={
                'max_tokens': 2})), ('text', lssar.ray.Embed(server=self.server.address))):
            errors = other({name: column('river', None)})['error']
            self.assertEqual(errors[0], '')
            self.assertIn('has None', errors[1])
        empty = task({'text': column()})
        self.assertEqual([empty[name].dtype.str for name in ('logprob', 'num_tokens', 'is_greedy')],
                         ['<f8', '<i8', '|b1'])

    def test_a_missing_column_is_named(self):
        with self.assertRaisesRegex(ray.exceptions.RayError,
                                    "no column 'text'; it has 'id', 'context'"):
            score(rows(3), server=self.server.address, context='text')

    def test_a_server_that_is_not_there(self):
        with self.assertRaisesRegex(ray.exceptions.RayError, 'nothing listens there'):
            score(rows(3), server='127.0.0.1:1', retry=Retry(max_attempts=3, initial_s=0.1))

    def test_another_checkpoint_is_an_error(self):
        with self.assertRaisesRegex(ray.exceptions.RayError, 'checkpoint_hash is 0123'):
            score(rows(3), server=self.server.address, checkpoint_hash='0123')

    def test_texts_and_vectors(self):
        data = ray.data.from_items([{'id': i, 'prompt': f'The river {i}'} for i in range(10)])
        options = {'max_tokens': 8, 'seed': 5}
        actors = ray.data.ActorPoolStrategy(size=1)
        texts = data.map_batches(lssar.ray.Generate, compute=actors, batch_size=4,
                                 fn_constructor_kwargs={'server': self.server.address,
                                                        'options': options})
        for row in texts.take_all():
            [expected] = self.client.complete(row['prompt'], **options)
            self.assertEqual((row['completion'], row['finish_reason'], row['error']),
                             (expected.text, expected.finish_reason, ''))
        vectors = data.map_batches(lssar.ray.Embed, compute=actors, batch_size=4,
                                   fn_constructor_kwargs={'server': self.server.address,
                                                          'text': 'prompt'})
        for row in vectors.take_all():
            expected = self.client.embed(row['prompt']).vector
            self.assertEqual(list(row['embedding']), list(expected))

    def test_killed_servers_and_actors_lose_no_row_and_double_none(self):
        kills, servers = self.folder / 'kills', self.folder / 'servers'
        kills.mkdir()
        servers.mkdir()

        class Killing(lssar.ray.Score):
            """Kills its server with the second batch, and itself with the fourth, once each."""

            def __call__(self, batch):
                (servers / str(self._own.pid)).touch()
                first = int(batch['id'][0])
                marker = kills / str(first)
                if first in (32, 96) and not marker.exists():
                    marker.touch()
                    os.kill(self._own.pid if first == 32 else os.getpid(), signal.SIGKILL)
                return super().__call__(batch)

        data = ray.data.from_items(rows(160), override_num_blocks=5)
        batches = data.map_batches(Killing, batch_size=32, num_cpus=1,
                                   compute=ray.data.ActorPoolStrategy(size=1),
                                   fn_constructor_kwargs=OWN)
        results = sorted(batches.take_all(), key=lambda row: row['id'])
        self.assertEqual(len(list(kills.iterdir())), 2)
        self.assertEqual(len(results), 160)
        self.expect_all(results)
        # No server outlives its actor: the killed one's successor, the new actor's.
        self.assertGreater(len(list(servers.iterdir())), 1)
        deadline = time.monotonic() + 120
        while left := [path.name for path in servers.iterdir() if is_server(path.name)]:
            self.assertLess(time.monotonic(), deadline, left)
            time.sleep(0.05)

    def test_files_resume_by_partition(self):
        parts = []
        for part in range(3):
            chunk = rows()[part * 100:(part + 1) * 100]
            if part < 2:
                parts.append(str(self.folder / f'part{part}.parquet'))
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(chunk), parts[-1])
            else:
                parts.append(str(self.folder / 'part2.jsonl'))
                pathlib.Path(parts[-1]).write_text(''.join(json.dumps(row) + '\n'
                                                           for row in chunk))
        output = str(self.folder / 'scores')

        def run(inputs, **options):
            return lssar.ray.run_files(inputs, output, lssar.ray.Score,
                                              progress=False, server=self.server.address,
                                              **options)

        first, = run(parts[:1])
        before = {path: path.stat().st_mtime_ns for path in pathlib.Path(first).iterdir()}
        (pathlib.Path(output) / '.part1.parquet.partial').mkdir()  # of a run that was killed
        with self.assertRaisesRegex(FileExistsError, 'resume=True'):
            run(parts)
        run(parts[1:2])  # later, by itself
        targets = run(parts, resume=True)
        self.assertEqual({path: path.stat().st_mtime_ns for path in pathlib.Path(first).iterdir()},
                         before)
        results = [row for target in targets[:2]
                   for row in ray.data.read_parquet(target).take_all()]
        results += [json.loads(line) for path in pathlib.Path(targets[2]).iterdir()
                    for line in path.read_text().splitlines()]
        self.assertEqual(len(results), NUM_ROWS)
        self.expect_all(sorted(results, key=lambda row: row['id']))
        self.assertEqual(sorted(os.listdir(output)),
                         [*(pathlib.Path(each).name for each in parts), 'run.json'])
        with self.assertRaisesRegex(ValueError, 'run.json: settings of .*of this run: .*other_'):
            run(parts, resume=True, prefix='other_')
        with self.assertRaisesRegex(ValueError, 'run.json: task of .*: Score; of this run: Embed'):
            lssar.ray.run_files(parts, output, lssar.ray.Embed, resume=True,
                                server=self.server.address)
        with self.assertRaisesRegex(ValueError, 'run.json: served of part0'):
            lssar.ray.run_files(parts, output, lssar.ray.Score, resume=True, model=MODEL)
        with open(parts[2], 'a', encoding='utf-8') as file:
            file.write(json.dumps(rows()[0]) + '\n')
        with self.assertRaisesRegex(ValueError, 'run.json: input of part2.jsonl'):
            run(parts, resume=True)
        for wrong, error in (['x.csv'], ValueError), ([str(self.folder / 'no.parquet')],
                                                       FileNotFoundError):
            with self.assertRaises(error):
                run(wrong)

    def test_the_example_of_the_readme(self):
        readme = pathlib.Path('clients/python/README.md').read_text(encoding='utf-8')
        [example] = [each for each in re.findall(r'```python\n(.*?)```', readme, flags=re.S)
                     if 'import ray' in each]
        ids = numpy.fromfile(pathlib.Path(MODEL) / 'held_out.bin', dtype='<u2')[:12 * 200]
        texts = [self.client.detokenize(row.tolist()) for row in ids.reshape(12, 200)]
        path, target = str(self.folder / 'wikitext.parquet'), str(self.folder / 'scores')
        pyarrow.parquet.write_table(pyarrow.Table.from_pydict({'text': texts}), path)
        for old, new in (('wikitext.parquet', path), ("'scores'", repr(target)),
                         ('size=4), num_cpus=2', 'size=1), num_cpus=1'),
                         ("'models/zoo/lssar-6m'", repr(MODEL))):
            self.assertIn(old, example)
            example = example.replace(old, new)
        exec(example, {})
        results = pyarrow.parquet.read_table(target).to_pylist()
        self.assertEqual({row['text']: row['logprob'] for row in results},
                         {text: self.client.score('', [text])[0].logprob for text in texts})

    def test_a_parquet_file_of_articles(self):
        """Wikipedia articles of the model's card, as rows of token ids."""
        ids = numpy.fromfile(pathlib.Path(MODEL) / 'held_out.bin', dtype='<u2')[:24 * 256]
        table = [{'id': i, 'ids': row.tolist()} for i, row in enumerate(ids.reshape(24, 256))]
        path = str(self.folder / 'articles.parquet')
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
        results = score(ray.data.read_parquet(path), server=self.server.address, context=None,
                        continuation='ids')
        self.assertEqual([row['logprob'] for row in results],
                         [self.client.score('', [row['ids']])[0].logprob for row in table])
        self.assertEqual({row['num_tokens'] for row in results}, {256})

    def test_wrong_settings(self):
        for task, settings, sentence in (
                (lssar.ray.Score, {}, 'give server'),
                (lssar.ray.Score, {'server': 'a:1', 'model': 'b'}, 'not both'),
                (lssar.ray.Score, {'server': 'a:1', 'continuation': 'a',
                                          'continuations': 'b'}, 'not both'),
                (lssar.ray.Generate, {'server': 'a:1', 'options': {'n': 2}}, 'one compl'),
                (lssar.ray.Embed, {'server': 'a:1', 'options': {'pooling': 'token'}},
                 'one vector')):
            with self.subTest(sentence), self.assertRaisesRegex(ValueError, sentence):
                task(**settings)
        with self.assertRaisesRegex(RuntimeError, 'ended with code'):
            lssar.ray.Score(model='/nothing/here', program=SERVER)


class OwnServerTest(unittest.TestCase):

    def test_it_ends_with_its_parent(self):
        program = ('import os, sys, lssar._server as s\n'
                   f'server = s.OwnServer({MODEL!r}, program={SERVER!r})\n'
                   'print(server.pid, flush=True)\nos.kill(os.getpid(), 9)\n')
        done = subprocess.run([sys.executable, '-B', '-c', program], capture_output=True, text=True,
                              check=False, timeout=120)
        pid = int(done.stdout)
        for _ in range(2400):
            try:
                state = pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0]
            except OSError:
                return
            if state == 'Z':
                return
            time.sleep(0.05)
        self.fail(f'the server {pid} outlived its parent')

    def test_its_death_is_an_error_of_the_call(self):
        with OwnServer(MODEL, program=SERVER) as server:
            with Client(server.address, retry=None) as client:
                stream = client.stream('The river', max_tokens=8000, ignore_eos=True)
                next(iter(stream))
                server.close()
                with self.assertRaises(LssarError) as caught:
                    list(stream)
        self.assertEqual(caught.exception.code, 'UNAVAILABLE')


if __name__ == '__main__':
    unittest.main()
