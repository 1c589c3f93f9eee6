"""`restore_store`: replace a store with a copy of a backup.

A restore copies the backup to temporary names. Then it swaps, while no process can open the store.
The marker ``runs.db.restoring`` exists meanwhile and records how far the restore is:

1. Move the old store aside: the file, its log, which SQLite would apply to the new file, and the
   blobs. If this fails or is interrupted, everything is moved back.
2. Move the copy to the names of the store. If this is interrupted, the next restore finishes it.

A restore that finds a marker first does one or the other, so that a file never gets the blobs or
the log of another one. A folder of blobs that belongs to the file is swapped as a whole. Any other
folder may be on another disk, or contain files of other programs: only the folders that belong to
this store are swapped, inside it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.display import get_logger
from holdfast.errors import StoreCorrupt, StoreUnusable
from holdfast.storage.backups.copies import CopyReport, PartialCopy, copy_store
from holdfast.storage.backups.paths import (
    PREVIOUS,
    StorePaths,
    check_parent_folder,
    list_names,
    restore_paths,
    translate_errors,
    validate_path,
)
from holdfast.storage.backups.restore_marker import RestoreMarker, RestoreProgress
from holdfast.storage.folder_blobs import FolderBlobs
from holdfast.storage.folder_files import fsync_folder
from holdfast.storage.open import sqlite_paths
from holdfast.storage.sqlite.file_guard import SQLITE_SUFFIXES, lock_file

__all__ = ["restore_store"]

_log = get_logger("holdfast.storage")


def restore_store(backup: str | Path, url: str, *, missing_blobs: bool = False) -> CopyReport:
    """Replace the store at ``url``, which must not be open, with a copy of a backup.

    The call blocks. It moves the old store aside, where it can be opened as a store. If the call is
    interrupted, either the old store is still in place, or no process can open the store until the
    restore is run again and finishes. With ``missing_blobs=True`` it also restores a backup that
    lacks blobs which its runs need.

    Raises:
        InvalidUrl: ``url`` is not the address of a SQLite file.
        StoreNotFound: the backup, or the folder for the store, does not exist.
        StoreInUse: a process has the store open, or is restoring it.
        StoreCorrupt: the backup lacks blobs that its runs need; nothing was moved.
        StoreUnusable: the backup is damaged, or is the store itself; or a name cannot be used.
    """
    file, folder = sqlite_paths(url)
    source = validate_path(backup)
    with translate_errors(f"{file}"):
        target = Path(os.path.realpath(file))
        check_parent_folder(target)
        if os.path.realpath(source) == str(target):
            raise StoreUnusable(f"{backup} is the store itself; pass a backup of it")
        if os.path.lexists(target) and not stat.S_ISREG(os.lstat(target).st_mode):
            raise StoreUnusable(
                f"{file} is not a regular file, and a restore replaces only regular files"
            )
        return _restore(source, restore_paths(target, folder), missing_blobs=missing_blobs)


def _restore(source: Path, paths: StorePaths, *, missing_blobs: bool) -> CopyReport:
    target = str(paths.file)
    with lock_file(target):
        pass  # fail before copying anything
    with PartialCopy(paths) as partial:
        copied, needed = copy_store(str(source), f"{source}.blobs", partial)
        if copied.missing and not missing_blobs:
            raise _missing_blobs_error(copied.missing, needed, source)
        with RestoreMarker(paths) as marker:
            with lock_file(target):
                _recover_restore(marker, paths)
            with lock_file(target):
                swap = _StoreSwap(paths, partial.id)
                moved = _swap_stores(marker, swap, partial)
    if not moved:
        return copied
    aside, blobs = str(swap.aside), str(swap.aside_blobs)
    return msgspec.structs.replace(copied, aside=aside, aside_blobs=blobs)


def _missing_blobs_error(missing: int, needed: int, source: Path) -> StoreCorrupt:
    return StoreCorrupt(
        f"{missing} of {needed} blobs that the backup's runs need are missing or damaged in the "
        f"backup, in {source}.blobs; nothing was replaced. Restore another backup; to restore this "
        "one without these blobs, pass missing_blobs=True (--missing-blobs)"
    )


class _StoreSwap:
    """The renames of one restore."""

    def __init__(self, paths: StorePaths, id: str) -> None:
        self.paths = paths
        self.id = id
        self.aside = paths.sibling_file(PREVIOUS + id)
        self.aside_blobs = paths.sibling_blobs(PREVIOUS + id)

    def move_aside(self) -> bool:
        """Move the old store aside; return whether there was one."""
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
        """Undo `move_aside`, also if it was interrupted."""
        moves = self._files()
        blobs, aside = self.paths.blobs, self.aside_blobs
        if self.paths.owns_blobs_folder:
            moves.append((blobs, aside))
        else:
            moves += [(blobs / name, aside / name) for name in list_names(aside)]
        for old, new in moves:
            if os.path.lexists(new) and not os.path.lexists(old):
                os.rename(new, old)
        if not self.paths.owns_blobs_folder:
            with suppress(FileNotFoundError):
                aside.rmdir()
        self._fsync()

    def move_in(self, partial: PartialCopy) -> None:
        """Move a copy, or the rest of it, to the names of the store; the file last."""
        blobs = self.paths.blobs
        moves = [(partial.blobs, blobs)]
        if not self.paths.owns_blobs_folder:
            # A file may belong to another program and stays. The blobs of runs are in folders.
            names = [name for name in list_names(partial.blobs) if not (blobs / name).is_file()]
            moves = [(partial.blobs / name, blobs / name) for name in names if name != ".writing"]
        for old, new in [*moves, (partial.file, self.paths.file)]:
            if os.path.lexists(old):
                if os.path.lexists(new):
                    raise FileExistsError(errno.EEXIST, "it was created meanwhile", str(new))
                os.rename(old, new)
        self._fsync()

    def _files(self) -> list[tuple[Path, Path]]:
        names = [
            (f"{self.paths.file}{suffix}", f"{self.aside}{suffix}") for suffix in SQLITE_SUFFIXES
        ]
        return [(Path(old), Path(new)) for old, new in names] + [(self.paths.file, self.aside)]

    def _fsync(self) -> None:
        fsync_folder(self.paths.blobs.parent if self.paths.owns_blobs_folder else self.paths.blobs)
        fsync_folder(self.paths.file.parent)


def _swap_stores(marker: RestoreMarker, swap: _StoreSwap, partial: PartialCopy) -> bool:
    """Move the old store aside and the copy in; return whether there was an old store."""
    paths = swap.paths
    progress = RestoreProgress(id=swap.id, blobs=str(paths.blobs), whole=paths.owns_blobs_folder)
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


def _recover_restore(marker: RestoreMarker, paths: StorePaths) -> None:
    """Undo or finish an interrupted restore."""
    progress = marker.progress
    if progress is None:
        return
    paths = msgspec.structs.replace(paths, owns_blobs_folder=progress.whole)
    swap, partial = _StoreSwap(paths, progress.id), PartialCopy(paths, progress.id)
    if progress.moving_in:
        swap.move_in(partial)
        _log.warning("finished an interrupted restore; the store before it is %r", str(swap.aside))
    else:
        swap.move_back()
    marker.write_progress(None)
    partial.remove()
