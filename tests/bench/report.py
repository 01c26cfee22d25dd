"""Writes the figures of deploy/bench.sh as one JSON file and one Markdown page.

    python3 tests/bench/report.py RESULTS_DIR COMMIT

reads what the benches left in RESULTS_DIR (16bit.json, int8.json, 4bit.json, shipped.json,
copy.json, linear-*.json, attention.json) and writes bench.json and bench.md beside it.
"""

import datetime
import json
import pathlib
import statistics
import sys
from typing import NamedTuple, Optional

FP16 = 'fp16 weights, fp16 K/V'
INT8 = 'int8 weights, fp16 K/V'
INT8_KV = 'int8 weights, int8 K/V'
INT4 = 'int4 weights, fp16 K/V'
MEMORY_SHARE = 0.60
# Least ratios of formats sampled by turns: (format, beginning of what it is compared with).
TURN_TARGETS = {(INT4, INT8): 1.6, (INT4, "llama.cpp's"): 1.5}
COPY_TARGET = 3.0  # tokens per second with speculation over those without
OPS = {'linear': 'products', 'logits': 'logits', 'attention': 'attention',
       'rope_write': 'K/V written', 'embed': 'embedding', 'other': 'other'}


class Goal(NamedTuple):
    """A row of the table: the figure and its target."""
    work: str
    run: str  # which file of model_bench
    format: str
    ratio: Optional[float] = None  # to llama.cpp
    share: Optional[float] = None  # of the ceiling
    share_alone: Optional[float] = None  # the same, where there is no peer to compare with


GOALS = (
    Goal('prefill 512', 'int8', INT8, ratio=1.8, share_alone=0.75),
    Goal('prefill 1024', 'int8', INT8, ratio=1.8, share_alone=0.75),
    Goal('decode at 0', '16bit', FP16, ratio=1.0, share=0.88),
    Goal('decode at 0', 'int8', INT8, ratio=1.7, share=0.85),
    Goal('decode at 0', '4bit', INT4, ratio=1.5, share=0.85),
    Goal('decode at 1024', 'int8', INT8),
    Goal('decode at 4096', 'int8', INT8, ratio=4.0),
    Goal('decode at 4096', 'int8', INT8_KV, ratio=4.0),
    Goal('decode at 16384', 'int8', INT8, ratio=6.0),
    Goal('decode at 16384', 'int8', INT8_KV, ratio=9.0),
    Goal('16 sequences at 512', 'int8', INT8, ratio=2.5),
    Goal('16 sequences at 512', 'int8', INT8_KV),
)


def spread(samples: list[float]) -> float:
    return (max(samples) - min(samples)) / statistics.median(samples)


def table(header: str, rows: list[str]) -> str:
    return '\n'.join([header, '|---' * (header.count('|') - 1) + '|', *rows]) + '\n'


def units_of(figure: dict) -> tuple[str, str]:
    """Units of an amount of work (millions) and of its rate (thousands of millions per second)."""
    return ('MB', 'GB/s') if figure['ceiling'] == 'read bandwidth' else ('MFLOP', 'GFLOP/s')


def ceiling_of(figure: dict) -> float:
    """Bytes or FLOPs per second: the ceiling measured beside the samples."""
    return statistics.median(figure['ceiling_per_second'])


def work_of(figure: dict) -> str:
    """The least work per token, and the ceiling measured beside the samples."""
    amount, rate = units_of(figure)
    return (f'{figure["work_per_token"] / 1e6:,.0f} {amount} | '
            f'{ceiling_of(figure) / 1e9:,.0f} {rate}')


def figure_of(goal: Goal, runs: dict) -> dict:
    return next(f for f in runs[goal.run]['figures']
                if (f['work'], f['format']) == (goal.work, goal.format))


def goal_row(goal: Goal, figure: dict) -> str:
    ours, peer, share = (figure['tokens_per_second'], figure['peer_tokens_per_second'],
                         figure['share_of_ceiling'])
    least_share = goal.share or (None if peer else goal.share_alone)
    wanted, verdicts = [], []
    if goal.ratio:
        wanted.append(f'{goal.ratio:g}x')
        if peer:
            # The ratio at 100% of the ceiling; a target above it cannot be met on this machine.
            most = ceiling_of(figure) / figure['work_per_token'] / peer
            verdicts.append('met' if ours >= goal.ratio * peer else
                            f'the ceiling is {most:.2f}x' if most < goal.ratio else 'missed')
    if least_share:
        wanted.append(f'{least_share:.0%} of ceiling')
        verdicts.append('met' if share >= least_share else 'missed')
    if len(set(verdicts)) == 1:
        verdicts = verdicts[:1]
    beside_peer = '- | -'
    if peer:
        beside_peer = (f'{peer:,.0f} at {figure["peer_ceiling_per_second"] / 1e9:,.0f} '
                       f'{units_of(figure)[1]} | {ours / peer:.2f}x')
    return (f'| {goal.work}, {goal.format} | {ours:,.0f} | {spread(figure["samples"]):.0%} | '
            f'{beside_peer} | {work_of(figure)} | {share:.0%} | {" and ".join(wanted)} | '
            f'{", ".join(verdicts)} |')


