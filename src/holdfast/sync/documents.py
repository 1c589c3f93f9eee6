# Generated from src/holdfast/documents/documents.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `Documents`; the async one is `holdfast.documents.documents.Documents`."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.documents.documents import Documents as AsyncDocuments
from holdfast.model.document import (
    Document,
    DocumentConnection,
    DocumentPage,
    DocumentPlace,
    DocumentSegment,
    DocumentSegmentPage,
    DocumentStep,
    DocumentWorkflow,
    DocumentWorkflowPage,
    StepName,
    StepStatus,
    WorkflowStatus,
)
from holdfast.model.durations import Duration, hours
from holdfast.portal import Portal
from holdfast.sync.projects import Projects

__all__ = ["Documents"]

_CONNECTION_TTL = hours(2)


class Documents:
    """The documents of a store: what is known of them, and how far they are processed."""

    def __init__(self, portal: Portal, documents: AsyncDocuments) -> None:
        self._portal = portal
        self._documents = documents

    @property
    def projects(self) -> Projects:
        """The projects, each of which has documents."""
        return Projects(self._portal, self._documents.projects)

    def add(
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
        """Add a document to a project. The same id with the same values returns the document.

        Pass the ``place`` below which its blobs were stored; ``web`` if it was read from the web.

        Raises:
            ProjectNotFound: the tenant has no such project.
            IdTaken: the id is that of another document, or of one being deleted.
            InvalidRequest: a value is wrong; ``field`` says which.
        """
        return self._portal.call(
            self._documents.add,
            project,
            file_uri=file_uri,
            file_name=file_name,
            file_type=file_type,
            file_bytes=file_bytes,
            id=id,
            web=web,
            place=place,
            tenant=tenant,
        )

    def get(self, id: str, *, tenant: str | None = None) -> Document:
        """Return a document.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        return self._portal.call(self._documents.get, id, tenant=tenant)

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

    def delete(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a document: its workflows, segments, blobs, runs and entries of the search.

        A call after a crash continues. Writers that are still at work are refused from now on.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        self._portal.call(self._documents.delete, id, tenant=tenant)

    def blob_prefix(self, id: str, *, tenant: str | None = None) -> str:
        """Return the prefix of the keys of all blobs of a document.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        return self._portal.call(self._documents.blob_prefix, id, tenant=tenant)

    def begin(
        self, document: str, *, id: str | None = None, tenant: str | None = None
    ) -> DocumentWorkflow:
        """Begin a workflow of a document. The same id again returns the workflow.

        Raises:
            DocumentNotFound: the tenant has no such document.
            IdTaken: the id is that of a workflow of another document, or of one deleted lately.
        """
        return self._portal.call(self._documents.begin, document, id=id, tenant=tenant)

    def begin_again(
        self, id: str, *, steps: Sequence[StepName] | None = None, tenant: str | None = None
    ) -> DocumentWorkflow:
        """Let a workflow that has ended be processed once more, as its next attempt.

        The ``steps``, by default all, are pending again. Segments stay.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            StatusRefused: it has not ended.
            InvalidRequest: there is no such step.
        """
        return self._portal.call(self._documents.begin_again, id, steps=steps, tenant=tenant)

    def workflow(self, id: str, *, tenant: str | None = None) -> DocumentWorkflow:
        """Return a workflow of a document.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        return self._portal.call(self._documents.workflow, id, tenant=tenant)

    def workflows(
        self,
        *,
        project: str | None = None,
        document: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> DocumentWorkflowPage:
        """Return a page of the workflows of a project or of a document, in the order of their ids.

        Raises:
            ProjectNotFound, DocumentNotFound: the tenant has no such project or document.
            InvalidQuery: not exactly one of both is given, or the limit or the cursor is wrong.
        """
        return self._portal.call(
            self._documents.workflows,
            project=project,
            document=document,
            limit=limit,
            cursor=cursor,
            tenant=tenant,
        )

    def in_progress(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        status: WorkflowStatus = "in_progress",
        tenant: str | None = None,
    ) -> DocumentWorkflowPage:
        """Return a page of the workflows in progress, the one that changed last first.

        With a ``status``, those that have it.

        Raises:
            InvalidQuery: the status, the limit or the cursor is wrong.
        """
        return self._portal.call(
            self._documents.in_progress, limit=limit, cursor=cursor, status=status, tenant=tenant
        )

    def counts(self, *, tenant: str | None = None) -> dict[WorkflowStatus, int]:
        """Return how many workflows have which status. The cost does not depend on how many."""
        return self._portal.call(self._documents.counts, tenant=tenant)

    def set_status(
        self,
        id: str,
        status: WorkflowStatus,
        *,
        total_segments: int | None = None,
        execution_arn: str | None = None,
        preprocess: Mapping[str, StepStatus] | None = None,
        error: str | None = None,
        attempt: int | None = None,
        tenant: str | None = None,
    ) -> DocumentWorkflow:
        """Change the status of a workflow, and what is given besides; return the workflow.

        The same call again changes nothing. A writer that passes its ``attempt`` is refused if the
        workflow was begun again meanwhile.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            StatusRefused: the workflow cannot change to this status.
            InvalidRequest: a value is wrong; ``field`` says which.
        """
        return self._portal.call(
            self._documents.set_status,
            id,
            status,
            total_segments=total_segments,
            execution_arn=execution_arn,
            preprocess=preprocess,
            error=error,
            attempt=attempt,
            tenant=tenant,
        )

    def update_workflow(
        self,
        id: str,
        *,
        total_segments: int | None = None,
        execution_arn: str | None = None,
        preprocess: Mapping[str, StepStatus] | None = None,
        attempt: int | None = None,
        tenant: str | None = None,
    ) -> DocumentWorkflow:
        """Change what is given of a workflow, and not its status; return the workflow.

        ``total_segments`` never shrinks. Stages that are not in ``preprocess`` stay as they are.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            StatusRefused: the workflow has ended, or was begun again.
            InvalidRequest: a value is wrong; ``field`` says which.
        """
        return self._portal.call(
            self._documents.update_workflow,
            id,
            total_segments=total_segments,
            execution_arn=execution_arn,
            preprocess=preprocess,
            attempt=attempt,
            tenant=tenant,
        )

    def steps(self, workflow: str, *, tenant: str | None = None) -> dict[StepName, DocumentStep]:
        """Return the ten steps of a workflow, in their order.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        return self._portal.call(self._documents.steps, workflow, tenant=tenant)

    def start_step(
        self,
        workflow: str,
        step: StepName,
        *,
        total: int | None = None,
        attempt: int | None = None,
        tenant: str | None = None,
    ) -> DocumentStep:
        """Note that a step has started. Its beginning stays if it is in progress.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            StatusRefused: the workflow has ended, or was begun again.
            InvalidRequest: there is no such step, or the total is not a number of parts.
        """
        return self._portal.call(
            self._documents.start_step, workflow, step, total=total, attempt=attempt, tenant=tenant
        )

    def progress_step(
        self,
        workflow: str,
        step: StepName,
        *,
        done: int,
        total: int | None = None,
        attempt: int | None = None,
        tenant: str | None = None,
    ) -> DocumentStep:
        """Note how many parts of a step are done. The number never goes down.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            StatusRefused: the step is not in progress, or the workflow was begun again.
            InvalidRequest: there is no such step, or a number is wrong.
        """
        return self._portal.call(
            self._documents.progress_step,
            workflow,
            step,
            done=done,
            total=total,
            attempt=attempt,
            tenant=tenant,
        )

    def end_step(
        self,
        workflow: str,
        step: StepName,
        *,
        status: StepStatus = "completed",
        error: str | None = None,
        attempt: int | None = None,
        tenant: str | None = None,
    ) -> DocumentStep:
        """Note that a step is completed, failed or skipped. The same call again changes nothing.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            StatusRefused: it ended in another way, or never started, or was begun again.
            InvalidRequest: there is no such step, or the status is not an end.
        """
        return self._portal.call(
            self._documents.end_step,
            workflow,
            step,
            status=status,
            error=error,
            attempt=attempt,
            tenant=tenant,
        )

    def put_segment(
        self,
        workflow: str,
        index: int,
        *,
        s3_key: str | None = None,
        image_uri: str | None = None,
        image_analysis: Sequence[Any] = (),
        status: StepStatus = "completed",
        error: str | None = None,
        tenant: str | None = None,
    ) -> DocumentSegment:
        """Store a segment with one write, in place of an earlier one. The first index is 1.

        An analysis that is too large for an item goes into a blob of the document.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow, or it was deleted.
            InvalidRequest: a value is wrong, or the index is beyond ``total_segments``.
        """
        return self._portal.call(
            self._documents.put_segment,
            workflow,
            index,
            s3_key=s3_key,
            image_uri=image_uri,
            image_analysis=image_analysis,
            status=status,
            error=error,
            tenant=tenant,
        )

    def segment(self, workflow: str, index: int, *, tenant: str | None = None) -> DocumentSegment:
        """Return a segment with its whole analysis.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            SegmentNotFound: the workflow has no such segment yet.
            InvalidRequest: the index is not an integer from 1 on.
        """
        return self._portal.call(self._documents.segment, workflow, index, tenant=tenant)

    def segments(
        self, workflow: str, *, after: int = 0, limit: int = 100, tenant: str | None = None
    ) -> DocumentSegmentPage:
        """Return a page of segments after an index, without analyses that are in blobs.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            InvalidQuery: the limit is wrong.
            InvalidRequest: ``after`` is not an index.
        """
        return self._portal.call(
            self._documents.segments, workflow, after=after, limit=limit, tenant=tenant
        )

    def connect(
        self,
        workflow: str,
        connection_id: str,
        *,
        data: Mapping[str, Any] | None = None,
        ttl: Duration = _CONNECTION_TTL,
        tenant: str | None = None,
    ) -> DocumentConnection:
        """Note that a connection follows a workflow, until it disconnects or its time is over.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            InvalidRequest: the time is over 7 days, or the data not a small dict.
        """
        return self._portal.call(
            self._documents.connect, workflow, connection_id, data=data, ttl=ttl, tenant=tenant
        )

    def disconnect(self, workflow: str, connection_id: str, *, tenant: str | None = None) -> None:
        """Note that a connection does not follow a workflow any more."""
        self._portal.call(self._documents.disconnect, workflow, connection_id, tenant=tenant)

    def connections(
        self, workflow: str, *, tenant: str | None = None
    ) -> builtins.list[DocumentConnection]:
        """Return the connections that follow a workflow."""
        return self._portal.call(self._documents.connections, workflow, tenant=tenant)
