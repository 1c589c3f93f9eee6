"""What hostile nodes, tools and moments do to effects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Budget, Graph, Holdfast, Retry, restart, tool
from holdfast.errors import CallFailed
from tests.engine.asking import Cents, graph_of
from tests.engine.branching import each
from tests.engine.staging import staged, write_of
from tests.engine.support import (
    Gate,
    House,
    StepClock,
    calls_of,
    incompressible,
    kill,
    store_without_blobs,
    tenant_key,
)


def calls_in(entries: Any) -> list[str]:
    return [entry.details["call"] for entry in entries if entry.kind == "call"]


async def test_a_plain_node_calls_plain_functions_though_every_thread_is_taken(
    house: House, hf: Holdfast
) -> None:
    def double(n: int) -> int:
        return 2 * n

    def node(state: Any, ctx: Any) -> Any:
        return {"n": ctx.call(double, 2)}

    graph = graph_of(node)
    async with house.worker(hf, graph, concurrency=1):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=5) == {"n": 4}


async def test_what_is_too_large_takes_nothing_else_with_it() -> None:
    clock, begun = StepClock(), asyncio.Event()

    async def large() -> bytes:
        return incompressible(1, 500_000)

    async def small(n: int) -> int:
        await begun.wait()
        return n

    async def node(state: Any, ctx: Any) -> Any:
        async def one() -> None:
            with pytest.raises(CallFailed, match="larger values need a bucket"):
                await ctx.call(large)

        async def other(n: int) -> None:
            await ctx.call(small, n)

        async with asyncio.TaskGroup() as group:
            group.create_task(one())
            for n in range(3):
                group.create_task(other(n))
            begun.set()
        return {}

    graph = graph_of(node)
    store = store_without_blobs(clock)
    async with Holdfast("", store=store, clock=clock) as hf, House.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result(timeout=60)
        assert len(calls_in((await run.history()).entries)) == 4


async def test_a_call_that_ends_while_others_are_being_written_is_written_soon(
    house: House,
) -> None:
    before, after, begun, second = Gate(), Gate(), asyncio.Event(), asyncio.Event()

    async def first() -> int:
        return 1

    async def later() -> int:
        begun.set()
        await second.wait()
        return 2

    async def node(state: Any, ctx: Any) -> Any:
        task = asyncio.create_task(ctx.call(later))
        await begun.wait()
        await ctx.call(first)
        await before.pass_through()
        await task
        await after.pass_through()

    graph = graph_of(node)
    hf, stage = staged(house)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await before.waited_at()
        generation = (await run.get()).generation
        record = stage.hold(write_of(tenant_key("doc-42").pk, f"J#{generation}#00000001"))
        house.clock.advance(0.005)
        await record.reached()
        second.set()
        before.open()
        await after.waited_at()
        record.release()
        async with asyncio.timeout(10):
            while len(calls_in((await run.history()).entries)) < 2:
                house.clock.advance(0.005)
        after.open()
        await run.result(timeout=60)


async def test_who_waits_for_others_does_not_count_among_the_tasks(house: House) -> None:
    """A call under a key of its own that lacks money at first, and one without such a key."""
    model = Cents()
    made: list[str] = []
    gate = Gate()

    async def touch(what: str) -> str:
        made.append(what)
        return what

    async def node(state: Any, ctx: Any) -> Any:
        async def keyed() -> None:
            await ctx.model("cheap", "Is it?", key="mine")

        async def bare() -> None:
            await ctx.call(touch, "bare")

        await ctx.model("cheap", "What?")
        task = asyncio.create_task(keyed())
        other = asyncio.create_task(ctx.model("cheap", "And?", key="another"))
        await asyncio.gather(task, other)
        await asyncio.create_task(bare())
        await gate.pass_through()
        return {}

    model.used = type(model.used)(1, 1)
    graph = graph_of(node)
    hf = house.open(models={"cheap": model})
    doomed = house.worker(hf, graph, lease_seconds=10)
    await doomed.start()
    await hf.start(graph, id="doc-42", budget=Budget(usd=0.015))
    await gate.waited_at()
    house.clock.advance(0.005)
    async with asyncio.timeout(5):
        while len(calls_in((await hf.history("doc-42")).entries)) < 4:
            pass
    kill(doomed)
    gate.open()
    hf = house.open(models={"cheap": model})
    async with house.worker(hf, graph, lease_seconds=10) as worker:
        await house.clock.asleep(3)
        for _ in range(8):
            await house.move(5, worker)
        await hf.run("doc-42").result(timeout=60)
    assert made == ["bare"]


async def test_one_key_may_be_ambiguous_in_two_visits(house: House, hf: Holdfast) -> None:
    async def pay() -> int:
        raise ConnectionError("lost")

    once = tool(at_most_once=True, name="pay")(pay)
    graph = Graph("g", dict)

    @graph.node
    async def first(state: Any, ctx: Any) -> Any:
        return {"first": await ctx.call(once, key="order-7")}

    @graph.node
    async def second(state: Any, ctx: Any) -> Any:
        return {"second": await ctx.call(once, key="order-7")}

    graph.route(first, second)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        for n in (1, 2):
            await house.quiet(worker)
            (call,) = [call async for call in hf.ambiguous()]
            assert call.key == "order-7"
            await hf.resolve("doc-42", call.call, result=n)
        assert await run.result(timeout=5) == {"first": 1, "second": 2}


async def test_a_call_whose_fate_is_unknown_does_not_go_stale(house: House, hf: Holdfast) -> None:
    made = []
    graph = Graph("g", dict)

    @tool(at_most_once=True)
    async def pay() -> int:
        made.append(1)
        raise ConnectionError("lost")

    @graph.node(max_pause=60, on_stale=restart("node"))
    async def node(state: Any, ctx: Any) -> Any:
        return {"paid": await ctx.call(pay)}

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await house.move(61, worker)
        assert len(made) == 1
        (call,) = [call async for call in hf.ambiguous()]
        await hf.resolve("doc-42", call.call, result=1)
        assert await run.result(timeout=5) == {"paid": 1}


async def test_a_further_attempt_of_a_call_makes_what_failed_within_it_anew(
    house: House, hf: Holdfast
) -> None:
    made = []

    async def inner() -> int:
        made.append(1)
        if len(made) < 3:
            raise ConnectionError("away")
        return len(made)

    @tool(retry=Retry(attempts=5, first_seconds=0))
    async def outer(ctx: Any) -> Any:
        return await ctx.call(inner)

    async def node(state: Any, ctx: Any) -> Any:
        return {"n": await ctx.call(outer)}

    graph = graph_of(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=5) == {"n": 3}


async def test_a_limit_of_time_costs_no_writes_of_its_own(house: House) -> None:
    async def touch() -> int:
        return 1

    async def node(state: Any, ctx: Any) -> Any:
        for _ in range(3):
            await ctx.call(touch)

    counted = []
    for n, budget in enumerate((None, Budget(wall=3600))):
        graph, hf = graph_of(node), house.open()
        async with house.worker(hf, graph):
            run = await hf.start(graph, id=f"doc-{n}", budget=budget)
            await run.result(timeout=60)
        counted.append(calls_of(hf, "journal"))
    assert counted[0] == counted[1]


async def test_branches_go_on_as_soon_as_there_is_money(house: House) -> None:
    model = Cents()
    model.used = type(model.used)(1, 1)

    async def ask(state: Any, ctx: Any) -> Any:
        await ctx.model("cheap", f"Is it {state['item']}?")
        return {}

    graph = each(ask)
    hf = house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(
            graph, {"items": [1, 2, 3, 4, 5]}, id="doc-42", budget=Budget(usd=0.0125)
        )
        await house.quiet(worker)
        assert (await run.get()).status == "finished"
