"""Reads of the file, on a connection of their own, so that no read waits for a writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.errors import ChangesOff, ChangesTrimmed, InvalidQuery
from holdfast.storage.cursors import cursor_at
from holdfast.storage.item import Item, item_bytes
from holdfast.storage.layout import PK, SK, Index, Key
from holdfast.storage.operations import (
    LATEST,
    Answer,
    Change,
    ChangePage,
    GetItem,
    GetItems,
    Page,
    QueryItems,
    ReadOperation,
)
from holdfast.storage.ranges import All, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.sqlite.body import decoded
from holdfast.storage.sqlite.faults import fault
from holdfast.storage.units import query_units, read_units, total

__all__ = ["SqliteReader"]

PAGE_BYTES_MAX = 1024 * 1024
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class SqliteReader:
    """The reading side of a file. Not for use by two threads at once."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def read(self, operation: ReadOperation) -> Answer:
        """Carry out one read.

        Raises:
            StoreUnavailable, StoreUnusable: the file cannot be read.
        """
        try:
            match operation:
                case GetItem(key, eventual):
                    item = self._get(key)
                    return Answer(item, read_units(item, eventual=eventual))
                case GetItems(keys, eventual):
                    items = [self._get(key) for key in keys]
                    units = total(read_units(item, eventual=eventual) for item in items)
                    return Answer(items, units)
                case QueryItems():
                    return self._query(operation)
        except Exception as error:
            raise fault(error, self._path) from error

    def changes(self, after: str | None, limit: int) -> ChangePage:
        """Read the change feed from a position on.

        Raises:
            ChangesOff, ChangesTrimmed, InvalidQuery: as `Table.changes` says.
        """
        try:
            return self._changes(after, limit)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise fault(error, self._path) from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _get(self, key: Key) -> Item | None:
        found = self._connection.execute(
            "SELECT body FROM items WHERE pk = ? AND sk = ?", key
        ).fetchone()
        return None if found is None else {PK: key.pk, SK: key.sk, **decoded(found[0])}

    def _query(self, query: QueryItems) -> Answer:
        sql, values = _selection(query)
        items: list[Item] = []
        size = 0
        cut = False
        for pk, sk, body in self._connection.execute(sql, values):
            item = _seen({PK: pk, SK: sk, **decoded(body)}, query.index)
            items.append(item)
            size += item_bytes(item)
            if len(items) == query.limit or size >= PAGE_BYTES_MAX:
                cut = True
                break
        cursor = cursor_at(items[-1], query.index) if cut else None
        units = query_units(size, eventual=query.eventual, index=query.index is not None)
        return Answer(Page(items, cursor), units)

    def _changes(self, after: str | None, limit: int) -> ChangePage:
        # One transaction, so that trimming between two of these reads cannot hide a gap.
        self._connection.execute("BEGIN")
        try:
            oldest, newest = self._feed_ends()
            start = _position(after, oldest, newest)
            rows = self._connection.execute(
                "SELECT position, pk, sk, old, new, at_ms, expired FROM changes "
                "WHERE position > ? ORDER BY position LIMIT ?",
                (start, limit),
            )
            changes = _page_of_changes(rows)
        finally:
            self._connection.execute("COMMIT")
        return ChangePage(changes, changes[-1].position if changes else str(start))

    def _feed_ends(self) -> tuple[int, int]:
        """Return the first position that the feed still has, and its last one so far."""
        if self._connection.execute("SELECT 1 FROM moment").fetchone() is None:
            raise ChangesOff(
                f"{self._path} has no change feed; open the store with changes=on to write one"
            )
        given = self._connection.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = 'changes'"
        ).fetchone()
        newest = given[0] if given else 0
        (oldest,) = self._connection.execute("SELECT min(position) FROM changes").fetchone()
        return (newest + 1 if oldest is None else oldest), newest


def _position(after: str | None, oldest: int, newest: int) -> int:
    if after is None:
        return oldest - 1
    if after == LATEST:
        return newest
    is_position = isinstance(after, str) and len(after) < 20 and after.isdecimal()
    if not is_position or int(after) > newest:
        raise InvalidQuery(f"{after!r:.80} is not a position of this feed", field="after")
    if int(after) < oldest - 1:
        raise ChangesTrimmed(f"the feed begins after position {oldest - 1}; {after} is gone")
    return int(after)


def _page_of_changes(rows: Iterable[Any]) -> list[Change]:
    changes: list[Change] = []
    size = 0
    for position, pk, sk, old, new, at_ms, expired in rows:
        changes.append(_change(position, pk, sk, old, new, at_ms, expired))
        size += len(old or b"") + len(new or b"")
        if size >= PAGE_BYTES_MAX:
            break
    return changes


def _change(
    position: int, pk: str, sk: str, old: bytes | None, new: bytes | None, at_ms: int, expired: int
) -> Change:
    key = Key(pk, sk)
    return Change(str(position), key, _image(key, old), _image(key, new), at_ms, bool(expired))


def _image(key: Key, body: bytes | None) -> Item | None:
    return None if body is None else {PK: key.pk, SK: key.sk, **decoded(body)}


def _seen(item: Item, index: Index | None) -> Item:
    if index is None:
        return item
    entry = index.entry(item)
    assert entry is not None
    return entry


def _selection(query: QueryItems) -> tuple[str, list[Any]]:
    pk, sk = (f'"{query.index.pk}"', f'"{query.index.sk}"') if query.index else ("pk", "sk")
    bounds, values = _bounds(query.range, sk)
    clauses = [f"{pk} = ?", *bounds]
    values = [query.pk, *values]
    # An index also holds entries of equal keys; the items' own keys tell those apart.
    order = [sk, "pk", "sk"] if query.index else [sk]
    if query.index:
        clauses.append(f"{sk} IS NOT NULL")
    if query.after is not None:
        names = [query.index.sk, PK, SK] if query.index else [SK]
        sign = ">" if query.forward else "<"
        clauses.append(f"({', '.join(order)}) {sign} ({', '.join('?' for _ in order)})")
        values += [query.after[name] for name in names]
    direction = "ASC" if query.forward else "DESC"
    ordering = ", ".join(f"{column} {direction}" for column in order)
    sql = f"SELECT pk, sk, body FROM items WHERE {' AND '.join(clauses)} ORDER BY {ordering}"
    if query.limit is not None:
        sql += f" LIMIT {query.limit}"
    return sql, values


def _bounds(where: Range, sk: str) -> tuple[list[str], list[Any]]:
    match where:
        case All():
            return [], []
        case At(value):
            return [f"{sk} = ?"], [value]
        case From(value):
            return [f"{sk} >= ?"], [value]
        case UpTo(value):
            return [f"{sk} <= ?"], [value]
        case Between(first, last):
            return [f"{sk} BETWEEN ? AND ?"], [first, last]
        case Prefix(value):
            end = _behind_prefix(value)
            if end is None:
                return [f"{sk} >= ?"], [value]
            return [f"{sk} >= ?", f"{sk} < ?"], [value, end]


def _behind_prefix(prefix: str) -> str | None:
    """Return the least string that is greater than all that begin with the prefix."""
    kept = prefix.rstrip(chr(_LAST_CHARACTER))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    if following in _SURROGATES:
        following = _SURROGATES.stop
    return kept[:-1] + chr(following)
