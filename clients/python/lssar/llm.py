"""A model in this process' hands: `LLM`, with the names of vLLM's offline API."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast

from lssar import client, types
from lssar._requests import STRINGS, is_id
from lssar._server import OwnServer, server_program
from lssar.types import SamplingParams

if TYPE_CHECKING:
    import numpy
    import numpy.typing

T = TypeVar('T')


@dataclasses.dataclass
class RequestOutput:
    """What was generated for one prompt."""

    prompt: types.Prompt
    outputs: list[types.Generation]  # n choices

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.outputs[0].text


def _flag(name: str, value: object) -> list[str]:
    return [] if value is None else ['--' + name.replace('_', '-'), str(value)]


class LLM:
    """A checkpoint, served by a private server: a child process on a Unix socket.

    It ends with close(), with the `with` block, with the object or with this process, however that
    ends. Threads may share it; a process that forks must make its own.
    """

    def __init__(self, model: str | os.PathLike[str], *, threads: int | None = None,
                 max_model_len: int | None = None, dtype: str | None = None,
                 kv_cache_dtype: str | None = None, kv_cache_memory: str | int | None = None,
                 allow_attention_override: bool = False, allow_steering: bool = False,
                 device: str | None = None,
                 program: str | None = None, flags: Sequence[str] = ()) -> None:
        """Starts the server and waits until its self-check has passed.

        Args:
            model: checkpoint directory.
            threads: of the CPU backend; default: one for each CPU that this process may use.
            max_model_len: tokens of prompt and output together.
            dtype, kv_cache_dtype: of weights and K/V cache, as lssar-server's flags.
            kv_cache_memory: bytes, or '512M', '2G'.
            allow_attention_override: for attention_override={'p': 5} in calls.
            allow_steering: for steering=[{'layer': 3, 'vector': ...}] in calls.
            device: 'cpu', 'cuda', 'cuda:1', 'reference'.
            program: path of lssar-server; default: the one that LSSAR_SERVER names, of this
                package, or in PATH.
            flags: more flags of lssar-server.

        Errors: RuntimeError with the server's last log lines; FileNotFoundError.
        """
        path = os.fspath(model)
        if not os.path.isdir(path):
            raise FileNotFoundError(f'model is {path!r}: no such directory')
        arguments = [*_flag('threads', threads), *_flag('max_model_len', max_model_len),
                     *_flag('dtype', dtype), *_flag('kv_cache_dtype', kv_cache_dtype),
                     *_flag('kv_cache_memory', kv_cache_memory), *_flag('device', device),
                     *(['--allow-attention-override'] if allow_attention_override else []),
                     *(['--allow-steering'] if allow_steering else []), *flags]
        self._pid = os.getpid()
        self._server = OwnServer(path, program=program or server_program(), flags=arguments)
        self._client = client.Client(self._server.address)
        self._finalizer = weakref.finalize(self, _close, self._client, self._server, self._pid)

    def generate(self, prompts: types.Prompt | Sequence[types.Prompt],
                 sampling_params: SamplingParams | None = None, *, use_tqdm: bool = False,
                 concurrency: int = 64,
                 **options: Unpack[types.GenerateOptions]) -> list[RequestOutput]:
        """Continues each prompt: a text, token ids, or a list of those. In order.

        Args:
            use_tqdm: show a progress bar.
            concurrency: prompts that are sent at a time; the server batches them.
            options: more of types.GenerateOptions, such as attention_override.
        """
        return self._generate(_as_list(prompts), sampling_params, use_tqdm, concurrency, options)

    def _generate(self, items: list[types.Prompt], sampling_params: SamplingParams | None,
                  use_tqdm: bool, concurrency: int, options: types.GenerateOptions
                  ) -> list[RequestOutput]:
        merged = cast(types.GenerateOptions,
                      {**(sampling_params or SamplingParams()).options(), **options})
        results = self._guard(lambda: list(self._client.complete_many(
            items, concurrency=concurrency, progress=use_tqdm, **merged)))
        return [RequestOutput(prompt, choices)
                for prompt, choices in zip(items, results, strict=True)]

    def chat(self, messages: types.Chat | Sequence[types.Chat],
             sampling_params: SamplingParams | None = None, *, use_tqdm: bool = False,
             concurrency: int = 64,
             **options: Unpack[types.GenerateOptions]) -> list[RequestOutput]:
        """The answer to each conversation: messages, or a list of such lists."""
        chats = _as_list(messages)
        for i, chat in enumerate(chats):
            if not _is_chat(chat):
                raise TypeError(f'messages[{i}] must be a list of messages, not {chat!r}')
        return self._generate(chats, sampling_params, use_tqdm, concurrency, options)

    def score(self, items: Iterable[types.ScoreItem], *, use_tqdm: bool = False,
              **options: Unpack[types.ScoreOptions]) -> list[list[types.ContinuationScore]]:
        """Log-probabilities of continuations: for each (context, [continuation, ...])."""
        return self._guard(
            lambda: list(self._client.score_many(items, progress=use_tqdm, **options)))

    def embed(self, inputs: types.Text | Sequence[types.Text], *, use_tqdm: bool = False,
              **options: Unpack[types.EmbedOptions]) -> list[numpy.typing.NDArray[numpy.float32]]:
        """Hidden states of each input: float32 [hidden_size], or [tokens, hidden_size] with
        pooling='token'. With layers [layers, hidden_size], or [tokens, layers, hidden_size]."""
        import numpy  # pylint: disable=import-outside-toplevel

        texts = cast(list[types.Text], _as_list(inputs))
        results = self._guard(
            lambda: list(self._client.embed_many(texts, progress=use_tqdm, **options)))
        vectors = [numpy.array(each.vectors, numpy.float32) for each in results]
        if options.get('layers') is not None:
            vectors = [each.reshape(-1, result.num_layers, each.shape[1])
                       for each, result in zip(vectors, results, strict=True)]
        return vectors if options.get('pooling') == 'token' else [each[0] for each in vectors]

    def attention(self, prompt: types.Prompt,
                  **options: Unpack[types.AttentionOptions]) -> types.Attention:
        """Attention weights of chosen layers, heads and query tokens."""
        return self._guard(lambda: self._client.attention(prompt, **options))

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Token ids."""
        return self._guard(lambda: self._client.tokenize(text, add_bos=add_bos))

    def decode(self, ids: types.TokenIds, *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        return self._guard(
            lambda: self._client.detokenize(ids, skip_special_tokens=skip_special_tokens))

    @property
    def info(self) -> types.ServerInfo:
        """Model, tokenizer, limits."""
        return self._guard(self._client.get_info)

    @property
    def client(self) -> client.Client:
        """The client of the private server, for streams and everything else."""
        return self._client

    def close(self) -> None:
        """Ends the server. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _guard(self, call: Callable[[], T]) -> T:
        """Runs `call`. If the server has ended, the error says with which last lines."""
        if os.getpid() != self._pid:
            raise RuntimeError('this LLM belongs to the process that made it: make one of your own '
                               'after a fork')
        if not self._finalizer.alive:
            raise RuntimeError('this LLM is closed')
        try:
            return call()
        except types.LssarError as error:
            if self._server.is_running():
                raise
            raise RuntimeError('lssar-server has ended:\n'
                               + self._server.last_log_lines) from error


def _close(connection: client.Client, server: OwnServer, pid: int) -> None:
    if os.getpid() != pid:  # a forked child's copy
        return
    connection.close()
    server.close()


def _is_chat(value: object) -> bool:
    """Whether this is a list of messages. A tuple may be a message or a chat of messages."""
    if not isinstance(value, Sequence) or isinstance(value, STRINGS) or not value:
        return False
    first = value[0]
    return isinstance(first, Mapping) or (isinstance(first, tuple) and bool(first)
                                          and isinstance(first[0], str))


def _as_list(value: types.Prompt | Sequence[types.Prompt]) -> list[types.Prompt]:
    """A list of prompts, also from one: a text, token ids or a chat."""
    is_one = (isinstance(value, str) or not isinstance(value, Sequence) or _is_chat(value)
              or (bool(value) and all(map(is_id, value))))
    return cast(list[types.Prompt], [value] if is_one else list(cast(Sequence[object], value)))


def main_server() -> None:
    """The command lssar-server of a wheel."""
    _exec('lssar-server')


def main_cli() -> None:
    """The command lssar of a wheel. `lssar serve DIR` starts the server."""
    _exec('lssar')


def _exec(name: str) -> None:
    import sys  # pylint: disable=import-outside-toplevel

    program = pathlib.Path(__file__).parent / 'bin' / name
    if not program.exists():
        raise SystemExit(f'{name}: this installation has no executables; install the wheel that '
                         'deploy/wheel.sh builds')
    arguments = sys.argv[1:]
    if name == 'lssar' and arguments[:1] == ['serve']:
        program = program.with_name('lssar-server')
        arguments = arguments[1:]
        if arguments and not arguments[0].startswith('-'):
            arguments = ['--model', *arguments]
    # Commands that are written in Python lie beside this interpreter.
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ.get('PATH', os.defpath)
    os.execve(program, [str(program), *arguments], {**os.environ, 'PATH': path})
