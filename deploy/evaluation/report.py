"""Evaluates a checkpoint: tasks of lm-eval, loss and passkeys by length, statistics of attention.

    python3 report.py MODEL_DIR OUT [--tasks DIR] [--ids FILE | --text FILE] [--lengths LIST] ...

deploy/evaluate.sh installs and builds what this needs and runs it. One server serves MODEL_DIR for
all steps. OUT gets report.md, report.html (one file, figures inside), a JSON file for each step,
and a figure beside it. Each number has the command that gives it again.

A step whose JSON file is there is skipped if nothing that it depends on has changed: its command,
the checkpoint, the version of the server, the content of its input files.
"""

import argparse
import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]  # where the paths of tasks begin

DEFAULT_LENGTHS = 1, 2, 4, 8, 16  # times the trained length
DEFAULT_TRIALS = '20,20,10,10,5'
POWERS = '1,3,5,10,15,30,100'
PROSE_COLUMNS = 120
POSITION_LENGTH = 4096
FIGURE_LENGTH = 256
STATISTICS_LENGTH = 4096
FIGURE_KEYS = 64
ACCURACIES = 'acc', 'acc_norm'  # metrics that chance applies to
STEPS = 'tasks', 'loss', 'positions', 'passkey', 'sweep', 'statistics', 'attention'

Json = dict[str, Any]


class EvaluationError(Exception):
    """A sentence for the user."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One measurement: a command that prints JSON, and how the report shows it."""

    name: str
    title: str
    command: list[str]  # as a user types it, without the server's address
    show: Callable[[Json], list[str]]  # lines of Markdown
    inputs: tuple[pathlib.Path, ...] = ()
    figure: str | None = None  # kind of `lssar figure`
    kept: tuple[str, ...] | None = None  # fields of the JSON; None: all
    resumes: bool = False  # the command has --output and --resume


def relative(path: pathlib.Path) -> str:
    """The path as the report names it: from the tree's root if it is inside."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes a file: all of it, or what was there stays."""
    partial = path.with_name(f'partial-{path.name}')
    partial.write_text(text, encoding='utf-8')
    partial.replace(path)


def quoted(command: Sequence[str]) -> str:
    """A command as one line of a shell."""
    return ' '.join(shlex.quote(part) for part in command)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ['---'] * len(head), *rows]
    return ['| ' + ' | '.join(str(cell) for cell in line) + ' |' for line in lines] + ['']


def prose(text: str) -> list[str]:
    """A paragraph in lines of Markdown."""
    return [*textwrap.wrap(text, PROSE_COLUMNS, break_long_words=False), '']


def length_name(length: int) -> str:
    """1024 -> '1K'."""
    return f'{length // 1024}K' if length >= 1024 and length % 1024 == 0 else str(length)


# What the report shows of each step.

def task_rows(result: Json) -> list[list[str]]:
    """[task, items, metric, value, standard error, chance] of each metric."""
    rows = []
    for task, metrics in sorted(result['results'].items()):
        for key, value in metrics.items():
            metric, _, filter_name = key.partition(',')
            if filter_name != 'none' or metric.endswith('_stderr') or not is_number(value):
                continue
            error = metrics.get(f'{metric}_stderr,{filter_name}')
            chance = result['chance'].get(task) if metric in ACCURACIES else None
            rows.append([task, str(result['n-samples'][task]['effective']), metric, f'{value:.4f}',
                         f'{error:.4f}' if is_number(error) else '',
                         '' if chance is None else str(chance)])
    return rows


def show_tasks(result: Json) -> list[str]:
    return table(['task', 'items', 'metric', 'value', 'standard error', 'chance'],
                 task_rows(result))


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def show_loss(result: Json) -> list[str]:
    return table(['length', 'rows', 'nats per token', 'standard error', 'perplexity'],
                 [[length_name(at['length']), at['num_rows'], f'{at["loss"]:.4f}',
                   f'{at["standard_error"]:.4f}' if at['num_rows'] > 1 else '',
                   f'{at["perplexity"]:.2f}'] for at in result['lengths']])


