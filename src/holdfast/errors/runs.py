"""Runs that did not finish, or that nobody can go on with."""

from __future__ import annotations

from holdfast.errors.root import HoldfastError
from holdfast.errors.stores import OutcomeUnknown

__all__ = [
    "JournalDamaged",
    "RecordTooLarge",
    "ResumeFailed",
    "RunCancelled",
    "RunClosing",
    "RunExpired",
    "RunFailed",
    "RunQuarantined",
    "UnknownNode",
    "Unsuccessful",
]


class Unsuccessful(HoldfastError):
    """The run did not finish, so there is no result."""

    code = "unsuccessful"

    def __init__(self, message: str | None = None, *, kind: str = "", trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        """The class of the error that ended the run, where one did."""
        self.trace = trace
        """Where it was raised, where that is known."""


class RunFailed(Unsuccessful):
    """The run failed."""

    code = "run_failed"


class RunCancelled(Unsuccessful):
    """The run was cancelled."""

    code = "run_cancelled"


class RunExpired(Unsuccessful):
    """The run expired."""

    code = "run_expired"


class RunQuarantined(Unsuccessful):
    """The run could not be resumed several times in a row, and waits for somebody to look at it."""

    code = "run_quarantined"


class ResumeFailed(HoldfastError):
    """The run cannot be gone on with."""

    code = "resume_failed"


class UnknownNode(ResumeFailed):
    """The run stands at a node that the graph does not have."""

    code = "unknown_node"


class JournalDamaged(ResumeFailed):
    """The journal of the run cannot be read."""

    code = "journal_damaged"


class RecordTooLarge(JournalDamaged):
    """A stored record has more bytes, once it is unpacked, than this process may read."""

    code = "record_too_large"

    def __init__(
        self, message: str | None = None, *, size: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.size = size
        """How many bytes the record says that it has."""
        self.limit = limit
        """How many this process reads."""


class RunClosing(OutcomeUnknown):
    """The run is past its expiry and carries out what it holds, perhaps this.

    The same call, sent later with the same id, tells whether it counted.
    """

    code = "run_closing"
    retryable = True
