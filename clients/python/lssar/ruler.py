"""RULER, as NVIDIA packages it (`nvidia_long_context_eval`, from PyPI), through /v1/completions.

    lssar ruler OUT --model DIR [--lengths 1K,2K,4K,8K,16K] [--tasks LIST] [--samples 20]
    lssar ruler OUT --server HOST:PORT

The package is run as it is: its prompts, its requests, its scores. It needs no hub: its data is in
the wheel. Two things stand in for what is not there, and OUT/results.json names them:

    tokenizer      prompts are as long as the server counts; the package asks NeMo's SentencePiece
                   class, and a module of that name asks the server
    sentence ends  five tasks hide their needle behind a sentence of Paul Graham's essays. Where
                   NLTK's English model (punkt_tab) is not installed, one is trained on the essays

OUT gets results.json, report.md, ruler.svg (with matplotlib) and the package's own files: prompts,
predictions, scores. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import TypedDict

from lssar._exit_code import exit_code
from lssar._extras import how_to_install

PACKAGE = 'nvidia-long-context-eval'
TASKS = ('niah_single_1', 'niah_single_2', 'niah_single_3', 'niah_multikey_1', 'niah_multikey_2',
         'niah_multikey_3', 'niah_multivalue', 'niah_multiquery', 'vt', 'cwe', 'fwe', 'qa_1',
         'qa_2')
IN_ESSAYS = {'niah_single_2', 'niah_single_3', 'niah_multikey_1', 'niah_multivalue',
             'niah_multiquery'}
LENGTHS = '1K,2K,4K,8K,16K'
ESSAY_CHARACTERS = 300_000  # the essays' part that sentence ends are learned from
ROOM = 256  # tokens of max_model_len beyond the length: fwe's prompts are its length already
# Some tasks cannot be built at some lengths, and the package then tries for ever. It asks the
# tokenizer with every try that may succeed. Seconds of the CPU, so that a busy machine changes
# nothing; the longest honest silence, a list of all pairs of words, takes 10.
IDLE_CPU_S = 60.0
IDLE_EXIT = 3
SERVER_EXIT = 4  # the server did not count; the package would take it for a text that is too long
NO_ROOM = 'no prompt of this task is short enough'
# Why a task has no prompts, so that no other try will make some: ours, and the package's where a
# length takes more words or documents than it has.
REFUSALS = (NO_ROOM, 'ValueError: Sample larger than population')
NORMAL_95 = 1.96
# As in the outputs that `lssar score --resume` and `lssar passkey --resume` go on with.
JOB = ('checkpoint_hash', 'tokenizer_hash', 'config_hash', 'dtype', 'kv_cache_dtype', 'device')


class Sample(TypedDict):
    """A prompt, as the package writes it."""

    input: str
    outputs: list[str]
    length: int  # tokens of the prompt and of the answer at most


class TaskScore(TypedDict):
    """Scores are from 0 to 1."""

    score: float
    interval95: tuple[float, float]
    samples: int
    empty_answers: int


class AtLength(TypedDict):
    """A length's scores, and why there are none of the other tasks."""

    length: int
    tasks: dict[str, TaskScore]
    not_built: dict[str, str]


class Results(TypedDict):
    """results.json."""

    model: str
    checkpoint_hash: str
    package: str
    tokenizer: str
    sentence_ends: str
    lengths: list[AtLength]


class RulerError(Exception):
    """A sentence for the user."""


class ServerTokenizer:
    """What the package takes for NeMo's SentencePieceTokenizer: the tokens that a server counts.

    It ends the process where nothing was asked for IDLE_CPU_S.
    """

    def __init__(self, model_path: str) -> None:
        from lssar.client import Client
        from lssar.types import LssarError

        self._error = LssarError
        self._client = Client(model_path, api_key=os.environ.get('LSSAR_API_KEY'))
        self._asked_s = time.process_time()
        threading.Thread(target=self._watch, daemon=True).start()

    def text_to_tokens(self, text: str) -> list[int]:
        """Ids without BOS."""
        self._asked_s = time.process_time()
        try:
            ids = self._client.tokenize(text, add_bos=False)
        except self._error as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(SERVER_EXIT)
        self._asked_s = time.process_time()
        return ids

    def _watch(self) -> None:
        while time.process_time() - self._asked_s < IDLE_CPU_S:
            time.sleep(0.1)
        print(NO_ROOM, file=sys.stderr, flush=True)
        os._exit(IDLE_EXIT)


