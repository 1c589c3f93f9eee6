"""Looks through the due index, and claims what is to be had there, fairly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.worker.poll_order import Rounds
from holdfast.engine.worker.slots import Slots
from holdfast.records.keys import Place, due_until
from holdfast.storage import Page, UpTo

__all__ = ["Scan"]

_CLAIMS_AT_ONCE = 16
_READS_AT_ONCE = 16
_PAGE_MIN = 20


class Scan:
    """One worker's looks through the due index."""

    def __init__(
        self,
        kernel: Kernel,
        rounds: Rounds,
        slots: Slots,
        *,
        claim: Callable[[Place], Awaitable[bool]],
        may_claim: Callable[[], bool],
    ) -> None:
        """Take in how a run that was seen at a place is claimed; it says whether it was."""
        self._kernel = kernel
        self._rounds = rounds
        self._slots = slots
        self._claim = claim
        self._may_claim = may_claim

    async def claim(self, partitions: Sequence[str]) -> int:
        """Claim what is due, each partition in its turn; return how much that was.

        A partition that cannot be read, since a flood throttles it perhaps, hides no other one.
        """
        until = due_until(self._kernel.clock.now_ms())
        found, trouble = 0, None
        for start in range(0, len(partitions), _READS_AT_ONCE):
            batch = partitions[start : start + _READS_AT_ONCE]
            # Read side by side: most are empty, and the way there is long.
            reads = (self._page(partition, until) for partition in batch)
            pages = await asyncio.gather(*reads, return_exceptions=True)
            for partition, page in zip(batch, pages, strict=True):
                if isinstance(page, BaseException):
                    trouble = page
                    continue
                if self._slots.free <= 0:
                    return found
                claimed = await self._claim_from(partition, until, page)
                if claimed:
                    self._rounds.served(partition)
                found += claimed
        if trouble is not None:
            raise trouble
        return found

    async def _page(
        self, partition: str, until: UpTo, *, cursor: str | None = None, forward: bool = True
    ) -> Page:
        limit = max(self._slots.free, _PAGE_MIN)
        return await self._kernel.due.query(
            partition, until, index="GSI1", limit=limit, cursor=cursor, forward=forward
        )

    async def _claim_from(self, partition: str, until: UpTo, page: Page) -> int:
        """Claim what is due there; page on past what cannot be claimed. Return how much was."""
        while True:
            fair = self._fair(page)
            found = await self._claim_all(fair)
            # Not past a page that is all of tenants who hold too much: a flood has many pages.
            crowded = bool(page.items) and not fair
            if found or page.cursor is None or crowded or not self._may_claim():
                break
            page = await self._page(partition, until, cursor=page.cursor)
        if page.cursor is not None and self._slots.free > 0 and self._may_claim():
            # What others have there since a flood came stands at its other end.
            newest = await self._page(partition, until, forward=False)
            crowd = {_tenant(place) for place in self._places(page)}
            rest = [place for place in self._fair(newest) if _tenant(place) not in crowd]
            found += await self._claim_all(rest)
        return found

    async def _claim_all(self, places: Sequence[Place]) -> int:
        """Claim as many as there is room for; return how many that were."""
        found = 0
        while places and self._slots.free > 0:
            # No more at once than there is room for: who is refused since another one is being
            # tried would have to wait, though that one may come to nothing.
            many = min(self._slots.free, _CLAIMS_AT_ONCE)
            found += sum(await asyncio.gather(*(self._claim(place) for place in places[:many])))
            places = places[many:]
        return found

    def _fair(self, page: Page) -> list[Place]:
        """Return those whose tenants may take a slot."""
        return [place for place in self._places(page) if self._slots.admits(_tenant(place))]

    def _places(self, page: Page) -> list[Place]:
        """Return the places of a page, without those that make no sense."""
        places: list[Place] = []
        for entry in page.items:
            place = Place(entry["GSI1PK"], entry["GSI1SK"])
            try:
                place.due_parts()
                place.due_queue()
            except ValueError as error:
                self._kernel.note_damage(entry, error)
            else:
                places.append(place)
        return places


def _tenant(place: Place) -> str:
    return place.due_parts()[1].tenant
