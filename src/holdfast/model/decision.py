"""Outcomes and decisions: what the engine tells a program, and what the program answers.

The engine performs an effect and reports its outcome. The program answers with a decision: the
events that the engine writes into the run's journal. See `holdfast.model.program`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from holdfast.model.event import BranchFailed, Event, Failed, Failure, Rerouted
from holdfast.model.execution import is_within
from holdfast.model.failure import error_names

__all__ = ["Decision", "Outcome", "Raised", "Returned", "WentStale"]


class Returned(msgspec.Struct, frozen=True):
    """The effect succeeded."""

    value: Any = None
    """A result in its durable form; what it is depends on the effect."""
    spent_ms: int = 0


class Raised(msgspec.Struct, frozen=True):
    """The effect failed. The program decides whether to try it again."""

    failure: Failure
    """The error as the journal keeps it."""
    error: BaseException | None = None
    """The error itself."""
    spent_ms: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the error's type and of its bases, the most exact first."""
        return (self.failure.type,) if self.error is None else error_names(self.error)


class WentStale(msgspec.Struct, frozen=True):
    """The pause of the effect lasted longer than its ``max_pause_ms``."""


Outcome: TypeAlias = Returned | Raised | WentStale
"""What can come of an effect."""


class Decision(msgspec.Struct, frozen=True):
    """The events that follow from an outcome."""

    events: tuple[Event, ...]
    checkpoint: bool = True
    """Whether the events must be durable before the run goes on."""

    def ended_strand(self, branch: str) -> str | None:
        """Return the strand that a branch's decision ends together with everything inside it.

        None means that the decision ends no other branch. The engine stops the branches that a
        decision ends before it writes the decision.
        """
        for event in self.events:
            match event:
                case Failed():
                    return ""
                case BranchFailed():
                    return event.branch
                case Rerouted() if event.branch != branch and is_within(branch, event.branch):
                    return event.branch
                case _:
                    pass
        return None
