"""Errors of the service: what a server refuses before it touches a run."""

from __future__ import annotations

from holdfast.errors.refusals import Refused

__all__ = ["Forbidden", "NotReady", "TooManyRequests", "Unauthenticated", "UnknownGraph"]


class UnknownGraph(Refused):
    """The server has no graph of this name."""

    code = "unknown_graph"


class Unauthenticated(Refused):
    """The request has no valid API key or token."""

    code = "unauthenticated"


class Forbidden(Refused):
    """The caller's role or tenant does not permit the request."""

    code = "forbidden"


class NotReady(Refused):
    """The server should get no requests now: it shuts down, or cannot use its store."""

    code = "not_ready"
    retryable = True


class TooManyRequests(Refused):
    """The caller sends too many requests."""

    code = "too_many_requests"
    retryable = True

    def __init__(self, message: str | None = None, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """When the next request may be admitted."""