def show_positions(result: Json) -> list[str]:
    return prose(f'{result["num_tokens"]} tokens in {result["num_windows"]} windows: '
                 f'{result["loss"]:.4f} nats per token, {result["bits_per_byte"]:.4f} bits per '
                 'byte.')


def show_passkeys(result: Json) -> list[str]:
    return table(['length', 'found', 'trials', 'accuracy', '95% interval'],
                 [[length_name(at['length']), at['num_hits'], at['num_trials'],
                   f'{at["accuracy"]:.0%}',
                   f'{at["interval95"][0]:.0%} to {at["interval95"][1]:.0%}']
                  for at in result['lengths']])


def show_sweep(result: Json) -> list[str]:
    values = result['values']
    head = [f'{length_name(at["length"])}, {at["num_rows"]} rows' for at in values[0]['lengths']]
    return table(['p', *head],
                 [[f'{value["p"]:g}', *(f'{at["loss"]:.4f}' for at in value['lengths'])]
                  for value in values])


def show_statistics(result: Json) -> list[str]:
    heads = result['statistics']
    layers = sorted({head['layer'] for head in heads})
    rows = []
    for layer in layers:
        own = [head for head in heads if head['layer'] == layer]
        zero = [head['zero'] for head in own]
        negligible = [head['negligible'] for head in own]
        keys = [head['effective_keys'] for head in own]
        first = [head['first_token_mass'] for head in own]
        rows.append([layer, f'{mean(zero):.1%} ({min(zero):.1%} to {max(zero):.1%})',
                     f'{mean(negligible):.1%} '
                     f'({min(negligible):.1%} to {max(negligible):.1%})',
                     f'{mean(keys):.1f} ({min(keys):.1f} to {max(keys):.1f})',
                     f'{mean(first):.2%} ({min(first):.2%} to {max(first):.2%})'])
    return [*prose(f'{heads[0]["num_rows"]} rows of {result["num_prompt_tokens"]} tokens; mean '
                   'over the heads of a layer, in parentheses the smallest and the largest. A key '
                   'is zero if its weight is exactly 0 by the formula, and negligible if its '
                   'weight is below 2^-32 of the row\'s largest, zero or not.'),
            *table(['layer', 'zero keys', 'negligible keys', 'effective keys',
                    'mass on the first token'], rows)]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def show_nothing(_: Json) -> list[str]:
    return []


def programs() -> tuple[str, str, list[str]]:
    """`lssar`, `lssar-server` and the command of lm-eval. Errors: EvaluationError."""
    found = []
    for variable, name in (('LSSAR_CLI', 'lssar'), ('LSSAR_SERVER', 'lssar-server')):
        path = os.environ.get(variable) or shutil.which(name)
        if not path or not os.access(path, os.X_OK):
            raise EvaluationError(f'{name} is neither in PATH nor named by {variable}')
        found.append(os.path.abspath(path))
    return found[0], found[1], [sys.executable, '-m', 'lssar.lm_eval']


