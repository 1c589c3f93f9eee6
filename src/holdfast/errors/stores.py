"""Errors for a store that cannot be used, or that does not respond."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.errors.root import HoldfastError

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
    """The store cannot be used, or its response was lost.

    A run never fails with it: the worker waits until the store can be used again.
    """

    code = "store_error"
    is_transient: ClassVar[bool] = False
    """Whether the problem can pass without new settings, so that a starting worker waits."""


class OutcomeUnknown(StoreError):
    """The response to a write was lost, and a read cannot tell whether it was written.

    It may have been written and replaced since, or it may never have arrived.
    """

    code = "outcome_unknown"
    is_transient = True

    def __init__(
        self, message: str | None = None, *, item: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.item = item
        """The item that was read afterwards, if it could be read."""


class StoreUnusable(StoreError):
    """The store cannot be used until an operator corrects the cause."""

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
    """The store's file is damaged, or is not a database; restore a backup."""

    code = "store_corrupt"


class StoreMismatched(StoreUnusable):
    """The store was created by a newer release, or with other indexes."""

    code = "store_mismatched"


class StoreClosed(StoreUnusable):
    """The store was used after its Holdfast was closed."""

    code = "store_closed"


class StoreReplaced(StoreClosed):
    """The store's file was deleted or replaced while it was open.

    This process writes nothing more to the old file. Open the store again.
    """

    code = "store_replaced"


class StoreInUse(StoreUnusable):
    """Another process has the store open; stop it first."""

    code = "store_in_use"


class AccessDenied(StoreUnusable):
    """The credentials were refused, or do not permit this operation."""

    code = "access_denied"


class CredentialsMissing(AccessDenied):
    """No credentials were found where the AWS command line looks for them."""

    code = "credentials_missing"


class CredentialsExpired(AccessDenied):
    """The credentials have expired; log in again."""

    code = "credentials_expired"
    is_transient = True


class StoreUnavailable(StoreError):
    """The store does not respond now; the same call may succeed later."""

    code = "store_unavailable"
    retryable = True
    is_transient = True


class Throttled(StoreUnavailable):
    """The store was too busy for the whole retry budget; try again later."""

    code = "throttled"


class EndpointUnreachable(StoreUnavailable):
    """There is no connection to the endpoint, or no response from it."""

    code = "endpoint_unreachable"
