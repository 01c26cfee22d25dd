"""A corpus through Ray Data: classes for Dataset.map_batches, and a resumable run over files.

    ray.data.read_parquet('rows').map_batches(
        lssar.ray.Score, compute=ray.data.ActorPoolStrategy(size=4),
        fn_constructor_kwargs={'model': 'DIR'})

Each actor has a server of its own (`model`), with as many threads as it has CPUs or with its GPU,
or calls servers that run (`server`). Results are the server's, bit for bit, on any actor.
Needs `pip install './clients/python[ray]'` in lssar's repository.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import numpy
import ray
import ray.data

from lssar import types
from lssar._server import OwnServer
from lssar.checkpoints import directory
from lssar.client import Client

NUM_SERVER_STARTS = 3  # of an actor's own server, for one batch
RUN_FILE = 'run.json'  # of run_files: what its folders are the results of
# Settings of a task that do not change its results.
_CONNECTION = ('server', 'model', 'program', 'api_key', 'tls', 'retry')
Row = TypeVar('Row')
Result = TypeVar('Result')
Columns = dict[str, object]


def _plain(value: object) -> object:
    """A cell as Python's own type: a list instead of an array."""
    return value.tolist() if isinstance(value, (numpy.ndarray, numpy.generic)) else value


def _text(value: object, column: str) -> types.Text:
    """Errors: TypeError, ValueError."""
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError: half a surrogate pair
        return value
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        for each in value:
            if not 0 <= each < 1 << 31:
                raise ValueError(f'column {column!r} has the token id {each}; must be from 0 to '
                                 f'{(1 << 31) - 1}')
        return value
    raise TypeError(f'column {column!r} has {value!r}: a cell is a text or a list of token ids')


def _row(make: Callable[[], Row]) -> Row | types.LssarError:
    """The row, or why its cells make none: what the server says of those that it refuses."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        return types.LssarError('INVALID_ARGUMENT', str(error))


class _Task(Generic[Row, Result]):
    """An actor: holds the client, makes rows of a batch, and gives each its result or its error."""

    def __init__(self, server: str | None, model: str | None, program: str, flags: Sequence[str],
                 api_key: str | None, tls: types.Tls | None, checkpoint_hash: str | None,
                 retry: types.Retry, prefix: str) -> None:
        _check_place(server, model)
        self._model = model
        self._program = program
        self._flags = [*_own_share(flags), *flags]
        self._api_key, self._tls, self._retry = api_key, tls, retry
        self._checkpoint_hash = checkpoint_hash
        self._prefix = prefix
        self._own: OwnServer | None = None
        atexit.register(self._close)
        self._client = self._connect(server)

    def _connect(self, server: str | None) -> Client:
        if server is None:
            assert self._model
            self._close()
            self._own = OwnServer(self._model, program=self._program, flags=self._flags)
            server = self._own.address
        client = Client(server, api_key=self._api_key, tls=self._tls, retry=self._retry,
                        checkpoint_hash=self._checkpoint_hash)
        # All batches of this actor are of one checkpoint, also after its server was replaced.
        self._checkpoint_hash = client.get_info().checkpoint_hash
        return client

    def _close(self) -> None:
        if self._own:
            self._own.close()

    def __call__(self, batch: Mapping[str, Sequence[object]]) -> Columns:
        """The batch with the columns of the results."""
        rows = list(self._rows(batch))
        good = [row for row in rows if not isinstance(row, types.LssarError)]
        found = iter(self._run(good) if good else [])
        results = [row if isinstance(row, types.LssarError) else next(found) for row in rows]
        columns: Columns = dict(batch)
        for name, cells in self._columns(results).items():
            name = self._prefix + name
            if name in batch:
                raise ValueError(f'the data has a column {name!r} already: give a prefix for the '
                                 'columns of the results')
            columns[name] = cells
        return columns

    def _cells(self, batch: Mapping[str, Sequence[object]], column: str) -> Iterator[object]:
        if column not in batch:
            raise ValueError(f'the data has no column {column!r}; it has '
                             f'{", ".join(map(repr, batch))}')
        return map(_plain, batch[column])

    def _run(self, rows: list[Row]) -> list[Result | types.LssarError]:
        """The result of each row. A server of the actor's own that ended is started again."""
        for _ in range(NUM_SERVER_STARTS):
            try:
                return self._run_rows(rows)
            except types.LssarError as error:
                if error.code != 'UNAVAILABLE' or not self._own or self._own.is_running():
                    raise
            self._client.close()
            self._client = self._connect(None)
        return self._run_rows(rows)

    def _run_rows(self, rows: list[Row]) -> list[Result | types.LssarError]:
        try:
            return list(self._many(rows))
        except types.LssarError as error:
            if error.code != 'INVALID_ARGUMENT':
                raise
        return [self._one(row) for row in rows]

    def _one(self, row: Row) -> Result | types.LssarError:
        try:
            [result] = self._many([row])
            return result
        except types.LssarError as error:
            if error.code != 'INVALID_ARGUMENT':
                raise
            return error

    def _rows(self, batch: Mapping[str, Sequence[object]]) -> Iterable[Row | types.LssarError]:
        raise NotImplementedError

    def _many(self, rows: list[Row]) -> Iterable[Result]:
        raise NotImplementedError

    def _columns(self, results: list[Result | types.LssarError]) -> Columns:
        raise NotImplementedError


