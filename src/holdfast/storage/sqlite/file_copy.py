"""Copies of a store's file, while other processes may write to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

from holdfast.errors import StoreCorrupt
from holdfast.storage.item import Item
from holdfast.storage.layout import LAYOUT
from holdfast.storage.sqlite import schema
from holdfast.storage.sqlite.file_guard import PRIVATE_FILE, FileGuard, prepare_file
from holdfast.storage.sqlite.item_codec import Unreadable, decode_item

__all__ = ["copy_file", "read_items"]


def copy_file(path: str, to: str) -> None:
    """Copy a store's file to a new file, as it is at one moment, and check the copy.

    Raises:
        StoreNotFound: the file is missing, perhaps with its log still there.
        StoreMismatched, StoreCorrupt: the file is not a store, or is damaged.
        StoreReplaced: the file was deleted or replaced meanwhile.
        StoreUnavailable, StoreUnusable: the file cannot be read, or the copy cannot be written.
    """
    prepare_file(path, make=False)
    guard = FileGuard(path)
    try:
        with schema.connect(path) as source, closing(source):
            if not schema.check_schema(source, path, LAYOUT, guard):
                raise StoreCorrupt(f"{path} is empty, and so not a store")
            os.close(os.open(to, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))
            os.chmod(to, PRIVATE_FILE)  # the umask may have removed bits
            with schema.connect(to) as target, closing(target):
                source.backup(target)
                # The copy must be one file, without a log beside it.
                target.execute("PRAGMA journal_mode = DELETE")
                (integrity,) = target.execute("PRAGMA integrity_check(1)").fetchone()
            guard.check_opening()
    finally:
        guard.release()
    if integrity != "ok":
        raise StoreCorrupt(f"{path} is damaged: {integrity:.200}")


def read_items(path: str) -> Iterator[Item | None]:
    """Yield every item of a file that no process changes; None for one that cannot be read."""
    with schema.connect(path) as connection, closing(connection):
        rows = connection.execute(f"SELECT pk, sk, {schema.BODY} FROM items")
        with closing(rows):
            for pk, sk, body in rows:
                try:
                    item = decode_item(pk, sk, body)
                except Unreadable:
                    item = None
                yield item
