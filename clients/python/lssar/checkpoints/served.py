"""Runs lssar-server on a checkpoint and talks to it."""

import contextlib
import json
import os
from collections.abc import Iterator

from lssar import Client
from lssar._server import OwnServer, server_program
from lssar.checkpoints.errors import CheckpointError

TIMEOUT_S = 600
PROMPT = 'The'
NUM_TOKENS = 24


def find_server() -> str:
    """The program. Errors: CheckpointError: there is none."""
    try:
        return server_program()
    except FileNotFoundError as error:
        raise CheckpointError(str(error)) from error


def _clean_environment() -> dict[str, str]:
    """Without LSSAR_ variables, which would change the server's flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith('LSSAR_')}


@contextlib.contextmanager
def running(server: str, directory: str, *flags: str) -> Iterator[Client]:
    """A client of a server that serves the directory. Errors: CheckpointError with its last lines.

    """
    try:
        process = OwnServer(directory, program=server, flags=flags,
                            environment=_clean_environment())
    except RuntimeError as error:
        raise CheckpointError(str(error)) from error
    with process, Client(process.address, timeout_s=TIMEOUT_S) as client:
        yield client


def first_sentence(directory: str, num_tokens: int = NUM_TOKENS) -> str:
    """A greedy continuation of PROMPT, or why there is none. Errors: CheckpointError."""
    try:
        server = server_program()
    except FileNotFoundError as error:
        return f'none: {error}'
    with running(server, directory, '--max-model-len', '256') as client:
        info = client.get_info()
        if info.tokenizer_hash:
            [generation] = client.complete(PROMPT, max_tokens=num_tokens, temperature=0)
            return json.dumps(PROMPT + generation.text, ensure_ascii=False)
        start = info.bos_id if info.bos_id is not None else 0
        [generation] = client.complete([start], max_tokens=num_tokens, temperature=0)
        return f'ids {start}, {", ".join(str(token.id) for token in generation.tokens)}'
