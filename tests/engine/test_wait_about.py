"""What a wait is about: shown wherever the run is, small, and gone when the run goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.cli.facts import facts_of, run_lines
from holdfast.errors import InvalidRequest
from holdfast.model.wait import Wait
from tests.engine.support import House, run_units

GO = signal("go")
ABOUT = {"document": "d-7", "amount": 12.5, "lines": [1, None, True]}


def graph_of(function: Any, **options: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


async def test_rows_lists_and_histories_show_what_a_wait_is_about(either: House) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        await ctx.wait(GO, about=ABOUT)
        await ctx.wait(GO)

    graph, hf = graph_of(node), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", labels={"kind": "invoice"}, session="desk")
        await either.quiet(worker)
        row = await run.get()
        assert row.waits[0].about == ABOUT
        assert row.as_dict()["waits"][0]["about"] == ABOUT
        assert "packed_about" not in row.as_dict()["waits"][0]
        assert dict(facts_of(row))["waits for"].endswith(
            ', about {"document":"d-7","amount":12.5,"lines":[1,null,true]}'
        )
        (entry,) = (await hf.list()).runs
        assert (entry.status, [wait.about for wait in entry.waits]) == ("waiting", [ABOUT])
        assert (entry.labels, entry.session) == ({"kind": "invoice"}, "desk")
        header, line = run_lines([entry])
        assert header.split()[-1] == "REASON"
        assert line.rstrip().endswith('"lines":[1,null,true]}')
        await run.signal("go")
        await either.move(1, worker)
        row = await run.get()
        assert (row.status, row.waits[0].about) == ("waiting", "")
        (entry,) = (await hf.list()).runs
        assert [wait.about for wait in entry.waits] == [""]
        assert list(run_lines([entry]))[1].split()[-1] == "signal"
        await run.signal("go")
        await either.move(1, worker)
        await run.result(timeout=60)
    entries = (await run.history()).entries
    assert [entry.kind for entry in entries] == ["about", "signal", "signal", "node", "finished"]
    assert entries[0].details == {"visit": 0, "wait": "go#1", "about": ABOUT}
    assert entries[1].details["wait"] == "go#1"


async def test_a_run_that_goes_on_is_no_longer_listed_with_it(house: House, hf: Holdfast) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        await ctx.wait(GO, about=ABOUT)

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert (await hf.list()).runs[0].waits[0].about == ABOUT
        await run.signal("go")
        await house.move(1, worker)
        await run.result(timeout=60)
        (entry,) = (await hf.list()).runs
        assert (entry.status, entry.waits) == ("finished", ())


@pytest.mark.parametrize("about", ["text", 7, 0, False, [], {}, "", [ABOUT], "ä" * 500])
async def test_any_json_value_is_taken_as_it_is(house: House, hf: Holdfast, about: Any) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        await ctx.wait_any(GO, about=about)

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert (await run.get()).waits[0].about == about
        assert (await hf.list()).runs[0].waits[0].about == about


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ("x" * 1_022, "at most 1,024 bytes packed, because it is stored in the run's row, got "),
        ("x" * 10_000_000, "at most 1,024 bytes packed"),
        ([0] * 2_000, "at most 1,024 bytes packed"),
        (object(), "about must be a JSON value: "),
        (cyclic(), "about must "),
        (2**70, "about must be a JSON value: "),
        ("\ud800", "about must be a JSON value: "),
    ],
    ids=["large", "huge", "long", "object", "cyclic", "int", "surrogate"],
)
@pytest.mark.parametrize("method", ["wait", "wait_any"])
async def test_what_cannot_be_shown_is_refused_before_anything_is_written(
    house: House, hf: Holdfast, about: Any, told: str, method: str
) -> None:
    errors: list[Exception] = []

    async def node(state: Any, ctx: Any) -> Any:
        try:
            await getattr(ctx, method)(GO, about=about)
        except InvalidRequest as error:
            errors.append(error)
            raise

    graph = graph_of(node)
    run = await hf.start(graph, id="doc-42")
    await run.signal("go")
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert (await run.get()).status == "failed"
    assert told in str(errors[0])
    assert [entry.kind for entry in (await run.history()).entries] == ["failed"]


async def test_the_row_stays_small_and_the_journal_has_all_of_it(
    house: House, hf: Holdfast
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        waits = [ctx.wait(signal(f"s{n}"), about=f"{n}" * 1_000) for n in range(5)]
        await asyncio.gather(*waits)

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        row = await run.get()
        assert [wait.about[:1] for wait in row.waits] == ["0", "1", "", "", ""]
        assert (await hf.list()).runs[0].waits == row.waits
        listed = (await run.waits()).waits
        assert [wait.about[:1] for wait in listed] == ["0", "1", "2", "3", "4"]
        assert row.journal_records == 1
        await run.signal("s3")
        await house.move(1, worker)
        row = await run.get()
        assert [(wait.signal, wait.about[:1]) for wait in row.waits] == [
            ("s0", "0"), ("s1", "1"), ("s2", ""), ("s4", ""),
        ]  # fmt: skip
        for number in (0, 1, 2, 4):
            await run.signal(f"s{number}")
            await house.move(1, worker)
        await run.result(timeout=60)
    entries = (await run.history()).entries
    told = {entry.details["about"][:1] for entry in entries if entry.kind == "about"}
    assert told == {"0", "1", "2", "3", "4"}


async def test_a_small_remark_costs_no_unit(either: House) -> None:
    units = {}
    for about in (None, {"document": "d-7"}):

        async def node(state: Any, ctx: Any, about: Any = about) -> Any:
            await ctx.wait(GO, about=about)

        graph, hf = Graph(f"g{about is None}", dict), either.open()
        graph.node(name="node")(node)
        async with either.worker(hf, graph) as worker:
            run = await hf.start(graph)
            await either.quiet(worker)
            await run.signal("go")
            await either.move(1, worker)
            await run.result(timeout=60)
        units[about is None] = run_units(hf)
    assert units[True] == units[False]


def test_a_damaged_remark_is_shown_as_none() -> None:
    wait = Wait(visit=0, key="go#1", signal="go", since_ms=1, packed_about=b"\xc1")
    assert wait.about == ""
