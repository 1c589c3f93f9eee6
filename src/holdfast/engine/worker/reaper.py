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

from holdfast.display import get_logger
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, HoldfastError, ItemDamaged
from holdfast.records import worker as rows
from holdfast.records.index_keys import (
    REAPED,
    WORKERS,
    IndexKey,
    due_after,
    due_by,
    owned_partition,
    reaped_between,
)
from holdfast.records.keys import REAPING, RunKey, worker_id_of, worker_key
from holdfast.records.reaping import (
    RESWEEP_AGES_MS,
    SweepTurn,
    advance_turn_write,
    sweep_turn_of,
    take_turn_write,
)
from holdfast.records.run_writes import index_key_in, requeue_write
from holdfast.storage import Delete
from holdfast.storage.item import Item
from holdfast.storage.ranges import ALL, Range

__all__ = ["Reaper", "requeue_run", "requeue_runs"]

T = TypeVar("T")

_log = get_logger("holdfast.worker")

_CONCURRENCY_MAX = 16
# By how much clocks differ that are set by the network. Beyond it a lease is watched.
_CLOCK_SKEW_MS = 5_000


class _WatchedLease(NamedTuple):
    """A lease that ends later than it should, as one worker sees it."""

    place: IndexKey
    since: float
    seconds: float


