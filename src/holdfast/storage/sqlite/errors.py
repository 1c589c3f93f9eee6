"""What SQLite complains of, as Holdfast's own errors."""

from __future__ import annotations

import os
import sqlite3

from holdfast.errors import (
    AccessDenied,
    StoreCorrupt,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
    StoreUnavailable,
    Throttled,
)

__all__ = ["is_undecodable", "may_have_committed", "store_error"]

# Extended result codes carry the primary code in their low byte.
_PRIMARY_MASK = 0xFF
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG)


def store_error(error: Exception, path: str) -> Exception:
    """Return the error that says what is wrong with the file; any other error as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = _primary_code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Throttled(f"{path} stayed locked by another process: {error}")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreReadOnly(f"{path} cannot be written: {error}")
    if code == sqlite3.SQLITE_FULL or _extended_code(error) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(f"{path} cannot grow: the disk, or the limit set for it, is used up")
    if code in _DAMAGED or is_undecodable(error):
        return StoreCorrupt(f"{path} is damaged or not a database: {error}")
    if code == sqlite3.SQLITE_CANTOPEN:
        if _is_denied(os.path.realpath(path)):
            return AccessDenied(f"{path} may not be opened: it, or its folder, is another user's")
        return StoreNotFound(f"{path} cannot be opened: {error}")
    return StoreUnavailable(f"{path}: {error}")


def may_have_committed(error: sqlite3.Error) -> bool:
    """Return whether a commit that failed so may stand after a restart all the same.

    A commit whose fsync failed is not visible now, but its frames may be found whole in the log
    when the file is next recovered.
    """
    return _primary_code(error) == sqlite3.SQLITE_IOERR


def is_undecodable(error: sqlite3.Error) -> bool:
    """Return whether a text in the file is not UTF-8: Python says so, not SQLite."""
    return not hasattr(error, "sqlite_errorcode") and "decode" in str(error)


def _is_denied(real: str) -> bool:
    """Return whether the modes of the file, or of the folder that it would be in, keep us out."""
    if os.path.exists(real):
        return not os.access(real, os.R_OK | os.W_OK)
    folder = os.path.dirname(real)
    return os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK)


def _primary_code(error: sqlite3.Error) -> int:
    return _extended_code(error) & _PRIMARY_MASK


def _extended_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
