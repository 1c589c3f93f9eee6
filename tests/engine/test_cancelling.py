"""Cancelling: at once in this process, at the next write elsewhere, and never after an end."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Graph, Holdfast, Retry, signal
from holdfast.engine.execution import run_exit
from holdfast.errors import (
    InvalidItem,
    InvalidRequest,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunNotFound,
)
from holdfast.storage import Update
from holdfast.storage.operations import Operation, WriteItem
from tests.engine.staging import staged
from tests.engine.support import Gate, House, chain, journal_items


async def waits(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("decision"))


WAITING = chain("waiting", 1, lambda number: {}, node0=waits)


async def test_a_waiting_run_is_cancelled(either: House) -> None:
    hf, client = either.open(), either.open()
    async with either.worker(hf, WAITING) as worker:
        run = await hf.start(WAITING, id="doc-42")
        await either.quiet(worker)
        await client.run("doc-42").cancel("the customer called")
        row = await run.get()
        assert (row.status, row.owner, row.due_at) == ("cancelled", None, None)
        assert row.failure is not None
        assert row.failure.message == "the customer called"
        with pytest.raises(RunCancelled, match="the customer called"):
            await run.result(timeout=60)
        await either.move(1, worker)
        assert worker.counts["claimed"] == 0
        with pytest.raises(RunEnded) as refused:
            await run.signal("decision")
        assert refused.value.status == "cancelled"
    assert [entry.kind for entry in (await run.history()).entries] == ["cancelled"]


async def test_a_run_that_nobody_holds_is_cancelled_without_a_worker(house: House) -> None:
    hf = house.open()
    ready = await hf.start(WAITING, id="ready")
    at = datetime.fromtimestamp(house.clock.now_ms() / 1000, UTC) + timedelta(hours=1)
    scheduled = await hf.start(WAITING, id="scheduled", start_at=at)
    for run in (ready, scheduled):
        await run.cancel()
        assert (await run.get()).status == "cancelled"
    async with house.worker(hf, WAITING) as worker:
        await house.move(3700, worker)
        assert worker.counts["claimed"] == 0


async def test_a_node_of_this_process_is_cancelled_at_once(house: House, hf: Holdfast) -> None:
    gate, cancelled = Gate(), []

    async def blocked(state: Any) -> Any:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    graph = chain("g", 2, lambda number: {}, node0=blocked)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result(timeout=60)
        await house.quiet(worker)
    assert cancelled == [True]
    row = await run.get()
    assert (row.status, row.owner) == ("cancelled", None)
    assert [entry.kind for entry in (await run.history()).entries] == ["cancelled"]


async def test_a_node_that_does_not_mind_being_cancelled_changes_nothing(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()

    async def stubborn(state: Any) -> Any:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            return {"stubborn": True}

    graph = chain("g", 2, lambda number: {}, node0=stubborn)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        await run.cancel("enough")
        await house.quiet(worker)
        with pytest.raises(RunCancelled):
            await run.result(timeout=60)
    assert [entry.kind for entry in (await run.history()).entries] == ["cancelled"]


async def test_a_plain_node_that_goes_on_in_its_thread_changes_nothing(
    house: House, hf: Holdfast
) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def plain(state: Any) -> Any:
        began.set()
        goes_on.wait(60)
        return {"plain": True}

    graph = chain("g", 2, lambda number: {}, node0=plain)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await asyncio.to_thread(began.wait, 60)
        await run.cancel("enough")
        with pytest.raises(RunCancelled):
            await run.result(timeout=60)
        goes_on.set()
        await house.quiet(worker)
    assert [entry.kind for entry in (await run.history()).entries] == ["cancelled"]


async def test_a_node_of_another_process_ends_at_its_next_write(either: House) -> None:
    gate = Gate()
    ran = []

    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    async def after(state: Any) -> Any:
        ran.append("after")

    graph = chain("g", 2, lambda number: {}, node0=blocked, node1=after)
    hf, client = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        await client.run("doc-42").cancel("from afar")
        row = await client.run("doc-42").get()
        assert (row.status, row.owner) == ("running", worker.id)  # its owner closes it
        gate.open()
        with pytest.raises(RunCancelled, match="from afar"):
            await run.result(timeout=60)
        await either.quiet(worker)
    assert ran == []
    row = await client.run("doc-42").get()
    assert (row.status, row.owner) == ("cancelled", None)


async def test_to_cancel_twice_is_to_cancel_once(either: House) -> None:
    gate = Gate()

    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    graph = chain("g", 2, lambda number: {}, node0=blocked)
    hf, client = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        reasons = [client.run("doc-42").cancel(f"reason {n}") for n in range(3)]
        await asyncio.gather(*reasons)
        await client.run("doc-42").cancel("again")
        await hf.run("doc-42").cancel("and again")
        await either.quiet(worker)
        await client.run("doc-42").cancel("for good")
    assert [entry.kind for entry in (await run.history()).entries] == ["cancelled"]
    assert (await run.get()).status == "cancelled"


async def test_a_run_that_has_ended_cannot_be_cancelled(house: House, hf: Holdfast) -> None:
    async def broken(state: Any) -> Any:
        raise ValueError

    graph = chain("g", 1, lambda number: {})
    failing = chain("failing", 1, lambda number: {}, node0=broken)
    async with house.worker(hf, graph, failing):
        finished = await hf.start(graph, id="finished")
        failed = await hf.start(failing, id="failed")
        await finished.result(timeout=60)
        with pytest.raises(RunFailed):
            await failed.result(timeout=60)
    for run in (finished, failed):
        before = await run.get(), await journal_items(hf, run.id)
        with pytest.raises(RunEnded) as refused:
            await run.cancel("late")
        assert refused.value.status == run.id
        assert (await run.get(), await journal_items(hf, run.id)) == before
    with pytest.raises(RunNotFound):
        await hf.run("nothing").cancel()
    with pytest.raises(InvalidRequest):
        await hf.run("finished").cancel(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["timer", "retry"])
async def test_a_run_that_sleeps_is_cancelled(house: House, hf: Holdfast, kind: str) -> None:
    graph = Graph("g", dict)

    @graph.node(retry=Retry(attempts=2, backoff=600))
    async def node(state: Any, ctx: Any) -> Any:
        if kind == "retry":
            raise OSError
        await ctx.sleep(600)

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert (await run.get()).reason == kind
        await run.cancel("enough")
        await house.move(1000, worker)
        assert (await run.get()).status == "cancelled"


async def test_a_run_that_naps_in_place_is_cancelled_at_once(house: House, hf: Holdfast) -> None:
    async def naps(state: Any, ctx: Any) -> Any:
        await ctx.sleep(1)

    graph = chain("g", 1, lambda number: {}, node0=naps)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.clock.asleep(4)
        await run.cancel("enough")
        await house.quiet(worker)
        assert (await run.get()).status == "cancelled"


# --- runs that cannot be resumed ------------------------------------------------------------------


def other_code() -> Graph:
    """Return a graph that lacks the node at which the run stands."""
    graph = Graph("waiting", dict, version=2)

    @graph.node
    async def other(state: Any) -> Any: ...

    return graph


def is_quarantine(operation: Operation) -> bool:
    """Return whether an operation lets a row say that its run is quarantined."""
    write = operation.write if isinstance(operation, WriteItem) else None
    return isinstance(write, Update) and write.set.get("status") == "quarantined"


def is_cancelled_row(operation: Operation) -> bool:
    """Return whether an operation lets a row say that its run is to be cancelled."""
    write = operation.write if isinstance(operation, WriteItem) else None
    return isinstance(write, Update) and "cancel" in write.set


async def woken(house: House, hf: Holdfast) -> None:
    """Leave a run at a node that it is to go on with."""
    async with house.worker(hf, WAITING) as worker:
        run = await hf.start(WAITING, id="doc-42")
        await house.quiet(worker)
    await run.signal("decision", "yes")


@pytest.mark.parametrize("cut_off", [False, True])
async def test_a_run_that_is_to_be_cancelled_is_not_quarantined_instead(
    house: House, cut_off: bool
) -> None:
    hf, (client, between) = house.open(), staged(house)
    await woken(house, hf)
    losing, stage = staged(house)
    quarantine = stage.hold(is_quarantine)
    row_written = between.hold(is_cancelled_row, side="after")
    async with house.worker(losing, other_code(), resumes_max=1) as worker:
        await quarantine.reached()
        cancelling = asyncio.ensure_future(client.run("doc-42").cancel("the customer called"))
        await row_written.reached()
        if cut_off:
            cancelling.cancel()  # a worker carries out what stands in the row
        else:
            row_written.release()
            await cancelling
        quarantine.release()
        await house.quiet(worker)
        assert worker.counts["quarantined"] == 0
    row = await hf.run("doc-42").get()
    assert row.status == "cancelled"
    assert row.failure is not None
    assert row.failure.message == "the customer called"


async def test_a_run_that_is_to_be_cancelled_does_not_fall_into_quarantine(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = house.open()
    await woken(house, hf)
    losing, stage = staged(house)
    quarantine = stage.hold(is_quarantine)

    ended = run_exit.owner_writes.end_write

    def refused(*arguments: Any, **values: Any) -> Update:
        if values["status"] == "quarantined":
            raise InvalidItem("node must not be empty")
        return ended(*arguments, **values)

    monkeypatch.setattr(run_exit.owner_writes, "end_write", refused)
    async with house.worker(losing, other_code(), resumes_max=1) as worker:
        await quarantine.reached()
        await hf.run("doc-42").cancel()
        quarantine.release()
        await house.quiet(worker)
        await house.move(1, worker)
        assert worker.counts["quarantined"] == 0
    assert (await hf.run("doc-42").get()).status == "cancelled"
