"""A node cancels a request while the row is written for it: the next write of the row waits."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Graph, days, signal, tool
from holdfast.errors import WaitTimedOut
from holdfast.storage.operations import Operation, WriteItem
from tests.engine.staging import staged, write_of
from tests.engine.support import Gate, House, tenant_key

ROW = tenant_key("doc-42").head
HOUR = 3600


@tool(at_most_once=True)
async def think(question: str) -> str:
    return f"{question}!"


def is_close(operation: Operation) -> bool:
    """Return whether an operation closes the run to further signals."""
    if not isinstance(operation, WriteItem) or operation.write.key != ROW:
        return False
    return getattr(operation.write, "set", {}).get("status") == "closing"


async def settled(house: House) -> None:
    """Let every task go on until it waits for the store, the clock or the test."""
    for _ in range(100):
        await house.clock.sleep(0)


async def test_a_run_is_stored_once_though_the_call_that_stores_it_is_cancelled(
    house: House,
) -> None:
    """A second row would be another generation, which is refused, and the run would be lost."""
    hf, stage = staged(house)
    hold, reached = stage.hold(write_of(*ROW), side="after"), asyncio.Event()

    async def node(state: Any, ctx: Any) -> Any:
        first = asyncio.create_task(ctx.call(think, "one"))
        await reached.wait()
        first.cancel()
        await asyncio.wait({first})
        return {"answer": await ctx.call(think, "two")}

    graph = Graph("g", dict, durability="on_pause")
    graph.node(name="node")(node)
    async with house.worker(hf, graph):
        starting = asyncio.ensure_future(hf.start(graph, id="doc-42"))
        await hold.reached()
        again = stage.hold(write_of(*ROW))
        reached.set()
        await settled(house)
        stored_again = again.is_reached
        hold.release()
        again.release()
        run = await starting
        assert await run.result(timeout=60) == {"answer": "two!"}
    assert not stored_again


async def test_a_run_is_closed_once_though_the_wait_that_closes_it_is_cancelled(
    house: House,
) -> None:
    hf, stage = staged(house)
    gate, reached = Gate(), asyncio.Event()

    async def node(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        first = asyncio.create_task(ctx.wait(signal("one"), max_wait=days(1)))
        await reached.wait()
        first.cancel()
        await asyncio.wait({first})
        try:
            await ctx.wait(signal("two"), max_wait=days(1))
        except WaitTimedOut:
            return {"in_time": False}

    graph = Graph("g", dict)
    graph.node(name="node")(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await gate.waited_at()
        hold = stage.hold(is_close, side="after")
        house.clock.advance(HOUR)
        gate.open()
        await hold.reached()
        again = stage.hold(is_close)
        reached.set()
        await settled(house)
        closed_again = again.is_reached
        hold.release()
        again.release()
        assert await run.result(timeout=60) == {"in_time": False}
    assert not closed_again
