"""`lssar run-batch`: every line of the input is answered once, whatever ends the program."""

import collections
import errno
import http.client
import http.server
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from lssar.run_batch import Answer, BatchError, Output, Row, Sender
from quick_models import UNCHECKED as MODEL

CLI = os.environ['LSSAR_CLI']


class ScriptedServer(http.server.ThreadingHTTPServer):
    """Answers {"echo": the prompt}; to the prompt "never", 429 and that no retry changes it.
    `refusals`: statuses of the next answers."""

    daemon_threads = True

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.prompts = collections.Counter()
        self.refusals = collections.deque()
        self.num_free = None  # answers until calls are held; None: none is
        self.lock = threading.Lock()
        self.release = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that was killed

    @property
    def url(self):
        return f'http://127.0.0.1:{self.server_address[1]}/v1'


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        server = self.server
        with server.lock:
            count = sum(server.prompts.values())
            is_held = server.num_free is not None and count >= server.num_free
            server.prompts[body['prompt']] += 1
            status = server.refusals.popleft() if server.refusals else 200
        if is_held:
            server.release.wait()
        reply = {'echo': body['prompt']}
        if body['prompt'] == 'bad':
            status, reply = 400, {'error': {'code': 'invalid_request', 'message': 'bad is bad'}}
        elif body['prompt'] == 'no key':
            status, reply = 401, {'error': {'code': 'invalid_api_key', 'message': 'who are you'}}
        elif body['prompt'] == 'never':
            status, reply = 429, {'error': {'code': 'rate_limit_exceeded', 'message': 'too long'}}
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header('Content-Length', str(len(data)))
        self.send_header('X-Request-Id', 'abc')
        if body['prompt'] == 'never':
            self.send_header('X-Should-Retry', 'false')
        if status == 503:
            self.send_header('Retry-After', '0')
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def line(number, prompt=None, **fields):
    return json.dumps({'custom_id': f'row-{number}', 'method': 'POST', 'url': '/v1/completions',
                       'body': {'prompt': prompt or f'prompt {number}'}, **fields})


