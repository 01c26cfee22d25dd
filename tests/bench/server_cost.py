"""What the server costs beside its engine: client and server each on one core, lssar-6m.

    cmake --build build/release --target lssar-server lssar lssar_engine_rate lssar_python_stubs
    /usr/bin/python3 -B tests/bench/server_cost.py --build build/release
    /usr/bin/python3 -B tests/bench/server_cost.py --build build/release --rounds 1 --streams 16

Run from the root of the source tree; the last line is a short run. Each round runs the engine alone
(lssar_engine_rate) and then the server with `lssar bench`, on the same core with the same requests:
prompts of 128 tokens, outputs of 128 to 384, so that streams end and begin all the time. Prints
medians over the rounds of

  rate    output tokens/s of the server / of the engine, and the smallest and largest of the rounds:
          only with nothing else on the machine
  cpu     CPU time of the engine's process per token / of the server's: other work hardly changes it
  share   CPU time of the server's engine thread / of its process: not even the machine's speed,
          which drifts between the two runs of a round, changes it
  us      CPU time per token of the server's threads by name, then of the engine's process alone;
          threads below 0.5 us are left out
  steps   tokens per engine step, server / engine: arrivals over a network are spread more
  sw      context switches of the server's threads per token: voluntary (a thread slept and was
          woken), involuntary
  itl     the client's time between tokens, p50 and p99, in ms
"""

import argparse
import collections
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'load'))

MAX_PROMPTS = 128  # of a round


class Counts:
    """CPU microseconds by thread name and context switches of a process since its start."""

    def __init__(self, pid):
        self.cpu_us, self.voluntary, self.involuntary = collections.Counter(), 0, 0
        for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
            try:
                name = (task / 'comm').read_text().strip()
                self.cpu_us[name] += int((task / 'schedstat').read_text().split()[0]) / 1000
                status = dict(line.split(':', 1) for line in
                              (task / 'status').read_text().splitlines())
                self.voluntary += int(status['voluntary_ctxt_switches'])
                self.involuntary += int(status['nonvoluntary_ctxt_switches'])
            except OSError:
                pass  # the thread has ended


def run_round(programs, server, load, streams, cores):
    """Returns ({figure: value}, CPU microseconds per token by the name of the server's thread)."""
    num_prompts = max(4, min(4 * streams, MAX_PROMPTS))
    flags = (*load, '--max-concurrency', streams, '--num-prompts', num_prompts)
    engine = programs.engine_alone(cores, *flags)
    before, first_step = Counts(server.process.pid), server.stats().num_steps
    point, = programs.bench(server.address, *map(str, flags), '--warmup', '0s')
    after, num_steps = Counts(server.process.pid), server.stats().num_steps - first_step
    num_tokens = point['num_output_tokens']
    cpu_us = collections.Counter({name: (us - before.cpu_us[name]) / num_tokens
                                  for name, us in after.cpu_us.items()})
    return {'rate': point['output_tokens_per_s'] / engine['output_tokens_per_s'],
            'cpu': engine['cpu_us_per_token'] / cpu_us.total(),
            'share': cpu_us['engine'] / cpu_us.total(),
            'alone': engine['cpu_us_per_token'],
            'steps': num_tokens / num_steps / engine['tokens_per_step'],
            'voluntary': (after.voluntary - before.voluntary) / num_tokens,
            'involuntary': (after.involuntary - before.involuntary) / num_tokens,
            'p50': point['itl_ms']['p50'], 'p99': point['itl_ms']['p99']}, cpu_us


def report(streams, figures, cpu_us):
    """Prints the medians of the rounds."""
    median = {key: statistics.median(round_[key] for round_ in figures) for key in figures[0]}
    rates = [round_['rate'] for round_ in figures]
    by_name = {name: statistics.median(round_[name] for round_ in cpu_us) for name in cpu_us[0]}
    threads = ', '.join(f'{name} {us:.1f}' for name, us in
                        sorted(by_name.items(), key=lambda item: -item[1]) if us >= 0.5)
    print('{streams:3} streams: rate {rate:.3f} [{low:.3f}, {high:.3f}]  cpu {cpu:.3f}'
          '  share {share:.3f}  us {threads} / {alone:.1f}  steps {steps:.3f}'
          '  sw {voluntary:.3f} + {involuntary:.3f}  itl {p50:.2f} {p99:.2f}'
          .format(streams=streams, low=min(rates), high=max(rates), threads=threads, **median),
          flush=True)


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
    # These need the stubs of the build.
    from served import STEADY_LOAD, Programs, Server, cores_apart

    programs = Programs(os.path.join(given.build, 'bin'))
    with cores_apart() as cores:
        clients = sorted(os.sched_getaffinity(0))[:1]
        os.sched_setaffinity(0, clients)
        with Server(given.server or programs.server, '--threads', 1, '--http-listen', 'off',
                    cores=cores[:1]) as server:
            for streams in map(int, given.streams):
                rounds = [run_round(programs, server, STEADY_LOAD, streams, cores[:1])
                          for _ in range(given.rounds + 1)][1:]  # the first touches the pages
                report(streams, *zip(*rounds))


if __name__ == '__main__':
    main()
