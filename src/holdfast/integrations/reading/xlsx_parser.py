"""Reads a workbook sheet by sheet, in blocks of rows, without keeping it in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import openpyxl

from holdfast.integrations.reading.parsing import (
    SequentialParser,
    cleaned_table,
    reject,
    table_text,
)
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import ReadSegment, Table

__all__ = ["XlsxParser"]

_ROWS = 50
_COLUMNS_MAX = 1_000
_BLOCK_CHARS = 20_000


class XlsxParser(SequentialParser):
    """Reads blocks of 50 rows of each sheet, as values: formulas are not evaluated."""

    def __init__(self, file: BinaryIO, limits: ReadLimits) -> None:
        super().__init__(limits)
        try:
            self._book: Any = openpyxl.load_workbook(
                file, read_only=True, data_only=True, keep_links=False
            )
        except (KeyError, ValueError, TypeError, AttributeError, OSError) as error:
            reject("damaged", f"the workbook is damaged: {type(error).__name__}: {error}")
        self.title = str(self._book.properties.title or "")

    def segments(self) -> Iterator[ReadSegment]:
        for sheet in self._book.worksheets:
            # The size that the file declares may be wrong, or huge.
            sheet.reset_dimensions()
            yield from self._blocks(str(sheet.title), sheet)

    def _blocks(self, name: str, sheet: Any) -> Iterator[ReadSegment]:
        rows: list[list[object]] = []
        chars = number = 0
        for values in sheet.iter_rows(values_only=True, max_col=_COLUMNS_MAX):
            row = _without_empty_end(values)
            if not row:
                continue
            chars += sum(len(str(value)) for value in row if value is not None)
            rows.append(row)
            if len(rows) == _ROWS or chars > _BLOCK_CHARS:
                yield _block(name, rows)
                number += 1
                rows, chars = [], 0
        if rows or not number:
            yield _block(name, rows)


def _without_empty_end(values: Any) -> list[object]:
    row = list(values)
    while row and (row[-1] is None or row[-1] == ""):
        row.pop()
    return row


def _block(name: str, rows: list[list[object]]) -> ReadSegment:
    table: Table = cleaned_table(rows)
    tables = [table] if table else []
    return ReadSegment(index=0, text=table_text(table), tables=tables, title=name)
