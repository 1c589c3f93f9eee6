"""Which signal answers which wait, and when a wait ends without one.

The question has one answer, `resolved_group`. Everything else that asks it builds on that function:
a node that waits, the pause of a run, its resume, its expiry, the queue of a session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, overload

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.execution import Execution
from holdfast.model.type_parameters import PayloadT
from holdfast.model.wait import Wait, answer_key, earlier, signal_kind

__all__ = [
    "Pending",
    "Resolution",
    "Signal",
    "SignalName",
    "TakeSignal",
    "TimeOut",
    "WaitStale",
    "all_pending",
    "continues_past_expiry",
    "is_caller_signal",
    "is_open_wait",
    "resolved_group",
    "resolved_wait",
    "signal",
    "wait_groups",
]


T = TypeVar("T")


class SignalName(msgspec.Struct, Generic[PayloadT], frozen=True):
    """The condition that a signal of that name has come. Its payload is a ``PayloadT``."""

    name: str
    type: Any = msgspec.UNSET
    """The type of its payload; unset if the payload may be anything."""


@overload
def signal(name: str) -> SignalName[Any]: ...


@overload
def signal(name: str, type: type[T]) -> SignalName[T]: ...


# A ``Literal`` or a union is no class, so checkers do not know the payload.
@overload
def signal(name: str, type: Any) -> SignalName[Any]: ...


def signal(name: str, type: Any = msgspec.UNSET) -> SignalName[Any]:
    """Return the condition that a signal of that name has come, for `ctx.wait`.

    With a ``type``, the payload is checked where the signal is sent, and the node gets a value of
    that type: ``signal("approved", bool)``. It may be what a field of a state may be: a scalar, a
    ``Literal``, an enum, a dataclass, a TypedDict, a msgspec or pydantic model.

    Raises:
        InvalidRequest: the name is no text, or the type is one, such as ``"bool"``.
    """
    if not isinstance(name, str):
        raise InvalidRequest(
            f"the name of a signal must be a text, got {name!r:.80}: write "
            'signal("approved"), or signal("approved", type)',
            field="name",
        )
    if isinstance(type, str):
        raise InvalidRequest(
            f"the type of a signal must be a type such as bool, got the text {type!r:.80}",
            field="type",
        )
    return SignalName(name, type)


class Signal(msgspec.Struct, frozen=True):
    """A signal in the inbox of a run."""

    name: str
    id: str
    accepted_ms: int
    body: Any = None
    """Where its packed payload is stored. The engine unpacks it only when it takes the signal."""
    stamp: str = ""
    """The id of the write that stored it, a UUIDv7, which orders signals also within a millisecond.
    Empty if it is unknown."""
    size: int = 0
    """The bytes of its payload before compression."""

    @property
    def order(self) -> tuple[str, str]:
        """The sort key for the order in which signals were accepted.

        A stamp is greater than all earlier stamps of its process. Stamps of two processes follow
        the clocks of the processes. Signals without a stamp are sorted by millisecond, then by id.
        """
        if self.stamp:
            return self.stamp, self.id
        digits = f"{self.accepted_ms:012x}"
        return f"{digits[:8]}-{digits[8:]}", self.id


def is_caller_signal(name: str) -> bool:
    """Return whether a caller can have sent a signal of that name.

    The engine sends the other signals: they report the end of a child or the resolution of a call.
    The run decides how many of those there are, so the limits of the inbox do not count them.
    """
    return signal_kind(name).takes_caller_signal


class TakeSignal(msgspec.Struct, frozen=True):
    """This signal answers the wait."""

    signal: Signal


class TimeOut(msgspec.Struct, frozen=True):
    """The deadline of the wait has passed."""


class WaitStale(msgspec.Struct, frozen=True):
    """The wait lasted so long that the run's state is stale."""


class Pending(msgspec.Struct, frozen=True):
    """There is no answer yet. At ``due_ms`` the wait ends without one; None if it never does."""

    due_ms: int | None


