"""Reads several ranges of a workflow's segments, for readers that know the others."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.documents.loading import DocumentStore
from holdfast.errors import JournalDamaged
from holdfast.model.document import DocumentSegment, DocumentSegmentPage
from holdfast.records.document import is_there
from holdfast.records.document_keys import segment_index, segment_sk, workflow_pk
from holdfast.records.document_segment import segment_of
from holdfast.storage import Between, Item

__all__ = ["SegmentRanges"]

_QUERY_SEGMENTS = 250


class SegmentRanges:
    """The segments of all documents, by ranges of their indices."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store

    async def read(
        self,
        workflow: str,
        ranges: Sequence[tuple[int, int]],
        *,
        limit: int,
        eventual: bool = False,
        tenant: str | None = None,
    ) -> DocumentSegmentPage:
        """Return the segments of ranges, range after range, without analyses that are in blobs.

        A range has its first and its last index. The page's cursor is the index up to which ranges
        were read, if the limit came before their end. A reader that comes again soon passes
        ``eventual``: it costs half, and may miss what was stored a moment ago. Nothing is said of a
        workflow that does not exist: it has no segments.
        """
        tenant = self._store.tenant_or_default(tenant)
        found: list[DocumentSegment] = []
        count = 0
        for first, last in ranges:
            after = first - 1
            while after < last:
                if count >= limit:
                    return DocumentSegmentPage(found, after)
                page = await self._store.segments.query(
                    workflow_pk(tenant, workflow),
                    Between(segment_sk(after + 1), segment_sk(last)),
                    limit=min(_QUERY_SEGMENTS, limit - count),
                    eventual=eventual,
                )
                count += len(page.items)
                found += self._segments_of(page.items)
                if page.cursor is None or not page.items:
                    break
                after = segment_index(page.items[-1]["SK"])
        return DocumentSegmentPage(found, None)

    def _segments_of(self, items: Sequence[Item]) -> list[DocumentSegment]:
        segments: list[DocumentSegment] = []
        for item in items:
            try:
                if is_there(item, self._store.now_ms):
                    segments.append(segment_of(item).shown())
            except (JournalDamaged, ValueError) as error:  # the others can be read
                self._store.kernel.note_damage(item, error)
        return segments
