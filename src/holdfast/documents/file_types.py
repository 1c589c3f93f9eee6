"""The types of files by their first bytes, for a process without the parsers of documents.

A process that has them injects their function into `DocumentUploads.sniff`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import TypeAlias

from holdfast.errors import FileRejected, InvalidRequest

__all__ = ["HEAD_BYTES", "Sniff", "file_type_of", "validated_media_type"]

Sniff: TypeAlias = Callable[[bytes, str], str]
"""Returns the type of a file, such as ``application/pdf``, from its first bytes and its name; it
raises `FileRejected` for a file that is not accepted."""

HEAD_BYTES = 64 * 1024
"""How many bytes of a file are looked at."""

_TYPE_CHARS_MAX = 255
_OFFICE = "application/vnd.openxmlformats-officedocument."
_OFFICE_TYPES = {
    "docx": f"{_OFFICE}wordprocessingml.document",
    "pptx": f"{_OFFICE}presentationml.presentation",
    "xlsx": f"{_OFFICE}spreadsheetml.sheet",
}
# The first bytes, the type, and the endings that a name may have.
_MAGIC: tuple[tuple[bytes, str, tuple[str, ...]], ...] = (
    (b"%PDF-", "application/pdf", ("pdf",)),
    (b"\x89PNG\r\n\x1a\n", "image/png", ("png",)),
    (b"\xff\xd8\xff", "image/jpeg", ("jpg", "jpeg")),
    (b"GIF87a", "image/gif", ("gif",)),
    (b"GIF89a", "image/gif", ("gif",)),
    (b"II*\0", "image/tiff", ("tif", "tiff")),
    (b"MM\0*", "image/tiff", ("tif", "tiff")),
    (b"ID3", "audio/mpeg", ("mp3",)),
    (b"\xff\xfb", "audio/mpeg", ("mp3",)),
    (b"fLaC", "audio/flac", ("flac",)),
    (b"OggS", "audio/ogg", ("ogg", "oga")),
)
_RIFF = {b"WEBP": ("image/webp", "webp"), b"WAVE": ("audio/wav", "wav")}
_MPEG4 = {"mp4": "video/mp4", "m4v": "video/mp4", "m4a": "audio/mp4"}
_TEXT = {
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "htm": "text/html",
}
_KNOWN = "pdf, docx, xlsx, pptx, html, txt, md, csv, png, jpg, gif, tiff, webp, and sound"


def file_type_of(head: bytes, name: str) -> str:
    """Return the type of a file. Its first bytes and the ending of its name must agree.

    Raises:
        FileRejected: they do not, or it is of no known type.
    """
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    kind, endings = _of_bytes(head, ending)
    if not kind:
        raise FileRejected(f"{name!r:.200} is of no known type; accepted are: {_KNOWN}")
    if ending not in endings:
        raise FileRejected(
            f"{name!r:.200} must end with .{endings[0]}: its content is {kind}, and a name that "
            "says something else misleads its reader"
        )
    return kind


def _of_bytes(head: bytes, ending: str) -> tuple[str, tuple[str, ...]]:
    for magic, kind, endings in _MAGIC:
        if head.startswith(magic):
            return kind, endings
    if head.startswith(b"RIFF") and head[8:12] in _RIFF:
        kind, only = _RIFF[head[8:12]]
        return kind, (only,)
    if head[4:8] == b"ftyp" and ending in _MPEG4:
        return _MPEG4[ending], (ending,)
    if head.startswith(b"PK\x03\x04") and ending in _OFFICE_TYPES:
        return _OFFICE_TYPES[ending], (ending,)
    if ending in _TEXT and _is_text(head):
        return _TEXT[ending], (ending,)
    return "", ()


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        # A character may be cut at the end.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def validated_media_type(file_type: object) -> str:
    """Return the type that a sender names; it may be empty.

    Raises:
        InvalidRequest: it is not text that a header can carry.
    """
    if (
        not isinstance(file_type, str)
        or len(file_type) > _TYPE_CHARS_MAX
        or not (file_type.isascii() and (file_type.isprintable() or not file_type))
    ):
        raise InvalidRequest(
            f"file_type must be a media type such as application/pdf, got {file_type!r:.80}",
            field="file_type",
        )
    return file_type
