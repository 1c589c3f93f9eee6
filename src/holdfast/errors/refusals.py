"""What was understood, and refused: by the store, or for how a run stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors.root import HoldfastError, ItemValues

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
    """The store understood the request and refused it."""

    code = "refused"


class ConditionFailed(Refused):
    """The condition of the write did not hold; nothing was written."""

    code = "condition_failed"

    def __init__(self, message: str | None = None, *, item: ItemValues | None = None) -> None:
        super().__init__(message)
        self.item = item
        """The item that stood in the way; None where there was none."""


class TransactionCancelled(Refused):
    """A condition of the transaction did not hold; nothing was written."""

    code = "transaction_cancelled"

    def __init__(
        self,
        message: str | None = None,
        *,
        failed: Sequence[int] = (),
        items: Mapping[int, ItemValues] | None = None,
    ) -> None:
        super().__init__(message)
        self.failed = tuple(failed)
        """Positions, in the transaction, of the writes whose condition did not hold."""
        self.items: Mapping[int, ItemValues] = dict(items or {})
        """The items that stood in the way, by those positions."""


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
    """The blob's bytes are not those that were put."""

    code = "blob_damaged"

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class ChangesOff(Refused):
    """The store was opened without its change feed."""

    code = "changes_off"


class ChangesTrimmed(Refused):
    """The position is older than what the change feed keeps."""

    code = "changes_trimmed"


class AlreadyExists(Refused):
    """A run of this id was started with another input."""

    code = "already_exists"


class RunNotFound(Refused):
    """There is no run of this id."""

    code = "run_not_found"


class RunEnded(Refused):
    """The run has ended and takes nothing any more."""

    code = "run_ended"

    def __init__(self, message: str | None = None, *, status: str = "") -> None:
        super().__init__(message)
        self.status = status
        """How it ended: finished, failed, cancelled, expired, quarantined or promoted."""


class InboxFull(Refused):
    """The run has as many signals in its inbox as it may have; send it again later.

    The run makes room when it takes signals. Nothing was written.
    """

    code = "inbox_full"
    retryable = True

    def __init__(
        self, message: str | None = None, *, size: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.size = size
        """How many signals, or bytes of them, there would be."""
        self.limit = limit
        """How many there may be."""


class NotRetryable(Refused):
    """Only a run that failed or is quarantined can be retried."""

    code = "not_retryable"


class ExpiryNotLater(Refused):
    """The run expires later than that as it is, and an expiry is never shortened."""

    code = "expiry_not_later"


class BudgetShared(Refused):
    """The run shares the budget of the run that started it, or has a slice that is not raised."""

    code = "budget_shared"


class NotAmbiguous(Refused):
    """No such call of the run waits for somebody to say what became of it."""

    code = "not_ambiguous"


class SessionBusy(Refused):
    """Another run of the session goes on."""

    code = "session_busy"

    def __init__(self, message: str | None = None, *, run: str = "") -> None:
        super().__init__(message)
        self.run = run
        """The id of the run that stands in front."""
