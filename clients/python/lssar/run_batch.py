"""Answers the requests of a file in OpenAI's batch format. Runs again where it stopped.

IN has one request a line, in any number and of any kind that the server has:

    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

OUT gets one line for each line of IN, in the order in which they are answered:

    {"id": "batch_req_1", "custom_id": "1", "response": {"status_code": 200, "request_id": "...",
     "body": {...}}, "error": null, "request_digest": "..."}

id has the number of the line in IN, which counts from 1. A request that the server refuses has its
answer as the body, and an error; a key that it refuses ends the run. A line that is no request has
an error and no response. OUT is written line by line: after a crash, run the same command again,
and it answers the rest. It refuses an OUT whose answers are those of other requests
(request_digest). An interrupt (Ctrl-C, SIGTERM) ends the run at once, without the answers under
way.

Exit codes: 0 every line has an answer with status 200, 1 otherwise; 2 wrong usage. With API keys:
LSSAR_API_KEY.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from lssar import _tls_flags, types
from lssar._exit_code import exit_code

URLS = ('/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/responses',
        '/v1/messages', '/v1/score')
METHODS = ('POST',)
# The same request may be answered later, unless X-Should-Retry is false.
BUSY = frozenset({408, 429, 502, 503, 504})
MAX_LINE_BYTES = 32 << 20  # the server's bound of a body
ID_PREFIX = 'batch_req_'
ANSWER_START = f'{{"id": "{ID_PREFIX}'.encode()  # what Output writes
NO_ANSWER = 'is no answer of `lssar run-batch`; give another OUT, or remove it'
UNKNOWN_HOST = frozenset({socket.EAI_NONAME, getattr(socket, 'EAI_NODATA', socket.EAI_NONAME)})
FIRST_WAIT_S, LAST_WAIT_S = 0.1, 10.0
CONNECT_TIMEOUT_S = 10.0
# An answer may take any time. A peer whose machine or network is gone is found within a minute.
# Systems other than Linux lack some of these.
TCP_OPTIONS = (('TCP_KEEPIDLE', 30), ('TCP_KEEPINTVL', 10), ('TCP_KEEPCNT', 3),
               ('TCP_USER_TIMEOUT', 60_000))


class BatchError(Exception):
    """The run cannot go on. What has been answered is in OUT."""


class Row(NamedTuple):
    """A line of IN."""

    number: int  # from 1
    custom_id: str | None  # None: the line has none
    url: str
    body: bytes  # the line itself, where it is no request
    problem: tuple[str, str] | None  # code and message, where the line is no request

    @property
    def digest(self) -> str:
        """What is asked. A line that is mended asks for something else than the broken one."""
        code = self.problem[0] if self.problem else ''
        digest = hashlib.blake2b(f'{self.url}\n{code}\n'.encode(), digest_size=8)
        digest.update(self.body)
        return digest.hexdigest()


def _problem(line: dict[str, object]) -> str | None:
    """What is wrong with the fields of a line."""
    unknown = sorted(line.keys() - {'custom_id', 'method', 'url', 'body'})
    if unknown:
        return f'has a field {unknown[0]!r}; it may have custom_id, method, url and body'
    if line.get('method') not in METHODS:
        return f'method is {line.get("method")!r}; it must be POST'
    if line.get('url') not in URLS:
        return f'url is {line.get("url")!r}; it must be one of {", ".join(URLS)}'
    body = line.get('body')
    if not isinstance(body, dict):
        return 'body must be an object'
    if body.get('stream'):
        return 'body.stream is true; answers of a batch are whole'
    return None


def parse_line(number: int, text: bytes) -> Row:
    """A row, with a problem where the line is no request."""
    def broken(code: str, message: str, custom_id: str | None = None) -> Row:
        return Row(number, custom_id, '', text.strip(), (code, f'line {number}: {message}'))

    if len(text) > MAX_LINE_BYTES:
        return broken('line_too_long', f'more than {MAX_LINE_BYTES} bytes')
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        return broken('invalid_json', f'not JSON: {str(error)[:200]}')
    if not isinstance(line, dict):
        return broken('invalid_request', 'not an object')
    custom_id = line.get('custom_id')
    if not isinstance(custom_id, str) or not custom_id:
        return broken('invalid_request', 'custom_id must be a text that is not empty')
    problem = _problem(line)
    if problem:
        return broken('invalid_request', problem, custom_id)
    return Row(number, custom_id, line['url'], json.dumps(line['body']).encode(), None)


def read_rows(file: BinaryIO) -> Iterator[Row]:
    """The rows of IN. Empty lines count, and are no rows. A custom_id that an earlier line has is a
    problem."""
    seen: set[bytes] = set()
    for number, text in enumerate(_lines(file), 1):
        if not text.strip():
            continue
        row = parse_line(number, text)
        if row.custom_id is not None:
            digest = hashlib.blake2b(row.custom_id.encode('utf-8', 'surrogatepass'),
                                     digest_size=16).digest()
            if digest in seen:
                row = row._replace(problem=('duplicate_custom_id', f'line {number}: an earlier '
                                            f'line has the custom_id {row.custom_id!r}'))
            seen.add(digest)
        yield row


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines; of one that is too long, its beginning alone."""
    while text := file.readline(MAX_LINE_BYTES + 2):
        end = text
        while end and not end.endswith(b'\n'):
            end = file.readline(MAX_LINE_BYTES)
        yield text


