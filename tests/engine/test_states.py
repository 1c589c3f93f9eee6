"""What a run holds: its input, its state at any entry of its history, and all its waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Graph, HistoryEntry, Holdfast, RunHandle, days, signal
from holdfast.errors import InvalidQuery, InvalidRequest, RunFailed, RunNotFound
from holdfast.model.event import Snapshot
from holdfast.records.codec import unpack_events
from holdfast.records.journal import content_of
from holdfast.records.keys import journal_position
from holdfast.storage import Delete, Key
from tests.engine.branching import each, waits_for
from tests.engine.support import (
    Gate,
    House,
    chain,
    incompressible,
    item_of_head,
    journal_items,
    kill,
    store_of,
)

HOUR = 3600


async def waits(state: Any, ctx: Any) -> Any:
    return {"decision": await ctx.wait(signal("decision"))}


def step(number: int) -> dict[str, Any]:
    return {f"step{number}": number}


GRAPH = chain("g", 4, step, node2=waits)


async def entries_of(run: RunHandle) -> list[HistoryEntry]:
    return [entry async for entry in run.events(follow=False)]


# --- state and input ------------------------------------------------------------------------------


async def test_a_waiting_run_shows_its_input_and_its_state(either: House) -> None:
    hf, other = either.open(), either.open()
    async with either.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, {"given": "x"}, id="doc-42")
        await either.quiet(worker)
        for handle in (run, other.run("doc-42")):
            assert await handle.input() == {"given": "x"}
            assert await handle.state() == {"given": "x", "step0": 0, "step1": 1}


async def test_a_run_that_nobody_took_yet_holds_its_input(hf: Holdfast) -> None:
    run = await hf.start(GRAPH, {"given": "x"})
    assert await run.state() == await run.input() == {"given": "x"}


async def test_a_large_input_is_read_from_its_record(hf: Holdfast) -> None:
    large = incompressible(1, 100_000)
    run = await hf.start(GRAPH, {"given": large})
    assert await run.state() == await run.input() == {"given": large}


async def test_a_failed_run_keeps_the_state_before_its_failure(house: House, hf: Holdfast) -> None:
    async def breaks(state: Any) -> Any:
        raise ValueError("broken")

    graph = chain("g", 2, step, node1=breaks)
    async with house.worker(hf, graph):
        run = await hf.start(graph)
        with pytest.raises(RunFailed):
            await run.result()
    assert await run.state() == {"step0": 0}


async def test_the_state_of_a_running_run_is_the_last_one_that_was_written(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()

    async def stands(state: Any) -> Any:
        await gate.pass_through()
        return {"late": True}

    graph = chain("g", 2, step, node1=stands)
    async with house.worker(hf, graph):
        run = await hf.start(graph)
        await gate.waited_at()
        assert await run.state() == {"step0": 0}
        gate.open()
        assert await run.result() == await run.state() == {"step0": 0, "late": True}


async def test_every_entry_of_the_history_has_its_state(either: House) -> None:
    hf = either.open()
    async with either.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, {"given": "x"}, id="doc-42")
        await either.quiet(worker)
        await run.signal("decision", "yes")
        await run.result()
    states = [(entry.kind, await run.state(at=entry.cursor)) for entry in await entries_of(run)]
    begun = {"given": "x", "step0": 0, "step1": 1}
    assert states == [
        ("node", {"given": "x", "step0": 0}),
        ("node", begun),
        ("signal", begun),
        ("node", {**begun, "decision": "yes"}),
        ("node", {**begun, "decision": "yes", "step3": 3}),
        ("finished", {**begun, "decision": "yes", "step3": 3}),
    ]


async def test_states_before_and_after_snapshots_are_the_same(house: House, hf: Holdfast) -> None:
    hf._kernel.snapshot_floor_bytes = 100
    graph = chain("g", 60, lambda number: {"last": number, "text": f"{number}" * 50})
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result()
    last = (await item_of_head(hf, "doc-42"))["snapshot"]
    nodes = [entry for entry in await entries_of(run) if entry.kind == "node"]
    assert len(nodes) == 60
    for number, entry in enumerate(nodes):
        assert (await run.state(at=entry.cursor))["last"] == number
    # Where the first records have expired, a reader starts at the first snapshot that is left.
    items = [item for item in await journal_items(hf, "doc-42") if "#IN#" not in item["SK"]]
    firsts = [journal_position(item["SK"]) for item in items if _starts_with_snapshot(item)]
    assert firsts[-1] == last
    assert len(firsts) >= 3
    for item in items:
        if journal_position(item["SK"]) < firsts[1]:
            await store_of(hf).table.write(Delete(Key(item["PK"], item["SK"])))
    left = [entry for entry in await entries_of(run) if entry.kind == "node"]
    assert [(await run.state(at=entry.cursor))["last"] for entry in left] == list(
        range(60 - len(left), 60)
    )
    assert len(left) > 60 - last


def _starts_with_snapshot(item: dict[str, Any]) -> bool:
    return isinstance(unpack_events(content_of(item).data or b"")[0], Snapshot)


async def test_an_extended_run_has_the_states_of_what_its_history_still_shows(
    house: House, hf: Holdfast
) -> None:
    async with house.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, {"given": "x"}, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        first = (await entries_of(run))[0].cursor
        ttl = (await item_of_head(hf, "doc-42"))["ttl"]
        await run.extend(days(5))
        items = await journal_items(hf, "doc-42")
        gone = [item for item in items if item["ttl"] <= ttl]
        assert gone
        for item in gone:
            await store_of(hf).table.write(Delete(Key(item["PK"], item["SK"])))
        await run.signal("decision", "yes")
        await run.result()
    shown = await entries_of(run)
    assert shown[0].kind == "extended"
    assert await run.state(at=shown[0].cursor) == {"given": "x", "step0": 0, "step1": 1}
    assert (await run.state(at=shown[-1].cursor))["step3"] == 3
    with pytest.raises(InvalidQuery, match="has no event"):
        await run.state(at=first)


async def test_a_known_graph_gives_the_state_its_type(house: House, hf: Holdfast) -> None:
    @dataclass
    class Order:
        name: str
        count: int = 1

    graph = Graph("typed", Order)

    @graph.node
    async def ask(state: Order, ctx: Any) -> Any:
        await ctx.wait(signal("go"))

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"name": "a"}, id="doc-42")
        await house.quiet(worker)
    assert await run.input() == await run.state() == Order("a")
    plain = {"name": "a", "count": 1}
    assert await hf.run("doc-42").state() == await hf.run("doc-42").input() == plain
    assert await hf.run("doc-42", graph=graph).state() == Order("a")


async def test_a_run_that_ended_in_memory_holds_its_result(house: House, hf: Holdfast) -> None:
    graph = chain("g", 2, step)
    async with house.worker(hf, graph):
        run = await hf.start(graph, durability="on_pause")
        assert await run.result() == await run.state() == {"step0": 0, "step1": 1}


async def test_a_branch_has_a_state_of_its_own(house: House, hf: Holdfast) -> None:
    graph = each(waits_for("go"))
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"items": ["a", "b", "c"]}, id="doc-42")
        await house.quiet(worker)
    assert (await run.state())["items"] == ["a", "b", "c"]
    seen = [await run.state(branch=wait.branch) for wait in (await run.get()).waits]
    assert sorted(state["item"] for state in seen) == ["a", "b", "c"]
    with pytest.raises(InvalidQuery, match=r"has no branch '9\.9'"):
        await run.state(branch="9.9")


async def test_what_is_deleted_cannot_be_read(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, {"given": "x"}, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        await house.move(HOUR + 1, worker)
        assert (await run.get()).status == "expired"
    for read in (run.state, run.input, run.waits):
        with pytest.raises(RunNotFound, match="its journal is not kept"):
            await read()
    with pytest.raises(RunNotFound):
        await hf.run("other").state()


async def test_wrong_arguments_are_refused(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, id="doc-42")
        other = await hf.start(GRAPH, id="doc-43")
        await house.quiet(worker)
    cursor = (await entries_of(other))[0].cursor
    generation = (await entries_of(run))[0].cursor.rpartition(".")[0].rpartition(".")[0]
    far = [f"{generation}.99.0", f"{generation}.1.7", f"{generation}.0.0"]
    for wrong in (cursor, *far):
        with pytest.raises(InvalidQuery, match="has no event"):
            await run.state(at=wrong)
    wrong_types: list[Any] = ["x", 7, ""]
    for wrong in wrong_types:
        with pytest.raises(InvalidQuery, match="not a cursor"):
            await run.state(at=wrong)
    nothing: Any = None
    with pytest.raises(InvalidRequest, match="branch must be a string"):
        await run.state(branch=nothing)


# --- waits ----------------------------------------------------------------------------------------


async def test_all_waits_are_listed_page_by_page(either: House) -> None:
    hf = either.open()
    graph = each(waits_for("go"))
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {"items": [str(n) for n in range(20)]}, id="doc-42")
        await either.quiet(worker)
        assert len((await run.get()).waits) == 8
        found, cursor, sizes = [], None, []
        while True:
            page = await run.waits(limit=7, cursor=cursor)
            found += [wait.branch for wait in page.waits]
            sizes.append(len(page.waits))
            cursor = page.cursor
            if cursor is None:
                break
        assert sizes == [7, 7, 6]
        assert sorted(found) == sorted(f"0.{number}" for number in range(20))
        await run.signal("go", "x")
        await either.quiet(worker)
        assert len((await run.waits()).waits) == 19
        kill(worker)


async def test_a_few_waits_are_read_from_the_row_and_none_while_it_runs(
    house: House, hf: Holdfast
) -> None:
    run = await hf.start(GRAPH)
    assert (await run.waits()).waits == []
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        await house.move(1, worker)
        assert [wait.signal for wait in (await run.waits()).waits] == ["decision"]
    wrong: Any
    for wrong in ("x", 7, "", "W10=", "eyJhIjoxfQ=="):
        with pytest.raises(InvalidQuery, match="not a cursor of a list of waits"):
            await run.waits(cursor=wrong)
    with pytest.raises(InvalidQuery):
        await run.waits(limit=0)
