"""Stores and reads the segments of documents."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import msgspec

from holdfast.documents.loading import DocumentStore, workflow_not_found
from holdfast.errors import (
    BlobDamaged,
    ConditionFailed,
    InvalidRequest,
    JournalDamaged,
    SegmentNotFound,
)
from holdfast.model.document import DocumentSegment, DocumentSegmentPage
from holdfast.model.names import validated_name
from holdfast.records.document import is_there
from holdfast.records.document_keys import (
    segment_index,
    segment_key,
    segments_range,
    steps_key,
    workflow_pk,
)
from holdfast.records.document_segment import (
    PREVIEW_CHARS,
    StoredSegment,
    fits_item,
    segment_of,
    segment_write,
)
from holdfast.records.document_step import StoredSteps
from holdfast.storage import BlobRef

__all__ = ["DocumentSegments"]

_KNOWN_MAX = 1_000
# Far less than a deleted workflow refuses late writers: its id may be used again after that.
_KNOWN_SECONDS = 3_600.0


class DocumentSegments:
    """The segments of all documents."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        # What does not change any more, or only grows: a put need not read it.
        self._known: OrderedDict[tuple[str, str], tuple[float, StoredSteps]] = OrderedDict()

    async def put(self, segment: StoredSegment) -> DocumentSegment:
        """Store a segment with one write, in place of an earlier one.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow, or it was deleted.
            InvalidRequest: the index is beyond the number of segments, or the store has no place
                for the analysis.
        """
        store = self._store
        workflow = await self._workflow_of(segment)
        segment = msgspec.structs.replace(segment, expires_ms=workflow.expires_ms)
        analysis = segment.image_analysis
        if not fits_item(segment):
            segment = await self._with_blob(segment, workflow)
        write = segment_write(segment, now_ms=store.now_ms, token=store.kernel.ids.new())
        try:
            await store.kernel.resolve_write(store.segments, write)
        except ConditionFailed:
            self._known.pop((segment.tenant, segment.workflow), None)
            raise workflow_not_found(segment.tenant, segment.workflow) from None
        return segment.shown(analysis)

    async def get(self, tenant: str, workflow: object, index: int) -> DocumentSegment:
        """Return a segment with its whole analysis.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow.
            SegmentNotFound: it has no such segment yet.
        """
        store, name = self._store, validated_name(workflow, "workflow")
        steps, item = await store.segments.get_many(
            [steps_key(tenant, name), segment_key(tenant, name, index)]
        )
        if steps is None or not is_there(steps, store.now_ms):
            raise workflow_not_found(tenant, name)
        if item is None or not is_there(item, store.now_ms):
            raise SegmentNotFound(f"workflow {name!r:.160} has no segment {index}, or not yet")
        segment = segment_of(item)
        if segment.analysis is None:
            return segment.shown()
        return segment.shown(await self._read_analysis(segment, segment.analysis))

    async def page(
        self, tenant: str, workflow: object, *, after: int, limit: int
    ) -> DocumentSegmentPage:
        """Return a page of segments, without analyses that are in blobs.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow.
        """
        store = self._store
        steps = await store.read_steps(tenant, workflow)
        page = await store.segments.query(
            workflow_pk(tenant, steps.workflow), segments_range(after), limit=limit
        )
        found: list[DocumentSegment] = []
        last: int | None = None
        for item in page.items:
            try:
                last = segment_index(item["SK"])
                if is_there(item, store.now_ms):
                    found.append(segment_of(item).shown())
            except (JournalDamaged, ValueError) as error:  # the others can be read
                store.kernel.note_damage(item, error)
        return DocumentSegmentPage(found, None if page.cursor is None else last)

    async def _workflow_of(self, segment: StoredSegment) -> StoredSteps:
        """Return the workflow of a segment to store, if the index is one of its segments."""
        key, now = (segment.tenant, segment.workflow), self._store.kernel.clock.monotonic()
        read_at, known = self._known.get(key, (0.0, None))
        if known is None or now - read_at > _KNOWN_SECONDS or not known.has_segment(segment.index):
            read_at, known = now, await self._store.read_steps(*key)
            self._known[key] = read_at, known
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        if not known.has_segment(segment.index):
            raise InvalidRequest(
                f"index must be at most the total_segments of workflow {segment.workflow!r:.160}, "
                f"{known.total_segments or 0}, got {segment.index}: set total_segments first",
                field="index",
            )
        return known

    async def _with_blob(self, segment: StoredSegment, workflow: StoredSteps) -> StoredSegment:
        """Return a segment after its analysis was put into a blob."""
        blobs = self._store.kernel.blobs
        if blobs is None:
            raise InvalidRequest(
                "image_analysis is too large for an item, and the store has no place for blobs: "
                "add a bucket to its address",
                field="image_analysis",
            )
        analysis = list(segment.image_analysis)
        data = msgspec.json.encode(analysis)
        prefix = f"{workflow.blob_prefix}segments/{segment.workflow}/{segment.index}/"
        # Named by its hash: a segment that is written again never refers to another content.
        ref = await blobs.put(data, prefix=prefix)
        return msgspec.structs.replace(
            segment, image_analysis=(), analysis=ref, preview=_preview(analysis)
        )

    async def _read_analysis(self, segment: StoredSegment, ref: BlobRef) -> list[Any]:
        try:
            blobs = self._store.kernel.store.blobs.with_purpose("segment")
            found: list[Any] = msgspec.json.decode(await blobs.get(ref), type=list[Any])
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise BlobDamaged(
                f"the analysis of segment {segment.index} cannot be read: {error!s:.200}",
                key=ref.key,
            ) from None
        return found


def _preview(analysis: list[Any]) -> str:
    """Return the beginning of an analysis, as text."""
    return json.dumps(analysis[:1], ensure_ascii=False)[:PREVIEW_CHARS]
