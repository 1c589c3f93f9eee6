"""Runs an event loop in its own thread, so that other threads can make blocking calls into it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar

from holdfast.errors import InvalidRequest, StoreClosed

__all__ = ["BlockingStream", "Portal"]

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# How long cancelled tasks have to end before the loop closes: a node may ignore its cancellation.
_CANCEL_SECONDS_MAX = 1.0


class _Stream(Protocol[T_co]):
    """An asynchronous iterator that can be opened before its first item."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def aclose(self) -> Coroutine[Any, Any, None]: ...

    def open(self) -> Coroutine[Any, Any, object]: ...


class Portal:
    """An event loop in a daemon thread, with calls into it from other threads."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._loop_error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="holdfast-sync", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that calls can be made.

        Raises:
            StoreClosed: the portal is closed, or this process was forked after it was opened.
            InvalidRequest: the caller runs in the loop itself.
        """
        if os.getpid() != self._process:
            # A fork copies this object but not its thread: a call would never return.
            raise StoreClosed("Holdfast was opened before this process forked; open it again here")
        if threading.current_thread() is self._thread:
            raise InvalidRequest(
                "a coroutine cannot call the blocking Holdfast that runs it: it would wait for "
                "itself; make the node a plain function"
            )
        if self._closed:
            raise self._closed_error()

    @property
    def is_closed(self) -> bool:
        """Whether calls are refused: it was closed, or opened before this process forked."""
        return self._closed or os.getpid() != self._process

    def call(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Make a call in the loop, and return its result.

        Raises:
            StoreClosed: the portal was closed before or during the call, or the process forked.
        """
        self.check()
        with self._lock:
            if self._closed:
                raise self._closed_error()
            future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)
        return self._wait_for(future)

    def iterate(
        self, function: Callable[P, AsyncGenerator[T, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, None, None]:
        """Iterate over an asynchronous generator in the loop; each item is made on demand.

        Raises:
            StoreClosed: the portal was closed before or during the iteration, or the process
                forked.
        """
        self.check()
        return self._iterate(function(*args, **kwargs))

    def open_stream(
        self, function: Callable[P, _Stream[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> BlockingStream[T]:
        """Return the stream that a function makes, for other threads.

        Raises:
            StoreClosed: the portal is closed, or the process forked.
        """
        self.check()
        return BlockingStream(self, function(*args, **kwargs))

    def _iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        try:
            while (yielded := self.call(_next_item, source)) is not None:
                yield yielded.item
        finally:
            # If the portal is closed, or this is the loop's thread, the source ends with the loop.
            with contextlib.suppress(StoreClosed, InvalidRequest):
                self.call(_close_source, source)

    def close(self, last_call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Refuse further calls, make the last one, and stop the loop."""
        if os.getpid() != self._process:
            return  # the resources belong to the process that opened them
        if threading.current_thread() is self._thread:
            self.check()
        with self._lock:
            future = None
            if not self._closed:
                self._closed = True
                future = asyncio.run_coroutine_threadsafe(last_call(), self._loop)
        try:
            if future is not None:
                self._wait_for(future)
        finally:
            if future is not None:
                # The loop may have ended by itself: a node raised SystemExit.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _wait_for(self, future: concurrent.futures.Future[T]) -> T:
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._closed_error() from self._loop_error
        except BaseException:
            # Ctrl-C interrupts only this wait: cancel the call, because its result is not needed.
            if not future.done():
                future.cancel()
            raise

    def _closed_error(self) -> StoreClosed:
        if self._loop_error is None:
            return StoreClosed("Holdfast was used after it was closed")
        return StoreClosed(f"the event loop of Holdfast was ended by {self._loop_error!r:.200}")

    def _run_loop(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException as error:
            # A SystemExit in a coroutine ends the loop: tell the callers, or they wait forever.
            self._loop_error = error
        with self._lock:
            self._closed = True
        try:
            self._cancel_tasks()
        finally:
            self._loop.close()

    def _cancel_tasks(self) -> None:
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            waiting = asyncio.wait(tasks, timeout=_CANCEL_SECONDS_MAX)
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_until_complete(waiting)
                break
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())


class BlockingStream(Generic[T]):
    """The events or the text of a run: ``for entry in run.events(): …``

    ``with run.events() as stream: …`` opens the stream before the block and closes it after it. A
    web handler opens it with `open` before it answers, so that an unknown run or cursor is an error
    and not an empty page. Without both, the first item opens the stream.
    """

    def __init__(self, portal: Portal, source: _Stream[T]) -> None:
        self._portal = portal
        self._source = source

    def open(self) -> Self:
        """Read the run now, and return the stream; to open it again does nothing.

        Raises:
            RunNotFound: there is no such run, or what the stream reads is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        self._portal.call(_open_source, self._source)
        return self

    def close(self) -> None:
        """Stop following the run."""
        # If the portal is closed, or this is the loop's thread, the source ends with the loop.
        with contextlib.suppress(StoreClosed, InvalidRequest):
            self._portal.call(_close_source, self._source)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            yielded = self._portal.call(_next_item, self._source)
        except BaseException:
            self.close()
            raise
        if yielded is None:
            raise StopIteration
        return yielded.item

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Yielded(Generic[T]):
    """One item of an asynchronous generator."""

    def __init__(self, item: T) -> None:
        self.item = item


class _Closable(Protocol):
    def aclose(self) -> Coroutine[Any, Any, None]: ...


async def _open_source(source: _Stream[Any]) -> None:
    await source.open()


async def _next_item(source: _Stream[T] | AsyncGenerator[T, None]) -> _Yielded[T] | None:
    async for item in source:
        return _Yielded(item)
    return None


async def _close_source(source: _Closable) -> None:
    await source.aclose()
