"""What is left over, or comes from elsewhere, does no harm to any run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.errors import RunFailed
from holdfast.storage import Update
from tests.engine.support import Gate, House, chain, item_of_head, store_of, tenant_key


class LosesTheAnswer:
    """A table that carries out its first write, and then never answers."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.written = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    async def write(self, *arguments: Any, **options: Any) -> Any:
        answer = await self._table.write(*arguments, **options)
        if not self.written.is_set():
            self.written.set()
            await asyncio.Event().wait()
        return answer


async def test_a_start_that_was_given_up_after_its_write_is_found_by_the_audit(
    house: House, hf: Holdfast
) -> None:
    graph = chain("g", 2, lambda number: {})
    async with hf.worker([graph]) as worker:
        await house.quiet(worker)
        lossy = LosesTheAnswer(hf._kernel.heads)
        hf._kernel.heads = lossy  # type: ignore[assignment]
        starting = asyncio.create_task(hf.start(graph, id="doc-42"))
        await lossy.written.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert worker.running == 0
        for _ in range(5):
            await house.move(15, worker)
        assert (await hf.run("doc-42").get()).status == "finished"


async def test_a_worker_does_not_leave_for_good_what_a_given_up_start_left_under_its_name(
    house: House,
) -> None:
    graph = chain("g", 2, lambda number: {})
    hf, other = house.open(), house.open()
    worker = hf.worker([graph])
    await worker.start()
    lossy = LosesTheAnswer(hf._kernel.heads)
    hf._kernel.heads = lossy  # type: ignore[assignment]
    starting = asyncio.create_task(hf.start(graph, id="doc-42"))
    await lossy.written.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await worker.stop()
    async with other.worker([graph]) as second:
        for _ in range(10):
            await house.move(14, second)
        assert (await other.run("doc-42").get()).status == "finished"


async def test_a_task_that_outlives_its_node_takes_no_signal_from_the_next(house: House) -> None:
    gate, goes_on = Gate(), asyncio.Event()
    leaked: list[asyncio.Task[Any]] = []
    graph = Graph("g", dict)

    @graph.node
    async def leaky(state: Any, ctx: Any) -> Any:
        async def outlives() -> Any:
            await goes_on.wait()
            return await ctx.wait(signal("decision"))

        leaked.append(asyncio.create_task(outlives()))

    @graph.node
    async def honest(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        return {"visit": ctx.visit}

    graph.route(leaky, honest)
    hf = house.open()
    run = await hf.start(graph, id="doc-42")
    await run.signal("decision", "for somebody else")
    async with house.worker(hf, graph) as worker:
        await gate.waited_at()
        goes_on.set()
        await asyncio.wait(leaked)
        gate.open()
        await house.quiet(worker)
    assert leaked[0].exception() is not None
    assert [entry.kind for entry in (await run.history()).entries] == ["node", "node", "finished"]


async def test_a_row_of_a_newer_release_is_left_to_workers_that_can_read_it(house: House) -> None:
    graph = chain("g", 2, lambda number: {})
    hf, client = house.open(), house.open()
    await client.start(graph, id="newer")
    newer = Update(key=tenant_key("newer").head, set={"schema": 99})
    await store_of(client).table.write(newer)
    before = await item_of_head(client, "newer")
    await client.start(graph, id="older")
    async with hf.worker([graph]) as worker:
        for _ in range(12):
            await house.move(10, worker)
        assert (await client.run("older").get()).status == "finished"
    assert await item_of_head(client, "newer") == before


@pytest.mark.parametrize("grouped", [False, True])
async def test_the_context_of_a_node_that_is_over_is_an_error_and_says_so(
    house: House, hf: Holdfast, grouped: bool
) -> None:
    """Kept in a global, say: its run was dropped without a word, and taken up a lease later."""
    graph, kept = Graph("g", dict), list[Any]()

    @graph.node
    async def first(state: Any, ctx: Any) -> None:
        kept.append(ctx)

    @graph.node
    async def second(state: Any, ctx: Any) -> None:
        if not grouped:
            await kept[0].call(list)
        async with asyncio.TaskGroup() as group:
            group.create_task(kept[0].call(list))

    graph.route(first, second)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=5)
    assert failed.value.kind == ("BaseExceptionGroup" if grouped else "NodeError")
    (*_, last) = (await run.history()).entries
    assert "the ctx of node 'first' was used" in last.details["failure"]["trace"]
