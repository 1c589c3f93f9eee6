"""Included graphs: their nodes become nodes of the outer graph, with a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.graph.node import Node
from holdfast.graph.wiring import ChoiceEdge, Edge, ForkEdge, RouteEdge, Wiring

__all__ = ["Subgraph", "passthrough_node", "subgraph_end_name", "with_subgraphs"]


class Subgraph(msgspec.Struct, frozen=True):
    """An included graph, and the fields that are copied in and out."""

    name: str
    wiring: Wiring
    takes: Mapping[str, str]
    gives: Mapping[str, str]


def subgraph_end_name(name: str) -> str:
    """Return the name of the node that ends an included graph."""
    return f"{name}:end"


def passthrough_node(name: str) -> Node:
    """Return a node that does nothing: the entry or the end of an included graph."""
    return Node(
        name=name,
        function=_pass,
        is_sync=False,
        takes_context=False,
        pausable="no",  # costs no write
        writes=frozenset(),
    )


async def _pass(state: Any) -> None:
    del state


def with_subgraphs(outer: Wiring, subgraphs: Iterable[Subgraph]) -> Wiring:
    """Return the graph with the nodes of its included graphs.

    The edge that the user declared for an included graph starts at its end node.
    """
    nodes, edges = dict(outer.nodes), dict(outer.edges)
    names = dict(outer.names)
    for part in subgraphs:
        scope, end = f"{part.name}/", subgraph_end_name(part.name)
        nodes |= {part.name: passthrough_node(part.name), end: passthrough_node(end)}
        if part.name in edges:
            edges[end] = edges.pop(part.name)
        edges[part.name] = ForkEdge(
            (scope + part.wiring.start,), end, takes=part.takes, gives=part.gives
        )
        for name, node in part.wiring.nodes.items():
            nodes[scope + name] = _scoped_node(scope, node)
        edges |= {
            scope + name: _scoped_edge(scope, edge) for name, edge in part.wiring.edges.items()
        }
        names |= {(scope + at, key): scope + name for (at, key), name in part.wiring.names.items()}
    return Wiring(nodes=nodes, start=outer.start, edges=edges, names=names)


def _scoped_node(scope: str, node: Node) -> Node:
    stale = node.on_stale
    if stale is not None and stale.node:
        stale = msgspec.structs.replace(stale, node=scope + stale.node)
    return msgspec.structs.replace(node, name=scope + node.name, on_stale=stale)


def _scoped_edge(scope: str, edge: Edge) -> Edge:
    def named(name: str | None) -> str | None:
        return None if name is None else scope + name

    match edge:
        case RouteEdge(to):
            return RouteEdge(named(to))
        case ChoiceEdge():
            targets = tuple(map(named, edge.targets))
            return msgspec.structs.replace(edge, targets=targets, scope=scope + edge.scope)
        case ForkEdge():
            starts = tuple(scope + start for start in edge.starts)
            return msgspec.structs.replace(edge, starts=starts, join=scope + edge.join)
