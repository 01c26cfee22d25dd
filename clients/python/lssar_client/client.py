"""A connection to a server, and what comes back from it as plain Python values."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Iterator, Mapping, Optional, Sequence, Union

import grpc

from lssar.v1 import inference_pb2 as pb
from lssar.v1 import inference_pb2_grpc

# A text, token ids, or a chat: [('user', 'Hello'), ...].
Message = tuple[str, str]
Prompt = Union[str, Sequence[int], Sequence[Message]]
Text = Union[str, Sequence[int]]

MAX_MESSAGE_BYTES = 32 << 20
_SAMPLING_FIELDS = frozenset(field.name for field in pb.Sampling.DESCRIPTOR.fields)
_REQUEST_FIELDS = frozenset(field.name for field in pb.GenerateRequest.DESCRIPTOR.fields) - {
    'text', 'tokens', 'chat', 'sampling'}


class LssarError(Exception):
    """A call that failed: `code` is the status code's name, str() the server's sentence."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Token:
    """One token; `logprob` (nats) and the best ones at its place where they were asked for."""
    id: int
    piece: bytes
    logprob: Optional[float] = None
    top: tuple['Token', ...] = ()


@dataclasses.dataclass(frozen=True)
class Delta:
    """What became known of one choice: whole UTF-8 text, perhaps empty, and its tokens."""
    choice: int
    text: str
    tokens: tuple[Token, ...]
    finish_reason: Optional[str] = None  # 'EOS', 'STOP_STRING', 'LENGTH', ... in the last one
    stop_string: str = ''


@dataclasses.dataclass
class Generation:
    """A finished choice."""
    text: str = ''
    tokens: list[Token] = dataclasses.field(default_factory=list)
    finish_reason: Optional[str] = None
    stop_string: str = ''


@dataclasses.dataclass(frozen=True)
class Continuation:
    """The score of one continuation: a sum over its tokens, in nats."""
    logprob: float
    num_tokens: int
    num_bytes: int
    is_greedy: bool
    tokens: tuple[Token, ...] = ()


@dataclasses.dataclass(frozen=True)
class RowAttention:
    """One row's final attention weights in one head: keys and weights, by rising position."""
    layer: int
    head: int
    row: int  # its position; it attends row + 1 keys
    num_nonzero: int
    entropy: float  # of all weights, nats: exp(entropy) is the effective number of keys
    dropped_mass: float  # what top_k left out
    keys: tuple[int, ...]
    weights: tuple[float, ...]


@dataclasses.dataclass
class Attention:
    """Tokens of the prompt up to the last row; rows by position, then layer, then head."""
    tokens: list[Token] = dataclasses.field(default_factory=list)
    rows: list[RowAttention] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Tls:
    """PEM files: the roots that the server is known by (None: the system's), and the client's
    own certificate and key where the server asks for one."""
    ca: Optional[str] = None
    cert: Optional[str] = None
    key: Optional[str] = None

    def credentials(self) -> grpc.ChannelCredentials:
        """As gRPC takes them."""
        return grpc.ssl_channel_credentials(*(
            path and pathlib.Path(path).read_bytes() for path in (self.ca, self.key, self.cert)))


# What GetInfo says, field by field as in the proto.
ServerFacts = pb.GetInfoReply


def _error(error: grpc.RpcError) -> LssarError:
    return LssarError(error.code().name, error.details() or error.code().name)


def _token(token: pb.Token) -> Token:
    def one(each: pb.TokenLogprob, top: tuple[Token, ...] = ()) -> Token:
        return Token(each.id, each.piece, each.logprob if each.HasField('logprob') else None, top)

    return one(token.token, tuple(one(each) for each in token.top))


def _score_text(text: Text) -> pb.ScoreText:
    if isinstance(text, str):
        return pb.ScoreText(text=text)
    return pb.ScoreText(tokens=pb.TokenIds(ids=text))


