"""Reads a Word document: its paragraphs and tables in order, in sections of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import docx
from docx.table import Table as DocxTable

from holdfast.integrations.reading.parsing import SequentialParser, cleaned_table, reject
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import ReadSegment, Table
from holdfast.integrations.reading.sections import Block, sections

__all__ = ["DocxParser"]

_DEPTH_MAX = 5


class DocxParser(SequentialParser):
    """Reads sections of a Word document. Headers, footers and comments are left out."""

    def __init__(self, file: BinaryIO, limits: ReadLimits) -> None:
        super().__init__(limits)
        try:
            self._document: Any = docx.Document(file)
            self.title = str(self._document.core_properties.title or "")
        except (SyntaxError, KeyError, ValueError, AttributeError) as error:
            _reject_xml(error)

    def segments(self) -> Iterator[ReadSegment]:
        return sections(self._blocks())

    def _blocks(self) -> Iterator[Block]:
        for part in self._document.iter_inner_content():
            if isinstance(part, DocxTable):
                yield Block(table=_table(part))
                continue
            style: Any = part.style
            name = str(getattr(style, "name", "") or "")
            yield Block(part.text, heading=name.startswith(("Heading", "Title")))


def _table(table: Any, depth: int = 0) -> Table:
    """Return the rows of a table. A cell that spans columns stands in its first column only."""
    rows: Table = []
    for row in table.rows:
        cells: list[str] = []
        last: Any = None
        for cell in row.cells:
            repeated = last is not None and cell._tc is last
            last = cell._tc
            cells.append("" if repeated else _cell_text(cell, depth))
        rows.append(cells)
    return cleaned_table(rows)


def _cell_text(cell: Any, depth: int) -> str:
    texts: list[str] = [cell.text]
    if depth < _DEPTH_MAX:
        for inner in cell.tables:
            texts.extend(" ".join(row) for row in _table(inner, depth + 1))
    return "\n".join(text for text in texts if text)


def _reject_xml(error: Exception) -> None:
    message = str(error)
    if "depth" in message or "huge" in message:
        reject("nesting", f"the document is nested too deeply, or too large: {message}")
    reject("damaged", f"the document is damaged: {type(error).__name__}: {message}")
