"""`backup_store`: copy a store, which may be in use, to a new file and a folder of blobs."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import StoreCorrupt, StoreUnusable
from holdfast.storage.backups.copies import CopyReport, PartialCopy, copy_store
from holdfast.storage.backups.paths import (
    StorePaths,
    check_parent_folder,
    translate_errors,
    validate_path,
)
from holdfast.storage.folder_files import fsync_folder
from holdfast.storage.open import sqlite_paths
from holdfast.storage.sqlite.file_guard import RESTORING_SUFFIX, SQLITE_SUFFIXES

__all__ = ["backup_store"]


def backup_store(url: str, to: str | Path, *, missing_blobs: bool = False) -> CopyReport:
    """Copy the store at ``url``, which may be in use, to the file ``to`` and its folder of blobs.

    The call blocks. It checks the copy: the structure of the file, its schema, and the hash of each
    blob. With ``missing_blobs=True`` it makes the copy even if the store lacks blobs that its runs
    need.

    Raises:
        InvalidUrl: ``url`` is not the address of a SQLite file.
        StoreNotFound: the store, or the folder for the copy, does not exist.
        StoreCorrupt: blobs that the store's runs need are missing or damaged; no copy was made.
        StoreUnusable: ``to`` or a name beside it exists already, or the store is damaged.
    """
    file, folder = sqlite_paths(url)
    target = validate_path(to)
    with translate_errors(f"{target}"):
        check_parent_folder(target)
        paths = StorePaths(target, Path(f"{target}.blobs"), owns_blobs_folder=True)
        for each in (
            target,
            paths.blobs,
            *(f"{target}{end}" for end in (*SQLITE_SUFFIXES, RESTORING_SUFFIX)),
        ):
            if os.path.lexists(each):
                raise StoreUnusable(
                    f"{each} exists, and a backup overwrites nothing; choose another name"
                )
        with PartialCopy(paths) as partial:
            copied, needed = copy_store(file, folder, partial)
            if copied.missing and not missing_blobs:
                raise _missing_blobs_error(copied.missing, needed, folder)
            os.rename(partial.blobs, paths.blobs)
            os.rename(partial.file, target)
            fsync_folder(target.parent)
    return copied


def _missing_blobs_error(missing: int, needed: int, folder: str) -> StoreCorrupt:
    forgot = " Did you forget ?blobs= in the address?" if missing == needed else ""
    return StoreCorrupt(
        f"{missing} of {needed} blobs that the store's runs need are missing or damaged in "
        f"{folder}; no backup was made.{forgot} To make one without these blobs, pass "
        "missing_blobs=True (--missing-blobs)"
    )
