"""The Python package against a scripted server: retries, chunks, arguments. Both clients."""

import asyncio
import gc
import inspect
import itertools
import os
import pathlib
import pickle
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import types as python_types
import typing
import unittest
from unittest import mock

import numpy

import lssar
from lssar.v1 import inference_pb2 as pb
from lssar import AsyncClient, Client, LssarError, Retry, _server, types
from lssar._retry import Attempts, retry_delay
from lssar._server import server_program
from lssar.checkpoints.errors import CheckpointError
from lssar.checkpoints.served import find_server
from scripted_server import Refusal, ScriptedService, retry_details, serve

FAST = Retry(initial_s=0.02, max_s=0.05)


class SyncCalls:
    """Calls of Client, results as lists."""

    @staticmethod
    def make(timeout_s):
        Client(timeout_s=timeout_s)

    @staticmethod
    def call(address, method, *args, client=None, **options):
        with Client(address, **{'retry': FAST, **(client or {})}) as connection:
            result = getattr(connection, method)(*args, **options)
            return list(result) if inspect.isgenerator(result) else result

    @staticmethod
    def call_closed(address, method, *args):
        """A call of a client that is closed."""
        connection = Client(address)
        connection.close()
        getattr(connection, method)(*args)

    @staticmethod
    def first(address, method, count, *args, **options):
        """The first `count` of many results."""
        with Client(address, retry=FAST) as connection:
            results = getattr(connection, method)(*args, **options)
            taken = list(itertools.islice(results, count))
            results.close()
            return taken

    @staticmethod
    def all_with_a_pause(address, method, pause, *args):
        """The results; `pause` runs after the first."""
        with Client(address, retry=FAST) as connection:
            results = iter(getattr(connection, method)(*args))
            first = next(results)
            pause()
            return [first, *results]

    @staticmethod
    def close_during(address, method, has_begun, *args):
        """A call of a client that is closed once has_begun()."""
        connection = Client(address)
        closing = threading.Thread(target=lambda: (wait_until(has_begun), connection.close()))
        closing.start()
        try:
            getattr(connection, method)(*args)
        finally:
            closing.join()


class AsyncCalls:
    """The same of AsyncClient."""

    @staticmethod
    def make(timeout_s):
        async def run():
            AsyncClient(timeout_s=timeout_s)

        asyncio.run(run())

    @staticmethod
    def call(address, method, *args, client=None, **options):
        async def run():
            async with AsyncClient(address, **{'retry': FAST, **(client or {})}) as connection:
                result = getattr(connection, method)(*args, **options)
                if inspect.isasyncgen(result):
                    return [each async for each in result]
                return await result

        return asyncio.run(run())

    @staticmethod
    def call_closed(address, method, *args):
        async def run():
            connection = AsyncClient(address)
            await connection.close()
            await getattr(connection, method)(*args)

        asyncio.run(run())

    @staticmethod
    def first(address, method, count, *args, **options):
        async def run():
            async with AsyncClient(address, retry=FAST) as connection:
                taken = []
                results = getattr(connection, method)(*args, **options)
                async for each in results:
                    taken.append(each)
                    if len(taken) == count:
                        break
                await results.aclose()
                return taken

        return asyncio.run(run())

    @staticmethod
    def all_with_a_pause(address, method, pause, *args):
        async def run():
            async with AsyncClient(address, retry=FAST) as connection:
                results = getattr(connection, method)(*args)
                first = await anext(results)
                await asyncio.to_thread(pause)
                return [first, *[each async for each in results]]

        return asyncio.run(run())

    @staticmethod
    def close_during(address, method, has_begun, *args):
        async def run():
            connection = AsyncClient(address)
            call = asyncio.create_task(getattr(connection, method)(*args))
            await asyncio.to_thread(wait_until, has_begun)
            await connection.close()
            await call

        asyncio.run(run())


def wait_until(condition):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError('it did not happen')


class LargeReplies(ScriptedService):
    """Its replies to Score and Embed are larger than what a connection holds of a call that nobody
    reads: 16 MB of a field that the client does not know. `ended`: one for each call that was sent.
    """

    PADDING = b'\xa2\x06\xc0\x84\x3d' + bytes(1_000_000)

    def __init__(self):
        super().__init__()
        self.ended = threading.Semaphore(0)

    def Score(self, request, context):
        yield from [pb.ScoreReply.FromString(self.PADDING)] * 16
        yield from super().Score(request, context)
        self.ended.release()

    def Embed(self, request, context):
        yield from [pb.EmbedReply.FromString(self.PADDING)] * 16
        yield from super().Embed(request, context)
        self.ended.release()

    def wait_for_two(self):
        for _ in range(2):
            if not self.ended.acquire(timeout=60):
                raise AssertionError('a call was not read')


class EndlessService(ScriptedService):
    """Generate sends one token, and goes on until the client goes."""

    def __init__(self):
        super().__init__()
        self.is_left = threading.Event()

    def Generate(self, request, context):
        context.add_callback(self.is_left.set)
        yield pb.GenerateReply(started=pb.Started(request_id='r', seed=7))
        yield pb.GenerateReply(delta=pb.Delta(text='a'))
        self.is_left.wait(60)


