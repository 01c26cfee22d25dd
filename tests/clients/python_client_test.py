"""The Python package against the real server."""

import asyncio
import contextlib
import io
import pathlib
import re
import struct
import sys
import textwrap
import time
import types
import unittest
from unittest import mock

from lssar import AsyncClient, Client, LssarError, Retry
from programs import RunningServer


class PythonClientTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        # Replies of more than the buffer are several, however fast the server is.
        cls.server = RunningServer('--allow-attention-override', '--stream-buffer', '4K')
        cls.enterClassContext(cls.server)
        cls.client = cls.enterClassContext(Client(cls.server.address, timeout_s=120))

    def wait_until(self, condition):
        deadline = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_generate_is_the_text_piece_by_piece(self):
        options = {'max_tokens': 400, 'logprobs': 20, 'seed': 3, 'ignore_eos': True}
        pieces = list(self.client.generate('The river', **options))
        self.assertGreater(len(pieces), 1)  # a slow reader gets several tokens at once
        whole = self.client.complete('The river', **options)
        self.assertEqual(''.join(pieces), whole[0].text)
        self.assertEqual(whole[0].finish_reason, 'LENGTH')

    def test_ids_and_text_are_the_same_prompt(self):
        ids = self.client.tokenize('The river')
        by_ids, by_text = (self.client.complete(prompt, max_tokens=8, temperature=0)
                           for prompt in (ids, 'The river'))
        self.assertEqual(by_ids, by_text)

    def test_choices_and_logprobs(self):
        choices = self.client.complete('The river', n=2, max_tokens=4, logprobs=3, seed=1,
                                       ignore_eos=True)
        self.assertEqual(len(choices), 2)
        for choice in choices:
            self.assertEqual(len(choice.tokens), 4)
            self.assertEqual(b''.join(token.piece for token in choice.tokens).decode(), choice.text)
            for token in choice.tokens:
                self.assertEqual(len(token.top), 3)
                self.assertLessEqual(token.logprob, token.top[0].logprob)

    def test_stream_says_how_it_began_and_ended(self):
        with self.client.stream('The river', max_tokens=3, ignore_eos=True,
                                prompt_logprobs=0) as stream:
            num_tokens = sum(len(delta.tokens) for delta in stream)
        self.assertEqual(num_tokens, 3)
        self.assertEqual(stream.started.num_prompt_tokens, len(self.client.tokenize('The river')))
        self.assertEqual(stream.finished.usage.num_generated_tokens, 3)
        self.assertEqual(len(stream.prompt_tokens), stream.started.num_prompt_tokens - 1)

    def test_leaving_a_stream_cancels_it(self):
        with self.client.stream('The river', max_tokens=16000, ignore_eos=True) as stream:
            next(iter(stream))
        # One step later its pages are free and nothing runs.
        def is_free():
            facts = self.client.get_info()
            return facts.num_running == 0 and facts.num_free_pages == facts.num_pages

        self.wait_until(is_free)

    def test_chat(self):
        answer, same = (self.client.complete([message], max_tokens=16, seed=1)[0] for message in (
            ('user', 'How are you?'), {'role': 'user', 'content': 'How are you?'}))
        self.assertEqual(answer, same)
        self.assertNotIn('<|user|>', answer.text)
        self.assertTrue(answer.text)

    def test_score_adds_up(self):
        paris, ids = self.client.score('The capital of France is', [' Paris', [300, 301]],
                                       per_token=True, top_logprobs=1)
        self.assertAlmostEqual(sum(token.logprob for token in paris.tokens), paris.logprob,
                               places=4)
        self.assertEqual(paris.num_bytes, len(' Paris'))
        self.assertEqual([token.id for token in ids.tokens], [300, 301])
        greedy = self.client.complete('The river', max_tokens=3, temperature=0)[0].text
        self.assertTrue(self.client.score('The river', [greedy])[0].is_greedy)

    def test_many_items_are_scored_as_one_by_one(self):
        items = [(f'In {1900 + i} the river', [' is', ' was']) for i in range(150)]
        scores = list(self.client.score_many(iter(items), per_token=True))
        self.assertEqual(len(scores), 150)
        for i in range(0, 150, 37):
            self.assertEqual(scores[i], self.client.score(*items[i], per_token=True))

    def test_embeddings(self):
        info = self.client.get_info()
        ids = self.client.tokenize('The river')
        tokens = self.client.embed('The river', pooling='token')
        self.assertEqual([len(vector) for vector in tokens.vectors], [info.hidden_size] * len(ids))
        self.assertEqual(self.client.embed('The river').vector, tokens.vectors[-1])
        self.assertEqual(self.client.embed(ids).vector, tokens.vectors[-1])
        for got, column in zip(self.client.embed(ids, pooling='mean').vector,
                               zip(*tokens.vectors)):
            self.assertAlmostEqual(got, sum(column) / len(ids), places=4)
        unit = self.client.embed(ids, normalize=True).vector
        self.assertAlmostEqual(sum(value * value for value in unit), 1, places=5)
        self.assertEqual(info.num_head_outputs, 0)
        with self.assertRaisesRegex(LssarError, 'no regression head') as caught:
            self.client.embed('The river', apply_head=True)
        self.assertEqual(caught.exception.code, 'FAILED_PRECONDITION')

    def test_hidden_states_of_layers(self):
        layers = [6, -1, 0]
        ids = self.client.tokenize('The river and the old house')
        whole = self.client.embed(ids, pooling='token', layers=layers)
        self.assertEqual((whole.num_layers, len(whole.vectors)), (3, 3 * len(ids)))
        self.assertEqual(whole.vectors[1::3], self.client.embed(ids, pooling='token').vectors)
        chosen = self.client.embed(ids, pooling='token', layers=layers, positions=[-1, 1])
        self.assertEqual(chosen.vectors, (*whole.vectors[3:6], *whole.vectors[-3:]))
        half = self.client.embed(ids, layers=layers, dtype='fp16').vectors
        for vector, want in zip(half, whole.vectors[-3:], strict=True):
            self.assertEqual(vector, struct.unpack('<256e', struct.pack('<256e', *want)))
        for options in {'layers': [7]}, {'layers': [0, 0]}, {'positions': [0]}, {'dtype': 'int8'}:
            with self.assertRaisesRegex(LssarError, list(options)[0]) as caught:
                self.client.embed(ids, **options)
            self.assertEqual(caught.exception.code, 'INVALID_ARGUMENT')

    def test_many_inputs_are_embedded_as_one_by_one(self):
        inputs = [f'In {1900 + i} the river' for i in range(150)]
        embeddings = list(self.client.embed_many(iter(inputs)))
        self.assertEqual(len(embeddings), 150)
        for i in range(0, 150, 37):
            self.assertEqual(embeddings[i], self.client.embed(inputs[i]))

    def test_many_prompts_are_answered_as_one_by_one(self):
        prompts = [f'In {1900 + i}' for i in range(20)]
        answers = list(self.client.complete_many(prompts, max_tokens=5, seed=1))
        self.assertEqual(answers, [self.client.complete(prompt, max_tokens=5, seed=1)
                                   for prompt in prompts])

    def test_the_asynchronous_client_gives_the_same(self):
        items = [(f'In {1900 + i} the river', [' is', ' was']) for i in range(100)]
        options = {'max_tokens': 20, 'seed': 5}

        async def ask():
            async with AsyncClient(self.server.address, timeout_s=120) as client:
                pieces = [piece async for piece in client.generate('The river', **options)]
                async with client.stream('The river', max_tokens=16000, ignore_eos=True) as stream:
                    async for _ in stream:
                        break  # leaving the block cancels the call
                return (''.join(pieces), await client.complete('The river', n=2, **options),
                        [scores async for scores in client.score_many(items)],
                        [answer async for answer in client.complete_many(['a', 'b'], **options)],
                        await client.embed('The river', pooling='token'),
                        [vector async for vector in client.embed_many(['a', 'b'] * 40)],
                        await client.attention('The river', layers=[-1], top_k=2),
                        await client.tokenize('The river'), await client.detokenize([330, 3586]),
                        (await client.get_info()).checkpoint_hash,
                        (await client.get_stats()).num_steps > 0)

        client = self.client
        self.assertEqual(asyncio.run(ask()), (
            ''.join(client.generate('The river', **options)),
            client.complete('The river', n=2, **options), list(client.score_many(items)),
            list(client.complete_many(['a', 'b'], **options)),
            client.embed('The river', pooling='token'), list(client.embed_many(['a', 'b'] * 40)),
            client.attention('The river', layers=[5], top_k=2), client.tokenize('The river'),
            client.detokenize([330, 3586]), client.get_info().checkpoint_hash, True))

    def test_a_full_queue_is_waited_for(self):
        with RunningServer('--max-num-seqs', '1', '--max-queued-requests', '1', '--stream-buffer',
                           '4K', '--slow-client-timeout', '0') as server:
            patient = Retry(max_attempts=1000)  # on a slow machine the queue is full for longer
            with Client(server.address, timeout_s=120, retry=patient) as client:
                answers = list(client.complete_many(['The river'] * 12, concurrency=6, n=1,
                                                    max_tokens=10, temperature=0))
            self.assertEqual(answers, answers[:1] * 12)
            with Client(server.address, timeout_s=120, retry=None) as client:
                # Nobody reads the one that runs and the one that waits: neither ends.
                long = {'max_tokens': 16000, 'logprobs': 20, 'ignore_eos': True}
                with client.stream('The river', **long) as running:
                    next(iter(running))
                    with client.stream('The river', **long):
                        self.wait_until(lambda: client.get_info().num_waiting == 1)
                        with self.assertRaises(LssarError) as caught:
                            list(client.complete_many(['The river'] * 12, concurrency=12,
                                                      max_tokens=10))
            self.assertEqual(caught.exception.code, 'RESOURCE_EXHAUSTED')
            self.assertGreater(caught.exception.retry_delay_s, 0)

    def test_the_http_port_is_named_as_such(self):
        with Client(self.server.http_address) as client:
            with self.assertRaisesRegex(LssarError, 'speaks HTTP/1, not gRPC.*50051'):
                client.get_info()

    def test_arrays_are_ids(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest('no numpy for this interpreter')
        ids = self.client.tokenize('The river')
        for kind in np.int32, np.int64, np.uint16:
            array = np.array(ids, dtype=kind)
            self.assertEqual(self.client.complete(array, max_tokens=3, seed=1),
                             self.client.complete(ids, max_tokens=3, seed=1))
            self.assertEqual(self.client.score(array, [array[1:], list(array)]),
                             self.client.score(ids, [ids[1:], ids]))
        self.assertEqual(self.client.detokenize(np.array(ids)), self.client.detokenize(ids))
        try:
            import torch
            self.assertEqual(self.client.detokenize(torch.tensor(ids)), self.client.detokenize(ids))
        except ImportError:
            pass  # numpy's arrays have the same interface
        with self.assertRaisesRegex(TypeError, 'integer'):
            self.client.complete(np.array([1.0, 2.0]))
        with self.assertRaisesRegex(TypeError, 'integer'):
            self.client.complete(np.array([[1, 2]]))

    def test_attention_is_of_the_rows_asked_for(self):
        text = 'The river runs to the sea.'
        ids = self.client.tokenize(text)
        attention = self.client.attention(text, layers=[1], heads=[0, 3], rows=[-1, 2])
        self.assertEqual([token.id for token in attention.tokens], ids)
        self.assertEqual([(row.row, row.layer, row.head) for row in attention.rows],
                         [(2, 1, 0), (2, 1, 3), (len(ids) - 1, 1, 0), (len(ids) - 1, 1, 3)])
        for row in attention.rows:
            self.assertAlmostEqual(sum(row.weights), 1, places=6)
            self.assertEqual(len(row.keys), row.num_nonzero)
        self.assertEqual(self.client.attention(ids, layers=[1], heads=[0, 3], rows=[-1, 2]),
                         attention)
        few = self.client.attention(text, top_k=1, rows=[-1], use_prefix_cache=False)
        self.assertEqual(len(few.rows), 6 * 4)
        for row in few.rows:
            self.assertAlmostEqual(row.weights[0] + row.dropped_mass, 1, places=6)
        self.assertEqual(self.client.attention(text, layers=[-5], heads=[0, -1], rows=[-1, 2]),
                         attention)
        with self.assertRaises(LssarError) as caught:
            self.client.attention(text, rows=[len(ids)])
        self.assertEqual(caught.exception.code, 'INVALID_ARGUMENT')

    def test_the_examples_of_the_readme_run(self):
        readme = pathlib.Path('clients/python/README.md').read_text(encoding='utf-8')
        examples = re.findall(r'```python\n(.*?)```', readme, flags=re.S)
        asynchronous = [example for example in examples if 'async with' in example]
        others = [example for example in examples if 'lm_eval' not in example
                  and 'import ray' not in example  # tests/cluster/ray_cases.py runs it
                  and 'import LLM' not in example  # tests/python/llm_test.py runs it
                  and 'ca.pem' not in example and example not in asynchronous]
        self.assertEqual((len(others), len(asynchronous)), (7, 1))
        address = self.server.address
        bars = types.ModuleType('tqdm')
        bars.tqdm = mock.MagicMock()
        names = {
            'context': 'The', 'info': self.client.get_info(),
            'np': mock.Mock(array=lambda ids: ids), 'prompts': ['a', 'b'], 'texts': ['a', 'b'],
            'rows': [{'question': 'The', 'choices': [' river', ' of']}] * 3,
            'items': [('The', [' river'])], 'AsyncClient': AsyncClient}
        out = io.StringIO()
        with mock.patch.dict(sys.modules, tqdm=bars), contextlib.redirect_stdout(out):
            for example in others:
                # The first example closes its client.
                names['client'] = self.client
                exec(example.replace('127.0.0.1:50051', address), names)
            coroutine = 'async def main():\n' + textwrap.indent(asynchronous[0], '    ')
            exec(coroutine.replace('127.0.0.1:50051', address), names)
            asyncio.run(names['main']())
        self.assertGreater(len(out.getvalue().splitlines()), 10)

    def test_tokenize_and_back(self):
        text = 'Grüße, 世界 🙂'
        ids = self.client.tokenize(text, add_bos=False)
        self.assertEqual(self.client.detokenize(ids), text)
        self.assertEqual(self.client.tokenize(text), [self.client.get_info().bos_id, *ids])

    def test_errors_carry_code_and_sentence(self):
        with self.assertRaisesRegex(LssarError, 'temperature.*-1.*100') as caught:
            self.client.complete('x', temperature=-1)
        self.assertEqual(caught.exception.code, 'INVALID_ARGUMENT')
        with self.assertRaisesRegex(TypeError, "'temprature'"):
            self.client.complete('x', temprature=1)
        with Client('127.0.0.1:1') as nobody, self.assertRaises(LssarError) as caught:
            nobody.get_info()
        self.assertEqual(caught.exception.code, 'UNAVAILABLE')


if __name__ == '__main__':
    unittest.main()
