"""HAProxy with the file of the Kubernetes overlay `cluster`, as it runs in a cluster: servers come
from DNS, which is a small one here. And what HAProxy does before servers that never answer: with
files and batches, which no server may get twice, with keys, and with pages of the operator.

Run by ctest from the repository's root.
"""

import contextlib
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'deploy' / 'cluster'))
from local_cluster import (Process, Replica, clean_environment, free_port, get,  # noqa: E402
                           wait_until)

from lssar import Client  # noqa: E402
from lssar.v1 import inference_pb2 as pb  # noqa: E402

OVERLAY = ROOT / 'deploy/kubernetes/overlays/cluster/haproxy.cfg'
TIMEOUT_S = 120  # only a hang reaches it
INNER_PAGES = '/metrics', '/healthz', '/readyz', '/health', '/ping'
SRV, A = 33, 1  # types of DNS records
NAMESPACE = 'somewhere'


def setUpModule():
    if not shutil.which('haproxy'):
        raise unittest.SkipTest('needs haproxy')


def encoded(name):
    """A name as DNS sends it."""
    return b''.join(bytes([len(part)]) + part.encode() for part in name.split('.')) + b'\0'


class Dns:
    """What CoreDNS answers about the headless service: a SRV record for each pod, and the pod's
    address.

    Attributes:
        pods: {address: {name of a port: its number}}; may be replaced at any time.
    """

    def __init__(self):
        self.pods = {}
        self.service = f'lssar.{NAMESPACE}.svc.cluster.local'
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(('127.0.0.1', 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            query, sender = self._socket.recvfrom(4096)
            self._socket.sendto(self._answer(query), sender)

    def _answer(self, query):
        labels, i = [], 12  # the header's size
        while query[i]:
            labels.append(query[i + 1:i + 1 + query[i]].decode().lower())
            i += 1 + query[i]
        question = query[12:i + 5]
        kind = struct.unpack('>H', query[i + 1:i + 3])[0]
        answers, more = [], []
        if kind == SRV and '.'.join(labels[2:]) == self.service:
            for address, ports in self.pods.items():
                target = encoded(f'{address.replace(".", "-")}.{self.service}')
                data = struct.pack('>HHH', 0, 10, ports[labels[0].removeprefix('_')]) + target
                answers.append(self._record(b'\xc0\x0c', SRV, data))
                more.append(self._record(target, A, socket.inet_aton(address)))
        elif kind == A and (address := labels[0].replace('-', '.')) in self.pods:
            answers.append(self._record(b'\xc0\x0c', A, socket.inet_aton(address)))
        flags = 0x8400 | (0 if answers else 3)  # an answer with authority; 3: no such name
        return (query[:2] + struct.pack('>HHHHH', flags, 1, len(answers), 0, len(more)) + question
                + b''.join(answers) + b''.join(more))

    @staticmethod
    def _record(name, kind, data):
        return name + struct.pack('>HHIH', kind, 1, 5, len(data)) + data


class Gateway:
    """HAProxy with the overlay's file, for a with block. Only what it listens on, its name server
    and the pods' HTTP port, to which its checks go, are this test's."""

    def __init__(self, dns, http_port):
        self.grpc, self.http, metrics = (f'127.0.0.1:{free_port()}' for _ in range(3))
        self.metrics = f'http://{metrics}/metrics'
        self._text = OVERLAY.read_text()
        for old, new in (('bind :50051 ', f'bind {self.grpc} '),
                         ('bind :8080\n', f'bind {self.http}\n'),
                         ('bind :8405\n', f'bind {metrics}\n'),
                         ('  parse-resolv-conf\n', f'  nameserver dns 127.0.0.1:{dns.port}\n'),
                         (' port 8080', f' port {http_port}')):
            assert old in self._text, old
            self._text = self._text.replace(old, new)

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.NamedTemporaryFile('w', suffix='.cfg'))
            file.write(self._text)
            file.flush()
            self.process = Process('haproxy', ['haproxy', '-db', '-f', file.name],
                                   clean_environment(NAMESPACE=NAMESPACE))
            stack.callback(self.process.end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception):
        self._stack.close()

    def up(self, backend):
        """The names of a backend's servers that get calls."""
        try:
            page = get(self.metrics)
        except OSError:  # it does not listen yet
            return set()
        return set(re.findall(rf'^haproxy_server_status{{proxy="{backend}",server="([^"]+)",'
                              r'state="UP"} 1$', page, re.M))

    def in_maintenance(self, backend):
        """How many places of a backend HAProxy's metrics show as without a pod."""
        return len(re.findall(rf'^haproxy_server_status{{proxy="{backend}",server="[^"]+",'
                              r'state="MAINT"} 1$', get(self.metrics), re.M))

    def wait_up(self, count, *backends):
        """Waits until so many servers are up in each. Errors: RuntimeError with what is up."""
        try:
            wait_until(lambda: all(len(self.up(each)) == count for each in backends), self.process)
        except RuntimeError as error:
            raise RuntimeError(f'{error}: up are {[self.up(each) for each in backends]}') from None


class OverlayTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        # One server is every pod: it listens on all of 127.0.0.0/8.
        cls.server = Replica('lssar', os.environ['LSSAR_SERVER'], ('--threads', '1'),
                             host='0.0.0.0')
        cls.server.start()
        cls.addClassCleanup(cls.server.process.end)
        cls.server.wait_ready()
        cls.dns = Dns()
        cls.gateway = cls.enterClassContext(Gateway(cls.dns, cls.server.http_port))

    def set_pods(self, *addresses):
        self.dns.pods = {address: {'grpc': self.server.grpc_port, 'http': self.server.http_port}
                         for address in addresses}
        self.gateway.wait_up(len(addresses), 'grpc_servers', 'http_servers')

    def get(self, path, source='127.0.0.1', **headers):
        """-> http.client.HTTPResponse, read."""
        connection = http.client.HTTPConnection(self.gateway.http, timeout=TIMEOUT_S,
                                                source_address=(source, 0))
        with contextlib.closing(connection):
            connection.request('GET', path, headers=headers)
            reply = connection.getresponse()
            reply.read()
            return reply

    def test_every_pod_of_dns_gets_calls_on_both_ports(self):
        self.set_pods('127.9.0.1', '127.9.0.2', '127.9.0.3')
        names = self.gateway.up('grpc_servers')
        self.assertEqual(self.gateway.up('http_servers'), names)
        # The alert LssarFewReplicas leaves these out.
        self.assertEqual(self.gateway.in_maintenance('grpc_servers'), 29)
        got = set()
        while got != names:  # calls without x-lssar-prefix are spread over all
            got.add(self.get('/v1/models').headers['x-lssar-replica'])
        # An update: a pod goes, and a new one takes its place.
        self.set_pods('127.9.0.2', '127.9.0.3')
        self.set_pods('127.9.0.2', '127.9.0.3', '127.9.0.4')
        self.set_pods('127.9.0.3', '127.9.0.4')
        self.set_pods('127.9.0.4')
        with Client(self.gateway.grpc) as client:
            self.assertTrue(client.complete('The river', max_tokens=2, temperature=0)[0].text)

    def test_the_operators_pages_stay_inside(self):
        self.set_pods('127.9.0.1')
        self.assertEqual({path: self.get(path).status for path in INNER_PAGES},
                         dict.fromkeys(INNER_PAGES, 404))

    def clients(self, words):
        """Who the clients of the calls are that the log has, by a word in the line."""
        lines = [json.loads(line) for line in self.server.process.log().splitlines()
                 if line.startswith('{')]
        return [line['client'] for line in lines if 'client' in line and words in json.dumps(line)]

    def test_the_servers_log_names_the_client_and_not_what_it_says(self):
        self.set_pods('127.9.0.1')
        said = {'x-forwarded-for': '203.0.113.9'}
        self.get('/v1/models', '127.0.0.5', **said, **{'x-request-id': 'over-http'})
        wait_until(lambda: self.clients('over-http'), self.server.process)
        self.assertEqual(self.clients('over-http'), ['127.0.0.5'])
        with grpc.insecure_channel(self.gateway.grpc) as channel:
            call = channel.unary_unary('/lssar.v1.Inference/GetInfo',
                                       pb.GetInfoRequest.SerializeToString,
                                       pb.GetInfoReply.FromString)
            call(pb.GetInfoRequest(), timeout=TIMEOUT_S,
                 metadata=(('x-request-id', 'over-grpc'), *said.items()))
        wait_until(lambda: self.clients('over-grpc'), self.server.process)
        self.assertEqual(self.clients('over-grpc'), ['127.0.0.1'])


class Fake:
    """A server that is ready, answers GET, and closes the connection of a POST without a word.

    Attributes:
        calls: [(method, path)] without those of checks.
        is_ready: what it tells HAProxy.
    """

    def __init__(self, host='127.0.0.1', port=0):
        self.calls = []
        self.is_ready = True
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'

            def do_GET(self):
                if self.path != '/readyz':
                    fake.calls.append((self.command, self.path))
                self.send_response(200 if fake.is_ready else 503)
                self.send_header('Content-Length', '0')
                self.end_headers()

            def do_POST(self):
                self.rfile.read(int(self.headers['Content-Length']))
                fake.calls.append((self.command, self.path))
                self.close_connection = True

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):

            def handle_error(self, *_):  # HAProxy resets the connections of its checks
                pass

        self._server = Server((host, port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self):
        self._server.shutdown()
        self._server.server_close()


def status(address, method, path, **headers):
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request(method, path, b'x' if method == 'POST' else None, headers)
        return connection.getresponse().status


class FakesTest(unittest.TestCase):

    def start_cluster(self, *files, **settings):
        """HAProxy with the edge's file and another before two servers. -> (address, servers)"""
        fakes = [Fake(), Fake()]
        for each in fakes:
            self.addCleanup(each.end)
        address, metrics = (f'127.0.0.1:{free_port()}' for _ in range(2))
        environment = clean_environment(
            LSSAR_CLUSTER='1', EDGE_HTTP=address, EDGE_GRPC=f'127.0.0.1:{free_port()}',
            CLUSTER_METRICS=metrics, LSSAR_1_HTTP_PORT=str(fakes[0].port),
            LSSAR_2_HTTP_PORT=str(fakes[1].port), LSSAR_3_HTTP_PORT=str(free_port()), **settings)
        self.process = Process('haproxy', ['haproxy', '-db', '-f', 'deploy/edge/haproxy.cfg', '-f',
                                           *files], environment)
        self.addCleanup(self.process.end)

        def listens():
            with contextlib.suppress(OSError):
                socket.create_connection(tuple(address.split(':'))).close()
                return True
            return False

        wait_until(listens, self.process)
        return address, fakes


class EdgeTest(FakesTest):

    def test_a_key_may_be_in_x_api_key_where_authorization_is_empty(self):
        key, other = 'a-long-and-secret-key-0123456789', 'another-key-0123456789'
        file = self.enterContext(tempfile.NamedTemporaryFile('w', suffix='.lst'))
        file.write(hashlib.sha256(key.encode()).hexdigest() + '\n')
        file.flush()
        address, fakes = self.start_cluster('deploy/cluster/haproxy.cfg', EDGE_KEYS=file.name)
        for is_known, headers in (
                (True, {'x-api-key': key}), (True, {'authorization': f'Bearer {key}'}),
                (True, {'authorization': '', 'x-api-key': key}),
                (True, {'authorization': f'Bearer {key}', 'x-api-key': other}),
                (False, {}), (False, {'x-api-key': other}), (False, {'x-api-key': ''}),
                (False, {'authorization': f'Bearer {other}', 'x-api-key': key})):
            with self.subTest(headers):
                for each in fakes:
                    each.calls.clear()
                self.assertEqual(status(address, 'POST', '/v1/messages', **headers) != 401,
                                 is_known)
                if not is_known:
                    self.assertEqual([each.calls for each in fakes], [[], []])

    def test_the_operators_pages_stay_inside(self):
        address, fakes = self.start_cluster('deploy/cluster/haproxy.cfg')
        self.assertEqual({path: status(address, 'GET', path) for path in INNER_PAGES},
                         dict.fromkeys(INNER_PAGES, 404))
        self.assertEqual([each.calls for each in fakes], [[], []])


class BatchesTest(FakesTest):
    """A repeated POST would make a second file or batch."""

    def check_repeats(self, address, fakes):
        def num_calls(path):
            return sum(each.calls.count(('POST', path)) for each in fakes)

        for path in '/v1/files', '/v1/batches', '/v1/batches/x/cancel':
            for i in range(1, 6):
                self.assertGreaterEqual(status(address, 'POST', path), 500)
                self.assertLessEqual(num_calls(path), i, path)
            self.assertGreater(num_calls(path), 0, path)

        def is_repeated():
            before = num_calls('/v1/completions')
            self.assertGreaterEqual(status(address, 'POST', '/v1/completions'), 500)
            return num_calls('/v1/completions') > before + 1

        wait_until(is_repeated)

    def test_the_overlay_repeats_none(self):
        port = free_port()
        fakes = [Fake(f'127.9.1.{i}', port) for i in (1, 2)]
        for each in fakes:
            self.addCleanup(each.end)
        dns = Dns()
        dns.pods = {f'127.9.1.{i}': {'grpc': port, 'http': port} for i in (1, 2)}
        with Gateway(dns, port) as gateway:
            gateway.wait_up(2, 'http_servers')
            self.check_repeats(gateway.http, fakes)

    def test_the_cluster_gives_them_to_the_first_server_and_repeats_none(self):
        address, fakes = self.start_cluster('deploy/cluster/haproxy.cfg')
        self.check_repeats(address, fakes)
        for path in '/v1/files', '/v1/files/x/content', '/v1/batches?limit=2', '/v1/batches/x':
            for _ in range(4):
                self.assertEqual(status(address, 'GET', path), 200)
            self.assertEqual([each.calls.count(('GET', path)) for each in fakes], [4, 0])
        fakes[0].is_ready = False
        wait_until(lambda: status(address, 'GET', '/v1/files') == 503, self.process)
        self.assertEqual(status(address, 'GET', '/v1/models'), 200)

    def test_a_drained_server_gets_none(self):
        # Not in TMPDIR, which may be longer than a socket's path.
        folder = self.enterContext(tempfile.TemporaryDirectory(dir='/tmp'))
        admin = f'{folder}/admin.sock'
        address, fakes = self.start_cluster('deploy/cluster/haproxy.cfg', CLUSTER_ADMIN=admin)

        def drain(name, state):
            subprocess.run(['sh', 'deploy/cluster/drain.sh', admin, name, state], check=True,
                           cwd=ROOT, timeout=TIMEOUT_S, capture_output=True)

        drain('lssar-1', 'drain')
        self.assertEqual(status(address, 'GET', '/v1/batches'), 503)
        self.assertEqual([each.calls for each in fakes], [[], []])
        drain('lssar-1', 'ready')
        drain('lssar-2', 'drain')  # which has no batches
        wait_until(lambda: status(address, 'GET', '/v1/batches') == 200, self.process)

    def test_a_url_with_several_models_has_none(self):
        address, fakes = self.start_cluster('deploy/cluster/models.cfg', MODEL_1='a', MODEL_2='b')
        for method, path in ('GET', '/v1/files'), ('POST', '/v1/batches'):
            self.assertEqual(status(address, method, path), 404)
        self.assertEqual([each.calls for each in fakes], [[], []])


if __name__ == '__main__':
    unittest.main()
