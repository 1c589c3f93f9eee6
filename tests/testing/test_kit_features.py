"""The kit under what workflows use: branches, children, sessions, budgets, streams, crashes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast import Budget, Context, Graph, ModelPrice, RunFilter, days, hours, minutes, signal
from holdfast.testing import ScriptedModel, TestKit, scripted
from tests.testing.flows import Order, approval, one_node


@dataclass
class Pages:
    pages: list[int] = field(default_factory=list)
    page: int = 0
    texts: list[str] = field(default_factory=list)


async def test_branches_that_sleep_and_wait() -> None:
    graph = Graph("pages", Pages, reducers={"texts": "append"})

    @graph.node
    async def split(state: Pages) -> dict[str, list[int]]:
        return {"pages": [3, 1, 2]}

    @graph.node(writes=["texts"])
    async def read(state: Pages, ctx: Context) -> dict[str, list[str]]:
        await ctx.sleep(hours(state.page))
        return {"texts": [f"page {state.page}"]}

    @graph.node
    async def join(state: Pages) -> None:
        assert len(state.texts) == 3

    graph.each(split, read, over="pages", into="page", join=join)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Pages())
        await kit.skip(hours(2.5))
        assert (await run.get()).status == "waiting"
        await kit.skip(hours(1))
        assert (await run.result()).texts == ["page 3", "page 1", "page 2"]


async def test_children_and_their_waits() -> None:
    child = approval()

    async def parent(order: Order, ctx: Context) -> dict[str, bool]:
        first, second = await ctx.start(child, Order(1)), await ctx.start(child, Order(2))
        both = await asyncio.gather(first.result(), second.result())
        return {"approved": all(each.approved for each in both)}

    graph = one_node(parent, "parent")
    async with TestKit(graph, child) as kit:
        run = await kit.hf.start(graph, Order())
        await kit.skip(days(1))
        page = await kit.hf.list(RunFilter(graph="approval"))
        assert [entry.status for entry in page.runs] == ["waiting", "waiting"]
        for entry in page.runs:
            await kit.hf.run(entry.id).signal("approved", True)
        await kit.settled()
        assert (await run.result()).approved


async def test_runs_of_a_session_follow_each_other() -> None:
    graph = approval()
    async with TestKit(graph) as kit:
        runs = [await kit.hf.start(graph, Order(n), session="s", user="u") for n in range(3)]
        for run in runs:
            await kit.settled()
            assert (await run.get()).reason == "signal"
            await run.signal("approved", True)
        await kit.settled()
        assert [(await run.get()).status for run in runs] == ["finished"] * 3


async def test_a_budget_pauses_a_run() -> None:
    async def ask(order: Order, ctx: Context) -> dict[str, list[str]]:
        return {"log": [(await ctx.model("small", "hello", max_tokens=10)).text]}

    graph = one_node(ask)
    model = ScriptedModel(["hi"], price=ModelPrice(input_usd=1, output_usd=1))
    async with TestKit(graph, models={"small": model}) as kit:
        run = await kit.hf.start(graph, Order(), budget=Budget(tokens=5))
        await kit.settled()
        assert (await run.get()).reason == "budget"
        await run.set_budget(Budget(tokens=100_000))
        await kit.settled()
        assert (await run.result()).log == ["hi"]


async def test_streams_and_shared_answers() -> None:
    async def ask(order: Order, ctx: Context) -> dict[str, list[str]]:
        answer = await ctx.model("small", "hello", stream=True, share=True)
        return {"log": [answer.text]}

    graph = one_node(ask)
    model = scripted("one two three")
    async with TestKit(graph, models={"small": model}) as kit:
        runs = [await kit.hf.start(graph, Order(number)) for number in range(3)]
        await kit.skip(minutes(1))
        assert [(await run.result()).log for run in runs] == [["one two three"]] * 3
        assert len(model.requests) == 1


async def test_a_follower_of_events_is_told() -> None:
    graph = approval()
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())

        async def follow() -> list[str]:
            return [event.kind async for event in run.events()]

        following = asyncio.ensure_future(follow())
        await kit.skip(days(2))
        await run.signal("approved", True)
        await kit.settled()
        assert "finished" in " ".join(await following)


async def test_a_run_that_never_pauses_stays_in_memory() -> None:
    async def quick(order: Order) -> dict[str, list[str]]:
        return {"log": ["done"]}

    graph = one_node(quick)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order(), durability="on_pause")
        assert (await run.result()).log == ["done"]
        await kit.settled()


async def test_calls_with_a_context_in_threads() -> None:
    def tool(ctx: Any) -> str:
        ctx.sleep(0.5)
        return ctx.call(lambda: "deep")

    def node(order: Order, ctx: Any) -> dict[str, list[str]]:
        return {"log": [ctx.call(tool)]}

    graph = one_node(node)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        await kit.settled()
        assert (await run.get()).status == "running"
        await kit.skip(0.5)
        assert (await run.get()).status == "finished"
        assert (await run.result()).log == ["deep"]


async def test_a_timeout_of_a_node_takes_real_seconds() -> None:
    async def hangs(order: Order) -> None:
        await asyncio.Event().wait()

    graph = one_node(hangs, timeout=0.05)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        await kit.settled()
        assert (await run.get()).status == "failed"


async def test_cancelled_and_retried_runs_settle() -> None:
    broken = True

    async def node(order: Order, ctx: Context) -> None:
        if broken:
            raise ValueError("x")

    graph, waiting = one_node(node), approval()
    async with TestKit(graph, waiting) as kit:
        failed, paused = await kit.hf.start(graph, Order()), await kit.hf.start(waiting, Order())
        await kit.settled()
        await paused.cancel("enough")
        broken = False
        await failed.retry()
        await kit.settled()
        assert (await paused.get()).status == "cancelled"
        assert (await failed.get()).status == "finished"


@pytest.mark.parametrize("moment", range(6))
async def test_a_crash_at_any_moment_loses_nothing(moment: int) -> None:
    """Turn the loop a few times more each time, so that the crash strikes elsewhere."""
    graph = Graph("steps", Order)

    @graph.node
    async def first(order: Order, ctx: Context) -> dict[str, int]:
        return {"id": await ctx.call(lambda: order.id + 1)}

    @graph.node
    async def second(order: Order, ctx: Context) -> dict[str, bool]:
        return {"approved": await ctx.wait(signal("go", bool))}

    graph.route(first, second)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order(1))
        for _ in range(moment * 4):
            await kit._real.sleep(0)
        await kit.crash()
        await run.signal("go", True)
        for _ in range(moment * 4):
            await kit._real.sleep(0)
        await kit.crash()
        await kit.settled()
        assert await run.result(timeout=10) == Order(2, approved=True)
