"""Looks through the due index, and claims what is to be had there, fairly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.worker.poll_order import PartitionOrder
from holdfast.engine.worker.slots import Slots
from holdfast.records.index_keys import IndexKey, due_by
from holdfast.storage import Page, UpTo

__all__ = ["DueScan"]

_CONCURRENT_CLAIMS_MAX = 16
_CONCURRENT_READS_MAX = 16
_PAGE_ITEMS_MIN = 20


class DueScan:
    """One worker's looks through the due index."""

    def __init__(
        self,
        kernel: Kernel,
        partition_order: PartitionOrder,
        slots: Slots,
        *,
        claim: Callable[[IndexKey], Awaitable[bool]],
        may_claim: Callable[[], bool],
    ) -> None:
        """Take in how a run that was seen at a place is claimed; it says whether it was."""
        self._kernel = kernel
        self._partition_order = partition_order
        self._slots = slots
        self._claim = claim
        self._may_claim = may_claim

    async def claim_due_runs(self, partitions: Sequence[str]) -> int:
        """Claim what is due, each partition in its turn; return how much that was.

        A partition that cannot be read, since a flood throttles it perhaps, hides no other one.
        """
        due_range = due_by(self._kernel.clock.now_ms())
        found, error = 0, None
        for start in range(0, len(partitions), _CONCURRENT_READS_MAX):
            batch = partitions[start : start + _CONCURRENT_READS_MAX]
            # Read side by side: most are empty, and the way there is long.
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
        """Claim what is due there; page on past what cannot be claimed. Return how much was."""
        while True:
            admitted = self._admitted_places(page)
            found = await self._claim_runs(admitted)
            # Not past a page that is all of tenants who hold too much: a flood has many pages.
            crowded = bool(page.items) and not admitted
            if found or page.cursor is None or crowded or not self._may_claim():
                break
            page = await self._read_page(partition, due_range, cursor=page.cursor)
        if page.cursor is not None and self._slots.free > 0 and self._may_claim():
            # What others have there since a flood came stands at its other end.
            newest = await self._read_page(partition, due_range, forward=False)
            crowd = {_tenant_of(place) for place in self._valid_places(page)}
            rest = [
                place for place in self._admitted_places(newest) if _tenant_of(place) not in crowd
            ]
            found += await self._claim_runs(rest)
        return found

    async def _claim_runs(self, places: Sequence[IndexKey]) -> int:
        """Claim as many as there is room for; return how many that were."""
        found = 0
        while places and self._slots.free > 0:
            # No more at once than there is room for: who is refused since another one is being
            # tried would have to wait, though that one may come to nothing.
            batch_size = min(self._slots.free, _CONCURRENT_CLAIMS_MAX)
            found += sum(
                await asyncio.gather(*(self._claim(place) for place in places[:batch_size]))
            )
            places = places[batch_size:]
        return found

    def _admitted_places(self, page: Page) -> list[IndexKey]:
        """Return those whose tenants may take a slot."""
        return [
            place for place in self._valid_places(page) if self._slots.check_room(_tenant_of(place))
        ]

    def _valid_places(self, page: Page) -> list[IndexKey]:
        """Return the places of a page, without those that make no sense."""
        places: list[IndexKey] = []
        for entry in page.items:
            place = IndexKey(entry["GSI1PK"], entry["GSI1SK"])
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
