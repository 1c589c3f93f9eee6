"""Signals and waits: which signal answers which wait, decided without any doing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

import msgspec

from holdfast.model.execution import Execution
from holdfast.model.wait import Wait

__all__ = [
    "Pending",
    "Resolution",
    "Signal",
    "SignalName",
    "TakeSignal",
    "TimeOut",
    "WaitStale",
    "continues_past_expiry",
    "is_caller_signal",
    "is_open_wait",
    "resolved_wait",
    "signal",
]


class SignalName(msgspec.Struct, frozen=True):
    """What a node waits for."""

    name: str


def signal(name: str) -> SignalName:
    """Return the condition that a signal of that name has come, for `ctx.wait`."""
    return SignalName(name)


class Signal(msgspec.Struct, frozen=True):
    """A signal in the inbox of a run."""

    name: str
    id: str
    accepted_ms: int
    body: Any = None
    """Where its payload lies, packed. Nothing here looks at it: the engine unpacks the payload of
    the signal that is taken, and of no other."""
    stamp: str = ""
    """The id of the write that put it there, a UUIDv7: it says in which order signals came, also
    within a millisecond. Empty where that is not known."""
    size: int = 0
    """How many bytes its payload has before compression."""

    @property
    def order(self) -> tuple[str, str]:
        """What signals are sorted by to be in the order in which they were accepted.

        A stamp is greater than all that its process made before; those of two processes are in the
        order of their clocks. Without one, the millisecond counts, and then the id.
        """
        if self.stamp:
            return self.stamp, self.id
        digits = f"{self.accepted_ms:012x}"
        return f"{digits[:8]}-{digits[8:]}", self.id


def is_caller_signal(name: str) -> bool:
    """Return whether a caller can have sent a signal of that name.

    The engine itself tells a run how a child ended, and what became of a call. The run alone
    decides how many of these there are: they are neither counted nor refused.
    """
    return not name.startswith("%")


class TakeSignal(msgspec.Struct, frozen=True):
    """This signal is the answer."""

    signal: Signal


class TimeOut(msgspec.Struct, frozen=True):
    """The time is up."""


class WaitStale(msgspec.Struct, frozen=True):
    """The pause took too long."""


class Pending(msgspec.Struct, frozen=True):
    """There is no answer yet; at that time there is one, if not before."""

    due_ms: int | None


Resolution: TypeAlias = TakeSignal | TimeOut | WaitStale | Pending


def continues_past_expiry(
    waits: Iterable[Wait], inbox: Iterable[Signal], execution: Execution, expires_ms: int
) -> bool:
    """Return whether a run that is past its expiry goes on, for it holds a signal accepted before.

    One that waits goes on if the signal is what it waits for; one that was under way goes on if
    any signal brought it there, or lies ready for it.
    """
    in_time = [
        signal
        for signal in inbox
        if signal.accepted_ms < expires_ms and (signal.name, signal.id) not in execution.taken
    ]
    unanswered = [
        wait for wait in waits if wait.signal is not None and is_open_wait(wait, execution)
    ]
    if unanswered:
        answers = (resolved_wait(wait, in_time, execution.taken, expires_ms) for wait in unanswered)
        return any(isinstance(answer, TakeSignal) for answer in answers)
    return bool(in_time or execution.taken)


def is_open_wait(wait: Wait, execution: Execution) -> bool:
    """Return whether a wait is still that of a strand, and was not answered."""
    strand = execution.strand(wait.branch)
    if strand is None or not execution.is_at_visit(wait.branch, wait.visit):
        return False
    return wait.key not in strand.answers


def resolved_wait(
    wait: Wait, inbox: Iterable[Signal], taken: Collection[tuple[str, str]], now_ms: int
) -> Resolution:
    """Return what has become of a wait.

    Signals of one name count in the order in which they were accepted. One that was accepted after
    the wait's time was up does not undo that it was up.
    """
    limits = [limit for limit in (wait.until_ms, wait.stale_ms) if limit is not None]
    limit = min(limits, default=None)
    if wait.signal is not None:
        fitting = [
            signal
            for signal in inbox
            if signal.name == wait.signal
            and (signal.name, signal.id) not in taken
            and (limit is None or signal.accepted_ms < limit)
        ]
        if fitting:
            return TakeSignal(min(fitting, key=lambda signal: signal.order))
    if limit is None or now_ms < limit:
        return Pending(limit)
    return TimeOut() if limit == wait.until_ms else WaitStale()
