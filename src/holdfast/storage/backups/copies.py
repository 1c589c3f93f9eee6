"""Copies of a store: its file as it is at one moment, and every blob that the file refers to.

The store may be in use meanwhile. No run in the copy refers to a blob that is missing from it:

1. Copy the blobs. This saves most of those that are deleted during the next step.
2. Copy the file, as it is at one moment.
3. Copy the blobs that were put since. Every blob that the copied file refers to existed in step 2.
4. Check every blob that the copied file refers to. A blob that was put and deleted between steps 1
   and 3 is missing. Then copy the file again: the new copy no longer refers to it. A blob that two
   copies in a row refer to and that the store does not have is missing in the store itself. The
   blobs of runs that are being freed may be missing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from holdfast.clock import SystemClock, SystemIds
from holdfast.errors import InvalidItem, StoreNotFound, StoreUnavailable
from holdfast.storage.backups.paths import PARTIAL, StorePaths, list_names
from holdfast.storage.backups.restore_marker import COPY_ID, read_progress
from holdfast.storage.blobs import BLOB_BYTES_MAX, LIST_LIMIT_MAX, BlobEntry, BlobRef
from holdfast.storage.folder_blobs import FolderBlobs
from holdfast.storage.item import Item
from holdfast.storage.sqlite.file_copy import copy_file, read_items
from holdfast.storage.sqlite.file_guard import SQLITE_SUFFIXES

__all__ = ["CopyReport", "PartialCopy", "copy_store"]

_ATTEMPTS_MAX = 5
# A worker frees the blobs of a run this long before the ttl of the items that refer to them.
_BLOBS_FREED_BEFORE_TTL_SECONDS = 3600


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup or a restore copied."""

    items: int
    blobs: int
    """How many blobs the items refer to."""
    missing: int
    """How many of these blobs are missing or damaged; above 0 only if the caller allowed it.

    Blobs of runs that are being freed do not count.
    """
    damaged: int
    """How many items cannot be read."""
    aside: str | None = None
    """Where a restore moved the file of the old store."""
    aside_blobs: str | None = None
    """Where a restore moved the blobs of the old store."""


