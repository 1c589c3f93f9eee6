"""Writes small files of each type with the same sentence in them."""

from __future__ import annotations

import wave
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
from PIL import Image
from reportlab.pdfgen.canvas import Canvas

from tests.examples.documents.conftest import SENTENCE

__all__ = ["FILES", "pdf_file", "scan_file", "sound_file"]


def _text(path: Path) -> None:
    path.write_text(SENTENCE)


def _markdown(path: Path) -> None:
    path.write_text(f"# Deal\n\n{SENTENCE}\n")


def _csv(path: Path) -> None:
    path.write_text(f'who,what\nElm Bank,"{SENTENCE}"\n')


def _html(path: Path) -> None:
    body = f"<article><h1>Deal</h1><p>{SENTENCE}</p><p>{SENTENCE} And more.</p></article>"
    path.write_text(
        f"<html><head><title>Deal</title><script>evil()</script></head><body>{body}</body></html>"
    )


def _docx(path: Path) -> None:
    document: Any = docx.Document()
    document.add_paragraph(SENTENCE)
    document.save(path)


def _xlsx(path: Path) -> None:
    book: Any = openpyxl.Workbook()
    book.active.append(["who", "what"])
    book.active.append(["Elm Bank", SENTENCE])
    book.save(path)


def _pptx(path: Path) -> None:
    slides: Any = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[0])
    slide.shapes.title.text = SENTENCE
    slides.save(path)


def _pdf(path: Path) -> None:
    pdf_file(path, [SENTENCE])


FILES: Mapping[str, Callable[[Path], None]] = {
    "a.txt": _text,
    "a.md": _markdown,
    "a.csv": _csv,
    "a.html": _html,
    "a.docx": _docx,
    "a.xlsx": _xlsx,
    "a.pptx": _pptx,
    "a.pdf": _pdf,
}


def pdf_file(path: Path, pages: list[str]) -> None:
    """Write a PDF; a page with an empty text is a scan."""
    drawn: Any = Canvas(str(path), invariant=1)
    for text in pages:
        if text:
            drawn.drawString(60, 700, text)
        else:
            from reportlab.lib.utils import ImageReader

            drawn.drawImage(ImageReader(BytesIO(_png())), 0, 0, width=300, height=200)
        drawn.showPage()
    drawn.save()


def scan_file(path: Path) -> None:
    """Write an image."""
    path.write_bytes(_png())


def sound_file(path: Path) -> None:
    """Write a second of silence."""
    with wave.open(str(path), "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(8_000)
        written.writeframes(b"\0\0" * 8_000)


def _png() -> bytes:
    written = BytesIO()
    Image.new("L", (120, 80), 200).save(written, "PNG")
    return written.getvalue()
