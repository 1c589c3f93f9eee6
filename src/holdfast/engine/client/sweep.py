"""Deletes orphaned blobs, which no item names.

A blob is written before the item that names it, so a process that dies between the two leaves an
orphan. So does a row that its ttl deletes before its blobs were deleted. All blobs of a run are
below one prefix with the run's generation in it, and a generation is never used again. So a prefix
is orphaned for good if its generation is old and not in the run's row. The blobs of a document are
below a prefix with the document's generation. A shared answer is orphaned if its item names another
blob, or is gone.
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
from holdfast.records.blob_keys import (
    AnswerBlob,
    DocumentBlobs,
    RunBlobs,
    answer_blob_of,
    document_blobs_of,
    run_blobs_of,
)
from holdfast.records.document import is_there
from holdfast.records.document_keys import pointer_key
from holdfast.records.head import is_past_ttl
from holdfast.storage import Blobs, Table

__all__ = ["sweep_blobs"]

_CONCURRENT_MAX = 16

Verdict: TypeAlias = Literal["kept", "young", "freed"]
BlobOwner: TypeAlias = RunBlobs | AnswerBlob | DocumentBlobs


async def sweep_blobs(
    kernel: Kernel, *, older_than_ms: int, dry_run: bool
) -> AsyncGenerator[SweepProgress, None]:
    """Delete orphaned blobs and leftovers of crashes; yield the progress.

    An interrupted sweep can simply be started again.

    Raises:
        StoreUnavailable: the store did not answer for a while.
        StoreUnusable: the store has no blobs, its file names do not tell the owner of a blob, or
            it needs an operator.
    """
    sweep = _BlobSweep(kernel, older_than_ms, dry_run=dry_run)
    if not await kernel.retry_while_unavailable(sweep.blobs.probe_exact_keys):
        raise StoreUnusable(
            "the blobs are on a file system that ignores case, and an older release wrote them: "
            "their names do not tell their owners, so none is deleted. Move them to a new folder "
            "with holdfast store backup and restore, and sweep that"
        )
    progress = SweepProgress()
    last: BlobOwner | None = None
    cursor: str | None = None
    while True:
        page = await kernel.retry_while_unavailable(partial(sweep.blobs.list, after=cursor))
        owners = [_owner_of(entry.key) for entry in page.entries]
        # Keys are sorted, so only the first owner of a page can continue from the page before.
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
    """One sweep: its age limit, and its actions."""

    def __init__(self, kernel: Kernel, older_than_ms: int, *, dry_run: bool) -> None:
        self._kernel = kernel
        self._now_ms = kernel.clock.now_ms()
        self._before_ms = self._now_ms - older_than_ms
        self._dry_run = dry_run
        self._rows: Table = kernel.store.table.with_purpose("sweep")
        self.blobs: Blobs = kernel.store.blobs.with_purpose("sweep")

    async def sweep_owners(self, owners: Iterable[BlobOwner]) -> Counter[str]:
        """Sweep the blobs of these owners, a few at a time; return the counts of the outcomes."""
        counts: Counter[str] = Counter()
        all_owners = list(owners)
        for start in range(0, len(all_owners), _CONCURRENT_MAX):
            chunk = all_owners[start : start + _CONCURRENT_MAX]
            for owner_counts in await asyncio.gather(*map(self._sweep_owner, chunk)):
                counts.update(owner_counts)
        return counts

    async def remove_leftovers(self) -> int:
        """Remove leftovers of crashes that are not blobs; return how many there were."""
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
            is_kept = await self._is_kept(owner)
        except (ItemDamaged, JournalDamaged, KeyError, TypeError):
            return "kept"  # a damaged item may name them
        return "kept" if is_kept else "freed"

    async def _is_kept(self, owner: BlobOwner) -> bool:
        match owner:
            case RunBlobs():
                return await self._is_run_kept(owner)
            case AnswerBlob():
                return await self._is_answer_kept(owner)
            case DocumentBlobs():
                return await self._is_document_kept(owner)

    async def _is_run_kept(self, run: RunBlobs) -> bool:
        # A consistent read: a stale one could show the row of an earlier run.
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

    async def _is_document_kept(self, document: DocumentBlobs) -> bool:
        item = await self._rows.get(pointer_key(document.tenant, document.document))
        # While it is being deleted, the delete removes its blobs; it may have stopped after that.
        return (
            item is not None
            and item["generation"] == document.generation
            and is_there(item, self._now_ms)
        )

    async def _free_blobs(self, owner: BlobOwner) -> int:
        """Delete orphaned blobs, or only count them in a dry run; return how many there were."""
        if not isinstance(owner, AnswerBlob):
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
    return run_blobs_of(blob_key) or answer_blob_of(blob_key) or document_blobs_of(blob_key)
