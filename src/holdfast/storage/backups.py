"""`backup_store` and `restore_store`: a store on this machine as a copy that is whole by itself.

A copy of ``runs.db`` is a file and its folder of blobs, ``copy.db`` and ``copy.db.blobs``: a store
that can be opened as it is. No row in it needs a blob that is missing:

1. Most blobs are copied before the file, so that one which is deleted meanwhile is there.
2. The file is copied as it is at one moment.
3. The blobs that were put since are copied. All that the copy names stood there at that moment.
4. Whatever it names is looked for. What was put and deleted between 1 and 3 is missing: then the
   file is copied once more, in which nothing names it. What two copies in a row name and the store
   does not have is missing in the store itself: then there is no copy, unless the caller wants one
   without these blobs. Blobs of runs that are being freed may be missing.

A restore copies in the same way, into new names, and then swaps, while no process can open it.
The marker ``runs.db.restoring`` stands there meanwhile, and says how far it is:

1. What stands there is moved aside: the file, its log, which SQLite would take for that of the new
   file, and the blobs. If this fails, or was cut short, all of it is moved back.
2. The copy is moved into its place. If this was cut short, the rest is moved there.

A restore that finds a marker does one or the other first, so that nothing is ever torn apart.
The folder of blobs that belongs to the file is swapped as a whole. In any other, which may be on
another disk, or hold files of other programs, only our own folders are swapped, within it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from holdfast.clock import SystemClock, SystemIds
from holdfast.display import get_logger
from holdfast.errors import (
    InvalidItem,
    StoreCorrupt,
    StoreInUse,
    StoreNotFound,
    StoreUnavailable,
    StoreUnusable,
)
from holdfast.storage.blobs import BLOB_BYTES_MAX, LIST_LIMIT_MAX, BlobEntry, BlobRef
from holdfast.storage.folder_blobs import FolderBlobs, store_error
from holdfast.storage.item import Item
from holdfast.storage.open import sqlite_paths
from holdfast.storage.sqlite.file_copy import copy_file, read_items
from holdfast.storage.sqlite.file_guard import (
    PRIVATE_FILE,
    RESTORING_SUFFIX,
    SQLITE_SUFFIXES,
    lock_file,
)

__all__ = ["CopyReport", "backup_store", "restore_store"]

_log = get_logger("holdfast.storage")

_ATTEMPTS_MAX = 5
_PARTIAL = "partial-"
_PREVIOUS = "before-"
# A worker frees the blobs of a run so long before the ttl of the items that name them.
_BLOBS_FREED_BEFORE_TTL_SECONDS = 3600


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup or a restore has copied."""

    items: int
    blobs: int
    """How many blobs the items name."""
    missing: int
    """How many of them are missing or damaged; above 0 only where the caller allowed it.

    Blobs of runs that are being freed do not count.
    """
    damaged: int
    """How many items cannot be read."""
    aside: str | None = None
    """Where a restore moved the store that stood there."""
    aside_blobs: str | None = None
    """The folder of its blobs there."""


def backup_store(url: str, to: str | Path, *, missing_blobs: bool = False) -> CopyReport:
    """Copy the store at that address, which may be in use, to a new file and its folder of blobs.

    It blocks. The copy is checked: its structure, its schema, and the hash of each blob. With
    ``missing_blobs`` it is made although blobs that the store's runs need are missing.

    Raises:
        InvalidUrl: the address is not that of a file.
        StoreNotFound: there is no such store, or no folder for the copy.
        StoreCorrupt: blobs that the store's runs need are missing or damaged; there is no copy.
        StoreUnusable: something stands where the copy is to be; or the store is damaged.
    """
    file, folder = sqlite_paths(url)
    target = _validate_path(to)
    with _translate_errors(f"{target}"):
        _check_folder(target)
        paths = _StorePaths(target, Path(f"{target}.blobs"), owns_blobs_folder=True)
        for each in (
            target,
            paths.blobs,
            *(f"{target}{end}" for end in (*SQLITE_SUFFIXES, RESTORING_SUFFIX)),
        ):
            if os.path.lexists(each):
                raise StoreUnusable(f"{each} exists; a backup overwrites nothing")
        with _PartialCopy(paths) as partial:
            copied, needed = _copy_store(file, folder, partial)
            if copied.missing and not missing_blobs:
                raise _missing_in_store_error(copied.missing, needed, folder)
            os.rename(partial.blobs, paths.blobs)
            os.rename(partial.file, target)
            _fsync_folder(target.parent)
    return copied


