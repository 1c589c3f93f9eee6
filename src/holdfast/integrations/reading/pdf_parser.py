"""Reads a PDF page by page, with PDFium: text, tables, and the page as an image."""

# PDFium's raw functions have no types: what comes from them is Any here.
from __future__ import annotations

import math
import re
from typing import Any, BinaryIO

import PIL.Image  # noqa: F401  # pyright: ignore[reportUnusedImport]  # before memory is limited
import pypdfium2
import pypdfium2.raw

from holdfast.integrations.reading.parsing import (
    bounded_size,
    check_segments,
    check_text,
    cleaned_table,
    encoded_image,
    reject,
)
from holdfast.integrations.reading.pdf_tables import TextBox, found_tables
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import ReadSegment

__all__ = ["PdfParser"]

_RAW: Any = pypdfium2.raw
_SCALE = 150 / 72
_PIECE_BYTES = 1024**2
_DECLARED = re.compile(rb"/Size[ \r\n]+(\d{1,12})\b")
_BOXES_MAX = 5_000
# A page with a picture on at least half of it, and less text than this, is a scan with a stamp.
_SCAN_CHARS_MAX = 60
_SCAN_SHARE_MIN = 0.5
# A page of A0 is 3,400 points high. PDF permits 14,400.
_SIDE_POINTS_MAX = 200_000
_IMAGES_MAX = 2_000


class PdfParser:
    """Reads pages of a PDF. It holds one page at a time."""

    def __init__(self, file: BinaryIO, limits: ReadLimits, *, images: bool = True) -> None:
        self._file = file
        self._limits = limits
        self._images = images
        try:
            self._document: Any = pypdfium2.PdfDocument(file)
        except pypdfium2.PdfiumError as error:
            code = getattr(error, "err_code", None)
            if code == _RAW.FPDF_ERR_PASSWORD:
                reject("encrypted", "the PDF is encrypted: remove its password first")
            if code == _RAW.FPDF_ERR_SECURITY:
                reject("encrypted", "the PDF is encrypted in a way that is not read")
            reject("damaged", f"the PDF is truncated or damaged: {error}")

    def outline(self) -> tuple[int, str]:
        """Return the number of pages, and the title."""
        self._check_objects()
        count = len(self._document)
        if count == 0:
            reject("truncated", "the PDF has no pages that can be found")
        check_segments(count, self._limits)
        return count, str(self._document.get_metadata_value("Title") or "")

    def _check_objects(self) -> None:
        self._file.seek(0)
        count, declared, rest = 0, 0, b""
        while piece := self._file.read(_PIECE_BYTES):
            data = rest + piece
            count += data.count(b" obj")
            declared = max([declared, *map(int, _DECLARED.findall(data))])
            # An " obj" that is whole in the rest would be counted twice.
            rest = data[-3:]
        if max(count, declared) > self._limits.objects_max:
            reject(
                "objects",
                f"the PDF has {max(count, declared):,} objects, "
                f"at most {self._limits.objects_max:,} are read",
            )

    def segment(self, index: int) -> ReadSegment:
        """Return one page."""
        try:
            page: Any = self._document[index]
        except (pypdfium2.PdfiumError, IndexError) as error:
            reject("damaged", f"the page cannot be opened: {error}")
        try:
            return self._read_page(page)
        except pypdfium2.PdfiumError as error:
            reject("damaged", f"the page cannot be read: {error}")
        finally:
            page.close()

    def _read_page(self, page: Any) -> ReadSegment:
        width, height = page.get_size()
        if not (0 < width <= _SIDE_POINTS_MAX and 0 < height <= _SIDE_POINTS_MAX):
            reject("pixels", f"the page has a size of {width:g} x {height:g} points")
        objects = int(_RAW.FPDFPage_CountObjects(page))
        if objects > self._limits.objects_max:
            reject(
                "objects",
                f"the page has {objects:,} objects, at most {self._limits.objects_max:,} are read",
            )
        text_page: Any = page.get_textpage()
        try:
            if text_page.count_chars() > self._limits.text_chars_max:
                check_text(" " * (self._limits.text_chars_max + 1), self._limits)
            text = str(text_page.get_text_range())
            tables = found_tables(_boxes(text_page))
        finally:
            text_page.close()
        pictures, share = _pictures(page, width * height)
        letters = len(text.strip())
        # A page without objects is blank: there is nothing on it to recognise.
        needs_ocr = objects > 0 and (
            letters == 0 or (letters < _SCAN_CHARS_MAX and share >= _SCAN_SHARE_MIN)
        )
        image, image_type = self._image(page, photo=pictures) if self._images else (None, None)
        return ReadSegment(
            index=0,
            text=text,
            tables=[cleaned_table(table) for table in tables],
            image=image,
            image_type=image_type,
            needs_ocr=needs_ocr,
        )

    def _image(self, page: Any, *, photo: bool) -> tuple[Any, Any]:
        width, height = page.get_size()
        size = bounded_size(width * _SCALE, height * _SCALE, self._limits.image_pixels_max)
        # PDFium rounds both sides up.
        scale = min((size[0] - 1) / width, (size[1] - 1) / height)
        if scale <= 0 or not math.isfinite(scale):
            reject("pixels", f"the page has a size of {width:g} x {height:g} points")
        bitmap = page.render(scale=scale)
        try:
            image = bitmap.to_pil().convert("RGB")
        finally:
            bitmap.close()
        return encoded_image(image, photo=photo)


def _boxes(text_page: Any) -> list[TextBox]:
    count = text_page.count_rects()
    if count > _BOXES_MAX:  # drawings with labels, rather than tables
        return []
    boxes: list[TextBox] = []
    for number in range(count):
        left, bottom, right, top = text_page.get_rect(number)
        text = str(text_page.get_text_bounded(left, bottom, right, top))
        boxes.append(TextBox(left, bottom, right, top, text))
    return boxes


def _pictures(page: Any, area: float) -> tuple[bool, float]:
    """Return whether the page has pictures, and which share of it the largest one covers."""
    share, found = 0.0, False
    for number, picture in enumerate(page.get_objects(filter=[_RAW.FPDF_PAGEOBJ_IMAGE])):
        if number >= _IMAGES_MAX:
            break
        left, bottom, right, top = picture.get_bounds()
        found, share = True, max(share, abs((right - left) * (top - bottom)) / area)
    return found, share
