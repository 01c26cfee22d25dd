"""The asyncio client. derive_client.py makes client.py of it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import numbers
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Generic, Self, TypeVar, Unpack

import grpc
from grpc import aio
from google.protobuf.message import Message

from lssar.v1 import inference_pb2 as pb
from lssar import _batches, _channel, _prefix, _requests, _resume, types
from lssar._concurrency import (AsyncEvent, AsyncReading, AsyncWorkers, OpenCalls,
                                async_iterate)
from lssar._retry import Attempts, check_timeout, to_error

Request = TypeVar('Request', bound=_prefix.KeyedRequest)
Reply = TypeVar('Reply', bound=Message)
UnaryRequest = TypeVar('UnaryRequest')
UnaryReply = TypeVar('UnaryReply')
T = TypeVar('T')


class _Call(Generic[Request, Reply]):
    """A server-streaming call that starts at once. Iterating gives its replies. It is retried as
    types.Retry says, and goes on where it broke."""

    def __init__(self, client: AsyncClient, method: aio.UnaryStreamMultiCallable[Request, Reply],
                 request: Request, timeout_s: float | None,
                 progress: _resume.Progress[Request, Reply]) -> None:
        self._client = client
        self._method = method
        self._request = request
        self._progress = progress
        self._metadata = (*client._metadata, (_prefix.HEADER, _prefix.prefix_key(request)))
        self._attempts = client._attempts(timeout_s)
        self._is_cancelled = AsyncEvent()
        client._open_calls.add(self)
        self._start()

    def _start(self) -> None:
        self._is_answered = False  # by this attempt
        self._call = self._method(self._request, timeout=self._attempts.timeout(),
                                  metadata=self._metadata)
        if self._is_cancelled.is_set():
            self._call.cancel()

    async def replies(self) -> AsyncGenerator[Reply, None]:
        """Yields the replies."""
        has_reply = False
        while True:
            try:
                async for reply in self._call:
                    has_reply = self._is_answered = True
                    _resume.check_checkpoint(reply, self._client._checkpoint_hash)
                    new = self._progress.take(reply)
                    if self._progress.has_advanced():
                        self._attempts.restart()
                    if new is not None:
                        yield new
                return
            except grpc.RpcError as error:
                failure = self._client._error(error)
            except asyncio.CancelledError:
                if not self._is_cancelled.is_set() or _is_task_cancelled():
                    self._call.cancel()
                    raise
                failure = types.LssarError('CANCELLED', 'the client cancelled the call')
            wait = self._attempts.wait_after(failure, self._is_answered)
            if wait is None:
                raise failure from None
            if await self._is_cancelled.wait_for(wait):
                raise types.LssarError('CANCELLED', 'the client cancelled the call') from failure
            if has_reply:
                self._request = await self._next_request()
            self._start()

    async def _next_request(self) -> Request:
        """The request for the rest, after the stream broke."""
        options: types.CallOptions = {}
        if (left := self._attempts.timeout()) is not None:
            options['timeout_s'] = left
        ids: list[int] = []
        if (tokenize := self._progress.tokenize_request()) is not None:
            ids = await self._client._token_ids(tokenize, options)
        max_model_len = 0
        if self._progress.needs_max_model_len():
            max_model_len = (await self._client.get_info(**options)).max_model_len
        return self._progress.next_request(ids, max_model_len)

    def cancel(self) -> None:
        """Ends the call, or the wait for its next attempt."""
        self._is_cancelled.set()
        self._call.cancel()


class AsyncStream(_requests.StreamState):
    """A running generation: iterate over its deltas with `async for`. Leaving an `async with`
    block cancels it."""

    def __init__(self, call: _Call[pb.GenerateRequest, pb.GenerateReply]) -> None:
        super().__init__()
        self._call = call

    async def __aiter__(self) -> AsyncIterator[types.Delta]:
        async with contextlib.aclosing(self._call.replies()) as replies:
            async for reply in replies:
                delta = self._take(reply)
                if delta is not None:
                    yield delta

    def cancel(self) -> None:
        """Ends the call. The server frees its pages one step later."""
        self._call.cancel()

    def __del__(self) -> None:
        self.cancel()  # gRPC's own call is a cycle, which may live for long

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.cancel()


_Pending = tuple[_Call[Request, Reply], _batches.Collector[Reply, T]]


async def _collect(pending: _Pending[Request, Reply, T]) -> None:
    call, collector = pending
    async for reply in call.replies():
        collector.add(reply)


def _is_task_cancelled() -> bool:
    """True where this task was cancelled, and not only its call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _in_order(calls: AsyncIterable[_Pending[Request, Reply, T]], items: object,
                    progress: bool, name: str) -> AsyncGenerator[T, None]:
    """Yields the results of each call, and shows a bar `name` over `items` with `progress`.

    Asks for the next call while the one before it runs. Both are read as they come: neither their
    deadlines nor the server's limit for slow readers wait until the results are used. Where there
    is no next call because of an error, the results of the calls before come first.
    """
    bar = _batches.Progress[T](items, progress, name)
    window: collections.deque[tuple[_Pending[Request, Reply, T], AsyncReading]] = (
        collections.deque())
    failure: Exception | None = None

    async def calls_before_failure() -> AsyncIterator[_Pending[Request, Reply, T]]:
        nonlocal failure
        try:
            async for each in calls:
                yield each
        except Exception as error:
            failure = error

    async def results() -> Iterable[T]:
        (_, collector), reading = window[0]
        await reading.end()
        window.popleft()
        return collector.results()

    try:
        async for each in calls_before_failure():
            window.append((each, AsyncReading(functools.partial(_collect, each))))
            if len(window) == _batches.CALLS_IN_FLIGHT:
                for result in await results():
                    yield bar.count(result)
        while window:
            for result in await results():
                yield bar.count(result)
        if failure is not None:
            raise failure
    finally:
        for (call, _), _ in window:
            call.cancel()
        for _, reading in window:
            await reading.stop()
        bar.close()


