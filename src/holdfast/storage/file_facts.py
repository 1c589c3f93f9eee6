"""Facts about the file of a SQLite store, without opening it as a database."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["FileFacts", "inspect_file", "mounted_kind"]

_MOUNTS = Path("/proc/self/mountinfo")
# Where SQLite notes that a file uses a write-ahead log: bytes 18 and 19 are 2.
_VERSIONS = slice(18, 20)
_WAL = b"\x02\x02"


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine says about a file; None is not known."""

    file: str
    file_system: str | None = None
    """The kind of the file system, such as ``ext4`` or ``nfs4``."""
    free_bytes: int | None = None
    size_bytes: int | None = None
    uses_wal: bool | None = None


def inspect_file(file: str) -> FileFacts:
    """Return the facts about a file. It need not exist."""
    path = Path(file).absolute()
    size_bytes, uses_wal, free_bytes = None, None, None
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as opened:
            header = opened.read(_VERSIONS.stop)
        uses_wal = header[_VERSIONS] == _WAL if len(header) == _VERSIONS.stop else None
    except OSError:
        pass
    try:
        free = os.statvfs(path.parent)
        free_bytes = free.f_bavail * free.f_frsize
    except (OSError, AttributeError):  # Windows has no statvfs
        pass
    try:
        file_system = mounted_kind(os.path.realpath(path), _MOUNTS.read_text())
    except OSError:  # not Linux
        file_system = None
    return FileFacts(
        file=file,
        file_system=file_system,
        free_bytes=free_bytes,
        size_bytes=size_bytes,
        uses_wal=uses_wal,
    )


def mounted_kind(path: str, mounts: str) -> str | None:
    """Return the kind of the file system that holds a path, from a table of mounts of Linux."""
    best, kind = "", None
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5 or not after.split():
            continue
        point = fields[4].encode().decode("unicode_escape")  # a space is written as \040
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind
