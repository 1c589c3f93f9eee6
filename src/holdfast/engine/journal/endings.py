"""How a run ended, and the state or the error that its callers get."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import RunCancelled, RunExpired, RunFailed, RunQuarantined, Unsuccessful
from holdfast.graph import Graph
from holdfast.model.event import Failure
from holdfast.model.execution import Execution

__all__ = ["RunOutcome", "result_of"]

_UNSUCCESSFUL: dict[str, type[Unsuccessful]] = {
    "failed": RunFailed,
    "cancelled": RunCancelled,
    "expired": RunExpired,
    "quarantined": RunQuarantined,
}


class RunOutcome(msgspec.Struct, frozen=True):
    """How a run ended, with its last state and its failure."""

    status: str
    state: dict[str, Any]
    failure: Failure | None


def result_of(id: str, outcome: RunOutcome, graph: Graph | None) -> Any:
    """Return the state with which a run finished, in the graph's type if the graph is known.

    Raises:
        RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended in another way.
    """
    if outcome.status != "finished":
        failure = outcome.failure or Failure("", f"the run is {outcome.status}")
        kind = _UNSUCCESSFUL[outcome.status]
        message = f"run {id!r} {_described(outcome.status, failure)}"
        raise kind(message, kind=failure.type, trace=failure.trace)
    if graph is None:
        return outcome.state
    return graph.check().enter(Execution(seed="", state=outcome.state, node=""))


def _described(status: str, failure: Failure) -> str:
    if status == "failed":
        return f"failed: {failure.type}: {failure.message}"
    if status == "quarantined":
        return f"is quarantined: {failure.type}: {failure.message}"
    return f"was cancelled: {failure.message}" if status == "cancelled" else "has expired"
