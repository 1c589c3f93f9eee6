"""A graph as it is run: sound, with everything resolved."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import UnknownNode
from holdfast.graph.node import Node
from holdfast.graph.regions import Region
from holdfast.graph.state_codec import StateCodec
from holdfast.graph.wiring import Edge, Wiring

__all__ = ["NodePlan", "Plan", "build_plan"]


class NodePlan(msgspec.Struct, frozen=True):
    """A node, and what is to be known when a run stands there."""

    node: Node
    edge: Edge | None
    """The way out; None where the run, or the branch, ends there."""
    codec: StateCodec
    """The state that the node sees."""
    ops: Mapping[str, str]
    """The reducers of its fields."""
    join: str | None
    """The node at which the branch of this one is over; None where it is in none."""


class Plan(msgspec.Struct, frozen=True):
    """A graph as it is run."""

    wiring: Wiring
    regions: Mapping[str, Region]
    codecs: Mapping[str, StateCodec]
    """The state of the graph, and of those inside it, by their scope."""
    reducers: Mapping[str, Mapping[str, str]]
    """The reducers of their fields, by the same."""
    node_plans: Mapping[str, NodePlan]

    def node_plan(self, name: str) -> NodePlan:
        """Return what is to be known at a node.

        Raises:
            UnknownNode: the graph does not have it.
        """
        node_plan = self.node_plans.get(name)
        if node_plan is None:
            raise UnknownNode(f"the run stands at node {name!r:.80}, which the graph does not have")
        return node_plan

    def codec(self, name: str) -> StateCodec:
        """Return the state that a node sees, also of one that the graph does not have."""
        node_plan = self.node_plans.get(name)
        return self.codecs[self.wiring.scope_of(name)] if node_plan is None else node_plan.codec


def build_plan(
    wiring: Wiring,
    regions: Mapping[str, Region],
    codecs: Mapping[str, StateCodec],
    reducers: Mapping[str, Mapping[str, str]],
) -> Plan:
    """Return how a sound graph is run."""
    node_plans: dict[str, NodePlan] = {}
    for name, node in wiring.nodes.items():
        scope, region = wiring.scope_of(name), regions.get(name)
        join = None if region is None else region.join
        node_plans[name] = NodePlan(
            node, wiring.edges.get(name), codecs[scope], reducers[scope], join
        )
    return Plan(wiring, regions, codecs, reducers, node_plans)
