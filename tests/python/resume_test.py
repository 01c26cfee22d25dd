"""Streams that break and go on, and what a client sends for a load balancer. Both clients."""

import asyncio
import hashlib
import threading
import unittest

import grpc

from lssar.v1 import inference_pb2 as pb
from lssar.v1 import inference_pb2_grpc
from lssar import AsyncClient, Client, LssarError, Retry, types
from lssar._prefix import prefix_key
from scripted_server import serve

FAST = Retry(max_attempts=3, initial_s=0.01, max_s=0.02)
TEXT = 'Grüße, 世界! 123 '.encode()
BOS = 1


class Model(inference_pb2_grpc.InferenceServicer):
    """Tokens are bytes plus 10. The token at a position depends on the position and the seed, as a
    sampled one does; a prompt that is no beginning of that text is refused after its own ids.

    `breaks`: by call of Generate, the number of tokens after which its stream breaks; None: never.
    `error`: how it breaks.
    """

    def __init__(self, *breaks, error=('UNAVAILABLE', 'killed'), checkpoints=('a',), shift_at=None,
                 broken_calls=0):
        self.breaks = list(breaks)
        self.error = error
        self.checkpoints = list(checkpoints)
        self.shift_at = shift_at  # from this call on another text
        self.broken_calls = broken_calls  # of Score, Embed and CaptureAttention
        self.requests = []
        self.metadata = []
        self.lock = threading.Lock()

    def token(self, position, seed):
        return TEXT[(position + seed) % len(TEXT)] + 10

    def _enter(self, request, context):
        with self.lock:
            self.requests.append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            call = len(self.requests) - 1
            checkpoint = self.checkpoints[min(call, len(self.checkpoints) - 1)]
            return call, checkpoint

    def _break(self, context):
        context.abort(getattr(grpc.StatusCode, self.error[0]), self.error[1])

    def Tokenize(self, request, context):
        if request.checkpoint_hash != self.checkpoints[0]:
            context.abort(grpc.StatusCode.INTERNAL, 'ids of another checkpoint')
        return pb.TokenizeReply(ids=[BOS, *(byte + 10 for byte in request.text.encode())])

    def GetInfo(self, request, context):
        return pb.GetInfoReply(checkpoint_hash=self.checkpoints[0], max_model_len=60)

    def _prompt(self, request):
        if request.HasField('tokens'):
            return list(request.tokens.ids)
        text = request.text or ''.join(message.content for message in request.chat.messages)
        return [BOS, *(byte + 10 for byte in text.encode())]

    def Generate(self, request, context):
        call, checkpoint = self._enter(request, context)
        end = self.breaks[call] if call < len(self.breaks) else None
        seed = request.sampling.seed if request.sampling.HasField('seed') else 7
        prompt = self._prompt(request)
        yield pb.GenerateReply(started=pb.Started(
            request_id='r', seed=seed, checkpoint_hash=checkpoint, num_prompt_tokens=len(prompt)))
        if request.HasField('prompt_logprobs'):
            yield pb.GenerateReply(prompt_logprobs=pb.PromptLogprobs(first=1, tokens=[
                pb.Token(token=pb.TokenLogprob(id=id)) for id in prompt[1:]]))
        max_tokens = request.max_tokens if request.HasField('max_tokens') else 60 - len(prompt)
        num_choices = max(1, request.n)
        pending = [b''] * num_choices
        for i in range(max_tokens):
            for choice in range(num_choices):
                if end == 0:
                    self._break(context)
                end = None if end is None else end - 1
                shift = choice + (self.shift_at is not None and call >= self.shift_at)
                id = self.token(len(prompt) + i, seed + shift)
                piece = bytes([id - 10])
                pending[choice] += piece
                try:
                    text = pending[choice].decode()
                    pending[choice] = b''
                except UnicodeDecodeError:
                    text = ''
                is_last = i + 1 == max_tokens
                yield pb.GenerateReply(delta=pb.Delta(
                    choice=choice, text=text + ('\ufffd' if is_last and not text else ''),
                    tokens=[pb.Token(token=pb.TokenLogprob(id=id, piece=piece))],
                    finish_reason=pb.FINISH_REASON_LENGTH if is_last else 0))
        if end == 0:
            self._break(context)
        yield pb.GenerateReply(finished=pb.Finished(
            usage=pb.Usage(num_prompt_tokens=len(prompt),
                           num_generated_tokens=max_tokens * num_choices),
            receipt=pb.Receipt(checkpoint_hash=checkpoint, max_tokens=max_tokens)))

    def _replies(self, request, context, replies):
        call, _ = self._enter(request, context)
        for reply in replies:
            yield reply
            if call < self.broken_calls:
                self._break(context)

    def Score(self, request, context):
        yield from self._replies(request, context, [
            pb.ScoreReply(tokens=pb.ScoreTokens(tokens=[pb.Token(), pb.Token()])),
            pb.ScoreReply(score=pb.ContinuationScore(logprob=-3.5, num_tokens=2)),
            pb.ScoreReply(finished=pb.ScoreFinished(checkpoint_hash='a'))])

    def Embed(self, request, context):
        yield from self._replies(request, context, [
            pb.EmbedReply(vectors=pb.EmbeddingVectors(size=2, values=[1, 2])),
            pb.EmbedReply(finished=pb.EmbedFinished(checkpoint_hash='a'))])

    def CaptureAttention(self, request, context):
        yield from self._replies(request, context, [
            pb.CaptureAttentionReply(started=pb.CaptureStarted(checkpoint_hash='a')),
            pb.CaptureAttentionReply(prompt=pb.PromptTokens(tokens=[pb.TokenLogprob(id=3)])),
            pb.CaptureAttentionReply(weights=pb.AttentionWeights(rows=[pb.RowWeights(row=1)]))])


