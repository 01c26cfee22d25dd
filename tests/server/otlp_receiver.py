"""A collector that takes nothing on trust: prints each span that it gets as a line of JSON.

    python otlp_receiver.py [--status CODE] [--silent] [--certificate FILE --key FILE]

The first line is {"port": N}. A request that is not OTLP/HTTP JSON of the schema that it names, or
has an attribute that the schema does not have, gives a line {"error": ...} and 400. --status
answers with that status; --silent prints the request and never answers. Ends with its stdin. Needs
the packages of tests/requirements-traces.txt.
"""

import argparse
import base64
import http.server
import importlib
import json
import pkgutil
import ssl
import sys
import threading

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating import attributes

SCHEMAS = {schema.value for schema in schemas.Schemas}
OWN_PREFIX = 'lssar.'
ID_BYTES = {'traceId': 16, 'spanId': 8, 'parentSpanId': 8}


def known_names() -> set[str]:
    names = set()
    for module in pkgutil.iter_modules(attributes.__path__):
        content = vars(importlib.import_module(f'{attributes.__name__}.{module.name}'))
        names |= {value for name, value in content.items()
                  if name.isupper() and isinstance(value, str)}
    return names


NAMES = known_names()


def with_base64_ids(value):
    """OTLP's JSON has ids in hexadecimal, that of Protobuf in base64."""
    if isinstance(value, list):
        return [with_base64_ids(part) for part in value]
    if not isinstance(value, dict):
        return value
    converted = {}
    for name, part in value.items():
        if name in ID_BYTES:
            number = bytes.fromhex(part)
            if len(number) != ID_BYTES[name] or number.hex() != part or not any(number):
                raise ValueError(f'{name} is {part}')
            converted[name] = base64.b64encode(number).decode()
        else:
            converted[name] = with_base64_ids(part)
    return converted


def plain(value):
    kind = value.WhichOneof('value')
    if kind == 'array_value':
        return [plain(part) for part in value.array_value.values]
    if kind is None:
        raise ValueError('an attribute has no value')
    return getattr(value, kind)


def attributes_of(message):
    found = {}
    for attribute in message.attributes:
        if attribute.key in found:
            raise ValueError(f'{attribute.key} is there twice')
        if not attribute.key.startswith(OWN_PREFIX) and attribute.key not in NAMES:
            raise ValueError(f'the schema has no {attribute.key}')
        found[attribute.key] = plain(attribute.value)
    return found


def spans_of(body):
    """Errors: ValueError, json_format.ParseError (unknown fields, too)."""
    request = trace_service_pb2.ExportTraceServiceRequest()
    json_format.ParseDict(with_base64_ids(json.loads(body)), request)
    for resource in request.resource_spans:
        about = attributes_of(resource.resource)
        for scope in resource.scope_spans:
            for schema in (resource.schema_url, scope.schema_url):
                if schema not in SCHEMAS:
                    raise ValueError(f'there is no schema {schema}')
            for span in scope.spans:
                if not (span.name and 0 < span.start_time_unix_nano <= span.end_time_unix_nano):
                    raise ValueError(f'the span has no name, or ends before it begins: {span}')
                yield {'trace': span.trace_id.hex(), 'id': span.span_id.hex(),
                       'parent': span.parent_span_id.hex(), 'name': span.name,
                       'kind': trace_pb2.Span.SpanKind.Name(span.kind), 'flags': span.flags,
                       'start': span.start_time_unix_nano, 'end': span.end_time_unix_nano,
                       'status': trace_pb2.Status.StatusCode.Name(span.status.code),
                       'message': span.status.message, 'attributes': attributes_of(span),
                       'resource': about, 'scope': scope.scope.name}


def say(line):
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--status', type=int, default=200)
    parser.add_argument('--silent', action='store_true')
    parser.add_argument('--certificate')
    parser.add_argument('--key')
    arguments = parser.parse_args()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers['Content-Length']))
            status = arguments.status
            try:
                if (self.path, self.headers['Content-Type']) != ('/v1/traces', 'application/json'):
                    raise ValueError(f'{self.path}, {self.headers}')
                for span in spans_of(body):
                    say(span)
            except (ValueError, json_format.ParseError) as error:
                say({'error': str(error)})
                status = 400
            if arguments.silent:
                threading.Event().wait()
            self.send_response(status)
            self.send_header('Content-Length', '2')
            self.send_header('Content-Type', 'application/json')
            self.end_headers()
            self.wfile.write(b'{}')

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    server.daemon_threads = True
    if arguments.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(arguments.certificate, arguments.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    say({'port': server.server_port})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == '__main__':
    main()
