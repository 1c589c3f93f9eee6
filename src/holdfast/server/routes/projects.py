"""Routes of projects, each of which has documents."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.types import Scope

from holdfast.model.document import Project, ProjectPage
from holdfast.server.caller import RequesterOf
from holdfast.server.document_parameters import NewProject, ProjectChange, ProjectId
from holdfast.server.encoding import JsonResponse
from holdfast.server.parameters import Cursor, IdempotencyKey, Limit, address, key_digest
from holdfast.server.routing import route

__all__ = ["PROJECTS"]


@route("GET", "/v1/projects", role="viewer", tag="documents", etag=True)
async def list_projects(
    requester: RequesterOf, limit: Limit = 100, cursor: Cursor = None
) -> ProjectPage:
    """List projects, the newest first."""
    return await requester.hf.documents.projects.list(
        limit=limit, cursor=cursor, tenant=requester.tenant
    )


@route(
    "POST",
    "/v1/projects",
    role="operator",
    tag="documents",
    status=201,
    conflicts=True,
    located=True,
    returns=Project,
)
async def create_project(
    requester: RequesterOf,
    scope: Scope,
    data: NewProject,
    idempotency_key: IdempotencyKey = None,
) -> JsonResponse[Project]:
    """Create a project. Repeated with the same id or Idempotency-Key, it is the same project."""
    id = key_digest(idempotency_key, data.id, field="id", bound_to=f"{requester.tenant}\0projects")
    project = await requester.hf.documents.projects.create(
        data.name,
        id=id,
        language=data.language,
        document_prompt=data.document_prompt,
        ocr_model=data.ocr_model,
        pipeline=data.pipeline,
        retention_days=data.retention_days,
        tenant=requester.tenant,
    )
    location = address(scope, "projects", project.id)
    return JsonResponse(project, status_code=201, headers={"Location": location})


@route("GET", "/v1/projects/{id:str}", role="viewer", tag="documents", etag=True)
async def get_project(requester: RequesterOf, id: ProjectId) -> Project:
    """Get a project."""
    return await requester.hf.documents.projects.get(id, tenant=requester.tenant)


@route("PATCH", "/v1/projects/{id:str}", role="operator", tag="documents", conflicts=True)
async def change_project(requester: RequesterOf, id: ProjectId, data: ProjectChange) -> Project:
    """Change a project. Workflows that go on keep what they have read of it."""
    given: dict[str, Any] = {
        name: value
        for name, value in msgspec.structs.asdict(data).items()
        if value is not msgspec.UNSET
    }
    return await requester.hf.documents.projects.update(id, **given, tenant=requester.tenant)


@route("DELETE", "/v1/projects/{id:str}", role="admin", tag="documents", status=204)
async def delete_project(requester: RequesterOf, id: ProjectId) -> None:
    """Delete a project with all of its documents. A request that was cut can be repeated."""
    await requester.hf.documents.projects.delete(id, tenant=requester.tenant)


PROJECTS = (list_projects, create_project, get_project, change_project, delete_project)
