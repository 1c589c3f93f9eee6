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
from holdfast.display import log_named
from holdfast.errors import (
    StoreInUse,
    StoreNotFound,
    StoreReplaced,
    StoreUnavailable,
    StoreUnusable,
)

__all__ = [
    "BESIDE",
    "CONNECTING",
    "PRIVATE_FILE",
    "RESTORING",
    "FileGuard",
    "alone_with",
    "check_place",
    "make_private",
    "prepare",
]

_log = log_named("holdfast.storage")

BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a file that is in use."""
RESTORING = ".restoring"
"""Stands beside a file while a restore replaces it."""
PRIVATE_FILE = 0o600
_OF_OTHERS = 0o077
_HEADER_BYTES = 100
# The bytes on which SQLite locks a file: everybody who has it open shares the last 510.
_LOCKS_AT = 0x40000000
_LOCKS = 512

CONNECTING = threading.Lock()
"""Held while a file is made and while SQLite opens one.

To close a file drops every lock that this process has on it, those of SQLite included.
"""

_open_here: Counter[_Identity] = Counter()


class _Identity(NamedTuple):
    """Which file it is, whatever its name."""

    device: int
    inode: int


def prepare(path: str, *, make: bool) -> None:
    """Make the file if there is none.

    Raises:
        StoreNotFound: there is none and none is to be made, or its log stands there without it.
        StoreUnusable: a restore was cut short, or it is no file, or one with several names.
    """
    real = os.path.realpath(path)
    check_place(path)
    # The logs before the file: a process that makes a store gives it its first page before its log.
    left = [f"{path}{suffix}" for suffix in BESIDE if os.path.lexists(real + suffix)]
    found = _found(real)
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
        _make(real)


def check_place(path: str) -> None:
    """Check that nothing forbids to open the file, if there is one.

    Raises:
        StoreUnusable: a restore was cut short, or it is no file, or one with several names.
    """
    real = os.path.realpath(path)
    if os.path.lexists(real + RESTORING):
        raise StoreUnusable(
            f"{path} is being restored, or a restore of it was cut short: run holdfast store "
            "restore again, which finishes it"
        )
    found = _found(real)
    if found is None:
        return
    if not stat.S_ISREG(found.st_mode):
        raise StoreNotFound(f"{path} is not a regular file, and cannot be a store")
    if found.st_nlink > 1:
        raise StoreUnusable(
            f"{path} has {found.st_nlink} names (hard links), and processes that open it by "
            "different names lose each other's writes. Remove the other names, or copy the file"
        )


def _make(real: str) -> None:
    with CONNECTING:
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
    for name in (real, *(real + suffix for suffix in BESIDE)):
        try:
            found = os.stat(name)
        except OSError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        if mode & _OF_OTHERS and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            os.chmod(name, mode & ~_OF_OTHERS)
            if name == real:
                _log.warning(
                    "%r was open to other users (mode %03o) and is now private", path, mode
                )


class FileGuard:
    """Tells whether the file that was opened still stands where it was opened."""

    def __init__(self, path: str) -> None:
        """Take in which file is about to be opened; call `end` in any case."""
        self._path = path
        self._main: _Identity | None = None
        # By its full path: the process may change its folder, SQLite does not.
        self._name = os.path.abspath(path)
        self._real = os.path.realpath(path)
        with suppress(StoreUnavailable):  # SQLite says what is wrong with the folder
            self._main = _identity(_found(self._name))
        self._beside: list[tuple[str, _Identity | None]] = []
        self._losing = threading.Lock()
        self._lost: str | None = None
        self._count(1)

    def look(self) -> None:
        """Check that the file which is being opened stands there, and may be opened.

        Raises:
            StoreReplaced: it was replaced meanwhile.
            StoreUnusable: a restore is under way, or was cut short.
        """
        check_place(self._path)
        if _identity(_found(self._name)) != self._main:
            raise self._replaced(self._name)

    def begin(self) -> None:
        """Take in the log and its index, now that SQLite has made them.

        Raises:
            StoreReplaced: the file was replaced while it was opened.
            StoreUnusable: a restore is under way, or was cut short.
        """
        self.look()
        names = (f"{self._real}-wal", f"{self._real}-shm")
        self._beside = [(name, _identity(_found(name))) for name in names]
        self.check()

    def check(self) -> None:
        """Check that the file stands where it stood; once it does not, it never does again.

        Raises:
            StoreReplaced: it was deleted, moved, emptied or replaced.
        """
        self.check_file()
        for name, identity in self._beside:
            if _identity(_found(name)) != identity:
                raise self._replaced(name)

    def check_file(self) -> None:
        """Check the file alone, without its log.

        Raises:
            StoreReplaced: it was deleted, moved, emptied or replaced.
        """
        if self._lost is not None:
            raise self._replaced(self._name)
        found = _found(self._name)
        if found is None or _identity(found) != self._main or found.st_size < _HEADER_BYTES:
            raise self._replaced(self._name)

    def end(self) -> None:
        """Forget the file: it is closed."""
        with suppress(StoreUnavailable):
            self._leave()
        if self._main is not None:
            self._count(-1)
            self._main = None

    def _count(self, by: int) -> None:
        if self._main is not None:
            with CONNECTING:
                _open_here[self._main] += by

    def _replaced(self, name: str) -> StoreReplaced:
        with self._losing:
            if self._lost is None:
                self._lost = f"{name} was {self._fate(name)} while it was open; nothing is written "
                self._lost += "to the old one any more."
            left = self._leave()
        if left:
            self._lost += f" What was not yet written back to the old file is in {', '.join(left)}."
            self._lost += (
                " Its blobs stand where they stood: open it with ?blobs= and their folder."
            )
        if _found(self._name) is None:
            todo = f"Stop this process, move the file back to {self._name}, and start it again"
        else:
            todo = "Restart this process: it opens what stands there then"
        return StoreReplaced(f"{self._lost} {todo}")

    def _fate(self, name: str) -> str:
        found = _found(name)
        if found is None:
            return "deleted or moved"
        return "emptied" if name == self._name and _identity(found) == self._main else "replaced"

    def _leave(self) -> list[str]:
        """Move our log away from a file that is not ours, which it would damage; return to where.

        SQLite takes a log for that of the file beside it, whichever that is. Where no file stands,
        the log stays: ours may be moved back, and no process makes a new file beside it. Where
        another process has the new file open already, the log has become that one's.
        """
        main = _identity(_found(self._real))
        if not self._beside or main is None or main == self._main:
            return []
        beside, self._beside = self._beside, []
        aside = f"{self._real}.replaced-{SystemIds().new()}"
        left: list[str] = []
        with suppress(StoreInUse, OSError), alone_with(self._real):
            for name, identity in beside:
                if identity is not None and _identity(_found(name)) == identity:
                    moved = aside + name.removeprefix(self._real)
                    os.rename(name, moved)
                    left.append(moved)
        return left


@contextmanager
def alone_with(path: str) -> Generator[None]:
    """Keep everybody else from opening a file; there need not be one.

    Raises:
        StoreInUse: a process has it open.
    """
    with CONNECTING:
        identity = _identity(_found(path))
        if identity is not None and _open_here[identity] > 0:
            raise StoreInUse(f"this process has {path} open; close it first")
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKS, _LOCKS_AT)
            except OSError as error:
                raise StoreInUse(
                    f"another process has {path} open; stop all workers and clients first"
                ) from error
            yield
        finally:
            os.close(file)


def _identity(found: os.stat_result | None) -> _Identity | None:
    return None if found is None else _Identity(found.st_dev, found.st_ino)


def _found(name: str) -> os.stat_result | None:
    """Return what stands under a name, or None where nothing does."""
    try:
        return os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"cannot look at {name}: {error.strerror}") from error
