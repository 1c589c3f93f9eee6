"""Builds the search index again from the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

from holdfast.documents.documents import Documents
from holdfast.documents.search import required_search
from holdfast.documents.segment_text import segment_entry
from holdfast.errors import (
    BlobDamaged,
    DocumentNotFound,
    DocumentWorkflowNotFound,
    InvalidRequest,
    StoredFileNotFound,
)
from holdfast.model.document import Document
from holdfast.model.json_form import JsonForm
from holdfast.model.segment_search import SegmentEntry

__all__ = ["ReindexProgress", "reindex"]

_PAGE = 100


class ReindexProgress(JsonForm, frozen=True):
    """How far the search index is built again."""

    documents: int = 0
    """Documents that are in the index again, or have no segments."""
    segments: int = 0
    unreadable: int = 0
    """Segments whose content is missing or damaged; they are not found."""


async def reindex(
    documents: Documents, *, document: str | None = None, tenant: str
) -> AsyncGenerator[ReindexProgress, None]:
    """Build the index of a tenant again, or that of one document; yield the progress.

    Until it ends, a search finds only what is in the index again. What is added meanwhile stays.

    Raises:
        SearchNotConfigured: the store has no search.
        DocumentNotFound: there is no such document.
        SearchUnavailable: the index cannot be written now.
    """
    search = required_search(documents.search)
    progress = ReindexProgress()
    if document is not None:
        found = await documents.get(document, tenant=tenant)
        await search.remove(tenant, document)
        yield await _index(documents, found, progress)
        return
    await search.clear(tenant)
    yield progress
    async for each in _all_documents(documents, tenant):
        progress = await _index(documents, each, progress)
        yield progress


async def _all_documents(documents: Documents, tenant: str) -> AsyncIterator[Document]:
    projects = documents.projects
    page = await projects.list(tenant=tenant, limit=_PAGE)
    while True:
        for project in page:
            listed = await documents.list(project.id, tenant=tenant, limit=_PAGE)
            while True:
                for each in listed:
                    yield each
                if listed.cursor is None:
                    break
                listed = await documents.list(
                    project.id, tenant=tenant, limit=_PAGE, cursor=listed.cursor
                )
        if page.cursor is None:
            return
        page = await projects.list(tenant=tenant, limit=_PAGE, cursor=page.cursor)


async def _index(
    documents: Documents, document: Document, progress: ReindexProgress
) -> ReindexProgress:
    """Add the segments of a document's newest workflow; one that is deleted meanwhile has none."""
    counts = [progress.segments, progress.unreadable]
    if document.workflow is not None:
        with suppress(DocumentNotFound, DocumentWorkflowNotFound):
            await _add_segments(documents, document, workflow=document.workflow, counts=counts)
    return ReindexProgress(progress.documents + 1, *counts)


async def _add_segments(
    documents: Documents, document: Document, *, workflow: str, counts: list[int]
) -> None:
    search = required_search(documents.search)
    after: int | None = 0
    while after is not None:
        page = await documents.segments(workflow, after=after, limit=_PAGE, tenant=document.tenant)
        entries: list[SegmentEntry] = []
        for segment in page:
            if not segment.s3_key:
                continue
            try:
                content = await documents.files.read_blob(segment.s3_key, tenant=document.tenant)
                entries.append(segment_entry(segment.index, content))
            except (StoredFileNotFound, BlobDamaged, InvalidRequest):
                counts[1] += 1
        if entries:
            await search.add(document.tenant, document.project, document.id, workflow, entries)
        counts[0] += len(entries)
        after = page.cursor
