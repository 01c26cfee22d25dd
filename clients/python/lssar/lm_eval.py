"""EleutherAI's lm-evaluation-harness over gRPC: the model `lssar`.

    lssar-lm-eval --model lssar --model_args server=127.0.0.1:50051 --tasks lambada_openai

`lssar-lm-eval` is lm-eval's own program; it only imports this module first. lm-eval (0.4.13) looks
its models up in a registry and imports no plugins, so the plain `lm_eval` cannot know the name. In
Python, import this module and pass model='lssar' to lm_eval.simple_evaluate.

Log-likelihoods are the server's Score, bit for bit: texts are sent as they are and the server
tokenises them. Only texts that may be longer than the model's window are tokenised first and
truncated on the left, as lm-eval's own `hf` model does it. For an empty context the model's BOS is
sent, or its EOS where it has no BOS.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import logging
import os
import typing
from collections.abc import Iterable, Iterator, Mapping

import lm_eval.models  # lm-eval's own: it looks for them only while no model is registered
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from lssar.client import Client
from lssar.types import (AttentionOverride, GenerateOptions, LssarError, Prompt, SamplingOptions,
                         SchedulingOptions, ScoreItem, Text, Tls)

T = typing.TypeVar('T')

log = logging.getLogger(__name__)

MODEL_NAME = 'lssar'  # in lm-eval's registry

# The server's limits for stop strings. Those beyond are looked for in the text.
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
# The most bytes that NFKC, which a tokenizer may apply, makes of one byte.
NORMALIZED_GROWTH = 11

SAMPLING = typing.get_type_hints(SamplingOptions)
FLOAT_OPTIONS = [name for name, kind in SAMPLING.items() if kind is float]
INT_OPTIONS = [name for name, kind in SAMPLING.items() if kind is int] + ['min_tokens']
LENGTH_NAMES = ('max_gen_toks', 'max_new_tokens', 'max_tokens', 'max_completion_tokens')


def most_tokens(text: str) -> int:
    """An upper bound of the text's tokens: one for each byte, BOS and a leading space."""
    return 2 + (len(text) if text.isascii() else NORMALIZED_GROWTH * len(text.encode()))


def stop_list(until: object) -> list[str]:
    """lm-eval's `until`: a string, a list of strings or None."""
    if until is None:
        return []
    if isinstance(until, str):
        until = [until]
    if not isinstance(until, Iterable):
        raise ValueError(f'until must be a text or a list of texts, not {until!r}')
    return [str(text) for text in until if text]


def cut_at(text: str, stops: Iterable[str]) -> str:
    """The text before the first of `stops`."""
    return text[:min((at for at in map(text.find, stops) if at >= 0), default=len(text))]


def _number(name: str, value: object, kind: type[int] | type[float]) -> int | float:
    """A generation argument as a number; 3.0, as JSON and YAML may have it, is the integer 3.

    Errors: ValueError.
    """
    with contextlib.suppress(ValueError):
        return kind(str(value))
    with contextlib.suppress(ValueError):
        if (real := float(str(value))).is_integer():
            return int(real)
    wanted = 'a whole number' if kind is int else 'a number'
    raise ValueError(f'the generation argument {name} is {value!r}; must be {wanted}')


def to_options(kwargs: Mapping[str, object], default_max_tokens: int
               ) -> tuple[GenerateOptions, list[str]]:
    """lm-eval's generation arguments as options, and all stop strings. None: it is not given.

    Errors: ValueError for an argument that would change the result and is not known here, and for
        one that is no number.
    """
    rest = {name: value for name, value in kwargs.items() if value is not None}
    stops = stop_list(rest.pop('until', None))
    sent = [stop for stop in stops if len(stop.encode()) <= MAX_STOP_BYTES][:MAX_STOP_STRINGS]
    lengths = [_number(name, rest.pop(name), int) for name in LENGTH_NAMES if name in rest]
    do_sample = rest.pop('do_sample', None)
    values: dict[str, object] = {
        'max_tokens': lengths[0] if lengths else default_max_tokens,
        'stop_strings': sent,
        'temperature': 0.0 if do_sample in (None, False) else 1.0,
    }
    for names, kind in (FLOAT_OPTIONS, float), (INT_OPTIONS, int):
        values.update({name: _number(name, rest.pop(name), kind)
                       for name in names if name in rest})
    if do_sample is False:
        values['temperature'] = 0.0
    if rest:
        raise ValueError(f'the lssar model does not know the generation arguments {sorted(rest)}')
    options: GenerateOptions = {}
    options.update(values)  # type: ignore[typeddict-item]
    return options, stops


