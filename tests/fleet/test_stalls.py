"""Runs that make no progress: which ones are found, why, and what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.errors import InvalidName, InvalidQuery, InvalidRequest
from holdfast.model.fleet import StalledPage
from holdfast.records.keys import worker_key
from holdfast.records.worker import offer_attributes, register_write
from holdfast.storage import Put, Update
from tests.engine.asking import graph_of as asking_graph_of
from tests.engine.support import Gate, House, item_of_head, kill, store_of, tenant_key


def graph_of(name: str = "work", version: int = 1, gate: Gate | None = None) -> Graph:
    graph = Graph(name, dict, version=version)

    @graph.node
    async def work(state: Any) -> Any:
        if gate is not None:
            await gate.pass_through()
        return {}

    return graph


def reasons(page: StalledPage) -> list[tuple[str, str]]:
    return sorted((run.id, run.reason) for run in page.runs)


async def both(hf: Holdfast, **given: Any) -> tuple[list[Any], list[Any]]:
    """Return the reasons of the stuck and of the unserved runs."""
    stuck, unserved = await hf.fleet.stuck(**given), await hf.fleet.unserved(**given)
    return reasons(stuck), reasons(unserved)


async def test_a_run_that_no_worker_ever_served_is_unserved_after_the_grace_period(
    either: House,
) -> None:
    hf = either.open()
    await hf.start(graph_of(), {}, id="r-1")
    either.clock.advance(30)
    assert await both(hf) == ([], [])
    either.clock.advance(1)
    for tenant in (None, "*"):
        assert await both(hf, tenant=tenant) == ([], [("r-1", "no_worker")])
    (found,) = (await hf.fleet.unserved()).runs
    assert found.detail == "no live worker serves graph 'work'"
    assert found.advice == "start a worker that has graph 'work': holdfast worker TARGET"
    assert found.as_dict()["since_at"].endswith("Z")
    assert reasons(await hf.fleet.unserved(grace="1h")) == []
    assert reasons(await hf.fleet.unserved(tenant="other")) == []


async def test_a_run_in_a_pool_without_a_worker_is_unserved(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, graph_of()) as worker:
        await hf.start(graph_of(), {}, id="r-1", pool="gpu")
        await house.move(31, worker)
        for tenant in (None, "*"):
            assert await both(hf, tenant=tenant) == ([], [("r-1", "no_worker_for_pool")])
        (found,) = (await hf.fleet.unserved()).runs
        assert "only from the pool without a name; this run is in pool 'gpu'" in found.detail
        assert found.advice.endswith("holdfast worker TARGET --pool gpu")


async def test_all_tenants_are_searched_in_pools_that_workers_once_served(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, graph_of(), pools=["gpu"]) as worker:
        await house.quiet(worker)
        while not await hf.fleet.graphs():
            await house.quiet(worker)
    await hf.start(graph_of(), {}, id="r-1", pool="gpu", tenant="acme")
    house.clock.advance(31)
    assert reasons(await hf.fleet.unserved(tenant="*")) == [("r-1", "no_worker")]
    assert reasons(await hf.fleet.unserved(tenant="acme")) == [("r-1", "no_worker")]
    assert reasons(await hf.fleet.unserved()) == []


async def test_a_run_of_a_newer_version_is_unserved(house: House) -> None:
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph_of(version=1)) as worker:
        await client.start(graph_of(version=2), {}, id="r-1")
        await house.move(1, worker)
        for tenant in (None, "*"):
            assert await both(hf, tenant=tenant) == ([], [("r-1", "newer_version")])
        (found,) = (await hf.fleet.unserved()).runs
        assert found.advice == "deploy workers that have version 2 of 'work'"


async def test_a_run_that_needs_a_missing_model_is_unserved(house: House) -> None:
    async def ask(state: Any, ctx: Any) -> Any:
        return {"text": (await ctx.model("haiku", "Is it?")).text}

    graph, hf = asking_graph_of(ask), house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="r-1")
        await house.quiet(worker)
        for tenant in (None, "*"):
            assert await both(hf, tenant=tenant) == ([], [("r-1", "missing_resource")])
        (found,) = (await hf.fleet.unserved()).runs
        assert "it waits for a worker with model 'haiku'" in found.detail
        assert (await hf.fleet.overview()).unserved.runs == 1


async def plant_worker(
    house: House,
    hf: Holdfast,
    id: str = "w-1",
    *,
    lease: int = 60,
    seconds: float = 1_000_000,
    running: int = 0,
    graphs: tuple[tuple[str, int], ...] = (("work", 1),),
) -> None:
    """Write the row of a worker that lives for so long, and that claims nothing."""
    now = house.clock.now_ms()
    await store_of(hf).table.write(
        register_write(
            id,
            lease_ms=lease * 1000,
            expires_ms=now + round(seconds * 1000),
            now_ms=now,
            details={"concurrency": 8, "running": running, **offer_attributes(graphs, [None])},
            token=id,
        )
    )


async def test_a_run_that_live_workers_leave_is_stuck_after_a_lease_a_poll_and_a_margin(
    house: House,
) -> None:
    hf = house.open()
    await hf.start(graph_of(), {}, id="r-1")
    await plant_worker(house, hf)
    house.clock.advance(90)
    assert await both(hf) == ([], [])
    house.clock.advance(1)
    for tenant in (None, "*"):
        assert await both(hf, tenant=tenant) == ([("r-1", "overdue")], [])
    overview = await hf.fleet.overview()
    assert (overview.stuck.runs, overview.ready.runs, overview.unserved.runs) == (1, 1, 0)


async def test_a_run_is_stuck_for_another_reason_where_all_slots_are_taken(house: House) -> None:
    hf = house.open()
    await hf.start(graph_of(), {}, id="r-1")
    await plant_worker(house, hf, running=7)
    house.clock.advance(91)
    assert await both(hf) == ([("r-1", "no_free_slot")], [])


async def test_a_run_of_a_dead_worker_is_stuck_if_none_takes_it_over(house: House) -> None:
    gate = Gate()
    graph = graph_of(gate=gate)
    hf, client = house.open(), house.open()
    worker = hf.worker([graph], lease=60)
    await worker.start()
    await hf.start(graph, {}, id="r-1")
    await gate.waited_at(1)
    kill(worker)
    house.clock.advance(60 + 31)
    for tenant in (None, "*"):  # no worker lives: nothing is stuck, but somebody has to start one
        assert (await client.fleet.stuck(tenant=tenant)).runs == []
    assert reasons(await client.fleet.unserved()) == [("r-1", "no_worker")]
    assert (await client.fleet.overview()).unserved.runs == 1
    await plant_worker(house, client)
    assert await both(client) == ([], [])
    house.clock.advance(60)
    for tenant in (None, "*"):
        assert await both(client, tenant=tenant) == ([("r-1", "dead_worker")], [])
    gate.open()


async def test_an_owner_that_the_index_does_not_show_for_a_moment_is_looked_up(
    house: House,
) -> None:
    gate = Gate()
    hf = house.open()
    async with house.worker(hf, graph_of(gate=gate)) as worker:
        await hf.start(graph_of(gate=gate), {}, id="r-1")
        await gate.waited_at(1)
        house.clock.advance(10_000)
        row = await store_of(hf).table.get(worker_key(worker.id))
        assert row is not None
        coverage = await hf.fleet._reader.read_coverage()
        assert list(coverage.workers) == [worker.id]
        empty = msgspec.structs.replace(coverage, workers={})
        heads = await hf.fleet._reader.read_heads([tenant_key("r-1")])
        full = await hf.fleet._reader.with_owners(empty, heads)
        assert list(full.workers) == [worker.id]
        assert await both(hf) == ([], [])
        gate.open()


async def test_a_run_that_cannot_be_resumed_is_stuck(house: House) -> None:
    hf = house.open()
    await hf.start(graph_of(), {}, id="r-1")
    await plant_worker(house, hf)
    failed = {"reason": "resume_failed", "resume_failures": 2}
    await store_of(hf).table.write(Update(key=tenant_key("r-1").head, set=failed))
    for tenant in (None, "*"):
        assert await both(hf, tenant=tenant) == ([("r-1", "resume_failed")], [])


async def test_a_worker_that_does_not_name_all_its_graphs_may_serve_any(house: House) -> None:
    hf = house.open()
    await hf.start(graph_of("z"), {}, id="r-1")
    many = tuple((f"a-graph-with-a-long-name-{n}", 1) for n in range(50))
    await plant_worker(house, hf, graphs=many)
    house.clock.advance(31)
    assert await both(hf) == ([], [])


async def test_runs_that_wait_as_they_should_are_not_found(house: House) -> None:
    graph = Graph("waiting", dict)

    @graph.node
    async def wait(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"))
        return {}

    hf = house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {}, id="r-1")
        await hf.start(graph, {}, id="r-2", start_at="2100-01-01T00:00:00Z")
        await house.quiet(worker)
    house.clock.advance(3600)
    assert await both(hf) == ([], [])
    assert await both(hf, tenant="*") == ([], [])
    overview = await hf.fleet.overview()
    assert (overview.waiting.runs, overview.ready.runs, overview.running.runs) == (2, 0, 0)


@pytest.mark.parametrize("tenant", [None, "*"])
async def test_pages_have_every_run_once(house: House, tenant: str | None) -> None:
    hf = house.open()
    await hf.fleet.publish([graph_of("a"), graph_of("b")])
    ids = [f"{graph}-{n}" for graph in "abc" for n in range(7)]
    for id in ids:
        await hf.start(graph_of(id[0]), {}, id=id)
    house.clock.advance(31)
    found: list[str] = []
    cursor = None
    while True:
        page = await hf.fleet.unserved(tenant=tenant, limit=4, cursor=cursor)
        assert len(page.runs) <= 4
        found += [run.id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(found) == ids


@pytest.mark.parametrize("tenant", [None, "*"])
async def test_a_small_page_reads_rows_in_batches(house: House, tenant: str | None) -> None:
    hf = house.open()
    await hf.fleet.publish([graph_of("a")])
    for n in range(60):
        await hf.start(graph_of("a"), {}, id=f"a-{n}")
    await plant_worker(house, hf, graphs=(("a", 1),))
    house.clock.advance(31)
    before = sum(row.calls for row in hf.meter.report().rows)
    assert (await hf.fleet.stuck(tenant=tenant, limit=1)).runs == []
    assert sum(row.calls for row in hf.meter.report().rows) - before < 40


async def test_a_run_whose_worker_just_left_is_not_stuck(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    graph, hf = graph_of(gate=gate), house.open()
    reader = hf.fleet._reader
    worker = house.worker(hf, graph)
    await worker.start()
    await hf.start(graph, {}, id="r-1")
    await gate.waited_at(1)
    stale = await reader.read_heads([tenant_key("r-1")])
    gate.open()
    await hf.run("r-1").result()
    await worker.stop()
    await hf.start(graph_of("other"), {}, id="r-2")
    await plant_worker(house, hf, graphs=(("work", 1), ("other", 1)))

    async def read_stale(runs: Any) -> Any:
        return stale

    house.clock.advance(91)
    monkeypatch.setattr(reader, "read_heads", read_stale)
    assert (await hf.fleet.stuck()).runs == []


@pytest.mark.parametrize("cursor", ["", "x", "W10", "é", "WyJhIiwxXQ", "a" * 5000, 7])
async def test_a_wrong_cursor_is_refused(house: House, cursor: Any) -> None:
    hf = house.open()
    for tenant in (None, "*"):
        with pytest.raises(InvalidQuery, match="cursor"):
            await hf.fleet.stuck(tenant=tenant, cursor=cursor)


async def test_wrong_arguments_are_refused(house: House) -> None:
    fleet = house.open().fleet
    with pytest.raises(InvalidQuery, match="limit must be an integer"):
        await fleet.stuck(limit=0)
    with pytest.raises(InvalidName, match="tenant"):
        await fleet.unserved(tenant="a#b")
    with pytest.raises(InvalidRequest, match="grace"):
        await fleet.unserved(grace="soon")


async def test_a_damaged_row_hides_no_other_run(house: House) -> None:
    hf = house.open()
    await hf.fleet.publish([graph_of()])
    for id in ("r-1", "r-2"):
        await hf.start(graph_of(), {}, id=id)
    row = await item_of_head(hf, "r-1")
    await store_of(hf).table.write(Put({**row, "status": 7}))
    house.clock.advance(31)
    assert reasons(await hf.fleet.unserved(tenant="*")) == [("r-2", "no_worker")]
