"""`SqliteWriter`: writes a batch of operations to the file, in one durable transaction.

It is synchronous. The engine calls `apply` in its writer thread; the simulator calls it directly.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import (
    InvalidRequest,
    ItemDamaged,
    OutcomeUnknown,
    StoreError,
    StoreNotFound,
)
from holdfast.storage.item import ITEM_BYTES_MAX, Item, item_bytes
from holdfast.storage.layout import PK, SK, TTL, Key, Layout
from holdfast.storage.operations import (
    Reply,
    TransactItems,
    WriteItem,
    WriteItems,
    WriteOperation,
)
from holdfast.storage.sqlite import schema
from holdfast.storage.sqlite.errors import may_have_committed, store_error
from holdfast.storage.sqlite.file_guard import FileGuard, check_openable, prepare_file
from holdfast.storage.sqlite.item_codec import Unreadable, decode_item, encode_attributes
from holdfast.storage.sqlite.reader import item_damaged_error
from holdfast.storage.units import (
    WRITE_UNITS_MIN,
    cancelled_units,
    new_item_units,
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
from holdfast.storage.writes import (
    Absent,
    Check,
    Condition,
    Delete,
    Put,
    TransactionWrite,
    Update,
    Write,
    holds,
    item_after,
)

__all__ = ["SqliteWriter"]

# As on DynamoDB: an older ttl is probably a mistake, such as a wrong unit.
_EXPIRED_SECONDS_MAX = 5 * 365 * 24 * 3600
_SWEEP_BUSY_MS = 50
_CHANGES_KEPT_MS = 24 * 3600 * 1000
_SELECT_ITEM = f"SELECT id, {schema.BODY} FROM items WHERE pk = ? AND sk = ?"


class SqliteWriter:
    """Writes to one file. Not thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        layout: Layout,
        clock: Clock,
        changes: bool | None = None,
        max_bytes: int | None = None,
        make: bool = True,
        busy_ms: int | None = None,
    ) -> None:
        """Open or create the file; other processes may keep it locked for ``busy_ms``."""
        self.path = path
        self.layout = layout
        self._clock = clock
        self.guard: FileGuard | None = None
        if path != schema.MEMORY:
            prepare_file(path, make=make)
            self.guard = FileGuard(path)
        try:
            self.connection = schema.open_for_writing(
                path,
                layout,
                guard=self.guard,
                changes=changes,
                max_bytes=max_bytes,
                busy_ms=busy_ms,
            )
        except BaseException as error:
            if self.guard is not None:
                self.guard.release()
                if isinstance(error, StoreNotFound):
                    check_openable(path)  # if a restore just moved the file away, say so instead
            raise
        # One cursor for all statements: Connection.execute() would create one each time.
        self._cursor = self.connection.cursor()
        # The attributes that have a column, besides the key.
        self._indexed_columns = [
            TTL,
            *(name for name in layout.key_attributes if name not in (PK, SK)),
        ]
        self._inserts: dict[tuple[str, ...], str] = {}
        self._updates: dict[tuple[str, ...], str] = {}

    def apply(self, batch: Sequence[WriteOperation]) -> list[Reply]:
        """Perform the operations in one transaction and commit it.

        An operation that is refused, or fails, does not affect the others. If the transaction
        itself cannot begin or commit, every reply contains the error.
        """
        try:
            self._begin()
        except (sqlite3.Error, StoreError) as error:
            return [self._error_reply(error) for _ in batch]
        try:
            replies = [self._execute(operation) for operation in batch]
        except Exception as error:
            self._roll_back()
            if len(batch) > 1:
                return [reply for operation in batch for reply in self.apply([operation])]
            return [self._error_reply(error)]
        except BaseException:
            self._roll_back()
            raise
        try:
            self._commit()
        except (sqlite3.Error, StoreError) as error:
            self._roll_back()
            if isinstance(error, sqlite3.Error) and may_have_committed(error):
                return [self._outcome_unknown_reply(error) for _ in batch]
            return [self._error_reply(error) for _ in batch]
        return replies

    def sweep(self, limit: int) -> int:
        """Delete up to ``limit`` expired items, and as many old changes; return the larger number.

        It waits only briefly for other processes, because it will run again.

        Raises:
            StoreUnavailable, StoreUnusable: the file cannot be written now.
        """
        try:
            self._cursor.execute(f"PRAGMA busy_timeout = {_SWEEP_BUSY_MS}")
            # Two transactions: a feed that cannot be trimmed must not keep items from expiring.
            return max(self._delete_expired(limit), self._trim_changes(limit))
        except sqlite3.Error as error:
            raise self._store_error(error) from error
        finally:
            with suppress(sqlite3.Error):
                self._cursor.execute(f"PRAGMA busy_timeout = {schema.BUSY_MS}")

    def _delete_expired(self, limit: int) -> int:
        now = self._clock.now_ms() // 1000
        with self._sweep_transaction():
            return self._cursor.execute(
                "DELETE FROM items WHERE id IN "
                "(SELECT id FROM items WHERE ttl < ? AND ttl > ? LIMIT ?)",
                (now, now - _EXPIRED_SECONDS_MAX, limit),
            ).rowcount

    def _trim_changes(self, limit: int) -> int:
        """Delete the oldest changes of the feed, up to the first that is not old enough.

        Not all old ones: the clock may have been set back, and the feed must not have gaps. A
        damaged change without a time is deleted together with the next one that has a time.
        """
        before_ms = self._clock.now_ms() - _CHANGES_KEPT_MS
        dated = self._cursor.execute(
            "SELECT position, at_ms FROM changes WHERE typeof(at_ms) = 'integer' "
            "ORDER BY position LIMIT ?",
            (limit,),
        ).fetchall()
        old = [position for position, _ in takewhile(lambda row: row[1] < before_ms, dated)]
        if old:
            with self._sweep_transaction():
                self._cursor.execute("DELETE FROM changes WHERE position <= ?", (old[-1],))
        return len(old)

    @contextmanager
    def _sweep_transaction(self) -> Generator[None]:
        try:
            self._begin(expired=True)
            yield
            self._commit()
        except BaseException:
            self._roll_back()
            raise

    def close(self) -> None:
        """Close the file."""
        with suppress(sqlite3.ProgrammingError):  # already closed
            # First, because SQLite keeps a file open as long as it has statements.
            self._cursor.close()
        self.connection.close()
        if self.guard is not None:
            self.guard.release()

    def _begin(self, *, expired: bool = False) -> None:
        self._cursor.execute("BEGIN IMMEDIATE")
        try:
            self._cursor.execute(
                "UPDATE moment SET at_ms = ?, expired = ?", (self._clock.now_ms(), expired)
            )
        except BaseException:
            self._roll_back()
            raise

    def _commit(self) -> None:
        """Commit, if the file is still the one that was opened.

        Raises:
            StoreReplaced: the file was replaced, and the writes would be lost.
        """
        if self.guard is not None:
            self.guard.check()
        self._cursor.execute("COMMIT")
        if self.guard is not None:
            self.guard.check_file()  # again, because a commit takes a while

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._cursor.execute("ROLLBACK")

    def _error_reply(self, error: Exception) -> Reply:
        return Reply(error=self._store_error(error))

    def _store_error(self, error: Exception) -> Exception:
        """Return the Holdfast error; if the file was replaced, say that instead."""
        if self.guard is not None and isinstance(error, sqlite3.Error):
            try:
                self.guard.check_file()
            except StoreError as replaced:
                return replaced
        return store_error(error, self.path)

    def _outcome_unknown_reply(self, error: sqlite3.Error) -> Reply:
        return Reply(
            error=OutcomeUnknown(
                f"{self.path}: the commit failed, and may take effect later: {error}"
            )
        )

    def _execute(self, operation: WriteOperation) -> Reply:
        match operation:
            case WriteItem(write, returning):
                return self._write(write, returning)
            case TransactItems(writes):
                return self._transact(writes)
            case WriteItems(writes):
                return Reply(
                    units=sum_units(self._write(write, "nothing").units for write in writes)
                )

    def _write(self, write: Put | Update | Delete, returning: str) -> Reply:
        if isinstance(write, Put) and _requires_absence(write.condition):
            return self._put_new(write, returning)
        try:
            row, old = self._read_item(write.key)
        except ItemDamaged as error:
            if isinstance(write, Update) or write.condition is not None or returning == "old":
                return Reply(error=error, units=WRITE_UNITS_MIN)
            # A damaged item can still be replaced or deleted.
            self._cursor.execute("DELETE FROM items WHERE pk = ? AND sk = ?", write.key)
            row, old = None, None
        if not holds(write.condition, old):
            return _refused_reply(write, old)
        try:
            new = self._item_after(write, old)
        except InvalidRequest as error:
            return Reply(error=error, units=WRITE_UNITS_MIN)
        self._store_item(row, old, new)
        value = old if returning == "old" else new if returning == "new" else None
        return Reply(value, write_units(old, new, self.layout))

    def _put_new(self, put: Put, returning: str) -> Reply:
        """Put an item under a key that must be free, with one statement instead of two."""
        if self._insert(put.item):
            value = dict(put.item) if returning == "new" else None
            return Reply(value, new_item_units(put, self.layout))
        try:
            return _refused_reply(put, self._read_item(put.key)[1])
        except ItemDamaged as error:
            return Reply(error=error, units=WRITE_UNITS_MIN)

    def _transact(self, writes: Sequence[TransactionWrite]) -> Reply:
        try:
            existing = [self._read_item(write.key) for write in writes]
        except ItemDamaged as error:
            return Reply(error=error, units=cancelled_units(writes, {}))
        failed = {
            position: old
            for position, (write, (_, old)) in enumerate(zip(writes, existing, strict=True))
            if not holds(write.condition, old)
        }
        if failed:
            units = cancelled_units(writes, failed)
            return Reply(error=transaction_cancelled_error(writes, failed), units=units)
        try:
            outcomes = [
                self._item_after(write, old)
                for write, (_, old) in zip(writes, existing, strict=True)
            ]
        except InvalidRequest as error:
            return Reply(error=error, units=cancelled_units(writes, {}))
        units = [
            write_units(old, new, self.layout)
            for (_, old), new in zip(existing, outcomes, strict=True)
        ]
        for write, (row, old), new in zip(writes, existing, outcomes, strict=True):
            if not isinstance(write, Check):
                self._store_item(row, old, new)
        return Reply(units=transaction_units(sum_units(units)))

    def _item_after(self, write: TransactionWrite, old: Item | None) -> Item | None:
        new = item_after(write, old)
        # The size of a put was checked when it was validated.
        if isinstance(write, Update) and new is not None:
            size = item_bytes(new)
            if size > ITEM_BYTES_MAX:
                raise update_too_large_error(write.key, size)
        return new

    def _read_item(self, key: Key) -> tuple[int | None, Item | None]:
        found = self._cursor.execute(_SELECT_ITEM, key).fetchone()
        if found is None:
            return None, None
        row, body = found
        try:
            return row, decode_item(key.pk, key.sk, body)
        except Unreadable as error:
            raise item_damaged_error(key.pk, key.sk, error) from error

    def _store_item(self, row: int | None, old: Item | None, new: Item | None) -> None:
        if new is None:
            if row is not None:
                self._cursor.execute("DELETE FROM items WHERE id = ?", (row,))
        elif row is None or old is None:
            self._insert(new)
        else:
            self._update(row, old, new)

    def _update(self, row: int, old: Item, new: Item) -> None:
        # Only the columns that change: SQLite rewrites the index of each column named.
        moved = tuple([name for name in self._indexed_columns if old.get(name) != new.get(name)])
        statement = self._updates.get(moved)
        if statement is None:
            columns = "".join(f', "{name}" = ?' for name in moved)
            statement = self._updates[moved] = f"UPDATE items SET body = ?{columns} WHERE id = ?"
        values = (_encode_body(new), *[new.get(name) for name in moved], row)
        self._cursor.execute(statement, values)

    def _insert(self, item: Mapping[str, Any]) -> bool:
        """Insert the item unless there is one with its key; return whether it was inserted."""
        # Only the columns that it has: binding a NULL costs almost as much as binding a value.
        placed = tuple([name for name in self._indexed_columns if name in item])
        statement = self._inserts.get(placed)
        if statement is None:
            columns = ["pk", "sk", "body", *(f'"{name}"' for name in placed)]
            statement = self._inserts[placed] = (
                f"INSERT INTO items ({', '.join(columns)}) "
                f"VALUES ({', '.join('?' for _ in columns)}) ON CONFLICT DO NOTHING"
            )
        values = (item[PK], item[SK], _encode_body(item), *[item[name] for name in placed])
        return self._cursor.execute(statement, values).rowcount == 1


def _encode_body(item: Mapping[str, Any]) -> bytes:
    attributes = dict(item)
    del attributes[PK], attributes[SK]
    return encode_attributes(attributes)


def _requires_absence(condition: Condition | None) -> bool:
    return isinstance(condition, Absent) and condition.name in (PK, SK)


def _refused_reply(write: Write, existing: Item | None) -> Reply:
    return Reply(
        error=condition_failed_error(write.key, existing), units=refused_units(write, existing)
    )
