"""Errors of the service: what a server refuses before it touches a run, and what a client meets."""

from __future__ import annotations

from holdfast.errors.refusals import Refused
from holdfast.errors.root import HoldfastError

__all__ = [
    "BulkJobEnded",
    "BulkJobNotFound",
    "CallbackExpired",
    "CallbackInvalid",
    "Forbidden",
    "InvalidResponse",
    "KeyNotFound",
    "NotReady",
    "ServerStopping",
    "ServerUnavailable",
    "TooManyRequests",
    "Unauthenticated",
    "UnknownGraph",
    "WebhookNotFound",
]


class BulkJobEnded(Refused):
    """The bulk job has ended, and cannot be cancelled."""

    code = "bulk_job_ended"


class BulkJobNotFound(Refused):
    """No bulk job of the tenant has this id."""

    code = "bulk_job_not_found"


class UnknownGraph(Refused):
    """The server has no graph of this name."""

    code = "unknown_graph"


class KeyNotFound(Refused):
    """No API key has this id."""

    code = "key_not_found"


class Unauthenticated(Refused):
    """The request has no valid API key or token."""

    code = "unauthenticated"


class Forbidden(Refused):
    """The caller's role or tenant does not permit the request."""

    code = "forbidden"


class ServerStopping(Refused):
    """The server stops. Connect again: another server answers, or this one after its restart."""

    code = "server_stopping"
    retryable = True


class CallbackInvalid(Refused):
    """There is no such callback: its token was not signed for this store, or its run is gone."""

    code = "callback_invalid"


class CallbackExpired(Refused):
    """The callback has expired."""

    code = "callback_expired"


class WebhookNotFound(Refused):
    """The tenant has no webhook with this id."""

    code = "webhook_not_found"


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


class ServerUnavailable(HoldfastError):
    """The server does not respond now, or failed; the same call may succeed later.

    A call that is not safe to repeat may have taken effect.
    """

    code = "server_unavailable"
    retryable = True


class InvalidResponse(HoldfastError):
    """The response is not one of a Holdfast server, or this release cannot read it."""

    code = "invalid_response"
