"""From what a user wrote down to names: who leads where, before it is known to be sound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidGraph
from holdfast.graph.choice import Chooser, mentioned
from holdfast.graph.node import END, Node, Reference, identity, name_of, takes_state
from holdfast.graph.wiring import Choice, Route, Split, Way, Wiring

__all__ = ["Branching", "Exit", "check_reference", "wired"]


class Branching(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about a fork besides the first nodes of its branches."""

    join: Reference
    over: str = ""
    into: str = ""
    spares: bool = False
    at_once: int = 0


class Exit(msgspec.Struct, frozen=True):
    """A way out of a node as it was written down; nodes may be registered after it."""

    source: Reference
    to: tuple[Reference, ...] | None
    """None where the chooser is to tell."""
    chooser: Chooser | None = None
    branching: Branching | None = None


def check_reference(node: Any) -> None:
    """Check that something can stand for a node.

    Raises:
        InvalidGraph: it cannot.
    """
    if node is not END and not isinstance(node, str) and not callable(node):
        raise InvalidGraph(f"a node is named by its function or its name, not by {node!r:.80}")


def wired(
    nodes: Mapping[str, Node], exits: Iterable[Exit], start: str | None
) -> tuple[Wiring, list[str]]:
    """Return the graph with everything resolved to names, and what stood in the way of that."""
    draft = _Draft(nodes)
    ways: dict[str, list[Way]] = {}
    for exit in exits:
        source = draft.name(exit.source)
        if source is not None:
            way = draft.way(source, exit)
            known = ways.setdefault(source, [])
            if way not in known:
                known.append(way)
    wiring = Wiring(
        nodes=nodes,
        start=next(iter(nodes), "") if start is None else start,
        ways={source: draft.only(source, known) for source, known in ways.items()},
        names=draft.names,
    )
    return wiring, draft.faults


class _Draft:
    """Resolves references, and notes what cannot be resolved."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._ambiguous: set[tuple[str, tuple[int, ...]]] = set()
        self.names: dict[tuple[str, tuple[int, ...]], str] = {}
        self.faults: list[str] = []
        for name, node in nodes.items():
            key = ("", identity(node.function))
            if key in self.names:
                self._ambiguous.add(key)
            self.names.setdefault(key, name)

    def name(self, node: Reference) -> str | None:
        """Return the name of a node, None for the end."""
        if isinstance(node, str):
            return node
        if node is END:
            return None
        key = ("", identity(node))
        if key in self._ambiguous:
            self._note(f"function {self.names[key]!r:.80} is several nodes; name the one meant")
        if key in self.names:
            return self.names[key]
        name = name_of(node)
        if name in self._nodes:
            self._note(f"function {name!r:.80} is not the one that is registered as that node")
        return name

    def way(self, source: str, exit: Exit) -> Way:
        """Return a way out of a node."""
        if exit.branching is not None:
            return self._split(exit.to or (), exit.branching)
        if exit.chooser is None:
            (to,) = exit.to or (END,)
            return Route(self.name(to))
        if not takes_state(exit.chooser):
            self._note(f"the choice at {source!r:.80} is not made by a function of the state alone")
        if exit.to is None:
            targets = self._derived(exit.chooser)
            hint = "where it leads cannot be told from its code; pass to=[...]"
        else:
            targets = tuple(dict.fromkeys(map(self.name, exit.to)))
            hint = "to= is empty"
        if not targets:
            self._note(f"the choice at {source!r:.80}: {hint}")
        return Choice(exit.chooser, targets, declared=exit.to is not None)

    def only(self, source: str, ways: list[Way]) -> Way:
        """Return the one way out of a node; where there are more, one that stands for all."""
        if len(ways) == 1:
            return ways[0]
        self._note(
            f"node {source!r:.80} has {len(ways)} ways out, and can have one route or choice"
        )
        targets: dict[str | None, None] = {}
        for way in ways:
            match way:
                case Route(to):
                    targets[to] = None
                case Choice():
                    targets.update(dict.fromkeys(way.targets))
                case Split(starts, join):
                    targets.update(dict.fromkeys((*starts, join)))
        return Choice(lambda state: END, tuple(targets), declared=True)

    def _split(self, starts: tuple[Reference, ...], said: Branching) -> Split:
        return Split(
            starts=tuple(self.name(start) or "" for start in starts),
            join=self.name(said.join) or "",
            over=said.over,
            into=said.into,
            spares=said.spares,
            at_once=said.at_once,
        )

    def _derived(self, chooser: Chooser) -> tuple[str | None, ...]:
        targets: dict[str | None, None] = {}
        for value in mentioned(chooser):
            if value is END:
                targets[None] = None
            elif isinstance(value, str):
                if value in self._nodes:
                    targets[value] = None
            elif ("", identity(value)) in self.names:
                targets[self.names["", identity(value)]] = None
        return tuple(targets)

    def _note(self, fault: str) -> None:
        if fault not in self.faults:
            self.faults.append(fault)
