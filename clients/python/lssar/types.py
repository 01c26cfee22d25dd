"""Arguments, options and results. Plain Python values: no generated class appears here."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, cast

if TYPE_CHECKING:
    import numpy
    import numpy.typing


class IntArray(Protocol):
    """A one-dimensional array of integers: a numpy array or a torch tensor."""

    def tolist(self) -> object:
        """The values as a list of Python integers."""


TokenIds = Sequence[int] | IntArray
"""Token ids, each in [0, vocab_size)."""

Text = str | TokenIds
"""A text, or its token ids."""

Message = tuple[str, str] | Mapping[str, object]
"""One message of a chat: (role, content), or {'role': role, 'content': content} in OpenAI's form.
The content of a dict may also be a list of {'type': 'text', 'text': text} parts."""

Chat = Sequence[Message]
"""Messages, oldest first. The server renders them with the checkpoint's chat template."""

Prompt = str | TokenIds | Chat
"""A text, token ids or a chat."""

ScoreItem = tuple[Text, Sequence[Text]]
"""(context, continuations): one or more continuations of the same context."""


class HasJsonSchema(Protocol):
    """A pydantic model's class."""

    def model_json_schema(self) -> dict[str, object]:
        """Its JSON Schema."""


JsonSchema = str | Mapping[str, object] | HasJsonSchema
"""A JSON Schema: its text, a dict, or a pydantic model's class."""


class CallOptions(TypedDict, total=False):
    """Options of every method."""

    timeout_s: float  # deadline of this call, retries included; default: the client's timeout_s


class AttentionPower(TypedDict, total=False):
    """The power of the re-weighting: at most one of p, p_by_layer and p_by_head."""

    p: float  # (0, 1000]
    p_by_layer: Sequence[float]  # num_hidden_layers numbers
    p_by_head: Sequence[float] | Sequence[Sequence[float]]  # of every layer, or a row for each


class AttentionPowerStep(AttentionPower, total=False):
    """Another power for tokens that attend to at least min_keys keys, their own included."""

    min_keys: int  # >= 2; required


class AttentionOverride(AttentionPower, total=False):
    """Another attention than the checkpoint's, with the names of config.json. No power: the
    checkpoint's."""

    kind: str  # of every layer: 'lssar', 'lssa', 'softmax', ...; default: each layer's own
    phi: str  # of kind 'phi'
    p_by_length: Sequence[AttentionPowerStep]  # min_keys rises; at most 64


class Steering(TypedDict, total=False):
    """A vector that is added to the residual stream of each token from a position on."""

    layer: int  # 0: the embedding; k: behind block k; required
    vector: Sequence[float]  # hidden_size numbers, also a numpy array; required
    scale: float  # default 1
    first_position: int  # of the sequence, output included; default 0


class SchedulingOptions(CallOptions, total=False):
    """How a request is scheduled among others, and what must answer it."""

    priority: int  # [-10, 10]; higher runs first; default 0
    use_prefix_cache: bool  # read and fill the prefix cache; same bits either way; default True
    cache_salt: str  # requests share cached pages only if their salts are equal; <= 128 bytes
    attention_override: AttentionOverride  # needs lssar-server --allow-attention-override
    checkpoint_hash: str  # FAILED_PRECONDITION if another checkpoint serves; default: any
    steering: Sequence[Steering]  # needs lssar-server --allow-steering


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen. An option that is left out takes the server's default."""

    temperature: float  # [0, 100]; 0 is greedy; default 1
    top_k: int  # [0, vocab_size]; 0 is off; default 0
    top_p: float  # [0, 1]; default 1
    min_p: float  # [0, 1]: least probability relative to the best token's; default 0
    repetition_penalty: float  # (0, 10], over prompt and output; default 1
    presence_penalty: float  # [-2, 2], once for each id in the output; default 0
    frequency_penalty: float  # [-2, 2], for each occurrence in the output; default 0
    logit_bias: Mapping[int, float]  # id -> bias in [-100, 100]; at most 1024 entries
    allowed_token_ids: TokenIds  # only these are sampled; default: all
    banned_token_ids: TokenIds  # never sampled
    bad_words: Sequence[str]  # their tokens are never sampled in a row; at most 1024
    seed: int  # [0, 2^64); default: chosen by the server, returned in Started


class GenerateOptions(SamplingOptions, SchedulingOptions, total=False):
    """Options of generate(), complete(), complete_many() and stream()."""

    max_tokens: int  # new tokens of each choice; default 256, or what is left of the context
    min_tokens: int  # tokens before which nothing ends the text; default 0
    ignore_eos: bool  # continue after EOS; default False
    stop_strings: Sequence[str]  # at most 16; the text ends before the first match
    stop_token_ids: TokenIds  # at most 64; the text ends before the token
    include_stop_str_in_output: bool  # the text includes what ended it; default False
    skip_special_tokens: bool  # False: the text has the names of special tokens; default True
    n: int  # independent choices of the same prompt, [1, --max-n of the server]; default 1
    logprobs: int  # 0: log-probability of each output token; N <= 20: also the N best ones
    prompt_logprobs: int  # the same for the prompt's tokens, all but the first
    echo: bool  # begin each text with the prompt's; default False
    stream_interval: int  # engine steps whose tokens make one delta, [1, 1024]; default 1
    speculative_tokens: int  # most draft tokens in a step, [0, 64]; same bits; default 64
    json_object: bool  # the text is a JSON object; of these six options at most one
    json_schema: JsonSchema  # the text is JSON that fits it
    json_schema_or_text: JsonSchema  # it is, or its first character behind white space is not {
    regex: str  # the whole text matches it
    grammar: str  # the text fits this grammar in GBNF's notation; its first rule is `root`
    choice: Sequence[str]  # the text is one of these; at most 1024


# vLLM's names of options that are called differently in lssar's API.
RENAMED = {'stop': 'stop_strings'}


@dataclasses.dataclass
class SamplingParams:
    """How texts are generated. None: the server's default, that of GenerateOptions.

    The same request with the same seed gives the same text, whatever else runs.
    """

    n: int | None = None
    temperature: float | None = None  # 0 is greedy; default 1
    top_p: float | None = None
    top_k: int | None = None  # 0 and -1: off
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: TokenIds | None = None
    banned_token_ids: TokenIds | None = None
    bad_words: Sequence[str] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    json_object: bool | None = None
    json_schema: JsonSchema | None = None
    json_schema_or_text: JsonSchema | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None

    def options(self) -> GenerateOptions:
        """The fields that are set, by the names of GenerateOptions."""
        options: dict[str, object] = {RENAMED.get(field.name, field.name): getattr(self, field.name)
                   for field in dataclasses.fields(self)
                   if getattr(self, field.name) is not None}
        if isinstance(self.stop, str):
            options['stop_strings'] = [self.stop]
        if self.top_k == -1:
            options['top_k'] = 0
        return cast(GenerateOptions, options)


class ScoreOptions(SchedulingOptions, total=False):
    """Options of score() and score_many()."""

    per_token: bool  # also return each token with its log-probability; default False
    top_logprobs: int  # with per_token: the N best tokens at each position, [0, 20]; default 0
    logprob_token_ids: TokenIds  # at each position also the log-probabilities of these, <= 1024


class EmbedOptions(SchedulingOptions, total=False):
    """Options of embed() and embed_many()."""

    pooling: Literal['last', 'mean', 'token']  # last token's vector, mean, or all; default last
    apply_head: bool  # outputs of the checkpoint's regression head; default False: hidden states
    normalize: bool  # scale each vector to L2 norm 1, after pooling and head; default False
    layers: TokenIds  # 0: the embedding; k: behind block k; -1: the final norm; default [-1]
    positions: TokenIds  # with 'mean' and 'token': only of these tokens, ascending; default all
    dtype: Literal['fp32', 'fp16']  # of the numbers on their way; default fp32


class AttentionOptions(SchedulingOptions, total=False):
    """Options of attention(). Negative indices count from the end, as in a Python list."""

    layers: TokenIds  # default: all
    heads: TokenIds  # default: all
    rows: TokenIds  # positions of query tokens in the prompt; default: the last one
    top_k: int  # largest weights of each row; 0: all that are not zero; default 0
    statistics: bool  # of each head over the rows, in place of their weights; default False


@dataclasses.dataclass(frozen=True)
class Token:
    """A token."""

    id: int
    piece: bytes  # its bytes in running text; may be a part of a UTF-8 character
    logprob: float | None = None  # nats; None where it was not asked for
    top: tuple[Token, ...] = ()  # the best tokens at this position, best first


@dataclasses.dataclass(frozen=True)
class Delta:
    """New text and tokens of one choice."""

    choice: int
    text: str  # whole UTF-8 characters; may be empty
    tokens: tuple[Token, ...]
    # EOS, STOP_STRING, STOP_TOKEN, LENGTH, CANCELLED; of a constraint: COMPLETE, DEAD_END
    finish_reason: str | None = None
    stop_string: str = ''  # the match, for STOP_STRING


@dataclasses.dataclass
class Generation:
    """A finished choice."""

    text: str = ''
    tokens: list[Token] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_string: str = ''


