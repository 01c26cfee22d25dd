"""Errors of calls, and the waits between attempts. Shared by both clients."""

from __future__ import annotations

import numbers
import random
import re
import time
from collections.abc import Iterable, Iterator
from typing import cast

import grpc

from lssar.types import LssarError, Retry

DETAILS_KEY = 'grpc-status-details-bin'
# What gRPC makes of a stream that a proxy ends without a status because its server is gone: of the
# end of the body without trailers (HAProxy), and of RST_STREAM with INTERNAL_ERROR (Envoy).
BROKEN = re.compile(r'Stream removed|RST_STREAM with error code 2|without (grpc-)?status')
KEY_HINT = '; give the key with api_key=... (of a command: LSSAR_API_KEY)'
RETRY_INFO = b'/google.rpc.RetryInfo'
MAX_TIMEOUT_S = 10 * 365 * 86400.0  # more is no deadline: gRPC's clock overflows at a few of these
MAX_DOUBLINGS = 1000  # of a backoff


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a serialized message: (number, integer or content).

    google.rpc.Status and what is in it are read this way because registering them would collide
    with the package googleapis-common-protos where that is installed.
    Errors: IndexError where the data ends early.
    """
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << 64) if value >> 63 else value

    while position < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            size = varint()
            if not 0 <= size <= len(data) - position:
                raise IndexError
            yield key >> 3, data[position:position + size]
            position += size
        else:
            return  # none of the messages has a field of another type


def _all(data: bytes, number: int) -> list[bytes]:
    """Contents of the fields with this number."""
    return [value for key, value in _fields(data) if key == number and isinstance(value, bytes)]


def _seconds(duration: bytes) -> float:
    """google.protobuf.Duration."""
    values = {key: value for key, value in _fields(duration) if isinstance(value, int)}
    return max(0.0, values.get(1, 0) + values.get(2, 0) / 1e9)


def retry_delay(metadata: Iterable[tuple[str, str | bytes]] | None) -> float | None:
    """Seconds that a RetryInfo in the trailing metadata names; None without one."""
    for key, value in metadata or ():
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            for detail in _all(value, 3):  # Status.details, each an Any
                if any(url.endswith(RETRY_INFO) for url in _all(detail, 1)):
                    for retry_info in _all(detail, 2):
                        return sum(map(_seconds, _all(retry_info, 1)))
        except IndexError:  # not from an lssar server
            return None
    return None


def to_error(error: grpc.RpcError, server: str, has_tls: bool) -> LssarError:
    """The failed call as an LssarError; a connection that cannot work gets a hint."""
    code = error.code().name
    message = error.details() or code
    if code in ('UNKNOWN', 'INTERNAL') and BROKEN.search(message):
        code, message = 'UNAVAILABLE', f'the server ended during the call ({message})'
    elif code == 'UNAVAILABLE':
        lower = message.lower()
        if 'http1' in lower or 'http/1' in lower:
            message = (f'{server} speaks HTTP/1, not gRPC: it is probably the HTTP port of an '
                       'lssar server. Give the gRPC port (lssar-server --listen, default 50051)')
        elif re.search('failed to connect|connection re|socket closed|handshake', lower):
            hint = ('no TLS connection to {0}: nothing listens there, it does not speak TLS, or a '
                    'certificate was refused' if has_tls else
                    'no connection to {0}: nothing listens there, it does not speak gRPC, or it '
                    'wants TLS (tls=Tls(...); of a command, --tls)').format(server)
            message = f'{hint} ({message})'
    elif code == 'UNAUTHENTICATED':
        # The server's sentence ends with the header that its other clients send.
        message = message.partition('; send `authorization:')[0] + KEY_HINT
    metadata = cast(Iterable[tuple[str, str | bytes]] | None, error.trailing_metadata())
    return LssarError(code, message, retry_delay(metadata))


def check_timeout(timeout_s: float | None) -> float | None:
    """Seconds; None: no deadline. Errors: TypeError, ValueError."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real):
        raise TypeError(f'timeout_s must be a time in seconds, or None, not {timeout_s!r}')
    if not timeout_s >= 0:
        raise ValueError(f'timeout_s is {timeout_s}; must be at least 0, or None')
    return None if timeout_s > MAX_TIMEOUT_S else float(timeout_s)


class Attempts:
    """The attempts of one call: deadline and waits."""

    def __init__(self, retry: Retry, timeout_s: float | None) -> None:
        seconds = check_timeout(timeout_s)
        self._retry = retry
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._num_failed = 0

    def timeout(self) -> float | None:
        """Seconds that are left for the next attempt; None without a deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def restart(self) -> None:
        """An attempt got further, so that the next has as many attempts as the first."""
        self._num_failed = 0

    def wait_after(self, error: LssarError, has_reply: bool = False) -> float | None:
        """Seconds to wait before the next attempt; None: there is none.

        `has_reply`: the attempt had received something before it failed.
        """
        if has_reply and (not self._retry.resume or error.code != 'UNAVAILABLE'):
            return None
        self._num_failed += 1
        if self._num_failed >= self._retry.max_attempts:
            return None
        doublings = min(MAX_DOUBLINGS, self._num_failed - 1)
        backoff = min(self._retry.max_s, self._retry.initial_s * 2.0**doublings)
        if error.code == 'RESOURCE_EXHAUSTED' and error.retry_delay_s is not None:
            if error.retry_delay_s > self._retry.max_retry_info_s:
                return None
            wait = error.retry_delay_s + random.uniform(0, backoff)
        elif error.code == 'UNAVAILABLE' and 'speaks HTTP/1' not in str(error):
            wait = random.uniform(0, backoff)
        else:
            return None
        left = self.timeout()
        return None if left is not None and wait >= left else wait
