"""Polls the due index, and claims the runs that it finds there, with a fair share for each tenant.

How a run is claimed is in `claims.Claims.claim`; the write is `records.run_writes.claim_write`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.worker.claims import Claims
from holdfast.engine.worker.health import DRIVE_RUNS, probe_blobs, store_backoffs
from holdfast.engine.worker.poll_order import PartitionOrder
from holdfast.engine.worker.requeuing import index_key_of
from holdfast.engine.worker.run_owner import RunOwner
from holdfast.engine.worker.slots import Slots
from holdfast.engine.worker.tasks import sleep_or_wake
from holdfast.errors import StoreClosed, StoreError
from holdfast.records.index_keys import IndexKey, due_by
from holdfast.storage import Page, UpTo

__all__ = ["Poller"]

_CONCURRENT_CLAIMS_MAX = 16
_CONCURRENT_READS_MAX = 16
_PAGE_ITEMS_MIN = 20
# How often a worker reads at least how many shards there are.
_SETTINGS_REFRESH_SECONDS = 60.0
# By how much at most a wait between two polls is shortened, so that workers do not poll in step.
_JITTER = 0.2


class Poller:
    """The polls of one worker."""

    def __init__(
        self,
        kernel: Kernel,
        owner: RunOwner,
        *,
        claims: Claims,
        slots: Slots,
        partition_order: PartitionOrder,
        poll_seconds: float,
    ) -> None:
        self._kernel = kernel
        self._owner = owner
        self._claims = claims
        self._slots = slots
        self._partition_order = partition_order
        self._poll_seconds = poll_seconds

    async def poll(self) -> None:
        """Claim the runs that are due; if there were none, wait until the next poll.

        While the worker cannot drive runs, it waits until it can instead.

        Raises:
            StoreError: a partition could not be read; the runs of the others are claimed.
        """
        if DRIVE_RUNS in self._owner.outages:
            await self._wait_until_usable()
            return
        self._slots.clear_refused()
        found = await self._claim_due_runs() if self._slots.free > 0 else 0
        if not found:
            jitter = 1 - _JITTER * self._kernel.ids.random()
            await sleep_or_wake(self._kernel.clock, self._poll_seconds * jitter, self._owner.wake)
            self._owner.wake.clear()

    async def _wait_until_usable(self) -> None:
        """Return when the worker can drive runs again, or stops."""
        backoffs = store_backoffs()
        owner = self._owner
        while not owner.draining:
            await sleep_or_wake(self._kernel.clock, next(backoffs), owner.stopping)
            try:
                await probe_blobs(self._kernel)
            except StoreClosed:
                raise
            except StoreError as error:
                owner.outages.record_failure(owner.id, DRIVE_RUNS, error)
            else:
                owner.outages.record_success(owner.id, DRIVE_RUNS)
                return

    async def _load_partitions(self) -> list[str]:
        """Return the partitions of the due index, in the order of this poll."""
        seconds = min(self._owner.lease.heartbeat_seconds, _SETTINGS_REFRESH_SECONDS)
        settings = await self._kernel.get_settings(seconds_old_max=seconds)
        return self._partition_order.partitions(self._owner.id, settings.shards)

    async def _claim_due_runs(self) -> int:
        """Claim runs that are due, from one partition after the other; return how many.

        If a partition cannot be read, because a flood throttles it for example, the worker still
        claims from the others.
        """
        partitions = await self._load_partitions()
        due_range = due_by(self._kernel.clock.now_ms())
        found, error = 0, None
        for start in range(0, len(partitions), _CONCURRENT_READS_MAX):
            batch = partitions[start : start + _CONCURRENT_READS_MAX]
            # At the same time, since most are empty and every read takes a round trip.
            reads = (self._read_page(partition, due_range) for partition in batch)
            pages = await asyncio.gather(*reads, return_exceptions=True)
            for partition, page in zip(batch, pages, strict=True):
                if isinstance(page, BaseException):
                    error = page
                    continue
                if self._slots.free <= 0:
                    return found
                claimed = await self._claim_from_partition(partition, due_range, page)
                if claimed:
                    self._partition_order.rotate_past(partition)
                found += claimed
        if error is not None:
            raise error
        return found

    async def _read_page(
        self, partition: str, due_range: UpTo, *, cursor: str | None = None, forward: bool = True
    ) -> Page:
        limit = max(self._slots.free, _PAGE_ITEMS_MIN)
        return await self._kernel.due.query(
            partition, due_range, index="GSI1", limit=limit, cursor=cursor, forward=forward
        )

    async def _claim_from_partition(self, partition: str, due_range: UpTo, page: Page) -> int:
        """Claim runs of one partition, page by page until one can be claimed; return how many."""
        while True:
            admitted = self._select_admitted(self._readable_places(page))
            found = await self._claim_runs(admitted)
            # Stop at a page that is full of tenants who hold too many slots: a flood has many.
            crowded = bool(page.items) and not admitted
            if found or page.cursor is None or crowded or not self._owner.may_claim():
                break
            page = await self._read_page(partition, due_range, cursor=page.cursor)
        if page.cursor is not None and self._slots.free > 0 and self._owner.may_claim():
            # Runs of other tenants that became due after the flood are at the other end.
            newest = await self._read_page(partition, due_range, forward=False)
            crowd = {_tenant_of(place) for place in self._readable_places(page)}
            admitted = self._select_admitted(self._readable_places(newest))
            rest = [place for place in admitted if _tenant_of(place) not in crowd]
            found += await self._claim_runs(rest)
        return found

    async def _claim_runs(self, places: Sequence[IndexKey]) -> int:
        """Claim as many runs as there are slots for; return how many were claimed."""
        found = 0
        while places and self._slots.free > 0:
            # Not more at once than there are free slots. Otherwise a run would be refused because
            # of a claim that may fail, and would have to wait for the next poll.
            batch_size = min(self._slots.free, _CONCURRENT_CLAIMS_MAX)
            batch = places[:batch_size]
            claimed = await asyncio.gather(*(self._claims.claim(place) for place in batch))
            self._note_lag(place for place, ours in zip(batch, claimed, strict=True) if ours)
            found += sum(claimed)
            places = places[batch_size:]
        return found

    def _note_lag(self, claimed: Iterable[IndexKey]) -> None:
        """Remember how overdue the most overdue run was, for the next heartbeat."""
        now, owner = self._kernel.clock.now_ms(), self._owner
        for place in claimed:
            owner.claim_lag_ms = max(owner.claim_lag_ms, now - place.due_parts()[0])

    def _select_admitted(self, places: Sequence[IndexKey]) -> list[IndexKey]:
        """Return the places of tenants that may take a slot; record if there are others.

        Runs that other workers should claim first are not among them.
        """
        ours = [place for place in places if not self._owner.unserved.defers(place)]
        admitted = [place for place in ours if self._slots.admits(_tenant_of(place))]
        if len(admitted) < len(ours):
            self._slots.mark_refused()
        return admitted

    def _readable_places(self, page: Page) -> list[IndexKey]:
        """Return the places of a page; record those that cannot be read as damage."""
        places: list[IndexKey] = []
        for entry in page.items:
            place = index_key_of(entry)
            try:
                place.due_parts()
                place.due_queue()
            except ValueError as error:
                self._kernel.note_damage(entry, error)
            else:
                places.append(place)
        return places


def _tenant_of(place: IndexKey) -> str:
    return place.due_parts()[1].tenant
