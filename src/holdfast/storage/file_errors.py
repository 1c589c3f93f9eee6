"""Errors of the operating system about a file or folder, as errors of Holdfast."""

from __future__ import annotations

import errno
import os

from holdfast.errors import (
    AccessDenied,
    HoldfastError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)

__all__ = ["store_error"]

_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NAME_TAKEN = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


def store_error(error: OSError, place: str, *, writing: bool) -> HoldfastError:
    """Return the Holdfast error for an `OSError` about ``place``, a file or folder."""
    reason = error.strerror or str(error)
    if error.errno in _FORBIDDEN:
        if writing:
            return StoreReadOnly(f"{place} may not be written: {reason}")
        return AccessDenied(f"{place} may not be read: {reason}")
    if error.errno in _FULL:
        return StoreFull(f"there is no room left for {place}: {reason}")
    if error.errno in _NAME_TAKEN:
        found = error.filename2 or error.filename
        what = os.fsdecode(found) if isinstance(found, str | bytes) else "something"
        return StoreUnusable(f"{place} cannot be used: {what} is in the way: {reason}")
    if error.errno in _EXHAUSTED:
        return StoreUnavailable(f"{place} cannot be used now: {reason}")
    return StoreUnusable(f"{place} cannot be used: {reason}")