def restore_store(backup: str | Path, url: str, *, missing_blobs: bool = False) -> CopyReport:
    """Put a copy of a backup in the place of the store at that address, which must not be open.

    It blocks. What stood there is moved aside, and is a store of its own there. Cut short it
    leaves the old store in its place, or leaves the store so that nothing opens it; done again it
    finishes. With ``missing_blobs`` it restores a backup that lacks blobs which its runs need.

    Raises:
        InvalidUrl: the address is not that of a file.
        StoreNotFound: there is no such backup, or no folder for the store.
        StoreInUse: a process has the store open, or restores it.
        StoreCorrupt: blobs that the backup's runs need are missing in it; nothing was moved.
        StoreUnusable: the backup is damaged, or is the store itself; or a name cannot be used.
    """
    file, folder = sqlite_paths(url)
    source = _validate_path(backup)
    with _translate_errors(f"{file}"):
        target = Path(os.path.realpath(file))
        _check_folder(target)
        if os.path.realpath(source) == str(target):
            raise StoreUnusable(f"{backup} is the store itself, and not a backup of it")
        if os.path.lexists(target) and not stat.S_ISREG(os.lstat(target).st_mode):
            raise StoreUnusable(f"{file} is not a regular file; a restore replaces no other")
        return _restore(source, _restore_paths(target, folder), missing_blobs=missing_blobs)


def _restore(source: Path, paths: _StorePaths, *, missing_blobs: bool) -> CopyReport:
    target = str(paths.file)
    with lock_file(target):
        pass  # before anything is copied
    with _PartialCopy(paths) as partial:
        copied, needed = _copy_store(str(source), f"{source}.blobs", partial)
        if copied.missing and not missing_blobs:
            raise _missing_in_backup_error(copied.missing, needed, source)
        with _RestoreMarker(paths) as marker:
            with lock_file(target):
                _recover_restore(marker, paths)
            with lock_file(target):
                swap = _StoreSwap(paths, partial.id)
                moved = _swap_stores(marker, swap, partial)
    if not moved:
        return copied
    aside, blobs = str(swap.aside), str(swap.aside_blobs)
    return msgspec.structs.replace(copied, aside=aside, aside_blobs=blobs)


def _missing_in_store_error(missing: int, needed: int, folder: str) -> StoreCorrupt:
    forgot = " Did you forget ?blobs= in the address?" if missing == needed else ""
    return StoreCorrupt(
        f"{missing} of {needed} blobs that the store's runs need are missing or damaged in "
        f"{folder}; no backup was made.{forgot} To make one without these blobs pass "
        "missing_blobs=True (--missing-blobs)"
    )


def _missing_in_backup_error(missing: int, needed: int, source: Path) -> StoreCorrupt:
    return StoreCorrupt(
        f"{missing} of {needed} blobs that the backup's runs need are missing or damaged in the "
        f"backup, in {source}.blobs; nothing was replaced. Restore another backup; to restore this "
        "one without these blobs pass missing_blobs=True (--missing-blobs)"
    )


def _validate_path(name: str | Path) -> Path:
    """Return the name of a file as a path.

    Raises:
        StoreUnusable: no file can have it.
    """
    try:
        if not Path(name).name or b"\0" in os.fsencode(name):
            raise ValueError
    except ValueError:  # that of the encoding included
        raise StoreUnusable(f"{str(name)!r:.80} cannot be the name of a file") from None
    return Path(name)


