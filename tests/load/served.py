"""Built programs, a running server and calls to it, for the proofs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import grpc

from lssar.v1 import inference_pb2 as pb
from lssar.v1 import inference_pb2_grpc

sys.path.append(os.path.join(os.path.dirname(__file__), '..', 'support'))
from quick_models import UNCHECKED as MODEL  # noqa: E402

TIMEOUT_S = 600  # only a hang reaches it
# Flags of `lssar bench` and lssar_engine_rate: streams end and begin all the time.
STEADY_LOAD = ('--random-input-len', 'fixed:128', '--random-output-len', 'uniform:128,384')


class Programs:
    """Paths of the programs in the build folder."""

    def __init__(self, folder):
        self.server = os.path.join(folder, 'lssar-server')
        self.cli = os.path.join(folder, 'lssar')
        self.soak = os.path.join(folder, 'lssar_soak')
        self.faulty_server = os.path.join(folder, 'faulty-server')
        self.engine_rate = os.path.join(folder, 'lssar_engine_rate')

    def run_json(self, program, *arguments):
        """Runs a program that prints one JSON value; returns the value."""
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False, env=clean_environment())
        if done.returncode != 0:
            raise RuntimeError(f'{os.path.basename(program)} ended with {done.returncode}: '
                               f'{done.stderr.strip()}')
        return json.loads(done.stdout)

    def engine_alone(self, cores, *flags):
        """Returns the rates of the engine without a server, with one thread on `cores`."""
        ours = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # inherited by the child
        try:
            return self.run_json(self.engine_rate, '--model', MODEL, '--threads', 1, *flags)
        finally:
            os.sched_setaffinity(0, ours)

    def bench(self, address, *flags):
        """Returns the points of `lssar bench`."""
        return self.run_json(self.cli, 'bench', '--server', address, '--json', *flags)['points']


def clean_environment():
    """The environment without LSSAR_* variables, so that user settings do not change a proof."""
    return {name: value for name, value in os.environ.items() if not name.startswith('LSSAR_')}


@contextlib.contextmanager
def cores_apart():
    """For a with block: child processes run on half of the cores. Yields the rest, for a server
    that must not share cores with its clients; with one core, yields that core."""
    every = sorted(os.sched_getaffinity(0))
    half = len(every) // 2
    os.sched_setaffinity(0, every[half:])
    try:
        yield every[:half] or every
    finally:
        os.sched_setaffinity(0, every)


class Server:
    """A server on free ports, for a with block. `cores`: the cores it may use; None: all."""

    def __init__(self, program, *flags, cores=None, **environment):
        self._cores = cores
        self._environment = {**clean_environment(), **environment}
        http = () if '--http-listen' in flags else ('--http-listen', '127.0.0.1:0')
        self._command = [program, '--model', MODEL, '--listen', '127.0.0.1:0', *http,
                         *map(str, flags)]

    def __enter__(self):
        self._log = tempfile.NamedTemporaryFile('w+', suffix='.log')
        ours = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores or ours)  # inherited by the child
        self.process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log,
                                        env=self._environment)
        os.sched_setaffinity(0, ours)
        self.serving = self._wait_for('serving')
        self.address = self.serving['address']
        self.channel = grpc.insecure_channel(
            self.address, options=[('grpc.use_local_subchannel_pool', 1)])
        self.stub = inference_pb2_grpc.InferenceStub(self.channel)
        return self

    def __exit__(self, *unused):
        self.channel.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            self.process.send_signal(signal.SIGTERM)  # aborts calls that a proof left open
        self.process.wait(timeout=TIMEOUT_S)
        self._log.close()

    def stop(self):
        """Ends the server, whose calls have ended: then its log is whole."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=TIMEOUT_S)

    def events(self):
        """The log so far, one dict per line."""
        with open(self._log.name) as log:
            lines = log.read().splitlines()
        return [json.loads(line) for line in lines if line.startswith('{') and line.endswith('}')]

    def _wait_for(self, event):
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            for line in self.events():
                if line['event'] == event:
                    return line
            if self.process.poll() is not None:
                with open(self._log.name) as log:
                    raise RuntimeError(f'the server ended: {log.read()}')
            time.sleep(0.02)
        raise RuntimeError(f'the server never logged "{event}"')

    def stats(self):
        return self.stub.GetStats(pb.GetStatsRequest())

    def wait_for_stats(self, condition):
        """Polls until condition(stats) holds; returns the stats."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            stats = self.stats()
            if condition(stats):
                return stats
            time.sleep(0.002)
        raise RuntimeError(f'the condition never held; now {stats}')

    def watch_health(self, statuses):
        """Appends the statuses of health Watch (1: SERVING, 2: NOT_SERVING) until the server
        exits. Returns the watching thread after the first status."""
        watch = self.channel.unary_stream('/grpc.health.v1.Health/Watch')(b'')
        statuses.append(next(watch)[1])

        def run():
            try:
                statuses.extend(reply[1] for reply in watch)
            except grpc.RpcError:
                pass  # the server exited

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def wait_until_idle(self):
        return self.wait_for_stats(lambda stats: stats.num_running + stats.num_waiting == 0)


def used_pages(stats):
    """Pages referenced by requests. Cached pages without a reference do not count."""
    return stats.num_pages - stats.num_free_pages - stats.num_cached_pages


def generate(stub, request):
    """Returns ([(token id, log-probability)], last message)."""
    tokens = []
    reply = None
    for reply in stub.Generate(request):
        tokens += [(token.token.id, token.token.logprob) for token in reply.delta.tokens]
    return tokens, reply
