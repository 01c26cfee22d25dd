"""What the server costs beside its engine: client and server each on one core, lssar-6m.

    cmake --build build/release --target lssar-server lssar lssar_engine_rate lssar_python_stubs
    /usr/bin/python3 -B tests/bench/server_cost.py --build build/release
    /usr/bin/python3 -B tests/bench/server_cost.py --build build/release --rounds 1 --streams 16

Run from the root of the source tree; the last line is a short run. Each round runs the engine alone
(lssar_engine_rate) and then the server with `lssar bench`, on the same core with the same requests.
Prints medians over the rounds of

  rate    output tokens/s of the server / of the engine, and the smallest and largest of the rounds:
          only with nothing else on the machine
  cpu     CPU time of the engine's process per token / of the server's: other work hardly changes it
  us      CPU time per token of the server beyond the engine's
  sw      context switches of the server's threads per token: voluntary (a thread slept and was
          woken), involuntary
  itl     the client's time between tokens, p50 and p99, in ms
"""

import argparse
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'load'))

NUM_OUTPUT = 256


def read_counts(pid):
    """(CPU seconds, voluntary, involuntary switches) of all threads of a process."""
    total = [0.0, 0, 0]
    for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
        try:
            total[0] += int((task / 'schedstat').read_text().split()[0]) * 1e-9
            for line in (task / 'status').read_text().splitlines():
                name, _, value = line.partition(':')
                if name == 'voluntary_ctxt_switches':
                    total[1] += int(value)
                elif name == 'nonvoluntary_ctxt_switches':
                    total[2] += int(value)
        except OSError:
            pass  # the thread has ended
    return total


def run_round(programs, server, model, streams, core, other):
    flags = ('--random-input-len', 'fixed:128', '--random-output-len', f'fixed:{NUM_OUTPUT}',
             '--max-concurrency', streams, '--num-prompts', max(4, streams))
    os.sched_setaffinity(0, core)
    engine = programs.run_json(programs.engine_rate, '--model', model, '--threads', 1, *flags)
    os.sched_setaffinity(0, other)
    before = read_counts(server.process.pid)
    point, = programs.bench(server.address, *map(str, flags), '--warmup', '0s')
    after = read_counts(server.process.pid)
    num_tokens = max(4, streams) * NUM_OUTPUT
    cpu_us, voluntary, involuntary = ((b - a) / num_tokens for a, b in zip(before, after))
    cpu_us *= 1e6
    return {'rate': point['output_tokens_per_s'] / engine['output_tokens_per_s'],
            'cpu': engine['cpu_us_per_token'] / cpu_us,
            'us': cpu_us - engine['cpu_us_per_token'],
            'voluntary': voluntary, 'involuntary': involuntary,
            'p50': point['itl_ms']['p50'], 'p99': point['itl_ms']['p99']}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default='build/ci', help='build folder [%(default)s]')
    parser.add_argument('--server', help='another server program [that of the build folder]')
    parser.add_argument('--streams', default='1,16,64', type=lambda text: text.split(','),
                        help='numbers of concurrent requests [%(default)s]')
    parser.add_argument('--rounds', type=int, default=5, help='after one to warm up [%(default)s]')
    return parser.parse_args()


def main():
    given = parse_arguments()
    sys.path.insert(0, os.path.join(given.build, 'python'))
    from served import MODEL, Programs, Server, cores_apart  # needs the stubs of the build

    programs = Programs(os.path.join(given.build, 'bin'))
    every = os.sched_getaffinity(0)
    with cores_apart() as cores:
        core, other = set(cores[:1]), set(sorted(every - set(cores))[:1]) or every
        with Server(given.server or programs.server, '--threads', 1, '--http-listen', 'off',
                    cores=core) as server:
            for streams in map(int, given.streams):
                rounds = [run_round(programs, server, MODEL, streams, core, other)
                          for _ in range(given.rounds + 1)][1:]  # the first touches the pages
                median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
                rates = [r['rate'] for r in rounds]
                print('{streams:3} streams: rate {rate:.3f} [{low:.3f}, {high:.3f}]  cpu {cpu:.3f}'
                      '  us {us:.1f}  sw {voluntary:.3f} + {involuntary:.3f}'
                      '  itl {p50:.2f} {p99:.2f}'
                      .format(streams=streams, low=min(rates), high=max(rates), **median),
                      flush=True)


if __name__ == '__main__':
    main()
