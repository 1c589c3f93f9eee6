"""Connections to a store's file, its tables, and migrations from older schemas."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import quote_from_bytes

import msgspec

from holdfast.errors import StoreCorrupt, StoreMismatched, StoreUnusable, Throttled
from holdfast.storage.item import ITEM_BYTES_MAX
from holdfast.storage.layout import Layout
from holdfast.storage.sqlite.errors import store_error
from holdfast.storage.sqlite.file_guard import CONNECT_LOCK, FileGuard, make_private

__all__ = [
    "BODY",
    "BUSY_MS",
    "MEMORY",
    "MIGRATIONS",
    "check_schema",
    "connect",
    "open_for_reading",
    "open_for_writing",
]

# "Hold": identifies the files of Holdfast.
_APPLICATION_ID = 0x486F6C64

# How long a process waits for the commit of another process.
BUSY_MS = 30_000
_WAL_ATTEMPTS_MAX = 100
_CACHE_KIB = 16 * 1024

MEMORY = ":memory:"
"""The path of a store in memory."""

# A number has at most twice as many bytes here as in the size of an item.
_BODY_BYTES_MAX = 4 * ITEM_BYTES_MAX
BODY = f"CASE WHEN typeof(body) = 'blob' AND length(body) <= {_BODY_BYTES_MAX} THEN body END"
"""The body column, or NULL if it cannot be an item: then it is never loaded."""

# A file may be hostile. These limits bound the work of SQLite. Our own statements and values are
# far below them.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 8 * 1024 * 1024,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 2,
}
_OBJECTS_MAX = 100
_LAYOUT_BYTES_MAX = 64 * 1024

# Rows are numbered, so that new ones are appended to the end of the file in any order of keys. Only
# the small index on the key is written in key order. A table clustered by key took 14,000 rows a
# second in a benchmark, this one 48,000.
_ITEMS = """
CREATE TABLE items (
  id INTEGER PRIMARY KEY,
  pk TEXT NOT NULL,
  sk TEXT NOT NULL,
  body BLOB NOT NULL,
  ttl INTEGER{columns}
);
CREATE UNIQUE INDEX items_key ON items (pk, sk);
CREATE INDEX items_ttl ON items (ttl) WHERE ttl IS NOT NULL;
CREATE TABLE about (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
_INDEX = """
CREATE INDEX "items_{name}" ON items ("{name}PK", "{name}SK", pk, sk)
  WHERE "{name}PK" IS NOT NULL;
"""

# Triggers write the change feed, so that every process that has the file open writes to it.
# `moment` tells them the time and the reason; it has a row only while the feed is on. AUTOINCREMENT
# never assigns a position twice, even after all records were trimmed.
_CHANGES = """
CREATE TABLE changes (
  position INTEGER PRIMARY KEY AUTOINCREMENT,
  pk TEXT NOT NULL,
  sk TEXT NOT NULL,
  old BLOB,
  new BLOB,
  at_ms INTEGER NOT NULL,
  expired INTEGER NOT NULL
);
CREATE TABLE moment (at_ms INTEGER NOT NULL, expired INTEGER NOT NULL);
"""
_CHANGES_ON = """
CREATE TRIGGER items_inserted AFTER INSERT ON items BEGIN
  INSERT INTO changes (pk, sk, old, new, at_ms, expired)
  SELECT new.pk, new.sk, NULL, new.body, at_ms, expired FROM moment;
END;
CREATE TRIGGER items_updated AFTER UPDATE OF body ON items WHEN old.body IS NOT new.body BEGIN
  INSERT INTO changes (pk, sk, old, new, at_ms, expired)
  SELECT new.pk, new.sk, old.body, new.body, at_ms, expired FROM moment;
END;
CREATE TRIGGER items_deleted AFTER DELETE ON items BEGIN
  INSERT INTO changes (pk, sk, old, new, at_ms, expired)
  SELECT old.pk, old.sk, old.body, NULL, at_ms, expired FROM moment;
END;
INSERT INTO moment VALUES (0, 0);
-- Use up a position, so that readers of an earlier feed notice the gap.
INSERT INTO changes (pk, sk, at_ms, expired) VALUES ('', '', 0, 0);
DELETE FROM changes;
"""
_CHANGES_OFF = """
DROP TRIGGER items_inserted;
DROP TRIGGER items_updated;
DROP TRIGGER items_deleted;
DELETE FROM moment;
DELETE FROM changes;
"""


def open_for_writing(
    path: str,
    layout: Layout,
    *,
    guard: FileGuard | None,
    changes: bool | None,
    max_bytes: int | None,
    busy_ms: int | None = None,
) -> sqlite3.Connection:
    """Return a connection that writes durably to a file of this layout.

    While it is opened, other processes may keep the file locked for ``busy_ms``.

    It writes only if the schema or the feed must change, and only after `FileGuard.watch_log`.

    Raises:
        StoreMismatched: a newer release or another program created the file, or it has other
            indexes.
        StoreCorrupt: the file has tables, views or triggers that are not ours.
        StoreReplaced: the file was replaced meanwhile.
        StoreUnavailable, StoreUnusable: the file cannot be opened.
    """
    with connect(path, busy_ms) as connection:
        # First of all: do not touch a file of another program, or one that was tampered with.
        checked = check_schema(connection, path, layout, guard)
        if guard is not None:
            make_private(path)
        _switch_to_wal(connection, path)
        version = _read_version(connection)
        if guard is not None:
            # Since that read, the connection holds a lock that keeps restores out.
            guard.watch_log()
        connection.execute("PRAGMA synchronous = FULL")
        if max_bytes is not None:
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count = {max(max_bytes // page_bytes, 1)}")
        if version < len(MIGRATIONS):
            with _transaction(connection, guard):
                _migrate(connection, path, layout)
            checked = False
        if not checked:
            check_schema(connection, path, layout, guard)
        if changes is not None and changes is not _is_feed_on(connection):
            with _transaction(connection, guard):
                _switch_feed(connection, changes)
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        return connection


def open_for_reading(path: str, busy_ms: int | None = None) -> sqlite3.Connection:
    """Return a read-only connection to a file that this process has open for writing.

    While it is opened, other processes may keep the file locked for ``busy_ms``.

    Raises:
        StoreUnavailable, StoreUnusable: the file cannot be opened.
    """
    with connect(path, busy_ms) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        return connection


@contextmanager
def connect(path: str, busy_ms: int | None = None) -> Generator[sqlite3.Connection]:
    """Open a file. If the body fails, close it and raise SQLite's errors as errors of Holdfast.

    The file is not trusted: its schema cannot call functions.

    Raises:
        StoreUnavailable, StoreUnusable: the file cannot be opened.
    """
    connection: sqlite3.Connection | None = None
    try:
        with CONNECT_LOCK:
            connection = _connect_sqlite(path, BUSY_MS if busy_ms is None else busy_ms)
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        yield connection
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise store_error(error, path) from error
        raise


def _connect_sqlite(path: str, busy_ms: int) -> sqlite3.Connection:
    """Connect to an existing file. SQLite must not create one if ours was deleted."""
    name = path
    if path != MEMORY:
        name = f"file://{quote_from_bytes(os.fsencode(os.path.abspath(path)))}?mode=rw"
    return sqlite3.connect(
        name,
        timeout=busy_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        uri=path != MEMORY,
    )


def _switch_to_wal(connection: sqlite3.Connection, path: str) -> None:
    """Switch the file to a write-ahead log, so that readers do not wait for writers.

    SQLite does not wait for other processes here, but fails at once as busy. An empty transaction
    waits for them; then we try again.
    """
    for _ in range(_WAL_ATTEMPTS_MAX):
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            with _transaction(connection):
                pass
        else:
            if mode not in ("wal", "memory"):
                raise StoreUnusable(
                    f"{path} must be on a file system that supports SQLite's write-ahead log; "
                    f"its journal mode stays {mode!r}"
                )
            return
    raise Throttled(f"too many processes open {path} at once; try again")


@contextmanager
def _transaction(connection: sqlite3.Connection, guard: FileGuard | None = None) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        if guard is not None:
            guard.check()
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _create_tables(connection: sqlite3.Connection, layout: Layout) -> None:
    columns = "".join(f',\n  "{index.pk}" TEXT,\n  "{index.sk}" TEXT' for index in layout.indexes)
    _run_script(connection, _ITEMS.format(columns=columns))
    for index in layout.indexes:
        _run_script(connection, _INDEX.format(name=index.name))
    _run_script(connection, _CHANGES)
    connection.execute(
        "INSERT INTO about VALUES ('layout', ?)", (msgspec.json.encode(layout, order="sorted"),)
    )
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")


_Migration: TypeAlias = Callable[[sqlite3.Connection, Layout], None]
MIGRATIONS: list[_Migration] = [_create_tables]
"""Each one migrates a file to the next schema. Never change one that was released."""


def _migrate(connection: sqlite3.Connection, path: str, layout: Layout) -> None:
    # Again, now that no other process can write: one may have migrated the file meanwhile.
    _check_owner(connection, path)
    for migrate in MIGRATIONS[_read_version(connection) :]:
        migrate(connection, layout)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _read_version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _check_owner(connection: sqlite3.Connection, path: str) -> None:
    # In one transaction, because another process may be creating the file. Only with statements
    # that no table or view of the file can imitate, as one could imitate pragma_user_version.
    version = _read_version(connection)
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    is_new = version == 0 and tables == 0
    if not is_new and application != _APPLICATION_ID:
        raise StoreMismatched(f"{path} is a database of another program; choose another file")
    if version < 0 or (version == 0 and tables > 0):
        raise StoreCorrupt(f"{path} is damaged: it has schema {version} and {tables} tables")
    if version > len(MIGRATIONS):
        raise StoreMismatched(
            f"{path} has schema {version}, and this release knows only {len(MIGRATIONS)}: upgrade "
            "holdfast"
        )


# --- checks of a file that may be hostile ---------------------------------------------------------

_Object: TypeAlias = tuple[str, str, str, str | None]
"""A row of the schema: type, name, table, statement."""


def check_schema(
    connection: sqlite3.Connection, path: str, layout: Layout, guard: FileGuard | None = None
) -> bool:
    """Check that Holdfast created a file and its schema is unchanged; return False if it is empty.

    The guard checks the file before and after the first read, because SQLite opens the log by its
    name, even if that log belongs to another file than the connection.

    Only the schema is read until it is known to be ours: a view in place of a table may never end.

    Raises:
        StoreMismatched: a newer release or another program created the file, or it has other
            indexes.
        StoreCorrupt: the file has tables, views or triggers that are not ours, or lacks some.
        StoreReplaced: the file was replaced meanwhile.
    """
    if guard is not None:
        guard.check_opening()
    connection.execute("BEGIN")  # one snapshot, since another process may switch the feed
    try:
        version = _read_version(connection)
        if guard is not None:
            guard.check_opening()
        _check_owner(connection, path)
        (encoding,) = connection.execute("PRAGMA encoding").fetchone()
        if encoding != "UTF-8":
            raise StoreCorrupt(f"{path} must have the encoding UTF-8, got {encoding}")
        if version == 0:
            return False
        found = _read_objects(connection)
        _check_objects(
            path, _about_objects(found), _about_objects(_expected_objects(version, layout, False))
        )
        _check_layout(connection, path, layout)
        on = any(kind == "trigger" for kind, *_ in found)
        _check_objects(path, found, _expected_objects(version, layout, on))
        moments = connection.execute("SELECT 1 FROM moment LIMIT 2").fetchall()
        if len(moments) != int(on):
            raise StoreCorrupt(f"{path} is damaged: its change feed is only partly switched on")
        return True
    finally:
        with suppress(sqlite3.Error):
            connection.execute("COMMIT")


# Tables that SQLite creates if a user runs ANALYZE.
_STATISTICS: frozenset[_Object] = frozenset(
    ("table", name, name, f"CREATE TABLE {name}({columns})")
    for name, columns in (
        ("sqlite_stat1", "tbl,idx,stat"),
        ("sqlite_stat4", "tbl,idx,neq,nlt,ndlt,sample"),
    )
)


def _read_objects(connection: sqlite3.Connection) -> frozenset[_Object]:
    rows = connection.execute(
        f"SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT {_OBJECTS_MAX}"
    )
    return frozenset(rows.fetchall()) - _STATISTICS


def _about_objects(objects: frozenset[_Object]) -> frozenset[_Object]:
    return frozenset(each for each in objects if each[1] == "about" or each[2] == "about")


def _check_objects(path: str, found: frozenset[_Object], expected: frozenset[_Object]) -> None:
    for kind, name, *_ in sorted(found - expected, key=repr):
        raise StoreCorrupt(
            f"{path} is damaged or was tampered with: holdfast did not create its {kind!s:.20} "
            f"{name!r:.80}"
        )
    for kind, name, *_ in sorted(expected - found, key=repr):
        raise StoreCorrupt(f"{path} is damaged: it has no {kind} {name!r}")


def _expected_objects(version: int, layout: Layout, changes: bool) -> frozenset[_Object]:
    """Return the schema that a file of this version must have, as SQLite stores it."""
    return _build_objects(tuple(MIGRATIONS[:version]), layout, changes)


@lru_cache(maxsize=16)
def _build_objects(
    migrations: tuple[_Migration, ...], layout: Layout, changes: bool
) -> frozenset[_Object]:
    with closing(sqlite3.connect(MEMORY, isolation_level=None)) as connection:
        for migrate in migrations:
            migrate(connection, layout)
        _switch_feed(connection, changes)
        return _read_objects(connection)


def _check_layout(connection: sqlite3.Connection, path: str, layout: Layout) -> None:
    row = connection.execute(
        "SELECT value FROM about WHERE name = 'layout' AND typeof(value) = 'blob' "
        f"AND length(value) <= {_LAYOUT_BYTES_MAX}"
    ).fetchone()
    try:
        stored = msgspec.json.decode(row[0], type=Layout)
    except (TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise StoreCorrupt(f"{path} is damaged: the list of its indexes cannot be read") from error
    if stored != layout:
        raise StoreMismatched(f"{path} was created with other indexes: {row[0].decode():.500}")


def _is_feed_on(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM moment").fetchone() is not None


def _switch_feed(connection: sqlite3.Connection, on: bool) -> None:
    if on is not _is_feed_on(connection):
        _run_script(connection, _CHANGES_ON if on else _CHANGES_OFF)


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    # Not executescript, which would commit the enclosing transaction.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
