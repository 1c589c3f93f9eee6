"""A file system that takes capitals for small letters, and keeps them: as macOS has it."""

from __future__ import annotations

import os
import unicodedata
from typing import Any

import pytest

from holdfast.storage import folder_blobs, folder_files, folder_tree


class FoldingOs:
    """The module ``os``, where a name within a folder finds what is there by a like one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return os.open(_there(path, dir_fd), flags, mode, dir_fd=dir_fd)

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        return os.stat(_there(path, dir_fd), dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        os.mkdir(_there(path, dir_fd), mode, dir_fd=dir_fd)

    def chmod(self, path: Any, mode: int, *, dir_fd: int | None = None) -> None:
        os.chmod(_there(path, dir_fd), mode, dir_fd=dir_fd)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        os.unlink(_there(path, dir_fd), dir_fd=dir_fd)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        os.rmdir(_there(path, dir_fd), dir_fd=dir_fd)

    def replace(self, old: Any, new: Any, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        old, new = _there(old, src_dir_fd), _there(new, dst_dir_fd)
        os.replace(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)


def fold(patch: pytest.MonkeyPatch) -> None:
    """Let folders of blobs lie on such a file system."""
    for module in (folder_blobs, folder_files, folder_tree):
        patch.setattr(module, "os", FoldingOs())


def _there(name: Any, folder: int | None) -> Any:
    if folder is None or not isinstance(name, str | bytes):
        return name
    wanted = _folded(os.fsencode(name))
    for each in os.listdir(folder):
        if _folded(os.fsencode(each)) == wanted:
            return os.fsencode(each)
    return name


def _folded(name: bytes) -> str:
    return unicodedata.normalize("NFC", name.decode(errors="surrogateescape")).casefold()
