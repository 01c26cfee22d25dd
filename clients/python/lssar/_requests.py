"""Builds requests from arguments, and results from replies. No I/O."""

from __future__ import annotations

import dataclasses
import json
import operator
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

import grpc
from google.protobuf.message import Message as ProtoMessage

from lssar.v1 import inference_pb2 as pb
from lssar import types

SAMPLING_OPTIONS = frozenset(types.SamplingOptions.__optional_keys__)
CALL_OPTIONS = frozenset(types.CallOptions.__optional_keys__)
ID_OPTIONS = frozenset({'allowed_token_ids', 'banned_token_ids', 'stop_token_ids',
                        'logprob_token_ids'})
LIST_OPTIONS = frozenset({'bad_words', 'stop_strings', 'choice', 'layers', 'heads', 'rows',
                          'positions'})
TEXT_LISTS = frozenset({'bad_words', 'stop_strings', 'choice'})
# Lists that choose. In a request, an empty one is one that is not there: it would choose all, or
# the default.
CHOOSING = frozenset({'allowed_token_ids', 'choice', 'layers', 'heads', 'rows', 'positions'})
STRINGS = (str, bytes, bytearray, memoryview)
INT32 = range(-1 << 31, 1 << 31)
CONSTRAINTS = ('json_object', 'json_schema', 'json_schema_or_text', 'regex', 'grammar', 'choice')

Dataclass = TypeVar('Dataclass')


def token_ids(ids: object, name: str) -> list[int]:
    """A list of integers. Errors: TypeError with `name`, where it is something else; ValueError
    where one of them has more than 32 bits."""
    if hasattr(ids, 'tolist') and not isinstance(ids, STRINGS):
        ids = ids.tolist()
    if isinstance(ids, STRINGS) or not isinstance(ids, Iterable):
        raise TypeError(f'{name} must be a list or one-dimensional array of token ids, '
                        f'not {ids!r}')
    values = []
    for i, value in enumerate(ids):
        try:
            if isinstance(value, bool):
                raise TypeError
            values.append(operator.index(value))
        except TypeError:
            raise TypeError(f'{name}[{i}] must be an integer, not {value!r}') from None
    if values and (min(values) not in INT32 or max(values) not in INT32):
        i = next(i for i, value in enumerate(values) if value not in INT32)
        raise ValueError(f'{name}[{i}] is {values[i]}; must be in [{INT32[0]}, {INT32[-1]}]')
    return values


def is_id(value: object) -> bool:
    """True for one integer: an array of one also has __index__."""
    return hasattr(value, '__index__') and not hasattr(value, '__len__')


def checked_text(text: object, name: str) -> str:
    """Returns `text`. Errors: TypeError, ValueError with `name`."""
    if not isinstance(text, str):
        raise TypeError(f'{name} must be a text, not {text!r}')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f'{name} has {text[error.start]!r} at {error.start}, a lone surrogate: '
                         'it has no UTF-8') from None
    return text


def text_or_tokens(text: types.Text, name: str) -> pb.TextOrTokens:
    """A context or a continuation."""
    if isinstance(text, str):
        return pb.TextOrTokens(text=checked_text(text, name))
    return pb.TextOrTokens(tokens=pb.TokenIds(ids=token_ids(text, name)))


def _content(content: object, name: str) -> str:
    if isinstance(content, str):
        return checked_text(content, name)
    if isinstance(content, Sequence) and not isinstance(content, STRINGS):
        parts = [part.get('text') if isinstance(part, Mapping) and part.get('type') == 'text' else
                 None for part in content]
        if all(isinstance(part, str) for part in parts):
            return checked_text(''.join(map(str, parts)), name)
    raise TypeError(f"{name} must be a text or a list of {{'type': 'text', 'text': ...}} parts, "
                    f'not {content!r}')