class Reaper:
    """What one worker does about the dead ones."""

    def __init__(
        self, kernel: Kernel, *, lease_seconds: float, on_requeued: Callable[[IndexKey], None]
    ) -> None:
        """``found`` is told where each run is due that is re-queued."""
        self._kernel = kernel
        self._on_requeued = on_requeued
        self._lease_seconds = lease_seconds
        self._lease_ms = round(lease_seconds * 1000)
        self._abandoned: list[str] = []
        self._watched: dict[str, _WatchedLease] = {}
        # Since when each was met, None once it is reaped.
        self._unreadable: dict[str, float | None] = {}
        self._turn_task: asyncio.Task[None] | None = None
        self._seen_turn_number = -1
        self._next_turn_at = 0.0

    def abandon(self, worker: str) -> None:
        """Take a name in that our own worker no longer uses: it is dead, whatever its row says."""
        self._abandoned.append(worker)

    async def reap(self, own: str) -> None:
        """Reap every worker that is dead by now, except the one of our own name.

        Raises:
            HoldfastError: the store could not be used for some of them.
        """
        self._start_turn()
        await self._reap_abandoned()
        await self._reap_unreadable(own)
        await self._reap_lapsed(own)
        await self._reap_overdue(own)

    def stop(self) -> None:
        """Leave what is not done yet to other workers."""
        if self._turn_task is not None:
            self._turn_task.cancel()

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
        for worker in filter(None, map(worker_id_of, self._kernel.store.damage.keys)):
            since = self._unreadable.setdefault(worker, now)
            if worker != own and since is not None and now - since >= self._lease_seconds:
                await self._requeue_runs(worker)
                await self._kernel.resolve_write(self._kernel.reaping, Delete(worker_key(worker)))
                self._unreadable[worker] = None

    async def _reap_lapsed(self, own: str) -> None:
        now = self._kernel.clock.now_ms()
        places = [
            place
            async for place in self._iter_worker_places(due_by(now))
            # Only our own clock can have jumped: by our monotonic one we live.
            if place.worker_parts()[1] != own
        ]
        if len(places) > 1:
            # Other workers begin elsewhere, so that not all of them do the same.
            start = int(self._kernel.ids.random() * len(places))
            places = places[start:] + places[:start]
        await _for_each(self._reap_if_at, places)

    async def _reap_overdue(self, own: str) -> None:
        """Reap who was not renewed for a lease, though its row says that it lives much longer.

        Its clock was ahead when it wrote that, or its leases are longer than ours.
        """
        clock = self._kernel.clock
        beyond = due_after(clock.now_ms() + self._lease_ms + _CLOCK_SKEW_MS)
        before, self._watched = self._watched, {}
        async for place in self._iter_worker_places(beyond):
            _, worker = place.worker_parts()
            watched = before.get(worker)
            if watched is None or watched.place != place:
                watched = _WatchedLease(place, clock.monotonic(), self._lease_seconds)
            if worker != own:
                self._watched[worker] = watched
        for worker, watched in list(self._watched.items()):
            if clock.monotonic() - watched.since >= watched.seconds:
                await self._reap_if_unrenewed(worker, watched)

    async def _reap_if_unrenewed(self, worker: str, watched: _WatchedLease) -> None:
        row = await self._kernel.reaping.get(worker_key(worker))
        # One without it was written by an older release: how long it lives is unknown.
        if row is None or _place_of(row) != watched.place or type(row.get("lease_ms")) is not int:
            return
        lease_seconds = row["lease_ms"] / 1000
        if self._kernel.clock.monotonic() - watched.since >= lease_seconds:
            await self._reap(worker, row)
        else:
            self._watched[worker] = watched._replace(seconds=lease_seconds)

    async def _iter_worker_places(self, where: Range) -> AsyncIterator[IndexKey]:
        async for entry in self._kernel.reaping.query_all(WORKERS, where, index="GSI1"):
            place = _place_of(entry)
            if self._check_worker_place(place):
                yield place

    def _check_worker_place(self, place: IndexKey) -> bool:
        """Return whether a place is one of a worker, dead or alive."""
        try:
            place.worker_parts()
        except ValueError as error:
            self._kernel.note_damage({"PK": place.pk, "SK": place.sk}, error)
            return False
        return True

    # --- what is done about it --------------------------------------------------------------------

    async def _reap_if_at(self, place: IndexKey) -> None:
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
            write = rows.continue_reap_write(
                worker, due_ms=due_ms, next_ms=next_ms, token=kernel.ids.new()
            )
        else:
            write = rows.begin_reap_write(
                worker, lapsed_ms=due_ms, now_ms=now, next_ms=next_ms, token=kernel.ids.new()
            )
        with suppress(ConditionFailed):  # another worker was faster
            await kernel.resolve_write(kernel.reaping, write)
            await self._requeue_runs(worker)
            now = kernel.clock.now_ms()
            done = rows.finish_reap_write(
                worker, due_ms=next_ms, now_ms=now, token=kernel.ids.new()
            )
            await kernel.resolve_write(kernel.reaping, done)

    async def _requeue_runs(self, worker: str) -> None:
        await requeue_runs(self._kernel, worker, lost=True, on_requeued=self._on_requeued)

    # --- the fleet's turns ------------------------------------------------------------------------

    def _start_turn(self) -> None:
        """Look now and then whether a turn is due, beside the rest: the newly dead come first."""
        now = self._kernel.clock.monotonic()
        if now >= self._next_turn_at and (self._turn_task is None or self._turn_task.done()):
            self._next_turn_at = now + self._lease_seconds
            self._turn_task = asyncio.create_task(self._run_turn(), name="holdfast sweeps")

    async def _run_turn(self) -> None:
        try:
            turn = await self._acquire_turn()
            if turn is not None:
                await self._requeue_late_runs(turn)
        except HoldfastError as error:
            _log.warning("dead workers are swept again later: %s", error)
        except Exception:
            _log.exception("sweeping dead workers again failed")

    async def _acquire_turn(self) -> SweepTurn | None:
        """Take the fleet's next turn if it is due, and no other worker is faster."""
        kernel = self._kernel
        newest = await self._list_reaped(ALL, limit=1, forward=False)
        if not newest:
            return None
        current = sweep_turn_of(await kernel.reaping.get(REAPING, eventual=True))
        if newest[0].sk <= current.cursors[-1]:
            return None  # every stage is done with all of them
        now = kernel.clock.now_ms()
        # Due by the clock of who took the last one; or, where that was ahead, not taken for a
        # lease by our own. The first alone does where no worker lives for as long as a lease.
        if current.next_ms > now and current.number != self._seen_turn_number:
            self._seen_turn_number = current.number
            self._schedule_turn_check(current.next_ms - now)
            return None
        write = take_turn_write(current, next_ms=now + self._lease_ms, token=kernel.ids.new())
        try:
            turn = sweep_turn_of(await kernel.resolve_write(kernel.reaping, write))
        except ConditionFailed:
            return None
        self._seen_turn_number = turn.number
        return turn

    def _schedule_turn_check(self, in_ms: int) -> None:
        """Look when the next turn is due, or a little later: one of all workers is the first."""
        late = self._kernel.ids.random() * self._lease_seconds / 4
        due = self._kernel.clock.monotonic() + in_ms / 1000 + late
        self._next_turn_at = min(self._next_turn_at, due)

    async def _requeue_late_runs(self, turn: SweepTurn) -> None:
        """Move each stage on, those of the youngest dead first, and write how far they are."""
        now, left = self._kernel.clock.now_ms(), self._kernel.sweeps_max
        cursors = list(turn.cursors)
        try:
            for stage, age_ms in enumerate(RESWEEP_AGES_MS):
                while dead := await self._list_dead(cursors[stage], now - age_ms, left):
                    named = [place for place in dead if self._check_worker_place(place)]
                    await _for_each(
                        self._requeue_runs, [place.worker_parts()[1] for place in named]
                    )
                    cursors[stage] = dead[-1].sk
                    left -= len(dead)
        finally:
            done = msgspec.structs.replace(turn, cursors=tuple(cursors))
            if done != turn:
                with suppress(ConditionFailed):  # it took so long that another one goes on
                    write = advance_turn_write(done, token=self._kernel.ids.new())
                    await self._kernel.resolve_write(self._kernel.reaping, write)

    async def _list_dead(self, cursor: str, until_ms: int, limit: int) -> list[IndexKey]:
        where = reaped_between(cursor, until_ms)
        if where is None or limit <= 0:
            return []
        return await self._list_reaped(where, limit=min(limit, _CONCURRENCY_MAX))

    async def _list_reaped(
        self, where: Range, *, limit: int, forward: bool = True
    ) -> list[IndexKey]:
        """Return the first of those who were reaped, however many rows before them are damaged."""
        cursor: str | None = None
        while True:
            page = await self._kernel.reaping.query(
                REAPED, where, index="GSI1", limit=limit, cursor=cursor, forward=forward
            )
            cursor = page.cursor
            if page.items or cursor is None:
                return [_place_of(entry) for entry in page.items]