class Cases:
    """What both clients do."""

    # Retries.

    def test_waits_as_long_as_the_server_says(self):
        service = ScriptedService(Refusal('RESOURCE_EXHAUSTED', retry_s=0.3),
                                  Refusal('RESOURCE_EXHAUSTED', retry_s=0.1))
        with serve(service) as address:
            [answer] = self.call(address, 'complete', 'abc')
        self.assertEqual(answer.text, 'ABC')
        first, second, third = service.call_times
        self.assertGreaterEqual(second - first, 0.3)
        self.assertGreaterEqual(third - second, 0.1)

    def test_unavailable_is_tried_a_bounded_number_of_times(self):
        for method, args in (('get_info', ()), ('complete', ('x',)), ('score', ('x', ['y'])),
                             ('embed', ('x',))):
            with self.subTest(method):
                service = ScriptedService(*[Refusal('UNAVAILABLE', 'draining')] * 9)
                with serve(service) as address, self.assertRaises(LssarError) as caught:
                    self.call(address, method, *args,
                              client={'retry': Retry(3, initial_s=0.01)})
                self.assertEqual((caught.exception.code, str(caught.exception)),
                                 ('UNAVAILABLE', 'draining'))
                self.assertEqual(len(service.requests), 3)

    def test_other_errors_are_not_retried(self):
        for refusal in (Refusal('INVALID_ARGUMENT'), Refusal('INTERNAL'), Refusal('DATA_LOSS'),
                        Refusal('RESOURCE_EXHAUSTED', 'too large a message')):
            with self.subTest(refusal.code):
                service = ScriptedService(refusal)
                with serve(service) as address, self.assertRaises(LssarError) as caught:
                    self.call(address, 'complete', 'x')
                self.assertEqual(caught.exception.code, refusal.code.name)
                self.assertEqual(len(service.requests), 1)

    def test_a_full_queue_is_not_retried_once_something_came(self):
        for method, args in (('complete', ('x',)), ('score', ('x', ['y', 'z'])),
                             ('embed', ('x',))):
            with self.subTest(method):
                service = ScriptedService(Refusal('RESOURCE_EXHAUSTED', retry_s=0.1,
                                                  after_first=True))
                with serve(service) as address, self.assertRaises(LssarError):
                    self.call(address, method, *args)
                self.assertEqual(len(service.requests), 1)

    def test_a_full_queue_is_waited_for_after_a_broken_stream(self):
        for method, args in (('complete', ('x',)), ('score', ('x', ['y', 'z'])),
                             ('embed', ('x',))):
            with self.subTest(method):
                service = ScriptedService(Refusal('UNAVAILABLE', 'killed', after_first=True),
                                          Refusal('RESOURCE_EXHAUSTED', retry_s=0.1))
                with serve(service) as address:
                    self.call(address, method, *args)
                self.assertEqual(len(service.requests), 3)

    def test_close_ends_the_wait_for_another_attempt(self):
        for method, args in ('get_info', ()), ('complete', ('x',)):
            with self.subTest(method):
                service = ScriptedService(*[Refusal('RESOURCE_EXHAUSTED', retry_s=20)] * 9)
                with serve(service) as address, self.assertRaises(LssarError) as caught:
                    self.close_during(address, method, lambda: service.requests, *args)
                self.assertEqual(caught.exception.code, 'CANCELLED')
                self.assertEqual(len(service.requests), 1)

    def test_no_retry_when_told_so(self):
        service = ScriptedService(Refusal('UNAVAILABLE'))
        with serve(service) as address, self.assertRaises(LssarError):
            self.call(address, 'complete', 'x', client={'retry': None})
        self.assertEqual(len(service.requests), 1)

    def test_a_wait_beyond_the_deadline_is_not_begun(self):
        service = ScriptedService(*[Refusal('RESOURCE_EXHAUSTED', retry_s=600)] * 2)
        with serve(service) as address:
            begun = time.monotonic()
            with self.assertRaises(LssarError) as caught:
                self.call(address, 'complete', 'x', timeout_s=300,
                          client={'retry': Retry(max_retry_info_s=1000)})
            self.assertLess(time.monotonic() - begun, 200)
        self.assertEqual(caught.exception.code, 'RESOURCE_EXHAUSTED')
        self.assertEqual(caught.exception.retry_delay_s, 600)

    def test_the_deadline_ends_a_call(self):
        with serve(ScriptedService(delay_s=30)) as address, self.assertRaises(LssarError) as caught:
            self.call(address, 'complete', 'x', client={'timeout_s': 0.3})
        self.assertEqual(caught.exception.code, 'DEADLINE_EXCEEDED')

    def test_a_deadline_in_the_far_future_is_none(self):
        for timeout_s in 4e8, 1e10, 1e300, 10**400, float('inf'):
            with self.subTest(timeout_s), serve(ScriptedService()) as address:
                self.assertEqual(self.call(address, 'get_info', timeout_s=timeout_s).model_name,
                                 'scripted')
                self.call(address, 'complete', 'x', client={'timeout_s': timeout_s})
        with serve(ScriptedService()) as address:
            self.call(address, 'complete', 'x', timeout_s=3e8)

    def test_times_that_are_none(self):
        for timeout_s, kind, sentence in (
                (-1, ValueError, 'timeout_s is -1; must be at least 0'),
                (float('nan'), ValueError, 'timeout_s is nan'),
                ('5', TypeError, "timeout_s must be a time in seconds, or None, not '5'"),
                (True, TypeError, 'timeout_s must be a time')):
            with self.subTest(timeout_s):
                with self.assertRaisesRegex(kind, sentence):
                    self.call('host:1', 'complete', 'x', timeout_s=timeout_s)
                with self.assertRaisesRegex(kind, sentence):
                    self.make(timeout_s)

    # Many items.

    def test_items_go_in_bounded_calls_and_come_in_order(self):
        service = ScriptedService()
        items = [(f'context {i}', ['x' * (i % 7 + 1), 'y']) for i in range(333)]
        with serve(service) as address:
            scores = self.call(address, 'score_many', iter(items))
        self.assertEqual([[score.logprob for score in each] for each in scores],
                         [[-(i % 7 + 1), -1] for i in range(333)])
        self.assertEqual([len(request.items) for request in service.requests], [64] * 5 + [13])

    def test_an_endless_list_is_read_as_it_is_used(self):
        num_read = 0

        def items():
            nonlocal num_read
            for num_read in itertools.count(1):
                yield 'context', ['continuation']

        with serve(ScriptedService()) as address:
            self.assertEqual(len(self.first(address, 'score_many', 100, items())), 100)
        self.assertLessEqual(num_read, 100 + 4 * 64)

    def test_calls_are_read_while_the_results_of_others_are_used(self):
        for method, item in ('score_many', ('a', ['b'])), ('embed_many', 'a'):
            service = LargeReplies()
            with self.subTest(method), serve(service) as address:
                results = self.all_with_a_pause(address, method, service.wait_for_two, [item] * 65)
                self.assertEqual(len(results), 65)

    def test_an_endless_list_of_inputs_is_read_as_it_is_used(self):
        num_read = 0

        def inputs():
            nonlocal num_read
            for num_read in itertools.count(1):
                yield 'text'

        with serve(ScriptedService()) as address:
            self.assertEqual(len(self.first(address, 'embed_many', 100, inputs())), 100)
        self.assertLessEqual(num_read, 100 + 4 * 64)

    def test_inputs_go_in_bounded_calls_and_come_in_order(self):
        service = ScriptedService()
        with serve(service) as address:
            embeddings = self.call(address, 'embed_many', ('x' * (i + 1) for i in range(150)))
        self.assertEqual([embedding.vector for embedding in embeddings],
                         [(i + 1, i % 64) for i in range(150)])
        self.assertEqual([len(request.inputs) for request in service.requests], [64, 64, 22])

    def test_large_inputs_go_in_calls_of_their_own(self):
        for pooling, length, count in ('last', 700_000, 3), ('token', 8_200, 2):
            service = ScriptedService()
            with self.subTest(pooling), serve(service) as address:
                embeddings = self.call(address, 'embed_many', ['x' * length] * count,
                                       pooling=pooling)
                self.assertEqual([len(embedding.vectors) for embedding in embeddings],
                                 [length if pooling == 'token' else 1] * count)
                self.assertEqual([len(request.inputs) for request in service.requests],
                                 [1] * count)

    def test_each_token_has_a_vector(self):
        with serve(ScriptedService()) as address:
            embedding = self.call(address, 'embed', 'abcde', pooling='token')
            self.assertEqual(embedding.vectors, tuple((i, 0) for i in range(5)))
            with self.assertRaisesRegex(ValueError, '5 vectors'):
                _ = embedding.vector
            self.assertEqual(self.call(address, 'embed', [7, 8, 9]).vector, (3, 0))
            self.assertEqual(self.call(address, 'embed_many', []), [])

    def test_embed_options_reach_their_fields(self):
        service = ScriptedService()
        with serve(service) as address:
            for pooling in 'last', 'mean', 'token', None:
                self.call(address, 'embed', 'x', pooling=pooling, normalize=True, apply_head=True,
                          priority=3, cache_salt='s')
            with self.assertRaisesRegex(ValueError, r"pooling is 'max'.*'mean'"):
                self.call(address, 'embed', 'x', pooling='max')
            self.call(address, 'embed', 'x', layers=(0, -1), positions=[3], dtype='fp16')
            with self.assertRaisesRegex(TypeError, "'heads'.*pooling"):
                self.call(address, 'embed', 'x', heads=[1])
            with self.assertRaisesRegex(TypeError, 'list of texts'):
                self.call(address, 'embed_many', 'abc')
            with self.assertRaisesRegex(TypeError, r'inputs\[1\]'):
                self.call(address, 'embed_many', ['abc', 5])
        self.assertEqual([request.pooling for request in service.requests],
                         [pb.POOLING_LAST, pb.POOLING_MEAN, pb.POOLING_TOKEN,
                          pb.POOLING_UNSPECIFIED, pb.POOLING_UNSPECIFIED])
        last = service.requests.pop()
        self.assertEqual((list(last.layers), list(last.positions), last.dtype),
                         ([0, -1], [3], 'fp16'))
        for request in service.requests:
            self.assertEqual((request.normalize, request.apply_head, request.priority,
                              request.cache_salt), (True, True, 3, 's'))

    def test_more_continuations_than_a_request_takes(self):
        service = ScriptedService()
        continuations = ['x' * (i % 50 + 1) for i in range(2500)]
        with serve(service) as address:
            before, scores, after = self.call(
                address, 'score_many', [('a', ['b']), ('c', continuations), ('d', ['eee'])])
        self.assertEqual([score.logprob for score in scores],
                         [-len(text) for text in continuations])
        self.assertEqual((before[0].logprob, after[0].logprob), (-1, -3))
        self.assertTrue(all(len(item.continuations) <= 1024 for request in service.requests
                            for item in request.items))

    def test_large_items_go_in_calls_of_their_own(self):
        service = ScriptedService()
        with serve(service) as address:
            self.call(address, 'score_many', [('x' * 700_000, ['y'])] * 3)
        self.assertEqual([len(request.items) for request in service.requests], [1, 1, 1])

    def test_a_run_over_two_checkpoints_fails(self):
        with serve(ScriptedService(checkpoints='ab')) as address:
            with self.assertRaisesRegex(LssarError, 'from (a to b|b to a)') as caught:
                self.call(address, 'score_many', [('a', ['b'])] * 100)
        self.assertEqual(caught.exception.code, 'ABORTED')
        with serve(ScriptedService(checkpoints='ab')) as address:
            with self.assertRaisesRegex(LssarError, 'from (a to b|b to a)'):
                self.call(address, 'embed_many', ['a'] * 100)

    def test_the_items_before_one_that_cannot_be_scored_are_there(self):
        items = [('a', ['b']), ('c', ['dd']), ('bad', ['e']), ('f', ['g'])]
        with serve(ScriptedService()) as address:
            before = self.first(address, 'score_many', 2, items)
            self.assertEqual([scores[0].logprob for scores in before], [-1, -2])
            with self.assertRaisesRegex(LssarError, r'items\[2\].context is bad') as caught:
                self.call(address, 'score_many', items)
        self.assertEqual(caught.exception.code, 'INVALID_ARGUMENT')

    def test_the_calls_before_a_wrong_item_give_their_results(self):
        def broken(item):
            yield from [item] * 70
            raise OSError('the disk is gone')

        for name, item, wrong in (('score_many', ('a', ['b']), 5), ('embed_many', 'a', 5.5)):
            with self.subTest(name), serve(ScriptedService()) as address:
                for items, error in ((lambda: [item] * 70 + [wrong], TypeError),
                                     (lambda: broken(item), OSError)):
                    self.assertEqual(len(self.first(address, name, 64, items())), 64)
                    with self.assertRaises(error):
                        self.call(address, name, items())

    def test_a_missing_score_is_an_error(self):
        with serve(ScriptedService(left_out=[(0, 1)])) as address:
            with self.assertRaisesRegex(LssarError, 'left out 1'):
                self.call(address, 'score', 'a', ['b', 'c'])
        with serve(ScriptedService(left_out=[1])) as address:
            with self.assertRaisesRegex(LssarError, 'left out 1'):
                self.call(address, 'embed_many', ['b', 'c'])

    def test_an_error_among_many_ends_the_run(self):
        refusals = [None, Refusal('INVALID_ARGUMENT', 'no')]
        with serve(ScriptedService(*refusals)) as address:
            with self.assertRaisesRegex(LssarError, 'no'):
                self.call(address, 'score_many', [('a', ['b'])] * 300)
        with serve(ScriptedService(*refusals)) as address:
            with self.assertRaisesRegex(LssarError, 'no'):
                self.call(address, 'embed_many', ['a'] * 300)
        with serve(ScriptedService(*refusals)) as address:
            with self.assertRaisesRegex(LssarError, 'no'):
                self.call(address, 'complete_many', ['a'] * 100, concurrency=2)

    def test_prompts_are_answered_in_order_and_a_few_at_once(self):
        service = ScriptedService(num_gathered=3)
        prompts = [f'prompt {i}' for i in range(40)]
        with serve(service) as address:
            answers = self.call(address, 'complete_many', iter(prompts), concurrency=3)
        self.assertEqual([answer.text for [answer] in answers],
                         [prompt.upper() for prompt in prompts])
        self.assertEqual(service.most_at_once, 3)

    def test_a_concurrency_that_is_no_number(self):
        with self.assertRaisesRegex(TypeError, "concurrency must be a whole number, not '2'"):
            self.call('127.0.0.1:1', 'complete_many', ['a'], concurrency='2')

    def test_leaving_many_prompts_early_cancels_the_rest(self):
        service = ScriptedService(delay_s=600, quick=['0'])
        with serve(service) as address:
            begun = time.monotonic()
            self.first(address, 'complete_many', 1, (f'{i}' for i in itertools.count()),
                       concurrency=2)
            self.assertLess(time.monotonic() - begun, 300)
        self.assertLess(len(service.requests), 8)

    def test_progress_is_a_tqdm_bar(self):
        bars = []

        class Bar:
            def __init__(self, desc, total, unit):
                self.total, self.count, self.is_closed = total, 0, False
                bars.append(self)

            def update(self):
                self.count += 1

            def close(self):
                self.is_closed = True

        with serve(ScriptedService()) as address:
            with mock.patch.dict(sys.modules, tqdm=python_types.SimpleNamespace(tqdm=Bar)):
                self.call(address, 'score_many', [('a', ['b'])] * 70, progress=True)
                self.call(address, 'complete_many', iter(['a', 'b']), progress=True)
            self.assertEqual([(bar.total, bar.count, bar.is_closed) for bar in bars],
                             [(70, 70, True), (None, 2, True)])
            with mock.patch.dict(sys.modules, tqdm=None):
                with self.assertRaisesRegex(ImportError, r"'./clients/python\[progress\]'"):
                    self.call(address, 'score_many', [('a', ['b'])], progress=True)

    # Arguments.

    def test_arrays_are_ids(self):
        class Array:  # as numpy's and torch's
            def __init__(self, values):
                self.values = values

            def tolist(self):
                return self.values

        service = ScriptedService()
        with serve(service) as address:
            self.call(address, 'complete', Array([5, 6]))
            self.call(address, 'score', Array([5, 6]), [Array([7]), [8, 9]])
            for wrong in [1.5, 2], [[1, 2]], [True], 3:
                with self.subTest(wrong), self.assertRaises(TypeError):
                    self.call(address, 'complete', Array(wrong))
        self.assertEqual(list(service.requests[0].tokens.ids), [5, 6])
        [item] = service.requests[1].items
        self.assertEqual(list(item.context.tokens.ids), [5, 6])
        self.assertEqual([list(text.tokens.ids) for text in item.continuations], [[7], [8, 9]])
        self.assertEqual(len(service.requests), 2)

    def test_arrays_choose_layers_and_heads(self):
        service = ScriptedService()
        with serve(service) as address:
            self.call(address, 'attention', 'x', layers=numpy.array([-1, 0]),
                      heads=numpy.array([-4, 3]), rows=numpy.array([0, -1]))
            self.call(address, 'attention', 'x', layers=numpy.array([1, 2]))
            self.call(address, 'embed', 'x', layers=numpy.array([-1, 0]), pooling='token')
        info, negative, positive, embed = service.requests
        self.assertEqual((list(negative.layers), list(negative.heads), list(negative.rows)),
                         ([5, 0], [0, 3], [0, -1]))
        self.assertEqual((list(positive.layers), list(embed.layers)), ([1, 2], [-1, 0]))

    def test_a_bare_string_is_no_list(self):
        with serve(ScriptedService()) as address:
            with self.assertRaisesRegex(TypeError, r"bare string ' Paris'.*\[' Paris'\]"):
                self.call(address, 'score', 'The capital', ' Paris')
            with self.assertRaisesRegex(TypeError, 'list of lists'):
                self.call(address, 'score', 'The capital', [5, 6])
            with self.assertRaisesRegex(TypeError, 'stop_strings'):
                self.call(address, 'complete', 'x', stop_strings='.')
            with self.assertRaisesRegex(TypeError, 'list of prompts'):
                self.call(address, 'complete_many', 'abc')
            with self.assertRaisesRegex(TypeError, 'list of'):
                self.call(address, 'score_many', 'abc')
            with self.assertRaisesRegex(ValueError, 'empty'):
                self.call(address, 'score', 'The capital', [])

    def test_bytes_are_neither_texts_nor_ids(self):
        with serve(ScriptedService()) as address:
            for data in b'ab', bytearray(b'ab'), memoryview(b'ab'):
                for method, args, options, name in (
                        ('complete', (data,), {}, 'prompt'),
                        ('complete', ([('user', data)],), {}, r'the content of prompt\[0\]'),
                        ('complete_many', (data,), {}, 'complete_many'),
                        ('complete', ('x',), {'stop_strings': data}, 'stop_strings'),
                        ('complete', ('x',), {'stop_strings': [data]}, r'stop_strings\[0\]'),
                        ('complete', ('x',), {'banned_token_ids': data}, 'banned_token_ids'),
                        ('complete', ('x',), {'steering': [{'layer': 1, 'vector': data}]},
                         r'steering\[0\].vector'),
                        ('complete', ('x',), {'attention_override': {'p_by_layer': data}},
                         'attention_override.p_by_layer'),
                        ('score', (data, ['y']), {}, 'context'),
                        ('score', ('x', data), {}, 'continuations is the bare string'),
                        ('score', ('x', [data]), {}, r'continuations\[0\]'),
                        ('embed', (data,), {}, r'inputs\[0\]'),
                        ('tokenize', (data,), {}, 'text must be a text'),
                        ('detokenize', (data,), {}, 'ids')):
                    with (self.subTest(method, name=name, data=data),
                          self.assertRaisesRegex(TypeError, f'^{name}')):
                        self.call(address, method, *args, **options)

    def test_what_cannot_be_sent_is_named(self):
        bad = 'ab\ud800'
        surrogate = r" has '\\ud800' at 2, a lone surrogate"
        with serve(ScriptedService()) as address:
            for method, args, options, kind, sentence in (
                    ('tokenize', (5,), {}, TypeError, 'text must be a text, not 5'),
                    ('tokenize', (bad,), {}, ValueError, 'text' + surrogate),
                    ('complete', (bad,), {}, ValueError, 'prompt' + surrogate),
                    ('complete', ([('user', bad)],), {}, ValueError,
                     r'the content of prompt\[0\]' + surrogate),
                    ('complete', ([(bad, 'x')],), {}, ValueError,
                     r'the role of prompt\[0\]' + surrogate),
                    ('complete', ('x',), {'bad_words': ['a', bad]}, ValueError,
                     r'bad_words\[1\]' + surrogate),
                    ('complete', ('x',), {'regex': bad}, ValueError, r"regex is 'ab\\ud800'"),
                    ('complete', ('x',), {'attention_override': {'kind': bad}}, ValueError,
                     'attention_override is'),
                    ('embed_many', (['a', bad],), {}, ValueError, r'inputs\[1\]' + surrogate),
                    ('score', ('a', ['b', bad]), {}, ValueError, r'continuations\[1\]' + surrogate),
                    ('score', ('a', 5), {}, TypeError, 'continuations must be a list, not 5'),
                    ('score_many', ([('a', ['b']), ('a',)],), {}, TypeError,
                     r"items\[1\] must be \(context, continuations\), not \('a',\)"),
                    ('score_many', ([{'context': 'a', 'continuations': ['b']}],), {}, TypeError,
                     r'items\[0\] must be \(context, continuations\), not {'),
                    ('score_many', (['ab'],), {}, TypeError, r"items\[0\] must be .* not 'ab'"),
                    ('complete', ([1, 2**40],), {}, ValueError,
                     r'prompt\[1\] is 1099511627776; must be in \[-2147483648, 2147483647\]'),
                    ('detokenize', ([-2**31 - 1],), {}, ValueError, r'ids\[0\] is -2147483649'),
                    ('complete', ('x',), {'logit_bias': {'300': 5}}, TypeError,
                     "logit_bias has the key '300'; a key is a token id"),
                    ('complete', ('x',), {'logit_bias': {2**40: 5}}, ValueError, 'logit_bias is')):
                with self.subTest(method, sentence=sentence):
                    with self.assertRaisesRegex(kind, '^' + sentence):
                        self.call(address, method, *args, **options)

    def test_chats_as_tuples_and_as_openai_has_them(self):
        service = ScriptedService()
        parts = [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]
        with serve(service) as address:
            self.call(address, 'complete', [('user', 'Hi'), ('assistant', 'Yo')])
            self.call(address, 'complete', [{'role': 'user', 'content': 'Hi'},
                                            {'role': 'assistant', 'content': parts}])
            for wrong in ([{'role': 'user'}], [{'role': 'user', 'content': 'x', 'tool_calls': []}],
                          [{'role': 'user', 'content': [{'type': 'image_url'}]}],
                          [('user', 'x', 'y')], [('user', 3)], {'role': 'user', 'content': 'x'},
                          ['Hi', 'you']):
                with self.subTest(wrong), self.assertRaises(TypeError):
                    self.call(address, 'complete', wrong)
        self.assertEqual([[(message.role, message.content) for message in request.chat.messages]
                          for request in service.requests],
                         [[('user', 'Hi'), ('assistant', 'Yo')],
                          [('user', 'Hi'), ('assistant', 'ab')]])

    def test_options_reach_their_fields(self):
        service = ScriptedService()
        with serve(service) as address:
            self.call(address, 'complete', 'x', temperature=0.5, logit_bias={3: 1.5}, seed=2**63,
                      stop_strings=('a', 'b'), banned_token_ids=range(3), max_tokens=0,
                      top_p=None)
        request = service.requests[0]
        self.assertEqual(dict(request.sampling.logit_bias), {3: 1.5})
        self.assertEqual(list(request.sampling.banned_token_ids), [0, 1, 2])
        self.assertEqual(list(request.stop_strings), ['a', 'b'])
        self.assertEqual((request.sampling.seed, request.sampling.temperature), (2**63, 0.5))
        self.assertTrue(request.HasField('max_tokens'))
        self.assertFalse(request.sampling.HasField('top_p'))

    def test_constraints_reach_their_fields(self):
        class Model:
            @staticmethod
            def model_json_schema():
                return {'z': 1, 'a': 2}

        service = ScriptedService()
        with serve(service) as address:
            for options in ({'json_schema': {'z': 1, 'a': 2}}, {'json_schema': Model},
                            {'json_schema': '{"z": 1, "a": 2}'},
                            {'json_schema_or_text': {'z': 1, 'a': 2}}, {'regex': 'a'},
                            {'grammar': 'root ::= "a"'}, {'choice': ['a', 'b']},
                            {'json_object': True}, {'json_object': False, 'regex': 'b'}):
                self.call(address, 'complete', 'x', **options)
            for options, message in (({'regex': 'a', 'choice': ['a']}, 'regex and choice'),
                                     ({'choice': 'a'}, 'choice must be a list'),
                                     ({'json_schema': 5}, 'json_schema must be'),
                                     ({'json_schema_or_text': 5}, 'json_schema_or_text must be')):
                with self.assertRaisesRegex(TypeError, message):
                    self.call(address, 'complete', 'x', **options)
        (schema, of_model, text, or_text, regex, grammar, choice, json_object,
         no_object) = service.requests
        for request in schema, of_model, text:
            self.assertEqual(request.json_schema, '{"z": 1, "a": 2}')
        self.assertEqual(or_text.json_schema_or_text, '{"z": 1, "a": 2}')
        self.assertEqual((regex.regex, grammar.grammar), ('a', 'root ::= "a"'))
        self.assertEqual(list(choice.choice.texts), ['a', 'b'])
        self.assertTrue(json_object.json_object)
        self.assertEqual(no_object.WhichOneof('constraint'), 'regex')

    def test_an_empty_list_does_not_mean_all(self):
        service = ScriptedService()
        with serve(service) as address:
            for method, name in (('complete', 'allowed_token_ids'), ('complete', 'choice'),
                                 ('attention', 'layers'), ('attention', 'heads'),
                                 ('attention', 'rows'), ('embed', 'layers'),
                                 ('embed', 'positions')):
                with (self.subTest(method, name=name),
                      self.assertRaisesRegex(ValueError, f'^{name} is empty: ')):
                    self.call(address, method, 'x', **{name: []})
            self.assertEqual(service.requests, [])
            self.call(address, 'complete', 'x', allowed_token_ids=None, logit_bias={}, bad_words=[],
                      banned_token_ids=[], stop_strings=[], stop_token_ids=[], steering=[])
            with self.assertRaisesRegex(ValueError, '^allowed_token_ids is empty: '):
                self.call(address, 'complete', 'x',
                          **lssar.SamplingParams(allowed_token_ids=[]).options())
        self.assertEqual([request.text for request in service.requests], ['x'])

    def test_wrong_options_say_what_there_is(self):
        with serve(ScriptedService()) as address:
            with self.assertRaisesRegex(TypeError, "'temprature'.*temperature"):
                self.call(address, 'complete', 'x', temprature=1)
            with self.assertRaisesRegex(TypeError, "'top_logprob'"):
                self.call(address, 'score_many', [('x', ['y'])], top_logprob=1)
            with self.assertRaisesRegex(TypeError, "temperature is 'hot'"):
                self.call(address, 'complete', 'x', temperature='hot')
            with self.assertRaisesRegex(TypeError, "add_bos is 'yes'"):
                self.call(address, 'tokenize', 'x', add_bos='yes')
            for method, *arguments in (('tokenize', 'x'), ('detokenize', [5]), ('get_info',),
                                       ('get_stats',)):
                with self.assertRaisesRegex(TypeError, "no option 'timeout'.*timeout_s"):
                    self.call(address, method, *arguments, timeout=5)
            with self.assertRaisesRegex(TypeError, "skip_special_tokens is 'no'"):
                self.call(address, 'detokenize', [5], skip_special_tokens='no')
            with self.assertRaisesRegex(ValueError, 'max_tokens is 1099511627776'):
                self.call(address, 'complete', 'x', max_tokens=1 << 40)
            with self.assertRaisesRegex(TypeError, 'complete'):
                self.call(address, 'generate', 'x', n=2)
            with self.assertRaisesRegex(ValueError, 'concurrency'):
                self.call(address, 'complete_many', ['x'], concurrency=0)

    def test_negative_layers_and_heads_count_from_the_end(self):
        service = ScriptedService()
        with serve(service) as address:
            self.call(address, 'attention', 'x', layers=[-1, 0], heads=[-4, 3], rows=[-2])
            request = service.requests[-1]
            with self.assertRaisesRegex(IndexError, 'layers has -7'):
                self.call(address, 'attention', 'x', layers=[-7])
        self.assertEqual((list(request.layers), list(request.heads), list(request.rows)),
                         ([5, 0], [0, 3], [-2]))

    def test_an_iterator_is_a_list_for_each_call_of_many(self):
        service = ScriptedService(bos_id=None)
        with serve(service) as address:
            self.call(address, 'complete_many', ['a', 'b'], banned_token_ids=iter([5]))
            self.assertEqual([list(request.sampling.banned_token_ids)
                              for request in service.requests], [[5], [5]])
            self.call(address, 'score_many', [(iter([7, 8]), ['x' * (1 << 20)]),
                                             (iter([9]), ['y' * (1 << 20)])],
                      logprob_token_ids=iter([5]))
            scored = service.requests[2:]
            self.assertEqual([list(request.logprob_token_ids) for request in scored], [[5], [5]])
            self.assertEqual(sorted(list(item.context.tokens.ids) for request in scored
                                    for item in request.items), [[7, 8], [9]])
            self.call(address, 'embed_many', ['a' * (1 << 20), 'b'], layers=iter([2]))
            self.assertEqual([list(request.layers) for request in service.requests[4:]],
                             [[2], [2]])
            self.call(address, 'attention', 'x', layers=iter([-1]))
            self.assertEqual(list(service.requests[-1].layers), [5])

    def test_a_closed_client_says_so(self):
        with serve(ScriptedService()) as address:
            for method in 'complete', 'get_info':
                with self.assertRaisesRegex(ValueError, 'the client is closed'):
                    self.call_closed(address, method, *['x'] * (method == 'complete'))

    def test_an_empty_context_is_eos_where_there_is_no_bos(self):
        for bos_id, expected in (1, []), (None, [2]):
            service = ScriptedService(bos_id=bos_id)
            with serve(service) as address:
                self.call(address, 'score_many', [('', ['a']), ([], ['b']), ('x', ['c'])])
            items = service.requests[-1].items
            self.assertEqual([list(item.context.tokens.ids) for item in items],
                             [expected, expected, []])
            self.assertEqual(len(service.requests), 2)  # one GetInfo

    def test_addresses_that_cannot_work(self):
        for server, sentence in (('http://localhost:8080', 'localhost:8080.*HTTP port does not'),
                                 ('https://host', r'host:50051.*tls=Tls\(\)'),
                                 ('grpc://host:1', 'host:1'), ('localhost', 'HOST:PORT'),
                                 ('host:port', 'HOST:PORT'), ('unixhost', 'HOST:PORT'),
                                 ('host:111846', r'port is 111846; must be in \[1, 65535\]'),
                                 ('host:65536', 'port is 65536'), ('host:0', 'port is 0;'),
                                 ('host:99999999999', 'port is 99999999999'),
                                 ('[::1]:65537', 'port is 65537')):
            with self.subTest(server), self.assertRaisesRegex(ValueError, sentence):
                self.call(server, 'get_info')
        with self.assertRaisesRegex(TypeError, 'server must be .* not 50051'):
            self.call(50051, 'get_info')
        with self.assertRaisesRegex(ValueError, 'api_key'):
            self.call('host:1', 'get_info', client={'api_key': 'a b'})
        for name in 'api_key', 'retry':
            with self.assertRaisesRegex(TypeError, f'{name} must be a .*, not 3'):
                self.call('host:1', 'get_info', client={name: 3})
        for name in ('', 'a b', 'mod\u00e8le'):
            with self.assertRaisesRegex(ValueError, 'served_model_name must be printable ASCII'):
                self.call('host:1', 'get_info', client={'served_model_name': name})
        with self.assertRaisesRegex(ValueError, 'cert and key'):
            self.call('host:1', 'get_info', client={'tls': types.Tls(cert='c.pem')})

    def test_nobody_listens(self):
        with self.assertRaisesRegex(LssarError, 'no connection to 127.0.0.1:1: ') as caught:
            self.call('127.0.0.1:1', 'get_info')
        self.assertEqual(caught.exception.code, 'UNAVAILABLE')


