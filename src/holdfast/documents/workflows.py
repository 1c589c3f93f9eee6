"""Begins the workflows of documents, changes their status, and lists them."""

from __future__ import annotations

import re
from collections import Counter

from holdfast.documents.listing import IndexList, list_page, read_known, validated_cursor
from holdfast.documents.loading import (
    CONFLICTS_MAX,
    DocumentStore,
    too_many_conflicts,
)
from holdfast.errors import DocumentWorkflowNotFound, IdTaken, JournalDamaged
from holdfast.model.document import (
    WORKFLOW_STATUSES,
    DocumentWorkflow,
    DocumentWorkflowPage,
    StepName,
    WorkflowStatus,
)
from holdfast.records.document import has_expired, is_there
from holdfast.records.document_keys import (
    WORKFLOWS,
    counts_partition,
    document_pk,
    listed_workflow,
    project_pk,
    status_partition,
    steps_key,
    workflow_key,
)
from holdfast.records.document_workflow import (
    ChangeRequest,
    StoredWorkflow,
    begin_writes,
    begun_again,
    begun_workflow,
    change_writes,
    changed_workflow,
    counts_of,
    workflow_of,
)
from holdfast.storage import Key
from holdfast.storage.item import Item

__all__ = ["DocumentWorkflows"]

# Since when it has its status, its id, and its document.
_CURSOR = re.compile(r"[0-9]{13}#[^#\x00-\x1f]{1,128}#(DOC|WEB)#[^#\x00-\x1f]{1,128}")


