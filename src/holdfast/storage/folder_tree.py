"""The blobs below an open folder: listed in the order of their keys, deleted, and tidied up.

A file or folder whose name `FileNames` could not have made is not a blob of ours. These functions
skip it.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress

from holdfast.errors import InvalidBlobKey
from holdfast.storage.blobs import BLOB_SEGMENTS_MAX, BlobEntry, validate_blob_key
from holdfast.storage.file_names import FileNames
from holdfast.storage.folder_files import open_folder, read_size, remove_folder_if_empty

__all__ = [
    "clear_scratch",
    "delete_tree",
    "list_parts",
    "prune_empty_folders",
    "remove_empty_parents",
    "walk_blobs",
]


def walk_blobs(
    folder: int, base: bytes, *, start: bytes, after: bytes, names: FileNames
) -> Generator[BlobEntry]:
    """Yield the blobs below a folder, in the order of their keys.

    The keys of all of them begin with ``base + start`` and are greater than ``after``. Their order
    is that of their parts, level by level: ``a``, ``a-b``, ``a/``. A folder is opened only if it
    can contain a key greater than ``after``.
    """
    if (after > base and not after.startswith(base)) or base.count(b"/") >= BLOB_SEGMENTS_MAX:
        return
    after_part = after[len(base) :] if after > base else b""
    parts = [
        part
        for part in list_parts(folder, names)
        if part.startswith(start)
        and (part > after_part or (part.endswith(b"/") and after_part.startswith(part)))
    ]
    # A page needs the first few of perhaps a million: a heap yields them without sorting all.
    heapq.heapify(parts)
    while parts:
        part = heapq.heappop(parts)
        key, name = base + part, names.name(part)
        if part.endswith(b"/"):
            with suppress(FileNotFoundError), open_folder(folder, [name]) as below:
                yield from walk_blobs(below, key, start=b"", after=after, names=names)
        elif (text := _decode_key(key)) is not None and (
            size := read_size(folder, name)
        ) is not None:
            yield BlobEntry(text, size)


def list_parts(folder: int, names: FileNames) -> Iterator[bytes]:
    """Yield the contents of a folder as parts of keys, in no order."""
    for name in os.listdir(folder):
        part = names.part(os.fsencode(name))
        if part is not None:
            yield part


def delete_tree(parent: int, name: bytes, *, base: bytes, names: FileNames) -> int:
    """Delete the blobs below a folder, and the folder if that leaves it empty.

    Returns the number of blobs deleted.
    """
    deleted = 0
    if base.count(b"/") >= BLOB_SEGMENTS_MAX:
        return deleted
    # Another process may be removing the folder at the same moment.
    with suppress(FileNotFoundError), open_folder(parent, [name]) as folder:
        for part in list_parts(folder, names):
            key, below = base + part, names.name(part)
            if part.endswith(b"/"):
                deleted += delete_tree(folder, below, base=key, names=names)
            elif _decode_key(key) is not None and read_size(folder, below) is not None:
                with suppress(FileNotFoundError):
                    os.unlink(below, dir_fd=folder)
                    deleted += 1
        if not remove_folder_if_empty(parent, name):
            os.fsync(folder)
    return deleted


def clear_scratch(scratch: int, before: float) -> int:
    """Remove unfinished files last written before a time, in seconds; return how many."""
    removed = 0
    for name in os.listdir(scratch):
        # Another process may clear at the same time, and a failed cleanup must not fail a write.
        with suppress(OSError):
            if os.stat(name, dir_fd=scratch, follow_symlinks=False).st_mtime < before:
                os.unlink(name, dir_fd=scratch)
                removed += 1
    return removed


def prune_empty_folders(folder: int, depth: int, *, before: float, names: FileNames) -> int:
    """Remove the empty folders last changed before a time, in seconds; return how many.

    If a put is about to use one of them, it finds the folder gone and creates it again.
    """
    removed = 0
    if depth >= BLOB_SEGMENTS_MAX:
        return removed
    for part in list_parts(folder, names):
        if not part.endswith(b"/"):
            continue
        name = names.name(part)
        with suppress(FileNotFoundError), open_folder(folder, [name]) as below:
            # Read first: removing folders inside it changes this time.
            changed = os.fstat(below).st_mtime
            removed += prune_empty_folders(below, depth + 1, before=before, names=names)
            if changed < before and remove_folder_if_empty(folder, name):
                os.fsync(folder)
                removed += 1
    return removed


def remove_empty_parents(root: int, folders: Sequence[bytes]) -> None:
    """Remove a folder and those above it, up to the first that is not empty."""
    for depth in range(len(folders), 0, -1):
        with open_folder(root, folders[: depth - 1]) as parent:
            if not remove_folder_if_empty(parent, folders[depth - 1]):
                return
            os.fsync(parent)


def _decode_key(key: bytes) -> str | None:
    """Return a key as text, or None if no blob can have it."""
    try:
        return validate_blob_key(key.decode())
    except (UnicodeDecodeError, InvalidBlobKey):
        return None