class SyncTest(SyncCalls, Cases, unittest.TestCase):

    def test_cancel_ends_the_wait_for_another_attempt(self):
        service = ScriptedService(*[Refusal('RESOURCE_EXHAUSTED', retry_s=60)] * 2)
        with serve(service) as address, Client(address) as client:
            stream = client.stream('x')
            threading.Timer(0.3, stream.cancel).start()
            with self.assertRaises(LssarError):
                list(stream)
        self.assertLessEqual(len(service.requests), 1)

    def test_cancel_ends_a_running_stream(self):
        with serve(ScriptedService(delay_s=600)) as address, Client(address) as client:
            stream = client.stream('x')

            def cancel_once_started():
                while stream.started is None:
                    time.sleep(0.01)
                stream.cancel()

            threading.Thread(target=cancel_once_started, daemon=True).start()
            with self.assertRaises(LssarError) as caught:
                list(stream)
            self.assertEqual(caught.exception.code, 'CANCELLED')
            self.assertEqual(stream.started.seed, 7)


class AsyncTest(AsyncCalls, Cases, unittest.TestCase):

    def test_cancel_ends_calls_and_waits(self):
        async def run(service):
            with serve(service) as address:
                async with AsyncClient(address) as client:
                    stream = client.stream('x')
                    asyncio.get_running_loop().call_later(0.3, stream.cancel)
                    return [delta async for delta in stream]

        for service in (ScriptedService(*[Refusal('RESOURCE_EXHAUSTED', retry_s=60)] * 2),
                        ScriptedService(delay_s=600)):
            with self.assertRaises(LssarError):
                asyncio.run(run(service))
            self.assertLessEqual(len(service.requests), 1)

    def test_cancelling_the_task_cancels_the_call(self):
        service = ScriptedService(delay_s=600)

        async def run(address):
            async with AsyncClient(address) as client:
                task = asyncio.create_task(client.complete('x'))
                await asyncio.sleep(0.3)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task

        with serve(service) as address:
            asyncio.run(run(address))
            for _ in range(1200):
                if service.num_running == 0:
                    break
                time.sleep(0.1)
            self.assertEqual(service.num_running, 0)

    def test_close_ends_calls_with_an_error(self):
        service = ScriptedService(delay_s=600)

        async def run(address):
            client = AsyncClient(address)
            calls = [asyncio.create_task(client.complete('x')),
                     asyncio.create_task(client.tokenize('wait'))]
            while service.num_running < 1:
                await asyncio.sleep(0.01)
            await client.close()
            return await asyncio.gather(*calls, return_exceptions=True)

        with serve(service) as address:
            errors = asyncio.run(run(address))
        for error in errors:
            self.assertIsInstance(error, LssarError)
            self.assertEqual(error.code, 'CANCELLED')

    def test_a_cancelled_task_is_cancelled_where_its_call_is_as_well(self):
        async def run(address, cancel):
            async with AsyncClient(address) as client:
                stream = client.stream('x')

                async def read():
                    async for _ in stream:
                        has_begun.set()

                has_begun = asyncio.Event()
                task = asyncio.create_task(read())
                await has_begun.wait()
                task.cancel()
                await cancel(client, stream)
                with self.assertRaises(asyncio.CancelledError):
                    await task

        async def cancel_stream(_, stream):
            stream.cancel()

        for cancel in cancel_stream, lambda client, _: client.close():
            with serve(EndlessService()) as address:
                asyncio.run(run(address, cancel))

    def test_a_stream_that_nobody_holds_ends(self):
        service = EndlessService()

        async def run(address):
            async with AsyncClient(address) as client:
                async for _ in client.stream('x'):
                    break
                return await asyncio.to_thread(service.is_left.wait, 20)

        gc.collect()
        gc.disable()  # it would end the call as well, some time
        self.addCleanup(gc.enable)
        with serve(service) as address:
            self.assertTrue(asyncio.run(run(address)))

    def test_items_may_come_from_an_asynchronous_source(self):
        async def items():
            for i in range(100):
                await asyncio.sleep(0)
                yield 'context', ['x' * (i + 1)]

        with serve(ScriptedService()) as address:
            scores = self.call(address, 'score_many', items())
        self.assertEqual([each[0].logprob for each in scores], [-i - 1 for i in range(100)])

    def test_inputs_may_come_from_an_asynchronous_source(self):
        async def inputs():
            for i in range(100):
                await asyncio.sleep(0)
                yield 'x' * (i + 1)

        with serve(ScriptedService()) as address:
            embeddings = self.call(address, 'embed_many', inputs())
        self.assertEqual([each.vector[0] for each in embeddings], list(range(1, 101)))