def _check_folder(file: Path) -> None:
    """Make no folders: a mistyped one, or a disk that is not mounted, should be noticed."""
    if not file.parent.is_dir():
        raise StoreNotFound(f"there is no folder {file.parent}")


@contextmanager
def _translate_errors(target: str) -> Generator[None]:
    """Raise what the system says as an error of ours."""
    try:
        yield
    except OSError as error:
        raise store_error(error, target, writing=True) from error


class _StorePaths(msgspec.Struct, frozen=True):
    """Where a copy is to be."""

    file: Path
    blobs: Path
    owns_blobs_folder: bool
    """Whether the folder of blobs is the file's, and nothing else is in it."""

    def sibling_file(self, what: str) -> Path:
        """Return a further name beside that of the file."""
        return self.file.with_name(f"{self.file.name}.{what}")

    def sibling_blobs(self, what: str) -> Path:
        """Return a further name for the blobs, on the same disk; no key begins with a dot."""
        return (
            Path(f"{self.sibling_file(what)}.blobs")
            if self.owns_blobs_folder
            else self.blobs / f".{what}"
        )


def _restore_paths(target: Path, folder: str) -> _StorePaths:
    """Return where a restore puts a store.

    Raises:
        StoreUnusable: the folder of blobs is the root of the disk.
    """
    blobs = Path(os.path.abspath(folder))
    if not blobs.name:
        raise StoreUnusable(f"blobs must be in a folder that has a name, not in {blobs}")
    beside = Path(os.path.realpath(blobs.parent)) / blobs.name == Path(f"{target}.blobs")
    return _StorePaths(target, blobs, beside and not (blobs.is_symlink() or os.path.ismount(blobs)))


