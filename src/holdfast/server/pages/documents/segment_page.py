"""The page of a segment: the image of the page beside what was read and found out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast
from urllib.parse import quote

import msgspec
from litestar import Response
from litestar.exceptions import NotFoundException
from litestar.params import PathParameter

from holdfast.documents.retrying import retry_workflow
from holdfast.errors import (
    BlobDamaged,
    DocumentWorkflowNotFound,
    HoldfastError,
    InvalidRequest,
    SegmentNotFound,
    StoredFileNotFound,
)
from holdfast.model.document import Document, DocumentSegment, DocumentWorkflow
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.pages.documents.document_page import (
    chosen_workflow,
    workflow_of,
    workflow_query,
)
from holdfast.server.pages.documents.page_image import image_type
from holdfast.server.pages.documents.step_picture import state_context
from holdfast.server.pages.documents.visitor import ItemId, document_response, posted_by
from holdfast.server.pages.page import IMAGE_POLICY, PageRequest, page, redirected
from holdfast.server.pages.shown_data import ShownPart, shown_parts
from holdfast.server.problems import status_of
from holdfast.server.services import Services, ServicesOf

__all__ = ["SEGMENT_PAGE"]

_Index = Annotated[int, PathParameter(ge=1, le=9_999_999)]

_TEXT_CHARS_MAX = 50_000
_TABLES_MAX = 20
_ROWS_MAX = 200
_CELLS_MAX = 50
_CELL_CHARS_MAX = 500
# The picture is a picture, whatever is in it: no script, and not part of another site.
_IMAGE_HEADERS = {
    "Cache-Control": "private, max-age=3600",
    "Content-Disposition": "inline",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class _Table(msgspec.Struct, frozen=True):
    """A table as a page shows it."""

    head: list[str]
    rows: list[list[str]]
    cut: str


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from a segment, cut to what a page shows."""

    title: str = ""
    text: str = ""
    text_cut: int = 0
    tables: list[_Table] = []
    tables_cut: int = 0
    source: str = ""
    problem: str = ""


@page("GET", "/documents/{id:str}/segments/{index:int}", role="viewer")
async def show_segment(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ItemId, index: _Index
) -> Response[bytes]:
    """Show one segment beside the image of its page."""
    return await _response(services, requester, request, id, index)


@page("POST", "/documents/{id:str}/segments/{index:int}", role="operator")
async def retry_segment(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ItemId, index: _Index
) -> Response[bytes]:
    """Analyze one segment again."""
    document = await requester.hf.documents.get(id, tenant=requester.tenant)
    posted = await posted_by(services, requester, request)
    workflow = await workflow_of(requester, document, posted.get("workflow", ""))
    try:
        await retry_workflow(requester.hf, workflow.id, segment=index, tenant=requester.tenant)
    except HoldfastError as error:
        if status_of(error) not in (409, 422):
            raise
        return await _response(services, requester, request, id, index, error=error)
    return redirected(request, f"/documents/{quote(document.id, safe='~')}/segments/{index}")


@page("GET", "/documents/{id:str}/segments/{index:int}/image", role="viewer")
async def send_segment_image(
    requester: RequesterOf, request: PageRequest, id: ItemId, index: _Index
) -> Response[bytes]:
    """Send the image of a segment's page."""
    _, _, segment = await _found(requester, request, id, index)
    if not segment.image_uri:
        raise NotFoundException("the segment has no image")
    try:
        data = await requester.hf.documents.files.read_blob(
            segment.image_uri, tenant=requester.tenant
        )
    except (InvalidRequest, StoredFileNotFound) as error:
        raise NotFoundException("the image is gone") from error
    kind = image_type(data)
    if kind is None:
        raise NotFoundException("the image is of a kind that browsers must not show")
    return Response(data, media_type=kind, headers=_IMAGE_HEADERS)


