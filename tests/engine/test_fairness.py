"""Fairness: a tenant's flood takes neither all slots of a worker nor all of its attention."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Graph, Holdfast
from holdfast.engine.worker.poll_order import PartitionOrder
from holdfast.errors import Throttled
from holdfast.records.index_keys import shard_of_run
from holdfast.records.keys import RunKey
from holdfast.storage import Update
from tests.engine.support import Gate, House, calls_of, chain, store_of, tenant_key

SHARDS = 8
SLOTS = 16
FLOOD_MOST = 14
"""How many of 16 slots one tenant gets."""


def shards_of(tenant: str) -> set[int]:
    return {shard_of_run(RunKey(tenant, f"run-{number}"), SHARDS) for number in range(32)}


FLOOD = "flood"
NEIGHBOURS = [f"tenant-{number}" for number in range(1_000)]
OTHER = next(tenant for tenant in NEIGHBOURS if not shards_of(FLOOD) & shards_of(tenant))
"""Its runs stand in none of the flood's shards."""
BESIDE = next(tenant for tenant in NEIGHBOURS if shards_of(FLOOD) == shards_of(tenant))
"""Its runs stand in the same ones."""


def gated(gate: Gate) -> Graph:
    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    return chain("gated", 1, lambda number: {}, node0=blocked)


async def flooded(client: Holdfast, graph: Graph, count: int) -> None:
    for number in range(count):
        await client.start(graph, id=f"run-{number:03}", tenant=FLOOD)


async def owners(hf: Holdfast, tenant: str) -> list[str | None]:
    page = await hf.list(tenant=tenant, limit=1_000)
    return [(await hf.run(entry.id, tenant=tenant).get()).owner for entry in page.runs]


async def test_a_flood_leaves_slots_to_others(either: House) -> None:
    gate = Gate()
    graph = gated(gate)
    client, hf = either.open(), either.open()
    await flooded(client, graph, 40)
    async with either.worker(hf, graph, concurrency=SLOTS) as worker:
        await gate.waited_at(FLOOD_MOST)
        for _ in range(3):
            either.clock.advance(1)
            await either.clock.asleep(3)
        assert worker.running == FLOOD_MOST
        await client.start(graph, id="other", tenant=OTHER)
        either.clock.advance(1)
        await gate.waited_at(FLOOD_MOST + 1)
        assert await owners(client, OTHER) == [worker.id]
        gate.open()
        for number in range(40):
            await client.run(f"run-{number:03}", tenant=FLOOD).result(timeout=60)


async def test_what_is_started_in_process_keeps_to_the_same_rule(house: House) -> None:
    gate = Gate()
    graph = gated(gate)
    hf = house.open()
    async with house.worker(hf, graph, concurrency=SLOTS, poll=1_000_000) as worker:
        await flooded(hf, graph, 20)
        assert sorted(owner is None for owner in await owners(hf, FLOOD)) == (
            [False] * FLOOD_MOST + [True] * (20 - FLOOD_MOST)
        )
        other = await hf.start(graph, id="other", tenant=OTHER)
        assert (await other.get()).owner == worker.id
        gate.open()
        for number in range(
            20
        ):  # the end of each run makes room for the next: nobody moves the clock
            await hf.run(f"run-{number:03}", tenant=FLOOD).result(timeout=60)
    assert gate.most == FLOOD_MOST + 1


async def test_what_comes_after_a_flood_is_seen_in_the_same_shards_too(either: House) -> None:
    gate = Gate()
    graph = gated(gate)
    client, hf = either.open(), either.open()
    await flooded(client, graph, 150)
    async with either.worker(hf, graph, concurrency=SLOTS) as worker:
        await gate.waited_at(FLOOD_MOST)
        await either.clock.asleep(3)
        either.clock.advance(1)
        await either.clock.asleep(3)
        await client.start(graph, id="beside", tenant=BESIDE)
        either.clock.advance(1)
        await gate.waited_at(FLOOD_MOST + 1)
        assert await owners(client, BESIDE) == [worker.id]
        gate.open()


