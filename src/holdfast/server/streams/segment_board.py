"""`SegmentBoard`: the states of a document's segments, and how to read only what is new of them."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from typing import Protocol

import msgspec

from holdfast.model.document import STEP_STATUSES, DocumentSegment, DocumentSegmentPage, StepStatus
from holdfast.server.streams.index_ranges import IndexRange, gaps, joined, ranges_of, rotated

__all__ = ["SegmentBoard", "SegmentChange", "SegmentReads"]

_SETTLED: tuple[StepStatus, ...] = ("completed", "skipped")
# What one look may cost: each range is a query, each segment about a kilobyte.
_RANGES_MAX = 32
_LOOK_SEGMENTS_MAX = 1_000
_APART_MAX = 250
_ERRORS_MAX = 100
_ERROR_CHARS_MAX = 500


class SegmentChange(msgspec.Struct, frozen=True):
    """A segment that is new, or whose status has changed."""

    index: int
    status: StepStatus
    error: str | None


class SegmentReads(Protocol):
    """Reads the segments of ranges, range after range."""

    def __call__(
        self, ranges: Sequence[IndexRange], *, limit: int, eventual: bool
    ) -> Awaitable[DocumentSegmentPage]:
        """Return at most ``limit`` segments; the cursor is the index up to which was read."""
        ...


class SegmentBoard:
    """What is known of the segments of one workflow.

    Segments are written in any order, and nothing says which are new. A look reads the gaps between
    the segments that are known to be done. So it reads a segment about once, and what one look
    costs does not depend on how large the document is.
    """

    def __init__(self, read: SegmentReads) -> None:
        self.errors: dict[int, str] = {}
        """Why segments failed; of the first ones only."""
        self._read = read
        self._states = bytearray()
        self._looked_to = 0

    def count(self, status: StepStatus) -> int:
        """Return how many segments have a status, as far as they are known."""
        return self._states.count(_code(status))

    def ranges(self, status: StepStatus) -> list[IndexRange]:
        """Return the segments that have a status."""
        return ranges_of(self._indices(status))

    async def look(self, total: int, *, whole: bool) -> list[SegmentChange]:
        """Return the segments that are new or have changed.

        ``whole`` looks at all that are not known to be done, however many there are, and misses
        nothing that is stored.
        """
        missing = gaps(ranges_of(self._settled()), total)
        if whole:
            # A query that also returns known segments takes less time than many queries.
            return await self._look_at_all(joined(missing, apart_max=_APART_MAX))
        ranges = rotated(missing, after=self._looked_to)[:_RANGES_MAX]
        if not ranges:
            return []
        page = await self._read(ranges, limit=_LOOK_SEGMENTS_MAX, eventual=True)
        self._looked_to = ranges[-1][1] if page.cursor is None else page.cursor
        return self._changes(page)

    async def _look_at_all(self, ranges: Sequence[IndexRange]) -> list[SegmentChange]:
        changes: list[SegmentChange] = []
        while ranges:
            page = await self._read(ranges, limit=_LOOK_SEGMENTS_MAX, eventual=False)
            changes += self._changes(page)
            after = ranges[-1][1] if page.cursor is None else page.cursor
            ranges = [(max(begin, after + 1), end) for begin, end in ranges if end > after]
        return changes

    def _changes(self, page: DocumentSegmentPage) -> list[SegmentChange]:
        return [change for each in page if (change := self._noted(each)) is not None]

    def _noted(self, segment: DocumentSegment) -> SegmentChange | None:
        """Remember the state of a segment, and return it if it is another one than before."""
        index, code = segment.index, _code(segment.status)
        if index >= len(self._states):
            self._states.extend(bytes(index + 1 - len(self._states)))
        if self._states[index] == code:
            return None
        self._states[index] = code
        self.errors.pop(index, None)
        error = None if segment.error is None else segment.error[:_ERROR_CHARS_MAX]
        if segment.status == "failed" and len(self.errors) < _ERRORS_MAX:
            self.errors[index] = error or ""
        return SegmentChange(index, segment.status, error)

    def _settled(self) -> Iterator[int]:
        codes = {_code(status) for status in _SETTLED}
        return (index for index, code in enumerate(self._states) if code in codes)

    def _indices(self, status: StepStatus) -> Iterator[int]:
        code = _code(status)
        return (index for index, each in enumerate(self._states) if each == code)


def _code(status: StepStatus) -> int:
    return 1 + STEP_STATUSES.index(status)
