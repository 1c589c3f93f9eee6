"""Tesseract of Debian, which the tests of OCR use."""

from __future__ import annotations

from tests.servers import component

__all__ = ["tesseract_command"]


def tesseract_command() -> str:
    """Return the path of Tesseract; where it is missing and we are root, install it.

    Raises:
        ComponentMissing: it is not here and may not or cannot be installed.
    """
    return component.command("tesseract", debian_package="tesseract-ocr")
