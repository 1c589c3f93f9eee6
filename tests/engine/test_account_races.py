"""Accounts and slices while workers stall, runs are retried and budgets change: paid is no more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from holdfast import Budget, Graph, Holdfast, signal
from holdfast.engine.execution.journal_session import JournalSession
from holdfast.engine.kernel.kernel import ClaimLost
from holdfast.engine.runs.budget_accounts import (
    Accounts,
    InsufficientBudget,
    _read_account,
    close_account,
    read_granted,
)
from holdfast.engine.runs.local_workers import NO_WORKERS
from holdfast.engine.runs.rows import read_row
from holdfast.errors import BudgetShared, ConditionFailed, RunFailed, TransactionCancelled
from holdfast.model.event import CallReserved
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.records import run_writes
from holdfast.records.account import return_rest_writes
from holdfast.records.head import Head, RunRef
from holdfast.storage.operations import Operation, TransactItems
from tests.engine.asking import Cents, graph_of
from tests.engine.families import freeze
from tests.engine.staging import Side, staged
from tests.engine.support import (
    WAIT_SECONDS_MAX,
    House,
    item_of_head,
    kill,
    reached,
    tenant_key,
    work_of,
)

LEASE_SECONDS = 1_000


async def asks(state: Any, ctx: Any) -> Any:
    for _ in range(state.get("n", 1)):
        await ctx.model("cheap", "Is it?")
    return {}


ASKING = graph_of(asks, "asking")


def nanodollars(amount: int) -> Spending:
    return Spending(0, amount)


# --- a worker that stalls -------------------------------------------------------------------------


def gives_back(operation: Operation) -> bool:
    """Return whether an operation settles what a run was given."""
    return isinstance(operation, TransactItems) and "'closed': True" in repr(operation)


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_worker_that_wakes_late_gives_back_nothing_that_a_retry_uses(
    house: House, side: Side
) -> None:
    """It stalls as it settles the account of a failed child, which is settled and retried then."""
    model, broken = Cents(), [True]
    model.used = type(model.used)(25, 25)

    async def page(state: Any, ctx: Any) -> Any:
        await ctx.model("cheap", "Is it?")
        if broken:
            raise ValueError("torn")
        model.held = asyncio.Event()
        await ctx.model("cheap", "Is it still?")
        return {}

    async def begin(state: Any, ctx: Any) -> Any:
        with contextlib.suppress(RunFailed):
            await ctx.run(child, id="child")
        await ctx.wait(signal("again"))
        return {}

    child, graph = graph_of(page, "page"), graph_of(begin, "book")
    client = house.open(models={"cheap": model})
    first, stage = staged(house, models={"cheap": model})
    hold = stage.hold(gives_back, side=side)
    stalled = house.worker(first, child, lease=LEASE_SECONDS)
    await stalled.start()
    async with house.worker(client, graph) as lead:
        await client.start(graph, id="root", budget=Budget(usd=0.015))
        await house.quiet(lead)
        house.clock.advance(1)
        await hold.reached()
        freeze(stalled)
        async with house.worker(house.open(models={"cheap": model}), child) as worker:
            await house.move(LEASE_SECONDS + 1, worker, lead)
            await house.move(1, worker, lead)
            await reached(client, "child", "failed")
            broken.clear()
            await client.run("child").retry()
            house.clock.advance(1)
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while len(model.asked) < 2:
                    await house.clock.sleep(0)
            assert (await client.run("root").spending()).usd == 0.015
            hold.release()
            await asyncio.wait(work_of(stalled))
            assert (await client.run("root").spending()).usd == 0.015
            assert model.held is not None
            model.held.set()
            await house.quiet(worker, lead)
    kill(stalled)


async def members(hf: Holdfast, *, usd: float = 1) -> tuple[Head, Head]:
    """Return the rows of a run with an account, and of another one as if it drew on that."""

    async def node(state: Any) -> None: ...

    graph = graph_of(node)
    await hf.start(graph, id="root", budget=Budget(usd=usd))
    await hf.start(graph, id="child")
    root, child = [await read_row(hf._kernel, tenant_key(id)) for id in ("root", "child")]
    assert root.budget is not None
    await Accounts(hf._kernel).open(root, root.budget, NO_SPENDING)
    return root, msgspec.structs.replace(child, payer=RunRef("root", root.generation))


def claimed(head: Head, more: int) -> Head:
    """Return a row as it is after so many further claims."""
    return msgspec.structs.replace(head, epoch=head.epoch + more)


async def test_a_retry_that_finds_enough_makes_it_its_own(hf: Holdfast) -> None:
    """Nobody settled what the run was given, and so the retry has nothing to draw."""
    accounts = Accounts(hf._kernel)
    root, child = await members(hf)
    draws = RunRef("root", root.generation)
    assert await accounts.reserve(child, draws, NO_SPENDING, nanodollars(10)) == nanodollars(10)
    retried = claimed(child, 2)
    found = await accounts.reserve(retried, draws, nanodollars(4), nanodollars(5))
    assert found == nanodollars(10)
    with pytest.raises(ClaimLost):
        await accounts.release_unspent(NO_WORKERS, child, nanodollars(4))
    assert await read_granted(hf._kernel, root) == nanodollars(10)
    await accounts.release_unspent(NO_WORKERS, retried, nanodollars(7))
    assert await read_granted(hf._kernel, root) == nanodollars(7)


async def test_a_worker_that_wakes_late_draws_nothing_once_its_run_is_settled(
    hf: Holdfast,
) -> None:
    """Nobody would give it back."""
    accounts = Accounts(hf._kernel)
    root, child = await members(hf)
    draws = RunRef("root", root.generation)
    await accounts.reserve(child, draws, NO_SPENDING, nanodollars(10))
    await accounts.release_unspent(NO_WORKERS, claimed(child, 1), nanodollars(6))
    with pytest.raises(ClaimLost):
        await accounts.reserve(child, draws, nanodollars(6), nanodollars(10))
    assert await read_granted(hf._kernel, root) == nanodollars(6)


async def test_what_a_namesake_spent_is_not_spent_again(hf: Holdfast) -> None:
    """A run whose child's row is over its time may start another one of the same id."""
    accounts = Accounts(hf._kernel)
    root, child = await members(hf)
    draws = RunRef("root", root.generation)
    await accounts.reserve(child, draws, NO_SPENDING, nanodollars(10))
    await accounts.release_unspent(NO_WORKERS, child, nanodollars(8))
    other = msgspec.structs.replace(child, generation="another", epoch=1)
    assert await accounts.reserve(other, draws, NO_SPENDING, nanodollars(5)) == nanodollars(5)
    assert await read_granted(hf._kernel, root) == nanodollars(13)
    await accounts.release_unspent(NO_WORKERS, child, NO_SPENDING)
    await accounts.release_unspent(NO_WORKERS, other, nanodollars(1))
    assert await read_granted(hf._kernel, root) == nanodollars(9)


