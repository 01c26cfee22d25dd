r"""Rows per second through lssar.ray with one actor and with two, each with a server of its
own with one thread, on two cores: the time from the first batch that arrives to the last one.

    cmake --build build/release --target lssar-server lssar_python_stubs
    PYTHONPATH=build/release/python:clients/python \
        PYTHON_OF_RAY tests/bench/ray_rate.py --build build/release

PYTHON_OF_RAY has `pip install 'clients/python[ray]'`; that of the tests is
build/*/venvs/ray/bin/python. Run from the root of the source tree. One and two actors alternate;
prints each round and the median.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault('RAY_worker_niceness', '0')  # as in production on nodes of Ray's own

import lssar.ray
import ray

MODEL = 'models/zoo/lssar-6m'


def rate(program, actors, num_rows):
    """Rows per second. Each row is a score of 180 to 190 tokens."""
    rows = [{'context': f'{i} ' + 'and the river ' * 60, 'continuation': ' is long'}
            for i in range(num_rows)]
    data = ray.data.from_items(rows, override_num_blocks=num_rows // 64).map_batches(
        lssar.ray.Score, batch_size=32, num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=actors),
        fn_constructor_kwargs={'model': os.path.abspath(MODEL), 'program': program,
                               'flags': ['--no-enable-prefix-caching']})
    begin, first, total = None, 0, 0
    for batch in data.iter_batches(batch_size=None):
        now = time.monotonic()
        size = len(batch['context'])
        if begin is None:
            begin, first = now, size
        total += size
    assert total == num_rows
    return (total - first) / (now - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default='build/release', help='build folder with bin/')
    parser.add_argument('--rows', type=int, default=2048, help='rows of a run')
    parser.add_argument('--rounds', type=int, default=5, help='runs of each kind')
    given = parser.parse_args()
    program = os.path.abspath(f'{given.build}/bin/lssar-server')
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level='ERROR')
    ray.data.DataContext.get_current().enable_progress_bars = False
    ratios = []
    for i in range(given.rounds):
        one, two = rate(program, 1, given.rows), rate(program, 2, given.rows)
        ratios.append(two / one)
        print(f'round {i + 1}: {one:.1f} rows/s with one actor, {two:.1f} with two: '
              f'{two / one:.2f} times', flush=True)
    print(f'median {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]')


if __name__ == '__main__':
    main()
