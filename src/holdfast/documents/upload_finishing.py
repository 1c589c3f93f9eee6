"""`UploadFinisher`: makes a document of a complete upload, and starts its pipeline exactly once.

Each step has an id that the record of the upload names: the document, its workflow, and the run
``doc-{workflow}``. So a step that was done before does nothing, and any process goes on where
another one died.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import Any, Protocol

from holdfast.documents.file_types import HEAD_BYTES, Sniff
from holdfast.documents.files import DocumentFiles
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    BlobDamaged,
    ConditionFailed,
    DocumentNotFound,
    DocumentWorkflowNotFound,
    FileRejected,
    HoldfastError,
    ProjectNotFound,
    UploadGone,
)
from holdfast.model.document import Document, DocumentPlace, DocumentWorkflow, Project
from holdfast.records.document_file import FileManifest, FilePart
from holdfast.records.upload import (
    UPLOAD_PARTS,
    StoredUpload,
    close_upload_write,
    remove_upload_writes,
    store_file_write,
    stored_upload_of,
    upload_key,
    upload_part_of,
)
from holdfast.storage import Delete, Table

__all__ = ["DocumentIntake", "Pipelines", "UploadFinisher"]

_DELETES_AT_ONCE = 100


class Pipelines(Protocol):
    """Starts the pipelines of documents."""

    def check(self, project: Project) -> None:
        """Check that this process knows the pipeline of a project.

        Raises:
            UnknownGraph: it does not.
        """
        ...

    async def start(self, workflow: DocumentWorkflow, project: Project) -> None:
        """Start the run of a workflow; do nothing if it was started before."""
        ...


class DocumentIntake(Protocol):
    """What an upload needs of `Documents`."""

    @property
    def projects(self) -> Any:
        """The projects."""
        ...

    def place(self, id: str | None = None, *, tenant: str | None = None) -> DocumentPlace:
        """Return the place of a document that is not added yet."""
        ...

    async def get(self, id: str, *, tenant: str | None = None) -> Document:
        """Return a document."""
        ...

    async def add(
        self,
        project: str,
        *,
        file_uri: str,
        file_name: str,
        file_type: str,
        file_bytes: int | None = None,
        id: str | None = None,
        web: bool = False,
        place: DocumentPlace | None = None,
        tenant: str | None = None,
    ) -> Document:
        """Add a document."""
        ...

    async def begin(
        self, document: str, *, id: str | None = None, tenant: str | None = None
    ) -> DocumentWorkflow:
        """Begin a workflow."""
        ...


class UploadFinisher:
    """Takes complete uploads to their end."""

    def __init__(
        self, kernel: Kernel, files: DocumentFiles, documents: DocumentIntake, *, table: Table
    ) -> None:
        self._kernel = kernel
        self._files = files
        self._documents = documents
        self._table = table

    async def finish(
        self, upload: StoredUpload, pipelines: Pipelines, *, sniff: Sniff
    ) -> StoredUpload:
        """Add the document, begin its workflow and start the run; return the ended upload.

        Raises:
            FileRejected: the file is of a type that is not accepted.
            UnknownGraph: this process does not know the pipeline; another one may.
        """
        try:
            if not upload.source and not upload.again and not upload.uri:
                upload = await self._store_file(upload, sniff)
            await self._start(upload, pipelines)
        except (FileRejected, BlobDamaged) as error:
            return await self.reject(upload, error)
        except (ProjectNotFound, DocumentNotFound, DocumentWorkflowNotFound) as error:
            # It was deleted meanwhile, so that nothing is left to do.
            return await self.reject(upload, error)
        ended = await self.close(upload, "processed")
        await self._delete_items(upload, meta=False)
        return ended

    async def reject(self, upload: StoredUpload, error: HoldfastError) -> StoredUpload:
        """End an upload whose file cannot become a document, and delete its blobs.

        Raises:
            UploadGone: it was removed meanwhile.
        """
        rejected = await self.close(upload, "rejected", error=str(error)[:1000])
        if not upload.again:
            await self._files.delete_parts(upload.file_key)
        await self._delete_items(upload, meta=False)
        return rejected

    async def remove(self, upload: StoredUpload) -> None:
        """Remove an upload with everything that it stored. A removal that was cut goes on."""
        if upload.status != "removing":
            # From here on no request adds a part.
            upload = await self.close(upload, "removing")
        await self._files.delete_parts(upload.file_key)
        await self._delete_items(upload, meta=True)

    async def close(self, upload: StoredUpload, status: str, *, error: str = "") -> StoredUpload:
        """Write the last status of an upload; return the upload with it.

        Raises:
            UploadGone: the upload has another status, or is gone.
        """
        write = close_upload_write(upload, status, now_ms=self._kernel.clock.now_ms(), error=error)
        try:
            item = await self._kernel.resolve_write(self._table, write)
        except ConditionFailed as refused:
            if refused.item is not None:
                found = stored_upload_of(refused.item)
                if found.status == status:
                    return found  # another process was faster
            raise UploadGone(f"upload {upload.id!r} was changed or removed meanwhile") from None
        return stored_upload_of(item)

    async def _store_file(self, upload: StoredUpload, sniff: Sniff) -> StoredUpload:
        """Write the manifest of a complete upload. Two processes write the same one.

        Raises:
            FileRejected: the file is of a type that is not accepted.
            BlobDamaged: a part is damaged.
        """
        parts = await self._parts(upload)
        head, whole, size = b"", hashlib.sha256(), 0
        async for data in self._files.read_parts(upload.file_key, parts):
            if len(head) < HEAD_BYTES:
                head += data[: HEAD_BYTES - len(head)]
            await asyncio.to_thread(whole.update, data)
            size += len(data)
        if not size:
            raise FileRejected(f"{upload.name!r:.200} is empty")
        file_type = sniff(head, upload.name)
        manifest = FileManifest(
            name=upload.name,
            type=file_type,
            bytes=size,
            sha256=whole.hexdigest(),
            parts=parts,
        )
        file = await self._files.put_manifest(upload.file_key, manifest)
        write = store_file_write(upload, uri=file.uri, file_type=file_type, name=upload.name)
        try:
            return stored_upload_of(await self._kernel.resolve_write(self._table, write))
        except ConditionFailed:
            item = await self._table.get(upload_key(upload.tenant, upload.id))
            if item is None:
                raise UploadGone(f"upload {upload.id!r} was removed") from None
            return stored_upload_of(item)

    async def _parts(self, upload: StoredUpload) -> tuple[FilePart, ...]:
        place = upload_key(upload.tenant, upload.id)
        found = [
            upload_part_of(item) async for item in self._table.query_all(place.pk, UPLOAD_PARTS)
        ]
        if [number for number, _ in found] != list(range(upload.parts)):
            raise BlobDamaged(f"parts of upload {upload.id!r} are missing")
        return tuple(part for _, part in found)

    async def _start(self, upload: StoredUpload, pipelines: Pipelines) -> None:
        documents, tenant = self._documents, upload.tenant
        project: Project = await documents.projects.get(upload.project, tenant=tenant)
        pipelines.check(project)
        if not upload.again:
            is_page = upload.source.startswith(("http://", "https://"))
            await documents.add(
                upload.project,
                file_uri=upload.source or upload.uri,
                file_name=upload.name,
                file_type=upload.file_type,
                file_bytes=None if is_page else upload.length,
                web=is_page,
                place=DocumentPlace(upload.document, upload.generation, upload.document_prefix),
                tenant=tenant,
            )
        workflow = await documents.begin(upload.document, id=upload.workflow, tenant=tenant)
        await pipelines.start(workflow, project)

    async def _delete_items(self, upload: StoredUpload, *, meta: bool) -> None:
        if not upload.parts and not meta:
            return
        deletes = remove_upload_writes(upload, parts=upload.parts, meta=meta)
        for start in range(0, len(deletes), _DELETES_AT_ONCE):
            await self._delete(deletes[start : start + _DELETES_AT_ONCE], must=meta)

    async def _delete(self, deletes: list[Delete], *, must: bool) -> None:
        if must:
            await self._table.write_many(deletes)
            return
        with suppress(HoldfastError):  # their ttl deletes them, too
            await self._table.write_many(deletes)