def environment() -> dict[str, str]:
    """Without LSSAR_ variables, which would change flags; without a network for lm-eval. Figures
    are drawn by this interpreter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith('LSSAR_')}
    own = str(pathlib.Path(sys.executable).parent)
    return {**kept, 'PATH': own + os.pathsep + kept.get('PATH', ''), 'HF_HUB_OFFLINE': '1',
            'HF_DATASETS_OFFLINE': '1', 'PYTHONDONTWRITEBYTECODE': '1', 'TOKENIZERS_PARALLELISM':
            'false'}


@contextlib.contextmanager
def serving(server: str, model: pathlib.Path, flags: Sequence[str]) -> Iterator[str]:
    """The address of a server of the checkpoint. Errors: EvaluationError."""
    from lssar._server import OwnServer

    try:
        process = OwnServer(str(model), program=server, flags=flags, environment=environment())
    except RuntimeError as error:
        raise EvaluationError(str(error)) from error
    with process:
        yield process.address


def trained_length(model: pathlib.Path) -> int:
    """From config.json. Errors: EvaluationError."""
    path = model / 'config.json'
    try:
        config = json.loads(path.read_text(encoding='utf-8'))
        return int(config.get('n_positions') or config['max_position_embeddings'])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvaluationError(f'{path}: no n_positions: {error!r}') from error


def check_files(given: argparse.Namespace) -> None:
    """All files and values of the arguments, before anything takes time. Errors: EvaluationError.
    """
    for name in ('config.json', 'model.safetensors'):
        if not list(given.model.glob(name + '*')):
            raise EvaluationError(f'{given.model / name} does not exist: give the directory of a '
                                  'checkpoint')
    for name, path in ('--ids', given.ids), ('--text', given.text):
        if path is not None and not path.is_file():
            raise EvaluationError(f'{name}: {path} is no file')
    if given.text is not None:
        try:
            given.text.read_text(encoding='utf-8')
        except UnicodeDecodeError as error:
            raise EvaluationError(f'--text: {given.text} is not UTF-8 at byte {error.start}'
                                  ) from None
    if given.ids is None and given.text is None and not (given.model / 'held_out.bin').exists():
        raise EvaluationError(f'{given.model / "held_out.bin"} does not exist: give --ids FILE '
                              '(uint16) or --text FILE')
    if not given.tasks.is_dir():
        raise EvaluationError(f'--tasks: {given.tasks} is no directory')
    for path in given.tasks.glob('*.yaml'):
        task_name(path)
    if given.lengths:
        parse_lengths(given.lengths)
    for name in ('trials', 'p'):
        for part in getattr(given, name).split(','):
            if not re.fullmatch(r'[0-9]*\.?[0-9]+', part) or not float(part) > 0:
                raise EvaluationError(f'--{name}: {part!r} is no number above 0')
    for name in (given.steps or '').split(',') if given.steps else ():
        if name not in STEPS:
            raise EvaluationError(f'--steps: {name!r} is none of {", ".join(STEPS)}')
    check_length_of_ids(given)
    check_owner(given.out, given.model)


def check_length_of_ids(given: argparse.Namespace) -> None:
    """The shortest row fits in the ids, where a file has them. Errors: EvaluationError."""
    if given.text is None:
        ids = given.ids or given.model / 'held_out.bin'
        num_ids = ids.stat().st_size // 2
        shortest = parse_lengths(given.lengths)[0] if given.lengths else trained_length(given.model)
        if shortest >= num_ids:
            raise EvaluationError(f'{ids}: {num_ids} ids are too few for rows of {shortest}')


def check_owner(out: pathlib.Path, model: pathlib.Path) -> None:
    """Results in `out` are this checkpoint's, and files there are results. Errors: EvaluationError.
    """
    path = out / 'checkpoint.json'
    if not path.exists() and out.is_dir() and list(out.iterdir()):
        raise EvaluationError(f'{out} has other files and no checkpoint.json: give another OUT')
    if path.exists():
        try:
            owner = json.loads(path.read_text(encoding='utf-8'))['path']
        except (ValueError, KeyError, TypeError):
            raise EvaluationError(f'{path} does not name a checkpoint: give another OUT') from None
        if owner != str(model.resolve()):
            raise EvaluationError(f'{out} has the results of {owner}: give another OUT')


class Evaluation:
    """The steps of one checkpoint, with their results in a folder."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.out: pathlib.Path = given.out
        self.cli, self.server, self.lm_eval = programs()
        self.out.mkdir(parents=True, exist_ok=True)
        self.state_path = self.out / 'steps.json'
        self.state: Json = {}
        if self.state_path.exists():
            # One that was cut off, by an earlier version, keeps no step.
            with contextlib.suppress(ValueError):
                self.state = json.loads(self.state_path.read_text(encoding='utf-8'))
        self.info: Json = {}
        self.address = ''

    def server_flags(self) -> list[str]:
        """A row of L tokens needs a context of L + 1."""
        longest = max(self.lengths())
        device = ['--device', self.given.device] if self.given.device else []
        return ['--max-model-len', str(longest + 1), '--allow-attention-override', *device]

    def lengths(self) -> list[int]:
        """The lengths to measure, in tokens."""
        if self.given.lengths:
            return parse_lengths(self.given.lengths)
        return [trained_length(self.given.model) * times for times in DEFAULT_LENGTHS]

    def run_cli(self, *arguments: str, **options: Any) -> str:
        """stdout of `lssar`. Errors: EvaluationError."""
        done = subprocess.run([self.cli, *arguments], stdout=subprocess.PIPE, check=False,
                              env=environment(), text=True, **options)
        if done.returncode:
            raise EvaluationError(f'this failed (exit code {done.returncode}): lssar '
                                  f'{quoted(arguments)}')
        return done.stdout

    def ids_file(self) -> pathlib.Path:
        """Token ids of the evaluation text: --ids, --text or the checkpoint's own."""
        if self.given.ids:
            return pathlib.Path(self.given.ids)
        if self.given.text:
            return self.tokenized(self.given.text)
        own: pathlib.Path = self.given.model / 'held_out.bin'
        if not own.exists():
            raise EvaluationError(f'{own} does not exist: give --ids FILE (uint16) or --text FILE')
        return own

    def tokenized(self, path: pathlib.Path) -> pathlib.Path:
        """A file of uint16 ids of a text. Errors: EvaluationError."""
        from lssar import Client
        with Client(self.address) as client:
            ids = client.tokenize(path.read_text(encoding='utf-8'))
        if max(ids) > 65535:
            raise EvaluationError(f'{path}: id {max(ids)} does not fit in uint16')
        target = self.out / 'ids.bin'
        target.write_bytes(b''.join(token.to_bytes(2, 'little') for token in ids))
        return target

    def steps(self) -> list[Step]:
        """All steps, in the order of the report."""
        ids = self.ids_file()
        num_ids = ids.stat().st_size // 2
        lengths = [length for length in self.lengths() if length < num_ids]
        if not lengths:
            raise EvaluationError(f'{ids}: {num_ids} ids are too few for rows of '
                                  f'{min(self.lengths())}')
        passkeys = [length for length in self.lengths() if length >= 150]
        trials = self.given.trials.split(',')[:len(passkeys)]
        trials += trials[-1:] * (len(passkeys) - len(trials))
        given_ids = ['--ids', relative(ids)]
        rows = [] if self.given.rows is None else ['--rows', str(self.given.rows)]
        top = min(max(lengths), num_ids - 1)

        def listed(values: Sequence[object]) -> str:
            return ','.join(map(str, values))

        steps = []
        tasks = sorted(self.given.tasks.glob('*.yaml'))
        if tasks:
            names = [task_name(path) for path in tasks]
            files = tuple(sorted(path for path in self.given.tasks.iterdir() if path.is_file()))
            steps.append(Step(
                'tasks', 'Tasks of lm-evaluation-harness',
                ['lssar-lm-eval', '--model', 'lssar', '--tasks', listed(names), '--include_path',
                 relative(self.given.tasks)],
                show_tasks, files, kept=('results', 'n-samples', 'chance', 'items')))
        steps += [
            Step('loss', 'Loss by length',
                 ['lssar', 'score', *given_ids, '--lengths', listed(lengths), *rows, '--json'],
                 show_loss,
                 (ids,), 'loss'),
            Step('positions', 'Loss by position',
                 ['lssar', 'perplexity', *given_ids, '--max-length',
                  str(min(POSITION_LENGTH, top)), '--by-position', '--json'],
                 show_positions, (ids,), 'positions')]
        if passkeys and self.info['tokenizer_hash']:
            steps.append(Step('passkey', 'Passkeys by length',
                              ['lssar', 'passkey', '--lengths', listed(passkeys), '--trials',
                               listed(trials), '--json'], show_passkeys, (), 'passkey',
                              resumes=True))
        if has_power(self.info):
            steps.append(Step('sweep', 'Loss by length for other powers p',
                              ['lssar', 'sweep', *given_ids, '--p', self.given.p, '--lengths',
                               listed(lengths[:3]), '--json'], show_sweep, (ids,), 'sweep'))
        return steps + [
            Step('statistics', 'Statistics of attention',
                 ['lssar', 'attention', *given_ids, '--length', str(min(STATISTICS_LENGTH, top)),
                  '--statistics', '--json'], show_statistics, (ids,),
                 kept=('num_prompt_tokens', 'attention', 'statistics')),
            Step('attention', 'Attention maps',
                 ['lssar', 'attention', *given_ids, '--length', str(min(FIGURE_LENGTH, top)),
                  '--rows', 'all', '--top-k', str(FIGURE_KEYS), '--json'], show_nothing, (ids,),
                 'attention', kept=('num_prompt_tokens', 'tokens', 'rows'))]

    def chosen_steps(self) -> list[Step]:
        """The steps of --steps. Errors: EvaluationError."""
        steps = self.steps()
        if self.given.steps is None:
            return steps
        names = self.given.steps.split(',')
        for name in names:
            if name not in [step.name for step in steps]:
                raise EvaluationError(f'--steps: {name!r} is none of '
                                      f'{", ".join(step.name for step in steps)}')
        return [step for step in steps if step.name in names]

    def key(self, step: Step) -> str:
        """A hash of all that the step's result depends on."""
        files = {relative(path): hashlib.sha256(path.read_bytes()).hexdigest()
                 for path in step.inputs}
        known = {field: self.info[field] for field in (
            'checkpoint_hash', 'tokenizer_hash', 'config_hash', 'version', 'dtype',
            'kv_cache_dtype', 'device')}
        text = json.dumps([step.command, self.server_flags(), files, known], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def inputs_hash(self, step: Step) -> str:
        """A hash of the texts that a step measures, whatever they are called: parts of two results
        that have the same one are of the same text (compare.py). Ids and passkeys, which are made
        of so many tokens, are texts by a tokenizer; tasks are texts."""
        texts = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in step.inputs)
        if step.name != 'tasks':
            texts.append(self.info['tokenizer_hash'])
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]

    def json_path(self, step: Step) -> pathlib.Path:
        return self.out / f'{step.name}.json'

    def figure_path(self, step: Step) -> pathlib.Path:
        """Maps are pictures; curves are drawings."""
        return self.out / f'{step.name}.{"png" if step.figure == "attention" else "svg"}'

    def run(self, step: Step) -> None:
        """Runs the step and its figure if their results are not there."""
        key = self.key(step)
        path = self.json_path(step)
        if path.exists() and self.state.get(step.name, {}).get('key') == key:
            print(f'{step.name}: kept', flush=True)
        else:
            print(f'{step.name}: {quoted(step.command)}', flush=True)
            started = time.monotonic()
            partial = self.out / f'{step.name}-{key[:16]}.jsonl'
            for left in set(self.out.glob(f'{step.name}-*.jsonl')) - {partial}:
                left.unlink()  # of a run that was stopped, and measured something else
            result = self.measure(step, partial) | {'inputs_hash': self.inputs_hash(step)}
            partial.unlink(missing_ok=True)
            seconds = time.monotonic() - started
            write_whole(path, json.dumps(result, ensure_ascii=False) + '\n')
            self.figure_path(step).unlink(missing_ok=True)
            self.state[step.name] = {'key': key, 'seconds': round(seconds, 1)}
            write_whole(self.state_path, json.dumps(self.state, indent=1) + '\n')
            print(f'{step.name}: {seconds:.1f} s', flush=True)
        if step.figure and not self.figure_path(step).exists():
            drawn = self.figure_path(step)
            partial = drawn.with_name(f'partial-{drawn.name}')
            self.run_cli('figure', step.figure, str(partial), f'{self.info["model_name"]}={path}')
            partial.replace(drawn)

    def measure(self, step: Step, partial: pathlib.Path) -> Json:
        """The JSON of a step's command. `partial`: keeps what a stopped run has measured."""
        program, *arguments = step.command
        if step.resumes:
            arguments += ['--output', str(partial), '--resume']
        if program == 'lssar-lm-eval':
            result = self.run_lm_eval(arguments)
        else:
            printed = self.run_cli(*arguments, '--server', self.address, cwd=ROOT)
            result = json.loads(printed.splitlines()[-1])
        return result if step.kept is None else {name: result[name] for name in step.kept}

    def run_lm_eval(self, arguments: Sequence[str]) -> Json:
        """lm-eval's results file; `chance` has the accuracy of guessing, from tasks' metadata,
        `items` each metric of each document, in the documents' order."""
        with tempfile.TemporaryDirectory() as folder:
            command = [*self.lm_eval, *arguments, '--model_args', f'server={self.address}',
                       '--output_path', folder, '--log_samples', '--verbosity', 'ERROR']
            done = subprocess.run(command, cwd=ROOT, env={**environment(), 'HF_HOME': folder},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)
            files = list(pathlib.Path(folder).rglob('results_*.json'))
            if done.returncode or len(files) != 1:
                last = '\n'.join(done.stdout.splitlines()[-15:])
                raise EvaluationError(f'lm-eval failed (exit code {done.returncode}):\n{last}')
            result = dict(json.loads(files[0].read_text(encoding='utf-8')))
            result['items'] = {
                task: item_metrics(pathlib.Path(folder).rglob(f'samples_{task}_*.jsonl'))
                for task in result['results']}
        result['chance'] = {name: config['metadata']['chance']
                            for name, config in result['configs'].items()
                            if 'chance' in (config.get('metadata') or {})}
        return result

    def evaluate(self) -> None:
        """Runs the steps and writes the report."""
        with serving(self.server, self.given.model, self.server_flags()) as address:
            self.address = address
            self.info = json.loads(self.run_cli('info', '--server', address, '--json'))
            owner = {'path': str(self.given.model.resolve()),
                     'checkpoint_hash': self.info['checkpoint_hash']}
            write_whole(self.out / 'checkpoint.json', json.dumps(owner) + '\n')
            steps = self.chosen_steps()
            for step in steps:
                self.run(step)
        write_report(self, steps)


