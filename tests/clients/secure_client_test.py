"""`lssar` and the Python package against a server with API keys and TLS."""

import json
import pathlib
import struct
import subprocess
import tempfile
import unittest

from lssar import Client, LssarError, Tls
from programs import RunningServer, run_cli

KEY = 'key-of-alice-0123456789'
ASK = 'generate', 'The river', '--max-tokens', '2'


def make_certificates(directory):
    """Writes ca.pem, and server.pem and client.pem signed by it, with their keys."""
    def openssl(*arguments):
        subprocess.run(['openssl', *arguments], cwd=directory, check=True, capture_output=True)

    key_flags = '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'
    openssl('req', '-x509', *key_flags, '-subj', '/CN=ca', '-days', '1', '-keyout', 'ca-key.pem',
            '-out', 'ca.pem')
    for name in 'server', 'client':
        openssl('req', *key_flags, '-subj', f'/CN={name}', '-keyout', f'{name}-key.pem', '-out',
                'request.pem')
        (directory / 'names').write_text('subjectAltName=DNS:localhost,IP:127.0.0.1\n')
        openssl('x509', '-req', '-in', 'request.pem', '-CA', 'ca.pem', '-CAkey', 'ca-key.pem',
                '-CAcreateserial', '-days', '1', '-extfile', 'names', '-out', f'{name}.pem')


class SecureClientTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        make_certificates(directory)
        cls.ca, cls.cert, cls.key, server_cert, server_key, keys = (
            str(directory / name) for name in ('ca.pem', 'client.pem', 'client-key.pem',
                                               'server.pem', 'server-key.pem', 'keys.toml'))
        pathlib.Path(keys).write_text(f'[alice]\nkey = "{KEY}"\n')
        cls.server = cls.enterClassContext(RunningServer(
            '--tls-cert', server_cert, '--tls-key', server_key, '--tls-client-ca', cls.ca,
            '--api-keys', keys))

    def ask(self, *flags, **extra):
        return run_cli(*ASK, '--server', self.server.address, *flags, model=False, **extra)

    def test_cli_with_certificate_and_key(self):
        tls = '--ca', self.ca, '--cert', self.cert, '--key', self.key
        by_flag = self.ask(*tls, '--api-key', KEY)
        self.assertEqual((by_flag.returncode, by_flag.stderr), (0, ''))
        by_variable = self.ask(*tls, LSSAR_API_KEY=KEY)
        self.assertEqual(by_variable.returncode, 0)
        without = self.ask(*tls)
        self.assertEqual(without.returncode, 1)
        self.assertIn('lssar: this server requires an API key; give the key with --api-key KEY or '
                      'LSSAR_API_KEY (', without.stderr)
        self.assertNotIn('Bearer', without.stderr)
        wrong = self.ask(*tls, '--api-key', 'wrong')
        self.assertIn('the API key is unknown; give the key with --api-key KEY', wrong.stderr)

    def test_cli_of_a_named_model(self):
        secure = '--ca', self.ca, '--cert', self.cert, '--key', self.key, '--api-key', KEY
        named = self.ask(*secure, '--served-model-name', 'lssar-6m')
        self.assertEqual((named.returncode, named.stderr), (0, ''))
        other = self.ask(*secure, '--served-model-name', 'other')
        self.assertEqual(other.returncode, 1)
        self.assertIn('there is no model "other"; this server serves "lssar-6m"', other.stderr)
        spaced = self.ask(*secure, '--served-model-name', 'a b')
        self.assertEqual(spaced.returncode, 2)
        self.assertIn('--served-model-name must be printable ASCII', spaced.stderr)
        own = run_cli(*ASK, '--served-model-name', 'lssar-6m')
        self.assertEqual(own.returncode, 2)
        self.assertIn('--served-model-name applies to a server', own.stderr)

    def test_cli_says_why_there_is_no_connection(self):
        plain = self.ask('--api-key', KEY)
        self.assertEqual(plain.returncode, 1)
        self.assertIn('--tls', plain.stderr)
        half = self.ask('--ca', self.ca, '--cert', self.cert)
        self.assertEqual(half.returncode, 2)
        self.assertIn('--cert and --key go together', half.stderr)
        untrusted = self.ask('--tls', '--api-key', KEY)
        self.assertEqual(untrusted.returncode, 1)
        self.assertIn('its certificate is not from --ca', untrusted.stderr)
        spaced = self.ask('--ca', self.ca, '--api-key', 'a b')
        self.assertEqual(spaced.returncode, 2)

    def test_python(self):
        tls = Tls(self.ca, self.cert, self.key)
        with Client(self.server.address, tls=tls, api_key=KEY, timeout_s=60) as client:
            [choice] = client.complete('The river', max_tokens=2, temperature=0)
            self.assertEqual((choice.finish_reason, bool(choice.text)), ('LENGTH', True))
            self.assertTrue(client.score('The river', [' is'], priority=1, use_prefix_cache=False))
        with Client(self.server.address, tls=tls, api_key=KEY, timeout_s=60,
                    served_model_name='other') as client:
            with self.assertRaisesRegex(LssarError, 'no model "other"') as raised:
                client.get_info()
            self.assertEqual(raised.exception.code, 'NOT_FOUND')
        with Client(self.server.address, tls=tls, timeout_s=60) as client:
            with self.assertRaises(LssarError) as raised:
                client.get_info()
            self.assertEqual(raised.exception.code, 'UNAUTHENTICATED')
            self.assertIn('requires an API key; give the key with api_key=...',
                          str(raised.exception))
            self.assertNotIn('Bearer', str(raised.exception))
        with Client(self.server.address, api_key=KEY, timeout_s=60) as client:
            with self.assertRaises(LssarError) as raised:
                client.get_info()
            self.assertEqual(raised.exception.code, 'UNAVAILABLE')

    def test_commands_in_python(self):
        secure = '--ca', self.ca, '--cert', self.cert, '--key', self.key
        ids = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / 'ids.bin'
        ids.write_bytes(struct.pack('<32H', *range(300, 332)))
        # Debian's python3, which has numpy; another one may be first in PATH.
        variables = {'LSSAR_API_KEY': KEY, 'PATH': '/usr/bin:/bin'}
        compare = 'kl', *[self.server.address] * 2, '--ids', ids, '--length', '32', '--json'
        done = run_cli(*compare, *secure, model=False, **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)['kl'], 0)
        plain = run_cli(*compare, model=False, **variables)
        self.assertEqual(plain.returncode, 1)
        self.assertIn('of a command, --tls', plain.stderr)
        saved = ids.with_name('request.json')
        done = self.ask(*secure, '--api-key', KEY, '--seed', '1', '--save-request', saved)
        self.assertEqual(done.returncode, 0, done.stderr)
        verify = 'verify', '--server', self.server.address, '--request', saved
        done = run_cli(*verify, *secure, model=False, **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('same bits', done.stdout)
        lines, answers = ids.with_name('in.jsonl'), ids.with_name('out.jsonl')
        lines.write_text(json.dumps({'custom_id': 'a', 'method': 'POST', 'url': '/v1/completions',
                                     'body': {'model': 'lssar-6m', 'prompt': 'A',
                                              'max_tokens': 2}}))
        batch = 'run-batch', lines, answers, '--server', self.server.http_address
        for flags, why in (((), 'no answer'),
                           (('--tls', *secure[2:]), '--ca FILE: the roots of')):
            done = run_cli(*batch, *flags, '--patience', '0', model=False, **variables)
            self.assertEqual((done.returncode, answers.read_bytes()), (1, b''))
            self.assertIn(why, done.stderr)
        done = run_cli(*batch, *secure, model=False, **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(answers.read_text().splitlines()), 1)
        half = run_cli(*verify, '--ca', self.ca, '--cert', self.cert, model=False, **variables)
        self.assertEqual(half.returncode, 2)
        self.assertIn('--cert and --key go together', half.stderr)


if __name__ == '__main__':
    unittest.main()
