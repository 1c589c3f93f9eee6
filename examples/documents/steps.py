"""Keeps what people see of a workflow in step with what its run does.

A node may run again after a crash: its step stays in progress. When a node has failed for good,
its step and the workflow have failed. When the run is retried, the node begins the workflow again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from holdfast import Context
from holdfast.documents.documents import Documents
from holdfast.errors import (
    CallFailed,
    DocumentNotFound,
    DocumentWorkflowNotFound,
    HoldfastError,
    StatusRefused,
    StoreError,
)
from holdfast.model.document import DocumentWorkflow, StepName, StepStatus

__all__ = ["ATTEMPTS", "TRANSIENT", "StepFailed", "Steps", "shown_indices"]

ATTEMPTS = 3
"""How often a node is tried if it fails for a reason that may pass."""
TRANSIENT = (ConnectionError, TimeoutError, StoreError)
_OPEN: tuple[StepStatus, ...] = ("pending", "in_progress", "failed")
_REASON_CHARS_MAX = 1_000


class StepFailed(Exception):
    """A step cannot do its work, and trying again at once would not help."""


class Steps:
    """The steps of one workflow, as one node of its run reports them."""

    def __init__(self, documents: Documents, workflow: str, ctx: Context) -> None:
        self._documents, self._workflow, self._ctx = documents, workflow, ctx

    @asynccontextmanager
    async def running(
        self, step: StepName, *, total: int | None = None, ends: bool = True
    ) -> AsyncGenerator[DocumentWorkflow]:
        """Report that a step runs, and how it ends; without ``ends`` it only may fail.

        Raises:
            DocumentWorkflowNotFound: the document was deleted.
        """
        workflow = await self._begin()
        await self._documents.start_step(self._workflow, step, total=total, tenant=self._tenant)
        try:
            yield workflow
        except (DocumentNotFound, DocumentWorkflowNotFound):
            raise  # it was deleted: nothing is left to report to
        except Exception as error:
            if not self._is_tried_again(error):
                await self._fail(step, _reason(error))
            raise
        if ends:
            await self._documents.end_step(self._workflow, step, tenant=self._tenant)

    async def skip(self, *steps: StepName) -> None:
        """Report that steps are not needed."""
        for step in steps:
            await self._documents.end_step(
                self._workflow, step, status="skipped", tenant=self._tenant
            )

    async def progress(self, step: StepName, done: int) -> None:
        """Report how many segments a step has done, if that is more than was reported before."""
        # The step may have ended: a segment is retried alone, or another one failed it.
        with suppress(StatusRefused):
            await self._documents.progress_step(
                self._workflow, step, done=max(0, done), tenant=self._tenant
            )

    async def update(
        self,
        *,
        total_segments: int | None = None,
        preprocess: Mapping[str, StepStatus] | None = None,
    ) -> None:
        """Write facts of the workflow."""
        await self._documents.update_workflow(
            self._workflow,
            total_segments=total_segments,
            preprocess=None if preprocess is None else dict(preprocess),
            tenant=self._tenant,
        )

    async def complete(self, step: StepName) -> None:
        """Report that the last step has ended, and with it the workflow."""
        await self._documents.end_step(self._workflow, step, tenant=self._tenant)
        await self._documents.set_status(self._workflow, "completed", tenant=self._tenant)

    @property
    def _tenant(self) -> str:
        return self._ctx.tenant

    async def _begin(self) -> DocumentWorkflow:
        """Return the workflow, which is in progress; begin it again if the run was retried."""
        documents = self._documents
        workflow = await documents.workflow(self._workflow, tenant=self._tenant)
        if workflow.status in ("completed", "failed"):
            steps = await documents.steps(self._workflow, tenant=self._tenant)
            left: list[StepName] = [step.name for step in steps.values() if step.status in _OPEN]
            # Another branch of the run may have been faster.
            with suppress(StatusRefused):
                workflow = await documents.begin_again(
                    self._workflow, steps=left, tenant=self._tenant
                )
        if workflow.status == "in_progress" and workflow.execution_arn == self._ctx.run_id:
            return workflow
        return await documents.set_status(
            self._workflow, "in_progress", execution_arn=self._ctx.run_id, tenant=self._tenant
        )

    async def _fail(self, step: StepName, reason: str) -> None:
        with suppress(DocumentWorkflowNotFound, StatusRefused):
            await self._documents.end_step(
                self._workflow, step, status="failed", error=reason, tenant=self._tenant
            )
            await self._documents.set_status(
                self._workflow, "failed", error=f"{step}: {reason}", tenant=self._tenant
            )

    def _is_tried_again(self, error: Exception) -> bool:
        return isinstance(error, TRANSIENT) and self._ctx.attempt < ATTEMPTS


def _reason(error: Exception) -> str:
    """Return what people read."""
    said = error.reason if isinstance(error, CallFailed) else str(error)
    text = " ".join(said.split()) or type(error).__name__
    known = isinstance(error, StepFailed | HoldfastError)
    return (text if known else f"{type(error).__name__}: {text}")[:_REASON_CHARS_MAX]


def shown_indices(indices: Sequence[int], number: int = 5) -> str:
    """Return a few of many numbers, for people."""
    shown = ", ".join(str(index) for index in indices[:number])
    return shown if len(indices) <= number else f"{shown} and {len(indices) - number} more"
