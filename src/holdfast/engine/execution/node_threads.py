"""Threads for nodes that are plain functions, and for calls that block."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["NodeThreads"]

T = TypeVar("T")


class NodeThreads(Executor):
    """An executor with daemon threads, which it starts when they are needed.

    Python's own executor waits for its threads when the process ends: a node that takes an hour
    would delay a deploy by an hour.
    """

    def __init__(self, count: int, *, name: str = "node") -> None:
        self._threads_max = count
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0
        # Calls that wait for a thread.
        self._backlog = 0
        # Threads that wait for something that may need another thread.
        self._blocked = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
                # asyncio's futures cannot carry a StopIteration: the caller would wait forever.
                # The others would end the event loop, and with it all other runs. Signals of the
                # system do not raise them in a thread: only the function itself does.
                future.set_exception(RuntimeError(f"raised {error!r}"))
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._idle:
                self._idle -= 1  # not in the thread, which may be slow to wake
            elif self._started - self._blocked < self._threads_max:
                self._start_thread()
            else:
                self._backlog += 1
            self._calls.put(call)
        return future

    @property
    def busy(self) -> int:
        """How many threads run code: a thread that waits for a request of its context does not."""
        with self._lock:
            return self._started - self._idle - self._blocked

    async def await_for_thread(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns, on behalf of a thread of this executor that waits.

        On the event loop, so that the thread counts as busy until the coroutine begins, and from
        the moment of its end on.
        """
        with self._blocked_thread():
            return await coroutine

    @contextmanager
    def _blocked_thread(self) -> Generator[None, None, None]:
        """Let the executor start another thread while one of its threads waits."""
        with self._lock:
            self._blocked += 1
            if self._backlog:
                self._backlog -= 1
                self._start_thread()
        try:
            yield
        finally:
            with self._lock:
                self._blocked -= 1

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        with self._lock:
            for _ in range(self._started):
                self._calls.put(None)

    def _start_thread(self) -> None:
        self._started += 1
        name = f"holdfast-{self._name}-{self._started}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                if self._backlog:
                    self._backlog -= 1
                else:
                    self._idle += 1
