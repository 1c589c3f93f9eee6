"""What the tests of the engine share: a clock that is moved by hand, a store, and ways to wait."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

from holdfast import Graph, Holdfast, Run, Worker
from holdfast.clock import ManualClock, SeededIds
from holdfast.errors import RunNotFound
from holdfast.records.keys import RunKey, journal_range
from holdfast.storage import Meter, Store, Units
from holdfast.storage.sqlite import MEMORY, SqliteEngine

WAIT_SECONDS_MAX = 60
LONG_LEASE = {"lease": 100_000_000, "poll": 0.2}
"""A worker of these does not have to be kept alive while a test moves the clock on."""
NAP_SECONDS = 0.005
LOOPS_A_WORKER = 3
"""A worker that does nothing sleeps three times: until it scans, beats, and reaps."""
AGAIN_SECONDS = 0.1
"""How long the first pause is, at most, of somebody who asks the store again."""
RUN_PURPOSES = ("head", "journal", "inbox")
"""What a run costs; its worker, the scans and the settings are nobody's in particular."""


class StepClock(ManualClock):
    """A clock that is moved by hand, and that knows whether everybody waits for it."""

    def __init__(self) -> None:
        # Far ahead of the machine's own clock, by which DynamoDB Local deletes what has a ttl.
        super().__init__(4_000_000_000_000)
        self.ahead_seconds = 0.0
        """By how much the wall clock is wrong; seconds pass as they should."""
        self._came = asyncio.Event()
        self._napping = 0

    def now_ms(self) -> int:
        return super().now_ms() + round(self.ahead_seconds * 1000)

    @property
    def sleeping(self) -> int:
        return sum(not woken.done() for _, _, woken in self._sleepers) - self._napping

    async def sleep(self, seconds: float) -> None:
        # Whoever only gives others a moment to come along is not asleep.
        nap = 0 < seconds <= NAP_SECONDS
        self._napping += nap
        self._came.set()
        try:
            await super().sleep(seconds)
        finally:
            self._napping -= nap
            self._came.set()

    async def asleep(self, count: int) -> None:
        """Return when so many sleep."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while self.sleeping < count:
                self._came.clear()
                await self._came.wait()
                await self.sleep(0)  # the sleeper lies down only after it came


class House:
    """A store that several instances of Holdfast use, each as a process of its own would."""

    def __init__(self, url: str, clock: StepClock) -> None:
        self.url = url
        self.clock = clock
        self._seeds = itertools.count(1)
        self._opened: list[Holdfast] = []

    def open(self, *, url: str | None = None, **options: Any) -> Holdfast:
        """Return a further instance; ``url`` is how it reaches the store, if in another way."""
        ids = SeededIds(next(self._seeds), self.clock)
        opened = Holdfast(url or self.url, clock=self.clock, ids=ids, **options)
        self._opened.append(opened)
        return opened

    @staticmethod
    def worker(hf: Holdfast, *graphs: Graph, **options: Any) -> Worker:
        """Return a worker whose lease outlasts every test, unless another is given."""
        return hf.worker(graphs, **{**LONG_LEASE, **options})

    async def move(self, seconds: float, *workers: Worker) -> None:
        """Move the clock on, and return when the workers have nothing left to do."""
        self.clock.advance(seconds)
        await self.quiet(*workers)

    async def quiet(self, *workers: Worker) -> None:
        """Return when the workers have looked for work since, and have nothing to do."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while True:
                await self.clock.asleep(LOOPS_A_WORKER * len(workers))
                busy = {task for worker in workers for task in work_of(worker)}
                if not busy:
                    return
                await asyncio.wait(busy)

    async def patiently_quiet(self, *workers: Worker) -> None:
        """Do as `quiet` does; where all that is under way sleeps, move the clock on a little.

        A child that ends while its parent is being closed asks again in a moment, for one.
        """
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while True:
                await self.clock.asleep(LOOPS_A_WORKER * len(workers))
                busy = {task for worker in workers for task in work_of(worker)}
                if not busy:
                    return
                await self._less_busy(busy, LOOPS_A_WORKER * len(workers))

    async def _less_busy(self, busy: set[asyncio.Task[None]], loops: int) -> None:
        """Wait for the runs under way; where all of them sleep, wake them."""
        asleep = asyncio.ensure_future(self.clock.asleep(loops + len(busy)))
        try:
            await asyncio.wait({asleep, *busy}, return_when=asyncio.FIRST_COMPLETED)
            if asleep.done() and not any(task.done() for task in busy):
                self.clock.advance(AGAIN_SECONDS)
        finally:
            asleep.cancel()

    async def close(self) -> None:
        for opened in self._opened:
            await opened.close()


