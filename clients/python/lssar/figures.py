"""Figures of what `lssar ... --json` prints, drawn with matplotlib (extra `plot`).

    attention   the weights of every captured head, as panels; a line of panels for each layer of
                each file
    kl          Kullback-Leibler divergence by position, of `kl --json`
    loss        loss by length, of `score --ids --json`
    passkey     accuracy by length, with 95% intervals
    positions   loss by position, of `perplexity --json`
    ruler       score by length of each task, of `ruler --json`; of several files, their means
    sweep       loss by length, or with --buckets by tokens read, for each p, of `sweep --json`; one
                FILE
    bench       latencies by load, of `bench --json`

OUT ends in .svg, .png, .pdf or .html. FILE `-` is standard input. Several files are several curves,
with NAME or the file's name in the legend; two files of one name are refused. The last line of a
file is drawn: `perplexity` prints a line for each text, then one for all of them.
"""

import argparse
import base64
import dataclasses
import html
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from lssar._extras import how_to_install

try:
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator
except ModuleNotFoundError as missing:
    missing.msg = f'{missing.msg}: figures need {how_to_install("plot")}'
    raise

from lssar._exit_code import exit_code

# What `lssar` printed: JSON, checked by reading it.
JsonObject = Mapping[str, 'Json']
Json = None | bool | int | float | str | Sequence['Json'] | JsonObject
Named = Sequence[tuple[str, JsonObject]]

# As in Figure A1 of arXiv 2501.13428: weights above this have the brightest colour.
CLAMP = 0.5
# Rows and keys of a panel; of a longer prompt each cell is its range's largest weight.
MAX_CELLS = 256
MAX_PANELS = 4096
NORMAL_95 = 1.96  # standard errors

# The same bytes for the same data: no date, and ids that do not change. Text stays text; where
# DejaVu is missing, Verdana has its widths.
matplotlib.rcParams.update({
    'svg.hashsalt': 'lssar', 'svg.fonttype': 'none', 'font.family': 'sans-serif',
    'font.sans-serif': ['DejaVu Sans', 'Verdana', 'sans-serif'], 'font.size': 9,
    'axes.spines.top': False, 'axes.spines.right': False})


def objects(parent: JsonObject, field: str) -> list[JsonObject]:
    """A field that holds a list of objects."""
    value = parent[field]
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise TypeError(f'{field} is no list of objects')
    return value


def number(parent: JsonObject, field: str) -> float:
    """A field that holds a number."""
    value = parent[field]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f'{field} is no number')
    return value


def numbers(parent: JsonObject, field: str) -> list[float]:
    """A field that holds a list of numbers."""
    value = parent[field]
    if not isinstance(value, list) or not all(isinstance(each, int | float) for each in value):
        raise TypeError(f'{field} is no list of numbers')
    return value


def length_name(length: float) -> str:
    """1024 -> '1K'."""
    return f'{length / 1024:g}K' if length >= 1024 and length % 1024 == 0 else f'{length:g}'