@register_model(MODEL_NAME)
class LssarLM(LM):
    """A model that an lssar server runs."""

    def __init__(self, server: str = '127.0.0.1:50051', *, max_length: int | None = None,
                 max_gen_toks: int = 256, concurrency: int = 16, p: float | None = None,
                 kind: str | None = None, api_key: str | None = None, tls: bool = False,
                 ca: str | None = None, cert: str | None = None, key: str | None = None,
                 timeout_s: float | None = None,
                 batch_size: int | str | None = None, max_batch_size: int | None = None,
                 device: str | None = None) -> None:
        """Connects. These are the names for --model_args.

        Args:
            server: HOST:PORT of the gRPC port.
            max_length: tokens that the model reads in one window, as in lm-eval's `hf` model: a
                window has max_length inputs and predicts as many tokens. Default and most: the
                server's max_model_len - 1.
            max_gen_toks: new tokens where a task does not say.
            concurrency: generations at once. Scoring needs no such number.
            p, kind: another attention than the checkpoint's, as AttentionOverride; the server runs
                with --allow-attention-override.
            api_key: default: the environment variable LSSAR_API_KEY.
            tls, ca, cert, key: as lssar.Tls; any of them turns TLS on.
            timeout_s: deadline of each call.
            batch_size, max_batch_size, device: accepted and not used; the server decides.
        """
        super().__init__()
        has_tls = tls or ca is not None or cert is not None or key is not None
        self._client = Client(str(server), api_key=api_key or os.environ.get('LSSAR_API_KEY'),
                              tls=Tls(ca, cert, key) if has_tls else None, timeout_s=timeout_s)
        self._info = self._client.get_info()
        self._override: SchedulingOptions = {}
        if p is not None or kind is not None:
            if not self._info.attention_override_allowed:
                raise ValueError('p or kind is given: the server must run with '
                                 '--allow-attention-override')
            override: AttentionOverride = {}
            if p is not None:
                override['p'] = float(p)
            if kind is not None:
                override['kind'] = str(kind)
            self._override = {'attention_override': override}
        most = self._info.max_model_len - 1
        if max_length is not None and not 1 <= max_length <= most:
            raise ValueError(f'max_length is {max_length}: the server takes 1 to {most} '
                             '(its --max-model-len less one)')
        self.max_length = most if max_length is None else max_length
        self.max_gen_toks = max_gen_toks
        self.batch_size = batch_size
        self._concurrency = concurrency
        self._is_chat = False

    @property
    def eot_token_id(self) -> int | None:
        """The model's EOS."""
        return self._info.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text: BOS, or EOS where the model has no BOS."""
        prefix = self._info.eos_id if self._info.bos_id is None else self._info.bos_id
        if prefix is None:
            raise ValueError('the model has neither BOS nor EOS: no text can be scored from its '
                             'first token')
        return prefix

    @property
    def tokenizer_name(self) -> str:
        """Name for lm-eval's request cache."""
        return f'{self._info.model_name}-{self._info.tokenizer_hash}'

    def tok_encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids of `text`. None: with BOS as the checkpoint says for prompts."""
        return self._client.tokenize(text, add_bos=add_special_tokens)

    def tok_decode(self, ids: list[int]) -> str:
        """Text of token ids."""
        return self._client.detokenize(ids)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False
                      ) -> list[tuple[float, bool]]:
        """(log-probability, is greedy) of each request's continuation after its context."""
        if self._is_chat:
            raise NotImplementedError(
                'the server scores texts and token ids, not chats: leave out --apply_chat_template '
                'for tasks that compare log-likelihoods')
        results: list[tuple[float, bool]] = []
        with tqdm(total=len(requests), desc='loglikelihood', disable=disable_tqdm) as bar:
            items = self._items(request.args for request in requests)
            for scores in self._client.score_many(items, **self._override):
                for score in scores:
                    result = score.logprob, score.is_greedy
                    self.cache_hook.add_partial('loglikelihood', requests[len(results)].args,
                                                result)
                    results.append(result)
                    bar.update()
        return results

    def _items(self, pairs: Iterable[tuple[str, str]]) -> Iterator[ScoreItem]:
        """Items in the order of `pairs`. Neighbours with the same context share an item, so that
        the context is computed once. The prefix token stands for an empty context, and for one of
        white space, which belongs to the continuation."""
        for context, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
            is_empty = not context.rstrip()
            prompt: Text = [self.prefix_token_id] if is_empty else context
            texts: list[Text] = []
            for _, continuation in group:
                if most_tokens(context + continuation) <= self.max_length + 1:
                    texts.append(context + continuation if is_empty else continuation)
                    continue
                if texts:
                    yield prompt, texts
                    texts = []
                yield self._windowed(context, continuation)
            if texts:
                yield prompt, texts

    def _windowed(self, context: str, continuation: str) -> ScoreItem:
        """The item as token ids, truncated on the left to the model's window."""
        if stripped := context.rstrip():
            whole = self.tok_encode(context + continuation)
            num_context = len(self.tok_encode(stripped))
        else:
            whole = [self.prefix_token_id, *self.tok_encode(context + continuation, False)]
            num_context = 1
        num_scored = len(whole) - num_context
        if num_scored > self.max_length:
            raise ValueError(f'a continuation has {num_scored} tokens: the window takes '
                             f'{self.max_length}')
        first = max(0, len(whole) - self.max_length - 1)
        if first:
            log.warning('a context of %d tokens lost its first %d: the window has %d', num_context,
                        first, self.max_length)
        return whole[first:num_context], [whole[num_context:]]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False
                              ) -> list[float]:
        """Log-probability of each whole text, in windows as lm-eval cuts them."""
        owners: collections.deque[int] = collections.deque()  # of windows without a score yet

        def items() -> Iterator[ScoreItem]:
            for i, request in enumerate(tqdm(requests, desc='loglikelihood_rolling',
                                             disable=disable_tqdm)):
                ids = self.tok_encode(request.args[0], False)
                for window in utils.get_rolling_token_windows(ids, self.prefix_token_id,
                                                              self.max_length, 1):
                    context, scored = utils.make_disjoint_window(window)
                    owners.append(i)
                    yield context, [scored]

        totals = [0.0] * len(requests)
        for [score] in self._client.score_many(items(), **self._override):
            totals[owners.popleft()] += score.logprob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial('loglikelihood_rolling', request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that follows each context, up to the first stop string."""
        results: list[str] = []
        batches = [list(group) for _, group in itertools.groupby(
            (request.args for request in requests), key=lambda args: repr(args[1]))]
        # All of them before the first request.
        arguments = [self._options(batch[0][1]) for batch in batches]
        with tqdm(total=len(requests), desc='generate_until', disable=disable_tqdm) as bar:
            for batch, (options, stops) in zip(batches, arguments, strict=True):
                if self._override:
                    options['attention_override'] = self._override['attention_override']
                prompts = (self._prompt(context, options['max_tokens']) for context, _ in batch)
                answers = self._naming(requests[len(results):], self._client.complete_many(
                    prompts, concurrency=self._concurrency, **options))
                for (context, kwargs), [answer] in zip(batch, answers, strict=True):
                    text = cut_at(answer.text, stops)
                    self.cache_hook.add_partial('generate_until', (context, kwargs), text)
                    results.append(text)
                    bar.update()
        return results

    @staticmethod
    def _naming(requests: Iterable[Instance], answers: Iterable[T]) -> Iterator[T]:
        """Yields the answers. Errors: ValueError with the request that the server cannot take, such
        as a chat that is longer than the window: its length is the template's and not known here.
        """
        rest = iter(answers)
        for request in requests:
            try:
                answer = next(rest)
            except StopIteration:
                return
            except LssarError as error:
                if error.code != 'INVALID_ARGUMENT':
                    raise
                raise ValueError(f'document {request.doc_id} of the task {request.task_name}: '
                                 f'{error}') from error
            yield answer

    def _options(self, kwargs: Mapping[str, object]) -> tuple[GenerateOptions, list[str]]:
        """to_options(). Errors: ValueError, also where the window has no space for a context."""
        options, stops = to_options(kwargs, self.max_gen_toks)
        if options['max_tokens'] >= self.max_length:
            raise ValueError(f'max_gen_toks is {options["max_tokens"]}: it must be less than '
                             f'max_length, {self.max_length}, so that contexts have space')
        return options, stops

    def _prompt(self, context: str, max_tokens: int) -> Prompt:
        if self._is_chat:
            messages = json.loads(context)
            return [(message['role'], message['content']) for message in messages]
        most = self.max_length + 1 - max_tokens
        if not context:
            return [self.prefix_token_id]
        if most_tokens(context) <= most:
            return context
        ids = self.tok_encode(context)
        if len(ids) > most:
            log.warning('a context of %d tokens lost its first %d: the window has %d, of which %d '
                        'are for new tokens', len(ids), len(ids) - most, self.max_length + 1,
                        max_tokens)
        return ids[-most:]

    def apply_chat_template(self, chat_history: list[dict[str, str]],
                            add_generation_prompt: bool = True) -> str:
        """The messages as JSON: the server applies the checkpoint's template."""
        if not self._info.has_chat_template:
            raise ValueError('the checkpoint has no chat template: leave out --apply_chat_template')
        if not add_generation_prompt:
            raise NotImplementedError('the server cannot continue a message: this task begins the '
                                      'answer itself (gen_prefix), which needs a plain prompt')
        self._is_chat = True
        return json.dumps(chat_history, ensure_ascii=False)


def main() -> None:
    """lm-eval's own program, with the model `lssar`."""
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()


if __name__ == '__main__':
    main()
