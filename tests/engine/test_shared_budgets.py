"""Budgets that a family shares, and slices of them: together nobody spends more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from holdfast import Budget, Graph, RunFilter, signal
from holdfast.engine.runs.budget_accounts import Accounts
from holdfast.engine.runs.local_workers import NO_WORKERS
from holdfast.errors import BudgetShared, InvalidRequest, RunFailed, StoreUnavailable
from holdfast.records.head import head_of
from holdfast.records.keys import account_key
from tests.engine.asking import HINT, Cents, graph_of
from tests.engine.support import WAIT_SECONDS_MAX, Gate, House, item_of_head, store_of

DOLLAR = 1_000_000_000


async def asks(state: Any, ctx: Any) -> Any:
    for _ in range(state["n"]):
        await ctx.model("cheap", "Is it?")
    return {}


ASKING = graph_of(asks, "asking")


def family(children: int, questions: int, **options: Any) -> Graph:
    """Return a graph that starts children at once, each of which asks so often."""

    async def begin(state: Any, ctx: Any) -> Any:
        started = [
            await ctx.start(ASKING, {"n": questions}, id=f"child-{n}", **options)
            for n in range(children)
        ]
        for child in started:
            await child.result()
        return {"done": True}

    return graph_of(begin, "family")


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_crowd_of_children_never_exceeds_its_dollar_and_uses_it(
    house: House, workers: int
) -> None:
    """200 children would spend six dollars, three cents each; there is one."""
    model = Cents()
    graph = family(200, 3)
    opened = [house.open(models={"cheap": model}) for _ in range(workers)]
    held = [house.worker(hf, graph, ASKING, concurrency=300) for hf in opened]
    for worker in held:
        await worker.start()
    run = await opened[0].start(graph, id="root", budget=Budget(usd=1))
    await house.quiet(*held)
    assert len(model.asked) == 100
    assert (await run.get()).reason == "signal"
    assert ((await run.get()).cost_usd, (await opened[0].run("root").spending()).usd) == (0, 1)
    waiting = await opened[0].list(RunFilter(status="waiting", graph="asking"), limit=300)
    reasons = {(await opened[0].run(entry.id).get()).reason for entry in waiting.runs}
    assert reasons == {"budget"}
    # More lets all of them go on that are known to wait, and the others a minute later.
    await run.set_budget(Budget(usd=6))
    for _ in range(4):
        await house.move(61, *held)
    assert await run.result(timeout=60) == {"done": True}
    assert len(model.asked) == 600
    for worker in held:
        await worker.stop()


async def test_a_budget_given_before_the_account_is_opened_holds_for_the_family(
    house: House,
) -> None:
    """Whoever holds the run has not read its row since, and opens the account with what it knew."""
    gate = Gate()

    async def begin(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        await (await ctx.start(ASKING, {"n": 2}, id="child")).result()
        return {"done": True}

    graph, hf = graph_of(begin, "family"), house.open(models={"cheap": Cents()})
    async with house.worker(hf, graph, ASKING):
        run = await hf.start(graph, id="root", budget=Budget(usd=0))
        await gate.waited_at()
        await house.open().run("root").set_budget(Budget(usd=1))
        gate.open()
        assert await run.result(timeout=60) == {"done": True}


async def test_whoever_read_an_older_budget_does_not_undo_a_newer_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the row before the newer one was given, and dies after it wrote the older one."""
    graph, hf, stalled = family(2, 2), house.open(models={"cheap": Cents()}), house.open()
    async with house.worker(hf, graph, ASKING) as worker:
        run = await hf.start(graph, id="root", budget=Budget(usd=0.01))
        await house.quiet(worker)
    answers = [await item_of_head(hf, "root")]
    old = head_of(answers[0])
    await run.set_budget(Budget(usd=1))

    async def get(key: Any) -> Any:
        if not answers:
            raise StoreUnavailable("it is dead")
        return answers.pop()

    monkeypatch.setattr(stalled._kernel.heads, "get", get)
    with contextlib.suppress(StoreUnavailable):
        await Accounts(stalled._kernel).fund(NO_WORKERS, old)
    assert answers == []
    account = await store_of(hf).table.get(account_key(old.key, old.generation))
    assert account is not None
    assert account["limits"] == {"nanodollars": DOLLAR}


