"""Threads for jobs: bundles cross together, and no job is left waiting."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence

import pytest

from holdfast.errors import StoreClosed, StoreUnavailable
from holdfast.storage.sqlite.job_threads import JobThreads

SECONDS_MAX = 30


class Gate:
    """A runner that notes its bundles and can be held up."""

    def __init__(self) -> None:
        self.bundles: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.open.set()

    def run(self, jobs: list[int]) -> Sequence[int]:
        self.bundles.append(jobs)
        self.entered.release()
        assert self.open.wait(SECONDS_MAX)
        return [job * 2 for job in jobs]


async def test_what_is_submitted_in_one_turn_crosses_together() -> None:
    gate = Gate()
    job_threads = JobThreads("test", [gate.run])
    results = await asyncio.gather(*(job_threads.submit(n) for n in range(5)))
    assert results == [0, 2, 4, 6, 8]
    assert gate.bundles == [[0, 1, 2, 3, 4]]
    job_threads.close()


async def test_what_waits_becomes_the_next_bundle() -> None:
    gate = Gate()
    gate.open.clear()
    job_threads = JobThreads("test", [gate.run])
    first = job_threads.submit(1)
    await asyncio.to_thread(gate.entered.acquire, timeout=SECONDS_MAX)
    # Each in a turn of its own, while the first is under way.
    waiting: list[asyncio.Future[int]] = []
    for n in range(2, 5):
        waiting.append(job_threads.submit(n))
        await asyncio.to_thread(lambda: None)
    gate.open.set()
    assert await asyncio.gather(first, *waiting) == [2, 4, 6, 8]
    assert gate.bundles == [[1], [2, 3, 4]]
    job_threads.close()


async def test_a_bundle_is_bounded() -> None:
    gate = Gate()
    job_threads = JobThreads("test", [gate.run])
    await asyncio.gather(*(job_threads.submit(n) for n in range(2500)))
    assert sum(map(len, gate.bundles)) == 2500
    assert max(map(len, gate.bundles)) <= 2048
    job_threads.close()


async def test_closing_does_what_was_submitted() -> None:
    gate = Gate()
    job_threads = JobThreads("test", [gate.run])
    futures = [job_threads.submit(n) for n in range(3)]
    # Not even sent to the thread yet.
    await asyncio.to_thread(job_threads.close)
    assert await asyncio.gather(*futures) == [0, 2, 4]
    with pytest.raises(StoreClosed):
        job_threads.submit(1)
    job_threads.close()


async def test_a_runner_that_fails_leaves_nobody_waiting() -> None:
    calls: list[list[int]] = []

    def fail_once(jobs: list[int]) -> Sequence[int]:
        calls.append(jobs)
        if len(calls) == 1:
            raise ZeroDivisionError
        return jobs

    job_threads = JobThreads("test", [fail_once])
    outcomes = await asyncio.gather(
        *(job_threads.submit(n) for n in range(3)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert await job_threads.submit(7) == 7
    job_threads.close()


async def test_a_cancelled_caller_does_not_disturb_the_others() -> None:
    gate = Gate()
    gate.open.clear()
    job_threads = JobThreads("test", [gate.run])
    first, second = job_threads.submit(1), job_threads.submit(2)
    await asyncio.to_thread(gate.entered.acquire, timeout=SECONDS_MAX)
    first.cancel()
    gate.open.set()
    assert await second == 4
    job_threads.close()


def test_two_event_loops_in_two_threads() -> None:
    gate = Gate()
    job_threads = JobThreads("test", [gate.run])
    results: dict[int, list[int]] = {}

    async def work(start: int) -> list[int]:
        return [await job_threads.submit(n) for n in range(start, start + 50)]

    def thread(start: int) -> None:
        results[start] = asyncio.run(work(start))

    threads = [threading.Thread(target=thread, args=(start,)) for start in (0, 1000)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(SECONDS_MAX)
    assert results == {start: [2 * n for n in range(start, start + 50)] for start in (0, 1000)}
    job_threads.close()


def test_what_comes_between_is_called_again_and_again() -> None:
    called = threading.Semaphore(0)

    def between() -> float:
        called.release()
        return 0.001

    job_threads = JobThreads("test", [lambda jobs: jobs], after_batch=between)
    assert all(called.acquire(timeout=SECONDS_MAX) for _ in range(3))
    job_threads.close()


def test_a_fork_is_told_to_open_the_store_anew() -> None:
    job_threads = JobThreads("test", [lambda jobs: jobs])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:

        async def use() -> None:
            try:
                await asyncio.wait_for(job_threads.submit(1), 5)
            except StoreClosed as error:
                os.write(write, str(error).encode())

        try:
            asyncio.run(use())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        assert "forked" in told.read()
    job_threads.close()
