"""Joins the results of run.sh in FOLDER into OUT/report.json and OUT/report.md. Exit code 0: all
checks passed.

    python3 report.py FOLDER OUT
"""

import json
import pathlib
import sys

# Targets of decode by batch: share of copy bandwidth, and ratio to the best exact softmax.
DECODE_TARGETS = {1: (0.55, 1.2), 16: (0.80, 1.5), 64: (0.85, 1.6)}
# Tokens a second of whole models, by work, batch and depth.
MODEL_TARGETS = {('decode', 1, 0): 4000, ('decode', 1, 16384): 2500, ('decode', 64, 1024): 100000}
# How many times the PyTorch model's rate.
PEER_TARGETS = {('decode', 1, 0): 10, ('decode', 1, 16384): 10, ('prefill', 1, 1024): 5}
# The host's share of a step of 64 sequences, at most.
MAX_HOST_SHARE = 0.15
# Rows that the slow path in double computes, of all rows and heads of LSSAR attention, at most. A
# trained model has 2%, nearly all among a prompt's first.
MAX_FLAT_SHARE = 0.02
# What bounds a row of the CPU bench, and what is measured of the threads themselves.
LIMITS = {'read': 'read bandwidth', 'fma': 'multiply-adds'}
CPU_FIGURES = {'read_gb_per_s': 'read, GB/s', 'fma_gflops': 'multiply-adds, GFLOP/s',
               'loop_us': 'empty loop, us'}
# Checks whose failure does not fail the run.
INFORMATIVE = {'peers', 'model_invariant', 'model_peers'}


