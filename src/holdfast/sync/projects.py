# Generated from src/holdfast/documents/projects.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `Projects`; the async one is `holdfast.documents.projects.Projects`."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from holdfast.documents.projects import Projects as AsyncProjects
from holdfast.model.document import Project, ProjectPage
from holdfast.portal import Portal

__all__ = ["Projects"]


class Projects:
    """The projects of a store: documents that are processed alike."""

    def __init__(self, portal: Portal, projects: AsyncProjects) -> None:
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
        """Create a project. The same id with the same values again returns the project.

        With ``retention_days``, its documents are deleted by themselves, at the end of the day.

        Raises:
            IdTaken: the id is that of a project with other values, or of one being deleted.
            InvalidRequest: a value is wrong; ``field`` says which.
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
        """Return a page of the tenant's projects, the newest first.

        Raises:
            InvalidQuery: the limit or the cursor is wrong.
        """
        return self._portal.call(self._projects.list, limit=limit, cursor=cursor, tenant=tenant)

    def update(
        self,
        id: str,
        *,
        name: str | UnsetType = UNSET,
        language: str | UnsetType = UNSET,
        document_prompt: str | UnsetType = UNSET,
        ocr_model: str | UnsetType = UNSET,
        pipeline: str | UnsetType = UNSET,
        retention_days: int | UnsetType | None = UNSET,
        tenant: str | None = None,
    ) -> Project:
        """Change what is given, and return the project. Its retention is that of later documents.

        Raises:
            ProjectNotFound: the tenant has no such project.
            InvalidRequest: a value is wrong; ``field`` says which.
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
        """Delete a project with all its documents. A call after a crash continues.

        Raises:
            ProjectNotFound: the tenant has no such project.
        """
        self._portal.call(self._projects.delete, id, tenant=tenant)
