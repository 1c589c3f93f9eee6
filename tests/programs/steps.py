"""A second program: a list of steps that is plain data.

Each step is a dict. Its first key says what it does::

    {"task": name, "args": [fields of the state], "timeout_ms": …, "heartbeat_ms": …, "into": field}
    {"wait_ms": …}
    {"token": name, "timeout_ms": …}
    {"child": name, "input": …}
    {"fork": [steps, steps, …], "catch": value}      all lists of steps, side by side
    {"each": field, "steps": steps}                  the steps for each item, which is in "item"

Every step may have ``"retry": [{"errors": [names], "attempts": n, "backoff_ms": …}, …]``. The first
policy that names the error applies, and each policy counts its own attempts. What a step returns is
appended to ``results``, or replaces the field ``into``. A fork that fails appends its ``catch``.

A node is the position of a step: ``2/1/0`` is the first step in the second list of the third step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidInput, UnknownNode
from holdfast.model.decision import Decision, Outcome, Raised, Returned
from holdfast.model.event import (
    AttemptFailed,
    Event,
    Failed,
    Finished,
    Fork,
    NodeFinished,
    ProgramEvent,
    Rerouted,
)
from holdfast.model.execution import Execution, Strand, outer_path
from holdfast.model.program import (
    Effect,
    InvokeTask,
    Proceed,
    Program,
    RunChild,
    WaitForToken,
    WaitUntil,
)

__all__ = ["Steps"]

Step = Mapping[str, Any]


class Steps(Program):
    """A list of steps, as a program."""

    def __init__(
        self,
        name: str,
        steps: Sequence[Step],
        *,
        version: int = 1,
        children: Mapping[str, Program] | None = None,
    ) -> None:
        self._name = name
        self._version = version
        self._steps = steps
        self._children = children or {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> int:
        return self._version

    def start(self, input: Any, seed: str) -> Execution:
        if not isinstance(input, dict):
            raise InvalidInput(f"the input must be a dict, got {input!r:.80}")
        return Execution(state={"results": [], **input}, seed=seed, node="0")

    def result(self, state: dict[str, Any]) -> Any:
        return state["results"]

    def effect(self, execution: Execution, branch: str) -> Effect:
        strand = _strand(execution, branch)
        step, entered_ms = self._step_at(strand.node), strand.notes.get("entered_ms")
        at = (strand.node, strand.visit, strand.retry_at_ms, branch)
        match step:
            case {"task": task} if entered_ms is not None:
                state = execution.visible_state(branch)
                return InvokeTask(
                    *at,
                    task=task,
                    args=tuple(state[field] for field in step.get("args", ())),
                    timeout_ms=step.get("timeout_ms"),
                    heartbeat_ms=step.get("heartbeat_ms"),
                )
            case {"wait_ms": wait_ms} if entered_ms is not None:
                return WaitUntil(*at, at_ms=entered_ms + wait_ms)
            case {"token": token} if entered_ms is not None:
                limit_ms = step.get("timeout_ms")
                deadline_ms = None if limit_ms is None else entered_ms + limit_ms
                return WaitForToken(*at, token=token, deadline_ms=deadline_ms)
            case {"child": child} if entered_ms is not None:
                return RunChild(*at, program=self._children[child], input=step.get("input"))
            case _:  # it is not entered yet, forks, or is behind the last step
                return Proceed(*at)

    def step(self, execution: Execution, branch: str, outcome: Outcome, now_ms: int) -> Decision:
        strand = _strand(execution, branch)
        step = self._step_at(strand.node)
        if step is not None and "entered_ms" not in strand.notes:
            kind = next(iter(step))
            entered = {"entered_ms": now_ms}
            return Decision(
                (ProgramEvent(now_ms, "StepEntered", {"step": kind}, branch, notes=entered),),
                checkpoint=False,
            )
        if isinstance(outcome, Returned):
            return self._finished(execution, branch, outcome, now_ms)
        assert isinstance(outcome, Raised)
        return self._failed(execution, branch, outcome, now_ms)

    def _finished(
        self, execution: Execution, branch: str, outcome: Returned, now_ms: int
    ) -> Decision:
        strand = _strand(execution, branch)
        step, following = self._step_at(strand.node), _next(strand.node)
        delta, fork = dict[str, Any](), None
        to = None if step is None or self._step_at(following) is None else following
        match step:
            case {"fork": lists}:
                fork = Fork(tuple(f"{strand.node}/{n}/0" for n in range(len(lists))))
            case {"each": field}:
                count = len(execution.visible_state(branch)[field])
                fork = Fork((f"{strand.node}/0/0",), over=field, into="item", count=count)
            case {"task": _} | {"token": _} | {"child": _}:
                into = step.get("into")
                delta = {"results": [outcome.value]} if into is None else {into: outcome.value}
            case _:
                pass
        if fork is not None:
            to = following
        finished = NodeFinished(
            now_ms,
            strand.node,
            strand.visit,
            delta,
            to,
            outcome.spent_ms,
            branch,
            {"results": "append"} if "results" in delta else {},
            fork,
        )
        exited = ProgramEvent(now_ms, "StepExited", {"node": strand.node}, branch)
        ends = (Finished(now_ms),) if to is None and not branch else ()
        return Decision((exited, finished, *ends))

    def _failed(self, execution: Execution, branch: str, outcome: Raised, now_ms: int) -> Decision:
        strand = _strand(execution, branch)
        step = self._step_at(strand.node) or {}
        for number, policy in enumerate(step.get("retry", ())):
            if not set(policy["errors"]).intersection(outcome.names):
                continue
            count = strand.notes.get(f"retries_{number}", 0) + 1
            if count >= policy["attempts"]:
                break
            retried = ProgramEvent(
                now_ms,
                "StepRetried",
                {"policy": number, "error": outcome.failure.type},
                branch,
                notes={f"retries_{number}": count},
            )
            failed = AttemptFailed(
                now_ms,
                strand.node,
                strand.visit,
                outcome.failure,
                now_ms + policy["backoff_ms"],
                outcome.spent_ms,
                branch,
            )
            return Decision((retried, failed))
        return Decision(self._caught(execution, branch, outcome, now_ms))

    def _caught(
        self, execution: Execution, branch: str, outcome: Raised, now_ms: int
    ) -> tuple[Event, ...]:
        """Return what follows from a failure: the nearest fork around it catches it, or none."""
        node, path = _strand(execution, branch).node, branch
        while path:
            forked, path = path.rpartition("/")[2], outer_path(path)
            strand = _strand(execution, path)
            step = self._step_at(_previous(strand.node)) or {}
            if "catch" in step:
                caught = {"results": [step["catch"]]}
                ops = {"results": "append"}
                join, visit = strand.node, strand.visit + 1
                return (
                    ProgramEvent(now_ms, "ForkCaught", {"branch": forked}, path),
                    Rerouted(now_ms, join, "caught", branch=path),
                    NodeFinished(now_ms, join, visit, caught, join, branch=path, ops=ops),
                )
        return (Failed(now_ms, outcome.failure, node),)

    def _step_at(self, node: str) -> Step | None:
        """Return the step at a position; None behind the last step of a list."""
        steps: Sequence[Step] = self._steps
        *outer, last = (int(part) for part in node.split("/"))
        try:
            for index, number in zip(outer[::2], outer[1::2], strict=True):
                step = steps[index]
                steps = step["fork"][number] if "fork" in step else step["steps"]
        except (IndexError, KeyError, ValueError):
            raise UnknownNode(f"there is no step {node!r}") from None
        if last > len(steps):
            raise UnknownNode(f"there is no step {node!r}")
        return steps[last] if last < len(steps) else None


def _strand(execution: Execution, branch: str) -> Strand:
    strand = execution.strand(branch)
    assert strand is not None
    return strand


def _next(node: str) -> str:
    outer, slash, last = node.rpartition("/")
    return f"{outer}{slash}{int(last) + 1}"


def _previous(node: str) -> str:
    outer, slash, last = node.rpartition("/")
    return f"{outer}{slash}{int(last) - 1}"
