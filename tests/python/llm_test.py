"""lssar.LLM: the offline API over a private server."""

import contextlib
import gc
import io
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import numpy

import lssar
import programs
from lssar import LLM, SamplingParams, kl
from lssar._server import OwnServer
from quick_models import UNCHECKED as MODEL

SERVER = os.environ['LSSAR_SERVER']
ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = {'program': SERVER, 'threads': 1, 'max_model_len': 512, 'kv_cache_memory': '64M'}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def has_ended(pid: int) -> bool:
    try:
        stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return True
    return stat.rsplit(')', 1)[1].split()[0] == 'Z'


def wait_until(condition) -> bool:
    for _ in range(1200):
        if condition():
            return True
        time.sleep(0.05)
    return False


class DocumentationTest(unittest.TestCase):
    """The program of docs/ runs and shows what the page says."""

    def test_a_direction(self):
        lines = [line.split(':') for line in programs.run_page(
            'docs/steering.md', sys.executable, os.environ)]
        self.assertEqual([line[0] for line in lines], [f'scale {i}' for i in (-1, -0.5, 0, 0.5, 1)])
        losses = [[float(number) for number in re.findall(r'\d+\.\d+', line[1])] for line in lines]
        preference = [articles - dialogs for articles, dialogs in losses]  # for dialogs
        self.assertEqual(preference, sorted(preference))


class LlmTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.llm = cls.enterClassContext(LLM(MODEL, **SMALL))

    def test_generates_one_prompt_or_many_in_order(self):
        prompts = ['The old house', 'The river', 'One day']
        alone = [self.llm.generate(prompt, GREEDY)[0].text for prompt in prompts]
        together = self.llm.generate(prompts, GREEDY)
        self.assertEqual([each.text for each in together], alone)
        self.assertEqual([each.prompt for each in together], prompts)
        self.assertEqual(len(set(alone)), 3)

    def test_structured_output(self):
        try:
            [output] = self.llm.generate('The', SamplingParams(choice=['yes', 'no'], seed=1))
        except lssar.LssarError as error:
            self.assertEqual(error.code, 'UNIMPLEMENTED')
            self.skipTest('this build has no xgrammar')
        self.assertIn(output.text, ('yes', 'no'))
        self.assertEqual(output.outputs[0].finish_reason, 'EOS')
        [output] = self.llm.chat([('user', 'A number?')], regex='[0-9]{3}x', max_tokens=20)
        self.assertRegex(output.text, '^[0-9]{3}x$')

    def test_token_ids_are_one_prompt_and_lists_of_them_are_many(self):
        ids = self.llm.encode('The old house')
        self.assertEqual(self.llm.generate(ids, GREEDY)[0].text,
                         self.llm.generate('The old house', GREEDY)[0].text)
        self.assertEqual(len(self.llm.generate([ids, ids[:2]], GREEDY)), 2)
        self.assertEqual(len(self.llm.generate(list(numpy.array(ids)), GREEDY)), 1)
        self.assertEqual(len(self.llm.generate([numpy.array(ids)] * 2, GREEDY)), 2)
        self.assertEqual(self.llm.generate([], GREEDY), [])
        self.assertIn('old house', self.llm.decode(ids))

    def test_sampling_params_have_vllms_names(self):
        params = SamplingParams(n=2, seed=3, max_tokens=20, stop='e', top_k=-1, logprobs=0)
        self.assertEqual(params.options(), {'n': 2, 'seed': 3, 'max_tokens': 20, 'top_k': 0,
                                            'stop_strings': ['e'], 'logprobs': 0})
        [output] = self.llm.generate('The old house', params)
        self.assertEqual(len(output.outputs), 2)
        self.assertTrue(all('e' not in each.text for each in output.outputs))

    def test_chat_takes_one_conversation_or_many(self):
        chat = [{'role': 'user', 'content': 'How are you?'}]
        one = self.llm.chat(chat, GREEDY)
        two = self.llm.chat([chat, [('user', 'Who is she?')]], GREEDY)
        self.assertEqual(len(one), 1)
        self.assertEqual(two[0].text, one[0].text)
        self.assertEqual(len(two), 2)
        for same in tuple(chat), [tuple(chat)], (tuple(chat),):
            self.assertEqual([each.text for each in self.llm.chat(same, GREEDY)], [one[0].text])
        for wrong in 'How are you?', ['How are you?'], [chat, 'How?'], chat[0], [[5, 6]]:
            with self.assertRaisesRegex(TypeError, r'messages\[\d\] must be a list of messages'):
                self.llm.chat(wrong, GREEDY)

    def test_scores_embeddings_and_attention(self):
        [[states, kingdom]] = self.llm.score([('The President of the United',
                                               [' States', ' Kingdom'])])
        self.assertGreater(states.logprob, kingdom.logprob)
        info = self.llm.info
        [vector] = self.llm.embed('The river')
        self.assertEqual(vector.shape, (info.hidden_size,))
        ids = self.llm.encode('The river')
        [rows] = self.llm.embed(['The river'], pooling='token')
        self.assertEqual(rows.shape, (len(ids), info.hidden_size))
        self.assertEqual(rows[-1].tolist(), vector.tolist())
        attention = self.llm.attention('The river', layers=[-1])
        self.assertEqual({row.layer for row in attention.rows}, {info.num_hidden_layers - 1})

    def test_hidden_states_of_layers(self):
        ids = self.llm.encode('The river and the old house')
        layers = [6, -1, 0]
        [last] = self.llm.embed('The river and the old house', layers=layers)
        [whole] = self.llm.embed([ids], layers=numpy.array(layers), pooling='token')
        self.assertEqual((last.shape, whole.shape), ((3, 256), (len(ids), 3, 256)))
        self.assertEqual(whole[-1].tolist(), last.tolist())
        blocks = list(self.llm.client.hidden_states(ids, layers=layers))
        self.assertEqual([block.first for block in blocks[:1]], [0])
        self.assertTrue((numpy.concatenate([block.values for block in blocks]) == whole).all())
        halves = list(self.llm.client.hidden_states(ids, layers=layers, dtype='fp16'))
        halves = numpy.concatenate([block.values for block in halves])
        self.assertEqual(halves.dtype, numpy.float16)
        [only] = self.llm.client.hidden_states('The', pooling='last', dtype='fp16')
        self.assertTrue(only.values.flags.writeable)
        self.assertTrue((halves == whole.astype(numpy.float16)).all())

    def test_hidden_states_of_a_long_text_come_in_blocks(self):
        ids = [5 + i % 4000 for i in range(500)]
        first = 0
        for block in self.llm.client.hidden_states(ids, layers=[0, 1, 2, 3, 4, 5, 6, -1]):
            self.assertEqual((block.first, *block.values.shape[1:]), (first, 8, 256))
            self.assertLessEqual(block.values.size, 32768)
            first += len(block.values)
        self.assertEqual(first, len(ids))

    def test_distributions_are_those_of_scores(self):
        context, continuation = self.llm.encode('The river'), self.llm.encode(' is long and cold')
        blocks = list(self.llm.client.distributions(context, continuation))
        logprobs = numpy.concatenate([block.logprobs for block in blocks])
        self.assertEqual(logprobs.shape, (len(continuation), self.llm.info.vocab_size))
        self.assertLess(abs(numpy.exp(logprobs.astype(float)).sum(axis=1) - 1).max(), 1e-6)
        [[score]] = self.llm.score([(context, [continuation])], per_token=True, top_logprobs=3,
                                   logprob_token_ids=[7, 300])
        for row, token, chosen in zip(logprobs, score.tokens, score.token_id_logprobs,
                                      strict=True):
            self.assertEqual(row[token.id], token.logprob)  # the same bits
            self.assertEqual([row[each.id] for each in token.top],
                             [each.logprob for each in token.top])
            self.assertEqual((row[7], row[300]), chosen)
        with self.assertRaisesRegex(lssar.LssarError, r'logprob_token_ids\[0\] is -1'):
            self.llm.score([(context, [continuation])], logprob_token_ids=[-1])

    def test_kl_of_two_models(self):
        ids = numpy.fromfile(os.path.join(MODEL, 'held_out.bin'), '<u2')[:120]
        with LLM(MODEL, kv_cache_dtype='int8', **SMALL) as other:
            result = kl.compare(self.llm.client, other.client, ids)
            a, b = (numpy.concatenate([block.logprobs for block in
                                       each.client.distributions(ids[:1], ids[1:])]).astype(float)
                    for each in (self.llm, other))
        own = kl.compare(self.llm.client, self.llm.client, ids)
        self.assertEqual((own.kl.tolist(), own.same_top.all()), ([0.0] * 119, True))
        self.assertTrue((own.loss_a == own.loss_b).all())
        for i in range(119):
            self.assertAlmostEqual(result.kl[i], sum(math.exp(x) * (x - y) for x, y in
                                                     zip(a[i], b[i])), places=9)
            self.assertEqual(result.same_top[i], a[i].argmax() == b[i].argmax())
            self.assertEqual(result.loss_b[i], -b[i][ids[i + 1]])
        self.assertGreater(result.kl.min(), 0)
        self.assertLess(result.kl.max(), 1)
        with self.assertRaisesRegex(ValueError, 'ids has 1 tokens'):
            kl.compare(self.llm.client, self.llm.client, ids[:1])

    def test_lssar_kl(self):
        def run(*arguments):
            output, errors = io.StringIO(), io.StringIO()
            with (mock.patch.dict(os.environ, LSSAR_SERVER=SERVER),
                  contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors)):
                code = kl.main(arguments)
            return code, output.getvalue(), errors.getvalue()

        ids = os.path.join(MODEL, 'held_out.bin')
        arguments = (MODEL + ',threads=1', MODEL + ',threads=1,p=5', '--ids', ids, '--length', '40',
                     '--rows', '2')
        code, text, _ = run(*arguments, '--json')
        self.assertEqual(code, 0)
        result = json.loads(text)
        self.assertEqual((result['num_rows'], result['num_positions']), (2, 78))
        self.assertEqual([(each['first'], each['end']) for each in result['by_position']],
                         [(1, 16), (16, 40)])
        self.assertGreater(result['kl'], 0.001)
        code, text, _ = run(*arguments)
        self.assertEqual([line.split()[0] for line in text.splitlines()],
                         ['2', 'positions', '1-15', '16-39', 'all'])
        for wrong, message in ((('no/where,dtype=fp32', MODEL, '--ids', ids), 'there is none'),
                               ((MODEL + ',x=1', MODEL, '--ids', ids), "'x=1'"),
                               ((MODEL, MODEL, '--ids', ids, '--length', '1'), '--length 1')):
            code, _, errors = run(*wrong)
            self.assertEqual(code, 1)
            self.assertIn(message, errors)

    def test_lssar_kl_sends_the_api_key(self):
        with mock.patch.dict(os.environ, LSSAR_API_KEY='secret'), \
                mock.patch.object(kl, 'Client') as client, contextlib.ExitStack() as stack:
            client.return_value.__enter__.return_value = client.return_value
            kl.Side.parse('host:1').open(stack)
        client.assert_called_once_with('host:1', tls=None, api_key='secret')

    def test_steering(self):
        vector = numpy.linspace(-1, 1, 256, dtype=numpy.float32)
        with LLM(MODEL, allow_steering=True, **SMALL) as llm:
            self.assertTrue(llm.info.steering_allowed)
            [own] = llm.embed('The river', layers=[3, 6])
            [steered] = llm.embed('The river', layers=[3, 6], steering=[
                {'layer': 3, 'vector': vector, 'scale': 2}])
            self.assertEqual(steered[0].tolist(), (own[0] + 2 * vector).tolist())
            self.assertGreater(abs(steered[1] - own[1]).max(), 0.1)
            texts = {llm.generate('The river', GREEDY, steering=steering)[0].text for steering in
                     (None, [], [{'layer': 3, 'vector': vector, 'scale': 20}])}
            self.assertEqual(len(texts), 2)
            with self.assertRaisesRegex(lssar.LssarError, 'hidden_size = 256'):
                llm.generate('The river', GREEDY, steering=[{'layer': 3, 'vector': [1.0]}])
            with self.assertRaisesRegex(TypeError, 'must have layer and vector'):
                llm.generate('The river', GREEDY, steering=[{'layer': 3}])
        with self.assertRaisesRegex(lssar.LssarError, '--allow-steering'):
            self.llm.generate('The river', GREEDY, steering=[{'layer': 3, 'vector': vector}])

    def test_errors_of_a_call_keep_their_code(self):
        with self.assertRaises(lssar.LssarError) as caught:
            self.llm.generate('x', SamplingParams(temperature=-1))
        self.assertEqual(caught.exception.code, 'INVALID_ARGUMENT')

    def test_a_second_model_of_this_process(self):
        with LLM(MODEL, **SMALL) as second:
            self.assertEqual(second.generate('The river', GREEDY)[0].text,
                             self.llm.generate('The river', GREEDY)[0].text)

    def test_it_outlives_the_thread_that_made_it(self):
        made = []
        thread = threading.Thread(target=lambda: made.append(LLM(MODEL, **SMALL)))
        thread.start()
        thread.join()
        with made[0] as llm:
            self.assertTrue(llm.generate('The river', GREEDY)[0].text)