class _PartialCopy:
    """A copy under new names, removed where it does not get those that it is to have."""

    def __init__(self, paths: _StorePaths, id: str | None = None) -> None:
        self._paths = paths
        self.id = id or SystemIds().new()
        self.file = paths.sibling_file(_PARTIAL + self.id)
        self.blobs = paths.sibling_blobs(_PARTIAL + self.id)
        self.is_kept = False
        self._lock_fd: int | None = None

    def __enter__(self) -> _PartialCopy:
        self._remove_leftovers()
        FolderBlobs(self.blobs).create()
        self.lock()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_kept:
            self.remove()
        self.unlock()

    def lock(self) -> None:
        """Tell others that this copy is not left over.

        Raises:
            OSError: it is another process's, and that one lives.
        """
        self._lock_fd = os.open(self.blobs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove what is left of the copy."""
        self.remove_file()
        shutil.rmtree(self.blobs, ignore_errors=True)

    def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def remove_file(self) -> None:
        for suffix in ("", *SQLITE_SUFFIXES):
            with suppress(FileNotFoundError):
                os.unlink(f"{self.file}{suffix}")

    def _remove_leftovers(self) -> None:
        """Remove the copies of processes that died, except one that a restore still needs."""
        before, _, after = self.blobs.name.partition(self.id)
        kept = _read_progress(self._paths)
        for name in _list_names(self.blobs.parent):
            id = name.removeprefix(before).removesuffix(after)
            if name != f"{before}{id}{after}" or not _ID.fullmatch(id):
                continue
            left = _PartialCopy(self._paths, id)
            if kept is None or kept.id != id:
                with suppress(OSError):
                    left.lock()
                    left.remove()
            left.unlock()


def _list_names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _copy_store(file: str, folder: str, partial: _PartialCopy) -> tuple[CopyReport, int]:
    """Copy a store; return what was copied, and how many blobs its runs need."""
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
    """Copy the blobs that are not there yet; a key never stands for other bytes of that size."""
    there = {entry.key: entry.size for entry in _list_blobs(copy)}
    for entry in _list_blobs(source):
        if there.get(entry.key) != entry.size:
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
    """What a file has."""

    items: int
    damaged: int
    """How many items cannot be read."""
    refs: set[BlobRef]
    """The blobs that the items name."""
    needed: set[BlobRef]
    """Those of them that are not being freed."""


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
    """Return whether it is the row of a run that keeps no blobs; its last record may name one."""
    return item.get("freed") is True or item.get("status") == "expired"


def _outlives(item: Item, lasts_from: int) -> bool:
    """Return whether the blobs that an item names must be there: its ttl is not near or past."""
    ttl = item.get("ttl")
    return not isinstance(ttl, int | float | Decimal) or ttl > lasts_from


def _ensure_blob_copied(source: FolderBlobs, copy: FolderBlobs, ref: BlobRef) -> bool:
    """Return whether a copy has that very blob; one that was replaced since is copied again."""
    if copy.confirm_stored(ref.key, ref.size, ref.sha256):
        return True
    _copy_blob(source, copy, ref.key)
    return copy.confirm_stored(ref.key, ref.size, ref.sha256)


# --- the swap -------------------------------------------------------------------------------------

_ID = re.compile(r"[0-9a-f-]{36}")


class _RestoreProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a restore is: a line of its marker."""

    id: str
    blobs: str
    whole: bool
    moving_in: bool = False
    """Whether all that stood there was moved aside."""


class _RestoreMarker:
    """The file that keeps a store from being opened, and other restores out.

    It is removed where nothing is under way, and stays otherwise, whatever happens.
    """

    def __init__(self, paths: _StorePaths) -> None:
        self._path = Path(f"{paths.file}{RESTORING_SUFFIX}")
        self._paths = paths
        self._file = -1
        self.progress: _RestoreProgress | None = None

    def __enter__(self) -> _RestoreMarker:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path, flags, PRIVATE_FILE)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                raise FileNotFoundError
            self.progress = _read_progress(self._paths)
        except (BlockingIOError, FileNotFoundError):
            os.close(self._file)
            raise StoreInUse(f"another process restores {self._paths.file} just now") from None
        except BaseException:
            os.close(self._file)
            raise
        _fsync_folder(self._path.parent)
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is None:
            self._path.unlink()
            _fsync_folder(self._path.parent)
        os.close(self._file)

    def write_progress(self, progress: _RestoreProgress | None) -> None:
        """Write down how far the restore is; None is the end."""
        if progress is None:
            os.ftruncate(self._file, 0)
        else:
            os.write(self._file, msgspec.json.encode(progress) + b"\n")
        os.fsync(self._file)
        self.progress = progress


def _read_progress(paths: _StorePaths) -> _RestoreProgress | None:
    """Return how far a restore came that was cut short; None where nothing was moved yet.

    Raises:
        StoreUnusable: the marker cannot be read, or is that of a restore with other blobs.
    """
    path = Path(f"{paths.file}{RESTORING_SUFFIX}")
    try:
        *lines, _ = path.read_bytes().split(b"\n")  # the last one was not written to its end
        progress = msgspec.json.decode(lines[-1], type=_RestoreProgress) if lines else None
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise StoreUnusable(
            f"{path} is damaged. Look for {paths.file.name}.{_PREVIOUS}… and {paths.file.name}."
            f"{_PARTIAL}…, and move one of them to {paths.file} if nothing stands there; "
            "then remove it"
        ) from None
    if progress is None:
        return None
    if _ID.fullmatch(progress.id) is None or progress.blobs != str(paths.blobs):
        raise StoreUnusable(
            f"a restore with blobs={progress.blobs} was cut short: run it again with that address"
        )
    return progress


