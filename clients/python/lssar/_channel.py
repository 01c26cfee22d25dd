"""Where a client connects, and how. Shared by both clients."""

from __future__ import annotations

import pathlib
import re

import grpc

from lssar.types import Tls

SERVICE = '/lssar.v1.Inference/'
MAX_MESSAGE_BYTES = 32 << 20
OPTIONS = [
    ('grpc.max_receive_message_length', MAX_MESSAGE_BYTES),
    ('grpc.max_send_message_length', MAX_MESSAGE_BYTES),
    ('grpc.enable_http_proxy', 0),
]


def check_server(server: str) -> str:
    """Returns `server`. Errors: ValueError with the right form, where it is not an address;
    TypeError."""
    if not isinstance(server, str):
        raise TypeError(f'server must be a text such as 127.0.0.1:50051, not {server!r}')
    url = re.match(r'(?i)(https?|grpcs?)://([^/]*)', server)
    if url:
        tls = ', tls=Tls()' if url[1].lower() in ('https', 'grpcs') else ''
        port = url[2] if ':' in url[2] else f'{url[2]}:50051'
        raise ValueError(
            f"server is {server!r}, a URL: give HOST:PORT of the server's gRPC port, such as "
            f'Client({port!r}{tls}). The HTTP port does not speak gRPC')
    if not server.startswith(('unix:', 'unix-abstract:')):
        port = re.search(r':([0-9]+)$', server)
        if not port:
            raise ValueError(f'server is {server!r}: give HOST:PORT, such as 127.0.0.1:50051')
        # gRPC would take the port modulo 65536.
        if len(port[1]) > 9 or not 1 <= int(port[1]) <= 65535:
            raise ValueError(f'server is {server!r}: its port is {port[1]}; must be in [1, 65535]')
    return server


def _header(name: str, value: str) -> str:
    """Returns `value`. Errors: TypeError; ValueError where a header cannot carry it."""
    if not isinstance(value, str):
        raise TypeError(f'{name} must be a text, not {value!r}')
    if not value or not all('!' <= char <= '~' for char in value):
        raise ValueError(f'{name} must be printable ASCII without spaces')
    return value


def metadata(api_key: str | None, served_model_name: str | None) -> tuple[tuple[str, str], ...]:
    """Metadata of each call. Errors: TypeError, ValueError."""
    pairs = []
    if api_key is not None:
        pairs.append(('authorization', f'Bearer {_header("api_key", api_key)}'))
    if served_model_name is not None:
        pairs.append(('x-lssar-model', _header('served_model_name', served_model_name)))
    return tuple(pairs)


def credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Credentials of a TLS channel. Errors: ValueError, OSError of a file."""
    if (tls.cert is None) != (tls.key is None):
        raise ValueError('Tls: cert and key go together: give both or none')

    def read(path: str | None) -> bytes | None:
        return None if path is None else pathlib.Path(path).read_bytes()

    return grpc.ssl_channel_credentials(read(tls.ca), read(tls.key), read(tls.cert))
