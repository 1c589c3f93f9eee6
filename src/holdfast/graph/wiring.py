"""The nodes and edges of a graph by name, and the checks of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.graph.chooser_targets import Chooser
from holdfast.graph.node import Node, function_identity

__all__ = ["ChoiceEdge", "Edge", "ForkEdge", "RouteEdge", "Wiring", "wiring_faults"]


class RouteEdge(msgspec.Struct, frozen=True):
    """Leads always to the same node; None is END."""

    to: str | None


class ChoiceEdge(msgspec.Struct, frozen=True):
    """Leads to the node that a function of the state returns."""

    chooser: Chooser
    targets: tuple[str | None, ...]
    """The nodes that the chooser may return; None is END."""
    declared: bool
    """Whether the user declared the targets. Otherwise they come from the chooser's code."""
    scope: str = ""
    """The prefix of the names of the nodes that it chooses from."""


class ForkEdge(msgspec.Struct, frozen=True):
    """Leads to parallel branches, and to the join when all of them have ended."""

    starts: tuple[str, ...]
    join: str
    over: str = ""
    """The field whose items get one branch each; empty if the branches are fixed."""
    into: str = ""
    spares: bool = False
    concurrency: int = 0
    takes: Mapping[str, str] | None = None
    """For an included graph: each of its fields with the outer field it is copied from."""
    gives: Mapping[str, str] = {}


Edge: TypeAlias = RouteEdge | ChoiceEdge | ForkEdge


class Wiring(msgspec.Struct, frozen=True):
    """The nodes and edges of a graph, with all references resolved to names."""

    nodes: Mapping[str, Node]
    start: str
    edges: Mapping[str, Edge]
    """The edge of each node. A node without an edge ends the run."""
    names: Mapping[tuple[str, tuple[int, ...]], str]
    """The names of the nodes, by scope and identity of the function."""

    def scope_of(self, name: str) -> str:
        """Return the prefix of a node's name: the included graph to which it belongs."""
        head, slash, _ = name.rpartition("/")
        return head + slash

    def targets(self, name: str) -> tuple[str | None, ...]:
        """Return the nodes to which the edge of a node can lead."""
        match self.edges.get(name):
            case RouteEdge(to):
                return (to,)
            case ChoiceEdge(_, targets):
                return targets
            case ForkEdge(starts, join):
                return (*starts, join)
            case None:
                return (None,)

    def next_nodes(self, name: str) -> Iterator[str | None]:
        """Yield the next nodes of the strand that is at a node, without the branches of a fork."""
        node = self.nodes.get(name)
        if node is not None and node.on_stale is not None and node.on_stale.node:
            yield node.on_stale.node
        edge = self.edges.get(name)
        yield from (edge.join,) if isinstance(edge, ForkEdge) else self.targets(name)

    def name_of(self, chosen: Any, scope: str = "") -> str | None:
        """Return the name of the node that a function or a name refers to; None if unknown."""
        if isinstance(chosen, str):
            name = scope + chosen
            return name if name in self.nodes else None
        return self.names.get((scope, function_identity(chosen)))


def wiring_faults(wiring: Wiring) -> Iterator[str]:
    """Yield what is wrong with the edges, one sentence each."""
    yield from _unknown_target_faults(wiring)
    yield from _staleness_faults(wiring)
    yield from _unreachable_faults(wiring)
    for loop in _unpausable_loops(wiring):
        names = ", ".join(repr(name) for name in loop)
        yield (
            f"the loop of {names} has no node at which a run can pause: "
            "set pausable to 'yes' or 'blocking' for at least one of them"
        )


def _unreachable_faults(wiring: Wiring) -> Iterator[str]:
    if wiring.nodes and wiring.start not in wiring.nodes:
        yield f"start names {wiring.start!r:.80}, but the graph has no such node"
    elif wiring.nodes:
        edges = {name: list(_successors(name, wiring)) for name in wiring.nodes}
        reached = {wiring.start} | _reachable(wiring.start, edges)
        for name in wiring.nodes:
            if name not in reached:
                yield f"node {name!r} cannot be reached from the start node {wiring.start!r}"


