# Generated from src/holdfast/client/projects.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `RemoteProjects`; the async one is `holdfast.client.projects.RemoteProjects`."""

from __future__ import annotations

import msgspec
from msgspec import UnsetType

from holdfast.client.projects import RemoteProjects as AsyncRemoteProjects
from holdfast.model.document import Project, ProjectPage
from holdfast.portal import Portal

__all__ = ["RemoteProjects"]


class RemoteProjects:
    """The projects of a server. To change them needs the role operator, to delete one admin."""

    def __init__(self, portal: Portal, projects: AsyncRemoteProjects) -> None:
        self._portal = portal
        self._projects = projects

    def create(
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
        return self._portal.call(
            self._projects.create,
            name,
            id=id,
            language=language,
            document_prompt=document_prompt,
            ocr_model=ocr_model,
            pipeline=pipeline,
            retention_days=retention_days,
            tenant=tenant,
        )

    def get(self, id: str, *, tenant: str | None = None) -> Project:
        """Return a project.

        Raises:
            ProjectNotFound: the tenant has no such project.
        """
        return self._portal.call(self._projects.get, id, tenant=tenant)

    def list(
        self, *, limit: int = 100, cursor: str | None = None, tenant: str | None = None
    ) -> ProjectPage:
        """Return a page of projects, the newest first.

        Raises:
            InvalidQuery: the limit or the cursor is wrong.
        """
        return self._portal.call(self._projects.list, limit=limit, cursor=cursor, tenant=tenant)

    def update(
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
        return self._portal.call(
            self._projects.update,
            id,
            name=name,
            language=language,
            document_prompt=document_prompt,
            ocr_model=ocr_model,
            pipeline=pipeline,
            retention_days=retention_days,
            tenant=tenant,
        )

    def delete(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a project with all of its documents. A call after a cut one goes on.

        Raises:
            ProjectNotFound: the tenant has no such project.
            Forbidden: the caller does not have the role admin.
        """
        self._portal.call(self._projects.delete, id, tenant=tenant)
