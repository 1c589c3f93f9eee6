"""Frees the blobs that nothing names: what a worker or a start that died has left behind.

A blob is written before the item that names it, so whoever dies between the two leaves a blob that
nobody finds; so does a row that its ttl deletes before its blobs were freed. Everything that a run
keeps lies below one prefix with the run's generation in it, and no generation ever comes back: a
prefix whose generation is old and does not stand in its run's row is nobody's, for good. So is an
answer that runs shared, once its item names another one, or none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Literal, TypeAlias

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ItemDamaged, JournalDamaged, StoreUnusable
from holdfast.model.progress import SweepProgress
from holdfast.records.head import is_over
from holdfast.records.keys import AnswerBlob, RunBlobs, answer_blob_of, run_blobs_of
from holdfast.storage import Blobs, Table

__all__ = ["swept"]

_AT_ONCE = 16

Verdict: TypeAlias = Literal["kept", "young", "freed"]
Owner: TypeAlias = RunBlobs | AnswerBlob


async def swept(
    kernel: Kernel, *, older_than_ms: int, dry_run: bool
) -> AsyncGenerator[SweepProgress, None]:
    """Delete the blobs of runs that are gone, and what crashes left; yield how far it is.

    Cut short it has done a part, and done again it does the rest.

    Raises:
        StoreUnavailable: the store did not answer for a while.
        StoreUnusable: it has no room for blobs, its names do not tell whose they are, or somebody
            has to mend it.
    """
    sweep = _Sweep(kernel, older_than_ms, dry_run=dry_run)
    if not await kernel.persistently(sweep.blobs.tells_names_apart):
        raise StoreUnusable(
            "the blobs lie on a file system that does not tell capitals from small letters, and "
            "were put there by an older release: nothing says whose they are, so none is deleted. "
            "holdfast store backup and restore put them into a new folder, which can be swept"
        )
    progress = SweepProgress()
    last: Owner | None = None
    cursor: str | None = None
    while True:
        page = await kernel.persistently(partial(sweep.blobs.list, after=cursor))
        owners = [_owner_of(entry.key) for entry in page.entries]
        # In the order of their keys: those of one run may only go on from the page before.
        found = dict.fromkeys(owner for owner in owners if owner not in (None, last))
        counts = await sweep.over(owner for owner in found if owner is not None)
        counts.update(blobs=len(owners), foreign=owners.count(None))
        progress = _grown(progress, counts)
        last = next((owner for owner in reversed(owners) if owner is not None), last)
        yield progress
        cursor = page.cursor
        if cursor is None:
            break
    if not dry_run:
        yield _grown(progress, Counter(leftovers=await sweep.tidied()))


class _Sweep:
    """One sweep: what is old enough for it, and what it does."""

    def __init__(self, kernel: Kernel, older_than_ms: int, *, dry_run: bool) -> None:
        self._kernel = kernel
        self._now_ms = kernel.clock.now_ms()
        self._before_ms = self._now_ms - older_than_ms
        self._dry_run = dry_run
        self._rows: Table = kernel.store.table.purpose("sweep")
        self.blobs: Blobs = kernel.store.blobs.purpose("sweep")

    async def over(self, owners: Iterable[Owner]) -> Counter[str]:
        """Look at whose blobs they are, a few at a time; return what became of how many."""
        counts: Counter[str] = Counter()
        every = list(owners)
        for start in range(0, len(every), _AT_ONCE):
            some = every[start : start + _AT_ONCE]
            for each in await asyncio.gather(*map(self._swept, some)):
                counts.update(each)
        return counts

    async def tidied(self) -> int:
        """Remove what crashes left behind that is no blob; return how much there was."""
        return await self._kernel.persistently(partial(self.blobs.tidy, before_ms=self._before_ms))

    async def _swept(self, owner: Owner) -> Counter[str]:
        verdict = await self._kernel.persistently(partial(self._judged, owner))
        deleted = 0
        if verdict == "freed":
            deleted = await self._kernel.persistently(partial(self._freed, owner))
        return Counter({verdict: 1, "deleted": deleted})

    async def _judged(self, owner: Owner) -> Verdict:
        if owner.made_ms >= self._before_ms:
            return "young"
        try:
            is_run = isinstance(owner, RunBlobs)
            stands = await (self._stands_run(owner) if is_run else self._stands_answer(owner))
        except (ItemDamaged, JournalDamaged, KeyError, TypeError):
            return "kept"  # what cannot be read may name them
        return "kept" if stands else "freed"

    async def _stands_run(self, run: RunBlobs) -> bool:
        # Consistently: an old answer could show the row of a run before this one.
        item = await self._rows.get(run.key.head)
        return (
            item is not None
            and item["generation"] == run.generation
            and not item.get("freed", False)
            and not is_over(item, self._now_ms)
        )

    async def _stands_answer(self, answer: AnswerBlob) -> bool:
        item = await self._rows.get(answer.key)
        return item is not None and item["id"] == answer.id and item["until_ms"] > self._now_ms

    async def _freed(self, owner: Owner) -> int:
        """Delete what nothing names, or in a dry run only count it; return how much it was."""
        if isinstance(owner, RunBlobs):
            return await (self._counted if self._dry_run else self.blobs.delete_all)(owner.prefix)
        if not self._dry_run:
            await self.blobs.delete(owner.blob_key)
        return 1

    async def _counted(self, prefix: str) -> int:
        count = 0
        cursor: str | None = None
        while True:
            page = await self.blobs.list(prefix, after=cursor)
            count += len(page.entries)
            cursor = page.cursor
            if cursor is None:
                return count


def _grown(progress: SweepProgress, counts: Counter[str]) -> SweepProgress:
    grown = Counter(msgspec.structs.asdict(progress)) + counts
    return SweepProgress(**grown)


def _owner_of(blob_key: str) -> Owner | None:
    return run_blobs_of(blob_key) or answer_blob_of(blob_key)
