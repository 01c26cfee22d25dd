"""Puts evaluations of several checkpoints beside each other: two figures and tables.

    python3 compare.py OUT DIR DIR ...

DIR is an OUT of report.py with loss.json, passkey.json and, if it was measured, tasks.json; its
name is the checkpoint's name. Writes OUT/loss.svg, OUT/passkey.svg and OUT/comparison.md.

Differences are paired: each row, passkey document and task item of a checkpoint is compared with
the same one of the first checkpoint, where both are of the same text (inputs_hash, which results of
older reports lack). Their standard error is that of the mean of the differences,
which is often far below those of the two means: the same text is hard for both.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Sequence

from lssar import figures
from report import Json, length_name, table, task_rows

FILES = 'loss', 'passkey', 'tasks'
# What lm-eval's samples have of an item, where it is not what the metric's name says: perplexity is
# made of the items' log-likelihoods.
OF_ITEM = {'perplexity': 'log-likelihood (nats, higher is better)'}


def read(directory: pathlib.Path) -> Json:
    """{step: its JSON}, of the steps that were measured."""
    return {name: json.loads((directory / f'{name}.json').read_text(encoding='utf-8'))
            for name in FILES if (directory / f'{name}.json').exists()}


def by_length(evaluations: list[tuple[str, Json]], step: str) -> list[int]:
    """The lengths that every evaluation has."""
    common = set.intersection(*({at['length'] for at in measured[step]['lengths']}
                                for _, measured in evaluations))
    return sorted(common)


def loss_cell(at: Json) -> str:
    error = f' ± {at["standard_error"]:.3f}' if at['num_rows'] > 1 else ''
    return f'{at["loss"]:.3f}{error}'


def passkey_cell(at: Json) -> str:
    low, high = at['interval95']
    return f'{at["num_hits"]} of {at["num_trials"]} ({low:.0%} to {high:.0%})'


def paired(first: Sequence[float], other: Sequence[float], digits: int) -> str:
    """'-0.123 ± 0.004': the mean of other - first and its standard error."""
    differences = [b - a for a, b in zip(first, other, strict=True)]
    cell = f'{statistics.fmean(differences):+.{digits}f}'
    if len(differences) < 2:
        return cell
    return f'{cell} ± {statistics.stdev(differences) / math.sqrt(len(differences)):.{digits}f}'


def parts(measured: Json, step: str, length: int) -> dict[object, float]:
    """The loss of each row of a length, or 1 or 0 of each passkey document, by what it is. A row
    without its last token is another than the whole row."""
    text = measured[step].get('inputs_hash')
    if step == 'loss':
        [at] = [each for each in measured['loss']['lengths'] if each['length'] == length]
        return {(text, i, at.get('is_last_left_out', False)): loss
                for i, loss in enumerate(at.get('row_losses', []))}
    return {(text, trial['key'], trial['depth']): float(trial['is_hit'])
            for trial in measured['passkey'].get('trials', []) if trial['length'] == length}


def difference_table(evaluations: list[tuple[str, Json]], step: str) -> list[str]:
    """A row for each checkpoint after the first; empty where the parts were not kept, and a note
    where they are not the same."""
    lengths = by_length(evaluations, step)
    (_, base), *others = evaluations
    rows = []
    for name, measured in others:
        cells = []
        for length in lengths:
            first, other = parts(base, step, length), parts(measured, step, length)
            if not first or not other:
                cells.append('')
            elif first.keys() == other.keys():
                cells.append(paired(list(first.values()), [other[key] for key in first], 3))
            else:
                cells.append(NOT_PAIRED[step])
        rows.append([name, *cells])
    if not any(cell for _, *cells in rows for cell in cells):
        return []
    return ['Paired differences from ' + evaluations[0][0] + ':', '',
            *table(['', *map(length_name, lengths)], rows)]


def task_difference_table(evaluations: list[tuple[str, Json]]) -> list[str]:
    """A row for each metric of each item that every evaluation has, if all have the same tasks."""
    (first_name, base), *others = evaluations
    text = base['tasks'].get('inputs_hash')
    different = [name for name, measured in others if measured['tasks'].get('inputs_hash') != text]
    if different:
        return [f'Not paired: the tasks of {", ".join(different)} are other files than those of '
                f'{first_name}.', '']
    rows = []
    for task, metrics in sorted(base['tasks'].get('items', {}).items()):
        for metric, first in metrics.items():
            found = [measured['tasks'].get('items', {}).get(task, {}).get(metric)
                     for _, measured in others]
            if all(other is not None and len(other) == len(first) for other in found):
                rows.append([task, OF_ITEM.get(metric, metric), len(first),
                             *(paired(first, other, 4) for other in found if other is not None)])
    if not rows:
        return []
    return ['Paired differences from ' + first_name + ':', '',
            *table(['task', 'metric', 'items', *(name for name, _ in others)], rows)]


def read_owner(directory: pathlib.Path) -> Json:
    """{'path', 'checkpoint_hash'} of the checkpoint; {}: an older report did not keep it."""
    path = directory / 'checkpoint.json'
    return dict(json.loads(path.read_text(encoding='utf-8'))) if path.exists() else {}


def check_different(directories: Sequence[pathlib.Path]) -> None:
    """Every name, directory and checkpoint once. Errors: ValueError."""
    seen: dict[tuple[str, str], pathlib.Path] = {}
    for directory in directories:
        path = directory.resolve()
        keys = [('name', path.name), ('directory', str(path))]
        if checkpoint := read_owner(directory).get('checkpoint_hash'):
            keys.append(('checkpoint', checkpoint))
        for what, value in keys:
            other = seen.setdefault((what, value), directory)
            if other is not directory:
                raise ValueError(f'{other} and {directory} have the same {what}, {value}')


CELLS = {'loss': loss_cell, 'passkey': passkey_cell}
NOTES = {'loss': 'Nats per token; ± one standard error over rows.',
         'passkey': 'Passkeys found; 95% Wilson intervals.'}
NOT_PAIRED = {'loss': 'other tokens', 'passkey': 'other documents'}
TITLES = {'loss': 'Loss by length', 'passkey': 'Passkeys by length'}


def length_table(evaluations: list[tuple[str, Json]], step: str) -> list[str]:
    """A row for each checkpoint, a column for each length."""
    lengths = by_length(evaluations, step)
    rows = []
    for name, measured in evaluations:
        at = {each['length']: each for each in measured[step]['lengths']}
        rows.append([name, *(CELLS[step](at[length]) for length in lengths)])
    return table(['', *map(length_name, lengths)], rows)


def tasks_table(evaluations: list[tuple[str, Json]]) -> list[str]:
    """A row for each metric that every evaluation has, a column for each checkpoint."""
    cells: dict[tuple[str, str], list[str]] = {}
    for _, measured in evaluations:
        for task, items, metric, value, error, chance in task_rows(measured['tasks']):
            row = cells.setdefault((task, metric), [items, chance])
            row.append(value + (f' ± {error}' if error else ''))
    rows = [[task, metric, *row] for (task, metric), row in cells.items()
            if len(row) == 2 + len(evaluations)]
    names = [name for name, _ in evaluations]
    return table(['task', 'metric', 'items', 'chance', *names], rows)


def comparison(evaluations: list[tuple[str, Json]], owners: Sequence[Json]) -> list[str]:
    """comparison.md."""
    lines = ['# ' + ', '.join(name for name, _ in evaluations), '']
    if any(owners):
        lines += table(['', 'checkpoint', 'directory'],
                       [[name, *(f'`{owner.get(field, "")}`'
                                 for field in ('checkpoint_hash', 'path'))]
                        for (name, _), owner in zip(evaluations, owners, strict=True)])
    for step, title in TITLES.items():
        if all(step in measured for _, measured in evaluations):
            lines += [f'## {title}', '', f'![{title}]({step}.svg)', '',
                      *length_table(evaluations, step), NOTES[step], '',
                      *difference_table(evaluations, step)]
    if all('tasks' in measured for _, measured in evaluations):
        lines += ['## Tasks of lm-evaluation-harness', '', *tasks_table(evaluations),
                  '± one standard error.', '', *task_difference_table(evaluations)]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', metavar='OUT', type=pathlib.Path)
    parser.add_argument('directories', metavar='DIR', type=pathlib.Path, nargs='+')
    given = parser.parse_args()
    try:
        check_different(given.directories)
    except ValueError as error:
        print(f'compare: {error}', file=sys.stderr)
        return 1
    evaluations = [(directory.resolve().name, read(directory)) for directory in given.directories]
    empty = [name for name, measured in evaluations if not measured]
    if empty:
        print(f'compare: {", ".join(empty)}: no loss.json, passkey.json or tasks.json',
              file=sys.stderr)
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    for step in TITLES:
        if all(step in measured for _, measured in evaluations):
            figures.draw(step, str(given.out / f'{step}.svg'),
                         [(name, measured[step]) for name, measured in evaluations])
    path = given.out / 'comparison.md'
    owners = [read_owner(directory) for directory in given.directories]
    path.write_text('\n'.join(comparison(evaluations, owners)), encoding='utf-8')
    print(path)
    return 0


if __name__ == '__main__':
    sys.exit(main())
