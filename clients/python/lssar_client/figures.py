"""Figures of what `lssar ... --json` prints, drawn with matplotlib (extra `plot`).

    lssar-figure attention OUT FILE              the weights of every captured head, as panels
    lssar-figure loss      OUT [NAME=]FILE...    loss by length, of `score --ids --json`
    lssar-figure passkey   OUT [NAME=]FILE...    accuracy by length, with 95% intervals
    lssar-figure positions OUT [NAME=]FILE...    loss by position, of `perplexity --json`
    lssar-figure sweep     OUT FILE              loss by length for each p, of `sweep --json`
    lssar-figure bench     OUT [NAME=]FILE...    latencies by load, of `bench --json`

OUT ends in .svg, .png, .pdf or .html. FILE `-` is standard input. Several files are several curves.
"""

import argparse
import base64
import html
import io
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator
except ImportError as missing:
    raise ImportError("figures need matplotlib: pip install 'lssar-client[plot]'") from missing

Document = Mapping[str, Any]  # one JSON object that `lssar` printed
Named = Sequence[tuple[str, Document]]

# As in Figure A1 of arXiv 2501.13428: weights above this have the brightest colour.
CLAMP = 0.5
# Rows and keys of a panel; a longer prompt is shown in ranges, each by its largest weight.
MAX_CELLS = 256

