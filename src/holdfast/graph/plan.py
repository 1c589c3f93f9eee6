"""A graph as it is run: sound, with everything resolved."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import UnknownNode
from holdfast.graph.node import Node
from holdfast.graph.regions import Region
from holdfast.graph.state import State
from holdfast.graph.wiring import Wiring

__all__ = ["Plan"]


class Plan(msgspec.Struct, frozen=True):
    """A graph as it is run."""

    wiring: Wiring
    regions: Mapping[str, Region]
    states: Mapping[str, State]
    """The state of the graph, and of those inside it, by their scope."""
    reducers: Mapping[str, Mapping[str, str]]
    """The reducers of their fields, by the same."""

    def node(self, name: str) -> Node:
        """Return a node.

        Raises:
            UnknownNode: the graph does not have it.
        """
        node = self.wiring.nodes.get(name)
        if node is None:
            raise UnknownNode(f"the run stands at node {name!r:.80}, which the graph does not have")
        return node

    def state(self, name: str) -> State:
        """Return the state that a node sees."""
        return self.states[self.wiring.scope_of(name)]

    def ops(self, name: str) -> Mapping[str, str]:
        """Return the reducers of the state that a node sees."""
        return self.reducers[self.wiring.scope_of(name)]

    def join(self, name: str) -> str | None:
        """Return the node at which the branch of a node is over; None where it is in none."""
        region = self.regions.get(name)
        return None if region is None else region.join
