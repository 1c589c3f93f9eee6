"""`FileGuard`: detects that a store's file was deleted or replaced while it is open.

SQLite silently continues to write to a file that was deleted or replaced. The guard compares the
files that have the names of the store, its log and its index with those that were opened. While a
file is being opened, the guard also checks that it may be opened, above all that no restore runs:

1. `prepare_file` creates the file, if it may. SQLite itself never creates one.
2. `FileGuard` remembers which file it is, before SQLite connects.
3. `FileGuard.check_opening` checks it after each step, until SQLite has the lock that keeps
   restores out.
4. `FileGuard.watch_log` remembers the log, before the first write.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NamedTuple, NoReturn

from holdfast.clock import SystemIds
from holdfast.display import get_logger
from holdfast.errors import (
    StoreInUse,
    StoreNotFound,
    StoreReplaced,
    StoreUnavailable,
    StoreUnusable,
)

__all__ = [
    "CONNECT_LOCK",
    "PRIVATE_FILE",
    "RESTORING_SUFFIX",
    "SQLITE_SUFFIXES",
    "FileGuard",
    "check_openable",
    "lock_file",
    "make_private",
    "prepare_file",
]

_log = get_logger("holdfast.storage")

SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a file in use."""
RESTORING_SUFFIX = ".restoring"
"""Suffix of the marker beside a file while a restore replaces it."""
PRIVATE_FILE = 0o600
_OTHERS_MODE = 0o077
_HEADER_BYTES = 100
# The bytes that SQLite locks. Every process that has the file open shares the last 510.
_LOCK_OFFSET = 0x40000000
_LOCK_BYTES = 512

CONNECT_LOCK = threading.Lock()
"""Held while this process creates a file, and while SQLite opens one.

Closing a file descriptor releases all locks of this process on the file, those of SQLite included.
"""

_open_counts: Counter[_FileIdentity] = Counter()


class _FileIdentity(NamedTuple):
    """Identifies a file independently of its name."""

    device: int
    inode: int


def prepare_file(path: str, *, make: bool) -> None:
    """Create the file if there is none and ``make`` is True.

    Raises:
        StoreNotFound: the file is missing and ``make`` is False, or its log exists without it.
        StoreUnusable: a restore was interrupted, or the file has several names.
    """
    real = os.path.realpath(path)
    check_openable(path)
    # Logs first: a process that creates a store writes its first page before its log.
    left = [f"{path}{suffix}" for suffix in SQLITE_SUFFIXES if os.path.lexists(real + suffix)]
    found = _stat(real)
    if found is not None and found.st_size > 0:
        return
    if left and (found is None or f"{path}-wal" in left):
        raise StoreNotFound(
            f"{path} {'is missing' if found is None else 'is empty'}, but {left[0]} exists: the "
            "file was deleted, moved or emptied, perhaps while a process has it open. Stop that "
            f"process; then move the file back to {path}, beside its log, and no run is lost. If "
            "the file is gone, restore a backup. To begin with a new store, without any run, "
            f"remove {', '.join(left)}"
        )
    if found is None:
        if not make:
            raise StoreNotFound(f"there is no file {path}")
        _create_file(real)


def check_openable(path: str) -> None:
    """Check that a file, if it exists, may be opened.

    Raises:
        StoreNotFound: it is not a regular file.
        StoreUnusable: a restore runs or was interrupted, or the file has several names.
    """
    real = os.path.realpath(path)
    if os.path.lexists(real + RESTORING_SUFFIX):
        raise StoreUnusable(
            f"{path} is being restored, or a restore of it was interrupted: wait for it, or run "
            "holdfast store restore again to finish it"
        )
    found = _stat(real)
    if found is None:
        return
    if not stat.S_ISREG(found.st_mode):
        raise StoreNotFound(f"{path} is not a regular file, and so not a store")
    if found.st_nlink > 1:
        raise StoreUnusable(
            f"{path} has {found.st_nlink} names (hard links), and processes that open it by "
            "different names would lose each other's writes. Remove the other names, or copy the "
            "file"
        )