def work_of(worker: Worker) -> list[asyncio.Task[None]]:
    """Return the runs that a worker drives, what it is about to claim, and its turn to reap."""
    turn = worker._reaper._turn_task
    turns = [] if turn is None or turn.done() else [turn]
    return [*worker.drivers._tasks.values(), *worker.claims.tasks, *turns]


def kill(worker: Worker) -> None:
    """End a worker as kill -9 would: it releases nothing, and says goodbye to nobody."""
    assert worker._heartbeat_task is not None
    # Writes are tasks of their own, which outlive the node that asked for them; not the process.
    writes = [
        write
        for driver in worker.drivers._drivers.values()
        for write in driver.claimed.journal._writing
    ]
    for task in (worker._heartbeat_task, *worker._background_tasks, *work_of(worker), *writes):
        task.cancel()
    worker._heartbeat_task = None
    worker.stopped.set()


async def reached(hf: Holdfast, id: str, status: str, *, node: str | None = None) -> Run:
    """Return the run's row as soon as it says so, and nobody holds the run."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            run = await hf.run(id).get()
            if run.status == status and run.owner is None and node in (None, run.node):
                return run


def store_of(hf: Holdfast) -> Store:
    return hf._store


def tenant_key(id: str, tenant: str = "default") -> RunKey:
    return RunKey(tenant, id)


async def item_of_head(hf: Holdfast, id: str) -> dict[str, Any]:
    """Return a run's row as it is stored."""
    item = await store_of(hf).table.get(tenant_key(id).head)
    if item is None:
        raise RunNotFound(id)
    return item


async def journal_items(hf: Holdfast, id: str) -> list[dict[str, Any]]:
    """Return the records and signals of the run that has this id now."""
    head = await item_of_head(hf, id)
    key = tenant_key(id)
    table = store_of(hf).table
    return [item async for item in table.query_all(key.pk, journal_range(head["generation"]))]


async def blob_keys(hf: Holdfast) -> list[str]:
    page = await store_of(hf).blobs.list("")
    assert page.cursor is None
    return [entry.key for entry in page.entries]


def calls_of(hf: Holdfast, *purposes: str) -> dict[tuple[str, str], int]:
    """Return how often the store was asked, by purpose and operation."""
    return {
        (row.purpose, row.operation): row.calls
        for row in hf.meter.report().rows
        if row.purpose in purposes
    }


def units_of(hf: Holdfast, *purposes: str) -> Units:
    sums = hf.meter.report().by_purpose()
    return sum((sums[purpose] for purpose in purposes if purpose in sums), Units())


def run_units(*opened: Holdfast) -> float:
    """Return the write units of everything that was done for runs, indexes included."""
    return sum(units_of(hf, *RUN_PURPOSES).writes for hf in opened)


def store_without_blobs(clock: ManualClock) -> Store:
    """Return a store as an address of DynamoDB without a bucket gives it."""
    return Store(SqliteEngine(MEMORY, clock=clock), None, url="sqlite://:memory:", meter=Meter())


class Gate:
    """What nodes stand in front of until the test lets them pass."""

    def __init__(self) -> None:
        self.entered = 0
        self.inside = 0
        self.most = 0
        self._changed = asyncio.Condition()
        self._open = asyncio.Event()

    async def pass_through(self) -> None:
        await self._count(1)
        try:
            await self._open.wait()
        finally:
            self.inside -= 1

    async def waited_at(self, count: int = 1) -> None:
        """Return when that many stand in front of it."""
        async with asyncio.timeout(WAIT_SECONDS_MAX), self._changed:
            await self._changed.wait_for(lambda: self.inside >= count)

    def open(self) -> None:
        self._open.set()

    async def _count(self, more: int) -> None:
        self.entered += 1
        self.inside += more
        self.most = max(self.most, self.inside)
        async with self._changed:
            self._changed.notify_all()


def incompressible(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def chain(name: str, count: int, step: Callable[[int], dict[str, Any]], **nodes: Any) -> Graph:
    """Return a graph of so many nodes, one after the other, each of which returns its delta.

    ``nodes`` are functions to take the place of some: ``node4=review``.
    """
    graph = Graph(name, dict)
    functions = [
        graph.node(name=f"node{number}")(nodes.get(f"node{number}") or _returning(step, number))
        for number in range(count)
    ]
    if count > 1:
        graph.route(*functions)
    return graph


def _returning(step: Callable[[int], dict[str, Any]], number: int) -> Any:
    async def node(state: dict[str, Any]) -> dict[str, Any]:
        return step(number)

    return node
