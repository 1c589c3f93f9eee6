"""Children: their results and failures come back once, and no node makes one twice."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from holdfast import Graph, Holdfast, Retry, signal
from holdfast.errors import (
    AlreadyExists,
    InvalidGraph,
    InvalidInput,
    InvalidName,
    InvalidRequest,
    NotPausable,
    RunCancelled,
    RunExpired,
    RunFailed,
    RunNotFound,
    RunQuarantined,
)
from holdfast.storage import Blobs, Meter, Put, Store
from holdfast.storage import open as open_store
from holdfast.storage.blobs import BlobEngine
from holdfast.storage.operations import WriteItem
from tests.engine.families import (
    ASKS,
    BREAKS,
    PARENT,
    TWICE,
    attempted,
    named_children,
    starting,
    statuses,
)
from tests.engine.staging import staged
from tests.engine.support import (
    RUN_PURPOSES,
    Gate,
    House,
    calls_of,
    incompressible,
    item_of_head,
    journal_items,
    kill,
    run_units,
    store_of,
)

# --- what comes back ------------------------------------------------------------------------------


async def test_the_result_of_a_child_comes_back(either: House) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(TWICE, {"n": 21})}

    graph, hf = starting(ask), either.open()
    async with either.worker(hf, graph, TWICE) as worker:
        run = await hf.start(graph, id=PARENT)
        assert await run.result(timeout=60) == {"got": {"n": 42}}
        await either.quiet(worker)
    (child,) = await hf.run(PARENT).children()
    assert (child.graph, child.status, child.tenant) == ("twice", "finished", "default")
    assert (await hf.run(child.id).get()).parent == PARENT
    assert (await hf.run(PARENT).get()).parent is None
    assert await hf.run(child.id).children() == []
    kinds = [entry.kind for entry in (await hf.run(PARENT).history()).entries]
    assert kinds == ["child", "signal", "node", "finished"]
    # Nothing is left to be done for either.
    assert [(await hf.run(id).get()).due_at for id in (PARENT, child.id)] == [None, None]


async def test_a_result_is_a_state_of_the_childs_type(house: House, hf: Holdfast) -> None:
    graph, seen = Graph("typed", dict), []

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        child = await ctx.start(TWICE, {"n": 1})
        seen.append((repr(child), await child.result()))

    async with house.worker(hf, graph, TWICE):
        await (await hf.start(graph, id=PARENT)).result(timeout=60)
    (child,) = await hf.run(PARENT).children()
    assert seen == [(f"<child {child.id!r}>", {"n": 2})]


async def test_a_child_may_be_run_by_other_workers(either: House) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(TWICE, {"n": 2})}

    graph, first, second = starting(ask), either.open(), either.open()
    async with either.worker(first, graph) as parents, either.worker(second, TWICE) as children:
        run = await first.start(graph, id=PARENT)
        await either.quiet(parents, children)
        await either.move(1, parents, children)
        await either.move(1, parents, children)
        assert await run.result(timeout=60) == {"got": {"n": 4}}


@pytest.mark.parametrize("how", ["failed", "cancelled", "expired", "quarantined"])
async def test_how_a_child_ended_comes_back_once(house: House, how: str) -> None:
    raised = {
        "failed": RunFailed,
        "cancelled": RunCancelled,
        "expired": RunExpired,
        "quarantined": RunQuarantined,
    }[how]
    runs: list[BaseException] = []

    async def ask(state: Any, ctx: Any) -> Any:
        child = await ctx.start(BREAKS if how == "failed" else ASKS, id="child")
        try:
            await child.result()
        except raised as error:
            runs.append(error)
            await ctx.wait(signal("more"))  # the node runs again, and finds it in the journal
        return {"told": type(runs[-1]).__name__}

    graph, hf = starting(ask), house.open()
    async with house.worker(hf, graph, ASKS, BREAKS, resumes_max=1) as worker:
        run = await hf.start(graph, id=PARENT, expires=1000)
        await house.quiet(worker)
        if how == "cancelled":
            await hf.run("child").cancel("no longer wanted")
        elif how == "expired":
            await hf.run(PARENT).extend(5000)
            await house.move(1001, worker)
        elif how == "quarantined":
            head = await item_of_head(hf, "child")
            broken = {"PK": head["PK"], "SK": f"J#{head['generation']}#00000001"}
            await store_of(hf).table.write_many([Put({**broken, "ttl": head["ttl"]})])
            await hf.run("child").signal("answer")
        await house.quiet(worker)
        await house.move(1, worker)
        await run.signal("more")
        assert await run.result(timeout=60) == {"told": raised.__name__}
    assert len(runs) == 2
    assert str(runs[0]) == str(runs[1])
    if how == "failed":
        assert "ValueError: out of paper" in str(runs[0])
    taken = [entry for entry in (await hf.run(PARENT).history()).entries if entry.kind == "signal"]
    assert [entry.details["name"] for entry in taken] == ["%child.child", "more"]


async def test_a_failure_that_is_not_caught_fails_the_parent(either: House) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        await ctx.run(BREAKS)

    graph, hf = starting(ask), either.open()
    async with either.worker(hf, graph, BREAKS):
        run = await hf.start(graph, id=PARENT)
        told = r"RunFailed: run .* failed at node 'breaks' \(.*\): ValueError: out of paper"
        with pytest.raises(RunFailed, match=told):
            await run.result(timeout=60)


async def test_many_children_at_once(either: House) -> None:
    """More than a row has room for: what they wait for stands in the journal."""
    count, entered = 12, 0

    async def ask(state: Any, ctx: Any) -> Any:
        nonlocal entered
        entered += 1
        children = await asyncio.gather(*(ctx.start(TWICE, {"n": n}) for n in range(count)))
        done = await asyncio.gather(*(child.result() for child in children))
        return {"got": [state["n"] for state in done]}

    graph, hf = starting(ask), either.open()
    async with either.worker(hf, graph, TWICE, concurrency=5) as worker:
        run = await hf.start(graph, id=PARENT)
        assert await run.result(timeout=60) == {"got": [2 * n for n in range(count)]}
        await either.quiet(worker)
    assert await statuses(hf) == ["finished"] * count
    assert entered <= count + 1
    ids = [entry.details["id"] for entry in (await hf.run(PARENT).history()).entries[:count]]
    assert sorted(ids) == sorted(child.id for child in await hf.run(PARENT).children())


async def test_plain_functions_have_children_too(house: House, hf: Holdfast) -> None:
    graph = Graph("plain", dict)

    @graph.node
    def ask(state: Any, ctx: Any) -> Any:
        child = ctx.start(TWICE, {"n": 4}, id="child")
        return {"first": ctx.run(TWICE, {"n": 1}), "second": child.result()}

    @graph.node
    def again(state: Any, ctx: Any) -> Any:
        child = ctx.start(ASKS, id="asked")
        return {"third": ctx.child(child.id, ASKS).result()}

    graph.route(ask, again)
    async with house.worker(hf, graph, TWICE, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        await hf.run("asked").signal("answer", "yes")
        got = await run.result(timeout=60)
    assert got == {"first": {"n": 2}, "second": {"n": 8}, "third": {"answer": "yes"}}


async def test_a_parent_that_waits_costs_nothing(house: House) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(ASKS, id="child")}

    graph, hf = starting(ask), house.open()
    async with house.worker(hf, graph, ASKS) as worker:
        run = await hf.start(graph, id=PARENT, expires=100_000)
        await house.quiet(worker)
        row = await run.get()
        assert (row.status, row.owner, row.reason) == ("waiting", None, "signal")
        assert [wait.signal for wait in row.waits] == ["%child.child"]
        before = calls_of(hf, *RUN_PURPOSES)
        for _ in range(10):
            await house.move(5_000, worker)
        assert calls_of(hf, *RUN_PURPOSES) == before
        await hf.run("child").signal("answer", "late")
        assert await run.result(timeout=60) == {"got": {"answer": "late"}}


# --- no node makes one twice ----------------------------------------------------------------------


async def test_a_node_that_is_tried_again_finds_its_child(either: House) -> None:
    """What it asks for the second time does not count: the first child stands."""
    graph, hf = Graph("again", dict), either.open()

    @graph.node(retry=Retry(attempts=3, backoff=0))
    async def ask(state: Any, ctx: Any) -> Any:
        child = await ctx.start(TWICE, {"n": ctx.attempt}, id=f"try-{ctx.attempt}")
        if ctx.attempt < 3:
            raise ConnectionError
        return {"got": await child.result()}

    async with either.worker(hf, graph, TWICE) as worker:
        run = await hf.start(graph, id=PARENT)
        assert await run.result(timeout=60) == {"got": {"n": 2}}
        await either.quiet(worker)
    assert [child.id for child in await hf.run(PARENT).children()] == ["try-1"]
    assert await named_children(hf) == ["try-1"]


async def test_once_the_journal_has_it_nothing_is_asked_or_written(house: House) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        children = [await ctx.start(ASKS, {"n": n}) for n in range(3)]
        await ctx.wait(signal("go on"))
        return {"ids": [child.id for child in children]}

    graph, hf = starting(ask), house.open()
    async with house.worker(hf, graph, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
    ids = [child.id for child in await hf.run(PARENT).children()]
    later, stage = staged(house)
    touched: list[str] = []
    stage.lose(lambda operation: bool(touched.append(repr(operation))), carried_out=True)
    async with house.worker(later, graph) as worker:
        await later.run(PARENT).signal("go on")
        state = await run.result(timeout=60)
    assert sorted(state["ids"]) == sorted(ids)
    before_end = [one for one in touched if "CHILD#" in one or any(id in one for id in ids)]
    # At its end it looks for its children, and cancels them: first of all it lists them.
    assert "QueryItems" in before_end[0]


async def test_a_node_without_a_checkpoint_finds_its_child_after_a_crash(house: House) -> None:
    """Nothing of it is in the journal: the id follows from the visit."""
    gate, first = Gate(), house.open()

    async def ask(state: Any, ctx: Any) -> Any:
        child = await ctx.start(ASKS, {"n": 1})
        if not gate.entered:
            await gate.pass_through()
        return {"child": child.id}

    graph = starting(ask, pausable="no")
    worker = house.worker(first, graph, ASKS, lease=1000)
    await worker.start()
    run = await first.start(graph, id=PARENT)
    await gate.waited_at()
    kill(worker)
    (child,) = await first.run(PARENT).children()
    async with house.worker(house.open(), graph, ASKS) as heir:
        await house.move(1001, heir)
        assert await run.result(timeout=60) == {"child": child.id}
        await house.quiet(heir)
    assert [one.id for one in await first.run(PARENT).children()] == [child.id]


@pytest.mark.parametrize("pausable", ["no", "blocking"])
async def test_what_a_node_may_wait_for(house: House, hf: Holdfast, pausable: Any) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        child = await ctx.start(ASKS, id="child")
        return {"got": await child.result()}

    graph = starting(ask, pausable=pausable)
    async with house.worker(hf, graph, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        if pausable == "no":
            with pytest.raises(RunFailed) as failed:
                await run.result(timeout=60)
            assert failed.value.kind == NotPausable.__name__
            assert (await hf.run("child").get()).status == "cancelled"
            return
        await hf.run("child").signal("answer", 1)
        assert await run.result(timeout=60) == {"got": {"answer": 1}}


async def test_whoever_awaits_a_child_twice_gets_the_same(either: House) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        child = await ctx.start(ASKS, id="child")
        at_once = await asyncio.gather(child.result(), ctx.child("child").result())
        return {"got": [*at_once, await child.result()]}

    graph, hf = starting(ask), either.open()
    async with either.worker(hf, graph, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        await either.quiet(worker)
        await hf.run("child").signal("answer", "yes")
        assert await run.result(timeout=60) == {"got": [{"answer": "yes"}] * 3}


# --- children of other nodes ----------------------------------------------------------------------


async def test_a_later_node_awaits_what_an_earlier_one_started(either: House) -> None:
    async def begin(state: Any, ctx: Any) -> Any:
        return {"child": (await ctx.start(TWICE, {"n": 5})).id}

    async def end(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.child(state["child"], TWICE).result()}

    graph, hf = starting(begin, end), either.open()
    async with either.worker(hf, graph, TWICE):
        run = await hf.start(graph, id=PARENT)
        assert (await run.result(timeout=60))["got"] == {"n": 10}


async def test_only_ones_own_children_can_be_awaited(house: House, hf: Holdfast) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        errors = [
            await attempted(ctx.child("stranger").result()),
            await attempted(ctx.child("nobody").result()),
            await attempted(ctx.child(PARENT).result()),
        ]
        with pytest.raises(InvalidName):
            ctx.child("no#id")
        return {"errors": errors}

    graph = starting(ask)
    async with house.worker(hf, graph, TWICE):
        await (await hf.start(TWICE, {"n": 1}, id="stranger")).result(timeout=60)
        run = await hf.start(graph, id=PARENT)
        assert await run.result(timeout=60) == {"errors": [RunNotFound.__name__] * 3}


async def test_an_end_that_an_earlier_visit_took_is_not_waited_for(house: House) -> None:
    async def first(state: Any, ctx: Any) -> Any:
        child = await ctx.start(ASKS, id="child")
        return {"got": await child.result()}

    async def second(state: Any, ctx: Any) -> Any:
        child = await ctx.start(ASKS, id="child")
        return {"error": await attempted(child.result())}

    graph, hf = starting(first, second), house.open()
    async with house.worker(hf, graph, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        await hf.run("child").signal("answer", 1)
        state = await run.result(timeout=60)
    assert state == {"got": {"answer": 1}, "error": "ResultTaken"}


async def test_an_end_is_known_before_the_childs_row_says_so(house: House) -> None:
    """It tells its parent first; until its row says so, its journal does."""

    async def first(state: Any, ctx: Any) -> Any:
        await ctx.run(ASKS, id="child")

    async def second(state: Any, ctx: Any) -> Any:
        return {"error": await attempted(ctx.child("child").result())}

    graph, hf = starting(first, second), house.open()
    other, stage = staged(house)
    hold = stage.hold(
        lambda operation: (
            isinstance(operation, WriteItem)
            and getattr(operation.write, "set", {}).get("status") == "finished"
        )
    )
    async with house.worker(hf, graph) as parents, house.worker(other, ASKS) as children:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(parents, children)
        await house.move(1, parents, children)
        await other.run("child").signal("answer", 1)
        await hold.reached()
        await house.move(1, parents)
        assert await run.result(timeout=60) == {"error": "ResultTaken"}
        hold.release()
        await house.quiet(parents, children)


@pytest.mark.parametrize("crash", [False, True], ids=["alive", "resumed"])
async def test_of_two_branches_that_await_a_child_one_is_told(house: House, crash: bool) -> None:
    gate = Gate()
    graph = Graph("branches", dict, reducers={"told": "append"})

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        await ctx.start(ASKS, id="child")

    async def wait(state: Any, ctx: Any) -> Any:
        said = await attempted(ctx.child("child").result())
        if crash and said == "none":
            await gate.pass_through()
        return {"told": [said]}

    for name in ("left", "right"):
        graph.node(name=name, writes=["told"])(wait)

    @graph.node
    async def end(state: Any) -> Any: ...

    graph.fork(begin, ["left", "right"], join=end)
    hf = house.open()
    worker = house.worker(hf, graph, ASKS, lease=1000)
    await worker.start()
    run = await hf.start(graph, id=PARENT)
    await house.quiet(worker)
    await hf.run("child").signal("answer", 1)
    if crash:
        await gate.waited_at()
        kill(worker)
        gate.open()
        async with house.worker(house.open(), graph) as heir:
            await house.move(1001, heir)
    state = await run.result(timeout=60)
    await worker.stop()
    assert sorted(state["told"]) == ["ResultTaken", "none"]


async def test_children_of_branches(either: House) -> None:
    """Each branch has visits of its own, so the same number of each is another child."""
    graph = Graph("wide", dict, reducers={"got": "append"})

    @graph.node
    async def begin(state: Any) -> Any: ...

    @graph.node(writes=["got"])
    async def each(state: Any, ctx: Any) -> Any:
        return {"got": [(await ctx.run(TWICE, {"n": state["item"]}))["n"]]}

    @graph.node
    async def end(state: Any) -> Any: ...

    graph.each(begin, each, over="items", into="item", join=end)
    hf = either.open()
    async with either.worker(hf, graph, TWICE) as worker:
        run = await hf.start(graph, {"items": list(range(10)), "got": []}, id=PARENT)
        state = await run.result(timeout=60)
        await either.quiet(worker)
    assert state["got"] == [2 * n for n in range(10)]
    assert await statuses(hf) == ["finished"] * 10


# --- ids, and what cannot be started --------------------------------------------------------------


async def test_a_strangers_id_is_refused_and_nothing_is_written(either: House) -> None:
    hf = either.open()
    errors: list[BaseException] = []
    writes: list[int] = []

    async def ask(state: Any, ctx: Any) -> Any:
        before = stage.writes
        for id in ("stranger", PARENT):
            with pytest.raises(AlreadyExists, match="not a child of this run") as refused:
                await ctx.start(TWICE, {"n": 1}, id=id)
            errors.append(refused.value)
        writes.append(stage.writes - before)

    graph = starting(ask)
    await hf.start(TWICE, {"n": 1}, id="stranger")
    inner, stage = staged(either)
    async with either.worker(inner, graph):
        await (await inner.start(graph, id=PARENT)).result(timeout=60)
    assert len(errors) == 2
    assert writes == [0]
    assert await hf.run(PARENT).children() == []
    assert (await hf.run("stranger").get()).parent is None


async def test_bad_requests_are_refused_before_anything_is_written(house: House) -> None:
    typed = Graph("typed", dict[str, int])
    typed.node(name="node")(lambda state: None)
    nothing = Graph("nothing", dict)
    hf, stage = staged(house)
    writes: list[int] = []

    async def ask(state: Any, ctx: Any) -> Any:
        before = stage.writes
        errors = [
            await attempted(ctx.start("twice")),
            await attempted(ctx.start(nothing)),
            await attempted(ctx.start(TWICE, [1])),
            await attempted(ctx.start(TWICE, {"n": object()})),
            await attempted(ctx.start(TWICE, id="no#id")),
            await attempted(ctx.start(TWICE, id="%child.x")),
            await attempted(ctx.start(TWICE, labels={"a": "#"})),
            await attempted(ctx.start(TWICE, pool="")),
        ]
        writes.append(stage.writes - before)
        return {"errors": errors}

    graph = starting(ask)
    async with house.worker(hf, graph):
        state = await (await hf.start(graph, id=PARENT)).result(timeout=60)
    assert state["errors"] == [
        InvalidRequest.__name__,
        InvalidGraph.__name__,
        *[InvalidInput.__name__] * 2,
        *[InvalidName.__name__] * 4,
    ]
    assert writes == [0]
    assert await named_children(hf) == []


async def test_nobody_else_can_tell_of_a_child(house: House, hf: Holdfast) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        with pytest.raises(InvalidName):
            await ctx.wait(signal("%child.child"))
        return {"got": await ctx.run(ASKS, id="child")}

    graph = starting(ask)
    async with house.worker(hf, graph, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        with pytest.raises(InvalidName, match="'%'"):
            await run.signal("%child.child", {"status": "finished"})
        with pytest.raises(InvalidName, match="'%'"):
            await hf.start(graph, id="%child.child")
        assert (await run.get()).status == "waiting"


@pytest.mark.parametrize("id", ["文" * 42, "p" * 128])
async def test_the_ids_of_parents_may_be_long(house: House, hf: Holdfast, id: str) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(TWICE, {"n": 1})}

    graph = starting(ask)
    async with house.worker(hf, graph, TWICE):
        run = await hf.start(graph, id=id)
        assert await run.result(timeout=60) == {"got": {"n": 2}}
    (child,) = await hf.run(id).children()
    assert child.id[:20] == id[:20]
    assert (await hf.run(child.id).get()).status == "finished"  # it is an id like any other


# --- whose they are -------------------------------------------------------------------------------


async def test_what_a_child_has_of_its_parent_and_what_of_its_own(either: House) -> None:
    hf = either.open(tenant="acme")

    async def ask(state: Any, ctx: Any) -> Any:
        labels = {"kind": "page"}
        await ctx.run(TWICE, {"n": 1}, id="plain")
        await ctx.run(TWICE, {"n": 1}, id="pooled", labels=labels, pool="gpu")

    graph = starting(ask)
    async with either.worker(hf, graph, TWICE, pools=["gpu", None]) as worker:
        run = await hf.start(graph, id=PARENT, user="ann", labels={"a": "b"}, expires=1000)
        await run.result(timeout=60)
        await either.quiet(worker)
    parent, plain, pooled = [await hf.run(id).get() for id in (PARENT, "plain", "pooled")]
    assert plain.user == pooled.user == parent.user is not None
    assert (plain.labels, pooled.labels) == ({}, {"kind": "page", "pool": "gpu"})
    assert {row.tenant for row in (plain, pooled)} == {"acme"}
    assert plain.expires_at == parent.expires_at
    # Nobody else sees any of it.
    other = either.open(tenant="other")
    with pytest.raises(RunNotFound):
        await other.run(PARENT).children()
    with pytest.raises(RunNotFound):
        await other.run("plain").get()


async def test_runs_of_other_tenants_are_nobodys_children(house: House) -> None:
    """The same ids in two tenants are two families."""

    async def ask(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(ASKS, id="child")}

    graph, hf = starting(ask), house.open()
    async with house.worker(hf, graph, ASKS) as worker:
        for tenant in ("one", "two"):
            await hf.start(graph, id=PARENT, tenant=tenant)
        await house.quiet(worker)
        await hf.run("child", tenant="one").signal("answer", 1)
        result = await hf.run(PARENT, tenant="one").result(timeout=60)
        await house.quiet(worker)
        assert result == {"got": {"answer": 1}}
        assert (await hf.run(PARENT, tenant="two").get()).status == "waiting"
        assert (await hf.run("child", tenant="two").get()).status == "waiting"


async def test_a_childs_graph_may_be_left_to_other_pools(house: House, hf: Holdfast) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(TWICE, {"n": 1}, id="child", pool="gpu")}

    graph = starting(ask)
    async with house.worker(hf, graph, TWICE) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.move(1, worker)
        assert (await hf.run("child").get()).owner is None
        async with house.worker(house.open(), TWICE, pools=["gpu"]) as other:
            await house.move(1, worker, other)
            await house.move(1, worker, other)
            assert await run.result(timeout=60) == {"got": {"n": 2}}


async def test_a_session_waits_for_a_parent_and_not_for_its_children(house: House) -> None:
    """A child has no ticket of the session: its parent would wait for it, and it for its parent."""
    hf, order = house.open(), list[str]()

    async def ask(state: Any, ctx: Any) -> Any:
        await ctx.run(ASKS, id=f"child-{ctx.run_id}")
        order.append(ctx.run_id)

    graph = starting(ask)
    async with house.worker(hf, graph, ASKS) as worker:
        for id in ("first", "second"):
            await hf.start(graph, id=id, session="chat")
        await house.quiet(worker)
        assert (await hf.run("second").get()).reason == "queued"
        assert (await hf.run("child-first").get()).session is None
        await hf.run("child-first").signal("answer")
        await house.quiet(worker)
        await hf.run("child-second").signal("answer")
        await hf.run("second").result(timeout=60)
    assert order == ["first", "second"]


async def test_an_input_is_never_taken_for_the_end_of_a_child(house: House, hf: Holdfast) -> None:
    """A start that would answer what the one in front waits for does not speak for its child."""

    async def ask(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(ASKS, id="child")}

    graph = starting(ask)
    async with house.worker(hf, graph, ASKS) as worker:
        first = await hf.start(graph, id="first", session="chat")
        await house.quiet(worker)
        second = await hf.start(
            graph, {"status": "finished"}, id="second", session="chat", on_busy="promote"
        )
        assert second.id == "second"
        assert (await second.get()).reason == "queued"
        await house.quiet(worker)
        assert (await first.get()).status == "waiting"


async def test_a_run_in_memory_is_written_down_for_its_children(house: House) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(TWICE, {"n": 1}, id="child")}

    graph, hf = starting(ask), house.open()
    async with house.worker(hf, graph, TWICE) as worker:
        run = await hf.start(graph, id=PARENT, durability="on_pause")
        assert await run.result(timeout=60) == {"got": {"n": 2}}
        await house.quiet(worker)
    assert (await hf.run("child").get()).parent == PARENT
    assert await statuses(hf) == ["finished"]


async def test_the_face_that_blocks_lists_them_as_well(house: House, hf: Holdfast) -> None:
    with pytest.raises(RunNotFound):
        await hf.run("nobody").children()
    with pytest.raises(InvalidName):
        await hf.run("no#id").children()


async def test_the_inbox_has_the_end_of_a_child_once(house: House, hf: Holdfast) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        child = await ctx.start(TWICE, {"n": 1}, id="child")
        await ctx.wait(signal("go on"))  # it ends meanwhile
        return {"got": await child.result()}

    graph = starting(ask)
    async with house.worker(hf, graph, TWICE) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        await run.signal("go on")
        assert await run.result(timeout=60) == {"got": {"n": 2}}
    keys = [item["SK"] for item in await journal_items(hf, PARENT) if "#IN#%child" in item["SK"]]
    assert len(keys) == 1


# --- what it costs --------------------------------------------------------------------------------


async def test_what_a_child_costs(house: House) -> None:
    """The first makes its parent's row say so; each has a row, an item and a line of its own."""
    at: dict[str, float] = {}
    hf = house.open()

    async def begin(state: Any, ctx: Any) -> Any:
        at["begin"] = run_units(hf)
        for id in ("one", "two"):
            await ctx.start(ASKS, id=id)
            at[id] = run_units(hf)

    async def end(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.child("one").result()}

    graph = starting(begin, end)
    async with house.worker(hf, graph, ASKS, concurrency=1) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        await house.move(1, worker)
        # The flag 1, what names the child 1, its row with its places in both indexes 3.
        assert at["one"] - at["begin"] == 5
        assert at["two"] - at["one"] == 4
        await hf.run("one").signal("answer", 1)
        await run.result(timeout=60)