def _chat_message(message: object, name: str) -> pb.ChatMessage:
    if isinstance(message, Mapping):
        unknown = sorted(str(key) for key in message.keys() - {'role', 'content', 'name'})
        if unknown:
            raise TypeError(f'{name} has the key {unknown[0]!r}; a message has role and content')
        if 'role' not in message or 'content' not in message:
            raise TypeError(f'{name} must have role and content: {dict(message)!r}')
        role, content = message['role'], message['content']
    elif isinstance(message, tuple) and len(message) == 2:
        role, content = message
    else:
        raise TypeError(f"{name} must be (role, content) or {{'role': ..., 'content': ...}}, "
                        f'not {message!r}')
    return pb.ChatMessage(role=checked_text(role, f'the role of {name}'),
                          content=_content(content, f'the content of {name}'))


Options = TypeVar('Options', types.GenerateOptions, types.ScoreOptions, types.EmbedOptions,
                  types.AttentionOptions)
Request = TypeVar('Request', pb.GenerateRequest, pb.CaptureAttentionRequest)


def _set_prompt(request: Request, prompt: types.Prompt) -> Request:
    if isinstance(prompt, str):
        request.text = checked_text(prompt, 'prompt')
        return request
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], (tuple, Mapping)):
        request.chat.messages.extend(
            _chat_message(message, f'prompt[{i}]') for i, message in enumerate(prompt))
    elif isinstance(prompt, Mapping):
        raise TypeError('a chat is a list of messages: put the message into a list')
    else:
        request.tokens.SetInParent()
        request.tokens.ids.extend(token_ids(prompt, 'prompt'))
    return request


def _steering(vectors: object) -> list[pb.Steering]:
    if isinstance(vectors, (*STRINGS, Mapping)) or not isinstance(vectors, Iterable):
        raise TypeError('steering must be a list of dicts such as {"layer": 3, "vector": [...]}')
    messages = []
    for i, each in enumerate(vectors):
        if not isinstance(each, Mapping):
            raise TypeError(f'steering[{i}] must be a dict, not {each!r}')
        unknown = sorted(str(key) for key in each.keys() - types.Steering.__optional_keys__)
        if unknown or 'layer' not in each or 'vector' not in each:
            raise TypeError(f'steering[{i}] has {sorted(map(str, each))}; it must have layer and '
                            'vector, and may have scale and first_position')
        vector = each['vector']
        if isinstance(vector, STRINGS):
            raise TypeError(f'steering[{i}].vector must be a list of numbers, not {vector!r}')
        numbers = vector.tolist() if hasattr(vector, 'tolist') else vector
        try:
            messages.append(pb.Steering(**{**each, 'vector': numbers}))
        except (TypeError, ValueError) as error:
            raise type(error)(f'steering[{i}]: {error}') from None
    return messages


def _powers(power: Mapping[str, object], place: str) -> dict[str, object]:
    """`power` with flat lists of powers."""
    values = dict(power)
    for name in ('p_by_layer', 'p_by_head'):
        if name not in values:
            continue
        numbers: object = values[name]
        if hasattr(numbers, 'tolist') and not isinstance(numbers, STRINGS):
            numbers = numbers.tolist()
        if not isinstance(numbers, Iterable) or isinstance(numbers, (*STRINGS, Mapping)):
            raise TypeError(f'{place}.{name} must be a list of numbers, not {numbers!r}')
        values[name] = [each for row in numbers
                        for each in (row if isinstance(row, (list, tuple)) else [row])]
        if not values[name]:
            raise ValueError(f'{place}.{name} is empty: leave it out')
    return values


def _attention_override(change: object) -> dict[str, object]:
    place = 'attention_override'
    if not isinstance(change, Mapping):
        raise TypeError(f'{place} must be a dict such as {{"p": 5}}, not {change!r}')
    values = _powers(change, place)
    if 'p_by_length' in values:
        given = values['p_by_length']
        is_list = isinstance(given, Iterable) and not isinstance(given, Mapping)
        items: list[object] = list(cast(Iterable[object], given)) if is_list else [given]
        steps = [each for each in items if isinstance(each, Mapping)]
        if not is_list or len(steps) != len(items):
            raise TypeError(f'{place}.p_by_length must be a list of dicts such as '
                            f'{{"min_keys": 256, "p": 5}}, not {given!r}')
        if not steps:
            raise ValueError(f'{place}.p_by_length is empty: leave it out')
        values['p_by_length'] = [_powers(each, f'{place}.p_by_length[{i}]')
                                 for i, each in enumerate(steps)]
    return values


