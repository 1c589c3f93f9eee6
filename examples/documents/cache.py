"""Keeps the files of documents at hand: each is downloaded once by the workers of a machine.

A file is named by the sha256 of its content. Workers that share the folder share the files: a
download is written under another name first, and a file in use is locked, so that no worker
deletes it. The folder is bounded; files that were not used for longest go first.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

__all__ = ["CacheFull", "FileCache"]

_NAME = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = ".part"
_USED = ".used"


class CacheFull(OSError):
    """The file does not fit into the cache, or all that is in it is in use."""


class FileCache:
    """A bounded folder of files by the digest of their content."""

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        self._locks: dict[str, asyncio.Lock] = {}
        self.downloads = 0
        """How many files this process downloaded."""

    @asynccontextmanager
    async def opened(
        self, sha256: str, size: int, download: Callable[[Path], Awaitable[object]]
    ) -> AsyncGenerator[Path]:
        """Provide the path of a file while it is used; ``download`` writes a file that is missing.

        Raises:
            ValueError: ``sha256`` is not a digest.
            CacheFull: there is no room for it.
            Exception: what ``download`` raises.
        """
        if not _NAME.fullmatch(sha256):
            raise ValueError(f"sha256 must be 64 hexadecimal digits, got {sha256!r:.80}")
        await asyncio.to_thread(_make_private, self._folder)
        # One download in this process. Two processes may both download: the last rename wins, and
        # both files are the same.
        async with self._locks.setdefault(sha256, asyncio.Lock()):
            held = await asyncio.to_thread(self._hold, sha256)
            if held is None:
                await asyncio.to_thread(self._make_room, size)
                unfinished = self._folder / f"{sha256}.{os.getpid()}{_UNFINISHED}"
                try:
                    await download(unfinished)
                    await asyncio.to_thread(os.replace, unfinished, self._folder / sha256)
                finally:
                    with suppress(FileNotFoundError):
                        await asyncio.to_thread(os.unlink, unfinished)
                self.downloads += 1
                held = await asyncio.to_thread(self._hold, sha256)
                if held is None:  # deleted by another process in between
                    raise CacheFull(f"{self._folder} has no room for a file of {size:,} bytes")
        try:
            yield self._folder / sha256
        finally:
            os.close(held)

    def _hold(self, sha256: str) -> int | None:
        """Return a descriptor that keeps other processes from deleting the file."""
        path = self._folder / sha256
        try:
            held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        fcntl.flock(held, fcntl.LOCK_SH)
        if not path.exists() or not os.path.samestat(os.fstat(held), path.stat()):
            os.close(held)
            return None
        # Not the time of the file itself: its reader would take it for changed.
        (self._folder / f"{sha256}{_USED}").touch()
        return held

    def _make_room(self, size: int) -> None:
        if size > self._bytes_max:
            raise CacheFull(
                f"a file of {size:,} bytes does not fit into the cache of {self._bytes_max:,} "
                "bytes; set DOCUMENTS_CACHE_BYTES"
            )
        paths = [
            Path(entry) for entry in os.scandir(self._folder) if not entry.name.endswith(_USED)
        ]
        files = sorted(((_last_used(path), path) for path in paths), key=lambda file: file[0])
        left = sum(_size(path) for path in paths)
        for _, path in files:
            if left + size <= self._bytes_max:
                return
            freed = _size(path)
            if self._delete_unused(path):
                left -= freed
        if left + size > self._bytes_max:
            raise CacheFull(f"all files in {self._folder} are in use; set DOCUMENTS_CACHE_BYTES")

    def _delete_unused(self, path: Path) -> bool:
        """Delete a file unless a process uses it; one that a dead process left is unused, too."""
        if path.name.endswith(_UNFINISHED):
            if _is_alive(path.name.removesuffix(_UNFINISHED).rpartition(".")[2]):
                return False
            path.unlink(missing_ok=True)
            return True
        try:
            held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}{_USED}").unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            os.close(held)
        return True


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _last_used(path: Path) -> int:
    for known in (path.with_name(f"{path.name}{_USED}"), path):
        with suppress(FileNotFoundError):
            return known.stat().st_mtime_ns
    return 0


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
