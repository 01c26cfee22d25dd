"""Three servers behind the real HAProxy, with TLS on both sides of it.

Run by ctest from the repository's root.
"""

import json
import os
import pathlib
import ssl
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent / 'deploy' / 'cluster'), str(TESTS / 'attack')]
from files import make_certificate  # noqa: E402
from local_cluster import (MODEL, Cluster, Process, Replica, clean_environment,  # noqa: E402
                           free_port, get, wait_until)

from lssar import Client, LssarError, Retry, Tls  # noqa: E402

SERVER = os.environ['LSSAR_SERVER']
MODEL_NAME = pathlib.Path(MODEL).name  # as the HTTP API calls it
TIMEOUT_S = 120
REQUEST = {'max_tokens': 20, 'seed': 1}


def make_pem(folder, name):
    """A PEM file with a self-signed certificate and its key, as HAProxy takes it."""
    certificate, key = make_certificate(folder, name)
    pem = folder / f'{name}-both.pem'
    pem.write_text(certificate.read_text() + key.read_text())
    return pem


class TlsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.edge, cls.foreign, cls.own = (make_pem(folder, name)
                                          for name in ('edge', 'foreign', 'server'))
        cls.cluster = cls.enterClassContext(Cluster(
            SERVER, flags=('--threads', '1'), certificate=str(cls.own), EDGE_CERT=str(cls.edge)))

    def client(self, **options):
        return Client(self.cluster.address, tls=Tls(str(self.edge)), timeout_s=TIMEOUT_S, **options)

    def test_both_ports_give_the_text_of_a_server(self):
        with Client(self.cluster.replicas[0].address, tls=Tls(str(self.own))) as direct:
            expected = direct.complete('The river', **REQUEST)[0].text
        with self.client() as client:
            self.assertEqual(''.join(client.generate('The river', **REQUEST)), expected)
        body = json.dumps({'model': pathlib.Path(MODEL).name, 'prompt': 'The river', **REQUEST})
        request = urllib.request.Request(self.cluster.http + '/v1/completions', body.encode(),
                                         {'Content-Type': 'application/json'})
        context = ssl.create_default_context(cafile=self.edge)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as reply:
            self.assertEqual(json.load(reply)['choices'][0]['text'], expected)

    def test_clients_without_tls_or_trust_get_no_answer(self):
        for options in ({}, {'tls': Tls(str(self.foreign))}):
            with Client(self.cluster.address, retry=None, **options) as client:
                with self.assertRaises(LssarError) as caught:
                    client.get_info()
            self.assertEqual(caught.exception.code, 'UNAVAILABLE')
        with self.assertRaises(urllib.error.URLError):
            urllib.request.urlopen(self.cluster.http + '/readyz', timeout=TIMEOUT_S)

    def test_a_killed_server_is_replaced(self):
        replica = self.cluster.replicas[0]
        replica.kill()
        self.cluster.wait_state(replica.name, 'DOWN')
        with self.client(retry=Retry(max_attempts=12)) as client:
            texts = {client.complete('The river', **REQUEST)[0].text for _ in range(6)}
        self.assertEqual(len(texts), 1)
        replica.start()
        self.cluster.wait_state(replica.name, 'UP')

    # The servers read their certificate again when its file changes.
    def test_servers_with_an_untrusted_certificate_get_no_call(self):
        trusted = self.own.read_text()
        self.own.write_text(self.foreign.read_text())
        for replica in self.cluster.replicas:
            self.cluster.wait_state(replica.name, 'DOWN')
        with self.client(retry=None) as client, self.assertRaises(LssarError) as caught:
            client.get_info()
        self.assertEqual(caught.exception.code, 'UNAVAILABLE')
        self.own.write_text(trusted)
        for replica in self.cluster.replicas:
            self.cluster.wait_state(replica.name, 'UP')
        with self.client() as client:
            self.assertTrue(client.complete('The river', **REQUEST)[0].text)


class ClientCertificateTest(unittest.TestCase):
    """A server that asks for a certificate (--tls-client-ca), behind the edge and as a cluster."""

    def test_haproxy_shows_its_own(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        own, shown = (make_pem(folder, name) for name in ('server', 'haproxy'))
        server = Replica('lssar', SERVER, ('--threads', '1', '--tls-client-ca', str(shown)),
                         certificate=str(own))
        server.start()
        self.addCleanup(server.process.end)
        settings = {'EDGE_SERVER_CA': str(own), 'EDGE_SERVER_CERT': str(shown)}
        for prefix in 'LSSAR', 'LSSAR_1', 'LSSAR_2', 'LSSAR_3':
            settings |= {f'{prefix}_GRPC_PORT': str(server.grpc_port),
                         f'{prefix}_HTTP_PORT': str(server.http_port)}
        cluster = {'LSSAR_CLUSTER': '1'}
        models = {'MODEL_1': MODEL_NAME, 'MODEL_2': 'another'}
        for files, more in (([], {}), (['cluster/haproxy.cfg'], cluster),
                            (['cluster/models.cfg'], cluster | models)):
            grpc, http, metrics = (f'127.0.0.1:{free_port()}' for _ in range(3))
            haproxy = Process(
                'haproxy', ['haproxy', '-db', *(word for name in ['edge/haproxy.cfg', *files]
                                                for word in ('-f', f'deploy/{name}'))],
                clean_environment(EDGE_GRPC=grpc, EDGE_HTTP=http, CLUSTER_METRICS=metrics,
                                  EDGE_MAXCONN='100', **settings, **more))
            self.addCleanup(haproxy.end)

            def answers(http=http):
                try:
                    return MODEL_NAME in get(f'http://{http}/v1/models/{MODEL_NAME}')
                except OSError:
                    return False

            wait_until(answers, server.process, haproxy)
            with Client(grpc, served_model_name=MODEL_NAME,
                        retry=Retry(max_attempts=12)) as client:
                self.assertTrue(client.complete('The river', **REQUEST)[0].text)


if __name__ == '__main__':
    unittest.main()
