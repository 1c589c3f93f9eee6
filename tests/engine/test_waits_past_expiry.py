"""Waits that reach the expiry of their run: they time out there, and the node acts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Budget, Graph, Holdfast, Quota, Retry, days, signal
from holdfast.errors import RunEnded, RunFailed, WaitTimedOut
from tests.engine.asking import Cents
from tests.engine.branching import forked, through
from tests.engine.support import (
    Gate,
    House,
    chain,
    item_of_head,
    journal_items,
    kill,
)

HOUR = 3600


def one(function: Any, **options: Any) -> Graph:
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


async def asks(state: Any, ctx: Any) -> Any:
    """Wait for as long as the run lasts, and longer."""
    try:
        return {"got": await ctx.wait(signal("decision"), max_wait=days(30))}
    except WaitTimedOut:
        return {"got": "nothing"}


def step(number: int) -> dict[str, Any]:
    return {f"step{number}": 1}


async def test_a_seven_day_approval_works_under_the_default_expiry(either: House) -> None:
    """It times out exactly at the expiry; what was asked before is not asked again."""
    asked, ended = list[str](), list[int]()

    def think(question: str) -> str:
        asked.append(question)
        return f"{question}!"

    async def approve(state: Any, ctx: Any) -> Any:
        answer = await ctx.call(think, "a desk")
        try:
            await ctx.wait(signal("approved"), max_wait=days(7))
        except WaitTimedOut:
            ended.append(either.clock.now_ms())
            return {"answer": answer, "approved": False}

    graph = chain("g", 3, step, node0=approve)
    hf = either.open()
    async with either.worker(hf, graph) as worker:
        started_ms = either.clock.now_ms()
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        row = await run.get()
        assert row.due_at == row.expires_at
        stored_ms = (await item_of_head(hf, "doc-42"))["waits"][0]["until_ms"]
        assert stored_ms >= started_ms + 7 * 24 * HOUR * 1000
        assert row.waits[0].deadline_ms == round(row.expires_at.timestamp() * 1000)
        await either.move(7 * 24 * HOUR - 0.001, worker)
        assert (await run.get()).status == "waiting"
        await either.move(0.001 + 0.2, worker)
        expected = {"answer": "a desk!", "approved": False, "step1": 1, "step2": 1}
        assert await run.result(timeout=60) == expected
    assert asked == ["a desk"]
    assert ended[0] - started_ms - 7 * 24 * HOUR * 1000 in range(201)


async def test_a_signal_accepted_at_the_last_moment_wins(either: House) -> None:
    hf, client = either.open(), either.open()
    async with either.worker(hf, one(asks)) as worker:
        run = await hf.start(one(asks), id="doc-42", expires=HOUR)
        await either.quiet(worker)
    either.clock.advance(HOUR - 0.001)
    await client.run("doc-42").signal("decision", "in time")
    either.clock.advance(5 * HOUR)
    with pytest.raises(RunEnded):
        await client.run("doc-42").signal("decision", "late")
    async with either.worker(hf, one(asks)) as worker:
        await either.quiet(worker)
        assert await run.result(timeout=60) == {"got": "in time"}


async def test_a_wait_that_was_due_before_the_expiry_times_out_after_it(house: House) -> None:
    """No worker was there in between: the node acts all the same."""

    async def brief(state: Any, ctx: Any) -> Any:
        with pytest.raises(WaitTimedOut):
            await ctx.wait(signal("decision"), max_wait=60)
        return {"acted": True}

    hf = house.open()
    async with house.worker(hf, one(brief)) as worker:
        run = await hf.start(one(brief), id="doc-42", expires=HOUR)
        await house.quiet(worker)
    house.clock.advance(2 * HOUR)
    async with house.worker(hf, one(brief)) as worker:
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"acted": True}


async def test_an_extension_gives_the_wait_its_time_back(either: House) -> None:
    hf, client = either.open(), either.open()
    async with either.worker(hf, one(asks)) as worker:
        run = await hf.start(one(asks), id="doc-42", expires=HOUR)
        await either.quiet(worker)
        row = await run.get()
        assert row.waits[0].deadline_ms == round(row.expires_at.timestamp() * 1000)
        assert tuple((await run.waits()).waits) == row.waits
        await client.run("doc-42").extend(days(50))
        row = await run.get()
        (wait,) = row.waits
        assert wait.deadline_ms == wait.since_ms + 30 * 24 * HOUR * 1000
        assert row.due_at is not None
        assert row.due_at.timestamp() * 1000 == wait.deadline_ms
        await either.move(2 * HOUR, worker)
        assert (await run.get()).status == "waiting"
        await either.move(30 * 24 * HOUR, worker)
        row = await run.get()
        assert (row.status, row.node) == ("finished", "node")
        assert await run.result(timeout=60) == {"got": "nothing"}


async def test_an_extension_that_its_owner_does_not_know_of_counts(house: House) -> None:
    """The owner holds the run, because another branch works."""
    gate = Gate()

    async def waits(state: Any, ctx: Any) -> Any:
        return {"log": [(await asks(state, ctx))["got"]]}

    hf, client = house.open(), house.open()
    graph = forked(waits, through(gate))
    async with house.worker(hf, graph, lease=24 * HOUR) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await gate.waited_at()
        await house.clock.asleep(4)
        await client.run("doc-42").extend(days(5))
        house.clock.advance(HOUR + 1)
        await house.clock.asleep(4)
        gate.open()
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
        await client.run("doc-42").signal("decision", "yes")
        await house.move(1, worker)
        assert (await run.result(timeout=60))["log"] == ["yes", "through"]


@pytest.mark.parametrize("durability", ["every_node", "on_pause"])
async def test_a_branch_times_out_at_the_expiry_while_another_works(
    house: House, durability: Any
) -> None:
    gate, over, ended = Gate(), asyncio.Event(), list[int]()

    async def waits(state: Any, ctx: Any) -> Any:
        got = (await asks(state, ctx))["got"]
        ended.append(house.clock.now_ms())
        over.set()
        return {"log": [got]}

    hf = house.open()
    graph = forked(waits, through(gate))
    async with house.worker(hf, graph, lease=24 * HOUR) as worker:
        began = house.clock.now_ms()
        starting = asyncio.ensure_future(
            hf.start(graph, id="doc-42", expires=HOUR, durability=durability)
        )
        await gate.waited_at()
        await house.clock.asleep(4)
        house.clock.advance(HOUR - 0.01)
        await house.clock.asleep(4)
        assert ended == []
        house.clock.advance(0.01)
        async with asyncio.timeout(60):
            await over.wait()
        assert ended == [began + HOUR * 1000]
        assert (await hf.run("doc-42").get()).status == "closing"
        with pytest.raises(RunEnded):
            await hf.run("doc-42").extend(days(5))
        gate.open()
        run = await starting
        await house.quiet(worker)
        assert (await run.result(timeout=60))["log"] == ["nothing", "through"]


async def test_a_run_that_timed_out_goes_on_after_its_worker_died(either: House) -> None:
    gate = Gate()

    async def blocked(state: Any) -> Any:
        await gate.pass_through()
        return {"done": True}

    graph = chain("g", 3, step, node0=asks, node2=blocked)
    hf = either.open()
    lost = hf.worker([graph])
    await lost.start()
    run = await hf.start(graph, id="doc-42", expires=HOUR)
    await either.quiet(lost)
    either.clock.advance(HOUR)
    await gate.waited_at()
    kill(lost)
    gate.open()
    second = either.open()
    async with second.worker([graph]) as worker:
        for _ in range(8):
            await either.move(10, worker)
        assert (await run.get()).status == "finished"
    assert await second.run("doc-42").result(timeout=60) == {
        "got": "nothing",
        "step1": 1,
        "done": True,
    }


# --- what a closing run may still do --------------------------------------------------------------


async def closed(house: House, hf: Holdfast, graph: Graph, **options: Any) -> str:
    """Let a run time out at its expiry, and return what becomes of it."""
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR, **options)
        await house.quiet(worker)
        house.clock.advance(HOUR)
        await house.patiently_quiet(worker)
        await house.move(60, worker)
        return (await run.get()).status


async def test_a_wait_of_a_later_node_times_out_at_once(house: House, hf: Holdfast) -> None:
    async def escalates(state: Any, ctx: Any) -> Any:
        try:
            await ctx.wait(signal("manager"), max_wait=days(1))
        except WaitTimedOut:
            return {"rejected": True}

    assert await closed(house, hf, chain("g", 2, step, node0=asks, node1=escalates)) == "finished"
    assert await hf.run("doc-42").result() == {"got": "nothing", "rejected": True}


@pytest.mark.parametrize("loops", ["in the node", "in the graph"])
async def test_a_node_that_asks_again_and_again_expires(
    house: House, hf: Holdfast, loops: str
) -> None:
    reminders = list[str]()

    async def reminds(state: Any, ctx: Any) -> Any:
        while True:
            try:
                return {"got": await ctx.wait(signal("decision"), max_wait=days(1))}
            except WaitTimedOut:
                await ctx.call(reminders.append, "please")
            if loops == "in the graph":
                return {"got": None}

    graph = one(reminds)
    graph.choose(
        "node", lambda state: "node" if state["got"] is None else "done", to=["node", "done"]
    )
    graph.node(name="done")(lambda state: None)
    assert await closed(house, hf, graph) == "expired"
    assert reminders == ["please"]
    left = await journal_items(hf, "doc-42")
    assert {item.get("stays") for item in left} == {"emptied", "whole"}


async def test_a_wait_that_begins_after_the_expiry_of_a_run_under_way_times_out_at_once(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()

    async def late(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        return await asks(state, ctx)

    async with house.worker(hf, one(late), lease=24 * HOUR) as worker:
        run = await hf.start(one(late), id="doc-42", expires=60)
        await gate.waited_at()
        house.clock.advance(61)
        gate.open()
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": "nothing"}


async def pauses(ctx: Any, how: str) -> Any:
    match how:
        case "wait":
            await ctx.wait(signal("another"))
        case "sleep":
            await ctx.sleep(600)
        case "backoff":
            raise OSError
        case "quota":
            caller = ctx.with_options(quota=Quota("calls", requests=1, per=days(1)))
            await caller.call(str, 1)
            await caller.call(str, 2)
        case "budget":
            await ctx.model("cheap", "Is it?")
        case "child":
            await ctx.run(chain("child", 1, step, node0=asks))
        case _:
            await ctx.sleep(0.01)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("wait", "expired"),
        ("sleep", "expired"),
        ("backoff", "expired"),
        ("quota", "expired"),
        ("budget", "expired"),
        ("child", "expired"),
        ("short sleep", "finished"),
    ],
)
async def test_what_would_pause_a_closing_run_expires_it(
    house: House, how: str, status: str
) -> None:
    async def more(state: Any, ctx: Any) -> Any:
        await asks(state, ctx)
        await pauses(ctx, how)
        return {"more": True}

    graph = one(more, retry=Retry(attempts=3, backoff=300, jitter=0))
    hf = house.open(models={"cheap": Cents()})
    assert await closed(house, hf, graph, budget=Budget(tokens=99)) == status


async def test_a_closing_run_may_fail(house: House, hf: Holdfast) -> None:
    async def fails(state: Any, ctx: Any) -> Any:
        await asks(state, ctx)
        raise ValueError("no")

    assert await closed(house, hf, one(fails)) == "failed"
    with pytest.raises(RunFailed):
        await hf.run("doc-42").result()
    assert (await item_of_head(hf, "doc-42"))["status"] == "failed"
