"""Budgets of time: inside nodes, and since the start of a run with its pauses."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Budget, Graph, days, hours, signal
from holdfast.model.budget import BudgetLimits
from holdfast.storage import Put
from tests.engine.asking import graph_of
from tests.engine.support import House, item_of_head, store_of


async def approve(state: Any, ctx: Any) -> Any:
    """Wait for an approval, and then book it."""
    await ctx.wait(signal("approved"), max_wait=days(6))
    return {"booked": await ctx.call(book)}


async def book() -> str:
    return "booked"


async def test_wall_time_counts_pauses_and_a_larger_budget_lets_the_run_go_on(
    either: House,
) -> None:
    graph, hf = graph_of(approve), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, id="doc-42", budget=Budget(wall="2d"))
        await either.quiet(worker)
        assert (await run.get()).reason == "signal"
        await either.move(3 * 86_400, worker)
        assert (await run.get()).reason == "signal"  # it waits on: only what follows is checked
        await run.signal("approved")
        await either.quiet(worker)
        row = await run.get()
        assert (row.status, row.reason) == ("waiting", "budget")
        assert row.waits[0].about == "needs more than 2d of wall time, and started 3d ago"
        assert row.spent_seconds < 1
        await either.move(100, worker)  # it checks again by itself, and waits on
        assert (await run.get()).reason == "budget"
        await run.set_budget(Budget(wall=days(4)))
        assert (await run.result(timeout=60))["booked"] == "booked"


async def test_a_run_within_its_wall_time_is_not_stopped(house: House) -> None:
    graph, hf = graph_of(approve), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, id="doc-42", budget=Budget(wall="2d", node_time="1s"))
        await house.quiet(worker)
        await house.move(86_400, worker)
        await run.signal("approved")
        assert (await run.result(timeout=60))["booked"] == "booked"


@pytest.mark.parametrize(
    ("budget", "more", "needs"),
    [
        (
            Budget(wall=60),
            Budget(wall=600),
            "needs more than 1m of wall time, and started 1m30s ago",
        ),
        (
            Budget(node_time=60),
            Budget(node_time=600),
            "needs more than 1m inside nodes, and used 1m30s",
        ),
    ],
    ids=["wall", "node_time"],
)
@pytest.mark.parametrize("pausable", ["yes", "blocking", "no"])
async def test_time_is_checked_before_a_node_that_makes_no_calls(
    house: House, budget: Budget, more: Budget, needs: str, pausable: Any
) -> None:
    ran: list[str] = []

    def first(state: Any) -> Any:
        house.clock.advance(90)
        ran.append("first")
        return {}

    def second(state: Any) -> Any:
        ran.append("second")
        return {}

    graph, hf = Graph("g", dict), house.open()
    graph.node(name="first")(first)
    graph.node(name="second", pausable=pausable)(second)
    graph.route("first", "second")
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, id="doc-42", budget=budget)
        await house.quiet(worker)
        row = await run.get()
        assert (ran, row.reason, row.node) == (["first"], "budget", "second")
        assert row.waits[0].about == needs
        await run.set_budget(more)
        await run.result(timeout=60)
    assert ran == ["first", "second"]


async def test_a_child_has_its_own_time(house: House) -> None:
    child = graph_of(approve, "child")

    async def begin(state: Any, ctx: Any) -> Any:
        return {"child": await ctx.run(child, {}, id="child")}

    graph, hf = graph_of(begin, "family"), house.open()
    async with house.worker(hf, graph, child) as worker:
        run = await hf.start(graph, {}, id="root", budget=Budget(wall=hours(1)))
        await house.quiet(worker)
        await house.move(7_200, worker)
        await hf.run("child").signal("approved")
        await house.quiet(worker)
        assert (await hf.run("child").get()).status == "finished"
        assert (await run.get()).reason == "budget"
        await run.set_budget(Budget(wall="3h"))
        assert (await run.result(timeout=60))["child"]["booked"] == "booked"


@pytest.mark.parametrize(
    ("budget", "stored"),
    [
        (Budget(node_time="2h"), {"wall_ms": 7_200_000}),
        (Budget(wall="2h"), {"elapsed_ms": 7_200_000}),
        (Budget(usd=1, tokens=5), {"nanodollars": 10**9, "tokens": 5}),
    ],
)
async def test_a_row_stores_only_the_limits_that_a_budget_has(
    house: House, budget: Budget, stored: Any
) -> None:
    graph, hf = graph_of(approve), house.open()
    run = await hf.start(graph, {}, id="doc-42", budget=budget)
    assert (await item_of_head(hf, "doc-42"))["budget"] == stored
    assert (await run.get()).budget == budget.limits
    await run.set_budget(Budget(tokens=0))
    assert (await item_of_head(hf, "doc-42"))["budget"] == {"tokens": 0}


async def test_the_stored_limit_of_an_older_release_is_still_time_inside_nodes(
    house: House,
) -> None:
    graph, hf = graph_of(approve), house.open()
    run = await hf.start(graph, {}, id="doc-42", budget=Budget(tokens=1))
    item = await item_of_head(hf, "doc-42")
    stored = {"tokens": 5, "wall_ms": 60_000}
    await store_of(hf).table.write(Put({**item, "budget": stored}))
    assert (await run.get()).budget == BudgetLimits(tokens=5, node_time_ms=60_000)
