"""`backup_store` and `restore_store`: a store on this machine as a copy that is whole by itself.

A copy of ``runs.db`` is a file and its folder of blobs, ``copy.db`` and ``copy.db.blobs``: a store
that can be opened as it is. No row in it names a blob that is missing:

1. Most blobs are copied before the file, so that one which is deleted meanwhile is there.
2. The file is copied as it is at one moment.
3. The blobs that were put since are copied. All that the copy names stood there at that moment.
4. Whatever it names is looked for. What was put and deleted between 1 and 3 is missing: then the
   file is copied once more, in which nothing names it. What two copies in a row name and the store
   does not have is missing in the store itself.

A restore copies in the same way, into new names, and moves these into place at the end, while
nobody can open the store. What stood there is moved aside, with its log: SQLite would take a log
that is left behind for that of the new file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec

from holdfast.clock import SystemIds
from holdfast.errors import InvalidItem, StoreNotFound, StoreUnavailable, StoreUnusable
from holdfast.storage.blobs import BLOB_BYTES_MAX, LIST_LIMIT_MAX, BlobEntry, BlobRef
from holdfast.storage.files import FolderBlobs
from holdfast.storage.item import Item
from holdfast.storage.open import located
from holdfast.storage.sqlite.copying import copy_file, items_in
from holdfast.storage.sqlite.place import BESIDE, RESTORING, alone_with

__all__ = ["Copied", "backup_store", "restore_store"]

_ATTEMPTS_MAX = 5


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup or a restore has copied."""

    items: int
    blobs: int
    """How many blobs the items name."""
    missing: int
    """How many of them were missing in the store itself: those of runs that are being freed."""
    damaged: int
    """How many items cannot be read."""
    aside: str | None = None
    """Where a restore moved the store that stood there."""


def backup_store(url: str, to: str | Path) -> Copied:
    """Copy the store at that address, which may be in use, to a new file and its folder of blobs.

    It blocks. The copy is checked: its structure, its schema, and the hash of each blob.

    Raises:
        InvalidUrl: the address is not that of a file.
        StoreNotFound: there is no such store, or no folder for the copy.
        StoreUnusable: something stands where the copy is to be; or the store is damaged.
    """
    file, folder = located(url)
    target, blobs = Path(to), Path(f"{to}.blobs")
    _check_folder(target)
    for each in (target, blobs, *(Path(f"{to}{suffix}") for suffix in BESIDE)):
        if os.path.lexists(each):
            raise StoreUnusable(f"{each} exists; a backup overwrites nothing")
    with _Partial(target, blobs) as partial:
        copied = _copy(file, folder, partial)
        os.rename(partial.blobs, blobs)
        os.rename(partial.file, target)
        _sync(target.parent)
    return copied


def restore_store(backup: str | Path, url: str) -> Copied:
    """Put a copy of a backup in the place of the store at that address, which nobody may have open.

    It blocks. What stood there is moved aside, and is a store of its own there. Cut short it
    leaves the store so that nothing opens it; done again it finishes.

    Raises:
        InvalidUrl: the address is not that of a file.
        StoreNotFound: there is no such backup, or no folder for the store.
        StoreInUse: a process has the store open.
        StoreUnusable: the backup is damaged, or is the store itself.
    """
    file, folder = located(url)
    target, blobs = Path(os.path.realpath(file)), Path(folder)
    _check_folder(target)
    if os.path.realpath(backup) == str(target):
        raise StoreUnusable(f"{backup} is the store itself, and not a backup of it")
    with alone_with(str(target)):
        pass  # before anything is copied
    with _Partial(target, blobs) as partial:
        copied = _copy(str(backup), f"{backup}.blobs", partial)
        with alone_with(str(target)):
            aside = _swap(target, blobs, partial)
    return msgspec.structs.replace(copied, aside=aside)


def _check_folder(file: Path) -> None:
    """Make no folders: a mistyped one, or a disk that is not mounted, should be noticed."""
    if not file.parent.is_dir():
        raise StoreNotFound(f"there is no folder {file.parent}")