def item_metrics(paths: Iterator[pathlib.Path]) -> dict[str, list[float]]:
    """{metric: its value of each document} of lm-eval's samples of a task. That of `perplexity` is
    the document's log-likelihood (compare.py, OF_ITEM)."""
    samples = [json.loads(line) for path in paths
               for line in path.read_text(encoding='utf-8').splitlines()]
    samples.sort(key=lambda sample: sample['doc_id'])
    return {metric: [sample[metric] for sample in samples]
            for metric in (samples[0]['metrics'] if samples else ())
            if all(is_number(sample.get(metric)) for sample in samples)}


def task_name(path: pathlib.Path) -> str:
    """The name in a task's file. Errors: EvaluationError."""
    found = re.search(r'^task: *(\S+)', path.read_text(encoding='utf-8'), re.MULTILINE)
    if found is None:
        raise EvaluationError(f'{path}: no line "task: NAME"')
    return found.group(1)


def has_power(info: Json) -> bool:
    """Whether the attention re-weights. attention_p of `lssar info` is null where layers differ."""
    from lssar.checkpoints.settings import KINDS_WITH_P
    return any(kind in KINDS_WITH_P for kind in info['attention_kind'].split(', '))


def parse_lengths(text: str) -> list[int]:
    """'1K,2048' -> [1024, 2048]. Errors: EvaluationError."""
    lengths = []
    for part in text.split(','):
        found = re.fullmatch(r'([0-9]{1,7})(K?)', part.strip())
        if found is None or int(found.group(1)) == 0:
            raise EvaluationError(f'--lengths: {part!r} is no number of tokens, as in 512 or 4K')
        lengths.append(int(found.group(1)) * (1024 if found.group(2) else 1))
    return sorted(set(lengths))