def load(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def passed(folder, name, status):
    if status == '0':  # a run without any test has not passed: the device was not found
        log = folder / f'{name}.log'
        return not log.exists() or '[  PASSED  ] 0 tests' not in log.read_text()
    return name in INFORMATIVE or status == 'not installed'


def verdict(row):
    """'info': a check that failed and need not pass."""
    if not row['passed']:
        return 'FAIL'
    return 'info' if row['check'] in INFORMATIVE and row['status'] != '0' else 'pass'


def best_peer(peers, work, batch):
    times = [row['ms'] for row in peers or [] if 'ms' in row and row['work'] == work
             and row['batch'] == batch]
    return min(times, default=None)


def table(bench, peers):
    yield (f"{bench['device']}; copy {bench['copy_gb_per_s']:.0f} GB/s; "
           f"{bench['context']} keys, {bench['heads']} heads x {bench['head_dim']}")
    yield (f"{'work':8}{'kind':9}{'kv':6}{'batch':>6}{'ms':>10}{'of copy':>9}{'V read':>8}"
           f"{'flat':>7}{'peer':>8}")
    for row in bench['rows']:
        peer = best_peer(peers, row['work'], row['batch'])
        of_copy = f"{row['of_copy']:.0%}" if 'of_copy' in row else '-'
        ratio = f"{peer / row['ms']:.2f}x" if peer else '-'
        yield (f"{row['work']:8}{row['kind']:9}{row['kv']:6}{row['batch']:6}{row['ms']:10.4f}"
               f"{of_copy:>9}{row['share_of_v_read']:8.0%}"
               f"{row['share_of_flat_rows']:7.1%}{ratio:>8}")
    for row in bench['rows']:
        if (row['work'], row['kind'], row['kv']) != ('decode', 'lssar', 'fp16'):
            continue
        of_copy, ratio = DECODE_TARGETS[row['batch']]
        peer = best_peer(peers, 'decode', row['batch'])
        reached = row['of_copy'] >= of_copy and (peer is None or peer / row['ms'] >= ratio)
        yield (f"target, batch {row['batch']}: {of_copy:.0%} of copy, {ratio}x the best softmax: "
               f"{'reached' if reached else 'missed'}")
    for row in peers or []:
        yield f"peer {row['peer']}: " + (row.get('left_out') or
                                         f"{row['work']} batch {row['batch']} {row['ms']:.4f} ms")


def flat_rows(bench):
    """A check: the slow path is right, so that nothing else fails where all rows take it."""
    shares = [row['share_of_flat_rows'] for row in bench['rows'] if row['kind'] == 'lssar']
    few = bool(shares) and max(shares) <= MAX_FLAT_SHARE
    return {'check': 'flat_rows', 'status': '0' if few else '1', 'seconds': 0, 'passed': few}


def yes(reached):
    return 'yes' if reached else 'no'


def peer_rate(peers, work):
    """(rate, name) of the compiled model, or of the eager one if that failed."""
    rates = {row['peer']: row['tokens_per_s'] for row in peers or []
             if 'tokens_per_s' in row and (row['work'], row['batch'], row['depth']) == work}
    for name in 'torch compile', 'torch eager':
        if name in rates:
            return rates[name], name
    return None, 'no peer'


def model_table(bench, peers):
    yield f"{bench['device']}; {bench['parameters'] / 1e6:.0f}M parameters"
    yield f"{'work':28}{'target':>16}{'figure':>16}{'ratio':>8}  reached"
    for row in bench['rows']:
        work = row['work'], row['batch'], row['depth']
        name = f"{work[0]} batch {work[1]} at {work[2]}"
        figure, rate = f"{row['tokens_per_s']:.0f} tok/s", row['tokens_per_s']
        if work in MODEL_TARGETS:
            target = MODEL_TARGETS[work]
            yield (f"{name:28}{f'{target} tok/s':>16}{figure:>16}{rate / target:8.2f}  "
                   f"{yes(rate >= target)}")
        peer, peer_name = peer_rate(peers, work)
        wanted = PEER_TARGETS.get(work)
        ratio = rate / peer if peer else float('nan')
        yield (f"{name:28}{f'{wanted}x {peer_name}' if wanted else peer_name:>16}{figure:>16}"
               f"{ratio:8.2f}  {yes(ratio >= wanted) if wanted else '-'}")
        if work[0] == 'decode':
            share = row['host_share']
            if work[1] > 1:
                yield (f"{'  host of a step':28}{f'<= {MAX_HOST_SHARE:.0%}':>16}{share:>16.1%}"
                       f"{share / MAX_HOST_SHARE:8.2f}  {yes(share <= MAX_HOST_SHARE)}")
            else:
                yield f"{'  host of a step':28}{'-':>16}{share:>16.1%}{'-':>8}  -"
    for row in peers or []:
        yield f"peer {row['peer']}: " + (
            row.get('left_out') or f"{row['work']} batch {row['batch']} at {row['depth']} "
            f"{row['tokens_per_s']:.0f} tok/s")


def figures_of_tests(folder):
    """The lines of the model tests that hold figures."""
    for log in sorted(folder.glob('model_*.log')):
        for line in log.read_text(errors='replace').splitlines():
            if 'mean KL' in line or 'near ties' in line or 'free at the end' in line:
                yield line


def cpu_table(benches):
    """Rates of the CPU backend by number of threads."""
    yield f"{'cpu, tokens/s':28}" + ''.join(f'{threads:>5} threads' for threads in benches)
    first = next(iter(benches.values()))
    for i, row in enumerate(first['rows']):
        rates = ''.join(f"{bench['rows'][i]['tokens_per_s']:13.1f}" for bench in benches.values())
        yield f"{row['work']} batch {row['batch']} at {row['depth']}".ljust(28) + rates
        for limit, name in LIMITS.items():
            if f'of_{limit}' in row:
                yield f'  share of {name}'.ljust(28) + ''.join(
                    f"{bench['rows'][i][f'of_{limit}']:13.0%}" for bench in benches.values())
    for figure, name in CPU_FIGURES.items():
        if figure in first:
            yield name.ljust(28) + ''.join(f'{bench[figure]:13.1f}' for bench in benches.values())


def main():
    folder, out = map(pathlib.Path, sys.argv[1:])
    checks = [line.split('\t') for path in sorted(folder.glob('results-*.tsv'))
              for line in path.read_text().splitlines()]
    results = [{'check': name, 'status': status, 'seconds': int(seconds),
                'passed': passed(folder, name, status)} for name, status, seconds in checks]
    bench, peers = load(folder / 'bench.json'), load(folder / 'peers.json')
    if bench:
        results.append(flat_rows(bench))
    model, model_peers = load(folder / 'model_bench.json'), load(folder / 'model_peers.json')
    invariant = load(folder / 'model_invariant.json')
    by_threads = {threads: bench for threads in (1, 2, 4, 8, 16)
                  if (bench := load(folder / f'cpu_{threads}.json'))}
    report = {'checks': results, 'bench': bench, 'peers': peers, 'model_bench': model,
              'model_invariant': invariant, 'model_peers': model_peers, 'cpu': by_threads,
              'test_figures': list(figures_of_tests(folder))}
    (out / 'report.json').write_text(json.dumps(report, indent=1) + '\n')
    lines = [f"{verdict(row)}  {row['check']:20} exit {row['status']}, {row['seconds']} s"
             for row in results]
    if bench:
        lines += ['', *table(bench, peers)]
    if model:
        lines += ['', *model_table(model, model_peers)]
    if invariant:
        invariant['rows'] = [row for row in invariant['rows'] if row['work'] == 'prefill']
        lines += ['', '--batch-invariant', *list(model_table(invariant, model_peers))[1:]]
    if by_threads:
        lines += ['', *cpu_table(by_threads)]
    lines += report['test_figures']
    fence = '```'
    (out / 'report.md').write_text('\n'.join([fence, *lines, fence]) + '\n')
    print('\n'.join(lines))
    sys.exit(0 if all(row['passed'] for row in results) else 1)


if __name__ == '__main__':
    main()