class Result:
    """What a stream gave."""

    def __init__(self, num_choices):
        self.choices = [types.Generation() for _ in range(num_choices)]
        self.stream = None

    def add(self, delta):
        choice = self.choices[delta.choice]
        choice.text += delta.text
        choice.tokens.extend(delta.tokens)
        choice.finish_reason = delta.finish_reason or choice.finish_reason

    def facts(self):
        stream = self.stream
        return (self.choices, stream.prompt_tokens, stream.started, stream.finished)


class SyncCalls:

    @staticmethod
    def generate(model, prompt, client=None, **options):
        result = Result(options.get('n', 1))
        with serve(model) as address, Client(address, **{'retry': FAST, **(client or {})}) as each:
            with each.stream(prompt, **options) as result.stream:
                for delta in result.stream:
                    result.add(delta)
        return result.facts()

    @staticmethod
    def call(model, method, *args, client=None, **options):
        with serve(model) as address, Client(address, **{'retry': FAST, **(client or {})}) as each:
            return getattr(each, method)(*args, **options)


class AsyncCalls:

    @staticmethod
    def generate(model, prompt, client=None, **options):
        async def run(address):
            result = Result(options.get('n', 1))
            async with AsyncClient(address, **{'retry': FAST, **(client or {})}) as each:
                async with each.stream(prompt, **options) as result.stream:
                    async for delta in result.stream:
                        result.add(delta)
            return result.facts()

        with serve(model) as address:
            return asyncio.run(run(address))

    @staticmethod
    def call(model, method, *args, client=None, **options):
        async def run(address):
            async with AsyncClient(address, **{'retry': FAST, **(client or {})}) as each:
                return await getattr(each, method)(*args, **options)

        with serve(model) as address:
            return asyncio.run(run(address))


