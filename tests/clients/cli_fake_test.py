"""`lssar` against a service that does what a real one does only under load."""

from concurrent import futures
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from fake_server import FakeService, RunningFake
from lssar.v1 import inference_pb2 as pb
from lssar._prefix import HEADER, prefix_key
from programs import CLI, clean_environment, run_cli

sys.path.insert(0, 'models/training')
import passkey  # noqa: E402


class PasskeyTest(unittest.TestCase):

    def run_passkey(self, service, *flags):
        with RunningFake(service) as fake:
            done = run_cli('passkey', '--server', fake.address, *flags, '--json', model=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_sends_the_prompts_of_the_training_recipe(self):
        service = FakeService()
        self.run_passkey(service, '--lengths', '300,4000', '--trials', '5', '--seed', '11')
        unit = len(passkey.FILL)  # a byte is a token here
        expected = []
        for length in 300, 4000:
            rng = passkey.Random(11)
            for _ in range(5):
                expected.append(passkey.make(max(0, (length - 20 - 110) // unit), rng)[0])
        self.assertCountEqual(service.prompts, expected)

    def test_given_depths_equal_the_training_recipe(self):
        service = FakeService()
        self.run_passkey(service, '--lengths', '2000', '--trials', '2', '--depths', '0,0.5,1')
        rng = passkey.Random(7)
        num_filler = (2000 - 20 - 110) // len(passkey.FILL)
        self.assertCountEqual(service.prompts, [passkey.make(num_filler, rng, depth=depth)[0]
                                                for depth in (0, 0, 0.5, 0.5, 1, 1)])

    def test_an_answer_whose_tokens_join_the_question_is_an_error(self):
        class Joins(FakeService):
            """' is' before a space is one token: as many ids in all, and other ones before."""

            def Tokenize(self, request, context):
                ids = request.text.encode().replace(b'is 24488', b'~~  24488')
                return pb.TokenizeReply(ids=ids)

        with RunningFake(Joins()) as fake:
            done = run_cli('passkey', '--server', fake.address, '--lengths', '300', '--trials', '1',
                           model=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn('the ids of the document with the answer "24488." do not begin with those of '
                      'the document alone', done.stderr)

    def test_retries_while_the_queue_is_full(self):
        reply = self.run_passkey(FakeService(num_refusals=7), '--lengths', '500', '--trials', '6')
        self.assertEqual(reply['lengths'][0]['num_hits'], 6)

    def test_limits_the_requests_in_flight(self):
        service = FakeService()
        self.run_passkey(service, '--lengths', '500', '--trials', '40', '--max-concurrency', '3')
        self.assertLessEqual(service.max_concurrency, 3)

    def test_counts_misses_by_depth(self):
        early = FakeService(knows=lambda prompt: prompt.index('The pass key is') < 1000)
        reply = self.run_passkey(early, '--lengths', '4000', '--trials', '3', '--depths', '0,1')
        self.assertEqual([(cell['depth'], cell['num_hits'], cell['num_trials'])
                          for cell in reply['cells']], [('0%', 3, 3), ('100%', 0, 3)])
        self.assertEqual(reply['lengths'][0]['accuracy'], 0.5)


def item_lines(num_items):
    return '\n'.join(json.dumps({'context': f'Item {i}', 'continuations': ['x' * (1 + i % 7)]})
                     for i in range(num_items)) + '\n'


class ScoreFileTest(unittest.TestCase):

    def score(self, service, lines, *flags):
        with RunningFake(service) as fake:
            return run_cli('score', '--server', fake.address, '--file', '-', *flags, stdin=lines,
                           model=False)

    def test_several_calls_are_in_flight_and_results_keep_their_order(self):
        service = FakeService(num_gathered=6)
        done = self.score(service, item_lines(3000), '--json', '--max-concurrency', '6')
        self.assertEqual(done.returncode, 0, done.stderr)
        # The fake scores a continuation by the number in its context.
        self.assertEqual([json.loads(line)['continuations'][0]['logprob']
                          for line in done.stdout.splitlines()], [-i for i in range(3000)])
        self.assertEqual(service.max_concurrency, 6)

    def test_memory_is_bounded(self):
        # The results after the first item wait for it: at most 16 batches of 64 items are read.
        service = FakeService(blocks_first_item=True)
        with RunningFake(service) as fake:
            done = subprocess.Popen(
                [CLI, 'score', '--server', fake.address, '--file', '-', '--json',
                 '--max-concurrency', '8'],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=clean_environment())
            feed = threading.Thread(target=lambda: (done.stdin.write(item_lines(5000)),
                                                    done.stdin.close()))
            feed.start()
            self.assertTrue(service.wait_for_scores(15 * 64))
            time.sleep(0.3)
            self.assertLessEqual(service.num_scored, 16 * 64)
            service.unblock()
            lines = done.stdout.read().splitlines()
            feed.join()
            done.stdout.close()
            done.stderr.close()
            self.assertEqual(done.wait(), 0)
        self.assertEqual(len(lines), 5000)

    def test_a_full_queue_is_retried(self):
        done = self.score(FakeService(num_refusals=5), item_lines(200), '--json')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 200)

    def expect_one_attempt(self, service, message):
        done = self.score(service, item_lines(1), '--json')
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(message, done.stderr)
        self.assertEqual(service.num_refused, 1)

    def test_a_refusal_without_a_wait_is_final(self):
        self.expect_one_attempt(FakeService(num_refusals=5, retry_s=None), 'the queue is full')

    def test_a_wait_of_more_than_a_minute_is_an_error(self):
        refusal = 'RESOURCE_EXHAUSTED', 'tokens-per-minute is used up'
        self.expect_one_attempt(FakeService(num_refusals=5, retry_s=61, refusal=refusal),
                                'tokens-per-minute is used up')

    def test_a_refusal_of_the_call_itself_is_not_asked_for_again_with_each_item(self):
        for code, message, num_calls in (
                ('INVALID_ARGUMENT', 'priority is 9; it must be in [-4, 4]', 3),
                ('NOT_FOUND', 'there is no model "x"', 1), ('UNAUTHENTICATED', 'no key', 1)):
            service = FakeService(num_refusals=1000, retry_s=None, refusal=(code, message))
            done = self.score(service, item_lines(64), '--max-concurrency', '1')
            self.assertIn(message, done.stderr)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(service.num_refused, num_calls)

    def test_an_error_names_its_line_after_the_results_before_it(self):
        done = self.score(FakeService(), item_lines(100) + '\n{oops\n' + item_lines(5), '--json')
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn('line 102: not a JSON object', done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 100)

    def test_the_servers_error_names_the_line(self):
        lines = '\n' + item_lines(70) + json.dumps({'context': 'bad', 'continuations': ['x']})
        done = self.score(FakeService(), lines, '--json')
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn('line 72: context is bad', done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 70)


class ScoreRowsTest(unittest.TestCase):
    """lssar score --input --output --resume."""

    def setUp(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.input, self.output = folder / 'rows.jsonl', folder / 'scores.jsonl'

    def score(self, *flags, service=None, code=0):
        with RunningFake(service or FakeService(checkpoint_hash='a')) as fake:
            done = run_cli('score', '--server', fake.address, '--input', str(self.input),
                           '--output', str(self.output), *flags, model=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def lines(self):
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def expect_scores(self, num_rows):
        """Every row once, in order. The fake scores a row by the number in its context."""
        self.assertEqual([(line['line'], line['continuations'][0]['logprob'])
                          for line in self.lines()], [(i + 1, -i) for i in range(num_rows)])

    def test_rows_and_the_errors_of_rows(self):
        self.input.write_text(item_lines(100) + '\n{oops\n' + json.dumps(
            {'context': 'bad', 'continuations': ['x']}) + '\n' + item_lines(70))
        done = self.score(code=1)
        self.assertIn('2 of 172 rows are invalid', done.stderr)
        lines = self.lines()
        self.assertEqual([line['line'] for line in lines],
                         [*range(1, 101), *range(102, 174)])
        self.assertEqual([lines[100]['error']['code'], lines[101]['error']],
                         ['INVALID_ARGUMENT', {'code': 'INVALID_ARGUMENT',
                                               'message': 'line 103: context is bad'}])
        self.assertIn('line 102: not a JSON object', lines[100]['error']['message'])
        self.assertEqual([line['continuations'][0]['logprob'] for line in lines
                          if 'error' not in line], [*[-i for i in range(100)],
                                                    *[-i for i in range(70)]])
        self.assertEqual({line['checkpoint_hash'] for line in lines}, {'a'})
        self.assertIn('2 of 172 rows are invalid', self.score('--resume', code=1).stderr)

    def test_the_error_of_one_item_takes_no_further_call(self):
        bad = json.dumps({'context': 'bad', 'continuations': ['x']}) + '\n'
        self.input.write_text('{oops\n' + item_lines(40) + bad + item_lines(22))
        service = FakeService(checkpoint_hash='a')
        self.score(service=service, code=1)
        self.assertEqual(len(service.metadata), 1)
        errors = {line['line']: line['error']['message'] for line in self.lines()
                  if 'error' in line}
        self.assertEqual(list(errors), [1, 42])
        self.assertEqual(errors[42], 'line 42: context is bad')

    def test_items_of_which_all_are_invalid_have_each_its_error(self):
        bad = json.dumps({'context': 'bad', 'continuations': ['x']}) + '\n'
        self.input.write_text(bad * 3)
        service = FakeService(checkpoint_hash='a')
        self.score(service=service, code=1)
        self.assertEqual([line['error']['message'] for line in self.lines()],
                         [f'line {number}: context is bad' for number in (1, 2, 3)])
        self.assertEqual(len(service.metadata), 4)

    def test_a_killed_run_goes_on(self):
        self.input.write_text(item_lines(1000))
        service = FakeService(checkpoint_hash='a', blocks_from=512)
        with RunningFake(service) as fake:
            run = subprocess.Popen([CLI, 'score', '--server', fake.address, '--input', self.input,
                                    '--output', self.output], stderr=subprocess.DEVNULL,
                                   env=clean_environment())
            self.assertTrue(service.wait_for_scores(200))
            run.kill()
            run.wait()
            service.unblock()
        whole = self.output.read_text()
        self.assertLess(whole.count('\n'), 1000)
        with self.output.open('a') as file:  # as if the kill had come within a line
            file.write('{"line": 99')
        service = FakeService(checkpoint_hash='a')
        self.score('--resume', service=service)
        self.assertEqual(service.num_scored, 1000 - whole.count('\n'))
        self.assertTrue(self.output.read_text().startswith(whole))
        self.expect_scores(1000)
        self.score('--resume')  # nothing is left
        self.expect_scores(1000)

    def test_resume_is_only_for_the_same_run(self):
        self.input.write_text(item_lines(10))
        self.score('--resume')
        self.assertIn('exists; continue it with --resume', self.score(code=1).stderr)
        other = FakeService(checkpoint_hash='b')
        self.assertIn('has lines with checkpoint_hash "a", not "b"',
                      self.score('--resume', service=other, code=1).stderr)
        self.input.write_text(item_lines(3))
        self.assertIn('it is of another input', self.score('--resume', code=1).stderr)
        # The last could be a line that was not written whole: it is not one of this command.
        for text in '{"id": 3}\n', 'notes', '{"id": 3}', '{"line', '{"trial":1':
            self.output.write_text(text)
            is_begun = text == '{"line'
            done = self.score('--resume', code=0 if is_begun else 1)
            if not is_begun:
                self.assertIn('is not an output of this command', done.stderr)
                self.assertEqual(self.output.read_text(), text)
        self.assertIn('go together', run_cli('score', '--input', 'x', model=False).stderr)

    def test_a_server_that_ends_is_tried_again(self):
        self.input.write_text(item_lines(100))
        self.score(service=FakeService(checkpoint_hash='a', breaks_after=3))
        self.expect_scores(100)


class EmbedTest(unittest.TestCase):

    def test_layers_that_were_not_asked_for_are_an_error(self):
        class Service(FakeService):
            def Embed(self, request, context):
                yield pb.EmbedReply(vectors=pb.EmbeddingVectors(
                    size=1, num_layers=200000, values=[0.5] * 200000))

        with RunningFake(Service()) as fake:
            for flags in ((), ('--layers', '0,1')):
                done = run_cli('embed', 'x', *flags, '--server', fake.address, model=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn('the server sent vectors of different sizes', done.stderr)


class WaitingTest(unittest.TestCase):
    """gRPC makes five attempts, in about a second and a half. Loading may take minutes."""

    def test_a_server_that_loads_is_waited_for_and_one_that_stays_away_is_a_sentence(self):
        with futures.ThreadPoolExecutor() as pool:  # they wait at the same time
            for done in [pool.submit(self.wait, ['info', '--json'], '"model_name":"fake"'),
                         pool.submit(self.wait, ['generate', 'x'], 'Hi'),
                         pool.submit(self.score_without_a_server)]:
                done.result()

    def wait(self, arguments, output):
        with RunningFake(FakeService(pieces=['Hi'], num_loading=12)) as fake:
            done = run_cli(*arguments, '--server', fake.address, model=False)
            self.assertEqual((done.returncode, done.stderr), (
                0, f'waiting for {fake.address}, which is loading its model\n'))
            self.assertIn(output, done.stdout)

    def score_without_a_server(self):
        away = FakeService(checkpoint_hash='a', num_refusals=1000,
                           refusal=('UNAVAILABLE', 'draining'))
        with tempfile.TemporaryDirectory() as folder, RunningFake(away) as fake:
            rows, scores = pathlib.Path(folder, 'rows.jsonl'), pathlib.Path(folder, 'scores.jsonl')
            rows.write_text(item_lines(5))
            done = run_cli('score', '--server', fake.address, '--input', str(rows), '--output',
                           str(scores), model=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn('no answer after 6 attempts: draining', done.stderr)
            self.assertEqual(scores.read_text(), '')


class PrefixHeaderTest(unittest.TestCase):

    def test_it_is_that_of_the_python_client(self):
        service = FakeService(pieces=['x'])
        long = 'Ein Fluß ' * 60
        with RunningFake(service) as fake:
            for arguments in (['generate', long], ['generate', '--ids', '5,6,7'],
                              ['generate', 'short', '--cache-salt', 'salt'],
                              ['score', '--context', f'Item 1 {long}', '--continuation', 'x'],
                              ['score', '--file', '-']):
                done = run_cli(*arguments, '--server', fake.address, model=False,
                               stdin=item_lines(3))
                self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(service.metadata), 5)
        for request, metadata in service.metadata:
            self.assertEqual(metadata[HEADER], prefix_key(request))


class SpecialTokenTest(unittest.TestCase):

    def generate(self, *flags):
        service = FakeService(pieces=['Hi', ' <|x|>', '<|user|>', ' you'])
        with RunningFake(service) as fake:
            done = run_cli('generate', 'x', '--server', fake.address, *flags, model=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_special_tokens_are_not_printed_unless_asked(self):
        self.assertEqual(self.generate(), 'Hi <|x|> you\n')
        self.assertEqual(self.generate('--show-special-tokens'), 'Hi <|x|><|user|> you\n')
        reply = json.loads(self.generate('--json'))
        self.assertEqual(reply['choices'][0]['text'], 'Hi <|x|> you')
        self.assertEqual(len(reply['choices'][0]['tokens']), 4)
        shown = json.loads(self.generate('--json', '--show-special-tokens'))
        self.assertEqual(shown['choices'][0]['text'], 'Hi <|x|><|user|> you')

    def test_a_chat_neither_prints_them_nor_sends_them_back(self):
        service = FakeService(pieces=['Hi', ' <|x|>', '<|user|>', ' you'])
        with RunningFake(service) as fake:
            for flags in (), ('--json',):
                done = run_cli('chat', '--server', fake.address, *flags, model=False,
                               stdin='one\ntwo\n')
                self.assertEqual(done.returncode, 0, done.stderr)
                if flags:
                    answers = [json.loads(line)['content'] for line in done.stdout.splitlines()]
                else:
                    answers = done.stdout.splitlines()
                self.assertEqual(answers, ['Hi <|x|> you'] * 2)
                request, _ = service.metadata[-1]
                self.assertEqual([message.content for message in request.chat.messages],
                                 ['one', 'Hi <|x|> you', 'two'])


    def test_a_chat_has_a_low_temperature(self):
        service = FakeService(pieces=['x'])
        with RunningFake(service) as fake:
            for flags, expected in ((), 0.2), (('--temperature', '1'), 1):
                run_cli('chat', '--server', fake.address, *flags, model=False, stdin='one\n')
                request, _ = service.metadata[-1]
                self.assertAlmostEqual(request.sampling.temperature, expected)
        helps = [run_cli(command, '--help', model=False).stdout for command in ('chat', 'generate')]
        self.assertEqual(['[0 to 100; default 0.2]' in each for each in helps], [True, False])


class ChatErrorTest(unittest.TestCase):

    def chat(self, lines, **service):
        with RunningFake(FakeService(pieces=['x'], **service)) as fake:
            return run_cli('chat', '--server', fake.address, model=False, stdin=lines)

    def test_an_error_is_printed_once(self):
        done = self.chat('x' * 100 + '\n', max_model_len=64)
        self.assertEqual((done.returncode, done.stderr), (
            1, 'lssar: line 1: the message is too long: it takes about 108 tokens, and the '
               'context has 64 (OUT_OF_RANGE)\n'))
        refused = self.chat('one\n', num_refusals=1, retry_s=None)
        self.assertEqual((refused.returncode, refused.stderr), (
            1, 'lssar: line 1: the queue is full (RESOURCE_EXHAUSTED)\n'))

    def test_the_lines_after_an_error_are_answered(self):
        done = self.chat(f'one\n{"x" * 100}\ntwo\n', max_model_len=64)
        self.assertEqual((done.returncode, done.stdout), (1, 'x\nx\n'))
        self.assertEqual(done.stderr.count('line 2: the context is full'), 1)
        self.assertEqual(done.stderr.count('/reset removes the messages'), 1)
        self.assertIn('lssar: 1 of 3 messages has no answer (OUT_OF_RANGE)', done.stderr)


if __name__ == '__main__':
    unittest.main()
