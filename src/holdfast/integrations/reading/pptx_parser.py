"""Reads a presentation: the text, the tables and the notes of each slide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import pptx
from pptx.exc import PythonPptxError

from holdfast.integrations.reading.parsing import (
    check_segments,
    cleaned_table,
    reject,
    table_text,
)
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import ReadSegment, Table

__all__ = ["PptxParser"]

_DEPTH_MAX = 20


class PptxParser:
    """Reads slides. Their pictures are not shown."""

    def __init__(self, file: BinaryIO, limits: ReadLimits) -> None:
        self._limits = limits
        try:
            self._deck: Any = pptx.Presentation(file)  # pyright: ignore[reportArgumentType]
            self._slides: Any = self._deck.slides
            self._count = len(self._slides)
        except (SyntaxError, PythonPptxError, KeyError, ValueError) as error:
            reject("damaged", f"the presentation is damaged: {type(error).__name__}: {error}")

    def outline(self) -> tuple[int, str]:
        """Return the number of slides, and the title."""
        if self._count == 0:
            reject("empty", "the presentation has no slides")
        check_segments(self._count, self._limits)
        return self._count, str(self._deck.core_properties.title or "")

    def segment(self, index: int) -> ReadSegment:
        """Return one slide."""
        if index >= self._count:
            reject("damaged", f"the presentation has only {self._count} slides")
        slide: Any = self._slides[index]
        texts: list[str] = []
        tables: list[Table] = []
        for text, table in _contents(slide.shapes):
            texts.append(text)
            if table is not None:
                tables.append(table)
        if slide.has_notes_slide:
            notes = str(slide.notes_slide.notes_text_frame.text if _has_notes(slide) else "")
            if notes.strip():
                texts.append(f"Notes: {notes}")
        title: Any = slide.shapes.title
        return ReadSegment(
            index=0,
            text="\n\n".join(text for text in texts if text.strip()),
            tables=tables,
            title=" ".join(str(title.text_frame.text).split()) if title is not None else "",
        )


def _has_notes(slide: Any) -> bool:
    return slide.notes_slide.notes_text_frame is not None


def _contents(shapes: Any, depth: int = 0) -> Iterator[tuple[str, Table | None]]:
    for shape in shapes:
        if shape.has_text_frame:
            yield str(shape.text_frame.text), None
        elif getattr(shape, "has_table", False):
            rows = [[cell.text for cell in row.cells] for row in shape.table.rows]
            table = cleaned_table(rows)
            yield table_text(table), table
        elif hasattr(shape, "shapes"):  # a group
            if depth >= _DEPTH_MAX:
                reject("nesting", "groups of shapes are nested too deeply")
            yield from _contents(shape.shapes, depth + 1)