class AttemptsTest(unittest.TestCase):
    """The waits between attempts."""

    def test_backoff_doubles_up_to_its_limit(self):
        attempts = Attempts(Retry(max_attempts=6, initial_s=1, max_s=5), None)
        error = LssarError('UNAVAILABLE', 'draining')
        again = pickle.loads(pickle.dumps(LssarError('RESOURCE_EXHAUSTED', 'full', 3.0)))
        self.assertEqual((again.code, str(again), again.retry_delay_s),
                         ('RESOURCE_EXHAUSTED', 'full', 3.0))
        with mock.patch('random.uniform', side_effect=lambda low, high: high):
            waits = [attempts.wait_after(error) for _ in range(6)]
        self.assertEqual(waits, [1, 2, 4, 5, 5, None])

    def test_any_number_of_attempts(self):
        attempts = Attempts(Retry(max_attempts=2000, initial_s=1, max_s=5), None)
        waits = [attempts.wait_after(LssarError('UNAVAILABLE', '')) for _ in range(2000)]
        self.assertEqual(waits.index(None), 1999)

    def test_what_a_retry_cannot_be(self):
        for name, value, kind, sentence in (
                ('max_attempts', 0, ValueError, 'max_attempts is 0; must be at least 1'),
                ('max_attempts', '5', TypeError, "max_attempts must be a number, not '5'"),
                ('initial_s', -1, ValueError, 'initial_s is -1; must be at least 0'),
                ('max_s', float('nan'), ValueError, 'max_s is nan'),
                ('max_retry_info_s', None, TypeError, 'max_retry_info_s must be a number')):
            with self.subTest(name, value=value), self.assertRaisesRegex(kind, sentence):
                Retry(**{name: value})

    def test_the_servers_wait_is_the_least(self):
        error = LssarError('RESOURCE_EXHAUSTED', 'full', 3.0)
        for _ in range(100):
            wait = Attempts(Retry(initial_s=1), None).wait_after(error)
            self.assertTrue(3 <= wait <= 4, wait)
            self.assertLessEqual(
                Attempts(Retry(initial_s=1), None).wait_after(LssarError('UNAVAILABLE', '')), 1)

    def test_a_wait_that_is_too_long_is_not_begun(self):
        error = LssarError('RESOURCE_EXHAUSTED', 'full', 3.0)
        self.assertIsNone(Attempts(Retry(max_retry_info_s=2), None).wait_after(error))

    def test_details_that_are_no_retry_info_are_ignored(self):
        details = retry_details(1.5)
        self.assertEqual(retry_delay([('grpc-status-details-bin', details)]), 1.5)
        self.assertIsNone(retry_delay(None))
        self.assertIsNone(retry_delay([('grpc-status-details-bin', 'text'), ('other', details)]))
        rng = random.Random(1)
        for end in range(len(details)):
            retry_delay([('grpc-status-details-bin', details[:end])])
            damaged = bytearray(details)
            damaged[end] = rng.randrange(256)
            retry_delay([('grpc-status-details-bin', bytes(damaged))])
            retry_delay([('grpc-status-details-bin', rng.randbytes(end))])


