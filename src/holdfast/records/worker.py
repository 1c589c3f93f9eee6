"""A worker's row: its lease, or its burial and the sweeps that follow it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.records.keys import Place, worker_key
from holdfast.storage import Absent, AllOf, Delete, Equals, Put, Update

__all__ = ["beat", "buried", "left", "registered", "swept"]

_KEPT_SECONDS = 2 * 24 * 3600


def registered(
    worker: str, *, until_ms: int, now_ms: int, about: Mapping[str, Any], token: str
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
        "ttl": until_ms // 1000 + _KEPT_SECONDS,
        **about,
    }
    return Put(item, Absent("PK"), token)


def beat(worker: str, *, last_until_ms: int, until_ms: int, token: str) -> Update:
    """Return the write that prolongs a lease, unless somebody buried the worker."""
    return Update(
        key=worker_key(worker),
        set=_moved(worker, until_ms),
        condition=AllOf((*_at(worker, last_until_ms), Absent("buried_ms"))),
        token=token,
    )


def buried(worker: str, *, lapsed_ms: int, now_ms: int, next_ms: int, token: str) -> Update:
    """Return the write that buries a worker whose lease lapsed; one of many wins."""
    return Update(
        key=worker_key(worker),
        set={"buried_ms": now_ms, **_moved(worker, next_ms)},
        condition=AllOf((*_at(worker, lapsed_ms), Absent("buried_ms"))),
        token=token,
    )


def swept(worker: str, *, due_ms: int, next_ms: int, token: str) -> Update:
    """Return the write by which one of many takes on the next sweep of a buried worker's runs."""
    return Update(
        key=worker_key(worker),
        set=_moved(worker, next_ms),
        condition=AllOf(_at(worker, due_ms)),
        token=token,
    )


def left(worker: str, *, due_ms: int) -> Delete:
    """Return the write that forgets a worker that holds nothing any more."""
    return Delete(worker_key(worker), AllOf(_at(worker, due_ms)))


def _moved(worker: str, due_ms: int) -> dict[str, Any]:
    place = Place.of_worker(worker, due_ms)
    return {"GSI1PK": place.pk, "GSI1SK": place.sk, "ttl": due_ms // 1000 + _KEPT_SECONDS}


def _at(worker: str, due_ms: int) -> tuple[Equals, ...]:
    place = Place.of_worker(worker, due_ms)
    return (Equals("GSI1PK", place.pk), Equals("GSI1SK", place.sk))
