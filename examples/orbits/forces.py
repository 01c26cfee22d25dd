"""Asks a server for the forces that fine-tuned checkpoints predict, and measures them.

    forces.py OUT NAME=RUN...      RUN: a folder of models/training/orbits/train.py

Serves RUN/vector and RUN/magnitude, and takes the regression head's outputs of every token from
Embed. Writes OUT/forces.json (error by planet, all vectors) and OUT/magnitudes.json (the points of
law.py). Needs the Python package lssar with lssar-server in it or in PATH, and numpy.
"""

import argparse
import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / 'models/training/orbits'))

import systems  # noqa: E402
from lssar import LLM  # noqa: E402

DIGITS = 5  # of the vectors in forces.json


def served(directory, ids):
    """The head's outputs where a step is complete, [rows, steps, outputs]."""
    steps = systems.y_positions((ids.shape[1] - 1) // 2)
    with LLM(str(directory), dtype='fp32', kv_cache_dtype='fp32') as llm:
        vectors = llm.embed([row.tolist() for row in ids], pooling='token', apply_head=True)
    return np.stack(vectors)[:, steps]


def angles(a, b):
    """Degrees between vectors."""
    cosine = (a * b).sum(-1) / np.maximum(np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1),
                                          1e-12)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def planet_errors(data, found):
    """For each planet, over the steps whose force was not known in training."""
    rows = []
    for i, (name, *_) in enumerate(systems.PLANETS):
        unknown = ~data.is_labelled[i]
        true, mine = data.targets[i][unknown], found[i][unknown]
        size = np.linalg.norm(true, axis=-1)
        off = np.abs(np.linalg.norm(mine, axis=-1) - size) / size
        rest = ((true - mine)**2).sum() / ((true - true.mean(0))**2).sum()
        rows.append({'planet': name, 'steps': int(unknown.sum()),
                     'angle_degrees': float(angles(true, mine).mean()),
                     'magnitude_error': float(off.mean()), 'r2': float(1 - rest)})
    return rows


def magnitude_points(data, found):
    """The steps of held-out systems whose force was not known: distance, star, true, found."""
    row, step = np.nonzero(~data.is_labelled)
    distance = np.linalg.norm(data.places, axis=-1)[row, step]
    return {'distance_au': distance.tolist(), 'star_suns': data.systems.star[row].tolist(),
            'true': (10.0 ** data.targets[row, step, 0]).tolist(),
            'predicted': (10.0 ** found[row, step, 0].astype(float)).tolist()}


def error_of_magnitudes(points):
    """Median and 90th percentile of the relative error, R^2 of the logarithms."""
    true, mine = np.array(points['true']), np.array(points['predicted'])
    off = np.abs(mine / true - 1)
    logs = np.log(true), np.log(mine)
    rest = ((logs[0] - logs[1])**2).sum() / ((logs[0] - logs[0].mean())**2).sum()
    return {'points': len(true), 'median_error': float(np.median(off)),
            'error_p90': float(np.quantile(off, 0.9)), 'r2_of_log': float(1 - rest)}


def measure(run):
    """What forces.json and magnitudes.json hold of a run."""
    with open(run / 'vector/training.json') as file:
        training = json.load(file)
    preset, seed = training['preset'], training['seed']
    grid = systems.Grid(preset['bins'])
    data = systems.vector_data(grid, preset['orbit_steps'], seed)
    found = served(run / 'vector', data.ids)
    force = {'training': training, 'planets': planet_errors(data, found),
             'labelled': data.is_labelled.tolist(), 'places': data.places.round(DIGITS).tolist(),
             'true': data.targets.round(DIGITS).tolist(),
             'predicted': found.astype(float).round(DIGITS).tolist()}
    with open(run / 'orbits/training.json') as file:
        force['quality'] = json.load(file)['quality']
    data = systems.magnitude_data(grid, preset['orbit_steps'], seed, preset['magnitude_systems'])
    first = len(data.ids) - len(data.ids) // 10  # of the held-out systems
    found = np.full(data.targets.shape, np.nan, np.float32)
    found[first:] = served(run / 'magnitude', data.ids[first:])
    points = magnitude_points(data, found)
    force['magnitude'] = error_of_magnitudes(points)
    return force, points


def table(forces):
    """Markdown: a line for each planet, three columns for each run."""
    names = list(forces)
    head = ['planet'] + [f'{name}: {what}' for name in names
                         for what in ('angle', 'magnitude', 'R²')]
    lines = [head, ['---'] * len(head)]
    for i, (planet, *_) in enumerate(systems.PLANETS):
        cells = [planet]
        for name in names:
            row = forces[name]['planets'][i]
            cells += [f'{row["angle_degrees"]:.1f}°', f'{row["magnitude_error"]:.1%}',
                      f'{row["r2"]:.3f}']
        lines.append(cells)
    return '\n'.join('| ' + ' | '.join(cells) + ' |' for cells in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', type=pathlib.Path)
    parser.add_argument('runs', metavar='NAME=RUN', nargs='+')
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    forces, magnitudes = {}, {}
    for run in given.runs:
        name, _, path = run.partition('=')
        forces[name], magnitudes[name] = measure(pathlib.Path(path))
    for name, content in ('forces', forces), ('magnitudes', magnitudes):
        (given.out / f'{name}.json').write_text(json.dumps(content), encoding='utf-8')
    print(table(forces))
    for name, force in forces.items():
        print(name, json.dumps({**force['quality'], 'magnitude': force['magnitude']}))


if __name__ == '__main__':
    main()
