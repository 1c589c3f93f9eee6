"""`Batches`: reads and writes many items in few requests, and retries the unprocessed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.errors import HoldfastError, Throttled
from holdfast.storage.dynamodb.attributes import item_of, key_attributes
from holdfast.storage.dynamodb.capacity import reported_units
from holdfast.storage.dynamodb.client import DynamoClient, NoResponse, RequestRefused
from holdfast.storage.dynamodb.errors import store_error
from holdfast.storage.dynamodb.requests import (
    DynamoRequest,
    batch_get_request,
    batch_write_request,
    write_entry,
)
from holdfast.storage.item import Item
from holdfast.storage.layout import PK, SK, Key
from holdfast.storage.operations import GetItems, Reply, WriteItems
from holdfast.storage.units import NO_UNITS, Units

__all__ = ["Batches"]

READ_KEYS_MAX = 100
WRITE_ENTRIES_MAX = 25
# The service takes 16 MB of JSON. The rest of the request fits into 4 KB.
WRITE_BYTES_MAX = 16 * 1024 * 1024 - 4096
# More at a time would be throttled sooner, and delay other requests.
BATCHES_IN_FLIGHT_MAX = 4

_Part = TypeVar("_Part")


class Batches:
    """Reads and writes many items, without a transaction."""

    def __init__(self, client: DynamoClient, *, table: str) -> None:
        self._client = client
        self._table = table

    async def get(self, operation: GetItems) -> Reply:
        """Read the items; the reply has None for a missing one."""
        found: dict[Key, Item] = {}
        spent = _BatchUnits()

        async def read(keys: Sequence[Key]) -> None:
            left = [key_attributes(key) for key in keys]
            budget = self._client.new_budget()
            while left:
                request = batch_get_request(self._table, left, eventual=operation.eventual)
                data = await self._send(request)
                spent.units += reported_units(data, "read")
                items = [item_of(each) for each in data.get("Responses", {}).get(self._table, ())]
                found.update((Key(item[PK], item[SK]), item) for item in items)
                unprocessed = data.get("UnprocessedKeys", {}).get(self._table, {})
                before, left = len(left), unprocessed.get("Keys", [])
                if len(left) < before:
                    budget.reset()
                if left and not await budget.back_off(Throttled.code):
                    raise Throttled(
                        f"{len(left)} items were not read: the table is too busy; try later"
                    )

        chunks = (
            operation.keys[start : start + READ_KEYS_MAX]
            for start in range(0, len(operation.keys), READ_KEYS_MAX)
        )
        error = await _run_parts(chunks, read)
        if error is not None:
            return spent.error_reply(error)
        return Reply([found.get(key) for key in operation.keys], spent.units)

    async def write(self, operation: WriteItems) -> Reply:
        """Perform the writes; after an error, some items may have been written."""
        spent = _BatchUnits()

        async def write(entries: list[Any]) -> None:
            left = entries
            budget = self._client.new_budget()
            while left:
                data = await self._send(batch_write_request(self._table, left))
                spent.units += reported_units(data, "write")
                before, left = len(left), data.get("UnprocessedItems", {}).get(self._table, [])
                if len(left) < before:
                    budget.reset()
                if left and not await budget.back_off(Throttled.code):
                    raise Throttled(
                        f"{len(left)} items were not written: the table is too busy; try later"
                    )

        error = await _run_parts(_write_chunks(map(write_entry, operation.writes)), write)
        return Reply(units=spent.units) if error is None else spent.error_reply(error)

    async def _send(self, request: DynamoRequest) -> dict[str, Any]:
        try:
            return (await self._client.send(request)).data
        except NoResponse as unanswered:
            raise unanswered.error from None
        except RequestRefused as refusal:
            raise store_error(
                refusal.service_error, await self._client.load_table_address(), "the batch"
            ) from None


class _BatchUnits:
    """The units of a batch so far."""

    def __init__(self) -> None:
        self.units: Units = NO_UNITS

    def error_reply(self, error: HoldfastError) -> Reply:
        """Return the error with the units, or raise it if the batch reached no table."""
        if self.units == NO_UNITS:
            raise error
        return Reply(units=self.units, error=error)


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


async def _run_parts(
    parts: Iterable[_Part], work: Callable[[_Part], Awaitable[None]]
) -> HoldfastError | None:
    """Process the parts, several at a time; after an error, begin no more and return it."""
    waiting = iter(parts)
    errors: list[HoldfastError] = []

    async def process_parts() -> None:
        for part in waiting:
            if errors:
                return
            try:
                await work(part)
            except HoldfastError as error:
                errors.append(error)

    await asyncio.gather(*(process_parts() for _ in range(BATCHES_IN_FLIGHT_MAX)))
    return errors[0] if errors else None
