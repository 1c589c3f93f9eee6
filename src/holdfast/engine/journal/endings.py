"""How a run ended, and what a caller that waits for it gets: its result, or an error."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import RunCancelled, RunExpired, RunFailed, RunQuarantined, Unsuccessful
from holdfast.model.event import Failure
from holdfast.model.program import Program

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


def result_of(id: str, outcome: RunOutcome, program: Program | None) -> Any:
    """Return the result of a run that finished: its final state if the program is not known.

    Raises:
        RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended in another way.
    """
    if outcome.status != "finished":
        failure = outcome.failure or Failure("", f"the run is {outcome.status}")
        kind = _UNSUCCESSFUL[outcome.status]
        message = f"run {id!r} {_described(outcome.status, failure)}"
        raise kind(message, kind=failure.type, trace=failure.trace)
    if program is None:
        return outcome.state
    return program.check().result(outcome.state)


def _described(status: str, failure: Failure) -> str:
    if status == "failed":
        return f"failed: {failure.type}: {failure.message}"
    if status == "quarantined":
        return f"is quarantined: {failure.type}: {failure.message}"
    return f"was cancelled: {failure.message}" if status == "cancelled" else "has expired"
