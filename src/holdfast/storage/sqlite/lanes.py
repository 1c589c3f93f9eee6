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
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast.errors import StoreClosed, StoreUnavailable

__all__ = ["Lane"]

Job = TypeVar("Job")
Result = TypeVar("Result")


class _Bundle(Generic[Job, Result]):
    """Jobs of one event loop, and the futures of their results."""

    __slots__ = ("futures", "jobs", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.jobs: list[Job] = []
        self.futures: list[asyncio.Future[Result]] = []


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
                bundle = self._gathering[loop] = _Bundle(loop)
                loop.call_soon(self._send, bundle)
            elif len(bundle.jobs) == _JOBS_AT_ONCE_MAX:
                self._bundles.put(bundle)
                bundle = self._gathering[loop] = _Bundle(loop)
                loop.call_soon(self._send, bundle)
            bundle.jobs.append(job)
            bundle.futures.append(future)
        return future

    def close(self) -> None:
        """Do what was submitted, then end the threads and wait for them."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for bundle in self._gathering.values():
                    self._bundles.put(bundle)
                self._gathering.clear()
                for _ in self._threads:
                    self._bundles.put(None)
        for thread in self._threads:
            thread.join()

    def _check_process(self) -> None:
        # A fork copies this object but not its threads: nobody would ever answer.
        if os.getpid() != self._process:
            raise StoreClosed("the store was opened before this process forked; open it anew here")

    def _send(self, bundle: _Bundle[Job, Result]) -> None:
        with self._lock:
            if self._gathering.get(bundle.loop) is bundle:
                del self._gathering[bundle.loop]
                self._bundles.put(bundle)

    def _work(self, run: Callable[[list[Job]], Sequence[Result]]) -> None:
        wait_seconds = None if self._between is None else 0.0
        while True:
            try:
                bundle = self._bundles.get(timeout=wait_seconds)
                if bundle is None:
                    return
                _do(run, self._with_what_waits(bundle))
            except queue.Empty:
                pass
            if self._between is not None:
                wait_seconds = self._between()

    def _with_what_waits(self, first: _Bundle[Job, Result]) -> list[_Bundle[Job, Result]]:
        bundles = [first]
        # Several threads rather share what waits.
        while len(self._threads) == 1 and not self._bundles.empty():
            if sum(len(bundle.jobs) for bundle in bundles) >= _JOBS_AT_ONCE_MAX:
                break
            more = self._bundles.get()
            if more is None:
                # The end comes last: put it back for the next turn.
                self._bundles.put(None)
                break
            bundles.append(more)
        return bundles


def _do(run: Callable[[list[Job]], Sequence[Result]], bundles: list[_Bundle[Job, Result]]) -> None:
    """Run the jobs of several bundles together, and hand each loop its results at once."""
    jobs = bundles[0].jobs if len(bundles) == 1 else [job for each in bundles for job in each.jobs]
    try:
        results, error = run(jobs), None
    except Exception as failure:
        # Runners answer for each job. Should one fail as a whole, nobody is left waiting.
        results, error = (), failure
    start = 0
    for bundle in bundles:
        settle = partial(_settle, bundle.futures, results[start : start + len(bundle.jobs)], error)
        start += len(bundle.jobs)
        # A loop that was closed in the meantime has nobody left who waits.
        with suppress(RuntimeError):
            bundle.loop.call_soon_threadsafe(settle)


def _settle(
    futures: Sequence[asyncio.Future[Any]], results: Sequence[Any], error: Exception | None
) -> None:
    if error is not None:
        for future in futures:
            if not future.done():
                future.set_exception(_broken(error))
        return
    for future, result in zip(futures, results, strict=True):
        if not future.done():
            future.set_result(result)


def _broken(error: Exception) -> StoreUnavailable:
    broken = StoreUnavailable(f"the embedded engine failed: {error!r}")
    broken.__cause__ = error
    return broken
