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
from holdfast.records.blob_keys import AnswerBlob, RunBlobs, answer_blob_of, run_blobs_of
from holdfast.records.head import is_past_ttl
from holdfast.storage import Blobs, Table

__all__ = ["sweep_blobs"]

_CONCURRENT_MAX = 16

Verdict: TypeAlias = Literal["kept", "young", "freed"]
BlobOwner: TypeAlias = RunBlobs | AnswerBlob


async def sweep_blobs(
    kernel: Kernel, *, older_than_ms: int, dry_run: bool
) -> AsyncGenerator[SweepProgress, None]:
    """Delete the blobs of runs that are gone, and what crashes left; yield how far it is.

    Cut short it has done a part, and done again it does the rest.

    Raises:
        StoreUnavailable: the store did not answer for a while.
        StoreUnusable: it has no room for blobs, its names do not tell whose they are, or somebody
            has to mend it.
    """
    sweep = _BlobSweep(kernel, older_than_ms, dry_run=dry_run)
    if not await kernel.retry_while_unavailable(sweep.blobs.probe_exact_keys):
        raise StoreUnusable(
            "the blobs lie on a file system that does not tell capitals from small letters, and "
            "were put there by an older release: nothing says whose they are, so none is deleted. "
            "holdfast store backup and restore put them into a new folder, which can be swept"
        )
    progress = SweepProgress()
    last: BlobOwner | None = None
    cursor: str | None = None
    while True:
        page = await kernel.retry_while_unavailable(partial(sweep.blobs.list, after=cursor))
        owners = [_owner_of(entry.key) for entry in page.entries]
        # In the order of their keys: those of one run may only go on from the page before.
        found = dict.fromkeys(owner for owner in owners if owner not in (None, last))
        counts = await sweep.sweep_owners(owner for owner in found if owner is not None)
        counts.update(blobs=len(owners), foreign=owners.count(None))
        progress = _with_counts(progress, counts)
        last = next((owner for owner in reversed(owners) if owner is not None), last)
        yield progress
        cursor = page.cursor
        if cursor is None:
            break
    if not dry_run:
        yield _with_counts(progress, Counter(leftovers=await sweep.remove_leftovers()))


class _BlobSweep:
    """One sweep: what is old enough for it, and what it does."""

    def __init__(self, kernel: Kernel, older_than_ms: int, *, dry_run: bool) -> None:
        self._kernel = kernel
        self._now_ms = kernel.clock.now_ms()
        self._before_ms = self._now_ms - older_than_ms
        self._dry_run = dry_run
        self._rows: Table = kernel.store.table.with_purpose("sweep")
        self.blobs: Blobs = kernel.store.blobs.with_purpose("sweep")

    async def sweep_owners(self, owners: Iterable[BlobOwner]) -> Counter[str]:
        """Look at whose blobs they are, a few at a time; return what became of how many."""
        counts: Counter[str] = Counter()
        all_owners = list(owners)
        for start in range(0, len(all_owners), _CONCURRENT_MAX):
            chunk = all_owners[start : start + _CONCURRENT_MAX]
            for owner_counts in await asyncio.gather(*map(self._sweep_owner, chunk)):
                counts.update(owner_counts)
        return counts

    async def remove_leftovers(self) -> int:
        """Remove what crashes left behind that is no blob; return how much there was."""
        return await self._kernel.retry_while_unavailable(
            partial(self.blobs.remove_leftovers, before_ms=self._before_ms)
        )

    async def _sweep_owner(self, owner: BlobOwner) -> Counter[str]:
        verdict = await self._kernel.retry_while_unavailable(partial(self._judge, owner))
        deleted = 0
        if verdict == "freed":
            deleted = await self._kernel.retry_while_unavailable(partial(self._free_blobs, owner))
        return Counter({verdict: 1, "deleted": deleted})

    async def _judge(self, owner: BlobOwner) -> Verdict:
        if owner.made_ms >= self._before_ms:
            return "young"
        try:
            is_run = isinstance(owner, RunBlobs)
            is_kept = await (self._is_run_kept(owner) if is_run else self._is_answer_kept(owner))
        except (ItemDamaged, JournalDamaged, KeyError, TypeError):
            return "kept"  # what cannot be read may name them
        return "kept" if is_kept else "freed"

    async def _is_run_kept(self, run: RunBlobs) -> bool:
        # Consistently: an old answer could show the row of a run before this one.
        item = await self._rows.get(run.key.head)
        return (
            item is not None
            and item["generation"] == run.generation
            and not item.get("freed", False)
            and not is_past_ttl(item, self._now_ms)
        )

    async def _is_answer_kept(self, answer: AnswerBlob) -> bool:
        item = await self._rows.get(answer.key)
        return item is not None and item["id"] == answer.id and item["until_ms"] > self._now_ms

    async def _free_blobs(self, owner: BlobOwner) -> int:
        """Delete what nothing names, or in a dry run only count it; return how much it was."""
        if isinstance(owner, RunBlobs):
            return await (self._count_blobs if self._dry_run else self.blobs.delete_all)(
                owner.prefix
            )
        if not self._dry_run:
            await self.blobs.delete(owner.blob_key)
        return 1

    async def _count_blobs(self, prefix: str) -> int:
        count = 0
        cursor: str | None = None
        while True:
            page = await self.blobs.list(prefix, after=cursor)
            count += len(page.entries)
            cursor = page.cursor
            if cursor is None:
                return count


def _with_counts(progress: SweepProgress, counts: Counter[str]) -> SweepProgress:
    totals = Counter(msgspec.structs.asdict(progress)) + counts
    return SweepProgress(**totals)


def _owner_of(blob_key: str) -> BlobOwner | None:
    return run_blobs_of(blob_key) or answer_blob_of(blob_key)