Resolution: TypeAlias = TakeSignal | TimeOut | WaitStale | Pending


def continues_past_expiry(
    waits: Iterable[Wait], inbox: Iterable[Signal], execution: Execution, expires_ms: int
) -> bool:
    """Return whether a run continues past its expiry: its next pause ends it.

    A run that waits for signals continues if one that was accepted before the expiry answers a
    wait, or if a wait with a deadline times out at the expiry. Another run continues if it took a
    signal before, or if one is in its inbox. A run that timed out at the expiry goes on after a
    crash.
    """
    if execution.has_timed_out_since(expires_ms):
        return True
    in_time = [
        signal
        for signal in inbox
        if signal.accepted_ms < expires_ms and (signal.name, signal.id) not in execution.taken
    ]
    unanswered = [
        wait for wait in waits if wait.signal is not None and is_open_wait(wait, execution)
    ]
    if unanswered:
        answers = (
            resolved_wait(wait, in_time, execution.taken, expires_ms, expires_ms=expires_ms)
            for wait in unanswered
        )
        return any(isinstance(answer, TakeSignal | TimeOut) for answer in answers)
    return bool(in_time or execution.answered)


def is_open_wait(wait: Wait, execution: Execution) -> bool:
    """Return whether the node that began a wait is still in that visit, and has no answer yet."""
    strand = execution.strand(wait.branch)
    if strand is None or not execution.is_at_visit(wait.branch, wait.visit):
        return False
    return answer_key(wait.key) not in strand.answers


def wait_groups(waits: Sequence[Wait]) -> list[Sequence[Wait]]:
    """Return a branch's waits in groups that one answer ends; most waits are alone."""
    if len(waits) == 1:
        return [waits]
    groups: dict[tuple[int, str], list[Wait]] = {}
    for wait in waits:
        groups.setdefault((wait.visit, answer_key(wait.key)), []).append(wait)
    return list(groups.values())


def resolved_wait(
    wait: Wait,
    inbox: Iterable[Signal],
    taken: Collection[tuple[str, str]],
    now_ms: int,
    *,
    expires_ms: int,
) -> Resolution:
    """Return whether a wait has ended, and how; see `resolved_group`."""
    return resolved_group((wait,), inbox, taken, now_ms, expires_ms=expires_ms)


def resolved_group(
    group: Sequence[Wait],
    inbox: Iterable[Signal],
    taken: Collection[tuple[str, str]],
    now_ms: int,
    *,
    expires_ms: int,
) -> Resolution:
    """Return whether a wait for the first of several conditions has ended, and how.

    Of the signals of its names, it takes the one that was accepted first. A signal that was
    accepted when the time was up comes too late: the wait times out, or is stale.
    """
    deadlines = (wait.deadline_by(expires_ms) for wait in group)
    deadline = min((moment for moment in deadlines if moment is not None), default=None)
    limit = earlier(deadline, group[0].stale_ms)
    names = {wait.signal for wait in group}
    fitting = [
        signal
        for signal in inbox
        if signal.name in names
        and (signal.name, signal.id) not in taken
        and (limit is None or signal.accepted_ms < limit)
    ]
    if fitting:
        return TakeSignal(min(fitting, key=lambda signal: signal.order))
    if limit is None or now_ms < limit:
        return Pending(limit)
    return TimeOut() if limit == deadline else WaitStale()


def all_pending(
    waits: Iterable[Wait], untaken: Collection[Signal], now_ms: int, *, expires_ms: int
) -> Pending | None:
    """Return when the first of several waits is due; None if one of them has ended."""
    limits: list[int] = []
    for wait in waits:
        answer = resolved_wait(wait, untaken, (), now_ms, expires_ms=expires_ms)
        if not isinstance(answer, Pending):
            return None
        if answer.due_ms is not None:
            limits.append(answer.due_ms)
    return Pending(min(limits, default=None))
