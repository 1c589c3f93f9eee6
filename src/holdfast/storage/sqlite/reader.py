"""Reads of a store's file, on separate connections, so that no read waits for a writer."""

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
    Change,
    ChangePage,
    GetItem,
    GetItems,
    Page,
    QueryItems,
    ReadOperation,
    Reply,
)
from holdfast.storage.ranges import All, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.sqlite.errors import is_undecodable, store_error
from holdfast.storage.sqlite.item_codec import Unreadable, decode_item
from holdfast.storage.sqlite.schema import BODY
from holdfast.storage.units import query_units, read_units, sum_units

__all__ = ["SqliteReader", "item_damaged_error"]

PAGE_BYTES_MAX = 1024 * 1024
_DAMAGED_MAX = 100
_LAST_CHARACTER = 0x10FFFF
_POSITION = re.compile(r"[0-9]{1,19}")
_SURROGATES = range(0xD800, 0xE000)


class SqliteReader:
    """Reads from one connection to a file. Not thread-safe."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def read(self, operation: ReadOperation) -> Reply:
        """Perform one read.

        Raises:
            ItemDamaged: an item cannot be read. A query of an index leaves it out and names it.
            StoreUnavailable, StoreUnusable: the file cannot be read.
        """
        try:
            match operation:
                case GetItem(key, eventual):
                    item = self._get(key)
                    return Reply(item, read_units(item, eventual=eventual))
                case GetItems(keys, eventual):
                    items = [self._get(key) for key in keys]
                    units = sum_units(read_units(item, eventual=eventual) for item in items)
                    return Reply(items, units)
                case QueryItems():
                    return self._query(operation)
        except Exception as error:
            raise store_error(error, self._path) from error

    def read_changes(self, after: str | None, limit: int) -> ChangePage:
        """Read the change feed after a position.

        Raises:
            ChangesOff, ChangesTrimmed, InvalidQuery: as in `Table.read_changes`.
            ItemDamaged: the old or the new item of a change cannot be read.
        """
        try:
            return self._read_change_page(after, limit)
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error

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
            return decode_item(key.pk, key.sk, found[0])
        except Unreadable as error:
            raise item_damaged_error(key.pk, key.sk, error) from error

    def _query(self, query: QueryItems) -> Reply:
        sql, values = _select_statement(query)
        try:
            return self._read_page(query, sql, values)
        except sqlite3.OperationalError as error:
            if not is_undecodable(error):
                raise
        # A key in this page is not UTF-8. Read it again, with such keys escaped.
        self._connection.text_factory = _decode_escaping
        try:
            return self._read_page(query, sql, values)
        finally:
            self._connection.text_factory = str

    def _read_page(self, query: QueryItems, sql: str, values: list[Any]) -> Reply:
        # Always close the cursor: an open one keeps its snapshot, and this connection would never
        # see newer items.
        with closing(self._connection.execute(sql, values)) as rows:
            return _page_reply(query, rows)

    def _read_change_page(self, after: str | None, limit: int) -> ChangePage:
        # One transaction: trimming between these reads could hide a gap.
        self._connection.execute("BEGIN")
        try:
            oldest, newest = self._read_feed_ends()
            start = _start_position(after, oldest, newest)
            selected = self._connection.execute(
                "SELECT position, pk, sk, old, new, at_ms, expired FROM changes "
                "WHERE position > ? ORDER BY position LIMIT ?",
                (start, limit),
            )
            with closing(selected) as rows:
                changes = _collect_changes(rows)
        finally:
            self._connection.execute("COMMIT")
        return ChangePage(changes, changes[-1].position if changes else str(start))

    def _read_feed_ends(self) -> tuple[int, int]:
        """Return the first and the last position of the feed."""
        if self._connection.execute("SELECT 1 FROM moment").fetchone() is None:
            raise ChangesOff(
                f"{self._path} has no change feed; open the store with changes=on to turn it on"
            )
        given = self._connection.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = 'changes'"
        ).fetchone()
        newest = given[0] if given else 0
        (oldest,) = self._connection.execute("SELECT min(position) FROM changes").fetchone()
        return (newest + 1 if oldest is None else oldest), newest


def item_damaged_error(pk: object, sk: object, error: Unreadable) -> ItemDamaged:
    """Return the error for an item that cannot be read, which names its key."""
    return ItemDamaged(
        f"the item {pk!r:.200} / {sk!r:.200} cannot be read: {error}", key=(_shown(pk), _shown(sk))
    )


def _page_reply(query: QueryItems, rows: Iterable[Any]) -> Reply:
    """Return a page of the rows.

    A damaged item of an index must not hide the items of other runs: it is left out and named. A
    partition belongs to one owner, and its query fails, so that no item is missing unnoticed.

    A page ends only after a row whose keys are text. A cursor cannot name another row, and a cursor
    before that row would return to it forever.
    """
    items: list[Item] = []
    damaged_items: list[ItemDamaged] = []
    size = 0
    for pk, sk, sort_key, body in rows:
        has_text_keys = _is_text(pk) and _is_text(sk) and _is_text(sort_key)
        try:
            if not has_text_keys:
                raise Unreadable("its key is not text")
            item = _entry(query.index, query.pk, pk, sk, sort_key, body)
        except Unreadable as error:
            if query.index is None:
                raise item_damaged_error(pk, sk, error) from error
            size += len(body or b"")
            if len(damaged_items) < _DAMAGED_MAX:
                damaged_items.append(item_damaged_error(pk, sk, error))
        else:
            items.append(item)
            size += item_bytes(item)
        full = (
            len(items) == query.limit
            or size >= PAGE_BYTES_MAX
            or len(damaged_items) == _DAMAGED_MAX
        )
        if full and has_text_keys:
            cursor = _cursor(query, pk, sk, sort_key)
            break
    else:
        cursor = None
    units = query_units(size, eventual=query.eventual, index=query.index is not None)
    return Reply(Page(items, cursor, tuple(damaged_items)), units)


def _entry(
    index: Index | None, partition: str, pk: str, sk: str, sort_key: str, body: bytes | None
) -> Item:
    """Return the item of a row, or its entry in an index."""
    item = decode_item(pk, sk, body)
    if index is None:
        return item
    if item.get(index.pk) != partition or item.get(index.sk) != sort_key:
        raise Unreadable(f"its keys differ from those in the index {index.name}")
    entry = index.entry(item)
    assert entry is not None
    return entry


def _cursor(query: QueryItems, pk: str, sk: str, sort_key: str) -> str:
    """Return the cursor after a row, even if its body cannot be read."""
    position = {PK: pk, SK: sk}
    if query.index is not None:
        position |= {query.index.pk: query.pk, query.index.sk: sort_key}
    return cursor_at(position, query.index)


def _decode_escaping(text: bytes) -> str:
    """Return text, with lone surrogates in place of bytes that are not UTF-8."""
    return text.decode(errors="surrogateescape")


def _is_text(value: object) -> bool:
    return type(value) is str and (value.isascii() or _shown(value) == value)


def _shown(value: object) -> str:
    """Return a key of any type as text that can be encoded."""
    return str(value).encode(errors="backslashreplace").decode()


def _start_position(after: str | None, oldest: int, newest: int) -> int:
    if after is None:
        return oldest - 1
    if after == LATEST:
        return newest
    is_position = isinstance(after, str) and _POSITION.fullmatch(after) is not None
    if not is_position or int(after) > newest:
        raise InvalidQuery(
            f"after must be a position of this feed; {after!r:.80} is not a position", field="after"
        )
    if int(after) < oldest - 1:
        raise ChangesTrimmed(
            f"the feed now begins after position {oldest - 1}, and {after} was trimmed"
        )
    return int(after)


def _collect_changes(rows: Iterable[Any]) -> list[Change]:
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
        located = Unreadable(f"{error}, at position {position} of the change feed")
        raise item_damaged_error(pk, sk, located) from error
    return Change(str(position), key, before, after, at_ms, bool(expired))


def _image(key: Key, body: bytes | None) -> Item | None:
    return None if body is None else decode_item(key.pk, key.sk, body)


def _select_statement(query: QueryItems) -> tuple[str, list[Any]]:
    pk, sk = (f'"{query.index.pk}"', f'"{query.index.sk}"') if query.index else ("pk", "sk")
    bounds, values = _bounds(query.range, sk)
    clauses = [f"{pk} = ?", *bounds]
    values = [query.pk, *values]
    # Entries of an index may have equal keys; the keys of the items order them.
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
    # No LIMIT, because damaged items do not count. The rows are fetched one at a time.
    sql = (
        f"SELECT pk, sk, {sk}, {BODY} FROM items WHERE {' AND '.join(clauses)} ORDER BY {ordering}"
    )
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
            end = _prefix_end(value)
            if end is None:
                return [f"{sk} >= ?"], [value]
            return [f"{sk} >= ?", f"{sk} < ?"], [value, end]


def _prefix_end(prefix: str) -> str | None:
    """Return the least string that is greater than all strings with the prefix."""
    kept = prefix.rstrip(chr(_LAST_CHARACTER))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    if following in _SURROGATES:
        following = _SURROGATES.stop
    return kept[:-1] + chr(following)
