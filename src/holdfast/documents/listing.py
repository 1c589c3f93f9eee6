"""Lists of the index: merges its partitions, and reads the items that a page shows."""

from __future__ import annotations

import heapq
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from holdfast.documents.loading import DocumentStore
from holdfast.errors import InvalidQuery, ItemDamaged, JournalDamaged
from holdfast.records.document import is_there
from holdfast.storage import All, Key, UpTo
from holdfast.storage.item import Item

__all__ = ["IndexList", "list_page", "read_known", "validated_cursor"]

T = TypeVar("T")

# A page reads at most this many entries, even if few of their items are still as the index says.
_PAGE_ENTRIES_MAX = 2_000
_READ_ITEMS_MAX = 100
_SPARE_ITEMS = 10
"""Shards are not equally full: a query reads so many entries more than its share."""


class IndexList(msgspec.Struct, Generic[T], frozen=True):
    """A list in an index: where its entries are, and what they show."""

    index: str
    partitions: tuple[str, ...]
    key: Callable[[str], Key]
    """Returns the key of the item of an entry."""
    shown: Callable[[Item], T | None]
    """Returns what the page shows of an item; None if it is not as the index says any more."""

    def position(self, entry: Item) -> str:
        """Return the position of an entry in the list."""
        return entry[f"{self.index}SK"]


async def list_page(
    store: DocumentStore, source: IndexList[T], *, limit: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """Return a page of a list, the newest first, and the cursor of the next one.

    The cost follows what the page returns: each partition is read as far as needed. Items are read
    with consistent reads, so none is shown that has left the list.
    """
    found: list[T] = []
    candidates: list[str] = []
    read_count = 0
    async for position in _merged(
        [_entries(store, source, partition, limit, cursor) for partition in source.partitions]
    ):
        read_count += 1
        candidates.append(position)
        is_last = read_count == _PAGE_ENTRIES_MAX
        if is_last or len(candidates) >= min(limit - len(found), _READ_ITEMS_MAX):
            found += await _shown(store, source, candidates)
            candidates = []
            if is_last or len(found) >= limit:
                return found, position
    found += await _shown(store, source, candidates)
    return found, None


async def read_known(store: DocumentStore, keys: Sequence[Key]) -> list[Item]:
    """Return the items of keys that are there; damaged ones are left out, and noted."""
    if not keys:
        return []
    try:
        items = await store.items.get_many(keys)
    except ItemDamaged:  # one of them: the others can be read
        if len(keys) == 1:
            return []
        half = len(keys) // 2
        return await read_known(store, keys[:half]) + await read_known(store, keys[half:])
    now_ms = store.now_ms
    return [item for item in items if item is not None and is_there(item, now_ms)]


async def _shown(store: DocumentStore, source: IndexList[T], positions: Sequence[str]) -> list[T]:
    keys: list[Key] = []
    for position in positions:
        try:
            keys.append(source.key(position))
        except (ValueError, IndexError) as error:
            store.kernel.note_damage({"PK": source.index, "SK": position}, error)
    shown: list[T] = []
    for item in await read_known(store, keys):
        try:
            each = source.shown(item)
        except JournalDamaged as error:
            store.kernel.note_damage(item, error)
        else:
            if each is not None:
                shown.append(each)
    return shown


async def _entries(
    store: DocumentStore, source: IndexList[T], partition: str, limit: int, cursor: str | None
) -> AsyncIterator[str]:
    """Yield the positions in one partition, the newest first, after the cursor."""
    share = limit // len(source.partitions) + _SPARE_ITEMS
    after: str | None = None
    while True:
        page = await store.items.query(
            partition,
            All() if cursor is None else UpTo(cursor),
            index=source.index,
            forward=False,
            limit=share,
            cursor=after,
        )
        for item in page.items:
            position = source.position(item)
            if position != cursor:  # the range includes the cursor itself
                yield position
        after = page.cursor
        if after is None:
            return


async def _merged(parts: Sequence[AsyncIterator[str]]) -> AsyncIterator[str]:
    """Merge streams of positions that are sorted alike, the greatest first."""
    heap: list[tuple[_Descending, int]] = []

    async def push(number: int) -> None:
        async for position in parts[number]:
            heapq.heappush(heap, (_Descending(position), number))
            return

    for number in range(len(parts)):
        await push(number)
    while heap:
        first, number = heapq.heappop(heap)
        yield first.position
        await push(number)


class _Descending(msgspec.Struct, frozen=True):
    """A position that comes first if it is greater."""

    position: str

    def __lt__(self, other: _Descending) -> bool:
        return self.position > other.position


def validated_cursor(cursor: object, pattern: re.Pattern[str], what: str) -> str | None:
    """Return the cursor of a list.

    Raises:
        InvalidQuery: no page of such a list has this cursor.
    """
    if cursor is None or (isinstance(cursor, str) and pattern.fullmatch(cursor)):
        return cursor
    raise InvalidQuery(f"not a cursor of a list of {what}: {cursor!r:.80}", field="cursor")
