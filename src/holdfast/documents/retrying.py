"""Retries the processing of a document: the whole of it where it failed, or one segment."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.documents.pipelines import pipeline_run_id
from holdfast.errors import SegmentNotFound
from holdfast.model.document import DocumentWorkflow

__all__ = ["SEGMENT_ITEM", "retry_workflow"]

SEGMENT_ITEM = "analyze_segment"
"""The item function of a pipeline that is called for each segment; its index begins at 0."""


class _Runs(Protocol):
    """What finds runs: a `Holdfast`."""

    def run(self, id: str, *, tenant: str | None = None) -> Any: ...


async def retry_workflow(
    hf: _Runs, workflow: DocumentWorkflow, *, segment: int | None = None
) -> str:
    """Let the run of a workflow go on where it failed; return the id of the run that does so.

    With a ``segment``, only that one is analyzed again, also after the run has ended.

    Raises:
        RunNotFound: the run is gone.
        NotRetryable: the run has not failed.
        SegmentNotFound: the run has not come to its segments yet, or has no such one.
    """
    run_id = workflow.execution_arn or pipeline_run_id(workflow.id)
    run = hf.run(run_id, tenant=workflow.tenant)
    if segment is None:
        await run.retry()
        return run_id
    found = [each for each in await run.maps() if each.item == SEGMENT_ITEM]
    if not found or not 1 <= segment <= found[-1].total:
        raise SegmentNotFound(
            f"workflow {workflow.id} has no segment {segment} that can be analyzed again"
        )
    return await run.map(found[-1].map).retry(segment - 1)
