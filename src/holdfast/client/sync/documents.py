# Generated from src/holdfast/client/documents.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `RemoteDocuments`; the async one is `holdfast.client.documents.RemoteDocuments`."""

from __future__ import annotations

import builtins
import os

from holdfast.client.documents import RemoteDocuments as AsyncRemoteDocuments
from holdfast.client.sync.projects import RemoteProjects
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
from holdfast.model.segment_search import SegmentHit
from holdfast.model.upload import Upload
from holdfast.portal import Portal

__all__ = ["RemoteDocuments"]


class RemoteDocuments:
    """The documents of a server."""

    def __init__(self, portal: Portal, documents: AsyncRemoteDocuments) -> None:
        self._portal = portal
        self._documents = documents

    @property
    def projects(self) -> RemoteProjects:
        """The projects, each of which has documents."""
        return RemoteProjects(self._portal, self._documents.projects)

    def add(
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
        return self._portal.call(
            self._documents.add, path, project=project, name=name, id=id, tenant=tenant
        )

    def add_address(
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
        return self._portal.call(
            self._documents.add_address, project, address, name=name, id=id, tenant=tenant
        )

    def add_uri(
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
        return self._portal.call(
            self._documents.add_uri, project, uri, name=name, id=id, tenant=tenant
        )

    def process(self, document: str, *, id: str | None = None, tenant: str | None = None) -> Upload:
        """Process a document again: begin another workflow, and start its run.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        return self._portal.call(self._documents.process, document, id=id, tenant=tenant)

    def list(
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
        return self._portal.call(
            self._documents.list, project, limit=limit, cursor=cursor, tenant=tenant
        )

    def get(self, id: str, *, tenant: str | None = None) -> Document:
        """Return a document.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        return self._portal.call(self._documents.get, id, tenant=tenant)

    def delete(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a document with all that belongs to it. A call after a cut one goes on.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        self._portal.call(self._documents.delete, id, tenant=tenant)

    def download(self, id: str, path: str | os.PathLike[str], *, tenant: str | None = None) -> None:
        """Write the file of a document to this machine; the path has all of it, or what it had.

        Raises:
            DocumentNotFound, StoredFileNotFound: there is no such document, or it has no file.
            ServerUnavailable: the connection was cut.
            OSError: the path cannot be written.
        """
        self._portal.call(self._documents.download, id, path, tenant=tenant)

    def workflow(self, id: str, *, tenant: str | None = None) -> DocumentWorkflow:
        """Return a workflow.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        return self._portal.call(self._documents.workflow, id, tenant=tenant)

    def workflows(
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
        return self._portal.call(
            self._documents.workflows,
            project=project,
            document=document,
            status=status,
            limit=limit,
            cursor=cursor,
            tenant=tenant,
        )

    def counts(self, *, tenant: str | None = None) -> dict[WorkflowStatus, int]:
        """Return how many workflows have each status."""
        return self._portal.call(self._documents.counts, tenant=tenant)

    def steps(self, workflow: str, *, tenant: str | None = None) -> dict[str, DocumentStep]:
        """Return the steps of a workflow by their names, in their order.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        return self._portal.call(self._documents.steps, workflow, tenant=tenant)

    def retry(
        self, workflow: str, *, segment: int | None = None, tenant: str | None = None
    ) -> DocumentWorkflow:
        """Retry a failed workflow, which goes on at the failed step; or one segment of it.

        Raises:
            DocumentWorkflowNotFound, RunNotFound: there is no such workflow, or its run is gone.
            NotRetryable: the run has not failed, or its segments cannot be retried alone.
        """
        return self._portal.call(self._documents.retry, workflow, segment=segment, tenant=tenant)

    def segments(
        self, workflow: str, *, after: int = 0, limit: int = 100, tenant: str | None = None
    ) -> DocumentSegmentPage:
        """Return the segments of a workflow after an index, in their order.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        return self._portal.call(
            self._documents.segments, workflow, after=after, limit=limit, tenant=tenant
        )

    def segment(self, workflow: str, index: int, *, tenant: str | None = None) -> DocumentSegment:
        """Return a segment with its whole analysis.

        Raises:
            DocumentWorkflowNotFound, SegmentNotFound: there is no such workflow or segment.
        """
        return self._portal.call(self._documents.segment, workflow, index, tenant=tenant)

    def image(self, workflow: str, index: int, *, tenant: str | None = None) -> bytes:
        """Return the image of a segment.

        Raises:
            DocumentWorkflowNotFound, SegmentNotFound: there is no such segment, or it has none.
        """
        return self._portal.call(self._documents.image, workflow, index, tenant=tenant)

    def content(self, workflow: str, index: int, *, tenant: str | None = None) -> bytes:
        """Return the content of a segment as the pipeline stored it: text, tables, in JSON.

        Raises:
            DocumentWorkflowNotFound, SegmentNotFound: there is no such segment, or it has none.
        """
        return self._portal.call(self._documents.content, workflow, index, tenant=tenant)

    def search(
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
        return self._portal.call(
            self._documents.search,
            text,
            project=project,
            document=document,
            limit=limit,
            tenant=tenant,
        )
