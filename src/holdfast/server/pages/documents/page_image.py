"""Images of pages: only pictures that a browser shows as nothing else than a picture."""

from __future__ import annotations

__all__ = ["image_type"]

_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_RIFF_BYTES = 12


def image_type(data: bytes) -> str | None:
    """Return the type of a picture by its first bytes; None if it is none that is safe to show.

    SVG is a document with scripts, so it is not one.
    """
    for beginning, kind in _BEGINNINGS.items():
        if data.startswith(beginning):
            return kind
    head = data[:_RIFF_BYTES]
    return "image/webp" if head[:4] == b"RIFF" and head[8:] == b"WEBP" else None
