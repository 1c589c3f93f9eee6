"""Conditions on a run's row: what must not have changed since it was read."""

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
    """No signal came but those that were counted when the inbox was read."""
    return Equals("signals", signals) if signals else Absent("signals")


def same_epoch(head: Head) -> AllOf:
    """Nobody claimed, released or re-queued the run since: that would have raised the epoch."""
    return AllOf((Equals("generation", head.generation), Equals("epoch", head.epoch)))


def same_epoch_and_lifetime(head: Head) -> AllOf:
    """Nor did anybody extend it: whoever does not know that must look again first."""
    lifetime = (Equals("ttl", head.ttl), Equals("expires_ms", head.expires_ms))
    return AllOf((*same_epoch(head).conditions, *lifetime))


def unchanged(head: Head) -> AllOf:
    """Nobody claimed, released, paused or ended the run since."""
    return AllOf((*same_epoch_and_lifetime(head).conditions, Equals("status", head.status)))


def cancel_known(head: Head) -> Condition:
    """No cancellation was asked for since."""
    return Absent("cancel") if head.cancel is None else Equals("cancel", head.cancel)


def at_index_key(index_key: IndexKey) -> AllOf:
    return AllOf((Equals("GSI1PK", index_key.pk), Equals("GSI1SK", index_key.sk)))
