"""Two models behind one URL: deploy/cluster/models.cfg under the real HAProxy.

Run by ctest from the repository's root.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

from lssar import Client, LssarError

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'deploy' / 'cluster'))
from local_cluster import Process, clean_environment, free_port, get, wait_until  # noqa: E402

CLI, SERVER = os.environ['LSSAR_CLI'], os.environ['LSSAR_SERVER']
NAMES = 'lssar', 'softmax'  # the twins
TIMEOUT_S = 120


def post(url, body):
    """-> (status, JSON; None: it is not)."""
    request = urllib.request.Request(url + '/v1/completions', json.dumps(body).encode())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        reply = opener.open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        reply = error
    with reply:
        is_json = reply.headers['content-type'].startswith('application/json')
        return reply.status, json.load(reply) if is_json else None


def is_ready(url):
    try:
        get(url + '/readyz')
        return True
    except OSError:
        return False


class ModelsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.ports, cls.direct, environment = {}, {}, {}
        for i, name in enumerate(NAMES, 1):
            grpc, http = cls.ports[name] = free_port(), free_port()
            environment |= {f'MODEL_{i}': name, f'LSSAR_{i}_GRPC_PORT': str(grpc),
                            f'LSSAR_{i}_HTTP_PORT': str(http)}
            cls.direct[name] = f'http://127.0.0.1:{http}'
        cls.servers = {name: cls.start(name) for name in NAMES}
        for name, process in cls.servers.items():
            wait_until(lambda name=name: is_ready(cls.direct[name]), process)
        cls.url = f'http://127.0.0.1:{free_port()}'
        cls.address = f'127.0.0.1:{free_port()}'
        environment |= {'LSSAR_CLUSTER': '1', 'EDGE_GRPC': cls.address,
                        'EDGE_HTTP': cls.url.removeprefix('http://'), 'EDGE_MAXCONN': '2048'}
        cls.balancer = Process('haproxy', ['haproxy', '-db', '-f', 'deploy/edge/haproxy.cfg', '-f',
                                           'deploy/cluster/models.cfg'],
                               clean_environment(**environment))
        cls.addClassCleanup(cls.balancer.end)
        wait_until(cls.answers, cls.balancer)

    @classmethod
    def start(cls, name):
        grpc, http = cls.ports[name]
        server = Process(
            name, [SERVER, '--model', f'models/zoo/twins/{name}', '--threads', '1', '--listen',
                   f'127.0.0.1:{grpc}', '--http-listen', f'127.0.0.1:{http}',
                   '--max-connections-per-address', '0'], clean_environment())
        cls.addClassCleanup(server.end)
        return server

    @classmethod
    def answers(cls):
        with contextlib.suppress(OSError):
            return all(post(cls.url, {'model': name, 'prompt': 'a', 'max_tokens': 1})[0] == 200
                       for name in NAMES)
        return False

    def test_both_are_listed(self):
        listed = json.loads(get(self.url + '/v1/models'))['data']
        self.assertEqual([each['id'] for each in listed], list(NAMES))
        for name in NAMES:
            self.assertEqual(json.loads(get(f'{self.url}/v1/models/{name}'))['id'], name)

    def test_a_name_gets_its_servers_answer_wherever_it_stands(self):
        prompts = 'The old house', 'The river. ' * 300, 'The river. ' * 2000
        fingerprints = set()
        for name in NAMES:
            for prompt in prompts:
                for body in ({'model': name, 'prompt': prompt}, {'prompt': prompt, 'model': name}):
                    body |= {'max_tokens': 8, 'temperature': 0}
                    (status, reply), (code, direct) = (post(self.url, body),
                                                       post(self.direct[name], body))
                    self.assertEqual(status, code)
                    for field in 'model', 'choices', 'error':
                        self.assertEqual(reply.get(field), direct.get(field))
                    if status == 200:
                        fingerprints.add(reply['system_fingerprint'])
        self.assertEqual(len(fingerprints), 2)

    def test_other_names_and_none(self):
        for body in ({'prompt': 'a'}, {'model': 'lssa', 'prompt': 'a'}, {'model': 3},
                     {'prompt': 'a' * 200_000, 'model': 'lssar'}):
            status, reply = post(self.url, body)
            self.assertEqual(status, 404)
            self.assertEqual(reply['error']['code'], 'model_not_found')
            self.assertIn('lssar and softmax', reply['error']['message'])

    def test_grpc_by_metadata(self):
        texts = set()
        for name in NAMES:
            with Client(self.address, served_model_name=name, timeout_s=TIMEOUT_S) as client:
                self.assertEqual(client.get_info().model_name, name)
                [completion] = client.complete('The old house', max_tokens=8, temperature=0)
            _, direct = post(self.direct[name], {'prompt': 'The old house', 'max_tokens': 8,
                                                 'temperature': 0})
            self.assertEqual(completion.text, direct['choices'][0]['text'])
            texts.add(completion.text)
            asked = subprocess.run(
                [CLI, 'info', '--json', '--server', self.address, '--served-model-name', name],
                capture_output=True, check=True, timeout=TIMEOUT_S, env=clean_environment())
            self.assertEqual(json.loads(asked.stdout)['model_name'], name)
        self.assertEqual(len(texts), 2)
        for name in None, 'lssa':
            with (Client(self.address, served_model_name=name, retry=None) as client,
                  self.assertRaises(LssarError) as caught):
                client.get_info()
            self.assertEqual(caught.exception.code, 'UNAVAILABLE')

    def test_one_that_ends_does_not_end_the_other_and_comes_back(self):
        self.servers['softmax'].signal(signal.SIGTERM)
        self.servers['softmax'].wait()
        body = {'prompt': 'a', 'max_tokens': 1}
        wait_until(lambda: post(self.url, {'model': 'softmax', **body})[0] == 503, self.balancer)
        self.assertEqual(post(self.url, {'model': 'lssar', **body})[0], 200)
        self.servers['softmax'] = self.start('softmax')
        wait_until(self.answers, self.balancer, self.servers['softmax'])


if __name__ == '__main__':
    unittest.main()
