"""Signals that no node waits for: they stay in the inbox, and do not run a waiting node again."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Graph, signal
from tests.engine.support import House


async def test_a_stray_signal_does_not_run_the_waiting_node_again(either: House) -> None:
    entered: list[int] = []
    graph = Graph("g", dict)

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        entered.append(len(entered))
        first = await ctx.wait(signal("first"))
        return {"got": [first, await ctx.wait(signal("second"))]}

    hf, client = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        epoch = (await run.get()).epoch
        for number in range(5):
            sender = (hf, client)[number % 2]
            await sender.run("doc-42").signal("stray", number)
        await client.run("doc-42").signal("second", "early")
        await either.move(1, worker)
        assert (await run.get()).epoch == epoch
        assert entered == [0]
        # The one that comes before its wait is found there.
        await client.run("doc-42").signal("first", "yes")
        await either.move(1, worker)
        assert await run.result(timeout=60) == {"got": ["yes", "early"]}
    assert entered == [0, 1]


async def test_a_row_with_eight_waits_may_not_show_the_one_for_a_signal(house: House) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        waits = [ctx.wait(signal(f"s{number}")) for number in range(12)]
        return {"got": await asyncio.gather(*waits)}

    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert len((await run.get()).waits) == 8
        for number in reversed(range(12)):
            await run.signal(f"s{number}", number)
            await house.move(1, worker)
            entries = (await run.history()).entries
            assert sum(entry.kind == "signal" for entry in entries) == 12 - number
        assert await run.result(timeout=60) == {"got": list(range(12))}
