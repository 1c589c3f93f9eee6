"""Workflows that the tests of the kit run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast import Context, Graph, days, signal


@dataclass
class Order:
    id: int = 0
    approved: bool = False
    log: list[str] = field(default_factory=list)


def approval(**options: Any) -> Graph:
    """Return a graph that waits for an approval, for at most five days."""
    graph = Graph("approval", Order, **options)

    @graph.node
    async def ask(order: Order, ctx: Context) -> dict[str, bool]:
        return {"approved": await ctx.wait(signal("approved", bool), max_wait=days(5))}

    return graph


def one_node(function: Any, name: str = "flow", **options: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph(name, Order)
    graph.node(name="node", **options)(function)
    return graph
