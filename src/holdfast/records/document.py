"""The items of projects and of their documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.model.document import Document, DocumentKind, Project
from holdfast.records.blob_keys import document_blob_prefix
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.document_keys import (
    document_key,
    pointer_key,
    project_index_key,
    project_key,
)
from holdfast.records.lifetime import ttl_of
from holdfast.records.times import utc_datetime
from holdfast.storage import (
    Absent,
    AllOf,
    AnyOf,
    Check,
    Condition,
    Delete,
    Equals,
    Key,
    Less,
    Present,
    Put,
    TransactionWrite,
    Update,
)
from holdfast.storage.item import Item

__all__ = [
    "DAY_MS",
    "DocumentPointer",
    "StoredDocument",
    "StoredProject",
    "add_document_writes",
    "create_project_write",
    "document_expiry_ms",
    "document_of",
    "free",
    "has_expired",
    "is_there",
    "lifetime_attributes",
    "mark_document_writes",
    "mark_project_write",
    "pointer_of",
    "project_of",
    "remove_document_writes",
    "remove_project_write",
    "there",
    "update_project_write",
]

DAY_MS = 24 * 3600 * 1000
# DynamoDB deletes items up to two days after their ttl, and reads do not wait for it.
_TTL_DELAY_SECONDS = 2 * 24 * 3600


class StoredProject(msgspec.Struct, frozen=True, kw_only=True):
    """A project as it is stored."""

    tenant: str
    id: str
    name: str
    language: str = "en"
    document_prompt: str = ""
    ocr_model: str = "pp-ocrv5"
    pipeline: str = "documents"
    retention_days: int | None = None
    created_ms: int
    revision: int = 1

    @property
    def key(self) -> Key:
        return project_key(self.tenant, self.id)

    @property
    def data(self) -> dict[str, Any]:
        """What the attribute ``data`` of its item has."""
        data: dict[str, Any] = {
            "name": self.name,
            "language": self.language,
            "ocr_model": self.ocr_model,
            "pipeline": self.pipeline,
        }
        if self.document_prompt:
            data["document_prompt"] = self.document_prompt
        if self.retention_days is not None:
            data["retention_days"] = self.retention_days
        return data

    def is_like(self, other: StoredProject) -> bool:
        """Return whether both were created with the same values."""
        return (self.tenant, self.id, self.data) == (other.tenant, other.id, other.data)

    def shown(self) -> Project:
        """Return it as callers see it."""
        return Project(
            id=self.id,
            tenant=self.tenant,
            name=self.name,
            language=self.language,
            document_prompt=self.document_prompt,
            ocr_model=self.ocr_model,
            pipeline=self.pipeline,
            created_at=utc_datetime(self.created_ms),
            retention_days=self.retention_days,
        )


class DocumentPointer(msgspec.Struct, frozen=True, kw_only=True):
    """In which project a document is, and which generation of it."""

    tenant: str
    document: str
    project: str
    kind: DocumentKind
    generation: str
    is_deleting: bool

    @property
    def blob_prefix(self) -> str:
        """The prefix of the keys of all blobs of the document."""
        return document_blob_prefix(self.tenant, self.document, self.generation)

    @property
    def key(self) -> Key:
        return pointer_key(self.tenant, self.document)

    @property
    def document_key(self) -> Key:
        """The key of the item of the document."""
        return document_key(self.tenant, self.project, self.document)


class StoredDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document as it is stored."""

    tenant: str
    id: str
    project: str
    kind: DocumentKind
    file_uri: str
    file_name: str
    file_type: str
    file_bytes: int | None = None
    created_ms: int
    generation: str
    workflow: str | None = None
    expires_ms: int | None = None

    @property
    def key(self) -> Key:
        return document_key(self.tenant, self.project, self.id)

    @property
    def pointer(self) -> Key:
        """The key of its pointer."""
        return pointer_key(self.tenant, self.id)

    @property
    def data(self) -> dict[str, Any]:
        """What the attribute ``data`` of its item has."""
        data: dict[str, Any] = {
            "file_uri": self.file_uri,
            "file_name": self.file_name,
            "file_type": self.file_type,
        }
        if self.file_bytes is not None:
            data["file_bytes"] = self.file_bytes
        return data

    def expiring(self, expires_ms: int | None) -> StoredDocument:
        """Return the document with the end of its life."""
        return msgspec.structs.replace(self, expires_ms=expires_ms)

    def is_like(self, other: StoredDocument) -> bool:
        """Return whether both were added with the same values."""
        return (self.project, self.kind, self.data) == (other.project, other.kind, other.data)

    def shown(self) -> Document:
        """Return it as callers see it."""
        return Document(
            id=self.id,
            tenant=self.tenant,
            project=self.project,
            kind=self.kind,
            file_uri=self.file_uri,
            file_name=self.file_name,
            file_type=self.file_type,
            file_bytes=self.file_bytes,
            created_at=utc_datetime(self.created_ms),
            workflow=self.workflow,
            expires_at=None if self.expires_ms is None else utc_datetime(self.expires_ms),
        )


# --- lifetimes ------------------------------------------------------------------------------------


