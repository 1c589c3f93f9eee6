"""What reading a file returns: its outline, its segments, and why a segment could not be read."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["FileKind", "FileOutline", "ReadSegment", "RejectionReason", "SegmentFailure", "Table"]

FileKind: TypeAlias = Literal[
    "pdf", "docx", "xlsx", "pptx", "html", "text", "csv", "image", "audio", "video"
]
"""What a file is, by its content."""

RejectionReason: TypeAlias = Literal[
    "unsupported",
    "mismatch",
    "polyglot",
    "macros",
    "svg",
    "executable",
    "encrypted",
    "truncated",
    "damaged",
    "bomb",
    "entities",
    "nesting",
    "objects",
    "pixels",
    "too_large",
    "too_many_segments",
    "empty",
    "not_a_file",
    "changed",
    "memory",
    "time",
    "crash",
]
"""Why a file or a segment was rejected."""

Table: TypeAlias = list[list[str]]
"""The rows of a table, each with the texts of its cells."""


class FileOutline(msgspec.Struct, frozen=True):
    """How many segments a file has. Recordings have none: they are transcribed."""

    segments: int
    kind: FileKind
    title: str = ""


class ReadSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a file: a page, a slide, a frame, a block of rows, or a section of text.

    ``text`` contains the tables, too, in their place. ``needs_ocr`` says that the segment shows
    text, or may do so, that only its image has.
    """

    index: int
    text: str = ""
    tables: list[Table] = []
    image: bytes | None = None
    image_type: Literal["image/png", "image/jpeg"] | None = None
    needs_ocr: bool = False
    title: str = ""


class SegmentFailure(msgspec.Struct, frozen=True):
    """Why one segment could not be read. The others are not affected."""

    index: int
    reason: RejectionReason
    detail: str
