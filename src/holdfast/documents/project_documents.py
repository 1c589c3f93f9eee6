"""Adds documents to projects, and lists them."""

from __future__ import annotations

from holdfast.documents.loading import CONFLICTS_MAX, DocumentStore, too_many_conflicts
from holdfast.errors import DocumentNotFound, IdTaken, JournalDamaged
from holdfast.model.document import Document, DocumentPage, DocumentPlace
from holdfast.records.blob_keys import document_blob_prefix
from holdfast.records.document import (
    StoredDocument,
    add_document_writes,
    document_expiry_ms,
    document_of,
    has_expired,
    is_there,
)
from holdfast.records.document_keys import DOCUMENTS_OF_PROJECT, pointer_key, project_pk

__all__ = ["ProjectDocuments"]


class ProjectDocuments:
    """The documents of all projects."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store

    def place(self, tenant: str, id: str | None) -> DocumentPlace:
        """Return where the blobs of a new document go."""
        ids = self._store.kernel.ids
        document, generation = id or ids.new(), ids.new()
        return DocumentPlace(
            document, generation, document_blob_prefix(tenant, document, generation)
        )

    async def add(self, document: StoredDocument) -> Document:
        """Add a document, or return it if it was added with the same values before.

        Raises:
            ProjectNotFound: there is no such project.
            IdTaken: the id is that of another document, or of one being deleted.
        """
        store = self._store
        for _ in range(CONFLICTS_MAX):
            project = await store.read_project(document.tenant, document.project)
            known = await self._known(document)
            if known is not None:
                return known.shown()
            expires_ms = document_expiry_ms(document.created_ms, project.retention_days)
            added = document.expiring(expires_ms)
            token = store.kernel.ids.new()
            if await store.transact(add_document_writes(added, token=token), token=token):
                return added.shown()
        raise too_many_conflicts(f"document {document.id!r:.160}")

    async def page(
        self, tenant: str, project: object, *, limit: int, cursor: str | None
    ) -> DocumentPage:
        """Return a page of the documents of a project; damaged ones are left out, and noted.

        Raises:
            ProjectNotFound: there is no such project.
        """
        store = self._store
        found = await store.read_project(tenant, project)
        page = await store.items.query(
            project_pk(tenant, found.id), DOCUMENTS_OF_PROJECT, limit=limit, cursor=cursor
        )
        documents: list[Document] = []
        for item in page.items:
            if not is_there(item, store.now_ms):
                continue
            try:
                documents.append(document_of(item).shown())
            except JournalDamaged as error:
                store.kernel.note_damage(item, error)
        return DocumentPage(documents, page.cursor)

    async def _known(self, document: StoredDocument) -> StoredDocument | None:
        """Return the document that was added before with the same id and values.

        Raises:
            IdTaken: the document with this id has other values, or is being deleted.
        """
        store, tenant = self._store, document.tenant
        item = await store.items.get(pointer_key(tenant, document.id))
        if item is None or has_expired(item, store.now_ms):
            return None
        try:
            known = await store.read_document(tenant, document.id)
        except DocumentNotFound:
            raise IdTaken(
                f"document {document.id!r:.160} of tenant {tenant!r} is being deleted: choose "
                "another id, or call delete() again to finish it"
            ) from None
        if not known.is_like(document):
            raise IdTaken(
                f"tenant {tenant!r} has another document {document.id!r:.160}: choose another id"
            )
        return known
