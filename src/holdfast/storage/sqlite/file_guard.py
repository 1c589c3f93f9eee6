"""Where the file stands: made private, and watched for as long as it is open.

SQLite goes on writing to a file that was deleted or replaced, and says nothing. The guard compares
what stands under the names of the file, its log and its index with what was opened. While a file is
being opened, it also looks for what forbids to open it, a restore above all:

1. `prepare` makes the file, if one is to be made. SQLite itself never makes one.
2. `FileGuard` takes in which file it is, before SQLite connects.
3. `FileGuard.look`, after each step until SQLite holds the lock that keeps a restore away.
4. `FileGuard.begin` takes in the log, before the first write.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NamedTuple

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
"""What SQLite keeps beside a file that is in use."""
RESTORING_SUFFIX = ".restoring"
"""Stands beside a file while a restore replaces it."""
PRIVATE_FILE = 0o600
_OTHERS_MODE = 0o077
_HEADER_BYTES = 100
# The bytes on which SQLite locks a file: everybody who has it open shares the last 510.
_LOCK_OFFSET = 0x40000000
_LOCK_BYTES = 512

CONNECT_LOCK = threading.Lock()
"""Held while a file is made and while SQLite opens one.

To close a file drops every lock that this process has on it, those of SQLite included.
"""

_open_counts: Counter[_FileIdentity] = Counter()


class _FileIdentity(NamedTuple):
    """Which file it is, whatever its name."""

    device: int
    inode: int


def prepare_file(path: str, *, make: bool) -> None:
    """Make the file if there is none.

    Raises:
        StoreNotFound: there is none and none is to be made, or its log stands there without it.
        StoreUnusable: a restore was cut short, or it is no file, or one with several names.
    """
    real = os.path.realpath(path)
    check_openable(path)
    # The logs before the file: a process that makes a store gives it its first page before its log.
    left = [f"{path}{suffix}" for suffix in SQLITE_SUFFIXES if os.path.lexists(real + suffix)]
    found = _stat(real)
    if found is not None and found.st_size > 0:
        return
    if left and (found is None or f"{path}-wal" in left):
        raise StoreNotFound(
            f"{path} {'is missing' if found is None else 'is empty'}, but {left[0]} stands there: "
            "the file was deleted, moved or emptied, perhaps while a process has it open. Stop "
            f"that process; then move the file back to {path}, beside its log, and no run is lost. "
            "If the file is gone, restore a backup. To begin with a new store, without any run, "
            f"remove {', '.join(left)}"
        )
    if found is None:
        if not make:
            raise StoreNotFound(f"there is no file {path}")
        _create_file(real)


def check_openable(path: str) -> None:
    """Check that nothing forbids to open the file, if there is one.

    Raises:
        StoreUnusable: a restore was cut short, or it is no file, or one with several names.
    """
    real = os.path.realpath(path)
    if os.path.lexists(real + RESTORING_SUFFIX):
        raise StoreUnusable(
            f"{path} is being restored, or a restore of it was cut short: run holdfast store "
            "restore again, which finishes it"
        )
    found = _stat(real)
    if found is None:
        return
    if not stat.S_ISREG(found.st_mode):
        raise StoreNotFound(f"{path} is not a regular file, and cannot be a store")
    if found.st_nlink > 1:
        raise StoreUnusable(
            f"{path} has {found.st_nlink} names (hard links), and processes that open it by "
            "different names lose each other's writes. Remove the other names, or copy the file"
        )


def _create_file(real: str) -> None:
    with CONNECT_LOCK:
        try:
            file = os.open(real, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError:
            return  # another process was faster; or SQLite says what is wrong with the folder
        try:
            os.fchmod(file, PRIVATE_FILE)  # whatever the umask leaves out
        finally:
            os.close(file)


def make_private(path: str) -> None:
    """Take the rights of others away from a file that is known to be a store of ours.

    SQLite makes what is beside it with the same mode.
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
    """Tells whether the file that was opened still stands where it was opened."""

    def __init__(self, path: str) -> None:
        """Take in which file is about to be opened; call `end` in any case."""
        self._path = path
        self._main: _FileIdentity | None = None
        # By its full path: the process may change its folder, SQLite does not.
        self._name = os.path.abspath(path)
        self._real = os.path.realpath(path)
        with suppress(StoreUnavailable):  # SQLite says what is wrong with the folder
            self._main = _identity(_stat(self._name))
        self._log_files: list[tuple[str, _FileIdentity | None]] = []
        self._lost_lock = threading.Lock()
        self._lost: str | None = None
        self._count_open(1)

    def check_opening(self) -> None:
        """Check that the file which is being opened stands there, and may be opened.

        Raises:
            StoreReplaced: it was replaced meanwhile.
            StoreUnusable: a restore is under way, or was cut short.
        """
        check_openable(self._path)
        if _identity(_stat(self._name)) != self._main:
            raise self._mark_replaced(self._name)

    def watch_log(self) -> None:
        """Take in the log and its index, now that SQLite has made them.

        Raises:
            StoreReplaced: the file was replaced while it was opened.
            StoreUnusable: a restore is under way, or was cut short.
        """
        self.check_opening()
        names = (f"{self._real}-wal", f"{self._real}-shm")
        self._log_files = [(name, _identity(_stat(name))) for name in names]
        self.check()

    def check(self) -> None:
        """Check that the file stands where it stood; once it does not, it never does again.

        Raises:
            StoreReplaced: it was deleted, moved, emptied or replaced.
        """
        self.check_file()
        for name, identity in self._log_files:
            if _identity(_stat(name)) != identity:
                raise self._mark_replaced(name)

    def check_file(self) -> None:
        """Check the file alone, without its log.

        Raises:
            StoreReplaced: it was deleted, moved, emptied or replaced.
        """
        if self._lost is not None:
            raise self._mark_replaced(self._name)
        found = _stat(self._name)
        if found is None or _identity(found) != self._main or found.st_size < _HEADER_BYTES:
            raise self._mark_replaced(self._name)

    def release(self) -> None:
        """Forget the file: it is closed."""
        with suppress(StoreUnavailable):
            self._move_log_aside()
        if self._main is not None:
            self._count_open(-1)
            self._main = None

    def _count_open(self, by: int) -> None:
        if self._main is not None:
            with CONNECT_LOCK:
                _open_counts[self._main] += by

    def _mark_replaced(self, name: str) -> StoreReplaced:
        with self._lost_lock:
            if self._lost is None:
                self._lost = (
                    f"{name} was {self._describe_loss(name)} while it was open; nothing is written "
                )
                self._lost += "to the old one any more."
            left = self._move_log_aside()
        if left:
            self._lost += f" What was not yet written back to the old file is in {', '.join(left)}."
            self._lost += (
                " Its blobs stand where they stood: open it with ?blobs= and their folder."
            )
        if _stat(self._name) is None:
            todo = f"Stop this process, move the file back to {self._name}, and start it again"
        else:
            todo = "Restart this process: it opens what stands there then"
        return StoreReplaced(f"{self._lost} {todo}")

    def _describe_loss(self, name: str) -> str:
        found = _stat(name)
        if found is None:
            return "deleted or moved"
        return "emptied" if name == self._name and _identity(found) == self._main else "replaced"

    def _move_log_aside(self) -> list[str]:
        """Move our log away from a file that is not ours, which it would damage; return to where.

        SQLite takes a log for that of the file beside it, whichever that is. Where no file stands,
        the log stays: ours may be moved back, and no process makes a new file beside it. Where
        another process has the new file open already, the log has become that one's.
        """
        main = _identity(_stat(self._real))
        if not self._log_files or main is None or main == self._main:
            return []
        beside, self._log_files = self._log_files, []
        aside = f"{self._real}.replaced-{SystemIds().new()}"
        left: list[str] = []
        with suppress(StoreInUse, OSError), lock_file(self._real):
            for name, identity in beside:
                if identity is not None and _identity(_stat(name)) == identity:
                    moved = aside + name.removeprefix(self._real)
                    os.rename(name, moved)
                    left.append(moved)
        return left


@contextmanager
def lock_file(path: str) -> Generator[None]:
    """Keep everybody else from opening a file; there need not be one.

    Raises:
        StoreInUse: a process has it open.
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
    """Return what stands under a name, or None where nothing does."""
    try:
        return os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"cannot look at {name}: {error.strerror}") from error
