"""Resolves the edges that a user declared to the names of nodes. Checks come later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from holdfast.errors import InvalidGraph
from holdfast.graph.chooser_targets import (
    Chooser,
    chooser_name,
    referenced_values,
    returned_names,
)
from holdfast.graph.node import END, Node, Reference, function_identity, name_of, takes_state
from holdfast.graph.wiring import ChoiceEdge, Edge, ForkEdge, RouteEdge, Wiring

__all__ = ["EdgeDeclaration", "ForkOptions", "check_reference", "resolved_wiring"]


class ForkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a fork, apart from the first nodes of its branches."""

    join: Reference
    over: str = ""
    into: str = ""
    spares: bool = False
    concurrency: int = 0


class EdgeDeclaration(msgspec.Struct, frozen=True):
    """An edge as the user declared it. Its nodes may be registered later."""

    source: Reference
    to: tuple[Reference, ...] | None
    """None for a choice whose targets are read from the code of the chooser."""
    chooser: Chooser | None = None
    fork_options: ForkOptions | None = None


def check_reference(node: Any) -> None:
    """Check that an argument refers to a node.

    Raises:
        InvalidGraph: the argument is neither a function, nor a name, nor END.
    """
    if node is not END and not isinstance(node, str) and not callable(node):
        raise InvalidGraph(f"a node must be given by its function or its name, got {node!r:.80}")


def resolved_wiring(
    nodes: Mapping[str, Node], declarations: Iterable[EdgeDeclaration], start: str | None
) -> tuple[Wiring, list[str]]:
    """Return the graph with all edges resolved to names, and the faults that were found."""
    resolver = _Resolver(nodes)
    edges: dict[str, list[Edge]] = {}
    for declaration in declarations:
        source = resolver.name(declaration.source)
        if source is not None:
            edge = resolver.edge(source, declaration)
            known = edges.setdefault(source, [])
            if edge not in known:
                known.append(edge)
    wiring = Wiring(
        nodes=nodes,
        start=next(iter(nodes), "") if start is None else start,
        edges={source: resolver.single_edge(source, known) for source, known in edges.items()},
        names=resolver.names,
    )
    return wiring, resolver.faults


class _Resolver:
    """Resolves references to names, and collects the faults."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._ambiguous: set[tuple[str, tuple[int, ...]]] = set()
        self.names: dict[tuple[str, tuple[int, ...]], str] = {}
        self.faults: list[str] = []
        for name, node in nodes.items():
            key = ("", function_identity(node.function))
            if key in self.names:
                self._ambiguous.add(key)
            self.names.setdefault(key, name)

    def name(self, node: Reference) -> str | None:
        """Return the name of a node; None for END."""
        if isinstance(node, str):
            return node
        if node is END:
            return None
        key = ("", function_identity(node))
        if key in self._ambiguous:
            self._add_fault(
                f"function {self.names[key]!r:.80} is registered as several nodes: refer to the "
                "node by its name"
            )
        if key in self.names:
            return self.names[key]
        name = name_of(node)
        if name in self._nodes:
            self._add_fault(
                f"node {name!r:.80} is registered with another function: refer to the node by "
                "its name"
            )
        return name

    def edge(self, source: str, declaration: EdgeDeclaration) -> Edge:
        """Return the edge for a declaration."""
        if declaration.fork_options is not None:
            return self._fork_edge(declaration.to or (), declaration.fork_options)
        if declaration.chooser is None:
            (to,) = declaration.to or (END,)
            return RouteEdge(self.name(to))
        if not takes_state(declaration.chooser):
            self._add_fault(f"the chooser at {source!r:.80} must take one argument, the state")
        self._check_returned_names(source, declaration.chooser)
        if declaration.to is None:
            targets = self._derived_targets(declaration.chooser)
            hint = "its targets cannot be read from the chooser's code; pass to=[...]"
        else:
            targets = tuple(dict.fromkeys(map(self.name, declaration.to)))
            hint = "to must name at least one node"
        if not targets:
            self._add_fault(f"the choice at {source!r:.80}: {hint}")
        return ChoiceEdge(declaration.chooser, targets, declared=declaration.to is not None)

    def _check_returned_names(self, source: str, chooser: Chooser) -> None:
        for name in returned_names(chooser):
            if name not in self._nodes:
                near = get_close_matches(name, self._nodes, 1)
                hint = f"; did you mean {near[0]!r:.80}?" if near else ""
                self._add_fault(
                    f"the chooser {chooser_name(chooser)!r:.80} at {source!r:.80} returns "
                    f"{name!r:.80}, but the graph has no such node{hint}"
                )

    def single_edge(self, source: str, edges: list[Edge]) -> Edge:
        """Return the edge of a node. Several edges are a fault, and become a choice among all."""
        if len(edges) == 1:
            return edges[0]
        self._add_fault(
            f"node {source!r:.80} must have one route, choice or fork, got {len(edges)}"
        )
        targets: dict[str | None, None] = {}
        for edge in edges:
            match edge:
                case RouteEdge(to):
                    targets[to] = None
                case ChoiceEdge():
                    targets.update(dict.fromkeys(edge.targets))
                case ForkEdge(starts, join):
                    targets.update(dict.fromkeys((*starts, join)))
        return ChoiceEdge(lambda state: END, tuple(targets), declared=True)

    def _fork_edge(self, starts: tuple[Reference, ...], options: ForkOptions) -> ForkEdge:
        return ForkEdge(
            starts=tuple(self.name(start) or "" for start in starts),
            join=self.name(options.join) or "",
            over=options.over,
            into=options.into,
            spares=options.spares,
            concurrency=options.concurrency,
        )

    def _derived_targets(self, chooser: Chooser) -> tuple[str | None, ...]:
        targets: dict[str | None, None] = {}
        for value in referenced_values(chooser):
            if value is END:
                targets[None] = None
            elif isinstance(value, str):
                if value in self._nodes:
                    targets[value] = None
            elif ("", function_identity(value)) in self.names:
                targets[self.names["", function_identity(value)]] = None
        return tuple(targets)

    def _add_fault(self, fault: str) -> None:
        if fault not in self.faults:
            self.faults.append(fault)
