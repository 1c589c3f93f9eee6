"""The file: its connections, its tables, and how an older file is brought up to date."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import msgspec

from holdfast.errors import StoreMismatched
from holdfast.storage.layout import Layout

__all__ = ["MIGRATIONS", "connected", "prepare", "switch_changes"]

# "Hold": tells our files from other programs'.
_APPLICATION_ID = 0x486F6C64

# How long a process waits for another one to finish its commit.
_BUSY_SECONDS = 30.0
_CACHE_KIB = 16 * 1024

# The rows have a number of their own, so that new ones are appended to the end of the file in
# whatever order their keys come; only the (small) index on the key is written in key order.
# A table clustered by key takes 14,000 rows a second here, this one 48,000.
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

# The feed is written by triggers: they bind every process that has the file open, whether or not
# it asked for the feed. `moment` tells them when and why; it has a row only while the feed is on.
# AUTOINCREMENT, so that a position is never given out twice, also when all records were trimmed.
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
_TRIGGERS_ON = """
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
"""
_TRIGGERS_OFF = """
DROP TRIGGER items_inserted;
DROP TRIGGER items_updated;
DROP TRIGGER items_deleted;
DELETE FROM moment;
DELETE FROM changes;
"""


def connected(path: str, *, max_bytes: int | None = None) -> sqlite3.Connection:
    """Return a connection that commits durably and waits for other processes."""
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if max_bytes is not None:
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count = {max(max_bytes // page_bytes, 1)}")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: str, layout: Layout) -> None:
    """Create the tables, or bring those of an older release up to date.

    Raises:
        StoreMismatched: a newer release, another program or other indexes made the file.
    """
    with _transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        _check_owner(connection, path, version)
        for migrate in MIGRATIONS[version:]:
            migrate(connection, layout)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        _check_layout(connection, path, layout)


def switch_changes(connection: sqlite3.Connection, on: bool | None) -> None:
    """Turn the change feed on or off for every process; leave it as it is where None."""
    with _transaction(connection):
        is_on = connection.execute("SELECT 1 FROM moment").fetchone() is not None
        if on is not None and on is not is_on:
            _run(connection, _TRIGGERS_ON if on else _TRIGGERS_OFF)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _create(connection: sqlite3.Connection, layout: Layout) -> None:
    columns = "".join(f',\n  "{index.pk}" TEXT,\n  "{index.sk}" TEXT' for index in layout.indexes)
    _run(connection, _ITEMS.format(columns=columns))
    for index in layout.indexes:
        _run(connection, _INDEX.format(name=index.name))
    _run(connection, _CHANGES)
    connection.execute(
        "INSERT INTO about VALUES ('layout', ?)", (msgspec.json.encode(layout, order="sorted"),)
    )
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")


MIGRATIONS: list[Callable[[sqlite3.Connection, Layout], None]] = [_create]
"""What brings a file from each schema to the next; never change one that was released."""


def _check_owner(connection: sqlite3.Connection, path: str, version: int) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    is_empty = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    if not is_empty and application != _APPLICATION_ID:
        raise StoreMismatched(f"{path} is a database of another program")
    if version > len(MIGRATIONS):
        raise StoreMismatched(
            f"{path} has schema {version}; this release knows {len(MIGRATIONS)}: upgrade holdfast"
        )


def _check_layout(connection: sqlite3.Connection, path: str, layout: Layout) -> None:
    (stored,) = connection.execute("SELECT value FROM about WHERE name = 'layout'").fetchone()
    if msgspec.json.decode(stored, type=Layout) != layout:
        raise StoreMismatched(f"{path} was made with other indexes: {bytes(stored).decode()}")


def _run(connection: sqlite3.Connection, script: str) -> None:
    # Not executescript: that would commit the transaction in which this must stand.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