# The module that the package imports, and the class that it makes.
STAND_IN = 'nemo/collections/common/tokenizers/sentencepiece_tokenizer.py'
STAND_IN_TEXT = 'from lssar.ruler import ServerTokenizer as SentencePieceTokenizer\n'


@dataclasses.dataclass(frozen=True)
class Package:
    """Where the package is."""

    entry: pathlib.Path  # its program
    root: pathlib.Path  # long_context_eval
    version: str

    @property
    def essays(self) -> pathlib.Path:
        return self.root / 'data/synthetic/json/PaulGrahamEssays.json'


def find_package() -> Package:
    """Errors: RulerError, ModuleNotFoundError."""
    try:
        files = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise RulerError(f'{sys.executable} has no {PACKAGE}: {how_to_install("ruler")}'
                         ) from None
    for name in ('nltk', 'wonderwords', 'pandas', 'scipy', 'yaml', 'openai', 'tiktoken'):
        if importlib.util.find_spec(name) is None:
            raise RulerError(f'{sys.executable} has no {name}: {how_to_install("ruler")}')
    entry = pathlib.Path(str(files.locate_file('entrypoint.py')))
    return Package(entry, entry.parent / 'long_context_eval', files.version)


def parse_length(text: str) -> int:
    """'4K' -> 4096. Errors: RulerError."""
    match = re.fullmatch(r'([0-9]+)([Kk]?)', text.strip())
    length = int(match[1]) * (1024 if match[2] else 1) if match else 0
    if not 512 <= length <= 1 << 20:
        raise RulerError(f'--lengths: {text!r} must be a number of tokens from 512 to 1024K')
    return length


def length_name(length: int) -> str:
    """4096 -> '4K'."""
    return f'{length // 1024}K' if length % 1024 == 0 else str(length)


