"""Budgets: a run pauses before it would overspend, says what it needs, and goes on with more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Budget, Retry, minutes
from holdfast.errors import (
    BudgetSpent,
    CallFailed,
    InvalidRequest,
    ModelRefused,
    ModelUnavailable,
    PriceUnknown,
    RunEnded,
)
from tests.engine.asking import HINT, Cents, graph_of
from tests.engine.support import Gate, House, kill, reached


async def asks(state: Any, ctx: Any) -> Any:
    """Ask as often as the state says, one after the other."""
    return {"texts": [(await ctx.model("cheap", "Is it?")).text for _ in range(state["n"])]}


async def asks_at_once(state: Any, ctx: Any) -> Any:
    answers = await asyncio.gather(*(ctx.model("cheap", "Is it?") for _ in range(state["n"])))
    return {"texts": [answer.text for answer in answers]}


@pytest.mark.parametrize("node", [asks, asks_at_once])
async def test_a_run_pauses_before_it_overspends_and_goes_on_with_more(
    either: House, node: Any
) -> None:
    model = Cents()
    graph, hf = graph_of(node), either.open(models={"cheap": model})
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 5}, id="doc-42", budget=Budget(usd=0.035))
        await either.quiet(worker)
        assert len(model.asked) == 3
        row = await run.get()
        assert (row.status, row.reason) == ("waiting", "budget")
        assert row.waits[0].about == f"needs $0.010000, and $0.005000 are left{HINT}"
        assert row.budget is not None
        assert (row.budget.nanodollars, row.cost_usd) == (35_000_000, 0.03)
        await either.move(100, worker)  # it asks again by itself, and waits on
        assert ((await run.get()).reason, len(model.asked)) == ("budget", 3)
        await run.set_budget(Budget(usd=0.04))
        await either.quiet(worker)
        assert ((await run.get()).reason, len(model.asked)) == ("budget", 4)
        await run.set_budget(Budget(usd=1, tokens=500))
        assert len((await run.result(timeout=60))["texts"]) == 5
    assert len(model.asked) == len(set(model.keys)) == 5


async def test_tokens_are_limited_as_well(house: House) -> None:
    model = Cents(price=None)
    graph, hf = graph_of(asks), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 5}, id="doc-42", budget=Budget(tokens=450))
        await house.quiet(worker)
        assert (await run.get()).waits[0].about == f"needs 100 tokens, and 50 are left{HINT}"
        assert len(model.asked) == 4


async def test_what_was_set_aside_and_not_spent_is_spent_later(house: House) -> None:
    model = Cents()
    model.used = type(model.used)(25, 25)
    graph, hf = graph_of(asks), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {"n": 50}, id="doc-42", budget=Budget(usd=0.1))
        await house.quiet(worker)
        # Half a cent each, but for the next one a whole cent is to be set aside.
        assert len(model.asked) == 19


async def test_time_inside_nodes_is_limited_as_well(house: House) -> None:
    model = Cents()

    async def slow(state: Any, ctx: Any) -> Any:
        for _ in range(5):
            await ctx.model("cheap", "Is it?")
            house.clock.advance(30)
        return {}

    graph, hf = graph_of(slow), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", budget=Budget(node_time=minutes(1)))
        await house.quiet(worker)
        assert len(model.asked) == 2
        assert (await run.get()).waits[0].about == "needs more than 1m inside nodes, and used 1m"


async def test_calls_that_cost_nothing_write_nothing_more(house: House) -> None:
    async def free() -> str:
        return "done"

    async def node(state: Any, ctx: Any) -> Any:
        return {"answer": await ctx.call(free)}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph):
        run = await hf.start(
            graph, id="doc-42", budget=Budget(usd=1, node_time=minutes(1), wall="1h")
        )
        await run.result(timeout=60)
    kinds = [entry.kind for entry in (await run.history()).entries]
    assert kinds == ["call", "node", "finished"]


async def test_a_call_that_was_lost_counts_as_paid(house: House) -> None:
    """Whoever died inside it may have paid it; so the rest of the budget is for one call less."""
    model, gate = Cents(), Gate()

    class Stuck(Cents):
        async def answer(self, request: Any, emit: Any) -> Any:
            model.asked.append(request)
            await gate.pass_through()

    hf = house.open(models={"cheap": Stuck()})
    graph = graph_of(asks)
    doomed = house.worker(hf, graph, lease=10)
    await doomed.start()
    await hf.start(graph, {"n": 9}, id="doc-42", budget=Budget(usd=0.05))
    await gate.waited_at()
    kill(doomed)
    other = house.open(models={"cheap": model})
    async with house.worker(other, graph, lease=10) as worker:
        await house.clock.asleep(3)
        for _ in range(8):
            await house.move(5, worker)
        await reached(other, "doc-42", "waiting")
        assert len(model.asked) == 5  # the lost one, and four that were answered


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (ModelRefused("no"), 4),
        (ModelUnavailable("throttled", unpaid=True), 4),
        (ModelUnavailable("the connection was cut"), 3),
    ],
)
async def test_what_failed_counts_unless_it_is_sure_that_it_was_not_paid(
    house: House, error: Exception, asked: int
) -> None:
    model = Cents()
    model.errors = [error]

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(CallFailed):
            await ctx.model("cheap", "Is it?", retry=Retry(attempts=1))
        return await asks({"n": 5}, ctx)

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42", budget=Budget(usd=0.03))
        await house.quiet(worker)
        assert len(model.asked) == asked


async def test_bad_budgets_and_prices_nobody_knows(house: House) -> None:
    for bad in (
        {},
        {"usd": -1},
        {"usd": float("nan")},
        {"tokens": 1.5},
        {"wall": "soon"},
        {"node_time": "7"},
    ):
        with pytest.raises(InvalidRequest):
            Budget(**bad)
    model = Cents(price=None)

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(PriceUnknown, match="cents"):
            await ctx.model("cheap", "Is it?")
        return {"asked": len(model.asked)}

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    with pytest.raises(InvalidRequest, match="budget must be a Budget"):
        await hf.start(graph, budget=5)  # pyright: ignore[reportArgumentType]
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42", budget=Budget(usd=1))
        assert await run.result(timeout=60) == {"asked": 0}
        with pytest.raises(RunEnded):
            await run.set_budget(Budget(usd=2))


async def test_a_node_that_may_not_wait_is_told(house: House) -> None:
    model = Cents()

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(BudgetSpent, match=r"needs \$0\.010000"):
            await ctx.model("cheap", "Is it?")
        return {}

    graph, hf = graph_of(node, pausable="no"), house.open(models={"cheap": model})
    async with house.worker(hf, graph):
        await (await hf.start(graph, budget=Budget(usd=0.001))).result(timeout=60)
    assert not model.asked