def settled(options: Options) -> Options:
    """The options of many calls, each of which reads them: with lists in place of iterators."""
    return cast(Options, {name: list(value) if isinstance(value, Iterator) else value
                          for name, value in options.items()})


def _checked_options(method: str, options: Mapping[str, object],
                     known: frozenset[str]) -> dict[str, object]:
    """The options that go into the request: those that are given and not None."""
    values: dict[str, object] = {}
    for name, value in options.items():
        if name not in known:
            raise TypeError(f'{method}() has no option {name!r}; it has '
                            f'{", ".join(sorted(known))}')
        if value is None or name in CALL_OPTIONS:
            continue
        if name in ID_OPTIONS:
            value = token_ids(value, name)
        elif name in LIST_OPTIONS:
            if isinstance(value, STRINGS) or not isinstance(value, Iterable):
                raise TypeError(f'{name} must be a list, not {value!r}: write [{value!r}]')
            value = ([checked_text(text, f'{name}[{i}]') for i, text in enumerate(value)]
                     if name in TEXT_LISTS else token_ids(value, name))
        elif name == 'logit_bias':
            value = _logit_bias(value)
        elif name == 'steering':
            value = _steering(value)
        elif name in ('json_schema', 'json_schema_or_text'):
            value = _json_schema(name, value)
        elif name == 'attention_override':
            value = _attention_override(value)
        if name in CHOOSING and value == []:
            raise ValueError(f'{name} is empty: leave it out, or give None, for the default')
        values[name] = value
    given = [name for name in CONSTRAINTS if name in values and values[name] is not False]
    if len(given) > 1:
        raise TypeError(f'{given[0]} and {given[1]} constrain the same text: give one')
    return {name: value for name, value in values.items() if name not in CONSTRAINTS
            or value is not False}


def _logit_bias(value: object) -> dict[int, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f'logit_bias must be a dict of token id to bias, not {value!r}')
    biases: dict[int, object] = {}
    for key, bias in value.items():
        if isinstance(key, bool) or not is_id(key):
            raise TypeError(f'logit_bias has the key {key!r}; a key is a token id, an integer')
        biases[operator.index(key)] = bias
    return biases


def _json_schema(name: str, value: object) -> str:
    if hasattr(value, 'model_json_schema'):
        value = value.model_json_schema()
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    if not isinstance(value, str):
        raise TypeError(f'{name} must be a text, a dict or a pydantic model, not {value!r}')
    return value


