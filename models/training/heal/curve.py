"""Draws a run's log.jsonl as one SVG: losses of both stages over tokens.

    curve.py RUN/log.jsonl figure.svg
"""

import json
import math
import sys

WIDTH, HEIGHT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 760, 300, 44, 290, 190
INK, GRID = '#334155', '#cbd5e1'
COLOURS = ('#2563eb', '#dc2626', '#059669', '#9333ea')


def read(path):
    """The lines of a log, in order, without those that a full disk or a power cut left broken."""
    lines = []
    with open(path, encoding='utf-8', errors='replace') as file:
        for line in file:
            try:
                lines.append(json.loads(line))
            except ValueError:
                pass
    return [line for line in lines if isinstance(line, dict)]


def smooth(points, num_points=120):
    """Means of equal counts of neighbours, num_points at most."""
    size = max(1, math.ceil(len(points) / num_points))
    blocks = [points[i : i + size] for i in range(0, len(points), size)]
    return [tuple(sum(column) / len(block) for column in zip(*block)) for block in blocks]


def ticks(low, high):
    """Up to six round values that span [low, high]."""
    for step in (b * 10.0 ** e for e in range(-3, 9) for b in (1, 2, 5)):
        first = math.floor(low / step)
        last = max(first + 1, math.ceil(high / step))
        if last - first <= 6:
            return [i * step for i in range(first, last + 1)]


def text(x, y, what, anchor='middle', colour=INK):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" '
            f'fill="{colour}">{what}</text>')


def panel(left, title, lines):
    """SVG of {name: [(tokens, value)]} with linear axes."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return ''
    across = ticks(0, max(x for x, _ in points) / 1e6)
    up = ticks(min(y for _, y in points), max(y for _, y in points))

    def at(x, y):
        return (left + x / 1e6 / across[-1] * PLOT_WIDTH,
                TOP + (up[-1] - y) / (up[-1] - up[0]) * PLOT_HEIGHT)

    parts = [text(left + PLOT_WIDTH / 2, TOP - 24, title)]
    for value in up:
        _, y = at(0, value)
        parts.append(f'<path d="M{left} {y:.1f}h{PLOT_WIDTH}" stroke="{GRID}"/>')
        parts.append(text(left - 6, y + 4, f'{value:g}', 'end'))
    for value in across:
        parts.append(text(at(value * 1e6, 0)[0], TOP + PLOT_HEIGHT + 18, f'{value:g}'))
    parts.append(text(left + PLOT_WIDTH / 2, TOP + PLOT_HEIGHT + 36, 'million tokens'))
    for i, (name, line) in enumerate(lines.items()):
        path = 'L'.join('%.1f %.1f' % at(*point) for point in line)
        parts.append(f'<path d="M{path}" fill="none" stroke="{COLOURS[i]}" stroke-width="1.5"/>')
        parts.append(text(left + 4 + 150 * (i % 2), TOP + PLOT_HEIGHT + 52 + 14 * (i // 2), name,
                          'start', COLOURS[i]))
    return '\n'.join(parts)


def draw(log, path):
    """Writes the figure."""
    steps = {stage: smooth([(each['tokens'], each['loss']) for each in log
                            if each.get('stage') == stage and 'loss' in each])
             for stage in ('transfer', 'distil')}
    held_out = {}
    for each in log:
        for length, losses in each.get('held_out', {}).items():
            for who, loss in zip(('teacher', 'student'), losses):
                held_out.setdefault(f'{who}, {length} tokens', []).append((each['tokens'], loss))
    names = (('transfer', 'transfer: relative error'),
             ('distil', 'distillation: KL and answers, nats'))
    training = {name: steps[stage] for stage, name in names if steps[stage]}
    with open(path, 'w', encoding='utf-8') as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 24}" '
                   f'font-family="sans-serif"><rect width="{WIDTH}" height="{HEIGHT + 24}" '
                   'fill="white"/>\n'
                   + panel(50, 'training loss', training) + '\n'
                   + panel(430, 'held-out loss, nats a token', held_out) + '\n</svg>\n')


if __name__ == '__main__':
    draw(read(sys.argv[1]), sys.argv[2])
