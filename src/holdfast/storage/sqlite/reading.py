"""Reads of the file, on a connection of their own, so that no read waits for a writer."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from holdfast.errors import ChangesOff, ChangesTrimmed, InvalidQuery, ItemDamaged
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
from holdfast.storage.sqlite.body import Unreadable, item_of
from holdfast.storage.sqlite.faults import fault, is_undecodable
from holdfast.storage.sqlite.schema import BODY
from holdfast.storage.units import query_units, read_units, total

__all__ = ["SqliteReader", "damaged"]

PAGE_BYTES_MAX = 1024 * 1024
_DAMAGED_MAX = 100
_LAST_CHARACTER = 0x10FFFF
_POSITION = re.compile(r"[0-9]{1,19}")
_SURROGATES = range(0xD800, 0xE000)


class SqliteReader:
    """The reading side of a file. Not for use by two threads at once."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def read(self, operation: ReadOperation) -> Answer:
        """Carry out one read.

        Raises:
            ItemDamaged: an item cannot be read; in an index it is left out and named instead.
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
            ItemDamaged: what an item was, or became, cannot be read.
        """
        try:
            return self._changes(after, limit)
        except sqlite3.Error as error:
            raise fault(error, self._path) from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _get(self, key: Key) -> Item | None:
        found = self._connection.execute(
            f"SELECT {BODY} FROM items WHERE pk = ? AND sk = ?", key
        ).fetchone()
        if found is None:
            return None
        try:
            return item_of(key.pk, key.sk, found[0])
        except Unreadable as error:
            raise damaged(key.pk, key.sk, error) from error

    def _query(self, query: QueryItems) -> Answer:
        sql, values = _selection(query)
        try:
            return self._page(query, sql, values)
        except sqlite3.OperationalError as error:
            if query.index is None or not is_undecodable(error):
                raise
        # A key in this page is not UTF-8. It is read again so that such keys can be told apart.
        self._connection.text_factory = _marked
        try:
            return self._page(query, sql, values)
        finally:
            self._connection.text_factory = str

    def _page(self, query: QueryItems, sql: str, values: list[Any]) -> Answer:
        # Closed, also where an error keeps it: an open one holds on to what stood there when it
        # was opened, and this connection would never see anything newer.
        with closing(self._connection.execute(sql, values)) as rows:
            return _answered(query, rows)

    def _changes(self, after: str | None, limit: int) -> ChangePage:
        # One transaction, so that trimming between two of these reads cannot hide a gap.
        self._connection.execute("BEGIN")
        try:
            oldest, newest = self._feed_ends()
            start = _position(after, oldest, newest)
            selected = self._connection.execute(
                "SELECT position, pk, sk, old, new, at_ms, expired FROM changes "
                "WHERE position > ? ORDER BY position LIMIT ?",
                (start, limit),
            )
            with closing(selected) as rows:
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


def damaged(pk: object, sk: object, error: Unreadable) -> ItemDamaged:
    """Return the error that names an item which cannot be read."""
    return ItemDamaged(
        f"the item {pk!r:.200} / {sk!r:.200} cannot be read: {error}", key=(str(pk), str(sk))
    )


def _answered(query: QueryItems, rows: Iterable[Any]) -> Answer:
    """Return a page of the rows.

    In an index one item that cannot be read must not hide those of others: it is left out, and
    named. In a partition, which is one owner's, nothing may be missing unseen.
    """
    items: list[Item] = []
    bad: list[ItemDamaged] = []
    size = 0
    cut = False
    pk = sk = place = None
    for pk, sk, place, body in rows:
        try:
            item = _entry(query.index, query.pk, pk, sk, place, body)
        except Unreadable as error:
            bad.append(damaged(pk, sk, error))
            if query.index is None:
                raise bad[-1] from error
            size += len(body or b"")
        else:
            items.append(item)
            size += item_bytes(item)
        if len(items) == query.limit or size >= PAGE_BYTES_MAX or len(bad) == _DAMAGED_MAX:
            cut = True
            break
    cursor = _cursor(query, pk, sk, place) if cut else None
    units = query_units(size, eventual=query.eventual, index=query.index is not None)
    return Answer(Page(items, cursor, tuple(bad)), units)


def _entry(
    index: Index | None, partition: str, pk: Any, sk: Any, place: Any, body: bytes | None
) -> Item:
    """Return what a row holds of an item, or what an index shows of it."""
    if index is None:
        return item_of(pk, sk, body)
    if not (_is_text(pk) and _is_text(sk) and _is_text(place)):
        raise Unreadable("its key is not text")
    item = item_of(pk, sk, body)
    if item.get(index.pk) != partition or item.get(index.sk) != place:
        raise Unreadable(f"it does not stand where {index.name} has it")
    entry = index.entry(item)
    assert entry is not None
    return entry


def _cursor(query: QueryItems, pk: Any, sk: Any, place: Any) -> str:
    """Return the cursor behind a row, which need not be one that can be read."""
    position = {PK: _fit(pk), SK: _fit(sk)}
    if query.index is not None:
        position |= {query.index.pk: query.pk, query.index.sk: _fit(place)}
    return cursor_at(position, query.index)


def _marked(text: bytes) -> str:
    """Return text whose bytes that are not UTF-8 became halves of surrogate pairs."""
    return text.decode(errors="surrogateescape")


def _is_text(value: object) -> bool:
    return type(value) is str and (value.isascii() or _fit(value) == value)


def _fit(value: object) -> str:
    return str(value).encode(errors="replace").decode()


def _position(after: str | None, oldest: int, newest: int) -> int:
    if after is None:
        return oldest - 1
    if after == LATEST:
        return newest
    is_position = isinstance(after, str) and _POSITION.fullmatch(after) is not None
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
    try:
        before, after = _image(key, old), _image(key, new)
    except Unreadable as error:
        told = Unreadable(f"{error}, at position {position} of the change feed")
        raise damaged(pk, sk, told) from error
    return Change(str(position), key, before, after, at_ms, bool(expired))


def _image(key: Key, body: bytes | None) -> Item | None:
    return None if body is None else item_of(key.pk, key.sk, body)


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
    sql = (
        f"SELECT pk, sk, {sk}, {BODY} FROM items WHERE {' AND '.join(clauses)} ORDER BY {ordering}"
    )
    if query.limit is not None:
        # What cannot be read does not count.
        sql += f" LIMIT {query.limit + _DAMAGED_MAX}"
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