class ServerProgramTest(unittest.TestCase):
    """Which lssar-server the package starts."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(_server, '__file__', str(self.folder / '_server.py')))
        self.enterContext(mock.patch.dict(os.environ, PATH=str(self.folder / 'path')))
        os.environ.pop('LSSAR_SERVER', None)

    def program(self, *parts):
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(exist_ok=True)
        path.touch(0o755)
        return str(path)

    def test_named_then_of_the_package_then_in_path(self):
        with self.assertRaisesRegex(FileNotFoundError, 'not named by LSSAR_SERVER'):
            server_program()
        for parts in ('path', 'lssar-server'), ('bin', 'lssar-server'):
            path = self.program(*parts)
            self.assertEqual(server_program(), path)
        os.environ['LSSAR_SERVER'] = self.program('named', 'other')
        self.assertEqual(server_program(), os.environ['LSSAR_SERVER'])
        self.assertEqual(find_server(), os.environ['LSSAR_SERVER'])

    def test_a_name_of_no_program(self):
        self.program('bin', 'lssar-server')
        os.environ['LSSAR_SERVER'] = str(self.folder / 'none')
        with self.assertRaisesRegex(FileNotFoundError, 'LSSAR_SERVER is .*none: no such program'):
            server_program()
        with self.assertRaisesRegex(CheckpointError, 'no such program'):
            find_server()


class SurfaceTest(unittest.TestCase):
    """The package's surface agrees with the proto and with itself."""

    def test_both_clients_have_the_same_methods(self):
        def methods(kind):
            return {name: list(inspect.signature(member).parameters.items())
                    for name, member in vars(kind).items()
                    if not name.startswith('_') and callable(member)}

        sync, asynchronous = methods(Client), methods(AsyncClient)
        self.assertEqual(sync.keys(), asynchronous.keys())
        for name, parameters in sync.items():
            self.assertEqual([(key, value.kind, value.default) for key, value in parameters],
                             [(key, value.kind, value.default)
                              for key, value in asynchronous[name]], name)

    def test_options_are_the_fields_of_the_proto(self):
        def fields(message, *left_out):
            return {field.name for field in message.DESCRIPTOR.fields} - set(left_out)

        prompt = 'text', 'tokens', 'chat'
        timeout = {'timeout_s'}
        sampling = set(types.SamplingOptions.__optional_keys__)
        self.assertEqual(sampling, fields(pb.Sampling))
        self.assertEqual(set(types.GenerateOptions.__optional_keys__),
                         fields(pb.GenerateRequest, *prompt, 'sampling') | sampling | timeout)
        self.assertEqual(set(types.ScoreOptions.__optional_keys__),
                         fields(pb.ScoreRequest, 'items', 'full_distribution') | timeout)
        self.assertEqual(set(types.EmbedOptions.__optional_keys__),
                         fields(pb.EmbedRequest, 'inputs') | timeout)
        self.assertEqual(set(types.AttentionOptions.__optional_keys__),
                         fields(pb.CaptureAttentionRequest, *prompt) | timeout)

    def test_results_are_the_messages_of_the_proto(self):
        for kind, message in ((types.ServerInfo, pb.GetInfoReply), (types.Limits, pb.Limits),
                              (types.ServerStats, pb.GetStatsReply), (types.Usage, pb.Usage),
                              (types.StageTimes, pb.StageTimes), (types.Timings, pb.Timings),
                              (types.Started, pb.Started), (types.RowAttention, pb.RowWeights),
                              (types.HeadStatistics, pb.HeadStatistics)):
            self.assertEqual({field for field in kind.__dataclass_fields__},
                             {field.name for field in message.DESCRIPTOR.fields}, kind)
            optional = {name for name, field in kind.__dataclass_fields__.items()
                        if 'None' in str(field.type)}
            self.assertEqual(optional, {
                field.name for field in message.DESCRIPTOR.fields
                if field.containing_oneof and field.containing_oneof.name.startswith('_')}, kind)

    def test_every_public_name_has_a_docstring(self):
        for name in lssar.__all__:
            value = getattr(lssar, name)
            if not inspect.isclass(value):
                continue
            self.assertTrue(value.__doc__ and not value.__doc__.startswith(name + '('), name)
            for method, member in vars(value).items():
                if inspect.isfunction(member) and not method.startswith('_'):
                    self.assertTrue(member.__doc__, f'{name}.{method}')

    def test_the_reference_is_up_to_date(self):
        script = pathlib.Path(__file__).parents[2] / 'clients' / 'python' / 'api_reference.py'
        done = subprocess.run([sys.executable, '-B', script, '--check'], capture_output=True,
                              text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, ''))
        headings = re.findall(r'^### (\w+)$', script.with_name('API.md').read_text(), re.M)
        self.assertLessEqual(set(lssar.__all__), set(headings))

    def test_no_any_at_the_surface(self):
        for kind in Client, AsyncClient, lssar.Stream, lssar.AsyncStream:
            for name, member in vars(kind).items():
                if inspect.isfunction(member) and (name == '__init__' or name[0] != '_'):
                    for hint in typing.get_type_hints(member, include_extras=True).values():
                        self.assertNotIn('typing.Any', repr(hint), f'{kind.__name__}.{name}')


class ScriptsTest(unittest.TestCase):

    def test_a_missing_package_is_a_sentence(self):
        for name, package, extra in ('figure', 'matplotlib', 'plot'), ('kl', 'numpy', 'import'):
            program = (f"import sys; sys.modules['{package}'] = None\n"
                       f'from lssar import _scripts; sys.exit(_scripts.{name}())')
            done = subprocess.run([sys.executable, '-B', '-c', program], capture_output=True,
                                  text=True, check=False, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (1, ''), done.stderr)
            self.assertRegex(done.stderr, rf'^lssar {name}: .*{package}.*: .* pip install '
                             rf"'\./clients/python\[{extra}\]'.*\n$")


if __name__ == '__main__':
    unittest.main()
