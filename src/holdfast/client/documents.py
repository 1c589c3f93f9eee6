"""`RemoteDocuments`: the documents of a server, how they come in, and what becomes of them."""

from __future__ import annotations

import asyncio
import builtins
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.client.connection import ServerConnection
from holdfast.client.projects import RemoteProjects
from holdfast.client.reading import member_of, page_of, read
from holdfast.client.upload_sender import UploadSender
from holdfast.engine.runs.argument_checks import validated_limit
from holdfast.errors import InvalidQuery, InvalidRequest, ServerUnavailable
from holdfast.model.document import (
    Document,
    DocumentPage,
    DocumentSegment,
    DocumentSegmentPage,
    DocumentStep,
    DocumentWorkflow,
    DocumentWorkflowPage,
    WorkflowStatus,
)
from holdfast.model.names import validated_name
from holdfast.model.segment_search import SegmentHit
from holdfast.model.upload import Upload

__all__ = ["RemoteDocuments"]

# What the header Idempotency-Key carries.
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class RemoteDocuments:
    """The documents of a server.

    To read needs the role viewer; to add, process, retry and delete needs the role operator.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    @property
    def projects(self) -> RemoteProjects:
        """The projects, each of which has documents."""
        return RemoteProjects(self._connection)

    # --- ways in ----------------------------------------------------------------------------------

    async def add(
        self,
        path: str | os.PathLike[str],
        *,
        project: str,
        name: str | None = None,
        id: str | None = None,
        tenant: str | None = None,
    ) -> Upload:
        """Upload a file, which becomes a document of a project, and start its pipeline.

        The file is sent in pieces. After a cut connection the upload goes on where it stood, also
        on another server. With the same ``id``, a later call goes on with the same upload, or
        returns it if it was complete.

        Raises:
            OSError: the file cannot be read.
            ProjectNotFound: the tenant has no such project.
            UnknownGraph: the server does not have the pipeline of the project.
            FileRejected, FileTooLarge: the server does not accept the file.
            ServerUnavailable: the server did not answer in time.
        """
        validated_name(project, "project")
        sender = UploadSender(self._connection, tenant=tenant)
        return await sender.send(path, project=project, name=name, key=_validated_key(id))

    async def add_address(
        self,
        project: str,
        address: str,
        *,
        name: str | None = None,
        id: str | None = None,
        tenant: str | None = None,
    ) -> Upload:
        """Add a page of the web with what it links to, and start the pipeline.

        Raises:
            ProjectNotFound: the tenant has no such project.
            InvalidRequest: it is not the address of a page.
        """
        body = {"address": address, "name": name}
        return await self._add_source(body, project, key=id, tenant=tenant)

    async def add_uri(
        self,
        project: str,
        uri: str,
        *,
        name: str | None = None,
        id: str | None = None,
        tenant: str | None = None,
    ) -> Upload:
        """Add an object of a bucket that the server may read, and start the pipeline.

        Raises:
            ProjectNotFound: the tenant has no such project.
            InvalidRequest: the bucket is not permitted.
            StoredFileNotFound: there is no such object.
        """
        return await self._add_source({"uri": uri, "name": name}, project, key=id, tenant=tenant)

    async def process(
        self, document: str, *, id: str | None = None, tenant: str | None = None
    ) -> Upload:
        """Process a document again: begin another workflow, and start its run.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        shown = await self._connection.call(
            "documents_process",
            names=_named(document),
            body={},
            tenant=tenant,
            key=_validated_key(id) or self._connection.ids.new(),
        )
        return read(Upload, shown)

    # --- documents --------------------------------------------------------------------------------

    async def list(
        self,
        project: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> DocumentPage:
        """Return a page of the documents of a project, in the order of their ids.

        Raises:
            ProjectNotFound: the tenant has no such project.
            InvalidQuery: the limit or the cursor is wrong.
        """
        query = {"limit": validated_limit(limit), "cursor": cursor}
        names = {"id": validated_name(project, "project")}
        return read(
            DocumentPage,
            await self._connection.call("documents_list", names=names, query=query, tenant=tenant),
        )

    async def get(self, id: str, *, tenant: str | None = None) -> Document:
        """Return a document.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        return read(Document, await self._call("documents_get", id, tenant=tenant))

    async def delete(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a document with all that belongs to it. A call after a cut one goes on.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        await self._call("documents_delete", id, tenant=tenant)

    async def download(
        self, id: str, path: str | os.PathLike[str], *, tenant: str | None = None
    ) -> None:
        """Write the file of a document to this machine; the path has all of it, or what it had.

        Raises:
            DocumentNotFound, StoredFileNotFound: there is no such document, or it has no file.
            ServerUnavailable: the connection was cut.
            OSError: the path cannot be written.
        """
        target = Path(path)
        partial = target.with_name(f".{self._connection.ids.new()}.part")
        opened = await asyncio.to_thread(partial.open, "xb")
        try:
            try:
                async with self._connection.open_download(
                    "documents_file", names=_named(id), tenant=tenant
                ) as response:
                    left = int(response.headers.get("content-length", "0"))
                    async for chunk in response.aiter_raw():
                        left -= len(chunk)
                        await asyncio.to_thread(opened.write, chunk)
                if left:
                    raise ServerUnavailable("the file was cut before its last byte")
            finally:
                await asyncio.to_thread(opened.close)
            await asyncio.to_thread(os.replace, partial, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise

    # --- workflows --------------------------------------------------------------------------------

    async def workflow(self, id: str, *, tenant: str | None = None) -> DocumentWorkflow:
        """Return a workflow.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        return read(DocumentWorkflow, await self._call("workflows_get", id, tenant=tenant))

    async def workflows(
        self,
        *,
        project: str | None = None,
        document: str | None = None,
        status: WorkflowStatus | None = None,
        limit: int = 100,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> DocumentWorkflowPage:
        """Return a page of the workflows of a project, of a document, or of a status.

        Without any of them, those in progress, those that changed last first.

        Raises:
            ProjectNotFound, DocumentNotFound: the tenant has no such project or document.
            InvalidQuery: several of them are given, or the limit or the cursor is wrong.
        """
        given = [project, document, status]
        if sum(each is not None for each in given) > 1:
            raise InvalidQuery("pass only one of project, document and status", field="status")
        verb, owner = "workflows_list", project or document
        if owner is not None:
            verb = "workflows_of_project" if project is not None else "workflows_of_document"
        shown = await self._connection.call(
            verb,
            names={} if owner is None else _named(owner),
            query={"status": status, "limit": validated_limit(limit), "cursor": cursor},
            tenant=tenant,
        )
        return read(DocumentWorkflowPage, shown)

    async def counts(self, *, tenant: str | None = None) -> dict[WorkflowStatus, int]:
        """Return how many workflows have each status."""
        shown = await self._connection.call("workflows_count", tenant=tenant)
        names: tuple[WorkflowStatus, ...] = ("pending", "in_progress", "completed", "failed")
        return {name: int(member_of(shown, name)) for name in names}

    async def steps(self, workflow: str, *, tenant: str | None = None) -> dict[str, DocumentStep]:
        """Return the steps of a workflow by their names, in their order.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        shown = await self._call("workflows_steps", workflow, tenant=tenant)
        steps, _ = page_of(DocumentStep, shown, "steps")
        return {str(step.name): step for step in steps}

    async def retry(
        self, workflow: str, *, segment: int | None = None, tenant: str | None = None
    ) -> DocumentWorkflow:
        """Retry a failed workflow, which goes on at the failed step; or one segment of it.

        Raises:
            DocumentWorkflowNotFound, RunNotFound: there is no such workflow, or its run is gone.
            NotRetryable: the run has not failed, or its segments cannot be retried alone.
        """
        body = {"segment": segment}
        shown = await self._connection.call(
            "workflows_retry", names=_named(workflow), body=body, tenant=tenant
        )
        return read(DocumentWorkflow, shown)

    # --- segments ---------------------------------------------------------------------------------

    async def segments(
        self,
        workflow: str,
        *,
        after: int = 0,
        limit: int = 100,
        tenant: str | None = None,
    ) -> DocumentSegmentPage:
        """Return the segments of a workflow after an index, in their order.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        query = {"after": after, "limit": validated_limit(limit)}
        shown = await self._connection.call(
            "segments_list", names=_named(workflow), query=query, tenant=tenant
        )
        return read(DocumentSegmentPage, shown)

    async def segment(
        self, workflow: str, index: int, *, tenant: str | None = None
    ) -> DocumentSegment:
        """Return a segment with its whole analysis.

        Raises:
            DocumentWorkflowNotFound, SegmentNotFound: there is no such workflow or segment.
        """
        names = _segment(workflow, index)
        shown = await self._connection.call("segments_get", names=names, tenant=tenant)
        return read(DocumentSegment, shown)

    async def image(self, workflow: str, index: int, *, tenant: str | None = None) -> bytes:
        """Return the image of a segment.

        Raises:
            DocumentWorkflowNotFound, SegmentNotFound: there is no such segment, or it has none.
        """
        return await self._bytes("segments_image", workflow, index, tenant=tenant)

    async def content(self, workflow: str, index: int, *, tenant: str | None = None) -> bytes:
        """Return the content of a segment as the pipeline stored it: text, tables, in JSON.

        Raises:
            DocumentWorkflowNotFound, SegmentNotFound: there is no such segment, or it has none.
        """
        return await self._bytes("segments_content", workflow, index, tenant=tenant)

    async def search(
        self,
        text: str,
        *,
        project: str | None = None,
        document: str | None = None,
        limit: int = 20,
        tenant: str | None = None,
    ) -> builtins.list[SegmentHit]:
        """Return the segments that fit words or a question best.

        Raises:
            InvalidQuery: the text or the limit is wrong.
            SearchNotConfigured: the server has no search.
        """
        query = {"q": text, "project": project, "document": document, "limit": limit}
        shown = await self._connection.call("segments_search", query=query, tenant=tenant)
        return page_of(SegmentHit, shown, "hits")[0]

    # --- inside -----------------------------------------------------------------------------------

    async def _add_source(
        self, body: Mapping[str, Any], project: str, *, key: str | None, tenant: str | None
    ) -> Upload:
        shown = await self._connection.call(
            "documents_add",
            names={"id": validated_name(project, "project")},
            body=body,
            tenant=tenant,
            key=_validated_key(key) or self._connection.ids.new(),
        )
        return read(Upload, shown)

    async def _call(self, verb: str, id: str, *, tenant: str | None) -> Any:
        return await self._connection.call(verb, names=_named(id), tenant=tenant)

    async def _bytes(self, verb: str, workflow: str, index: int, *, tenant: str | None) -> bytes:
        names = _segment(workflow, index)
        response = await self._connection.exchange(verb, names=names, tenant=tenant)
        return response.content


def _named(id: str) -> dict[str, str]:
    return {"id": validated_name(id, "id")}


def _segment(workflow: str, index: object) -> dict[str, str]:
    if type(index) is not int or not 1 <= index <= 9_999_999:
        raise InvalidRequest(
            f"index must be that of a segment, from 1, got {index!r:.40}", field="index"
        )
    return {**_named(workflow), "index": str(index)}


def _validated_key(key: object) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or _KEY.fullmatch(key) is None:
        raise InvalidRequest(
            f"id must be 1 to 255 printable ASCII characters without spaces, got {key!r:.80}",
            field="id",
        )
    return key
