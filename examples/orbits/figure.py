"""Draws the forces of forces.py around the Sun: true, and as each model predicts them.

    figure.py OUT/forces.json forces.svg
"""

import json
import sys

import matplotlib

matplotlib.use('Agg')
matplotlib.rcParams.update({'svg.hashsalt': 'lssar', 'svg.fonttype': 'none', 'font.size': 8,
                            'font.sans-serif': ['DejaVu Sans', 'Verdana', 'sans-serif']})

import numpy as np  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

ARROWS = 24  # of a planet: about one orbit
REACH = 1.5  # of a panel, in the orbit's largest radius
NAMES = ('Mercury', 'Venus', 'Earth', 'Mars', 'Jupiter', 'Saturn', 'Uranus', 'Neptune')
COLOURS = {'true': '#0a7e8c'}
PREDICTED = '#c2185b'


def draw(forces):
    """A column for each planet, a line for the truth and for each model."""
    first = next(iter(forces.values()))
    lines = [('true', first, 'true'), *((name, force, 'predicted')
                                        for name, force in forces.items())]
    figure = Figure(figsize=(1.35 * len(NAMES), 1.45 * len(lines)), layout='constrained')
    panels = figure.subplots(len(lines), len(NAMES), squeeze=False)
    for line, (name, force, field) in enumerate(lines):
        for i, (axes, planet) in enumerate(zip(panels[line], NAMES)):
            places = np.array(force['places'][i])[:ARROWS]
            arrows = np.array(force[field][i])[:ARROWS]
            size = np.linalg.norm(places, axis=-1).max()
            places = places / size
            axes.quiver(*places.T, *arrows.T, angles='xy', scale_units='xy', scale=1.25,
                        width=0.012, color=COLOURS.get(name, PREDICTED))
            axes.plot(*places.T, '.', color='#555555', markersize=2)
            axes.plot(0, 0, 'o', color='#f5a623', markersize=4)
            axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect='equal', xticks=[],
                     yticks=[])
            if line == 0:
                axes.set_title(planet, fontsize=8)
            if i == 0:
                axes.set_ylabel(name)
    return figure


def main():
    source, target = sys.argv[1:]
    with open(source, encoding='utf-8') as file:
        figure = draw(json.load(file))
    dates = {'Date': None} if target.endswith('.svg') else {}
    figure.savefig(target, dpi=150, metadata=dates)


if __name__ == '__main__':
    main()