def length_axis(axes: Axes, lengths: Sequence[float]) -> None:
    """A logarithmic x axis with a tick at each length."""
    axes.set_xscale('log', base=2)
    axes.set_xticks(sorted(set(lengths)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: length_name(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel('length (tokens)')
    axes.grid(axis='y', alpha=0.3)


def tokens_read_axis(axes: Axes) -> None:
    """A logarithmic x axis of ranges of positions: middle_of() each."""
    axes.set_xscale('log', base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:g}'))
    axes.set_xlabel('tokens read before')
    axes.grid(alpha=0.3)


def middle_of(part: JsonObject) -> float:
    """The middle of positions [first, end) on a logarithmic axis."""
    return math.sqrt(number(part, 'first') * (number(part, 'end') - 1))


def legend_beside(axes: Axes, size: int = 8) -> None:
    """Names the curves, on the right of the panel."""
    axes.legend(frameon=False, fontsize=size, loc='center left', bbox_to_anchor=(1, 0.5))


def legend(axes: Axes, named: Named) -> None:
    """Names the curves, if there are several."""
    if len(named) > 1:
        axes.legend(frameon=False)


# Tokens of a prompt that are named on the axes, at most: longer prompts have positions.
MAX_LABELS = 24
LABEL_CHARACTERS = 12
LABEL_INCH = 0.115  # of a panel, for each label
MAX_LABELLED_INCH = 40  # width of all panels


# A token that is not whole UTF-8, as lssar prints it: bytes:\xc3.
BYTES = re.compile(r'bytes:((?:\\x[0-9a-f]{2})+)')


def token_names(pieces: Sequence[str]) -> list[str]:
    """Tokens as they are called in a list; 'ñ‹C3›' and 'ñ‹B1›' for the parts of a character."""
    parts = [bytes.fromhex(match[1].replace('\\x', '')) if match else None
             for match in map(BYTES.fullmatch, pieces)]
    raw = [piece.encode() if part is None else part for piece, part in zip(pieces, parts)]
    owners = [i for i, each in enumerate(raw) for _ in each]
    shared = [''] * len(raw)  # characters that a token shares with others
    at = 0
    for character in b''.join(raw).decode(errors='surrogateescape'):
        end = at + len(character.encode(errors='surrogateescape'))
        if owners[at] != owners[end - 1]:
            for i in range(owners[at], owners[end - 1] + 1):
                shared[i] += character
        at = end
    return [piece if part is None else f'{before}‹{part.hex(" ").upper()}›'
            for piece, part, before in zip(pieces, parts, shared)]


def token_label(piece: str) -> str:
    """A token as one short word: white space is visible, and matplotlib's $ is a character."""
    shown = ''.join(SPACES.get(each, each) if each.isprintable() or each in SPACES else '\ufffd'
                    for each in piece)
    if len(shown) > LABEL_CHARACTERS:
        shown = shown[:LABEL_CHARACTERS - 1] + '…'
    return plain(shown)


SPACES = {' ': '␣', '\n': '↵', '\t': '⇥'}


def plain(name: str) -> str:
    """A name that matplotlib draws as it is: $ begins no formula, and _ hides it from no legend."""
    hidden = '\N{ZERO WIDTH SPACE}' if name.startswith('_') else ''
    return hidden + name.replace('$', r'\$')


class Panels:
    """The weights of captured heads as matrices of at most MAX_CELLS rows and columns."""

    def __init__(self, document: JsonObject) -> None:
        rows = objects(document, 'rows')
        if not rows:
            raise ValueError('no row of attention was captured')
        self.layers = sorted({int(number(row, 'layer')) for row in rows})
        self.heads = sorted({int(number(row, 'head')) for row in rows})
        self.positions = sorted({int(number(row, 'row')) for row in rows})
        if len(self.layers) * len(self.heads) > MAX_PANELS:
            raise ValueError(f'{len(self.layers)} x {len(self.heads)} panels are too many: capture '
                             f'at most {MAX_PANELS} heads')
        self.num_keys = self.positions[-1] + 1
        tokens = document.get('tokens')
        self.labels: list[str] = []  # of the keys; []: the prompt is too long, or not in the file
        if isinstance(tokens, list) and self.num_keys <= min(MAX_LABELS, len(tokens)):
            # A special token has no text: its id.
            pieces = [str(token.get('piece') or f'#{token.get("id")}')
                      for token in tokens if isinstance(token, dict)][:self.num_keys]
            self.labels = [token_label(name) for name in token_names(pieces)]
        self.columns = min(self.num_keys, MAX_CELLS)
        self.lines = min(len(self.positions), MAX_CELLS)
        self._line = {position: i * self.lines // len(self.positions)
                      for i, position in enumerate(self.positions)}
        self._cells: dict[tuple[int, int], list[list[float]]] = {}
        for row in rows:
            self._add(row)

    def _add(self, row: JsonObject) -> None:
        position = int(number(row, 'row'))
        cells = self.weights(int(number(row, 'layer')), int(number(row, 'head')))
        line = cells[self._line[position]]
        for x in range(position * self.columns // self.num_keys + 1):
            line[x] = 0.0 if math.isnan(line[x]) else line[x]
        for key, weight in zip(numbers(row, 'keys'), numbers(row, 'weights'), strict=True):
            x = int(key) * self.columns // self.num_keys
            line[x] = max(line[x], weight)

    def weights(self, layer: int, head: int) -> list[list[float]]:
        """Lines of cells. NaN: keys after the row's own."""
        if (layer, head) not in self._cells:
            self._cells[layer, head] = [[math.nan] * self.columns for _ in range(self.lines)]
        return self._cells[layer, head]

    def ticks(self) -> tuple[list[int], list[int]]:
        """Lines with a label, and the labels: positions of rows."""
        step = max(1, self.lines // 4)
        lines = list(range(0, self.lines, step))
        return lines, [self.positions[line * len(self.positions) // self.lines] for line in lines]


# Inches around and between the panels. matplotlib's own layout takes minutes for a hundred panels.
LEFT, RIGHT, TOP, BOTTOM, GAP, TITLE_GAP = 0.9, 0.95, 0.5, 0.5, 0.12, 0.42
BAR_LEFT, BAR_WIDTH, BAR_HEIGHT = 0.2, 0.14, 3.2
LABEL_MARGIN = 0.08  # of a character
MAX_ACROSS = 4  # heads of one layer alone


@dataclasses.dataclass(frozen=True)
class Panel:
    """One head of one layer of one document."""

    panels: Panels
    name: str  # of its line
    layer: int
    head: int


def panel_lines(named: Named) -> list[list[Panel]]:
    """A line for each layer of each document, or of one layer alone four heads a line."""
    documents = [(name, Panels(document)) for name, document in named]
    lines = []
    for name, panels in documents:
        for layer in panels.layers:
            title = f'layer {layer}' if len(documents) == 1 else f'{name}, layer {layer}'
            lines.append([Panel(panels, title, layer, head) for head in panels.heads])
    if sum(map(len, lines)) > MAX_PANELS:
        raise ValueError(f'{sum(map(len, lines))} panels are too many: capture at most '
                         f'{MAX_PANELS} heads')
    if len(lines) == 1:
        [line] = lines
        return [line[i:i + MAX_ACROSS] for i in range(0, len(line), MAX_ACROSS)]
    return lines


def panel_figure(lines: list[list[Panel]], is_grid: bool, has_labels: bool
                 ) -> tuple[Figure, list[list[Axes]], Axes]:
    """A figure with square panels and axes for the colour bar."""
    down, across = len(lines), max(map(len, lines))
    edge = max(1.0, min(1.6 if is_grid else 2.6, 11 / across))
    margin = 0.0
    if has_labels:
        labels = [label for line in lines for label in line[0].panels.labels]
        edge = max(edge, LABEL_INCH * max(len(line[0].panels.labels) for line in lines))
        margin = LABEL_MARGIN * max(map(len, labels))
    # Lines of different documents have different tokens: each has its own labels below.
    gap = (GAP if is_grid else TITLE_GAP) + (margin if has_labels else 0)
    left, bottom = LEFT + margin, BOTTOM + margin
    height_of_panels = down * edge + (down - 1) * gap
    width = left + across * edge + (across - 1) * GAP + RIGHT
    height = TOP + height_of_panels + bottom
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(down, across, squeeze=False, gridspec_kw={
        'left': left / width, 'right': 1 - RIGHT / width, 'top': 1 - TOP / height,
        'bottom': bottom / height, 'wspace': GAP / edge, 'hspace': gap / edge})
    figure.supxlabel('key', fontsize=9, va='bottom', y=0.06 / height)
    figure.supylabel('query token', fontsize=9, ha='left', x=0.06 / width)
    bar_height = min(BAR_HEIGHT, height_of_panels)
    bar_axes = figure.add_axes((1 - (RIGHT - BAR_LEFT) / width, 1 - (TOP + bar_height) / height,
                                BAR_WIDTH / width, bar_height / height))
    return figure, [list(line) for line in grid], bar_axes


def attention(named: Named) -> Figure:
    """One panel a head: rows are query tokens, columns are keys."""
    lines = panel_lines(named)
    is_grid = len({panel.name for line in lines for panel in line}) > 1
    first = lines[0][0].panels
    has_labels = (all(line[0].panels.labels for line in lines) and LABEL_INCH * MAX_LABELS
                  * max(map(len, lines)) <= MAX_LABELLED_INCH)
    figure, grid, bar_axes = panel_figure(lines, is_grid, has_labels)
    image = None
    for y, line in enumerate(lines):
        for axes in grid[y][len(line):]:
            axes.set_visible(False)
        for x, (panel, axes) in enumerate(zip(line, grid[y])):
            panels = panel.panels
            image = axes.imshow(panels.weights(panel.layer, panel.head), vmin=0, vmax=CLAMP,
                                cmap='viridis', interpolation='nearest', aspect='auto',
                                extent=(-0.5, panels.num_keys - 0.5, panels.lines - 0.5, -0.5))
            axes.set_box_aspect(1)
            is_last = y + 1 == len(lines) or x >= len(lines[y + 1])
            if has_labels:
                axes.set_yticks(range(panels.lines),
                                labels=[panels.labels[at] for at in panels.positions])
                axes.set_xticks(range(panels.num_keys), labels=panels.labels, rotation=90)
            else:
                axes.set_yticks(*panels.ticks())
                axes.locator_params(axis='x', nbins=3, integer=True)
            axes.tick_params(labelsize=7, length=2, labelleft=x == 0,
                             labelbottom=is_last or has_labels)
            if not is_grid or y == 0:
                axes.set_title(f'head {panel.head}', fontsize=8, pad=3)
            if is_grid and x == 0:
                axes.set_ylabel(panel.name, fontsize=8)
    names = [name for name, _ in named]
    title = ', '.join(filter(None, [*names, '' if is_grid else f'layer {first.layers[0]}']))
    figure.suptitle(title, fontsize=10, va='top', y=1 - 0.06 / figure.get_figheight())
    bar = figure.colorbar(image, cax=bar_axes, extend='max')
    keys_per_cell = max(math.ceil(line[0].panels.num_keys / line[0].panels.columns)
                        for line in lines)
    largest = f' (largest of {keys_per_cell} keys)' if keys_per_cell > 1 else ''
    bar.set_label(f'weight, clamped to [0, {CLAMP}]{largest}')
    return figure


def standard_error(row: JsonObject) -> float | None:
    """That of a row of loss.json; None: not known. Older files have 0 for one row."""
    known = row.get('standard_error') is not None and row.get('num_rows', 2) != 1
    return number(row, 'standard_error') if known else None


def loss(named: Named) -> Figure:
    """Mean loss of rows of each length, with its standard error where several rows tell it. Not an
    interval of 95%: of two rows it would be 13 times as long."""
    figure = Figure(figsize=(5.2, 3.4), layout='constrained')
    axes = figure.subplots()
    lengths: list[float] = []
    has_errors = False
    for name, document in named:
        rows = objects(document, 'lengths')
        x = [number(row, 'length') for row in rows]
        lengths += x
        errors = [standard_error(row) for row in rows]
        has_errors = has_errors or any(errors)
        curve, = axes.plot(x, [number(row, 'loss') for row in rows], 'o-', label=name)
        for at, row, error in zip(x, rows, errors):
            if error:
                axes.errorbar(at, number(row, 'loss'), yerr=error, capsize=3,
                              color=curve.get_color())
    length_axis(axes, lengths)
    axes.set_ylabel('loss (nats per token)')
    if has_errors:
        axes.set_title('bars: one standard error of the mean over rows', fontsize=8)
    legend(axes, named)
    return figure


def passkey(named: Named) -> Figure:
    """Share of passkeys found, with Wilson's 95% intervals."""
    figure = Figure(figsize=(5.2, 3.4), layout='constrained')
    axes = figure.subplots()
    lengths: list[float] = []
    for name, document in named:
        rows = [row for row in objects(document, 'lengths') if number(row, 'num_trials') > 0]
        x = [number(row, 'length') for row in rows]
        lengths += x
        accuracy = [number(row, 'accuracy') for row in rows]
        intervals = [numbers(row, 'interval95') for row in rows]
        # Wilson's interval holds the share; its arithmetic may miss an end by a rounding.
        errors = [[max(0.0, y - low) for y, (low, _) in zip(accuracy, intervals)],
                  [max(0.0, high - y) for y, (_, high) in zip(accuracy, intervals)]]
        axes.errorbar(x, accuracy, yerr=errors, fmt='o-', capsize=3, label=name)
    length_axis(axes, lengths)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:.0%}'))
    axes.set_ylabel('passkeys found')
    axes.set_title("bars: Wilson's 95% intervals of the share", fontsize=8)
    legend(axes, named)
    return figure


def ruler(named: Named) -> Figure:
    """RULER's score of each task, with 95% intervals; of several models the mean over the tasks
    that all of them have at a length."""
    is_one = len(named) == 1
    curves: dict[str, list[tuple[float, float, float, float]]] = {}  # x, y, low, high
    for name, document in named:
        for at in objects(document, 'lengths'):
            x = number(at, 'length')
            tasks = scores_at(document, x)
            if is_one:
                for task, score in tasks.items():
                    low, high = numbers(score, 'interval95')
                    curves.setdefault(task, []).append((x, number(score, 'score'), low, high))
                continue
            common = [number(score, 'score') for task, score in tasks.items()
                      if all(task in scores_at(other, x) for _, other in named)]
            if common:
                y = sum(common) / len(common)
                curves.setdefault(name, []).append((x, y, y, y))
    figure = Figure(figsize=(6.8, 3.8) if is_one else (5.2, 3.4), layout='constrained')
    axes = figure.subplots()
    colours = matplotlib.colormaps['tab20' if is_one else 'tab10']
    for i, (label, points) in enumerate(curves.items()):
        x_values, y_values, lows, highs = zip(*points)
        errors = [[max(0.0, y - low) for y, low in zip(y_values, lows)],
                  [max(0.0, high - y) for y, high in zip(y_values, highs)]]
        axes.errorbar(x_values, y_values, yerr=errors if is_one else None, fmt='o-', capsize=2,
                      markersize=3, linewidth=1, elinewidth=0.5, color=colours(i),
                      label=plain(label) if is_one else label)
    length_axis(axes, [point[0] for points in curves.values() for point in points])
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:.0%}'))
    axes.set_ylabel('score' if is_one else 'mean score of the tasks')
    axes.set_title(f"RULER, {named[0][0]}; bars: Wilson's 95% intervals" if is_one else
                   'RULER', fontsize=8)
    if curves:
        legend_beside(axes, 7)
    return figure


def scores_at(document: JsonObject, length: float) -> dict[str, JsonObject]:
    """RULER's tasks at a length; {} if it was not measured."""
    for at in objects(document, 'lengths'):
        tasks = at['tasks']
        if number(at, 'length') == length and isinstance(tasks, dict):
            return {task: score for task, score in tasks.items() if isinstance(score, dict)}
    return {}


def positions(named: Named) -> Figure:
    """Mean loss in ranges of positions, with the mean's 95% interval."""
    figure = Figure(figsize=(6.4, 3.4), layout='constrained')
    axes = figure.subplots()
    for name, document in named:
        ranges = objects(document, 'positions')
        x = [(number(part, 'first') + number(part, 'end') - 1) / 2 for part in ranges]
        mean = [number(part, 'loss') for part in ranges]
        half = [NORMAL_95 * number(part, 'standard_error') for part in ranges]
        line, = axes.plot(x, mean, label=name)
        axes.fill_between(x, [m - h for m, h in zip(mean, half)],
                          [m + h for m, h in zip(mean, half)], alpha=0.2, linewidth=0,
                          color=line.get_color())
    axes.set_xlabel('tokens read before')
    axes.set_ylabel('loss (nats per token)')
    axes.set_title('bands: 95% intervals of the mean, as if tokens were independent', fontsize=8)
    axes.grid(axis='y', alpha=0.3)
    legend(axes, named)
    return figure


def kl(named: Named) -> Figure:
    """Mean divergence in ranges of positions, and from the median to the 99th percentile. Where a
    divergence is 0, a logarithmic axis has no point."""
    figure = Figure(figsize=(6.4, 3.4), layout='constrained')
    axes = figure.subplots()
    for name, document in named:
        ranges = objects(document, 'by_position')
        x = [middle_of(part) for part in ranges]
        line, = axes.plot(x, [number(part, 'kl') for part in ranges], marker='o', label=name)
        axes.fill_between(x, [number(part, 'kl_median') for part in ranges],
                          [number(part, 'kl_p99') for part in ranges], alpha=0.2, linewidth=0,
                          color=line.get_color())
    tokens_read_axis(axes)
    axes.set_yscale('log')
    axes.set_ylabel('KL divergence (nats)')
    axes.set_title('lines: means; bands: median to 99th percentile', fontsize=8)
    if len(named) > 1:
        legend_beside(axes)
    return figure


def sweep_buckets(name: str, document: JsonObject) -> Figure:
    """Loss by tokens read above that of the best p of each bucket: a curve for each p, and one for
    the step function."""
    figure = Figure(figsize=(6.4, 3.8), layout='constrained')
    axes = figure.subplots()
    best = document['best']
    if not isinstance(best, dict):
        raise TypeError('best is no object')
    curves = [(f"p = {number(value, 'p'):g}", value) for value in objects(document, 'values')]
    steps = best.get('steps')
    if isinstance(steps, dict):
        curves.append(('steps', steps))
    colours = matplotlib.colormaps['viridis']
    least = [number(bucket, 'loss') for bucket in objects(best, 'buckets')]
    lowest = 0.0
    for i, (label, value) in enumerate(curves):
        at, = objects(value, 'lengths')
        buckets = objects(at, 'buckets')
        x = [middle_of(bucket) for bucket in buckets]
        y = [number(each, 'loss') - low for each, low in zip(buckets, least)]
        is_steps = value is steps
        lowest = min(lowest, *y)
        axes.plot(x, y, marker='o', label=label, linestyle='--' if is_steps else '-',
                  color='black' if is_steps else colours(i / max(1, len(curves) - 1) * 0.9))
    tokens_read_axis(axes)
    axes.set_yscale('symlog', linthresh=0.01)
    axes.set_ylim(bottom=1.1 * lowest - 0.002)
    axes.set_ylabel('loss above the best p (nats per token)')
    axes.set_title(name)
    legend_beside(axes)
    return figure


def sweep(named: Named) -> Figure:
    """Loss by length, a curve for each p; with buckets by tokens read."""
    (name, document), = named
    if 'best' in document:
        return sweep_buckets(name, document)
    figure = Figure(figsize=(6.4, 3.8), layout='constrained')
    axes = figure.subplots()
    values = objects(document, 'values')
    colours = matplotlib.colormaps['viridis']
    lengths: list[float] = []
    for i, value in enumerate(values):
        rows = objects(value, 'lengths')
        x = [number(row, 'length') for row in rows]
        lengths += x
        axes.plot(x, [number(row, 'loss') for row in rows], 'o-',
                  color=colours(i / max(1, len(values) - 1) * 0.9),
                  label=f"p = {number(value, 'p'):g}")
    length_axis(axes, lengths)
    axes.set_ylabel('loss (nats per token)')
    axes.set_title(name)
    legend_beside(axes)
    return figure


def bench(named: Named) -> Figure:
    """Latencies over the load: p50 as a line, p50 to p99 as a band."""
    titles = {'ttft_ms': 'time to first token', 'itl_ms': 'time between tokens',
              'e2e_ms': 'whole request'}
    points = [point for _, document in named for point in objects(document, 'points')]
    load = 'rate' if any('rate' in point for point in points) else 'concurrency'
    if not all(load in point for point in points):
        raise ValueError('some points have a rate, others so many requests in flight: no axis has '
                         'both')
    figure = Figure(figsize=(10.5, 3.2), layout='constrained')
    for axes, (field, title) in zip(figure.subplots(1, len(titles)), titles.items()):
        for name, document in named:
            x, middle, high = [], [], []
            for point in objects(document, 'points'):
                latency = point[field]
                if isinstance(latency, dict):  # null: no request completed
                    x.append(number(point, load))
                    middle.append(number(latency, 'p50'))
                    high.append(number(latency, 'p99'))
            line, = axes.plot(x, middle, 'o-', label=name)
            axes.fill_between(x, middle, high, alpha=0.2, linewidth=0, color=line.get_color())
        axes.set_title(title)
        axes.set_xlabel('requests in flight' if load == 'concurrency' else 'requests per second')
        axes.set_ylabel('milliseconds; line p50, band to p99')
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        legend(axes, named)
    return figure


KINDS: Mapping[str, Callable[[Named], Figure]] = {
    'attention': attention, 'kl': kl, 'loss': loss, 'passkey': passkey, 'positions': positions,
    'ruler': ruler, 'sweep': sweep, 'bench': bench}
SINGLE = ('sweep',)  # kinds of one document
SUFFIXES = ('.svg', '.png', '.pdf', '.html')


def suffix_of(path: str) -> str:
    """The format that a path names. Errors: ValueError."""
    suffix = os.path.splitext(path)[1]
    if suffix not in SUFFIXES:
        raise ValueError(f'{path}: the name must end in .svg, .png, .pdf or .html')
    return suffix


def save(figure: Figure, path: str) -> None:
    """Writes `figure` in the format that the path's end names. HTML holds the SVG itself."""
    suffix = suffix_of(path)
    if suffix != '.html':
        dates = {'.svg': {'Date': None}, '.pdf': {'CreationDate': None}, '.png': {}}
        figure.savefig(path, dpi=150, metadata=dates[suffix])
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None})
    image = base64.b64encode(buffer.getvalue()).decode()
    title = html.escape(os.path.basename(path))
    with open(path, 'w', encoding='utf-8') as file:
        file.write(f'<!doctype html><meta charset="utf-8"><title>{title}</title>'
                   f'<img alt="{title}" src="data:image/svg+xml;base64,{image}">\n')


def split_argument(argument: str) -> tuple[str, str]:
    """'NAME=FILE' or 'FILE' -> name, path."""
    name, separator, path = argument.partition('=')
    if separator and not os.path.exists(argument):
        return name, path
    return ('' if argument == '-' else os.path.splitext(os.path.basename(argument))[0]), argument


def read(argument: str) -> tuple[str, JsonObject]:
    """The name and the last JSON object of a file. Errors: ValueError."""
    name, path = split_argument(argument)
    try:
        with open(0 if path == '-' else path, encoding='utf-8', closefd=path != '-') as file:
            text = file.read()
        try:
            document = json.loads(text)
        except ValueError:  # several lines, one object each
            document = json.loads(text.rstrip().rpartition('\n')[2])
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f'{path}: {error}') from error
    if not isinstance(document, dict):
        raise ValueError(f'{path}: must hold one JSON object')
    return name, document


def draw(kind: str, path: str, named: Named) -> None:
    """Draws and writes a figure. Errors: ValueError, OSError."""
    try:
        figure = KINDS[kind]([(plain(name), document) for name, document in named])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError('this is not what `lssar` prints for a figure of kind '
                         f'{kind}: {error!r}') from error
    save(figure, path)


EXAMPLES = '''
Examples:
  lssar figure loss loss.svg lssar=lssar.json softmax=softmax.json
  lssar attention 'The cat sat' --json | lssar figure attention maps.png -
'''


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. -> exit code."""
    parser = argparse.ArgumentParser(prog='lssar figure', description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('kind', choices=list(KINDS))
    parser.add_argument('out', metavar='OUT')
    parser.add_argument('files', metavar='[NAME=]FILE', nargs='+')
    # For a caller that works before it has a result: 'ready' on stdout once all can be drawn.
    parser.add_argument('--announce', action='store_true', help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)

    def work() -> int:
        suffix_of(given.out)
        if not os.path.isdir(os.path.dirname(given.out) or '.'):
            raise ValueError(f'{given.out}: there is no such directory')
        if os.path.isdir(given.out) or not os.access(
                given.out if os.path.exists(given.out) else os.path.dirname(given.out) or '.',
                os.W_OK):
            raise ValueError(f'{given.out}: cannot be written')
        if given.kind in SINGLE and len(given.files) > 1:
            raise ValueError(f'{given.kind} takes one file, {len(given.files)} are given')
        if given.announce:
            print('ready', flush=True)
            text = sys.stdin.read()
            if not text:
                return 1  # the caller has no result, and says why
            draw(given.kind, given.out, [('', json.loads(text))])
        else:
            named = [read(argument) for argument in given.files]
            names = [name for name, _ in named]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f'two files are called {name}: give NAME=FILE')
            draw(given.kind, given.out, named)
        return 0

    return exit_code('figure', work, (ValueError, OSError))


if __name__ == '__main__':
    sys.exit(main())
