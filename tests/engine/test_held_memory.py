"""What a worker holds in memory of a run that it keeps for long."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from holdfast import END, Graph, Holdfast, PayloadLimits, signal
from holdfast.engine.execution import branches
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.journal_session import JournalSession
from holdfast.engine.kernel.offload import LARGE_BYTES, ThreadOffload
from holdfast.errors import CallFailed, RunFailed
from tests.engine.branching import each, nothing
from tests.engine.support import Gate, House

MB = 1024 * 1024
SIGNALS = 16


async def test_payloads_that_were_taken_are_let_go(house: House) -> None:
    """Their records compress to almost nothing, so no snapshot comes that would let go of them."""
    graph, held = Graph("g", dict), list[int]()

    @graph.node
    async def take(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("msg"))
        held.append(tracemalloc.get_traced_memory()[0])
        return {"taken": state.get("taken", 0) + 1}

    graph.choose(take, lambda state: take if state["taken"] < SIGNALS else END, to=[take, END])
    hf = house.open()
    run = await hf.start(graph, id="doc-42")
    for _ in range(SIGNALS - 1):
        await run.signal("msg", "a" * (MB - 16))
    await run.signal("msg", "last")
    tracemalloc.start()
    try:
        async with hf.worker([graph]):
            assert await run.result() == {"taken": SIGNALS}
    finally:
        tracemalloc.stop()
    assert len(held) == SIGNALS
    assert held[-1] < 6 * MB


# --- a run holds no more than it may --------------------------------------------------------------

KB = 1024
TIGHT = PayloadLimits(
    input_bytes_max=32 * KB,
    signal_bytes_max=16 * KB,
    state_bytes_max=32 * KB,  # so a run holds 64 KB at the most, and a 16th of the state
    answer_bytes_max=32 * KB,
    arguments_bytes_max=8 * KB,
    inbox_bytes_max=256 * KB,
    record_bytes_max=256 * KB,
)
PART = "x" * 10 * KB


@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.parametrize(("count", "fits"), [(3, True), (4, False), (5, False), (31, False)])
async def test_what_branches_leave_counts_when_they_come_together(
    house: House, count: int, fits: bool, concurrency: int
) -> None:
    async def read(state: Any) -> Any:
        return {"log": [PART]}

    graph, hf = each(read, concurrency=concurrency), house.open(limits=TIGHT)
    async with hf.worker([graph]):
        run = await hf.start(graph, {"items": list(range(count))})
        if fits:
            assert (await run.result())["log"] == [PART] * count
        else:
            with pytest.raises(RunFailed, match=r"the (state|run) would") as failed:
                await run.result()
            assert failed.value.kind == "ResultTooLarge"


async def test_what_one_branch_gathers_is_bounded_while_others_wait(house: House) -> None:
    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="join")(nothing)

    @graph.node(writes=["log", "n"])
    async def gathers(state: Any) -> Any:
        return {"log": [PART], "n": state.get("n", 0) + 1}

    @graph.node(writes=["log"])
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"))

    graph.choose(gathers, lambda state: END if state["n"] == 40 else gathers, to=[gathers, END])
    graph.fork("first", [gathers, waits], join="join")
    hf = house.open(limits=TIGHT)
    async with hf.worker([graph]):
        run = await hf.start(graph, {})
        with pytest.raises(RunFailed, match="the run would hold"):
            await run.result()


async def test_a_node_that_takes_too_many_signals_fails_and_takes_no_more(house: House) -> None:
    graph, taken = Graph("g", dict), list[str]()

    @graph.node
    async def takes(state: Any, ctx: Any) -> Any:
        while True:
            taken.append(await ctx.wait(signal("msg")))

    hf = house.open(limits=TIGHT)
    run = await hf.start(graph, id="doc-42")
    for number in range(9):
        await run.signal("msg", f"{number}{PART}")
    async with hf.worker([graph]):
        with pytest.raises(RunFailed, match="the run would hold") as failed:
            await run.result()
    assert failed.value.kind == "ResultTooLarge"
    assert [text[0] for text in taken] == ["0", "1", "2", "3", "4", "5"]
    history = (await run.history()).entries
    assert sum(entry.kind == "signal" for entry in history) == len(taken)


async def test_results_of_calls_are_bounded_together(house: House) -> None:
    graph, hf = Graph("g", dict), house.open(limits=TIGHT)

    def part() -> str:
        return PART

    @graph.node
    async def calls(state: Any, ctx: Any) -> Any:
        kept = 0
        with suppress(CallFailed):
            while True:
                await ctx.call(part)
                kept += 1
        return {"kept": kept}

    async with hf.worker([graph]):
        run = await hf.start(graph, {})
        assert await run.result() == {"kept": 6}


async def test_what_was_read_back_counts(house: House) -> None:
    """The next worker of a run goes on counting where the last one stood."""
    graph, hf = Graph("g", dict), house.open(limits=TIGHT)

    @graph.node
    async def takes(state: Any, ctx: Any) -> Any:
        parts = [await ctx.wait(signal("msg")) for _ in range(7)]
        return {"parts": len(parts)}

    run = await hf.start(graph, id="doc-42")
    for _ in range(6):
        async with house.worker(hf, graph) as worker:
            await house.quiet(worker)
            await run.signal("msg", PART)
            await house.quiet(worker)
    assert (await run.get()).status == "waiting"
    async with house.worker(hf, graph) as worker:
        await run.signal("msg", PART)
        with pytest.raises(RunFailed, match="the run would hold"):
            await run.result()


# --- branches have copies of the state ------------------------------------------------------------


async def test_few_branches_of_a_large_state_are_performed_at_a_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "STATE_COPIES_BYTES_MAX", 350 * KB)
    gate = Gate()

    async def work(state: Any) -> Any:
        await gate.pass_through()

    graph, hf = each(work), house.open()
    async with hf.worker([graph]):
        await hf.start(graph, {"items": list(range(9)), "ballast": "x" * 100 * KB}, id="doc-42")
        await gate.waited_at(3)
        gate.open()
        await hf.run("doc-42").result(timeout=60)
    assert gate.entered == 9
    assert gate.most == 3  # three copies of 100 KB, and the fourth would be too many


@pytest.mark.parametrize(("kilobytes", "apart"), [(1, False), (300, True)])
async def test_a_large_state_is_copied_in_a_thread(
    house: House, monkeypatch: pytest.MonkeyPatch, kilobytes: int, apart: bool
) -> None:
    threads: dict[str, str] = {}
    for name in ("enter", "delta"):
        monkeypatch.setattr(Graph, name, _watched(threads, name, getattr(Graph, name)))
    graph, hf = Graph("g", dict), house.open()
    graph.node(name="node")(nothing)
    async with hf.worker([graph]):
        await (await hf.start(graph, {"ballast": "x" * kilobytes * KB})).result()
    here = threading.current_thread().name
    assert [threads[name] != here for name in ("enter", "delta")] == [apart, apart]


def _watched(threads: dict[str, str], name: str, function: Any) -> Any:
    def watched(*args: Any) -> Any:
        threads.setdefault(name, threading.current_thread().name)
        return function(*args)

    return watched


# --- and lets go of it ----------------------------------------------------------------------------


async def test_a_run_that_paused_or_ended_is_freed_at_once(house: House) -> None:
    """Not when the garbage collector comes by: large texts do not call it."""
    graph, hf = Graph("g", dict), house.open()

    @graph.node
    async def takes(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("msg"))

    run = await hf.start(graph, id="doc-42")
    gc.collect()
    gc.disable()
    try:
        async with house.worker(hf, graph) as worker:
            await house.quiet(worker)
            assert (await run.get()).status == "waiting"
            assert _held(hf) == 0
            await run.signal("msg")
            await run.result(timeout=60)
            await house.move(1, worker)  # what waited to be flushed has its turn
            assert _held(hf) == 0
    finally:
        gc.enable()


def _held(hf: Holdfast) -> int:
    held = [
        each.claim if isinstance(each, ClaimedRun) else each._claim
        for each in gc.get_objects()
        if isinstance(each, ClaimedRun | JournalSession)
    ]
    return sum(claim.kernel is hf._kernel for claim in held)


async def test_work_on_large_values_is_done_by_two_also_if_callers_go_away() -> None:
    heavy, gate = ThreadOffload(), threading.Event()
    at_work, both = list[int](), threading.Barrier(3, timeout=30)

    def work(number: int) -> None:
        at_work.append(number)
        if number < 2:
            both.wait()
        gate.wait(30)

    first = [asyncio.ensure_future(heavy.run(LARGE_BYTES + 1, work, n)) for n in range(2)]
    await asyncio.to_thread(both.wait)
    for task in first:
        task.cancel()
    await asyncio.wait(first)
    second = asyncio.ensure_future(heavy.run(LARGE_BYTES + 1, work, 2))
    await asyncio.to_thread(lambda: None)  # a thread that is free would have begun by now
    assert len(at_work) == 2
    gate.set()
    await second
    assert len(at_work) == 3
