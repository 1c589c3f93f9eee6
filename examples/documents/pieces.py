"""Stores the segments of a document that comes in one stream: a transcript, or pages of the web."""

from __future__ import annotations

from collections.abc import Iterable

from documents.catalogue import Catalogue, group_range, groups_of
from documents.processing import Work
from documents.segments import SegmentContent, SegmentRecord

__all__ = ["store_content", "store_contents"]


async def store_content(work: Work, content: SegmentContent) -> SegmentRecord:
    """Store one segment."""
    uri = await work.shelf.put(f"segments/{content.index:05}", content.as_json())
    return SegmentRecord(uri=uri, image_uri=content.image_uri)


async def store_contents(work: Work, name: str, contents: Iterable[SegmentContent]) -> str:
    """Store all segments, which are numbered from 1 in their order; return their catalogue."""
    records = [await store_content(work, content) for content in contents]
    groups: list[str] = []
    for group in range(groups_of(len(records))):
        of_group = {index: records[index] for index in group_range(group, len(records))}
        groups.append(await Catalogue.put_group(work.shelf, name, group, of_group))
    return await Catalogue.put(work.shelf, name, groups)