class Output:
    """OUT, for a with block. Threads may share it."""

    def __init__(self, path: str) -> None:
        """Opens it, and cuts a line that was not written whole.

        Errors: BatchError: another process writes it, or it is no output of this program; OSError.
        """
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._lock = threading.Lock()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise BatchError(f'{path}: another process writes it') from None
        # custom_id and digest by the number of the line in IN. No digest: of an earlier version.
        self.done: dict[int, tuple[str | None, str | None]] = {}
        self.num_failed = 0  # of these
        self._error: OSError | None = None  # of a write: nothing comes behind it
        size = 0
        with open(path, 'rb') as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b'\n'):
                    if not ANSWER_START.startswith(line[:len(ANSWER_START)]):
                        raise BatchError(f'{path}: line {number} {NO_ANSWER}')
                    break
                size += len(line)
                self._add(f'{path}: line {number}', line)
        os.ftruncate(self._file, size)
        self._size = size

    def _add(self, place: str, line: bytes) -> None:
        try:
            row = json.loads(line)
            number = int(row['id'].removeprefix(ID_PREFIX))
            custom_id, error = row['custom_id'], row['error']
            digest = row.get('request_digest')
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BatchError(f'{place} {NO_ANSWER}') from None
        if number in self.done:
            raise BatchError(f'{place} answers line {number} of IN a second time')
        self.done[number] = custom_id, digest
        self.num_failed += error is not None

    def check(self, row: Row) -> bool:
        """True where the row has been answered. Errors: BatchError: by the answer of another
        row."""
        if row.number not in self.done:
            return False
        custom_id, digest = self.done[row.number]
        if custom_id != row.custom_id:
            raise BatchError(f'OUT has an answer to line {row.number} of IN with the custom_id '
                             f'{custom_id!r}, and the line has {row.custom_id!r}: it is the '
                             'output of another input')
        if digest not in (None, row.digest):
            raise BatchError(f'OUT has an answer to line {row.number} of IN, and the line has '
                             'changed since: give another OUT, or take the answer out of this one')
        return True

    def write(self, row: Row, response: dict[str, object] | None,
              error: dict[str, str] | None) -> None:
        """Appends an answer, in one piece. Errors: OSError, and then of every later call: an answer
        behind a part of a line would be lost with it."""
        line = json.dumps({'id': f'{ID_PREFIX}{row.number}', 'custom_id': row.custom_id,
                           'response': response, 'error': error,
                           'request_digest': row.digest}) + '\n'
        data = line.encode()
        size = len(data)
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                while data:
                    data = data[os.write(self._file, data):]
            except OSError as error_of_write:
                with contextlib.suppress(OSError):  # else the next run cuts it
                    os.ftruncate(self._file, self._size)
                self._error = OSError(error_of_write.errno, error_of_write.strerror, self._path)
                raise self._error from None
            self._size += size

    def close(self) -> None:
        """Everything is on the disk."""
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Answer(NamedTuple):
    """What the server says to a request."""

    status: int
    request_id: str
    body: bytes


