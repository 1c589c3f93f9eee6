"""A worker stalls or dies at any point of starting a child: there is no orphan, and no double."""

from __future__ import annotations

import asyncio
import functools
import itertools
from typing import Any, Literal, TypeAlias

import pytest

from holdfast import Graph, Holdfast, RunFilter
from holdfast.records.keys import child_key
from holdfast.storage import Key, Put
from holdfast.storage.operations import GetItem, Operation, WriteItem
from tests.engine.families import ASKS, PARENT, TWICE, freeze, named_children, starting, statuses
from tests.engine.staging import Side, Which, played, staged
from tests.engine.support import (
    LOOPS_A_WORKER,
    House,
    item_of_head,
    kill,
    store_of,
    tenant_key,
    work_of,
)

LEASE_SECONDS = 1_000
WRITES_MIN = 15
Point: TypeAlias = Literal["flag", "item", "look", "row"]
POINTS: tuple[Point, ...] = ("flag", "item", "look", "row")


def at(point: Point) -> Which:
    """Return which operation is the one: the flag, the item, the look at the parent, the row."""

    def which(operation: Operation) -> bool:
        if point == "look":
            is_look = isinstance(operation, GetItem)
            return is_look and operation.key == tenant_key(PARENT).head
        if not isinstance(operation, WriteItem):
            return False
        write = operation.write
        if point == "flag":
            return "children" in getattr(write, "set", {})
        if point == "item":
            return write.key.sk.startswith("CHILD#")
        return isinstance(write, Put) and write.key == tenant_key("child").head

    return which


class Scene:
    """A node that starts a child and awaits it, or at its second run only returns."""

    def __init__(self, *, again: bool) -> None:
        self.runs = 0
        self.again = again
        self.graph = starting(self._node)

    async def _node(self, state: Any, ctx: Any) -> Any:
        self.runs += 1
        if self.runs == 1 or self.again:
            return {"got": await ctx.run(TWICE, {"n": 2}, id="child")}
        return {"got": None}


@pytest.mark.parametrize("again", [True, False], ids=["starts it too", "does not start it"])
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("point", POINTS)
async def test_an_owner_that_stalls_while_it_starts_a_child(
    house: House, point: Point, side: Side, again: bool
) -> None:
    scene, client = Scene(again=again), house.open()
    first, stage = staged(house)
    stalled = house.worker(first, scene.graph, TWICE, lease=LEASE_SECONDS)
    hold = stage.hold(at(point), side=side)
    await stalled.start()
    await first.start(scene.graph, id=PARENT)
    await hold.reached()
    freeze(stalled)
    async with house.worker(house.open(), scene.graph, TWICE) as worker:
        for seconds in (LEASE_SECONDS + 1, 1, 1):
            await house.move(seconds, worker)
        got = await client.run(PARENT).result(timeout=60)
        assert got == {"got": {"n": 4} if again else None}
        history = [entry.kind for entry in (await client.run(PARENT).history()).entries]
        hold.release()
        await asyncio.wait(work_of(stalled))
        for _ in range(2):
            await house.move(1, worker)
    kill(stalled)
    assert [entry.kind for entry in (await client.run(PARENT).history()).entries] == history
    # One that was made may have finished before its parent ended.
    made = again or (point, side) == ("row", "after")
    assert set(await statuses(client)) <= ({"finished"} if made else {"cancelled"})
    await check(client)


async def check(hf: Holdfast) -> None:
    """No child goes on, none is there twice, and nothing is left to be done."""
    page = await hf.list()
    assert [entry.id for entry in page.runs if entry.id != PARENT] in (["child"], [])
    assert [
        entry.status for entry in page.runs if entry.status in ("ready", "running", "waiting")
    ] == []
    for entry in page.runs:
        assert (await hf.run(entry.id).get()).due_at is None


async def test_a_child_that_was_cancelled_before_it_was_made(either: House) -> None:
    """It has a row, so that whoever was about to make it finds it there, and that it is over."""
    scene, client = Scene(again=False), either.open()
    first, stage = staged(either)
    stalled = either.worker(first, scene.graph, TWICE, lease=LEASE_SECONDS)
    hold = stage.hold(at("row"))
    await stalled.start()
    await first.start(scene.graph, id=PARENT, user="ann")
    await hold.reached()
    freeze(stalled)
    async with either.worker(either.open(), scene.graph, TWICE) as worker:
        for seconds in (LEASE_SECONDS + 1, 1, 1):
            await either.move(seconds, worker)
        await client.run(PARENT).result(timeout=60)
        child = await client.run("child").get()
        assert (child.status, child.graph, child.parent) == ("cancelled", "twice", PARENT)
        assert (child.nodes_run, child.due_at) == (0, None)
        assert child.user == (await client.run(PARENT).get()).user is not None
        hold.release()
        await asyncio.wait(work_of(stalled))
        await either.move(1, worker)
    kill(stalled)
    after = await client.run("child").get()
    assert (after.generation, after.status) == (child.generation, "cancelled")
    assert [one.id for one in (await client.list(RunFilter(status="cancelled"))).runs] == ["child"]