def _own_share(flags: Sequence[str]) -> list[str]:
    """The flags by which a server uses what Ray gave its actor, and no more."""
    names = {flag.split('=')[0] for flag in flags}
    context = ray.get_runtime_context() if ray.is_initialized() else None
    is_actor = context is not None and context.get_actor_id() is not None
    resources = context.get_assigned_resources() if context and is_actor else {}
    if resources.get('GPU') and '--device' not in names:
        return ['--device', 'cuda']  # Ray sets CUDA_VISIBLE_DEVICES
    num_cpus = int(resources.get('CPU') or 1)
    return [] if '--threads' in names or '--device' in names else ['--threads', str(num_cpus)]


def _errors(results: Sequence[object]) -> object:
    """A column of errors; empty: none."""
    return numpy.array([f'{each.code}: {each}' if isinstance(each, types.LssarError) else ''
                        for each in results], dtype=object)


def _lists(cells: Iterable[object]) -> object:
    """A column of lists."""
    values = list(cells)
    column = numpy.empty(len(values), dtype=object)
    column[:] = [numpy.asarray(value) for value in values] if values else []
    return column


class Score(_Task[types.ScoreItem, list[types.ContinuationScore]]):
    """Adds logprob (nats), num_tokens, is_greedy and error: numbers where a cell of `continuation`
    is a text, lists where `continuations` has lists. A row that the server refuses has NaN (lists:
    nothing) and the error, as one whose cells are no texts has; other rows have ''."""

    def __init__(self, *, server: str | None = None, model: str | None = None,
                 context: str | None = 'context', continuation: str | None = None,
                 continuations: str | None = None, program: str = 'lssar-server',
                 flags: Sequence[str] = (), api_key: str | None = None,
                 tls: types.Tls | None = None, checkpoint_hash: str | None = None,
                 retry: types.Retry = types.Retry(), prefix: str = '',
                 options: types.ScoreOptions | None = None) -> None:
        """Starts or finds the server.

        Args:
            server: HOST:PORT of one that runs, such as the load balancer of a cluster.
            model: checkpoint directory, for a server of this actor.
            context: column of the contexts, texts or lists of token ids; None: no context.
            continuation: column with one text or list of token ids for each row.
            continuations: column with a list of texts for each row, instead of `continuation`.
            program, flags: of the actor's server.
            api_key, tls, checkpoint_hash, retry: as of Client.
            prefix: of the names of the new columns.
            options: of Client.score_many().
        """
        if continuation is not None and continuations is not None:
            raise ValueError('give continuation or continuations, and not both')
        self._context = context
        self._has_lists = continuations is not None
        self._continuations = continuations or continuation or 'continuation'
        self._options: types.ScoreOptions = options or {}
        super().__init__(server, model, program, flags, api_key, tls, checkpoint_hash, retry,
                         prefix)

    def _rows(self, batch: Mapping[str, Sequence[object]]
              ) -> Iterable[types.ScoreItem | types.LssarError]:
        continuations = list(self._cells(batch, self._continuations))
        contexts = (self._cells(batch, self._context) if self._context is not None else
                    iter([''] * len(continuations)))
        for context, cell in zip(contexts, continuations, strict=True):
            yield _row(functools.partial(self._item, context, cell))

    def _item(self, context: object, cell: object) -> types.ScoreItem:
        """Errors: TypeError, ValueError."""
        cells = cell if self._has_lists else [cell]
        if not isinstance(cells, list) or not cells:
            raise TypeError(f'column {self._continuations!r} has {cell!r}: a cell of '
                            'continuations is a list of one or more')
        return (_text('' if context is None else context, str(self._context)),
                [_text(each, self._continuations) for each in cells])

    def _many(self, rows: list[types.ScoreItem]) -> Iterable[list[types.ContinuationScore]]:
        return self._client.score_many(rows, **self._options)

    def _columns(self, results: list[list[types.ContinuationScore] | types.LssarError]) -> Columns:
        scores = [[] if isinstance(each, types.LssarError) else each for each in results]
        columns: Columns = {'error': _errors(results)}
        if self._has_lists:
            columns['logprob'] = _lists([each.logprob for each in row] for row in scores)
            columns['num_tokens'] = _lists([each.num_tokens for each in row] for row in scores)
            columns['is_greedy'] = _lists([each.is_greedy for each in row] for row in scores)
            return columns
        columns['logprob'] = numpy.array([row[0].logprob if row else numpy.nan for row in scores],
                                         dtype=numpy.float64)
        columns['num_tokens'] = numpy.array([row[0].num_tokens if row else 0 for row in scores],
                                            dtype=numpy.int64)
        columns['is_greedy'] = numpy.array([bool(row) and row[0].is_greedy for row in scores],
                                           dtype=bool)
        return columns


