"""Dead workers: reaped once, swept again in bounded turns, whatever the clocks say."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

from holdfast import Graph, Holdfast, Worker, signal
from holdfast.records import worker as worker_rows
from holdfast.records.head import ROW_WAITS_MAX
from holdfast.records.index_keys import REAPED, WORKERS, IndexKey
from holdfast.records.keys import REAPING, worker_key
from holdfast.records.run_writes import claim_write
from holdfast.storage import Put
from tests.engine.support import (
    Gate,
    House,
    StepClock,
    calls_of,
    chain,
    item_of_head,
    kill,
    store_of,
    tenant_key,
    units_of,
)
from tests.engine.test_workers import gated, row_of

DEAD = 40
LEASE_SECONDS = 60


async def in_index(hf: Holdfast, partition: str) -> list[str]:
    """Return the workers that stand in one partition of the due index, in order."""
    entries = store_of(hf).table.query_all(partition, index="GSI1")
    return [IndexKey(partition, entry["GSI1SK"]).worker_parts()[1] async for entry in entries]


async def lose_workers(hf: Holdfast, graph: Graph, count: int) -> None:
    """Let so many workers die that hold nothing."""
    for _ in range(count):
        worker = hf.worker([graph])
        await worker.start()
        kill(worker)


async def dead_worker(house: House, graph: Graph, id: str, gate: Gate) -> Worker:
    """Return a worker that died inside the node of a new run."""
    hf = house.open()
    worker = hf.worker([graph])
    await worker.start()
    inside = gate.inside
    await hf.start(graph, id=id)
    await gate.waited_at(inside + 1)
    kill(worker)
    await asyncio.wait(worker.drivers._tasks.values())
    return worker


def writes_of(hf: Holdfast) -> int:
    """Return how often rows of workers were written."""
    calls = calls_of(hf, "worker", "reaping")
    return sum(count for (_, operation), count in calls.items() if operation == "write")


async def pass_lease(house: House, *workers: Worker, leases: int = 1) -> None:
    for _ in range(leases * LEASE_SECONDS // 5):
        await house.move(5, *workers)


async def idle(house: House, seconds: float) -> None:
    """Move the clock on while a node is inside, and return when all loops of a worker sleep."""
    house.clock.advance(seconds)
    await house.clock.asleep(3)


# --- many dead workers ----------------------------------------------------------------------------


async def test_dead_workers_cost_little_once_they_are_reaped(either: House) -> None:
    graph = chain("g", 1, lambda number: {})
    hf = either.open()
    await lose_workers(either.open(), graph, DEAD)
    async with hf.worker([graph]) as worker:
        await pass_lease(either, worker, leases=2)
        assert await in_index(hf, WORKERS) == [worker.id]
        assert len(await in_index(hf, REAPED)) == DEAD
        await pass_lease(either, worker, leases=6)
        hf.meter.reset()
        await pass_lease(either, worker)
        # Four beats. Nobody is swept again at this age, and the turn of the fleet ends in a read.
        assert writes_of(hf) <= 4 + 2


async def test_a_worker_that_dies_now_is_reaped_before_those_that_died_before(
    house: House,
) -> None:
    """What was reaped stands elsewhere: no page of it has to be read first."""
    gate = Gate()
    graph = gated(gate)
    hf = house.open()
    await lose_workers(house.open(), graph, DEAD)
    async with hf.worker([graph]) as worker:
        await pass_lease(house, worker, leases=2)
        await dead_worker(house, graph, "doc-42", gate)
        gate.open()
        hf.meter.reset()
        await pass_lease(house, worker)
        await house.move(5, worker)
        assert await hf.run("doc-42").result(timeout=60) == {"done": True}
        # The row of the dead worker, and how far the turns of the fleet are.
        assert calls_of(hf, "reaping")[("reaping", "get")] <= 4


async def test_turns_are_bounded_and_taken_by_one_worker_of_the_fleet(house: House) -> None:
    graph = chain("g", 1, lambda number: {})
    one, other = house.open(), house.open()
    one._kernel.sweeps_max = other._kernel.sweeps_max = 10
    await lose_workers(house.open(), graph, DEAD)
    async with house.worker(one, graph, lease=60) as first:
        await pass_lease(house, first, leases=2)
        async with house.worker(other, graph, lease=60) as second:
            await pass_lease(house, first, second)
            sweeps: list[str] = []
            for hf in (one, other):
                watch_sweeps(hf, sweeps)
            before = await turn_number(one)
            for _ in range(3):
                sweeps.clear()
                await pass_lease(house, first, second)
                assert len(sweeps) <= 10
            assert await turn_number(one) - before <= 3
            await pass_lease(house, first, second, leases=DEAD)
    swept = {name for name in sweeps if name not in (first.id, second.id)}
    assert len(swept) == DEAD


def watch_sweeps(hf: Holdfast, sweeps: list[str]) -> None:
    """Note whose list is read, from now on."""
    table = hf._kernel.reaping
    query = table.query

    async def noted(pk: str, *arguments: Any, **options: Any) -> Any:
        if pk.startswith("OWN#"):
            name = pk.removeprefix("OWN#")
            if name not in await in_index(hf, WORKERS):
                sweeps.append(name)
        return await query(pk, *arguments, **options)

    table.query = noted  # type: ignore[method-assign]


async def turn_number(hf: Holdfast) -> int:
    item = await store_of(hf).table.get(REAPING)
    return 0 if item is None else item["turn"]


async def test_a_claim_that_lands_late_under_a_dead_workers_name_is_found(either: House) -> None:
    await claim_late(either, spoil=lambda: None)


async def test_damaged_rows_hide_no_dead_worker_that_is_to_be_swept_again(house: House) -> None:
    def spoil() -> None:
        path = house.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path)) as connection:
            connection.executemany(
                "INSERT INTO items (pk, sk, body, GSI1PK, GSI1SK) VALUES (?, 's', x'c1', ?, ?)",
                [
                    (f"ODD#{moment}#{number}", REAPED, f"{moment}#odd{number:03}")
                    for moment in ("0000000000001", "9999999999999")
                    for number in range(150)
                ],
            )
            connection.commit()

    await claim_late(house, spoil)


async def claim_late(either: House, spoil: Callable[[], None]) -> None:
    """Let a claim come under the name of a dead worker after it was reaped, and be found."""
    gate = Gate()
    graph = gated(gate)
    gate.open()
    client, hf = either.open(), either.open()
    lost = either.open().worker([graph])
    await lost.start()
    kill(lost)
    async with either.worker(hf, chain("other", 1, lambda number: {}), lease=60) as worker:
        await pass_lease(either, worker, leases=2)
        assert lost.id in await in_index(hf, REAPED)
        spoil()
        run = await client.start(graph, id="doc-42")
        item = await item_of_head(client, "doc-42")
        late = claim_write(
            IndexKey(item["GSI1PK"], item["GSI1SK"]),
            tenant_key("doc-42"),
            worker=lost.id,
            now_ms=either.clock.now_ms(),
            token="t",
        )
        await store_of(client).table.write(late)
        await pass_lease(either, worker, leases=3)
        assert worker.counts["taken over"] == 1
        assert (await run.get()).owner is None


async def test_another_worker_goes_on_where_the_one_that_buried_it_died(house: House) -> None:
    gate = Gate()
    graph = gated(gate)
    lost = await dead_worker(house, graph, "doc-42", gate)
    gate.open()
    hf = house.open()
    house.clock.advance(LEASE_SECONDS + 1)
    row = await row_of(hf, lost)
    lapsed_ms, _ = IndexKey(WORKERS, row["GSI1SK"]).worker_parts()
    now_ms = house.clock.now_ms()
    await store_of(hf).table.write(
        worker_rows.begin_reap_write(
            lost.id, lapsed_ms=lapsed_ms, now_ms=now_ms, next_ms=now_ms + 60_000, token="t"
        )
    )
    async with hf.worker([graph]) as worker:
        await house.quiet(worker)  # it beats before its first lease ends
        await house.move(55, worker)
        assert worker.counts["taken over"] == 0
        await house.move(10, worker)
        assert await hf.run("doc-42").result(timeout=60) == {"done": True}


async def test_a_worker_that_leaves_leaves_nothing_to_be_swept(either: House) -> None:
    gate = Gate()
    graph = gated(gate)
    hf = either.open()
    async with hf.worker([graph], drain=0) as worker:
        await hf.start(graph, id="doc-42")
        await gate.waited_at()
    assert worker.running == 0
    assert await in_index(hf, WORKERS) + await in_index(hf, REAPED) == []
    assert await store_of(hf).table.get(worker_key(worker.id)) is None


# --- workers lost in a row ------------------------------------------------------------------------


async def test_only_workers_that_are_lost_in_a_row_count(house: House, hf: Holdfast) -> None:
    """Between any two deaths another worker released the run."""
    gate = Gate()
    graph = gated(gate)
    await hf.start(graph, id="doc-42")
    for _ in range(4):
        drained = hf.worker([graph], resumes_max=3, drain=0)
        await drained.start()
        await gate.waited_at(1)
        await drained.stop()
        lost = hf.worker([graph], resumes_max=3)
        await lost.start()
        await gate.waited_at(1)
        kill(lost)
        await asyncio.wait(lost.drivers._tasks.values())
        house.clock.advance(LEASE_SECONDS + 1)
    gate.open()
    async with hf.worker([graph], resumes_max=3) as worker:
        await house.quiet(worker)
        assert await hf.run("doc-42").result(timeout=60) == {"done": True}
    kinds = [entry.kind for entry in (await hf.run("doc-42").history()).entries]
    assert kinds == ["fence"] * 4 + ["node", "finished"]


async def test_a_pause_between_two_deaths_counts_as_going_on(house: House, hf: Holdfast) -> None:
    gate = Gate()
    graph = Graph("g", dict)

    @graph.node
    async def asks(state: Any, ctx: Any) -> Any:
        if len(state["turns"]) > 0:
            await gate.pass_through()
        # As many as the row shows: there may be more, so any signal wakes the run.
        await asyncio.gather(*(ctx.wait(signal(f"go-{n}")) for n in range(ROW_WAITS_MAX)))

    await hf.start(graph, {"turns": [1]}, id="doc-42")
    for number in range(3):
        lost = hf.worker([graph], resumes_max=2)
        await lost.start()
        await gate.waited_at(1)
        kill(lost)
        await asyncio.wait(lost.drivers._tasks.values())
        house.clock.advance(LEASE_SECONDS + 1)
        async with hf.worker([graph], resumes_max=2) as worker:
            gate.open()
            await house.quiet(worker)
            row = await hf.run("doc-42").get()
            assert (row.status, row.failure) == ("waiting", None), number
        gate = Gate()
        await hf.run("doc-42").signal("other")


async def test_a_crash_loop_names_the_node_and_how_many_were_lost(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()
    graph = gated(gate)
    await hf.start(graph, id="doc-42")
    for _ in range(2):
        lost = hf.worker([graph], resumes_max=2)
        await lost.start()
        await gate.waited_at(1)
        kill(lost)
        await asyncio.wait(lost.drivers._tasks.values())
        house.clock.advance(LEASE_SECONDS + 1)
    async with hf.worker([graph], resumes_max=2) as worker:
        await house.quiet(worker)
        failure = (await hf.run("doc-42").get()).failure
    assert failure is not None
    assert failure.type == "CrashLoop"
    assert failure.message.startswith("2 workers in a row were lost at node 'blocked', ")


async def test_a_run_that_is_to_be_cancelled_is_so_though_it_lost_its_workers(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()
    graph = gated(gate)
    await hf.start(graph, id="doc-42")
    for _ in range(2):
        lost = hf.worker([graph], resumes_max=2)
        await lost.start()
        await gate.waited_at(1)
        kill(lost)
        await asyncio.wait(lost.drivers._tasks.values())
        house.clock.advance(LEASE_SECONDS + 1)
    await hf.run("doc-42").cancel("no longer wanted")
    async with hf.worker([graph], resumes_max=2) as worker:
        await house.quiet(worker)
        assert (await hf.run("doc-42").get()).status == "cancelled"


# --- clocks ---------------------------------------------------------------------------------------


async def test_a_worker_reaps_the_name_that_it_abandoned(house: House, clock: StepClock) -> None:
    """Its last lease was written by a clock that was ten minutes ahead."""
    gate = Gate()
    graph = gated(gate)
    hf = house.open()
    async with hf.worker([graph]) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        clock.ahead_seconds = 600
        await idle(house, 15)  # a beat
        abandoned = worker.id
        clock.ahead_seconds = 0
        clock.advance(LEASE_SECONDS + 1)  # it stood still
        gate.open()
        for _ in range(4):
            await clock.asleep(3)
            clock.advance(5)
        assert worker.id not in ("", abandoned)
        assert await run.result(timeout=60) == {"done": True}
        assert worker.counts["taken over"] == 1


async def test_a_lease_far_ahead_ends_when_it_is_not_renewed(
    either: House, clock: StepClock
) -> None:
    gate = Gate()
    graph = gated(gate)
    clock.ahead_seconds = 600
    lost = await dead_worker(either, graph, "doc-42", gate)
    clock.ahead_seconds = 0
    gate.open()
    hf = either.open()
    async with hf.worker([graph]) as worker:
        await pass_lease(either, worker)
        assert worker.counts["taken over"] == 0
        await either.move(5, worker)
        await either.move(5, worker)
        assert worker.counts["taken over"] == 1
        assert await hf.run("doc-42").result(timeout=60) == {"done": True}
        assert lost.id in await in_index(hf, REAPED)


async def test_a_row_that_does_not_say_how_long_a_lease_is_hides_no_dead_worker(
    either: House, clock: StepClock
) -> None:
    gate = Gate()
    graph = gated(gate)
    hf = either.open()
    # They come before the dead one: its lease ends at the same time, or later.
    for number, lease_ms in enumerate(["x", None, [], {"ms": 1}, b"1"]):
        place = IndexKey.worker(f"odd{number}", clock.now_ms() + 600_000)
        key = worker_key(f"odd{number}")
        row = {"PK": key.pk, "SK": key.sk, "GSI1PK": place.pk, "GSI1SK": place.sk}
        await store_of(hf).table.write(Put({**row, "lease_ms": lease_ms}))
    clock.ahead_seconds = 600
    await dead_worker(either, graph, "doc-42", gate)
    clock.ahead_seconds = 0
    gate.open()
    async with hf.worker([graph]) as worker:
        await pass_lease(either, worker)
        await either.move(5, worker)
        await either.move(5, worker)
        assert worker.counts["taken over"] == 1
        assert worker.health.ok


async def test_a_lease_far_ahead_that_is_renewed_holds(house: House) -> None:
    """Leases may differ in length: who has a longer one is not dead."""
    graph = chain("g", 1, lambda number: {})
    one, other = house.open(), house.open()
    async with (
        one.worker([graph], lease=400) as patient,
        other.worker([graph], lease=20) as hasty,
    ):
        name = patient.id
        for _ in range(200):
            await house.move(5, patient, hasty)
        assert patient.id == name
        assert units_of(other, "worker").writes > 0


async def test_a_clock_that_jumps_ahead_does_not_make_a_worker_bury_itself(
    house: House, clock: StepClock
) -> None:
    gate = Gate()
    graph = gated(gate)
    hf = house.open()
    async with hf.worker([graph]) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        name = worker.id
        clock.ahead_seconds = 600
        await idle(house, 5)
        await idle(house, 10)
        clock.ahead_seconds = 0
        await idle(house, 15)
        assert worker.id == name
        # The next beat after the clock was set right sets the lease right, too.
        until_ms, _ = IndexKey(WORKERS, (await row_of(hf, worker))["GSI1SK"]).worker_parts()
        assert until_ms - clock.now_ms() == LEASE_SECONDS * 1000
        gate.open()
        assert await run.result(timeout=60) == {"done": True}
