"""What callers see of a run that no worker has claimed, and why a result is late."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Graph, Holdfast, RunFilter, signal
from holdfast.errors import InvalidQuery
from holdfast.model.durations import hours
from tests.engine.asking import graph_of
from tests.engine.support import Gate, House, reached


async def nothing(state: Any) -> Any: ...


async def ids(hf: Holdfast, **conditions: Any) -> list[str]:
    return sorted(run.id for run in (await hf.list(RunFilter(**conditions))).runs)


def waiting(gate: Gate) -> Graph:
    async def node(state: Any, ctx: Any) -> Any:
        if state.get("wait"):
            await ctx.wait(signal("go"))
        else:
            await gate.pass_through()

    return graph_of(node)


async def test_each_status_is_listed_exactly(either: House) -> None:
    graph = waiting(gate := Gate())
    hf, client = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        await client.start(graph, id="held")
        await client.start(graph, {"wait": True}, id="asking")
        await client.start(graph, id="pooled", pool="gpu")
        await client.start(graph, id="later", start_at=_in(either, 3_600))
        either.clock.advance(1)
        await gate.waited_at()
        await reached(client, "asking", "waiting")
        statuses = {id: (await client.run(id).get()).status for id in ("held", "asking", "pooled")}
        assert statuses == {"held": "running", "asking": "waiting", "pooled": "ready"}
        assert await ids(client, status="ready") == ["pooled"]
        assert await ids(client, status="running") == ["held"]
        assert await ids(client, status="waiting") == ["asking", "later"]
        assert await ids(client, status=["ready", "running"]) == ["held", "pooled"]
        listed = {run.id: (run.status, run.reason) for run in (await client.list()).runs}
        assert listed["asking"] == ("waiting", "signal")
        assert listed["later"] == ("waiting", "scheduled")
        assert listed["held"] == ("running", None)
        assert await ids(client, reason="scheduled") == ["later"]
        gate.open()
        await either.quiet(worker)
    either.clock.advance(3_601)
    row = await client.run("later").get()
    assert (row.status, row.reason) == ("ready", None)
    assert "later" in await ids(client, status="ready")


def _in(house: House, seconds: float) -> datetime:
    return datetime.fromtimestamp(house.clock.now_ms() / 1000 + seconds, UTC)


async def test_pages_of_a_filter_are_full_and_miss_nothing(house: House, hf: Holdfast) -> None:
    graph = graph_of(nothing)
    for number in range(9):
        later = _in(house, 60) if number % 3 == 0 else None
        await hf.start(graph, id=f"doc-{number}", start_at=later)
        house.clock.advance(0.001)
    found: list[str] = []
    cursor = None
    while True:
        page = await hf.list(RunFilter(status="ready"), limit=2, cursor=cursor)
        found += [run.id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
        assert len(page.runs) == 2
    assert found == [f"doc-{number}" for number in (8, 7, 5, 4, 2, 1)]


async def test_a_run_that_began_is_not_queued_any_more(house: House) -> None:
    gates = {"first": Gate(), "second": Gate()}

    async def node(state: Any, ctx: Any) -> Any:
        await gates[ctx.run_id].pass_through()

    graph, hf, client = graph_of(node), house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        await client.start(graph, id="first", session="s")
        house.clock.advance(1)
        await gates["first"].waited_at()
        second = await client.start(graph, id="second", session="s")
        assert (await second.get()).reason == "queued"
        with pytest.raises(TimeoutError, match="it waits for earlier runs of session 's'"):
            await second.result(timeout=0.01)
        gates["first"].open()
        await gates["second"].waited_at()
        row = await second.get()
        assert (row.status, row.reason) == ("running", None)
        (entry,) = await client.session_queue("s")
        assert (entry.status, entry.reason) == ("running", None)
        gates["second"].open()
        await house.quiet(worker)


async def test_a_late_result_says_that_no_worker_claimed_the_run(
    house: House, hf: Holdfast
) -> None:
    graph = graph_of(nothing, "triage")
    run = await hf.start(graph, pool="gpu")
    question = r"is a worker with graph 'triage' \(pool 'gpu'\) running\?"
    with pytest.raises(TimeoutError, match=rf"no worker has claimed it yet: {question}"):
        await run.result(timeout=0.01)
    house.clock.advance(90)
    with pytest.raises(TimeoutError, match=rf"no worker claimed the run for 1m30s: {question}"):
        await run.result(timeout=0.01)


async def test_a_late_result_says_where_the_run_stands(house: House) -> None:
    graph = waiting(gate := Gate())
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        held = await hf.start(graph)
        await gate.waited_at()
        for run in (held, client.run(held.id)):
            with pytest.raises(TimeoutError, match=rf"it is running.* on worker {worker.id}"):
                await run.result(timeout=0.01)
        with pytest.raises(TimeoutError, match="at node 'node' on worker"):
            await held.result(timeout=0.01)
        gate.open()
        asking = await hf.start(graph, {"wait": True})
        await house.quiet(worker)
        with pytest.raises(TimeoutError, match="it waits for the signal go"):
            await asking.result(timeout=0.01)
        later = await hf.start(graph, start_at=_in(house, 60))
        with pytest.raises(TimeoutError, match="it starts at 20"):
            await later.result(timeout=0.01)


async def test_a_timer_that_no_worker_looks_at_is_told(house: House) -> None:
    async def sleeps(state: Any, ctx: Any) -> Any:
        await ctx.sleep(hours(1))

    graph, hf = graph_of(sleeps), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph)
        await house.quiet(worker)
    house.clock.advance(3_700)
    with pytest.raises(TimeoutError, match="no worker claimed the run for 1m40s: is a worker"):
        await run.result(timeout=0.01)


@pytest.mark.parametrize("reason", ["", "asleep", 5, ["signal"]], ids=repr)
def test_a_wrong_reason_is_refused(reason: Any) -> None:
    with pytest.raises(
        InvalidQuery, match="reason must be one of signal, review, timer"
    ) as refused:
        RunFilter(reason=reason)
    assert refused.value.field == "reason"


async def test_a_ready_run_is_cancelled_by_its_status(hf: Holdfast) -> None:
    run = await hf.start(graph_of(nothing))
    done = [progress async for progress in hf.cancel_all(RunFilter(status="ready"))]
    assert done[-1].done == 1
    assert (await run.get()).status == "cancelled"
