"""Runs the programs of two pages, and draws what they print: docs/figures/probe.svg, steering.svg.

    PATH="$PWD/build/release/bin:$PATH" python3 docs/figures.py    # needs lssar[plot], scikit-learn
"""

import pathlib
import re
import subprocess
import sys

from lssar import figures  # sets what every figure has

ROOT = pathlib.Path(__file__).resolve().parents[1]


def output_of(page: str) -> list[list[float]]:
    """The numbers of each line that the page's program prints."""
    text = (ROOT / 'docs' / page).read_text(encoding='utf-8')
    [program] = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True,
                          text=True, check=True)
    return [[float(number) for number in re.findall(r'-?\d+(?:\.\d+)?', line)]
            for line in done.stdout.splitlines()]


def probe() -> figures.Figure:
    """Accuracy by layer."""
    layers, accuracies = zip(*output_of('hidden_states.md'))
    figure = figures.Figure(figsize=(5, 2.8), layout='constrained')
    axes = figure.subplots()
    axes.plot(layers, accuracies, marker='o')
    axes.axhline(50, linestyle='--', color='grey', linewidth=1, label='a guess')
    axes.set_xlabel('layer (0 is the embedding)')
    axes.set_ylabel('right answers (%)')
    axes.set_title('An article or a dialog? A linear probe, lssar-6m', fontsize=8)
    axes.grid(axis='y', alpha=0.3)
    axes.legend(frameon=False)
    return figure


def steering() -> figures.Figure:
    """Losses of both kinds of text by scale, beside those without steering."""
    scales, articles, dialogs = zip(*output_of('steering.md'))
    figure = figures.Figure(figsize=(5, 2.8), layout='constrained')
    axes = figure.subplots()
    without = scales.index(0)
    for name, losses in ('articles', articles), ('dialogs', dialogs):
        axes.plot(scales, [loss - losses[without] for loss in losses], marker='o', label=name)
    axes.set_xlabel('scale of the direction from articles to dialogs')
    axes.set_ylabel('change of the loss\n(nats per token)')
    axes.set_title('Steering behind block 4, lssar-6m', fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


for draw in probe, steering:
    figures.save(draw(), str(ROOT / 'docs' / 'figures' / f'{draw.__name__}.svg'))
