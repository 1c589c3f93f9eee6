"""Opens a file that must be a regular one, and notices when it changes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn

from holdfast.errors import FileRejected
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import RejectionReason

__all__ = ["OpenedFile"]


class _Identity(NamedTuple):
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class OpenedFile:
    """A regular file, open for reading. The child gets its descriptor, not its name."""

    def __init__(self, path: str | os.PathLike[str], limits: ReadLimits) -> None:
        """Open a file.

        Raises:
            FileRejected: it is a link, a device, a pipe or a folder; it is empty, too large, or
                cannot be opened.
        """
        self._name = Path(path).name[:120]
        # Without O_NONBLOCK, opening a pipe would wait for its other end.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        try:
            # A look before opening: opening some devices has effects.
            if not stat.S_ISREG(os.lstat(path).st_mode):
                self._reject("not_a_file", "is not a regular file")
            self.descriptor = os.open(path, flags)
        except OSError as error:
            link = error.errno == errno.ELOOP
            reason = "is not a regular file" if link else f"cannot be opened: {error.strerror}"
            self._reject("not_a_file", reason)
        except ValueError:  # a NUL in the name
            self._reject("not_a_file", "has a name that no file can have")
        try:
            self._identity = self._check(limits)
        except BaseException:
            self.close()
            raise

    def _check(self, limits: ReadLimits) -> _Identity:
        found = os.fstat(self.descriptor)
        if not stat.S_ISREG(found.st_mode):
            self._reject("not_a_file", "is not a regular file")
        if found.st_size == 0:
            self._reject("empty", "is empty")
        if found.st_size > limits.file_bytes_max:
            self._reject(
                "too_large",
                f"has {found.st_size:,} bytes, at most {limits.file_bytes_max:,} are read",
            )
        return _identity(found)

    def check_unchanged(self) -> None:
        """Compare the file with what it was when it was opened.

        Raises:
            FileRejected: it was written to since.
        """
        if _identity(os.fstat(self.descriptor)) != self._identity:
            self._reject("changed", "was changed while it was read")

    def _reject(self, reason: RejectionReason, message: str) -> NoReturn:
        raise FileRejected(f"{self._name!r} {message}", reason=reason) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def __enter__(self) -> OpenedFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _identity(found: os.stat_result) -> _Identity:
    return _Identity(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )
