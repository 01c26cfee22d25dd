"""`lssar bench` end to end: in-process, against a server, against a service that refuses."""

import json
import os
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from fake_server import FakeService, RunningFake
from programs import MODEL, RunningServer, run_cli

from lssar.v1 import inference_pb2 as pb

LATENCIES = 'ttft_ms', 'tpot_ms', 'itl_ms', 'gap_ms', 'e2e_ms'


class RefusingService(FakeService):
    """Refuses `num_refusals` calls, then generates max_tokens tokens for each call."""

    def GetInfo(self, request, context):
        return pb.GetInfoReply(model_name='fake', max_model_len=4096, vocab_size=100)

    def _answer(self, request):
        yield pb.GenerateReply(started=pb.Started(num_prompt_tokens=len(request.tokens.ids)))
        for _ in range(request.max_tokens):
            yield pb.GenerateReply(delta=pb.Delta(tokens=[pb.Token()]))
        yield pb.GenerateReply(finished=pb.Finished())


class BenchTest(unittest.TestCase):

    def bench(self, *flags, **kwargs):
        done = run_cli('bench', *flags, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def expect_ordered(self, point):
        for name in LATENCIES:
            latency = point[name]
            self.assertTrue(0 <= latency['p50'] <= latency['p90'] <= latency['p99']
                            <= latency['max'], (name, latency))
        self.assertLessEqual(point['ttft_ms']['p50'], point['e2e_ms']['p50'])

    def test_closed_loop_counts_every_request_and_token(self):
        done = self.bench('--max-concurrency', '1,3', '--num-prompts', '9', '--warmup', '0s',
                          '--random-input-len', 'uniform:8,40', '--random-output-len', 'fixed:6',
                          '--json')
        reply = json.loads(done.stdout)
        self.assertEqual(reply['model_name'], os.path.basename(MODEL))
        self.assertEqual((reply['input'], reply['output']), ('uniform:8,40', 'fixed:6'))
        self.assertEqual([point['concurrency'] for point in reply['points']], [1, 3])
        for point in reply['points']:
            self.assertEqual((point['num_completed'], point['num_failed']), (9, 0))
            self.assertEqual(point['num_output_tokens'], 54)
            self.assertIsNone(point['good_requests_per_s'])
            self.expect_ordered(point)
        # All loads send the same requests.
        first, second = reply['points']
        self.assertEqual(first['num_prompt_tokens'], second['num_prompt_tokens'])
        self.assertEqual(done.stderr, '')

    def test_open_loop_with_table_file_and_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            json_path, svg_path = (os.path.join(folder, name) for name in ('load.json', 'load.svg'))
            with RunningServer() as server:
                done = self.bench('--server', server.address, '--request-rate', '20,40',
                                  '--duration', '2s', '--warmup', '100ms', '--random-input-len',
                                  '16', '--random-output-len', '4', '--goodput', 'ttft:1h,e2e:1h',
                                  '--json', json_path, '--figure', svg_path, model=False,
                                  PATH='/usr/bin:/bin')
            with open(json_path) as file:
                reply = json.load(file)
            picture = ElementTree.parse(svg_path).getroot()
        self.assertIn('first token (TTFT)', done.stdout)
        self.assertIn('First token (TTFT) by rate', done.stdout)
        for point in reply['points']:
            self.assertGreater(point['num_completed'], 0)
            self.assertEqual(point['good_requests_per_s'], point['requests_per_s'])
        self.assertTrue(picture.tag.endswith('svg'))

    def test_prompts_from_a_file(self):
        lines = '\n'.join(json.dumps({'prompt': f'The river {i}', 'max_tokens': 2 + i})
                          for i in range(3))
        done = self.bench('--dataset-path', '-', '--num-prompts', '6', '--warmup', '0s',
                          '--max-concurrency', '2', '--json', '-', stdin=lines)
        point, = json.loads(done.stdout)['points']
        self.assertEqual(point['num_output_tokens'], 2 * (2 + 3 + 4))

    def test_refusals_are_counted_by_code(self):
        with RunningFake(RefusingService(num_refusals=4)) as fake:
            done = self.bench('--server', fake.address, '--max-concurrency', '2',
                              '--num-prompts', '10', '--warmup', '0s', '--json', model=False)
        point, = json.loads(done.stdout)['points']
        self.assertEqual(point['failures']['RESOURCE_EXHAUSTED']['count'], 4)
        self.assertEqual((point['num_completed'], point['num_failed']), (6, 4))

    def test_deadlines_end_requests(self):
        done = run_cli('bench', '--num-prompts', '2', '--warmup', '0s', '--max-concurrency', '2',
                       '--random-output-len', '15000', '--deadline', '100ms', '--json')
        self.assertEqual(done.returncode, 1)
        self.assertIn('no request completed', done.stderr)
        point, = json.loads(done.stdout)['points']
        self.assertEqual(point['failures']['DEADLINE_EXCEEDED']['count'], 2)

    def test_wrong_usage(self):
        for part, flags in (('--request-rate', ('--request-rate', '1,x')),
                            ('--random-input-len', ('--random-input-len', 'zipf:3')),
                            ('excludes', ('--request-rate', '1', '--max-concurrency', '1')),
                            ('--duration', ('--duration', '10')),
                            ('--goodput', ('--goodput', 'speed:1s')),
                            ('the served context of 16384', ('--random-input-len', '16384'))):
            done = run_cli('bench', *flags)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(part, done.stderr)


if __name__ == '__main__':
    unittest.main()