def report_lines(evaluation: Evaluation, steps: Sequence[Step]) -> list[str]:
    """The report in Markdown."""
    info = evaluation.info
    attention = info['attention_kind']
    if has_power(info):
        attention += f', p = {info["attention_p"]:g}' if info['attention_p'] else ', p by layer'
    lines = [
        f'# Evaluation of {info["model_name"]}', '',
        *table(['', ''], [
            ['checkpoint', f'`{info["checkpoint_hash"]}`'],
            ['parameters', f'{info["num_parameters"]:,}'],
            ['attention', attention],
            ['shape', f'{info["num_hidden_layers"]} layers, {info["num_attention_heads"]} heads, '
                      f'hidden size {info["hidden_size"]}'],
            ['trained length', f'{info["max_position_embeddings"]} tokens'],
            ['weights, K/V', f'{info["dtype"]}, {info["kv_cache_dtype"]}'],
            ['backend', f'{info["backend"]}; lssar {info["version"]}']]),
        *prose('Every number below comes from the JSON file that its section names. The command '
               'before it gives it again, from the root of the source tree and with this server '
               'running:'),
        '    ' + quoted(['lssar-server', '--model', relative(evaluation.given.model),
                         *evaluation.server_flags()]), '']
    for step in steps:
        path = evaluation.json_path(step)
        result = json.loads(path.read_text(encoding='utf-8'))
        lines += [f'## {step.title}', '', f'    {quoted(step.command)}']
        if step.figure:
            figure = evaluation.figure_path(step).name
            lines += ['    ' + quoted(['lssar', 'figure', step.figure, figure,
                                       f'{info["model_name"]}={path.name}']), '',
                      f'![{step.title}]({figure})']
        lines += ['', *step.show(result), f'Data: `{path.name}`.', '']
    return lines


