"""What a worker holds in memory of a run that it keeps for long."""

from __future__ import annotations

import tracemalloc
from typing import Any

from holdfast import END, Graph, signal
from tests.engine.support import House

MB = 1024 * 1024
SIGNALS = 16


async def test_payloads_that_were_taken_are_let_go(house: House) -> None:
    """Their records compress to almost nothing, so no snapshot comes that would let go of them."""
    graph, held = Graph("g", dict), list[int]()

    @graph.node
    async def take(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("msg"))
        held.append(tracemalloc.get_traced_memory()[0])
        return {"taken": state.get("taken", 0) + 1}

    graph.choose(take, lambda state: take if state["taken"] < SIGNALS else END, to=[take, END])
    hf = house.open()
    run = await hf.start(graph, id="doc-42")
    for _ in range(SIGNALS - 1):
        await run.signal("msg", "a" * (MB - 16))
    await run.signal("msg", "last")
    tracemalloc.start()
    try:
        async with hf.worker([graph]):
            assert await run.result() == {"taken": SIGNALS}
    finally:
        tracemalloc.stop()
    assert len(held) == SIGNALS
    assert held[-1] < 6 * MB
