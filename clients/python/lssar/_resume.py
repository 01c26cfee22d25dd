"""What a call has received, and the request that goes on from there once its stream broke. Shared
by both clients.

Every rpc only reads, and the same request gives the same bits, so a broken call can be repeated:

- Score, Embed and CaptureAttention start again: their results are handed over when all are there.
- Generate goes on where it ended: the tokens so far become a part of the prompt. Sampling depends
  on (seed, choice, position) and on the tokens before, so the text is what it would have been.
- Where that does not hold (several choices, a chat, echo, penalties on the output's own tokens,
  bad words, which are looked for in the output alone), Generate starts again with the same seed,
  and what was received before is left out.
"""

from __future__ import annotations

import dataclasses
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import Message as ProtoMessage

from lssar.v1 import inference_pb2 as pb
from lssar.types import LssarError

DEFAULT_MAX_TOKENS = 256  # the server's, where a request leaves max_tokens out

Request = TypeVar('Request')
NextRequest = TypeVar('NextRequest', covariant=True)
Reply = TypeVar('Reply')
CheckedRequest = TypeVar('CheckedRequest', pb.GenerateRequest, pb.ScoreRequest, pb.EmbedRequest,
                         pb.CaptureAttentionRequest, pb.TokenizeRequest, pb.DetokenizeRequest)


class Progress(Protocol[NextRequest, Reply]):
    """How far a call has come."""

    def take(self, reply: Reply) -> Reply | None:
        """The reply without what an earlier attempt brought; None: nothing is new."""

    def has_advanced(self) -> bool:
        """True once after new results that the next attempt will not compute again."""

    def tokenize_request(self) -> pb.TokenizeRequest | None:
        """For the ids that next_request() needs."""

    def needs_max_model_len(self) -> bool:
        """True where next_request() needs it."""

    def next_request(self, prompt_ids: list[int], max_model_len: int) -> NextRequest:
        """The request of the next attempt. 0 and [] where they are not needed."""


def check_checkpoint(reply: ProtoMessage, pinned: str | None) -> None:
    """Errors: LssarError FAILED_PRECONDITION where a reply names another checkpoint."""
    event = reply.WhichOneof('event') if pinned else None
    if event in ('started', 'finished'):
        check_hash(getattr(getattr(reply, event), 'checkpoint_hash', ''), pinned)


def check_hash(checkpoint_hash: str, pinned: str | None) -> None:
    """The same of a hash. Empty: the reply has none."""
    if pinned and checkpoint_hash and checkpoint_hash != pinned:
        raise LssarError('FAILED_PRECONDITION', f'checkpoint_hash is {pinned}, and the server that '
                         f'answered has {checkpoint_hash}')


def pin_checkpoint(request: CheckedRequest, pinned: str | None) -> CheckedRequest:
    """The request, for a server with that checkpoint only, unless it names one itself."""
    if pinned and not request.checkpoint_hash:
        copy = type(request)()
        copy.CopyFrom(request)
        copy.checkpoint_hash = pinned
        return copy
    return request


class Restartable(Protocol):
    """Collects replies and can start again."""

    def restart(self) -> None:
        """Forgets all replies. Errors: LssarError where some were handed over."""


class Restart(Generic[Request, Reply]):
    """Progress of a call that starts again. `collector`: of its replies."""

    def __init__(self, request: Request, collector: Restartable) -> None:
        self._request = request
        self._collector = collector

    def take(self, reply: Reply) -> Reply | None:
        """All of it."""
        return reply

    def has_advanced(self) -> bool:
        """Nothing is kept."""
        return False

    def tokenize_request(self) -> pb.TokenizeRequest | None:
        """Nothing."""
        return None

    def needs_max_model_len(self) -> bool:
        """No."""
        return False

    def next_request(self, prompt_ids: list[int], max_model_len: int) -> Request:
        """The same."""
        self._collector.restart()
        return self._request


