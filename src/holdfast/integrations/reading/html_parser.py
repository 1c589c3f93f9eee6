"""Reads a saved web page: its main text, without scripts, styles and navigation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import lxml.html
import trafilatura

from holdfast.integrations.reading.file_types import decoded_text
from holdfast.integrations.reading.parsing import SequentialParser, reject
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import ReadSegment
from holdfast.integrations.reading.sections import blocks_of_text, sections

__all__ = ["HtmlParser"]

_LXML: Any = lxml.html
# Their text is none: it is code, or an alternative that a browser does not show.
_NO_TEXT = ("script", "style", "noscript", "template", "object", "embed", "iframe", "svg", "math")
_PAGE_BYTES_MAX = 50 * 1024**2


class HtmlParser(SequentialParser):
    """Reads sections of the main text of a page."""

    def __init__(self, file: BinaryIO, limits: ReadLimits) -> None:
        super().__init__(limits)
        data = file.read(_PAGE_BYTES_MAX + 1)
        if len(data) > _PAGE_BYTES_MAX:
            reject("too_large", f"the page has more than {_PAGE_BYTES_MAX:,} bytes")
        text = decoded_text(data)
        if text is None or not text.strip():
            reject("damaged", "the page is not text")
        try:
            tree: Any = _LXML.document_fromstring(_without_declaration(text))
        except (SyntaxError, ValueError) as error:
            reject("damaged", f"the page cannot be read: {error}")
        for element in list(tree.iter(*_NO_TEXT)):
            if element.getparent() is not None:
                element.drop_tree()  # the text behind it stays
        self.title = " ".join(str(tree.findtext(".//title") or "").split())
        extracted: Any = trafilatura.extract(
            tree, include_comments=False, include_tables=True, output_format="txt"
        )
        body: Any = tree.find("body")
        self._text = str(extracted or "") or _all_text(tree if body is None else body)

    def segments(self) -> Iterator[ReadSegment]:
        # trafilatura has one line for each paragraph.
        for section in sections(blocks_of_text(self._text.replace("\n", "\n\n"))):
            yield ReadSegment(index=0, text=section.text, title=self.title)


def _all_text(tree: Any) -> str:
    """Return all text of a page, for pages without a main text, such as forms."""
    lines = (" ".join(str(text).split()) for text in tree.itertext())
    return "\n".join(line for line in lines if line)


def _without_declaration(text: str) -> str:
    """lxml does not take a decoded text that declares an encoding."""
    start = text.lstrip("\ufeff \t\r\n")
    return start.partition("?>")[2] if start.startswith("<?xml") else text
