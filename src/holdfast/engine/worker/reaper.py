"""Reaps dead workers: makes their runs due again, at once, and several times more later.

A worker is dead when its lease has ended by the wall clock. If its row names a time that is further
ahead than this worker would write, it is dead when it was not renewed for one lease by this
process' monotonic clock. The worker that marks it as dead (`records.worker`) requeues its runs. An
index may show a claim later than that. Therefore one worker of the fleet at a time takes a turn and
sweeps the lists of the dead workers again; see `records.reaping`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from holdfast.display import get_logger
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.worker.requeuing import (
    CONCURRENCY_MAX,
    for_each,
    index_key_of,
    requeue_runs,
)
from holdfast.errors import ConditionFailed, HoldfastError
from holdfast.records import worker as rows
from holdfast.records.index_keys import (
    REAPED,
    WORKERS,
    IndexKey,
    due_after,
    due_by,
    reaped_between,
)
from holdfast.records.keys import REAPING, worker_id_of, worker_key
from holdfast.records.reaping import (
    RESWEEP_AGES_MS,
    SweepTurn,
    advance_turn_write,
    sweep_turn_of,
    take_turn_write,
)
from holdfast.storage import Delete
from holdfast.storage.item import Item
from holdfast.storage.ranges import ALL, Range

__all__ = ["Reaper"]

_log = get_logger("holdfast.worker")

# How much clocks differ that are synchronized over the network. A lease that ends later than that
# is watched.
_CLOCK_SKEW_MS = 5_000


class _WatchedLease(NamedTuple):
    """A lease that ends later than it should by the clock of this process."""

    place: IndexKey
    since: float
    seconds: float


class Reaper:
    """Finds dead workers and reaps them, on behalf of one worker."""

    def __init__(
        self, kernel: Kernel, *, lease_seconds: float, on_requeued: Callable[[IndexKey], None]
    ) -> None:
        """Call ``on_requeued`` with the place of each requeued run in the due index."""
        self._kernel = kernel
        self._on_requeued = on_requeued
        self._lease_seconds = lease_seconds
        self._lease_ms = round(lease_seconds * 1000)
        self._abandoned: list[str] = []
        self._watched: dict[str, _WatchedLease] = {}
        # When each unreadable row was met first; None after the worker was reaped.
        self._unreadable: dict[str, float | None] = {}
        self._turn_task: asyncio.Task[None] | None = None
        self._seen_turn_number = -1
        self._next_turn_at = 0.0

    def abandon(self, worker: str) -> None:
        """Reap a former name of our own worker next time: it is dead, whatever its row says."""
        self._abandoned.append(worker)

    async def reap(self, own: str) -> None:
        """Reap every worker that is dead, except our own one.

        Raises:
            HoldfastError: the store failed for some of them.
        """
        self._start_turn()
        await self._reap_abandoned()
        await self._reap_unreadable(own)
        await self._reap_lapsed(own)
        await self._reap_overdue(own)

    def stop(self) -> None:
        """Cancel the turn, if one runs: another worker takes the next one."""
        if self._turn_task is not None:
            self._turn_task.cancel()

    # --- finding dead workers ---------------------------------------------------------------------

    async def _reap_abandoned(self) -> None:
        """Reap former names of our own worker; the other workers wait until their leases end."""
        for worker in list(self._abandoned):
            row = await self._kernel.reaping.get(worker_key(worker))
            if row is not None and "buried_ms" not in row:
                await self._reap(worker, row)
            self._abandoned.remove(worker)

    async def _reap_unreadable(self, own: str) -> None:
        """Reap workers with unreadable rows, one lease after this process met the row.

        Such a worker cannot renew its lease: by then it is dead, or has another name.
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
            async for place in self._iter_workers(due_by(now))
            # By the monotonic clock our own worker lives: then our wall clock has jumped.
            if place.worker_parts()[1] != own
        ]
        if len(places) > 1:
            # Each worker begins at another place, so that they do not all reap the same one.
            start = int(self._kernel.ids.random() * len(places))
            places = places[start:] + places[:start]
        await for_each(self._reap_if_at, places)

    async def _reap_overdue(self, own: str) -> None:
        """Reap workers that were not renewed for a lease, though their rows name a later time.

        The clock of such a worker was ahead, or its leases are longer than ours.
        """
        clock = self._kernel.clock
        beyond = due_after(clock.now_ms() + self._lease_ms + _CLOCK_SKEW_MS)
        before, self._watched = self._watched, {}
        async for place in self._iter_workers(beyond):
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
        # A row without lease_ms is of an older release: how long its lease lasts is unknown.
        if (
            row is None
            or index_key_of(row) != watched.place
            or type(row.get("lease_ms")) is not int
        ):
            return
        lease_seconds = row["lease_ms"] / 1000
        if self._kernel.clock.monotonic() - watched.since >= lease_seconds:
            await self._reap(worker, row)
        else:
            self._watched[worker] = watched._replace(seconds=lease_seconds)

    async def _iter_workers(self, where: Range) -> AsyncIterator[IndexKey]:
        async for entry in self._kernel.reaping.query_all(WORKERS, where, index="GSI1"):
            for place in self._readable_places([index_key_of(entry)]):
                yield place

    def _readable_places(self, places: Sequence[IndexKey]) -> list[IndexKey]:
        """Return the places that name a worker; record the others as damage."""
        readable: list[IndexKey] = []
        for place in places:
            try:
                place.worker_parts()
            except ValueError as error:
                self._kernel.note_damage({"PK": place.pk, "SK": place.sk}, error)
            else:
                readable.append(place)
        return readable

    # --- reaping them -----------------------------------------------------------------------------

    async def _reap_if_at(self, place: IndexKey) -> None:
        _, worker = place.worker_parts()
        row = await self._kernel.reaping.get(worker_key(worker))
        if row is not None and index_key_of(row) == place:  # otherwise the index lags
            await self._reap(worker, row)

    async def _reap(self, worker: str, row: Item) -> None:
        """Mark a worker as dead, requeue its runs, and list it for later sweeps."""
        kernel = self._kernel
        place, now = index_key_of(row), kernel.clock.now_ms()
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

    # --- sweeping again, in turns -----------------------------------------------------------------

    def _start_turn(self) -> None:
        """Take a turn once a lease, in its own task: newly dead workers do not wait for it."""
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
            _log.warning("sweeping dead workers again failed, and is repeated later: %s", error)
        except Exception:
            _log.exception("sweeping dead workers again failed")

    async def _acquire_turn(self) -> SweepTurn | None:
        """Take the fleet's next turn; return None if it is not due, or another worker took it."""
        kernel = self._kernel
        newest = await self._list_reaped(ALL, limit=1, forward=False)
        if not newest:
            return None
        current = sweep_turn_of(await kernel.reaping.get(REAPING, eventual=True))
        if newest[0].sk <= current.cursors[-1]:
            return None  # every stage has swept all of them
        now = kernel.clock.now_ms()
        # A turn is due when its time has come, or when this worker saw the same turn a lease ago:
        # the clock that set the time may be ahead. The time is needed where no worker lives for a
        # whole lease.
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
        """Try again when the next turn is due, at a random time after it: one worker is first."""
        late = self._kernel.ids.random() * self._lease_seconds / 4
        due = self._kernel.clock.monotonic() + in_ms / 1000 + late
        self._next_turn_at = min(self._next_turn_at, due)

    async def _requeue_late_runs(self, turn: SweepTurn) -> None:
        """Sweep the lists that are due in each stage, and write how far each stage has got."""
        now, left = self._kernel.clock.now_ms(), self._kernel.sweeps_max
        cursors = list(turn.cursors)
        try:
            for stage, age_ms in enumerate(RESWEEP_AGES_MS):
                while dead := await self._list_dead(cursors[stage], now - age_ms, left):
                    named = [place.worker_parts()[1] for place in self._readable_places(dead)]
                    await for_each(self._requeue_runs, named)
                    cursors[stage] = dead[-1].sk
                    left -= len(dead)
        finally:
            done = msgspec.structs.replace(turn, cursors=tuple(cursors))
            if done != turn:
                with suppress(ConditionFailed):  # it took so long that another worker took the turn
                    write = advance_turn_write(done, token=self._kernel.ids.new())
                    await self._kernel.resolve_write(self._kernel.reaping, write)

    async def _list_dead(self, cursor: str, until_ms: int, limit: int) -> list[IndexKey]:
        where = reaped_between(cursor, until_ms)
        if where is None or limit <= 0:
            return []
        return await self._list_reaped(where, limit=min(limit, CONCURRENCY_MAX))

    async def _list_reaped(
        self, where: Range, *, limit: int, forward: bool = True
    ) -> list[IndexKey]:
        """Return the first workers that were reaped, even if the first pages are all damaged."""
        cursor: str | None = None
        while True:
            page = await self._kernel.reaping.query(
                REAPED, where, index="GSI1", limit=limit, cursor=cursor, forward=forward
            )
            cursor = page.cursor
            if page.items or cursor is None:
                return [index_key_of(entry) for entry in page.items]
