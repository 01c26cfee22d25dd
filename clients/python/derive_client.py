"""Makes lssar/client.py, the client without asyncio, of lssar/aio.py, for generate_stubs.py."""

import os
import re

HEADER = '"""The synchronous client. Generated from aio.py by derive_client.py: change aio.py."""\n'
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lssar', 'aio.py')

# What is not the same without `async`, `await` and the names below.
TEXTS = {
    '"""The asyncio client. derive_client.py makes client.py of it."""\n': '',
    'import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence':
        'import Generator, Iterable, Iterator, Sequence',
    'import asyncio\n': '',
    'from grpc import aio\n': '',
    """    def __del__(self) -> None:
        self.cancel()  # gRPC's own call is a cycle, which may live for long

""": '',
    # The call's own cancellation is a grpc.RpcError here.
    """            except asyncio.CancelledError:
                if not self._is_cancelled.is_set() or _is_task_cancelled():
                    self._call.cancel()
                    raise
                failure = types.LssarError('CANCELLED', 'the client cancelled the call')
""": '',
    """            except asyncio.CancelledError:
                if not self._is_closed.is_set() or _is_task_cancelled():
                    raise
                failure = types.LssarError('CANCELLED', 'the client was closed')
""": '',
    """def _is_task_cancelled() -> bool:
    \"\"\"True where this task was cancelled, and not only its call.\"\"\"
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


""": '',
    'A connection to a server, for asyncio. Create it inside the event loop that uses it.':
        'A connection to a server. Threads may share it.',
    ' Needs no await.': '',
    ' with `async for`': '',
    'an `async with`': 'a `with`',
    ' or asynchronous iterable of': ' of',
}
NAMES = {
    **{f'Async{name}': name for name in ('Client', 'Event', 'Iterable', 'Iterator', 'Reading',
                                         'Stream', 'Workers')},
    **{f'__a{name}__': f'__{name}__' for name in ('enter', 'exit', 'iter')},
    'aclosing': 'closing', 'aio': 'grpc', 'async_iterate': 'iterate',
}


def replace(text: str, old: str, new: str) -> str:
    """Errors: SystemExit where there is nothing to replace."""
    if old not in text:
        raise SystemExit(f'derive_client: aio.py has no {old!r}')
    return text.replace(old, new)


def derived() -> str:
    """The text of client.py. Errors: SystemExit where something asynchronous is left."""
    with open(SOURCE, encoding='utf-8') as file:
        text = file.read()
    for old, new in TEXTS.items():
        text = replace(text, old, new)
    text = re.sub(r' \| AsyncIterable\[(\w|\.)+\]', '', text)
    text = re.sub(r'AsyncGenerator\[(.*), None\]', r'Generator[\1, None, None]', text)
    text = re.sub(r'\b(async|await) ', '', text)
    for old, new in NAMES.items():
        text = re.sub(rf'\b{old}\b', new, replace(text, old, old))
    if left := re.search(r'.*([Aa]sync|await|\baio\b).*', text):
        raise SystemExit(f'derive_client: not derived: {left[0].strip()}')
    return HEADER + text


def generate(out: str) -> None:
    """Writes OUT/lssar/client.py."""
    with open(os.path.join(out, 'lssar', 'client.py'), 'w', encoding='utf-8') as file:
        file.write(derived())
