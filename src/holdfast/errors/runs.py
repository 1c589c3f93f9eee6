"""Errors for a run that did not finish, or that a worker cannot resume."""

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

    def __init__(
        self,
        message: str | None = None,
        *,
        kind: str = "",
        reason: str = "",
        node: str = "",
        trace: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        """The class of the error that ended the run, if one did."""
        self.reason = reason
        """The message of that error."""
        self.node = node
        """The node at which the run failed or stopped, if it is known."""
        self.trace = trace
        """The traceback of the error in the process that raised it, if it is known.

        It is also a note of this error, so that a traceback of this error shows it.
        """


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
    """The run could not be resumed several times in a row, and waits for an operator."""

    code = "run_quarantined"


class ResumeFailed(HoldfastError):
    """The run cannot be resumed."""

    code = "resume_failed"


class UnknownNode(ResumeFailed):
    """The run is at a node that the graph does not have."""

    code = "unknown_node"


class JournalDamaged(ResumeFailed):
    """The journal of the run cannot be read."""

    code = "journal_damaged"


class RecordTooLarge(JournalDamaged):
    """A stored record has more bytes, after decompression, than this process may read."""

    code = "record_too_large"

    def __init__(
        self, message: str | None = None, *, size: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.size = size
        """How many bytes the record has, according to its header."""
        self.limit = limit
        """How many bytes this process may read."""


class RunClosing(OutcomeUnknown):
    """The run is past its expiry and still processes what it has received, perhaps this call.

    Repeat the call later with the same id to learn whether it took effect.
    """

    code = "run_closing"
    retryable = True
