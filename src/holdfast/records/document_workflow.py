"""The three items of a workflow of a document, and the changes of its status.

The status is in the item of the workflow, in the list of the project, and among the steps, where an
index sorts it. One transaction writes all three. Each has the number of the change, `revision`,
which every transaction requires and raises: so the three always agree.
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
    DocumentWorkflow,
    StepName,
    StepStatus,
    WorkflowStatus,
)
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.document import (
    DAY_MS,
    StoredDocument,
    free,
    lifetime_attributes,
    there,
)
from holdfast.records.document_keys import (
    ListedWorkflow,
    count_key,
    project_workflow_key,
    status_index_key,
    steps_key,
    workflow_key,
)
from holdfast.records.times import utc_datetime
from holdfast.storage import (
    AllOf,
    Delete,
    Equals,
    Key,
    Put,
    TransactionWrite,
    Update,
)
from holdfast.storage.item import Item

__all__ = [
    "FENCE_SECONDS",
    "NEXT_STATUSES",
    "ChangeRequest",
    "StoredWorkflow",
    "begin_writes",
    "begun_again",
    "begun_workflow",
    "change_writes",
    "changed_workflow",
    "counts_of",
    "fence_attributes",
    "mark_workflow_writes",
    "pending_step",
    "workflow_of",
]

NEXT_STATUSES: Mapping[WorkflowStatus, frozenset[WorkflowStatus]] = {
    "pending": frozenset({"in_progress", "failed"}),
    "in_progress": frozenset({"completed", "failed"}),
    "completed": frozenset(),
    "failed": frozenset(),
}
"""To which statuses a workflow may change; `begin_again` leads from an end to ``pending``."""

FENCE_SECONDS = 3 * 24 * 3600
"""How long deleted items refuse late writers: far longer than a write is retried."""


_EXECUTIONS_MAX = 8
_TOP_LEVEL = (
    "generation",
    "created_ms",
    "updated_ms",
    "revision",
    "attempt",
    "expires_ms",
    "deleting_ms",
)


class StoredWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow of a document as it is stored."""

    tenant: str
    id: str
    document: str
    kind: DocumentKind
    generation: str
    """That of the document."""
    project: str
    file_uri: str
    file_name: str
    file_type: str
    execution_arn: str | None = None
    executions: tuple[str, ...] = ()
    """The runs of earlier attempts, which a delete removes, too."""
    status: WorkflowStatus = "pending"
    total_segments: int | None = None
    preprocess: dict[str, StepStatus] = {}
    created_ms: int
    updated_ms: int
    error: str | None = None
    attempt: int = 1
    revision: int = 1
    expires_ms: int | None = None
    deleting_ms: int | None = None
    """Since when it is being deleted."""

    @property
    def key(self) -> Key:
        return workflow_key(self.kind, self.tenant, self.document, workflow=self.id)

    @property
    def in_project(self) -> Key:
        """The key of its entry in the list of the project."""
        return project_workflow_key(self.tenant, self.project, self.id)

    @property
    def steps(self) -> Key:
        """The key of its steps."""
        return steps_key(self.tenant, self.id)

    @property
    def counts(self) -> Key:
        """The key of the counts among which it is."""
        day = None if self.expires_ms is None else self.expires_ms // DAY_MS
        return count_key(self.tenant, self.id, day)

    @property
    def is_ended(self) -> bool:
        """Whether only `begin_again` leads on."""
        return not NEXT_STATUSES[self.status]

    @property
    def data(self) -> dict[str, Any]:
        """What the attribute ``data`` of its item has."""
        data: dict[str, Any] = {
            "project_id": self.project,
            "file_uri": self.file_uri,
            "file_name": self.file_name,
            "file_type": self.file_type,
            "status": self.status,
            "preprocess": dict(self.preprocess),
        }
        if self.executions:
            data["executions"] = list(self.executions)
        for name in ("execution_arn", "total_segments", "error"):
            if (value := getattr(self, name)) is not None:
                data[name] = value
        return data

    def index_key(self, shards: int) -> dict[str, str]:
        """Return its place in the index of statuses, as attributes of the item of its steps."""
        listed = ListedWorkflow(self.updated_ms, self.id, self.kind, self.document)
        pk, sk = status_index_key(self.tenant, self.status, listed, shards=shards)
        return {"GSI1PK": pk, "GSI1SK": sk}

    def shown(self) -> DocumentWorkflow:
        """Return it as callers see it."""
        return DocumentWorkflow(
            id=self.id,
            tenant=self.tenant,
            document=self.document,
            project=self.project,
            kind=self.kind,
            file_uri=self.file_uri,
            file_name=self.file_name,
            file_type=self.file_type,
            execution_arn=self.execution_arn,
            status=self.status,
            total_segments=self.total_segments,
            preprocess=dict(self.preprocess),
            created_at=utc_datetime(self.created_ms),
            updated_at=utc_datetime(self.updated_ms),
            error=self.error,
            attempt=self.attempt,
        )


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants to change in a workflow; None leaves a value as it is."""

    status: WorkflowStatus | None = None
    total_segments: int | None = None
    execution_arn: str | None = None
    preprocess: Mapping[str, StepStatus] = {}
    error: str | None = None
    attempt: int | None = None
    """The attempt that the caller works for; None is the current one."""


# --- decisions ------------------------------------------------------------------------------------


def begun_workflow(document: StoredDocument, id: str, *, now_ms: int) -> StoredWorkflow:
    """Return a new workflow of a document."""
    return StoredWorkflow(
        tenant=document.tenant,
        id=id,
        document=document.id,
        kind=document.kind,
        generation=document.generation,
        project=document.project,
        file_uri=document.file_uri,
        file_name=document.file_name,
        file_type=document.file_type,
        created_ms=now_ms,
        updated_ms=now_ms,
        expires_ms=document.expires_ms,
    )


def changed_workflow(
    workflow: StoredWorkflow, request: ChangeRequest, *, now_ms: int
) -> StoredWorkflow | None:
    """Return the workflow after a change; None if nothing changes.

    Raises:
        StatusRefused: the status does not permit the change, or another attempt has begun.
        InvalidRequest: the workflow had more segments before.
    """
    status = request.status or workflow.status
    if request.attempt not in (None, workflow.attempt):
        raise StatusRefused(
            f"workflow {workflow.id!r} was begun again: it is at attempt {workflow.attempt}, and "
            f"this change is of attempt {request.attempt}",
            current=workflow.status,
            wanted=status,
        )
    if status != workflow.status and status not in NEXT_STATUSES[workflow.status]:
        raise _refused(workflow, status)
    total = request.total_segments
    if total is not None and total < (workflow.total_segments or 0):
        raise InvalidRequest(
            f"total_segments must be at least {workflow.total_segments}, which it was before, "
            f"got {total}",
            field="total_segments",
        )
    changed = msgspec.structs.replace(
        _with_execution(workflow, request.execution_arn),
        status=status,
        total_segments=workflow.total_segments if total is None else total,
        preprocess={**workflow.preprocess, **request.preprocess},
        error=workflow.error if request.error is None else request.error,
    )
    if changed == workflow:
        return None
    if status == workflow.status and workflow.is_ended:
        raise _refused(workflow, status)
    return msgspec.structs.replace(
        changed,
        # Two changes in one millisecond, or a clock that was set back: the later one stays later.
        updated_ms=max(now_ms, workflow.updated_ms + 1)
        if status != workflow.status
        else workflow.updated_ms,
        revision=workflow.revision + 1,
    )


def _with_execution(workflow: StoredWorkflow, arn: str | None) -> StoredWorkflow:
    if arn is None or arn == workflow.execution_arn:
        return workflow
    earlier = [each for each in workflow.executions if each != arn]
    if workflow.execution_arn is not None:
        earlier.append(workflow.execution_arn)
    return msgspec.structs.replace(
        workflow, execution_arn=arn, executions=tuple(earlier[-_EXECUTIONS_MAX:])
    )


def begun_again(workflow: StoredWorkflow, *, now_ms: int) -> StoredWorkflow:
    """Return an ended workflow as it is processed once more.

    Raises:
        StatusRefused: it has not ended.
    """
    if not workflow.is_ended:
        raise _refused(workflow, "pending")
    return msgspec.structs.replace(
        workflow,
        status="pending",
        error=None,
        attempt=workflow.attempt + 1,
        updated_ms=max(now_ms, workflow.updated_ms + 1),
        revision=workflow.revision + 1,
    )


def _refused(workflow: StoredWorkflow, wanted: WorkflowStatus) -> StatusRefused:
    allowed = " or ".join(sorted(NEXT_STATUSES[workflow.status]))
    hint = f"it may become {allowed}" if allowed else "begin_again() processes it once more"
    what = "change any more" if wanted == workflow.status else f"become {wanted}"
    return StatusRefused(
        f"workflow {workflow.id!r} is {workflow.status} and cannot {what}: {hint}",
        current=workflow.status,
        wanted=wanted,
    )


# --- writes ---------------------------------------------------------------------------------------


def begin_writes(
    document: StoredDocument, workflow: StoredWorkflow, *, shards: int, token: str
) -> list[TransactionWrite]:
    """Return the transaction that begins a workflow of a document that is not being deleted."""
    lifetime = lifetime_attributes(workflow.expires_ms)
    is_free = free(workflow.created_ms)
    numbers = {"revision": workflow.revision, "attempt": workflow.attempt}
    facts: dict[str, Any] = {
        "document": workflow.document,
        "kind": workflow.kind,
        "project": workflow.project,
        "generation": workflow.generation,
    }
    item: dict[str, Any] = {
        "PK": workflow.key.pk,
        "SK": workflow.key.sk,
        "data": workflow.data,
        "generation": workflow.generation,
        "created_ms": workflow.created_ms,
        "updated_ms": workflow.updated_ms,
        **numbers,
        **lifetime,
    }
    entry: dict[str, Any] = {
        "PK": workflow.in_project.pk,
        "SK": workflow.in_project.sk,
        "data": _entry_data(workflow),
        "document": workflow.document,
        "kind": workflow.kind,
        **numbers,
        **lifetime,
    }
    steps: dict[str, Any] = {
        "PK": workflow.steps.pk,
        "SK": workflow.steps.sk,
        **workflow.index_key(shards),
        **facts,
        "status": workflow.status,
        **{step: pending_step(step) for step in STEPS},
        **numbers,
        **lifetime,
    }
    is_this_one = AllOf((there(), Equals("generation", document.generation)))
    return [
        Put(steps, is_free, token),
        Put(item, is_free, token),
        Put(entry, is_free, token),
        Update(key=document.key, set={"workflow": workflow.id}, condition=is_this_one, token=token),
        _count_write(workflow, {workflow.status: 1}, token=token),
    ]


def change_writes(
    before: StoredWorkflow,
    after: StoredWorkflow,
    *,
    shards: int,
    token: str,
    steps: tuple[StepName, ...] = (),
) -> list[TransactionWrite]:
    """Return the transaction that changes a workflow, unless it was changed since it was read.

    The named steps become pending again.
    """
    unchanged = AllOf((there(), Equals("revision", before.revision)))
    numbers = {"revision": after.revision, "attempt": after.attempt}
    moved = after.status != before.status
    in_steps: dict[str, Any] = {
        **numbers,
        **{step: pending_step(step) for step in steps},
    }
    if after.total_segments is not None:
        in_steps["total_segments"] = after.total_segments
    if moved:
        in_steps |= {"status": after.status, **after.index_key(shards)}
    writes: list[TransactionWrite] = [
        Update(key=after.steps, set=in_steps, condition=unchanged, token=token),
        Update(
            key=after.key,
            set={"data": after.data, "updated_ms": after.updated_ms, **numbers},
            condition=unchanged,
            token=token,
        ),
        Update(
            key=after.in_project,
            set={"data": _entry_data(after), **numbers},
            condition=unchanged,
            token=token,
        ),
    ]
    if moved:
        writes.append(_count_write(after, {before.status: -1, after.status: 1}, token=token))
    return writes


def mark_workflow_writes(
    workflow: StoredWorkflow, *, now_ms: int, token: str
) -> list[TransactionWrite]:
    """Return the transaction after which a workflow is being deleted.

    It is in no list and in no count any more, and the number of its segments is final. Its steps
    refuse late writers until their ttl, and keep the id from being used.
    """
    unchanged = AllOf((there(), Equals("revision", workflow.revision)))
    return [
        Update(
            key=workflow.steps,
            set={"deleting_ms": now_ms, **fence_attributes(now_ms)},
            remove=("GSI1PK", "GSI1SK", "status", "project", *STEPS),
            condition=unchanged,
            token=token,
        ),
        Update(key=workflow.key, set={"deleting_ms": now_ms}, condition=unchanged, token=token),
        Delete(workflow.in_project, unchanged),
        _count_write(workflow, {workflow.status: -1}, token=token),
    ]


def fence_attributes(now_ms: int) -> dict[str, Any]:
    """Return the end of an item that only refuses late writers."""
    expires_ms = now_ms + FENCE_SECONDS * 1000
    return {"expires_ms": expires_ms, "ttl": -(-expires_ms // 1000)}


def pending_step(step: StepName) -> dict[str, Any]:
    """Return the attribute of a step that has not started."""
    return {"status": "pending", "label": STEP_LABELS[step]}


def _entry_data(workflow: StoredWorkflow) -> dict[str, Any]:
    return {"file_name": workflow.file_name, "status": workflow.status}


def _count_write(
    workflow: StoredWorkflow, changes: Mapping[WorkflowStatus, int], *, token: str
) -> Update:
    return Update(
        key=workflow.counts,
        add={str(status): change for status, change in changes.items()},
        set=lifetime_attributes(workflow.expires_ms),
        token=token,
    )


# --- reading --------------------------------------------------------------------------------------


def workflow_of(item: Mapping[str, Any]) -> StoredWorkflow:
    """Return the workflow in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        kind, tenant, document = item["PK"].split("#")
        data = dict(cast(Item, typed_attribute(item, "data", dict)))
        values: dict[str, Any] = {
            **data,
            "project": data["project_id"],
            "tenant": tenant,
            "document": document,
            "kind": kind,
            "id": item["SK"].removeprefix("WF#"),
        }
        values |= {name: item[name] for name in _TOP_LEVEL if name in item}
        return msgspec.convert(values, StoredWorkflow)
    except (*DECODE_ERRORS, msgspec.ValidationError) as error:
        raise damaged_item_error(item, "the workflow", error) from error


def counts_of(item: Mapping[str, Any]) -> dict[WorkflowStatus, int]:
    """Return the counts in an item, by status.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        return {
            status: typed_attribute(item, status, int) if status in item else 0
            for status in NEXT_STATUSES
        }
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the counts of workflows", error) from error