# --- what is returned before the end --------------------------------------------------------------


async def test_a_run_that_goes_on_keeps_what_it_needs(hf: Holdfast) -> None:
    accounts = Accounts(hf._kernel)
    root, child = await members(hf)
    draws = RunRef("root", root.generation)
    await accounts.reserve(child, draws, NO_SPENDING, nanodollars(10))
    await accounts.return_rest(NO_WORKERS, child, draws, nanodollars(4))
    assert await read_granted(hf._kernel, root) == nanodollars(4)
    await accounts.return_rest(NO_WORKERS, child, draws, nanodollars(9))  # it has less by now
    assert await read_granted(hf._kernel, root) == nanodollars(4)
    assert await accounts.reserve(child, draws, nanodollars(4), nanodollars(5)) == nanodollars(9)


async def test_a_worker_that_wakes_late_returns_no_rest(hf: Holdfast) -> None:
    """A later claim of the run found enough, and uses it."""
    accounts = Accounts(hf._kernel)
    root, child = await members(hf)
    draws = RunRef("root", root.generation)
    await accounts.reserve(child, draws, NO_SPENDING, nanodollars(10))
    await accounts.reserve(claimed(child, 1), draws, nanodollars(4), nanodollars(6))
    with pytest.raises(ClaimLost):
        await accounts.return_rest(NO_WORKERS, child, draws, nanodollars(4))
    assert await read_granted(hf._kernel, root) == nanodollars(10)


