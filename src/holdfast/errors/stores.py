"""Stores that somebody has to mend, or that do not answer."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.root import HoldfastError, ItemValues

__all__ = [
    "AccessDenied",
    "CredentialsExpired",
    "CredentialsMissing",
    "EndpointUnreachable",
    "OutcomeUnknown",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreInUse",
    "StoreMismatched",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreReplaced",
    "StoreUnavailable",
    "StoreUnusable",
    "Throttled",
]


class StoreError(HoldfastError):
    """The store cannot be used, or did not say what became of a request.

    The engine never blames a run for it: a worker waits until the store can be used again.
    """

    code = "store_error"
    is_transient: ClassVar[bool] = False
    """Whether a worker that starts waits for it to pass, although nobody changes its settings."""


class OutcomeUnknown(StoreError):
    """The answer to a write was lost, and what stands now does not tell whether it was applied.

    It may have been applied and overwritten since, or may never have arrived.
    """

    code = "outcome_unknown"
    is_transient = True

    def __init__(self, message: str | None = None, *, item: ItemValues | None = None) -> None:
        super().__init__(message)
        self.item = item
        """What stood under the key when it was read back, if it could be read."""


class StoreUnusable(StoreError):
    """The store cannot be used until somebody mends it."""

    code = "store_unusable"


class StoreNotFound(StoreUnusable):
    """There is no such table, bucket, file or folder."""

    code = "store_not_found"


class StoreReadOnly(StoreUnusable):
    """The store may not be written."""

    code = "store_read_only"


class StoreFull(StoreUnusable):
    """There is no room left for the store."""

    code = "store_full"
    is_transient = True


class StoreCorrupt(StoreUnusable):
    """The store's file is not a database, or is damaged."""

    code = "store_corrupt"


class StoreMismatched(StoreUnusable):
    """The store was made by a newer release or with other indexes."""

    code = "store_mismatched"


class StoreClosed(StoreUnusable):
    """The store was used after it was closed."""

    code = "store_closed"


class StoreReplaced(StoreClosed):
    """The store's file was deleted or replaced while it was open.

    Nothing is written to the old file any more. Open the store again.
    """

    code = "store_replaced"


class StoreInUse(StoreUnusable):
    """Another process has the store open."""

    code = "store_in_use"


class AccessDenied(StoreUnusable):
    """The credentials were refused, or do not allow this."""

    code = "access_denied"


class CredentialsMissing(AccessDenied):
    """No credentials were found anywhere that the AWS command line looks."""

    code = "credentials_missing"


class CredentialsExpired(AccessDenied):
    """The credentials have expired."""

    code = "credentials_expired"
    is_transient = True


class StoreUnavailable(StoreError):
    """The store cannot answer now; the same call may succeed later."""

    code = "store_unavailable"
    retryable = True
    is_transient = True


class Throttled(StoreUnavailable):
    """The store is too busy, and stayed so for the whole retry budget."""

    code = "throttled"


class EndpointUnreachable(StoreUnavailable):
    """No connection to the endpoint, or no answer from it."""

    code = "endpoint_unreachable"
