"""`ReadLimits`: how much a file may contain, and what its parser may use."""

from __future__ import annotations

import msgspec

from holdfast.errors import InvalidRequest

__all__ = ["ReadLimits"]

_MIB = 1024**2


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a file and of the child process that parses it.

    A file over a bound is rejected; a segment over a bound fails alone. ``memory_bytes`` is address
    space above what the child needs for its libraries. ``seconds`` is time of the processor, for
    the outline and again for each segment; ``wall_seconds`` bounds the same by the clock.
    """

    file_bytes_max: int = 1024 * _MIB
    expanded_bytes_max: int = 1024 * _MIB
    """Of a ZIP-based file, when it is unpacked."""
    memory_bytes: int = 768 * _MIB
    seconds: float = 60.0
    wall_seconds: float = 300.0
    segments_max: int = 100_000
    pixels_max: int = 100_000_000
    """Of an image in the file."""
    image_pixels_max: int = 2_000_000
    """Of the image that is made of a page."""
    objects_max: int = 500_000
    """Of a PDF: in the file, and on one page."""
    text_chars_max: int = 1_000_000
    """Of one segment."""
    crashes_max: int = 5
    """Children that may die in one `FileReader.read`, before the rest of its segments fails."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidRequest(
                    f"{field} must be a number above 0, got {value!r:.80}", field=field
                )
