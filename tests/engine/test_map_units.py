"""What a map costs: a fraction of a write unit for each item, and one blob for each chunk."""

from __future__ import annotations

from typing import Any

from holdfast import Graph, Holdfast
from holdfast.storage import Put
from tests.engine.support import House, store_of, units_of

PURPOSES = ("head", "journal", "inbox", "map")
ITEMS, CHUNK = 1_000, 100


async def written(house: House, graph: Graph, *, count: int) -> float:
    """Run a map in a process of its own, and return how many write units it took in all."""
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"count": count})
        await run.result(timeout=60)
        await house.quiet(worker)
    return units_of(hf, *PURPOSES).writes


def plain() -> Graph:
    graph = Graph("plain", dict)

    @graph.item
    async def square(index: int) -> int:
        return index * index

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        return {"cursor": await ctx.map(square, state["count"], chunk=CHUNK)}

    return graph


async def test_the_map_itself_costs_a_tenth_of_a_unit_for_each_item(either: House) -> None:
    units = await written(either, plain(), count=ITEMS)
    small = await written(either, plain(), count=1)
    assert (units - small) / ITEMS < 0.1


async def test_an_item_with_a_put_of_its_own_costs_two_units_at_most(either: House) -> None:
    graph, opened = Graph("puts", dict), list[Holdfast]()

    async def put_segment(index: int) -> int:
        item = {"PK": "WF#t#1", "SK": f"SEG#{index:04d}", "text": "x" * 800}
        await store_of(opened[0]).records("journal").write(Put(item))
        return index

    @graph.item
    async def segment(index: int, ctx: Any) -> int:
        return await ctx.call(put_segment, index)

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        return {"cursor": await ctx.map(segment, state["count"], chunk=CHUNK, concurrency=20)}

    opened.append(either.open())
    units = await written(either, graph, count=300)
    puts = units_of(opened[0], "journal").writes
    assert puts == 300
    assert (units + puts) / 300 <= 2


async def test_there_is_one_blob_for_each_chunk(either: House) -> None:
    graph, hf = plain(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {"count": ITEMS})
        await run.result(timeout=60)
        await either.quiet(worker)
    page = await store_of(hf).blobs.list()
    assert len([entry for entry in page.entries if "/maps/" in entry.key]) == ITEMS // CHUNK


async def test_the_parent_resumes_a_fixed_number_of_times(either: House) -> None:
    graph, epochs = plain(), set[int]()
    for count in (1, 100, 2_000):
        hf = either.open()
        async with either.worker(hf, graph) as worker:
            run = await hf.start(graph, {"count": count})
            await run.result(timeout=60)
            await either.quiet(worker)
        epochs.add((await run.get()).epoch)
    assert len(epochs) == 1
    assert max(epochs) < 10
