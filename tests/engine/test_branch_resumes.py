"""Branches whose worker leaves or dies, and runs that end while they are open."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import END, Graph, Holdfast, hours, signal
from holdfast.clock import ManualClock
from tests.engine.branching import counted, entries, forked, nothing, through, waits_for
from tests.engine.staging import Side, staged
from tests.engine.support import (
    Gate,
    House,
    item_of_head,
    kill,
    reached,
)


async def test_a_worker_that_leaves_lets_branches_run_to_their_next_boundary(
    either: House,
) -> None:
    gate, counts = Gate(), Counter[str]()

    async def later(state: Any, ctx: Any) -> Any:
        counts[ctx.node] += 1
        return {"log": [state["item"]]}

    async def early(state: Any, ctx: Any) -> Any:
        counts[ctx.node] += 1
        await gate.pass_through()

    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="early", writes=[])(early)
    graph.node(name="later", writes=["log"])(later)
    graph.node(name="join")(nothing)
    graph.each("first", "early", over="items", into="item", join="join")
    graph.route("early", "later")
    first, second = either.open(), either.open()
    worker = either.worker(first, graph)
    await worker.start()
    await first.start(graph, {"items": [0, 1, 2]}, id="r")
    await gate.waited_at(3)
    leaving = asyncio.create_task(worker.stop(drain=60))
    await ManualClock().sleep(0)  # it has begun to leave
    gate.open()
    await leaving
    assert counts == {"early": 3}
    row = await second.run("r").get()
    assert (row.status, row.owner, row.node) == ("ready", None, "later x3")
    async with either.worker(second, graph):
        assert (await second.run("r", graph=graph).result(timeout=60))["log"] == [0, 1, 2]
    assert counts == {"early": 3, "later": 3}


async def test_a_worker_that_leaves_cancels_what_takes_too_long_and_keeps_the_waits(
    either: House,
) -> None:
    gate, counts = Gate(), Counter[str]()
    graph = forked(
        counted(waits_for("a", max_wait=hours(1)), counts, "a"),
        counted(lambda state, ctx: through(gate)(state), counts, "b"),
        *[counted(waits_for(f"w{n}", max_wait=hours(1)), counts, f"w{n}") for n in range(10)],
    )
    first, second = either.open(), either.open()
    worker = either.worker(first, graph)
    await worker.start()
    await first.start(graph, id="r")
    await gate.waited_at(1)
    await either.clock.asleep(4)
    began = either.clock.now_ms()
    either.clock.advance(600)
    await worker.stop(drain=0)
    assert gate.inside == 0
    gate.open()
    either.clock.advance(1800)
    async with either.worker(second, graph) as other:
        await either.quiet(other)
        row = await second.run("r").get()
        assert row.status == "waiting"
        assert {wait.since_ms for wait in row.waits} == {began}
        assert counts["b"] == 2
        assert counts["a"] == counts["w3"] == 1
        for name in ("a", *(f"w{n}" for n in range(10))):
            await second.run("r").signal(name, name)
            await either.quiet(other)
        log = (await second.run("r", graph=graph).result(timeout=60))["log"]
    assert log == ["a", "through", *(f"w{n}" for n in range(10))]


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_worker_may_die_at_any_write(house: House, side: Side) -> None:
    """Whatever stands when it dies, the next one goes on from there, and no node counts twice."""
    number = 1
    while await dies_at(house, number, side):
        number += 1
    assert number > 6


async def dies_at(house: House, number: int, side: Side) -> bool:
    """Let a worker die at its write of that number; return whether there was one."""
    id = f"r{number}"
    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="work", writes=["log"])(lambda state: {"log": [state["item"]]})
    graph.node(name="ask", writes=["log"])(waits_for("go"))
    graph.node(name="join")(nothing)
    graph.each("first", "work", over="items", into="item", join="join")
    graph.choose("work", lambda state: "ask" if state["item"] else END, to=["ask", END])
    hf, stage = staged(house)
    worker = house.worker(hf, graph, lease=10)
    died = asyncio.Event()

    def die() -> None:
        kill(worker)
        died.set()

    client = house.open()
    run = await client.start(graph, {"items": [0, 1, 2]}, id=id)
    for name in ("1", "2"):
        await run.signal("go", name, signal_id=name)
    stage.die_at(number, side, die)
    await worker.start()
    ended = asyncio.create_task(reached(client, id, "finished"))
    dead = asyncio.create_task(died.wait())
    await asyncio.wait({ended, dead}, return_when=asyncio.FIRST_COMPLETED)
    for task in (ended, dead):
        task.cancel()
    if not died.is_set():
        await worker.stop()
        return False
    async with house.worker(client, graph, lease=10):
        while (await client.run(id).get()).status != "finished":
            await house.clock.asleep(3)
            house.clock.advance(1)
        result = await run.result(timeout=60)
    assert sorted(map(str, result["log"])) == ["0", "1", "1", "2", "2"]
    kinds = Counter(kind for kind, _ in await entries(client, id))
    assert (kinds["node"], kinds["signal"], kinds["finished"]) == (7, 2, 1)
    return True


async def test_a_run_is_cancelled_while_branches_run(either: House) -> None:
    gate = Gate()
    hf, client = either.open(), either.open()
    graph = forked(through(gate), through(gate), waits_for("go"))
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await gate.waited_at(2)
        await hf.run("r").cancel("enough")
        await either.quiet(worker)
        assert gate.inside == 0
        assert (await run.get()).status == "cancelled"
    assert (await entries(client))[-1] == ("cancelled", None)
    assert not [kind for kind, node in await entries(client) if node in ("b0", "b1")]


async def test_branches_of_another_process_end_at_the_next_write_after_a_cancellation(
    either: House,
) -> None:
    gate, other_gate = Gate(), Gate()
    hf, client = either.open(), either.open()
    graph = forked(through(gate), through(other_gate), waits_for("go"))
    async with either.worker(hf, graph) as worker:
        await hf.start(graph, id="r")
        await gate.waited_at()
        await other_gate.waited_at()
        await client.run("r").cancel()
        gate.open()
        await either.quiet(worker)
        assert other_gate.inside == 0
        assert (await client.run("r").get()).status == "cancelled"
    kinds = await entries(client)
    assert kinds[-1] == ("cancelled", None)
    assert ("node", "b0") not in kinds


async def test_a_run_of_waiting_branches_expires(either: House) -> None:
    hf = either.open()
    graph = forked(waits_for("a"), waits_for("b"))
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r", expires=hours(1))
        await either.quiet(worker)
        await run.signal("a", "in time")
        await either.quiet(worker)
        await either.move(3600, worker)
        assert (await run.get()).status == "expired"


async def test_a_signal_in_time_for_one_branch_is_carried_out_after_the_expiry(
    house: House, hf: Holdfast
) -> None:
    took: list[Any] = []

    async def takes(state: Any, ctx: Any) -> Any:
        took.append(await ctx.wait(signal("a")))

    graph = forked(takes, waits_for("b"))
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r", expires=hours(1))
        await house.quiet(worker)
    await run.signal("a", "in time")
    house.clock.advance(3600)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert took == ["in time"]
        assert (await run.get()).status == "expired"  # the other one had none


async def test_a_snapshot_while_branches_are_open_is_where_a_resume_begins(either: House) -> None:
    counts: Counter[str] = Counter()

    async def ask(state: Any, ctx: Any) -> Any:
        counts[str(state["item"])] += 1
        got = await ctx.wait(signal(f"go{state['item']}"), max_wait=hours(3))
        return {"log": [got]}

    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="work", writes=["log"])(lambda state: {"log": [f"did {state['item']}" * 40]})
    graph.node(name="ask", writes=["log"])(ask)
    graph.node(name="join")(lambda state: {"log": [len(state["log"])]})
    graph.each("first", "work", over="items", into="item", join="join")
    graph.route("work", "ask")
    hf = either.open()
    hf._kernel.snapshot_floor_bytes = 100
    async with either.worker(hf, graph) as worker:
        await hf.start(graph, {"items": list(range(12))}, id="r")
        await either.quiet(worker)
    head = await item_of_head(hf, "r")
    assert head["snapshot"] > 1
    other = either.open()
    other._kernel.snapshot_floor_bytes = 100
    async with either.worker(other, graph) as worker:
        for number in (7, 3, *(n for n in range(12) if n not in (3, 7))):
            await other.run("r").signal(f"go{number}", number)
            await either.quiet(worker)
        log = (await other.run("r", graph=graph).result(timeout=60))["log"]
    assert log == [value for n in range(12) for value in (f"did {n}" * 40, n)] + [24]
    assert counts == {str(n): 2 for n in range(12)}
    assert (await item_of_head(other, "r"))["snapshot"] > head["snapshot"]
