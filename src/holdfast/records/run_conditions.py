"""Conditions of writes on a run's row: what must not have changed since it was read."""

from __future__ import annotations

from holdfast.records.head import (
    Head,
)
from holdfast.records.index_keys import IndexKey
from holdfast.storage import Absent, AllOf, Equals
from holdfast.storage.writes import Condition

__all__ = [
    "at_index_key",
    "cancel_known",
    "no_unseen_signals",
    "same_epoch",
    "same_epoch_and_lifetime",
    "unchanged",
]


def no_unseen_signals(signals: int) -> Equals | Absent:
    """No signal came since the inbox was read."""
    return Equals("signals", signals) if signals else Absent("signals")


def same_epoch(head: Head) -> AllOf:
    """The run was not claimed, released or re-queued: each of these raises the epoch."""
    return AllOf((Equals("generation", head.generation), Equals("epoch", head.epoch)))


def same_epoch_and_lifetime(head: Head) -> AllOf:
    """Neither was it extended. A writer that does not know of an extension must read again."""
    lifetime = (Equals("ttl", head.ttl), Equals("expires_ms", head.expires_ms))
    return AllOf((*same_epoch(head).conditions, *lifetime))


def unchanged(head: Head) -> AllOf:
    """The run was not claimed, released, paused, ended or extended."""
    return AllOf((*same_epoch_and_lifetime(head).conditions, Equals("status", head.status)))


def cancel_known(head: Head) -> Condition:
    """No other cancellation was requested."""
    return Absent("cancel") if head.cancel is None else Equals("cancel", head.cancel)


def at_index_key(index_key: IndexKey) -> AllOf:
    """The row has this key in the due index. It contains the epoch, so it never comes back."""
    return AllOf((Equals("GSI1PK", index_key.pk), Equals("GSI1SK", index_key.sk)))
