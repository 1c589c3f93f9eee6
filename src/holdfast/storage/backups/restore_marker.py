"""The marker ``runs.db.restoring``, which stands beside a store while a restore replaces it.

It keeps every process from opening the store, and records how far the restore is.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

import msgspec

from holdfast.errors import StoreInUse, StoreUnusable
from holdfast.storage.backups.paths import PARTIAL, PREVIOUS, StorePaths
from holdfast.storage.folder_files import fsync_folder
from holdfast.storage.sqlite.file_guard import PRIVATE_FILE, RESTORING_SUFFIX

__all__ = ["COPY_ID", "RestoreMarker", "RestoreProgress", "read_progress"]

COPY_ID = re.compile(r"[0-9a-f-]{36}")
"""Matches the id of a copy, which is part of its name."""


class RestoreProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a restore is: one line of its marker."""

    id: str
    blobs: str
    whole: bool
    """Whether the folder of blobs is moved as a whole."""
    moving_in: bool = False
    """Whether all of the old store was moved aside."""


class RestoreMarker:
    """The locked marker of a restore, as a context manager.

    Leaving the context removes the marker if no restore is under way. Otherwise it stays, so that
    nothing opens the store until a restore finishes.
    """

    def __init__(self, paths: StorePaths) -> None:
        self._path = Path(f"{paths.file}{RESTORING_SUFFIX}")
        self._paths = paths
        self._file = -1
        self.progress: RestoreProgress | None = None

    def __enter__(self) -> RestoreMarker:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path, flags, PRIVATE_FILE)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                raise FileNotFoundError
            self.progress = read_progress(self._paths)
        except (BlockingIOError, FileNotFoundError):
            os.close(self._file)
            raise StoreInUse(
                f"another process restores {self._paths.file}; wait until it has finished"
            ) from None
        except BaseException:
            os.close(self._file)
            raise
        fsync_folder(self._path.parent)
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is None:
            self._path.unlink()
            fsync_folder(self._path.parent)
        os.close(self._file)

    def write_progress(self, progress: RestoreProgress | None) -> None:
        """Record how far the restore is; None means that it has ended."""
        if progress is None:
            os.ftruncate(self._file, 0)
        else:
            os.write(self._file, msgspec.json.encode(progress) + b"\n")
        os.fsync(self._file)
        self.progress = progress


def read_progress(paths: StorePaths) -> RestoreProgress | None:
    """Return how far an interrupted restore came; None if it moved nothing.

    Raises:
        StoreUnusable: the marker cannot be read, or belongs to a restore with other blobs.
    """
    path = Path(f"{paths.file}{RESTORING_SUFFIX}")
    try:
        *lines, _ = path.read_bytes().split(b"\n")  # the last line may be incomplete
        progress = msgspec.json.decode(lines[-1], type=RestoreProgress) if lines else None
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise StoreUnusable(
            f"{path} is damaged. Look for {paths.file.name}.{PREVIOUS}… and {paths.file.name}."
            f"{PARTIAL}…, and move one of them to {paths.file} if there is no such file; "
            f"then remove {path}"
        ) from None
    if progress is None:
        return None
    if COPY_ID.fullmatch(progress.id) is None or progress.blobs != str(paths.blobs):
        raise StoreUnusable(
            f"a restore with blobs={progress.blobs} was interrupted: run it again with that address"
        )
    return progress
