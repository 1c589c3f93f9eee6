"""`FollowedWorkflow`: one workflow in the store, as its hub reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.documents.documents import Documents
from holdfast.model.document import (
    DocumentSegmentPage,
    DocumentStep,
    DocumentWorkflow,
    StepName,
)
from holdfast.server.streams.index_ranges import IndexRange

__all__ = ["FollowedWorkflow"]


class FollowedWorkflow:
    """A workflow of a tenant: the `WorkflowSource` of a hub."""

    def __init__(self, documents: Documents, id: str, *, tenant: str) -> None:
        self._documents = documents
        self._id = id
        self._tenant = tenant

    async def workflow(self) -> DocumentWorkflow:
        """Return the workflow.

        Raises:
            DocumentWorkflowNotFound: there is none, or it is being deleted.
        """
        return await self._documents.workflow(self._id, tenant=self._tenant)

    async def steps(self) -> Mapping[StepName, DocumentStep]:
        """Return the steps.

        Raises:
            DocumentWorkflowNotFound: there is none, or it is being deleted.
        """
        return await self._documents.steps(self._id, tenant=self._tenant)

    async def segments(
        self, ranges: Sequence[IndexRange], *, limit: int, eventual: bool
    ) -> DocumentSegmentPage:
        """Return the segments of ranges.

        Raises:
            StoreError: the store did not answer.
        """
        return await self._documents.segment_ranges.read(
            self._id, ranges, limit=limit, eventual=eventual, tenant=self._tenant
        )

    async def connect(self, connection: str, data: Mapping[str, Any]) -> None:
        """Store a connection, again if it is stored.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow, or it is being deleted.
        """
        await self._documents.connect(self._id, connection, data=data, tenant=self._tenant)

    async def disconnect(self, connection: str) -> None:
        """Delete a connection; do nothing if there is none.

        Raises:
            StoreError: the store did not answer.
        """
        await self._documents.disconnect(self._id, connection, tenant=self._tenant)
