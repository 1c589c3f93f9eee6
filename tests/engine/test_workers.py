"""Workers: so many runs at once and no more, shared with others, and lost by nobody's death."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Graph, Holdfast, Worker, signal
from holdfast.clock import ManualClock
from holdfast.errors import InvalidGraph, InvalidRequest
from holdfast.records import worker as worker_rows
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import RunKey, worker_key
from holdfast.records.run_writes import claim_write
from tests.engine.support import (
    Gate,
    House,
    chain,
    item_of_head,
    kill,
    store_of,
    tenant_key,
)


def gated(gate: Gate, name: str = "gated") -> Graph:
    graph = Graph(name, dict)

    @graph.node
    async def blocked(state: Any) -> Any:
        await gate.pass_through()
        return {"done": True}

    return graph


async def turns(count: int) -> None:
    """Give everybody else that many turns."""
    clock = ManualClock()
    for _ in range(count):
        await clock.sleep(0)


# --- how much at once -----------------------------------------------------------------------------


async def test_a_worker_drives_no_more_runs_than_it_may(either: House) -> None:
    gate = Gate()
    graph = gated(gate)
    client, hf = either.open(), either.open()
    runs = [await client.start(graph, {"n": n}, id=f"doc-{n}") for n in range(24)]
    async with either.worker(hf, graph, concurrency=3) as worker:
        await gate.waited_at(3)
        await either.clock.asleep(3)
        own = await hf.start(graph, {"n": "own"}, id="own")
        assert (await own.get()).owner is None
        for _ in range(3):
            either.clock.advance(1)
            await either.clock.asleep(3)
        assert (gate.inside, worker.running) == (3, 3)
        gate.open()
        await either.clock.asleep(3)
        for run in [*runs, own]:
            await hf.run(run.id).result(timeout=60)
    assert gate.most == 3
    assert gate.entered == 25


async def test_a_worker_that_is_full_takes_on_the_next_as_soon_as_one_ends(house: House) -> None:
    gate = Gate()
    graph = gated(gate)
    hf = house.open()
    async with house.worker(hf, graph, concurrency=1, poll=1_000_000):
        runs = [await hf.start(graph, {"n": n}) for n in range(5)]
        gate.open()
        for run in runs:
            assert (await run.result(timeout=60))["done"]
    assert gate.most == 1


async def test_a_slot_that_was_kept_in_vain_is_for_who_was_refused_it(
    house: House, hf: Holdfast
) -> None:
    """At once, and not at the next scan: the clock stands still."""
    graph = Graph("g", dict)

    @graph.node
    async def work(state: Any) -> Any:
        return {"done": True}

    async with house.worker(hf, graph, concurrency=1) as worker:
        await house.quiet(worker)
        room = worker.claims.reserve(RunKey("default", "other"), "g", None)
        assert room is not None
        run = await hf.start(graph, {})
        await house.quiet(worker)
        assert (await run.get()).status == "ready"
        room.release()
        assert await run.result(timeout=60) == {"done": True}


async def test_signals_to_many_at_once_do_not_overfill_a_worker(house: House) -> None:
    gate = Gate()
    graph = Graph("waiting", dict)

    @graph.node
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"))
        await gate.pass_through()

    hf = house.open()
    async with house.worker(hf, graph, concurrency=2) as worker:
        for number in range(12):
            await hf.start(graph, {"n": number}, id=f"doc-{number}")
            await house.quiet(worker)
        await asyncio.gather(*(hf.run(f"doc-{number}").signal("go") for number in range(12)))
        await gate.waited_at(2)
        for _ in range(3):
            house.clock.advance(1)
            await house.clock.asleep(3)
        assert worker.running == 2
        gate.open()
        for number in range(12):
            await hf.run(f"doc-{number}").result(timeout=60)
    assert gate.most == 2


async def test_plain_nodes_run_side_by_side_in_threads(house: House, hf: Holdfast) -> None:
    barrier = threading.Barrier(5)
    graph = Graph("plain", dict)

    @graph.node
    def meets(state: Any) -> Any:
        barrier.wait(60)
        return {"thread": threading.current_thread().name}

    async with house.worker(hf, graph, concurrency=5):
        runs = [await hf.start(graph, {"n": n}) for n in range(5)]
        names = {(await run.result(timeout=60))["thread"] for run in runs}
    assert len(names) == 5
    assert threading.current_thread().name not in names


async def test_two_workers_share(either: House) -> None:
    gate = Gate()
    graph = gated(gate)
    client, one, other = (either.open() for _ in range(3))
    for number in range(6):
        await client.start(graph, {"n": number}, id=f"doc-{number}")
    async with (
        either.worker(one, graph, concurrency=3) as first,
        either.worker(other, graph, concurrency=3) as second,
    ):
        await gate.waited_at(6)
        assert (first.running, second.running) == (3, 3)
        owners = [(await client.run(f"doc-{number}").get()).owner for number in range(6)]
        assert sorted(set(owners)) == sorted([first.id, second.id])
        gate.open()
        await either.quiet(first, second)
    assert gate.entered == 6
    assert first.counts["finished"] == second.counts["finished"] == 3


async def test_a_worker_takes_only_the_graphs_that_it_has(house: House) -> None:
    hf = house.open()
    mine, other = chain("mine", 1, lambda number: {}), chain("other", 1, lambda number: {})
    async with house.worker(hf, mine) as worker:
        await hf.start(mine, id="mine")
        await hf.start(other, id="other")
        await house.move(1, worker)
        assert (await hf.run("mine").get()).status == "finished"
        assert (await hf.run("other").get()).status == "ready"


async def test_a_run_goes_on_with_its_own_version_where_there_is_one(house: House) -> None:
    hf = house.open()
    old, new = (graph_of_version(version) for version in (1, 2))
    run = await hf.start(old, id="doc-42")
    async with house.worker(hf, new, old) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"version": 1}
    run = await hf.start(old, id="doc-43")
    async with house.worker(hf, new) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"version": 2}


def graph_of_version(version: int) -> Graph:
    graph = Graph("g", dict, version=version)

    @graph.node
    async def node(state: Any) -> Any:
        return {"version": version}

    return graph


# --- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_worker_that_leaves_releases_what_others_go_on_with(
    either: House, stubborn: bool
) -> None:
    gate = Gate()
    graph = Graph("g", dict)

    @graph.node
    async def first(state: Any) -> Any:
        return {"first": True}

    @graph.node
    async def blocked(state: Any) -> Any:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            if not stubborn:
                raise
        return {"blocked": gate.entered}

    graph.route(first, blocked)
    one, other = either.open(), either.open()
    worker = either.worker(one, graph)
    await worker.start()
    for number in range(3):
        await one.start(graph, {"n": number}, id=f"doc-{number}")
    await gate.waited_at(3)
    left = worker.id
    await worker.stop(drain=0)
    assert await store_of(one).table.get(worker_key(left)) is None
    gate.open()
    for number in range(3):
        row = await one.run(f"doc-{number}").get()
        assert row.owner is None
        if not stubborn:
            assert (row.status, row.reason, row.node) == ("ready", "draining", "blocked")
            assert row.nodes_run == 1
    async with either.worker(other, graph) as second:
        await either.quiet(second)
    for number in range(3):
        assert (await other.run(f"doc-{number}").result(timeout=60))["first"]
        kinds = [entry.kind for entry in (await other.run(f"doc-{number}").history()).entries]
        assert kinds == ["node", "node", "finished"]  # no fence: it let go by itself


async def test_a_worker_that_leaves_lets_nodes_run_on_to_the_next_boundary(house: House) -> None:
    gate, ran = Gate(), []
    graph = Graph("g", dict)

    @graph.node
    async def blocked(state: Any) -> Any:
        await gate.pass_through()
        return {"blocked": True}

    @graph.node
    async def after(state: Any) -> Any:
        ran.append("after")

    graph.route(blocked, after)
    hf = house.open()
    worker = house.worker(hf, graph, drain=60)
    await worker.start()
    run = await hf.start(graph, id="doc-42")
    await gate.waited_at()
    stopping = asyncio.create_task(worker.stop())
    await turns(5)
    assert worker.draining
    late = await hf.start(graph, id="late")
    gate.open()
    await stopping
    row = await run.get()
    assert (row.owner, row.reason, row.node, row.nodes_run) == (None, "draining", "after", 1)
    assert (await late.get()).owner is None
    assert ran == []


async def test_to_stop_twice_is_to_stop_once(house: House, hf: Holdfast) -> None:
    worker = house.worker(hf, chain("g", 1, lambda number: {}))
    await worker.start()
    await asyncio.gather(worker.stop(), worker.stop())
    await worker.stop()


# --- dying ----------------------------------------------------------------------------------------


async def row_of(hf: Holdfast, worker: Worker) -> dict[str, Any]:
    row = await store_of(hf).table.get(worker_key(worker.id))
    assert row is not None
    return row


async def test_the_runs_of_a_dead_worker_are_taken_over(either: House) -> None:
    gate = Gate()
    graph = gated(gate)
    one, other = either.open(), either.open()
    lost = one.worker([graph])
    await lost.start()
    for number in range(3):
        await one.start(graph, {"n": number}, id=f"doc-{number}")
    await gate.waited_at(3)
    kill(lost)
    gate.open()
    async with other.worker([graph]) as worker:
        for seconds in (10, 10, 10, 10, 10, 9):
            await either.move(seconds, worker)
        assert worker.counts["taken over"] == 0  # the lease still holds
        await either.move(6, worker)
        assert worker.counts["taken over"] == 3
    for number in range(3):
        assert (await other.run(f"doc-{number}").result(timeout=60))["done"]
        kinds = [entry.kind for entry in (await other.run(f"doc-{number}").history()).entries]
        assert kinds == ["fence", "node", "finished"]


async def test_a_run_that_notices_the_lost_lease_itself_counts_as_lost(house: House) -> None:
    graph, drivers = Graph("g", dict), list[Any]()
    entered = asyncio.Event()

    @graph.node
    async def slow(state: Any) -> None:
        if not drivers:
            drivers.append(asyncio.current_task())
            entered.set()
            house.clock.advance(61)  # as if the node had blocked the loop past the lease

    hf = house.open()
    async with hf.worker([graph]) as worker:
        await hf.start(graph, id="doc-42")
        async with asyncio.timeout(60):
            await entered.wait()
            await asyncio.wait(drivers)
    assert worker.counts["lost"] == 1


async def test_a_worker_that_was_buried_takes_a_new_id_and_drops_what_it_held(
    either: House,
) -> None:
    gate, cancelled = Gate(), []
    graph = Graph("g", dict)

    @graph.node
    async def blocked(state: Any) -> Any:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return {"done": True}

    hf = either.open()
    async with hf.worker([graph]) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        buried = worker.id
        lapsed_ms, _ = IndexKey("WORKERS", (await row_of(hf, worker))["GSI1SK"]).worker_parts()
        now_ms = either.clock.now_ms()
        burial = worker_rows.begin_reap_write(
            buried, lapsed_ms=lapsed_ms, now_ms=now_ms, next_ms=now_ms + 30_000, token="t"
        )
        await store_of(hf).table.write(burial)
        either.clock.advance(15)  # the next beat
        await either.clock.asleep(3)
        assert worker.id not in ("", buried)
        assert cancelled == [True]
        assert (worker.counts["lost"], worker.running) == (1, 0)
        assert (await run.get()).owner == buried
        gate.open()
        await either.move(10, worker)
        assert (await run.get()).owner == buried
        await either.move(10, worker)  # the sweep of its own grave finds the run
        assert await run.result(timeout=60) == {"done": True}
        assert worker.counts["taken over"] == 1
    assert [entry.kind for entry in (await run.history()).entries] == ["fence", "node", "finished"]


async def test_a_claim_whose_answer_never_came_is_found_by_the_audit(either: House) -> None:
    graph = chain("g", 2, lambda number: {})
    client, hf = either.open(), either.open()
    async with hf.worker([graph]) as worker:
        await either.quiet(worker)
        run = await client.start(graph, id="doc-42")
        item = await item_of_head(client, "doc-42")
        place = IndexKey(item["GSI1PK"], item["GSI1SK"])
        claim = claim_write(
            place,
            tenant_key("doc-42"),
            worker=worker.id,
            now_ms=either.clock.now_ms(),
            token="t",
        )
        await store_of(client).table.write(claim)
        for _ in range(3):
            await either.move(15, worker)
            assert (await run.get()).owner == worker.id
            assert worker.running == 0
        await either.move(15, worker)
        await either.move(1, worker)
        assert (await run.get()).status == "finished"
    assert (await run.history()).entries[0].kind == "fence"


async def test_the_audit_leaves_alone_what_the_worker_drives(house: House, hf: Holdfast) -> None:
    gate = Gate()
    graph = gated(gate)
    async with hf.worker([graph]) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        for _ in range(9):
            house.clock.advance(15)
            await house.clock.asleep(3)
        assert (await run.get()).epoch == 1
        gate.open()
        await house.quiet(worker)
    assert gate.entered == 1
    assert [entry.kind for entry in (await run.history()).entries] == ["node", "finished"]


async def test_a_stalled_worker_writes_nothing_past_its_lease(house: House) -> None:
    gate = Gate()
    graph = gated(gate)
    one, other = house.open(), house.open()
    async with one.worker([graph]) as stalled:
        run = await one.start(graph, id="doc-42")
        await gate.waited_at()
        gate.open()
        house.clock.advance(61)  # in one go: as though the process had been stopped for so long
        async with other.worker([graph]) as worker:
            await house.quiet(stalled, worker)
            await house.move(61, stalled, worker)
            assert await run.result(timeout=60) == {"done": True}
    kinds = [entry.kind for entry in (await run.history()).entries]
    assert kinds == ["fence", "node", "finished"]


# --- what it is given -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"lease": -1},
        {"lease": "60"},
        {"poll": float("nan")},
        {"resumes_max": 0},
        {"nonsense": 1},
    ],
    ids=repr,
)
async def test_an_option_that_makes_no_sense_is_refused(hf: Holdfast, options: Any) -> None:
    with pytest.raises(InvalidRequest):
        hf.worker([chain("g", 1, lambda number: {})], **options)


async def test_a_worker_needs_graphs_that_can_be_run(hf: Holdfast) -> None:
    with pytest.raises(InvalidRequest):
        hf.worker([])
    with pytest.raises(InvalidGraph):
        hf.worker([Graph("empty", dict)])
