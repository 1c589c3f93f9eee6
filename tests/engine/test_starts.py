"""Starting: the id is the idempotency key, and an answered start is never lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import msgspec
import pytest

from holdfast import Graph, Holdfast, RunFilter, days, hours, signal
from holdfast.errors import (
    AlreadyExists,
    InvalidGraph,
    InvalidInput,
    InvalidName,
    InvalidRequest,
    RunNotFound,
)
from holdfast.storage import Put
from tests.engine.support import (
    Gate,
    House,
    calls_of,
    chain,
    incompressible,
    item_of_head,
    journal_items,
    store_of,
)

GRAPH = chain("warranty", 2, lambda number: {f"step{number}": "done"})


def later_version() -> Graph:
    graph = Graph("warranty", dict, version=2)
    graph.node(name="node0")(lambda state: {})
    return graph


async def test_the_same_id_and_input_give_the_same_run(either: House) -> None:
    hf, other = either.open(), either.open()
    first = await hf.start(GRAPH, {"a": 1, "b": {"x": [1, 2], "y": None}}, id="doc-42")
    made = await first.get()
    for again in (hf, other):
        await again.start(GRAPH, {"b": {"y": None, "x": [1, 2]}, "a": 1}, id="doc-42")
        assert await again.run("doc-42").get() == made


async def test_another_version_of_the_graph_gives_the_same_run(hf: Holdfast) -> None:
    await hf.start(GRAPH, {"a": 1}, id="doc-42")
    made = await hf.run("doc-42").get()
    await hf.start(later_version(), {"a": 1}, id="doc-42")
    assert await hf.run("doc-42").get() == made


async def test_a_field_that_a_later_version_fills_in_does_not_make_another_input(
    hf: Holdfast,
) -> None:
    class First(msgspec.Struct):
        uri: str

    class Second(msgspec.Struct):
        uri: str
        pages: int = 0

    for version, kind in ((1, First), (2, Second)):
        graph = Graph("warranty", kind, version=version)
        graph.node(name="read")(lambda state: None)
        await hf.start(graph, {"uri": "x"}, id="doc-42")
    assert (await hf.run("doc-42").get()).version == 1


async def test_a_finished_run_is_still_the_same_run(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, GRAPH) as worker:
        await hf.start(GRAPH, {"a": 1}, id="doc-42")
        await house.quiet(worker)
        again = await hf.start(GRAPH, {"a": 1}, id="doc-42")
        await house.quiet(worker)
        assert await again.result(timeout=60) == {"a": 1, "step0": "done", "step1": "done"}
        assert worker.running == 0
        assert worker.counts["finished"] == 1
        with pytest.raises(AlreadyExists):
            await hf.start(GRAPH, {"a": 2}, id="doc-42")
        assert worker.running == 0


async def test_whoever_waits_where_the_run_ends_is_told_and_need_not_ask(house: House) -> None:
    gate, hf = Gate(), house.open()
    graph = Graph("g", dict)

    @graph.node
    async def stand(state: Any) -> Any:
        await gate.pass_through()
        return {"done": True}

    async with house.worker(hf, graph):
        result = asyncio.ensure_future((await hf.start(graph, id="doc-42")).result(timeout=60))
        await gate.waited_at()
        hf.meter.reset()
        gate.open()
        assert await result == {"done": True}
        assert ("head", "get") not in calls_of(hf, "head")


async def test_without_any_time_a_result_that_is_there_is_returned(house: House) -> None:
    hf, elsewhere = house.open(), house.open()
    run = await hf.start(GRAPH, id="doc-42")
    with pytest.raises(TimeoutError, match="run 'doc-42' has not ended within 0s"):
        await run.result(timeout=0)
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=0) == {"step0": "done", "step1": "done"}
    assert await elsewhere.run("doc-42").result(timeout=0) == {"step0": "done", "step1": "done"}


@pytest.mark.parametrize("other", [{}, {"a": 2}, {"a": 1, "b": None}, {"a": "1"}, {"a": 1.0}])
async def test_the_same_id_with_other_input_is_refused(either: House, other: Any) -> None:
    hf = either.open()
    await hf.start(GRAPH, {"a": 1}, id="doc-42")
    made = await item_of_head(hf, "doc-42")
    with pytest.raises(AlreadyExists, match="doc-42"):
        await hf.start(GRAPH, other, id="doc-42")
    assert await item_of_head(hf, "doc-42") == made


async def test_the_same_id_with_another_graph_is_refused(hf: Holdfast) -> None:
    await hf.start(GRAPH, {"a": 1}, id="doc-42")
    says = "run 'doc-42' exists, and is a run of 'warranty', not of 'other'.*pass another id"
    with pytest.raises(AlreadyExists, match=says):
        await hf.start(chain("other", 1, lambda number: {}), {"a": 1}, id="doc-42")


async def test_starts_of_one_id_at_the_same_time_give_one_run(either: House) -> None:
    ran: list[str] = []
    graph = Graph("once", dict)

    @graph.node
    async def once(state: Any, ctx: Any) -> Any:
        ran.append(ctx.run_id)

    opened = [either.open() for _ in range(3)]
    async with (
        either.worker(opened[0], graph) as first,
        either.worker(opened[1], graph) as second,
    ):
        starts = [hf.start(graph, {"n": n}, id=f"doc-{n}") for n in range(5) for hf in opened * 3]
        await asyncio.gather(*starts)
        await either.quiet(first, second)
        await either.move(1, first, second)
    assert sorted(ran) == [f"doc-{n}" for n in range(5)]


async def test_of_starts_with_different_inputs_at_the_same_time_one_wins(hf: Holdfast) -> None:
    starts = [hf.start(GRAPH, {"n": n}, id="doc-42") for n in range(10)]
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 9


async def test_an_id_is_made_where_none_is_given(hf: Holdfast) -> None:
    ids = {(await hf.start(GRAPH)).id for _ in range(20)}
    assert len(ids) == 20


async def test_a_reused_id_never_reads_what_an_older_run_left(either: House) -> None:
    hf = either.open()
    large = {"text": incompressible(1, 6_000).hex()}
    await hf.start(GRAPH, large, id="doc-42", expires=hours(1))
    await hf.run("doc-42").signal("name", "old", signal_id="s")
    async with either.worker(hf, GRAPH) as worker:
        await either.quiet(worker)
        old = await hf.run("doc-42").get()
        left = [await item_of_head(hf, "doc-42"), *await journal_items(hf, "doc-42")]
        either.clock.advance(4 * 24 * 3600)
        await either.quiet(worker)
        # Whatever the broom has done by now: it may as well not have come.
        for item in left:
            kept = item["ttl"] if item["SK"] == "HEAD" else item["ttl"] + 10**8
            await store_of(hf).table.write(Put({**item, "ttl": kept}))
        with pytest.raises(RunNotFound):
            await hf.run("doc-42").get()
        await hf.start(GRAPH, {"a": "new"}, id="doc-42")
        await either.quiet(worker)
        run = hf.run("doc-42")
        assert (await run.get()).generation > old.generation
        assert await run.result(timeout=60) == {"a": "new", "step0": "done", "step1": "done"}
        kinds = [entry.kind for entry in (await run.history()).entries]
        assert kinds == ["node", "node", "finished"]


async def test_an_id_is_taken_until_its_ttl_and_free_from_then_on(
    either: House,
) -> None:
    hf = either.open()
    await hf.start(GRAPH, {"a": 1}, id="doc-42", expires=hours(1))
    head = await item_of_head(hf, "doc-42")
    either.clock.advance(head["ttl"] - either.clock.now_ms() / 1000)
    with pytest.raises(AlreadyExists):
        await hf.start(GRAPH, {"a": 2}, id="doc-42")
    either.clock.advance(1)
    # From here on the run is not found; a start must not be answered with a run that is gone.
    with pytest.raises(RunNotFound):
        await hf.run("doc-42").get()
    await store_of(hf).table.write(Put(head))
    run = await hf.start(GRAPH, {"a": 1}, id="doc-42")
    assert (await run.get()).status == "ready"


async def test_a_run_is_not_run_before_its_time(house: House, hf: Holdfast) -> None:
    at = datetime.fromtimestamp(house.clock.now_ms() / 1000, UTC) + timedelta(hours=1)
    async with house.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, id="doc-42", start_at=at, expires=hours(2))
        await house.quiet(worker)
        await run.signal("name")  # nor does a signal wake it
        for seconds in (1, 1800, 1798.999):
            await house.move(seconds, worker)
            row = await run.get()
            assert (row.status, row.reason, row.due_at) == ("waiting", "scheduled", at)
            assert row.expires_at == at + timedelta(hours=2)
        assert worker.counts["claimed"] == 0
        await house.move(0.001 + 0.2, worker)
        assert (await run.get()).status == "finished"


async def test_a_start_in_the_past_is_one_now(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, start_at=datetime(2020, 1, 1, tzinfo=UTC), expires=days(1))
        await house.quiet(worker)
        row = await run.get()
    assert row.status == "finished"
    assert row.expires_at - row.created_at == timedelta(days=1)


async def test_a_tenant_sees_and_touches_nothing_of_another(either: House) -> None:
    hf = either.open(tenant="acme")
    other = either.open(tenant="umbrella")
    graph = chain("g", 1, lambda number: {}, node0=waiting)
    async with either.worker(hf, graph) as worker:
        await hf.start(graph, {"a": 1}, id="doc-42")
        await either.quiet(worker)
        before = [await item_of_tenant(hf, "acme"), await hf.run("doc-42").get()]
        calls = [
            lambda: other.run("doc-42").get(),
            lambda: other.run("doc-42").history(),
            lambda: other.run("doc-42").signal("decision"),
            lambda: other.run("doc-42").cancel("mine"),
            lambda: other.run("doc-42").retry(from_node="node0"),
            lambda: other.run("doc-42").result(timeout=60),
            lambda: hf.run("doc-42", tenant="umbrella").get(),
        ]
        for call in calls:
            with pytest.raises(RunNotFound):
                await call()
        assert (await other.list()).runs == []
        assert (await other.list(RunFilter(status="waiting"))).runs == []
        assert [run.id for run in (await other.list(tenant="acme")).runs] == ["doc-42"]
        await either.quiet(worker)
        assert [await item_of_tenant(hf, "acme"), await hf.run("doc-42").get()] == before
        # The same id of another tenant is another run.
        await other.start(graph, {"a": 2}, id="doc-42")
        assert (await other.run("doc-42").get()).generation != before[1].generation


async def item_of_tenant(hf: Holdfast, tenant: str) -> list[dict[str, Any]]:
    return [item async for item in store_of(hf).table.query_all(f"RUN#{tenant}#doc-42")]


async def waiting(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("decision"))


class Warranty(TypedDict):
    uri: str


HOSTILE = ["a#b", "..", ".a", "", "x" * 129, "x" * 10_000, None, 5, b"a", "a/b", "a\\b", "a~b"]
HOSTILE += ["a\x00b", "\ud800", " a", "a ", "a%b", "a\nb"]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
async def test_a_hostile_id_or_name_is_refused_and_writes_nothing(hf: Holdfast, name: Any) -> None:
    await hf.start(GRAPH, id="doc-42")
    hf.meter.reset()
    calls = {
        "tenant": lambda: hf.start(GRAPH, tenant=name),
        "labels": lambda: hf.start(GRAPH, labels={name: "x"}),
        "label": lambda: hf.start(GRAPH, labels={"x": name}),
        "get": lambda: hf.run(name).get(),
        "history": lambda: hf.run(name).history(),
        "signal": lambda: hf.run(name).signal("decision"),
        "cancel": lambda: hf.run(name).cancel(),
        "retry": lambda: hf.run(name).retry(),
        "signal name": lambda: hf.run("doc-42").signal(name),
        "list": lambda: hf.list(tenant=name),
    }
    if name is not None:
        calls["start"] = lambda: hf.start(GRAPH, id=name)
        calls["signal id"] = lambda: hf.run("doc-42").signal("x", signal_id=name)
        if name != "a/b":  # which may be a node of a graph inside the graph
            calls["from_node"] = lambda: hf.run("doc-42").retry(from_node=name)
    else:
        del calls["tenant"], calls["list"]
    for call in calls.values():
        with pytest.raises(InvalidName):
            await call()
    assert calls_of(hf, "head", "journal", "inbox", "list") == {}


@pytest.mark.parametrize("name", ["😀", "straße", "a b", "a.b", "A-1_2:3@x", "x" * 128, "a..b"])
async def test_an_unusual_id_is_an_id(either: House, name: str) -> None:
    hf = either.open()
    graph = chain("g", 1, lambda number: {}, node0=takes)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {"big": incompressible(3, 20_000).hex()}, id=name)
        await either.quiet(worker)
        await run.signal(name, "yes", signal_id=name)
        await either.quiet(worker)
        assert (await run.result(timeout=60))["got"] == "yes"
        assert [entry.id for entry in (await hf.list()).runs] == [name]


async def takes(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.wait(signal(ctx.run_id))}


@pytest.mark.parametrize(
    "input",
    [{"uri": 5}, {}, {"uri": "x", "more": 1}, [], "text", 7, {"uri": Ellipsis}, {"uri": "\ud800"}],
    ids=repr,
)
async def test_an_input_that_does_not_fit_is_refused_and_writes_nothing(
    hf: Holdfast, input: Any
) -> None:
    graph = Graph("typed", Warranty)
    graph.node(name="read")(lambda state: {})
    with pytest.raises(InvalidInput):
        await hf.start(graph, input, id="doc-42")
    assert hf.meter.report().units.writes == 0


@pytest.mark.parametrize(
    "input",
    [{"x": Ellipsis}, {"x": 2**70}, {"x": {1: "a", "b": 2}}, {5: "x"}, {"x": "\udfff"}],
    ids=repr,
)
async def test_an_untyped_input_is_kept_or_refused_with_its_name(
    house: House, hf: Holdfast, input: Any
) -> None:
    try:
        run = await hf.start(GRAPH, input, id="doc-42")
    except InvalidInput:
        return
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
    assert (await run.result(timeout=60))["x"] == input["x"]


@pytest.mark.parametrize(
    "options",
    [
        {"expires": 0},
        {"expires": -1},
        {"expires": "1"},
        {"expires": float("nan")},
        {"retention": -1},
        {"start_at": datetime(2026, 1, 1)},
        {"start_at": 5},
        {"labels": []},
        {"labels": {str(n): "x" for n in range(11)}},
    ],
    ids=repr,
)
async def test_an_option_that_makes_no_sense_is_refused(
    hf: Holdfast, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await hf.start(GRAPH, id="doc-42", **options)
    assert refused.value.field in options
    assert hf.meter.report().units.writes == 0


@pytest.mark.parametrize(
    "options",
    [
        {"retention": days(36_000), "expires": days(36_000)},
        {"start_at": datetime(2280, 1, 1, tzinfo=UTC)},
        {"start_at": datetime(2280, 1, 1, tzinfo=UTC), "expires": days(36_000)},
    ],
    ids=repr,
)
async def test_the_longest_spans_are_kept_or_refused_with_their_name(
    hf: Holdfast, options: dict[str, Any]
) -> None:
    try:
        run = await hf.start(GRAPH, id="doc-42", **options)
    except InvalidRequest:
        return
    assert (await run.get()).status in ("ready", "waiting")


async def test_what_is_not_a_graph_or_cannot_be_run_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidRequest):
        await hf.start("warranty", {})  # type: ignore[arg-type]
    with pytest.raises(InvalidGraph):
        await hf.start(Graph("empty", dict), {})
    assert hf.meter.report().units.writes == 0
