"""Moves a damaged search index aside, so that a new one can be built in its place."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress

from holdfast.clock import Ids
from holdfast.display import get_logger
from holdfast.documents.search_file import APPLICATION_ID
from holdfast.errors import SearchIndexDamaged, SearchUnavailable

__all__ = ["move_aside"]

_log = get_logger("holdfast.documents")

_SUFFIXES = ("-wal", "-shm")
_MAGIC = b"SQLite format 3\0"
_APPLICATION_AT = 68
_HEADER_BYTES = 100
# The bytes that SQLite locks. Every process that has the file open shares the last 510.
_LOCK_OFFSET = 0x40000000
_LOCK_BYTES = 512


def move_aside(path: str, ids: Ids) -> None:
    """Rename a damaged index and its log. This process must not have the file open.

    Raises:
        SearchUnavailable: another process has the file open.
        SearchIndexDamaged: the file belongs to another program, and stays where it is.
    """
    real = os.path.realpath(path)
    try:
        with _locked(real) as file:
            _check_owner(path, os.pread(file, _HEADER_BYTES, 0))
            aside = f"{real}.damaged-{ids.new()}"
            os.rename(real, aside)
            for suffix in _SUFFIXES:
                with suppress(FileNotFoundError):
                    os.rename(real + suffix, aside + suffix)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SearchUnavailable(f"{path} cannot be moved aside: {error.strerror}") from error
    _log.warning("the damaged search index %r is now %r and may be removed", path, aside)


@contextmanager
def _locked(real: str) -> Generator[int]:
    file = os.open(real, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_BYTES, _LOCK_OFFSET)
        except OSError as error:
            raise SearchUnavailable(
                f"another process has the search index {real} open: stop the workers and servers "
                "that use it, and build it again"
            ) from error
        yield file
    finally:
        os.close(file)


def _check_owner(path: str, header: bytes) -> None:
    """Check that a file is an index, or so damaged that it does not say what it is."""
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        return
    (application,) = struct.unpack_from(">I", header, _APPLICATION_AT)
    if application != APPLICATION_ID:
        raise SearchIndexDamaged(
            f"{path} is not a search index of Holdfast: choose another file for it"
        )
