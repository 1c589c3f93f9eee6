"""`JobThreads`: threads that run the jobs of coroutines in batches.

Handing a job to another thread costs more than a read or an insert. So all jobs that coroutines
submit in one turn of their event loop are handed over together, and so are the results.
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

__all__ = ["JobThreads"]

Job = TypeVar("Job")
Result = TypeVar("Result")


class _JobBatch(Generic[Job, Result]):
    """Jobs of one event loop, and the futures of their results."""

    __slots__ = ("futures", "jobs", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.jobs: list[Job] = []
        self.futures: list[asyncio.Future[Result]] = []


# Bounds the size of a commit, and how many other jobs a caller waits for.
_BATCH_JOBS_MAX = 1024


class JobThreads(Generic[Job, Result]):
    """Runs jobs in one thread for each runner. A runner takes a batch of jobs.

    With one runner, the jobs run in the order in which they were submitted. Those that are
    submitted while a batch runs become the next batch: this is group commit.
    """

    def __init__(
        self,
        name: str,
        runners: Sequence[Callable[[list[Job]], Sequence[Result]]],
        *,
        after_batch: Callable[[], float] | None = None,
    ) -> None:
        """Start the threads.

        ``after_batch`` is called after each batch. It returns after how many seconds at most it
        must be called again.
        """
        self._after_batch = after_batch
        self._batches: queue.SimpleQueue[_JobBatch[Job, Result] | None] = queue.SimpleQueue()
        self._collecting: dict[asyncio.AbstractEventLoop, _JobBatch[Job, Result]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._threads = [
            threading.Thread(
                target=self._run_thread, args=(run,), name=f"holdfast-{name}-{number}", daemon=True
            )
            for number, run in enumerate(runners)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> asyncio.Future[Result]:
        """Submit a job and return the future of its result.

        If the caller is cancelled, the job may still run.

        Raises:
            StoreClosed: the threads were closed, or belong to another process.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        with self._lock:
            if self._closed:
                raise StoreClosed
            batch = self._collecting.get(loop)
            if batch is None:
                self._check_process()
                batch = self._collecting[loop] = _JobBatch(loop)
                loop.call_soon(self._enqueue, batch)
            elif len(batch.jobs) == _BATCH_JOBS_MAX:
                self._batches.put(batch)
                batch = self._collecting[loop] = _JobBatch(loop)
                loop.call_soon(self._enqueue, batch)
            batch.jobs.append(job)
            batch.futures.append(future)
        return future

    def close(self) -> None:
        """Run the submitted jobs, then end the threads and wait for them."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for batch in self._collecting.values():
                    self._batches.put(batch)
                self._collecting.clear()
                for _ in self._threads:
                    self._batches.put(None)
        for thread in self._threads:
            thread.join()

    def _check_process(self) -> None:
        # A fork copies this object but not its threads: the job would never run.
        if os.getpid() != self._process:
            raise StoreClosed(
                "the store was opened before this process forked; open it again in this process"
            )

    def _enqueue(self, batch: _JobBatch[Job, Result]) -> None:
        with self._lock:
            if self._collecting.get(batch.loop) is batch:
                del self._collecting[batch.loop]
                self._batches.put(batch)

    def _run_thread(self, run: Callable[[list[Job]], Sequence[Result]]) -> None:
        wait_seconds = None if self._after_batch is None else 0.0
        while True:
            try:
                batch = self._batches.get(timeout=wait_seconds)
                if batch is None:
                    return
                _run_batches(run, self._collect_waiting(batch))
            except queue.Empty:
                pass
            if self._after_batch is not None:
                wait_seconds = self._after_batch()

    def _collect_waiting(self, first: _JobBatch[Job, Result]) -> list[_JobBatch[Job, Result]]:
        batches = [first]
        # Several threads share the waiting batches.
        while len(self._threads) == 1 and not self._batches.empty():
            if sum(len(batch.jobs) for batch in batches) >= _BATCH_JOBS_MAX:
                break
            more = self._batches.get()
            if more is None:
                # The end mark comes last: put it back for the next turn.
                self._batches.put(None)
                break
            batches.append(more)
        return batches


def _run_batches(
    run: Callable[[list[Job]], Sequence[Result]], batches: list[_JobBatch[Job, Result]]
) -> None:
    """Run the jobs of several batches together, and hand each loop its results at once."""
    jobs = batches[0].jobs if len(batches) == 1 else [job for each in batches for job in each.jobs]
    try:
        results, error = run(jobs), None
    except Exception as failure:
        # A runner returns a result for each job. If it fails as a whole, all jobs fail.
        results, error = (), failure
    start = 0
    for batch in batches:
        resolve = partial(
            _resolve_futures, batch.futures, results[start : start + len(batch.jobs)], error
        )
        start += len(batch.jobs)
        # If the loop was closed meanwhile, no coroutine waits any more.
        with suppress(RuntimeError):
            batch.loop.call_soon_threadsafe(resolve)


def _resolve_futures(
    futures: Sequence[asyncio.Future[Any]], results: Sequence[Any], error: Exception | None
) -> None:
    if error is not None:
        for future in futures:
            if not future.done():
                future.set_exception(_engine_failed_error(error))
        return
    for future, result in zip(futures, results, strict=True):
        if not future.done():
            future.set_result(result)


def _engine_failed_error(error: Exception) -> StoreUnavailable:
    broken = StoreUnavailable(f"the SQLite engine failed: {error!r}")
    broken.__cause__ = error
    return broken
