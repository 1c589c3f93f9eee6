"""Files of this machine, opened for uploads and read in a thread."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator
from typing import BinaryIO

from holdfast.errors import InvalidRequest

__all__ = ["chunks_of_file", "open_regular_file"]

_READ_BYTES = 1024**2


def open_regular_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; a pipe or a device would never end.

    Raises:
        InvalidRequest: it is no regular file.
        OSError: it cannot be opened.
    """
    # Without O_NONBLOCK, a pipe would block until someone writes to it.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC)
    opened = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        opened.close()
        raise InvalidRequest(f"{os.fspath(path)!r:.200} must be a file", field="path")
    return opened


async def chunks_of_file(opened: BinaryIO) -> AsyncGenerator[bytes, None]:
    """Yield an open file, read in a thread."""
    while chunk := await asyncio.to_thread(opened.read, _READ_BYTES):
        yield chunk
