"""A call of a node, as its events in the journal describe it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.event import (
    CallFinished,
    CallIntended,
    CallReserved,
    CallRetried,
    CallVoided,
    Failure,
)
from holdfast.model.spending import NO_SPENDING, Spending

__all__ = [
    "Call",
    "CallEvent",
    "call_after",
]

CallEvent = CallFinished | CallIntended | CallVoided | CallRetried | CallReserved


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal says about a call."""

    digest: bytes = b""
    over: bool = False
    result: Any = None
    failure: Failure | None = None
    kinds: tuple[str, ...] = ()
    lasts: bool = False
    intended: bool = False
    """Whether an at-most-once call was started, and its outcome is not known."""
    voided: int = 0
    """How often the call was voided. Each time its idempotency key became invalid."""
    failed: int = 0
    """How many attempts of the call failed."""
    retry_at_ms: int = 0
    reserved: Spending = NO_SPENDING
    """What was reserved for the call. It counts as spent until the call ends."""
    spent: Spending = NO_SPENDING
    saved: Spending = NO_SPENDING

    @property
    def is_forgotten(self) -> bool:
        """Whether the next attempt of the node makes the call again."""
        return self.over and self.failure is not None and not self.lasts


def call_after(before: Call, event: CallEvent) -> Call:
    """Return the call after one more event."""
    match event:
        case CallFinished():
            return Call(
                digest=event.digest,
                over=True,
                result=event.result,
                failure=event.failure,
                kinds=event.kinds,
                lasts=event.lasts,
                voided=before.voided,
                spent=event.spent,
                saved=event.saved,
            )
        case CallIntended():
            return msgspec.structs.replace(before, digest=event.digest, intended=True)
        case CallVoided():
            return msgspec.structs.replace(before, intended=False, voided=before.voided + 1)
        case CallRetried():
            return msgspec.structs.replace(
                before, failed=before.failed + 1, retry_at_ms=event.retry_at_ms
            )
        case CallReserved():
            return msgspec.structs.replace(before, reserved=event.max_spending)
