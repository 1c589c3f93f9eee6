"""Which graphs and workers there are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, signal
from holdfast.errors import InvalidRequest
from holdfast.records.index_keys import GRAPHS
from holdfast.records.keys import graph_key, worker_key
from holdfast.storage import Put
from holdfast.storage.item import item_bytes
from tests.engine.support import Gate, House, kill, store_of, units_of

GO = signal("go", bool)


def graph_of(name: str, version: int = 1) -> Graph:
    graph = Graph(name, dict, version=version, signals=[GO])

    @graph.node
    async def work(state: Any) -> Any:
        return {}

    return graph


async def published(house: House, *names: str) -> None:
    """Return when a worker has stored what others should know of these graphs."""
    hf = house.open()
    async with asyncio.timeout(60):
        while {graph.name for graph in await hf.fleet.graphs()} < set(names):
            pass


async def test_every_graph_and_version_that_a_worker_serves_is_listed(either: House) -> None:
    hf = either.open()
    async with either.worker(hf, graph_of("a"), graph_of("a", 2), pools=["gpu", None]):
        await published(either, "a")
        either.clock.advance(1)
        async with either.worker(either.open(), graph_of("b")):
            await published(either, "a", "b")
            found = await either.open().fleet.graphs()
    assert [(each.name, each.version, each.pools) for each in found] == [
        ("a", 1, ("gpu", None)),
        ("a", 2, ("gpu", None)),
        ("b", 1, (None,)),
    ]
    first = found[0]
    assert first.drawing.startswith("flowchart")
    assert first.signals == ("go",)
    assert [each["type"] for each in first.signal_schemas["go"]] == ["boolean"]
    assert first.published_at is not None
    assert first.as_dict()["pools"] == ["gpu", None]


async def test_a_process_without_a_worker_publishes_its_graphs(house: House) -> None:
    hf = house.open()
    await hf.fleet.publish([graph_of("a")])
    (found,) = await hf.fleet.graphs()
    assert (found.name, found.pools) == ("a", ())
    with pytest.raises(InvalidRequest):
        await hf.fleet.publish(["a"])  # type: ignore[list-item]


async def test_an_item_of_an_older_release_is_listed_after_the_next_worker_starts(
    house: House,
) -> None:
    hf = house.open()
    key = graph_key("a", 1)
    await store_of(hf).table.write(Put({"PK": key.pk, "SK": key.sk, "revision": 4}))
    assert await hf.fleet.graphs() == []
    async with house.worker(hf, graph_of("a")):
        await published(house, "a")
    item = await store_of(hf).table.get(key)
    assert item is not None
    assert (item["GSI1PK"], item["revision"]) == (GRAPHS, 5)


async def test_a_damaged_item_hides_no_other_graph(house: House) -> None:
    hf = house.open()
    await hf.fleet.publish([graph_of("a"), graph_of("b")])
    item = await store_of(hf).table.get(graph_key("a", 1))
    assert item is not None
    await store_of(hf).table.write(Put({**item, "signals": "x"}))
    assert [each.name for each in await hf.fleet.graphs()] == ["b"]


async def test_workers_say_what_they_serve_what_they_hold_and_how_they_lag(either: House) -> None:
    gate, graph = Gate(), Graph("busy", dict)

    @graph.node
    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    client, hf = either.open(), either.open()
    runs = [await client.start(graph, {}, id=f"r-{n}") for n in range(3)]
    either.clock.advance(7)
    async with hf.worker([graph], concurrency=5, lease=60) as worker:
        await gate.waited_at(3)
        assert worker.claim_lag_seconds == 7
        await either.clock.asleep(3)
        either.clock.advance(15)
        await either.clock.asleep(3)
        assert worker.claim_lag_seconds == 0
        (found,) = await client.fleet.workers()
        gate.open()
        await asyncio.gather(*(run.result(timeout=60) for run in runs))
    assert (found.id, found.alive, found.running, found.owned) == (worker.id, True, 3, 3)
    assert (found.concurrency, found.lease_seconds, found.lag_seconds) == (5, 60, 7)
    assert (found.graphs, found.pools, found.complete) == ({"busy": (1,)}, (None,), True)
    assert found.release
    assert found.as_dict()["graphs"] == {"busy": [1]}
    assert await client.fleet.workers() == []


async def test_a_dead_worker_is_listed_until_its_runs_are_taken_over(house: House) -> None:
    gate, graph = Gate(), Graph("busy", dict)

    @graph.node
    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    hf, client = house.open(), house.open()
    worker = hf.worker([graph], lease=60)
    await worker.start()
    await hf.start(graph, {}, id="r-1")
    await gate.waited_at(1)
    kill(worker)
    house.clock.advance(61)
    (found,) = await client.fleet.workers()
    assert (found.id, found.alive, found.owned) == (worker.id, False, 1)
    overview = await client.fleet.overview()
    assert (overview.workers_alive, overview.workers_dead) == (0, 1)
    gate.open()


async def test_a_heartbeat_of_a_worker_with_many_graphs_and_pools_costs_three_units(
    house: House,
) -> None:
    hf = house.open()
    graphs = [graph_of(f"a-graph-with-a-long-name-{n:03d}") for n in range(60)]
    pools = [f"a-pool-with-a-long-name-{n}" for n in range(20)]
    async with hf.worker(graphs, pools=pools, lease=60) as worker:
        await house.clock.asleep(3)
        hf.meter.reset()
        house.clock.advance(15)
        await house.clock.asleep(3)
        assert units_of(hf, "worker").writes == 3
        row = await store_of(hf).table.get(worker_key(worker.id))
        assert row is not None
        assert item_bytes({**row, "host": "h" * 100}) < 1024
        (found,) = await hf.fleet.workers()
    assert not found.complete
    assert 5 < len(found.graphs) < 60


async def test_the_row_of_an_older_release_is_read(house: House) -> None:
    hf = house.open()
    async with hf.worker([graph_of("a")]) as worker:
        row = await store_of(hf).table.get(worker_key(worker.id))
        assert row is not None
        names = ("graphs", "pools", "concurrency", "running", "lag_ms", "release")
        old = {name: value for name, value in row.items() if name not in names}
        await store_of(hf).table.write(Put(old))
        (found,) = await hf.fleet.workers()
        assert (found.alive, found.complete, found.graphs) == (True, False, {})
        assert (found.running, found.lag_seconds, found.concurrency) == (None, None, None)


async def test_a_damaged_row_of_a_worker_hides_no_other(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, graph_of("a")) as first, house.worker(hf, graph_of("b")) as second:
        row = await store_of(hf).table.get(worker_key(first.id))
        assert row is not None
        await store_of(hf).table.write(Put({**row, "graphs": ["a"]}))
        assert [each.id for each in await hf.fleet.workers()] == [second.id]
