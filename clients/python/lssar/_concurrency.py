"""What the two clients do differently.

aio.py uses the names with `Async` and `async_`; client.py, which derive_client.py makes of it,
those without.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
import weakref
from collections.abc import (AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine,
                             Iterable)
from concurrent import futures
from typing import Generic, Protocol, TypeVar

T = TypeVar('T')
Item = TypeVar('Item')


class _Cancellable(Protocol):
    def cancel(self) -> None: ...


Stream = TypeVar('Stream', bound=_Cancellable)


class OpenCalls:
    """The streams that a client ends when it is closed. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = weakref.WeakSet[_Cancellable]()

    def add(self, call: _Cancellable) -> None:
        """For as long as `call` exists."""
        with self._lock:
            self._calls.add(call)

    def cancel(self) -> None:
        """Ends them all."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()


async def async_iterate(values: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """Yields the values."""
    if isinstance(values, AsyncIterable):
        async for value in values:
            yield value
    else:
        for value in values:
            yield value


def iterate(values: Iterable[T]) -> Iterable[T]:
    """The values."""
    return values


class AsyncEvent(asyncio.Event):
    """An event that can be awaited for a time."""

    async def wait_for(self, seconds: float) -> bool:
        """Whether it is set, as soon as it is or after `seconds`."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)
        return self.is_set()


class Event(threading.Event):
    """AsyncEvent for threads."""

    def wait_for(self, seconds: float) -> bool:
        """Whether it is set, as soon as it is or after `seconds`."""
        return self.wait(seconds)


class AsyncReading:
    """Runs `read` beside its owner, who waits for its end."""

    def __init__(self, read: Callable[[], Coroutine[object, object, None]]) -> None:
        self._task = asyncio.create_task(read())

    async def end(self) -> None:
        """Waits until all is read. Errors: those of `read`."""
        await self._task

    async def stop(self) -> None:
        """Waits for the end, after what is read was cancelled."""
        await asyncio.gather(self._task, return_exceptions=True)


class Reading:
    """AsyncReading with a thread, which does not keep a program alive."""

    def __init__(self, read: Callable[[], None]) -> None:
        self._end = futures.Future[None]()
        self._thread = threading.Thread(target=self._run, args=(read,), daemon=True,
                                        name='lssar-reading')
        self._thread.start()

    def _run(self, read: Callable[[], None]) -> None:
        try:
            read()
            self._end.set_result(None)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            self._end.set_exception(error)

    def end(self) -> None:
        """Waits until all is read. Errors: those of `read`."""
        self._end.result()

    def stop(self) -> None:
        """Waits for the end, after what is read was cancelled."""
        self._thread.join()


class AsyncWorkers(Generic[Item, Stream, T]):
    """Begins streams and finishes them, `concurrency` at a time; results come in order.

    At most 2 * concurrency items wait, run or are finished.
    """

    def __init__(self, concurrency: int, begin: Callable[[Item], Stream],
                 finish: Callable[[Stream], Awaitable[T]]) -> None:
        self._capacity = 2 * concurrency
        self._places = asyncio.Semaphore(concurrency)
        self._begin = begin
        self._finish = finish
        self._window: collections.deque[asyncio.Task[T]] = collections.deque()

    def start(self, item: Item) -> None:
        """Adds an item. There must be room for it."""
        self._window.append(asyncio.create_task(self._run(item)))

    async def _run(self, item: Item) -> T:
        async with self._places:
            return await self._finish(self._begin(item))

    def is_full(self) -> bool:
        """Whether next() must come before the next start()."""
        return len(self._window) == self._capacity

    def __len__(self) -> int:
        """Results that next() will give."""
        return len(self._window)

    async def next(self) -> T:
        """The result of the oldest item, or its error."""
        result = await self._window[0]
        self._window.popleft()
        return result

    async def stop(self) -> None:
        """Cancels what runs. Waits until it has ended."""
        for task in self._window:
            task.cancel()
        await asyncio.gather(*self._window, return_exceptions=True)


class Workers(Generic[Item, Stream, T]):
    """AsyncWorkers with threads."""

    def __init__(self, concurrency: int, begin: Callable[[Item], Stream],
                 finish: Callable[[Stream], T]) -> None:
        self._capacity = 2 * concurrency
        self._pool = futures.ThreadPoolExecutor(concurrency, 'lssar-worker')
        self._begin = begin
        self._finish = finish
        self._window: collections.deque[futures.Future[T]] = collections.deque()
        self._streams: set[Stream] = set()
        self._is_stopped = False

    def start(self, item: Item) -> None:
        """Adds an item. There must be room for it."""
        self._window.append(self._pool.submit(self._run, item))

    def _run(self, item: Item) -> T:
        if self._is_stopped:
            raise futures.CancelledError
        stream = self._begin(item)
        self._streams.add(stream)
        try:
            if self._is_stopped:  # stop() may have missed it
                stream.cancel()
            return self._finish(stream)
        finally:
            self._streams.discard(stream)

    def is_full(self) -> bool:
        """Whether next() must come before the next start()."""
        return len(self._window) == self._capacity

    def __len__(self) -> int:
        """Results that next() will give."""
        return len(self._window)

    def next(self) -> T:
        """The result of the oldest item, or its error."""
        return self._window.popleft().result()

    def stop(self) -> None:
        """Cancels what runs. Waits until it has ended."""
        self._is_stopped = True
        for stream in list(self._streams):
            stream.cancel()
        self._pool.shutdown(cancel_futures=True)
