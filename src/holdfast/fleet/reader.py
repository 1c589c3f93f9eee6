"""Reads the rows of workers and runs, and the items of graphs and reviews, for the fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ItemDamaged, JournalDamaged
from holdfast.fleet.coverage import Coverage
from holdfast.records.graph_item import GraphFacts, graph_facts_of
from holdfast.records.head import Head, head_of
from holdfast.records.index_keys import GRAPHS, WORKERS, IndexKey, owned_partition
from holdfast.records.keys import RunKey, graph_key, parsed_int, worker_key
from holdfast.records.review import ReviewKey, StoredReview, stored_review_of
from holdfast.records.worker import WorkerRow, worker_row_of
from holdfast.storage import Key
from holdfast.storage.item import Item

__all__ = ["GRAPHS_MAX", "OWNED_MAX", "FleetReader", "PublishedGraph"]

GRAPHS_MAX = 1_000
"""How many versions of graphs a list shows."""
OWNED_MAX = 1_000
"""How far the runs of a worker are counted."""
_WORKERS_MAX = 5_000
_BATCH = 100
# Items of graphs may be large: 16 of them are less than a page.
_GRAPHS_BATCH = 16
_GRAPHS_AGE_SECONDS_MAX = 60.0


class PublishedGraph(msgspec.Struct, frozen=True):
    """A version of a graph, and what its item says."""

    name: str
    version: int
    facts: GraphFacts


class FleetReader:
    """Reads what the fleet consists of. All its reads count for the purpose ``fleet``."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.table = kernel.store.records("fleet")
        self._graphs: list[PublishedGraph] | None = None
        self._graphs_read_at = 0.0

    async def read_coverage(self) -> Coverage:
        """Return the rows of all workers that live, or are not reaped yet."""
        entries = await self._read_entries(WORKERS, _WORKERS_MAX)
        workers = [worker for entry in entries for worker in self._worker_in(entry)]
        rows = await self._read_workers(workers)
        return Coverage.of(rows, now_ms=self.kernel.clock.now_ms())

    async def with_owners(self, coverage: Coverage, heads: Iterable[Head]) -> Coverage:
        """Return the coverage with the owners of runs that the index does not show for a moment."""
        owners = {head.owner for head in heads if head.owner is not None}
        missing = sorted(owners - coverage.workers.keys())
        if not missing:
            return coverage
        rows = [*coverage.workers.values(), *await self._read_workers(missing)]
        return Coverage.of(rows, now_ms=coverage.now_ms)

    async def count_owned(self, worker: str) -> int:
        """Return how many runs name a worker as their owner, at most `OWNED_MAX`."""
        page = await self.table.query(owned_partition(worker), index="GSI1", limit=OWNED_MAX)
        return len(page.items)

    async def read_graphs(self, *, cached: bool = False) -> list[PublishedGraph]:
        """Return every graph and version that was published, by name and version.

        ``cached`` permits what this process read within the last minute.
        """
        now = self.kernel.clock.monotonic()
        is_fresh = now - self._graphs_read_at < _GRAPHS_AGE_SECONDS_MAX
        if cached and is_fresh and self._graphs is not None:
            return self._graphs
        entries = await self._read_entries(GRAPHS, GRAPHS_MAX)
        named = [graph for entry in entries for graph in self._graph_in(entry)]
        keys = [graph_key(*graph) for graph in named]
        found: list[PublishedGraph] = []
        for start in range(0, len(keys), _GRAPHS_BATCH):
            batch = slice(start, start + _GRAPHS_BATCH)
            for graph, item in zip(named[batch], await self._get_many(keys[batch]), strict=True):
                if item is not None:
                    try:
                        found.append(PublishedGraph(*graph, graph_facts_of(item)))
                    except JournalDamaged as error:
                        self.kernel.note_damage(item, error)
        self._graphs, self._graphs_read_at = found, now
        return found

    async def read_heads(self, runs: Sequence[RunKey]) -> list[Head]:
        """Return the rows of runs; those that are gone or cannot be read are left out."""
        heads: list[Head] = []
        for item in await self._get_many([run.head for run in runs]):
            if item is not None:
                try:
                    heads.append(head_of(item))
                except JournalDamaged as error:
                    self.kernel.note_damage(item, error)
        return heads

    async def read_reviews(self, keys: Sequence[ReviewKey]) -> list[StoredReview]:
        """Return the entries of reviews; those that are gone or cannot be read are left out."""
        reviews: list[StoredReview] = []
        for item in await self._get_many([key.entry for key in keys]):
            if item is not None:
                try:
                    reviews.append(stored_review_of(item))
                except JournalDamaged as error:
                    self.kernel.note_damage(item, error)
        return reviews

    async def read_current_head(self, run: RunKey) -> Head | None:
        """Return the row of a run with a consistent read; None if it is gone or cannot be read."""
        try:
            item = await self.table.get(run.head)
            return None if item is None else head_of(item)
        except (ItemDamaged, JournalDamaged):
            return None

    async def _read_workers(self, workers: Sequence[str]) -> list[WorkerRow]:
        rows: list[WorkerRow] = []
        for item in await self._get_many([worker_key(worker) for worker in workers]):
            if item is not None:
                try:
                    row = worker_row_of(item)
                except JournalDamaged as error:
                    self.kernel.note_damage(item, error)
                else:
                    rows += [] if row is None else [row]
        return rows

    async def _get_many(self, keys: Sequence[Key]) -> list[Item | None]:
        items: list[Item | None] = []
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            try:
                items += await self.table.get_many(batch, eventual=True)
            except ItemDamaged:  # one of them: the others can be read
                items += [await self._get(key) for key in batch]
        return items

    async def _get(self, key: Key) -> Item | None:
        try:
            return await self.table.get(key, eventual=True)
        except ItemDamaged:
            return None

    async def _read_entries(self, partition: str, limit: int) -> list[Item]:
        """Return the first entries of a partition of the due index."""
        entries: list[Item] = []
        cursor: str | None = None
        while len(entries) < limit:
            room = min(limit - len(entries), 1_000)
            page = await self.table.query(partition, index="GSI1", limit=room, cursor=cursor)
            entries += page.items
            cursor = page.cursor
            if cursor is None:
                break
        return entries

    def _worker_in(self, entry: Item) -> list[str]:
        try:
            return [IndexKey(entry["GSI1PK"], entry["GSI1SK"]).worker_parts()[1]]
        except ValueError as error:
            self.kernel.note_damage(entry, error)
            return []

    def _graph_in(self, entry: Item) -> list[tuple[str, int]]:
        try:
            name, version = entry["GSI1SK"].split("#")
            return [(name, parsed_int(version))]
        except ValueError as error:
            self.kernel.note_damage(entry, error)
            return []
