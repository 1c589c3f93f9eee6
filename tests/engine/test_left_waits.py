"""A node is left while one of its waits reads a payload: the next visit can take the signal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, Holdfast, Retry, signal
from holdfast.engine.execution import visit_waits
from holdfast.engine.execution.visit import VisitClosed
from holdfast.storage.blobs import BlobRef, Blobs
from tests.engine.families import PARENT, starting
from tests.engine.support import LOOPS_A_WORKER, WAIT_SECONDS_MAX, Gate, House, incompressible

LARGE, LARGER = incompressible(7, 50_000), incompressible(8, 60_000)
AT_ONCE = Retry(attempts=2, backoff=0)
FILLS = Graph("fills", dict)


@FILLS.node
async def fill(state: Any) -> Any:
    return {"part": LARGE}


class Read:
    """The read of a payload from a blob, which does not end until the test lets it."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

    async def reached(self) -> None:
        """Return when it has begun; nodes await ``began``, as a wait must not have a timeout."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await self.began.wait()


class Reads:
    """The reads of payloads from blobs; a test holds some of them."""

    def __init__(self) -> None:
        self._held: list[Read] = []

    def hold(self) -> Read:
        """Hold the next read."""
        self._held.append(Read())
        return self._held[-1]

    async def pass_through(self, key: str) -> None:
        if self._held and "/signal-" in key:
            read = self._held.pop(0)
            read.began.set()
            await read.may_end.wait()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    reads, get = Reads(), Blobs.get

    async def held(self: Blobs, ref: BlobRef) -> bytes:
        await reads.pass_through(ref.key)
        return await get(self, ref)

    monkeypatch.setattr(Blobs, "get", held)
    return reads


def size_of(answer: Any) -> int:
    """Return how much a signal or a child brought."""
    return len(answer["part"] if isinstance(answer, dict) else answer)


@pytest.mark.parametrize("awaits", ["a signal", "a child"])
async def test_an_attempt_that_fails_while_a_payload_is_read(
    house: House, hf: Holdfast, reads: Reads, awaits: str
) -> None:
    hold = reads.hold()

    async def node(state: Any, ctx: Any) -> Any:
        async def fails() -> None:
            if ctx.attempt == 1:
                await hold.began.wait()
                raise ValueError("once")

        if awaits == "a signal":
            answer = ctx.wait(signal("large"))
        else:
            answer = (await ctx.start(FILLS, {}, id="child")).result()
        got, _ = await asyncio.gather(answer, fails())
        return {"size": size_of(got), "attempt": ctx.attempt}

    graph = starting(node, retry=AT_ONCE)
    async with house.worker(hf, graph, FILLS) as worker:
        run = await hf.start(graph, id=PARENT)
        if awaits == "a signal":
            await run.signal("large", LARGE)
        await hold.reached()
        await house.quiet(worker)
        row = await run.get()
        hold.may_end.set()
    assert row.status == "finished", row.failure
    assert await run.result(timeout=60) == {"size": len(LARGE), "attempt": 2}


@pytest.mark.parametrize("awaits", ["a signal", "a child"])
async def test_a_pause_waits_for_a_payload_that_is_read(
    house: House, hf: Holdfast, reads: Reads, awaits: str
) -> None:
    """Otherwise every visit would read it, until no other wait of the node is left."""

    async def node(state: Any, ctx: Any) -> Any:
        if awaits == "a signal":
            large = ctx.wait(signal("large"))
        else:
            child = await ctx.start(FILLS, {}, id="child")
            await ctx.wait(signal("go on"))
            large = child.result()
        got, small = await asyncio.gather(large, ctx.wait(signal("small")))
        return {"size": size_of(got), "small": small}

    graph = starting(node)
    async with house.worker(hf, graph, FILLS) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        read = reads.hold()
        if awaits == "a signal":
            await run.signal("large", LARGE)
        else:
            await run.signal("go on")
        await read.reached()
        await house.clock.asleep(LOOPS_A_WORKER)
        assert (await run.get()).status == "running"
        read.may_end.set()
        await house.quiet(worker)
        assert [wait.signal for wait in (await run.get()).waits] == ["small"]
        again = reads.hold()
        await run.signal("small", 1)
        await house.quiet(worker)
        assert not again.began.is_set()
    assert await run.result(timeout=60) == {"size": len(LARGE), "small": 1}


@pytest.mark.parametrize("ends", ["read", "cancelled"])
async def test_a_wait_that_ends_after_its_visit_does_not_free_the_signal(
    house: House, hf: Holdfast, reads: Reads, ends: str
) -> None:
    """The next attempt reads the same payload: no second wait may take the signal meanwhile."""
    first, second, gate = reads.hold(), reads.hold(), Gate()
    left: list[asyncio.Task[Any]] = []

    async def node(state: Any, ctx: Any) -> Any:
        async def another() -> Any:
            await gate.pass_through()
            return await ctx.wait(signal("large"))

        one = asyncio.create_task(ctx.wait(signal("large")))
        if ctx.attempt == 1:
            left.append(one)
            await first.began.wait()
            raise ValueError("once")
        return {"sizes": [len(got) for got in await asyncio.gather(one, another())]}

    graph = starting(node, retry=AT_ONCE)
    run = await hf.start(graph, id=PARENT)
    await run.signal("large", LARGE)
    async with house.worker(hf, graph) as worker:
        await second.reached()
        if ends == "read":
            first.may_end.set()
        else:
            left[0].cancel()
        await asyncio.wait(left)
        assert left[0].cancelled() or isinstance(left[0].exception(), VisitClosed)
        gate.open()
        await house.clock.asleep(LOOPS_A_WORKER)
        second.may_end.set()
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"  # only one of the waits has its signal
        await run.signal("large", LARGER)
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"sizes": [len(LARGE), len(LARGER)]}


async def test_a_wait_that_is_cancelled_while_its_payload_is_checked(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, check = asyncio.Event(), visit_waits.find_payload_misfit

    async def held(*arguments: Any) -> str | None:
        if not checked.is_set():
            checked.set()
            await asyncio.Event().wait()
        return await check(*arguments)

    async def node(state: Any, ctx: Any) -> Any:
        one = asyncio.create_task(ctx.wait(signal("n", int)))
        await checked.wait()
        one.cancel()
        await asyncio.wait({one})
        return {"got": await ctx.wait(signal("n", int))}

    monkeypatch.setattr(visit_waits, "find_payload_misfit", held)
    graph = starting(node)
    run = await hf.start(graph, id=PARENT)
    await run.signal("n", 42)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert (await run.get()).status == "finished"
    assert await run.result(timeout=60) == {"got": 42}
