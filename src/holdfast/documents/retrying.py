"""`retry_workflow`: lets a failed workflow, or one of its segments, be processed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.documents.pipelines import pipeline_run_id
from holdfast.errors import InvalidRequest, NotRetryable
from holdfast.model.document import DocumentWorkflow

__all__ = ["SEGMENT_ITEM", "retry_workflow"]

SEGMENT_ITEM = "analyze_segment"
"""The item function of the map over segments, in a pipeline whose segments can be retried alone."""


class _Workflows(Protocol):
    async def workflow(self, id: str, *, tenant: str | None = None) -> DocumentWorkflow: ...


class _Runs(Protocol):
    """What has runs and documents: a `Holdfast`."""

    @property
    def documents(self) -> _Workflows: ...

    def run(self, id: str, *, tenant: str | None = None) -> Any: ...


async def retry_workflow(
    hf: _Runs, id: str, *, segment: int | None = None, tenant: str | None = None
) -> DocumentWorkflow:
    """Retry the run of a failed workflow, which goes on at the failed step; return the workflow.

    With a ``segment``, only that one is analyzed again, also after the run has ended.

    Raises:
        DocumentWorkflowNotFound: the tenant has no such workflow.
        RunNotFound: its run is gone: process the document again.
        NotRetryable: the run has not failed, or its segments cannot be retried alone.
        InvalidRequest: the workflow has no such segment.
    """
    workflow = await hf.documents.workflow(id, tenant=tenant)
    run = hf.run(workflow.execution_arn or pipeline_run_id(workflow.id), tenant=workflow.tenant)
    if segment is None:
        await run.retry()
        return await hf.documents.workflow(id, tenant=tenant)
    if type(segment) is not int or not 1 <= segment <= (workflow.total_segments or 0):
        raise InvalidRequest(
            f"segment must be from 1 to {workflow.total_segments or 0}, got {segment!r:.40}",
            field="segment",
        )
    maps: Sequence[Any] = await run.maps()
    of_segments = [each for each in maps if each.item == SEGMENT_ITEM]
    if not of_segments:
        raise NotRetryable(
            f"the run {run.id!r} has no map of {SEGMENT_ITEM}: retry the whole workflow"
        )
    # The index of a segment begins at 1, that of an item at 0.
    try:
        await run.map(of_segments[-1].map).retry(segment - 1)
    except NotRetryable:
        raise NotRetryable(
            f"segment {segment} cannot be analyzed again: its analysis did not fail, or it has "
            "not ended yet"
        ) from None
    return await hf.documents.workflow(id, tenant=tenant)
