"""The pages of projects: a list of them, and the documents of one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Response

from holdfast.errors import DocumentWorkflowNotFound, HoldfastError, InvalidRequest
from holdfast.model.document import Document, DocumentWorkflow, Project
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.pages.documents.step_picture import state_context
from holdfast.server.pages.documents.visitor import ItemId, document_response, posted_by
from holdfast.server.pages.page import PageRequest, page, redirected
from holdfast.server.problems import status_of
from holdfast.server.services import Services, ServicesOf

__all__ = ["PROJECT_PAGES", "project_response"]

_PAGE_PROJECTS = 50
_PAGE_DOCUMENTS = 25
# How many workflows of the tenant are looked through for those of one project.
_RUNNING_MAX = 100


class _Row(msgspec.Struct, frozen=True):
    """A document in a list."""

    id: str
    path: str
    name: str
    file_type: str
    bytes: int | None
    status: str
    """Empty if the document was never processed."""
    error: str
    segments: int | None
    at: Any


@page("GET", "/projects", role="viewer")
async def show_projects(
    services: ServicesOf, requester: RequesterOf, request: PageRequest
) -> Response[bytes]:
    """Show the projects of the tenant, the newest first."""
    return await _projects_response(services, requester, request)


@page("POST", "/projects", role="operator")
async def create_project(
    services: ServicesOf, requester: RequesterOf, request: PageRequest
) -> Response[bytes]:
    """Create a project, and show it."""
    posted = await posted_by(services, requester, request)
    try:
        project = await requester.hf.documents.projects.create(
            posted.get("name", "").strip(),
            language=posted.get("language", "").strip() or "en",
            document_prompt=posted.get("document_prompt", "").strip(),
            tenant=requester.tenant,
        )
    except InvalidRequest as error:
        return await _projects_response(services, requester, request, posted=posted, error=error)
    return redirected(request, f"/projects/{quote(project.id, safe='~')}")


@page("GET", "/projects/{id:str}", role="viewer")
async def show_project(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ItemId
) -> Response[bytes]:
    """Show the documents of a project, those that are processed now on top."""
    project = await requester.hf.documents.projects.get(id, tenant=requester.tenant)
    return await project_response(services, requester, request, project)


async def _projects_response(
    services: Services,
    requester: Requester,
    request: PageRequest,
    *,
    posted: dict[str, str] | None = None,
    error: HoldfastError | None = None,
) -> Response[bytes]:
    documents, tenant = requester.hf.documents, requester.tenant
    cursor = request.query_params.get("cursor") or None
    shown, counts = await asyncio.gather(
        documents.projects.list(limit=_PAGE_PROJECTS, cursor=cursor, tenant=tenant),
        documents.counts(tenant=tenant),
    )
    context: dict[str, Any] = {
        **state_context(),
        "projects": [(quote(each.id, safe="~"), each) for each in shown.projects],
        "counts": counts,
        "more": None if shown.cursor is None else quote(shown.cursor),
        "is_first": cursor is None,
        "entered": posted or {},
        "error": "" if error is None else str(error),
    }
    status = 200 if error is None else status_of(error)
    return await document_response(
        services, requester, request, "projects.html", context, status=status
    )


async def project_response(
    services: Services,
    requester: Requester,
    request: PageRequest,
    project: Project,
    *,
    error: str = "",
    status: int = 200,
) -> Response[bytes]:
    """Return the page of a project."""
    documents, tenant = requester.hf.documents, requester.tenant
    cursor = request.query_params.get("cursor") or None
    shown, running = await asyncio.gather(
        documents.list(project.id, limit=_PAGE_DOCUMENTS, cursor=cursor, tenant=tenant),
        _running(requester, project.id),
    )
    context: dict[str, Any] = {
        **state_context(),
        "project": project,
        "path": quote(project.id, safe="~"),
        "running": [_row_of_workflow(each) for each in running],
        "rows": await _rows(requester, shown.documents),
        "more": None if shown.cursor is None else quote(shown.cursor),
        "is_first": cursor is None,
        "error": error,
    }
    return await document_response(
        services, requester, request, "project.html", context, status=status
    )


async def _running(requester: Requester, project: str) -> list[DocumentWorkflow]:
    """Return the workflows of a project that are in progress, the newest change first."""
    found = await requester.hf.documents.in_progress(limit=_RUNNING_MAX, tenant=requester.tenant)
    return [each for each in found.workflows if each.project == project]


async def _rows(requester: Requester, shown: Sequence[Document]) -> list[_Row]:
    async def workflow_of(document: Document) -> DocumentWorkflow | None:
        if document.workflow is None:
            return None
        try:
            return await requester.hf.documents.workflow(document.workflow, tenant=requester.tenant)
        except DocumentWorkflowNotFound:  # it is being deleted
            return None

    workflows = await asyncio.gather(*map(workflow_of, shown))
    return [_row(*each) for each in _paired(shown, workflows)]


def _paired(
    shown: Sequence[Document], workflows: Iterable[DocumentWorkflow | None]
) -> Iterable[tuple[Document, DocumentWorkflow | None]]:
    return zip(shown, workflows, strict=True)


def _row(document: Document, workflow: DocumentWorkflow | None) -> _Row:
    return _Row(
        id=document.id,
        path=quote(document.id, safe="~"),
        name=document.file_name,
        file_type=document.file_type,
        bytes=document.file_bytes,
        status="" if workflow is None else workflow.status,
        error="" if workflow is None else workflow.error or "",
        segments=None if workflow is None else workflow.total_segments,
        at=document.created_at,
    )


def _row_of_workflow(workflow: DocumentWorkflow) -> _Row:
    return _Row(
        id=workflow.document,
        path=quote(workflow.document, safe="~"),
        name=workflow.file_name,
        file_type=workflow.file_type,
        bytes=None,
        status=workflow.status,
        error=workflow.error or "",
        segments=workflow.total_segments,
        at=workflow.created_at,
    )


PROJECT_PAGES = (show_projects, create_project, show_project)
