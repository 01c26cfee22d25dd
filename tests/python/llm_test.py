"""lssar.LLM: the offline API over a private server."""

import contextlib
import gc
import io
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

import lssar
from lssar import LLM, SamplingParams

SERVER = os.environ['LSSAR_SERVER']
MODEL = str(pathlib.Path(__file__).resolve().parents[2] / 'models/zoo/lssar-6m')
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

    def test_token_ids_are_one_prompt_and_lists_of_them_are_many(self):
        ids = self.llm.encode('The old house')
        self.assertEqual(self.llm.generate(ids, GREEDY)[0].text,
                         self.llm.generate('The old house', GREEDY)[0].text)
        self.assertEqual(len(self.llm.generate([ids, ids[:2]], GREEDY)), 2)
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
