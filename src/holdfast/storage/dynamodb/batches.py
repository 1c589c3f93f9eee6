"""Batches: many items in few requests, with what the service left over asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.errors import HoldfastError, Throttled
from holdfast.storage.dynamodb.attributes import item_of, key_attributes
from holdfast.storage.dynamodb.capacity import reported_units
from holdfast.storage.dynamodb.exchange import Exchange, Refusal, Unanswered
from holdfast.storage.dynamodb.faults import error_of
from holdfast.storage.dynamodb.requests import (
    Request,
    batch_get_request,
    batch_write_request,
    write_entry,
)
from holdfast.storage.item import Item
from holdfast.storage.layout import PK, SK, Key
from holdfast.storage.operations import Answer, GetItems, WriteItems
from holdfast.storage.units import FREE, Units

__all__ = ["Batches"]

READ_KEYS_MAX = 100
WRITE_ENTRIES_MAX = 25
# The service takes 16 MB of JSON; what stands around the entries fits into the rest.
WRITE_BYTES_MAX = 16 * 1024 * 1024 - 4096
# More at a time would only be throttled sooner, and leave no turn to others.
AT_A_TIME = 4

_Part = TypeVar("_Part")


class Batches:
    """Reads and writes many items, each for itself."""

    def __init__(self, exchange: Exchange, *, table: str) -> None:
        self._exchange = exchange
        self._table = table

    async def get(self, operation: GetItems) -> Answer:
        """Read the items; those that are not found are None."""
        found: dict[Key, Item] = {}
        spent = _Spent()

        async def read(keys: Sequence[Key]) -> None:
            left = [key_attributes(key) for key in keys]
            budget = self._exchange.budget()
            while left:
                request = batch_get_request(self._table, left, eventual=operation.eventual)
                data = await self._ask(request)
                spent.units += reported_units(data, "read")
                items = [item_of(each) for each in data.get("Responses", {}).get(self._table, ())]
                found.update((Key(item[PK], item[SK]), item) for item in items)
                unprocessed = data.get("UnprocessedKeys", {}).get(self._table, {})
                before, left = len(left), unprocessed.get("Keys", [])
                if len(left) < before:
                    budget.renew()
                if left and not await budget.pause():
                    raise Throttled(f"{len(left)} items could not be read: the table is too busy")

        chunks = (
            operation.keys[start : start + READ_KEYS_MAX]
            for start in range(0, len(operation.keys), READ_KEYS_MAX)
        )
        error = await _each(chunks, read)
        if error is not None:
            return spent.refused(error)
        return Answer([found.get(key) for key in operation.keys], spent.units)

    async def write(self, operation: WriteItems) -> Answer:
        """Carry out the writes; after an error some of them may stand."""
        spent = _Spent()

        async def write(entries: list[Any]) -> None:
            left = entries
            budget = self._exchange.budget()
            while left:
                data = await self._ask(batch_write_request(self._table, left))
                spent.units += reported_units(data, "write")
                before, left = len(left), data.get("UnprocessedItems", {}).get(self._table, [])
                if len(left) < before:
                    budget.renew()
                if left and not await budget.pause():
                    raise Throttled(f"{len(left)} items were not written: the table is too busy")

        error = await _each(_write_chunks(map(write_entry, operation.writes)), write)
        return Answer(units=spent.units) if error is None else spent.refused(error)

    async def _ask(self, request: Request) -> dict[str, Any]:
        try:
            return (await self._exchange.ask(request)).data
        except Unanswered as unanswered:
            raise unanswered.error from None
        except Refusal as refusal:
            raise error_of(refusal.fault, await self._exchange.service(), "the batch") from None


class _Spent:
    """The units of a batch so far."""

    def __init__(self) -> None:
        self.units: Units = FREE

    def refused(self, error: HoldfastError) -> Answer:
        """Return the answer, or raise the error where nothing was reached."""
        if self.units == FREE:
            raise error
        return Answer(units=self.units, error=error)


def _write_chunks(entries: Iterable[bytes]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    size = 0
    for entry in entries:
        if chunk and (len(chunk) == WRITE_ENTRIES_MAX or size + len(entry) > WRITE_BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(msgspec.Raw(entry))
        size += len(entry) + 1
    if chunk:
        yield chunk


async def _each(
    parts: Iterable[_Part], work: Callable[[_Part], Awaitable[None]]
) -> HoldfastError | None:
    """Work through the parts, some at a time; after an error begin no more and return it."""
    waiting = iter(parts)
    errors: list[HoldfastError] = []

    async def lane() -> None:
        for part in waiting:
            if errors:
                return
            try:
                await work(part)
            except HoldfastError as error:
                errors.append(error)

    await asyncio.gather(*(lane() for _ in range(AT_A_TIME)))
    return errors[0] if errors else None
