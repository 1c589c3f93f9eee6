"""Finds tables among the pieces of text on a page, by how they are aligned.

A PDF has no tables, only text at places. Rows are pieces of text at one height, cells are pieces
with a gap between them. Consecutive rows with the same number of cells, at least two, whose columns
overlap are a table. Cells that span rows or columns, and columns with empty cells, end a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["TextBox", "found_tables"]

_ROWS_MIN = 2
_CELLS_MIN = 2
# In heights of the text: a smaller gap is a space.
_GAP_MIN = 0.8


class TextBox(NamedTuple):
    """A piece of text, and where it stands; the origin is at the bottom left."""

    left: float
    bottom: float
    right: float
    top: float
    text: str


def found_tables(boxes: Iterable[TextBox]) -> list[list[list[str]]]:
    """Return the tables on a page, from its top to its bottom, as rows of cells."""
    tables: list[list[list[TextBox]]] = []
    current: list[list[TextBox]] = []
    for row in _rows(boxes):
        cells = _cells(row)
        if current and _continues(current[-1], cells):
            current.append(cells)
            continue
        tables.append(current)
        current = [cells] if len(cells) >= _CELLS_MIN else []
    tables.append(current)
    return [
        [[" ".join(cell.text.split()) for cell in row] for row in table]
        for table in tables
        if len(table) >= _ROWS_MIN
    ]


def _rows(boxes: Iterable[TextBox]) -> list[list[TextBox]]:
    """Group boxes by height. A box belongs to a row if it overlaps half of its first box."""
    rows: list[list[TextBox]] = []
    for box in sorted(
        (box for box in boxes if box.text.strip()), key=lambda box: -(box.top + box.bottom)
    ):
        first = rows[-1][0] if rows else None
        if first is not None:
            shared = min(first.top, box.top) - max(first.bottom, box.bottom)
            if shared > min(first.top - first.bottom, box.top - box.bottom) / 2:
                rows[-1].append(box)
                continue
        rows.append([box])
    return [sorted(row) for row in rows]


def _cells(row: Sequence[TextBox]) -> list[TextBox]:
    cells = [row[0]]
    for box in row[1:]:
        last = cells[-1]
        if box.left - last.right < _GAP_MIN * max(box.top - box.bottom, last.top - last.bottom):
            cells[-1] = TextBox(
                last.left,
                min(last.bottom, box.bottom),
                max(last.right, box.right),
                max(last.top, box.top),
                f"{last.text} {box.text}",
            )
        else:
            cells.append(box)
    return cells


def _continues(above: Sequence[TextBox], row: Sequence[TextBox]) -> bool:
    return len(above) == len(row) and all(
        min(upper.right, lower.right) > max(upper.left, lower.left)
        for upper, lower in zip(above, row, strict=True)
    )
