"""The items of an upload: where it stands, and its parts.

``META`` says how many bytes are stored, and which request writes: a part counts only if that
request wrote the last one, too. A part is an item ``PART#{number:05}``, which the same transaction
writes. An upload that is not processed is in the index ``GSI1`` under the time at which a sweep
looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.upload import Upload, UploadStatus
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.document_file import FileKey, FilePart
from holdfast.records.keys import parsed_int
from holdfast.records.times import utc_datetime
from holdfast.storage import Absent, AllOf, Condition, Delete, Equals, Key, Prefix, Put, Update

__all__ = [
    "UPLOADS",
    "UPLOAD_PARTS",
    "StoredUpload",
    "begin_append_write",
    "close_upload_write",
    "create_upload_write",
    "due_upload_of",
    "part_writes",
    "postpone_upload_write",
    "remove_upload_writes",
    "store_file_write",
    "stored_upload_of",
    "upload_key",
    "upload_part_key",
    "upload_part_of",
]

UPLOADS = "UPLOADS"
"""The partition of the uploads that a sweep looks at, by their times."""
UPLOAD_PARTS = Prefix("PART#")
"""The range of the parts of an upload."""

_META = "META"
# A client that lost the last answer asks where the upload stands.
_KEPT_SECONDS = 24 * 3600
# What a sweep does not reach is deleted by the store.
_TTL_SECONDS = 30 * 24 * 3600
_RETRY_MS = 60_000


class StoredUpload(msgspec.Struct, frozen=True, kw_only=True):
    """What the item of an upload says."""

    id: str
    tenant: str
    project: str
    status: UploadStatus | str
    name: str
    file_type: str = ""
    length: int
    offset: int = 0
    parts: int = 0
    document: str
    generation: str
    """The generation of the document's place."""
    document_prefix: str
    file: str
    """The UUIDv7 of the file."""
    workflow: str
    source: str = ""
    again: bool = False
    """Whether it processes a document that exists."""
    uri: str = ""
    """The address of the stored file, once it is complete."""
    writer: str = ""
    """The request that continues it."""
    error: str = ""
    created_ms: int
    expires_ms: int
    due_ms: int = 0
    """When a sweep looks at it; 0 if never."""

    @property
    def file_key(self) -> FileKey:
        """The key of the file."""
        return FileKey(self.document, self.document_prefix, self.file)

    @property
    def is_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in ("processed", "rejected")

    def shown(self) -> Upload:
        """Return the upload as callers see it."""
        return Upload(
            id=self.id,
            tenant=self.tenant,
            project=self.project,
            status=_shown_status(self.status),
            name=self.name,
            file_type=self.file_type,
            length=self.length,
            offset=self.offset,
            document=self.document,
            workflow=self.workflow,
            source=self.source,
            error=self.error or None,
            created_at=utc_datetime(self.created_ms),
            expires_at=utc_datetime(self.expires_ms),
        )


def upload_key(tenant: str, id: str) -> Key:
    """Return the key of an upload."""
    return Key(f"UPLOAD#{tenant}#{id}", _META)


def upload_part_key(tenant: str, id: str, number: int) -> Key:
    """Return the key of a part of an upload."""
    return Key(f"UPLOAD#{tenant}#{id}", f"PART#{number:05d}")


def create_upload_write(upload: StoredUpload, *, token: str) -> Put:
    """Return the write of a new upload. It fails if the id is taken."""
    place = upload_key(upload.tenant, upload.id)
    values = {
        name: value
        for name, value in msgspec.structs.asdict(upload).items()
        # What is in the key, and what is empty, is not stored.
        if name not in ("id", "tenant") and value != "" and value is not False
    }
    item = {"PK": place.pk, "SK": place.sk, **_indexed(upload), **values}
    return Put({**item, "ttl": _ttl(upload.expires_ms)}, Absent("PK"), token)


def begin_append_write(upload: StoredUpload, *, writer: str) -> Update:
    """Return the write with which a request takes an upload over from all before it."""
    return Update(
        key=upload_key(upload.tenant, upload.id),
        set={"writer": writer},
        condition=_all(Equals("status", "open"), Equals("offset", upload.offset)),
        token=writer,
    )