async def requeue_runs(
    kernel: Kernel,
    worker: str,
    *,
    lost: bool,
    on_requeued: Callable[[IndexKey], None],
    skip: Callable[[RunKey], bool] | None = None,
) -> None:
    """Make due again what stands under a worker's name, and tell ``found`` where.

    ``lost`` says whether the worker is dead. ``but`` is asked at the last moment: what it says yes
    to is left alone.

    Raises:
        StoreUnavailable, StoreUnusable, OutcomeUnknown: some of it stands there still.
    """

    async def move(place: IndexKey) -> None:
        try:
            place.owned_parts()
        except ValueError as error:
            kernel.note_damage({"PK": place.pk, "SK": place.sk}, error)
            return
        if skip is not None and skip(place.owned_parts()[1]):
            return
        moved = await requeue_run(kernel, place, lost=lost)
        if moved is not None:
            on_requeued(moved)

    table = kernel.reaping if lost else kernel.due
    owned = table.query_all(owned_partition(worker), index="GSI1")
    await _for_each(move, [_place_of(entry) async for entry in owned])


async def requeue_run(
    kernel: Kernel, place: IndexKey, *, lost: bool, in_ms: int = 0
) -> IndexKey | None:
    """Make a run due again, now or later, that a worker held and did not release.

    Return its new place; None where it does not stand at the old one any more, or cannot be read.

    Raises:
        StoreUnavailable, StoreUnusable, OutcomeUnknown: the store does not answer.
    """
    now = kernel.clock.now_ms()
    write = requeue_write(place, lost=lost, now_ms=now, in_ms=in_ms, token=kernel.ids.new())
    try:
        await kernel.resolve_write(kernel.heads, write)
    except (ConditionFailed, ItemDamaged):
        return None
    return index_key_in(write)


def _place_of(entry: Item) -> IndexKey:
    return IndexKey(entry["GSI1PK"], entry["GSI1SK"])


async def _for_each(work: Callable[[T], Awaitable[None]], subjects: Sequence[T]) -> None:
    """Do something for each, some at once; raise the first error after the rest was done."""
    first_error: BaseException | None = None
    for start in range(0, len(subjects), _CONCURRENCY_MAX):
        batch = (work(subject) for subject in subjects[start : start + _CONCURRENCY_MAX])
        done = await asyncio.gather(*batch, return_exceptions=True)
        first_error = first_error or next((error for error in done if error is not None), None)
    if first_error is not None:
        raise first_error
