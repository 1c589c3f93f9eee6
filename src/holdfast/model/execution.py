"""Where a run stands: what is left of its journal once it is folded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.errors import JournalDamaged
from holdfast.model.event import (
    AttemptFailed,
    Cancelled,
    Event,
    Expired,
    Extended,
    Failed,
    Failure,
    Fenced,
    Finished,
    NodeFinished,
    Rerouted,
    SignalTaken,
    Snapshot,
    TimerFired,
)

__all__ = ["Ending", "Execution", "ends", "folded", "restored", "snapshot"]

Ending: TypeAlias = Literal["finished", "failed", "cancelled", "expired"]
"""How a run can end."""


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a journal: everything that a program decides from."""

    state: dict[str, Any]
    seed: str
    """What makes this run's draws its own."""
    node: str
    """The node that is to be run, or that was the last one."""
    visit: int = 0
    """Counts the nodes that the run entered, so that every entry has a number of its own."""
    failed_attempts: int = 0
    """How often the node failed in this visit."""
    retry_at_ms: int = 0
    """When it is to be tried again."""
    answers: dict[str, SignalTaken | TimerFired] = {}
    """What the waits of this visit were answered."""
    taken: frozenset[tuple[str, str]] = frozenset()
    """Name and id of every signal that was taken, so that none counts twice."""
    ending: Ending | None = None
    failure: Failure | None = None
    nodes_run: int = 0
    spent_ms: int = 0
    """Time spent inside nodes."""
    fences: int = 0
    """How often in a row the run was taken over without getting anywhere."""
    retried: str = ""
    """The id of the last retry that was carried out."""
    ttl: int = 0
    """How long records last since the run was extended; 0 where its row alone says so."""
    kept: str = ""
    """The retention class of blobs since then."""


_TERMINAL = (Finished, Failed, Cancelled, Expired)


def ends(event: Event) -> bool:
    """Return whether nothing but a retry may follow the event."""
    return isinstance(event, _TERMINAL)


def folded(execution: Execution, events: Iterable[Event]) -> Execution:
    """Return the execution after the events."""
    for event in events:
        execution = _after(execution, event)
    return execution


def snapshot(execution: Execution, at_ms: int, *, size: int, blobs: bool) -> Snapshot:
    """Return the whole of an execution as an event, for readers to begin at.

    Raises:
        TypeError, ValueError, OverflowError: the state cannot be encoded.
    """
    return Snapshot(at_ms, _encoder.encode(execution), size, blobs)


def restored(snapshot: Snapshot) -> Execution:
    """Return the execution of which a snapshot was made.

    Fields that were added since get their defaults, so old snapshots stay readable.

    Raises:
        JournalDamaged: it cannot be read.
    """
    try:
        return _decoder.decode(snapshot.fold)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise JournalDamaged(f"a snapshot cannot be read: {error}") from error


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Execution)


def _after(before: Execution, event: Event) -> Execution:
    match event:
        case NodeFinished():
            return _changed(
                before,
                state={**before.state, **event.delta},
                node=event.node if event.to is None else event.to,
                nodes_run=before.nodes_run + 1,
                spent_ms=before.spent_ms + event.spent_ms,
                **_ENTERED,
                visit=before.visit + 1,
            )
        case AttemptFailed():
            return _changed(
                before,
                failed_attempts=before.failed_attempts + 1,
                retry_at_ms=event.retry_at_ms,
                failure=event.failure,
                spent_ms=before.spent_ms + event.spent_ms,
            )
        case SignalTaken():
            return _changed(
                before,
                answers={**before.answers, event.wait: event},
                taken=before.taken | {(event.name, event.id)},
            )
        case TimerFired():
            return _changed(before, answers={**before.answers, event.wait: event})
        case Rerouted(to=None):
            # The same visit goes on: what its waits were answered stands, and so do its keys.
            kept = {**_ENTERED, "answers": before.answers}
            return _changed(before, **kept, retried=event.request, ending=None)
        case Rerouted():
            return _changed(
                before,
                node=event.to,
                **_ENTERED,
                visit=before.visit + 1,
                retried=event.request or before.retried,
                ending=None,
            )
        case Fenced():
            return msgspec.structs.replace(before, fences=before.fences + 1)
        case Extended():
            # Nobody got anywhere by it: a run that kills its workers does not begin anew.
            return msgspec.structs.replace(before, ttl=max(before.ttl, event.ttl), kept=event.kept)
        case Snapshot():
            return restored(event)
        case Finished():
            return _changed(before, ending="finished", failure=None)
        case Failed():
            return _changed(before, ending="failed", failure=event.failure)
        case Cancelled():
            failure = Failure("Cancelled", event.reason)
            return _changed(before, ending="cancelled", failure=failure)
        case Expired():
            return _changed(before, ending="expired")


# What every visit begins with.
_ENTERED: dict[str, Any] = {
    "failed_attempts": 0,
    "retry_at_ms": 0,
    "answers": {},
    "failure": None,
}


def _changed(before: Execution, **changes: Any) -> Execution:
    return msgspec.structs.replace(before, fences=0, **changes)
