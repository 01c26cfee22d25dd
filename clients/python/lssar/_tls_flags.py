"""The flags of a TLS connection, for commands that call a server."""

from __future__ import annotations

import argparse

from lssar import types


def add(parser: argparse.ArgumentParser) -> None:
    """--tls, --ca, --cert and --key, as those of the commands in C++."""
    parser.add_argument('--tls', action='store_true',
                        help='use TLS; implied by --ca, --cert, --key')
    parser.add_argument('--ca', metavar='FILE', help="PEM roots that the server's certificate is "
                        "checked against [default: the system's]")
    parser.add_argument('--cert', metavar='FILE',
                        help='PEM certificate, if the server asks for one')
    parser.add_argument('--key', metavar='FILE', help='PEM key of --cert')


def of(given: argparse.Namespace) -> types.Tls | None:
    """None: no TLS. Errors: ValueError."""
    if (given.cert is None) != (given.key is None):
        raise ValueError('--cert and --key go together')
    if given.tls or given.ca or given.cert:
        return types.Tls(given.ca, given.cert, given.key)
    return None