class OwnServerTest(unittest.TestCase):

    def test_a_step_may_take_as_long_as_a_busy_machine_needs(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, 'server')
            program.write_text('#!/bin/sh\necho "limit ${LSSAR_STEP_TIMEOUT}."\nexit 1\n')
            program.chmod(0o755)
            for environment, limit in ((None, '0'), ({}, '0'),
                                       ({'LSSAR_STEP_TIMEOUT': '5s'}, '5s')):
                with self.assertRaisesRegex(RuntimeError, f'limit {limit}[.]'):
                    OwnServer('x', program=str(program), environment=environment)

    def test_it_serves_whatever_log_level_is_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, 'server')
            program.write_text("""#!/bin/sh
                echo '{"no JSON'
                case "$*" in
                  *--log-level*--log-level*) echo given twice; exit 1 ;;
                  *'--log-level info'*'--threads 1') ;;
                  *) echo not info; exit 1 ;;
                esac
                echo '{"event":"serving","http_address":"here:1"}'
                exec sleep 600
                """)
            program.chmod(0o755)
            for flags in ([], ['--log-level', 'error'], ['--log-level=off']):
                with OwnServer('x', program=str(program), flags=[*flags, '--threads', '1'],
                               environment={**os.environ, 'LSSAR_LOG_LEVEL': 'off'}) as server:
                    self.assertEqual(server.http_address, 'here:1')

    def test_the_server_tells_that_it_serves_without_the_usual_log_level(self):
        with mock.patch.dict(os.environ, LSSAR_LOG_LEVEL='error'), \
                LLM(MODEL, flags=['--log-level', 'off'], **SMALL) as llm:
            self.assertTrue(llm.client.get_info().model_name)

    def test_what_cannot_be_started_is_an_error(self):
        with self.assertRaisesRegex(ValueError, 'null byte'):
            OwnServer('x\0', program='true')

    def test_an_interrupted_start_ends_it(self):
        with tempfile.TemporaryDirectory() as folder:
            program, pid = pathlib.Path(folder, 'server'), pathlib.Path(folder, 'pid')
            program.write_text(f'#!/bin/sh\necho $$ > {pid}.new\nmv {pid}.new {pid}\n'
                               'exec sleep 600\n')
            program.chmod(0o755)

            def interrupt():
                wait_until(pid.exists)
                os.kill(os.getpid(), signal.SIGINT)

            threading.Thread(target=interrupt, daemon=True).start()
            with self.assertRaises(KeyboardInterrupt):
                OwnServer('x', program=str(program))
            self.assertTrue(has_ended(int(pid.read_text())))


