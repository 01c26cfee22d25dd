"""Draws loss and passkey accuracy by length as one SVG, for one or several models.

    lssar score --ids held_out.bin --lengths 1024,2048,4096,8192,16384 --json > RUN/loss.json
    lssar passkey --trials 20 --json > RUN/passkey.json
    plot_lengths.py figure.svg RUN [NAME=RUN ...] [--trained 1024]

evaluate.py writes the same two files. NAME appears in the legend.
"""

import argparse
import html
import json
import math

WIDTH, HEIGHT, LEFT, TOP, PLOT = 760, 300, 56, 44, (280, 190)
INK, GRID = '#334155', '#cbd5e1'
COLOURS = ('#2563eb', '#dc2626', '#059669', '#9333ea', '#d97706', '#0891b2', '#be185d', '#4b5563')
SHARES = (0, 0.2, 0.4, 0.6, 0.8, 1)


def text(x, y, what, anchor='middle', size=12, colour=INK):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{colour}">{html.escape(what)}</text>')


def length_name(length):
    return f'{length // 1024}K' if length % 1024 == 0 else str(length)


def tick_name(tick):
    return f'{tick:.1f}'


def loss_ticks(losses):
    """Five evenly spaced values whose range contains every loss."""
    low, high = min(losses), max(losses)
    step = next(step for step in (0.1, 0.2, 0.3, 0.5, 1, 2, 5)
                if math.floor(low / step) * step + 4 * step >= high)
    return [math.floor(low / step) * step + i * step for i in range(5)]


class Panel:
    """One plot: lengths on a logarithmic x axis, y from the first to the last tick."""

    def __init__(self, left, title, axis, lengths, ticks):
        self.left, self.low, self.high = left, ticks[0], ticks[-1]
        self.first, self.last = math.log2(lengths[0]), math.log2(lengths[-1])
        width, height = PLOT
        self.parts = [text(left + width / 2, TOP - 16, title, size=14)]
        for tick in ticks:
            y = self.y(tick)
            self.parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="{GRID}"/>')
            self.parts.append(text(left - 8, y + 4, tick_name(tick), 'end'))
        for length in lengths:
            self.parts.append(text(self.x(length), TOP + height + 20, length_name(length)))
        self.parts.append(text(left + width / 2, TOP + height + 42, axis))

    def x(self, length):
        share = (math.log2(length) - self.first) / max(1e-9, self.last - self.first)
        return self.left + 16 + share * (PLOT[0] - 32)

    def y(self, value):
        return TOP + (self.high - value) / (self.high - self.low) * PLOT[1]

    def line(self, points, colour):
        path = 'L'.join(f'{self.x(x):.1f} {self.y(y):.1f}' for x, y in points)
        self.parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in points:
            self.parts.append(
                f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4" fill="{colour}"/>')

    def interval(self, x, low, high, colour):
        self.parts.append(f'<path d="M{self.x(x):.1f} {self.y(low):.1f}V{self.y(high):.1f}" '
                          f'stroke="{colour}" stroke-width="6" stroke-opacity="0.25"/>')


def read(path):
    with open(path) as file:
        return json.load(file)['lengths']


def draw(path, runs, trained):
    """runs: [(name or '', directory)]."""
    losses = [[(row['length'], row['loss']) for row in read(f'{directory}/loss.json')]
              for _, directory in runs]
    passkeys = [read(f'{directory}/passkey.json') for _, directory in runs]
    lengths = [length for length, _ in losses[0]]
    ticks = loss_ticks([loss for line in losses for _, loss in line])
    axis = f'tokens (trained at {length_name(trained)})'
    loss = Panel(LEFT, 'loss, nats a token', axis, lengths, ticks)
    found = Panel(LEFT + 370, 'share of passkeys found, 95% interval', axis, lengths, SHARES)
    for i, (name, _) in enumerate(runs):
        colour = COLOURS[i]
        loss.line(losses[i], colour)
        for row in passkeys[i]:
            found.interval(row['length'], *row['interval95'], colour)
        found.line([(row['length'], row['accuracy']) for row in passkeys[i]], colour)
        loss.parts.append(text(LEFT + 20 + 90 * i, HEIGHT - 6, name, 'start', colour=colour))
    with open(path, 'w') as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                   f'font-family="sans-serif"><rect width="{WIDTH}" height="{HEIGHT}" '
                   'fill="white"/>\n')
        file.write('\n'.join(loss.parts + found.parts) + '\n</svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('figure', help='SVG to write')
    parser.add_argument('runs', nargs='+', help='directory of loss.json and passkey.json')
    parser.add_argument('--trained', type=int, default=1024, help='trained length, tokens')
    args = parser.parse_args()
    if len(args.runs) > len(COLOURS):
        parser.error(f'RUN: {len(args.runs)} are given; at most {len(COLOURS)} have a colour')
    runs = [run.split('=', 1) if '=' in run else ('', run) for run in args.runs]
    draw(args.figure, runs, args.trained)


if __name__ == '__main__':
    main()
