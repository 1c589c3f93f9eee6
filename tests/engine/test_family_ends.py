"""However a run ends, its children end with it; retried, it keeps what they came to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.errors import RunCancelled, RunFailed
from holdfast.model.child import child_signal
from holdfast.records.codec import encode, pack
from holdfast.records.head import head_of
from holdfast.records.journal import Content, signal_write
from holdfast.records.keys import journal_range
from holdfast.storage import Delete, Key, Put
from holdfast.storage.operations import GetItem, QueryItems
from tests.engine.families import (
    ASKS,
    BREAKS,
    PARENT,
    TWICE,
    attempted,
    freeze,
    named_children,
    starting,
    statuses,
)
from tests.engine.staging import staged, write_of
from tests.engine.support import (
    Gate,
    House,
    StepClock,
    item_of_head,
    journal_items,
    kill,
    reached,
    store_of,
    tenant_key,
    work_of,
)

LEASE_SECONDS = 1_000


async def damage(hf: Holdfast, id: str) -> None:
    """Let a run's journal be unreadable from here on."""
    head = await item_of_head(hf, id)
    items = await journal_items(hf, id)
    last = max(int(item["SK"][-8:]) for item in items if "#IN#" not in item["SK"])
    broken = {"PK": head["PK"], "SK": f"J#{head['generation']}#{last:08d}", "ttl": head["ttl"]}
    await store_of(hf).table.write_many([Put(broken)])


async def expire_kid_early(house: House, hf: Holdfast) -> None:
    """Let the child expire by a worker whose clock is ahead."""
    ahead = House(house.url, StepClock())
    ahead.clock.advance(1000)
    async with ahead.worker(ahead.open(), ASKS) as hasty:
        await ahead.quiet(hasty)
    await ahead.close()
    assert (await hf.run("kid").get()).status == "expired"


# --- they end with their parent -------------------------------------------------------------------


async def test_a_child_that_ends_by_a_fast_clock_tells_a_parent_that_is_extended_yet(
    house: House,
) -> None:
    """By that clock the parent's time is over as well; by that of whoever extends it, it is not."""

    async def have_child(state: Any, ctx: Any) -> Any:
        return {"child": await attempted(ctx.run(ASKS, id="kid"))}

    graph, hf = starting(have_child), house.open()
    async with house.worker(hf, graph, ASKS) as worker:
        parent = await hf.start(graph, id=PARENT, expires=1000)
        await house.quiet(worker)
    await expire_kid_early(house, hf)
    await hf.run(PARENT).extend(5000)
    async with house.worker(hf, graph) as worker:
        await house.move(1000, worker)  # it was woken by that clock
        assert (await hf.run(PARENT).get()).status == "finished"
        assert await parent.result() == {"child": "RunExpired"}


async def test_a_parent_that_saw_the_end_of_its_child_too_early_is_woken_when_it_is_extended(
    house: House,
) -> None:
    """As the parent expires then, the end comes too late, and it pauses. Later it counts."""
    gate = Gate()

    async def have_child(state: Any, ctx: Any) -> Any:
        child = await ctx.start(ASKS, id="kid")
        await gate.pass_through()
        return {"child": await attempted(child.result())}

    graph, hf = starting(have_child), house.open()
    async with house.worker(hf, graph, ASKS) as worker:
        parent = await hf.start(graph, id=PARENT, expires=1000)
        await gate.waited_at()
        await expire_kid_early(house, hf)
        gate.open()
        await house.quiet(worker)
        assert (await hf.run(PARENT).get()).status == "waiting"
        await hf.run(PARENT).extend(5000)
        await house.move(1, worker)
        assert (await hf.run(PARENT).get()).status == "finished"
        assert await parent.result() == {"child": "RunExpired"}