async def test_the_return_of_a_child_costs_what_a_signal_does(house: House) -> None:
    """It is put into the inbox, and the parent is woken."""
    hf, graph = house.open(), starting(_awaits)
    async with house.worker(hf, graph, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        before = run_units(hf)
        await hf.run("child").signal("answer", 1)
        await run.result(timeout=60)
        await house.quiet(worker)
        # The child: its signal 1, woken 4, what it took, node and end 1, ended 3. The parent: told
        # 1, woken 4, what it took, node and end 1, ended 3.
        assert run_units(hf) - before == 18


async def _awaits(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.run(ASKS, id="child")}


# --- large results --------------------------------------------------------------------------------


class Together:
    """Blobs of which none is read before so many are being read."""

    def __init__(self, engine: BlobEngine, count: int) -> None:
        self._engine = engine
        self.threads = count
        self._barrier = threading.Barrier(count, timeout=60)
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def read(self, key: str, bytes_max: int) -> Any:
        self.reads += 1
        self._barrier.wait()
        return self._engine.read(key, bytes_max)


CHILDREN = 6
PART_BYTES = 2_000_000 // CHILDREN


async def test_the_results_of_six_children_are_read_at_once(house: House) -> None:
    """Two megabytes in six blobs: a resume waits for the slowest, and not for all in turn."""
    large, hf = Graph("large", dict), house.open()

    @large.node
    async def fill(state: Any) -> Any:
        return {"part": incompressible(state["n"], PART_BYTES)}

    async def begin(state: Any, ctx: Any) -> Any:
        children = [await ctx.start(large, {"n": n}) for n in range(CHILDREN)]
        await ctx.wait(signal("go on"))
        parts = [(await child.result())["part"] for child in children]
        return {"bytes": sum(map(len, parts))}

    graph = starting(begin)
    async with house.worker(hf, graph, large) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
    store = open_store(house.url, clock=house.clock)
    together = Together(store.blobs._engine, CHILDREN)
    blobs = Blobs(cast(BlobEngine, together), Meter())
    resumed = house.open(store=Store(store._engine, blobs, url=house.url, meter=Meter()))
    async with house.worker(resumed, graph) as worker:
        # Whoever asks for the result only when it is there would read it, too.
        result = asyncio.ensure_future(resumed.run(PARENT).result(timeout=60))
        await house.quiet(worker)
        await resumed.run(PARENT).signal("go on")
        await result
    assert together.reads == CHILDREN
    assert await run.result(timeout=60) == {"bytes": CHILDREN * PART_BYTES}
