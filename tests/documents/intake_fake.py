"""Documents and pipelines in dicts: what uploads need of them, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast import Holdfast
from holdfast.clock import SystemIds
from holdfast.documents.files import DocumentFiles
from holdfast.documents.uploads import DocumentUploads
from holdfast.errors import DocumentNotFound, ProjectNotFound, UnknownGraph
from holdfast.model.document import Document, DocumentPlace, DocumentWorkflow, Project

__all__ = ["FakeDocuments", "FakePipelines", "intake"]

NOW = datetime(2026, 11, 18, tzinfo=UTC)


class FakeProjects:
    def __init__(self) -> None:
        self.known = {"p": "documents", "q": "unknown"}

    async def get(self, id: str, *, tenant: str | None = None) -> Project:
        if id not in self.known:
            raise ProjectNotFound(f"there is no project {id!r}")
        return Project(id=id, tenant=tenant or "", name=id, pipeline=self.known[id], created_at=NOW)


class FakeDocuments:
    """Keeps what was added and begun, each under its id."""

    def __init__(self) -> None:
        self.projects: Any = FakeProjects()
        self.added: dict[str, dict[str, Any]] = {}
        self.begun: dict[str, str] = {}

    def place(self, id: str | None = None, *, tenant: str | None = None) -> DocumentPlace:
        id, generation = id or SystemIds().new(), SystemIds().new()
        return DocumentPlace(id, generation, f"documents/{tenant}/{id}/{generation}/")

    async def blob_prefix(self, id: str, *, tenant: str | None = None) -> str:
        if id not in self.added:
            raise DocumentNotFound(id)
        return self.added[id]["place"].prefix

    async def get(self, id: str, *, tenant: str | None = None) -> Document:
        if id not in self.added:
            raise DocumentNotFound(id)
        known = self.added[id]
        return Document(
            id=id,
            tenant=tenant or "",
            project=known["project"],
            file_uri=known["file_uri"],
            file_name=known["file_name"],
            file_type=known["file_type"],
            created_at=NOW,
        )

    async def add(self, project: str, *, id: str | None = None, **given: Any) -> Document:
        place: DocumentPlace = given["place"]
        assert self.added.setdefault(place.id, {"project": project, **given}) == {
            "project": project,
            **given,
        }
        return await self.get(place.id, tenant=given["tenant"])

    async def begin(
        self, document: str, *, id: str | None = None, tenant: str | None = None
    ) -> DocumentWorkflow:
        found = await self.get(document, tenant=tenant)
        assert id is not None
        assert self.begun.setdefault(id, document) == document
        return DocumentWorkflow(
            id=id,
            tenant=tenant or "",
            document=document,
            project=found.project,
            file_uri=found.file_uri,
            file_name=found.file_name,
            file_type=found.file_type,
            status="pending",
            created_at=NOW,
            updated_at=NOW,
        )


class FakePipelines:
    """Notes the workflows whose run was started."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def check(self, project: Project) -> None:
        if project.pipeline == "unknown":
            raise UnknownGraph("there is no such graph")

    async def start(self, workflow: DocumentWorkflow, project: Project) -> None:
        self.started.append(workflow.id)


def intake(
    hf: Holdfast,
    documents: FakeDocuments,
    *,
    pipelines: FakePipelines | None = None,
    tenant: str = "default",
) -> tuple[DocumentFiles, DocumentUploads]:
    """Return the files and the uploads of one process."""
    kernel = hf._services.kernel  # pyright: ignore[reportPrivateUsage]
    files = DocumentFiles(kernel, tenant, places=documents)
    uploads = DocumentUploads(kernel, tenant, files=files, documents=documents)
    uploads.pipelines = pipelines
    return files, uploads
