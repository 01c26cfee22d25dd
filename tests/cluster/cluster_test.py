"""Three servers behind the real HAProxy, with Prometheus: affinity, drain, kill, metrics.

Run by ctest from the repository's root. Prints what it measures.
"""

import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'deploy' / 'cluster'))
from local_cluster import MODEL, Cluster, Prometheus, samples, wait_until  # noqa: E402

from lssar.v1 import inference_pb2 as pb  # noqa: E402
from lssar import Client, LssarError, Retry  # noqa: E402
from lssar._prefix import HEADER, prefix_key  # noqa: E402

SERVER, CLI = os.environ['LSSAR_SERVER'], os.environ['LSSAR_CLI']
REPLICA = 'x-lssar-replica'  # of an answer: the server that gave it
PATIENT = Retry(max_attempts=12)
MODEL_NAME = pathlib.Path(MODEL).name  # as the HTTP API calls it
TIMEOUT_S = 120


def report(sentence):
    """A figure of this run."""
    print(f'    {sentence}', file=sys.stderr, flush=True)


def post(url, body, headers=()):
    """A call of the HTTP API. -> (JSON of the answer, its headers)"""
    request = urllib.request.Request(url, json.dumps(body).encode(),
                                     {'Content-Type': 'application/json', **dict(headers)})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        return json.load(reply), reply.headers


class Works:
    """Calls of every kind with results that do not depend on who computes them."""

    def __init__(self, client, http):
        self.kinds = [
            lambda i: client.complete(f'The river {i}', max_tokens=200, seed=i, ignore_eos=True),
            lambda i: client.complete([('user', f'Tell me of {i} rivers.')], max_tokens=40, seed=i),
            lambda i: client.score(f'Item {i}:', [' a river', ' a mountain'], per_token=True),
            lambda i: client.embed(f'Text number {i}'),
            lambda i: ''.join(client.generate(f'Once {i}', max_tokens=300, seed=i, ignore_eos=True,
                                              presence_penalty=0.1)),
            lambda i: post(http + '/v1/completions', {
                'model': MODEL_NAME, 'prompt': f'In the year {i}', 'max_tokens': 20, 'seed': i}
            )[0]['choices'][0]['text'],
        ]

    def run(self, i):
        """Call number i."""
        return self.kinds[i % len(self.kinds)](i % 24)