class _Partial:
    """New names beside those that a copy is to have, removed where it does not get them."""

    def __init__(self, file: Path, blobs: Path) -> None:
        self.id = SystemIds().new()
        self.file = file.with_name(f"{file.name}.partial-{self.id}")
        self.blobs = blobs.with_name(f"{blobs.name}.partial-{self.id}")

    def __enter__(self) -> _Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove_file()
        shutil.rmtree(self.blobs, ignore_errors=True)

    def remove_file(self) -> None:
        for suffix in ("", *BESIDE):
            with suppress(FileNotFoundError):
                os.unlink(f"{self.file}{suffix}")


def _copy(file: str, folder: str, partial: _Partial) -> Copied:
    if not os.path.isfile(file):
        raise StoreNotFound(f"there is no file {file}")
    source, copy = FolderBlobs(Path(folder)), FolderBlobs(partial.blobs)
    copy.create()
    _copy_blobs(source, copy)
    before: set[str] | None = None
    for _ in range(_ATTEMPTS_MAX):
        partial.remove_file()
        copy_file(file, str(partial.file))
        _copy_blobs(source, copy)
        items, damaged, refs = _contents(str(partial.file))
        missing = {ref.key for ref in refs if not _is_there(source, copy, ref)}
        if not missing or missing == before:
            return Copied(items=items, blobs=len(refs), missing=len(missing), damaged=damaged)
        before = missing
    raise StoreUnavailable(f"blobs of {file} are deleted faster than they are copied; try again")


def _copy_blobs(source: FolderBlobs, copy: FolderBlobs) -> None:
    """Copy the blobs that are not there yet; a key never stands for other bytes of that size."""
    there = {entry.key: entry.size for entry in _entries(copy)}
    for entry in _entries(source):
        if there.get(entry.key) != entry.size:
            _copy_blob(source, copy, entry.key)


def _copy_blob(source: FolderBlobs, copy: FolderBlobs, key: str) -> None:
    content = source.read(key, BLOB_BYTES_MAX)
    if content is not None and content.data is not None:  # else it was deleted meanwhile
        copy.write(key, content.data, "")


def _entries(blobs: FolderBlobs) -> Iterator[BlobEntry]:
    after: str | None = None
    while True:
        page = blobs.page("", after, LIST_LIMIT_MAX)
        yield from page.entries
        after = page.cursor
        if after is None:
            return


def _contents(path: str) -> tuple[int, int, set[BlobRef]]:
    """Return how many items a file has, how many cannot be read, and the blobs that it names."""
    items = damaged = 0
    refs: set[BlobRef] = set()
    for item in items_in(path):
        items += 1
        damaged += item is None
        for value in (item or {}).values():
            if type(value) is dict and "key" in value and "size" in value:
                with suppress(InvalidItem):
                    refs.add(BlobRef.from_item(cast(Item, value)))
    return items, damaged, refs


def _is_there(source: FolderBlobs, copy: FolderBlobs, ref: BlobRef) -> bool:
    """Return whether a copy has that very blob; one that was replaced since is copied again."""
    if copy.holds(ref.key, ref.size, ref.sha256):
        return True
    _copy_blob(source, copy, ref.key)
    return copy.holds(ref.key, ref.size, ref.sha256)


def _swap(target: Path, blobs: Path, partial: _Partial) -> str | None:
    """Move what stands there aside, and the copy into its place; nobody opens it meanwhile."""
    marker = Path(f"{target}{RESTORING}")
    marker.touch(0o600)
    _sync(target.parent)
    aside = f"{target}.before-{partial.id}"
    beside = blobs == Path(f"{target}.blobs")
    moves = [(f"{target}{suffix}", f"{aside}{suffix}") for suffix in ("", *BESIDE)]
    moves.append((str(blobs), f"{aside}.blobs" if beside else f"{blobs}.before-{partial.id}"))
    moved = [(old, new) for old, new in moves if os.path.lexists(old)]
    for old, new in moved:
        os.rename(old, new)
    os.rename(partial.blobs, blobs)
    os.rename(partial.file, target)
    _sync(blobs.parent)
    _sync(target.parent)
    marker.unlink()
    _sync(target.parent)
    return aside if moved else None


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
