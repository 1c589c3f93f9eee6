"""Maps over groups of segments, and the catalogue of what their items made."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from documents.catalogue import GROUP, Catalogue, group_range, groups_of
from documents.processing import Work
from documents.segments import SegmentRecord
from documents.settings import Settings
from documents.steps import StepFailed, shown_indices
from holdfast import Context, Mapped, MappedItem
from holdfast.errors import MapFailed
from holdfast.model.document import StepName

__all__ = [
    "Gathered",
    "GroupItem",
    "group_result",
    "map_segments",
    "read_groups",
    "report_progress",
]

_REASON_CHARS_MAX = 300

GroupItem = Callable[[int, Context], Awaitable[dict[str, Any]]]
"""An item of a map: it gets the number of a group, and returns what `group_result` does."""


@dataclass
class Gathered:
    """What a step made of each group."""

    results: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])

    @property
    def failed(self) -> list[int]:
        """The numbers of the segments that failed, from 1."""
        found = (index for each in self.results.values() for index in each["failed"])
        return sorted(index + 1 for index in found)

    @property
    def failed_groups(self) -> list[int]:
        return sorted(group for group, each in self.results.items() if each["failed"])

    @property
    def reason(self) -> str:
        """Why the first of them failed."""
        groups = self.failed_groups
        return self.results[groups[0]]["reason"] if groups else ""

    def exceeds(self, share: float, segments: int) -> bool:
        """Return whether more than a share of the segments failed."""
        return len(self.failed) > share * segments


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


async def report_progress(work: Work, step: StepName, group: int, readers: int) -> None:
    """Report that a group is done, and those before it that no other reader can be busy with.

    Items do not know of each other. They begin in the order of their groups, so this is seldom too
    much, and the end of the step reports the number itself.
    """
    own = len(group_range(group, work.job.segments))
    await work.steps.progress(step, max(own, (group + 2 - readers) * GROUP))


async def read_groups(
    ctx: Context,
    work: Work,
    item: GroupItem,
    *,
    name: str,
    settings: Settings,
    attempt: int = 1,
    counts_whole: bool = True,
    chunk: int = 1,
    given: dict[str, Any] | None = None,
) -> str:
    """Do a step for all groups of a document, and return the catalogue of what it made.

    If too many segments have failed and people retry the workflow, each further ``attempt`` does
    the groups again in which some failed. A group that failed as a whole fails all of its segments;
    without ``counts_whole`` the step may not have needed most of them.

    Raises:
        StepFailed: more segments failed than may.
    """
    job, found = work.job, Gathered()
    groups: Sequence[int] = range(groups_of(job.segments))
    for again in range(attempt):
        if again and not found.exceeds(settings.tolerate, job.segments):
            break
        done = await map_segments(
            ctx,
            item,
            list(groups) if again else len(groups),
            chunk=chunk,
            concurrency=settings.readers,
            tolerate=settings.tolerate,
            given=given or job.as_json(),
        )
        await _gather(found, work, name, ctx.mapped(done), groups, counts_whole=counts_whole)
        groups = found.failed_groups
    if found.exceeds(settings.tolerate, job.segments):
        raise StepFailed(
            f"{len(found.failed)} of {job.segments} segments failed, {settings.tolerate:.0%} may: "
            f"number {shown_indices(found.failed)}. The first one: {found.reason}"
        )
    ordered = [found.results[group]["group"] for group in sorted(found.results)]
    return await Catalogue.put(work.shelf, name, ordered)


async def _gather(
    found: Gathered,
    work: Work,
    name: str,
    entries: AsyncIterable[MappedItem],
    groups: Sequence[int],
    *,
    counts_whole: bool,
) -> None:
    async for entry in entries:
        group = groups[entry.index]
        if entry.failure is None:
            found.results[group] = entry.result
            continue
        missing = SegmentRecord(error=entry.failure.message[:_REASON_CHARS_MAX])
        records = dict.fromkeys(group_range(group, work.job.segments), missing)
        result = await group_result(work, name, group, records)
        found.results[group] = result if counts_whole else {**result, "failed": []}


async def map_segments(
    ctx: Context, item: GroupItem, count_or_items: int | list[int], **options: Any
) -> Mapped:
    """Do as `Context.map`. If too many items fail, the error has the reason of the first one.

    Raises:
        StepFailed: more items failed than may.
    """
    try:
        return await ctx.map(item, count_or_items, **options)
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
