"""The row of a worker: its lease, and the progress of reaping it when it is dead.

A dead worker stays under ``WORKERS`` in the index until all of its runs are re-queued, and then
under ``REAPED`` for a day. Its row is not written again; see `records.reaping`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import worker_key
from holdfast.storage import Absent, AllOf, Delete, Equals, Put, Update

__all__ = [
    "begin_reap_write",
    "continue_reap_write",
    "deregister_write",
    "finish_reap_write",
    "heartbeat_write",
    "register_write",
]

_KEPT_SECONDS = 2 * 24 * 3600


def register_write(
    worker: str,
    *,
    lease_ms: int,
    expires_ms: int,
    now_ms: int,
    details: Mapping[str, Any],
    token: str,
) -> Put:
    """Return the write that registers a worker."""
    index_key = IndexKey.worker(worker, expires_ms)
    key = worker_key(worker)
    item: dict[str, Any] = {
        "PK": key.pk,
        "SK": key.sk,
        "GSI1PK": index_key.pk,
        "GSI1SK": index_key.sk,
        "since_ms": now_ms,
        "lease_ms": lease_ms,
        "ttl": expires_ms // 1000 + _KEPT_SECONDS,
        **details,
    }
    return Put(item, Absent("PK"), token)


def heartbeat_write(worker: str, *, last_expires_ms: int, expires_ms: int, token: str) -> Update:
    """Return the write that renews a lease. It fails if another worker has started to reap it."""
    return Update(
        key=worker_key(worker),
        set=_index_attributes(IndexKey.worker(worker, expires_ms), expires_ms),
        condition=AllOf((*_at_index_key(worker, last_expires_ms), Absent("buried_ms"))),
        token=token,
    )


def begin_reap_write(
    worker: str, *, lapsed_ms: int, now_ms: int, next_ms: int, token: str
) -> Update:
    """Return the write that starts to reap a dead worker. Only one reaper succeeds.

    If it does not finish, another worker continues at ``next_ms``.
    """
    return Update(
        key=worker_key(worker),
        set={"buried_ms": now_ms, **_index_attributes(IndexKey.worker(worker, next_ms), next_ms)},
        condition=AllOf((*_at_index_key(worker, lapsed_ms), Absent("buried_ms"))),
        token=token,
    )


def continue_reap_write(worker: str, *, due_ms: int, next_ms: int, token: str) -> Update:
    """Return the write by which another worker continues to reap. Only one succeeds."""
    return Update(
        key=worker_key(worker),
        set=_index_attributes(IndexKey.worker(worker, next_ms), next_ms),
        condition=AllOf(_at_index_key(worker, due_ms)),
        token=token,
    )


def finish_reap_write(worker: str, *, due_ms: int, now_ms: int, token: str) -> Update:
    """Return the write after all runs of a dead worker are re-queued."""
    return Update(
        key=worker_key(worker),
        set=_index_attributes(IndexKey.reaped_worker(worker, now_ms), now_ms),
        condition=AllOf(_at_index_key(worker, due_ms)),
        token=token,
    )


def deregister_write(worker: str, *, due_ms: int) -> Delete:
    """Return the write that deletes the row of a worker that owns no runs."""
    return Delete(worker_key(worker), AllOf(_at_index_key(worker, due_ms)))


def _index_attributes(index_key: IndexKey, due_ms: int) -> dict[str, Any]:
    return {"GSI1PK": index_key.pk, "GSI1SK": index_key.sk, "ttl": due_ms // 1000 + _KEPT_SECONDS}


def _at_index_key(worker: str, due_ms: int) -> tuple[Equals, ...]:
    index_key = IndexKey.worker(worker, due_ms)
    return (Equals("GSI1PK", index_key.pk), Equals("GSI1SK", index_key.sk))
