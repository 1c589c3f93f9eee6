"""Starts and ends the steps of workflows: one write of one attribute each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.documents.argument_checks import (
    STEP_ERROR_BYTES_MAX,
    cut_text,
    validated_attempt,
    validated_count,
    validated_segment_status,
    validated_step,
)
from holdfast.documents.loading import CONFLICTS_MAX, DocumentStore, too_many_conflicts
from holdfast.errors import ConditionFailed
from holdfast.model.document import STEPS, DocumentStep, StepName
from holdfast.records.document_step import (
    StepWriter,
    StoredStep,
    StoredSteps,
    ended_step,
    progressed_step,
    started_step,
    step_write,
)

__all__ = ["DocumentSteps"]


class DocumentSteps:
    """The steps of all workflows. Its methods check what callers pass."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store

    async def all(self, tenant: str, workflow: object) -> dict[StepName, DocumentStep]:
        """Return the steps of a workflow, in their order.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow.
        """
        steps = await self._store.read_steps(tenant, workflow)
        return {name: steps.steps[name].shown(name) for name in STEPS}

    async def start(
        self, tenant: str, workflow: object, *, step: object, total: object, attempt: object
    ) -> DocumentStep:
        """Note that a step has started."""
        name, writer = validated_step(step), self._writer(attempt)
        parts = None if total is None else validated_count(total, "total")

        def decide(steps: StoredSteps) -> StoredStep:
            return started_step(steps, name, writer, total=parts)

        return await self._change(tenant, workflow, name, decide=decide)

    async def progress(
        self,
        tenant: str,
        workflow: object,
        *,
        step: object,
        done: object,
        total: object,
        attempt: object,
    ) -> DocumentStep:
        """Note how many parts of a step are done."""
        name, writer = validated_step(step), self._writer(attempt)
        count = validated_count(done, "done")
        parts = None if total is None else validated_count(total, "total")

        def decide(steps: StoredSteps) -> StoredStep:
            return progressed_step(steps, name, writer, done=count, total=parts)

        return await self._change(tenant, workflow, name, decide=decide)

    async def end(
        self,
        tenant: str,
        workflow: object,
        *,
        step: object,
        status: object,
        error: object,
        attempt: object,
    ) -> DocumentStep:
        """Note that a step has ended."""
        name, writer = validated_step(step), self._writer(attempt)
        ended = validated_segment_status(status)
        reason = cut_text(error, "error", bytes_max=STEP_ERROR_BYTES_MAX)

        def decide(steps: StoredSteps) -> StoredStep:
            return ended_step(steps, name, writer, status=ended, error=reason)

        return await self._change(tenant, workflow, name, decide=decide)

    def _writer(self, attempt: object) -> StepWriter:
        return StepWriter(self._store.now_ms, validated_attempt(attempt))

    async def _change(
        self,
        tenant: str,
        workflow: object,
        name: StepName,
        *,
        decide: Callable[[StoredSteps], StoredStep],
    ) -> DocumentStep:
        """Write what ``decide`` makes of a step. It decides anew if the step was changed meanwhile.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow.
            StatusRefused: its status does not permit the change.
        """
        store = self._store
        for _ in range(CONFLICTS_MAX):
            steps = await store.read_steps(tenant, workflow)
            changed = decide(steps)
            if changed == steps.steps[name]:
                return changed.shown(name)
            stored = changed.as_item()

            def was_applied(item: dict[str, Any], stored: dict[str, Any] = stored) -> bool:
                return item.get(name) == stored

            write = step_write(steps, name, changed, token=store.kernel.ids.new())
            try:
                await store.kernel.resolve_write(store.items, write, was_applied=was_applied)
            except ConditionFailed:
                continue
            return changed.shown(name)
        raise too_many_conflicts(f"step {name} of workflow {workflow!r:.160}")