async def test_a_parent_is_woken_though_its_child_spent_less_than_it_was_first_told(
    house: House,
) -> None:
    """The first to tell it died before it could wake it; then grandchildren gave something back."""

    async def have_child(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(TWICE, {"n": 1}, id="kid")}

    graph, hf = starting(have_child), house.open()
    async with house.worker(hf, graph) as worker:
        parent = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
    head = head_of(await item_of_head(hf, PARENT))
    told = {"status": "finished", "state": {"n": 2}, "failure": None, "spent": [700, 0]}
    await hf._kernel.resolve_write(
        hf._kernel.inboxes,
        signal_write(
            head,
            name=child_signal("kid"),
            id="end",
            content=Content(pack(told)),
            plain_bytes=len(encode(told)),
            accepted_ms=house.clock.now_ms(),
            token=hf._kernel.ids.new(),
        ),
    )
    async with house.worker(hf, graph, TWICE) as worker:
        await house.move(1, worker)
        assert (await hf.run(PARENT).get()).status == "finished"
        assert await parent.result() == {"got": {"n": 2}}


@pytest.mark.parametrize("how", ["finished", "failed", "cancelled", "expired", "quarantined"])
async def test_children_that_nobody_awaits_end_with_their_parent(either: House, how: str) -> None:
    """Those of the children as well."""
    middle = Graph("middle", dict)

    @middle.node
    async def have_child(state: Any, ctx: Any) -> Any:
        await ctx.run(ASKS, id=f"{ctx.run_id}-inner")

    async def begin(state: Any, ctx: Any) -> Any:
        await ctx.run(TWICE, {"n": 1}, id="done")
        # The last one's name sorts behind every letter that ASCII has.
        for id in ("one", "zwölf", "été"):
            await ctx.start(middle, id=id)

    async def end(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go on"))
        if how == "failed":
            raise ValueError("torn")

    graph, hf = starting(begin, end), either.open()
    async with either.worker(hf, graph, middle, ASKS, TWICE, resumes_max=1) as worker:
        run = await hf.start(graph, id=PARENT, expires=1000)
        await either.quiet(worker)
        ids = [*(name for name in ("one", "zwölf", "été"))]
        ids += [f"{name}-inner" for name in ids]
        assert [(await hf.run(id).get()).status for id in ids] == ["waiting"] * 6
        if how == "cancelled":
            await run.cancel("enough")
        elif how == "expired":
            await hf.run("one").extend(50_000)
            await hf.run("one-inner").extend(50_000)
            either.clock.advance(1001)
        else:
            if how == "quarantined":
                await damage(hf, PARENT)
            await run.signal("go on")
        for _ in range(4):
            await either.patiently_quiet(worker)
            either.clock.advance(1)
        await either.patiently_quiet(worker)
        await reached(hf, PARENT, how)
        found = {id: await hf.run(id).get() for id in ids}
        ended = {"cancelled"} if how != "expired" else {"cancelled", "expired"}
        assert {row.status for row in found.values()} <= ended
        assert found["one"].status == found["one-inner"].status == "cancelled"
        assert [row.due_at for row in found.values()] == [None] * 6
        assert (await hf.run("done").get()).status == "finished"
        assert (await hf.run(PARENT).get()).due_at is None
    with pytest.raises(RunCancelled, match="the run that started it has ended"):
        await hf.run("one").result(timeout=60)


async def test_a_parent_ends_though_nobody_runs_its_children(house: House, hf: Holdfast) -> None:
    async def begin(state: Any, ctx: Any) -> Any:
        await ctx.start(ASKS, id="child")

    graph = starting(begin)
    async with house.worker(hf, graph):
        await (await hf.start(graph, id=PARENT)).result(timeout=60)
    # It is to be cancelled, and whoever claims it does so, before anything of it runs.
    assert (await item_of_head(hf, "child"))["cancel"]
    async with house.worker(house.open(), ASKS) as worker:
        await house.quiet(worker)
    assert (await hf.run("child").get()).status == "cancelled"
    assert (await hf.run("child").get()).nodes_run == 0


async def test_a_child_that_is_under_way_is_left_at_once(house: House, hf: Holdfast) -> None:
    gate, busy = Gate(), Graph("busy", dict)

    @busy.node
    async def stand(state: Any) -> Any:
        await gate.pass_through()

    async def begin(state: Any, ctx: Any) -> Any:
        await ctx.start(busy, id="child")
        await gate.waited_at()

    graph = starting(begin)
    async with house.worker(hf, graph, busy) as worker:
        await (await hf.start(graph, id=PARENT)).result(timeout=60)
        await house.quiet(worker)
        assert (await hf.run("child").get()).status == "cancelled"
    assert gate.inside == 0


async def test_what_a_node_left_behind_is_no_orphan(house: House, hf: Holdfast) -> None:
    """It began to start a child and did not wait for that: it fails, and the child ends with it."""
    inner, stage = staged(house)
    left: list[asyncio.Task[Any]] = []
    hold = stage.hold(lambda operation: _is_write(operation, PARENT, "HEAD"), side="before")

    async def begin(state: Any, ctx: Any) -> Any:
        left.append(asyncio.ensure_future(ctx.start(ASKS, id="child")))
        await hold.reached()

    graph = starting(begin)
    async with house.worker(inner, graph, ASKS) as worker:
        run = await inner.start(graph, id=PARENT)
        await hold.reached()
        row = stage.hold(write_of(tenant_key("child").pk, "HEAD"))
        hold.release()
        await row.reached()
        assert [entry.kind for entry in (await hf.run(PARENT).history()).entries] == []
        row.release()
        with pytest.raises(RunFailed, match=r"did not await ctx\.start"):
            await run.result(timeout=60)
        await asyncio.wait(left)
        await house.move(1, worker)
    assert await statuses(hf) == ["cancelled"]
    assert await named_children(hf) == ["child"]


def _is_write(operation: Any, id: str, sk: str) -> bool:
    write = getattr(operation, "write", None)
    if write is None or "children" not in getattr(write, "set", {}):
        return False
    return write.key == (tenant_key(id).pk, sk)


async def test_a_look_at_the_row_does_not_make_a_parent_childless(house: House) -> None:
    """It was read before another branch said that there are children, and came after that."""
    hf, stage = staged(house)
    graph = Graph("looks", dict)
    hold = stage.hold(
        lambda operation: (
            isinstance(operation, GetItem)
            and operation.key == tenant_key(PARENT).head
            and looking.is_set()
        ),
        side="after",
    )
    looking = asyncio.Event()

    @graph.node
    async def begin(state: Any) -> Any: ...

    @graph.node(writes=["a"])
    async def looks(state: Any, ctx: Any) -> Any:
        looking.set()
        with pytest.raises(Exception, match="would sleep until"):
            await ctx.sleep(100_000_000)

    @graph.node(writes=["b"])
    async def starts(state: Any, ctx: Any) -> Any:
        await hold.reached()
        await ctx.start(ASKS, id="child")
        hold.release()

    @graph.node
    async def end(state: Any) -> Any: ...

    graph.fork(begin, [looks, starts], join=end)
    async with house.worker(hf, graph, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        await run.result(timeout=60)
        await house.move(1, worker)
    assert await statuses(hf) == ["cancelled"]


@pytest.mark.parametrize("gone", ["deleted", "another", "ended"])
async def test_a_child_whose_parent_is_gone_ends_quietly(house: House, gone: str) -> None:
    async def begin(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.run(ASKS, id="child")}

    graph, hf = starting(begin), house.open()
    async with house.worker(hf, graph, ASKS) as worker:
        await hf.start(graph, id=PARENT)
        await house.quiet(worker)
    table = store_of(hf).table
    if gone == "ended":
        head = await item_of_head(hf, PARENT)
        await table.write(Put({**head, "status": "failed"}))
    else:
        await table.write(Delete(tenant_key(PARENT).head))
    if gone == "another":
        await hf.start(ASKS, id=PARENT)
    later = house.open()
    async with house.worker(later, ASKS) as worker:
        await later.run("child").signal("answer", 1)
        assert await later.run("child").result(timeout=60) == {"answer": 1}
        await house.quiet(worker)
    assert (await later.run("child").get()).due_at is None
    items = [item async for item in table.query_all(tenant_key(PARENT).pk)]
    assert not [item for item in items if "#IN#" in item["SK"]]


async def test_children_go_on_when_a_worker_leaves(house: House, hf: Holdfast) -> None:
    """A drain lets go of parent and child; whoever comes next goes on with both."""
    gate, slow = Gate(), Graph("slow", dict)

    @slow.node
    async def stand(state: Any) -> Any:
        await gate.pass_through()
        return {"done": True}

    async def begin(state: Any, ctx: Any) -> Any:
        child = await ctx.start(slow, id="child")
        if not gate.entered:
            await gate.waited_at()
        return {"got": await child.result()}

    graph = starting(begin)
    worker = house.worker(hf, graph, slow, drain=0)
    await worker.start()
    await hf.start(graph, id=PARENT)
    await gate.waited_at()
    await reached(hf, PARENT, "waiting")
    await worker.stop()
    assert (await hf.run("child").get()).owner is None
    gate.open()
    other = house.open()
    async with house.worker(other, graph, slow) as heir:
        await house.move(1, heir)
        assert await other.run(PARENT).result(timeout=60) == {"got": {"done": True}}
    assert await statuses(hf) == ["finished"]


# --- retrying -------------------------------------------------------------------------------------


async def test_a_retried_parent_keeps_what_has_finished(either: House) -> None:
    """The others are started anew: they failed, or were cancelled with it."""
    mended = False

    async def begin(state: Any, ctx: Any) -> Any:
        good = await ctx.start(TWICE, {"n": 4})
        idle = await ctx.start(ASKS)
        bad = await ctx.start(TWICE if mended else BREAKS, {"n": 5})
        got = [await good.result(), await bad.result()]
        return {"got": got, "ids": [good.id, idle.id, bad.id]}

    graph, hf = starting(begin), either.open()
    async with either.worker(hf, graph, TWICE, BREAKS, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        with pytest.raises(RunFailed, match="out of paper"):
            await run.result(timeout=60)
        await either.move(1, worker)
        before = {child.id: child.status for child in await hf.run(PARENT).children()}
        assert sorted(before.values()) == ["cancelled", "failed", "finished"]
        mended = True
        await run.retry()
        state = await run.result(timeout=60)
        await either.move(1, worker)
    assert state["got"] == [{"n": 8}, {"n": 10}]
    (kept,) = (id for id, status in before.items() if status == "finished")
    assert [id in before for id in state["ids"]] == [True, False, False]
    assert state["ids"][0] == kept
    after = {child.id: child.status for child in await hf.run(PARENT).children()}
    assert len(after) == 5
    assert sorted(after.values()) == ["cancelled", "cancelled", "failed", "finished", "finished"]


async def test_a_child_with_a_name_is_the_same_after_a_retry(house: House, hf: Holdfast) -> None:
    """Its end was told, and is not told again; retried itself, it comes to another."""
    mended = asyncio.Event()
    mendable = Graph("mendable", dict)

    @mendable.node
    async def node(state: Any) -> Any:
        if not mended.is_set():
            raise ValueError("out of paper")
        return {"printed": True}

    async def begin(state: Any, ctx: Any) -> Any:
        children = [await ctx.start(mendable, id="child"), await ctx.start(ASKS, id="idle")]
        return {"got": await children[0].result()}

    graph = starting(begin)
    async with house.worker(hf, graph, mendable, ASKS) as worker:
        run = await hf.start(graph, id=PARENT)
        for kind in ("RunFailed", "ResultTaken", "ResultTaken"):
            with pytest.raises(RunFailed) as failed:
                await run.result(timeout=60)
            assert failed.value.kind == kind
            await house.quiet(worker)
            await run.retry()
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
        await house.quiet(worker)
        mended.set()
        await hf.run("child").retry()
        assert await hf.run("child").result(timeout=60) == {"printed": True}
        await house.quiet(worker)
        await run.retry()
        assert await run.result(timeout=60) == {"got": {"printed": True}}
    assert [child.id for child in await hf.run(PARENT).children()] == ["child", "idle"]


async def test_a_retried_child_tells_how_it_ended_then(house: House, hf: Holdfast) -> None:
    """The parent goes on meanwhile, and awaits it again in another node."""
    mended = asyncio.Event()
    mendable = Graph("mendable", dict)

    @mendable.node
    async def node(state: Any) -> Any:
        if not mended.is_set():
            raise ValueError("out of paper")
        return {"printed": True}

    async def first(state: Any, ctx: Any) -> Any:
        child = await ctx.start(mendable, id="child")
        with pytest.raises(RunFailed):
            await child.result()

    async def second(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("mended"))
        return {"got": await ctx.child("child").result()}

    graph = starting(first, second)
    async with house.worker(hf, graph, mendable) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        mended.set()
        await hf.run("child").retry()
        await house.quiet(worker)
        await run.signal("mended")
        assert await run.result(timeout=60) == {"got": {"printed": True}}


async def test_many_children_with_names_are_asked_for_again_after_a_retry(house: House) -> None:
    """More than a row has room for: what it waited for stands in the journal, and is over."""
    failing, retried, fails = asyncio.Event(), asyncio.Event(), Graph("fails", dict)

    @fails.node
    async def fail(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("answer"))
        raise ValueError("out of paper")

    async def begin(state: Any, ctx: Any) -> Any:
        children = [await ctx.start(ASKS, id=f"child-{n:02}") for n in range(10)]
        if retried.is_set():
            return {"told": [await attempted(child.result()) for child in children]}
        last = await ctx.start(fails, id="fails")
        if failing.is_set():
            await last.result()
        await asyncio.gather(*(child.result() for child in (*children, last)))

    graph, hf = starting(begin), house.open()
    async with house.worker(hf, graph, ASKS, fails) as worker:
        run = await hf.start(graph, id=PARENT)
        await house.quiet(worker)
        failing.set()
        await hf.run("fails").signal("answer")
        with pytest.raises(RunFailed, match="out of paper"):
            await run.result(timeout=60)
        await house.quiet(worker)
        retried.set()
        await run.retry()
        # They were cancelled with it, when there was nobody to tell.
        assert await run.result(timeout=60) == {"told": ["RunCancelled"] * 10}


async def test_whoever_closed_a_run_does_not_touch_what_it_starts_once_retried(
    house: House,
) -> None:
    """It stalls while it looks for the children of a failed run, and goes on when it is open."""
    gate = Gate()

    async def begin(state: Any, ctx: Any) -> Any:
        if not gate.entered:
            await gate.pass_through()
            await ctx.start(ASKS)
            raise ValueError
        return {"got": await ctx.run(ASKS, id="second")}

    graph, client = starting(begin), house.open()
    first, stage = staged(house)
    stalled = house.worker(first, graph, lease=LEASE_SECONDS)
    hold = stage.hold(
        lambda operation: isinstance(operation, QueryItems) and "CHILD#" in repr(operation.range)
    )
    await stalled.start()
    await first.start(graph, id=PARENT)
    run = client.run(PARENT)
    await gate.waited_at()
    gate.open()
    await hold.reached()
    freeze(stalled)
    async with house.worker(house.open(), graph, ASKS) as worker:
        await house.move(LEASE_SECONDS + 1, worker)
        await house.move(1, worker)
        await reached(client, PARENT, "failed")
        await run.retry()
        await house.move(1, worker)
        await reached(client, "second", "waiting")
        hold.release()
        await asyncio.wait(work_of(stalled))
        await house.move(1, worker)
        assert (await client.run("second").get()).status == "waiting"
        await client.run("second").signal("answer", 1)
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": {"answer": 1}}
    kill(stalled)


async def test_nothing_of_a_child_is_left_when_its_time_is_over(house: House, hf: Holdfast) -> None:
    async def begin(state: Any, ctx: Any) -> Any:
        await ctx.run(ASKS, id="child")

    graph = starting(begin)
    async with house.worker(hf, graph, ASKS) as worker:
        await hf.start(graph, id=PARENT, expires=1000)
        await house.move(1001, worker)
        await house.move(1, worker)
        rows = [await hf.run(id).get() for id in (PARENT, "child")]
        assert rows[0].status == "expired"
        assert rows[1].status in ("expired", "cancelled")
        assert [row.due_at for row in rows] == [None, None]
    head = await item_of_head(hf, PARENT)
    table = store_of(hf).table
    journal = [i async for i in table.query_all(head["PK"], journal_range(head["generation"]))]
    assert [item for item in journal if not item.get("stays")] == []
    assert await table.get(Key(head["PK"], f"CHILD#{head['generation']}#child")) is not None