def step_row(goal: Goal, figure: dict) -> str:
    """The sample of median speed. Its parts add up; medians of parts would not."""
    step, (amount, rate) = figure['step'], units_of(figure)
    cells = [f'{step["us"]:,.0f}']
    cells += [f'{step["op_us"][op]:,.0f} ({step["op_us"][op] / step["us"]:.0%})' for op in OPS]
    cells += [f'{step[f"{part}_work"] / 1e6:,.0f} {amount}, '
              f'{step[f"{part}_per_second"] / 1e9:,.0f} {rate} '
              f'({step[f"{part}_per_second"] / step["ceiling_per_second"]:.0%})'
              for part in ('weights', 'attention')]
    return (f'| {goal.work}, {goal.format} | {" | ".join(cells)} | '
            f'{step["ceiling_per_second"] / 1e9:,.0f} {rate} |')


def memory_rows(run: dict) -> list[str]:
    rows = []
    for weights_and_kv, mib in run['peak_mib'].items():
        peer = run['peer_peak_mib'][weights_and_kv]
        if not peer:
            rows.append(f'| {weights_and_kv} | {mib:,.0f} | - | - | {MEMORY_SHARE:.0%} | |')
            continue
        rows.append(f'| {weights_and_kv} | {mib:,.0f} | {peer:,.0f} | {mib / peer:.0%} | '
                    f'{MEMORY_SHARE:.0%} | {"yes" if mib <= MEMORY_SHARE * peer else "no"} |')
    return rows


def value_rows(runs: dict) -> list[str]:
    """The share of V rows with a weight above zero, by model and depth."""
    rows = []
    for name, run, weights_and_kv in (('random weights, 124M shape', 'int8', INT8),
                                      ('lssar-6m on held-out text', 'shipped', FP16)):
        shares = {f['work']: f['value_rows_read']
                  for f in runs[run]['figures'] if f['format'] == weights_and_kv}
        cells = [f'{shares[f"prefill 512 at {depth}"]:.1%}' for depth in (1024, 4096, 16384)]
        rows.append(f'| {name} | ' + ' | '.join(cells) + ' |')
    return rows


def product_rows(run: dict) -> list[str]:
    rows = []
    for f in run['figures']:
        ours, peer = (statistics.median(f[key]) for key in ('samples_us', 'peer_samples_us'))
        rows.append(f'| {run["weights"]} {f["in"]} x {f["out"]} | {f["rows"]} | {ours:,.0f} | '
                    f'{spread(f["samples_us"]):.0%} | {peer:,.0f} | {peer / ours:.2f} | '
                    f'{f["share_of_read"]:.0%} | {f["share_of_multiply_add"]:.0%} |')
    return rows


def attention_rows(run: dict) -> list[str]:
    """Google Benchmark medians of LSSAR and softmax for equal shapes."""
    # decode/1_of_1024/fp16/lssar/... -> (decode/1_of_1024/fp16, lssar), median or cv
    found = {}
    for b in run['benchmarks']:
        work, rows_of, dtype, kind = b['run_name'].split('/')[:4]
        found[f'{work} {rows_of.replace("_", " ")}, {dtype} K/V', kind, b['aggregate_name']] = b
    rows = []
    for (name, kind, aggregate), ours in found.items():
        if (kind, aggregate) != ('lssar', 'median') or (name, 'softmax', aggregate) not in found:
            continue
        softmax = found[name, 'softmax', aggregate]
        variation = found[name, kind, 'cv']['real_time']
        rate = (f'{ours["GB/s"]:.1f} GB/s'
                if 'GB/s' in ours else f'{ours["GFLOP/s"]:.0f} GFLOP/s')
        rows.append(f'| {name} | {ours["real_time"]:,.0f} | {variation:.0%} | '
                    f'{softmax["real_time"]:,.0f} | '
                    f'{softmax["real_time"] / ours["real_time"]:.2f} | {rate} | '
                    f'{ours["v_read"]:.0%} |')
    return rows


