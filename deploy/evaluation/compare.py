"""Puts evaluations of several checkpoints beside each other: two figures and tables.

    python3 compare.py OUT DIR DIR ...

DIR is an OUT of report.py with loss.json, passkey.json and, if it was measured, tasks.json; its
name is the checkpoint's name. Writes OUT/loss.svg, OUT/passkey.svg and OUT/comparison.md.
"""

import argparse
import json
import pathlib
import sys

from lssar_client import figures
from report import Json, length_name, table, task_rows

FILES = 'loss', 'passkey', 'tasks'


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


CELLS = {'loss': loss_cell, 'passkey': passkey_cell}
NOTES = {'loss': 'Nats per token; ± one standard error over rows.',
         'passkey': 'Passkeys found; 95% Wilson intervals.'}
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


def comparison(evaluations: list[tuple[str, Json]]) -> list[str]:
    """comparison.md."""
    lines = ['# ' + ', '.join(name for name, _ in evaluations), '']
    for step, title in TITLES.items():
        if all(step in measured for _, measured in evaluations):
            lines += [f'## {title}', '', f'![{title}]({step}.svg)', '',
                      *length_table(evaluations, step), NOTES[step], '']
    if all('tasks' in measured for _, measured in evaluations):
        lines += ['## Tasks of lm-evaluation-harness', '', *tasks_table(evaluations),
                  '± one standard error.', '']
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', metavar='OUT', type=pathlib.Path)
    parser.add_argument('directories', metavar='DIR', type=pathlib.Path, nargs='+')
    given = parser.parse_args()
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
    path.write_text('\n'.join(comparison(evaluations)), encoding='utf-8')
    print(path)
    return 0


if __name__ == '__main__':
    sys.exit(main())
