"""`FileNames`: the file and folder names for the segments of a blob's key.

The blob ``a/b.pdf`` is the file ``a~/b.pdf``. Folders end with ``~``, so that ``a`` can be a blob
as well. In a segment, ``~`` and ``%`` become ``%7E`` and ``%25``.

Some file systems treat ``Acme`` and ``acme``, or two encodings of ``é``, as one name. There, the
name of a segment with such letters ends with a hash of the segment: ``Acme%8f2d50aa5b7c11e9~``.
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
# Characters that every file system tells apart.
_FOLDING_SAFE = re.compile(rb"[a-z0-9 ._!#$&'()+,;=@^`{}\[\]%~-]*")


class FileNames:
    """The names for the parts of keys; with ``hashed``, no file system confuses two of them."""

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
        """Return the file name for a part of a key, or the folder name if it ends with ``/``."""
        segment = part.removesuffix(b"/")
        name = segment.replace(b"%", b"%25").replace(b"~", b"%7E")
        if self.hashed and _FOLDING_SAFE.fullmatch(segment) is None:
            name += _HASH_MARK + _hash(segment)
        return name + _FOLDER_MARK if part.endswith(b"/") else name

    def part(self, name: bytes) -> bytes | None:
        """Return the part of a key that has this name, or None if no part has it.

        The name must be, byte for byte, the one that `name` returns for the part.
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
    """Create files to find out whether a file system treats two names as one.

    ``create`` creates a file and returns whether it could; ``exists`` looks for one. ``id`` must be
    in lower case.
    """
    accent = "é".encode()
    other = unicodedata.normalize("NFD", "é").encode()
    pairs = [(b"probe-" + id, b"PROBE-" + id.upper()), (accent + id, other + id)]
    return any(create(first) and exists(second) for first, second in pairs)


def _hash(segment: bytes) -> bytes:
    return hashlib.blake2b(segment, digest_size=_HASH_DIGITS // 2).hexdigest().encode()
