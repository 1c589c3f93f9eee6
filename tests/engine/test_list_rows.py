"""What a list shows of the row of each run, by which conditions on it, and at what cost."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Graph, Holdfast, RunEntry, RunFilter, signal
from holdfast.errors import InvalidQuery, InvalidRequest
from tests.engine.asking import Cents
from tests.engine.support import House, calls_of, units_of

GRAPH = Graph("paid", dict)


@GRAPH.node
async def ask(state: Any, ctx: Any) -> Any:
    for number in range(state["cents"]):
        await ctx.model("small", f"What is {number}?")


@GRAPH.node
async def end(state: Any, ctx: Any) -> Any:
    match state["end"]:
        case "waits":
            await ctx.wait(signal("go"))
        case "fails":
            raise ValueError("it is broken")


GRAPH.route(ask, end)


async def started(house: House) -> Holdfast:
    """Start a run of each kind, one a second, and return when they wait or have ended."""
    hf = house.open(models={"small": Cents()})
    async with house.worker(hf, GRAPH) as worker:
        for number, ending in enumerate(["finishes", "fails", "waits"] * 2):
            house.clock.advance(1)
            state = {"cents": number, "end": ending}
            await hf.start(GRAPH, state, id=f"{ending}-{number}")
            await house.quiet(worker)
    return hf


async def ids(hf: Holdfast, *, pages_of: int = 100, **conditions: Any) -> list[str]:
    found, cursor = [], None
    while True:
        page = await hf.list(RunFilter(**conditions), limit=pages_of, cursor=cursor)
        assert len(page.runs) <= pages_of
        found += [entry.id for entry in page.runs]
        cursor = page.cursor
        if cursor is None:
            return found


async def test_open_and_ended_runs_show_node_change_cost_and_failure(either: House) -> None:
    hf = await started(either)
    entries = {entry.id: entry for entry in (await hf.list()).runs}
    assert len(entries) == 6
    for id, entry in entries.items():
        row = await hf.run(id).get()
        names = ("status", "reason", "waits", "node", "updated_at", "cost_usd", "failure")
        assert [getattr(entry, name) for name in names] == [getattr(row, name) for name in names]
    waits, fails = entries["waits-5"], entries["fails-4"]
    assert (waits.status, waits.reason, waits.node) == ("waiting", "signal", "end")
    assert (fails.status, fails.reason, fails.cost_usd) == ("failed", None, 0.04)
    assert fails.failure is not None
    assert (fails.failure.type, fails.failure.message) == ("ValueError", "it is broken")
    finished = entries["finishes-3"]
    assert (finished.failure, finished.cost_usd) == (None, 0.03)
    assert finished.updated_at >= finished.created_at


@pytest.mark.parametrize("pages_of", [1, 2, 100])
async def test_lists_are_by_node_change_and_cost(house: House, pages_of: int) -> None:
    hf = await started(house)
    rows = [await hf.run(id).get() for id in reversed(await ids(hf))]
    third, second = rows[3].updated_at, rows[2].updated_at
    for conditions, expected in (
        ({"node": "end"}, ["waits-5", "fails-4", "finishes-3", "waits-2", "fails-1", "finishes-0"]),
        ({"node": "ask"}, []),
        ({"node": "END"}, []),
        ({"updated_since": third}, ["waits-5", "fails-4", "finishes-3"]),
        ({"updated_until": third}, ["waits-2", "fails-1", "finishes-0"]),
        ({"updated_since": second, "updated_until": third.isoformat()}, ["waits-2"]),
        ({"updated_since": third, "updated_until": third}, []),
        ({"cost_usd_min": 0.04}, ["waits-5", "fails-4"]),
        ({"cost_usd_max": Decimal("0.01")}, ["fails-1", "finishes-0"]),
        ({"cost_usd_min": 0.01, "cost_usd_max": 0.02}, ["waits-2", "fails-1"]),
        ({"cost_usd_min": 0.02, "status": "failed"}, ["fails-4"]),
        ({"cost_usd_min": 0.03, "status": ["finished", "waiting"]}, ["waits-5", "finishes-3"]),
        ({"cost_usd_min": 0.02, "reason": "signal", "node": "end"}, ["waits-5", "waits-2"]),
        ({"cost_usd_min": 5}, []),
    ):  # fmt: skip
        assert await ids(hf, pages_of=pages_of, **conditions) == expected


async def test_a_run_with_branches_is_found_by_each_of_their_nodes(house: House) -> None:
    graph = Graph("forked", dict)

    @graph.node
    async def split(state: Any) -> Any:
        return {"pages": [1, 2, 3]}

    @graph.node(writes=())
    async def read(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"))

    @graph.node
    async def join(state: Any) -> Any: ...

    graph.each(split, read, over="pages", into="page", join=join)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="a")
        await house.quiet(worker)
    (entry,) = (await hf.list()).runs
    assert entry.node == "read x3"
    assert await ids(hf, node="read") == ["a"]
    assert await ids(hf, node="read x3") == ["a"]
    assert await ids(hf, node="rea") == []


async def test_a_condition_that_few_rows_meet_reads_a_hundred_rows_at_a_time(house: House) -> None:
    await started(house)
    hf = house.open()
    page = await hf.list(RunFilter(cost_usd_min=0.05), limit=1)
    assert [entry.id for entry in page.runs] == ["waits-5"]
    page = await hf.list(RunFilter(cost_usd_min=0.05), limit=1, cursor=page.cursor)
    assert (page.runs, page.cursor) == ([], None)
    assert calls_of(hf, "list")["list", "get_many"] == 2


async def test_a_page_looks_at_so_many_runs_whether_they_match_or_not(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = await started(house)
    monkeypatch.setattr("holdfast.engine.history.lists._PAGE_ENTRIES_MAX", 4)
    page = await hf.list(RunFilter(cost_usd_max=0))
    assert (page.runs, page.cursor is None) == ([], False)
    assert await ids(hf, cost_usd_max=0) == ["finishes-0"]


async def test_a_list_costs_half_a_read_unit_a_row_and_nothing_to_write(either: House) -> None:
    await started(either)
    hf = either.open()
    await hf.list(limit=1)  # which also reads the settings
    hf.meter.reset()
    assert len((await hf.list()).runs) == 6
    (index,) = [row for row in hf.meter.report().rows if row.operation == "query"]
    (rows,) = [row for row in hf.meter.report().rows if row.operation == "get_many"]
    assert (rows.calls, rows.units.reads) == (1, 6 * 0.5)
    # A query of each shard of the index, for each of its two kinds.
    assert (index.calls, index.units.reads <= 8 * 0.5) == (8, True)
    assert units_of(hf, "list").writes == 0


async def test_a_run_without_a_row_is_listed_as_the_index_has_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = await started(house)

    async def too_early(keys: Any, **options: Any) -> list[None]:
        return [None for _ in keys]

    monkeypatch.setattr(hf._kernel.lists, "get_many", too_early)
    page = await hf.list()
    assert [entry.id for entry in page.runs] == [
        "waits-5", "fails-4", "finishes-3", "waits-2", "fails-1", "finishes-0",
    ]  # fmt: skip
    assert all(entry.updated_at == entry.created_at for entry in page.runs)
    assert page.runs[0] == RunEntry(
        id="waits-5",
        tenant="default",
        graph="paid",
        version=1,
        status="waiting",
        labels={},
        created_at=page.runs[0].created_at,
        updated_at=page.runs[0].created_at,
    )


async def test_bulk_actions_take_the_conditions(house: House) -> None:
    hf = await started(house)
    done = [step async for step in hf.cancel_all(RunFilter(node="end", cost_usd_min=0.05))]
    assert (done[-1].seen, done[-1].done) == (1, 1)
    assert (await hf.run("waits-5").get()).status == "cancelled"
    done = [step async for step in hf.retry_all(RunFilter(cost_usd_max=0.01))]
    assert (done[-1].seen, done[-1].done) == (1, 1)
    assert (await hf.run("fails-1").get()).status == "ready"


WRONG_AMOUNTS = [-1, -0.01, float("nan"), float("inf"), 10**400, True, "5", [], Decimal("sNaN")]


@pytest.mark.parametrize("amount", WRONG_AMOUNTS, ids=lambda amount: f"{amount!r:.9}")
@pytest.mark.parametrize("field", ["cost_usd_min", "cost_usd_max"])
def test_a_wrong_amount_is_refused(field: str, amount: Any) -> None:
    with pytest.raises(
        InvalidQuery, match=f"{field} must be an amount of dollars from 0"
    ) as refused:
        RunFilter(**{field: amount})
    assert refused.value.field == field


async def test_wrong_conditions_are_refused(house: House, hf: Holdfast) -> None:
    with pytest.raises(InvalidQuery, match="node must be the name of a node, got 5"):
        RunFilter(node=5)  # type: ignore[arg-type]
    for field in ("updated_since", "updated_until"):
        for moment in ("yesterday", "2026-01-01", 5):
            with pytest.raises(InvalidRequest, match=f"{field} must be a datetime with a time"):
                RunFilter(**{field: moment})  # type: ignore[arg-type]
    with pytest.raises(InvalidQuery, match="cost_usd_min must not be greater than cost_usd_max"):
        RunFilter(cost_usd_min=2, cost_usd_max=1)
    row = await (await hf.start(GRAPH, {"cents": 0, "end": ""})).get()
    with pytest.raises(InvalidQuery, match="updated_since must not be greater than updated_until"):
        RunFilter(updated_since=row.created_at, updated_until=row.created_at - timedelta(days=1))
    with pytest.raises(InvalidQuery, match=r"pass RunFilter\(node=…\) as its first argument"):
        hf.list(node="end")  # type: ignore[call-arg]
