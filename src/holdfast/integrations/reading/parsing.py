"""What all parsers share: the port, checks of sizes, and clean text. Used in child processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, NoReturn, Protocol

from holdfast.errors import FileRejected
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import ReadSegment, RejectionReason, Table

__all__ = [
    "Parser",
    "SequentialParser",
    "bounded_image",
    "bounded_size",
    "check_pixels",
    "check_segments",
    "check_text",
    "clean_text",
    "cleaned_table",
    "encoded_image",
    "reject",
    "table_text",
]

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\ufffe\uffff]")
_PNG_BYTES_MAX = 1_000_000


class Parser(Protocol):
    """Reads one file. Both methods raise `FileRejected` with the reason if they cannot."""

    def outline(self) -> tuple[int, str]:
        """Return how many segments there are, and the title of the file."""
        ...

    def segment(self, index: int) -> ReadSegment:
        """Return one segment. Indices are asked for in ascending order."""
        ...


class SequentialParser:
    """A parser of a file that has to be read from its beginning."""

    title = ""

    def __init__(self, limits: ReadLimits) -> None:
        self.limits = limits
        self._segments: Iterator[ReadSegment] | None = None
        self._next = 0
        self._ended: FileRejected | None = None

    def segments(self) -> Iterator[ReadSegment]:
        """Yield all segments, in order; the index is set by the caller."""
        raise NotImplementedError

    def outline(self) -> tuple[int, str]:
        """Return how many segments there are, and the title of the file."""
        count = 0
        for count, segment in enumerate(self.segments(), 1):
            check_segments(count, self.limits)
            check_text(segment.text, self.limits)
        return count, self.title

    def segment(self, index: int) -> ReadSegment:
        """Return one segment; those before it are passed over."""
        if self._ended is not None:
            raise self._ended
        self._segments = self._segments or self.segments()
        try:
            for segment in self._segments:
                self._next += 1
                if self._next > index:
                    return segment
        except FileRejected as error:
            self._ended = error
            raise
        reject("damaged", f"the file has only {self._next} segments")


def reject(reason: RejectionReason, message: str) -> NoReturn:
    """Raise a `FileRejected`."""
    raise FileRejected(message, reason=reason)


def check_segments(count: int, limits: ReadLimits) -> None:
    """Reject a file with too many segments."""
    if count > limits.segments_max:
        reject("too_many_segments", f"the file has more than {limits.segments_max:,} segments")


def check_text(text: str, limits: ReadLimits) -> str:
    """Return text that is not too long."""
    if len(text) > limits.text_chars_max:
        reject("too_large", f"the segment has more than {limits.text_chars_max:,} characters")
    return text


def check_pixels(width: int, height: int, limits: ReadLimits) -> None:
    """Reject an image before its pixels are unpacked."""
    if width * height > limits.pixels_max:
        reject(
            "pixels",
            f"the image has {width:,} x {height:,} pixels, at most {limits.pixels_max:,} are read",
        )


def clean_text(text: str) -> str:
    """Return text without control characters, and with one kind of line end."""
    text = (
        text.replace("\r\n", "\n").replace("\r", "\n").replace("\x0b", "\n").replace("\x0c", "\n")
    )
    text = _CONTROLS.sub("", text)
    return text.encode("utf-8", "replace").decode()


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as lines of text."""
    return "\n".join(" | ".join(" ".join(cell.split()) for cell in row) for row in rows)


def cleaned_table(rows: Sequence[Sequence[object]]) -> Table:
    """Return a table whose cells are clean text."""
    return [["" if cell is None else clean_text(str(cell)).strip() for cell in row] for row in rows]


def bounded_size(width: float, height: float, pixels_max: int) -> tuple[int, int]:
    """Return a size of the same shape that has at most so many pixels."""
    scale = min(1.0, (pixels_max / (width * height)) ** 0.5)
    small = (max(1, int(width * scale)), max(1, int(height * scale)))
    # A very long strip has a side of one pixel, and another one that is too long.
    return min(small[0], pixels_max // small[1] or 1), min(small[1], pixels_max // small[0] or 1)


def bounded_image(image: Any, pixels_max: int) -> Any:
    """Return a Pillow image with at most so many pixels, in colour or grey on white."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        from PIL import Image

        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    if image.mode in ("I", "F", "I;16", "I;16B", "I;16L"):
        image = image.convert("F").point(lambda value: value / 257).convert("L")
    image = image.convert("L" if image.mode in ("1", "L") else "RGB")
    size = bounded_size(*image.size, pixels_max)
    return image if size == image.size else image.resize(size)


def encoded_image(image: Any, *, photo: bool) -> tuple[bytes, str]:
    """Return a Pillow image as PNG, or as JPEG where that is much smaller, with its type."""
    if not photo:
        stream = BytesIO()
        image.save(stream, "PNG", optimize=False, compress_level=6)
        if stream.tell() <= _PNG_BYTES_MAX:
            return stream.getvalue(), "image/png"
    stream = BytesIO()
    image.save(stream, "JPEG", quality=85)
    return stream.getvalue(), "image/jpeg"
