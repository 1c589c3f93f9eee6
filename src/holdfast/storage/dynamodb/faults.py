"""What the service says when it says no, and which of our errors that is."""

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
from holdfast.storage.refusals import update_too_large

__all__ = ["CONDITION_FAILED", "TRANSACTION_CANCELLED", "Cure", "Fault", "Service", "error_of"]

CONDITION_FAILED = "ConditionalCheckFailedException"
TRANSACTION_CANCELLED = "TransactionCanceledException"

Cure = Literal["wait", "credentials", "table", "none"]
"""What may help: time, fresh credentials, a table that is being made, or nothing."""

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


class Service(msgspec.Struct, frozen=True):
    """Which table is meant, and where: what an error has to name."""

    table: str
    region: str
    endpoint: str

    def __str__(self) -> str:
        return f"table {self.table!r} in {self.region} at {self.endpoint}"


class Fault(Exception):
    """An answer of the service that is not a success."""

    def __init__(self, status: int, answer: Mapping[str, Any]) -> None:
        kind = str(answer.get("__type") or f"HTTP {status}")
        message = answer.get("message") or answer.get("Message") or ""
        super().__init__(f"{kind}: {message}")
        self.status = status
        self.code = kind.rpartition("#")[2]
        self.message = str(message)
        self.answer = answer

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code

    @property
    def reasons(self) -> Sequence[Mapping[str, Any]]:
        """For each write of a cancelled transaction, why it could not be carried out."""
        return self.answer.get("CancellationReasons") or ()

    @property
    def cure(self) -> Cure:
        """What may help against this fault."""
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


def error_of(fault: Fault, service: Service, about: str = "") -> HoldfastError:
    """Return the error that the fault comes down to; ``about`` names what it was asked for."""
    where = f"{about}: " if about else ""
    if fault.status >= 500:
        return StoreUnavailable(f"{where}{service} answers {fault}")
    if fault.cure == "wait":
        return Throttled(f"{where}{service} stayed too busy: {fault}")
    if fault.code in _EXPIRED:
        return CredentialsExpired(f"the credentials for {service} have expired: {fault.message}")
    if fault.code in _MISSING:
        return StoreNotFound(
            f"there is no {service}; holdfast store create, with this store's address, makes it"
        )
    if fault.code in _DENIED or fault.status in (401, 403):
        return AccessDenied(f"access to {service} was refused: {fault}")
    if fault.code == "ValidationException":
        return validation_error(fault.message, where)
    if fault.code == TRANSACTION_CANCELLED:
        messages = [r.get("Message") for r in fault.reasons if r.get("Code") == "ValidationError"]
        return validation_error(str(messages[0] if messages else fault.message), where)
    return InvalidRequest(f"{where}{service} refused the request: {fault}")


def validation_error(message: str, where: str) -> HoldfastError:
    """Return what a failed validation comes down to.

    `Table` lets nothing malformed pass: what is left depends on what stands in the table.
    """
    lower = message.lower()
    if "exceeded the maximum allowed size" in lower:
        return update_too_large(where.removesuffix(": "))
    if "incorrect data type" in lower or "type mismatch for attribute to update" in lower:
        return InvalidWrite(f"{where}cannot add to an attribute of another type ({message})")
    if "number overflow" in lower or "number underflow" in lower or " 38 " in lower:
        return InvalidItem(
            f"{where}the sum has over {NUMBER_DIGITS_MAX} digits or is out of range ({message})"
        )
    if "the specified index" in lower or "match the schema" in lower or "index key" in lower:
        return StoreMismatched(f"{where}the table has other keys or indexes: {message}")
    return InvalidRequest(f"{where}{message}")