class Cases:

    def expect_same(self, prompt, breaks, requests=None, model=None, **options):
        """A stream that breaks gives what one that does not break gives. -> the model's requests"""
        broken = model or Model(*breaks)
        self.assertEqual(self.generate(broken, prompt, **options),
                         self.generate(Model(), prompt, **options))
        self.assertEqual(len(broken.requests), len(breaks) + 1)
        return broken.requests

    def test_a_broken_stream_goes_on_where_it_ended(self):
        first, second, third = self.expect_same('ab', [5, 9], max_tokens=40, min_tokens=15, seed=3,
                                                logprobs=0, prompt_logprobs=0)
        ids = [BOS, 107, 108]
        self.assertEqual(first.text, 'ab')
        # 5 tokens are 3 characters and 2 bytes of a fourth, whose text the client has not seen.
        for request, num_before in (second, 3), (third, 12):
            done = [Model().token(len(ids) + i, 3) for i in range(num_before)]
            self.assertEqual(list(request.tokens.ids), ids + done)
            self.assertEqual((request.max_tokens, request.sampling.seed), (40 - num_before, 3))
            self.assertEqual(request.min_tokens, max(0, 15 - num_before))
            self.assertFalse(request.HasField('prompt_logprobs'))

    def test_every_place_to_break(self):
        for num_tokens in range(31):
            with self.subTest(num_tokens):
                self.expect_same([BOS, 50, 60], [num_tokens], max_tokens=30)

    def test_the_servers_own_seed_is_kept(self):
        for breaks in [4], [0]:
            _, second = self.expect_same('ab', breaks, max_tokens=10)
            self.assertEqual(second.sampling.seed, 7)

    def test_the_default_of_max_tokens(self):
        _, second = self.expect_same('ab', [14], seed=3)
        self.assertEqual(len(second.tokens.ids) + second.max_tokens, 60)

    def test_what_cannot_be_continued_starts_again(self):
        # The text after it begins with a whole character, so a continuation would be possible.
        for prompt, options in (('abcd', {'n': 2}), ([('user', 'abcd')], {}),
                                ('abcd', {'presence_penalty': 0.5}),
                                ('abcd', {'frequency_penalty': 0.5}), ('abcd', {'echo': True}),
                                ('abcd', {'bad_words': ['a movie']}),
                                ('abcd', {'regex': '.*'}), ('abcd', {'choice': ['a']})):
            with self.subTest(prompt=prompt, **options):
                first, second = self.expect_same(prompt, [11], max_tokens=20, prompt_logprobs=0,
                                                 **options)
                first.sampling.seed, first.checkpoint_hash = 7, 'a'
                self.assertEqual(first, second)

    def test_the_ways_in_which_proxies_end_a_stream(self):
        for error in (('UNKNOWN', 'Stream removed'),
                      ('UNKNOWN', 'Stream removed (Data frame with END_STREAM flag received)'),
                      ('INTERNAL', 'Received RST_STREAM with error code 2')):
            with self.subTest(error):
                self.expect_same('ab', [8], model=Model(8, error=error), max_tokens=20)

    def test_other_errors_are_not_repaired(self):
        for code in 'INTERNAL', 'UNKNOWN', 'DATA_LOSS', 'CANCELLED', 'ABORTED':
            with self.subTest(code):
                model = Model(8, error=(code, 'no'))
                with self.assertRaises(LssarError) as caught:
                    self.generate(model, 'ab', max_tokens=20)
                self.assertEqual((caught.exception.code, len(model.requests)), (code, 1))

    def test_attempts_that_bring_nothing_are_bounded(self):
        model = Model(9, *[0] * 20)
        with self.assertRaisesRegex(LssarError, 'killed'):
            self.generate(model, 'ab', max_tokens=20)
        self.assertEqual(len(model.requests), 3)

    def test_attempts_that_get_on_are_not_bounded(self):
        self.expect_same([BOS], [6] * 5, max_tokens=40)

    def test_no_resume_when_told_so(self):
        for retry in None, Retry(resume=False):
            model = Model(9)
            with self.assertRaises(LssarError) as caught:
                self.generate(model, 'ab', client={'retry': retry}, max_tokens=20)
            self.assertEqual((caught.exception.code, len(model.requests)), ('UNAVAILABLE', 1))

    def test_another_checkpoint_is_an_error(self):
        with self.assertRaisesRegex(LssarError, 'checkpoint b instead of a') as caught:
            self.generate(Model(9, checkpoints='ab'), 'ab', max_tokens=20)
        self.assertEqual(caught.exception.code, 'FAILED_PRECONDITION')

    def test_another_text_is_an_error(self):
        with self.assertRaisesRegex(LssarError, 'another text') as caught:
            self.generate(Model(11, shift_at=1), [('user', 'ab')], max_tokens=20)
        self.assertEqual(caught.exception.code, 'ABORTED')

    def test_scores_vectors_and_weights_are_not_doubled(self):
        for method, args in (('score', ('x', ['y'])), ('embed', ('x',)), ('attention', ('x',))):
            with self.subTest(method):
                options = {'per_token': True} if method == 'score' else {}
                broken = Model(broken_calls=2)
                self.assertEqual(self.call(broken, method, *args, **options),
                                 self.call(Model(), method, *args, **options))
                self.assertEqual(len(broken.requests), 3)
                with self.assertRaises(LssarError):
                    self.call(Model(broken_calls=3), method, *args, **options)

    def test_a_pinned_checkpoint(self):
        for method, args in (('score', ('x', ['y'])), ('embed', ('x',)), ('attention', ('x',)),
                             ('complete', ('x',)), ('get_info', ())):
            with self.subTest(method):
                model = Model()
                self.call(model, method, *args, client={'checkpoint_hash': 'a'})
                self.assertEqual([each.checkpoint_hash for each in model.requests],
                                 ['a'] * len(model.requests))
                with self.assertRaisesRegex(LssarError, 'checkpoint_hash is b.*has a') as caught:
                    self.call(Model(), method, *args, client={'checkpoint_hash': 'b'})
                self.assertEqual(caught.exception.code, 'FAILED_PRECONDITION')

    def test_all_attempts_have_the_header_of_the_prompt(self):
        model = Model(8)
        self.generate(model, 'ab', max_tokens=20)
        self.assertEqual([each['x-lssar-prefix'] for each in model.metadata],
                         [hashlib.sha256(b'ab').hexdigest()[:16]] * 2)


