"""Hooks: functions of the application that a process calls after a run paused, failed or ended."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.event import Failure
from holdfast.model.run import Run

__all__ = ["AttemptFailure", "FailureHook", "Hooks", "RunHook"]


class AttemptFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt of a node."""

    node: str
    branch: str = ""
    """The branch of the node; empty if the run has no branches."""
    attempt: int
    """The number of the attempt in its visit of the node, from 1."""
    failure: Failure
    """The error: its type, message and trace."""
    retried: bool
    """Whether the node is attempted again. If not, the run or the branch has failed."""
    retry_at: datetime | None = None
    """When the next attempt begins; None if there is none."""


RunHook: TypeAlias = Callable[[Run], Awaitable[object] | object]
"""The type of a hook that gets the row of a run."""
FailureHook: TypeAlias = Callable[[Run, AttemptFailure], Awaitable[object] | object]
"""The type of a hook that gets the row of a run and the attempt that failed."""


_PARAMETERS = {
    "on_pause": ("run",),
    "on_failure": ("run", "failure"),
    "on_end": ("run",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions, async or plain, that a process calls after something happened to a run.

    A hook runs beside the run, after the write is durable, and can neither delay nor fail the run.
    It is called at most once for each occurrence, by the process that wrote it. A crash of that
    process loses it: a notification that must not get lost belongs into a `Context.call`.
    """

    on_pause: RunHook | None = None
    """Called when a run waits for a signal, a timer, a retry or anything else."""
    on_failure: FailureHook | None = None
    """Called when an attempt of a node failed, whether it is retried or not."""
    on_end: RunHook | None = None
    """Called when a run has finished, failed, expired, or was cancelled or quarantined."""
    timeout: Duration = 30
    """How long a call of a hook may take."""

    def __post_init__(self) -> None:
        for name in _PARAMETERS:
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise InvalidRequest(f"{name} must be a function, got {hook!r:.80}", field=name)
            if hook is not None:
                _check_parameters(name, hook, _PARAMETERS[name])
        if not milliseconds_of(self.timeout, "timeout"):
            raise InvalidRequest("timeout must be more than 0 seconds, got 0", field="timeout")


def _check_parameters(name: str, hook: Callable[..., object], passed: tuple[str, ...]) -> None:
    """Check that a hook takes what it is called with.

    Raises:
        InvalidRequest: it takes another number of arguments.
    """
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*passed)
    except TypeError:
        raise InvalidRequest(
            f"{name} must take {len(passed)} positional argument{'s'[: len(passed) - 1]}, as in "
            f"def {name}({', '.join(passed)}), got the parameters {signature}",
            field=name,
        ) from None
