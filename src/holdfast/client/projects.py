"""`RemoteProjects`: the projects of a server, each of which has documents."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UnsetType

from holdfast.client.connection import ServerConnection
from holdfast.client.reading import read
from holdfast.engine.runs.argument_checks import validated_limit
from holdfast.model.document import Project, ProjectPage
from holdfast.model.names import validated_name

__all__ = ["RemoteProjects"]


class RemoteProjects:
    """The projects of a server. To change them needs the role operator, to delete one admin."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def create(
        self,
        name: str,
        *,
        id: str | None = None,
        language: str = "en",
        document_prompt: str = "",
        ocr_model: str = "pp-ocrv5",
        pipeline: str = "documents",
        retention_days: int | None = None,
        tenant: str | None = None,
    ) -> Project:
        """Create a project. Again with the same id and values, it is the same project.

        Raises:
            IdTaken: the id is that of a project with other values.
            InvalidRequest: a value is not valid.
        """
        body = {
            "name": name,
            "id": None if id is None else validated_name(id, "id"),
            "language": language,
            "document_prompt": document_prompt,
            "ocr_model": ocr_model,
            "pipeline": pipeline,
            "retention_days": retention_days,
        }
        # A repetition of the request must not create two.
        key = self._connection.ids.new() if id is None else None
        shown = await self._connection.call("projects_create", body=body, tenant=tenant, key=key)
        return read(Project, shown)

    async def get(self, id: str, *, tenant: str | None = None) -> Project:
        """Return a project.

        Raises:
            ProjectNotFound: the tenant has no such project.
        """
        names = {"id": validated_name(id, "id")}
        shown = await self._connection.call("projects_get", names=names, tenant=tenant)
        return read(Project, shown)

    async def list(
        self, *, limit: int = 100, cursor: str | None = None, tenant: str | None = None
    ) -> ProjectPage:
        """Return a page of projects, the newest first.

        Raises:
            InvalidQuery: the limit or the cursor is wrong.
        """
        query = {"limit": validated_limit(limit), "cursor": cursor}
        shown = await self._connection.call("projects_list", query=query, tenant=tenant)
        return read(ProjectPage, shown)

    async def update(
        self,
        id: str,
        *,
        name: str | UnsetType = msgspec.UNSET,
        language: str | UnsetType = msgspec.UNSET,
        document_prompt: str | UnsetType = msgspec.UNSET,
        ocr_model: str | UnsetType = msgspec.UNSET,
        pipeline: str | UnsetType = msgspec.UNSET,
        retention_days: int | UnsetType | None = msgspec.UNSET,
        tenant: str | None = None,
    ) -> Project:
        """Change what is given of a project.

        Raises:
            ProjectNotFound: the tenant has no such project.
            InvalidRequest: a value is not valid.
        """
        given: dict[str, Any] = {
            "name": name,
            "language": language,
            "document_prompt": document_prompt,
            "ocr_model": ocr_model,
            "pipeline": pipeline,
            "retention_days": retention_days,
        }
        body = {key: value for key, value in given.items() if value is not msgspec.UNSET}
        names = {"id": validated_name(id, "id")}
        response = await self._connection.exchange(
            "projects_update",
            names=names,
            # Here None is a value: no retention.
            content=msgspec.json.encode(body),
            headers={"Content-Type": "application/json"},
            tenant=tenant,
        )
        return read(Project, msgspec.json.decode(response.content))

    async def delete(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a project with all of its documents. A call after a cut one goes on.

        Raises:
            ProjectNotFound: the tenant has no such project.
            Forbidden: the caller does not have the role admin.
        """
        names = {"id": validated_name(id, "id")}
        await self._connection.call("projects_delete", names=names, tenant=tenant)
