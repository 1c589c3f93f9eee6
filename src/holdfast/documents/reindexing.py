"""Builds the search index again from the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

from holdfast.documents.documents import Documents
from holdfast.documents.search import required_search
from holdfast.documents.segment_text import segment_entry
from holdfast.engine.runs.argument_checks import LIMIT_MAX
from holdfast.errors import (
    BlobDamaged,
    DocumentNotFound,
    DocumentWorkflowNotFound,
    InvalidRequest,
    StoredFileNotFound,
)
from holdfast.model.document import Document, DocumentWorkflow
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
    """Add the segments of a document's newest workflow that has any."""
    counts = [progress.segments, progress.unreadable]
    with suppress(DocumentNotFound, DocumentWorkflowNotFound):  # it is deleted meanwhile
        page = await documents.workflows(
            document=document.id, limit=LIMIT_MAX, tenant=document.tenant
        )
        for workflow in sorted(page, key=lambda each: (each.created_at, each.id), reverse=True):
            if await _add_segments(documents, workflow, counts=counts):
                break
    return ReindexProgress(progress.documents + 1, *counts)


async def _add_segments(
    documents: Documents, workflow: DocumentWorkflow, *, counts: list[int]
) -> bool:
    """Add the segments of a workflow to the index; return whether it has any."""
    search = required_search(documents.search)
    tenant, begun = workflow.tenant, (await _get(documents, workflow)).workflow
    has_segments, after = False, 0
    while True:
        page = await documents.segments(workflow.id, after=after, limit=_PAGE, tenant=tenant)
        entries: list[SegmentEntry] = []
        for segment in page:
            if not segment.s3_key:
                continue
            has_segments = True
            try:
                content = await documents.files.read_blob(segment.s3_key, tenant=tenant)
                entries.append(segment_entry(segment.index, content))
            except (StoredFileNotFound, BlobDamaged, InvalidRequest):
                counts[1] += 1
        if entries:
            if (await _get(documents, workflow)).workflow != begun:
                return True  # a newer workflow was begun, which adds its own segments
            await search.add(tenant, workflow.project, workflow.document, workflow.id, entries)
        counts[0] += len(entries)
        if page.cursor is None:
            return has_segments
        after = page.cursor


async def _get(documents: Documents, workflow: DocumentWorkflow) -> Document:
    return await documents.get(workflow.document, tenant=workflow.tenant)