async def test_a_return_that_arrives_late_takes_nothing_from_a_draw(hf: Holdfast) -> None:
    """Its outcome is unknown, and the same claim draws again and finds enough in its grant."""
    accounts = Accounts(hf._kernel)
    root, child = await members(hf)
    draws = RunRef("root", root.generation)
    await accounts.reserve(child, draws, NO_SPENDING, nanodollars(10))
    account, grant = await _read_account(hf._kernel, child.key, draws)
    assert account is not None
    late = return_rest_writes(child, draws, account, grant, nanodollars(4), token="late")
    found = await accounts.reserve(child, draws, nanodollars(4), nanodollars(6))
    assert found == nanodollars(10)
    with pytest.raises(TransactionCancelled):
        await hf._kernel.resolve_transaction(hf._kernel.accounts, late)
    assert await read_granted(hf._kernel, root) == nanodollars(10)


# --- what is set aside ----------------------------------------------------------------------------


async def test_what_is_set_aside_counts_once_when_the_account_is_opened(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child is started just when another task's reservation is in the fold."""
    model, set_aside = Cents(), asyncio.Event()
    model.held = asyncio.Event()
    fold = JournalSession._fold

    def told(self: Any, events: Any) -> None:
        fold(self, events)
        if any(isinstance(event, CallReserved) for event in events):
            set_aside.set()

    async def begin(state: Any, ctx: Any) -> Any:
        async def start() -> None:
            await set_aside.wait()
            await ctx.start(ASKING, {"n": 0}, id="child")
            assert model.held is not None
            model.held.set()

        await asyncio.gather(ctx.model("cheap", "Is it?"), start())
        return {}

    monkeypatch.setattr(JournalSession, "_fold", told)
    graph, hf = graph_of(begin, "family"), house.open(models={"cheap": model})
    async with house.worker(hf, graph, ASKING):
        run = await hf.start(graph, id="root", budget=Budget(usd=0.05))
        await run.result(timeout=60)
        assert (await hf.run("root").spending()).usd == 0.01


async def test_what_was_spent_is_granted_though_the_budget_was_lowered(hf: Holdfast) -> None:
    """Whoever opened the account died; the run spent more by itself, and then has less."""
    accounts = Accounts(hf._kernel)
    root, child = await members(hf)
    await hf.run("root").set_budget(Budget(usd=50 / 1_000_000_000))
    lowered = await read_row(hf._kernel, tenant_key("root"))
    assert lowered.budget is not None
    await accounts.open(claimed(lowered, 1), lowered.budget, nanodollars(100))
    assert await read_granted(hf._kernel, root) == nanodollars(100)
    with pytest.raises(InsufficientBudget, match="are left"):
        await accounts.reserve(child, RunRef("root", root.generation), NO_SPENDING, nanodollars(10))


async def test_nothing_is_drawn_on_an_account_that_was_closed(hf: Holdfast) -> None:
    accounts = Accounts(hf._kernel)
    root, child = await members(hf)
    draws = RunRef("root", root.generation)
    await accounts.reserve(child, draws, NO_SPENDING, nanodollars(10))
    assert (
        await close_account(hf._kernel, root)
        == await close_account(hf._kernel, root)
        == nanodollars(10)
    )
    with pytest.raises(InsufficientBudget, match="settled"):
        await accounts.reserve(child, draws, nanodollars(10), nanodollars(1))
    await accounts.release_unspent(NO_WORKERS, child, nanodollars(3))
    assert await read_granted(hf._kernel, root) == nanodollars(3)


async def test_a_child_that_told_what_it_spent_leaves_nothing_to_its_own_children(
    house: House,
) -> None:
    """They go on until they are cancelled, and the parent has what the slice left over."""
    model, graphs = Cents(), list[Graph]()

    async def middle(state: Any, ctx: Any) -> Any:
        await ctx.start(ASKING, {"n": 2}, id="grandchild")
        return {}

    async def begin(state: Any, ctx: Any) -> Any:
        await ctx.run(graphs[0], id="child", budget=Budget(usd=0.02))
        return await asks({"n": 2}, ctx)

    graphs += [graph_of(middle, "middle"), graph_of(begin, "family")]
    hf, (other, stage) = house.open(models={"cheap": model}), staged(house)
    hold = stage.hold(lambda operation: "CHILD#" in repr(getattr(operation, "range", "")))
    async with house.worker(other, graphs[0]) as ends, house.worker(hf, graphs[1]) as lead:
        run = await hf.start(graphs[1], id="root", budget=Budget(usd=0.02))
        await house.quiet(ends, lead)
        house.clock.advance(1)
        await hold.reached()  # the child told its parent, and has not cancelled its own yet
        house.clock.advance(1)
        await run.result(timeout=WAIT_SECONDS_MAX)
        assert len(model.asked) == 2
        async with house.worker(house.open(models={"cheap": model}), ASKING) as late:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while (await hf.run("grandchild").get()).status in ("ready", "running"):
                    await house.clock.sleep(0)
            assert ((await hf.run("grandchild").get()).reason, len(model.asked)) == ("budget", 2)
            hold.release()
            for _ in range(2):
                await house.move(1, ends, lead, late)
    assert len(model.asked) == 2


async def test_a_budget_that_arrives_late_does_not_undo_a_later_one(hf: Holdfast) -> None:
    """Whoever sent it is gone; its write was on its way for long."""

    async def node(state: Any) -> None: ...

    await hf.start(graph_of(node), id="root", budget=Budget(usd=1))
    for sent in (Budget(usd=2), Budget(usd=3)):  # the first one, and a further one
        head = await read_row(hf._kernel, tenant_key("root"))
        late = run_writes.budget_write(head, sent.limits, now_ms=head.updated_ms, token="late")
        await hf.run("root").set_budget(Budget(usd=9))
        with pytest.raises(ConditionFailed):
            await hf._kernel.heads.write(late)
    assert (await hf.run("root").get()).budget == Budget(usd=9).limits


# --- slices ---------------------------------------------------------------------------------------


def sliced(**slice: Any) -> Graph:
    """Return a graph that starts one child with a slice."""

    async def begin(state: Any, ctx: Any) -> Any:
        await ctx.run(ASKING, {"n": 4}, id="child", budget=Budget(**slice))
        return {}

    return graph_of(begin, "family")


@pytest.mark.parametrize(
    "more", [Budget(usd=0.03), Budget(tokens=5), Budget(node_time=5), Budget(wall=5)]
)
async def test_a_slice_is_not_raised(house: House, more: Budget) -> None:
    model, graph = Cents(), sliced(usd=0.02)
    hf = house.open(models={"cheap": model})
    async with house.worker(hf, graph, ASKING) as worker:
        await hf.start(graph, id="root", budget=Budget(usd=0.02))
        await house.quiet(worker)
        assert (await hf.run("child").get()).reason == "budget"
        with pytest.raises(BudgetShared, match="a slice of the budget of run 'root'"):
            await hf.run("child").set_budget(more)
        await house.move(61, worker)
    assert len(model.asked) == 2
    assert (await item_of_head(hf, "child"))["budget"]["nanodollars"] == 20_000_000


async def test_a_slice_can_be_lowered_and_what_is_left_of_it_is_free_again(house: House) -> None:
    model = Cents()

    async def begin(state: Any, ctx: Any) -> Any:
        with contextlib.suppress(Exception):
            await ctx.run(waits, id="child", budget=Budget(usd=0.03))
        return await asks({"n": 3}, ctx)

    async def node(state: Any, ctx: Any) -> Any:
        await asks({"n": 1}, ctx)
        await ctx.wait(signal("go on"))
        return await asks({"n": 2}, ctx)

    waits, graph = graph_of(node, "waits"), graph_of(begin, "family")
    hf = house.open(models={"cheap": model})
    async with house.worker(hf, graph, waits) as worker:
        run = await hf.start(graph, id="root", budget=Budget(usd=0.04))
        await house.quiet(worker)
        await hf.run("child").set_budget(Budget(usd=0.015))
        await hf.run("child").signal("go on")
        await house.quiet(worker)
        assert ((await hf.run("child").get()).reason, len(model.asked)) == ("budget", 1)
        await hf.run("child").cancel()
        await house.quiet(worker)
        assert ((await run.get()).status, len(model.asked)) == ("finished", 4)


async def test_a_child_of_a_run_without_a_budget_can_be_given_more(house: House) -> None:
    model, graph = Cents(), sliced(usd=0.02)
    hf = house.open(models={"cheap": model})
    async with house.worker(hf, graph, ASKING) as worker:
        run = await hf.start(graph, id="root")
        await house.quiet(worker)
        await hf.run("child").set_budget(Budget(usd=0.04))
        await run.result(timeout=60)
    assert len(model.asked) == 4
