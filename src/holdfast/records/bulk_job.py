"""The item of a bulk job: what it does, how far it is, and which server carries it out.

Key: ``BULK#{tenant}`` and the job's id, a UUIDv7, so that the partition lists jobs by age. A job
that has not ended is in the due index under ``BULKS``, at the time at which its lease ends. A
server claims it from then on: the write compares the index key, so only one server succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from holdfast.model.progress import BulkProgress
from holdfast.model.service import BulkJob, BulkRequest, BulkStatus
from holdfast.records.codec import pack, unpack_value
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.keys import bulk_key, parsed_int
from holdfast.records.times import utc_datetime
from holdfast.storage import Absent, AllOf, AnyOf, Equals, Key, Put, Update

__all__ = [
    "BULKS",
    "bulk_job_of",
    "cancel_bulk_write",
    "claim_bulk_write",
    "create_bulk_write",
    "due_bulk_job",
    "end_bulk_write",
    "progress_bulk_write",
]

BULKS = "BULKS"
"""The partition of the due index with the jobs that have not ended."""
_KEPT_SECONDS = 30 * 24 * 3600


def create_bulk_write(
    tenant: str, id: str, request: BulkRequest, *, now_ms: int, token: str
) -> Put:
    """Return the write of a new job. It can be claimed at once."""
    key = bulk_key(tenant, id)
    item: dict[str, Any] = {
        "PK": key.pk,
        "SK": key.sk,
        "status": "pending",
        "request": pack(request),
        "progress": pack(BulkProgress()),
        "created_ms": now_ms,
        **_due(tenant, id, now_ms),
        **_written(now_ms),
    }
    return Put(item, Absent("PK"), token)


def claim_bulk_write(
    tenant: str, id: str, *, due_ms: int, owner: str, now_ms: int, expires_ms: int, token: str
) -> Update:
    """Return the write by which a server claims a job that is due. Only one server succeeds."""
    return Update(
        key=bulk_key(tenant, id),
        set={
            "status": "running",
            "owner": owner,
            **_due(tenant, id, expires_ms),
            **_written(now_ms),
        },
        condition=Equals("GSI1SK", _due(tenant, id, due_ms)["GSI1SK"]),
        token=token,
    )


def progress_bulk_write(
    tenant: str,
    id: str,
    progress: BulkProgress,
    *,
    owner: str,
    now_ms: int,
    expires_ms: int,
    token: str,
) -> Update:
    """Return the write after a page of runs: it saves the cursor, and renews the lease.

    It fails if the job was cancelled, or if another server has claimed it.
    """
    return Update(
        key=bulk_key(tenant, id),
        set={"progress": pack(progress), **_due(tenant, id, expires_ms), **_written(now_ms)},
        condition=_owned_by(owner),
        token=token,
    )


def end_bulk_write(
    tenant: str,
    id: str,
    status: BulkStatus,
    *,
    progress: BulkProgress,
    error: str | None,
    owner: str,
    now_ms: int,
    token: str,
) -> Update:
    """Return the write at the end of a job; it fails as `progress_bulk_write` does."""
    changes: dict[str, Any] = {"status": status, "progress": pack(progress), **_written(now_ms)}
    if error is not None:
        changes["error"] = error
    return Update(
        key=bulk_key(tenant, id),
        set=changes,
        remove=("GSI1PK", "GSI1SK", "owner"),
        condition=_owned_by(owner),
        token=token,
    )


def cancel_bulk_write(tenant: str, id: str, *, now_ms: int, token: str) -> Update:
    """Return the write that cancels a job which has not ended. Its server stops at its next write.

    What that server has done since its last write is not counted.
    """
    return Update(
        key=bulk_key(tenant, id),
        set={"status": "cancelled", **_written(now_ms)},
        remove=("GSI1PK", "GSI1SK", "owner"),
        condition=AnyOf((Equals("status", "pending"), Equals("status", "running"))),
        token=token,
    )


def bulk_job_of(item: Mapping[str, Any]) -> BulkJob:
    """Return the job of an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        request = msgspec.convert(
            unpack_value(typed_attribute(item, "request", bytes)), BulkRequest
        )
        progress = unpack_value(typed_attribute(item, "progress", bytes))
        status = typed_attribute(item, "status", str)
        if status not in get_args(BulkStatus):
            raise ValueError(f"status {status!r:.40}")
        return BulkJob(
            id=typed_attribute(item, "SK", str),
            tenant=typed_attribute(item, "PK", str).partition("#")[2],
            action=request.action,
            status=status,
            filter=request.filter,
            reason=request.reason,
            keep_answers=request.keep_answers,
            limit=request.limit,
            dry_run=request.dry_run,
            everything=request.everything,
            progress=msgspec.convert(progress, BulkProgress),
            created_at=utc_datetime(typed_attribute(item, "created_ms", int)),
            updated_at=utc_datetime(typed_attribute(item, "updated_ms", int)),
            error=msgspec.convert(item.get("error"), str | None),
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the bulk job", error) from error


def due_bulk_job(entry: Mapping[str, Any]) -> tuple[int, Key]:
    """Return when a job is due, and its key, from its entry in the due index.

    Raises:
        JournalDamaged: the entry cannot be read.
    """
    try:
        due, tenant, id = typed_attribute(entry, "GSI1SK", str).split("#")
        return parsed_int(due), bulk_key(tenant, id)
    except DECODE_ERRORS as error:
        raise damaged_item_error(entry, "the entry of a bulk job", error) from error


def _due(tenant: str, id: str, due_ms: int) -> dict[str, str]:
    return {"GSI1PK": BULKS, "GSI1SK": f"{due_ms:013d}#{tenant}#{id}"}


def _written(now_ms: int) -> dict[str, int]:
    return {"updated_ms": now_ms, "ttl": now_ms // 1000 + _KEPT_SECONDS}


def _owned_by(owner: str) -> AllOf:
    return AllOf((Equals("status", "running"), Equals("owner", owner)))
