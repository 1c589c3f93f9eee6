"""What a user declared about a graph, before and after it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.errors import InvalidGraph
from holdfast.graph.edge_resolution import EdgeDeclaration
from holdfast.graph.node import Node
from holdfast.graph.plan import Plan
from holdfast.graph.state_codec import StateCodec, state_faults
from holdfast.model.needs import Needs
from holdfast.model.policy import Durability, OnStale, Retry

__all__ = ["GraphDeclaration", "SubgraphDeclaration", "known_fields"]

_PAUSABLE = ("yes", "no", "blocking")


class GraphDeclaration:
    """The parts of a graph as the user wrote them down.

    Nodes and edges can be added until the graph is checked. The check sets ``plan``.
    """

    def __init__(
        self,
        *,
        name: str,
        version: int,
        state_type: Any,
        start: str | None,
        reducers: dict[str, str],
        durability: Durability,
        needs: Needs,
        expires_in_ms: int | None,
        signals: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.state_type = state_type
        self.start = start
        self.reducers = reducers
        self.durability: Durability = durability
        self.needs = needs
        self.expires_in_ms = expires_in_ms
        self.signals = signals
        """The types of the declared signals by name; None if runs take signals of any name."""
        self.nodes: dict[str, Node] = {}
        self.items: dict[str, Any] = {}
        """The item functions by name: each is an `ItemFunction`."""
        self.edges: list[EdgeDeclaration] = []
        self.subgraphs: dict[str, SubgraphDeclaration] = {}
        self.duplicates: list[str] = []
        """Names of nodes that were registered a second time."""
        self.plan: Plan | None = None

    def check_mutable(self) -> None:
        """Check that nodes and edges can still be added.

        Raises:
            InvalidGraph: the graph was checked already.
        """
        if self.plan is not None:
            raise InvalidGraph(
                f"graph {self.name!r} cannot be changed any more: it was checked or used already"
            )

    def add_node(self, node: Node) -> None:
        """Add a node. A second one of the same name is reported when the graph is checked.

        Raises:
            InvalidGraph: an option of the node is invalid, or the graph was checked already.
        """
        self._check_options(node)
        if not isinstance(node.on_stale, OnStale | None):
            raise InvalidGraph(
                "on_stale must be restart(node), escalate(node) or fail(), "
                f"got {node.on_stale!r:.80}"
            )
        if not callable(node.function):
            raise InvalidGraph(f"a node must be a function, got {node.function!r:.80}")
        if not isinstance(node.name, str):
            raise InvalidGraph(f"the name of a node must be a string, got {node.name!r:.80}")
        if node.name in self.nodes:
            self.duplicates.append(node.name)
        else:
            self.nodes[node.name] = node

    def add_item(self, node: Node, item: Any) -> None:
        """Add an item function; ``node`` has its options.

        Raises:
            InvalidGraph: an option is invalid, the name is taken, or the graph was checked already.
        """
        self._check_options(node)
        if node.name in self.items:
            raise InvalidGraph(f"two items have the name {node.name!r:.80}")
        self.items[node.name] = item

    def _check_options(self, node: Node) -> None:
        self.check_mutable()
        if node.pausable not in _PAUSABLE:
            raise InvalidGraph(
                f"pausable must be 'yes', 'no' or 'blocking', got {node.pausable!r:.80}"
            )
        if not isinstance(node.retry, Retry):
            raise InvalidGraph(f"retry must be a Retry, got {node.retry!r:.80}")

    def merged_signals(self) -> dict[str, Any]:
        """Return the types of the signals that this graph and the included ones declare."""
        merged = dict(self.signals or {})
        for part in self.subgraphs.values():
            merged = {**part.graph.merged_signals(), **merged}
        return merged

    def includes(self, other: GraphDeclaration) -> bool:
        """Return whether the other graph is part of this one, at any depth."""
        parts = [part.graph for part in self.subgraphs.values()]
        return other in parts or any(part.includes(other) for part in parts)


class SubgraphDeclaration(NamedTuple):
    """A graph that was included in another one, with the fields that are copied in and out."""

    graph: GraphDeclaration
    takes: Mapping[str, str] | None
    gives: Mapping[str, str] | None

    def field_mappings(self, outer: Any) -> tuple[dict[str, str], dict[str, str]]:
        """Return which fields are copied in, and which are copied out.

        Where the user named none, all fields that both state types have are copied both ways.
        """
        shared = known_fields(outer) & known_fields(self.graph.state_type)
        same = {name: name for name in sorted(shared)}
        takes = same if self.takes is None else dict(self.takes)
        return takes, same if self.gives is None else dict(self.gives)


def known_fields(state_type: Any) -> frozenset[str]:
    """Return the field names of a state type; empty where they are not known."""
    if any(state_faults(state_type)):
        return frozenset()
    return StateCodec(state_type).fields or frozenset()
