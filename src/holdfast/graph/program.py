"""What follows from an outcome: the deciding of a graph, without any doing."""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidResult, UnknownNode
from holdfast.graph.node import END, Node
from holdfast.graph.state import State
from holdfast.graph.wiring import Choice, Route, Wiring
from holdfast.model.decision import Decision, Outcome, Raised, Returned, RunNode, WentStale
from holdfast.model.event import AttemptFailed, Failed, Failure, Finished, NodeFinished, Rerouted
from holdfast.model.execution import Execution
from holdfast.model.failure import failure_of

__all__ = ["node_of", "outstanding", "step"]


def node_of(execution: Execution, wiring: Wiring) -> Node:
    """Return the node at which a run stands.

    Raises:
        UnknownNode: the graph does not have it.
    """
    node = wiring.nodes.get(execution.node)
    if node is None:
        raise UnknownNode(
            f"the run stands at node {execution.node!r:.80}, which the graph does not have"
        )
    return node


def outstanding(execution: Execution, wiring: Wiring) -> tuple[RunNode, ...]:
    """Return what is to be performed.

    Raises:
        UnknownNode: the run stands at a node that the graph does not have.
    """
    if execution.ending is not None:
        return ()
    node = node_of(execution, wiring)
    return (RunNode(node.name, execution.visit, execution.retry_at_ms),)


def step(
    execution: Execution, outcome: Outcome, *, now_ms: int, wiring: Wiring, state: State
) -> Decision:
    """Decide what follows from the outcome.

    Raises:
        UnknownNode: the run stands at a node that the graph does not have.
    """
    node = node_of(execution, wiring)
    match outcome:
        case Returned():
            try:
                to = _next(node, {**execution.state, **outcome.delta}, wiring=wiring, state=state)
            except Exception as error:
                return Decision((Failed(now_ms, failure_of(error), node.name),))
            return _finished(execution, outcome, node=node, to=to, now_ms=now_ms)
        case Raised():
            return _failed(execution, outcome, node=node, now_ms=now_ms)
        case WentStale():
            return _stale(node, now_ms)


def _next(node: Node, after: dict[str, Any], *, wiring: Wiring, state: State) -> str | None:
    match wiring.ways.get(node.name):
        case None:
            return None
        case Route(to):
            return to
        case Choice() as choice:
            return _chosen(choice, choice.chooser(state.entered(after)), wiring)


def _chosen(choice: Choice, chosen: Any, wiring: Wiring) -> str | None:
    to = None if chosen is END else wiring.name_of(chosen)
    if to is None and chosen is not END:
        raise InvalidResult(f"the choice returned {_shown(chosen)}, which is not a node")
    if choice.declared and to not in choice.targets:
        known = ", ".join("END" if name is None else name for name in choice.targets)
        raise InvalidResult(
            f"the choice returned {_shown(chosen)}, and was declared to lead to: {known}"
        )
    return to


def _finished(
    execution: Execution, outcome: Returned, *, node: Node, to: str | None, now_ms: int
) -> Decision:
    finished = NodeFinished(
        at_ms=now_ms,
        node=node.name,
        visit=execution.visit,
        delta=outcome.delta,
        to=to,
        spent_ms=outcome.spent_ms,
    )
    if to is None:
        return Decision((finished, Finished(now_ms)))
    waited = node.pausable == "blocking" and bool(execution.answers)
    return Decision((finished,), checkpoint=node.pausable == "yes" or waited)


def _failed(execution: Execution, outcome: Raised, *, node: Node, now_ms: int) -> Decision:
    failed = execution.failed_attempts + 1
    if not outcome.covered or failed >= node.retry.attempts:
        return Decision((Failed(now_ms, outcome.failure, node.name),))
    pause_ms = node.retry.pause_ms(failed, f"{execution.seed}#{execution.visit}")
    return Decision(
        (
            AttemptFailed(
                at_ms=now_ms,
                node=node.name,
                visit=execution.visit,
                failure=outcome.failure,
                retry_at_ms=now_ms + pause_ms,
                spent_ms=outcome.spent_ms,
            ),
        )
    )


def _stale(node: Node, now_ms: int) -> Decision:
    rule = node.on_stale
    if rule is None or rule.action == "fail":
        failure = Failure("Stale", f"node {node.name!r} paused for longer than its max_pause")
        return Decision((Failed(now_ms, failure, node.name),))
    reason = "stale" if rule.action == "restart" else "escalated"
    return Decision((Rerouted(now_ms, rule.node, reason),))


def _shown(chosen: Any) -> str:
    return f"{getattr(chosen, '__name__', chosen)!r:.80}"