class _StoreSwap:
    """The moves of one restore."""

    def __init__(self, paths: _StorePaths, id: str) -> None:
        self.paths = paths
        self.id = id
        self.aside = paths.sibling_file(_PREVIOUS + id)
        self.aside_blobs = paths.sibling_blobs(_PREVIOUS + id)

    def move_aside(self) -> bool:
        """Move what stands there aside; return whether there was something."""
        moves = [(old, new) for old, new in self._files() if os.path.lexists(old)]
        blobs, aside = self.paths.blobs, self.aside_blobs
        if not self.paths.owns_blobs_folder:
            names = FolderBlobs(blobs).list_owned_names()
            if names:
                aside.mkdir(0o700, exist_ok=True)
            moves += [(blobs / name, aside / name) for name in names]
        elif os.path.lexists(blobs):
            moves.append((blobs, aside))
        for old, new in moves:
            os.rename(old, new)
        self._fsync()
        return bool(moves)

    def move_back(self) -> None:
        """Undo `move_aside`, however far it came."""
        moves = self._files()
        blobs, aside = self.paths.blobs, self.aside_blobs
        if self.paths.owns_blobs_folder:
            moves.append((blobs, aside))
        else:
            moves += [(blobs / name, aside / name) for name in _list_names(aside)]
        for old, new in moves:
            if os.path.lexists(new) and not os.path.lexists(old):
                os.rename(new, old)
        if not self.paths.owns_blobs_folder:
            with suppress(FileNotFoundError):
                aside.rmdir()
        self._fsync()

    def move_in(self, partial: _PartialCopy) -> None:
        """Move a copy, or what is left of it, into its place; the file comes last."""
        blobs = self.paths.blobs
        moves = [(partial.blobs, blobs)]
        if not self.paths.owns_blobs_folder:
            # A file there may be another program's, and stays: the blobs of runs have folders.
            names = [name for name in _list_names(partial.blobs) if not (blobs / name).is_file()]
            moves = [(partial.blobs / name, blobs / name) for name in names if name != ".writing"]
        for old, new in [*moves, (partial.file, self.paths.file)]:
            if os.path.lexists(old):
                if os.path.lexists(new):
                    raise FileExistsError(errno.EEXIST, "it was put there meanwhile", str(new))
                os.rename(old, new)
        self._fsync()

    def _files(self) -> list[tuple[Path, Path]]:
        names = [
            (f"{self.paths.file}{suffix}", f"{self.aside}{suffix}") for suffix in SQLITE_SUFFIXES
        ]
        return [(Path(old), Path(new)) for old, new in names] + [(self.paths.file, self.aside)]

    def _fsync(self) -> None:
        _fsync_folder(self.paths.blobs.parent if self.paths.owns_blobs_folder else self.paths.blobs)
        _fsync_folder(self.paths.file.parent)


def _swap_stores(marker: _RestoreMarker, swap: _StoreSwap, partial: _PartialCopy) -> bool:
    """Move what stands there aside and the copy into its place; return whether something stood."""
    paths = swap.paths
    progress = _RestoreProgress(id=swap.id, blobs=str(paths.blobs), whole=paths.owns_blobs_folder)
    marker.write_progress(progress)
    try:
        moved = swap.move_aside()
    except OSError:
        swap.move_back()
        marker.write_progress(None)
        raise
    partial.is_kept = True
    marker.write_progress(msgspec.structs.replace(progress, moving_in=True))
    swap.move_in(partial)
    marker.write_progress(None)
    partial.is_kept = False
    return moved


def _recover_restore(marker: _RestoreMarker, paths: _StorePaths) -> None:
    """Undo or finish a restore that was cut short."""
    cut = marker.progress
    if cut is None:
        return
    paths = msgspec.structs.replace(paths, owns_blobs_folder=cut.whole)
    swap, partial = _StoreSwap(paths, cut.id), _PartialCopy(paths, cut.id)
    if cut.moving_in:
        swap.move_in(partial)
        _log.warning("a restore that was cut short is finished; %r stood there", str(swap.aside))
    else:
        swap.move_back()
    marker.write_progress(None)
    partial.remove()


def _fsync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