async def test_a_cancelled_parent_starts_nothing_any_more(house: House) -> None:
    """It learns of it when it looks at its row, before the child is made."""
    scene, client = Scene(again=True), house.open()
    inner, stage = staged(house)
    hold = stage.hold(at("look"))
    async with house.worker(inner, scene.graph, TWICE) as worker:
        await inner.start(scene.graph, id=PARENT)
        await hold.reached()
        await client.run(PARENT).cancel()
        hold.release()
        await house.quiet(worker)
        row = await client.run(PARENT).get()
        assert (row.status, row.owner, row.due_at) == ("cancelled", None, None)
    assert scene.runs == 1
    assert await statuses(client) == ["cancelled"]
    assert (await client.run("child").get()).nodes_run == 0


@pytest.mark.parametrize("point", ["flag", "item", "row"])
@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_lost_answer_while_a_child_is_started(
    house: House, point: Point, carried_out: bool
) -> None:
    scene = Scene(again=True)
    hf, stage = staged(house)
    stage.lose(at(point), carried_out=carried_out)
    async with house.worker(hf, scene.graph, TWICE) as worker:
        run = await hf.start(scene.graph, id=PARENT)
        await house.clock.asleep(LOOPS_A_WORKER + 1)  # it waits before it sends it again
        house.clock.advance(0.1)
        assert await run.result(timeout=60) == {"got": {"n": 4}}
        await house.move(1, worker)
    assert await statuses(hf) == ["finished"]


# --- a worker dies before or after any of its writes ----------------------------------------------


def family() -> tuple[Graph, Graph]:
    """Return a graph whose runs have two children that finish, and one that nobody awaits."""
    outer, inner = Graph("outer", dict), Graph("inner", dict)

    @inner.node
    async def nest(state: Any, ctx: Any) -> Any:
        return {"n": (await ctx.run(TWICE, {"n": state["n"]}))["n"] + 1}

    @outer.node
    async def begin(state: Any, ctx: Any) -> Any:
        children = [await ctx.start(inner, {"n": n}) for n in (1, 2)]
        await ctx.start(ASKS, id="idle")
        return {"got": [(await child.result())["n"] for child in children]}

    return outer, inner


@pytest.mark.parametrize("side", ["before", "after"])
async def test_whenever_a_worker_dies_a_family_is_whole(house: House, side: Side) -> None:
    for number in itertools.count(1):
        outer, inner = family()
        tenant = f"{side}-{number}"
        client = house.open(tenant=tenant)
        await client.start(outer, id=PARENT)
        first, stage = staged(house)
        graphs = (outer, inner, TWICE, ASKS)
        dying = first.worker(graphs, poll=0.2, lease=LEASE_SECONDS)
        stage.die_at(number, side, functools.partial(kill, dying))
        lived = await played(house, dying, (0, 1, 1))
        async with house.worker(house.open(), *graphs) as worker:
            # One goes on once another has: who is buried, the parent, its children, the idle one.
            for seconds in (LEASE_SECONDS + 1, *[1] * 6):
                house.clock.advance(seconds)
                await house.patiently_quiet(worker)
        await whole(client, tenant)
        if lived:
            assert number > WRITES_MIN  # it died at every one of its writes before
            stage.live_on()  # a write about the dead could be the one to die at
            await dying.stop()
            return


async def whole(hf: Holdfast, tenant: str) -> None:
    assert await hf.run(PARENT).result(timeout=60) == {"got": [3, 5]}
    children = await hf.run(PARENT).children()
    assert sorted(child.graph for child in children) == ["asks", "inner", "inner"]
    grown = [one for child in children for one in await hf.run(child.id).children()]
    assert [one.graph for one in grown] == ["twice", "twice"]
    found = {entry.id: entry.status for entry in (await hf.list()).runs}
    assert found == {
        PARENT: "finished",
        "idle": "cancelled",
        **{child.id: "finished" for child in children if child.id != "idle"},
        **{one.id: "finished" for one in grown},
    }
    for id in found:
        assert (await hf.run(id).get()).due_at is None, id
        # The end of each was told once, and what its partition names is there.
        item = await store_of(hf).table.get(Key(f"RUN#{tenant}#{id}", "HEAD"))
        assert item is not None


async def test_what_a_stalled_owner_names_is_no_run(house: House) -> None:
    """It said in the parent's partition that there may be a child, after the parent had ended."""
    scene, client = Scene(again=False), house.open()
    async with house.worker(client, scene.graph, TWICE) as worker:
        scene.runs = 1
        await client.start(scene.graph, id=PARENT)
        await house.quiet(worker)
    head = await item_of_head(client, PARENT)
    key = child_key(tenant_key(PARENT), head["generation"], "late")
    late = {"PK": key.pk, "SK": key.sk, "graph": "twice", "ttl": head["ttl"]}
    await store_of(client).table.write_many([Put({**head, "children": True}), Put(late)])
    assert await named_children(client) == ["late"]
    assert await client.run(PARENT).children() == []