def interval95(score: float, n: int) -> tuple[float, float]:
    """Wilson's interval of a mean of n values from 0 to 1. A task with partial credit varies less
    than hits and misses of the same mean do: there it is too wide, never too narrow."""
    z = NORMAL_95**2
    middle = (score + z / (2 * n)) / (1 + z / n)
    half = NORMAL_95 / (1 + z / n) * math.sqrt(score * (1 - score) / n + z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def learn_sentence_ends(essays: pathlib.Path, folder: pathlib.Path) -> None:
    """Trains NLTK's Punkt on the essays; `folder` becomes a directory of NLTK's data."""
    import nltk
    from nltk.tokenize.punkt import PunktTrainer, save_punkt_params

    target = folder / 'tokenizers/punkt_tab/english'
    if (target / 'abbrev_types.txt').exists():
        return
    text = json.loads(essays.read_text(encoding='utf-8'))['text']
    trainer = PunktTrainer()
    trainer.train(re.sub(r'\s+', ' ', text[:ESSAY_CHARACTERS]), finalize=True)
    target.mkdir(parents=True, exist_ok=True)
    nltk.data.path.append(str(folder.resolve()))  # it writes nowhere else
    save_punkt_params(trainer.get_params(), dir=str(target.resolve()))


def has_sentence_ends() -> bool:
    """True where NLTK's own English model is installed."""
    import nltk

    try:
        nltk.data.find('tokenizers/punkt_tab/english/')
    except LookupError:
        return False
    return True


@dataclasses.dataclass
class Server:
    """The server that is asked."""

    address: str  # gRPC
    url: str  # of /v1/completions
    model_name: str
    max_model_len: int
    job: dict[str, str]  # what its answers depend on beside the prompts


def read_server(address: str, api_key: str | None) -> Server:
    """Errors: RulerError; lssar.types.LssarError."""
    from lssar.client import Client

    with Client(address, api_key=api_key) as client:
        info = client.get_info()
    if not info.http_address:
        raise RulerError(f'the server at {address} has no HTTP port: start it with --http-listen')
    host, _, port = info.http_address.rpartition(':')
    if host in ('0.0.0.0', '[::]', '::'):  # all of its addresses: the one that gRPC was reached by
        host = '127.0.0.1' if address.startswith('unix:') else address.rpartition(':')[0]
    return Server(address, f'http://{host}:{port}/v1/completions', info.model_name,
                  info.max_model_len,
                  {name: getattr(info, name) for name in JOB})


class Ruler:
    """The lengths of one checkpoint, in a folder."""

    def __init__(self, given: argparse.Namespace, package: Package, server: Server,
                 scratch: pathlib.Path) -> None:
        self.given, self.package, self.server = given, package, server
        self.out: pathlib.Path = given.out
        self.log = self.out / 'log.txt'
        self.environment = self._environment(scratch)
        self.sentence_ends = "NLTK's punkt_tab"

    def _environment(self, scratch: pathlib.Path) -> dict[str, str]:
        """`python` is this interpreter, `nemo` asks the server, NLTK looks into OUT last."""
        stand_in = scratch / STAND_IN
        stand_in.parent.mkdir(parents=True)
        stand_in.write_text(STAND_IN_TEXT, encoding='utf-8')
        program = scratch / 'bin/python'
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n',
                           encoding='utf-8')
        program.chmod(0o755)
        no_proxy = str(urllib.parse.urlsplit(self.server.url).hostname)
        modules = [str(scratch), *filter(None, sys.path), os.environ.get('PYTHONPATH', '')]
        return {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, modules)),
                'no_proxy': no_proxy, 'NO_PROXY': no_proxy,
                'PATH': f'{program.parent}{os.pathsep}{os.environ.get("PATH", "")}',
                'NLTK_DATA': os.pathsep.join(filter(None, [os.environ.get('NLTK_DATA', ''),
                                                           str(self.out.resolve() / 'nltk')])),
                **({'API_KEY': self.given.api_key, 'LSSAR_API_KEY': self.given.api_key}
                   if self.given.api_key else {})}

    def check_owner(self) -> None:
        """OUT has the results of this checkpoint and these settings. Errors: RulerError."""
        own = {**self.server.job, 'samples': self.given.samples, 'package': self.package.version}
        path = self.out / 'settings.json'
        if path.exists():
            kept = json.loads(path.read_text(encoding='utf-8'))
            for name, value in own.items():
                if kept.get(name) != value:
                    raise RulerError(f'{self.out} has results with {name} '
                                     f'{kept.get(name, "unknown")}, not {value}: give another OUT')
            return
        self.out.mkdir(parents=True, exist_ok=True)
        following = path.with_suffix('.new')
        following.write_text(json.dumps(own), encoding='utf-8')
        following.replace(path)

    def folder(self, length: int, kind: str) -> pathlib.Path:
        """The package's own folder of prompts ('data') or predictions ('pred')."""
        name = re.sub(r'[^A-Za-z0-9\-_]', '_', self.server.model_name)
        return self.out / name / 'synthetic' / str(length) / kind

    def run(self, *command: str, timeout_s: float, watched: pathlib.Path | None = None) -> str:
        """Output of a program of the package; its process group ends with it.

        Args:
            timeout_s: without an end or, with `watched`, without a new line in that folder's files.
        Errors: RulerError.
        """
        with tempfile.TemporaryFile('w+', encoding='utf-8', errors='replace') as output:
            process = subprocess.Popen([sys.executable, *command], stdout=output,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env=self.environment, start_new_session=True)
            seen, seen_s = -1, time.monotonic()
            try:
                while process.poll() is None:
                    time.sleep(0.05)
                    size = 0 if watched is None else sum(
                        path.stat().st_size for path in watched.glob('*'))
                    if size != seen:
                        seen, seen_s = size, time.monotonic()
                    if time.monotonic() - seen_s > timeout_s:
                        break
            finally:
                is_late = process.poll() is None
                if is_late:
                    os.killpg(process.pid, 9)
                    process.wait()
            output.seek(0)
            text = output.read()
        with open(self.log, 'a', encoding='utf-8') as file:
            file.write(text)
        if is_late:
            raise RulerError(f'{os.path.basename(command[0])}: nothing for {timeout_s:g} s; '
                             f'{self.log} has its output:\n{text[-2000:]}')
        if process.returncode:
            raise RulerError(f'{os.path.basename(command[0])} ended with {process.returncode}; '
                             f'{self.log} has its output:\n{text[-2000:]}')
        return text

    def prepare(self, length: int, task: str) -> str:
        """Makes the prompts of a task. -> why there are none; '': there are.

        Errors: RulerError: they do not fit the server, or another try may make them.
        """
        path = self.folder(length, 'data') / task / 'validation.jsonl'
        refused = path.with_name('refused.txt')
        if refused.exists():
            reason = refused.read_text(encoding='utf-8')
            if reason.startswith(REFUSALS):
                return reason
            refused.unlink()  # of an earlier version, which kept every reason
        if len(self.samples(path)) != self.given.samples:
            path.unlink(missing_ok=True)
            reason = self.build(path, length, task)
            if reason:
                path.unlink(missing_ok=True)
                if not reason.startswith(REFUSALS):
                    raise RulerError(f'no prompts of {task} at {length_name(length)}: {reason}; '
                                     f'{self.log} has more')
                refused.parent.mkdir(parents=True, exist_ok=True)
                refused.write_text(reason, encoding='utf-8')
                return reason
        longest = max(sample['length'] for sample in self.samples(path)) + 1  # BOS
        if longest > self.server.max_model_len:
            raise RulerError(f'{task} at {length_name(length)} needs {longest} tokens; the server '
                             f'has --max-model-len {self.server.max_model_len}')
        return ''

    def build(self, path: pathlib.Path, length: int, task: str) -> str:
        """Runs the package's program that makes prompts. -> what kept it from that."""
        text = self.run(
            str(self.package.root / 'data/prepare.py'), '--save_dir', str(path.parents[1]),
            '--benchmark', 'synthetic', '--task', task, '--tokenizer_path', self.server.address,
            '--tokenizer_type', 'nemo', '--max_seq_length', str(length), '--model_template_type',
            'base', '--num_samples', str(self.given.samples),
            timeout_s=self.given.prepare_timeout)
        if not path.exists():
            said = re.search(r'Error output:(.*?)\nPrepare ', text, re.DOTALL)
            return (said[1] if said else text).strip().split('\n')[-1]
        samples = self.samples(path)
        if len(samples) != self.given.samples:
            return f'{len(samples)} of {self.given.samples} were written'
        return '' if all(sample['outputs'] for sample in samples) else NO_ROOM

    @staticmethod
    def samples(path: pathlib.Path) -> list[Sample]:
        """The whole lines of a JSON lines file; [] if there is none."""
        found = []
        if path.exists():
            for line in path.read_text(encoding='utf-8').split('\n'):
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def check_request(self, length: int, task: str) -> None:
        """Sends a prompt as the package does, which repeats a refused one for ever.

        Errors: RulerError with the server's answer.
        """
        sample = self.samples(self.folder(length, 'data') / task / 'validation.jsonl')[0]
        key = self.given.api_key
        request = urllib.request.Request(
            self.server.url, json.dumps({
                'prompt': sample['input'], 'model': self.server.model_name, 'temperature': 0.0,
                'top_p': 1.0, 'seed': 0, 'stop': [], 'max_tokens': 1}).encode(),
            {'Content-Type': 'application/json',
             **({'Authorization': f'Bearer {key}'} if key else {})})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.given.request_timeout):
                pass
        except urllib.error.HTTPError as error:
            raise RulerError(f'{self.server.url} answers {error.code}: '
                             f'{error.read(500).decode(errors="replace")}') from error

    def predict(self, length: int, tasks: Sequence[str]) -> None:
        """The package's own program: it finds the prompts there, asks the server, and scores."""
        pred = self.folder(length, 'pred')
        for path in pred.glob('*.jsonl'):  # the package refuses a line that was cut off
            whole = self.samples(path)
            path.write_text(''.join(json.dumps(sample) + '\n' for sample in whole),
                            encoding='utf-8')
        done = {path.stem for path in pred.glob('*.jsonl')
                if len(self.samples(path)) == self.given.samples}
        if done >= set(tasks) and (pred / 'per_sample_scores.json').exists() \
                and set(json.loads((pred / 'per_sample_scores.json').read_text())) >= set(tasks):
            return
        self.check_request(length, tasks[0])
        self.run(str(self.package.entry), '--result_dir', str(self.out), '--url', self.server.url,
                 '--tasks', ','.join(tasks), '--tokenizer_path', self.server.address,
                 '--tokenizer_type', 'nemo', '--max_seq_length', str(length), '--num_samples',
                 str(self.given.samples), '--model', self.server.model_name, '--mode', 'completion',
                 '--threads', str(self.given.threads), '--timeout',
                 str(self.given.request_timeout), timeout_s=self.given.request_timeout * 2,
                 watched=pred)

    def scores(self, length: int, tasks: Sequence[str]) -> dict[str, TaskScore]:
        """Scores by task. Errors: RulerError: the package's sums are not those of its samples."""
        pred = self.folder(length, 'pred')
        per_sample = json.loads((pred / 'per_sample_scores.json').read_text(encoding='utf-8'))
        name = 'summary.csv' if len(per_sample) > 1 else f'summary-{next(iter(per_sample))}.csv'
        with open(pred / name, encoding='utf-8', newline='') as file:
            rows = {row[0]: row[1:] for row in csv.reader(file)}
        summary = dict(zip(rows['Tasks'], zip(rows['Score'], rows['Nulls'])))
        found: dict[str, TaskScore] = {}
        for task in tasks:
            values = [value / 100 for value in per_sample[task]]
            mean = sum(values) / len(values)
            if abs(mean * 100 - float(summary[task][0])) > 0.006:  # it rounds to two digits
                raise RulerError(f'{pred / name}: {task} has {summary[task][0]}, its samples have '
                                 f'a mean of {mean * 100:.2f}')
            found[task] = {'score': mean, 'interval95': interval95(mean, len(values)),
                           'samples': len(values),
                           'empty_answers': int(summary[task][1].split('/')[0])}
        return found

    def measure(self, lengths: Sequence[int], tasks: Sequence[str]) -> Results:
        """What results.json holds."""
        self.check_owner()
        if not IN_ESSAYS & set(tasks):
            self.sentence_ends = 'not used'
        elif not has_sentence_ends():
            self.sentence_ends = 'trained on the essays'
            learn_sentence_ends(self.package.essays, self.out / 'nltk')
        # The package looks for NLTK's older form too, which nothing reads, and would download it.
        (self.out / 'nltk/tokenizers/punkt').mkdir(parents=True, exist_ok=True)
        results: list[AtLength] = []
        for length in lengths:
            refused = {task: reason for task in tasks if (reason := self.prepare(length, task))}
            built = [task for task in tasks if task not in refused]
            scores: dict[str, TaskScore] = {}
            if built:
                self.predict(length, built)
                scores = self.scores(length, built)
            results.append({'length': length, 'tasks': scores, 'not_built': refused})
            print(f'{length_name(length)}: {len(built)} tasks', file=sys.stderr, flush=True)
        return {'model': self.server.model_name,
                'checkpoint_hash': self.server.job['checkpoint_hash'],
                'package': f'{PACKAGE} {self.package.version}',
                'tokenizer': "the server's, in the place of NeMo's class",
                'sentence_ends': self.sentence_ends, 'lengths': results}