def _prompt(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {'text': prompt}
    values = list(prompt)
    if values and not isinstance(values[0], int):
        messages = [pb.ChatMessage(role=role, content=content) for role, content in values]
        return {'chat': pb.Chat(messages=messages)}
    return {'tokens': pb.TokenIds(ids=values)}


def _generate_request(prompt: Prompt, options: Mapping[str, Any]) -> pb.GenerateRequest:
    sampling = {name: value for name, value in options.items() if name in _SAMPLING_FIELDS}
    rest = {name: value for name, value in options.items() if name not in _SAMPLING_FIELDS}
    for name in rest:
        if name not in _REQUEST_FIELDS:
            known = ', '.join(sorted(_SAMPLING_FIELDS | _REQUEST_FIELDS))
            raise TypeError(f'generate() has no option {name!r}; it has {known}')
    return pb.GenerateRequest(sampling=pb.Sampling(**sampling), **_prompt(prompt), **rest)


class Stream:
    """An answer as it comes: iterate over its deltas. Leaving a `with` block cancels it."""

    def __init__(self, call: Any):
        self._call = call
        self.started: Optional[pb.Started] = None  # after the first delta
        self.finished: Optional[pb.Finished] = None  # after the last
        self.prompt_tokens: list[Token] = []  # with prompt_logprobs

    def __iter__(self) -> Iterator[Delta]:
        try:
            for reply in self._call:
                event = reply.WhichOneof('event')
                if event == 'started':
                    self.started = reply.started
                elif event == 'prompt_logprobs':
                    self.prompt_tokens.extend(map(_token, reply.prompt_logprobs.tokens))
                elif event == 'delta':
                    yield self._delta(reply.delta)
                elif event == 'finished':
                    self.finished = reply.finished
        except grpc.RpcError as error:
            raise _error(error) from None

    @staticmethod
    def _delta(delta: pb.Delta) -> Delta:
        reason = pb.FinishReason.Name(delta.finish_reason).replace('FINISH_REASON_', '')
        return Delta(delta.choice, delta.text, tuple(map(_token, delta.tokens)),
                     reason if delta.finish_reason else None, delta.stop_string)

    def cancel(self) -> None:
        """Ends the call; the server gives its pages back one step later."""
        self._call.cancel()

    def __enter__(self) -> 'Stream':
        return self

    def __exit__(self, *unused: object) -> None:
        self.cancel()


class Client:
    """A connection to a server. Safe to share between threads.

    Errors of every method: LssarError with the server's status code and sentence.
    """

    def __init__(self, server: str = '127.0.0.1:50051', *, timeout_s: Optional[float] = None,
                 api_key: Optional[str] = None, tls: Optional[Tls] = None):
        """`timeout_s` is each call's deadline, None for no deadline. `api_key`: where the server
        has keys. `tls`: None for a plain connection, Tls() for the system's roots."""
        options = [
            ('grpc.max_receive_message_length', MAX_MESSAGE_BYTES),
            ('grpc.max_send_message_length', MAX_MESSAGE_BYTES),
            ('grpc.enable_http_proxy', 0),
        ]
        self._call_options = {
            'timeout': timeout_s,
            'metadata': (('authorization', f'Bearer {api_key}'),) if api_key else (),
        }
        self._channel = (grpc.insecure_channel(server, options) if tls is None else
                         grpc.secure_channel(server, tls.credentials(), options))
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    def __enter__(self) -> 'Client':
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Generates. Options are the fields of GenerateRequest and Sampling: max_tokens,
        temperature, top_p, seed, stop_strings, n, logprobs, ..."""
        request = _generate_request(prompt, options)
        return Stream(self._stub.Generate(request, **self._call_options))

    def generate(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """The text of one choice, piece by piece. Options as for stream(), without n."""
        if 'n' in options:
            raise TypeError('generate() yields one text; use complete() or stream() for n of them')
        with self.stream(prompt, **options) as stream:
            for delta in stream:
                if delta.text:
                    yield delta.text

    def complete(self, prompt: Prompt, **options: Any) -> list[Generation]:
        """All choices, once they are there."""
        generations = [Generation() for _ in range(options.get('n') or 1)]
        with self.stream(prompt, **options) as stream:
            for delta in stream:
                generation = generations[delta.choice]
                generation.text += delta.text
                generation.tokens.extend(delta.tokens)
                if delta.finish_reason:
                    generation.finish_reason = delta.finish_reason
                    generation.stop_string = delta.stop_string
        return generations

    def score(self, context: Text, continuations: Sequence[Text], *, per_token: bool = False,
              top_logprobs: int = 0, **options: Any) -> list[Continuation]:
        """Log-probability of each continuation after the context, which is computed once. Options
        are the other fields of ScoreRequest: priority, use_prefix_cache, cache_salt."""
        item = pb.ScoreItem(context=_score_text(context),
                            continuations=[_score_text(text) for text in continuations])
        return self.score_items([item], per_token=per_token, top_logprobs=top_logprobs,
                                **options)[0]

    def score_items(self, items: Sequence[pb.ScoreItem], *, per_token: bool = False,
                    top_logprobs: int = 0, **options: Any) -> list[list[Continuation]]:
        """Many items in one call: [item][continuation]. Options as for score()."""
        request = pb.ScoreRequest(items=items, per_token=per_token, top_logprobs=top_logprobs,
                                  **options)
        tokens: dict[tuple[int, int], list[Token]] = {}
        scores: dict[tuple[int, int], Continuation] = {}
        try:
            for reply in self._stub.Score(request, **self._call_options):
                if reply.HasField('tokens'):
                    key = reply.tokens.item, reply.tokens.continuation
                    tokens.setdefault(key, []).extend(map(_token, reply.tokens.tokens))
                elif reply.HasField('score'):
                    score = reply.score
                    key = score.item, score.continuation
                    scores[key] = Continuation(score.logprob, score.num_tokens, score.num_bytes,
                                               score.is_greedy, tuple(tokens.pop(key, ())))
        except grpc.RpcError as error:
            raise _error(error) from None
        return [[scores[i, j] for j in range(len(item.continuations))]
                for i, item in enumerate(items)]

    def attention(self, prompt: Prompt, *, layers: Sequence[int] = (), heads: Sequence[int] = (),
                  rows: Sequence[int] = (), top_k: int = 0, **options: Any) -> Attention:
        """What each head looks at: all heads of all layers, and the last row, unless told; negative
        rows count from the end. `top_k`: the largest weights of each row, 0 for all that are not
        zero. Options as for score()."""
        request = pb.CaptureAttentionRequest(layers=layers, heads=heads, rows=rows, top_k=top_k,
                                             **_prompt(prompt), **options)
        attention = Attention()
        try:
            for reply in self._stub.CaptureAttention(request, **self._call_options):
                attention.tokens.extend(Token(token.id, token.piece)
                                        for token in reply.prompt.tokens)
                attention.rows.extend(
                    RowAttention(row.layer, row.head, row.row, row.num_nonzero, row.entropy,
                                 row.dropped_mass, tuple(row.keys), tuple(row.weights))
                    for row in reply.weights.rows)
        except grpc.RpcError as error:
            raise _error(error) from None
        return attention

    def tokenize(self, text: str, *, add_bos: Optional[bool] = None) -> list[int]:
        """Token ids; with BOS as the checkpoint does for prompts, unless told."""
        request = pb.TokenizeRequest(text=text, add_bos=add_bos)
        return list(self._unary(self._stub.Tokenize, request).ids)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text; bytes that are not UTF-8 become U+FFFD."""
        return self._unary(self._stub.Detokenize, pb.DetokenizeRequest(ids=ids)).text

    def get_info(self) -> ServerFacts:
        """Model, limits and load of the server."""
        return self._unary(self._stub.GetInfo, pb.GetInfoRequest())

    def _unary(self, call: Any, request: Any) -> Any:
        try:
            return call(request, **self._call_options)
        except grpc.RpcError as error:
            raise _error(error) from None
