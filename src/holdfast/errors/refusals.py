"""Errors for valid requests that the store, or the state of a run, does not permit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors.root import HoldfastError

__all__ = [
    "AlreadyExists",
    "BlobDamaged",
    "BlobNotFound",
    "BudgetShared",
    "ChangesOff",
    "ChangesTrimmed",
    "ConditionFailed",
    "ExpiryNotLater",
    "InboxFull",
    "ItemDamaged",
    "NotAmbiguous",
    "NotRetryable",
    "Refused",
    "RunEnded",
    "RunNotFound",
    "SessionBusy",
    "TransactionCancelled",
]


class Refused(HoldfastError):
    """The store understood the request, and refused it."""

    code = "refused"


class ConditionFailed(Refused):
    """The condition of the write did not hold; nothing was written."""

    code = "condition_failed"

    def __init__(
        self, message: str | None = None, *, item: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.item = item
        """The existing item; None if there was none."""


class TransactionCancelled(Refused):
    """A condition of the transaction did not hold; nothing was written."""

    code = "transaction_cancelled"

    def __init__(
        self,
        message: str | None = None,
        *,
        failed: Sequence[int] = (),
        items: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(message)
        self.failed = tuple(failed)
        """The positions of the writes whose condition did not hold."""
        self.items: Mapping[int, Mapping[str, Any]] = dict(items or {})
        """The existing items of these writes, by position."""


class ItemDamaged(Refused):
    """The stored bytes of an item cannot be read."""

    code = "item_damaged"

    def __init__(self, message: str | None = None, *, key: tuple[str, str] = ("", "")) -> None:
        super().__init__(message)
        self.key = key
        """The partition key and the sort key of the item."""


class BlobNotFound(Refused):
    """No blob has this key."""

    code = "blob_not_found"

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class BlobDamaged(Refused):
    """The blob's bytes differ from those that were put."""

    code = "blob_damaged"

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class ChangesOff(Refused):
    """The store has no change feed; open it with changes=on."""

    code = "changes_off"


class ChangesTrimmed(Refused):
    """The position is older than the oldest change in the feed."""

    code = "changes_trimmed"


class AlreadyExists(Refused):
    """A run of this id was started with another input."""

    code = "already_exists"


class RunNotFound(Refused):
    """There is no run of this id."""

    code = "run_not_found"


class RunEnded(Refused):
    """The run has ended, and accepts nothing more."""

    code = "run_ended"

    def __init__(self, message: str | None = None, *, status: str = "") -> None:
        super().__init__(message)
        self.status = status
        """How the run ended: finished, failed, cancelled, expired, quarantined or promoted."""


class InboxFull(Refused):
    """The run's inbox is full; send the signal again later.

    The run makes room when it takes signals. Nothing was written.
    """

    code = "inbox_full"
    retryable = True

    def __init__(
        self, message: str | None = None, *, size: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.size = size
        """How many signals, or bytes, the inbox would have."""
        self.limit = limit
        """How many it may have."""


class NotRetryable(Refused):
    """Only a run that failed or is quarantined can be retried."""

    code = "not_retryable"


class ExpiryNotLater(Refused):
    """The run already expires later than that, and an expiry is never shortened."""

    code = "expiry_not_later"


class BudgetShared(Refused):
    """The run uses its parent's budget, or a fixed part of it that cannot be raised."""

    code = "budget_shared"


class NotAmbiguous(Refused):
    """No such call of the run waits for an operator to resolve it."""

    code = "not_ambiguous"


class SessionBusy(Refused):
    """Another run of the session is still active."""

    code = "session_busy"

    def __init__(self, message: str | None = None, *, run: str = "") -> None:
        super().__init__(message)
        self.run = run
        """The id of the other run."""