@dataclasses.dataclass
class _Choice:
    """What was received of one choice."""

    ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ''
    is_finished: bool = False
    # The longest beginning whose tokens' bytes are exactly its text: in bytes, characters of the
    # text, or stop strings, nothing is withheld there. A continuation starts at such a place.
    num_whole_tokens: int = 0
    num_whole_chars: int = 0
    pending_bytes: bytes = b''  # after the common beginning of the tokens' bytes and the text
    pending_text: bytes = b''
    is_text_of_tokens: bool = True  # False: they differ, because bytes were not UTF-8
    # Where the present attempt is.
    num_tokens_sent: int = 0
    num_chars_sent: int = 0

    def restart(self, num_tokens: int, num_chars: int) -> None:
        """The next attempt begins there."""
        self.num_tokens_sent, self.num_chars_sent = num_tokens, num_chars

    def take(self, delta: pb.Delta) -> pb.Delta | None:
        """The new part of `delta`. Errors: LssarError ABORTED where the rest is not as before."""
        old_tokens = min(len(delta.tokens), len(self.ids) - self.num_tokens_sent)
        old_chars = min(len(delta.text), len(self.text) - self.num_chars_sent)
        before = self.ids[self.num_tokens_sent:self.num_tokens_sent + old_tokens]
        text_before = self.text[self.num_chars_sent:self.num_chars_sent + old_chars]
        if ([token.token.id for token in delta.tokens[:old_tokens]] != before
                or delta.text[:old_chars] != text_before):
            raise LssarError(
                'ABORTED', 'the stream broke, and the server that was asked to go on with it '
                'gives another text for the same request: another --dtype or --kv-cache-dtype, a '
                'GPU without --batch-invariant, or another version. Start again')
        self.num_tokens_sent += len(delta.tokens)
        self.num_chars_sent += len(delta.text)
        is_end = bool(delta.finish_reason) and not self.is_finished
        if old_tokens == len(delta.tokens) and old_chars == len(delta.text) and not is_end:
            return None
        self.is_finished = is_end
        new = pb.Delta()
        new.CopyFrom(delta)
        del new.tokens[:old_tokens]
        new.text = delta.text[old_chars:]
        self._append(new)
        return new

    def _append(self, delta: pb.Delta) -> None:
        self.ids.extend(token.token.id for token in delta.tokens)
        self.text += delta.text
        if not self.is_text_of_tokens:
            return
        self.pending_bytes += b''.join(token.token.piece for token in delta.tokens)
        self.pending_text += delta.text.encode()
        common = min(len(self.pending_bytes), len(self.pending_text))
        self.is_text_of_tokens = self.pending_bytes[:common] == self.pending_text[:common]
        self.pending_bytes = self.pending_bytes[common:]
        self.pending_text = self.pending_text[common:]
        if self.is_text_of_tokens and not self.pending_bytes and not self.pending_text:
            self.num_whole_tokens, self.num_whole_chars = len(self.ids), len(self.text)


