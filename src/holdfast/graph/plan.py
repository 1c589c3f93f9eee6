"""A graph as it is run: sound, with everything resolved."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import UnknownNode
from holdfast.graph.node import Node
from holdfast.graph.regions import Region
from holdfast.graph.state import State
from holdfast.graph.wiring import Way, Wiring

__all__ = ["Plan", "Stage", "planned"]


class Stage(msgspec.Struct, frozen=True):
    """A node, and what is to be known when a run stands there."""

    node: Node
    way: Way | None
    """The way out; None where the run, or the branch, ends there."""
    state: State
    """The state that the node sees."""
    ops: Mapping[str, str]
    """The reducers of its fields."""
    join: str | None
    """The node at which the branch of this one is over; None where it is in none."""


class Plan(msgspec.Struct, frozen=True):
    """A graph as it is run."""

    wiring: Wiring
    regions: Mapping[str, Region]
    states: Mapping[str, State]
    """The state of the graph, and of those inside it, by their scope."""
    reducers: Mapping[str, Mapping[str, str]]
    """The reducers of their fields, by the same."""
    stages: Mapping[str, Stage]

    def stage(self, name: str) -> Stage:
        """Return what is to be known at a node.

        Raises:
            UnknownNode: the graph does not have it.
        """
        stage = self.stages.get(name)
        if stage is None:
            raise UnknownNode(f"the run stands at node {name!r:.80}, which the graph does not have")
        return stage

    def state(self, name: str) -> State:
        """Return the state that a node sees, also of one that the graph does not have."""
        stage = self.stages.get(name)
        return self.states[self.wiring.scope_of(name)] if stage is None else stage.state


def planned(
    wiring: Wiring,
    regions: Mapping[str, Region],
    states: Mapping[str, State],
    reducers: Mapping[str, Mapping[str, str]],
) -> Plan:
    """Return how a sound graph is run."""
    stages: dict[str, Stage] = {}
    for name, node in wiring.nodes.items():
        scope, region = wiring.scope_of(name), regions.get(name)
        join = None if region is None else region.join
        stages[name] = Stage(node, wiring.ways.get(name), states[scope], reducers[scope], join)
    return Plan(wiring, regions, states, reducers, stages)