def _create_file(real: str) -> None:
    with CONNECT_LOCK:
        try:
            file = os.open(real, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError:
            return  # another process created it, or SQLite will say what is wrong with the folder
        try:
            os.fchmod(file, PRIVATE_FILE)  # the umask may have removed bits
        finally:
            os.close(file)


def make_private(path: str) -> None:
    """Take away the access of other users to a file that is known to be a store.

    SQLite creates the files beside it with the same mode.
    """
    real = os.path.realpath(path)
    for name in (real, *(real + suffix for suffix in SQLITE_SUFFIXES)):
        try:
            found = os.stat(name)
        except OSError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        if mode & _OTHERS_MODE and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            os.chmod(name, mode & ~_OTHERS_MODE)
            if name == real:
                _log.warning(
                    "%r was open to other users (mode %03o) and is now private", path, mode
                )


class FileGuard:
    """Checks that a file that was opened still has its name."""

    def __init__(self, path: str) -> None:
        """Remember which file is about to be opened. Call `release` in any case."""
        self._path = path
        self._main: _FileIdentity | None = None
        # The absolute path: the process may change its working folder, SQLite does not.
        self._name = os.path.abspath(path)
        self._real = os.path.realpath(path)
        with suppress(StoreUnavailable):  # SQLite will say what is wrong with the folder
            self._main = _identity(_stat(self._name))
        self._log_files: list[tuple[str, _FileIdentity | None]] = []
        self._lost_lock = threading.Lock()
        self._lost: str | None = None
        self._count_open(1)

    def check_opening(self) -> None:
        """Check that the file that is being opened still has its name, and may be opened.

        Raises:
            StoreReplaced: the file was replaced meanwhile.
            StoreUnusable: a restore runs or was interrupted.
        """
        check_openable(self._path)
        if _identity(_stat(self._name)) != self._main:
            self._fail_as_replaced(self._name)

    def watch_log(self) -> None:
        """Remember the log and its index, which SQLite has created by now.

        Raises:
            StoreReplaced: the file was replaced while it was opened.
            StoreUnusable: a restore runs or was interrupted.
        """
        self.check_opening()
        names = (f"{self._real}-wal", f"{self._real}-shm")
        self._log_files = [(name, _identity(_stat(name))) for name in names]
        self.check()

    def check(self) -> None:
        """Check that the file and its log are those that were opened.

        After the first failure, every further check fails.

        Raises:
            StoreReplaced: one of them was deleted, moved, emptied or replaced.
        """
        self.check_file()
        for name, identity in self._log_files:
            if _identity(_stat(name)) != identity:
                self._fail_as_replaced(name)

    def check_file(self) -> None:
        """Check the file alone, without its log.

        Raises:
            StoreReplaced: the file was deleted, moved, emptied or replaced.
        """
        if self._lost is not None:
            self._fail_as_replaced(self._name)
        found = _stat(self._name)
        if found is None or _identity(found) != self._main or found.st_size < _HEADER_BYTES:
            self._fail_as_replaced(self._name)

    def release(self) -> None:
        """Stop watching the file, which was closed."""
        with suppress(StoreUnavailable):
            self._move_log_aside()
        if self._main is not None:
            self._count_open(-1)
            self._main = None

    def _count_open(self, by: int) -> None:
        if self._main is not None:
            with CONNECT_LOCK:
                _open_counts[self._main] += by

    def _fail_as_replaced(self, name: str) -> NoReturn:
        """Remember that the file is lost, move its log aside, and raise.

        Raises:
            StoreReplaced: always.
        """
        with self._lost_lock:
            if self._lost is None:
                self._lost = (
                    f"{name} was {self._describe_loss(name)} while it was open; this process "
                    "writes nothing more to the old file."
                )
            moved = self._move_log_aside()
        if moved:
            self._lost += (
                f" The writes that were not yet in the old file are in {', '.join(moved)}. Its "
                "blobs were not moved: to read the old file, open it with ?blobs= and their folder."
            )
        if _stat(self._name) is None:
            todo = f"Stop this process, move the file back to {self._name}, and start it again"
        else:
            todo = "Restart this process to open the new file"
        raise StoreReplaced(f"{self._lost} {todo}")

    def _describe_loss(self, name: str) -> str:
        found = _stat(name)
        if found is None:
            return "deleted or moved"
        return "emptied" if name == self._name and _identity(found) == self._main else "replaced"

    def _move_log_aside(self) -> list[str]:
        """Move our log away from a file that replaced ours; return the new names.

        SQLite would apply the log to the new file and damage it. If there is no file, the log
        stays: our file may be moved back, and no process creates a new file beside a log. If
        another process already has the new file open, the log belongs to that process now.
        """
        main = _identity(_stat(self._real))
        if not self._log_files or main is None or main == self._main:
            return []
        beside, self._log_files = self._log_files, []
        aside = f"{self._real}.replaced-{SystemIds().new()}"
        moved: list[str] = []
        with suppress(StoreInUse, OSError), lock_file(self._real):
            for name, identity in beside:
                if identity is not None and _identity(_stat(name)) == identity:
                    target = aside + name.removeprefix(self._real)
                    os.rename(name, target)
                    moved.append(target)
        return moved


@contextmanager
def lock_file(path: str) -> Generator[None]:
    """Keep all other processes from opening a file, which need not exist.

    Raises:
        StoreInUse: a process has the file open.
    """
    with CONNECT_LOCK:
        identity = _identity(_stat(path))
        if identity is not None and _open_counts[identity] > 0:
            raise StoreInUse(f"this process has {path} open; close it first")
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_BYTES, _LOCK_OFFSET)
            except OSError as error:
                raise StoreInUse(
                    f"another process has {path} open; stop all workers and clients first"
                ) from error
            yield
        finally:
            os.close(file)


def _identity(found: os.stat_result | None) -> _FileIdentity | None:
    return None if found is None else _FileIdentity(found.st_dev, found.st_ino)


def _stat(name: str) -> os.stat_result | None:
    """Return the status of the file of that name, or None if there is none."""
    try:
        return os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"cannot look at {name}: {error.strerror}") from error
