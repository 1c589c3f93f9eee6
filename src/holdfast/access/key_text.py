"""The text of an API key: ``hf_<id>_<secret>``, with a checksum at its end.

The checksum only finds typing errors and random text, so that they cost no read. It protects
nothing: the secret does.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from typing import NamedTuple

__all__ = ["KeyText", "new_key_text", "parsed_key_text"]

_ID_BYTES = 10
_SECRET_BYTES = 20
_FORM = re.compile(r"hf_([a-z2-7]{16})_([a-z2-7]{32})([a-z2-7]{7})", re.ASCII)


class KeyText(NamedTuple):
    """The parts of an API key that are needed to look it up and to compare it."""

    id: str
    digest: bytes
    """The SHA-256 of the secret."""


def new_key_text(random: bytes) -> str:
    """Return the text of a new key, from at least 30 random bytes."""
    id = _base32(random[:_ID_BYTES])
    secret = _base32(random[_ID_BYTES : _ID_BYTES + _SECRET_BYTES])
    return f"hf_{id}_{secret}{_checksum(id, secret)}"


def parsed_key_text(text: str) -> KeyText | None:
    """Return the parts of a key; None if the text cannot be one."""
    read = _FORM.fullmatch(text)
    if read is None or _checksum(read[1], read[2]) != read[3]:
        return None
    return KeyText(read[1], hashlib.sha256(read[2].encode()).digest())


def _checksum(id: str, secret: str) -> str:
    return _base32(zlib.crc32(f"{id}_{secret}".encode()).to_bytes(4, "big"))


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()
