"""Buries workers whose lease lapsed, and makes due again what they held.

The index of what a worker held may lag. So the list of a buried worker is swept again, one lease
after the other, for a day.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.engine.kernel import Kernel
from holdfast.errors import ConditionFailed, StoreUnavailable
from holdfast.records import worker as rows
from holdfast.records.changes import place_in, requeued
from holdfast.records.keys import (
    WORKERS,
    Place,
    RunKey,
    due_until,
    owned_partition,
    worker_key,
)

__all__ = ["bury_the_dead", "requeue", "requeue_all"]

SWEPT_FOR_MS = 24 * 3600 * 1000


async def bury_the_dead(kernel: Kernel, *, lease_ms: int) -> list[Place]:
    """Bury who lapsed, sweep who was buried; return the places of the runs that are due again."""
    now = kernel.clock.now_ms()
    found: list[Place] = []
    async for entry in kernel.due.every(WORKERS, due_until(now), index="GSI1"):
        due_ms, worker = Place(entry["GSI1PK"], entry["GSI1SK"]).worker_parts()
        row = await kernel.workers.get(worker_key(worker))
        if row is None or row["GSI1SK"] != entry["GSI1SK"]:
            continue  # the index lags: it lives, or somebody else was here
        try:
            if "buried_ms" not in row:
                next_ms = now + lease_ms
                write = rows.buried(
                    worker, lapsed_ms=due_ms, now_ms=now, next_ms=next_ms, token=kernel.ids.new()
                )
            elif now - row["buried_ms"] > SWEPT_FOR_MS:
                await kernel.workers.write(rows.left(worker, due_ms=due_ms))
                continue
            else:
                write = rows.swept(
                    worker, due_ms=due_ms, next_ms=now + lease_ms, token=kernel.ids.new()
                )
            await kernel.settle(kernel.workers, write)
        except ConditionFailed:
            continue  # another one of us was faster
        found += await requeue_all(kernel, worker)
    return found


async def requeue_all(
    kernel: Kernel, worker: str, *, but: Callable[[RunKey], bool] | None = None
) -> list[Place]:
    """Make due again what stands under a worker's name; return the new places.

    ``but`` is asked at the last moment: what it says yes to is left alone.
    """
    places: list[Place] = []
    async for entry in kernel.due.every(owned_partition(worker), index="GSI1"):
        place = Place(entry["GSI1PK"], entry["GSI1SK"])
        if but is None or not but(place.owned_parts()[1]):
            moved = await requeue(kernel, place)
            if moved is not None:
                places.append(moved)
    return places


async def requeue(kernel: Kernel, place: Place) -> Place | None:
    """Make a run due again that a worker held and did not release; return its new place."""
    now = kernel.clock.now_ms()
    write = requeued(place, now_ms=now, token=kernel.ids.new())
    try:
        await kernel.settle(kernel.heads, write)
    except (ConditionFailed, StoreUnavailable):
        return None  # it is not there any more, or the next sweep will find it
    return place_in(write)
