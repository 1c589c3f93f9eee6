"""A worker's row: its lease, and what others write there once it is dead.

A dead worker stays under ``WORKERS`` until all of its runs are re-queued, and then stands under
``REAPED`` for a day. Nothing more is written for it; see `records.reaping`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.records.keys import Place, worker_key
from holdfast.storage import Absent, AllOf, Delete, Equals, Put, Update

__all__ = ["beat", "buried", "left", "reaped", "registered", "swept"]

_KEPT_SECONDS = 2 * 24 * 3600


def registered(
    worker: str,
    *,
    lease_ms: int,
    until_ms: int,
    now_ms: int,
    about: Mapping[str, Any],
    token: str,
) -> Put:
    """Return the write that makes a worker known."""
    place = Place.of_worker(worker, until_ms)
    key = worker_key(worker)
    item: dict[str, Any] = {
        "PK": key.pk,
        "SK": key.sk,
        "GSI1PK": place.pk,
        "GSI1SK": place.sk,
        "since_ms": now_ms,
        "lease_ms": lease_ms,
        "ttl": until_ms // 1000 + _KEPT_SECONDS,
        **about,
    }
    return Put(item, Absent("PK"), token)


def beat(worker: str, *, last_until_ms: int, until_ms: int, token: str) -> Update:
    """Return the write that prolongs a lease, unless another process buried the worker."""
    return Update(
        key=worker_key(worker),
        set=_moved(Place.of_worker(worker, until_ms), until_ms),
        condition=AllOf((*_at(worker, last_until_ms), Absent("buried_ms"))),
        token=token,
    )


def buried(worker: str, *, lapsed_ms: int, now_ms: int, next_ms: int, token: str) -> Update:
    """Return the write that ends the lease of a dead worker; one of many writers wins.

    If the winner does not get to write `reaped`, another worker goes on at ``next_ms``.
    """
    return Update(
        key=worker_key(worker),
        set={"buried_ms": now_ms, **_moved(Place.of_worker(worker, next_ms), next_ms)},
        condition=AllOf((*_at(worker, lapsed_ms), Absent("buried_ms"))),
        token=token,
    )


def swept(worker: str, *, due_ms: int, next_ms: int, token: str) -> Update:
    """Return the write by which one of many goes on with a dead worker that was buried before."""
    return Update(
        key=worker_key(worker),
        set=_moved(Place.of_worker(worker, next_ms), next_ms),
        condition=AllOf(_at(worker, due_ms)),
        token=token,
    )


def reaped(worker: str, *, due_ms: int, now_ms: int, token: str) -> Update:
    """Return the write that says that all runs of a buried worker are re-queued."""
    return Update(
        key=worker_key(worker),
        set=_moved(Place.of_reaped(worker, now_ms), now_ms),
        condition=AllOf(_at(worker, due_ms)),
        token=token,
    )


def left(worker: str, *, due_ms: int) -> Delete:
    """Return the write that forgets a worker that holds nothing any more."""
    return Delete(worker_key(worker), AllOf(_at(worker, due_ms)))


def _moved(place: Place, due_ms: int) -> dict[str, Any]:
    return {"GSI1PK": place.pk, "GSI1SK": place.sk, "ttl": due_ms // 1000 + _KEPT_SECONDS}


def _at(worker: str, due_ms: int) -> tuple[Equals, ...]:
    place = Place.of_worker(worker, due_ms)
    return (Equals("GSI1PK", place.pk), Equals("GSI1SK", place.sk))