STYLE = '''body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; color: #1b1f24; background: #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; border-bottom: 1px solid #c9d1d9; text-align: left; }
pre { background: #f4f6f8; padding: .6rem; overflow-x: auto; } img { max-width: 100%; }'''
TYPES = {'.svg': 'image/svg+xml', '.png': 'image/png'}


def write_report(evaluation: Evaluation, steps: Sequence[Step]) -> None:
    """report.md, and report.html with the figures inside."""
    import markdown
    text = '\n'.join(report_lines(evaluation, steps))
    (evaluation.out / 'report.md').write_text(text, encoding='utf-8')

    def inline(found: re.Match[str]) -> str:
        path = evaluation.out / found.group(1)
        data = base64.b64encode(path.read_bytes()).decode()
        return f'src="data:{TYPES[path.suffix]};base64,{data}"'

    body = re.sub(r'src="([^":]+)"', inline, markdown.markdown(text, extensions=['tables']))
    title = f'Evaluation of {evaluation.info["model_name"]}'
    (evaluation.out / 'report.html').write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style></head>\n'
        f'<body>\n{body}\n</body></html>\n', encoding='utf-8')
    print(f'{evaluation.out / "report.md"}, {evaluation.out / "report.html"}')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('model', metavar='MODEL_DIR', type=pathlib.Path)
    parser.add_argument('out', metavar='OUT', type=pathlib.Path)
    parser.add_argument('--tasks', metavar='DIR', type=pathlib.Path, default=HERE / 'tasks',
                        help='lm-eval task files (*.yaml) and their data [default: beside this]')
    source = parser.add_mutually_exclusive_group()
    source.add_argument('--ids', metavar='FILE', type=pathlib.Path,
                        help='token ids to score: uint16 [default: MODEL_DIR/held_out.bin]')
    source.add_argument('--text', metavar='FILE', type=pathlib.Path,
                        help='a text to score instead of ids')
    parser.add_argument('--lengths', metavar='LIST',
                        help='tokens, as in 1K,2K [default: 1, 2, 4, 8, 16 times the trained]')
    parser.add_argument('--rows', metavar='N', type=int,
                        help='rows of each length [default: 8, or what 32K tokens and text hold]')
    parser.add_argument('--trials', metavar='LIST', default=DEFAULT_TRIALS,
                        help=f'passkey documents of each length [default: {DEFAULT_TRIALS}]')
    parser.add_argument('--steps', metavar='LIST',
                        help='only these, as in tasks,loss,passkey [default: all]')
    parser.add_argument('--p', metavar='LIST', default=POWERS,
                        help=f'powers of the sweep [default: {POWERS}]')
    parser.add_argument('--device', metavar='DEVICE',
                        help='of the server: cpu or cuda[:N] [default: cpu]')
    parser.add_argument('--check', action='store_true',
                        help='check the arguments and their files, and do nothing else')
    given = parser.parse_args()
    try:
        check_files(given)
        if not given.check:
            Evaluation(given).evaluate()
    except (EvaluationError, OSError) as error:
        print(f'evaluate: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
