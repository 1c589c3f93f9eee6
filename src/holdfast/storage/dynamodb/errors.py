"""Errors of DynamoDB, as errors of Holdfast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.errors import (
    AccessDenied,
    CredentialsExpired,
    HoldfastError,
    InvalidItem,
    InvalidRequest,
    InvalidWrite,
    StoreMismatched,
    StoreNotFound,
    StoreUnavailable,
    Throttled,
)
from holdfast.storage.item import NUMBER_DIGITS_MAX
from holdfast.storage.write_errors import update_too_large_error

__all__ = [
    "CONDITION_FAILED",
    "TRANSACTION_CANCELLED",
    "Remedy",
    "ServiceError",
    "TableAddress",
    "store_error",
]

CONDITION_FAILED = "ConditionalCheckFailedException"
TRANSACTION_CANCELLED = "TransactionCanceledException"

Remedy = Literal["wait", "credentials", "table", "none"]
"""What may help: waiting, new credentials, creating the table, or nothing."""

_BUSY = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "ReplicatedWriteConflictException",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
_BUSY_REASONS = frozenset(
    {"None", "TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"}
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_MISSING = frozenset({"ResourceNotFoundException", "TableNotFoundException"})
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "NotAuthorized",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


class TableAddress(msgspec.Struct, frozen=True):
    """A table, its region and endpoint, as error messages name them."""

    table: str
    region: str
    endpoint: str

    def __str__(self) -> str:
        return f"table {self.table!r} in {self.region} at {self.endpoint}"


class ServiceError(Exception):
    """A response of the service that is not a success."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        kind = str(body.get("__type") or f"HTTP {status}")
        message = body.get("message") or body.get("Message") or ""
        super().__init__(f"{kind}: {message}")
        self.status = status
        self.code = kind.rpartition("#")[2]
        self.message = str(message)
        self.body = body

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code

    @property
    def reasons(self) -> Sequence[Mapping[str, Any]]:
        """For each write of a cancelled transaction, why it was not performed."""
        return self.body.get("CancellationReasons") or ()

    @property
    def remedy(self) -> Remedy:
        """What may help against this error."""
        if self.code in _BUSY or "backfilling" in self.message:
            return "wait"
        if self.code == TRANSACTION_CANCELLED and self.reasons:
            codes = {reason.get("Code") for reason in self.reasons}
            return "wait" if codes <= _BUSY_REASONS else "none"
        if self.code in _EXPIRED:
            return "credentials"
        if self.code in _MISSING:
            return "table"
        return "none"


def store_error(
    service_error: ServiceError, table_address: TableAddress, about: str = ""
) -> HoldfastError:
    """Return the Holdfast error for a service error; ``about`` names the item or request."""
    where = f"{about}: " if about else ""
    if service_error.status >= 500:
        return StoreUnavailable(f"{where}{table_address} failed: {service_error}")
    if service_error.remedy == "wait":
        return Throttled(
            f"{where}{table_address} stayed too busy: {service_error}; try again later"
        )
    if service_error.code in _EXPIRED:
        return CredentialsExpired(
            f"the credentials for {table_address} have expired: {service_error.message}"
        )
    if service_error.code in _MISSING:
        return StoreNotFound(
            f"there is no {table_address}; run holdfast store create, with this store's address"
        )
    if service_error.code in _DENIED or service_error.status in (401, 403):
        return AccessDenied(f"no access to {table_address}: {service_error}")
    if service_error.code == "ValidationException":
        return validation_error(service_error.message, where)
    if service_error.code == TRANSACTION_CANCELLED:
        messages = [
            r.get("Message") for r in service_error.reasons if r.get("Code") == "ValidationError"
        ]
        return validation_error(str(messages[0] if messages else service_error.message), where)
    return InvalidRequest(f"{where}{table_address} refused the request: {service_error}")


def validation_error(message: str, where: str) -> HoldfastError:
    """Return the Holdfast error for a failed validation.

    `Table` has validated the request. What remains depends on the item in the table.
    """
    lower = message.lower()
    if "exceeded the maximum allowed size" in lower:
        return update_too_large_error(where.removesuffix(": "))
    if "incorrect data type" in lower or "type mismatch for attribute to update" in lower:
        return InvalidWrite(f"{where}cannot add to an attribute of another type ({message})")
    if "number overflow" in lower or "number underflow" in lower or " 38 " in lower:
        return InvalidItem(
            f"{where}a sum must have at most {NUMBER_DIGITS_MAX} digits and be in range: {message}"
        )
    if "the specified index" in lower or "match the schema" in lower or "index key" in lower:
        return StoreMismatched(f"{where}the table has other keys or indexes: {message}")
    return InvalidRequest(f"{where}{message}")