class PackageTest(unittest.TestCase):

    def test_every_form_of_import_works(self):
        for program in ('import lssar; lssar.LLM; lssar.Client',
                        'import lssar.v1.inference_pb2, lssar; lssar.LLM',
                        'from lssar import *; LLM, Client, SamplingParams, LssarError'):
            subprocess.run([sys.executable, '-B', '-c', program], check=True)


class LifeTest(unittest.TestCase):

    def test_the_example_of_the_readme_runs(self):
        readme = pathlib.Path('clients/python/README.md').read_text(encoding='utf-8')
        [example] = [each for each in re.findall(r'```python\n(.*?)```', readme, flags=re.S)
                     if 'import LLM' in each]
        path = os.pathsep.join([os.path.dirname(SERVER), os.environ['PATH']])
        names = {}
        out = io.StringIO()
        with mock.patch.dict(os.environ, PATH=path), contextlib.redirect_stdout(out):
            exec(example, names)
        names['llm'].close()
        self.assertTrue(out.getvalue().strip())
        self.assertEqual(len(names['vectors']), 2)

    def test_it_ends_with_the_object(self):
        llm = LLM(MODEL, **SMALL)
        pid, address = llm._server.pid, llm._server.address
        del llm
        gc.collect()
        self.assertTrue(wait_until(lambda: has_ended(pid)))
        self.assertFalse(os.path.exists(os.path.dirname(address.removeprefix('unix:'))))

    def run_program(self, end: str) -> int:
        program = ('import os, sys\nfrom lssar import LLM\n'
                   f'llm = LLM({MODEL!r}, **{SMALL!r})\n'
                   f'print(llm._server.pid, flush=True)\n{end}\n')
        done = subprocess.run([sys.executable, '-B', '-c', program], capture_output=True,
                              text=True, check=False)
        return int(done.stdout)

    def test_it_ends_with_the_interpreter_or_its_crash(self):
        for end in 'sys.exit(0)', 'os.kill(os.getpid(), 9)', 'raise SystemError':
            with self.subTest(end=end):
                pid = self.run_program(end)
                self.assertTrue(wait_until(lambda pid=pid: has_ended(pid)))

    def test_it_outlives_an_interrupt_that_the_program_catches(self):
        program = ('import os, signal, time\nfrom lssar import LLM\n'
                   f'llm = LLM({MODEL!r}, **{SMALL!r})\n'
                   'try:\n    os.killpg(0, signal.SIGINT)\n    time.sleep(600)\n'
                   'except KeyboardInterrupt:\n    pass\n'
                   'time.sleep(1)\n'
                   'print(len(llm.encode("The river")), llm._server.pid, flush=True)\n'
                   'os.kill(os.getpid(), 9)\n')
        done = subprocess.run([sys.executable, '-B', '-c', program], capture_output=True,
                              text=True, check=False, start_new_session=True)
        self.assertRegex(done.stdout, r'^\d+ \d+$', done.stderr)
        self.assertTrue(wait_until(lambda: has_ended(int(done.stdout.split()[1]))))

    def test_a_server_that_died_is_an_error_with_its_last_lines(self):
        with LLM(MODEL, **SMALL) as llm:
            os.kill(llm._server.pid, signal.SIGKILL)
            self.assertTrue(wait_until(lambda: not llm._server.is_running()))
            with self.assertRaisesRegex(RuntimeError, r'(?s)lssar-server has ended.*"serving"'):
                llm.generate('x', GREEDY)

    def test_a_server_that_does_not_start_is_an_error_with_its_reason(self):
        with self.assertRaisesRegex(RuntimeError, 'max-model-len'):
            LLM(MODEL, program=SERVER, max_model_len=-1)
        with tempfile.TemporaryDirectory() as empty:
            with self.assertRaisesRegex(RuntimeError, 'config.json'):
                LLM(empty, program=SERVER)
        with self.assertRaisesRegex(FileNotFoundError, 'no/such'):
            LLM('no/such', program=SERVER)
        with self.assertRaisesRegex(FileNotFoundError, 'no-server'):
            LLM(MODEL, program='no-server')

    def test_a_closed_one_says_so(self):
        llm = LLM(MODEL, **SMALL)
        llm.close()
        llm.close()
        with self.assertRaisesRegex(RuntimeError, 'closed'):
            llm.encode('x')

    def test_a_forked_worker_makes_its_own(self):
        with LLM(MODEL, **SMALL) as llm:
            text = llm.generate('The river', GREEDY)[0].text
            program = ('import os, sys\nfrom lssar import LLM, SamplingParams\n'
                       'pid = os.fork()\n'
                       'if pid:\n    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n'
                       f'llm = LLM({MODEL!r}, **{SMALL!r})\n'
                       'text = llm.generate("The river", SamplingParams(temperature=0, '
                       'max_tokens=8, ignore_eos=True))[0].text\n'
                       f'os._exit(0 if text == {text!r} else 1)\n')
            done = subprocess.run([sys.executable, '-B', '-c', program], check=False)
            self.assertEqual(done.returncode, 0)
            llm._pid += 1  # as a child sees it
            with self.assertRaisesRegex(RuntimeError, 'fork'):
                llm.encode('x')
            llm._pid -= 1


if __name__ == '__main__':
    unittest.main()