@dataclasses.dataclass(frozen=True)
class Started:
    """First message of a stream, sent on admission."""

    request_id: str
    checkpoint_hash: str
    num_prompt_tokens: int
    num_cached_tokens: int  # prompt tokens that came from the prefix cache
    seed: int
    attention: str = ''  # the function that answers: 'lssar p=15'


@dataclasses.dataclass(frozen=True)
class Usage:
    """Tokens and work of a request."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int  # over all choices
    num_value_rows: int  # V rows that attention could have read
    num_value_rows_read: int  # V rows whose weight was not zero
    num_preemptions: int
    num_draft_tokens: int = 0  # speculative decoding: computed to be verified
    num_accepted_tokens: int = 0  # of these, tokens that became output


@dataclasses.dataclass(frozen=True)
class Timings:
    """Microseconds."""

    queue_us: int
    prefill_us: int
    decode_us: int


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What computed a reply: the same request on a server with the same receipt gives the same
    bits, unless ServerInfo.bits_depend_on_batch."""

    checkpoint_hash: str
    tokenizer_hash: str
    config_hash: str
    version: str
    backend: str
    dtype: str
    kv_cache_dtype: str
    attention: str  # 'lssar p=15'
    steering: str = ''  # 'layer 3 from position 10: 1.5 x 0f3a61c27be09d44'
    max_tokens: int = 0  # generate: that was given, or its default
    sampling: SamplingOptions = dataclasses.field(  # generate: what was used; no lists
        default_factory=lambda: SamplingOptions())


@dataclasses.dataclass(frozen=True)
class Finished:
    """Last message of a stream."""

    usage: Usage
    timings: Timings
    receipt: Receipt | None = None


