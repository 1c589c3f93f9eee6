"""What really stands in the simulated table: plain dicts under the real rules.

What a write means and costs is said by `holdfast.storage.writes` and `.units`, which the SQLite
engine runs too; `test_truth.py` holds this and the SQLite core together. It is not the SQLite core
itself because a step of the simulator has to see each item before and after, and an index as it was
a while ago; and because, where nothing is metered, this takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from holdfast.errors import InvalidQuery, InvalidRequest
from holdfast.records.keys import HEAD
from holdfast.storage.cursors import cursor_at
from holdfast.storage.item import ITEM_BYTES_MAX, Item, item_bytes
from holdfast.storage.layout import LAYOUT, PK, SK, Index, Key, Layout
from holdfast.storage.operations import (
    LATEST,
    Change,
    ChangePage,
    GetItem,
    GetItems,
    Page,
    QueryItems,
    ReadOperation,
    Reply,
    Returning,
    TransactItems,
    WriteItem,
    WriteItems,
    WriteOperation,
)
from holdfast.storage.units import (
    NO_UNITS,
    WRITE_UNITS_MIN,
    Units,
    cancelled_units,
    query_units,
    read_units,
    refused_units,
    sum_units,
    transaction_units,
    write_units,
)
from holdfast.storage.write_errors import (
    condition_failed_error,
    transaction_cancelled_error,
    update_too_large_error,
)
from holdfast.storage.writes import Check, TransactionWrite, Update, Write, holds, item_after
from tests.simulation.partitions import Partition, Place, Since

__all__ = ["Step", "Truth", "fresh"]

PAGE_BYTES_MAX = 1024 * 1024
_ROW = (HEAD,)

Step: TypeAlias = tuple[Key, Item | None, Item | None]
"""A key, what stood under it, and what stands there now."""


def fresh(item: Item | None) -> Item | None:
    """Return a copy of which nothing is shared that a caller could change."""
    if item is None:
        return None
    copy = item.copy()
    for name, value in item.items():
        if type(value) is dict:
            copy[name] = fresh(value)
        elif type(value) is list:
            copy[name] = _fresh_list(value)
    return copy


def _fresh_list(values: list[Any]) -> list[Any]:
    copy = values.copy()
    for position, value in enumerate(values):
        if type(value) is dict:
            copy[position] = fresh(value)
        elif type(value) is list:
            copy[position] = _fresh_list(value)
    return copy


class Truth:
    """The items of a table, its indexes, their recent past and the change feed.

    Items that come out of `apply` as steps, of `item` and of `items` are the truth's own: look at
    them, never change them. Those in an answer are the caller's.
    """

    def __init__(
        self, layout: Layout = LAYOUT, *, memory_seconds: float = 0, metered: bool = True
    ) -> None:
        self.layout = layout
        # To weigh items for their units takes longer than all else here.
        self._write_units = write_units if metered else _free
        self._refused_units = refused_units if metered else _free
        self._read_units = read_units if metered else _free
        self._query_units = query_units if metered else _free
        self.memory_seconds = memory_seconds
        """How far back stale reads can reach."""
        self._table: dict[str, Partition] = {}
        self._indexes: dict[str, dict[str, Partition]] = {
            index.name: {} for index in layout.indexes
        }
        self._weighed: tuple[Item, int] = {}, 0
        self._feed: list[tuple[Key, Item | None, Item | None, int, bool]] = []

    def remember(self, seconds: float) -> None:
        """Let stale reads of what is written from now on reach back as far as that."""
        if seconds > self.memory_seconds:
            self.memory_seconds = seconds

    def item(self, key: Key) -> Item | None:
        """Return what stands under a key."""
        partition = self._table.get(key[0])
        return None if partition is None else partition.items.get((key[1],))

    def row(self, pk: str) -> Item | None:
        """Return the row of a run, given its partition: the checks ask for it all the time."""
        partition = self._table.get(pk)
        return None if partition is None else partition.items.get(_ROW)

    def bytes_of(self, item: Item) -> int:
        """Return what an item weighs; nothing to do for the one that was weighed last."""
        if self._weighed[0] is not item:
            self._weighed = item, item_bytes(item)
        return self._weighed[1]

    def items(self, prefix: str = "") -> list[Item]:
        """Return what stands in the partitions whose keys begin so, in the order of the keys."""
        return [
            item
            for pk in sorted(pk for pk in self._table if pk.startswith(prefix))
            for _, item in sorted(self._table[pk].items.items())
        ]

    def entries(self, index: str, prefix: str = "") -> list[Item]:
        """Return what an index truly holds in the partitions whose keys begin so, in order."""
        partitions = self._indexes[index]
        return [
            entry
            for pk in sorted(pk for pk in partitions if pk.startswith(prefix))
            for _, entry in sorted(partitions[pk].items.items())
        ]

    # --- writing ----------------------------------------------------------------------------------

    def apply(
        self, operation: WriteOperation, *, at: float, at_ms: int, expired: bool = False
    ) -> tuple[Reply, list[Step]]:
        """Carry out a write; return its answer, and what it did to which item."""
        steps: list[Step] = []
        match operation:
            case WriteItem(write, returning):
                answer = self._write(write, returning, steps)
            case TransactItems(writes):
                answer = self._transact(writes, steps)
            case WriteItems(writes):
                answers = [self._write(write, "nothing", steps) for write in writes]
                answer = Reply(units=sum_units(each.units for each in answers))
        for key, old, new in steps:
            self._store(key, old, new, at)
            if old != new:
                self._feed.append((key, old, new, at_ms, expired))
        return answer, steps

    def _write(self, write: Write, returning: Returning, steps: list[Step]) -> Reply:
        key = write.key
        old = self.item(key)
        if not holds(write.condition, old):
            units = self._refused_units(write, old)
            return Reply(error=condition_failed_error(key, fresh(old)), units=units)
        try:
            new = self._outcome(write, old)
        except InvalidRequest as error:
            return Reply(error=error, units=WRITE_UNITS_MIN)
        steps.append((key, old, new))
        value = old if returning == "old" else new if returning == "new" else None
        return Reply(fresh(value), self._write_units(old, new, self.layout))

    def _transact(self, writes: Sequence[TransactionWrite], steps: list[Step]) -> Reply:
        standing = [self.item(write.key) for write in writes]
        failed = {
            position: fresh(old)
            for position, (write, old) in enumerate(zip(writes, standing, strict=True))
            if not holds(write.condition, old)
        }
        if failed:
            units = cancelled_units(writes, failed)
            return Reply(error=transaction_cancelled_error(writes, failed), units=units)
        try:
            outcomes = [
                self._outcome(write, old) for write, old in zip(writes, standing, strict=True)
            ]
        except InvalidRequest as error:
            return Reply(error=error, units=cancelled_units(writes, {}))
        spent = [
            self._write_units(old, new, self.layout)
            for old, new in zip(standing, outcomes, strict=True)
        ]
        steps += [
            (write.key, old, new)
            for write, old, new in zip(writes, standing, outcomes, strict=True)
            if not isinstance(write, Check)
        ]
        return Reply(units=transaction_units(sum_units(spent)))

    def _outcome(self, write: TransactionWrite, old: Item | None) -> Item | None:
        new = item_after(write, old)
        # Whatever else is written was weighed when it was admitted.
        if isinstance(write, Update) and new is not None:
            size = self.bytes_of(new)
            if size > ITEM_BYTES_MAX:
                raise update_too_large_error(write.key, size)
        return new

    def _store(self, key: Key, old: Item | None, new: Item | None, at: float) -> None:
        pk, sk = key
        forget = at - self.memory_seconds
        _partition(self._table, pk).store((sk,), new, at=at, forget_before=forget)
        for index in self.layout.indexes:
            # Most items are in no index: nothing is built for them.
            if (old is None or index.pk not in old) and (new is None or index.pk not in new):
                continue
            partitions = self._indexes[index.name]
            before, after = _standing(old, index, partitions), index.entry(new)
            if before == after:
                continue
            gone = before is not None and (
                after is None
                or before[index.pk] != after[index.pk]
                or before[index.sk] != after[index.sk]
            )
            if before is not None and gone:
                partition = partitions[before[index.pk]]
                partition.store(_place(before, index), None, at=at, forget_before=forget)
            if after is not None:
                partition = _partition(partitions, after[index.pk])
                partition.store(_place(after, index), after, at=at, forget_before=forget)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, operation: ReadOperation, since: Since | None = None) -> Reply:
        """Carry out a read; with ``since`` as though later changes had not happened."""
        match operation:
            case QueryItems():
                return self._query(operation, since)
            case GetItem(key, eventual):
                item = self._get(key, since)
                return Reply(item, self._read_units(item, eventual=eventual))
            case GetItems(keys, eventual):
                items = [self._get(key, since) for key in keys]
                units = sum_units(self._read_units(item, eventual=eventual) for item in items)
                return Reply(items, units)

    def _get(self, key: Key, since: Since | None) -> Item | None:
        partition = self._table.get(key.pk)
        if partition is None:
            return None
        place = (key.sk,)
        if since is None:
            return fresh(partition.items.get(place))
        return fresh(partition.item_as_of(place, since(place)))

    def _query(self, query: QueryItems, since: Since | None) -> Reply:
        index = query.index
        partitions = self._indexes[index.name] if index else self._table
        partition = partitions.get(query.pk)
        if partition is None or partition.is_bare:
            units = self._query_units(0, eventual=query.eventual, index=index is not None)
            return Reply(Page([], None), units)
        if since is not None:
            partition = partition.as_of(since)
        after = None if query.after is None else _place(query.after, index)
        items: list[Item] = []
        size = 0
        cut = False
        for item, weight in partition.walk(query.range, after, forward=query.forward):
            items.append(fresh(item) or {})
            size += weight
            if len(items) == query.limit or size >= PAGE_BYTES_MAX:
                cut = True
                break
        cursor = cursor_at(items[-1], index) if cut else None
        units = self._query_units(size, eventual=query.eventual, index=index is not None)
        return Reply(Page(items, cursor), units)

    def read_changes(self, after: str | None, limit: int) -> ChangePage:
        """Read the change feed, of which nothing is ever trimmed here."""
        if after is None:
            start = 0
        elif after == LATEST:
            start = len(self._feed)
        elif after.isascii() and after.isdecimal() and int(after) <= len(self._feed):
            start = int(after)
        else:
            raise InvalidQuery(f"{after!r:.80} is not a position of this feed", field="after")
        changes = [
            Change(str(position), key, fresh(old), fresh(new), at_ms, expired)
            for position, (key, old, new, at_ms, expired) in enumerate(
                self._feed[start : start + limit], start + 1
            )
        ]
        return ChangePage(changes, str(start + len(changes)))


def _free(*_: Any, **__: Any) -> Units:
    return NO_UNITS


def _partition(partitions: dict[str, Partition], pk: str) -> Partition:
    partition = partitions.get(pk)
    if partition is None:
        partition = partitions[pk] = Partition()
    return partition


def _standing(item: Item | None, index: Index, partitions: dict[str, Partition]) -> Item | None:
    """Return what the index holds of an item that stands in the table."""
    if item is None or index.pk not in item or index.sk not in item:
        return None
    return partitions[item[index.pk]].items[_place(item, index)]


def _place(entry: Item, index: Index | None) -> Place:
    return (entry[SK],) if index is None else (entry[index.sk], entry[PK], entry[SK])
