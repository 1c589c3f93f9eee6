"""Maps: many items in chunks that all workers run, and results that come back chunk by chunk."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Graph, Holdfast, MappedItem, workflow
from holdfast.errors import InvalidRequest, MapFailed, NotRetryable
from tests.engine.support import House


def added(total: int, entry: MappedItem) -> int:
    return total + entry.result


def mapping(**options: Any) -> Graph:
    """Return a graph that squares numbers, and adds the squares up."""
    graph = Graph("mapping", dict)

    @graph.item
    async def square(index: int, ctx: Any) -> int:
        return index * index

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        return {"cursor": (await ctx.map(square, state["count"], **options)).as_dict()}

    @graph.node
    async def end(state: Any, ctx: Any) -> Any:
        return {"total": await ctx.mapped(state["cursor"]).fold(added, 0)}

    graph.route(begin, end)
    return graph


@pytest.mark.parametrize("count", [0, 1, 7, 100])
async def test_every_item_runs_once_and_its_result_comes_back(either: House, count: int) -> None:
    graph, hf = mapping(chunk=10, concurrency=8), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {"count": count})
        result = await run.result(timeout=60)
        await either.quiet(worker)
    assert result["total"] == sum(n * n for n in range(count))
    assert result["cursor"] == {
        "run": run.id,
        "map": "0.1",
        "total": count,
        "succeeded": count,
        "failed": 0,
        "chunk": 10,
    }


async def test_items_get_their_values_and_what_the_map_was_given(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("valued", dict)

    @graph.item
    async def greet(name: str, ctx: Any) -> str:
        return f"{ctx.index} {ctx.given['word']} {name}"

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        names = [f"n{number}" for number in range(25)]
        cursor = await ctx.map(greet, names, chunk=10, given={"word": "hello"})
        return {"said": [entry.result async for entry in ctx.mapped(cursor)]}

    async with house.worker(hf, graph):
        run = await hf.start(graph, {})
        said = (await run.result(timeout=60))["said"]
    assert said == [f"{number} hello n{number}" for number in range(25)]


async def test_a_map_of_a_workflow_runs_one_child_for_each_item(house: House, hf: Holdfast) -> None:
    @workflow
    async def doubled(n: int) -> int:
        return 2 * n

    @workflow
    async def parent(ctx: Any) -> list[int]:
        cursor = await ctx.map(doubled, 12, chunk=5)
        return [entry.result async for entry in ctx.mapped(cursor)]

    async with house.worker(hf, parent, doubled):
        run = await hf.start(parent)
        assert await run.result(timeout=60) == [2 * n for n in range(12)]


async def test_a_tolerated_share_of_failures(house: House, hf: Holdfast) -> None:
    graph = Graph("failing", dict)

    @graph.item
    async def odd(index: int) -> int:
        if index % 10 == 3:
            raise ValueError(f"{index} is unlucky")
        return index

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        try:
            cursor = await ctx.map(odd, 50, chunk=10, tolerate=state["tolerate"])
        except MapFailed as error:
            return {"failed": error.failed, "tolerated": error.tolerated}
        found = [e async for e in ctx.mapped(cursor)]
        return {"failed": cursor.failed, "why": [e.failure.message for e in found if not e.ok]}

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"tolerate": 0.1})
        result = await run.result(timeout=60)
        assert result["failed"] == 5
        assert result["why"] == [f"{n} is unlucky" for n in (3, 13, 23, 33, 43)]
        run = await hf.start(graph, {"tolerate": 2})
        result = await run.result(timeout=60)
        await house.quiet(worker)
        assert result["tolerated"] == 2
        assert result["failed"] > 2


async def test_a_failed_item_is_retried_alone_after_the_end_of_its_run(
    either: House,
) -> None:
    graph, broken, hf = Graph("retrying", dict), {4, 17}, either.open()

    @graph.item
    async def fragile(index: int) -> int:
        if index in broken:
            raise ValueError("broken")
        return index

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        return {"cursor": await ctx.map(fragile, 20, chunk=5, tolerate=2)}

    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {})
        await run.result(timeout=60)
        map = run.map("0.1")
        assert [entry.index async for entry in map.failed()] == [4, 17]
        before = await map.progress()
        assert (before.status, before.succeeded, before.failed) == ("finished", 18, 2)
        assert await run.maps() == [before]
        broken.clear()
        retry = hf.run(await map.retry(17))
        await retry.until("finished", timeout=60)
        await either.quiet(worker)
        assert [entry.index async for entry in map.failed()] == [4]
        after = await map.progress()
        assert (after.succeeded, after.failed, after.retried) == (19, 1, 1)
        (newest,) = [entry async for entry in map.items(after=16, limit=1)]
        assert (newest.index, newest.result) == (17, 17)
        with pytest.raises(NotRetryable, match="has a result"):
            await map.retry(17)
        with pytest.raises(InvalidRequest, match="from 0 to 19"):
            await map.retry(20)
    chunk = (await retry.get()).chunk
    assert chunk is not None
    assert (chunk.map, chunk.first, chunk.count, chunk.lane) == ("0.1", 17, 1, -1)


async def test_a_retry_of_the_run_runs_only_what_has_no_result(house: House, hf: Holdfast) -> None:
    graph, broken, ran = Graph("again", dict), {7, 8, 29}, list[int]()

    @graph.item
    async def fragile(index: int) -> int:
        ran.append(index)
        if index in broken:
            raise ValueError("broken")
        return index

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        cursor = await ctx.map(fragile, 40, chunk=5, concurrency=2, tolerate=2)
        return {"sum": await ctx.mapped(cursor).fold(added, 0)}

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, id="again")
        await run.until("failed", timeout=60)
        await house.quiet(worker)
        (map,) = await run.maps()
        assert map.status == "failed"
        done = {entry.index async for entry in run.map(map.map).items() if entry.ok}
        assert {7, 8, 29}.isdisjoint(done)
        broken.clear()
        ran.clear()
        await run.retry()
        assert await run.result(timeout=60) == {"sum": sum(range(40))}
        await house.quiet(worker)
    assert sorted(ran) == sorted(set(range(40)) - done)
    (map,) = await run.maps()
    assert (map.status, map.succeeded, map.failed) == ("finished", 40, 0)


async def test_chunks_are_in_no_list(house: House, hf: Holdfast) -> None:
    graph = mapping(chunk=10)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"count": 30})
        await run.result(timeout=60)
        await house.quiet(worker)
    assert [entry.id for entry in (await hf.list()).runs] == [run.id]
    history = (await run.history()).entries
    told = [e.details for e in history if e.kind == "program"]
    assert [each["kind"] for each in told] == ["MapStarted", "MapEnded"]
    assert told[1]["data"]["succeeded"] == 30
