"""How a graph decides: pure functions from an execution and an outcome to a decision."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, cast

from holdfast.errors import InvalidResult, UnknownNode
from holdfast.graph.chooser_targets import chooser_name
from holdfast.graph.node import END, Node
from holdfast.graph.plan import NodePlan, Plan
from holdfast.graph.wiring import ChoiceEdge, ForkEdge, RouteEdge
from holdfast.model.decision import Decision, Outcome, Raised, Returned, WentStale
from holdfast.model.event import (
    AttemptFailed,
    BranchFailed,
    Event,
    Failed,
    Failure,
    Finished,
    Fork,
    NodeFinished,
    Rerouted,
)
from holdfast.model.execution import Execution, Strand, outer_path
from holdfast.model.failure import failure_of
from holdfast.model.program import RunNode
from holdfast.model.reducers import reduced

__all__ = ["BRANCHES_MAX", "effect_of", "retry_events", "step"]

BRANCHES_MAX = 10_000
"""The maximum number of branches of a fork."""


def effect_of(execution: Execution, path: str, plan: Plan) -> RunNode:
    """Return the effect that a strand needs next. The strand stands at a node.

    Raises:
        UnknownNode: the graph does not have that node.
    """
    strand = _strand(execution, path)
    node = plan.node_plan(strand.node).node
    return RunNode(
        node.name, strand.visit, strand.retry_at_ms, path, node.pausable, node.max_pause_ms
    )


def step(execution: Execution, path: str, outcome: Outcome, *, now_ms: int, plan: Plan) -> Decision:
    """Decide what follows from the outcome of a strand's node.

    Raises:
        UnknownNode: the graph does not have the node at which the strand stands.
    """
    strand = _strand(execution, path)
    node_plan = plan.node_plan(strand.node)
    node = node_plan.node
    match outcome:
        case Returned():
            try:
                delta = outcome.value
                to, fork = _next_node(execution, path, delta, node_plan=node_plan, plan=plan)
                if fork is not None and fork.width > BRANCHES_MAX:
                    raise InvalidResult(
                        f"the fork after {node.name!r} would have {fork.width:,} branches; the "
                        f"maximum is {BRANCHES_MAX:,}"
                    )
            except Exception as error:
                return Decision((_failure_event(execution, path, node, failure_of(error), now_ms),))
            finished = NodeFinished(
                at_ms=now_ms,
                node=node.name,
                visit=strand.visit,
                delta=delta,
                to=to,
                spent_ms=outcome.spent_ms,
                branch=path,
                ops=_used_reducers(node_plan.ops, delta),
                fork=fork,
            )
            return _finished(finished, node, waited=bool(strand.answers))
        case Raised():
            return _failed(execution, path, outcome, node=node, now_ms=now_ms)
        case WentStale():
            return _stale(execution, path, node, now_ms)


def retry_events(
    execution: Execution, node: str | None, request: str, *, now_ms: int, plan: Plan
) -> tuple[Event, ...]:
    """Decide how a failed run continues after a retry, optionally at a node.

    If the node is inside branches, each branch of that region that has not ended goes back to it.
    """
    going_on = Rerouted(now_ms, None, "retried", request)
    region = None if node is None else plan.regions.get(node)
    if node is None:
        return (going_on,)
    if region is None or region.fork is None:
        return (Rerouted(now_ms, node, "retried", request),)
    paths = [
        path
        for path, branch in execution.branches.items()
        if not branch.over and plan.regions.get(branch.node) == region
    ]
    if not paths:
        message = f"the run cannot continue at {node!r}: no open branch has this node"
        return (going_on, Failed(now_ms, Failure("NotRetryable", message), node))
    return (going_on, *(Rerouted(now_ms, node, "retried", request, path) for path in paths))


def _strand(execution: Execution, path: str) -> Strand:
    strand = execution.strand(path)
    if strand is None:
        raise UnknownNode(f"the run has no branch {path!r:.80}")
    return strand


def _next_node(
    execution: Execution, path: str, delta: Mapping[str, Any], *, node_plan: NodePlan, plan: Plan
) -> tuple[str | None, Fork | None]:
    edge = node_plan.edge
    if isinstance(edge, RouteEdge) and not node_plan.ops:
        to = edge.to
    else:
        # Always reduced: a delta that cannot be reduced must not be recorded.
        after = reduced(execution.visible_state(path), delta, node_plan.ops)
        match edge:
            case None:
                to = None
            case RouteEdge():
                to = edge.to
            case ChoiceEdge():
                to = _chosen_node(
                    edge, edge.chooser(node_plan.codec.typed(after)), node_plan.node, plan
                )
            case ForkEdge():
                return edge.join, _fork(node_plan.node, edge, after, node_plan.ops)
    # A branch ends where its route leads to the join or to the end.
    return None if to == node_plan.join else to, None


def _fork(node: Node, edge: ForkEdge, after: Mapping[str, Any], ops: Mapping[str, str]) -> Fork:
    count = 0
    if edge.over:
        items: Any = after.get(edge.over)
        if not isinstance(items, list):
            found = f"{items!r:.80}" if edge.over in after else "nothing"
            raise InvalidResult(
                f"{edge.over!r} must be a list for the fork after {node.name!r}, got {found}"
            )
        count = len(cast(list[Any], items))
    return Fork(
        starts=edge.starts,
        over=edge.over,
        into=edge.into,
        count=count,
        spares=edge.spares,
        concurrency=edge.concurrency,
        takes=None if edge.takes is None else dict(edge.takes),
        gives=dict(edge.gives),
        ops={name: op for name, op in ops.items() if name in edge.gives},
    )


def _chosen_node(choice: ChoiceEdge, chosen: Any, node: Node, plan: Plan) -> str | None:
    to = None if chosen is END else plan.wiring.name_of(chosen, choice.scope)
    if to is None and chosen is not END:
        near: list[str] = []
        if isinstance(chosen, str):
            near = get_close_matches(choice.scope + chosen, plan.wiring.nodes, 1)
        raise InvalidResult(
            f"{_chooser_of(choice, node)} must return a node or END, got {_shown(chosen)}"
            + "".join(f"; did you mean {name.removeprefix(choice.scope)!r:.80}?" for name in near)
        )
    if choice.declared and to not in choice.targets:
        known = ", ".join("END" if name is None else name for name in choice.targets)
        raise InvalidResult(
            f"{_chooser_of(choice, node)} must return one of its declared targets: {known}; got "
            f"{_shown(chosen)}"
        )
    return to


def _chooser_of(choice: ChoiceEdge, node: Node) -> str:
    return f"the chooser {chooser_name(choice.chooser)!r:.80} at node {node.name!r:.80}"


def _finished(finished: NodeFinished, node: Node, *, waited: bool) -> Decision:
    if finished.to is None and not finished.branch:
        return Decision((finished, Finished(finished.at_ms)))
    stands = node.pausable == "yes" or (node.pausable == "blocking" and waited)
    return Decision((finished,), checkpoint=stands)


def _used_reducers(ops: Mapping[str, str], delta: Mapping[str, Any]) -> dict[str, str]:
    return {name: op for name, op in ops.items() if name in delta} if ops else {}


def _failed(
    execution: Execution, path: str, outcome: Raised, *, node: Node, now_ms: int
) -> Decision:
    strand = _strand(execution, path)
    failed = strand.failed_attempts + 1
    error = outcome.error
    covered = isinstance(error, Exception) and node.retry.covers(error)
    if not covered or failed >= node.retry.attempts:
        return Decision((_failure_event(execution, path, node, outcome.failure, now_ms),))
    draw = "#".join([execution.seed, *([path] if path else []), str(strand.visit)])
    backoff_ms = node.retry.backoff_ms(failed, draw)
    return Decision(
        (
            AttemptFailed(
                at_ms=now_ms,
                node=node.name,
                visit=strand.visit,
                failure=outcome.failure,
                retry_at_ms=now_ms + backoff_ms,
                spent_ms=outcome.spent_ms,
                branch=path,
            ),
        )
    )


def _failure_event(
    execution: Execution, path: str, node: Node, failure: Failure, now_ms: int
) -> Event:
    """Return the event for a node that is not retried.

    A failed branch fails its fork and the strand around it, unless the fork spares the others.
    """
    failed = path
    while path and not execution.spares(path):
        path = outer_path(path)
    if not path:
        return Failed(now_ms, failure, node.name, failed)
    return BranchFailed(now_ms, path, node.name, failure)


def _stale(execution: Execution, path: str, node: Node, now_ms: int) -> Decision:
    rule = node.on_stale
    if rule is None or rule.action == "fail":
        failure = Failure("Stale", f"node {node.name!r} paused for longer than its max_pause")
        return Decision((_failure_event(execution, path, node, failure, now_ms),))
    reason = "stale" if rule.action == "restart" else "escalated"
    return Decision((Rerouted(now_ms, rule.node, reason, branch=path),))


def _shown(chosen: Any) -> str:
    return f"{getattr(chosen, '__name__', chosen)!r:.80}"
