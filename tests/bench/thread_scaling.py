"""Prints the speed of the CPU backend with 1, 2, 4, ... threads: decode and prefill of the 124M
shape, beside what as many threads can read and compute at most.

    cmake --build build/release-cpu --target gpu_model_bench
    python3 -B tests/bench/thread_scaling.py
    python3 -B tests/bench/thread_scaling.py --threads 1,2,4,8 --cpus 0-7
    python3 -B tests/bench/thread_scaling.py --repeats 1    a short run

With --cpus thread counts are the first 1, 2, 4, ... of these CPUs, and threads stay on them.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'gpu'))

import report  # noqa: E402

WORK = ['--device', 'cpu', '--depths', '0,1024', '--batch', '16', '--batch-depth', '256',
        '--prompt', '256']


def parse_cpus(text):
    """CPUs of a list such as 0-7,16-23."""
    cpus = []
    for part in text.split(','):
        first, _, last = part.partition('-')
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def default_threads(most):
    """1, 2, 4, ... and the most."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--bench', default='build/release-cpu/bin/gpu_model_bench',
                        help='the program that measures [%(default)s]')
    parser.add_argument('--threads', type=lambda text: [int(n) for n in text.split(',')],
                        help='numbers of threads [1, 2, 4, ... and all CPUs]')
    parser.add_argument('--cpus', type=parse_cpus, help='CPUs that threads stay on [any]')
    parser.add_argument('--repeats', default='5', help='samples of each figure [%(default)s]')
    given = parser.parse_args()
    most = len(given.cpus or os.sched_getaffinity(0))
    benches = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in given.threads or default_threads(most):
            threads = ['--threads', str(count)]
            if given.cpus:
                threads = ['--cpus', ','.join(map(str, given.cpus[:count]))]
            done = subprocess.run([given.bench, *WORK, *threads, '--repeats', given.repeats,
                                   '--work-folder', folder], stdout=subprocess.PIPE, check=True)
            benches[count] = json.loads(done.stdout)
            print(benches[count]['device'], file=sys.stderr)
    print('\n'.join(report.cpu_table(benches)))


if __name__ == '__main__':
    main()