def cells(results: Results) -> list[list[str]]:
    """Rows of the table: the head, one for each task, the mean over tasks."""
    lengths = results['lengths']
    tasks = [task for task in TASKS
             if any(task in at['tasks'] or task in at['not_built'] for at in lengths)]
    rows = [['task', *(length_name(at['length']) for at in lengths)]]
    for task in tasks:
        row = [task]
        for at in lengths:
            each = at['tasks'].get(task)
            row.append('-' if each is None else
                       f'{each["score"]:.0%} ({each["interval95"][0]:.0%} to '
                       f'{each["interval95"][1]:.0%})')
        rows.append(row)
    means = []
    for at in lengths:
        scores = [each['score'] for each in at['tasks'].values()]
        means.append(f'{sum(scores) / len(scores):.1%} of {len(scores)}' if scores else '-')
    return [*rows, ['mean of tasks', *means]]


def report(results: Results) -> str:
    """Markdown."""
    lengths = results['lengths']
    head, *rows = cells(results)
    lines = [f'# RULER: {results["model"]}', '',
             f'{results["package"]}, as it is, through /v1/completions. Score (95% interval, '
             "Wilson's). Sentence ends: " + str(results['sentence_ends']) + '.', '',
             '| ' + ' | '.join(head) + ' |', '|' + '---|' * len(head)]
    lines += ['| ' + ' | '.join(row) + ' |' for row in rows]
    reasons = [f'- {task} at {length_name(at["length"])}: {reason}'
               for at in lengths for task, reason in at['not_built'].items()]
    if reasons:
        lines += ['', 'A dash: the package builds no prompts at this length with this tokenizer.',
                  '', *reasons]
    return '\n'.join(lines) + '\n'