# The same bytes for the same data: no date, and ids that do not change.
matplotlib.rcParams.update(
    {"svg.hashsalt": "lssar", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
)


def length_name(length: float) -> str:
    """1024 -> "1K"."""
    return f"{length / 1024:g}K" if length >= 1024 and length % 1024 == 0 else f"{length:g}"


def _length_axis(axes: Any, lengths: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(lengths))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: length_name(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("tokens")
    axes.grid(axis="y", alpha=0.3)


def _lengths(named: Named, field: str = "lengths") -> list[float]:
    return sorted({row["length"] for _, document in named for row in document[field]})


def _legend(axes: Any, count: int) -> None:
    if count > 1:
        axes.legend(frameon=False)


def attention(named: Named) -> Figure:
    """One panel a head: rows are query tokens, columns are keys."""
    ((name, document),) = named
    rows = document["rows"]
    layers = sorted({row["layer"] for row in rows})
    heads = sorted({row["head"] for row in rows})
    size = max(row["row"] for row in rows) + 1
    cells = min(size, MAX_CELLS)
    across = len(heads) if len(layers) > 1 else min(len(heads), 4)
    down = math.ceil(len(layers) * len(heads) / across)
    edge = max(1.1, min(3.0, 12 / across))
    figure = Figure(figsize=(across * edge + 1.4, down * edge + 0.9), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    image = None
    panels = [(layer, head) for layer in layers for head in heads]
    for axes, panel in zip(grid.flat, panels):
        weights = [[math.nan] * cells for _ in range(cells)]
        for row in (row for row in rows if (row["layer"], row["head"]) == panel):
            at = row["row"] * cells // size
            line = weights[at]
            for x in range(at + 1):
                line[x] = 0.0 if math.isnan(line[x]) else line[x]
            for key, weight in zip(row["keys"], row["weights"]):
                x = key * cells // size
                line[x] = max(line[x], weight)
        image = axes.imshow(
            weights,
            vmin=0,
            vmax=CLAMP,
            cmap="viridis",
            interpolation="nearest",
            extent=(-0.5, size - 0.5, size - 0.5, -0.5),
            aspect="equal",
        )
        axes.set_title(f"layer {panel[0]}, head {panel[1]}", fontsize=8)
        axes.tick_params(labelsize=7)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("key")
    figure.supylabel("query token")
    if name:
        figure.suptitle(name)
    assert image is not None
    bar = figure.colorbar(image, ax=grid, shrink=0.8, extend="max")
    bar.set_label(f"attention weight, clamped to [0, {CLAMP}]")
    return figure


def loss(named: Named) -> Figure:
    """Mean loss of rows of each length."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, document in named:
        rows = document["lengths"]
        axes.plot([row["length"] for row in rows], [row["loss"] for row in rows], "o-", label=name)
    _length_axis(axes, _lengths(named))
    axes.set_ylabel("loss (nats a token)")
    _legend(axes, len(named))
    return figure


def passkey(named: Named) -> Figure:
    """Share of passkeys found, with Wilson's 95% intervals."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, document in named:
        rows = [row for row in document["lengths"] if row["num_trials"]]
        accuracy = [row["accuracy"] for row in rows]
        errors = [
            [row["accuracy"] - row["interval95"][0] for row in rows],
            [row["interval95"][1] - row["accuracy"] for row in rows],
        ]
        axes.errorbar(
            [row["length"] for row in rows], accuracy, yerr=errors, fmt="o-", capsize=3, label=name
        )
    _length_axis(axes, _lengths(named))
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_ylabel("passkeys found")
    _legend(axes, len(named))
    return figure


def positions(named: Named) -> Figure:
    """Mean loss in ranges of positions, with the mean's 95% interval."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, document in named:
        ranges = document["positions"]
        middle = [(part["first"] + part["end"]) / 2 for part in ranges]
        mean = [part["loss"] for part in ranges]
        half = [1.96 * part["standard_error"] for part in ranges]
        (line,) = axes.plot(middle, mean, label=name)
        axes.fill_between(
            middle,
            [m - h for m, h in zip(mean, half)],
            [m + h for m, h in zip(mean, half)],
            alpha=0.2,
            color=line.get_color(),
        )
    axes.set_xlabel("position (tokens)")
    axes.set_ylabel("loss (nats a token)")
    axes.grid(axis="y", alpha=0.3)
    _legend(axes, len(named))
    return figure


def sweep(named: Named) -> Figure:
    """Loss by length, a curve for each p."""
    ((name, document),) = named
    figure = Figure(figsize=(6.0, 3.8), layout="constrained")
    axes = figure.subplots()
    values = document["values"]
    colours = matplotlib.colormaps["viridis"]
    for i, value in enumerate(values):
        rows = value["lengths"]
        axes.plot(
            [row["length"] for row in rows],
            [row["loss"] for row in rows],
            "o-",
            color=colours(i / max(1, len(values) - 1) * 0.9),
            label=f"p = {value['p']:g}",
        )
    _length_axis(axes, sorted({row["length"] for value in values for row in value["lengths"]}))
    axes.set_ylabel("loss (nats a token)")
    axes.set_title(name)
    axes.legend(frameon=False, fontsize=8)
    return figure


def bench(named: Named) -> Figure:
    """Latencies over the load: p50 as a line, p50 to p99 as a band."""
    figures = (
        ("ttft_ms", "time to first token"),
        ("itl_ms", "time between tokens"),
        ("e2e_ms", "whole request"),
    )
    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    for axes, (field, title) in zip(figure.subplots(1, len(figures)), figures):
        load = "rate"
        for name, document in named:
            points = [point for point in document["points"] if point[field]["p50"] is not None]
            load = "concurrency" if points and "concurrency" in points[0] else "rate"
            x = [point[load] for point in points]
            (line,) = axes.plot(x, [point[field]["p50"] for point in points], "o-", label=name)
            axes.fill_between(
                x,
                [point[field]["p50"] for point in points],
                [point[field]["p99"] for point in points],
                alpha=0.2,
                color=line.get_color(),
            )
        axes.set_title(title)
        axes.set_xlabel("requests in flight" if load == "concurrency" else "requests per second")
        axes.set_ylabel("ms, p50 to p99")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        _legend(axes, len(named))
    return figure


KINDS: Mapping[str, Callable[[Named], Figure]] = {
    "attention": attention,
    "loss": loss,
    "passkey": passkey,
    "positions": positions,
    "sweep": sweep,
    "bench": bench,
}
SINGLE = ("attention", "sweep")  # kinds of one document


def save(figure: Figure, path: str) -> None:
    """Writes `figure` in the format that the path's end names. HTML holds the SVG itself."""
    suffix = os.path.splitext(path)[1]
    if suffix in (".svg", ".pdf"):
        figure.savefig(
            path, metadata={"Date": None} if suffix == ".svg" else {"CreationDate": None}
        )
    elif suffix == ".png":
        figure.savefig(path, dpi=150)
    elif suffix == ".html":
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        image = base64.b64encode(buffer.getvalue()).decode()
        title = html.escape(os.path.basename(path))
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><meta charset="utf-8"><title>{title}</title>'
                f'<img alt="{title}" src="data:image/svg+xml;base64,{image}">\n'
            )
    else:
        raise ValueError(f"{path}: the name must end in .svg, .png, .pdf or .html")


def _read(argument: str) -> tuple[str, Document]:
    name, separator, path = argument.rpartition("=")
    if not separator:
        name = "" if path == "-" else os.path.splitext(os.path.basename(path))[0]
    try:
        with open(0 if path == "-" else path, encoding="utf-8", closefd=path != "-") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path}: must hold one JSON object")
    return name, document


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="lssar-figure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("files", metavar="[NAME=]FILE", nargs="+")
    given = parser.parse_args(arguments)
    try:
        if given.kind in SINGLE and len(given.files) > 1:
            raise ValueError(f"{given.kind}: takes one file, {len(given.files)} are given")
        named = [_read(argument) for argument in given.files]
        try:
            figure = KINDS[given.kind](named)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(
                f"{given.files[0]}: is not what `lssar` prints for a figure of kind "
                f"{given.kind}: {error!r}"
            ) from error
        save(figure, given.out)
    except (ValueError, OSError) as error:
        print(f"lssar-figure: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