def document_expiry_ms(created_ms: int, retention_days: int | None) -> int | None:
    """Return when a document is deleted by itself: at the end of a day, so that counts can be."""
    if retention_days is None:
        return None
    return (created_ms // DAY_MS + retention_days + 1) * DAY_MS


def lifetime_attributes(expires_ms: int | None) -> dict[str, Any]:
    """Return what all items of a document say about its end."""
    if expires_ms is None:
        return {}
    return {"expires_ms": expires_ms, "ttl": ttl_of(expires_ms, _TTL_DELAY_SECONDS)}


def has_expired(item: Mapping[str, Any], now_ms: int) -> bool:
    """Return whether an item is past its end, although the store may not have deleted it yet."""
    expires_ms = item.get("expires_ms")
    return type(expires_ms) is int and expires_ms <= now_ms


def is_there(item: Mapping[str, Any] | None, now_ms: int) -> bool:
    """Return whether there is an item, and it neither has expired nor is being deleted."""
    return item is not None and "deleting_ms" not in item and not has_expired(item, now_ms)


def free(now_ms: int) -> Condition:
    """Return the condition that no item has the key, or only one that has expired."""
    return AnyOf((Absent("PK"), Less("expires_ms", now_ms + 1)))


def there() -> Condition:
    """Return the condition that an item exists and is not being deleted."""
    return AllOf((Present("PK"), Absent("deleting_ms")))


# --- projects -------------------------------------------------------------------------------------


def create_project_write(project: StoredProject, *, shards: int, token: str) -> Put:
    """Return the write that creates a project, unless the id is in use."""
    pk, sk = project_index_key(
        project.tenant, project.id, created_ms=project.created_ms, shards=shards
    )
    item: dict[str, Any] = {
        "PK": project.key.pk,
        "SK": project.key.sk,
        "GSI2PK": pk,
        "GSI2SK": sk,
        "data": project.data,
        "created_ms": project.created_ms,
        "revision": project.revision,
    }
    return Put(item, Absent("PK"), token)


def update_project_write(project: StoredProject, *, before: int, token: str) -> Update:
    """Return the write that changes a project, unless it was changed since it was read."""
    return Update(
        key=project.key,
        set={"data": project.data, "revision": project.revision},
        condition=AllOf((there(), Equals("revision", before))),
        token=token,
    )


def mark_project_write(tenant: str, id: str, *, now_ms: int, token: str) -> Update:
    """Return the write after which a project is being deleted, and is in no list."""
    return Update(
        key=project_key(tenant, id),
        set={"deleting_ms": now_ms},
        remove=("GSI2PK", "GSI2SK"),
        condition=Present("PK"),
        token=token,
    )


def remove_project_write(tenant: str, id: str) -> Delete:
    """Return the write that removes a project of which everything else is deleted."""
    return Delete(project_key(tenant, id), Present("deleting_ms"))


def project_of(item: Mapping[str, Any]) -> StoredProject:
    """Return the project in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        _, tenant, id = item["PK"].split("#")
        data = cast(Item, typed_attribute(item, "data", dict))
        return msgspec.convert(
            {
                **data,
                "tenant": tenant,
                "id": id,
                "created_ms": item["created_ms"],
                "revision": item["revision"],
            },
            StoredProject,
        )
    except (*DECODE_ERRORS, msgspec.ValidationError) as error:
        raise damaged_item_error(item, "the project", error) from error


# --- documents ------------------------------------------------------------------------------------


def add_document_writes(document: StoredDocument, *, token: str) -> list[TransactionWrite]:
    """Return the transaction that adds a document to a project that is not being deleted."""
    lifetime = lifetime_attributes(document.expires_ms)
    item: dict[str, Any] = {
        "PK": document.key.pk,
        "SK": document.key.sk,
        "kind": document.kind,
        "data": document.data,
        "created_ms": document.created_ms,
        "generation": document.generation,
        **lifetime,
    }
    pointer: dict[str, Any] = {
        "PK": document.pointer.pk,
        "SK": document.pointer.sk,
        "project": document.project,
        "kind": document.kind,
        "generation": document.generation,
        **lifetime,
    }
    return [
        Check(project_key(document.tenant, document.project), there()),
        Put(pointer, free(document.created_ms), token),
        Put(item, free(document.created_ms), token),
    ]


def mark_document_writes(
    pointer: DocumentPointer, *, now_ms: int, token: str
) -> list[TransactionWrite]:
    """Return the transaction after which a document is being deleted."""
    is_this_one = Equals("generation", pointer.generation)
    return [
        Update(key=key, set={"deleting_ms": now_ms}, condition=is_this_one, token=token)
        for key in (pointer.key, pointer.document_key)
    ]


def remove_document_writes(pointer: DocumentPointer) -> list[TransactionWrite]:
    """Return the transaction that removes a document of which everything else is deleted."""
    is_this_one = Equals("generation", pointer.generation)
    return [Delete(key, is_this_one) for key in (pointer.document_key, pointer.key)]


def pointer_of(item: Mapping[str, Any]) -> DocumentPointer:
    """Return the pointer in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        _, tenant, document = item["PK"].split("#")
        return DocumentPointer(
            tenant=tenant,
            document=document,
            project=typed_attribute(item, "project", str),
            kind=msgspec.convert(item["kind"], DocumentKind),
            generation=typed_attribute(item, "generation", str),
            is_deleting="deleting_ms" in item,
        )
    except (*DECODE_ERRORS, msgspec.ValidationError) as error:
        raise damaged_item_error(item, "the pointer to the document", error) from error


def document_of(item: Mapping[str, Any]) -> StoredDocument:
    """Return the document in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        _, tenant, project = item["PK"].split("#")
        values: dict[str, Any] = {
            **cast(Item, typed_attribute(item, "data", dict)),
            "tenant": tenant,
            "project": project,
            "id": item["SK"].removeprefix("DOC#"),
        }
        for name in ("kind", "created_ms", "generation", "workflow", "expires_ms"):
            if name in item:
                values[name] = item[name]
        return msgspec.convert(values, StoredDocument)
    except (*DECODE_ERRORS, msgspec.ValidationError) as error:
        raise damaged_item_error(item, "the document", error) from error