class PartialCopy:
    """A copy under temporary names, as a context manager.

    Leaving the context removes the copy, unless it was moved to its final names or ``is_kept``.
    """

    def __init__(self, paths: StorePaths, id: str | None = None) -> None:
        self._paths = paths
        self.id = id or SystemIds().new()
        self.file = paths.sibling_file(PARTIAL + self.id)
        self.blobs = paths.sibling_blobs(PARTIAL + self.id)
        self.is_kept = False
        self._lock_fd: int | None = None

    def __enter__(self) -> PartialCopy:
        self._remove_leftovers()
        FolderBlobs(self.blobs).create()
        self.lock()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_kept:
            self.remove()
        self.unlock()

    def lock(self) -> None:
        """Lock the copy, so that other processes do not take it for a leftover.

        Raises:
            OSError: another process, which is alive, holds the lock.
        """
        self._lock_fd = os.open(self.blobs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove what is left of the copy."""
        self.remove_file()
        shutil.rmtree(self.blobs, ignore_errors=True)

    def unlock(self) -> None:
        """Release the lock, if this process holds it."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def remove_file(self) -> None:
        """Remove the copied file, but not the copied blobs."""
        for suffix in ("", *SQLITE_SUFFIXES):
            with suppress(FileNotFoundError):
                os.unlink(f"{self.file}{suffix}")

    def _remove_leftovers(self) -> None:
        """Remove the copies of processes that died, except one that a restore still needs."""
        before, _, after = self.blobs.name.partition(self.id)
        kept = read_progress(self._paths)
        for name in list_names(self.blobs.parent):
            id = name.removeprefix(before).removesuffix(after)
            if name != f"{before}{id}{after}" or not COPY_ID.fullmatch(id):
                continue
            leftover = PartialCopy(self._paths, id)
            if kept is None or kept.id != id:
                with suppress(OSError):
                    leftover.lock()
                    leftover.remove()
            leftover.unlock()


def copy_store(file: str, folder: str, partial: PartialCopy) -> tuple[CopyReport, int]:
    """Copy a store; return what was copied, and how many blobs its runs need.

    Raises:
        StoreNotFound: there is no such file.
        StoreUnavailable: blobs are deleted faster than they are copied.
    """
    if not os.path.isfile(file):
        raise StoreNotFound(f"there is no file {file}")
    source, copy = FolderBlobs(Path(folder)), FolderBlobs(partial.blobs)
    _copy_blobs(source, copy)
    before: set[BlobRef] | None = None
    for _ in range(_ATTEMPTS_MAX):
        partial.remove_file()
        copy_file(file, str(partial.file))
        _copy_blobs(source, copy)
        items, damaged, refs, needed = _read_contents(str(partial.file))
        missing = {ref for ref in refs if not _ensure_blob_copied(source, copy, ref)} & needed
        if not missing or missing == before:
            copied = CopyReport(items=items, blobs=len(refs), missing=len(missing), damaged=damaged)
            return copied, len(needed)
        before = missing
    raise StoreUnavailable(f"blobs of {file} are deleted faster than they are copied; try again")


def _copy_blobs(source: FolderBlobs, copy: FolderBlobs) -> None:
    """Copy the blobs that the copy lacks; equal keys and sizes mean equal bytes."""
    copied = {entry.key: entry.size for entry in _list_blobs(copy)}
    for entry in _list_blobs(source):
        if copied.get(entry.key) != entry.size:
            _copy_blob(source, copy, entry.key)


def _copy_blob(source: FolderBlobs, copy: FolderBlobs, key: str) -> None:
    content = source.read(key, BLOB_BYTES_MAX)
    if content is not None and content.data is not None:  # else it was deleted meanwhile
        copy.write(key, content.data, "")


def _list_blobs(blobs: FolderBlobs) -> Iterator[BlobEntry]:
    after: str | None = None
    while True:
        page = blobs.list_page("", after, LIST_LIMIT_MAX)
        yield from page.entries
        after = page.cursor
        if after is None:
            return


class _StoreContents(NamedTuple):
    """What a copied file contains."""

    items: int
    damaged: int
    """How many items cannot be read."""
    refs: set[BlobRef]
    """The blobs that the items refer to."""
    needed: set[BlobRef]
    """Those that are not being freed, and so must exist."""


def _read_contents(path: str) -> _StoreContents:
    items = damaged = 0
    refs: set[BlobRef] = set()
    lasting: dict[BlobRef, set[str]] = {}
    freed: set[str] = set()
    lasts_from = SystemClock().now_ms() // 1000 + _BLOBS_FREED_BEFORE_TTL_SECONDS
    for item in read_items(path):
        items += 1
        if item is None:
            damaged += 1
            continue
        partition = str(item["PK"])
        if _is_freed(item):
            freed.add(partition)
        found = set(_refs_in(item))
        refs |= found
        if _outlives(item, lasts_from):
            for ref in found:
                lasting.setdefault(ref, set()).add(partition)
    needed = {ref for ref, partitions in lasting.items() if partitions - freed}
    return _StoreContents(items, damaged, refs, needed)


def _refs_in(item: Item) -> Iterator[BlobRef]:
    for value in item.values():
        if type(value) is dict and "key" in value and "size" in value:
            with suppress(InvalidItem):
                yield BlobRef.from_item(cast(Item, value))


def _is_freed(item: Item) -> bool:
    """Return whether an item is the row of a run whose blobs are being or were freed."""
    return item.get("freed") is True or item.get("status") == "expired"


def _outlives(item: Item, lasts_from: int) -> bool:
    """Return whether an item's blobs must exist: its ttl is neither near nor past."""
    ttl = item.get("ttl")
    return not isinstance(ttl, int | float | Decimal) or ttl > lasts_from


def _ensure_blob_copied(source: FolderBlobs, copy: FolderBlobs, ref: BlobRef) -> bool:
    """Copy a blob if the copy lacks it or has other bytes; return whether the copy has it now."""
    if copy.confirm_stored(ref.key, ref.size, ref.sha256):
        return True
    _copy_blob(source, copy, ref.key)
    return copy.confirm_stored(ref.key, ref.size, ref.sha256)
