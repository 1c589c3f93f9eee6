"""The grid of a document's segments: one page of it, and the way to the others."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.document import DocumentSegment

__all__ = ["GRID_SEGMENTS", "GridCell", "GridPage", "grid_page"]

GRID_SEGMENTS = 250
"""How many segments one page of the grid has."""
# Pages of the grid that are linked: those around this one, the first and the last.
_AROUND = 2


class GridCell(msgspec.Struct, frozen=True):
    """A segment in the grid."""

    index: int
    status: str
    is_stored: bool
    """Whether there is a page about it; a segment that waits is not stored yet."""
    error: str = ""


class GridPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the grid."""

    cells: list[GridCell]
    first: int
    last: int
    number: int
    """The number of the page, from 1."""
    linked: list[int]
    """The numbers of the pages to link; 0 is a gap."""


def grid_page(segments: Iterable[DocumentSegment], *, number: int, total: int) -> GridPage:
    """Return a page of the grid. ``segments`` are those of the page that are stored."""
    stored = {each.index: each for each in segments}
    first = (number - 1) * GRID_SEGMENTS + 1
    last = min(number * GRID_SEGMENTS, total)
    cells = [_cell(index, stored.get(index)) for index in range(first, last + 1)]
    pages = -(-total // GRID_SEGMENTS)
    shown = {1, pages, *range(max(1, number - _AROUND), min(pages, number + _AROUND) + 1)}
    linked: list[int] = []
    for each in sorted(shown):
        if linked and each > linked[-1] + 1:
            linked.append(0)
        linked.append(each)
    return GridPage(cells=cells, first=first, last=last, number=number, linked=linked)


def _cell(index: int, segment: DocumentSegment | None) -> GridCell:
    if segment is None:
        return GridCell(index, "pending", is_stored=False)
    return GridCell(index, segment.status, is_stored=True, error=segment.error or "")
