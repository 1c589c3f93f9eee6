"""What a node may do about pauses: declare them, outlast them, and never swallow them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from holdfast import Graph, Holdfast, escalate, fail, restart, signal
from holdfast.errors import RunFailed
from tests.engine.support import House, journal_items


def graph_of(function: Any, **options: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


# --- declared -------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("how", ["wait", "sleep"])
async def test_a_node_that_may_not_wait_fails_if_it_does(
    house: House, hf: Holdfast, how: str, plain: bool
) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await (ctx.wait(signal("decision")) if how == "wait" else ctx.sleep(60))

    def waits_plainly(state: Any, ctx: Any) -> Any:
        ctx.wait(signal("decision")) if how == "wait" else ctx.sleep(60)

    graph = graph_of(waits_plainly if plain else waits, pausable="no")
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=60)
    assert failed.value.kind == "NotPausable"


async def test_a_node_that_is_not_pausable_writes_no_record_of_its_own(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("g", dict)

    @graph.node(pausable="no")
    async def first(state: Any) -> Any:
        return {"first": 1}

    @graph.node(pausable="no")
    async def second(state: Any) -> Any:
        return {"second": state["first"] + 1}

    @graph.node
    async def third(state: Any) -> Any:
        return {"third": state["second"] + 1}

    @graph.node(pausable="no")
    async def last(state: Any) -> Any:
        return {"last": state["third"] + 1}

    graph.route(first, second, third, last)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=60) == {"first": 1, "second": 2, "third": 3, "last": 4}
    assert len(await journal_items(hf, "doc-42")) == 2
    kinds = [(entry.kind, entry.node) for entry in (await run.history()).entries]
    assert [node for kind, node in kinds if kind == "node"] == ["first", "second", "third", "last"]


async def test_a_blocking_node_writes_a_record_only_if_it_waited(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("g", dict)

    @graph.node(pausable="blocking")
    async def review(state: Any, ctx: Any) -> Any:
        if state["risk"] == "high":
            return {"approved": await ctx.wait(signal("decision"))}
        return {"approved": True}

    @graph.node
    async def after(state: Any) -> Any: ...

    graph.route(review, after)
    async with house.worker(hf, graph) as worker:
        low = await hf.start(graph, {"risk": "low"}, id="low")
        high = await hf.start(graph, {"risk": "high"}, id="high")
        await house.quiet(worker)
        await high.signal("decision", False)
        await house.quiet(worker)
        assert (await low.result(timeout=60))["approved"] is True
        assert (await high.result(timeout=60))["approved"] is False
    assert len(await journal_items(hf, "low")) == 1
    # The signal, the checkpoint after the wait, the last node.
    assert len(await journal_items(hf, "high")) == 3


async def test_what_was_not_checkpointed_runs_again_after_a_pause_and_gives_the_same(
    house: House, hf: Holdfast
) -> None:
    ran: list[str] = []
    graph = Graph("g", dict)

    @graph.node(pausable="no")
    async def before(state: Any) -> Any:
        ran.append("before")
        return {"before": 1}

    @graph.node
    async def waits(state: Any, ctx: Any) -> Any:
        ran.append("waits")
        return {"got": await ctx.wait(signal("decision")), "saw": state["before"]}

    graph.route(before, waits)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("decision", "yes")
        assert await run.result(timeout=60) == {"before": 1, "got": "yes", "saw": 1}
    # A pause is a checkpoint: what was held back became durable with it.
    assert ran == ["before", "waits", "waits"]


# --- outlasted ------------------------------------------------------------------------------------


def with_freshness(rule: Any) -> Graph:
    graph = Graph("fresh", dict)

    @graph.node
    async def price(state: Any) -> Any:
        return {"priced": state.get("priced", 0) + 1}

    @graph.node(max_pause=3600, on_stale=rule)
    async def review(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.wait(signal("decision"))}

    if rule.action == "escalate":

        @graph.node
        async def call_the_boss(state: Any) -> Any:
            return {"escalated": True}

    graph.route(price, review)
    return graph


async def test_a_pause_that_took_too_long_restarts_the_run_at_the_named_node(
    either: House,
) -> None:
    graph = with_freshness(restart("price"))
    hf = either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        await either.move(3599.999, worker)
        assert (await run.get()).nodes_run == 1
        await either.move(0.001 + 0.2, worker)
        row = await run.get()
        assert (row.status, row.node, row.nodes_run) == ("waiting", "review", 2)
        await run.signal("decision", "yes")
        await either.quiet(worker)
        assert await run.result(timeout=60) == {"priced": 2, "got": "yes"}
    assert "reroute" in [entry.kind for entry in (await run.history()).entries]


async def test_a_pause_that_took_too_long_escalates(house: House, hf: Holdfast) -> None:
    graph = with_freshness(escalate("call_the_boss"))
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await house.move(3600.2, worker)
        assert await run.result(timeout=60) == {"priced": 1, "escalated": True}


async def test_a_pause_that_took_too_long_fails_the_run(house: House, hf: Holdfast) -> None:
    graph = with_freshness(fail())
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await house.move(3600.2, worker)
        with pytest.raises(RunFailed, match="max_pause") as failed:
            await run.result(timeout=60)
    assert failed.value.kind == "Stale"


async def test_a_signal_accepted_in_time_is_not_stale(house: House) -> None:
    graph = with_freshness(fail())
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
    house.clock.advance(3599.999)
    await run.signal("decision", "in time")
    house.clock.advance(3600)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
    assert (await run.result(timeout=60))["got"] == "in time"


# --- not swallowed --------------------------------------------------------------------------------


async def swallows_exceptions(state: Any, ctx: Any) -> Any:
    try:
        got = await ctx.wait(signal("decision"))
    except Exception:
        got = "swallowed"
    return {"got": got}


async def swallows_everything(state: Any, ctx: Any) -> Any:
    got: Any = "swallowed"
    with contextlib.suppress(BaseException):
        got = await ctx.wait(signal("decision"))
    return {"got": got}


async def swallows_and_raises_another(state: Any, ctx: Any) -> Any:
    try:
        got = await ctx.wait(signal("decision"))
    except:  # noqa: E722
        raise ValueError("swallowed") from None
    return {"got": got}


async def swallows_by_finally(state: Any, ctx: Any) -> Any:
    got: Any = "swallowed"
    try:
        got = await ctx.wait(signal("decision"))
    finally:
        return {"got": got}  # noqa: B012


async def groups(state: Any, ctx: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ctx.wait(signal("decision")))
    return {"got": waiting.result()}


async def swallows_groups(state: Any, ctx: Any) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(ctx.wait(signal("decision")))
    except BaseExceptionGroup:
        return {"got": "swallowed"}
    return {"got": waiting.result()}


async def gathers_exceptions(state: Any, ctx: Any) -> Any:
    (got,) = await asyncio.gather(ctx.wait(signal("decision")), return_exceptions=True)
    return {"got": repr(got) if isinstance(got, BaseException) else got}


def plain(state: Any, ctx: Any) -> Any:
    return {"got": ctx.wait(signal("decision"))}


def plain_that_swallows(state: Any, ctx: Any) -> Any:
    try:
        return {"got": ctx.wait(signal("decision"))}
    except BaseException:
        return {"got": "swallowed"}


SWALLOWERS = [
    swallows_exceptions,
    swallows_everything,
    swallows_and_raises_another,
    swallows_by_finally,
    groups,
    swallows_groups,
    gathers_exceptions,
    plain,
    plain_that_swallows,
]


@pytest.mark.parametrize("function", SWALLOWERS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("when", ["early", "late"])
async def test_a_node_cannot_swallow_a_pause(house: House, function: Any, when: str) -> None:
    hf = house.open()
    graph = graph_of(function)
    run = await hf.start(graph, id="doc-42")
    if when == "early":
        await run.signal("decision", "yes")
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        if when == "late":
            row = await run.get()
            assert (row.status, row.reason) == ("waiting", "signal")
            await run.signal("decision", "yes")
            await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": "yes"}


def plain_in_sequence(state: Any, ctx: Any) -> Any:
    ctx.sleep(60)
    first = ctx.wait(signal("a"))
    ctx.sleep(1)
    return {"got": [first, ctx.wait(signal("b"))], "run": ctx.run_id, "visit": ctx.visit}


async def test_a_plain_function_waits_and_sleeps_as_a_coroutine_does(house: House) -> None:
    hf = house.open()
    graph = graph_of(plain_in_sequence)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert (await run.get()).reason == "timer"
        await house.move(60.2, worker)
        assert (await run.get()).reason == "signal"
        await run.signal("a", "a")
        await house.clock.asleep(4)
        await house.move(1, worker)
        assert [wait.signal for wait in (await run.get()).waits] == ["b"]
        await run.signal("b", "b")
        assert await run.result(timeout=60) == {"got": ["a", "b"], "run": "doc-42", "visit": 0}


@pytest.mark.parametrize("condition", ["decision", None, 5])
async def test_a_wait_for_what_is_no_signal_fails_the_run(
    house: House, hf: Holdfast, condition: Any
) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(condition)

    async with house.worker(hf, graph_of(waits)):
        run = await hf.start(graph_of(waits), id="doc-42")
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=60)
    assert failed.value.kind == "InvalidRequest"