async def test_a_worker_that_may_take_nothing_of_what_is_due_rests(house: House) -> None:
    gate = Gate()
    graph = gated(gate)
    client, hf = house.open(), house.open()
    await flooded(client, graph, 200)
    async with house.worker(hf, graph, concurrency=SLOTS) as worker:
        await gate.waited_at(FLOOD_MOST)
        await house.clock.asleep(3)
        hf.meter.reset()
        house.clock.advance(1)
        await house.clock.asleep(3)
        # One page of each shard, and the other end of the two in which the flood stands.
        assert calls_of(hf, "due", "head") == {("due", "query"): SHARDS + 2}
        for number in range(20):  # what it is told of, it may not take either
            await hf.start(graph, id=f"more-{number}", tenant=FLOOD)
        await house.clock.asleep(3)
        assert calls_of(hf, "due") == {("due", "query"): SHARDS + 2}
        assert worker.running == FLOOD_MOST
        gate.open()
        await house.move(1)
        await hf.run("more-19", tenant=FLOOD).result(timeout=60)


async def test_what_cannot_be_claimed_otherwise_is_paged_past(house: House) -> None:
    graph = chain("g", 1, lambda number: {})
    client, hf = house.open(), house.open()
    newer: list[str] = []
    for number in range(60):
        await client.start(graph, id=f"newer-{number}")
        newer.append(f"newer-{number}")
    for id in newer:
        row = Update(key=tenant_key(id).head, set={"schema": 99})
        await store_of(client).table.write(row)
    house.clock.advance(1)
    for number in range(4):
        await client.start(graph, id=f"older-{number}")
    async with house.worker(hf, graph, concurrency=1) as worker:
        await house.quiet(worker)
        for number in range(4):
            await client.run(f"older-{number}").result(timeout=60)


async def test_a_full_partition_keeps_no_other_one_waiting(house: House) -> None:
    order: list[str] = []
    graph = Graph("g", dict)

    @graph.node
    async def note(state: Any) -> None:
        order.append(state["tenant"])

    client, hf = house.open(), house.open()
    for number in range(30):
        await client.start(graph, {"tenant": FLOOD}, id=f"run-{number:03}", tenant=FLOOD)
    house.clock.advance(1)
    other = await client.start(graph, {"tenant": OTHER}, tenant=OTHER)
    async with house.worker(hf, graph, concurrency=1):
        await other.result(timeout=60)
        # At the latest after one run of each of the two shards of the flood.
        assert order.index(OTHER) <= 2
        for number in range(30):
            await client.run(f"run-{number:03}", tenant=FLOOD).result(timeout=60)


def test_who_was_served_last_comes_last() -> None:
    rounds = PartitionOrder(["a", "b"], [None, "gpu"])
    order = rounds.partitions("w", 4)
    assert len(order) == len(set(order)) == 16
    rounds.rotate_past(order[5])
    turned = rounds.partitions("w", 4)
    assert turned == [*order[6:], *order[:6]]
    assert sorted(rounds.partitions("w", 8))[:1] == ["DUE#a#000"]
    assert len(rounds.partitions("w", 8)) == 32
    assert rounds.partitions("another", 8) != rounds.partitions("w", 8)


async def test_a_shard_that_cannot_be_read_hides_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain("g", 1, lambda number: {})
    client, hf = house.open(), house.open()
    busy = {f"DUE#g#{shard:03}" for shard in shards_of(FLOOD)}
    query = hf._kernel.due.query

    async def throttled(partition: str, *arguments: Any, **options: Any) -> Any:
        if partition in busy:
            raise Throttled
        return await query(partition, *arguments, **options)

    monkeypatch.setattr(hf._kernel.due, "query", throttled)
    await client.start(graph, id="flood", tenant=FLOOD)
    other = await client.start(graph, id="other", tenant=OTHER)
    async with house.worker(hf, graph):
        await other.result(timeout=60)
        assert (await client.run("flood", tenant=FLOOD).get()).owner is None
        busy.clear()
        await house.clock.asleep(3)
        house.clock.advance(1)
        await client.run("flood", tenant=FLOOD).result(timeout=60)
