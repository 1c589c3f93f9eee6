"""A graph inside a graph: its nodes become nodes of the outer one, under the name it has there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.graph.node import Node
from holdfast.graph.wiring import Choice, Route, Split, Way, Wiring

__all__ = ["Included", "exit_of", "passage", "unfolded"]


class Included(msgspec.Struct, frozen=True):
    """A graph that is part of another."""

    name: str
    wiring: Wiring
    takes: Mapping[str, str]
    gives: Mapping[str, str]


def exit_of(name: str) -> str:
    """Return the name of the node at which a graph inside the graph is over."""
    return f"{name}:end"


def passage(name: str) -> Node:
    """Return a node that does nothing: where a graph inside the graph is entered, or left."""
    return Node(
        name=name,
        function=_pass,
        plain=False,
        takes_context=False,
        pausable="no",  # so that it costs no write
        writes=frozenset(),
    )


async def _pass(state: Any) -> None:
    del state


def unfolded(outer: Wiring, included: Iterable[Included]) -> Wiring:
    """Return the graph with the nodes of those inside it; what leads out of one leaves its end."""
    nodes, ways = dict(outer.nodes), dict(outer.ways)
    names = dict(outer.names)
    for part in included:
        scope, end = f"{part.name}/", exit_of(part.name)
        nodes |= {part.name: passage(part.name), end: passage(end)}
        if part.name in ways:
            ways[end] = ways.pop(part.name)
        ways[part.name] = Split(
            (scope + part.wiring.start,), end, takes=part.takes, gives=part.gives
        )
        for name, node in part.wiring.nodes.items():
            nodes[scope + name] = _within(scope, node)
        ways |= {scope + name: _moved(scope, way) for name, way in part.wiring.ways.items()}
        names |= {(scope + at, key): scope + name for (at, key), name in part.wiring.names.items()}
    return Wiring(nodes=nodes, start=outer.start, ways=ways, names=names)


def _within(scope: str, node: Node) -> Node:
    stale = node.on_stale
    if stale is not None and stale.node:
        stale = msgspec.structs.replace(stale, node=scope + stale.node)
    return msgspec.structs.replace(node, name=scope + node.name, on_stale=stale)


def _moved(scope: str, way: Way) -> Way:
    def named(name: str | None) -> str | None:
        return None if name is None else scope + name

    match way:
        case Route(to):
            return Route(named(to))
        case Choice():
            targets = tuple(map(named, way.targets))
            return msgspec.structs.replace(way, targets=targets, scope=scope + way.scope)
        case Split():
            starts = tuple(scope + start for start in way.starts)
            return msgspec.structs.replace(way, starts=starts, join=scope + way.join)
