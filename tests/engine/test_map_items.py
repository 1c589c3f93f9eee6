"""What the items of a map may do, what they may not, and what the caller of a map gets wrong."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    BlockingContext,
    Budget,
    Graph,
    Holdfast,
    Mapped,
    MappedItem,
    Retry,
    signal,
    workflow,
)
from holdfast.engine.runs.map_chunks import chunk_id
from holdfast.errors import InvalidRequest, RunFailed
from holdfast.model.map import MapChunk
from holdfast.testing import FakeContext
from tests.engine.asking import Cents
from tests.engine.support import (
    Gate,
    House,
    blob_keys,
    incompressible,
    kill,
    store_without_blobs,
    tenant_key,
)


def measured(total: int, entry: MappedItem) -> int:
    return total + len(entry.result)


def one_map(item: Any, *arguments: Any, **options: Any) -> Graph:
    """Return a graph with one node, which maps and returns the results and the failures."""
    graph = Graph("mapping", dict)
    retry = options.pop("retry", Retry(attempts=1))
    graph.item(retry=retry)(item)

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        cursor = await ctx.map(item, *arguments, **options)
        found = [entry async for entry in ctx.mapped(cursor)]
        return {
            "results": [entry.result for entry in found if entry.ok],
            "failures": {str(e.index): e.failure.message for e in found if not e.ok},
        }

    return graph


async def result_of(house: House, hf: Holdfast, graph: Graph, **state: Any) -> dict[str, Any]:
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, state)
        result = await run.result(timeout=60)
        await house.quiet(worker)
    return result


async def test_an_item_waits_for_a_signal_and_the_others_go_on(house: House, hf: Holdfast) -> None:
    async def ask(index: int, ctx: Any) -> str:
        return await ctx.wait(signal("go")) if index == 1 else ctx.run_id

    graph = one_map(ask, 3)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {})
        await house.quiet(worker)
        assert (await run.get()).waits[0].description == "the end of map 0.1"
        (progress,) = await run.maps()
        assert (progress.running, progress.succeeded) == (3, 0)
        part = MapChunk(map="0.1", lane=0, number=0, first=0, count=3)
        id = chunk_id(tenant_key(run.id), (await run.get()).generation, part)
        assert (await hf.run(id).get()).reason == "signal"
        await hf.run(id).signal("go", "gone")
        assert (await run.result(timeout=60))["results"] == [id, "gone", id]
        await house.quiet(worker)


async def test_an_item_is_retried_as_its_policy_says(house: House, hf: Holdfast) -> None:
    tried: list[int] = []

    async def flaky(index: int, ctx: Any) -> int:
        tried.append(index)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return index

    graph = one_map(flaky, 2, retry=Retry(attempts=3, backoff=0))
    assert (await result_of(house, hf, graph))["results"] == [0, 1]
    assert sorted(tried) == [0, 0, 0, 1, 1, 1]


async def test_recorded_calls_of_items_are_not_repeated_after_a_crash(house: House) -> None:
    called, gate = list[int](), Gate()

    async def note(index: int) -> int:
        called.append(index)
        return index

    async def item(index: int, ctx: Any) -> int:
        noted = await ctx.call(note, index)
        if index == 3 and gate.entered < 1:
            await gate.pass_through()
        return noted

    graph = one_map(item, 4, chunk=4, concurrency=4)
    first, second = house.open(), house.open()
    doomed = house.worker(first, graph, lease=10)
    await doomed.start()
    run = await first.start(graph, {}, id="parent")
    await gate.waited_at()
    await house.clock.sleep(0)
    for driver in list(doomed.drivers._drivers.values()):
        if driver.claimed.head.chunk is not None:
            await driver.claimed.journal.wait_durable()
    kill(doomed)
    gate.open()
    async with house.worker(second, graph) as worker:
        for seconds in (11, 1, 1):
            house.clock.advance(seconds)
            await house.patiently_quiet(worker)
        assert (await second.run("parent").result(timeout=60))["results"] == [0, 1, 2, 3]
    assert sorted(called) == [0, 1, 2, 3]
    assert run.id == "parent"


async def test_a_result_that_cannot_be_stored_is_the_failure_of_its_item(
    house: House, hf: Holdfast
) -> None:
    async def item(index: int) -> Any:
        return {0: object(), 1: b"x" * 9_000_000, 2: "fine"}[index]

    result = await result_of(house, hf, one_map(item, 3, tolerate=2))
    assert result["results"] == ["fine"]
    assert set(result["failures"]) == {"0", "1"}


async def test_what_is_no_cursor_is_refused_in_words_of_the_library(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("mapping", dict)

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        refused: list[str] = []
        for cursor in ("0.1", None, 7):
            with pytest.raises(InvalidRequest) as raised:
                await ctx.mapped(cursor).fold(measured, 0)
            refused.append(str(raised.value))
        return {"refused": refused}

    refused = (await result_of(house, hf, graph))["refused"]
    assert refused[0] == "the cursor must be the Mapped that ctx.map returned, got '0.1'"
    assert all("Expected" not in message for message in refused)


async def test_an_item_that_the_graph_no_longer_has_fails_with_the_reason(house: House) -> None:
    gate = Gate()

    async def old(index: int) -> int:
        await gate.pass_through()
        return index

    async def new(index: int) -> int:
        return index

    first, second = house.open(), house.open()
    graph, changed = one_map(old, 4, tolerate=4), one_map(new, 4, tolerate=4)
    doomed = house.worker(first, graph, lease=10)
    await doomed.start()
    await first.start(graph, {}, id="parent")
    await gate.waited_at(4)
    kill(doomed)
    async with house.worker(second, changed) as worker:
        for seconds in (11, 1, 1):
            house.clock.advance(seconds)
            await house.patiently_quiet(worker)
        result = await second.run("parent").result(timeout=60)
    assert "which this version of the graph does not have" in result["failures"]["0"]


async def test_other_arguments_in_another_attempt_change_nothing(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("mapping", dict)

    @graph.item
    async def item(index: int) -> int:
        return index

    @graph.node(retry=Retry(attempts=2, backoff=0))
    async def begin(state: Any, ctx: Any) -> Any:
        cursor = await ctx.map(item, 3 if ctx.attempt == 1 else 5)
        if ctx.attempt == 1:
            raise ValueError("once more")
        return {"total": cursor.total}

    assert (await result_of(house, hf, graph))["total"] == 3


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((-1,), {}, "InvalidRequest"),
        ((10_000_001,), {}, "InvalidRequest"),
        ((True,), {}, "InvalidRequest"),
        (("12",), {}, "InvalidRequest"),
        ((1.5,), {}, "InvalidRequest"),
        (([object()],), {}, "InvalidRequest"),
        ((1,), {"chunk": 0}, "InvalidRequest"),
        ((1,), {"chunk": 1_001}, "InvalidRequest"),
        ((1,), {"chunk": True}, "InvalidRequest"),
        ((1,), {"concurrency": 0}, "InvalidRequest"),
        ((1,), {"concurrency": 10_001}, "InvalidRequest"),
        ((1,), {"tolerate": -1}, "InvalidRequest"),
        ((1,), {"tolerate": 1.1}, "InvalidRequest"),
        ((1,), {"tolerate": True}, "InvalidRequest"),
        ((1,), {"tolerate": float("nan")}, "InvalidRequest"),
        ((1,), {"given": [1]}, "InvalidRequest"),
        ((1,), {"given": {"a": object()}}, "InvalidRequest"),
        ((1,), {"given": {"a": "x" * 9_000}}, "PayloadTooLarge"),
    ],
)
async def test_what_a_map_refuses(
    house: House, hf: Holdfast, arguments: Any, options: Any, error: str
) -> None:
    async def item(index: Any) -> Any:
        return index

    graph = one_map(item, *arguments, **options)
    async with house.worker(hf, graph):
        run = await hf.start(graph, {})
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=60)
    assert failed.value.kind == error
    assert await run.maps() == []


async def test_a_function_that_is_no_item_is_refused(house: House, hf: Holdfast) -> None:
    async def item(index: int) -> int:
        return index

    async def other(index: int) -> int:
        return index

    graph = Graph("mapping", dict)
    graph.item(item)

    @graph.node
    async def begin(state: Any, ctx: Any) -> None:
        await ctx.map(other, 3)

    async with house.worker(hf, graph):
        run = await hf.start(graph, {})
        with pytest.raises(RunFailed, match="the items of the graph are: 'item'"):
            await run.result(timeout=60)


async def test_what_an_item_knows_only_items_know(house: House, hf: Holdfast) -> None:
    graph = Graph("plain", dict)

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        return {"index": ctx.index}

    async with house.worker(hf, graph):
        run = await hf.start(graph, {})
        with pytest.raises(RunFailed, match="in an item function only"):
            await run.result(timeout=60)


@dataclass
class Words:
    page: int
    words: list[str]


async def test_results_have_the_type_that_the_item_returns(house: House, hf: Holdfast) -> None:
    graph, seen = Graph("typed", dict), list[Any]()

    @graph.item
    async def words(page: Words) -> Words:
        return Words(page.page + 1, [*page.words, "more"])

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        cursor = await ctx.map(words, [Words(1, ["a"]), {"page": 2, "words": []}])
        seen.extend([entry.result async for entry in ctx.mapped(cursor)])
        return {}

    await result_of(house, hf, graph)
    assert seen == [Words(2, ["a", "more"]), Words(3, ["more"])]


async def test_plain_functions_map_and_read(house: House, hf: Holdfast) -> None:
    @workflow
    def summed(count: int, ctx: BlockingContext) -> int:
        cursor = ctx.map(plain, count, chunk=3)
        assert isinstance(cursor, Mapped)
        assert len(list(ctx.mapped(cursor))) == count
        return ctx.mapped(cursor).fold(lambda total, entry: total + entry.result, 0)

    @summed.item
    def plain(index: int, ctx: BlockingContext) -> int:
        return index + ctx.index + ctx.call(len, "ab")

    async with house.worker(hf, summed):
        run = await hf.start(summed, 7)
        assert await run.result(timeout=60) == sum(2 * n + 2 for n in range(7))


async def test_chunks_share_the_budget_of_the_run(house: House) -> None:
    model = Cents()
    hf = house.open(models={"cheap": model})

    async def ask(index: int, ctx: Any) -> str:
        return (await ctx.model("cheap", "Is it?")).text

    graph = one_map(ask, 8, chunk=2, concurrency=2)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, budget=Budget(usd=0.045))
        await house.quiet(worker)
        assert len(model.asked) == 4
        await run.set_budget(Budget(usd=1))
        for _ in range(3):
            await house.patiently_quiet(worker)
            house.clock.advance(1)
        assert len((await run.result(timeout=60))["results"]) == 8
        await house.quiet(worker)
    assert len(model.asked) == len(set(model.keys)) == 8
    assert (await run.spending()).usd == pytest.approx(0.08)
    (progress,) = await run.maps()
    assert progress.cost_usd == pytest.approx(0.08)


async def test_a_store_without_blobs_keeps_results_in_items(house: House) -> None:
    hf = house.open(store=store_without_blobs(house.clock))

    async def item(value: bytes) -> bytes:
        return value[::-1]

    values = [incompressible(seed, 100_000) for seed in range(8)]
    graph = Graph("mapping", dict)
    graph.item(item)

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        cursor = await ctx.map(item, values, chunk=5)
        same = [e.result == values[e.index][::-1] async for e in ctx.mapped(cursor)]
        return {"same": same}

    async with house.worker(hf, graph):
        run = await hf.start(graph, {})
        assert await run.result(timeout=60) == {"same": [True] * 8}


async def test_ten_thousand_results_are_never_in_memory_together(house: House) -> None:
    hf = house.open()

    async def item(index: int) -> str:
        return f"{index:05d}" * 200  # 1 KB: 10 MB in all

    graph = Graph("mapping", dict)
    graph.item(item)

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        return {"cursor": await ctx.map(item, 10_000, chunk=250, concurrency=40)}

    @graph.node
    async def fold(state: Any, ctx: Any) -> Any:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            size = await ctx.mapped(state["cursor"]).fold(measured, 0)
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        return {"size": size, "peak": peak}

    graph.route(begin, fold)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {})
        result = await run.result(timeout=60)
        await house.quiet(worker)
    assert result["size"] == 10_000_000
    assert result["peak"] < 3_000_000
    assert (await run.get()).epoch < 10


async def test_the_results_go_with_the_run(house: House, hf: Holdfast) -> None:
    """They are below the prefix of the run that began the map, which is due to free them."""

    async def item(index: int) -> int:
        return index

    graph = one_map(item, 3)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, id="parent")
        await run.result(timeout=60)
        await house.quiet(worker)
        row = await run.get()
        assert row.due_at is not None
        assert all(f"/parent/{row.generation}/maps/" in key for key in await blob_keys(hf))
        assert len(await blob_keys(hf)) == 1
        house.clock.advance((row.due_at.timestamp() * 1000 - house.clock.now_ms()) / 1000 + 1)
        await house.patiently_quiet(worker)
    assert await blob_keys(hf) == []


async def test_a_test_of_a_node_runs_the_items() -> None:
    graph = Graph("faked", dict)

    async def fetch(index: int) -> int:
        raise AssertionError

    @graph.item
    async def page(index: int, ctx: Any) -> int:
        if index == 2:
            raise ValueError("torn")
        return await ctx.call(fetch, index) + ctx.given["add"] + ctx.index

    @graph.item
    def plain(value: str) -> str:
        return value.upper()

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        cursor = await ctx.map(page, 4, tolerate=1, given={"add": 100})
        said = await ctx.map(plain, ["a", "b"])
        return {
            "pages": [(e.index, e.result) async for e in ctx.mapped(cursor)],
            "said": [e.result async for e in ctx.mapped(said)],
            "earlier": [e.result async for e in ctx.mapped(state["earlier"])],
        }

    earlier = Mapped(run="r", map="9.1", total=2, succeeded=2, failed=0, chunk=100)
    ctx = FakeContext(calls={fetch: lambda index: 10 * index}, maps={"9.1": [5, 6]})
    after = await graph.run_node(begin, {"earlier": earlier.as_dict()}, ctx=ctx)
    assert after["pages"] == [[0, 100], [1, 111], [2, None], [3, 133]]
    assert after["said"] == ["A", "B"]
    assert after["earlier"] == [5, 6]
