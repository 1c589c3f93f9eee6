"""Reaps dead workers: makes due again what they held, first at once, and later once more.

A worker is dead when its lease is over: by the wall clock, or, where its row names a time that is
further ahead than we would write, once it was not renewed for a lease by our monotonic clock. The
one that buries it (`records.worker`) re-queues its runs. What an index did not show by then is
found by the turns that one worker of the fleet takes; see `records.reaping`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.display import log_named
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, HoldfastError, ItemDamaged
from holdfast.records import worker as rows
from holdfast.records.changes import place_in, requeued
from holdfast.records.keys import (
    REAPED,
    REAPING,
    WORKERS,
    Place,
    RunKey,
    due_beyond,
    due_until,
    owned_partition,
    reaped_between,
    worker_key,
    worker_named,
)
from holdfast.records.reaping import AGES_MS, Turn, advanced, taken, turn_of
from holdfast.storage import Delete
from holdfast.storage.item import Item
from holdfast.storage.ranges import ALL, Range

__all__ = ["Reaper", "requeue", "requeue_all"]

T = TypeVar("T")

_log = log_named("holdfast.worker")

_AT_ONCE = 16
# By how much clocks differ that are set by the network. Beyond it a lease is watched.
_SKEW_MS = 5_000


class _Watched(NamedTuple):
    """A lease that ends later than it should, as one worker sees it."""

    place: Place
    since: float
    seconds: float


class Reaper:
    """What one worker does about the dead ones."""

    def __init__(
        self, kernel: Kernel, *, lease_seconds: float, found: Callable[[Place], None]
    ) -> None:
        """``found`` is told where each run is due that is re-queued."""
        self._kernel = kernel
        self._found = found
        self._lease_seconds = lease_seconds
        self._lease_ms = round(lease_seconds * 1000)
        self._abandoned: list[str] = []
        self._watched: dict[str, _Watched] = {}
        # Since when each was met, None once it is reaped.
        self._unreadable: dict[str, float | None] = {}
        self._turn: asyncio.Task[None] | None = None
        self._turn_seen = -1
        self._next_turn = 0.0

    def abandon(self, worker: str) -> None:
        """Take a name in that our own worker no longer uses: it is dead, whatever its row says."""
        self._abandoned.append(worker)

    async def reap(self, own: str) -> None:
        """Reap every worker that is dead by now, except the one of our own name.

        Raises:
            HoldfastError: the store could not be used for some of them.
        """
        self._begin_turn()
        await self._reap_abandoned()
        await self._reap_unreadable(own)
        await self._reap_lapsed(own)
        await self._reap_overdue(own)

    def stop(self) -> None:
        """Leave what is not done yet to other workers."""
        if self._turn is not None:
            self._turn.cancel()

    # --- who is dead ------------------------------------------------------------------------------

    async def _reap_abandoned(self) -> None:
        """Reap our own former names: nobody else may do so before their leases end."""
        for worker in list(self._abandoned):
            row = await self._kernel.reaping.get(worker_key(worker))
            if row is not None and "buried_ms" not in row:
                await self._reap(worker, row)
            self._abandoned.remove(worker)

    async def _reap_unreadable(self, own: str) -> None:
        """Reap who has a row that cannot be read, a lease after it was met.

        It cannot renew its lease, so it is dead by then, or goes by another name.
        """
        now = self._kernel.clock.monotonic()
        for worker in filter(None, map(worker_named, self._kernel.store.damage.keys)):
            since = self._unreadable.setdefault(worker, now)
            if worker != own and since is not None and now - since >= self._lease_seconds:
                await self._sweep(worker)
                await self._kernel.settle(self._kernel.reaping, Delete(worker_key(worker)))
                self._unreadable[worker] = None

    async def _reap_lapsed(self, own: str) -> None:
        now = self._kernel.clock.now_ms()
        places = [
            place
            async for place in self._places(due_until(now))
            # Only our own clock can have jumped: by our monotonic one we live.
            if place.worker_parts()[1] != own
        ]
        if len(places) > 1:
            # Other workers begin elsewhere, so that not all of them do the same.
            start = int(self._kernel.ids.random() * len(places))
            places = places[start:] + places[:start]
        await _each(self._reap_if_at, places)

    async def _reap_overdue(self, own: str) -> None:
        """Reap who was not renewed for a lease, though its row says that it lives much longer.

        Its clock was ahead when it wrote that, or its leases are longer than ours.
        """
        clock = self._kernel.clock
        beyond = due_beyond(clock.now_ms() + self._lease_ms + _SKEW_MS)
        before, self._watched = self._watched, {}
        async for place in self._places(beyond):
            _, worker = place.worker_parts()
            watched = before.get(worker)
            if watched is None or watched.place != place:
                watched = _Watched(place, clock.monotonic(), self._lease_seconds)
            if worker != own:
                self._watched[worker] = watched
        for worker, watched in list(self._watched.items()):
            if clock.monotonic() - watched.since >= watched.seconds:
                await self._look_closer(worker, watched)

    async def _look_closer(self, worker: str, watched: _Watched) -> None:
        row = await self._kernel.reaping.get(worker_key(worker))
        # One without it was written by an older release: how long it lives is unknown.
        if row is None or _place_of(row) != watched.place or type(row.get("lease_ms")) is not int:
            return
        lease_seconds = row["lease_ms"] / 1000
        if self._kernel.clock.monotonic() - watched.since >= lease_seconds:
            await self._reap(worker, row)
        else:
            self._watched[worker] = watched._replace(seconds=lease_seconds)

    async def _places(self, where: Range) -> AsyncIterator[Place]:
        async for entry in self._kernel.reaping.every(WORKERS, where, index="GSI1"):
            place = _place_of(entry)
            if self._names_worker(place):
                yield place

    def _names_worker(self, place: Place) -> bool:
        """Return whether a place is one of a worker, dead or alive."""
        try:
            place.worker_parts()
        except ValueError as error:
            self._kernel.note_damage({"PK": place.pk, "SK": place.sk}, error)
            return False
        return True

    # --- what is done about it --------------------------------------------------------------------

    async def _reap_if_at(self, place: Place) -> None:
        _, worker = place.worker_parts()
        row = await self._kernel.reaping.get(worker_key(worker))
        if row is not None and _place_of(row) == place:  # else the index lags
            await self._reap(worker, row)

    async def _reap(self, worker: str, row: Item) -> None:
        """Bury a worker, re-queue its runs, and leave it to later sweeps."""
        kernel = self._kernel
        place, now = _place_of(row), kernel.clock.now_ms()
        if place.pk != WORKERS:
            return
        due_ms, next_ms = place.worker_parts()[0], now + self._lease_ms
        if "buried_ms" in row:
            write = rows.swept(worker, due_ms=due_ms, next_ms=next_ms, token=kernel.ids.new())
        else:
            write = rows.buried(
                worker, lapsed_ms=due_ms, now_ms=now, next_ms=next_ms, token=kernel.ids.new()
            )
        with suppress(ConditionFailed):  # another worker was faster
            await kernel.settle(kernel.reaping, write)
            await self._sweep(worker)
            now = kernel.clock.now_ms()
            done = rows.reaped(worker, due_ms=next_ms, now_ms=now, token=kernel.ids.new())
            await kernel.settle(kernel.reaping, done)

    async def _sweep(self, worker: str) -> None:
        await requeue_all(self._kernel, worker, lost=True, found=self._found)

    # --- the fleet's turns ------------------------------------------------------------------------

    def _begin_turn(self) -> None:
        """Look now and then whether a turn is due, beside the rest: the newly dead come first."""
        now = self._kernel.clock.monotonic()
        if now >= self._next_turn and (self._turn is None or self._turn.done()):
            self._next_turn = now + self._lease_seconds
            self._turn = asyncio.create_task(self._take_turn(), name="holdfast sweeps")

    async def _take_turn(self) -> None:
        try:
            turn = await self._taken_turn()
            if turn is not None:
                await self._sweep_again(turn)
        except HoldfastError as error:
            _log.warning("dead workers are swept again later: %s", error)
        except Exception:
            _log.exception("sweeping dead workers again failed")

    async def _taken_turn(self) -> Turn | None:
        """Take the fleet's next turn if it is due, and no other worker is faster."""
        kernel = self._kernel
        newest = await self._reaped(ALL, limit=1, forward=False)
        if not newest:
            return None
        standing = turn_of(await kernel.reaping.get(REAPING, eventual=True))
        if newest[0].sk <= standing.cursors[-1]:
            return None  # every stage is done with all of them
        now = kernel.clock.now_ms()
        # Due by the clock of who took the last one; or, where that was ahead, not taken for a
        # lease by our own. The first alone does where no worker lives for as long as a lease.
        if standing.next_ms > now and standing.number != self._turn_seen:
            self._turn_seen = standing.number
            self._look_again(standing.next_ms - now)
            return None
        write = taken(standing, next_ms=now + self._lease_ms, token=kernel.ids.new())
        try:
            turn = turn_of(await kernel.settle(kernel.reaping, write))
        except ConditionFailed:
            return None
        self._turn_seen = turn.number
        return turn

    def _look_again(self, in_ms: int) -> None:
        """Look when the next turn is due, or a little later: one of all workers is the first."""
        late = self._kernel.ids.random() * self._lease_seconds / 4
        due = self._kernel.clock.monotonic() + in_ms / 1000 + late
        self._next_turn = min(self._next_turn, due)

    async def _sweep_again(self, turn: Turn) -> None:
        """Move each stage on, those of the youngest dead first, and write how far they are."""
        now, left = self._kernel.clock.now_ms(), self._kernel.sweeps_max
        cursors = list(turn.cursors)
        try:
            for stage, age_ms in enumerate(AGES_MS):
                while dead := await self._dead(cursors[stage], now - age_ms, left):
                    named = [place for place in dead if self._names_worker(place)]
                    await _each(self._sweep, [place.worker_parts()[1] for place in named])
                    cursors[stage] = dead[-1].sk
                    left -= len(dead)
        finally:
            done = msgspec.structs.replace(turn, cursors=tuple(cursors))
            if done != turn:
                with suppress(ConditionFailed):  # it took so long that another one goes on
                    write = advanced(done, token=self._kernel.ids.new())
                    await self._kernel.settle(self._kernel.reaping, write)

    async def _dead(self, cursor: str, until_ms: int, most: int) -> list[Place]:
        where = reaped_between(cursor, until_ms)
        if where is None or most <= 0:
            return []
        return await self._reaped(where, limit=min(most, _AT_ONCE))

    async def _reaped(self, where: Range, *, limit: int, forward: bool = True) -> list[Place]:
        """Return the first of those who were reaped, however many rows before them are damaged."""
        cursor: str | None = None
        while True:
            page = await self._kernel.reaping.query(
                REAPED, where, index="GSI1", limit=limit, cursor=cursor, forward=forward
            )
            cursor = page.cursor
            if page.items or cursor is None:
                return [_place_of(entry) for entry in page.items]


