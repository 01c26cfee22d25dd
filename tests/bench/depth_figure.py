"""Draws decoding by depth: tokens/s, log-log, of lines `DEPTH TOKENS_PER_S NAME`.

    /usr/bin/python3 -B tests/bench/depth_figure.py kernels/depths.txt kernels/depths.svg

Needs matplotlib. kernels/BENCHMARKS.md says how the lines were measured.
"""

import collections
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'clients/python'))

from lssar import figures  # noqa: E402


def main():
    source, path = sys.argv[1:]
    curves = collections.defaultdict(list)
    for line in pathlib.Path(source).read_text(encoding='utf-8').splitlines():
        depth, rate, name = line.split(maxsplit=2)
        curves[name].append((int(depth), float(rate)))
    figure = figures.Figure(figsize=(6.4, 3.4), layout='constrained')
    axes = figure.subplots()
    for name, points in curves.items():
        depths, rates = zip(*points)
        is_peer = name.startswith('llama.cpp')
        axes.plot(depths, rates, '--' if is_peer else '-', marker='o', label=name)
    axes.set_yscale('log')
    axes.set_yticks([2, 5, 10, 20, 50, 100, 200])
    axes.yaxis.set_major_formatter(figures.FuncFormatter(lambda rate, _: f'{rate:g}'))
    figures.length_axis(axes, sorted({depth for points in curves.values() for depth, _ in points}))
    axes.set_xlabel('tokens in the cache')
    axes.set_ylabel('tokens/s')
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc='lower left')
    figures.save(figure, path)


if __name__ == '__main__':
    main()
