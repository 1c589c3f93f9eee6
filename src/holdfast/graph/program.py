"""A graph as a program: what the engine asks of it while a run executes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from holdfast.errors import InvalidResult
from holdfast.graph import transitions
from holdfast.graph.checks import checked_plan
from holdfast.graph.contributions import contributions
from holdfast.graph.declaration import GraphDeclaration
from holdfast.graph.function_program import FunctionProgram
from holdfast.graph.plan import Plan
from holdfast.model.decision import Decision, Outcome
from holdfast.model.event import Event
from holdfast.model.execution import Execution
from holdfast.model.policy import Durability
from holdfast.model.program import RunNode

__all__ = ["GraphProgram"]


class GraphProgram(FunctionProgram):
    """Runs a declared graph. The first use checks the graph; after that it cannot change."""

    def __init__(self, declaration: GraphDeclaration) -> None:
        self._declaration = declaration

    @property
    def name(self) -> str:
        """The name of the graph. Its runs carry this name."""
        return self._declaration.name

    @property
    def version(self) -> int:
        """The version of the graph."""
        return self._declaration.version

    @property
    def durability(self) -> Durability:
        """When runs of the graph become durable. A start can override it."""
        return self._declaration.durability

    @property
    def signals(self) -> Mapping[str, Any]:
        """The types of the declared signals by name, with those of included graphs."""
        return self._declaration.merged_signals()

    @property
    def takes_other_signals(self) -> bool:
        """Whether the graph was made without ``signals``."""
        return self._declaration.signals is None

    @property
    def input_type(self) -> Any:
        """The type of the state, which an input must fit."""
        return self._declaration.state_type

    def check(self) -> Self:
        """Return the graph if it can run. After that it cannot be changed.

        Raises:
            InvalidGraph: the graph cannot run. The error lists everything that is wrong with it.
        """
        checked_plan(self._declaration)
        return self

    def start(self, input: Any, seed: str) -> Execution:
        """Return the execution of a new run.

        Raises:
            InvalidInput: the input does not fit the type of the state.
            InvalidGraph: the graph cannot run.
        """
        plan = self._plan
        return Execution(state=plan.codecs[""].initial(input), seed=seed, node=plan.wiring.start)

    def step(self, execution: Execution, branch: str, outcome: Outcome, now_ms: int) -> Decision:
        """Decide what follows from the outcome of a branch's node.

        Raises:
            UnknownNode: the branch is at a node that the graph does not have.
        """
        return transitions.step(execution, branch, outcome, now_ms=now_ms, plan=self._plan)

    def retried(
        self, execution: Execution, node: str | None, request: str, now_ms: int
    ) -> tuple[Event, ...]:
        """Return the events by which a failed run continues: where it failed, or at ``node``."""
        return transitions.retry_events(execution, node, request, now_ms=now_ms, plan=self._plan)

    def effect(self, execution: Execution, branch: str) -> RunNode:
        """Return the effect to perform for one branch that is at a node.

        Raises:
            UnknownNode: the graph does not have that node.
        """
        return transitions.effect_of(execution, branch, self._plan)

    def retries_left(self, execution: Execution) -> int:
        """Return how many failures the run survives: the least of all nodes where it stands."""
        nodes = self.nodes
        left = [
            node.retry.attempts - 1 - strand.failed_attempts
            for _, strand in execution.runnable_strands()
            if (node := nodes.get(strand.node)) is not None
        ]
        return min(left, default=0)

    def result(self, state: dict[str, Any]) -> Any:
        """Return the final state of a run in the type of the graph's state.

        Raises:
            InvalidState: the stored state does not fit the type of the state.
        """
        return self._plan.codecs[""].typed(state)

    def enter(self, execution: Execution, branch: str = "") -> Any:
        """Return the state as the node of a branch sees it.

        Raises:
            InvalidState: the stored state does not fit the type of the state.
        """
        strand = execution.strand(branch)
        codec = self._plan.codec("" if strand is None else strand.node)
        return codec.typed(execution.visible_state(branch))

    def delta(self, execution: Execution, branch: str, returned: Any) -> dict[str, Any]:
        """Return what the node of a branch changed in the state, in its durable form.

        Raises:
            InvalidResult: the value does not fit the type of the state, has no durable form, or
                changes a field that the node was not declared to write.
        """
        strand = execution.strand(branch)
        node_plan = self._plan.node_plan("" if strand is None else strand.node)
        node, before = node_plan.node, execution.visible_state(branch)
        delta = node_plan.codec.delta(returned, before)
        if node_plan.ops:
            delta = contributions(returned, delta, before, node_plan.ops)
        enforced = node.writes_declared or node_plan.join is not None
        if enforced and node.writes is not None and not delta.keys() <= node.writes:
            undeclared = ", ".join(repr(name) for name in delta if name not in node.writes)
            raise InvalidResult(
                f"node {node.name!r} changed {undeclared}, which its `writes` does not name"
            )
        return delta

    @property
    def _plan(self) -> Plan:
        plan = self._declaration.plan
        return checked_plan(self._declaration) if plan is None else plan
