"""Branches that fail, are tried again, or are nodes of another kind."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import Graph, Holdfast, Retry, signal
from holdfast.errors import InvalidName, RunFailed
from tests.engine.branching import (
    counted,
    each,
    entries,
    fails,
    forked,
    logs,
    nothing,
    through,
    waits_for,
)
from tests.engine.support import (
    Gate,
    House,
    item_of_head,
    reached,
)


async def nothing_of(state: Any, ctx: Any) -> None: ...


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("minds", [True, False])
async def test_a_branch_that_fails_cancels_those_beside_it(either: House, minds: bool) -> None:
    cancelled, inside = [], asyncio.Event()

    async def works(state: Any, ctx: Any) -> Any:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(ctx.branch)
            if minds:
                raise
        return {"log": ["never mind"]}

    async def breaks(state: Any) -> Any:
        await inside.wait()
        raise ValueError("broken")

    hf = either.open()
    graph = forked(works, breaks, waits_for("never"))
    async with either.worker(hf, graph):
        run = await hf.start(graph, id="r")
        with pytest.raises(RunFailed, match="broken") as caught:
            await run.result(timeout=60)
    assert caught.value.kind == "ValueError"
    assert cancelled == ["0.0"]
    kinds = await entries(hf)
    assert kinds[-1] == ("failed", "b1")  # nothing of the others follows
    assert ("node", "b2") not in kinds
    assert ("node", "b0") not in kinds or not minds


async def test_two_that_fail_together_fail_the_run_once(house: House, hf: Holdfast) -> None:
    graph = forked(fails(), fails(TypeError), fails(KeyError))
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        with pytest.raises(RunFailed, match="broken"):
            await run.result(timeout=60)
    assert [kind for kind, _ in await entries(hf)].count("failed") == 1
    assert (await run.get()).resume_failures == 0


async def test_a_branch_that_fails_spares_those_beside_it(either: House) -> None:
    async def join(state: Any, ctx: Any) -> Any:
        return {"failed": [[f.branch, f.node, f.failure.type] for f in ctx.failures]}

    hf = either.open()
    functions = (waits_for("go"), fails(), fails(TypeError), logs("fine"))
    graph = forked(*functions, join=join, on_failure="spare")
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await either.quiet(worker)
        assert [wait.branch for wait in (await run.get()).waits] == ["0.0"]
        await run.signal("go", "went")
        await either.quiet(worker)
        assert await run.result(timeout=60) == {
            "log": ["went", "fine"],
            "failed": [["0.1", "b1", "ValueError"], ["0.2", "b2", "TypeError"]],
        }
    assert [kind for kind, _ in await entries(hf)].count("branch") == 2


async def test_all_may_fail_where_they_spare_each_other(house: House, hf: Holdfast) -> None:
    async def join(state: Any, ctx: Any) -> Any:
        return {"failed": len(ctx.failures)}

    graph = each(fails(), join=join, on_failure="spare")
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"items": list(range(9))}, id="r")
        assert (await run.result(timeout=60))["failed"] == 9


async def test_what_fails_inside_a_branch_takes_along_what_is_inside_it(
    house: House, hf: Holdfast
) -> None:
    stopped, was_stopped = list[str](), asyncio.Event()

    async def works(state: Any, ctx: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.branch)
            was_stopped.set()

    async def join(state: Any, ctx: Any) -> Any:
        return {"failed": [[f.branch, f.node] for f in ctx.failures]}

    gate = Gate()
    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="inner", writes=[])(nothing)
    graph.node(name="works", writes=["log"])(works)
    graph.node(name="breaks", writes=["log"])(fails())
    graph.node(name="inner_join", writes=["log"])(logs("never"))
    graph.node(name="beside", writes=["log"])(through(gate, "beside"))
    graph.node(name="join")(join)
    graph.fork("first", ["inner", "beside"], join="join", on_failure="spare")
    graph.fork("inner", ["works", "breaks"], join="inner_join")
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        await gate.waited_at()
        async with asyncio.timeout(60):
            await was_stopped.wait()
        gate.open()
        assert await run.result(timeout=60) == {
            "log": ["beside"],
            "failed": [["0.0", "breaks"]],
        }
    assert stopped == ["0.0/0.0"]
    assert gate.entered == 1  # who is spared is not begun again


async def test_two_inside_a_branch_that_fail_together_fail_it_once(
    house: House, hf: Holdfast
) -> None:
    inner = Graph("inner", dict)
    inner.node(name="split")(nothing)
    inner.node(name="left", writes=[])(fails())
    inner.node(name="right", writes=[])(fails())
    inner.node(name="end")(nothing)
    inner.fork("split", ["left", "right"], join="end")
    graph = Graph("g", dict)
    graph.node(name="first")(nothing)
    graph.include(inner, takes={}, gives={})
    graph.node(name="beside", writes=[])(nothing)
    graph.node(name="join")(nothing)
    graph.fork("first", ["inner", "beside"], join="join", on_failure="spare")
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        assert await run.result(timeout=60) == {}
    assert [kind for kind, _ in await entries(hf)].count("branch") == 1
    assert (await run.get()).resume_failures == 0


@pytest.mark.parametrize("first_seconds", [1.0, 600.0])
async def test_branches_are_tried_again_each_by_itself(either: House, first_seconds: float) -> None:
    attempts: Counter[str] = Counter()

    async def shaky(state: Any, ctx: Any) -> Any:
        attempts[ctx.branch] += 1
        if ctx.attempt <= state["item"]:
            raise ValueError
        return {"log": [ctx.attempt]}

    hf = either.open()
    retry = Retry(attempts=4, backoff=first_seconds, factor=1, jitter=0)
    graph = each(shaky, nodes={"retry": retry})
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {"items": [0, 3, 1]}, id="r")
        for _ in range(3):
            if first_seconds > 100:
                await either.quiet(worker)  # parked on a timer
                assert (await run.get()).reason == "retry"
            else:
                await either.clock.asleep(4)  # held in place
            either.clock.advance(first_seconds)
        assert (await run.result(timeout=60))["log"] == [1, 4, 2]
    assert attempts == {"0.0": 1, "0.1": 4, "0.2": 2}


async def test_the_last_attempt_of_a_branch_fails_the_run(house: House, hf: Holdfast) -> None:
    graph = forked(
        fails(), waits_for("never"), nodes={"retry": Retry(attempts=2, backoff=0, jitter=0)}
    )
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
    assert [kind for kind, _ in await entries(hf)] == ["node", "attempt", "failed"]


async def test_a_branch_that_takes_too_long_is_one_that_fails(house: House, hf: Holdfast) -> None:
    async def join(state: Any, ctx: Any) -> Any:
        return {"failed": [f.failure.type for f in ctx.failures]}

    async def stuck(state: Any) -> Any:
        await asyncio.Event().wait()

    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="stuck", writes=[], timeout=0.05)(stuck)
    graph.node(name="fine", writes=["log"])(logs("fine"))
    graph.node(name="join")(join)
    graph.fork("first", ["stuck", "fine"], join="join", on_failure="spare")
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        assert await run.result(timeout=60) == {"log": ["fine"], "failed": ["NodeTimedOut"]}


async def test_what_was_not_declared_to_be_written_fails_its_branch(
    house: House, hf: Holdfast
) -> None:
    async def writes_more(state: Any) -> Any:
        return {"log": ["x"], "other": 1}

    graph = forked(writes_more, logs("fine"))
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        with pytest.raises(RunFailed, match="'other'") as caught:
            await run.result(timeout=60)
    assert caught.value.kind == "InvalidResult"


@pytest.mark.parametrize("from_node", [None, "b1", "first", "join", "gone"])
async def test_a_run_that_failed_in_a_branch_is_retried(
    house: House, hf: Holdfast, from_node: str | None
) -> None:
    broken, counts = [True], Counter[str]()

    async def first(state: Any, ctx: Any) -> Any:
        counts["first"] += 1

    async def mendable(state: Any, ctx: Any) -> Any:
        if broken:
            raise ValueError("broken")
        return {"log": [ctx.visit]}

    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(first)
    graph.node(name="b0", writes=["log"])(counted(waits_for("go"), counts, "b0"))
    graph.node(name="b1", writes=["log"])(counted(nothing_of, counts, "b1"))
    graph.node(name="b1b", writes=["log"])(mendable)
    graph.node(name="join")(nothing)
    graph.fork("first", ["b0", "b1"], join="join")
    graph.route("b1", "b1b")
    async with house.worker(hf, graph, resumes_max=1) as worker:
        run = await hf.start(graph, id="r")
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
        broken.clear()
        await run.retry(from_node=from_node)
        await house.quiet(worker)
        row = await run.get()
        if from_node == "gone":
            assert row.status == "quarantined"
            return
        if from_node == "join":
            assert await run.result(timeout=60) == {}
            return
        assert row.status == "waiting"
        await run.signal("go", "went")
        await house.quiet(worker)
        result = await run.result(timeout=60)
    visit = {None: 1, "b1": 3, "first": 1}[from_node]
    assert result == {"log": ["went", visit]}
    assert counts["first"] == (2 if from_node == "first" else 1)
    assert counts["b1"] == (1 if from_node is None else 2)


async def test_a_retry_from_a_branch_that_is_over_fails_with_a_reason(
    house: House, hf: Holdfast
) -> None:
    over = asyncio.Event()

    async def waits_until_over(state: Any) -> Any:
        await over.wait()
        raise ValueError

    async def ends(state: Any) -> Any:
        return {"log": ["ended"]}

    graph = forked(ends, waits_until_over)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        async with asyncio.timeout(60):
            while ("node", "b0") not in await entries(hf):
                pass
        over.set()
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
        await run.retry(from_node="b0")
        await house.quiet(worker)
        with pytest.raises(RunFailed, match="no open branch has this node") as caught:
            await run.result(timeout=60)
        assert caught.value.kind == "NotRetryable"


# --- the kinds of nodes ---------------------------------------------------------------------------


async def test_plain_functions_run_side_by_side_in_branches(house: House, hf: Holdfast) -> None:
    import threading

    meeting = threading.Barrier(4)

    def work(state: Any, ctx: Any) -> Any:
        meeting.wait(60)
        got = ctx.wait(signal(f"go{state['item']}"))
        return {"log": [got]}

    graph = each(work)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"items": list(range(4))}, id="r")
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
        meeting = threading.Barrier(1)
        for number in (2, 0, 3, 1):
            await run.signal(f"go{number}", number)
            await house.quiet(worker)
        assert (await run.result(timeout=60))["log"] == [0, 1, 2, 3]


async def test_a_node_of_a_branch_that_may_not_wait_fails_it(house: House, hf: Holdfast) -> None:
    async def join(state: Any, ctx: Any) -> Any:
        return {"failed": [f.failure.type for f in ctx.failures]}

    graph = forked(
        waits_for("a"), logs("fine"), join=join, on_failure="spare", nodes={"pausable": "no"}
    )
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        assert await run.result(timeout=60) == {"log": ["fine"], "failed": ["NotPausable"]}


@pytest.mark.parametrize(
    ("pausable", "records"),
    [("no", 1), ("blocking", 1), ("yes", None)],
)
async def test_what_needs_no_checkpoint_shares_the_next_record(
    house: House, hf: Holdfast, pausable: Any, records: int | None
) -> None:
    graph = forked(logs("a"), logs("b"), logs("c"), nodes={"pausable": pausable})
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        assert await run.result(timeout=60) == {"log": ["a", "b", "c"]}
        row = await reached(hf, "r", "finished")
    if records is None:
        assert 2 <= row.journal_records <= 4
    else:
        assert row.journal_records == records


async def test_a_node_that_may_wait_has_a_checkpoint_after_it_only_if_it_did(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()

    async def may_wait(state: Any, ctx: Any) -> Any:
        if state["item"]:
            await ctx.wait(signal("go"))
        return {"log": [state["item"]]}

    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first", pausable="no")(nothing)
    graph.node(name="work", writes=["log"], pausable="blocking")(may_wait)
    graph.node(name="stop", writes=[], pausable="no")(through_nothing(gate))
    graph.node(name="join")(nothing)
    graph.each("first", "work", over="items", into="item", join="join")
    graph.route("work", "stop")
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"items": [0, 1]}, id="r")
        await gate.waited_at(1)
        assert [kind for kind, _ in await entries(hf)] == []
        await run.signal("go")
        await gate.waited_at(2)
        assert [kind for kind, _ in await entries(hf)] == ["node", "node", "signal", "node"]
        gate.open()
        await run.result(timeout=60)


def through_nothing(gate: Gate) -> Any:
    async def node(state: Any) -> Any:
        await gate.pass_through()

    return node


async def test_a_visit_has_a_key_of_its_own_in_every_branch_and_after_a_resume(
    house: House,
) -> None:
    keys: dict[str, set[str]] = {}

    async def work(state: Any, ctx: Any) -> Any:
        keys.setdefault(f"{ctx.branch} {ctx.node}", set()).add(ctx.key)
        if state["item"] == 1:
            await ctx.wait(signal("go"))

    graph = Graph("g", dict)
    graph.node(name="first")(work_of_first(keys))
    graph.node(name="work", writes=[])(work)
    graph.node(name="again", writes=[])(work)
    graph.node(name="join")(work_of_first(keys))
    graph.each("first", "work", over="items", into="item", join="join")
    graph.route("work", "again")
    first, second = house.open(), house.open()
    async with house.worker(first, graph) as worker:
        await first.start(graph, {"items": list(range(4))}, id="r")
        await house.quiet(worker)
    async with house.worker(second, graph) as worker:
        for number in range(2):
            await second.run("r").signal("go", signal_id=str(number))
            await house.quiet(worker)
        await second.run("r", graph=graph).result(timeout=60)
    assert len(keys) == 10
    every = [key for some in keys.values() for key in some]
    assert len(set(every)) == len(every) == 10


def work_of_first(keys: dict[str, set[str]]) -> Any:
    async def node(state: Any, ctx: Any) -> Any:
        keys.setdefault(f"{ctx.branch} {ctx.node}", set()).add(ctx.key)

    return node


async def test_a_retry_may_name_a_node_of_a_graph_inside(house: House, hf: Holdfast) -> None:
    counts = Counter[str]()

    async def breaks_once(state: Any, ctx: Any) -> None:
        if counts["last"] == 1:
            raise ValueError("broken")

    inner = Graph("inner", dict)
    inner.node(name="one")(counted(nothing_of, counts, "one"))
    inner.node(name="last")(counted(breaks_once, counts, "last"))
    inner.route("one", "last")
    graph = Graph("g", dict)
    graph.node(name="first")(counted(nothing_of, counts, "first"))
    graph.route("first", graph.include(inner, name="part"))
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
        for name in ("part/", "/one", "part//one", "part/one#", "/".join(["part"] * 300)):
            with pytest.raises(InvalidName):
                await run.retry(from_node=name)
        await run.retry(from_node="part/one")
        await run.result(timeout=60)
    assert counts == {"first": 1, "one": 2, "last": 2}


# --- what a branch that failed leaves behind ------------------------------------------------------


def flaky(counts: Counter[str]) -> Any:
    """Return a node that waits for a signal, and fails as soon as it would get it."""

    async def node(state: Any, ctx: Any) -> Any:
        counts["flaky"] += 1
        if counts["flaky"] > 1:
            raise ValueError("broken")
        return {"log": [await ctx.wait(signal("go"))]}

    return node


async def test_what_waited_in_a_branch_that_failed_waits_no_more(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()

    async def breaks(state: Any) -> None:
        await gate.pass_through()
        raise ValueError("broken")

    waiting = [f"w{number}" for number in range(9)]  # more than a row has room for
    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first", pausable="no")(nothing)
    graph.node(name="outer", pausable="no")(nothing)
    for name in waiting:
        graph.node(name=name, writes=[])(waits_for(name))
    graph.node(name="breaks")(breaks)
    graph.node(name="inner", pausable="no")(nothing)
    graph.node(name="other", writes=["log"])(waits_for("go"))
    graph.node(name="join")(nothing)
    graph.fork("first", ["outer", "other"], join="join", on_failure="spare")
    graph.fork("outer", [*waiting, "breaks"], join="inner")
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        await gate.waited_at()  # the last to begin: all others wait by now
        gate.open()
        row = await reached(hf, "r", "waiting")
        assert [wait.signal for wait in row.waits] == ["go"]
        await run.signal("go", "went")
        assert await run.result(timeout=60) == {"log": ["went"]}


async def test_a_signal_that_a_failing_branch_did_not_take_is_taken_by_another(
    house: House, hf: Holdfast
) -> None:
    graph = forked(flaky(Counter()), waits_for("go"), on_failure="spare")
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        await reached(hf, "r", "waiting")
        await run.signal("go", "went")
        assert await run.result(timeout=60) == {"log": ["went"]}


async def test_a_row_shows_no_wait_of_a_branch_that_failed(house: House, hf: Holdfast) -> None:
    gate = Gate()
    graph = forked(flaky(Counter()), through(gate), on_failure="spare")
    worker = house.worker(hf, graph)
    async with worker:
        run = await hf.start(graph, id="r")
        await gate.waited_at()
        await run.signal("go")
        async with asyncio.timeout(60):
            while ("branch", "b0") not in await entries(hf):
                pass
        await worker.stop(drain=0)
    row = await item_of_head(house.open(), "r")
    assert (row["reason"], row.get("waits")) == ("draining", None)
