"""How many runs there are, and what they cost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast import Graph, Holdfast, RunFilter
from holdfast.errors import InvalidQuery
from holdfast.fleet import counting
from holdfast.fleet.costs import merged_groups
from holdfast.records.index_keys import IndexKey
from tests.engine.asking import Cents
from tests.engine.asking import graph_of as asking_graph_of
from tests.engine.support import House, units_of


def failing_graph() -> Graph:
    graph = Graph("fails", dict)

    @graph.node
    async def fail(state: Any) -> Any:
        raise ValueError("no text")

    return graph


async def ask(state: Any, ctx: Any) -> Any:
    return {"text": (await ctx.model("haiku", "Is it?")).text}


async def test_an_overview_counts_runs_of_all_tenants(either: House) -> None:
    hf, graph = either.open(), failing_graph()
    async with either.worker(hf, graph) as worker:
        for n in range(3):
            await hf.start(graph, {}, id=f"f-{n}", tenant="default")
        await hf.start(graph, {}, id="later", tenant="acme", start_at="2100-01-01T00:00:00Z")
        await either.patiently_quiet(worker)
        while not await hf.fleet.graphs():
            await either.quiet(worker)
        found = await hf.fleet.overview()
    assert (found.failed.runs, found.waiting.runs, found.ready.runs) == (3, 1, 0)
    assert (found.quarantined.runs, found.stuck.runs, found.unserved.runs) == (0, 0, 0)
    assert (found.workers_alive, found.workers_dead) == (1, 0)
    assert not any(
        count.capped for count in (found.failed, found.waiting, found.ready, found.running)
    )
    assert found.as_dict()["failed"] == {"runs": 3, "capped": False}


async def test_a_count_ends_at_its_limit(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_COUNT_MAX", 5)
    monkeypatch.setattr(counting, "_PAGE", 2)
    hf, graph = house.open(), failing_graph()
    await hf.fleet.publish([graph])
    for n in range(40):
        await hf.start(graph, {}, id=f"f-{n}")
    found = await hf.fleet.overview()
    assert found.ready.as_dict() == {"runs": 5, "capped": True}
    assert found.waiting.as_dict() == {"runs": 0, "capped": False}


async def test_an_overview_reads_no_more_than_it_counts(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_COUNT_MAX", 5)
    monkeypatch.setattr(counting, "_PAGE", 2)
    hf, graph = house.open(), failing_graph()
    await hf.fleet.publish([graph])
    for n in range(80):
        await hf.start(graph, {}, id=f"f-{n}")
    await hf.start(graph, {}, id="later", start_at="2100-01-01T00:00:00Z")
    before = fleet_queries(hf)
    found = await hf.fleet.overview()
    assert found.ready.as_dict() == {"runs": 5, "capped": True}
    assert found.waiting.as_dict() == {"runs": 1, "capped": False}
    # In each of 8 shards one page of runs that are due and one of later ones, and a few more.
    assert fleet_queries(hf) - before <= 16 + 4 + 4


async def test_a_run_that_has_ended_and_waits_to_be_freed_is_no_alarm(house: House) -> None:
    graph = Graph("quick", dict)

    @graph.node
    async def work(state: Any) -> Any:
        return {}

    hf = house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {"text": random.Random(1).randbytes(400_000)}, id="r-1")
        await house.quiet(worker)
    ended = await hf.run("r-1").get()
    assert ended.status == "finished"
    row = await hf._kernel.heads.get(hf.run("r-1")._key.head)
    assert row is not None
    due_ms, _, _ = IndexKey(row["GSI1PK"], row["GSI1SK"]).due_parts()
    house.clock.advance((due_ms - house.clock.now_ms()) / 1000 + 3600)
    assert (await hf.fleet.unserved(tenant="*")).runs == []
    found = await hf.fleet.overview()
    assert (found.unserved.runs, found.stuck.runs) == (0, 0)


def fleet_queries(hf: Holdfast) -> int:
    rows = hf.meter.report().rows
    return sum(row.calls for row in rows if (row.purpose, row.operation) == ("fleet", "query"))


async def test_an_overview_of_an_idle_store_costs_a_few_units(house: House) -> None:
    hf = house.open()
    await hf.fleet.publish([failing_graph()])
    await hf.fleet.overview()
    before = units_of(hf, "fleet").reads
    found = await hf.fleet.overview()
    # One query for each of 8 shards, the workers, and 4 lists of failed runs: half a unit each.
    assert found.read_units == units_of(hf, "fleet").reads - before == (8 + 1 + 4) / 2


async def test_cost_is_added_up_by_graph_day_status_and_label(house: House) -> None:
    hf = house.open(models={"haiku": Cents()})
    graph, failing = asking_graph_of(ask), failing_graph()
    async with house.worker(hf, graph, failing) as worker:
        for n in range(3):
            label = {"team": "blue"} if n else {}
            await (await hf.start(graph, id=f"a-{n}", labels=label)).result(timeout=60)
        await hf.start(failing, {}, id="f-1")
        await house.patiently_quiet(worker)
        one = (await hf.run("a-0").get()).cost_usd
        assert one > 0
        tokens = (await hf.run("a-0").get()).tokens
        by = {
            grouping: [
                (group.key, group.runs, group.tokens, group.cost_usd)
                for group in (await hf.fleet.cost(by=grouping)).groups
            ]
            for grouping in ("graph", "status", "label:team")
        }
        day = (await hf.run("a-0").get()).created_at.date().isoformat()
        days = await hf.fleet.cost(RunFilter(graph=graph.name), by="day")
    total = pytest.approx(3 * one)
    assert by["graph"] == [(graph.name, 3, 3 * tokens, total), ("fails", 1, 0, 0)]
    assert by["status"] == [("finished", 3, 3 * tokens, total), ("failed", 1, 0, 0)]
    assert by["label:team"] == [
        ("blue", 2, 2 * tokens, pytest.approx(2 * one)),
        ("", 2, tokens, pytest.approx(one)),
    ]
    assert [(group.key, group.runs) for group in days.groups] == [(day, 3)]
    assert days.cursor is None
    assert {cost.purpose for cost in days.store} >= {"head", "journal"}
    assert days.as_dict()["groups"][0]["runs"] == 3


async def test_pages_of_cost_are_merged(house: House) -> None:
    hf, graph = house.open(), failing_graph()
    for n in range(5):
        await hf.start(graph, {}, id=f"f-{n}")
    first = await hf.fleet.cost()
    merged = merged_groups([*first.groups, *first.groups])
    assert [(group.key, group.runs) for group in merged] == [("fails", 10)]


@pytest.mark.parametrize("by", ["", "node", "label:", "label:a#b", "label", None, 7, "x" * 500])
async def test_an_unknown_grouping_is_refused(house: House, by: Any) -> None:
    with pytest.raises(InvalidQuery, match="by must be graph, day, status or label:NAME"):
        await house.open().fleet.cost(by=by)


async def test_a_condition_instead_of_a_filter_is_refused(house: House) -> None:
    with pytest.raises(InvalidQuery, match="pass RunFilter"):
        await house.open().fleet.cost(graph="a")  # type: ignore[call-arg]
