"""The well-behaved neighbour and the health probe of attack.py: each a process of its own.

    neighbour.py calls  GRPC_ADDRESS HTTP_ADDRESS REPORT [--ca FILE] [--key KEY]
    neighbour.py health GRPC_ADDRESS HTTP_ADDRESS REPORT

Both run until SIGTERM, then write REPORT (JSON). `calls` alternates gRPC and HTTP, one call at a
time and up to twenty a second, and compares each answer bit for bit with the first ones, which it
gets before it prints `ready`. A call is lost if it fails, takes over 30 s or has other bits.
`health` asks GET /healthz and grpc.health.v1 on a new connection each, ten times a second (with
TLS: /healthz alone).
"""

import argparse
import http.client
import json
import os
import pathlib
import signal
import ssl
import sys
import time

CALL_SECONDS = 30
HEALTH_SECONDS = 10
# Between the beginnings of two calls. Half of them open a connection, and a well-behaved client
# keeps to the limit of deploy/edge: 200 new connections of an address in 10 s.
CALL_PERIOD_S = 0.05
HEALTH_ADDRESS = '127.0.0.3'  # a probe has an address of its own, as an orchestrator's
PROMPT = 'The old house stood at the end of'

stopping = False


def stop(*_: object) -> None:
    global stopping
    stopping = True


class Calls:
    def __init__(self, arguments: argparse.Namespace):
        import grpc
        from lssar.v1 import inference_pb2, inference_pb2_grpc
        self.errors = (grpc.RpcError, OSError, http.client.HTTPException, ValueError, KeyError)
        self.http_address = arguments.http
        self.key = arguments.key
        self.ca = arguments.ca
        self.metadata = [('authorization', f'Bearer {self.key}')] if self.key else None
        if self.ca:
            roots = pathlib.Path(self.ca).read_bytes()
            credentials = grpc.ssl_channel_credentials(roots)
            channel = grpc.secure_channel(arguments.grpc, credentials)
        else:
            channel = grpc.insecure_channel(arguments.grpc)
        self.stub = inference_pb2_grpc.InferenceStub(channel)
        self.request = inference_pb2.GenerateRequest(
            text=PROMPT, max_tokens=12, logprobs=1,
            sampling=inference_pb2.Sampling(temperature=0.8, seed=5))

    def over_grpc(self) -> list:
        tokens = []
        for reply in self.stub.Generate(self.request, timeout=CALL_SECONDS,
                                        metadata=self.metadata):
            tokens += [[token.token.id, token.token.logprob] for token in reply.delta.tokens]
        return tokens

    def over_http(self) -> list:
        kind = http.client.HTTPSConnection if self.ca else http.client.HTTPConnection
        context = {'context': ssl.create_default_context(cafile=self.ca)} if self.ca else {}
        connection = kind(self.http_address, timeout=CALL_SECONDS, **context)
        try:
            headers = {'Content-Type': 'application/json'}
            if self.key:
                headers['Authorization'] = f'Bearer {self.key}'
            connection.request('POST', '/v1/completions', json.dumps(
                {'prompt': PROMPT, 'max_tokens': 12, 'logprobs': 1, 'temperature': 0.8,
                 'seed': 5}), headers)
            reply = connection.getresponse()
            body = json.loads(reply.read())
            if reply.status != 200:
                raise ValueError(f'HTTP {reply.status}: {body}')
            choice = body['choices'][0]
            return [choice['text'], choice['logprobs']['token_logprobs']]
        finally:
            connection.close()

    def run(self) -> dict:
        expected = [self.over_grpc(), self.over_http()]
        if not all(expected):
            raise ValueError('the first calls gave nothing')
        print('ready', flush=True)
        report = {'calls': 0, 'lost': 0, 'other_bits': 0, 'worst_ms': 0.0, 'first_error': ''}
        while not stopping:
            for call, first in zip((self.over_grpc, self.over_http), expected):
                begin = time.monotonic()
                problem = ''
                try:
                    if call() != first:
                        report['other_bits'] += 1
                        problem = 'other bits'
                except self.errors as error:
                    code = error.code().name if hasattr(error, 'code') else ''
                    text = ' '.join(str(error).split())
                    problem = f'{call.__name__}: {code or text[:100]}'
                report['calls'] += 1
                report['lost'] += bool(problem)
                report['first_error'] = report['first_error'] or problem
                seconds = time.monotonic() - begin
                report['worst_ms'] = max(report['worst_ms'], 1e3 * seconds)
                time.sleep(max(0.0, CALL_PERIOD_S - seconds))
        report['expected'] = expected
        return report


class Health:
    def __init__(self, arguments: argparse.Namespace):
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'server'))
        import raw_http2
        self.raw = raw_http2
        self.grpc_host, grpc_port = arguments.grpc.rsplit(':', 1)
        self.grpc_port = int(grpc_port)
        self.http_address = arguments.http
        self.context = ssl.create_default_context(cafile=arguments.ca) if arguments.ca else None

    def over_grpc(self) -> bool:
        try:
            with self.raw.Http2(self.grpc_host, self.grpc_port, source=HEALTH_ADDRESS,
                                timeout=HEALTH_SECONDS) as client:
                answer = client.finish(client.start(self.raw.HEALTH_CHECK, b''), HEALTH_SECONDS)
                return answer is not None and b'\x00\x00\x00\x00\x02\x08\x01' in answer
        except OSError:
            return False

    def over_http(self) -> bool:
        if self.context is None:
            connection = http.client.HTTPConnection(self.http_address, timeout=HEALTH_SECONDS,
                                                    source_address=(HEALTH_ADDRESS, 0))
        else:
            connection = http.client.HTTPSConnection(self.http_address, timeout=HEALTH_SECONDS,
                                                     source_address=(HEALTH_ADDRESS, 0),
                                                     context=self.context)
        try:
            connection.request('GET', '/healthz')
            return connection.getresponse().read() and True
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def run(self) -> dict:
        print('ready', flush=True)
        latencies = []
        num_failed = 0
        while not stopping:
            for ask in (self.over_http, self.over_grpc)[:1 if self.context else 2]:
                begin = time.monotonic()
                is_answered = ask()
                seconds = time.monotonic() - begin
                num_failed += not is_answered
                latencies.append(1e3 * (seconds if is_answered else HEALTH_SECONDS))
                time.sleep(max(0.0, 0.1 - seconds))
        return {'latencies_ms': latencies, 'failed': num_failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('role', choices=('calls', 'health'))
    parser.add_argument('grpc')
    parser.add_argument('http')
    parser.add_argument('report')
    parser.add_argument('--ca', default='')
    parser.add_argument('--key', default='')
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    report = (Calls if arguments.role == 'calls' else Health)(arguments).run()
    with open(arguments.report, 'w') as file:
        json.dump(report, file)


if __name__ == '__main__':
    main()