def _parsed(text: bytes) -> object:
    """A body: JSON, or text."""
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors='replace')


def _error_fields(body: object) -> dict[str, object]:
    """The fields of a body's "error". Empty: it has none."""
    told = body.get('error') if isinstance(body, dict) else None
    return told if isinstance(told, dict) else {}


def _told(text: bytes) -> str:
    """The message of a body that is an error."""
    body = _parsed(text)
    return str(_error_fields(body).get('message') or body)


def _context(tls: types.Tls | None) -> ssl.SSLContext:
    """Errors: BatchError: a file that is not what it should be."""
    if tls is None:
        return ssl.create_default_context()
    path = tls.ca
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        path = tls.cert
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise BatchError(f'{path}: {error.strerror or error}') from None
    return context


class Sender:
    """Sends requests over a connection for each thread."""

    def __init__(self, url: str, key: str | None, patience_s: float,
                 tls: types.Tls | None = None) -> None:
        """`patience_s`: how long a request is repeated while the server is busy or away. `tls`: of
        a URL without a scheme too.

        Errors: BatchError: not the URL of a server, no key, or no TLS with these files.
        """
        try:
            scheme = 'http' if tls is None else 'https'
            parts = urllib.parse.urlsplit(url if '://' in url else f'{scheme}://{url}')
            if parts.scheme not in ('http', 'https') or not parts.hostname:
                raise ValueError('no address')
            self._host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise BatchError(f'--server {url}: give HOST:PORT, or a URL with http or https '
                             f'({error})') from None
        if parts.scheme == 'http' and tls is not None:
            raise BatchError(f'--server {url}: --tls, --ca, --cert and --key need https')
        self._context = _context(tls) if parts.scheme == 'https' else None
        self._url = url
        self._has_answered = self._has_told = False
        self._refusal: str | None = None  # of the key
        self._base = parts.path.rstrip('/').removesuffix('/v1')
        self._headers = {'Content-Type': 'application/json'}
        if key:
            if not all('!' <= char <= '~' for char in key):
                raise BatchError('LSSAR_API_KEY must be printable ASCII without spaces')
            self._headers['Authorization'] = f'Bearer {key}'
        self._patience_s = patience_s
        self._local = threading.local()
        self._lock = threading.Lock()
        self._sockets: dict[int, socket.socket] = {}  # by thread
        self._must_stop = threading.Event()

    def stop(self) -> None:
        """Ends the requests in flight and those to come: send() fails."""
        with self._lock:
            self._must_stop.set()
            for each in self._sockets.values():
                with contextlib.suppress(OSError):  # closed already
                    # Not SSLSocket's, which takes TLS away from the thread that reads.
                    socket.socket.shutdown(each, socket.SHUT_RDWR)

    def _open(self) -> http.client.HTTPConnection:
        """This thread's connection. Errors: OSError."""
        connection: http.client.HTTPConnection | None
        connection = getattr(self._local, 'connection', None)
        if connection is None:
            connection = self._local.connection = (
                http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S,
                                            context=self._context)
                if self._context is not None else
                http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S))
        if connection.sock is None:  # at first, or the server has closed it
            self._connect(connection)
        self._check()
        return connection

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        connection.connect()
        connected = connection.sock
        connected.settimeout(None)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in TCP_OPTIONS:
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        with self._lock:
            self._sockets[threading.get_ident()] = connected

    def _check(self) -> None:
        """Errors: ConnectionAbortedError after stop()."""
        if self._must_stop.is_set():
            raise ConnectionAbortedError('the run ends')

    def _send(self, row: Row) -> tuple[Answer, bool, float | None]:
        """The answer, whether another may come later, and Retry-After. Errors: OSError,
        HTTPException."""
        try:
            connection = self._open()
            connection.request('POST', self._base + row.url, row.body, self._headers)
            reply = connection.getresponse()
            body = reply.read()
            self._check()  # the end of the connection may have been that of a body
        except (OSError, http.client.HTTPException):
            if (broken := getattr(self._local, 'connection', None)) is not None:
                broken.close()
                self._local.connection = None
            raise
        try:
            wait = float(reply.headers.get('Retry-After', ''))
        except ValueError:
            wait = None
        may_retry = reply.status in BUSY and reply.headers.get('X-Should-Retry') != 'false'
        return (Answer(reply.status, reply.headers.get('X-Request-Id', ''), body), may_retry,
                wait)

    def _check_address(self, error: Exception) -> None:
        """Errors: BatchError where no server will ever answer at the address."""
        if self._has_answered:
            return
        if isinstance(error, socket.gaierror) and error.errno in UNKNOWN_HOST:
            why = f'{self._host} is no known host'
        elif isinstance(error, ssl.SSLError):
            why = f"{error}; --ca FILE: the roots of the server's certificate"
        elif (isinstance(error, http.client.BadStatusLine)
              and not isinstance(error, http.client.RemoteDisconnected)):
            why = ("what answers there does not speak HTTP; give the address of lssar-server's "
                   '--http-listen, not that of gRPC')
        else:
            return
        raise BatchError(f'--server {self._url}: {why}')

    def _tell(self, problem: str) -> None:
        """Says once that the server does not answer."""
        with self._lock:
            if self._has_told:
                return
            self._has_told = True
        print(f'lssar run-batch: {self._url}: no answer yet ({problem}); trying again for up to '
              f'{self._patience_s:g} s', file=sys.stderr, flush=True)

    def send(self, row: Row) -> Answer:
        """Errors: BatchError: the server stayed busy or away, or refuses the key; there is none."""
        give_up = time.monotonic() + self._patience_s
        wait = FIRST_WAIT_S
        while True:
            retry_after = None
            try:
                answered, may_retry, retry_after = self._send(row)
                self._has_answered = True
                if answered.status == 401:  # of every line, not of this
                    self._refusal = (f'--server {self._url} refuses the key: '
                                     f'{_told(answered.body)}; set LSSAR_API_KEY')
                    self.stop()
                    raise BatchError(self._refusal)
                if not may_retry:
                    return answered
                text = answered.body[:300].decode(errors='replace')
                problem = f'status {answered.status}: {text}'
            except (OSError, http.client.HTTPException) as error:
                self._check_address(error)
                problem = f'{type(error).__name__}: {error}'
                if not self._has_answered and not self._must_stop.is_set():
                    self._tell(problem)
            pause = max(wait, retry_after or 0.0)
            if time.monotonic() + pause > give_up or self._must_stop.wait(pause):
                raise BatchError(self._refusal or f'line {row.number}: no answer ({problem})')
            wait = min(2 * wait, LAST_WAIT_S)


