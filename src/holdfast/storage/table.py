"""`Table`: the interface of the storage engines to the rest of Holdfast."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from holdfast.errors import (
    HoldfastError,
    InvalidKey,
    InvalidQuery,
    InvalidRequest,
    InvalidWrite,
    ItemDamaged,
    StoreCorrupt,
)
from holdfast.storage.cursors import position_of
from holdfast.storage.damage_log import DamageLog
from holdfast.storage.item import Item
from holdfast.storage.layout import SK, Key
from holdfast.storage.meter import Meter
from holdfast.storage.operations import (
    ChangePage,
    GetItem,
    GetItems,
    Operation,
    Page,
    QueryItems,
    Returning,
    TableEngine,
    TransactItems,
    WriteItem,
    WriteItems,
)
from holdfast.storage.ranges import ALL, Range
from holdfast.storage.validation import (
    check_not_empty,
    validate_batch,
    validate_index,
    validate_key,
    validate_limit,
    validate_partition,
    validate_range,
    validate_transaction,
    validate_write,
)
from holdfast.storage.writes import Delete, Put, TransactionWrite, Write

__all__ = ["Table"]

CHANGES_LIMIT_MAX = 1000


class Table:
    """One table of items with two indexes, the same on every engine.

    Each call is validated first, costs at most one request (`get_many` and `write_many`: one for
    each batch), and is metered under the table's purpose. Every method raises `StoreUnavailable` or
    `StoreUnusable` if the engine cannot reach or use the store. Each method lists its other errors.
    """

    def __init__(
        self,
        engine: TableEngine,
        meter: Meter,
        purpose: str = "other",
        *,
        allows_empty: bool = True,
        damage: DamageLog | None = None,
    ) -> None:
        """``allows_empty`` says whether attributes may be empty text or empty bytes."""
        self._damage = DamageLog() if damage is None else damage
        self._engine = engine
        self._meter = meter
        self._purpose = purpose
        self._allows_empty = allows_empty

    def with_purpose(self, purpose: str) -> Table:
        """Return the same table, with its operations metered under another purpose."""
        if not isinstance(purpose, str):
            raise InvalidRequest(f"purpose must be a string, got {type(purpose).__name__}")
        return Table(
            self._engine,
            self._meter,
            purpose,
            allows_empty=self._allows_empty,
            damage=self._damage,
        )

    async def get(self, key: Key, *, eventual: bool = False) -> Item | None:
        """Return the item, or None if there is none.

        ``eventual=True`` halves the price, but the item may be slightly out of date.

        Raises:
            ItemDamaged: the item cannot be read.
        """
        return await self._perform("get", GetItem(validate_key(key), eventual))

    async def get_many(self, keys: Iterable[Key], *, eventual: bool = False) -> list[Item | None]:
        """Return the items in the order of the keys, with None for a key without an item."""
        if not isinstance(keys, Iterable):
            raise InvalidKey(f"keys must be a list of keys, got {type(keys).__name__}")
        wanted = [validate_key(key) for key in keys]
        distinct = tuple(dict.fromkeys(wanted))
        if not distinct:
            return []
        items = await self._perform("get_many", GetItems(distinct, eventual))
        found: dict[Key, Item | None] = dict(zip(distinct, items, strict=True))
        return [found[key] for key in wanted]

    async def write(self, write: Write, *, returning: Returning = "nothing") -> Item | None:
        """Perform one write; return the old or the new item if ``returning`` says so.

        Raises:
            ConditionFailed: the condition did not hold; the error contains the existing item.
            ItemDamaged: the existing item cannot be read. Only a put or a delete without a
                condition replaces it.
            OutcomeUnknown: the response was lost, and a read cannot tell whether it was written.
            ItemTooLarge, InvalidWrite: the update does not fit the existing item.
        """
        if returning not in ("nothing", "old", "new"):
            raise InvalidWrite(
                f"returning must be 'nothing', 'old' or 'new', got {returning!r:.80}"
            )
        validated = validate_write(write, self._engine.layout)
        self._check_not_empty(validated)
        return await self._perform("write", WriteItem(validated, returning))

    async def transact(self, writes: Sequence[TransactionWrite]) -> None:
        """Perform all of up to 100 writes and checks, or none. A transaction costs double.

        Raises:
            TransactionCancelled: a condition did not hold; the error says which, and contains the
                existing item.
            OutcomeUnknown: the response was lost, and a read cannot tell whether it was written.
            ItemTooLarge, InvalidWrite: an update does not fit the existing item.
        """
        validated = validate_transaction(writes, self._engine.layout)
        self._check_not_empty(*validated)
        await self._perform("transact", TransactItems(validated))

    async def write_many(self, writes: Iterable[Put | Delete]) -> None:
        """Perform writes without conditions one by one, in few requests.

        This is not a transaction: after an error, some of the items may have been written.
        """
        validated = validate_batch(writes, self._engine.layout)
        self._check_not_empty(*validated)
        if validated:
            await self._perform("write_many", WriteItems(validated))

    async def query(
        self,
        pk: str,
        where: Range = ALL,
        *,
        index: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        forward: bool = True,
        eventual: bool = False,
    ) -> Page:
        """Return one page of a partition, in the order of the sort key.

        A page contains at most ``limit`` items and 1 MB. Reads of an index are always eventually
        consistent. Its items contain only the attributes of the index, and those with equal index
        keys have no fixed order. An item of an index that cannot be read is left out and listed in
        ``damaged``.

        Raises:
            ItemDamaged: an item of the partition cannot be read.
            InvalidQuery: the index or limit is wrong, or the cursor belongs to another query.
            StoreCorrupt: the next page would be before this one, and reading would never end.
        """
        chosen = validate_index(index, self._engine.layout)
        pk = validate_partition(pk)
        after = None if cursor is None else position_of(cursor, pk, chosen)
        query = QueryItems(
            pk=pk,
            range=validate_range(where),
            index=chosen,
            limit=validate_limit(limit),
            after=after,
            forward=forward,
            eventual=eventual or chosen is not None,
        )
        page: Page = await self._perform("query", query)
        for error in page.damaged:
            self._damage.record(error)
        _check_cursor_advances(query, page)
        return page

    async def query_all(
        self,
        pk: str,
        where: Range = ALL,
        *,
        index: str | None = None,
        forward: bool = True,
        eventual: bool = False,
    ) -> AsyncIterator[Item]:
        """Yield all items of a query, page after page."""
        cursor: str | None = None
        while True:
            page = await self.query(
                pk, where, index=index, cursor=cursor, forward=forward, eventual=eventual
            )
            for item in page.items:
                yield item
            cursor = page.cursor
            if cursor is None:
                return

    async def read_changes(self, after: str | None = None, *, limit: int = 100) -> ChangePage:
        """Return the committed changes after a position, in the order of their commits.

        Without a position, the feed starts at its oldest change; `LATEST` skips all existing ones.

        Raises:
            ChangesOff: the store was opened without its change feed.
            ChangesTrimmed: the feed no longer reaches back to the position.
            InvalidQuery: ``after`` is not a position of this feed, or ``limit`` is wrong.
        """
        if type(limit) is not int or not 1 <= limit <= CHANGES_LIMIT_MAX:
            raise InvalidQuery(
                f"limit must be an integer from 1 to {CHANGES_LIMIT_MAX}, got {limit!r:.80}",
                field="limit",
            )
        return await self._engine.read_changes(after, limit)

    async def close(self) -> None:
        """Finish the operations under way and close the engine."""
        await self._engine.close()

    def _check_not_empty(self, *writes: TransactionWrite) -> None:
        if not self._allows_empty:
            for write in writes:
                check_not_empty(write)

    async def _perform(self, name: str, operation: Operation) -> Any:
        meter = self._meter
        began = meter.now()
        try:
            reply = await self._engine.perform(operation)
        except HoldfastError as error:
            meter.record_failure(name, error.code)
            raise
        meter.record(self._purpose, name, reply.units, began=began)
        if reply.error is not None:
            code = reply.error.code if isinstance(reply.error, HoldfastError) else "other"
            meter.record_failure(name, code)
            if isinstance(reply.error, ItemDamaged):
                self._damage.record(reply.error)
            raise reply.error
        return reply.value


def _check_cursor_advances(query: QueryItems, page: Page) -> None:
    """Check that the cursor of a page is past its start, as `TableEngine.perform` promises.

    Raises:
        StoreCorrupt: it is not, and reading would never end.
    """
    if page.cursor is None or query.after is None:
        return
    name = SK if query.index is None else query.index.sk
    before, behind = query.after, position_of(page.cursor, query.pk, query.index)
    if before[name] == behind[name]:
        # Entries of an index with equal keys have no fixed order.
        advances = before != behind
    else:
        advances = (before[name] < behind[name]) is query.forward
    if not advances:
        raise StoreCorrupt(f"a page of {query.pk!r:.200} ends where it began, at {behind!r:.200}")