def part_writes(
    upload: StoredUpload, part: FilePart, *, now_ms: int
) -> tuple[StoredUpload, list[Put | Update]]:
    """Return an upload after a part, and the transaction that adds the part."""
    offset = upload.offset + part.size
    is_last = offset == upload.length
    after = msgspec.structs.replace(
        upload,
        offset=offset,
        parts=upload.parts + 1,
        status="complete" if is_last else "open",
        due_ms=now_ms + _RETRY_MS if is_last else upload.due_ms,
    )
    place = upload_part_key(upload.tenant, upload.id, upload.parts)
    values = {"id": part.id, "size": part.size, "sha256": part.sha256}
    update = Update(
        key=upload_key(upload.tenant, upload.id),
        set={
            "offset": after.offset,
            "parts": after.parts,
            "status": after.status,
            "due_ms": after.due_ms,
            **_indexed(after),
        },
        condition=_all(
            Equals("status", "open"),
            Equals("offset", upload.offset),
            Equals("parts", upload.parts),
            Equals("writer", upload.writer),
        ),
    )
    put = Put({"PK": place.pk, "SK": place.sk, **values, "ttl": _ttl(upload.expires_ms)})
    return after, [update, put]


def store_file_write(upload: StoredUpload, *, uri: str, file_type: str, name: str) -> Update:
    """Return the write that notes where the complete file is stored."""
    return Update(
        key=upload_key(upload.tenant, upload.id),
        set={"uri": uri, "file_type": file_type, "name": name},
        condition=Equals("status", "complete"),
    )


def postpone_upload_write(upload: StoredUpload, *, now_ms: int) -> Update:
    """Return the write after which the next sweeps leave an upload alone for a while."""
    due_ms = now_ms + max(_RETRY_MS, min(now_ms - upload.created_ms, 3_600_000))
    after = msgspec.structs.replace(upload, due_ms=due_ms)
    return Update(
        key=upload_key(upload.tenant, upload.id),
        set={"due_ms": due_ms, **_indexed(after)},
        condition=_all(Equals("status", upload.status), Equals("due_ms", upload.due_ms)),
    )


def close_upload_write(
    upload: StoredUpload, status: str, *, now_ms: int, error: str = ""
) -> Update:
    """Return the write that ends an upload, or that begins to remove it (``removing``)."""
    removing = status == "removing"
    return Update(
        key=upload_key(upload.tenant, upload.id),
        set={
            "status": status,
            **({"error": error} if error else {}),
            **({} if removing else {"ttl": now_ms // 1000 + _KEPT_SECONDS}),
        },
        remove=() if removing else ("GSI1PK", "GSI1SK"),
        condition=Equals("status", upload.status),
    )


def remove_upload_writes(upload: StoredUpload, *, parts: int, meta: bool) -> list[Delete]:
    """Return the deletes of the parts of an upload, and of its item if ``meta`` is set."""
    deletes = [Delete(upload_part_key(upload.tenant, upload.id, each)) for each in range(parts)]
    return [*deletes, Delete(upload_key(upload.tenant, upload.id))] if meta else deletes


def due_upload_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the tenant and the id of an upload in the index.

    Raises:
        JournalDamaged: it is not the entry of an upload.
    """
    try:
        _, tenant, id = entry["GSI1SK"].split("#")
        return tenant, id
    except DECODE_ERRORS as error:
        raise damaged_item_error(entry, "an upload in the index", error) from error


def stored_upload_of(item: Mapping[str, Any]) -> StoredUpload:
    """Return the upload in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        _, tenant, id = item["PK"].split("#")
        known = {name: item[name] for name in StoredUpload.__struct_fields__ if name in item}
        return msgspec.convert({**known, "id": id, "tenant": tenant}, StoredUpload)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "an upload", error) from error


def upload_part_of(item: Mapping[str, Any]) -> tuple[int, FilePart]:
    """Return the number of a part of an upload, and the part.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        number = parsed_int(item["SK"].removeprefix("PART#"))
        size = typed_attribute(item, "size", int)
        return number, msgspec.convert([item["id"], size, item["sha256"]], FilePart)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "a part of an upload", error) from error


def _indexed(upload: StoredUpload) -> dict[str, str]:
    sk = f"{max(upload.due_ms, 0):013d}#{upload.tenant}#{upload.id}"
    return {"GSI1PK": UPLOADS, "GSI1SK": sk}


def _ttl(expires_ms: int) -> int:
    return expires_ms // 1000 + _TTL_SECONDS


def _shown_status(status: str) -> UploadStatus:
    return msgspec.convert("open" if status == "removing" else status, UploadStatus)


def _all(*conditions: Condition) -> Condition:
    return AllOf(conditions)
