"""What this process knows of graphs: from programs that it has, and from the items of graphs."""

from __future__ import annotations

import math
from collections import OrderedDict
from contextlib import suppress

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.graph.signal_types import SignalType, signal_type_of, stored_signal_type
from holdfast.model.program import Program
from holdfast.records.graph_item import GraphFacts

__all__ = ["KnownGraph", "KnownGraphs"]

_GRAPHS_MAX = 500


class KnownGraph:
    """What is known of one version of a graph."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.stored = GraphFacts()
        """The item as last read or written."""
        self.read_at = -math.inf
        """When the item was last read, on the monotonic clock."""
        self.program: Program | None = None
        """The program, if this process has it."""
        self.offered: Program | None = None
        """The program that this process has stored, or tried to store."""
        self.published: set[tuple[str, str]] = set()
        """Name and digest of each schema that this process has stored."""
        self.sought: set[str] = set()
        """Digests of waits that the item did not have: it is not read again for them."""
        # By name of the signal, then by digest.
        self._types: dict[str, dict[str, SignalType]] = {}

    def learn_program(self, program: Program) -> None:
        """Note that this process has the program."""
        if self.program is program:
            return
        self.program = program
        for name, kind in program.signals.items():
            if kind is not msgspec.UNSET:
                with suppress(InvalidRequest):  # without a schema it is not checked here
                    self.learn_type(name, signal_type_of(kind))

    def learn_type(self, name: str, signal_type: SignalType) -> None:
        """Note the type that a node of this process waits for."""
        if signal_type.digest:
            self._types.setdefault(name, {})[signal_type.digest] = signal_type

    def learn_facts(self, facts: GraphFacts, now: float) -> None:
        """Note what the item says."""
        self.stored, self.read_at = facts, now
        for name, schemas in facts.schemas.items():
            types = self._types.setdefault(name, {})
            for digest, schema in schemas.items():
                types.setdefault(digest, stored_signal_type(digest, schema))

    def types_of(self, name: str) -> dict[str, SignalType]:
        """Return all known types of a signal, by digest."""
        return self._types.get(name, {})

    @property
    def has_facts(self) -> bool:
        """Whether anything is known, so that a signal can be checked without a read."""
        return self.program is not None or self.stored.revision > 0

    def names(self) -> tuple[str, ...] | None:
        """Return the names of all signals that runs take; None if any name may be taken."""
        names: set[str] = set()
        if self.program is not None:
            if self.program.takes_other_signals:
                return None
            names |= set(self.program.signals)
        if self.stored.revision:
            if self.stored.declared is None:
                return None
            names |= set(self.stored.declared)
        return tuple(sorted(names)) if self.has_facts else None


class KnownGraphs:
    """The graphs that this process uses, each by name and version."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[tuple[str, int], KnownGraph] = OrderedDict()

    def get(self, name: str, version: int) -> KnownGraph:
        """Return what is known of one version of a graph, perhaps nothing."""
        key = (name, version)
        known = self._graphs.get(key)
        if known is None:
            known = self._graphs[key] = KnownGraph(name, version)
            while len(self._graphs) > _GRAPHS_MAX:
                self._graphs.popitem(last=False)
        else:
            self._graphs.move_to_end(key)
        return known
