"""Errors of the service: what a server refuses before it touches a run."""

from __future__ import annotations

from holdfast.errors.refusals import Refused

__all__ = [
    "CallbackExpired",
    "CallbackInvalid",
    "Forbidden",
    "TooManyRequests",
    "Unauthenticated",
    "UnknownGraph",
    "WebhookNotFound",
]


class UnknownGraph(Refused):
    """The server has no graph of this name."""

    code = "unknown_graph"


class Unauthenticated(Refused):
    """The request has no valid API key or token."""

    code = "unauthenticated"


class Forbidden(Refused):
    """The caller's role or tenant does not permit the request."""

    code = "forbidden"


class CallbackInvalid(Refused):
    """There is no such callback: its token was not signed for this store, or its run is gone."""

    code = "callback_invalid"


class CallbackExpired(Refused):
    """The callback has expired."""

    code = "callback_expired"


class WebhookNotFound(Refused):
    """The tenant has no webhook with this id."""

    code = "webhook_not_found"


class TooManyRequests(Refused):
    """The caller sends too many requests."""

    code = "too_many_requests"
    retryable = True

    def __init__(self, message: str | None = None, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """When the next request may be admitted."""
