"""Errors of SQLite, as errors of Holdfast."""

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

# The low byte of an extended result code is the primary code.
_PRIMARY_MASK = 0xFF
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG)


def store_error(error: Exception, path: str) -> Exception:
    """Return the Holdfast error for an error of SQLite; return any other error unchanged."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = _primary_code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Throttled(f"{path} stayed locked by another process: {error}; try again")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreReadOnly(f"{path} cannot be written: {error}")
    if code == sqlite3.SQLITE_FULL or _extended_code(error) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(f"{path} cannot grow: the disk is full, or the file has reached max_bytes")
    if code in _DAMAGED or is_undecodable(error):
        return StoreCorrupt(f"{path} is damaged or not a database: {error}")
    if code == sqlite3.SQLITE_CANTOPEN:
        if _is_denied(os.path.realpath(path)):
            return AccessDenied(
                f"{path} may not be opened: this user has no access to it, or to its folder"
            )
        folder = os.path.dirname(os.path.realpath(path))
        if not os.path.exists(folder):
            return StoreNotFound(
                f"{path} cannot be opened: the folder {folder} does not exist; create it first"
            )
        return StoreNotFound(f"{path} cannot be opened: {error}")
    return StoreUnavailable(f"{path}: {error}")


def may_have_committed(error: sqlite3.Error) -> bool:
    """Return whether a commit that failed with this error may still take effect later.

    A commit whose fsync failed is not visible now. But its frames may be complete in the log, and
    SQLite applies them when it recovers the file.
    """
    return _primary_code(error) == sqlite3.SQLITE_IOERR


def is_undecodable(error: sqlite3.Error) -> bool:
    """Return whether the error is Python's, about text in the file that is not UTF-8."""
    return not hasattr(error, "sqlite_errorcode") and "decode" in str(error)


def _is_denied(real: str) -> bool:
    """Return whether the mode of the file, or of its folder, denies access to this process."""
    if os.path.exists(real):
        return not os.access(real, os.R_OK | os.W_OK)
    folder = os.path.dirname(real)
    return os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK)


def _primary_code(error: sqlite3.Error) -> int:
    return _extended_code(error) & _PRIMARY_MASK


def _extended_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
