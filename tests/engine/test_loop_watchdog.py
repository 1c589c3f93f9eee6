"""A thread warns about code that blocks the event loop, before the worker loses its lease."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from holdfast import Graph, Holdfast
from holdfast.clock import SystemClock
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.worker.lease import Lease
from holdfast.engine.worker.loop_watchdog import LoopWatchdog
from tests.engine.support import House

DEADLINE_SECONDS = 60
LEASE_SECONDS = 4


class Alarm(logging.Handler):
    """Releases the blocked code when the warning comes, and tells the test when it has ended."""

    def __init__(self) -> None:
        super().__init__()
        # Before and after the block a slow machine may stall: such lines are not meant.
        self._armed = False
        self.released = threading.Event()
        self.ended = asyncio.Event()
        self.lines: list[str] = []
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if not self._armed or "the event loop" not in line:
            return
        if "blocks the event loop" in line:
            self.lines.append(line)
            self.released.set()
        elif self.released.is_set():
            self.lines.append(line)
            self._armed = False
            self._loop.call_soon_threadsafe(self.ended.set)

    def block(self) -> None:
        self._armed = True
        assert self.released.wait(DEADLINE_SECONDS)


@contextmanager
def alarmed() -> Iterator[Alarm]:
    alarm, log = Alarm(), logging.getLogger("holdfast.worker")
    log.addHandler(alarm)
    try:
        yield alarm
    finally:
        log.removeHandler(alarm)


def watchdogs() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "holdfast-watchdog"]


@pytest.mark.parametrize("how", ["node", "task", "branch"])
async def test_a_node_that_blocks_the_loop_is_named_while_it_does(how: str) -> None:
    graph = Graph("g", dict)

    with alarmed() as alarm:

        @graph.node
        async def begin(state: Any) -> None: ...

        @graph.node(writes=[])
        async def crunch(state: Any) -> None:
            async def inner() -> None:
                alarm.block()

            await (asyncio.create_task(inner()) if how == "task" else inner())

        @graph.node(writes=[])
        async def other(state: Any) -> None: ...

        @graph.node
        async def end(state: Any) -> None: ...

        if how == "branch":
            graph.fork(begin, [other, crunch], join=end)
        else:
            graph.route(begin, crunch)
            graph.route(crunch, other)
            graph.route(other, end)
        async with (
            Holdfast("sqlite:///:memory:") as hf,
            hf.worker([graph], lease=LEASE_SECONDS) as worker,
            asyncio.timeout(DEADLINE_SECONDS),
        ):
            await (await hf.start(graph, {}, id="doc-42")).result()
            await alarm.ended.wait()
            assert worker.counts["lost"] == 0  # it came before the lease was lost
    blocks, blocked = alarm.lines
    first, *stack = blocks.splitlines()
    told = "run doc-42 of tenant default: node 'crunch' block"
    assert first.startswith(f"{told}s the event loop at {__file__}:")
    assert "the lease ends in " in first
    assert "src/holdfast" not in blocks
    assert "asyncio/" not in "".join(stack)
    assert stack[-1].strip() != ""
    assert any("in inner" in line for line in stack)
    assert blocked.startswith(f"{told}ed the event loop for ")


async def test_a_task_of_one_of_several_nodes_is_shown_by_its_stack() -> None:
    graph = Graph("g", dict)
    both = asyncio.Barrier(2)

    with alarmed() as alarm:

        @graph.node
        async def work(state: Any) -> None:
            await both.wait()
            if state["blocks"]:

                async def inner() -> None:
                    alarm.block()

                await asyncio.create_task(inner())
            await both.wait()

        async with (
            Holdfast("sqlite:///:memory:") as hf,
            hf.worker([graph], lease=LEASE_SECONDS) as worker,
            asyncio.timeout(DEADLINE_SECONDS),
        ):
            runs = [await hf.start(graph, {"blocks": blocks}) for blocks in (True, False)]
            for run in runs:
                await run.result()
            await alarm.ended.wait()
            name = worker.id
    assert alarm.lines[0].startswith(f"code in worker {name} blocks the event loop at {__file__}:")
    assert alarm.lines[1].startswith(f"code in worker {name} blocked the event loop for ")


async def test_its_thread_ends_with_the_worker_and_with_the_loop() -> None:
    graph = Graph("g", dict)

    @graph.node
    async def work(state: Any) -> None: ...

    before = set(watchdogs())
    async with Holdfast("sqlite:///:memory:") as hf, hf.worker([graph]):
        (started,) = set(watchdogs()) - before
        assert started.daemon
    await asyncio.to_thread(started.join, DEADLINE_SECONDS)
    assert not started.is_alive()
    # A loop that is closed without the worker being stopped ends the thread, too.
    loop = asyncio.new_event_loop()
    watchdog = watchdog_of(lease_seconds=0.01)
    loop.call_soon(watchdog.start)
    loop.call_soon(loop.stop)
    await asyncio.to_thread(loop.run_forever)
    loop.close()
    for thread in set(watchdogs()) - before:
        await asyncio.to_thread(thread.join, DEADLINE_SECONDS)
        assert not thread.is_alive()


async def test_a_worker_with_a_clock_of_its_own_has_no_thread(house: House, hf: Holdfast) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def work(state: Any) -> None: ...

    before = watchdogs()
    async with house.worker(hf, graph):
        assert watchdogs() == before


def watchdog_of(lease_seconds: float) -> LoopWatchdog:
    lease = Lease(cast(Kernel, None), lease_seconds)
    return LoopWatchdog(SystemClock(), lease, lease_seconds=lease_seconds, list_in_nodes=lambda: [])


class Idle(asyncio.SelectorEventLoop):
    """A loop that is open and does not run: nothing blocks it."""

    def call_soon_threadsafe(self, *given: Any, **options: Any) -> Any: ...


def test_a_loop_that_does_not_run_is_not_blocked(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchdog, loop = watchdog_of(0.01), Idle()

    def has_turned(turned: threading.Event) -> bool:
        watchdog.stop()
        return False

    monkeypatch.setattr(watchdog, "_has_turned", has_turned)
    watchdog._watch(loop, threading.get_ident())
    loop.close()
    assert not caplog.records


class Slices(threading.Event):
    """An event that is set during one of the slices in which the watchdog waits for it."""

    def __init__(self, set_in: int) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._set_in = set_in

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        return len(self.waited) >= self._set_in


@pytest.mark.parametrize(
    ("lease_seconds", "allowed"), [(60, 5.0), (4, 1.0), (0.01, 0.1), (1e9, 5.0)]
)
def test_a_process_that_stood_still_is_not_taken_for_a_blocked_loop(
    lease_seconds: float, allowed: float
) -> None:
    """All that waited are late then: the loop gets a slice of the time after the others."""
    watchdog = watchdog_of(lease_seconds)
    late, blocked = Slices(set_in=4), Slices(set_in=5)
    assert watchdog._has_turned(late)
    assert not watchdog._has_turned(blocked)
    assert sum(blocked.waited) == pytest.approx(allowed)
