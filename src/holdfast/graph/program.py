"""A graph as a program: what the engine asks of it while a run executes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Self, cast

from holdfast.errors import InvalidResult, InvalidState
from holdfast.graph import transitions
from holdfast.graph.checks import checked_plan
from holdfast.graph.contributions import contributions
from holdfast.graph.declaration import GraphDeclaration
from holdfast.graph.declared_waits import DeclaredWait, declared_waits
from holdfast.graph.function_program import FunctionProgram
from holdfast.graph.items import ItemFunction, items_of
from holdfast.graph.needs import needs_of
from holdfast.graph.plan import Plan
from holdfast.model.decision import Decision, Outcome
from holdfast.model.event import Event
from holdfast.model.execution import Execution
from holdfast.model.needs import Needs
from holdfast.model.policy import Durability
from holdfast.model.program import InputT, ResultT, RunNode

__all__ = ["GraphProgram"]


class GraphProgram(FunctionProgram[InputT, ResultT]):
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
    def needs(self) -> Needs:
        """What the graph and the graphs that it includes need from a worker's process."""
        return needs_of(self._declaration)

    @property
    def expires_in_ms(self) -> int | None:
        """How long after their start the runs expire, unless a start says otherwise."""
        return self._declaration.expires_in_ms

    def wait_warnings(self, expires_in_ms: int) -> tuple[str, ...]:
        """Return for people which declared waits last as long as such a run, or longer."""
        return tuple(
            wait.warning(expires_in_ms)
            for wait in self._declared_waits
            if wait.span_ms >= expires_in_ms
        )

    @functools.cached_property
    def _declared_waits(self) -> tuple[DeclaredWait, ...]:
        return declared_waits(self._plan.wiring.nodes.values())

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

    @property
    def items(self) -> Mapping[str, ItemFunction[Any]]:
        """The item functions of the graph and of the graphs that it includes, by name."""
        return items_of(self._declaration)

    def check(self) -> Self:
        """Return the graph if it can run. After that it cannot be changed.

        Raises:
            InvalidGraph: the graph cannot run. The error lists everything that is wrong with it.
        """
        checked_plan(self._declaration)
        return self

    def start(self, input: InputT, seed: str) -> Execution:
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
        # A newer version of the graph may allow fewer attempts than were made.
        return max(min(left, default=0), 0)

    def result(self, state: dict[str, Any]) -> ResultT:
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

    def unreturned_changes(
        self, execution: Execution, branch: str, *, state: Any, returned: Any
    ) -> list[str]:
        """Return the fields that a node changed in the state that it was given, in vain."""
        if returned is state or not isinstance(returned, Mapping | None):
            return []  # a whole state
        strand = execution.strand(branch)
        codec = self._plan.codec("" if strand is None else strand.node)
        before = execution.visible_state(branch)
        try:
            changed = codec.delta(state, before)
            named = cast(Mapping[Any, Any], returned or {})
            lost = [name for name in changed if name not in named]
            # A type may store a state in another way than it was stored before.
            noise = codec.delta(codec.typed(before), before) if lost else {}
        except (InvalidResult, InvalidState):
            return []  # what the node did to its state cannot be stored: it does not matter
        return [name for name in lost if name not in noise or noise[name] != changed[name]]

    def unreturned_text(self, node: str, fields: list[str]) -> str:
        """Return for people that changes to the state are lost."""
        shown = ", ".join(f"{field!r:.80}" for field in fields[:8])
        return (
            f"node {node!r:.80} of graph {self.name!r:.80} changed {shown} of its state and did "
            "not return it: the change is lost. Return the fields that changed, such as "
            f"{{{fields[0]!r:.80}: …}}"
        )

    @property
    def _plan(self) -> Plan:
        plan = self._declaration.plan
        return checked_plan(self._declaration) if plan is None else plan