def answer(row: Row, sender: Sender, output: Output) -> bool:
    """Answers a row. -> whether it has succeeded."""
    if row.problem:
        output.write(row, None, {'code': row.problem[0], 'message': row.problem[1]})
        return False
    status, request_id, text = sender.send(row)
    body = _parsed(text)
    error = None
    if status != 200:
        fields = _error_fields(body)
        error = {'code': str(fields.get('code') or fields.get('type') or f'status_{status}'),
                 'message': _told(text)}
    output.write(row, {'status_code': status, 'request_id': request_id, 'body': body}, error)
    return status == 200


def run(path: str, output: Output, sender: Sender, concurrency: int) -> tuple[int, int, int]:
    """Answers the rows that have no answer yet. -> numbers of rows answered before, answered now,
    and of those failed now. Errors: BatchError, OSError."""
    num_before = num_now = num_failed = 0
    running: collections.deque[concurrent.futures.Future[bool]] = collections.deque()

    def finish_first() -> None:
        nonlocal num_now, num_failed
        succeeded = running.popleft().result()
        num_now += 1
        num_failed += not succeeded

    with open(path, 'rb') as file, \
            concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        try:
            if output.done and file.seekable():  # nothing is asked for a wrong OUT
                _check_same(sum(map(output.check, read_rows(file))), output)
                file.seek(0)
            for row in read_rows(file):
                if output.check(row):
                    num_before += 1
                    continue
                # Not in the order of IN: a slow row holds up none of the others but the window's.
                while len(running) >= 4 * concurrency:
                    finish_first()
                running.append(pool.submit(answer, row, sender, output))
            while running:
                finish_first()
        except BaseException:
            sender.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    _check_same(num_before, output)
    return num_before, num_now, num_failed


