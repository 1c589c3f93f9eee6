"""`DynamoWriter`: performs writes, and finds out whether a write with a lost response succeeded.

================================== =============================================================
the lost response was to …         then
================================== =============================================================
a Put, Update or Delete without    the writer sends it again byte for byte. If there is never a
a condition that adds nothing      response, the caller may repeat it
a write with a condition           the writer sends it again. If the condition then fails, the
                                   existing item decides: if it has this write's token, the write
                                   succeeded, otherwise the writer raises `OutcomeUnknown`
an Update that adds                the writer never sends it again, but reads the item: if it has
                                   this write's token, the write succeeded, otherwise the writer
                                   raises `OutcomeUnknown`
a transaction                      the writer sends it again with the same client token, and the
                                   service performs it once. If a condition then fails, the
                                   tokens decide as they do for a single write
================================== =============================================================

Finding the token proves that the write was performed. Not finding it proves nothing: another write
may have replaced the item since, or the request may still be under way. A write can be performed
twice if its condition can become true again. A condition on a number that only grows cannot.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.clock import Ids
from holdfast.errors import HoldfastError, InvalidRequest, OutcomeUnknown
from holdfast.storage.dynamodb.attributes import item_of
from holdfast.storage.dynamodb.capacity import reported_units
from holdfast.storage.dynamodb.client import (
    DynamoClient,
    DynamoResponse,
    NoResponse,
    RequestRefused,
)
from holdfast.storage.dynamodb.errors import (
    CONDITION_FAILED,
    TRANSACTION_CANCELLED,
    ServiceError,
    store_error,
)
from holdfast.storage.dynamodb.requests import get_request, transact_request, write_request
from holdfast.storage.item import Item
from holdfast.storage.layout import TOKEN, Key, Layout
from holdfast.storage.operations import Reply, TransactItems, WriteItem
from holdfast.storage.units import (
    NO_UNITS,
    WRITE_UNITS_MIN,
    Units,
    cancelled_units,
    refused_units,
    write_units,
)
from holdfast.storage.write_errors import condition_failed_error, transaction_cancelled_error
from holdfast.storage.writes import Delete, Put, TransactionWrite, Update, Write

__all__ = ["DynamoWriter"]


class _ExistingItem(msgspec.Struct, frozen=True):
    """The item under a key, and the cost of reading it."""

    item: Item | None
    units: Units = NO_UNITS


class DynamoWriter:
    """Performs single writes and transactions."""

    def __init__(self, client: DynamoClient, *, table: str, layout: Layout, ids: Ids) -> None:
        self._client = client
        self._table = table
        self._layout = layout
        self._ids = ids
        # Whether the service has returned the item of a failed condition before. DynamoDB does so
        # since 2023; an older DynamoDB Local does not.
        self._returns_failed_items = False

    async def write(self, operation: WriteItem) -> Reply:
        """Perform one write."""
        write = operation.write
        adds = isinstance(write, Update) and bool(write.add)
        # Whether the caller may repeat the write without knowing its outcome.
        repeatable = write.condition is None and not adds
        request = write_request(self._table, operation)
        try:
            response = await self._client.send(request, resend=not adds)
        except RequestRefused as refusal:
            if refusal.service_error.code == CONDITION_FAILED:
                return await self._handle_failed_condition(operation, refusal)
            error = await self._load_error(refusal.service_error, str(write.key))
            return _failed_reply(
                error,
                response_lost=refusal.response_lost and not repeatable,
                about=write.key,
                units=WRITE_UNITS_MIN,
            )
        except NoResponse as unanswered:
            if unanswered.response_lost and adds:
                return await self._read_back(operation, unanswered.error)
            return _failed_reply(
                unanswered.error,
                response_lost=unanswered.response_lost and not repeatable,
                about=write.key,
            )
        return self._written_reply(operation, response)

    async def transact(self, operation: TransactItems) -> Reply:
        """Perform all of several writes or none."""
        writes = operation.writes
        request = transact_request(self._table, writes, client_token=self._ids.new())
        try:
            response = await self._client.send(request)
        except RequestRefused as refusal:
            failed = _failed_conditions(refusal.service_error)
            if failed:
                return _cancelled_reply(writes, failed, response_lost=refusal.response_lost)
            error = await self._load_error(
                refusal.service_error, _invalid_write(writes, refusal.service_error)
            )
            units = cancelled_units(writes, {})
            return _failed_reply(
                error, response_lost=refusal.response_lost, about="the transaction", units=units
            )
        except NoResponse as unanswered:
            return _failed_reply(
                unanswered.error, response_lost=unanswered.response_lost, about="the transaction"
            )
        return Reply(units=reported_units(response.data, "write"))

    def _written_reply(self, operation: WriteItem, response: DynamoResponse) -> Reply:
        write = operation.write
        units = reported_units(response.data, "write")
        attributes = response.data.get("Attributes")
        returned = item_of(attributes) if attributes else None
        match operation.returning:
            case "new" if isinstance(write, Put):
                return Reply(dict(write.item), units)
            case "old" if response.response_lost and _may_be_ours(write, returned):
                return Reply(units=units, error=_old_item_unknown_error(write.key, returned))
            case "nothing":
                return Reply(units=units)
            case _:
                return Reply(returned, units)

    async def _handle_failed_condition(
        self, operation: WriteItem, refused: RequestRefused
    ) -> Reply:
        """Return the reply to a write whose condition did not hold."""
        write = operation.write
        try:
            existing = await self._find_existing(write.key, refused.service_error)
        except (RequestRefused, NoResponse) as failure:
            if refused.response_lost:
                return Reply(
                    units=WRITE_UNITS_MIN,
                    error=_outcome_unknown_error(write.key, refused.service_error),
                )
            if isinstance(failure, NoResponse):
                raise failure.error from None
            raise await self._load_error(failure.service_error, str(write.key)) from None
        units = refused_units(write, existing.item) + existing.units
        if refused.response_lost:
            return self._reply_by_token(operation, existing.item, units, refused.service_error)
        return Reply(units=units, error=condition_failed_error(write.key, existing.item))

    async def _find_existing(self, key: Key, service_error: ServiceError) -> _ExistingItem:
        attributes = service_error.body.get("Item")
        if attributes:
            self._returns_failed_items = True
            return _ExistingItem(item_of(attributes))
        return _ExistingItem(None) if self._returns_failed_items else await self._read_item(key)

    async def _read_item(self, key: Key) -> _ExistingItem:
        response = await self._client.send(get_request(self._table, key, eventual=False))
        attributes = response.data.get("Item")
        item = item_of(attributes) if attributes else None
        return _ExistingItem(item, reported_units(response.data, "read"))

    async def _read_back(self, operation: WriteItem, cause: HoldfastError) -> Reply:
        """Read the item and return the reply to a write that must not be sent again."""
        key = operation.write.key
        try:
            existing = await self._read_item(key)
        except (RequestRefused, NoResponse):
            return Reply(error=_outcome_unknown_error(key, cause))
        return self._reply_by_token(operation, existing.item, existing.units, cause)

    def _reply_by_token(
        self, operation: WriteItem, existing: Item | None, units: Units, cause: Exception
    ) -> Reply:
        """Return the reply to a write whose response was lost, according to the existing item.

        The units of the lost response are taken as those of a new item, which is exact for one.
        """
        write = operation.write
        if existing is None or not _is_ours(write, existing):
            return Reply(units=units, error=_outcome_unknown_error(write.key, cause, existing))
        units += write_units(None, existing, self._layout)
        match operation.returning:
            case "old":
                return Reply(units=units, error=_old_item_unknown_error(write.key, existing))
            case "new":
                return Reply(dict(write.item) if isinstance(write, Put) else existing, units)
            case "nothing":
                return Reply(units=units)

    async def _load_error(self, service_error: ServiceError, about: str) -> HoldfastError:
        return store_error(service_error, await self._client.load_table_address(), about)


def _failed_reply(
    error: HoldfastError, *, response_lost: bool, about: object, units: Units = NO_UNITS
) -> Reply:
    """Return or raise the error of a write that failed for another reason than its condition."""
    if response_lost:
        return Reply(error=_outcome_unknown_error(about, error))
    if isinstance(error, InvalidRequest):
        return Reply(units=units, error=error)
    raise error


def _outcome_unknown_error(
    about: object, cause: Exception, item: Item | None = None
) -> OutcomeUnknown:
    unknown = OutcomeUnknown(
        f"{about}: the response was lost, and it may or may not have been written ({cause})",
        item=item,
    )
    unknown.__cause__ = cause
    return unknown


def _old_item_unknown_error(key: Key, item: Item | None) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{key}: it was written, but the response with the old item was lost", item=item
    )


def _is_ours(write: TransactionWrite, item: Item) -> bool:
    token = write.token if isinstance(write, Put | Update) else None
    return token is not None and item.get(TOKEN) == token


def _may_be_ours(write: Write, replaced: Item | None) -> bool:
    """Return whether the replaced item may be one that the same request wrote before."""
    if replaced is None:
        return isinstance(write, Delete)
    return not isinstance(write, Delete) and (write.token is None or _is_ours(write, replaced))


def _failed_conditions(service_error: ServiceError) -> dict[int, Item | None]:
    """Return the positions of the writes whose condition failed, with the existing items."""
    if service_error.code != TRANSACTION_CANCELLED:
        return {}
    return {
        position: item_of(reason["Item"]) if reason.get("Item") else None
        for position, reason in enumerate(service_error.reasons)
        if reason.get("Code") == "ConditionalCheckFailed"
    }


def _invalid_write(writes: tuple[TransactionWrite, ...], service_error: ServiceError) -> str:
    for write, reason in zip(writes, service_error.reasons, strict=False):
        if reason.get("Code") == "ValidationError":
            return str(write.key)
    return "the transaction"


def _cancelled_reply(
    writes: tuple[TransactionWrite, ...], failed: Mapping[int, Item | None], *, response_lost: bool
) -> Reply:
    units = cancelled_units(writes, failed)
    # The service forgets the client token after ten minutes. The tokens in the items still tell.
    if response_lost and any(item and _is_ours(writes[n], item) for n, item in failed.items()):
        return Reply(units=units)
    cancelled = transaction_cancelled_error(writes, failed)
    # The first request may still be under way, and be performed later.
    return Reply(
        units=units,
        error=_outcome_unknown_error("the transaction", cancelled) if response_lost else cancelled,
    )