def show(results: Results) -> None:
    """The table on stdout, in columns."""
    rows = cells(results)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def draw(out: pathlib.Path, results: Results) -> None:
    """ruler.svg, where matplotlib is installed."""
    try:
        from lssar import figures
    except ImportError as error:
        print(f'lssar ruler: no figure: {error}', file=sys.stderr)
        return
    figures.draw('ruler', str(out / 'ruler.svg'),
                 [(results['model'], json.loads(json.dumps(results)))])


@contextlib.contextmanager
def serving(given: argparse.Namespace, longest: int) -> Iterator[str]:
    """The gRPC address of the server that is asked. Errors: RulerError."""
    if given.server:
        yield given.server
        return
    from lssar._server import OwnServer, server_program

    flags = ['--max-model-len', str(given.max_model_len or longest + ROOM)]
    if not os.path.isdir(given.model):
        raise RulerError(f'--model: {given.model} is no directory')
    try:
        own = OwnServer(given.model, program=server_program(), flags=flags, has_http=True)
    except (RuntimeError, FileNotFoundError) as error:
        raise RulerError(str(error)) from error
    with own:
        yield own.address


EXAMPLES = '''
Examples:
  lssar ruler results --model models/zoo/lssar-6m --lengths 1K,4K --samples 20
  lssar ruler results --server 127.0.0.1:50051 --tasks niah_single_1,niah_multikey_2,vt
'''


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Errors: RulerError; SystemExit."""
    parser = argparse.ArgumentParser(prog='lssar ruler', description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out', metavar='OUT', type=pathlib.Path)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument('--model', metavar='DIR', help='serve this checkpoint meanwhile')
    where.add_argument('--server', metavar='HOST:PORT', help='gRPC address of a server with HTTP')
    parser.add_argument('--lengths', metavar='LIST', default=LENGTHS,
                        help=f'tokens of prompt and answer [default: {LENGTHS}]')
    parser.add_argument('--tasks', metavar='LIST', default='all',
                        help=f'of {", ".join(TASKS)} [default: all]')
    parser.add_argument('--samples', metavar='N', type=int, default=20,
                        help='prompts of a task and length; RULER has 500 [default: 20]')
    parser.add_argument('--threads', metavar='N', type=int, default=8,
                        help='requests in flight [default: 8]')
    parser.add_argument('--max-model-len', metavar='N', type=int,
                        help=f'of --model [default: the longest length + {ROOM}]')
    parser.add_argument('--request-timeout', metavar='SECONDS', type=int, default=600,
                        help='of one prompt [default: 600]')
    parser.add_argument('--prepare-timeout', metavar='SECONDS', type=float, default=900,
                        help="to build a task's prompts [default: 900]")
    parser.add_argument('--api-key', metavar='KEY', default=os.environ.get('LSSAR_API_KEY'),
                        help='[or LSSAR_API_KEY]')
    parser.add_argument('--json', action='store_true', help='print results.json')
    given = parser.parse_args(words)
    given.lengths = sorted({parse_length(text) for text in given.lengths.split(',')})
    given.tasks = list(TASKS) if given.tasks == 'all' else given.tasks.split(',')
    for task in given.tasks:
        if task not in TASKS:
            raise RulerError(f'--tasks: {task!r} is none of {", ".join(TASKS)}')
    for name in 'samples', 'threads', 'request_timeout', 'prepare_timeout':
        if not getattr(given, name) > 0:
            raise RulerError(f'--{name.replace("_", "-")}: {getattr(given, name)} must be above 0')
    if given.max_model_len is not None and given.server:
        raise RulerError('--max-model-len applies to --model')
    return given


def main(words: Sequence[str] | None = None) -> int:
    """The console script. -> exit code."""
    from lssar.types import LssarError

    def work() -> None:
        given = arguments(words)
        package = find_package()
        with serving(given, max(given.lengths)) as address, \
                tempfile.TemporaryDirectory(prefix='lssar-ruler-') as scratch:
            ruler = Ruler(given, package, read_server(address, given.api_key),
                          pathlib.Path(scratch))
            results = ruler.measure(given.lengths, given.tasks)
        (given.out / 'results.json').write_text(json.dumps(results, indent=1), encoding='utf-8')
        (given.out / 'report.md').write_text(report(results), encoding='utf-8')
        if given.json:
            print(json.dumps(results))
        else:
            show(results)
        draw(given.out, results)

    return exit_code('ruler', work, (RulerError, LssarError, OSError, ValueError))


if __name__ == '__main__':
    sys.exit(main())