class SyncTest(SyncCalls, Cases, unittest.TestCase):
    pass


class AsyncTest(AsyncCalls, Cases, unittest.TestCase):
    pass


class PrefixKeyTest(unittest.TestCase):

    def key(self, beginning):
        return hashlib.sha256(beginning).hexdigest()[:16]

    def test_texts_share_their_first_bytes(self):
        long = 'ü' * 200
        self.assertEqual(prefix_key(pb.GenerateRequest(text=long + 'a')),
                         self.key(long.encode()[:256]))
        self.assertEqual(prefix_key(pb.CaptureAttentionRequest(text='ab')), self.key(b'ab'))
        self.assertEqual(prefix_key(pb.GenerateRequest(text='ab', cache_salt='s')),
                         self.key(b'sab'))

    def test_ids_and_items(self):
        ids = pb.TokenIds(ids=range(100))
        expected = self.key(', '.join(map(str, range(64))).encode())
        text = pb.TextOrTokens(text='c')
        self.assertEqual(prefix_key(pb.GenerateRequest(tokens=ids)), expected)
        self.assertEqual(prefix_key(pb.EmbedRequest(inputs=[pb.TextOrTokens(tokens=ids), text])),
                         expected)
        self.assertEqual(prefix_key(pb.ScoreRequest(items=[pb.ScoreItem(
            context=pb.TextOrTokens(tokens=ids), continuations=[text])])), expected)
        self.assertEqual(prefix_key(pb.ScoreRequest(items=[pb.ScoreItem(continuations=[text])])),
                         self.key(b'c'))
        for empty in pb.ScoreRequest(), pb.EmbedRequest(), pb.GenerateRequest():
            self.assertEqual(prefix_key(empty), self.key(b''))

    def test_all_turns_of_a_chat_have_one_key(self):
        def chat(*messages):
            return prefix_key(pb.GenerateRequest(chat=pb.Chat(messages=[
                pb.ChatMessage(role=role, content=content) for role, content in messages])))

        first = [('system', 'Be brief. '), ('user', 'Hello')]
        self.assertEqual(chat(*first), self.key(b'Be brief. Hello'))
        self.assertEqual(chat(*first, ('assistant', 'Hi'), ('user', 'Bye')), chat(*first))
        self.assertNotEqual(chat(('system', 'Be brief. '), ('user', 'Bye')), chat(*first))


if __name__ == '__main__':
    unittest.main()