class RunBatchTest(unittest.TestCase):
    def setUp(self):
        self.server = ScriptedServer()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.release.set)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.input = pathlib.Path(directory.name, 'in.jsonl')
        self.output = pathlib.Path(directory.name, 'out.jsonl')

    def command(self, *flags):
        return [sys.executable, '-B', '-m', 'lssar.run_batch', str(self.input), str(self.output),
                '--server', self.server.url, *flags]

    def run_batch(self, *flags):
        return subprocess.run(self.command(*flags), capture_output=True, text=True, timeout=120,
                              check=False)

    def rows(self):
        """The answers by line of the input; each is there once."""
        rows = [json.loads(text) for text in self.output.read_text().splitlines()]
        found = {int(row['id'].removeprefix('batch_req_')): row for row in rows}
        self.assertEqual(len(found), len(rows))
        return found

    def expect_all(self, count):
        rows = self.rows()
        self.assertEqual(sorted(rows), list(range(1, count + 1)))
        for number, row in rows.items():
            self.assertRegex(row.pop('request_digest'), '^[0-9a-f]{16}$')
            self.assertEqual(row, {
                'id': f'batch_req_{number}', 'custom_id': f'row-{number}', 'error': None,
                'response': {'status_code': 200, 'request_id': 'abc',
                             'body': {'echo': f'prompt {number}'}}})

    def test_each_line_is_answered(self):
        self.input.write_text('\n'.join(line(i) for i in range(1, 201)))
        self.server.refusals.extend([503, 429, 503])
        done = self.run_batch()
        self.assertEqual((done.returncode, done.stdout), (0, ''), done.stderr)
        self.assertIn('200 lines answered, 0 of them with an error', done.stderr)
        self.expect_all(200)
        self.assertEqual(sum(self.server.prompts.values()), 203)
        again = self.run_batch()
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn('0 lines answered, 0 of them with an error; 200 were answered before',
                      again.stderr)
        self.assertEqual(sum(self.server.prompts.values()), 203)

    def test_killed_and_run_again(self):
        count = 60
        self.input.write_text(''.join(line(i) + '\n' for i in range(1, count + 1)))
        self.server.num_free = 20
        process = subprocess.Popen(self.command('--max-concurrency', '8'))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        wait_until(lambda: self.output.exists() and self.output.read_bytes().count(b'\n') >= 20)
        # While it runs, no other process writes its output.
        other = self.run_batch()
        self.assertEqual(other.returncode, 1)
        self.assertIn('another process writes it', other.stderr)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertEqual(len(self.rows()), 20)
        # As if it had been killed within a write.
        written = self.output.read_bytes()
        self.output.write_bytes(written[:-30])
        self.server.num_free = None
        self.server.release.set()
        done = self.run_batch()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('19 were answered before', done.stderr)
        self.expect_all(count)

    def test_a_signal_ends_it_at_once_and_leaves_nothing(self):
        self.input.write_text(line(1) + '\n' + line(2) + '\n')
        program = self.input.with_name('server')
        host, port = self.server.server_address
        program.write_text(f"""#!/bin/sh
            echo '{{"event":"serving","http_address":"{host}:{port}"}}'
            exec sleep 600
            """)
        program.chmod(0o755)
        for number, code, flags in ((signal.SIGINT, 130, ()), (signal.SIGTERM, 143, ()),
                                    (signal.SIGTERM, 143, ('--model', 'x'))):
            self.output.write_bytes(b'')
            self.server.num_free = 1
            self.server.prompts.clear()
            with tempfile.TemporaryDirectory() as temporary:
                process = subprocess.Popen(
                    self.command('--max-concurrency', '1', *flags), stderr=subprocess.PIPE,
                    env={**os.environ, 'TMPDIR': temporary, 'LSSAR_SERVER': str(program)})
                self.addCleanup(process.wait)
                self.addCleanup(process.kill)
                wait_until(lambda: self.server.prompts['prompt 2'])
                process.send_signal(number)
                _, said = process.communicate(timeout=60)
                self.assertEqual((process.returncode, said), (code, b''))
                self.assertEqual(list(self.rows()), [1])
                self.assertEqual(os.listdir(temporary), [])
        self.server.num_free = None
        self.assertEqual(self.run_batch().returncode, 0)
        self.expect_all(2)

    def test_a_peer_that_is_gone_is_found(self):
        sender = Sender(self.server.url, None, 0)
        self.addCleanup(sender.stop)
        connection = sender._open()
        self.addCleanup(connection.close)
        self.assertIsNone(connection.sock.gettimeout())
        self.assertTrue(connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        self.assertEqual(connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                         60_000)

    def test_waits_as_long_as_the_server_says(self):
        for retry_after, waits in ((25.0, [25.0]), (0.0, [0.1]), (601.0, [])):
            sender = Sender('x', None, 600)
            sender._must_stop = mock.Mock(**{'wait.return_value': False})
            sender._send = mock.Mock(side_effect=[(Answer(429, '', b''), True, retry_after),
                                                  (Answer(200, '', b''), False, None)])
            row = Row(1, 'a', '/v1/score', b'', None)
            if waits:
                self.assertEqual(sender.send(row).status, 200)
            else:
                with self.assertRaisesRegex(BatchError, 'line 1: no answer .status 429'):
                    sender.send(row)
            self.assertEqual([call.args[0] for call in sender._must_stop.wait.mock_calls], waits)

    def test_broken_lines_are_errors_of_their_own(self):
        lines = [line(1), '{"custom_id": "x"', '[1]', '', line(5, 'bad'), line(6, method='GET'),
                 line(7, url='/v1/files'), line(8, body=[]), line(9, more=1), line(1),
                 json.dumps({'method': 'POST', 'url': '/v1/completions', 'body': {}}),
                 line(12, body={'prompt': 'x', 'stream': True}), 'not JSON', line(14)]
        self.input.write_text('\n'.join(lines))
        done = self.run_batch()
        self.assertEqual(done.returncode, 1)
        self.assertIn('13 lines answered, 11 of them with an error', done.stderr)
        again = self.run_batch()
        self.assertEqual(again.returncode, 1)
        self.assertIn('0 lines answered, 0 of them with an error; 13 were answered before, 11 of '
                      'them with an error', again.stderr)
        rows = self.rows()
        self.assertEqual(sorted(rows), [1, 2, 3, *range(5, 15)])
        for number in 1, 14:
            self.assertEqual(rows[number]['response']['body'], {'echo': f'prompt {number}'})
        self.assertEqual(rows[5]['response']['status_code'], 400)
        self.assertEqual(rows[5]['error'], {'code': 'invalid_request', 'message': 'bad is bad'})
        for number, code, text in ((2, 'invalid_json', 'not JSON'),
                                   (3, 'invalid_request', 'object'),
                                   (6, 'invalid_request', "method is 'GET'"),
                                   (7, 'invalid_request', "url is '/v1/files'"),
                                   (8, 'invalid_request', 'body must be an object'),
                                   (9, 'invalid_request', "a field 'more'"),
                                   (10, 'duplicate_custom_id', "'row-1'"),
                                   (11, 'invalid_request', 'custom_id must be'),
                                   (12, 'invalid_request', 'stream'), (13, 'invalid_json', '')):
            self.assertIsNone(rows[number]['response'])
            self.assertEqual(rows[number]['error']['code'], code)
            self.assertIn(f'line {number}: ', rows[number]['error']['message'])
            self.assertIn(text, rows[number]['error']['message'])
        self.assertEqual(self.server.prompts, {'prompt 1': 1, 'bad': 1, 'prompt 14': 1})

    def test_the_output_of_another_input_is_refused(self):
        self.input.write_text(line(1) + '\n' + line(2) + '\n')
        self.assertEqual(self.run_batch().returncode, 0)
        before = self.output.read_bytes()
        for text, reason in ((line(1) + '\n', '2 answers, and 1 lines'),
                             (line(1) + '\n' + line(3) + '\n',
                              "'row-2', and the line has 'row-3'")):
            self.input.write_text(text)
            done = self.run_batch()
            self.assertEqual(done.returncode, 1)
            self.assertIn(reason, done.stderr)
            self.assertEqual(self.output.read_bytes(), before)
        # An answer too many is found before anything is asked.
        self.input.write_text(line(1) + '\n\n' + line(3) + '\n')
        done = self.run_batch()
        self.assertIn('2 answers, and 1 lines', done.stderr)
        self.assertEqual(self.output.read_bytes(), before)
        self.assertNotIn('prompt 3', self.server.prompts)
        # The second could be a line that was not written whole: it is not one of an answer.
        for text in '{"something": "else"}\n', line(1):
            self.output.write_text(text)
            done = self.run_batch()
            self.assertEqual(done.returncode, 1)
            self.assertIn('line 1 is no answer of `lssar run-batch`', done.stderr)
            self.assertEqual(self.output.read_text(), text)

    def test_answers_of_changed_requests_are_refused(self):
        broken = line(2, method='GET')
        self.input.write_text(line(1) + '\n' + broken + '\n')
        self.assertEqual(self.run_batch().returncode, 1)
        before = self.output.read_bytes()
        for number, text in ((1, line(1, 'other') + '\n' + broken + '\n' + line(3)),
                             (1, line(1, url='/v1/score') + '\n' + broken + '\n'),
                             (2, line(1) + '\n' + line(2) + '\n')):
            self.input.write_text(text)
            done = self.run_batch()
            self.assertEqual(done.returncode, 1)
            self.assertIn(f'an answer to line {number} of IN, and the line has changed since',
                          done.stderr)
            self.assertEqual(self.output.read_bytes(), before)
        self.assertEqual(self.server.prompts, {'prompt 1': 1})
        # Without the wrong answer the run goes on; spaces are no change.
        self.output.write_bytes(b''.join(text for text in before.splitlines(keepends=True)
                                         if b'"batch_req_1"' in text))
        self.input.write_text(line(1).replace('": ', '" :  ') + '\n' + line(2) + '\n')
        done = self.run_batch()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('1 were answered before', done.stderr)
        self.expect_all(2)
        # An earlier version wrote no digests.
        rows = [json.loads(text) for text in self.output.read_text().splitlines()]
        self.output.write_text(''.join(
            json.dumps({key: row[key] for key in row if key != 'request_digest'}) + '\n'
            for row in rows))
        self.assertEqual(self.run_batch().returncode, 0)
        self.assertEqual(self.server.prompts, {'prompt 1': 1, 'prompt 2': 1})

    def test_a_write_that_fails_leaves_whole_lines_and_is_the_last_one(self):
        row = Row(1, 'a', '/v1/score', b'{}', None)
        write = os.write

        def part(file, data):
            if len(data) < 20:
                raise OSError(errno.ENOSPC, 'No space left on device')
            return write(file, data[:len(data) - 10])

        with Output(str(self.output)) as output:
            output.write(row, None, None)
            before = self.output.read_bytes()
            with mock.patch('lssar.run_batch.os.write', part), \
                    self.assertRaisesRegex(OSError, 'No space left on device.*out.jsonl'):
                output.write(row._replace(number=2), None, None)
            self.assertEqual(self.output.read_bytes(), before)
            with self.assertRaisesRegex(OSError, 'No space left'):  # though there is room again
                output.write(row._replace(number=3), None, None)
        self.assertEqual(self.output.read_bytes(), before)

    def test_a_server_that_stays_away_ends_the_run_without_an_answer(self):
        self.input.write_text(line(1) + '\n')
        self.server.refusals.extend([503] * 100)
        done = self.run_batch('--patience', '0.5')
        self.assertEqual(done.returncode, 1)
        self.assertIn('line 1: no answer (status 503', done.stderr)
        self.assertEqual(self.output.read_bytes(), b'')
        self.server.refusals.clear()
        self.assertEqual(self.run_batch().returncode, 0)
        self.expect_all(1)

    def test_an_address_without_a_server_is_told_at_once(self):
        self.input.write_text(line(1) + '\n')
        with socket.create_server(('127.0.0.1', 0)) as closed:
            address = f'127.0.0.1:{closed.getsockname()[1]}'
        process = subprocess.Popen([*self.command(), '--server', address], stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.stderr.close)
        self.assertRegex(process.stderr.readline(),
                         f'{address}: no answer yet .Connection.* trying again for up to 600 s')
        process.terminate()
        process.wait()
        for error, why in (
                (socket.gaierror(socket.EAI_NONAME, 'unknown'), 'is no known host'),
                (ssl.SSLCertVerificationError('self-signed'), 'self-signed.*--ca FILE'),
                (http.client.BadStatusLine('x'), 'does not speak HTTP; give.*http-listen')):
            sender = Sender('x', None, 600)
            sender._send = mock.Mock(side_effect=error)
            with self.assertRaisesRegex(BatchError, f'--server x: .*{why}'):
                sender.send(Row(1, 'a', '/v1/score', b'', None))

    def test_a_refused_key_ends_the_run_and_is_no_lines_answer(self):
        lines = [line(1), line(2, 'no key'), line(3)]
        self.input.write_text('\n'.join(lines))
        done = self.run_batch('--max-concurrency', '1')
        self.assertEqual(done.returncode, 1)
        self.assertIn('refuses the key: who are you; set LSSAR_API_KEY', done.stderr)
        self.assertEqual(sorted(self.rows()), [1])
        self.input.write_text('\n'.join([*lines[:2], *(line(n) for n in range(3, 40))]))
        done = self.run_batch()
        self.assertEqual(done.returncode, 1)
        self.assertIn('refuses the key: who are you; set LSSAR_API_KEY', done.stderr)
        self.assertNotIn(2, self.rows())

    def test_a_refusal_that_no_retry_changes_is_an_answer(self):
        self.input.write_text('\n'.join([line(1), line(2, 'never'), line(3)]))
        done = self.run_batch('--patience', '0')
        self.assertEqual(done.returncode, 1)
        self.assertIn('3 lines answered, 1 of them with an error', done.stderr)
        refused = self.rows()[2]
        self.assertEqual(refused['response']['status_code'], 429)
        self.assertEqual(refused['error'], {'code': 'rate_limit_exceeded', 'message': 'too long'})
        self.assertEqual(self.server.prompts['never'], 1)

    def test_a_server_of_its_own(self):
        bodies = {'/v1/completions': {'prompt': 'Once', 'max_tokens': 3},
                  '/v1/chat/completions': {'messages': [{'role': 'user', 'content': 'Hi'}],
                                           'max_tokens': 3},
                  '/v1/responses': {'input': 'Hi', 'max_output_tokens': 3},
                  '/v1/messages': {'messages': [{'role': 'user', 'content': 'Hi'}],
                                   'max_tokens': 3},
                  '/v1/embeddings': {'input': 'Once'},
                  '/v1/score': {'items': [{'context': 'a', 'continuations': [' b']}]}}
        self.input.write_text('\n'.join(
            json.dumps({'custom_id': url, 'method': 'POST', 'url': url, 'body': body})
            for url, body in bodies.items()))
        done = subprocess.run([CLI, 'run-batch', self.input, self.output, '--model', MODEL],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows().values()
        self.assertEqual({row['custom_id'] for row in rows}, set(bodies))
        for row in rows:
            self.assertEqual(row['response']['status_code'], 200)
            self.assertTrue(row['response']['body']['usage'], row)

    def test_wrong_usage(self):
        self.input.write_text('')
        for flags in (('--max-concurrency', '0'), ('--patience', '-1')):
            self.assertEqual(self.run_batch(*flags).returncode, 2)
        for server in 'ftp://x', 'x:99999', 'x:y', '[::1':
            done = self.run_batch('--server', server)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f'--server {server}: give HOST:PORT', done.stderr)
            self.assertNotIn('Traceback', done.stderr)
        for key in 'a\nb', 'cl\u00e9':
            with mock.patch.dict(os.environ, LSSAR_API_KEY=key):
                done = self.run_batch()
            self.assertEqual(done.returncode, 1)
            self.assertIn('LSSAR_API_KEY must be printable ASCII', done.stderr)
            self.assertNotIn('Traceback', done.stderr)


if __name__ == '__main__':
    unittest.main()
