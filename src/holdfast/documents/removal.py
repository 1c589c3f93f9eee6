"""Deletes documents and projects with everything that belongs to them.

A mark comes first. From then on nothing can be added, and nothing is shown. Each further write
leaves a state from which a second call continues, and the marked item goes last. Late writers are
refused: the steps and the segments of a workflow stay as empty items that no writer replaces, until
their ttl.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.documents.loading import CONFLICTS_MAX, DocumentStore, too_many_conflicts
from holdfast.documents.run_removal import remove_run
from holdfast.documents.search import SearchRemoval
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.errors import ConditionFailed, DocumentNotFound, JournalDamaged, ProjectNotFound
from holdfast.records.document import (
    DocumentPointer,
    mark_document_writes,
    mark_project_write,
    remove_document_writes,
    remove_project_write,
)
from holdfast.records.document_keys import (
    DOCUMENTS_OF_PROJECT,
    WORKFLOWS,
    connections_partition,
    document_pk,
    project_key,
    project_pk,
    segments_range,
    workflow_pk,
)
from holdfast.records.document_segment import segment_fence
from holdfast.records.document_workflow import (
    StoredWorkflow,
    mark_workflow_writes,
    workflow_of,
)
from holdfast.storage import Delete, Key, Put
from holdfast.storage.item import Item

__all__ = ["DocumentRemoval"]

_BATCH_ITEMS = 100


class DocumentRemoval:
    """Deletes documents and projects."""

    def __init__(
        self,
        store: DocumentStore,
        workers: LocalWorkers,
        search: Callable[[], SearchRemoval | None],
    ) -> None:
        self._store = store
        self._workers = workers
        self._search = search

    async def delete_project(self, tenant: str, project: str) -> None:
        """Delete a project with all its documents.

        Raises:
            ProjectNotFound: there is no such project.
        """
        store = self._store
        key = project_key(tenant, project)
        item = await store.items.get(key)
        if item is None:
            raise ProjectNotFound(f"tenant {tenant!r} has no project {project!r:.160}")
        if "deleting_ms" not in item:
            write = mark_project_write(
                tenant, project, now_ms=store.now_ms, token=store.kernel.ids.new()
            )
            try:
                await store.kernel.resolve_write(store.items, write)
            except ConditionFailed:
                return  # another call deleted it meanwhile
        pk = project_pk(tenant, project)
        async for entry in store.items.query_all(pk, DOCUMENTS_OF_PROJECT):
            await self._delete_entry(tenant, entry)
        # Of documents that expired: their own items end by themselves.
        await self._delete_all([item async for item in store.items.query_all(pk, WORKFLOWS)])
        try:
            await store.kernel.resolve_write(store.items, remove_project_write(tenant, project))
        except ConditionFailed:
            return

    async def delete_document(self, tenant: str, document: object) -> None:
        """Delete a document with everything that belongs to it.

        Raises:
            DocumentNotFound: there is no such document.
        """
        store = self._store
        pointer = await store.read_pointer(tenant, document, deleting=True)
        for _ in range(CONFLICTS_MAX):
            if pointer.is_deleting:
                return await self._delete_marked(pointer)
            token = store.kernel.ids.new()
            writes = mark_document_writes(pointer, now_ms=store.now_ms, token=token)
            if await store.transact(writes, token=token):
                return await self._delete_marked(pointer)
            pointer = await store.read_pointer(tenant, document, deleting=True)
        raise too_many_conflicts(f"document {document!r:.160}")

    async def _delete_entry(self, tenant: str, entry: Item) -> None:
        """Delete a document that the list of its project names."""
        document = entry["SK"].removeprefix("DOC#")
        try:
            await self.delete_document(tenant, document)
        except DocumentNotFound:
            # Its pointer has expired, and its own ttl is the same.
            await self._delete_all([entry])

    async def _delete_marked(self, pointer: DocumentPointer) -> None:
        """Delete what belongs to a document that nothing can be added to any more."""
        store, tenant = self._store, pointer.tenant
        pk = document_pk(pointer.kind, tenant, pointer.document)
        async for item in store.items.query_all(pk, WORKFLOWS):
            await self._delete_workflow(item)
        blobs = store.kernel.store
        if blobs.has_blobs:
            await store.kernel.retry_while_unavailable(
                lambda: blobs.blobs.with_purpose("document").delete_all(pointer.blob_prefix)
            )
        search = self._search()
        if search is not None:
            await search.remove(tenant, pointer.document)
        # If the condition fails, another call did the same.
        await store.transact(remove_document_writes(pointer), token="")

    # --- workflows --------------------------------------------------------------------------------

    async def _delete_workflow(self, item: Item) -> None:
        store = self._store
        marked = await self._mark_workflow(item)
        if marked is None:
            return
        tenant = marked.tenant
        for run in _runs_of(marked):
            await remove_run(store.kernel, self._workers, tenant, run)
        await self._fence_segments(marked)
        connections = connections_partition(tenant, marked.id)
        await self._delete_all([item async for item in store.items.query_all(connections)])
        await store.kernel.resolve_write(store.items, Delete(marked.key))

    async def _mark_workflow(self, item: Item) -> StoredWorkflow | None:
        """Take a workflow out of all lists, and stop its writers; None if it is gone."""
        store = self._store
        found: Item | None = item
        for _ in range(CONFLICTS_MAX):
            if found is None:
                return None
            try:
                workflow = workflow_of(found)
            except JournalDamaged as error:
                store.kernel.note_damage(found, error)
                await self._delete_all([found])
                return None
            if workflow.deleting_ms is not None:
                return workflow
            token = store.kernel.ids.new()
            writes = mark_workflow_writes(workflow, now_ms=store.now_ms, token=token)
            await store.transact(writes, token=token)
            found = await store.items.get(workflow.key)
        raise too_many_conflicts(f"workflow {item['SK']!r:.160}")

    async def _fence_segments(self, workflow: StoredWorkflow) -> None:
        """Empty all segments, also those that no writer has written yet.

        No writer stores a segment beyond the number of segments, which cannot change any more.
        """
        store = self._store
        since_ms = store.now_ms if workflow.deleting_ms is None else workflow.deleting_ms
        total = workflow.total_segments or 0
        for first in range(1, total + 1, _BATCH_ITEMS):
            last = min(first + _BATCH_ITEMS - 1, total)
            batch = [
                segment_fence(workflow.tenant, workflow.id, index, since_ms=since_ms)
                for index in range(first, last + 1)
            ]
            await self._write_all(batch)
        # Beyond it only another program can have written.
        pk = workflow_pk(workflow.tenant, workflow.id)
        stray = [item async for item in store.segments.query_all(pk, segments_range(total))]
        await self._delete_all(stray)

    async def _delete_all(self, items: list[Item]) -> None:
        for start in range(0, len(items), _BATCH_ITEMS):
            batch = items[start : start + _BATCH_ITEMS]
            await self._write_all([Delete(Key(item["PK"], item["SK"])) for item in batch])

    async def _write_all(self, writes: list[Put] | list[Delete]) -> None:
        """Carry out idempotent writes, some of which may have been carried out before."""
        store = self._store
        await store.kernel.retry_while_unavailable(lambda: store.segments.write_many(writes))


def _runs_of(workflow: StoredWorkflow) -> list[str]:
    """Return the runs that may have processed a workflow."""
    named = (workflow.id, f"doc-{workflow.id}", workflow.execution_arn, *workflow.executions)
    return [run for run in dict.fromkeys(named) if run is not None]