class AsyncClient:
    """A connection to a server, for asyncio. Create it inside the event loop that uses it.

    Every method raises LssarError with the server's status code and sentence where a call fails,
    and TypeError or ValueError where an argument cannot be sent.
    """

    def __init__(self, server: str = '127.0.0.1:50051', *, timeout_s: float | None = None,
                 api_key: str | None = None, tls: types.Tls | None = None,
                 retry: types.Retry | None = types.Retry(),
                 checkpoint_hash: str | None = None,
                 served_model_name: str | None = None) -> None:
        """Connects with the first call.

        Args:
            server: HOST:PORT of the gRPC port, or unix:PATH.
            timeout_s: deadline of each call, retries included. None: no deadline.
            api_key: where the server has keys.
            tls: None for a plain connection, Tls() for the system's roots.
            retry: None to fail at the first error.
            checkpoint_hash: of get_info(). Where several servers share an address, calls that
                another checkpoint answers fail with FAILED_PRECONDITION. None: not checked.
            served_model_name: the model, by a name that its server gives it, where servers with
                several models share an address. Calls to a server without it fail with NOT_FOUND.
        """
        self._server = _channel.check_server(server)
        self._timeout_s = check_timeout(timeout_s)
        self._metadata = _channel.metadata(api_key, served_model_name)
        self._has_tls = tls is not None
        if retry is not None and not isinstance(retry, types.Retry):
            raise TypeError(f'retry must be a Retry or None, not {retry!r}')
        self._retry = retry or types.Retry(max_attempts=1)
        self._checkpoint_hash = checkpoint_hash
        self._prefix: tuple[int | None] | None = None
        self._is_closed = AsyncEvent()
        self._open_calls = OpenCalls()
        channel = (aio.insecure_channel(server, _channel.OPTIONS) if tls is None else
                   aio.secure_channel(server, _channel.credentials(tls), _channel.OPTIONS))
        self._channel = channel
        self._generate: aio.UnaryStreamMultiCallable[
            pb.GenerateRequest, pb.GenerateReply] = channel.unary_stream(
                _channel.SERVICE + 'Generate', pb.GenerateRequest.SerializeToString,
                pb.GenerateReply.FromString)
        self._score: aio.UnaryStreamMultiCallable[
            pb.ScoreRequest, pb.ScoreReply] = channel.unary_stream(
                _channel.SERVICE + 'Score', pb.ScoreRequest.SerializeToString,
                pb.ScoreReply.FromString)
        self._embed: aio.UnaryStreamMultiCallable[
            pb.EmbedRequest, pb.EmbedReply] = channel.unary_stream(
                _channel.SERVICE + 'Embed', pb.EmbedRequest.SerializeToString,
                pb.EmbedReply.FromString)
        self._capture: aio.UnaryStreamMultiCallable[
            pb.CaptureAttentionRequest, pb.CaptureAttentionReply] = channel.unary_stream(
                _channel.SERVICE + 'CaptureAttention',
                pb.CaptureAttentionRequest.SerializeToString, pb.CaptureAttentionReply.FromString)
        self._tokenize: aio.UnaryUnaryMultiCallable[
            pb.TokenizeRequest, pb.TokenizeReply] = channel.unary_unary(
                _channel.SERVICE + 'Tokenize', pb.TokenizeRequest.SerializeToString,
                pb.TokenizeReply.FromString)
        self._detokenize: aio.UnaryUnaryMultiCallable[
            pb.DetokenizeRequest, pb.DetokenizeReply] = channel.unary_unary(
                _channel.SERVICE + 'Detokenize', pb.DetokenizeRequest.SerializeToString,
                pb.DetokenizeReply.FromString)
        self._get_info: aio.UnaryUnaryMultiCallable[
            pb.GetInfoRequest, pb.GetInfoReply] = channel.unary_unary(
                _channel.SERVICE + 'GetInfo', pb.GetInfoRequest.SerializeToString,
                pb.GetInfoReply.FromString)
        self._get_stats: aio.UnaryUnaryMultiCallable[
            pb.GetStatsRequest, pb.GetStatsReply] = channel.unary_unary(
                _channel.SERVICE + 'GetStats', pb.GetStatsRequest.SerializeToString,
                pb.GetStatsReply.FromString)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and its calls, which raise LssarError with CANCELLED."""
        self._is_closed.set()
        self._open_calls.cancel()
        await self._channel.close()

    def stream(self, prompt: types.Prompt,
               **options: Unpack[types.GenerateOptions]) -> AsyncStream:
        """Starts a generation and returns its stream of deltas. Needs no await."""
        request = _resume.pin_checkpoint(_requests.generate_request(prompt, options),
                                         self._checkpoint_hash)
        return AsyncStream(_Call(self, self._generate, request, options.get('timeout_s'),
                                 _resume.Generation(request)))

    def generate(self, prompt: types.Prompt,
                 **options: Unpack[types.GenerateOptions]) -> AsyncIterator[str]:
        """Yields the text of one choice, piece by piece. Takes no option n."""
        if options.get('n') not in (None, 1):
            raise TypeError('generate() yields one text; use complete() or stream() with n')
        return self._pieces(self.stream(prompt, **options))

    @staticmethod
    async def _pieces(stream: AsyncStream) -> AsyncIterator[str]:
        async with stream:
            async for delta in stream:
                if delta.text:
                    yield delta.text

    async def complete(self, prompt: types.Prompt,
                       **options: Unpack[types.GenerateOptions]) -> list[types.Generation]:
        """Returns all choices once they are finished."""
        return await self._complete(self.stream(prompt, **options), options.get('n') or 1)

    @staticmethod
    async def _complete(stream: AsyncStream, n: int) -> list[types.Generation]:
        generations = [types.Generation() for _ in range(n)]
        async with stream:
            async for delta in stream:
                _requests.add_delta(generations, delta)
        return generations

    def complete_many(self, prompts: Iterable[types.Prompt] | AsyncIterable[types.Prompt], *,
                      concurrency: int = 16, progress: bool = False,
                      **options: Unpack[types.GenerateOptions]
                      ) -> AsyncIterator[list[types.Generation]]:
        """Yields complete()'s result for each prompt, in order.

        Reads `prompts` as it goes and holds at most 2 * concurrency of them, so the list may
        have any length.

        Args:
            prompts: any iterable or asynchronous iterable of prompts.
            concurrency: calls at once, at least 1.
            progress: show a tqdm bar.
        """
        _batches.check_items(prompts, 'complete_many', 'a list of prompts')
        if not isinstance(concurrency, numbers.Integral):
            raise TypeError(f'concurrency must be a whole number, not {concurrency!r}')
        if concurrency < 1:
            raise ValueError(f'concurrency is {concurrency}: at least 1')
        return self._complete_many(prompts, concurrency, progress, _requests.settled(options))

    async def _complete_many(self, prompts: Iterable[types.Prompt] | AsyncIterable[types.Prompt],
                             concurrency: int, progress: bool, options: types.GenerateOptions
                             ) -> AsyncIterator[list[types.Generation]]:
        bar = _batches.Progress[list[types.Generation]](prompts, progress, 'generating')
        workers = AsyncWorkers[types.Prompt, AsyncStream, list[types.Generation]](
            concurrency, lambda prompt: self.stream(prompt, **options),
            lambda stream: self._complete(stream, options.get('n') or 1))
        try:
            async for prompt in async_iterate(prompts):
                workers.start(prompt)
                if workers.is_full():
                    yield bar.count(await workers.next())
            while workers:
                yield bar.count(await workers.next())
        finally:
            await workers.stop()
            bar.close()

    async def score(self, context: types.Text, continuations: Sequence[types.Text],
                    **options: Unpack[types.ScoreOptions]) -> list[types.ContinuationScore]:
        """Log-probability of each continuation after the context, which is computed once.

        An empty context is the model's BOS, or its EOS where it has no BOS.
        """
        [scores] = [each async for each in self.score_many([(context, continuations)], **options)]
        return scores

    def score_many(self, items: Iterable[types.ScoreItem] | AsyncIterable[types.ScoreItem], *,
                   progress: bool = False, **options: Unpack[types.ScoreOptions]
                   ) -> AsyncIterator[list[types.ContinuationScore]]:
        """Yields score()'s result for each (context, continuations), in order.

        Sends the items in calls of at most 64 and holds at most two calls of them, so the list
        may have any length, and each item any number of continuations. timeout_s applies to each
        call. Raises LssarError at the first item that cannot be scored.

        Args:
            items: any iterable or asynchronous iterable of (context, continuations).
            progress: show a tqdm bar.
        """
        _batches.check_items(items, 'score_many', 'a list of (context, continuations)')
        options = _requests.settled(options)
        _requests.score_request((), options)  # a wrong option fails here, not with the first item
        return self._score_many(items, progress, options)

    def _score_many(self, items: Iterable[types.ScoreItem] | AsyncIterable[types.ScoreItem],
                    progress: bool, options: types.ScoreOptions
                    ) -> AsyncIterator[list[types.ContinuationScore]]:
        joiner = _batches.Joiner()

        async def calls() -> AsyncIterator[_Pending[pb.ScoreRequest, pb.ScoreReply,
                                                    list[types.ContinuationScore]]]:
            async for part in self._parts(items):
                request = _resume.pin_checkpoint(
                    _requests.score_request(part.items, options), self._checkpoint_hash)
                scored = _batches.ScoredPart(part, request, joiner)
                yield (_Call(self, self._score, request, options.get('timeout_s'),
                             _resume.Restart(request, scored)), scored)

        return _in_order(calls(), items, progress, 'scoring')

    async def distributions(self, context: types.Text, continuation: types.Text,
                            **options: Unpack[types.SchedulingOptions]
                            ) -> AsyncIterator[types.Distributions]:
        """Yields the log-probabilities of the whole vocabulary at each token of the continuation,
        as numpy arrays, as the server computes them.

        Neither side holds them all: a token of GPT-2's vocabulary takes 200 KB. An empty context
        is replaced as in score(). A call that breaks after the first block is not repeated:
        ABORTED.
        """
        item = await self._item(context, [continuation])
        request = _resume.pin_checkpoint(_requests.distributions_request(item, options),
                                         self._checkpoint_hash)
        replies = _requests.ArrayReplies()
        call = _Call(self, self._score, request, options.get('timeout_s'),
                     _resume.Restart(request, replies))
        try:
            async for reply in call.replies():
                if (block := replies.distributions(reply)) is not None:
                    yield block
        finally:
            call.cancel()

    async def _parts(self, items: Iterable[types.ScoreItem] | AsyncIterable[types.ScoreItem]
                     ) -> AsyncIterator[_batches.Part]:
        parts = _batches.Parts()
        num_items = 0
        async for item in async_iterate(items):
            context, continuations = _requests.context_and_continuations(item, num_items)
            num_items += 1
            for part in parts.add(await self._item(context, continuations)):
                yield part
        for part in parts.rest():
            yield part

    async def _item(self, context: types.Text, continuations: Sequence[types.Text]
                    ) -> pb.ScoreItem:
        item = _requests.score_item(context, continuations)
        if _requests.has_no_context(item):
            if self._prefix is None:
                self._prefix = (_requests.prefix_id(await self.get_info()),)
            if self._prefix[0] is not None:
                item.context.tokens.ids.append(self._prefix[0])
        return item

    async def embed(self, text: types.Text,
                    **options: Unpack[types.EmbedOptions]) -> types.Embedding:
        """Returns hidden states of a text, or the outputs of the checkpoint's regression head.

        By default the hidden state of the last token after the final norm; see EmbedOptions.
        """
        [embedding] = [each async for each in self.embed_many([text], **options)]
        return embedding

    async def hidden_states(self, text: types.Text,
                            **options: Unpack[types.EmbedOptions]
                            ) -> AsyncIterator[types.HiddenStates]:
        """Yields the hidden states of a text's tokens as numpy arrays, as the server computes them.

        Neither side holds them all, so a long text may have all its layers. The options are those
        of embed(), where pooling is 'token' unless it is given. A call that breaks after the first
        block is not repeated: ABORTED.
        """
        with_pooling: types.EmbedOptions = {'pooling': 'token', **options}
        request = _resume.pin_checkpoint(
            _requests.embed_request([_requests.text_or_tokens(text, 'text')], with_pooling),
            self._checkpoint_hash)
        replies = _requests.ArrayReplies()
        call = _Call(self, self._embed, request, options.get('timeout_s'),
                     _resume.Restart(request, replies))
        try:
            async for reply in call.replies():
                if (states := replies.hidden_states(reply)) is not None:
                    yield states
        finally:
            call.cancel()

    def embed_many(self, inputs: Iterable[types.Text] | AsyncIterable[types.Text], *,
                   progress: bool = False, **options: Unpack[types.EmbedOptions]
                   ) -> AsyncIterator[types.Embedding]:
        """Yields embed()'s result for each text, in order.

        Sends the inputs in calls of at most 64 and holds at most two calls of them, so the list
        may have any length. timeout_s applies to each call.

        Args:
            inputs: any iterable or asynchronous iterable of texts or token ids.
            progress: show a tqdm bar.
        """
        _batches.check_items(inputs, 'embed_many', 'a list of texts')
        options = _requests.settled(options)
        _requests.embed_request((), options)  # a wrong option fails here, not with the first input
        return self._embed_many(inputs, progress, options)

    def _embed_many(self, inputs: Iterable[types.Text] | AsyncIterable[types.Text],
                    progress: bool, options: types.EmbedOptions) -> AsyncIterator[types.Embedding]:
        checkpoint = _requests.CheckpointCheck()

        async def groups() -> AsyncIterator[list[pb.TextOrTokens]]:
            pending = _batches.InputGroups(options)
            async for text in async_iterate(inputs):
                for group in pending.add(text):
                    yield group
            for group in pending.rest():
                yield group

        async def calls() -> AsyncIterator[
                _Pending[pb.EmbedRequest, pb.EmbedReply, types.Embedding]]:
            async for group in groups():
                request = _resume.pin_checkpoint(_requests.embed_request(group, options),
                                                 self._checkpoint_hash)
                replies = _requests.EmbedReplies(request, checkpoint)
                yield (_Call(self, self._embed, request, options.get('timeout_s'),
                             _resume.Restart(request, replies)), replies)

        return _in_order(calls(), inputs, progress, 'embedding')

    async def attention(self, prompt: types.Prompt,
                        **options: Unpack[types.AttentionOptions]) -> types.Attention:
        """Returns the attention weights of chosen layers, heads and query tokens."""
        options = _requests.settled(options)
        info = await self.get_info() if _requests.needs_info(options) else None
        request = _resume.pin_checkpoint(_requests.attention_request(prompt, options, info),
                                         self._checkpoint_hash)
        replies = _requests.AttentionReplies()
        call = _Call(self, self._capture, request, options.get('timeout_s'),
                     _resume.Restart(request, replies))
        async for reply in call.replies():
            replies.add(reply)
        return replies.attention

    async def tokenize(self, text: str, *, add_bos: bool | None = None,
                       **options: Unpack[types.CallOptions]) -> list[int]:
        """Returns token ids. BOS comes first as the checkpoint says for prompts, or `add_bos`."""
        return await self._token_ids(_requests.tokenize_request(text, add_bos), options)

    async def _token_ids(self, request: pb.TokenizeRequest, options: types.CallOptions
                         ) -> list[int]:
        request = _resume.pin_checkpoint(request, self._checkpoint_hash)
        return list((await self._unary('tokenize', self._tokenize, request, options)).ids)

    async def detokenize(self, ids: types.TokenIds, *, skip_special_tokens: bool = True,
                         **options: Unpack[types.CallOptions]) -> str:
        """Returns text. Bytes that are not UTF-8 become U+FFFD."""
        request = _resume.pin_checkpoint(
            _requests.detokenize_request(ids, skip_special_tokens), self._checkpoint_hash)
        return (await self._unary('detokenize', self._detokenize, request, options)).text

    async def get_info(self, **options: Unpack[types.CallOptions]) -> types.ServerInfo:
        """Returns model, configuration and present load."""
        reply = await self._unary('get_info', self._get_info, pb.GetInfoRequest(), options)
        _resume.check_hash(reply.checkpoint_hash, self._checkpoint_hash)
        return _requests.server_info(reply)

    async def get_stats(self, **options: Unpack[types.CallOptions]) -> types.ServerStats:
        """Returns counts and times since the server started. Where it has keys: admins only."""
        reply = await self._unary('get_stats', self._get_stats, pb.GetStatsRequest(), options)
        return _requests.server_stats(reply)

    async def _unary(self, name: str, method: aio.UnaryUnaryMultiCallable[UnaryRequest, UnaryReply],
                     request: UnaryRequest, options: types.CallOptions) -> UnaryReply:
        _requests.check_call_options(name, options)
        attempts = self._attempts(options.get('timeout_s'))
        while True:
            try:
                return await method(request, timeout=attempts.timeout(), metadata=self._metadata)
            except grpc.RpcError as error:
                failure = self._error(error)
            except asyncio.CancelledError:
                if not self._is_closed.is_set() or _is_task_cancelled():
                    raise
                failure = types.LssarError('CANCELLED', 'the client was closed')
            wait = attempts.wait_after(failure)
            if wait is None:
                raise failure from None
            if await self._is_closed.wait_for(wait):
                raise types.LssarError('CANCELLED', 'the client was closed') from failure

    def _attempts(self, timeout_s: float | None) -> Attempts:
        """Errors: ValueError: the client is closed."""
        if self._is_closed.is_set():
            raise ValueError('the client is closed')
        return Attempts(self._retry, self._timeout_s if timeout_s is None else timeout_s)

    def _error(self, error: grpc.RpcError) -> types.LssarError:
        return to_error(error, self._server, self._has_tls)
