"""Names of the files and folders that a backup or a restore works with."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.errors import StoreNotFound, StoreUnusable
from holdfast.storage.file_errors import store_error

__all__ = [
    "PARTIAL",
    "PREVIOUS",
    "StorePaths",
    "check_parent_folder",
    "list_names",
    "restore_paths",
    "translate_errors",
    "validate_path",
]

PARTIAL = "partial-"
"""Begins the suffix of a copy that is not finished."""
PREVIOUS = "before-"
"""Begins the suffix of a store that a restore moved aside."""


class StorePaths(msgspec.Struct, frozen=True):
    """Where a store is: its file and its folder of blobs."""

    file: Path
    blobs: Path
    owns_blobs_folder: bool
    """Whether the folder belongs to this store alone, and can be moved as a whole."""

    def sibling_file(self, suffix: str) -> Path:
        """Return the name of the file with a suffix, in the same folder."""
        return self.file.with_name(f"{self.file.name}.{suffix}")

    def sibling_blobs(self, suffix: str) -> Path:
        """Return a second folder for blobs, on the same disk as the first.

        Inside a folder that others use, its name begins with a dot, as no blob's key does.
        """
        return (
            Path(f"{self.sibling_file(suffix)}.blobs")
            if self.owns_blobs_folder
            else self.blobs / f".{suffix}"
        )


def restore_paths(target: Path, folder: str) -> StorePaths:
    """Return where a restore puts a store.

    Raises:
        StoreUnusable: the folder of blobs is the root of the disk.
    """
    blobs = Path(os.path.abspath(folder))
    if not blobs.name:
        raise StoreUnusable(f"blobs must be in a folder that has a name, not in {blobs}")
    beside = Path(os.path.realpath(blobs.parent)) / blobs.name == Path(f"{target}.blobs")
    return StorePaths(target, blobs, beside and not (blobs.is_symlink() or os.path.ismount(blobs)))


def validate_path(name: str | Path) -> Path:
    """Return the name of a file as a path.

    Raises:
        StoreUnusable: no file can have that name.
    """
    try:
        if not Path(name).name or b"\0" in os.fsencode(name):
            raise ValueError
    except ValueError:  # also raised by fsencode
        raise StoreUnusable(f"{str(name)!r:.80} cannot be the name of a file") from None
    return Path(name)


def check_parent_folder(file: Path) -> None:
    """Check that the folder of a file exists.

    It is never created: a mistyped folder, or a disk that is not mounted, must be noticed.

    Raises:
        StoreNotFound: the folder does not exist.
    """
    if not file.parent.is_dir():
        raise StoreNotFound(f"there is no folder {file.parent}")


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder; none if it does not exist."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


@contextmanager
def translate_errors(target: str) -> Generator[None]:
    """Raise errors of the operating system as errors of Holdfast about ``target``."""
    try:
        yield
    except OSError as error:
        raise store_error(error, target, writing=True) from error
