"""The folder that stands for a bucket with versions: each version of a document is kept."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

__all__ = ["DocumentFolder", "content_version", "write_once"]

_VERSION = re.compile(r"[0-9a-f]{32}")


def content_version(data: bytes) -> str:
    """Return the version of a document, which follows from its content alone."""
    return hashlib.sha256(data).hexdigest()[:32]


class DocumentFolder:
    """Keeps the content of documents by version: a file that changes later changes no run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, data: bytes) -> str:
        """Keep a content, and return its version. The same content is kept once."""
        version = content_version(data)
        write_once(self._path / version, data)
        return version

    def load(self, key: str, version: str) -> bytes:
        """Return the content of a version.

        Raises:
            FileNotFoundError: this machine does not have it.
            ValueError: the version is not one of this folder, or the file was changed.
        """
        if not _VERSION.fullmatch(version):
            raise ValueError(f"version must be 32 hexadecimal digits, got {version!r:.80}")
        data = (self._path / version).read_bytes()
        if content_version(data) != version:
            raise ValueError(f"the stored content of {key!r:.200} was changed or damaged")
        return data


def write_once(path: Path, data: bytes) -> bool:
    """Write a file whole, unless it exists; return whether this call wrote it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return False
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(name, path)  # fails if the file exists, unlike a rename
    except FileExistsError:
        return False
    finally:
        os.unlink(name)
    return True
