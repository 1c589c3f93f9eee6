"""The page of a document: its facts, the steps of its processing, and its segments."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Response
from litestar.exceptions import ClientException

from holdfast.documents.retrying import retry_workflow
from holdfast.errors import DocumentWorkflowNotFound, HoldfastError
from holdfast.model.document import Document, DocumentSegment, DocumentWorkflow
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.pages.documents.segment_grid import GRID_SEGMENTS, grid_page
from holdfast.server.pages.documents.step_picture import shown_columns, state_context
from holdfast.server.pages.documents.visitor import ItemId, document_response, posted_by
from holdfast.server.pages.page import PageRequest, page, redirected
from holdfast.server.problems import status_of
from holdfast.server.services import Services, ServicesOf

__all__ = ["DOCUMENT_PAGE", "chosen_workflow", "workflow_of", "workflow_query"]

_WORKFLOWS_MAX = 20
_FAILED_MAX = 100
# How many segments one request looks through for failed ones.
_WALK_SEGMENTS_MAX = 5_000
_WALK_PAGE = 1_000
_NUMBER_DIGITS_MAX = 8


class _Failed(msgspec.Struct, frozen=True):
    """The failed segments of a part of a document."""

    segments: list[DocumentSegment]
    first: int
    last: int
    """The part that was looked through."""
    next: int | None
    """Where to go on; None at the end."""


@page("GET", "/documents/{id:str}", role="viewer")
async def show_document(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ItemId
) -> Response[bytes]:
    """Show a document and the state of its processing."""
    document = await requester.hf.documents.get(id, tenant=requester.tenant)
    return await _response(services, requester, request, document)


@page("POST", "/documents/{id:str}", role="operator")
async def act_on_document(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ItemId
) -> Response[bytes]:
    """Retry the processing of a document, or process it again from its file."""
    document = await requester.hf.documents.get(id, tenant=requester.tenant)
    posted = await posted_by(services, requester, request)
    try:
        match posted.get("action", ""):
            case "retry":
                workflow = await workflow_of(requester, document, posted.get("workflow", ""))
                await retry_workflow(requester.hf, workflow.id, tenant=requester.tenant)
            case "process":
                await requester.hf.documents.uploads.process_again(
                    document.id, tenant=requester.tenant
                )
            case _:
                raise ClientException("the page has no such button")
    except HoldfastError as error:
        if status_of(error) not in (409, 422):
            raise
        return await _response(services, requester, request, document, error=error)
    return redirected(request, f"/documents/{quote(document.id, safe='~')}")


async def chosen_workflow(
    requester: Requester, request: PageRequest, document: Document
) -> DocumentWorkflow | None:
    """Return the workflow that the address names, or the newest; None if there is none.

    Raises:
        DocumentWorkflowNotFound: the document has no such workflow.
    """
    asked = request.query_params.get("workflow", "")
    if not asked and document.workflow is None:
        return None
    return await workflow_of(requester, document, asked or document.workflow or "")


def workflow_query(request: PageRequest, workflow: DocumentWorkflow | None) -> str:
    """Return the query with which links stay at a workflow that the address names, or nothing."""
    if workflow is None or "workflow" not in request.query_params:
        return ""
    return f"?workflow={quote(workflow.id, safe='~')}"


async def workflow_of(requester: Requester, document: Document, id: str) -> DocumentWorkflow:
    """Return a workflow of a document.

    Raises:
        DocumentWorkflowNotFound: the document has no such workflow.
    """
    found = await requester.hf.documents.workflow(id, tenant=requester.tenant)
    if found.document != document.id:
        raise DocumentWorkflowNotFound(f"the document has no workflow {id!r:.200}")
    return found


async def _response(
    services: Services,
    requester: Requester,
    request: PageRequest,
    document: Document,
    *,
    error: HoldfastError | None = None,
) -> Response[bytes]:
    documents, tenant = requester.hf.documents, requester.tenant
    workflow, all_workflows, project = await asyncio.gather(
        chosen_workflow(requester, request, document),
        documents.workflows(document=document.id, limit=_WORKFLOWS_MAX, tenant=tenant),
        documents.projects.get(document.project, tenant=tenant),
    )
    context: dict[str, Any] = {
        **state_context(),
        "document": document,
        "project": project,
        "path": quote(document.id, safe="~"),
        "project_path": quote(project.id, safe="~"),
        "workflow": workflow,
        "is_newest": workflow is None or workflow.id == document.workflow,
        "others": [
            (quote(each.id, safe="~"), each)
            for each in all_workflows.workflows
            if workflow is None or each.id != workflow.id
        ],
        "query": workflow_query(request, workflow),
        "error": "" if error is None else str(error),
        **await _segments_context(services, requester, request, workflow),
    }
    status = 200 if error is None else status_of(error)
    return await document_response(
        services, requester, request, "document.html", context, status=status
    )


async def _segments_context(
    services: Services,
    requester: Requester,
    request: PageRequest,
    workflow: DocumentWorkflow | None,
) -> dict[str, Any]:
    """Return the steps, and a page of the grid or the failed segments."""
    context: dict[str, Any] = {"columns": [], "grid": None, "failed": None}
    if workflow is None:
        return context
    documents, tenant = requester.hf.documents, requester.tenant
    now = datetime.fromtimestamp(services.hf.clock.now_ms() / 1000, UTC)
    steps = await documents.steps(workflow.id, tenant=tenant)
    context["columns"] = shown_columns(workflow, steps, now=now)
    context["query"] = (
        f"workflow={quote(workflow.id, safe='~')}&" if "workflow" in request.query_params else ""
    )
    total = workflow.total_segments or 0
    if total and "failed" in request.query_params:
        begin = min(_number(request.query_params.get("failed", "")), total)
        context["failed"] = await _failed(requester, workflow, begin=begin)
    elif total:
        number = min(_number(request.query_params.get("page", "")), -(-total // GRID_SEGMENTS))
        first = (number - 1) * GRID_SEGMENTS
        found = await documents.segment_ranges.read(
            workflow.id,
            [(first + 1, min(first + GRID_SEGMENTS, total))],
            limit=GRID_SEGMENTS,
            tenant=tenant,
        )
        context["grid"] = grid_page(found.segments, number=number, total=total)
    return context


async def _failed(requester: Requester, workflow: DocumentWorkflow, *, begin: int) -> _Failed:
    """Look through some of the segments for those that failed."""
    total = workflow.total_segments or 0
    last = min(begin + _WALK_SEGMENTS_MAX - 1, total)
    after = begin - 1
    found: list[DocumentSegment] = []
    while after < last:
        shown = await requester.hf.documents.segment_ranges.read(
            workflow.id, [(after + 1, last)], limit=_WALK_PAGE, tenant=requester.tenant
        )
        for segment in shown.segments:
            if segment.status == "failed":
                found.append(segment)
            if len(found) == _FAILED_MAX:
                end = segment.index
                return _Failed(found, begin, end, end + 1 if end < total else None)
        if shown.cursor is None:
            break
        after = shown.cursor
    return _Failed(found, begin, last, last + 1 if last < total else None)


def _number(text: str) -> int:
    """Return a number of an address; 1 if it is none."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX
    return max(1, int(text)) if is_number else 1


DOCUMENT_PAGE = (show_document, act_on_document)
