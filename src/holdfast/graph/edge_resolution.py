"""From what a user wrote down to names: who leads where, before it is known to be sound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidGraph
from holdfast.graph.chooser_targets import Chooser, referenced_values
from holdfast.graph.node import END, Node, Reference, function_identity, name_of, takes_state
from holdfast.graph.wiring import ChoiceEdge, Edge, ForkEdge, RouteEdge, Wiring

__all__ = ["EdgeDeclaration", "ForkOptions", "check_reference", "resolved_wiring"]


class ForkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about a fork besides the first nodes of its branches."""

    join: Reference
    over: str = ""
    into: str = ""
    spares: bool = False
    concurrency: int = 0


class EdgeDeclaration(msgspec.Struct, frozen=True):
    """A way out of a node as it was written down; nodes may be registered after it."""

    source: Reference
    to: tuple[Reference, ...] | None
    """None where the chooser is to tell."""
    chooser: Chooser | None = None
    fork_options: ForkOptions | None = None


def check_reference(node: Any) -> None:
    """Check that something can stand for a node.

    Raises:
        InvalidGraph: it cannot.
    """
    if node is not END and not isinstance(node, str) and not callable(node):
        raise InvalidGraph(f"a node is named by its function or its name, not by {node!r:.80}")


def resolved_wiring(
    nodes: Mapping[str, Node], declarations: Iterable[EdgeDeclaration], start: str | None
) -> tuple[Wiring, list[str]]:
    """Return the graph with everything resolved to names, and what stood in the way of that."""
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
    """Resolves references, and notes what cannot be resolved."""

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
        """Return the name of a node, None for the end."""
        if isinstance(node, str):
            return node
        if node is END:
            return None
        key = ("", function_identity(node))
        if key in self._ambiguous:
            self._add_fault(
                f"function {self.names[key]!r:.80} is several nodes; name the one meant"
            )
        if key in self.names:
            return self.names[key]
        name = name_of(node)
        if name in self._nodes:
            self._add_fault(f"function {name!r:.80} is not the one that is registered as that node")
        return name

    def edge(self, source: str, declaration: EdgeDeclaration) -> Edge:
        """Return a way out of a node."""
        if declaration.fork_options is not None:
            return self._fork_edge(declaration.to or (), declaration.fork_options)
        if declaration.chooser is None:
            (to,) = declaration.to or (END,)
            return RouteEdge(self.name(to))
        if not takes_state(declaration.chooser):
            self._add_fault(
                f"the choice at {source!r:.80} is not made by a function of the state alone"
            )
        if declaration.to is None:
            targets = self._derived_targets(declaration.chooser)
            hint = "where it leads cannot be told from its code; pass to=[...]"
        else:
            targets = tuple(dict.fromkeys(map(self.name, declaration.to)))
            hint = "to= is empty"
        if not targets:
            self._add_fault(f"the choice at {source!r:.80}: {hint}")
        return ChoiceEdge(declaration.chooser, targets, declared=declaration.to is not None)

    def single_edge(self, source: str, edges: list[Edge]) -> Edge:
        """Return the one way out of a node; where there are more, one that stands for all."""
        if len(edges) == 1:
            return edges[0]
        self._add_fault(
            f"node {source!r:.80} has {len(edges)} ways out, and can have one route or choice"
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
