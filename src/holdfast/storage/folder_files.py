"""Files and folders, each addressed by its name within an open folder.

Each function takes the file descriptor of an open folder and names below it. None of them follows
a symbolic link, so that a link in a blob folder cannot lead outside of it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.storage.blobs import BlobContent
from holdfast.storage.file_names import probe_name_folding

__all__ = [
    "OPEN_FOLDER",
    "PRIVATE_FOLDER",
    "file_exists",
    "fsync_folder",
    "hash_file",
    "is_folder",
    "open_folder",
    "open_or_create_folder",
    "probe_folder_folding",
    "read_file",
    "read_size",
    "remove_folder_if_empty",
    "write_file",
]

PRIVATE_FOLDER = 0o700
_PRIVATE_FILE = 0o600

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would wait until another process writes to it.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_folder(root: int, folders: Sequence[bytes]) -> Generator[int]:
    """Open a folder below another one.

    Raises:
        FileNotFoundError: a folder is missing, or is a link or a file.
    """
    with _descend(root, folders, _open_existing) as folder:
        yield folder


@contextmanager
def open_or_create_folder(root: int, folders: Sequence[bytes]) -> Generator[int]:
    """Open a folder below another one, and create the folders that are missing."""
    with _descend(root, folders, _open_or_create) as folder:
        yield folder


@contextmanager
def _descend(
    root: int, folders: Sequence[bytes], open_one: Callable[[int, bytes], int]
) -> Generator[int]:
    folder = os.dup(root)
    try:
        for name in folders:
            below = open_one(folder, name)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _open_existing(parent: int, name: bytes) -> int:
    try:
        return os.open(name, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise FileNotFoundError(errno.ENOENT, "no such folder", name) from None
        raise


def _open_or_create(parent: int, name: bytes) -> int:
    try:
        return os.open(name, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, PRIVATE_FOLDER, dir_fd=parent)
            os.chmod(name, PRIVATE_FOLDER, dir_fd=parent)  # the umask may have removed bits
        os.fsync(parent)
        return os.open(name, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=parent)


def write_file(folder: int, name: bytes, data: bytes) -> None:
    """Write and sync a new file that only its owner can read."""
    file = os.open(name, _OPEN_NEW, _PRIVATE_FILE, dir_fd=folder)
    try:
        os.fchmod(file, _PRIVATE_FILE)  # the umask may have removed bits
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def read_file(folder: int, name: bytes, bytes_max: int) -> BlobContent | None:
    """Return a file's size, and its bytes if there are at most ``bytes_max``.

    Returns None if the name belongs to something other than a regular file.
    """
    try:
        file = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            return None
        raise
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_size > bytes_max:
            return BlobContent(found.st_size, None)
        with open(file, "rb", closefd=False) as opened:
            return BlobContent(found.st_size, opened.read())
    finally:
        os.close(file)


def read_size(folder: int, name: bytes) -> int | None:
    """Return the size of a file, or None if there is no regular file of that name."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def hash_file(folder: int, name: bytes) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with os.fdopen(os.open(name, _OPEN_FILE, dir_fd=folder), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_folder_if_empty(parent: int, name: bytes) -> bool:
    """Remove a folder if it exists and is empty; return whether it was removed."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return False
        raise
    return True


def file_exists(folder: int, name: bytes) -> bool:
    """Return whether a folder contains anything of that name."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def is_folder(folder: int, name: bytes) -> bool:
    """Return whether the name, which must exist, is that of a folder."""
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def probe_folder_folding(scratch: int, id: bytes) -> bool:
    """Return whether the file system treats two different names as one.

    It creates files in the scratch folder to find out, and removes them.
    """
    made: list[bytes] = []

    def create(name: bytes) -> bool:
        try:
            os.close(os.open(name, _OPEN_NEW, _PRIVATE_FILE, dir_fd=scratch))
        except OSError as error:
            # The file system does not support this name.
            if error.errno not in (errno.EILSEQ, errno.EINVAL):
                raise
            return False
        made.append(name)
        return True

    try:
        return probe_name_folding(id, create, lambda name: file_exists(scratch, name))
    finally:
        for name in made:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=scratch)


def fsync_folder(path: Path) -> None:
    """Make creations, renames and removals in a folder durable."""
    folder = os.open(path, OPEN_FOLDER)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
