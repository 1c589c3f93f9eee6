"""The loop's vocabulary: what can come to pass, what is decided, what is to be done.

A program is pure: it does no input or output and reads no clock. The engine performs what is
outstanding, hands the outcome to the program, writes down the events that the program decides,
folds them, and asks what is outstanding then::

    execution = program.start(input, seed)
    while effects := program.outstanding(execution):
        effect, outcome = perform(effects)
        decision = program.step(execution, effect.branch, outcome, now_ms)
        execution = folded(execution, decision.events)
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.model.event import Event, Failure
from holdfast.model.execution import Execution

__all__ = [
    "Decision",
    "Effect",
    "NodeOutcome",
    "Program",
    "Raised",
    "Returned",
    "RunNode",
    "WentStale",
]


class RunNode(msgspec.Struct, frozen=True):
    """Run a node, though not before that time."""

    node: str
    visit: int
    not_before_ms: int = 0
    branch: str = ""
    """Which branch of the run it is for; none where the run has not forked."""


Effect: TypeAlias = RunNode
"""What a resume must perform again."""


class Returned(msgspec.Struct, frozen=True):
    """The node returned, and this is what it changes in the state."""

    delta: dict[str, Any]
    spent_ms: int = 0


class Raised(msgspec.Struct, frozen=True):
    """The node raised an error."""

    failure: Failure
    covered: bool
    """Whether the node's retry policy covers this kind of error."""
    spent_ms: int = 0


class WentStale(msgspec.Struct, frozen=True):
    """The node's pause outlasted its ``max_pause``."""


NodeOutcome: TypeAlias = Returned | Raised | WentStale
"""What can come of performing an effect."""


class Decision(msgspec.Struct, frozen=True):
    """What the program makes of an outcome."""

    events: tuple[Event, ...]
    checkpoint: bool = True
    """Whether the events must be durable before the run goes on."""


class Program(Protocol):
    """What a worker can run."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def start(self, input: Any, seed: str) -> Execution:
        """Return a new run's execution.

        Raises:
            InvalidInput: the input does not fit the program.
        """
        ...

    def step(
        self, execution: Execution, branch: str, outcome: NodeOutcome, now_ms: int
    ) -> Decision:
        """Decide what follows from what came of a branch's effect."""
        ...

    def outstanding(self, execution: Execution) -> tuple[Effect, ...]:
        """Return what is to be performed, also after a resume; nothing where the run has ended.

        Raises:
            UnknownNode: the run stands at a node that this program does not have.
        """
        ...
