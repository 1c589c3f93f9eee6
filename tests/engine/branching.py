"""What the tests of branches share: graphs that fork, and nodes for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast import Graph, Holdfast, signal
from tests.engine.support import (
    Gate,
    calls_of,
)


def forked(
    *functions: Any, join: Any = None, nodes: dict[str, Any] | None = None, **options: Any
) -> Graph:
    """Return a graph: a first node, a branch for each function, and the join."""
    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first", pausable="no")(nothing)
    names = [f"b{number}" for number in range(len(functions))]
    for name, function in zip(names, functions, strict=True):
        graph.node(name=name, writes=["log"], **(nodes or {}))(function)
    graph.node(name="join")(join or nothing)
    graph.fork("first", names, join="join", **options)
    return graph


def each(function: Any, *, join: Any = None, nodes: Any = None, **options: Any) -> Graph:
    """Return a graph with a branch of one node for each item."""
    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first", pausable="no")(nothing)
    graph.node(name="work", writes=["log"], **(nodes or {}))(function)
    graph.node(name="join")(join or nothing)
    graph.each("first", "work", over="items", into="item", join="join", **options)
    return graph


async def nothing(state: Any) -> None: ...


def logs(text: str) -> Any:
    async def node(state: Any) -> Any:
        return {"log": [text]}

    return node


def waits_for(*names: str, **options: Any) -> Any:
    """Return a node that takes signals of these names, one after the other."""

    async def node(state: Any, ctx: Any) -> Any:
        return {"log": [await ctx.wait(signal(name), **options) for name in names]}

    return node


def through(gate: Gate, text: str = "through") -> Any:
    async def node(state: Any) -> Any:
        await gate.pass_through()
        return {"log": [text]}

    return node


def fails(kind: type[Exception] = ValueError) -> Any:
    async def node(state: Any) -> Any:
        raise kind("broken")

    return node


def counted(function: Any, counts: Counter[str], name: str) -> Any:
    async def node(state: Any, ctx: Any) -> Any:
        counts[name] += 1
        return await function(state, ctx)

    return node


async def entries(hf: Holdfast, id: str = "r") -> list[tuple[str, str | None]]:
    return [(entry.kind, entry.node) for entry in (await hf.run(id).history()).entries]


def puts(hf: Holdfast) -> int:
    return calls_of(hf, "journal").get(("journal", "write"), 0)