async def requeue_all(
    kernel: Kernel,
    worker: str,
    *,
    lost: bool,
    found: Callable[[Place], None],
    but: Callable[[RunKey], bool] | None = None,
) -> None:
    """Make due again what stands under a worker's name, and tell ``found`` where.

    ``lost`` says whether the worker is dead. ``but`` is asked at the last moment: what it says yes
    to is left alone.

    Raises:
        StoreUnavailable, StoreUnusable, OutcomeUnknown: some of it stands there still.
    """

    async def move(place: Place) -> None:
        try:
            place.owned_parts()
        except ValueError as error:
            kernel.note_damage({"PK": place.pk, "SK": place.sk}, error)
            return
        if but is not None and but(place.owned_parts()[1]):
            return
        moved = await requeue(kernel, place, lost=lost)
        if moved is not None:
            found(moved)

    table = kernel.reaping if lost else kernel.due
    owned = table.every(owned_partition(worker), index="GSI1")
    await _each(move, [_place_of(entry) async for entry in owned])


async def requeue(kernel: Kernel, place: Place, *, lost: bool, in_ms: int = 0) -> Place | None:
    """Make a run due again, now or later, that a worker held and did not release.

    Return its new place; None where it does not stand at the old one any more, or cannot be read.

    Raises:
        StoreUnavailable, StoreUnusable, OutcomeUnknown: the store does not answer.
    """
    now = kernel.clock.now_ms()
    write = requeued(place, lost=lost, now_ms=now, in_ms=in_ms, token=kernel.ids.new())
    try:
        await kernel.settle(kernel.heads, write)
    except (ConditionFailed, ItemDamaged):
        return None
    return place_in(write)


def _place_of(entry: Item) -> Place:
    return Place(entry["GSI1PK"], entry["GSI1SK"])


async def _each(work: Callable[[T], Awaitable[None]], subjects: Sequence[T]) -> None:
    """Do something for each, some at once; raise the first error after the rest was done."""
    trouble: BaseException | None = None
    for start in range(0, len(subjects), _AT_ONCE):
        batch = (work(subject) for subject in subjects[start : start + _AT_ONCE])
        done = await asyncio.gather(*batch, return_exceptions=True)
        trouble = trouble or next((error for error in done if error is not None), None)
    if trouble is not None:
        raise trouble
