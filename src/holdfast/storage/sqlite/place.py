"""Where the file stands: made private, and watched for as long as it is open.

SQLite goes on writing to a file that was deleted or replaced, and says nothing. The guard compares
what stands under the names of the file, its log and its index with what was opened.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from holdfast.display import log_named
from holdfast.errors import StoreNotFound, StoreReplaced, StoreUnavailable, StoreUnusable

__all__ = [
    "BESIDE",
    "CONNECTING",
    "PRIVATE_FILE",
    "RESTORING",
    "FileGuard",
    "is_open_here",
    "prepare",
]

_log = log_named("holdfast.storage")

BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a file that is in use."""
RESTORING = ".restoring"
"""Stands beside a file while a restore replaces it."""
PRIVATE_FILE = 0o600
_OF_OTHERS = 0o077

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
    """Make the file if there is none; make a file that is ours private.

    Raises:
        StoreNotFound: there is none and none is to be made, or its log stands there without it.
        StoreUnusable: a restore was cut short.
    """
    real = os.path.realpath(path)
    if os.path.lexists(real + RESTORING):
        raise StoreUnusable(
            f"a restore of {path} was cut short: run holdfast store restore again, which finishes "
            f"it, or remove {path}{RESTORING}"
        )
    if os.path.exists(real):
        _make_private(path, real)
        return
    if not make:
        raise StoreNotFound(f"there is no file {path}")
    left = [f"{path}{suffix}" for suffix in BESIDE if os.path.lexists(real + suffix)]
    if left:
        raise StoreNotFound(
            f"there is no file {path}, but {left[0]} stands there: the file was deleted, perhaps "
            "while a process has it open. Stop that process; then restore a backup, or remove "
            f"{', '.join(left)} to begin with a new store"
        )
    _make(real)


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


def _make_private(path: str, real: str) -> None:
    """Take the rights of others away from a file of ours; SQLite keeps what is beside it alike."""
    for name in (real, *(real + suffix for suffix in BESIDE)):
        try:
            found = os.stat(name)
        except OSError:
            continue
        shared = stat.S_IMODE(found.st_mode) & _OF_OTHERS
        if shared and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            os.chmod(name, stat.S_IMODE(found.st_mode) & ~_OF_OTHERS)
            if name == real:
                mode = stat.S_IMODE(found.st_mode)
                _log.warning(
                    "%r was open to other users (mode %03o) and is now private", path, mode
                )


class FileGuard:
    """Tells whether the file that was opened still stands where it was opened."""

    def __init__(self, path: str) -> None:
        """Take in which file is about to be opened."""
        self._path = path
        self._main: _Identity | None = None
        # By its full path: the process may change its folder, SQLite does not.
        self._name = os.path.abspath(path)
        with suppress(StoreUnavailable):  # SQLite says what is wrong with the folder
            self._main = _standing(self._name)
        self._beside: list[tuple[str, _Identity | None]] = []
        self._lost: str | None = None

    def begin(self) -> None:
        """Take in the log and its index, now that SQLite has made them.

        Raises:
            StoreReplaced: the file was replaced while it was opened.
        """
        real = os.path.realpath(self._path)
        self._beside = [(name, _standing(name)) for name in (f"{real}-wal", f"{real}-shm")]
        self.check()
        self._count(1)

    def check(self) -> None:
        """Check that the file stands where it stood; once it does not, it never does again.

        Raises:
            StoreReplaced: it was deleted, moved or replaced.
        """
        self.check_file()
        for name, identity in self._beside:
            if _standing(name) != identity:
                raise self._replaced(name)

    def check_file(self) -> None:
        """Check the file alone, without its log.

        Raises:
            StoreReplaced: it was deleted, moved or replaced.
        """
        if self._lost is not None or _standing(self._name) != self._main:
            raise self._replaced(self._lost or self._name)

    def end(self) -> None:
        """Forget the file: it is closed."""
        if self._beside:
            self._count(-1)
            self._beside = []

    def _count(self, by: int) -> None:
        if self._main is not None:
            with CONNECTING:
                _open_here[self._main] += by

    def _replaced(self, name: str) -> StoreReplaced:
        self._lost = name
        what = "replaced" if os.path.lexists(name) else "deleted or moved"
        return StoreReplaced(
            f"{name} was {what} while it was open; nothing is written to the old one any more. "
            "Restart this process: it opens what stands there then"
        )


def is_open_here(path: str) -> bool:
    """Return whether this process has the file open."""
    identity = _standing(path)
    return identity is not None and _open_here[identity] > 0


def _standing(name: str) -> _Identity | None:
    try:
        found = os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"cannot look at {name}: {error.strerror}") from error
    return _Identity(found.st_dev, found.st_ino)
