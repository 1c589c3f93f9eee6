"""What the tests of children share: small graphs, and what stands in the store about a family."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from holdfast import Graph, Holdfast, Worker, signal
from holdfast.errors import HoldfastError
from holdfast.records.keys import children_range
from tests.engine.support import item_of_head, store_of, tenant_key

Step: TypeAlias = Callable[[Any, Any], Awaitable[Any]]

TWICE = Graph("twice", dict)
BREAKS = Graph("breaks", dict)
ASKS = Graph("asks", dict)
PARENT = "parent"


@TWICE.node
async def double(state: Any) -> Any:
    return {"n": 2 * state["n"]}


@BREAKS.node
async def breaks(state: Any) -> Any:
    raise ValueError("out of paper")


@ASKS.node
async def asks(state: Any, ctx: Any) -> Any:
    return {"answer": await ctx.wait(signal("answer"))}


def starting(*steps: Step, **options: Any) -> Graph:
    """Return a graph of these nodes, one after the other."""
    graph = Graph("starting", dict)
    for number, step in enumerate(steps):
        graph.node(name=f"node{number}", **options)(step)
    if len(steps) > 1:
        graph.route(*(f"node{number}" for number in range(len(steps))))
    return graph


async def attempted(call: Awaitable[Any]) -> str:
    """Return the name of the error that this raises."""
    try:
        await call
    except HoldfastError as error:
        return type(error).__name__
    return "none"


def freeze(worker: Worker) -> None:
    """Stop a worker as SIGSTOP would, but for what it is in the middle of."""
    assert worker._heartbeat_task is not None
    for task in (worker._heartbeat_task, *worker._background_tasks):
        task.cancel()


async def named_children(hf: Holdfast, id: str = PARENT) -> list[str]:
    """Return what a run's partition says about its children."""
    head = await item_of_head(hf, id)
    items = store_of(hf).table.query_all(tenant_key(id).pk, children_range(head["generation"]))
    return [item["SK"].split("#", 2)[2] async for item in items]


async def statuses(hf: Holdfast, id: str = PARENT) -> list[str]:
    """Return how the children of a run stand, the oldest first."""
    return [child.status for child in await hf.run(id).children()]
