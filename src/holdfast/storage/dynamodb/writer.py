"""Writes whose outcome is told for sure, or not at all: what becomes of lost answers.

================================== =============================================================
the answer to … was lost           then
================================== =============================================================
a Put, Update or Delete that has   it is sent again byte for byte: at least once. Where there is
no condition and adds nothing      no answer in the end, the caller may just repeat it
a write with a condition           it is sent again. If the condition then does not hold, the
                                   standing item decides: with this write's token it was ours
                                   and is a success, otherwise `OutcomeUnknown`
an Update that adds                it is never sent again; the item is read: with this write's
                                   token it was carried out, otherwise `OutcomeUnknown`
a transaction                      it is sent again under the same client token, by which the
                                   service carries it out once. If a condition then does not
                                   hold, the tokens decide as they do for a single write
================================== =============================================================

A token that is found proves that the write was carried out. One that is not found proves nothing:
the write may have been overwritten since, or may still be under way. A condition that can come true
again may let a write be carried out twice; one on a number that only grows does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.clock import Ids
from holdfast.errors import HoldfastError, InvalidRequest, OutcomeUnknown
from holdfast.storage.dynamodb.attributes import item_of
from holdfast.storage.dynamodb.capacity import reported_units
from holdfast.storage.dynamodb.exchange import Answered, Exchange, Refusal, Unanswered
from holdfast.storage.dynamodb.faults import (
    CONDITION_FAILED,
    TRANSACTION_CANCELLED,
    Fault,
    error_of,
)
from holdfast.storage.dynamodb.requests import get_request, transact_request, write_request
from holdfast.storage.item import Item
from holdfast.storage.layout import TOKEN, Key, Layout
from holdfast.storage.operations import Answer, TransactItems, WriteItem
from holdfast.storage.refusals import condition_failed, transaction_cancelled
from holdfast.storage.units import (
    FREE,
    LEAST_WRITE,
    Units,
    cancelled_units,
    refused_units,
    write_units,
)
from holdfast.storage.writes import Delete, Put, Touch, Update, Write

__all__ = ["Writer"]


class _Standing(msgspec.Struct, frozen=True):
    """What stands under a key, and what it cost to learn it."""

    item: Item | None
    units: Units = FREE


class Writer:
    """Carries out single writes and transactions."""

    def __init__(self, exchange: Exchange, *, table: str, layout: Layout, ids: Ids) -> None:
        self._exchange = exchange
        self._table = table
        self._layout = layout
        self._ids = ids
        # Whether the service has shown that it hands out the item on which a condition failed.
        # DynamoDB does since 2023; a DynamoDB Local of before does not.
        self._hands_out_items = False

    async def write(self, operation: WriteItem) -> Answer:
        """Carry out one write."""
        write = operation.write
        adds = isinstance(write, Update) and bool(write.add)
        # May it be carried out twice, or be repeated by a caller who does not know its outcome?
        repeatable = write.condition is None and not adds
        request = write_request(self._table, operation)
        try:
            answered = await self._exchange.ask(request, resend=not adds)
        except Refusal as refusal:
            if refusal.fault.code == CONDITION_FAILED:
                return await self._refused(operation, refusal)
            error = await self._error(refusal.fault, str(write.key))
            return _answer(
                error,
                lost=refusal.lost and not repeatable,
                about=write.key,
                units=LEAST_WRITE,
            )
        except Unanswered as unanswered:
            if unanswered.lost and adds:
                return await self._read_back(operation, unanswered.error)
            return _answer(
                unanswered.error, lost=unanswered.lost and not repeatable, about=write.key
            )
        return self._written(operation, answered)

    async def transact(self, operation: TransactItems) -> Answer:
        """Carry out several writes or none of them."""
        writes = operation.writes
        request = transact_request(self._table, writes, client_token=self._ids.new())
        try:
            answered = await self._exchange.ask(request)
        except Refusal as refusal:
            failed = _failed(refusal.fault)
            if failed:
                return _cancelled(writes, failed, lost=refusal.lost)
            error = await self._error(refusal.fault, _invalid_key(writes, refusal.fault))
            units = cancelled_units(writes, {})
            return _answer(error, lost=refusal.lost, about="the transaction", units=units)
        except Unanswered as unanswered:
            return _answer(unanswered.error, lost=unanswered.lost, about="the transaction")
        return Answer(units=reported_units(answered.data, "write"))

    def _written(self, operation: WriteItem, answered: Answered) -> Answer:
        write = operation.write
        units = reported_units(answered.data, "write")
        attributes = answered.data.get("Attributes")
        returned = item_of(attributes) if attributes else None
        match operation.returning:
            case "new" if isinstance(write, Put):
                return Answer(dict(write.item), units)
            case "old" if answered.lost and _may_be_ours(write, returned):
                return Answer(units=units, error=_replaced_unknown(write.key, returned))
            case "nothing":
                return Answer(units=units)
            case _:
                return Answer(returned, units)

    async def _refused(self, operation: WriteItem, refusal: Refusal) -> Answer:
        """Return the answer to a write whose condition did not hold."""
        write = operation.write
        try:
            standing = await self._standing(write.key, refusal.fault)
        except (Refusal, Unanswered) as failure:
            if refusal.lost:
                return Answer(units=LEAST_WRITE, error=_unknown(write.key, refusal.fault))
            if isinstance(failure, Unanswered):
                raise failure.error from None
            raise await self._error(failure.fault, str(write.key)) from None
        units = refused_units(write, standing.item) + standing.units
        if refusal.lost:
            return self._settled(operation, standing.item, units, refusal.fault)
        return Answer(units=units, error=condition_failed(write.key, standing.item))

    async def _standing(self, key: Key, fault: Fault) -> _Standing:
        attributes = fault.answer.get("Item")
        if attributes:
            self._hands_out_items = True
            return _Standing(item_of(attributes))
        return _Standing(None) if self._hands_out_items else await self._read(key)

    async def _read(self, key: Key) -> _Standing:
        answered = await self._exchange.ask(get_request(self._table, key, eventual=False))
        attributes = answered.data.get("Item")
        item = item_of(attributes) if attributes else None
        return _Standing(item, reported_units(answered.data, "read"))

    async def _read_back(self, operation: WriteItem, cause: HoldfastError) -> Answer:
        """Return the answer to a write that must not be sent again, by what stands there now."""
        key = operation.write.key
        try:
            standing = await self._read(key)
        except (Refusal, Unanswered):
            return Answer(error=_unknown(key, cause))
        return self._settled(operation, standing.item, standing.units, cause)

    def _settled(
        self, operation: WriteItem, standing: Item | None, units: Units, cause: Exception
    ) -> Answer:
        """Return the answer to a write whose own answer was lost, by what stands there now.

        The units of the lost answer are those of a new item: exact where nothing stood before.
        """
        write = operation.write
        if standing is None or not _is_ours(write, standing):
            return Answer(units=units, error=_unknown(write.key, cause, standing))
        units += write_units(None, standing, self._layout)
        match operation.returning:
            case "old":
                return Answer(units=units, error=_replaced_unknown(write.key, standing))
            case "new":
                return Answer(dict(write.item) if isinstance(write, Put) else standing, units)
            case "nothing":
                return Answer(units=units)

    async def _error(self, fault: Fault, about: str) -> HoldfastError:
        return error_of(fault, await self._exchange.service(), about)


def _answer(error: HoldfastError, *, lost: bool, about: object, units: Units = FREE) -> Answer:
    """Return or raise what a write came to that was not carried out, whatever its condition."""
    if lost:
        return Answer(error=_unknown(about, error))
    if isinstance(error, InvalidRequest):
        return Answer(units=units, error=error)
    raise error


def _unknown(about: object, cause: Exception, item: Item | None = None) -> OutcomeUnknown:
    unknown = OutcomeUnknown(
        f"{about}: the answer was lost, and whether it was written cannot be told ({cause})",
        item=item,
    )
    unknown.__cause__ = cause
    return unknown


def _replaced_unknown(key: Key, item: Item | None) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{key}: it was written, but the answer with what stood there before was lost", item=item
    )


def _is_ours(write: Touch, item: Item) -> bool:
    token = write.token if isinstance(write, Put | Update) else None
    return token is not None and item.get(TOKEN) == token


def _may_be_ours(write: Write, replaced: Item | None) -> bool:
    """Return whether what a write replaced may be what the same write, sent before, had left."""
    if replaced is None:
        return isinstance(write, Delete)
    return not isinstance(write, Delete) and (write.token is None or _is_ours(write, replaced))


def _failed(fault: Fault) -> dict[int, Item | None]:
    """Return the positions of the writes whose condition did not hold, with what stood there."""
    if fault.code != TRANSACTION_CANCELLED:
        return {}
    return {
        position: item_of(reason["Item"]) if reason.get("Item") else None
        for position, reason in enumerate(fault.reasons)
        if reason.get("Code") == "ConditionalCheckFailed"
    }


def _invalid_key(writes: tuple[Touch, ...], fault: Fault) -> str:
    for write, reason in zip(writes, fault.reasons, strict=False):
        if reason.get("Code") == "ValidationError":
            return str(write.key)
    return "the transaction"


def _cancelled(
    writes: tuple[Touch, ...], failed: Mapping[int, Item | None], *, lost: bool
) -> Answer:
    units = cancelled_units(writes, failed)
    # The service knows the client token for ten minutes; should it have forgotten it, ours tell.
    if lost and any(item and _is_ours(writes[n], item) for n, item in failed.items()):
        return Answer(units=units)
    cancelled = transaction_cancelled(writes, failed)
    # What was sent first may still be on its way, and be carried out later.
    return Answer(units=units, error=_unknown("the transaction", cancelled) if lost else cancelled)
