"""`RunHandle.until`: a caller waits for a status of a run, and polls only for other processes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from holdfast import Holdfast, Run, RunHandle, signal
from holdfast.engine.client import awaiting
from holdfast.errors import (
    InvalidRequest,
    NodeError,
    RunCancelled,
    RunEnded,
    RunExpired,
    RunFailed,
    RunNotFound,
)
from tests.engine.support import WAIT_SECONDS_MAX, Gate, House, calls_of, chain

NEVER_SECONDS = 10_000


async def waits(state: Any, ctx: Any) -> Any:
    return {"decision": await ctx.wait(signal("decision"))}


ASKING = chain("asking", 3, lambda number: {}, node1=waits)


async def until(run: RunHandle, *statuses: Any, seconds: float = WAIT_SECONDS_MAX) -> Run:
    return await run.until(*statuses, timeout=seconds)


async def test_a_pause_is_durable_and_can_be_answered_when_it_returns(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaiting, "_POLL_FIRST_SECONDS", NEVER_SECONDS)  # it is woken
    async with house.worker(hf, ASKING):
        run = await hf.start(ASKING, id="doc-42")
        row = await until(run, "waiting")
        assert (row.status, row.reason, row.owner) == ("waiting", "signal", None)
        assert await run.get() == row
        assert [wait.signal for wait in (await run.waits()).waits] == ["decision"]
        assert await until(run, "failed", "waiting") == row  # at once
        assert (await run.signal("decision", "yes")).answers_wait
        assert (await until(run, "waiting", "finished")).status == "finished"


async def test_a_caller_in_another_process_polls(house: House, hf: Holdfast) -> None:
    other = house.open()
    async with house.worker(hf, ASKING):
        await hf.start(ASKING, id="doc-42")
        assert (await until(other.run("doc-42"), "waiting")).status == "waiting"
        await hf.run("doc-42").signal("decision", "yes")
        assert (await until(other.run("doc-42"), "finished")).status == "finished"


async def test_nodes_of_this_process_do_not_make_it_read(house: House, hf: Holdfast) -> None:
    graph = chain("long", 50, lambda number: {}, node49=waits)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        before = calls_of(hf, "head")
        await until(run, "waiting")
        reads = {name: count for name, count in calls_of(hf, "head").items() if "get" in name[1]}
        known = {name: count for name, count in before.items() if "get" in name[1]}
        assert sum(reads.values()) - sum(known.values()) <= 5


async def test_a_run_that_runs_is_running(house: House, hf: Holdfast) -> None:
    gate = Gate()

    async def slow(state: Any) -> Any:
        await gate.pass_through()
        return {}

    graph = chain("slow", 1, lambda number: {}, node0=slow)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        assert (await until(run, "running")).status == "running"
        with pytest.raises(TimeoutError, match="it is running at node 'node0' on worker"):
            await until(run, "waiting", seconds=0.001)
        gate.open()


async def test_a_run_that_ended_otherwise_raises_what_became_of_it(
    house: House, hf: Holdfast
) -> None:
    async def breaks(state: Any) -> Any:
        raise NodeError("no such document")

    graph, broken = chain("short", 1, lambda number: {}), chain("broken", 1, dict, node0=breaks)
    async with house.worker(hf, graph, broken, ASKING) as worker:
        finished = await hf.start(graph, id="finished")
        with pytest.raises(RunEnded, match="is finished; it will not be 'waiting' or 'failed'"):
            await until(finished, "waiting", "failed")
        failed = await hf.start(broken, id="failed")
        with pytest.raises(RunFailed, match=r"failed at node 'node0'.*no such document"):
            await until(failed, "finished")
        assert (await until(failed, "failed")).failure is not None
        cancelled = await hf.start(ASKING, id="cancelled")
        await until(cancelled, "waiting")
        waiting = asyncio.ensure_future(until(cancelled, "finished"))
        await asyncio.wait({waiting}, timeout=0)
        await cancelled.cancel("ordered twice")
        with pytest.raises(RunCancelled, match="was cancelled: ordered twice"):
            await waiting
        expired = await hf.start(ASKING, id="expired", expires=60)
        await until(expired, "waiting")
        await house.quiet(worker)  # the clock brings its next poll
        house.clock.advance(100)
        with pytest.raises(RunExpired, match="'expired' has expired"):
            await until(expired, "finished")


async def test_a_timeout_says_what_the_run_does(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, ASKING):
        run = await hf.start(ASKING, id="doc-42")
        await until(run, "waiting")
        told = "was not 'finished' within 1ms: it waits for the signal decision"
        with pytest.raises(TimeoutError, match=re.escape(told)):
            await until(run, "finished", seconds=0.001)
        assert (await until(run, "waiting", seconds=0)).status == "waiting"


async def twice(state: Any, ctx: Any) -> None:
    await ctx.sleep(NEVER_SECONDS)
    await ctx.wait(signal("decision"))


async def test_only_a_pause_for_the_reason_counts(house: House, hf: Holdfast) -> None:
    graph = chain("twice", 1, lambda number: {}, node0=twice)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        assert (await until(run, "waiting")).reason == "timer"
        waited = asyncio.ensure_future(run.until("waiting", reason="signal"))
        with pytest.raises(
            TimeoutError, match=r"'doc-42' was not 'waiting' for signal within 1ms: "
        ):
            await run.until("waiting", reason="signal", timeout="1ms")
        await house.quiet(worker)  # the clock brings its next poll
        house.clock.advance(NEVER_SECONDS)
        assert (await waited).reason == "signal"
        await run.signal("decision")
        ended = await run.until("waiting", "finished", reason="budget", timeout=WAIT_SECONDS_MAX)
        assert ended.status == "finished"
    with pytest.raises(InvalidRequest, match=r"reason must be one of signal, .* got 'hunger'"):
        await run.until("waiting", reason="hunger")
    with pytest.raises(InvalidRequest, match="reason needs 'waiting' among the statuses"):
        await run.until("finished", reason="signal")


@pytest.mark.parametrize(
    ("statuses", "got"), [((), "no status"), (("done",), "'done'"), ((["waiting"],), "['waiting']")]
)
async def test_an_unknown_status_is_refused(
    hf: Holdfast, statuses: tuple[Any, ...], got: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await until(hf.run("doc-42"), *statuses)
    told = str(refused.value)
    assert told.startswith("statuses must be one or more of ready, running, waiting, ")
    assert told.endswith(f"got {got}")
    with pytest.raises(RunNotFound):
        await until(hf.run("doc-42"), "waiting")
