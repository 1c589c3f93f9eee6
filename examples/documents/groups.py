"""Gathers what the items of a map made of groups of segments into one catalogue."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from documents.catalogue import Catalogue, group_range
from documents.processing import Work
from documents.segments import SegmentRecord
from documents.steps import StepFailed, shown_indices
from holdfast import Context, Mapped, MappedItem
from holdfast.errors import MapFailed

__all__ = ["Gathered", "check_tolerance", "gathered", "group_result", "map_segments"]

_REASON_CHARS_MAX = 300


@dataclass
class Gathered:
    """The catalogue of a step, and what went wrong."""

    uri: str = ""
    failed: list[int] = field(default_factory=list[int])
    """The numbers of the segments that failed, from 1."""
    reason: str = ""
    """The reason of the first failure."""


async def map_segments(
    ctx: Context,
    item: Callable[[int, Context], Awaitable[dict[str, Any]]],
    number: int,
    **options: Any,
) -> Mapped:
    """Do as `Context.map`. If too many items fail, the error has the reason of the first one.

    Raises:
        StepFailed: more items failed than may.
    """
    try:
        return await ctx.map(item, number, **options)
    except MapFailed as error:
        reason = await _first_reason(ctx, error)
        raise StepFailed(
            f"{error.failed} of {error.total} failed, {error.tolerated} may; then the rest was "
            f"cancelled. The first one: {reason}"
        ) from error


async def _first_reason(ctx: Context, error: MapFailed) -> str:
    ended = Mapped(
        run=ctx.run_id,
        map=error.map,
        total=error.total,
        succeeded=0,
        failed=error.failed,
        chunk=1,
    )
    async for entry in ctx.mapped(ended):
        if entry.failure is not None:
            return entry.failure.message[:_REASON_CHARS_MAX]
    return str(error)


async def group_result(
    work: Work, name: str, group: int, records: dict[int, SegmentRecord]
) -> dict[str, Any]:
    """Store the records of a group; return what the item of a map returns, which is small."""
    failed = [index for index, record in records.items() if record.error]
    return {
        "group": await Catalogue.put_group(work.shelf, name, group, records) if records else "",
        "failed": failed,
        "reason": records[failed[0]].error if failed else "",
    }


async def gathered(
    work: Work,
    name: str,
    entries: AsyncIterable[MappedItem],
    segments: int,
    *,
    counts_whole: bool = True,
) -> Gathered:
    """Return the catalogue of all groups.

    If a group failed as a whole, the records of all its segments say so. With ``counts_whole`` they
    count as failed, too; without it the step may not have needed most of them.
    """
    found, groups = Gathered(), list[str]()
    async for entry in entries:
        if entry.failure is None:
            result = entry.result
        else:
            reason = f"{entry.failure.type}: {entry.failure.message}"[:_REASON_CHARS_MAX]
            missing = SegmentRecord(error=reason)
            records = dict.fromkeys(group_range(entry.index, segments), missing)
            result = await group_result(work, name, entry.index, records)
            if not counts_whole:
                result["failed"] = []
        groups.append(result["group"])
        found.failed += [index + 1 for index in result["failed"]]
        found.reason = found.reason or result["reason"]
    found.uri = await Catalogue.put(work.shelf, name, groups)
    return found


def check_tolerance(found: Gathered, segments: int, share: float) -> None:
    """Check that no more than a share of the segments failed.

    Raises:
        StepFailed: more did.
    """
    if len(found.failed) > share * segments:
        raise StepFailed(
            f"{len(found.failed)} of {segments} segments failed, {share:.0%} may: number "
            f"{shown_indices(found.failed)}. The first one: {found.reason}"
        )
