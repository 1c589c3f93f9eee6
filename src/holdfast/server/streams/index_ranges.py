"""Ranges of indices: which segments are known, and which are still to be read.

A reader knows most segments of a document, and new ones appear in any order. It queries only the
gaps between those that it knows. So it reads each segment about once, however often it looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

__all__ = ["IndexRange", "gaps", "joined", "ranges_of", "rotated"]

IndexRange: TypeAlias = tuple[int, int]
"""The first and the last index of a range, both included."""


def ranges_of(indices: Iterable[int]) -> list[IndexRange]:
    """Return ascending indices as the fewest ranges."""
    ranges: list[IndexRange] = []
    for index in indices:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return ranges


def gaps(known: Sequence[IndexRange], last: int) -> list[IndexRange]:
    """Return the ranges from 1 to ``last`` that are not known; ``known`` is ascending."""
    missing: list[IndexRange] = []
    first = 1
    for begin, end in known:
        if first > last:
            break
        if begin > first:
            missing.append((first, min(begin - 1, last)))
        first = end + 1
    if first <= last:
        missing.append((first, last))
    return missing


def joined(ranges: Sequence[IndexRange], *, apart_max: int) -> list[IndexRange]:
    """Return ascending ranges, those in one that have at most so many indices between them.

    One query over a few known segments costs less than a query more.
    """
    merged: list[IndexRange] = []
    for begin, end in ranges:
        if merged and begin - merged[-1][1] - 1 <= apart_max:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def rotated(ranges: Sequence[IndexRange], *, after: int) -> list[IndexRange]:
    """Return ranges in the order in which it is their turn: from an index on, then from the start.

    A range around the index is split.
    """
    later = [(max(begin, after + 1), end) for begin, end in ranges if end > after]
    earlier = [(begin, min(end, after)) for begin, end in ranges if begin <= after]
    return [*later, *earlier]