async def test_what_a_child_did_not_need_others_spend(either: House) -> None:
    """A question may cost a cent, and costs half of one."""
    model = Cents()
    model.used = type(model.used)(25, 25)
    graph, hf = family(3, 2), either.open(models={"cheap": model})
    async with either.worker(hf, graph, ASKING) as worker:
        run = await hf.start(graph, id="root", budget=Budget(usd=0.045))
        for _ in range(4):
            await either.quiet(worker)
            await either.move(61, worker)
        assert await run.result(timeout=60) == {"done": True}
    assert len(model.asked) == 6


async def test_the_parent_spends_from_the_same_purse(house: House) -> None:
    model = Cents()

    async def begin(state: Any, ctx: Any) -> Any:
        await asks({"n": 2}, ctx)
        await ctx.run(ASKING, {"n": 2}, id="child")
        await asks({"n": 2}, ctx)
        return {}

    graph, hf = graph_of(begin, "family"), house.open(models={"cheap": model})
    async with house.worker(hf, graph, ASKING) as worker:
        run = await hf.start(graph, id="root", budget=Budget(usd=0.05))
        await house.quiet(worker)
        assert len(model.asked) == 5
        row = await run.get()
        assert (row.reason, row.waits[0].about) == (
            "budget",
            f"needs $0.010000, and $0.000000 are left{HINT}",
        )
        await run.set_budget(Budget(usd=0.06))
        await house.quiet(worker)
        assert (await run.get()).status == "finished"


async def test_a_slice_is_set_aside_and_settled(either: House) -> None:
    model = Cents()

    async def begin(state: Any, ctx: Any) -> Any:
        await ctx.run(ASKING, {"n": 1}, id="one", budget=Budget(usd=0.03))
        await ctx.run(ASKING, {"n": 3}, id="two", budget=Budget(usd=0.03))
        return {}

    graph, hf = graph_of(begin, "family"), either.open(models={"cheap": model})
    async with either.worker(hf, graph, ASKING) as worker:
        run = await hf.start(graph, id="root", budget=Budget(usd=0.035))
        await either.quiet(worker)
        assert len(model.asked) == 1
        row = await run.get()
        assert (row.reason, row.cost_usd) == ("budget", 0.01)
        assert row.waits[0].about == "needs $0.030000, and $0.025000 are left"
        await run.set_budget(Budget(usd=0.04))
        await run.result(timeout=60)
        assert (await run.get()).cost_usd == 0.04
        two = await hf.run("two").get()
        assert two.budget is not None
        assert two.budget.nanodollars == DOLLAR * 3 // 100
    assert len(model.asked) == 4


async def test_the_slice_of_a_child_that_failed_stays_set_aside(house: House) -> None:
    """It may be retried, and then spends what it has left."""
    model, broken = Cents(), [True]

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.model("cheap", "Is it?")
        if broken:
            raise ValueError("torn")
        return await asks({"n": 5}, ctx)

    child = graph_of(node, "child")

    async def begin(state: Any, ctx: Any) -> Any:
        with contextlib.suppress(RunFailed):
            await ctx.run(child, id="child", budget=Budget(usd=0.03))
        return await asks({"n": 5}, ctx)

    graph, hf = graph_of(begin, "family"), house.open(models={"cheap": model})
    async with house.worker(hf, graph, child) as worker:
        await hf.start(graph, id="root", budget=Budget(usd=0.05))
        await house.quiet(worker)
        assert len(model.asked) == 1 + 2
        broken.clear()
        await hf.run("child").retry()
        await house.quiet(worker)
        assert (
            (await hf.run("child").get()).reason == (await hf.run("root").get()).reason == "budget"
        )
    assert len(model.asked) == 5


async def test_a_slice_limits_what_the_parents_budget_limits(house: House) -> None:
    async def begin(state: Any, ctx: Any) -> Any:
        with pytest.raises(InvalidRequest, match="must limit tokens and usd") as refused:
            await ctx.start(ASKING, {"n": 1}, budget=Budget(tokens=5))
        assert refused.value.field == "budget"
        return {}

    graph, hf = graph_of(begin, "family"), house.open(models={"cheap": Cents()})
    async with house.worker(hf, graph, ASKING):
        await (await hf.start(graph, id="root", budget=Budget(usd=1))).result(timeout=60)


