"""Branches of one run side by side: to the join, so many at once, and what they cost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.clock import ManualClock
from holdfast.engine.execution import branches
from holdfast.errors import RunFailed
from tests.engine.branching import each, entries, forked, logs, nothing, puts
from tests.engine.support import (
    Gate,
    House,
    reached,
)

# --- to the join ----------------------------------------------------------------------------------


async def test_branches_run_side_by_side_and_meet_at_the_join(either: House) -> None:
    meeting = asyncio.Barrier(2)

    def meets(text: str) -> Any:
        async def node(state: Any, ctx: Any) -> Any:
            await meeting.wait()  # neither gets here without the other
            return {"log": [f"{text} {ctx.branch}"]}

        return node

    async def join(state: Any, ctx: Any) -> Any:
        return {"joined": [ctx.branch, ctx.visit, list(ctx.failures), state["log"]]}

    hf = either.open()
    graph = forked(meets("left"), meets("right"), join=join)
    async with either.worker(hf, graph):
        run = await hf.start(graph, {"log": ["start"]}, id="r")
        result = await run.result(timeout=60)
    log = ["start", "left 0.0", "right 0.1"]
    assert result == {"log": log, "joined": ["", 1, [], log]}
    row = await run.get()
    assert (row.nodes_run, row.node) == (4, "join")
    assert sorted(await entries(hf))[:2] == [("finished", None), ("node", "b0")]


async def test_a_branch_for_each_of_fifty_items(either: House) -> None:
    async def work(state: Any, ctx: Any) -> Any:
        return {"log": [state["item"] * 2], "item": "its own"}

    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="work", writes=["log", "item"])(work)
    graph.node(name="check", writes=["log"])(lambda state: {"log": [state["item"]]})
    graph.node(name="join")(nothing)
    graph.each("first", "work", over="items", into="item", join="join")
    graph.route("work", "check")
    hf = either.open()
    async with either.worker(hf, graph):
        run = await hf.start(graph, {"items": list(range(50))}, id="r")
        result = await run.result(timeout=60)
    assert result["log"] == [value for n in range(50) for value in (n * 2, "its own")]
    assert "item" not in result
    assert (await run.get()).nodes_run == 102


async def test_no_item_is_no_branch(house: House, hf: Holdfast) -> None:
    graph = each(logs("never"))
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"items": []}, id="r")
        assert await run.result(timeout=60) == {"items": []}
    assert await entries(hf) == [("node", "first"), ("node", "join"), ("finished", None)]


@pytest.mark.parametrize("items", [None, 5, list(range(10_001))])
async def test_what_cannot_be_gone_over_fails_the_run(
    house: House, hf: Holdfast, items: Any
) -> None:
    graph = each(logs("never"))
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"items": items}, id="r")
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=60)
    assert caught.value.kind == "InvalidResult"


async def test_forks_in_forks_and_graphs_in_graphs(house: House, hf: Holdfast) -> None:
    inner = Graph("inner", dict, reducers={"log": "append"})
    inner.node(name="split")(nothing)
    inner.node(name="word", writes=["log"])(lambda state: {"log": [state["word"].upper()]})
    inner.node(name="end", writes=["log"])(lambda state: {"log": [len(state.get("log", []))]})
    inner.each("split", "word", over="words", into="word", join="end")

    # The words are only for the branch itself, and the last one is as good as any.
    outer = Graph("g", dict, reducers={"log": "append", "words": "last"})
    outer.node(name="first")(nothing)
    outer.node(name="lines", writes=["words"])(lambda state: {"words": state["line"].split()})
    outer.include(inner, takes={"words": "words"}, gives={"log": "log"})
    outer.node(name="other", writes=["log"])(lambda state: {"log": ["other"]})
    outer.node(name="side")(nothing)
    outer.node(name="join")(nothing)
    outer.fork("first", ["side", "other"], join="join")
    outer.node(name="gathered", writes=[])(nothing)
    outer.each("side", "lines", over="text", into="line", join="gathered")
    outer.route("lines", "inner")
    graph = Graph("whole", dict, reducers={"log": "append"})
    graph.include(outer, name="part", takes={"text": "text"}, gives={"log": "log"})
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"text": ["a b", "", "c d e"]}, id="r")
        result = await run.result(timeout=60)
    assert result["log"] == ["A", "B", 2, 0, "C", "D", "E", 3, "other"]
    assert result.keys() == {"text", "log"}


# --- how many at once -----------------------------------------------------------------------------


class Crowd:
    """Counts how many are inside at once."""

    def __init__(self) -> None:
        self.inside: Counter[Any] = Counter()
        self.most = 0

    async def visit(self, who: Any) -> None:
        self.inside[who] += 1
        self.most = max(self.most, len(+self.inside))
        for _ in range(5):
            await ManualClock().sleep(0)
        self.inside[who] -= 1


@pytest.mark.parametrize("concurrency", [1, 3, None])
async def test_no_more_branches_run_at_once_than_asked_for(
    house: House, hf: Holdfast, concurrency: int | None
) -> None:
    crowd = Crowd()

    async def work(state: Any) -> Any:
        await crowd.visit(state["item"])
        return {"log": [state["item"]]}

    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="work", writes=["log"])(work)
    graph.node(name="more", writes=["log"])(work)
    graph.node(name="join")(nothing)
    graph.each("first", "work", over="items", into="item", join="join", concurrency=concurrency)
    graph.route("work", "more")
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"items": list(range(12))}, id="r")
        assert len((await run.result(timeout=60))["log"]) == 24
    assert crowd.most == (concurrency or 12)


async def test_whoever_ends_makes_room_while_another_takes_long(house: House, hf: Holdfast) -> None:
    gate, done = Gate(), asyncio.Event()

    async def work(state: Any) -> Any:
        if not state["item"]:
            await gate.pass_through()
        if state["item"] == 5:
            done.set()

    graph = each(work, concurrency=2)
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"items": list(range(6))}, id="r")
        async with asyncio.timeout(60):
            await done.wait()
        assert (gate.entered, gate.inside) == (1, 1)
        gate.open()
        await run.result(timeout=60)


async def test_who_has_begun_goes_before_those_who_have_not(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "CONCURRENT_BRANCHES_MAX", 1)
    order: list[tuple[str, int]] = []

    async def work(state: Any, ctx: Any) -> None:
        order.append((ctx.node, state["item"]))

    graph = Graph("g", dict)
    graph.node(name="first")(nothing)
    graph.node(name="work", writes=[])(work)
    graph.node(name="more", writes=[])(work)
    graph.node(name="join")(nothing)
    graph.each("first", "work", over="items", into="item", join="join")
    graph.route("work", "more")
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"items": [0, 1, 2]}, id="r")
        await run.result(timeout=60)
    assert order == [(node, item) for item in range(3) for node in ("work", "more")]


async def test_a_branch_counts_as_long_as_one_inside_it_runs(house: House, hf: Holdfast) -> None:
    gate, order = Gate(), list[int]()

    async def word(state: Any) -> Any:
        await gate.pass_through()
        return {"log": [state["word"]]}

    async def last(state: Any) -> Any:
        order.append(state["line"])

    inner = Graph("inner", dict, reducers={"log": "append"})
    inner.node(name="split")(nothing)
    inner.node(name="word", writes=["log"])(word)
    inner.node(name="last", writes=[])(last)
    inner.each("split", "word", over="words", into="word", join="last")
    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="line", writes=[])(nothing)
    graph.include(inner, takes={"words": "words", "line": "line"}, gives={"log": "log"})
    graph.node(name="join")(nothing)
    graph.each("first", "line", over="lines", into="line", join="join", concurrency=2)
    graph.route("line", "inner")
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"lines": list(range(7)), "words": ["a", "b", "c"]}, id="r")
        await gate.waited_at(2 * 3)
        kinds = await entries(hf)
        assert kinds.count(("node", "line")) == 2  # nobody else has begun
        gate.open()
        assert (await run.result(timeout=60))["log"] == ["a", "b", "c"] * 7
    assert sorted(order) == list(range(7))
    assert set(order[:2]) == {0, 1}  # who has begun goes first


async def test_a_branch_that_waits_leaves_its_room_to_others(house: House, hf: Holdfast) -> None:
    async def work(state: Any, ctx: Any) -> Any:
        if state["item"] % 2:
            await ctx.wait(signal("go"))
        return {"log": [state["item"]]}

    graph = each(work, concurrency=1)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"items": list(range(6))}, id="r")
        await house.quiet(worker)
        row = await run.get()
        assert (row.status, len(row.waits), row.nodes_run) == ("waiting", 3, 4)
        for number in range(3):
            await run.signal("go", signal_id=f"s{number}")
            await house.quiet(worker)
        assert (await run.result(timeout=60))["log"] == list(range(6))


async def test_a_worker_performs_so_many_at_once_and_no_more(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "CONCURRENT_BRANCHES_MAX", 4)
    crowd = Crowd()

    async def work(state: Any) -> Any:
        await crowd.visit(state["item"])

    graph = each(work)
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"items": list(range(20))}, id="r")
        await run.result(timeout=60)
    assert crowd.most == 4


# --- what it costs --------------------------------------------------------------------------------


async def test_branches_append_together(either: House) -> None:
    """32 branches append in at most a quarter as many Puts as records."""
    hf = either.open()
    meeting = asyncio.Barrier(32)

    async def work(state: Any) -> Any:
        await meeting.wait()
        return {"log": [state["item"]]}

    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="work", writes=["log"])(work)
    graph.node(name="more", writes=["log"])(work)
    graph.node(name="join")(nothing)
    graph.each("first", "work", over="items", into="item", join="join")
    graph.route("work", "more")
    async with either.worker(hf, graph):
        run = await hf.start(graph, {"items": list(range(32))}, id="r")
        assert len((await run.result(timeout=60))["log"]) == 64
        row = await reached(hf, "r", "finished")
    assert row.nodes_run == 2 + 64
    # The first, and then each time the one that was first, and all others; and the join.
    assert puts(hf) == row.journal_records == 1 + 2 + 2 + 1
    assert puts(hf) * 4 <= row.nodes_run
