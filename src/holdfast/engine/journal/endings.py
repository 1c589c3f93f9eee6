"""How a run ended, and what a caller that waits for it gets: its result, or an error."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import RunCancelled, RunExpired, RunFailed, RunQuarantined, Unsuccessful
from holdfast.model.event import Failure
from holdfast.model.function_state import result_value
from holdfast.model.program import Program
from holdfast.model.traces import innermost_place, trace_note

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
    node: str = ""
    """The node at which the run failed or stopped; empty if it is not known."""
    wrapped: bool = False
    """Whether the result is a field of the state: see `Program.wraps_values`."""


def result_of(id: str, outcome: RunOutcome, program: Program | None) -> Any:
    """Return the result of a run that finished: its stored form if the program is not known.

    Raises:
        RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended in another way.
    """
    if outcome.status != "finished":
        failure = outcome.failure or Failure("", f"the run is {outcome.status}")
        error = _UNSUCCESSFUL[outcome.status](
            f"run {id!r} {_described(outcome, failure)}",
            kind=failure.type,
            trace=failure.trace,
            node=outcome.node,
            reason=failure.message,
        )
        if note := trace_note(f"Where run {id!r} failed:", failure.trace):
            error.add_note(note)
        raise error
    if program is None:
        return result_value(outcome.state, wrapped=outcome.wrapped)
    return program.check().result(outcome.state)


def _described(outcome: RunOutcome, failure: Failure) -> str:
    if outcome.status == "cancelled":
        return f"was cancelled: {failure.message}"
    if outcome.status == "expired":
        return "has expired"
    verb = "failed" if outcome.status == "failed" else "is quarantined"
    at = f" at node {outcome.node!r}" if outcome.node else ""
    place = innermost_place(failure.trace)
    return f"{verb}{at}{f' ({place})' if place else ''}: {failure.type}: {failure.message}"