class DocumentWorkflows:
    """The workflows of all documents."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store

    async def begin(self, tenant: str, document: object, id: str) -> DocumentWorkflow:
        """Begin a workflow, or return it if it was begun for this document before.

        Raises:
            DocumentNotFound: there is no such document.
            IdTaken: the id is that of a workflow of another document, or of one deleted lately.
        """
        store = self._store
        for _ in range(CONFLICTS_MAX):
            known = await self._known(tenant, id)
            if known is not None:
                if known.document != document:
                    raise _taken(tenant, id)
                return known.shown()
            owner = await store.read_document(tenant, document)
            workflow = begun_workflow(owner, id, now_ms=store.now_ms)
            token = store.kernel.ids.new()
            shards = (await store.kernel.get_settings()).list_shards
            writes = begin_writes(owner, workflow, shards=shards, token=token)
            if await store.transact(writes, token=token):
                return workflow.shown()
            if await self._is_fenced(tenant, id):
                raise _taken(tenant, id)
        raise too_many_conflicts(f"document {document!r:.160}")

    async def begin_again(
        self, tenant: str, id: object, steps: tuple[StepName, ...]
    ) -> DocumentWorkflow:
        """Let an ended workflow be processed once more.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow.
            StatusRefused: it has not ended.
        """
        store = self._store
        for _ in range(CONFLICTS_MAX):
            before = await store.read_workflow(tenant, id)
            after = begun_again(before, now_ms=store.now_ms)
            if await self._change(before, after, steps=steps):
                return after.shown()
        raise too_many_conflicts(f"workflow {id!r:.160}")

    async def change(self, tenant: str, id: object, request: ChangeRequest) -> DocumentWorkflow:
        """Change the status or the facts of a workflow, and return it.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow.
            StatusRefused: its status does not permit the change, or it was begun again.
            InvalidRequest: it had more segments before.
        """
        store = self._store
        attempt = request.attempt
        for _ in range(CONFLICTS_MAX):
            before = await store.read_workflow(tenant, id)
            if attempt is None:
                # From here on: this call must not change an attempt that begins meanwhile.
                attempt = before.attempt
            pinned = ChangeRequest(
                status=request.status,
                total_segments=request.total_segments,
                execution_arn=request.execution_arn,
                preprocess=request.preprocess,
                error=request.error,
                attempt=attempt,
            )
            after = changed_workflow(before, pinned, now_ms=store.now_ms)
            if after is None:
                return before.shown()
            if await self._change(before, after):
                return after.shown()
        raise too_many_conflicts(f"workflow {id!r:.160}")

    async def of_document(
        self, tenant: str, document: object, *, limit: int, cursor: str | None
    ) -> DocumentWorkflowPage:
        """Return a page of the workflows of a document.

        Raises:
            DocumentNotFound: there is no such document.
        """
        store = self._store
        pointer = await store.read_pointer(tenant, document)
        page = await store.items.query(
            document_pk(pointer.kind, tenant, pointer.document),
            WORKFLOWS,
            limit=limit,
            cursor=cursor,
        )
        return DocumentWorkflowPage(self._shown(page.items, pointer.generation), page.cursor)

    async def of_project(
        self, tenant: str, project: object, *, limit: int, cursor: str | None
    ) -> DocumentWorkflowPage:
        """Return a page of the workflows of a project.

        Raises:
            ProjectNotFound: there is no such project.
        """
        store = self._store
        found = await store.read_project(tenant, project)
        page = await store.items.query(
            project_pk(tenant, found.id), WORKFLOWS, limit=limit, cursor=cursor
        )
        keys: list[Key] = []
        for item in page.items:
            try:
                id = item["SK"].removeprefix("WF#")
                keys.append(workflow_key(item["kind"], tenant, item["document"], workflow=id))
            except KeyError as error:
                store.kernel.note_damage(item, error)
        items: list[Item] = []
        for start in range(0, len(keys), 100):
            items += await read_known(store, keys[start : start + 100])
        return DocumentWorkflowPage(self._shown(items), page.cursor)

    async def with_status(
        self, tenant: str, status: WorkflowStatus, *, limit: int, cursor: str | None
    ) -> DocumentWorkflowPage:
        """Return a page of the tenant's workflows that have a status, the newest change first.

        Raises:
            InvalidQuery: the cursor is not one of such a list.
        """
        store = self._store
        after = validated_cursor(cursor, _CURSOR, "workflows")
        shards = (await store.kernel.get_settings()).list_shards

        def key(position: str) -> Key:
            return listed_workflow(position).key(tenant)

        def shown(item: Item) -> DocumentWorkflow | None:
            workflow = workflow_of(item)
            return workflow.shown() if workflow.status == status else None

        partitions = tuple(status_partition(tenant, status, shard) for shard in range(shards))
        source = IndexList("GSI1", partitions, key, shown)
        found, following = await list_page(store, source, limit=limit, cursor=after)
        return DocumentWorkflowPage(found, following)

    async def counts(self, tenant: str) -> dict[WorkflowStatus, int]:
        """Return how many workflows of the tenant have which status."""
        store = self._store
        totals: Counter[WorkflowStatus] = Counter(dict.fromkeys(WORKFLOW_STATUSES, 0))
        async for item in store.items.query_all(counts_partition(tenant)):
            if has_expired(item, store.now_ms):
                continue
            try:
                totals.update(counts_of(item))
            except JournalDamaged as error:
                store.kernel.note_damage(item, error)
        return dict(totals)

    def _shown(self, items: list[Item], generation: str | None = None) -> list[DocumentWorkflow]:
        """Return the workflows in items; damaged ones are left out, and noted."""
        now_ms = self._store.now_ms
        shown: list[DocumentWorkflow] = []
        for item in items:
            if not is_there(item, now_ms):
                continue
            try:
                workflow = workflow_of(item)
            except JournalDamaged as error:
                self._store.kernel.note_damage(item, error)
            else:
                if generation in (None, workflow.generation):
                    shown.append(workflow.shown())
        return shown

    async def _change(
        self, before: StoredWorkflow, after: StoredWorkflow, *, steps: tuple[StepName, ...] = ()
    ) -> bool:
        store = self._store
        token = store.kernel.ids.new()
        shards = (await store.kernel.get_settings()).list_shards
        writes = change_writes(before, after, shards=shards, token=token, steps=steps)
        return await store.transact(writes, token=token)

    async def _known(self, tenant: str, id: str) -> StoredWorkflow | None:
        try:
            return await self._store.read_workflow(tenant, id)
        except DocumentWorkflowNotFound:
            return None

    async def _is_fenced(self, tenant: str, id: str) -> bool:
        """Return whether a workflow with this id was deleted lately, or is being deleted."""
        item = await self._store.items.get(steps_key(tenant, id))
        return (
            item is not None and "deleting_ms" in item and not has_expired(item, self._store.now_ms)
        )


def _taken(tenant: str, id: str) -> IdTaken:
    return IdTaken(
        f"tenant {tenant!r} has, or had until lately, another workflow {id!r:.160}: choose another "
        "id"
    )
