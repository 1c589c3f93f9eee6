"""Divides text into sections of bounded size, at its headings and paragraphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.integrations.reading.parsing import table_text
from holdfast.integrations.reading.read_segments import ReadSegment, Table

__all__ = ["Block", "blocks_of_text", "sections"]

_SECTION_CHARS = 4_000
# A heading begins a section only if the one before has some substance.
_SECTION_CHARS_MIN = 1_000
_TABLE_ROWS = 50


class Block(msgspec.Struct, frozen=True):
    """A paragraph, a heading or a table."""

    text: str = ""
    table: Table | None = None
    heading: bool = False


def sections(blocks: Iterable[Block]) -> Iterator[ReadSegment]:
    """Yield sections of about 4,000 characters; the title of each is the heading that it is under.

    At least one is yielded. A longer paragraph is divided; so is a table, which keeps its first
    row in each part.
    """
    texts: list[str] = []
    tables: list[Table] = []
    title = heading = ""
    size = number = 0
    for block in _small(blocks):
        text = block.text if block.table is None else table_text(block.table)
        begins = block.heading and size >= _SECTION_CHARS_MIN
        if size and (begins or size + len(text) > _SECTION_CHARS):
            yield ReadSegment(index=0, text="\n\n".join(texts), tables=tables, title=title)
            number += 1
            texts, tables, size = [], [], 0
            title = heading
        if block.heading:
            heading = text
            title = title if size else text
        texts.append(text)
        size += len(text)
        if block.table is not None:
            tables.append(block.table)
    if texts or not number:
        yield ReadSegment(index=0, text="\n\n".join(texts), tables=tables, title=title)


def blocks_of_text(text: str, *, markdown: bool = False) -> Iterator[Block]:
    """Yield the paragraphs of a text, which blank lines separate."""
    for paragraph in text.split("\n\n"):
        if not paragraph.strip():
            continue
        lines = paragraph.strip("\n")
        heading = markdown and lines.lstrip().startswith("#") and "\n" not in lines
        yield Block(lines.lstrip("# ").rstrip() if heading else lines, heading=heading)


def _small(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if block.table is not None:
            yield from _small_tables(block.table)
        elif len(block.text) <= _SECTION_CHARS:
            if block.text.strip():
                yield block
        else:
            yield from (Block(part, heading=False) for part in _parts(block.text))


def _small_tables(table: Table) -> Iterator[Block]:
    head, rows = table[:1], table[1:]
    if len(rows) < _TABLE_ROWS:
        yield Block(table=table)
        return
    for first in range(0, len(rows), _TABLE_ROWS):
        yield Block(table=[*head, *rows[first : first + _TABLE_ROWS]])


def _parts(text: str) -> Iterator[str]:
    """Divide a text at ends of lines or at spaces, or where there are none, anywhere."""
    start = 0
    while start < len(text):
        end = start + _SECTION_CHARS
        if end < len(text):
            for separator in ("\n", " "):
                found = text.rfind(separator, start + _SECTION_CHARS // 2, end)
                if found > 0:
                    end = found + 1
                    break
        yield text[start:end]
        start = end
