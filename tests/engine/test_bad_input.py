"""What does not fit: a typed error, and nothing lost, half-written or stuck."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from holdfast import Graph, Holdfast, PayloadLimits, Retry, RunHandle, signal
from holdfast.clock import SeededIds
from holdfast.errors import (
    HoldfastError,
    InvalidInput,
    RunEnded,
    RunFailed,
    RunNotFound,
)
from holdfast.records.keys import RunKey
from holdfast.storage import Put
from tests.engine.support import (
    House,
    StepClock,
    blob_keys,
    calls_of,
    chain,
    incompressible,
    item_of_head,
    journal_items,
    store_of,
    store_without_blobs,
)

TWO_MB = 2 * 1024 * 1024
ROOMY = PayloadLimits(signal_bytes_max=2 * TWO_MB)


class Typed(TypedDict, total=False):
    count: int
    names: list[str]


@dataclass
class Record:
    count: int = 0


def typed(function: Any, kind: Any = Typed, **options: Any) -> Graph:
    graph = Graph("typed", kind)
    graph.node(name="node", **options)(function)
    return graph


def one(function: Any, **options: Any) -> Graph:
    return typed(function, dict, **options)


# --- what a node returns --------------------------------------------------------------------------

WRONG: list[Any] = [
    {"count": "three"},
    {"count": 1.5},
    {"names": [1]},
    {"unknown": 1},
    {"count": Ellipsis},
    {"count": 2**70},
    {"names": ["\ud800"]},
    "text",
    5,
    [("count", 1)],
    True,
]


@pytest.mark.parametrize("returned", WRONG, ids=repr)
@pytest.mark.parametrize("pausable", ["yes", "no"])
async def test_a_result_that_does_not_fit_fails_the_run(
    house: House, hf: Holdfast, returned: Any, pausable: Any
) -> None:
    async def wrong(state: Any) -> Any:
        return returned

    graph = typed(wrong, pausable=pausable)
    async with house.worker(hf, graph, drain=0):
        run = await hf.start(graph, {"count": 1}, id="doc-42")
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=10)
    assert failed.value.kind == "InvalidResult"
    assert [entry.kind for entry in (await run.history()).entries] == ["failed"]


@pytest.mark.parametrize("value", [object(), {1, Ellipsis}, 2**80, lambda: None, "\ud800"])
async def test_an_untyped_result_that_cannot_be_kept_fails_the_run(
    house: House, hf: Holdfast, value: Any
) -> None:
    async def odd(state: Any) -> Any:
        return {"value": value}

    async with house.worker(hf, one(odd), drain=0):
        run = await hf.start(one(odd), id="doc-42")
        with pytest.raises(RunFailed, match="InvalidResult"):
            await run.result(timeout=10)


async def test_a_result_that_does_not_fit_may_be_worth_another_attempt(
    house: House, hf: Holdfast
) -> None:
    async def learns(state: Any, ctx: Any) -> Any:
        return {"count": "three" if ctx.attempt == 1 else 3}

    graph = typed(learns, retry=Retry(attempts=2, backoff=0))
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=60) == {"count": 3}


async def test_a_node_cannot_change_the_state_behind_the_journals_back(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def changes(state: Any) -> Any:
        state["items"].append("sneaked in")
        state["more"] = 1

    @graph.node
    async def looks(state: Any) -> Any:
        return {"seen": state["items"]}

    graph.route(changes, looks)
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"items": ["a"]}, id="doc-42")
        assert await run.result(timeout=60) == {"items": ["a"], "seen": ["a"]}


async def test_a_state_that_no_longer_matches_its_type_fails_the_run(house: House) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"))

    hf = house.open()
    before, after = Graph("g", dict), Graph("g", Record)
    before.node(name="node")(waits)
    after.node(name="node")(waits)
    async with house.worker(hf, before) as worker:
        run = await hf.start(before, {"count": "many"}, id="doc-42")
        await house.quiet(worker)
    await run.signal("go")
    async with house.worker(hf, after) as worker:
        await house.quiet(worker)
    with pytest.raises(RunFailed, match="count") as failed:
        await run.result(timeout=60)
    assert failed.value.kind == "InvalidState"


async def test_a_choice_that_breaks_or_leads_nowhere_fails_the_run(
    house: House, hf: Holdfast
) -> None:
    def graph_with(name: str, chooser: Any) -> Graph:
        graph = Graph(name, dict)
        first = graph.node(name="first")(lambda state: {"a": 1})
        second = graph.node(name="second")(lambda state: {})
        graph.choose(first, chooser, to=[second])
        return graph

    def breaks(state: Any) -> Any:
        raise KeyError("missing")

    graphs = [
        graph_with("breaks", breaks),
        graph_with("nowhere", lambda state: "".join(["no", "where"])),
    ]
    async with house.worker(hf, *graphs):
        for graph in graphs:
            run = await hf.start(graph, id=graph.name)
            with pytest.raises(RunFailed):
                await run.result(timeout=10)


# --- two megabytes --------------------------------------------------------------------------------


async def test_a_large_input_delta_and_payload_spill_and_come_back_elsewhere(
    either: House,
) -> None:
    input, delta, payload = (incompressible(seed, TWO_MB) for seed in (1, 2, 3))

    async def waits(state: Any, ctx: Any) -> Any:
        assert state["input"] == input
        assert state["delta"] == delta
        return {"payload": await ctx.wait(signal("decision"))}

    graph = chain("g", 3, lambda number: {"delta": delta}, node1=waits, node2=one_key)
    first, second = either.open(limits=ROOMY), either.open(limits=ROOMY)
    async with either.worker(first, graph) as worker:
        run = await first.start(graph, {"input": input}, id="doc-42")
        await either.quiet(worker)
        row = await run.get()
        assert row.status == "waiting"
        assert row.journal_bytes > 2 * TWO_MB
    await run.signal("decision", payload, signal_id="s1")
    await run.signal("decision", payload, signal_id="s1")
    async with either.worker(second, graph) as worker:
        await either.quiet(worker)
    expected = {"input": input, "delta": delta, "payload": payload, "last": True}
    assert await second.run("doc-42").result(timeout=60) == expected
    # No item holds what a blob holds.
    sizes = [len(item.get("data", b"")) for item in await journal_items(second, "doc-42")]
    assert max(sizes) < 1024


async def one_key(state: Any) -> Any:
    return {"last": True}


async def test_a_start_with_the_same_large_input_gives_the_same_run(hf: Holdfast) -> None:
    graph = one(one_key)
    input = {"input": incompressible(1, TWO_MB)}
    run = await hf.start(graph, input, id="doc-42")
    made = await run.get()
    await hf.start(graph, dict(input), id="doc-42")
    assert await run.get() == made


# --- a store without blobs ------------------------------------------------------------------------


@pytest.fixture
async def bare(clock: StepClock) -> Any:
    store, ids = store_without_blobs(clock), SeededIds(1, clock)
    async with Holdfast("", store=store, clock=clock, ids=ids, limits=ROOMY) as opened:
        yield opened


async def test_without_blobs_what_an_item_holds_is_kept(house: House, bare: Holdfast) -> None:
    value = incompressible(1, 300_000)

    async def returns(state: Any, ctx: Any) -> Any:
        return {"delta": value, "payload": await ctx.wait(signal("decision"))}

    async with house.worker(bare, one(returns)) as worker:
        run = await bare.start(one(returns), {"input": value}, id="doc-42")
        await run.signal("decision", incompressible(2, 50_000))
        await house.quiet(worker)
        state = await run.result(timeout=60)
    assert state == {"input": value, "delta": value, "payload": incompressible(2, 50_000)}


async def test_without_blobs_a_large_input_is_refused_and_nothing_is_written(
    bare: Holdfast,
) -> None:
    with pytest.raises(InvalidInput, match="bucket"):
        await bare.start(one(one_key), {"input": incompressible(1, TWO_MB)}, id="doc-42")
    assert calls_of(bare, "head", "journal", "inbox").keys() <= {("head", "get")}
    with pytest.raises(RunNotFound):
        await bare.run("doc-42").get()


async def test_without_blobs_a_large_payload_is_refused_and_nothing_is_written(
    house: House, bare: Holdfast
) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.wait(signal("decision"))}

    async with house.worker(bare, one(waits)) as worker:
        run = await bare.start(one(waits), id="doc-42")
        await house.quiet(worker)
        before = await item_of_head(bare, "doc-42")
        with pytest.raises(InvalidInput, match="bucket") as refused:
            await run.signal("decision", incompressible(1, TWO_MB), signal_id="s1")
        assert refused.value.field == "payload"
        assert await item_of_head(bare, "doc-42") == before
        assert await journal_items(bare, "doc-42") == []
        await run.signal("decision", "small", signal_id="s1")
        assert await run.result(timeout=60) == {"got": "small"}


@pytest.mark.parametrize("before", ["yes", "no"])
async def test_without_blobs_a_large_delta_fails_the_run_which_can_be_mended(
    house: House, bare: Holdfast, before: Any
) -> None:
    size = [TWO_MB]
    graph = Graph("g", dict)

    @graph.node(pausable=before)
    async def first(state: Any) -> Any:
        return {"first": state.get("first", 0) + 1}

    @graph.node
    async def second(state: Any) -> Any:
        return {"delta": incompressible(1, size[0])}

    graph.route(first, second)
    async with house.worker(bare, graph) as worker:
        run = await bare.start(graph, id="doc-42")
        with pytest.raises(RunFailed, match="bucket") as failed:
            await run.result(timeout=60)
        assert failed.value.kind == "InvalidResult"
        row = await run.get()
        assert (row.status, row.node) == ("failed", "second")
        size[0] = 10
        await run.retry()
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"first": 1, "delta": incompressible(1, 10)}


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [object(), 2**80, "\ud800", {"x": object()}, [{}, lambda: 0]])
async def test_a_payload_that_cannot_be_kept_is_refused(hf: Holdfast, payload: Any) -> None:
    run = await hf.start(one(one_key), id="doc-42")
    before = await item_of_head(hf, "doc-42")
    with pytest.raises(InvalidInput) as refused:
        await run.signal("decision", payload)
    assert refused.value.field == "payload"
    assert await item_of_head(hf, "doc-42") == before
    assert await journal_items(hf, "doc-42") == []


async def test_a_deep_payload_is_refused_or_arrives(house: House, hf: Holdfast) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        got = await ctx.wait(signal("decision"))
        depth = 0
        while got:
            got, depth = got[0], depth + 1
        return {"depth": depth}

    # How deep is too deep depends on how deep the stack is at which it is packed and unpacked.
    accepted: list[int] = []
    runs: dict[int, RunHandle] = {}
    async with house.worker(hf, one(waits), drain=0) as worker:
        for depth in (50, 150, 400, 800, *range(900, 1_000, 2), 100_000):
            payload: list[Any] = []
            for _ in range(depth):
                payload = [payload]
            runs[depth] = await hf.start(one(waits), id=f"depth-{depth}")
            await house.quiet(worker)
            with contextlib.suppress(InvalidInput):
                await runs[depth].signal("decision", payload)
                accepted.append(depth)
            await house.quiet(worker)
    endings = {depth: (await runs[depth].get()).status for depth in accepted}
    assert set(endings.values()) == {"finished"}, endings


async def test_a_payload_that_holds_itself_is_refused(hf: Holdfast) -> None:
    run = await hf.start(one(one_key), id="doc-42")
    payload: list[Any] = []
    payload.append(payload)
    with pytest.raises(InvalidInput):
        await run.signal("decision", payload)


async def test_a_signal_to_a_run_that_has_ended_says_how_it_ended(
    house: House, hf: Holdfast
) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("never"))

    async def fails(state: Any) -> Any:
        raise ValueError

    waiting, failing = chain("w", 1, dict_of, node0=waits), chain("f", 1, dict_of, node0=fails)
    finishing = chain("e", 1, dict_of)
    async with house.worker(hf, waiting, failing, finishing) as worker:
        await hf.start(finishing, id="finished")
        await hf.start(failing, id="failed")
        await hf.start(waiting, id="cancelled")
        await hf.start(waiting, id="expired", expires=60)
        await house.quiet(worker)
        await hf.run("cancelled").cancel("enough")
        await house.move(60.2, worker)
        for id in ("finished", "failed", "cancelled", "expired"):
            before = await item_of_head(hf, id), await journal_items(hf, id)
            with pytest.raises(RunEnded) as refused:
                await hf.run(id).signal("decision", "late")
            assert refused.value.status == id
            assert (await item_of_head(hf, id), await journal_items(hf, id)) == before
        with pytest.raises(RunNotFound):
            await hf.run("unknown").signal("decision")
        assert await store_of(hf).table.get(RunKey("default", "unknown").head) is None


def dict_of(number: int) -> dict[str, Any]:
    return {}


async def test_a_record_that_cannot_be_read_quarantines_the_run(house: House) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"))

    graph = chain("g", 2, dict_of, node1=waits)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
    (record,) = await journal_items(hf, "doc-42")
    await store_of(hf).table.write(Put({**record, "data": b"\x07garbage"}))
    await run.signal("go")
    async with house.worker(hf, graph, resumes_max=2) as worker:
        await house.quiet(worker)
        await house.move(10, worker)
    row = await run.get()
    assert row.status == "quarantined"
    assert row.failure is not None
    assert row.failure.type == "JournalDamaged"
    with pytest.raises(HoldfastError):
        await run.history()
    assert await blob_keys(hf) == []