def _unknown_target_faults(wiring: Wiring) -> Iterator[str]:
    for name, edge in wiring.edges.items():
        kind = {RouteEdge: "route", ChoiceEdge: "choice", ForkEdge: "fork"}[type(edge)]
        if name not in wiring.nodes:
            yield f"a {kind} starts at {name!r}, but the graph has no such node"
        for to in wiring.targets(name):
            if to is not None and to not in wiring.nodes:
                yield f"the {kind} at {name!r} leads to {to!r}, but the graph has no such node"


def _staleness_faults(wiring: Wiring) -> Iterator[str]:
    for name, node in wiring.nodes.items():
        stale = node.on_stale
        if stale is not None and stale.action != "fail" and stale.node not in wiring.nodes:
            yield f"on_stale of node {name!r} names {stale.node!r}, but the graph has no such node"
        if (stale is None) != (node.max_pause_ms is None):
            given, missing = (
                ("max_pause", "on_stale") if stale is None else ("on_stale", "max_pause")
            )
            yield f"node {name!r} has {given} but no {missing}: set both or neither"
        if node.max_pause_ms is not None and node.pausable == "no":
            yield f"node {name!r} has max_pause but pausable='no': it never pauses"


def _successors(name: str, wiring: Wiring) -> Iterator[str]:
    node = wiring.nodes[name]
    if node.on_stale is not None and node.on_stale.node in wiring.nodes:
        yield node.on_stale.node
    for to in wiring.targets(name):
        if to is not None and to in wiring.nodes:
            yield to


def _unpausable_loops(wiring: Wiring) -> Iterator[list[str]]:
    """Yield the loops in which a run can never pause. Loops that share a node count as one.

    Two nodes are in the same loop if each can be reached from the other.
    """
    unpausable = {name: node for name, node in wiring.nodes.items() if node.pausable == "no"}
    onward = {name: _next_without_pause(name, wiring) for name in unpausable}
    beyond = {name: _reachable(name, onward) for name in unpausable}
    looped: set[str] = set()
    for name in unpausable:
        if name in beyond[name] and name not in looped:
            loop = [
                other for other in unpausable if other in beyond[name] and name in beyond[other]
            ]
            looped.update(loop)
            yield loop


def _next_without_pause(
    name: str, wiring: Wiring, forks: frozenset[str] = frozenset()
) -> list[str]:
    """Return the next nodes that the strand at a node can reach without a chance to pause.

    It passes a fork only if it can pass every branch without a pause. A fork over items may have
    no branches at all.
    """
    edge = wiring.edges.get(name)
    if not isinstance(edge, ForkEdge):
        return [to for to in wiring.targets(name) if to is not None]
    if edge.over or name in forks:
        return [edge.join]
    passed = all(
        _can_pass_without_pause(start, edge.join, wiring, forks | {name}) for start in edge.starts
    )
    return [edge.join] if passed else []


def _can_pass_without_pause(start: str, join: str, wiring: Wiring, forks: frozenset[str]) -> bool:
    """Return whether a branch can end without a chance to pause in it."""
    seen, left = {start}, [start]
    while left:
        name = left.pop()
        node = wiring.nodes.get(name)
        if name == join or node is None:
            return True
        if node.pausable == "no":
            if None in wiring.targets(name):
                return True
            new = [to for to in _next_without_pause(name, wiring, forks) if to not in seen]
            seen.update(new)
            left += new
    return False


def _reachable(name: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the nodes that can be reached from a node; the node itself only through a loop."""
    beyond: set[str] = set()
    left = [name]
    while left:
        for to in edges[left.pop()]:
            if to in edges and to not in beyond:
                beyond.add(to)
                left.append(to)
    return beyond