@dataclasses.dataclass(frozen=True)
class ContinuationScore:
    """The score of one continuation."""

    logprob: float  # sum over its tokens, nats
    num_tokens: int
    num_bytes: int  # UTF-8 bytes of its pieces
    is_greedy: bool  # every token was the most probable one at its position
    tokens: tuple[Token, ...] = ()  # with per_token
    # With logprob_token_ids: their log-probabilities at the place of each token.
    token_id_logprobs: tuple[tuple[float, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class Embedding:
    """The vectors of one input."""

    # For one token, or for each with pooling='token': a vector for each layer of the request.
    vectors: tuple[tuple[float, ...], ...]
    num_layers: int = 1  # vectors of a token, which are side by side

    @property
    def vector(self) -> tuple[float, ...]:
        """the only vector; ValueError where there are several"""
        if len(self.vectors) != 1:
            raise ValueError(f'the input has {len(self.vectors)} vectors: use .vectors')
        return self.vectors[0]


@dataclasses.dataclass(frozen=True)
class HiddenStates:
    """Hidden states of consecutive tokens, as they come."""

    first: int  # position of the first token; with positions: the index of its position
    values: numpy.typing.NDArray[numpy.float16 | numpy.float32]  # [tokens, layers, hidden_size]


@dataclasses.dataclass(frozen=True)
class Distributions:
    """Distributions over the vocabulary at consecutive tokens of a continuation, as they come."""

    first: int  # index of the first token in the continuation
    logprobs: numpy.typing.NDArray[numpy.float32]  # [tokens, vocab_size], nats


@dataclasses.dataclass(frozen=True)
class RowAttention:
    """Attention weights of one query token in one head, after re-weighting."""

    layer: int
    head: int
    row: int  # position of the query token; it has row + 1 keys
    num_nonzero: int  # weights of at least 2^-32 of the row's largest; the rest is taken as zero
    entropy: float  # nats, over all weights; exp(entropy) is the effective number of keys
    dropped_mass: float  # sum of the weights that top_k left out
    keys: tuple[int, ...]  # positions, rising
    weights: tuple[float, ...]
    num_zero: int | None  # weights that are exactly zero by the formula; None: an older server


@dataclasses.dataclass(frozen=True)
class HeadStatistics:
    """Sums over rows of one head. Masses are shares of a row's sum of absolute weights."""

    layer: int
    head: int
    num_rows: int
    num_keys: int
    num_nonzero: int  # keys whose weight is used, as in RowAttention
    effective_keys: float  # exp(entropy) of each row
    first_token_mass: float
    distance_mass: tuple[float, ...]  # [0]: the row's own token; [i]: distances [2^(i-1), 2^i)
    num_zero: int | None  # keys whose weight is exactly zero, as in RowAttention


@dataclasses.dataclass
class Attention:
    """Result of attention()."""

    tokens: list[Token] = dataclasses.field(default_factory=list)  # up to the last row's
    rows: list[RowAttention] = dataclasses.field(default_factory=list)  # by row, layer, head
    statistics: list[HeadStatistics] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of the server."""

    max_num_seqs: int
    max_queued_requests: int
    max_queued_tokens: int
    max_num_batched_tokens: int
    max_message_bytes: int
    max_choices: int
    max_logprobs: int
    max_stop_strings: int


@dataclasses.dataclass(frozen=True)
class ServerInfo:
    """Model, configuration and present load of a server. Lengths are tokens."""

    model_name: str
    checkpoint_hash: str  # of config and weights
    tokenizer_hash: str
    attention_kind: str
    attention_p: float
    max_position_embeddings: int
    max_model_len: int  # prompt and output of one request together
    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    num_head_outputs: int  # of the regression head; 0: the checkpoint has none
    num_parameters: int
    dtype: str
    kv_cache_dtype: str
    page_size: int
    num_pages: int
    num_free_pages: int
    num_running: int
    num_waiting: int
    backend: str
    device: str
    version: str
    has_chat_template: bool
    bits_depend_on_batch: bool
    bos_id: int | None
    eos_id: int | None
    self_check_error: float | None
    limits: Limits
    attention_override_allowed: bool = False  # requests may have an attention_override
    config_hash: str = ''
    http_address: str = ''  # where the HTTP port listens, HOST:PORT; empty: there is none
    self_check_failure: str = ''  # why it failed, where it is served nevertheless
    steering_allowed: bool = False  # requests may have steering


@dataclasses.dataclass(frozen=True)
class StageTimes:
    """Nanoseconds of the engine's thread in each stage of its steps."""

    admit_ns: int
    schedule_ns: int
    forward_ns: int
    sample_ns: int
    output_ns: int
    idle_ns: int


@dataclasses.dataclass(frozen=True)
class ServerStats:
    """Present load, and counts since the server started."""

    uptime_ns: int
    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_pages: int
    num_free_pages: int
    num_cached_pages: int
    num_steps: int
    num_batched_tokens: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    num_prefix_cache_queries: int
    num_prefix_cache_hits: int
    num_value_rows: int
    num_value_rows_read: int
    num_finished: Mapping[str, int]  # requests by finish reason
    num_failed: Mapping[str, int]  # requests by status code
    stages: StageTimes
    sampled_attention: tuple[HeadStatistics, ...] = ()  # --attention-sample-interval
    num_draft_tokens: int = 0  # speculative decoding: computed to be verified
    num_accepted_tokens: int = 0  # of these, tokens that became output


@dataclasses.dataclass(frozen=True)
class Tls:
    """PEM files of a TLS connection. `cert` and `key` go together."""

    ca: str | None = None  # roots that the server's certificate is checked against; None: system's
    cert: str | None = None  # the client's certificate, where the server asks for one
    key: str | None = None  # its private key


@dataclasses.dataclass(frozen=True)
class Retry:
    """When a failed call is repeated.

    Calls that have received nothing are repeated for two status codes: RESOURCE_EXHAUSTED with a
    RetryInfo (the queue is full; the wait is at least the one that the server names) and
    UNAVAILABLE (no connection, loading, draining). Waits without a RetryInfo are drawn from
    [0, backoff], where backoff starts at `initial_s`, doubles and ends at `max_s`. A wait that
    would pass the call's deadline is not begun.

    With `resume`, a stream that breaks with UNAVAILABLE (the server was killed) goes on where it
    ended, on the same server or on another one with the same checkpoint. Texts and scores are the
    same bits as without the break. `max_attempts` counts the attempts that bring nothing new.
    """

    max_attempts: int = 5  # calls in all; 1: never retry
    initial_s: float = 0.2  # backoff after the first attempt
    max_s: float = 10.0  # longest backoff
    max_retry_info_s: float = 60.0  # where the server asks for a longer wait, the call fails
    resume: bool = True  # go on with a stream that broke; False: it fails

    def __post_init__(self) -> None:
        for name, least in (('max_attempts', 1), ('initial_s', 0), ('max_s', 0),
                            ('max_retry_info_s', 0)):
            value: float = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise TypeError(f'Retry: {name} must be a number, not {value!r}')
            if not value >= least:
                raise ValueError(f'Retry: {name} is {value}; must be at least {least}')


class LssarError(Exception):
    """A call that failed. str() is the server's sentence.

    Attributes:
        code: name of the gRPC status code, such as 'INVALID_ARGUMENT'.
        retry_delay_s: the wait that the server asks for before another attempt, or None.
    """

    def __init__(self, code: str, message: str, retry_delay_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_delay_s = retry_delay_s

    def __reduce__(self) -> tuple[type['LssarError'], tuple[str, str, float | None]]:
        # Exceptions are rebuilt from args, which is the message alone: a pool of processes that
        # cannot rebuild one hangs.
        return type(self), (self.code, str(self), self.retry_delay_s)
