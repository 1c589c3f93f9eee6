"""The nodes of a graph and the ways between them, by their names, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.graph.chooser_targets import Chooser
from holdfast.graph.node import Node, function_identity

__all__ = ["ChoiceEdge", "Edge", "ForkEdge", "RouteEdge", "Wiring", "wiring_faults"]


class RouteEdge(msgspec.Struct, frozen=True):
    """After the node comes that one, always; None is the end."""

    to: str | None


class ChoiceEdge(msgspec.Struct, frozen=True):
    """After the node comes what a function of the state says."""

    chooser: Chooser
    targets: tuple[str | None, ...]
    """Where it may lead; None is the end."""
    declared: bool
    """Whether the targets were declared, and not only derived from the chooser."""
    scope: str = ""
    """What stands before the names of the nodes among which it chooses."""


class ForkEdge(msgspec.Struct, frozen=True):
    """After the node come branches side by side, and when all of them are over, the join."""

    starts: tuple[str, ...]
    join: str
    over: str = ""
    """The field whose items have a branch each."""
    into: str = ""
    spares: bool = False
    concurrency: int = 0
    takes: Mapping[str, str] | None = None
    """For a graph inside the graph: its fields, each with the one that it is copied from."""
    gives: Mapping[str, str] = {}


Edge: TypeAlias = RouteEdge | ChoiceEdge | ForkEdge


class Wiring(msgspec.Struct, frozen=True):
    """A graph as it is run and drawn."""

    nodes: Mapping[str, Node]
    start: str
    edges: Mapping[str, Edge]
    """The way out of each node; a node without one ends the run."""
    names: Mapping[tuple[str, tuple[int, ...]], str]
    """The names of the nodes, by their scope and the identity of their functions."""

    def scope_of(self, name: str) -> str:
        """Return what stands before a node's own name: the graph inside the graph that has it."""
        head, slash, _ = name.rpartition("/")
        return head + slash

    def targets(self, name: str) -> tuple[str | None, ...]:
        """Return where a run can go from a node by its way out."""
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
        """Yield where the strand that is at a node can go from there, which is not its branches."""
        node = self.nodes.get(name)
        if node is not None and node.on_stale is not None and node.on_stale.node:
            yield node.on_stale.node
        edge = self.edges.get(name)
        yield from (edge.join,) if isinstance(edge, ForkEdge) else self.targets(name)

    def name_of(self, chosen: Any, scope: str = "") -> str | None:
        """Return the name of the node that a function or a name stands for, if it is a node."""
        if isinstance(chosen, str):
            name = scope + chosen
            return name if name in self.nodes else None
        return self.names.get((scope, function_identity(chosen)))


def wiring_faults(wiring: Wiring) -> Iterator[str]:
    """Yield what is wrong with the ways, one sentence each."""
    yield from _unknown_target_faults(wiring)
    yield from _staleness_faults(wiring)
    yield from _unreachable_faults(wiring)
    for loop in _unpausable_loops(wiring):
        names = ", ".join(repr(name) for name in loop)
        yield (
            f"the loop of {names} has no node in which a run can stop: "
            "at least one of them has to be pausable 'yes' or 'blocking'"
        )


def _unreachable_faults(wiring: Wiring) -> Iterator[str]:
    if wiring.nodes and wiring.start not in wiring.nodes:
        yield f"the start is {wiring.start!r:.80}, and there is no such node"
    elif wiring.nodes:
        edges = {name: list(_successors(name, wiring)) for name in wiring.nodes}
        reached = {wiring.start} | _reachable(wiring.start, edges)
        for name in wiring.nodes:
            if name not in reached:
                yield f"node {name!r} cannot be reached from the start, {wiring.start!r}"


def _unknown_target_faults(wiring: Wiring) -> Iterator[str]:
    for name, edge in wiring.edges.items():
        kind = {RouteEdge: "route", ChoiceEdge: "choice", ForkEdge: "fork"}[type(edge)]
        if name not in wiring.nodes:
            yield f"a {kind} leads out of {name!r}, and there is no such node"
        for to in wiring.targets(name):
            if to is not None and to not in wiring.nodes:
                yield f"the {kind} out of {name!r} leads to {to!r}, and there is no such node"


def _staleness_faults(wiring: Wiring) -> Iterator[str]:
    for name, node in wiring.nodes.items():
        stale = node.on_stale
        if stale is not None and stale.action != "fail" and stale.node not in wiring.nodes:
            yield f"on_stale of node {name!r} names {stale.node!r}, and there is no such node"
        if (stale is None) != (node.max_pause_ms is None):
            given, missing = (
                ("max_pause", "on_stale") if stale is None else ("on_stale", "max_pause")
            )
            yield f"node {name!r} has {given} and no {missing}: each needs the other"
        if node.max_pause_ms is not None and node.pausable == "no":
            yield f"node {name!r} has max_pause and pausable='no': it never pauses"


def _successors(name: str, wiring: Wiring) -> Iterator[str]:
    node = wiring.nodes[name]
    if node.on_stale is not None and node.on_stale.node in wiring.nodes:
        yield node.on_stale.node
    for to in wiring.targets(name):
        if to is not None and to in wiring.nodes:
            yield to


def _unpausable_loops(wiring: Wiring) -> Iterator[list[str]]:
    """Yield the loops in which no run can stop; those that share a node count as one.

    Two nodes are in one loop if each is beyond the other.
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
    """Return where the strand at a node can go from there without a chance to stop on the way.

    That is past a fork only if there is such a way through every branch, or if there may be none.
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
    """Return whether a branch can be over without a chance to stop in it."""
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
    """Return what can be reached from a node, the node itself only if a loop leads back to it."""
    beyond: set[str] = set()
    left = [name]
    while left:
        for to in edges[left.pop()]:
            if to in edges and to not in beyond:
                beyond.add(to)
                left.append(to)
    return beyond