async def test_grandchildren_draw_on_the_same_account(house: House) -> None:
    model = Cents()

    async def middle(state: Any, ctx: Any) -> Any:
        await ctx.run(ASKING, {"n": 4})
        return {}

    between = graph_of(middle, "between")

    async def begin(state: Any, ctx: Any) -> Any:
        children = [await ctx.start(between) for _ in range(3)]
        for child in children:
            await child.result()
        return {}

    graph, hf = graph_of(begin, "family"), house.open(models={"cheap": model})
    async with house.worker(hf, graph, between, ASKING) as worker:
        run = await hf.start(graph, id="root", budget=Budget(usd=0.1))
        await house.quiet(worker)
        assert len(model.asked) == 10
        await run.set_budget(Budget(usd=0.12))
        for _ in range(3):
            await house.move(61, worker)
        await run.result(timeout=60)
    assert len(model.asked) == 12


async def test_a_child_that_failed_and_is_retried_draws_again(house: House) -> None:
    model, broken = Cents(), [True]

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.model("cheap", "Is it?")
        if broken:
            raise ValueError("torn")
        await ctx.model("cheap", "Is it still?")
        return {}

    child = graph_of(node, "child")

    async def begin(state: Any, ctx: Any) -> Any:
        with contextlib.suppress(RunFailed):
            await ctx.run(child, id="child")
        await asks({"n": 1}, ctx)
        await ctx.wait(signal("go on"))
        return {}

    graph, hf = graph_of(begin, "family"), house.open(models={"cheap": model})
    async with house.worker(hf, graph, child) as worker:
        await hf.start(graph, id="root", budget=Budget(usd=0.02))
        await house.quiet(worker)
        assert len(model.asked) == 2
        broken.clear()
        await hf.run("child").retry()
        await house.quiet(worker)
        # Its first answer is known, and for the second question nothing is left.
        assert (len(model.asked), (await hf.run("child").get()).reason) == (2, "budget")
        with pytest.raises(BudgetShared, match="root"):
            await hf.run("child").set_budget(Budget(usd=1))
        await hf.run("root").set_budget(Budget(usd=0.03))
        await house.move(61, worker)
        assert (await hf.run("child").get()).status == "finished"
    assert len(model.asked) == 3


async def test_runs_that_lack_money_return_what_they_did_not_need(either: House) -> None:
    """Two ask side by side. Each then lacks a little, which the other one has left."""
    model = Cents()
    model.used, model.held = type(model.used)(10, 10), asyncio.Event()
    graph, hf = family(2, 2), either.open(models={"cheap": model})
    async with either.worker(hf, graph, ASKING) as worker:
        run = await hf.start(graph, id="root", budget=Budget(usd=0.021))
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while len(model.asked) < 2:
                await either.clock.sleep(0)
        model.held.set()
        for _ in range(2):
            await either.quiet(worker)
            await either.move(1, worker)
        assert (await run.get()).status == "finished"
        assert (await hf.run("root").spending()).usd == 0.008
    assert len(model.asked) == 4


@pytest.mark.parametrize("early", [True, False])
async def test_children_that_share_use_what_a_slice_left_over(either: House, early: bool) -> None:
    """Of three cents a slice takes two, and spends one of them."""
    model = Cents()

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go on"))
        return await asks({"n": 2}, ctx)

    sharing = graph_of(node, "sharing")

    async def begin(state: Any, ctx: Any) -> Any:
        if early:
            await ctx.start(sharing, id="sharing")
        await ctx.run(ASKING, {"n": 1}, id="sliced", budget=Budget(usd=0.02))
        await (await ctx.start(sharing, id="sharing")).result()
        return {}

    graph, hf = graph_of(begin, "family"), either.open(models={"cheap": model})
    async with either.worker(hf, graph, ASKING, sharing) as worker:
        run = await hf.start(graph, id="root", budget=Budget(usd=0.03))
        await either.quiet(worker)
        await hf.run("sharing").signal("go on")
        await either.quiet(worker)
        await either.move(1, worker)
        assert (await run.get()).status == "finished"
    assert len(model.asked) == 3


async def test_a_family_in_which_all_have_slices_has_no_account(house: House) -> None:
    graph, hf = family(2, 1, budget=Budget(usd=0.02)), house.open(models={"cheap": Cents()})
    async with house.worker(hf, graph, ASKING):
        run = await hf.start(graph, id="root", budget=Budget(usd=0.04))
        await run.result(timeout=60)
    head = head_of(await item_of_head(hf, "root"))
    assert await store_of(hf).table.get(account_key(head.key, head.generation)) is None
    assert (await hf.run("root").spending()).usd == 0.02