def turn_rows(run: dict) -> list[str]:
    """Ratios of formats whose samples were taken by turns."""
    rows = []
    for r in run['ratios']:
        target = next((target for (name, other), target in TURN_TARGETS.items()
                       if name == r['format'] and r['other'].startswith(other)), None)
        verdict = (f'{target:g}x | {"met" if r["ratio"] >= target else "missed"}'
                   if target else '- |')
        rows.append(f'| {r["format"]}, {r["work"]} | {r["other"]} | {r["ratio"]:.2f}x | '
                    f'{min(r["ratios"]):.2f} to {max(r["ratios"]):.2f} | {verdict} |')
    return rows


def copy_row(run: dict) -> str:
    """Speculative decoding of a copied passage."""
    median = {key: statistics.median(values) for key, values in run.items()
              if isinstance(values, list)}
    peer = '- | - | - | -'
    if 'peer_lookup' in run:
        peer = (f'{median["peer_lookup"]:,.0f} | {median["peer_ratio"]:.2f}x | '
                f'{median["plain_over_peer"]:.2f}x | {median["speculating_over_peer"]:.2f}x')
    return (f'| {run["dtype"]} | {median["speculating"]:,.0f} | {median["ratio"]:.2f}x | {peer} | '
            f'{COPY_TARGET:g}x | {"met" if median["ratio"] >= COPY_TARGET else "missed"} |')


def markdown(runs: dict, date: str, commit: str) -> str:
    int8, copy = runs['int8'], runs['copy']
    goals = [goal_row(goal, figure_of(goal, runs)) for goal in GOALS]
    steps = [step_row(goal, figure_of(goal, runs)) for goal in GOALS]
    products = product_rows(runs['linear-fp16']) + product_rows(runs['linear-int8'])
    return '\n'.join([
        f'{int8["machine"]}; {date}, commit {commit}. Medians; spread is (largest - smallest) / '
        'median. Ceilings are measured before and after every sample, for the machine may be '
        'shared: read bandwidth for decode, fp32 GEMM (oneDNN) for prefill.\n',
        'The 124M shape (12 layers, 12 heads, width 768, vocabulary 50304), tokens a second:\n',
        table('| work | ours | spread | llama.cpp | ratio | a token takes | ceiling then '
              '| of the ceiling | target | |', goals),
        'Decoding in several formats, a sample of each by turns: the median ratio of a turn, and '
        'all turns:\n',
        table('| decoding | beside | ratio | turns | target | |', turn_rows(runs['4bit'])),
        f'A passage of {copy["passage"]:,} tokens, of which {copy["num_tokens"]:,} are copied by a '
        'model of the same shape that copies (speculation_bench --copying): n-gram drafts of up to '
        f'{copy["num_speculative_tokens"]} tokens beside llama.cpp\'s lookup decoding with as '
        'many, tokens a second and ratios of turns:\n',
        table('| weights | ours with drafts | over ours without | llama.cpp | over its own without '
              '| ours over it, without drafts | with | target | |',
              [copy_row(copy)]),
        "Where a step's time goes, us, in the sample of median speed (prefill: 512 rows a step). "
        'Weights are the bytes that products and logits read, scales included, or the FLOPs that '
        'they need; attention is K whole and the V rows that count; each at its rate while it ran, '
        'and the share of the ceiling of that moment:\n',
        table('| step | us | ' + ' | '.join(OPS.values()) + ' | weights | attention '
              '| ceiling then |', steps),
        'Peak memory with a context of 16K, MiB:\n',
        table('| format | ours | llama.cpp | share | target | met |', memory_rows(int8)),
        'Share of the V rows that attention reads, 512 rows behind a context of:\n',
        table('| model | 1K | 4K | 16K |', value_rows(runs)),
        'Matrix products, us (oneDNN: fp32 weights):\n',
        table('| weights | rows | ours | spread | oneDNN | ratio | of read | of multiply-add |',
              products),
        'Attention of one layer, 12 heads of 64, us, beside softmax of the same backend:\n',
        table('| rows | LSSAR | variation | softmax | ratio | LSSAR reads or computes | V read |',
              attention_rows(runs['attention'])),
    ])


def main() -> None:
    folder, commit = pathlib.Path(sys.argv[1]), sys.argv[2]
    names = ('16bit', 'int8', '4bit', 'shipped', 'copy', 'linear-fp16', 'linear-int8',
             'attention')
    runs = {name: json.loads((folder / f'{name}.json').read_text()) for name in names}
    date = datetime.date.today().isoformat()
    (folder / 'bench.json').write_text(
        json.dumps({'date': date, 'commit': commit, **runs}, indent=2) + '\n')
    text = markdown(runs, date, commit)
    (folder / 'bench.md').write_text(text)
    print(text, end='')


if __name__ == '__main__':
    main()
