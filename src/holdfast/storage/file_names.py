"""The names of files and folders that stand for the segments of a blob's key.

The blob ``a/b.pdf`` is the file ``a~/b.pdf``: folders end with ``~``, so that ``a`` can be a blob
as well, and ``~`` and ``%`` within a segment are written ``%7E`` and ``%25``.

Some file systems take ``Acme`` and ``acme``, or two spellings of ``é``, for one name. There a
segment that has such letters carries a hash of itself: ``Acme%8f2d50aa5b7c11e9~``.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence

__all__ = ["FileNames", "probe_name_folding"]

_FOLDER_MARK = b"~"
_HASH_MARK = b"%"
_HASH_DIGITS = 16
# What has one form only, whatever a file system takes for the same.
_FOLDING_SAFE = re.compile(rb"[a-z0-9 ._!#$&'()+,;=@^`{}\[\]%~-]*")


class FileNames:
    """How the parts of keys are named; with ``hashed``, so that folding cannot confuse two."""

    def __init__(self, *, hashed: bool) -> None:
        self.hashed = hashed

    def path_of(self, key: str) -> tuple[Sequence[bytes], bytes]:
        """Return the folders and the file of a key."""
        base, slash, last = key.rpartition("/")
        return self.folders(base + slash), self.name(last.encode())

    def folders(self, prefix: str) -> Sequence[bytes]:
        """Return the folders of a prefix that is empty or ends with ``/``."""
        return [self.name(f"{segment}/".encode()) for segment in prefix.split("/")[:-1]]

    def name(self, part: bytes) -> bytes:
        """Return the name of the file for a part of a key, of the folder if it ends with ``/``."""
        segment = part.removesuffix(b"/")
        name = segment.replace(b"%", b"%25").replace(b"~", b"%7E")
        if self.hashed and _FOLDING_SAFE.fullmatch(segment) is None:
            name += _HASH_MARK + _hash(segment)
        return name + _FOLDER_MARK if part.endswith(b"/") else name

    def part(self, name: bytes) -> bytes | None:
        """Return the part of a key that a name stands for, or None where it stands for nothing.

        A name stands for a part only if it is, byte for byte, the name of that part.
        """
        part = name[:-1] + b"/" if name.endswith(_FOLDER_MARK) else name
        slash = b"/" if part.endswith(b"/") else b""
        segment = part.removesuffix(b"/")
        if self.hashed and segment[-_HASH_DIGITS - 1 : -_HASH_DIGITS] == _HASH_MARK:
            segment = segment[: -_HASH_DIGITS - 1]
        segment = segment.replace(b"%7E", b"~").replace(b"%25", b"%")
        return segment + slash if self.name(segment + slash) == name else None


def probe_name_folding(
    id: bytes, create: Callable[[bytes], bool], exists: Callable[[bytes], bool]
) -> bool:
    """Return whether a file system takes two names for one.

    ``made`` makes a file and says whether it could; ``found`` looks for one. ``id`` is lower case.
    """
    accent = "é".encode()
    other = unicodedata.normalize("NFD", "é").encode()
    pairs = [(b"probe-" + id, b"PROBE-" + id.upper()), (accent + id, other + id)]
    return any(create(first) and exists(second) for first, second in pairs)


def _hash(segment: bytes) -> bytes:
    return hashlib.blake2b(segment, digest_size=_HASH_DIGITS // 2).hexdigest().encode()
