"""`Documents`: the projects and documents of a store, and the workflows that process them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.documents.argument_checks import (
    ERROR_BYTES_MAX,
    cut_text,
    validated_analysis,
    validated_change,
    validated_file,
    validated_index,
    validated_place,
    validated_segment_status,
    validated_status_filter,
    validated_steps,
    validated_uri,
    validated_workflow_status,
)
from holdfast.documents.connections import DocumentConnections
from holdfast.documents.files import DocumentFiles
from holdfast.documents.loading import DocumentStore
from holdfast.documents.project_documents import ProjectDocuments
from holdfast.documents.projects import Projects
from holdfast.documents.removal import DocumentRemoval
from holdfast.documents.search import SegmentSearch
from holdfast.documents.segment_ranges import SegmentRanges
from holdfast.documents.segments import DocumentSegments
from holdfast.documents.steps import DocumentSteps
from holdfast.documents.uploads import DocumentUploads
from holdfast.documents.workflows import DocumentWorkflows
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.argument_checks import positive_ms, validated_limit
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.errors import InvalidQuery
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
from holdfast.model.names import validated_name
from holdfast.records.document import StoredDocument
from holdfast.records.document_segment import StoredSegment

__all__ = ["Documents"]

_CONNECTION_TTL = hours(2)


class Documents:
    """The documents of a store: what is known of them, and how far they are processed.

    Each method takes the ``tenant`` of the document, by default that of this instance. The content
    of documents is in blobs and files, not in the table.
    """

    def __init__(self, kernel: Kernel, workers: LocalWorkers, tenant: str) -> None:
        self._store = store = DocumentStore(kernel, tenant)
        self._documents = ProjectDocuments(store)
        self._workflows = DocumentWorkflows(store)
        self._steps = DocumentSteps(store)
        self._segments = DocumentSegments(store)
        self.segment_ranges = SegmentRanges(store)
        """Reads segments by ranges of their indices."""
        self._connections = DocumentConnections(store)
        self._removal = DocumentRemoval(store, workers, lambda: self.search)
        self.search: SegmentSearch | None = None
        """The search over segments, which forgets what is deleted; None if there is none."""
        self.projects = Projects(store, self._removal.delete_project)
        """The projects, each of which has documents."""
        self.files = DocumentFiles(kernel, tenant, places=self)
        """The content of documents, in parts."""
        self.uploads = DocumentUploads(kernel, tenant, files=self.files, documents=self)
        """Documents on their way in."""

    def place(self, id: str | None = None, *, tenant: str | None = None) -> DocumentPlace:
        """Return where the blobs of a document go that is added later. Nothing is written.

        A sweep deletes blobs whose document was not added within a day.

        Raises:
            InvalidName: the id is not valid.
        """
        tenant = self._store.tenant_or_default(tenant)
        return self._documents.place(tenant, None if id is None else validated_name(id, "id"))

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
        """Add a document to a project. The same id with the same values returns the document.

        Pass the ``place`` below which its blobs were stored; ``web`` if it was read from the web.

        Raises:
            ProjectNotFound: the tenant has no such project.
            IdTaken: the id is that of another document, or of one being deleted.
            InvalidRequest: a value is wrong; ``field`` says which.
        """
        tenant = self._store.tenant_or_default(tenant)
        if place is None:
            place = self.place(id, tenant=tenant)
        placed = validated_place(place, tenant, id=id)
        file = validated_file(uri=file_uri, name=file_name, type=file_type, size=file_bytes)
        return await self._documents.add(
            StoredDocument(
                tenant=tenant,
                id=placed.id,
                project=validated_name(project, "project"),
                kind="WEB" if web else "DOC",
                **file,
                created_ms=self._store.now_ms,
                generation=placed.generation,
            )
        )

    async def get(self, id: str, *, tenant: str | None = None) -> Document:
        """Return a document.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        tenant = self._store.tenant_or_default(tenant)
        return (await self._store.read_document(tenant, id)).shown()

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
        tenant = self._store.tenant_or_default(tenant)
        size = validated_limit(limit)
        return await self._documents.page(tenant, project, limit=size, cursor=cursor)

    async def delete(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a document: its workflows, segments, blobs, runs and entries of the search.

        A call after a crash continues. Writers that are still at work are refused from now on.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        tenant = self._store.tenant_or_default(tenant)
        await self._removal.delete_document(tenant, id)

    async def blob_prefix(self, id: str, *, tenant: str | None = None) -> str:
        """Return the prefix of the keys of all blobs of a document.

        Raises:
            DocumentNotFound: the tenant has no such document.
        """
        tenant = self._store.tenant_or_default(tenant)
        return (await self._store.read_pointer(tenant, id)).blob_prefix

    async def begin(
        self, document: str, *, id: str | None = None, tenant: str | None = None
    ) -> DocumentWorkflow:
        """Begin a workflow of a document. The same id again returns the workflow.

        Raises:
            DocumentNotFound: the tenant has no such document.
            IdTaken: the id is that of a workflow of another document, or of one deleted lately.
        """
        tenant = self._store.tenant_or_default(tenant)
        new_id = self._store.kernel.ids.new() if id is None else validated_name(id, "id")
        return await self._workflows.begin(tenant, document, new_id)

    async def begin_again(
        self,
        id: str,
        *,
        steps: Sequence[StepName] | None = None,
        tenant: str | None = None,
    ) -> DocumentWorkflow:
        """Let a workflow that has ended be processed once more, as its next attempt.

        The ``steps``, by default all, are pending again. Segments stay.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            StatusRefused: it has not ended.
            InvalidRequest: there is no such step.
        """
        tenant = self._store.tenant_or_default(tenant)
        return await self._workflows.begin_again(tenant, id, validated_steps(steps))

    async def workflow(self, id: str, *, tenant: str | None = None) -> DocumentWorkflow:
        """Return a workflow of a document.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        tenant = self._store.tenant_or_default(tenant)
        return (await self._store.read_workflow(tenant, id)).shown()

    async def workflows(
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
        tenant, limit = self._store.tenant_or_default(tenant), validated_limit(limit)
        if (project is None) == (document is None):
            raise InvalidQuery("pass project=… or document=…, and not both", field="project")
        if project is not None:
            return await self._workflows.of_project(tenant, project, limit=limit, cursor=cursor)
        return await self._workflows.of_document(tenant, document, limit=limit, cursor=cursor)

    async def in_progress(
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
        tenant = self._store.tenant_or_default(tenant)
        return await self._workflows.with_status(
            tenant, validated_status_filter(status), limit=validated_limit(limit), cursor=cursor
        )

    async def counts(self, *, tenant: str | None = None) -> dict[WorkflowStatus, int]:
        """Return how many workflows have which status. The cost does not depend on how many."""
        return await self._workflows.counts(self._store.tenant_or_default(tenant))

    async def set_status(
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
        request = validated_change(
            validated_workflow_status(status),
            total_segments=total_segments,
            execution_arn=execution_arn,
            preprocess=preprocess,
            error=error,
            attempt=attempt,
        )
        return await self._workflows.change(self._store.tenant_or_default(tenant), id, request)

    async def update_workflow(
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
        request = validated_change(
            None,
            total_segments=total_segments,
            execution_arn=execution_arn,
            preprocess=preprocess,
            attempt=attempt,
        )
        return await self._workflows.change(self._store.tenant_or_default(tenant), id, request)

    async def steps(
        self, workflow: str, *, tenant: str | None = None
    ) -> dict[StepName, DocumentStep]:
        """Return the ten steps of a workflow, in their order.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
        """
        return await self._steps.all(self._store.tenant_or_default(tenant), workflow)

    async def start_step(
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
        tenant = self._store.tenant_or_default(tenant)
        return await self._steps.start(tenant, workflow, step=step, total=total, attempt=attempt)

    async def progress_step(
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
        tenant = self._store.tenant_or_default(tenant)
        return await self._steps.progress(
            tenant, workflow, step=step, done=done, total=total, attempt=attempt
        )

    async def end_step(
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
        tenant = self._store.tenant_or_default(tenant)
        return await self._steps.end(
            tenant, workflow, step=step, status=status, error=error, attempt=attempt
        )

    async def put_segment(
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
        segment = StoredSegment(
            tenant=self._store.tenant_or_default(tenant),
            workflow=validated_name(workflow, "workflow"),
            index=validated_index(index),
            s3_key=validated_uri(s3_key, "s3_key"),
            image_uri=validated_uri(image_uri, "image_uri"),
            image_analysis=validated_analysis(image_analysis),
            status=validated_segment_status(status),
            error=cut_text(error, "error", bytes_max=ERROR_BYTES_MAX),
        )
        return await self._segments.put(segment)

    async def segment(
        self, workflow: str, index: int, *, tenant: str | None = None
    ) -> DocumentSegment:
        """Return a segment with its whole analysis.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            SegmentNotFound: the workflow has no such segment yet.
            InvalidRequest: the index is not an integer from 1 on.
        """
        tenant = self._store.tenant_or_default(tenant)
        return await self._segments.get(tenant, workflow, validated_index(index))

    async def segments(
        self, workflow: str, *, after: int = 0, limit: int = 100, tenant: str | None = None
    ) -> DocumentSegmentPage:
        """Return a page of segments after an index, without analyses that are in blobs.

        Raises:
            DocumentWorkflowNotFound: the tenant has no such workflow.
            InvalidQuery: the limit is wrong.
            InvalidRequest: ``after`` is not an index.
        """
        tenant, limit = self._store.tenant_or_default(tenant), validated_limit(limit)
        first = validated_index(after, "after", least=0)
        return await self._segments.page(tenant, workflow, after=first, limit=limit)

    async def connect(
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
        tenant, ttl_ms = self._store.tenant_or_default(tenant), positive_ms(ttl, "ttl")
        return await self._connections.add(
            tenant, workflow, connection_id, data=data, ttl_ms=ttl_ms
        )

    async def disconnect(
        self, workflow: str, connection_id: str, *, tenant: str | None = None
    ) -> None:
        """Note that a connection does not follow a workflow any more."""
        tenant = self._store.tenant_or_default(tenant)
        await self._connections.remove(tenant, workflow, connection_id)

    async def connections(
        self, workflow: str, *, tenant: str | None = None
    ) -> builtins.list[DocumentConnection]:
        """Return the connections that follow a workflow."""
        return await self._connections.all(self._store.tenant_or_default(tenant), workflow)
