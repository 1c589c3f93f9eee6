"""An event loop in a thread of its own, into which others call, and block until it has answered."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Generic, ParamSpec, TypeVar

from holdfast.errors import InvalidRequest, StoreClosed

__all__ = ["Portal"]

P = ParamSpec("P")
T = TypeVar("T")

# How long tasks have to end once the loop is to end: one of a node's may not mind being cancelled.
_CANCEL_SECONDS_MAX = 1.0


class Portal:
    """An event loop in a daemon thread, and the way into it from other threads."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._loop_error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="holdfast-sync", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """See whether calls can be made.

        Raises:
            StoreClosed: after `end`, or in a process that was forked since.
            InvalidRequest: the caller is the loop itself.
        """
        if os.getpid() != self._process:
            # A fork copies this object but not its thread: nobody would ever answer.
            raise StoreClosed("Holdfast was opened before this process forked; open it anew here")
        if threading.current_thread() is self._thread:
            raise InvalidRequest(
                "a coroutine cannot call the blocking Holdfast that runs it: it would wait for "
                "itself; make the node a plain function"
            )
        if self._closed:
            raise self._closed_error()

    @property
    def is_closed(self) -> bool:
        """Whether nothing works here any more: it was closed, or stayed behind at a fork."""
        return self._closed or os.getpid() != self._process

    def call(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Have the loop carry out a call, and return its result.

        Raises:
            StoreClosed: after `end`, or if it comes meanwhile; or after a fork.
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
        """Have the loop yield one after the other, each when it is asked for.

        Raises:
            StoreClosed: after `end`, or if it comes meanwhile; or after a fork.
        """
        self.check()
        return self._iterate(function(*args, **kwargs))

    def _iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        try:
            while (yielded := self.call(_next_item, source)) is not None:
                yield yielded.item
        finally:
            # Closed, or on the loop's own thread: there it ends with the loop.
            with contextlib.suppress(StoreClosed, InvalidRequest):
                self.call(_close_source, source)

    def close(self, last_call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Take no further calls, have the loop carry out a last one, and end it."""
        if os.getpid() != self._process:
            return  # what there is to close belongs to the process that opened it
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
                # It may have ended by itself: a node raised SystemExit.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _wait_for(self, future: concurrent.futures.Future[T]) -> T:
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._closed_error() from self._loop_error
        except BaseException:
            # Ctrl-C interrupts the wait, not the loop; there nobody needs an answer any more.
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
            # A coroutine's SystemExit leaves the loop: without it the callers would wait forever.
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


class _Yielded(Generic[T]):
    """One of the values of an asynchronous generator."""

    def __init__(self, item: T) -> None:
        self.item = item


async def _next_item(source: AsyncGenerator[T, None]) -> _Yielded[T] | None:
    async for item in source:
        return _Yielded(item)
    return None


async def _close_source(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()