def _fill(request: ProtoMessage, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        try:
            if name == 'attention_override' and isinstance(value, Mapping):
                getattr(request, name).CopyFrom(pb.AttentionOverride(**value))
            elif name == 'choice' and isinstance(value, list):
                getattr(request, name).texts.extend(value)
            elif isinstance(value, dict):
                getattr(request, name).update(value)
            elif isinstance(value, list):
                getattr(request, name).extend(value)
            else:
                setattr(request, name, value)
        except UnicodeError as error:
            raise ValueError(f'{name} is {value!r}: {error}') from None
        except (TypeError, ValueError) as error:
            raise type(error)(f'{name} is {value!r}: {error}') from None


def generate_request(prompt: types.Prompt, options: types.GenerateOptions) -> pb.GenerateRequest:
    """The request of stream() and its relatives."""
    values = _checked_options('generate', options,
                              frozenset(types.GenerateOptions.__optional_keys__))
    request = _set_prompt(pb.GenerateRequest(), prompt)
    _fill(request.sampling, {k: v for k, v in values.items() if k in SAMPLING_OPTIONS})
    _fill(request, {k: v for k, v in values.items() if k not in SAMPLING_OPTIONS})
    return request


def check_call_options(method: str, options: types.CallOptions) -> None:
    """Errors: TypeError for what is no option of every call."""
    _checked_options(method, options, CALL_OPTIONS)


def tokenize_request(text: str, add_bos: bool | None) -> pb.TokenizeRequest:
    request = pb.TokenizeRequest(text=checked_text(text, 'text'))
    if add_bos is not None:
        _fill(request, {'add_bos': add_bos})
    return request


def detokenize_request(ids: types.TokenIds, skip_special_tokens: bool) -> pb.DetokenizeRequest:
    request = pb.DetokenizeRequest(ids=token_ids(ids, 'ids'))
    _fill(request, {'skip_special_tokens': skip_special_tokens})
    return request


def context_and_continuations(item: object, index: int) -> types.ScoreItem:
    """The parts of an item of score_many(). Errors: TypeError with `index`."""
    if isinstance(item, Iterable) and not isinstance(item, (*STRINGS, Mapping)):
        parts = tuple(item)
        if len(parts) == 2:
            return cast(types.ScoreItem, parts)
    raise TypeError(f'items[{index}] must be (context, continuations), not {item!r}')


def score_item(context: types.Text, continuations: Sequence[types.Text]) -> pb.ScoreItem:
    """One item."""
    if isinstance(continuations, STRINGS):
        raise TypeError(f'continuations is the bare string {continuations!r}: give a list of '
                        f'continuations, [{continuations!r}]')
    if not isinstance(continuations, Iterable):
        raise TypeError(f'continuations must be a list, not {continuations!r}')
    item = pb.ScoreItem(context=text_or_tokens(context, 'context'))
    for i, continuation in enumerate(continuations):
        if is_id(continuation):
            raise TypeError(f'continuations[{i}] is {continuation!r}: each continuation is a text '
                            'or a list of token ids, so ids need a list of lists')
        item.continuations.append(text_or_tokens(continuation, f'continuations[{i}]'))
    if not item.continuations:
        raise ValueError('continuations is empty: give one or more')
    return item


def has_no_context(item: pb.ScoreItem) -> bool:
    """True for a context without tokens of its own."""
    return not item.context.text and not item.context.tokens.ids


def score_request(items: Iterable[pb.ScoreItem], options: types.ScoreOptions) -> pb.ScoreRequest:
    """A request for `items`."""
    request = pb.ScoreRequest(items=items)
    _fill(request, _checked_options('score', options,
                                    frozenset(types.ScoreOptions.__optional_keys__)))
    return request


def distributions_request(item: pb.ScoreItem, options: types.SchedulingOptions) -> pb.ScoreRequest:
    """A request for the distributions of `item`, which has one continuation."""
    request = pb.ScoreRequest(items=[item], full_distribution=True)
    _fill(request, _checked_options('distributions', options,
                                    frozenset(types.SchedulingOptions.__optional_keys__)))
    return request


POOLINGS = {'last': pb.POOLING_LAST, 'mean': pb.POOLING_MEAN, 'token': pb.POOLING_TOKEN}


def embed_request(inputs: Iterable[pb.TextOrTokens],
                  options: types.EmbedOptions) -> pb.EmbedRequest:
    """A request for `inputs`."""
    values = _checked_options('embed', options, frozenset(types.EmbedOptions.__optional_keys__))
    pooling = values.get('pooling')
    if pooling is not None:
        if pooling not in POOLINGS:
            raise ValueError(f'pooling is {pooling!r}; it must be one of {list(POOLINGS)}')
        values['pooling'] = POOLINGS[str(pooling)]
    request = pb.EmbedRequest(inputs=inputs)
    _fill(request, values)
    return request


def attention_request(prompt: types.Prompt, options: types.AttentionOptions,
                      info: types.ServerInfo | None) -> pb.CaptureAttentionRequest:
    """`info` is needed where needs_info(options)."""
    request = _set_prompt(pb.CaptureAttentionRequest(), prompt)
    values = _checked_options('attention', options,
                              frozenset(types.AttentionOptions.__optional_keys__))
    if info is not None:
        for name, count in ('layers', info.num_hidden_layers), ('heads', info.num_attention_heads):
            if name in values:
                values[name] = [_positive(index, count, name)
                                for index in token_ids(values[name], name)]
    _fill(request, values)
    return request


def _positive(index: int, count: int, name: str) -> int:
    if index < -count:
        raise IndexError(f'{name} has {index}; the model has {count}, so the least is {-count}')
    return index + count if index < 0 else index


def needs_info(options: types.AttentionOptions) -> bool:
    """True where layers or heads count from the end."""
    given = ('layers', options.get('layers')), ('heads', options.get('heads'))
    return any(index < 0 for name, indices in given if indices is not None
               for index in token_ids(indices, name))


def prefix_id(info: types.ServerInfo) -> int | None:
    """The token that an empty context is replaced by: EOS where the model has no BOS."""
    return info.eos_id if info.bos_id is None else None


def _values(kind: type[Dataclass], message: ProtoMessage) -> dict[str, object]:
    present = {field.name for field, _ in message.ListFields()}
    values: dict[str, object] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        is_optional = 'None' in str(field.type)
        values[field.name] = (None if is_optional and field.name not in present
                              and not message.HasField(field.name) else
                              getattr(message, field.name))
    return values


def plain(kind: type[Dataclass], message: ProtoMessage, **more: object) -> Dataclass:
    """A dataclass from the message's fields of the same names; `more` replaces some."""
    return kind(**{**_values(kind, message), **more})


def server_info(reply: pb.GetInfoReply) -> types.ServerInfo:
    """GetInfo's reply."""
    return plain(types.ServerInfo, reply, limits=plain(types.Limits, reply.limits))


def server_stats(reply: pb.GetStatsReply) -> types.ServerStats:
    """GetStats' reply."""
    return plain(types.ServerStats, reply, num_finished=dict(reply.num_finished),
                 num_failed=dict(reply.num_failed), stages=plain(types.StageTimes, reply.stages),
                 sampled_attention=tuple(map(_head_statistics, reply.sampled_attention)))


def _head_statistics(head: pb.HeadStatistics) -> types.HeadStatistics:
    return plain(types.HeadStatistics, head, distance_mass=tuple(head.distance_mass))


def _one_token(token: pb.TokenLogprob, top: tuple[types.Token, ...] = ()) -> types.Token:
    logprob = token.logprob if token.HasField('logprob') else None
    return types.Token(token.id, token.piece, logprob, top)


def to_token(token: pb.Token) -> types.Token:
    """A token with the best ones at its position."""
    return _one_token(token.token, tuple(map(_one_token, token.top)))


def to_delta(delta: pb.Delta) -> types.Delta:
    """A delta."""
    reason = None
    if delta.finish_reason:
        reason = pb.FinishReason.Name(delta.finish_reason).replace('FINISH_REASON_', '')
    return types.Delta(delta.choice, delta.text, tuple(map(to_token, delta.tokens)), reason,
                       delta.stop_string)


def _receipt(receipt: pb.Receipt) -> types.Receipt:
    sampling = {field.name: value for field, value in receipt.sampling.ListFields()}
    return plain(types.Receipt, receipt, sampling=sampling)


class StreamState:
    """State of a stream other than its deltas. Base of both clients' streams.

    Attributes:
        started: set before the first delta.
        finished: set after the last delta.
        prompt_tokens: the prompt's tokens but the first, with prompt_logprobs.
    """

    def __init__(self) -> None:
        self.started: types.Started | None = None
        self.finished: types.Finished | None = None
        self.prompt_tokens: list[types.Token] = []

    def _take(self, reply: pb.GenerateReply) -> types.Delta | None:
        """Notes the reply. Returns its delta, if it has one."""
        event = reply.WhichOneof('event')
        if event == 'started':
            self.started = plain(types.Started, reply.started)
        elif event == 'prompt_logprobs':
            self.prompt_tokens.extend(map(to_token, reply.prompt_logprobs.tokens))
        elif event == 'delta':
            return to_delta(reply.delta)
        elif event == 'finished':
            self.finished = types.Finished(plain(types.Usage, reply.finished.usage),
                                           plain(types.Timings, reply.finished.timings),
                                           _receipt(reply.finished.receipt))
        return None


def add_delta(generations: list[types.Generation], delta: types.Delta) -> None:
    """Appends `delta` to its choice."""
    generation = generations[delta.choice]
    generation.text += delta.text
    generation.tokens.extend(delta.tokens)
    if delta.finish_reason:
        generation.finish_reason = delta.finish_reason
        generation.stop_string = delta.stop_string


class CheckpointCheck:
    """Checks that one checkpoint answers all calls of a run."""

    def __init__(self) -> None:
        self._hash = ''

    def check(self, checkpoint_hash: str) -> None:
        """Errors: LssarError ABORTED where an earlier call had another checkpoint."""
        if self._hash and checkpoint_hash != self._hash:
            raise types.LssarError(
                'ABORTED', f'the server changed its checkpoint from {self._hash} to '
                f'{checkpoint_hash} during the run: start again')
        self._hash = checkpoint_hash


class EmbedReplies:
    """Collects the replies to one EmbedRequest. `checkpoint`: of the run."""

    def __init__(self, request: pb.EmbedRequest, checkpoint: CheckpointCheck) -> None:
        self._num_inputs = len(request.inputs)
        self._checkpoint = checkpoint
        self.restart()

    def restart(self) -> None:
        """Forgets all replies."""
        self._vectors: list[list[tuple[float, ...]]] = [[] for _ in range(self._num_inputs)]
        self._num_layers = 1
        self._checkpoint_hash = ''

    def add(self, reply: pb.EmbedReply) -> None:
        """Takes one reply."""
        event = reply.WhichOneof('event')
        if event == 'vectors':
            size, values = reply.vectors.size, tuple(reply.vectors.values)
            if reply.vectors.fp16_values:
                num_values = len(reply.vectors.fp16_values) // 2
                values = struct.unpack(f'<{num_values}e', reply.vectors.fp16_values)
            self._num_layers = max(1, reply.vectors.num_layers)
            self._vectors[reply.vectors.input].extend(
                values[first:first + size] for first in range(0, len(values), size))
        elif event == 'finished':
            self._checkpoint_hash = reply.finished.checkpoint_hash

    def results(self) -> list[types.Embedding]:
        """One for each input. Errors: LssarError INTERNAL where one is missing; ABORTED."""
        num_missing = sum(not vectors for vectors in self._vectors)
        if num_missing:
            raise types.LssarError('INTERNAL', f'the server left out {num_missing} inputs')
        self._checkpoint.check(self._checkpoint_hash)
        return [types.Embedding(tuple(vectors), self._num_layers) for vectors in self._vectors]


class ArrayReplies:
    """Hands over arrays of the replies to one request as they come, so that none is kept."""

    def __init__(self) -> None:
        self._num_blocks = 0

    def distributions(self, reply: pb.ScoreReply) -> types.Distributions | None:
        """Those of a reply that has some."""
        if reply.WhichOneof('event') != 'logprobs':
            return None
        import numpy  # pylint: disable=import-outside-toplevel

        self._num_blocks += 1
        values = numpy.array(reply.logprobs.values, numpy.float32)
        return types.Distributions(reply.logprobs.first,
                                   values.reshape(-1, reply.logprobs.size))

    def hidden_states(self, reply: pb.EmbedReply) -> types.HiddenStates | None:
        """Those of a reply that has some."""
        if reply.WhichOneof('event') != 'vectors':
            return None
        import numpy  # pylint: disable=import-outside-toplevel

        self._num_blocks += 1
        vectors = reply.vectors
        # A copy: an array over the reply's bytes could not be written.
        values = (numpy.frombuffer(vectors.fp16_values, '<f2').copy() if vectors.fp16_values else
                  numpy.array(vectors.values, numpy.float32))
        return types.HiddenStates(
            vectors.first, values.reshape(-1, max(1, vectors.num_layers), vectors.size))

    def restart(self) -> None:
        """Errors: LssarError ABORTED where something was handed over."""
        if self._num_blocks:
            raise types.LssarError('ABORTED', 'the stream broke after its first part: start again')


def _status_name(code: int) -> str:
    return next((each.name for each in grpc.StatusCode if each.value[0] == code), 'UNKNOWN')


class ScoreReplies:
    """Collects the replies to one ScoreRequest."""

    def __init__(self, request: pb.ScoreRequest) -> None:
        self._sizes = [len(item.continuations) for item in request.items]
        self._tokens: dict[tuple[int, int], list[types.Token]] = {}
        self._logprobs: dict[tuple[int, int], list[tuple[float, ...]]] = {}
        self._scores: dict[tuple[int, int], types.ContinuationScore] = {}
        self._errors: dict[int, types.LssarError] = {}
        self.checkpoint_hash = ''

    def add(self, reply: pb.ScoreReply) -> None:
        """Takes one reply."""
        event = reply.WhichOneof('event')
        if event == 'tokens':
            key = reply.tokens.item, reply.tokens.continuation
            self._tokens.setdefault(key, []).extend(map(to_token, reply.tokens.tokens))
        elif event == 'logprobs':
            key, size = (reply.logprobs.item, reply.logprobs.continuation), reply.logprobs.size
            values = tuple(reply.logprobs.values)
            self._logprobs.setdefault(key, []).extend(
                values[first:first + size] for first in range(0, len(values), size))
        elif event == 'score':
            key = reply.score.item, reply.score.continuation
            score = reply.score
            self._scores[key] = types.ContinuationScore(
                score.logprob, score.num_tokens, score.num_bytes, score.is_greedy,
                tuple(self._tokens.pop(key, ())), tuple(self._logprobs.pop(key, ())))
        elif event == 'error':
            self._errors[reply.error.item] = types.LssarError(
                _status_name(reply.error.code), reply.error.message)
        elif event == 'finished':
            self.checkpoint_hash = reply.finished.checkpoint_hash

    def results(self) -> Iterator[list[types.ContinuationScore]]:
        """[item][continuation]. Errors: LssarError of the first item that cannot be scored, when
        its turn comes; INTERNAL where a score is missing."""
        num_missing = sum(size for i, size in enumerate(self._sizes) if i not in self._errors)
        num_missing -= len(self._scores)
        if num_missing:
            raise types.LssarError('INTERNAL', f'the server left out {num_missing} scores')
        for i, size in enumerate(self._sizes):
            if i in self._errors:
                raise self._errors[i]
            yield [self._scores[i, j] for j in range(size)]


class AttentionReplies:
    """Collects the replies to one CaptureAttentionRequest in `attention`."""

    def __init__(self) -> None:
        self.attention = types.Attention()

    def add(self, reply: pb.CaptureAttentionReply) -> None:
        """Takes one reply."""
        self.attention.tokens.extend(map(_one_token, reply.prompt.tokens))
        self.attention.statistics.extend(map(_head_statistics, reply.statistics.heads))
        self.attention.rows.extend(
            types.RowAttention(row.layer, row.head, row.row, row.num_nonzero, row.entropy,
                               row.dropped_mass, tuple(row.keys), tuple(row.weights),
                               row.num_zero if row.HasField('num_zero') else None)
            for row in reply.weights.rows)

    def restart(self) -> None:
        """Forgets all replies."""
        self.attention = types.Attention()
