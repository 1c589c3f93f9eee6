"""A lane: jobs go from event loops to a thread in bundles, and their results come back in bundles.

Crossing to another thread costs more than a read or an insert. So everything that coroutines
submit within one turn of their event loop crosses together, and so do the results.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

from holdfast.errors import StoreClosed, StoreUnavailable

__all__ = ["Lane"]

Job = TypeVar("Job")
Result = TypeVar("Result")
_Bundle: TypeAlias = list[tuple[Job, asyncio.Future[Result]]]

# So that one commit cannot grow without bound, and nobody waits for thousands of others.
_JOBS_AT_ONCE_MAX = 1024


class Lane(Generic[Job, Result]):
    """Runs jobs on threads of its own, each thread with a runner that takes a bundle of them.

    With one runner the jobs are done in the order in which they were submitted, and what waits
    while a bundle is under way becomes the next one: that is group commit.
    """

    def __init__(
        self,
        name: str,
        runners: Sequence[Callable[[list[Job]], Sequence[Result]]],
        *,
        between: Callable[[], float] | None = None,
    ) -> None:
        """Start the threads.

        ``between`` is called after each bundle, and says in how many seconds at the latest it wants
        to be called again.
        """
        self._between = between
        self._bundles: queue.SimpleQueue[_Bundle[Job, Result] | None] = queue.SimpleQueue()
        self._gathering: dict[asyncio.AbstractEventLoop, _Bundle[Job, Result]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._threads = [
            threading.Thread(
                target=self._work, args=(run,), name=f"holdfast-{name}-{number}", daemon=True
            )
            for number, run in enumerate(runners)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, job: Job) -> asyncio.Future[Result]:
        """Have the job done and return the future of its result.

        A caller that is cancelled does not call the job back: it may be done all the same.

        Raises:
            StoreClosed: the lane was closed before, or was opened by another process.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        with self._lock:
            if self._closed:
                raise StoreClosed
            bundle = self._gathering.get(loop)
            if bundle is None:
                self._check_process()
                bundle = self._gathering[loop] = []
                loop.call_soon(self._send, loop)
            bundle.append((job, future))
        return future

    def close(self) -> None:
        """Do what was submitted, then end the threads and wait for them."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for loop in list(self._gathering):
                    self._put(self._gathering.pop(loop))
                for _ in self._threads:
                    self._bundles.put(None)
        for thread in self._threads:
            thread.join()

    def _check_process(self) -> None:
        # A fork copies this object but not its threads: nobody would ever answer.
        if os.getpid() != self._process:
            raise StoreClosed("the store was opened before this process forked; open it anew here")

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            bundle = self._gathering.pop(loop, None)
            if bundle is not None:
                self._put(bundle)

    def _put(self, bundle: _Bundle[Job, Result]) -> None:
        for start in range(0, len(bundle), _JOBS_AT_ONCE_MAX):
            self._bundles.put(bundle[start : start + _JOBS_AT_ONCE_MAX])

    def _work(self, run: Callable[[list[Job]], Sequence[Result]]) -> None:
        wait_seconds = None if self._between is None else 0.0
        while True:
            try:
                bundle = self._bundles.get(timeout=wait_seconds)
            except queue.Empty:
                bundle = []
            if bundle is None:
                return
            if bundle:
                self._do(run, self._with_what_waits(bundle))
            if self._between is not None:
                wait_seconds = self._between()

    def _do(
        self, run: Callable[[list[Job]], Sequence[Result]], bundle: _Bundle[Job, Result]
    ) -> None:
        try:
            results = run([job for job, _ in bundle])
        except Exception as error:
            # Runners answer for each job. Should one fail as a whole, nobody is left waiting.
            _deliver(bundle, [_broken(error) for _ in bundle], _fail)
        else:
            _deliver(bundle, results, _succeed)

    def _with_what_waits(self, bundle: _Bundle[Job, Result]) -> _Bundle[Job, Result]:
        if len(self._threads) > 1:
            return bundle
        while len(bundle) < _JOBS_AT_ONCE_MAX and not self._bundles.empty():
            more = self._bundles.get()
            if more is None:
                # The end comes last: put it back for the next turn.
                self._bundles.put(None)
                break
            bundle = bundle + more
        return bundle


def _deliver(
    bundle: _Bundle[Any, Any],
    outcomes: Sequence[Any],
    settle: Callable[[asyncio.Future[Any], Any], None],
) -> None:
    """Hand the outcomes to the event loops that wait for them, all of a loop's at once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for (_, future), outcome in zip(bundle, outcomes, strict=True):
        by_loop.setdefault(future.get_loop(), []).append((future, outcome))
    for loop, settled in by_loop.items():
        # A loop that was closed in the meantime has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle_all, settled, settle)


def _settle_all(
    settled: list[tuple[asyncio.Future[Any], Any]],
    settle: Callable[[asyncio.Future[Any], Any], None],
) -> None:
    for future, outcome in settled:
        if not future.done():
            settle(future, outcome)


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Any) -> None:
    future.set_exception(error)


def _broken(error: Exception) -> StoreUnavailable:
    broken = StoreUnavailable(f"the embedded engine failed: {error!r}")
    broken.__cause__ = error
    return broken