class ClusterTest(unittest.TestCase):
    """One cluster for all tests; each leaves three servers that serve."""

    @classmethod
    def setUpClass(cls):
        # The interval is the time limit of a check, too: a machine that stalls must not end what a
        # test expects of a server that is up.
        cls.cluster = cls.enterClassContext(Cluster(
            SERVER, flags=('--threads', '1', '--drain-timeout', '60s'),
            CLUSTER_CHECK_INTERVAL='2s'))

    def restart(self, replica):
        self.cluster.wait_state(replica.name, 'DOWN')
        replica.start()
        replica.wait_ready()
        self.cluster.wait_state(replica.name, 'UP')

    def replica_of(self, prefix, address=None):
        """The name of the server that HAProxy gives a call with this header."""
        with grpc.insecure_channel(address or self.cluster.address) as channel:
            call = channel.unary_unary('/lssar.v1.Inference/GetInfo',
                                       pb.GetInfoRequest.SerializeToString,
                                       pb.GetInfoReply.FromString)
            metadata = ((HEADER, prefix),) if prefix else ()
            _, done = call.with_call(pb.GetInfoRequest(), metadata=metadata, timeout=TIMEOUT_S)
            return dict(done.initial_metadata())[REPLICA]

    def test_a_prefix_has_one_server_and_a_dead_server_moves_only_its_own(self):
        prefixes = [f'prefix {i}' for i in range(60)]
        before = {prefix: self.replica_of(prefix) for prefix in prefixes}
        counts = collections.Counter(before.values())
        report(f'60 prefixes: {dict(sorted(counts.items()))}')
        self.assertEqual(len(counts), 3)
        self.assertLess(max(counts.values()), 35)
        self.assertEqual({prefix: self.replica_of(prefix) for prefix in prefixes}, before)
        dead = self.cluster.replicas[1]
        dead.kill()
        self.cluster.wait_state(dead.name, 'DOWN')
        after = {prefix: self.replica_of(prefix) for prefix in prefixes}
        for prefix in prefixes:
            if before[prefix] == dead.name:
                self.assertNotEqual(after[prefix], dead.name)
            else:
                self.assertEqual(after[prefix], before[prefix])
        self.restart(dead)
        self.assertEqual({prefix: self.replica_of(prefix) for prefix in prefixes}, before)

    def test_both_ports_have_the_same_server_for_a_prefix(self):
        for i in range(8):
            _, headers = post(self.cluster.http + '/v1/completions', {
                'model': MODEL_NAME, 'prompt': 'x', 'max_tokens': 1}, {HEADER: f'p{i}'})
            self.assertEqual(headers[REPLICA], self.replica_of(f'p{i}'))

    def test_calls_without_the_header_go_to_all(self):
        names = collections.Counter(self.replica_of(None) for _ in range(60))
        self.assertEqual(len(names), 3)
        self.assertLess(max(names.values()), 35)

    def test_a_hot_prefix_spills_over(self):
        with Client(self.cluster.address) as client:
            streams = [client.stream('hot', max_tokens=16000, ignore_eos=True, seed=i)
                       for i in range(9)]
            try:
                for stream in streams:
                    next(iter(stream))
                running = [replica.metric('lssar_num_requests_running')
                           for replica in self.cluster.replicas]
            finally:
                for stream in streams:
                    stream.cancel()
        report(f'9 calls of one prefix: {[int(each) for each in running]} on the three servers')
        self.assertEqual(sum(running), 9)
        self.assertLessEqual(max(running), 6)  # twice the average

    def test_nothing_is_lost_while_one_drains_and_one_is_killed(self):
        with Client(self.cluster.replicas[0].address) as client:
            work = Works(client, self.cluster.replicas[0].http)
            expected = [work.run(i) for i in range(24 * len(work.kinds))]
        stop = threading.Event()
        numbers = itertools.count()
        done, failures, wrong = [], [], []

        def run(client, call):
            while not stop.is_set():
                i = next(numbers) % len(expected)
                try:
                    result = call(i)
                except (LssarError, OSError) as error:
                    failures.append(error)
                    continue
                done.append(i)
                if result != expected[i]:
                    wrong.append((i, result, expected[i]))

        drained, killed = self.cluster.replicas[0], self.cluster.replicas[2]
        with (concurrent.futures.ThreadPoolExecutor() as pool,
              Client(self.cluster.address, retry=PATIENT, timeout_s=TIMEOUT_S) as client):
            work = Works(client, self.cluster.http)
            workers = [pool.submit(run, client, work.run) for _ in range(5)]
            try:
                time.sleep(1)
                drained.drain()
                code = drained.process.wait()
                self.cluster.wait_state(drained.name, 'DOWN')
                num_before = len(done)
                time.sleep(0.5)
                self.restart(drained)
                killed.kill()
                self.restart(killed)
                time.sleep(1)
            finally:
                stop.set()
            for worker in workers:
                worker.result()
        report(f'{len(done)} calls while one server drained and one was killed, '
               f'{len(failures)} errors: {sorted({str(each)[:60] for each in failures})}')
        self.assertEqual(code, 0)  # no call was aborted at the end of the drain
        self.assertGreater(len(done), num_before)
        self.assertEqual(wrong, [])
        # gRPC calls are repeated and continued. A foreign HTTP client sees its broken call.
        self.assertEqual([each for each in failures if isinstance(each, LssarError)], [])

    def test_a_client_that_does_not_retry_sees_an_error(self):
        with Client(self.cluster.address, retry=None) as client:
            stream = client.stream('The river', max_tokens=8000, ignore_eos=True)
            next(iter(stream))
            [replica] = [each for each in self.cluster.replicas
                         if each.metric('lssar_num_requests_running')]
            replica.kill()
            with self.assertRaises(LssarError) as caught:
                list(stream)
        self.assertEqual(caught.exception.code, 'UNAVAILABLE')
        self.restart(replica)

    def test_an_operator_drains_a_server_before_it_ends(self):
        script = str(pathlib.Path('deploy/cluster/drain.sh').resolve())
        replica = self.cluster.replicas[1]
        prefix = next(f'p{i}' for i in itertools.count()
                      if self.replica_of(f'p{i}') == replica.name)
        for action, state in ('drain', 'DRAIN'), ('ready', 'UP'):
            subprocess.run(['sh', script, self.cluster.admin, replica.name, action], check=True,
                           timeout=TIMEOUT_S, capture_output=True)
            self.cluster.wait_state(replica.name, state)
            self.assertEqual(self.replica_of(prefix) == replica.name, state == 'UP')
        done = subprocess.run(['sh', script, self.cluster.admin, 'nobody', 'drain'],
                              capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn('No such', done.stdout + done.stderr)

    def test_the_program_sends_the_header(self):
        names = set()
        for _ in range(4):
            before = {each.name: each.metric('lssar_prompt_tokens_total')
                      for each in self.cluster.replicas}
            subprocess.run([CLI, 'generate', '--server', self.cluster.address, '--max-tokens', '1',
                            'A prompt of the program'], check=True, capture_output=True,
                           timeout=TIMEOUT_S)
            names |= {each.name for each in self.cluster.replicas
                      if each.metric('lssar_prompt_tokens_total') > before[each.name]}
        self.assertEqual(len(names), 1)

    def test_added_latency(self):
        def measure(address, prompts):
            times = []
            with Client(address) as client:
                client.get_info()
                for prompt in prompts:
                    begin = time.perf_counter()
                    with client.stream(prompt, max_tokens=1) as stream:
                        next(iter(stream))
                    times.append(time.perf_counter() - begin)
            return times

        prompts = [f'{i} rivers' for i in range(120)]
        direct, through = [], []
        for part in range(0, 120, 40):  # in turns: the machine's load changes
            direct += measure(self.cluster.replicas[0].address, prompts[part:part + 40])
            through += measure(self.cluster.address, prompts[part:part + 40])

        def quantile(times, q):
            return sorted(times)[int(q * len(times))] * 1000

        report(f'time to the first token, direct p50 {quantile(direct, .5):.2f} ms, '
               f'p99 {quantile(direct, .99):.2f} ms; through HAProxy '
               f'p50 {quantile(through, .5):.2f} ms, p99 {quantile(through, .99):.2f} ms')

    def test_prometheus_has_every_series_of_the_dashboard(self):
        targets = {'lssar': [each.http.removeprefix('http://') for each in self.cluster.replicas],
                   'haproxy': [self.cluster.metrics.split('/')[2]]}
        dashboard = json.loads(pathlib.Path('deploy/grafana/lssar.json').read_text())
        # These servers have no keys, TLS or batches; tests/server/metrics_test.cc has those series.
        absent = 'lssar_key_', 'lssar_tls_', 'lssar_batch'
        expressions = {target['expr'] for panel in dashboard['panels']
                       for target in panel['targets']
                       if not any(name in target['expr'] for name in absent)}
        self.assertGreater(len(expressions), 10)

        def expand(expression):
            return (expression.replace('$__rate_interval', '10s').replace('[5m]', '[10s]')
                    .replace('$instance', '.*').replace('$job', 'lssar'))

        with Prometheus(targets) as prometheus, Client(self.cluster.address) as client:
            deadline = time.monotonic() + TIMEOUT_S
            missing = expressions
            while missing and time.monotonic() < deadline:
                for i in range(6):
                    client.complete(f'The river {i}', max_tokens=5, seed=i)
                    with self.assertRaises(LssarError):  # a panel shows failed calls
                        client.complete(f'The river {i}', max_tokens=-1)
                time.sleep(0.5)
                missing = {each for each in missing if not prometheus.query(expand(each))}
            self.assertEqual(missing, set())
            # Each as soon as a scrape has been in time.
            wait_until(lambda: list(samples(prometheus.query('up'))) == [1.0] * 4)
            wait_until(lambda: len(prometheus.query(
                'haproxy_server_status{proxy="grpc_servers",state="UP"} == 1')) == 3)
            rules = prometheus.api('rules')
            health = {rule['name']: rule['health'] for group in rules['groups']
                      for rule in group['rules']}
            self.assertEqual(set(health.values()), {'ok'}, health)


class AffinityTest(unittest.TestCase):
    """30 conversations in turns, each with a prefix of its own. A server's cache holds 12."""

    NUM_PREFIXES, NUM_ROUNDS, PREFIX_TOKENS = 30, 7, 256

    def hit_rate(self, cluster, with_header):
        """Through HAProxy with the header, or in turns to one server after the other.

        -> (hits over tokens looked up after the first round, median time of a call in ms,
        prefixes by server)
        """
        rng = random.Random(4)  # its prefixes fit: no server has more than 12
        prefixes = [[rng.randrange(300, 4000) for _ in range(self.PREFIX_TOKENS)]
                    for _ in range(self.NUM_PREFIXES)]
        rounds = [rng.sample(range(self.NUM_PREFIXES), self.NUM_PREFIXES)
                  for _ in range(self.NUM_ROUNDS)]
        addresses = ([cluster.address] if with_header else
                     [replica.address for replica in cluster.replicas])
        channels = [grpc.insecure_channel(address) for address in addresses]
        turns = itertools.cycle(channel.unary_stream(
            '/lssar.v1.Inference/Generate', pb.GenerateRequest.SerializeToString,
            pb.GenerateReply.FromString) for channel in channels)
        cached = total = 0
        latencies = []
        servers = {}

        def ask(generate, turn, i):
            ids = prefixes[i] + [300 + turn]
            begin = time.perf_counter()
            request = pb.GenerateRequest(tokens=pb.TokenIds(ids=ids), max_tokens=1,
                                         cache_salt='header' if with_header else 'none')
            metadata = ((HEADER, prefix_key(request)),) if with_header else ()
            replies = generate(request, metadata=metadata, timeout=TIMEOUT_S)
            [started] = [reply.started for reply in replies if reply.HasField('started')]
            if with_header:
                servers.setdefault(i, dict(replies.initial_metadata())[REPLICA])
            latencies.append(time.perf_counter() - begin)
            return started.num_cached_tokens, started.num_prompt_tokens

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for turn, order in enumerate(rounds):
                counts = list(pool.map(ask, turns, itertools.repeat(turn), order))
                if turn > 0:
                    cached += sum(each[0] for each in counts)
                    total += sum(each[1] for each in counts)
        for channel in channels:
            channel.close()
        counts = sorted(collections.Counter(servers.values()).values())
        return cached / total, statistics.median(latencies) * 1000, counts

    def test_affinity_multiplies_the_hit_rate(self):
        # 12 prefixes of 8 pages, and the pages of running requests.
        with Cluster(SERVER, flags=('--threads', '1', '--max-model-len', '512', '--page-size',
                                    '32', '--kv-cache-memory', '19M'),
                     CLUSTER_CHECK_INTERVAL='2s',
                     CLUSTER_LOAD_FACTOR='300') as cluster:  # nothing spills over
            with Client(cluster.replicas[0].address) as client:
                num_pages = client.get_info().num_pages
            self.assertTrue(12 * 8 <= num_pages < 30 * 8 // 2, num_pages)
            turns, turns_ms, _ = self.hit_rate(cluster, with_header=False)
            affinity, affinity_ms, counts = self.hit_rate(cluster, with_header=True)
        report(f'prefix cache, {self.NUM_PREFIXES} prefixes of 8 pages, {num_pages} pages a server:'
               f' hit rate {affinity:.2f} with the header, {turns:.2f} in turns; '
               f'a call p50 {affinity_ms:.1f} ms and {turns_ms:.1f} ms; '
               f'prefixes by server {counts}')
        self.assertGreaterEqual(affinity, 3 * turns)
        self.assertGreater(affinity, 0.6)


class RulesTest(unittest.TestCase):
    """Debian's promtool on our files."""

    def test_rules(self):
        for command in (['check', 'rules', 'deploy/prometheus/alerts.yml'],
                        ['check', 'config', 'deploy/prometheus/prometheus.yml'],
                        ['check', 'config', '--syntax-only',
                         'deploy/prometheus/prometheus_secured.yml'],
                        ['test', 'rules', 'deploy/prometheus/alerts_test.yml']):
            done = subprocess.run(['promtool', *command], capture_output=True, text=True,
                                  check=False, timeout=TIMEOUT_S)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == '__main__':
    unittest.main()
