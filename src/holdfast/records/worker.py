"""The row of a worker: its lease, and the progress of reaping it when it is dead.

A dead worker stays under ``WORKERS`` in the index until all of its runs are re-queued, and then
under ``REAPED`` for a day. Its row is not written again; see `records.reaping`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.index_keys import REAPED, IndexKey
from holdfast.records.keys import parsed_int, worker_key
from holdfast.storage import Absent, AllOf, Delete, Equals, Put, Update

__all__ = [
    "Offer",
    "WorkerRow",
    "begin_reap_write",
    "continue_reap_write",
    "deregister_write",
    "finish_reap_write",
    "heartbeat_write",
    "offer_attributes",
    "register_write",
    "worker_row_of",
]

_KEPT_SECONDS = 2 * 24 * 3600
# A heartbeat writes the whole row: with these limits it stays below the 1,024 bytes of one unit.
_POOLS_BYTES_MAX = 128
_GRAPHS_BYTES_MAX = 320


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker can do, as its row says it."""

    graphs: dict[str, tuple[int, ...]] = {}
    """The versions of each graph that it serves."""
    pools: tuple[str | None, ...] = ()
    """The pools from which it claims runs; None is the pool without a name."""
    complete: bool = True
    """Whether the row names all of them. If not, the worker may serve any graph and pool."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a worker."""

    id: str
    deadline_ms: int
    """When its lease ends, or a reaper is expected to have finished."""
    lease_ms: int
    """How long a lease lasts; 0 if an older release wrote the row."""
    since_ms: int
    buried: bool
    """Whether another worker has begun to reap it."""
    offer: Offer
    concurrency: int | None = None
    running: int | None = None
    lag_ms: int | None = None
    host: str = ""
    pid: int | None = None
    release: str = ""


def worker_row_of(item: Mapping[str, Any]) -> WorkerRow | None:
    """Return what a row says; None if all runs of this dead worker are re-queued.

    Rows of older releases say less.

    Raises:
        JournalDamaged: the row cannot be read.
    """
    try:
        place = IndexKey(item["GSI1PK"], item["GSI1SK"])
        if place.pk == REAPED:
            return None
        deadline_ms, worker = place.worker_parts()
        return WorkerRow(
            id=worker,
            deadline_ms=deadline_ms,
            lease_ms=msgspec.convert(item.get("lease_ms", 0), int),
            since_ms=typed_attribute(item, "since_ms", int),
            buried="buried_ms" in item,
            offer=_offer_of(item),
            concurrency=msgspec.convert(item.get("concurrency"), int | None),
            running=msgspec.convert(item.get("running"), int | None),
            lag_ms=msgspec.convert(item.get("lag_ms"), int | None),
            host=msgspec.convert(item.get("host", ""), str),
            pid=msgspec.convert(item.get("pid"), int | None),
            release=msgspec.convert(item.get("release", ""), str),
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the row of a worker", error) from error


def offer_attributes(
    graphs: Iterable[tuple[str, int]], pools: Iterable[str | None]
) -> dict[str, Any]:
    """Return the attributes that say what a worker serves, as far as the row has room."""
    named = [f"{name}:{version}" for name, version in graphs]
    kept = _fitting(named, _GRAPHS_BYTES_MAX)
    all_pools = tuple(pools)
    kept_pools = _fitting(all_pools, _POOLS_BYTES_MAX)
    attributes: dict[str, Any] = {"graphs": list(kept), "pools": list(kept_pools)}
    if len(kept) < len(named) or len(kept_pools) < len(all_pools):
        attributes["partial"] = True
    return attributes


def _fitting(names: Iterable[Any], bytes_max: int) -> list[Any]:
    kept: list[Any] = []
    size = 0
    for name in names:
        size += 1 + len((name or "").encode())
        if size > bytes_max:
            break
        kept.append(name)
    return kept


def _offer_of(item: Mapping[str, Any]) -> Offer:
    graphs = msgspec.convert(item.get("graphs", ()), tuple[str, ...])
    return Offer(
        graphs=_offered_graphs(graphs),
        pools=msgspec.convert(item.get("pools", ()), tuple[str | None, ...]),
        complete="graphs" in item and "partial" not in item,
    )


def _offered_graphs(named: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the versions of each graph from entries such as ``orders:2``."""
    found: dict[str, tuple[int, ...]] = {}
    for text in named:
        name, _, version = text.rpartition(":")
        found[name] = tuple(sorted({*found.get(name, ()), parsed_int(version)}))
    return found


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


def heartbeat_write(
    worker: str,
    *,
    last_expires_ms: int,
    expires_ms: int,
    token: str,
    load: Mapping[str, int] | None = None,
) -> Update:
    """Return the write that renews a lease. It fails if another worker has started to reap it.

    ``load`` says how many runs the worker drives, and how late it claimed them.
    """
    return Update(
        key=worker_key(worker),
        set={**_index_attributes(IndexKey.worker(worker, expires_ms), expires_ms), **(load or {})},
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