class Generation:
    """Progress of Generate."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        self._request = request
        self._started: pb.Started | None = None
        self._num_prompt_logprobs = 0  # received
        self._num_prompt_logprobs_sent = 0  # by the present attempt
        self._choices = [_Choice() for _ in range(max(1, request.n))]
        self._has_advanced = False
        self._num_continued = 0  # tokens that the present attempt has in its prompt

    def take(self, reply: pb.GenerateReply) -> pb.GenerateReply | None:
        """Errors: LssarError FAILED_PRECONDITION: another checkpoint; ABORTED: another text."""
        event = reply.WhichOneof('event')
        if event == 'started':
            return self._take_started(reply)
        if event == 'prompt_logprobs':
            return self._take_prompt_logprobs(reply)
        if event == 'delta' and reply.delta.choice < len(self._choices):
            delta = self._choices[reply.delta.choice].take(reply.delta)
            self._has_advanced |= delta is not None
            return None if delta is None else pb.GenerateReply(delta=delta)
        if event == 'finished' and self._started and self._num_continued:
            usage = reply.finished.usage
            usage.num_prompt_tokens = self._started.num_prompt_tokens
            usage.num_cached_tokens = self._started.num_cached_tokens
            usage.num_generated_tokens += self._num_continued
            if reply.finished.HasField('receipt'):
                reply.finished.receipt.max_tokens += self._num_continued
        return reply

    def _take_started(self, reply: pb.GenerateReply) -> pb.GenerateReply | None:
        if self._started is None:
            self._started = reply.started
            return reply
        before, now = self._started.checkpoint_hash, reply.started.checkpoint_hash
        if before != now:
            raise LssarError(
                'FAILED_PRECONDITION', f'the stream broke, and the server that was asked to go on '
                f'with it has the checkpoint {now} instead of {before}')
        return None

    def _take_prompt_logprobs(self, reply: pb.GenerateReply) -> pb.GenerateReply | None:
        tokens = reply.prompt_logprobs.tokens
        num_old = min(len(tokens), self._num_prompt_logprobs - self._num_prompt_logprobs_sent)
        self._num_prompt_logprobs_sent += len(tokens)
        self._num_prompt_logprobs += len(tokens) - num_old
        if num_old == len(tokens):
            return None
        new = pb.GenerateReply()
        new.CopyFrom(reply)
        del new.prompt_logprobs.tokens[:num_old]
        new.prompt_logprobs.first += num_old
        return new

    def has_advanced(self) -> bool:
        """True where a delta came that a continuation need not compute again."""
        has_advanced, self._has_advanced = self._has_advanced, False
        return has_advanced and self._can_continue()

    def _can_continue(self) -> bool:
        request, choice = self._request, self._choices[0]
        return (len(self._choices) == 1 and not request.HasField('chat') and not request.echo
                and not request.sampling.presence_penalty
                and not request.sampling.frequency_penalty
                and not request.sampling.bad_words
                and request.WhichOneof('constraint') is None
                and choice.num_whole_tokens > 0 and not choice.is_finished)

    def tokenize_request(self) -> pb.TokenizeRequest | None:
        """The prompt's text, for the checkpoint that began."""
        if not self._request.HasField('text') or not self._can_continue():
            return None
        pinned = self._started.checkpoint_hash if self._started else ''
        return pb.TokenizeRequest(text=self._request.text, checkpoint_hash=pinned)

    def needs_max_model_len(self) -> bool:
        """True where the default of max_tokens depends on it."""
        return not self._request.HasField('max_tokens') and self._can_continue()

    def next_request(self, prompt_ids: list[int], max_model_len: int) -> pb.GenerateRequest:
        """The rest of the text, or the same request with the seed that the server chose."""
        request = pb.GenerateRequest()
        request.CopyFrom(self._request)
        self._num_prompt_logprobs_sent = 0
        self._num_continued = 0
        if self._started:
            request.sampling.seed = self._started.seed
            request.checkpoint_hash = self._started.checkpoint_hash
        if not self._can_continue():
            for choice in self._choices:
                choice.restart(0, 0)
            return request
        [choice] = self._choices
        choice.restart(choice.num_whole_tokens, choice.num_whole_chars)
        self._num_continued = choice.num_whole_tokens
        ids = prompt_ids if request.HasField('text') else list(request.tokens.ids)
        max_tokens = (request.max_tokens if request.HasField('max_tokens') else
                      min(DEFAULT_MAX_TOKENS, max_model_len - len(ids)))
        request.ClearField('prompt_logprobs')  # all were sent before the first token
        request.tokens.ids[:] = [*ids, *choice.ids[:self._num_continued]]
        request.max_tokens = max_tokens - self._num_continued
        if request.HasField('min_tokens'):
            request.min_tokens = max(0, request.min_tokens - self._num_continued)
        return request
