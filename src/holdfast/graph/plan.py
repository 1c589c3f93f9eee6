"""A checked graph in the form in which it runs, with all names resolved."""

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
    """A node, and everything that the program needs when a run is at it."""

    node: Node
    edge: Edge | None
    """The edge that leads on; None if the run or the branch ends at the node."""
    codec: StateCodec
    """Converts the state that the node sees."""
    ops: Mapping[str, str]
    """The reducers of the state, by field."""
    join: str | None
    """The join that ends the branch of this node; None outside of branches."""


class Plan(msgspec.Struct, frozen=True):
    """A checked graph in the form in which it runs."""

    wiring: Wiring
    regions: Mapping[str, Region]
    codecs: Mapping[str, StateCodec]
    """The state codecs of the graph and of included graphs, by scope."""
    reducers: Mapping[str, Mapping[str, str]]
    """The reducers of the same graphs, by scope and field."""
    node_plans: Mapping[str, NodePlan]

    def node_plan(self, name: str) -> NodePlan:
        """Return the plan of a node.

        Raises:
            UnknownNode: the graph does not have the node.
        """
        node_plan = self.node_plans.get(name)
        if node_plan is None:
            raise UnknownNode(f"the run is at node {name!r:.80}, which the graph does not have")
        return node_plan

    def codec(self, name: str) -> StateCodec:
        """Return the codec of the state that a node sees, also for an unknown node."""
        node_plan = self.node_plans.get(name)
        return self.codecs[self.wiring.scope_of(name)] if node_plan is None else node_plan.codec


def build_plan(
    wiring: Wiring,
    regions: Mapping[str, Region],
    codecs: Mapping[str, StateCodec],
    reducers: Mapping[str, Mapping[str, str]],
) -> Plan:
    """Return the plan of a graph that passed all checks."""
    node_plans: dict[str, NodePlan] = {}
    for name, node in wiring.nodes.items():
        scope, region = wiring.scope_of(name), regions.get(name)
        join = None if region is None else region.join
        node_plans[name] = NodePlan(
            node, wiring.edges.get(name), codecs[scope], reducers[scope], join
        )
    return Plan(wiring, regions, codecs, reducers, node_plans)
