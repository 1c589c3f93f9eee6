"""Reads plain text, Markdown and CSV piece by piece."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from typing import BinaryIO

from holdfast.integrations.reading.file_types import HEAD_BYTES, decoded_text
from holdfast.integrations.reading.parsing import (
    SequentialParser,
    cleaned_table,
    reject,
    table_text,
)
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import ReadSegment
from holdfast.integrations.reading.sections import Block, blocks_of_text, sections

__all__ = ["CsvParser", "TextParser"]

_ROWS = 100
_BLOCK_CHARS = 20_000
_LINE_CHARS_MAX = 1_000_000
_PIECE_BYTES = 256 * 1024


class TextParser(SequentialParser):
    """Reads sections of a text. A line that begins with ``#`` between blank lines is a heading."""

    def __init__(self, file: BinaryIO, limits: ReadLimits) -> None:
        super().__init__(limits)
        self._file = file

    def segments(self) -> Iterator[ReadSegment]:
        return sections(self._blocks())

    def _blocks(self) -> Iterator[Block]:
        paragraph: list[str] = []
        size = 0
        for line in _lines(self._file):
            if line.strip() and size < _BLOCK_CHARS:
                paragraph.append(line)
                size += len(line)
                continue
            yield from blocks_of_text("\n".join(paragraph), markdown=True)
            paragraph, size = ([line], len(line)) if line.strip() else ([], 0)
        yield from blocks_of_text("\n".join(paragraph), markdown=True)


class CsvParser(SequentialParser):
    """Reads blocks of 100 rows. Commas, semicolons, tabs or bars separate the cells."""

    def __init__(self, file: BinaryIO, limits: ReadLimits) -> None:
        super().__init__(limits)
        self._file = file

    def segments(self) -> Iterator[ReadSegment]:
        rows: list[list[str]] = []
        chars = number = 0
        try:
            for row in csv.reader(_lines(self._file), delimiter=self._delimiter()):
                if not row:
                    continue
                rows.append(row)
                chars += sum(map(len, row))
                if len(rows) == _ROWS or chars > _BLOCK_CHARS:
                    yield _rows_segment(rows)
                    number += 1
                    rows, chars = [], 0
        except csv.Error as error:
            reject("damaged", f"the table cannot be read: {error}")
        if rows or not number:
            yield _rows_segment(rows)

    def _delimiter(self) -> str:
        first = next(_lines(self._file), "")
        return max(",;\t|", key=first.count)


def _rows_segment(rows: list[list[str]]) -> ReadSegment:
    table = cleaned_table(rows)
    return ReadSegment(index=0, text=table_text(table), tables=[table] if table else [])


def _encoding(file: BinaryIO) -> str:
    file.seek(0)
    head = file.read(HEAD_BYTES)
    file.seek(0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    # By the whole file: the first other letter may come late.
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        while piece := file.read(_PIECE_BYTES):
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        if decoded_text(head, cut=True) is None:
            reject("damaged", "the file is not text")
        return "cp1252"
    finally:
        file.seek(0)
    return "utf-8-sig"


def _lines(file: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(_encoding(file))("replace")
    rest = ""
    while piece := file.read(_PIECE_BYTES):
        text = decoder.decode(piece)
        if "\0" in text:
            reject("mismatch", "the file contains bytes that are not text")
        *lines, rest = (rest + text).splitlines(keepends=True) or [""]
        if rest.endswith("\n"):
            lines, rest = [*lines, rest], ""
        yield from (line.rstrip("\r\n") for line in lines)
        if len(rest) > _LINE_CHARS_MAX:
            yield rest
            rest = ""
    if last := rest + decoder.decode(b"", final=True):
        yield last.rstrip("\r\n")