class Generate(_Task[types.Prompt, types.Generation]):
    """Adds completion, finish_reason and error. Give a seed in `options` for texts that do not
    depend on the run; greedy ones (temperature 0) need none."""

    def __init__(self, *, server: str | None = None, model: str | None = None,
                 prompt: str = 'prompt', concurrency: int = 16, program: str = 'lssar-server',
                 flags: Sequence[str] = (), api_key: str | None = None,
                 tls: types.Tls | None = None, checkpoint_hash: str | None = None,
                 retry: types.Retry = types.Retry(), prefix: str = '',
                 options: types.GenerateOptions | None = None) -> None:
        """Starts or finds the server.

        Args:
            server, model, program, flags, api_key, tls, checkpoint_hash, retry, prefix: as of
                Score.
            prompt: column of texts or lists of token ids.
            concurrency: calls at once.
            options: of Client.complete(), without n.
        """
        self._prompt = prompt
        self._concurrency = concurrency
        self._options: types.GenerateOptions = options or {}
        if self._options.get('n') not in (None, 1):
            raise ValueError('options has n: each row gets one completion')
        super().__init__(server, model, program, flags, api_key, tls, checkpoint_hash, retry,
                         prefix)

    def _rows(self, batch: Mapping[str, Sequence[object]]
              ) -> Iterable[types.Prompt | types.LssarError]:
        return (_row(functools.partial(_text, cell, self._prompt))
                for cell in self._cells(batch, self._prompt))

    def _many(self, rows: list[types.Prompt]) -> Iterable[types.Generation]:
        answers = self._client.complete_many(rows, concurrency=self._concurrency, **self._options)
        return (answer[0] for answer in answers)

    def _columns(self, results: list[types.Generation | types.LssarError]) -> Columns:
        answers = [types.Generation() if isinstance(each, types.LssarError) else each
                   for each in results]
        return {'error': _errors(results),
                'completion': numpy.array([each.text for each in answers], dtype=object),
                'finish_reason': numpy.array([each.finish_reason or '' for each in answers],
                                             dtype=object)}


class Embed(_Task[types.Text, types.Embedding]):
    """Adds embedding (a list of 32-bit floats) and error."""

    def __init__(self, *, server: str | None = None, model: str | None = None, text: str = 'text',
                 program: str = 'lssar-server', flags: Sequence[str] = (),
                 api_key: str | None = None, tls: types.Tls | None = None,
                 checkpoint_hash: str | None = None, retry: types.Retry = types.Retry(),
                 prefix: str = '', options: types.EmbedOptions | None = None) -> None:
        """Starts or finds the server.

        Args:
            server, model, program, flags, api_key, tls, checkpoint_hash, retry, prefix: as of
                Score.
            text: column of texts or lists of token ids.
            options: of Client.embed_many(), without pooling='token'.
        """
        self._text = text
        self._options: types.EmbedOptions = options or {}
        if self._options.get('pooling') == 'token':
            raise ValueError("options has pooling='token': each row gets one vector")
        super().__init__(server, model, program, flags, api_key, tls, checkpoint_hash, retry,
                         prefix)

    def _rows(self, batch: Mapping[str, Sequence[object]]
              ) -> Iterable[types.Text | types.LssarError]:
        return (_row(functools.partial(_text, cell, self._text))
                for cell in self._cells(batch, self._text))

    def _many(self, rows: list[types.Text]) -> Iterable[types.Embedding]:
        return self._client.embed_many(rows, **self._options)

    def _columns(self, results: list[types.Embedding | types.LssarError]) -> Columns:
        return {'error': _errors(results),
                'embedding': _lists(numpy.array([] if isinstance(each, types.LssarError) else
                                                each.vector, dtype=numpy.float32)
                                    for each in results)}


def _write_json(results: ray.data.Dataset, folder: pathlib.Path) -> None:
    """One file of JSON lines in a new folder, with numbers that are read back as the same bits."""
    folder.mkdir()
    with open(folder / 'rows.jsonl', 'w', encoding='utf-8') as file:
        for row in results.iter_rows():
            file.write(json.dumps(row, default=_plain) + '\n')


