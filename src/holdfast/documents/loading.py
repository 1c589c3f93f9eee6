"""Reads documents and their workflows, and carries out transactions on them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    DocumentNotFound,
    DocumentWorkflowNotFound,
    ProjectNotFound,
    Throttled,
    TransactionCancelled,
)
from holdfast.model.names import validated_name, validated_tenant
from holdfast.records.document import (
    DocumentPointer,
    StoredDocument,
    StoredProject,
    document_of,
    has_expired,
    is_there,
    pointer_of,
    project_of,
)
from holdfast.records.document_keys import pointer_key, project_key, steps_key
from holdfast.records.document_step import StoredSteps, steps_of
from holdfast.records.document_workflow import StoredWorkflow, workflow_of
from holdfast.storage import TransactionWrite
from holdfast.storage.layout import TOKEN

__all__ = ["CONFLICTS_MAX", "DocumentStore", "too_many_conflicts"]

CONFLICTS_MAX = 50
"""So often a write is decided anew because another one came first."""


class DocumentStore:
    """The items of documents of all tenants."""

    def __init__(self, kernel: Kernel, tenant: str) -> None:
        self.kernel = kernel
        self.items = kernel.store.records("document")
        self.segments = kernel.store.records("segment")
        self._tenant = tenant

    @property
    def now_ms(self) -> int:
        """The time by the clock of this instance."""
        return self.kernel.clock.now_ms()

    def tenant_or_default(self, tenant: str | None) -> str:
        """Return the tenant of a call.

        Raises:
            InvalidName: the name is invalid.
        """
        return self._tenant if tenant is None else validated_tenant(tenant)

    async def read_project(self, tenant: str, id: object) -> StoredProject:
        """Return a project.

        Raises:
            ProjectNotFound: there is none, or it is being deleted.
        """
        item = await self.items.get(project_key(tenant, validated_name(id, "project")))
        if item is None or not is_there(item, self.now_ms):
            raise ProjectNotFound(f"tenant {tenant!r} has no project {id!r:.160}")
        return project_of(item)

    async def read_pointer(
        self, tenant: str, id: object, *, deleting: bool = False
    ) -> DocumentPointer:
        """Return the pointer to a document; with ``deleting``, also of one that is being deleted.

        Raises:
            DocumentNotFound: there is none.
        """
        item = await self.items.get(pointer_key(tenant, validated_name(id, "document")))
        if item is None or has_expired(item, self.now_ms):
            raise document_not_found(tenant, id)
        pointer = pointer_of(item)
        if pointer.is_deleting and not deleting:
            raise document_not_found(tenant, id)
        return pointer

    async def read_document(self, tenant: str, id: object) -> StoredDocument:
        """Return a document.

        Raises:
            DocumentNotFound: there is none, or it is being deleted.
        """
        pointer = await self.read_pointer(tenant, id)
        item = await self.items.get(pointer.document_key)
        if item is None or not is_there(item, self.now_ms):
            raise document_not_found(tenant, id)
        return document_of(item)

    async def read_steps(self, tenant: str, workflow: object) -> StoredSteps:
        """Return the steps of a workflow.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow, or it is being deleted.
        """
        item = await self.items.get(steps_key(tenant, validated_name(workflow, "workflow")))
        if item is None or not is_there(item, self.now_ms):
            raise workflow_not_found(tenant, workflow)
        return steps_of(item)

    async def read_workflow(self, tenant: str, id: object) -> StoredWorkflow:
        """Return a workflow.

        Raises:
            DocumentWorkflowNotFound: there is none, or it is being deleted.
        """
        steps = await self.read_steps(tenant, id)
        item = await self.items.get(steps.workflow_key)
        if item is None or not is_there(item, self.now_ms):
            raise workflow_not_found(tenant, id)
        return workflow_of(item)

    async def transact(self, writes: Sequence[TransactionWrite], *, token: str) -> bool:
        """Carry out a transaction; return False if a condition did not hold.

        Raises:
            StoreUnavailable, StoreUnusable, OutcomeUnknown: it is not known whether it was
                carried out.
        """
        try:
            await self.kernel.resolve_transaction(self.items, writes)
        except TransactionCancelled as cancelled:
            if any(item.get(TOKEN) == token for item in cancelled.items.values()):
                return True  # an earlier attempt was carried out, and its answer was lost
            if not cancelled.failed:
                raise too_many_conflicts("the transaction") from cancelled
            return False
        return True


def document_not_found(tenant: str, id: object) -> DocumentNotFound:
    """Return the error for a document that is not there."""
    return DocumentNotFound(f"tenant {tenant!r} has no document {id!r:.160}")


def workflow_not_found(tenant: str, id: object) -> DocumentWorkflowNotFound:
    """Return the error for a workflow that is not there."""
    return DocumentWorkflowNotFound(f"tenant {tenant!r} has no workflow {id!r:.160} of a document")


def too_many_conflicts(what: str) -> Throttled:
    """Return the error for a write that lost to other writers again and again."""
    return Throttled(f"too many writers change {what} at the same time; try again later")
