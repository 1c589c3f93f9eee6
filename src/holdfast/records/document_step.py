"""The item of the steps of a workflow: one attribute for each step.

Parallel steps write the item at the same time. Each write replaces the attribute of one step, if it
is as it was read, and leaves the others alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidRequest, StatusRefused
from holdfast.model.document import (
    STEP_LABELS,
    STEPS,
    DocumentKind,
    DocumentStep,
    StepName,
    StepStatus,
    WorkflowStatus,
)
from holdfast.records.blob_keys import document_blob_prefix
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.document import there
from holdfast.records.document_keys import steps_key, workflow_key
from holdfast.records.times import utc_datetime
from holdfast.storage import Absent, AllOf, Equals, Key, Update

__all__ = [
    "StepWriter",
    "StoredStep",
    "StoredSteps",
    "ended_step",
    "progressed_step",
    "started_step",
    "step_write",
    "steps_of",
]

_ENDED = ("completed", "failed", "skipped")


class StoredStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step as it is stored."""

    status: StepStatus = "pending"
    label: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    error: str | None = None
    done: int = 0
    total: int | None = None

    def as_item(self) -> dict[str, Any]:
        """Return the attribute of the step."""
        values = msgspec.structs.asdict(self)
        kept = {name: value for name, value in values.items() if value not in (None, 0, "")}
        return {**kept, "status": self.status}

    def shown(self, name: StepName) -> DocumentStep:
        """Return it as callers see it."""
        return DocumentStep(
            name=name,
            label=self.label or STEP_LABELS[name],
            status=self.status,
            started_at=None if self.started_ms is None else utc_datetime(self.started_ms),
            ended_at=None if self.ended_ms is None else utc_datetime(self.ended_ms),
            error=self.error,
            done=self.done,
            total=self.total,
        )


class StoredSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a workflow, and what writers of steps and segments have to know of it."""

    tenant: str
    workflow: str
    document: str
    kind: DocumentKind
    generation: str
    status: WorkflowStatus
    attempt: int
    steps: dict[StepName, StoredStep]
    stored: dict[StepName, Any]
    """The attributes of the steps, as they are stored."""
    total_segments: int | None = None
    expires_ms: int | None = None

    @property
    def key(self) -> Key:
        return steps_key(self.tenant, self.workflow)

    @property
    def workflow_key(self) -> Key:
        """The key of the item of the workflow."""
        return workflow_key(self.kind, self.tenant, self.document, workflow=self.workflow)

    @property
    def blob_prefix(self) -> str:
        """The prefix of the blobs of the document."""
        return document_blob_prefix(self.tenant, self.document, self.generation)

    @property
    def is_ended(self) -> bool:
        """Whether the workflow has ended."""
        return self.status in ("completed", "failed")

    def has_segment(self, index: int) -> bool:
        """Return whether the document was divided into so many segments."""
        return index <= (self.total_segments or 0)


class StepWriter(msgspec.Struct, frozen=True):
    """Who changes a step, and when."""

    now_ms: int
    attempt: int | None = None
    """The attempt of the workflow that the caller works for; None is the current one."""


# --- decisions ------------------------------------------------------------------------------------


def started_step(
    steps: StoredSteps, name: StepName, writer: StepWriter, *, total: int | None
) -> StoredStep:
    """Return a step after its start, which may be repeated while it is in progress.

    Raises:
        StatusRefused: the workflow has ended, or another attempt has begun.
    """
    _check_writer(steps, name, writer, "in_progress")
    if steps.is_ended:
        raise StatusRefused(
            f"step {name!r} cannot start: workflow {steps.workflow!r} is {steps.status}; "
            "begin_again() processes it once more",
            current=steps.status,
            wanted="in_progress",
        )
    step = steps.steps[name]
    if step.status == "in_progress":
        return step if total is None else msgspec.structs.replace(step, total=total)
    return StoredStep(status="in_progress", label=step.label, started_ms=writer.now_ms, total=total)


def progressed_step(
    steps: StoredSteps, name: StepName, writer: StepWriter, *, done: int, total: int | None
) -> StoredStep:
    """Return a step of which more is done; late writers do not take anything back.

    Raises:
        StatusRefused: the step is not in progress, or another attempt has begun.
    """
    _check_writer(steps, name, writer, "in_progress")
    step = steps.steps[name]
    if step.status != "in_progress":
        raise _refused(steps, name, "in_progress")
    return msgspec.structs.replace(
        step, done=max(done, step.done), total=step.total if total is None else total
    )


def ended_step(
    steps: StoredSteps, name: StepName, writer: StepWriter, *, status: StepStatus, error: str | None
) -> StoredStep:
    """Return a step after its end, which may be repeated.

    Raises:
        StatusRefused: it ended in another way, or never started, or another attempt has begun.
        InvalidRequest: the status is not an end.
    """
    if status not in _ENDED:
        raise InvalidRequest(
            f"status must be one of {', '.join(_ENDED)}, got {status!r:.80}", field="status"
        )
    _check_writer(steps, name, writer, status)
    step = steps.steps[name]
    if step.status == status:
        return step
    if step.status in _ENDED or (step.status == "pending" and status == "completed"):
        raise _refused(steps, name, status)
    done = step.total if status == "completed" and step.total is not None else step.done
    return msgspec.structs.replace(
        step, status=status, ended_ms=writer.now_ms, error=error, done=done
    )


def _check_writer(
    steps: StoredSteps, name: StepName, writer: StepWriter, wanted: StepStatus
) -> None:
    if writer.attempt not in (None, steps.attempt):
        raise StatusRefused(
            f"workflow {steps.workflow!r} was begun again: it is at attempt {steps.attempt}, and "
            f"this change of step {name!r} is of attempt {writer.attempt}",
            current=steps.steps[name].status,
            wanted=wanted,
        )


def _refused(steps: StoredSteps, name: StepName, wanted: StepStatus) -> StatusRefused:
    current = steps.steps[name].status
    return StatusRefused(
        f"step {name!r} of workflow {steps.workflow!r} is {current} and cannot become {wanted}: "
        "start_step() starts it",
        current=current,
        wanted=wanted,
    )


# --- writes ---------------------------------------------------------------------------------------


def step_write(steps: StoredSteps, name: StepName, step: StoredStep, *, token: str) -> Update:
    """Return the write of one step, unless the step or the attempt was changed since it was read.

    A step starts only while its workflow has not ended.
    """
    stored = steps.stored.get(name)
    same = Absent(name) if stored is None else Equals(name, stored)
    conditions = [there(), Equals("attempt", steps.attempt), same]
    if step.status == "in_progress":
        conditions.append(Equals("status", steps.status))
    return Update(
        key=steps.key,
        set={name: step.as_item()},
        condition=AllOf(tuple(conditions)),
        token=token,
    )


def steps_of(item: Mapping[str, Any]) -> StoredSteps:
    """Return the steps in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        _, tenant, workflow = item["PK"].split("#")
        stored = {name: item[name] for name in STEPS if name in item}
        return StoredSteps(
            tenant=tenant,
            workflow=workflow,
            document=typed_attribute(item, "document", str),
            kind=msgspec.convert(item["kind"], DocumentKind),
            generation=typed_attribute(item, "generation", str),
            status=msgspec.convert(item["status"], WorkflowStatus),
            attempt=typed_attribute(item, "attempt", int),
            steps={name: msgspec.convert(stored.get(name, {}), StoredStep) for name in STEPS},
            stored=cast(dict[StepName, Any], stored),
            total_segments=msgspec.convert(item.get("total_segments"), int | None),
            expires_ms=msgspec.convert(item.get("expires_ms"), int | None),
        )
    except (*DECODE_ERRORS, msgspec.ValidationError) as error:
        raise damaged_item_error(item, "the steps of the workflow", error) from error
