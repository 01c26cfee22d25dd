"""The Kubernetes overlays against Kubernetes' own schemas and our programs; Envoy's configuration
on the real Envoy. Tools come from PyPI. Run by ctest from the repository's root.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest

import grpc
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent / 'python'), str(ROOT / 'deploy' / 'cluster')]

import environments  # noqa: E402
from local_cluster import Cluster, Process, clean_environment, free_port, wait_until  # noqa: E402

from lssar import Client, LssarError  # noqa: E402
from lssar._prefix import HEADER  # noqa: E402

SERVER = os.environ['LSSAR_SERVER']
FOLDER = ROOT / 'deploy' / 'kubernetes'
OVERLAYS = 'cpu', 'cuda', 'cluster'
VERSIONS = '1.31', '1.37'  # of Kubernetes
TIMEOUT_S = 120


def setUpModule():
    global tools
    tools = environments.environment('deployment', has_client=False).parent


def run(*command):
    """A command's output. Errors: AssertionError with it."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False, timeout=TIMEOUT_S)
    if done.returncode:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}')
    return done.stdout + done.stderr


def seconds(text):
    return int(re.fullmatch(r'(\d+)s', text)[1])


class KubernetesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.rendered = {name: run(tools / 'kubectl', 'kustomize', FOLDER / 'overlays' / name)
                        for name in OVERLAYS}
        cls.objects = {name: list(yaml.safe_load_all(text))
                       for name, text in cls.rendered.items()}

    def of_kind(self, overlay, kind):
        return [each for each in self.objects[overlay] if each['kind'] == kind]

    def pods(self):
        """(overlay, deployment, pod spec)"""
        return [(overlay, each, each['spec']['template']['spec']) for overlay in OVERLAYS
                for each in self.of_kind(overlay, 'Deployment')]

    def config_map(self, overlay, prefix):
        [found] = [each['data'] for each in self.of_kind(overlay, 'ConfigMap')
                   if each['metadata']['name'].startswith(prefix)]
        return found

    def test_kubernetes_schemas(self):
        for overlay, text in self.rendered.items():
            with tempfile.NamedTemporaryFile('w', suffix='.yaml') as file:
                file.write(text)
                file.flush()
                for version in VERSIONS:
                    output = run(tools / 'kubernetes-validate', '-k', version, '--strict',
                                 file.name)
                    unknown = [line for line in output.splitlines() if 'WARN' in line
                               and 'ServiceMonitor' not in line]  # of Prometheus' operator
                    self.assertEqual(unknown, [], overlay)
                    self.assertEqual(output.count('passed for resource'),
                                     len(self.objects[overlay]) - len(self.of_kind(
                                         overlay, 'ServiceMonitor')))

    def test_the_overlays_have_what_they_are_for(self):
        kinds = {name: {each['kind'] for each in objects}
                 for name, objects in self.objects.items()}
        common = {'Deployment', 'Service', 'ConfigMap', 'PodDisruptionBudget', 'NetworkPolicy'}
        self.assertEqual(kinds, {'cpu': common, 'cuda': common, 'cluster': common | {
            'HorizontalPodAutoscaler', 'ServiceMonitor'}})

    def test_the_grace_period_holds_the_drain(self):
        for overlay, deployment, pod in self.pods():
            if deployment['metadata']['name'] != 'lssar':
                continue
            config = tomllib.loads(self.config_map(overlay, 'lssar-config')['server.toml'])
            sleep, pause = pod['containers'][0]['lifecycle']['preStop']['exec']['command']
            self.assertEqual(sleep, 'sleep')
            self.assertGreaterEqual(pod['terminationGracePeriodSeconds'],
                                    int(pause) + seconds(config['drain-timeout']) + 10)

    def test_haproxy_forgets_a_pod_before_it_drains(self):
        """Kubeadm's CoreDNS keeps answers for 30 s."""
        haproxy = self.config_map('cluster', 'lssar-haproxy')['haproxy.cfg']
        kept = sum(int(re.search(rf'hold {what} (\d+)s', haproxy)[1])
                   for what in ('valid', 'obsolete'))
        [pod] = [pod for overlay, deployment, pod in self.pods()
                 if (overlay, deployment['metadata']['name']) == ('cluster', 'lssar')]
        pause = pod['containers'][0]['lifecycle']['preStop']['exec']['command'][1]
        self.assertGreater(int(pause), 30 + kept)

    def test_tainted_nodes_do_not_hold_pods_back(self):
        for overlay, deployment, pod in self.pods():
            for each in pod.get('topologySpreadConstraints', []):
                self.assertEqual(each.get('nodeTaintsPolicy'), 'Honor', (overlay, each))

    def test_flags_and_ports_are_the_servers(self):
        flags = set(re.findall(r'--([a-z][a-z0-9-]+)', run(SERVER, '--help')))
        for overlay, deployment, pod in self.pods():
            if deployment['metadata']['name'] != 'lssar':
                continue
            config = tomllib.loads(self.config_map(overlay, 'lssar-config')['server.toml'])
            self.assertLessEqual(set(config), flags)
            container = pod['containers'][0]
            ports = {each['name']: each['containerPort'] for each in container['ports']}
            self.assertEqual(ports, {'grpc': int(config['listen'].split(':')[1]),
                                     'http': int(config['http-listen'].split(':')[1])})
            for probe, page in (('startupProbe', '/readyz'), ('readinessProbe', '/readyz'),
                                ('livenessProbe', '/healthz')):
                self.assertEqual(container[probe]['httpGet'], {'path': page, 'port': 'http'})

    def test_the_server_takes_the_file(self):
        """It reads it, and stops at the checkpoint, which is not there."""
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / 'server.toml'
            text = self.config_map('cpu', 'lssar-config')['server.toml']
            config.write_text(text.replace('0.0.0.0:50051', '127.0.0.1:0')
                              .replace('0.0.0.0:8080', '127.0.0.1:0'))
            done = subprocess.run([SERVER, '--config', config, '--model', folder],
                                  capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn('config.json', done.stdout + done.stderr)

    def test_metrics_are_the_servers(self):
        exposed = set(re.findall(r'^# TYPE (\w+) ', (
            ROOT / 'tests/server/metrics_golden.txt').read_text(), flags=re.M))
        [autoscaler] = self.of_kind('cluster', 'HorizontalPodAutoscaler')
        scaled_by = {each['pods']['metric']['name'] for each in autoscaler['spec']['metrics']}
        rules = yaml.safe_load((FOLDER / 'overlays/cluster/adapter-rules.yaml').read_text())
        adapted = set(re.findall(r'lssar_\w+', rules['rules']['custom'][0]['seriesQuery']))
        self.assertEqual(scaled_by, adapted)
        self.assertLessEqual(scaled_by, exposed)

    def test_selectors_find_their_pods(self):
        for overlay in OVERLAYS:
            labels = [each['spec']['template']['metadata']['labels']
                      for each in self.of_kind(overlay, 'Deployment')]

            def count(selector):
                return sum(selector.items() <= each.items() for each in labels)

            for each in self.of_kind(overlay, 'Service'):
                self.assertEqual(count(each['spec']['selector']), 1, each['metadata'])
            for each in self.of_kind(overlay, 'PodDisruptionBudget'):
                self.assertEqual(count(each['spec']['selector']['matchLabels']), 1)
            for each in self.of_kind(overlay, 'NetworkPolicy'):
                self.assertEqual(count(each['spec']['podSelector']['matchLabels']), 1)
            services = [each['metadata'].get('labels', {}) for each in self.of_kind(
                overlay, 'Service')]
            for each in self.of_kind(overlay, 'ServiceMonitor'):
                selector = each['spec']['selector']['matchLabels']
                self.assertEqual(sum(selector.items() <= labels.items() for labels in services), 1)

    def test_containers_have_no_rights(self):
        for overlay, _, pod in self.pods():
            self.assertTrue(pod['securityContext']['runAsNonRoot'])
            self.assertFalse(pod['automountServiceAccountToken'])
            volumes = {each['name'] for each in pod['volumes']}
            for container in [*pod['containers'], *pod.get('initContainers', [])]:
                with self.subTest(overlay=overlay, container=container['name']):
                    context = container['securityContext']
                    self.assertTrue(context['readOnlyRootFilesystem'])
                    self.assertFalse(context['allowPrivilegeEscalation'])
                    self.assertEqual(context['capabilities'], {'drop': ['ALL']})
                    self.assertIn('memory', container['resources']['limits'])
                    self.assertIn('cpu', container['resources']['requests'])
                    if container['name'] == 'lssar':
                        threads = [{'name': 'LSSAR_THREADS', 'valueFrom': {
                            'resourceFieldRef': {'resource': 'requests.cpu'}}}]
                        self.assertEqual(container.get('env', []),
                                         [] if overlay == 'cuda' else threads)
                    for mount in container['volumeMounts']:
                        self.assertIn(mount['name'], volumes)

    def test_haproxy_is_that_of_the_cluster(self):
        path = FOLDER / 'overlays/cluster/haproxy.cfg'
        run('haproxy', '-c', '-f', path)

        def rules(text):
            return {line.strip() for line in text.splitlines()
                    if line.strip().startswith(('balance', 'hash-type', 'http-reuse', 'retry-on',
                                                'http-response set-header x-lssar'))}

        ours = (ROOT / 'deploy/cluster/haproxy.cfg').read_text()
        self.assertEqual(rules(path.read_text()), rules(ours))
        self.assertEqual(self.config_map('cluster', 'lssar-haproxy')['haproxy.cfg'],
                         path.read_text())


class EnvoyTest(unittest.TestCase):

    def configuration(self, listen, admin, ports):
        text = (ROOT / 'deploy/cluster/envoy.yaml').read_text()
        for old, new in zip((50050, 9901, 50051, 50052, 50053), (listen, admin, *ports),
                            strict=True):
            self.assertIn(f'port_value: {old}', text)
            text = text.replace(f'port_value: {old}', f'port_value: {new}')
        return text

    def test_affinity_drain_and_kill(self):
        cluster = self.enterContext(Cluster(SERVER, flags=('--threads', '1')))
        listen, admin = free_port(), free_port()
        file = self.enterContext(tempfile.NamedTemporaryFile('w', suffix='.yaml'))
        file.write(self.configuration(listen, admin, [each.grpc_port
                                                      for each in cluster.replicas]))
        file.flush()
        envoy = Process('envoy', [str(tools / 'envoy'), '-c', file.name, '--concurrency', '1',
                                  '--base-id', str(os.getpid()), '--log-level', 'warning'],
                        clean_environment())
        self.addCleanup(envoy.end)
        address = f'127.0.0.1:{listen}'
        client = self.enterContext(Client(address, retry=None))
        channel = self.enterContext(grpc.insecure_channel(address))

        def is_up():
            try:
                return client.get_info().num_pages > 0
            except LssarError:
                return False

        wait_until(is_up, envoy)

        def prompt_tokens():
            return [each.metric('lssar_prompt_tokens_total') for each in cluster.replicas]

        def servers_of(key, count=3):
            """Which servers get calls with this header."""
            before = prompt_tokens()
            for _ in range(count):
                from lssar.v1 import inference_pb2 as pb
                generate = channel.unary_stream('/lssar.v1.Inference/Generate',
                                                pb.GenerateRequest.SerializeToString,
                                                pb.GenerateReply.FromString)
                list(generate(pb.GenerateRequest(text='x', max_tokens=1),
                              metadata=((HEADER, key),), timeout=TIMEOUT_S))
            return {i for i, (old, new) in enumerate(zip(before, prompt_tokens(), strict=True))
                    if new > old}

        # Envoy says who the client is, whatever that says itself. An empty message.
        file = pathlib.Path(self.enterContext(tempfile.NamedTemporaryFile()).name)
        file.write_bytes(bytes(5))
        subprocess.run(
            ['curl', '--silent', '--fail', '--http2-prior-knowledge', '--interface', '127.0.0.5',
             '-H', 'content-type: application/grpc', '-H', 'te: trailers',
             '-H', 'x-forwarded-for: 203.0.113.9', '--data-binary', f'@{file}', '--output',
             '/dev/null', f'http://{address}/lssar.v1.Inference/GetInfo'],
            check=True, timeout=TIMEOUT_S)
        log = '"client":"127.0.0.5"'
        wait_until(lambda: any(log in each.process.log() for each in cluster.replicas), envoy)

        owners = {f'p{i}': servers_of(f'p{i}') for i in range(30)}
        self.assertEqual({len(each) for each in owners.values()}, {1}, owners)
        self.assertEqual(set.union(*owners.values()), {0, 1, 2})

        # Long enough that a server writes while the client is behind.
        whole = client.complete('The river', max_tokens=8000, ignore_eos=True, seed=3)[0]
        with Client(address) as patient:  # goes on with its stream
            stream = patient.stream('The river', max_tokens=8000, ignore_eos=True, seed=3)
            text, num_deltas, killed = '', 0, None
            for delta in stream:
                text += delta.text
                num_deltas += 1
                if num_deltas == 5:
                    for each in cluster.replicas:
                        if each.metric('lssar_num_requests_running'):
                            each.kill()
                            killed = each
        self.assertIsNotNone(killed)
        self.assertEqual(text, whole.text)
        killed.start()
        killed.wait_ready()
        # Envoy itself repeats what a draining server refuses.
        cluster.replicas[0].drain()
        for i in range(20):
            client.complete(f'{i}', max_tokens=1)


if __name__ == '__main__':
    unittest.main()
