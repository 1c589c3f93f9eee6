"""Messages between a reader and its child process: a JSON header and an image, both bounded."""

from __future__ import annotations

import struct
from typing import BinaryIO, TypeAlias

import msgspec

from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import (
    FileKind,
    ReadSegment,
    RejectionReason,
)

__all__ = [
    "FrameDamaged",
    "OutlineFrame",
    "ReadRequest",
    "RejectedFrame",
    "ResultFrame",
    "SegmentFrame",
    "StartedFrame",
    "frame_bytes_max",
    "read_frame",
    "write_frame",
]

_SIZES = struct.Struct(">II")


class FrameDamaged(Exception):
    """The child sent what is no message, or one over its bounds."""


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is asked for. Without indices it is asked for the outline."""

    kind: FileKind
    mime: str
    descriptor: int
    parent: int
    limits: ReadLimits
    indices: list[int] | None = None
    images: bool = True


class StartedFrame(msgspec.Struct, frozen=True, tag="started"):
    """The child has imported its parser and begins with the file."""


class OutlineFrame(msgspec.Struct, frozen=True, tag="outline"):
    """The answer to a request for an outline."""

    segments: int
    title: str = ""


class SegmentFrame(msgspec.Struct, frozen=True, tag="segment"):
    """A segment; its image follows the header."""

    segment: ReadSegment


class RejectedFrame(msgspec.Struct, frozen=True, tag="rejected"):
    """The file, or the segment of this index, could not be read."""

    reason: RejectionReason
    detail: str
    index: int | None = None


ResultFrame: TypeAlias = StartedFrame | OutlineFrame | SegmentFrame | RejectedFrame

_decoder: msgspec.json.Decoder[ResultFrame] = msgspec.json.Decoder(ResultFrame)


def frame_bytes_max(limits: ReadLimits) -> tuple[int, int]:
    """Return how many bytes a header and an image may have."""
    return 24 * limits.text_chars_max + 65_536, 5 * limits.image_pixels_max + 1_048_576


def write_frame(stream: BinaryIO, frame: ResultFrame, image: bytes = b"") -> None:
    """Write one message, and an image if it has one."""
    header = msgspec.json.encode(frame)
    stream.write(_SIZES.pack(len(header), len(image)))
    stream.write(header)
    stream.write(image)
    stream.flush()


def read_frame(stream: BinaryIO, limits: ReadLimits) -> ResultFrame | None:
    """Return the next message; None at the end of the stream.

    Raises:
        FrameDamaged: the bytes are not a message, or one over its bounds.
    """
    sizes = stream.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    header_bytes, image_bytes = _SIZES.unpack(sizes)
    header_max, image_max = frame_bytes_max(limits)
    if header_bytes > header_max or image_bytes > image_max:
        raise FrameDamaged(f"a message of {header_bytes} and {image_bytes} bytes")
    header, image = stream.read(header_bytes), stream.read(image_bytes)
    if len(header) < header_bytes or len(image) < image_bytes:
        return None
    try:
        frame = _decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameDamaged(f"a message that cannot be read: {error}") from error
    if isinstance(frame, SegmentFrame) and image:
        return SegmentFrame(msgspec.structs.replace(frame.segment, image=image))
    return frame