def _check_place(server: object, model: object) -> None:
    if (server is None) == (model is None):
        raise ValueError('give server (HOST:PORT of one that runs) or model (a checkpoint '
                         'directory, for a server of each actor), and not both')


def _served(server: object = None, model: object = None, api_key: object = None,
            tls: object = None, **_: object) -> list[str]:
    """What the task's results depend on besides its other settings."""
    _check_place(server, model)
    if model is not None:
        return [directory.checkpoint_hash(str(model))]
    with Client(str(server), api_key=api_key if isinstance(api_key, str) else None,
                tls=tls if isinstance(tls, types.Tls) else None) as client:
        info = client.get_info()
    return [info.checkpoint_hash, info.dtype, info.kv_cache_dtype]


def _note_runs(folder: pathlib.Path, files: Mapping[str, str], task: type,
               settings: Mapping[str, object]) -> None:
    """Writes RUN_FILE: what each folder is the result of. files: {name of a folder: its input}.
    Errors: ValueError where a folder that is there is of another run."""
    run = {'task': task.__name__, 'served': _served(**settings),
           'settings': {name: repr(value) for name, value in sorted(settings.items())
                        if name not in _CONNECTION}}
    path = folder / RUN_FILE
    notes = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    for name, source in files.items():
        note = {**run, 'input': directory.sha256(source)}
        old = notes.get(name, {})
        for field, value in note.items() if (folder / name).exists() else ():
            if old.get(field) != value:
                raise ValueError(f'{path}: {field} of {name}, which is there: {old.get(field)}; of '
                                 f'this run: {value}. Give another folder')
        notes[name] = note
    partial = folder / f'.{RUN_FILE}.partial'
    partial.write_text(json.dumps(notes, indent=2), encoding='utf-8')
    partial.rename(path)


def run_files(inputs: Sequence[str], output: str, task: type[Score | Generate | Embed], *,
              actors: int = 1, batch_size: int = 256, num_cpus: float = 1, num_gpus: float = 0,
              resume: bool = False, progress: bool = True, **settings: object) -> list[str]:
    """Runs `task` over files, one after the other: a Parquet or JSONL file becomes a folder of the
    same name and format in `output`.

    A folder appears when all of its rows are there. With `resume`, files that have theirs are left
    out, so a run that was stopped goes on with the file that it was in, if run.json there has the
    same task, settings, checkpoint and input for them. Choose files that take minutes: actors start
    anew for each.

    Parquet is written by Ray's workers. JSONL is written by this process, because Ray's writer
    rounds numbers to ten digits: prefer Parquet for large results.

    Args:
        inputs: paths of .parquet, .jsonl or .json files with different names.
        output: folder; is created.
        task: Score, Generate or Embed.
        actors: how many run at once.
        batch_size: rows of a batch.
        num_cpus, num_gpus: of each actor; its server uses them.
        resume: leave out what is there; False: that is an error.
        progress: show Ray's progress bars.
        settings: arguments of `task`.

    Returns: the folders, in the order of `inputs`.
    Errors: ValueError (also: the results that are there are of another run), FileNotFoundError,
        FileExistsError; ray.exceptions.RayError with the sentence of a task's error.
    """
    folder = pathlib.Path(output)
    targets = [folder / pathlib.Path(path).name for path in inputs]
    for path, target in zip(inputs, targets, strict=True):
        if pathlib.Path(path).suffix not in ('.parquet', '.jsonl', '.json'):
            raise ValueError(f'{path}: give .parquet, .jsonl or .json files')
        if not os.path.exists(path):
            raise FileNotFoundError(f'there is no file {path}')
        if targets.count(target) > 1:
            raise ValueError(f'two of the inputs are called {target.name}')
        if target.exists() and not resume:
            raise FileExistsError(f'{target} exists: give resume=True, or another folder')
    folder.mkdir(parents=True, exist_ok=True)
    names = (target.name for target in targets)
    _note_runs(folder, dict(zip(names, inputs, strict=True)), task, settings)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = progress
    context.execution_options.preserve_order = True
    for path, target in zip(inputs, targets, strict=True):
        if target.exists():
            continue
        is_parquet = target.suffix == '.parquet'
        rows = ray.data.read_parquet(path) if is_parquet else ray.data.read_json(path, lines=True)
        results = rows.map_batches(task, fn_constructor_kwargs=settings, batch_size=batch_size,
                                   compute=ray.data.ActorPoolStrategy(size=actors),
                                   num_cpus=num_cpus, num_gpus=num_gpus)
        partial = folder / f'.{target.name}.partial'
        shutil.rmtree(partial, ignore_errors=True)
        if is_parquet:
            results.write_parquet(str(partial))
        else:
            _write_json(results, partial)
        partial.rename(target)
    return [str(target) for target in targets]