def _check_same(num_before: int, output: Output) -> None:
    """Errors: BatchError: an answer has no line in IN."""
    if num_before != len(output.done):
        raise BatchError(f'OUT has {len(output.done)} answers, and {num_before} lines of IN are '
                         'theirs: it is the output of another input')


EXAMPLES = '''
Examples:
  lssar run-batch in.jsonl out.jsonl
  lssar run-batch in.jsonl out.jsonl --model models/zoo/lssar-6m
  lssar run-batch in.jsonl out.jsonl --server host:8080 --ca ca.pem
'''


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. -> exit code."""
    parser = argparse.ArgumentParser(prog='lssar run-batch', description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('input', metavar='IN')
    parser.add_argument('output', metavar='OUT')
    parser.add_argument('--server', metavar='URL', default='http://127.0.0.1:8080',
                        help='HTTP port of a server, HOST:PORT or a URL [default: %(default)s]')
    parser.add_argument('--model', metavar='DIR',
                        help='checkpoint that an lssar-server of this command serves meanwhile')
    parser.add_argument('--max-concurrency', metavar='N', type=int, default=32,
                        help='requests at the same time [1 to 1024; default %(default)s]')
    parser.add_argument('--patience', metavar='SECONDS', type=float, default=600,
                        help='repeat a request this long while the server is busy or away; the '
                        'answer itself may take any time [default %(default)s]')
    _tls_flags.add(parser)
    given = parser.parse_args(arguments)
    try:
        tls = _tls_flags.of(given)
    except ValueError as error:
        parser.error(str(error))
    if tls is not None and given.model is not None:
        parser.error('--tls, --ca, --cert and --key apply to --server')
    if not 1 <= given.max_concurrency <= 1024:
        parser.error(f'--max-concurrency is {given.max_concurrency}; it must be in [1, 1024]')
    if not given.patience >= 0:
        parser.error(f'--patience is {given.patience}; it must not be negative')

    def work() -> int:
        with Output(given.output) as output:
            return _run_on(given, output, tls)

    return exit_code('run-batch', work, (BatchError, OSError, RuntimeError))


def _run_on(given: argparse.Namespace, output: Output, tls: types.Tls | None) -> int:
    """Runs on the server that the flags name."""
    def run_at(url: str, key: str | None) -> int:
        before, now, failed = run(given.input, output, Sender(url, key, given.patience, tls),
                                  given.max_concurrency)
        print(f'lssar run-batch: {now} lines answered, {failed} of them with an error'
              + (f'; {before} were answered before, {output.num_failed} of them with an error'
                 if before else ''), file=sys.stderr)
        return 1 if failed or output.num_failed else 0

    if given.model is None:
        return run_at(given.server, os.environ.get('LSSAR_API_KEY'))
    from lssar._server import OwnServer, server_program
    with OwnServer(given.model, program=server_program(), has_http=True) as server:
        return run_at(f'http://{server.http_address}', None)


if __name__ == '__main__':
    sys.exit(main())
