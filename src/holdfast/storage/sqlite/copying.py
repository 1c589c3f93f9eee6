"""Copies a file while others write to it, and makes sure that nobody has one open."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from holdfast.errors import StoreCorrupt, StoreInUse
from holdfast.storage.item import Item
from holdfast.storage.layout import LAYOUT
from holdfast.storage.sqlite import schema
from holdfast.storage.sqlite.body import Unreadable, item_of
from holdfast.storage.sqlite.faults import fault
from holdfast.storage.sqlite.place import PRIVATE_FILE, is_open_here

__all__ = ["alone_with", "copy_file", "items_in"]

# The bytes on which SQLite locks a file: everybody who has it open shares the last 510.
_LOCKS_AT = 0x40000000
_LOCKS = 512


def copy_file(path: str, to: str) -> None:
    """Copy a store's file as it is at one moment into a new file, and check the copy.

    Raises:
        StoreMismatched, StoreCorrupt: it is not a store's file, or damaged.
        StoreUnavailable, StoreUnusable: it cannot be read, or the copy not be written.
    """
    with schema.connected(path) as source, closing(source):
        if not schema.check(source, path, LAYOUT):
            raise StoreCorrupt(f"{path} is empty, and not a store")
        os.close(os.open(to, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))
        os.chmod(to, PRIVATE_FILE)  # whatever the umask leaves out
        try:
            with closing(sqlite3.connect(to, isolation_level=None)) as target:
                source.backup(target)
                # So that it is one file, without a log beside it.
                target.execute("PRAGMA journal_mode = DELETE")
                (said,) = target.execute("PRAGMA integrity_check(1)").fetchone()
        except sqlite3.Error as error:
            raise fault(error, to) from error
    if said != "ok":
        raise StoreCorrupt(f"{path} is damaged: {said:.200}")


def items_in(path: str) -> Iterator[Item | None]:
    """Yield every item of a file that nobody changes; None for one that cannot be read."""
    with schema.connected(path) as connection, closing(connection):
        rows = connection.execute(f"SELECT pk, sk, {schema.BODY} FROM items")
        with closing(rows):
            for pk, sk, body in rows:
                try:
                    item = item_of(pk, sk, body)
                except Unreadable:
                    item = None
                yield item


@contextmanager
def alone_with(path: str) -> Generator[None]:
    """Keep everybody else from opening a file; there need not be one.

    Raises:
        StoreInUse: a process has it open.
    """
    if is_open_here(path):
        raise StoreInUse(f"this process has {path} open; close it first")
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKS, _LOCKS_AT)
        except OSError as error:
            raise StoreInUse(
                f"another process has {path} open; stop all workers and clients first"
            ) from error
        yield
    finally:
        os.close(file)