async def _response(
    services: Services,
    requester: Requester,
    request: PageRequest,
    id: str,
    index: int,
    *,
    error: HoldfastError | None = None,
) -> Response[bytes]:
    document, workflow, segment = await _found(requester, request, id, index)
    project = await requester.hf.documents.projects.get(document.project, tenant=requester.tenant)
    context: dict[str, Any] = {
        **state_context(),
        "document": document,
        "project": project,
        "path": quote(document.id, safe="~"),
        "workflow": workflow,
        "is_newest": workflow.id == document.workflow,
        "segment": segment,
        "total": workflow.total_segments or index,
        "query": workflow_query(request, workflow),
        "content": await _content(requester, segment),
        "error": "" if error is None else str(error),
        "analysis": [_analysis(each) for each in segment.image_analysis],
    }
    return await document_response(
        services,
        requester,
        request,
        "segment.html",
        context,
        status=200 if error is None else status_of(error),
        headers={"Content-Security-Policy": IMAGE_POLICY},
    )


async def _found(
    requester: Requester, request: PageRequest, id: str, index: int
) -> tuple[Document, DocumentWorkflow, DocumentSegment]:
    document = await requester.hf.documents.get(id, tenant=requester.tenant)
    workflow = await chosen_workflow(requester, request, document)
    if workflow is None:
        raise DocumentWorkflowNotFound("the document was not processed yet")
    try:
        segment = await requester.hf.documents.segment(workflow.id, index, tenant=requester.tenant)
    except SegmentNotFound:
        if index > (workflow.total_segments or 0):
            raise
        # It is not stored before it is done: the page says that it waits.
        segment = DocumentSegment(workflow=workflow.id, index=index, status="pending")
    return document, workflow, segment


async def _content(requester: Requester, segment: DocumentSegment) -> _Content:
    if not segment.s3_key:
        return _Content()
    try:
        data = await requester.hf.documents.files.read_blob(segment.s3_key, tenant=requester.tenant)
        decoded = msgspec.json.decode(data)
    except (StoredFileNotFound, InvalidRequest):
        return _Content(problem="The content of this segment is gone.")
    except (BlobDamaged, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _Content(problem="The content of this segment is damaged.")
    if not isinstance(decoded, Mapping):
        return _Content(problem="The content of this segment is damaged.")
    return _shown_content(cast(Mapping[str, Any], decoded))


def _shown_content(stored: Mapping[str, Any]) -> _Content:
    text = _text(stored.get("text"))
    listed = stored.get("tables")
    tables = cast(list[Any], listed) if isinstance(listed, list) else []
    return _Content(
        title=_text(stored.get("title"))[:_CELL_CHARS_MAX],
        text=text[:_TEXT_CHARS_MAX],
        text_cut=max(0, len(text) - _TEXT_CHARS_MAX),
        tables=[_table(each) for each in tables[:_TABLES_MAX]],
        tables_cut=max(0, len(tables) - _TABLES_MAX),
        source=_text(stored.get("source"))[:40],
    )


def _table(stored: Any) -> _Table:
    given = cast(Mapping[str, Any], stored).get("rows") if isinstance(stored, Mapping) else stored
    rows = [
        [_text(cell)[:_CELL_CHARS_MAX] for cell in cast(list[Any], row)[:_CELLS_MAX]]
        for row in (cast(list[Any], given)[:_ROWS_MAX] if isinstance(given, list) else [])
        if isinstance(row, list)
    ]
    count = len(cast(list[Any], given)) if isinstance(given, list) else 0
    cut = f"{count - _ROWS_MAX:,} more rows are not shown here" if count > _ROWS_MAX else ""
    width = max((len(row) for row in rows), default=0)
    padded = [[*row, *[""] * (width - len(row))] for row in rows]
    return _Table(padded[0] if padded else [], padded[1:], cut)


def _analysis(entry: Any) -> tuple[str, ShownPart]:
    """Return an entry of an analysis: what kind it is, and what it says."""
    if not isinstance(entry, Mapping):
        return "", shown_parts(entry)
    fields = dict(cast(Mapping[str, Any], entry))
    kind = _text(fields.pop("kind", ""))[:60]
    only = next(iter(fields.values())) if len(fields) == 1 else fields
    return kind, shown_parts(only)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


SEGMENT_PAGE = (show_segment, retry_segment, send_segment_image)
