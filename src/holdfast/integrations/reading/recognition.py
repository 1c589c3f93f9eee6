"""`OcrEngine`: the port of engines that recognise text in images."""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ["OcrEngine", "OcrLine", "OcrText"]


class OcrLine(msgspec.Struct, frozen=True):
    """A line of text in an image, where it stands in pixels, and how certain it is (0 to 1)."""

    text: str
    box: tuple[float, float, float, float]
    """Left, top, right, bottom."""
    confidence: float


class OcrText(msgspec.Struct, frozen=True):
    """The text in an image, line by line."""

    text: str
    lines: tuple[OcrLine, ...] = ()


class OcrEngine(Protocol):
    """Recognises text in images."""

    name: str
    """What recognises the text, to show to people."""

    async def recognize(self, image: bytes, *, language: str = "en") -> OcrText:
        """Return the text in an image (PNG or JPEG).

        Raises:
            NotConfigured: the engine, or its data for the language, is not installed.
            ExtractionFailed: the engine cannot read this image.
            ExtractionUnavailable: the engine does not answer, or is too busy; try again.
        """
        ...
