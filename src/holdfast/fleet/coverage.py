"""Which live worker serves which graph and pool: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.records.worker import WorkerRow

__all__ = ["Coverage"]

# A worker takes runs of one tenant up to seven eighths of its slots.
_FULL_EIGHTHS = 7


class Coverage(msgspec.Struct, frozen=True):
    """The rows of all workers at a time."""

    workers: dict[str, WorkerRow]
    now_ms: int

    @classmethod
    def of(cls, rows: Iterable[WorkerRow], *, now_ms: int) -> Coverage:
        """Return what these rows of workers cover."""
        return cls({row.id: row for row in rows}, now_ms)

    def is_alive(self, row: WorkerRow) -> bool:
        """Return whether the lease of a worker has not ended."""
        return not row.buried and row.deadline_ms > self.now_ms

    @property
    def live(self) -> list[WorkerRow]:
        """The workers that live."""
        return [row for row in self.workers.values() if self.is_alive(row)]

    def serving(self, graph: str, pool: str | None) -> list[WorkerRow]:
        """Return the live workers that claim runs of a graph from a pool, or may do so."""
        return [
            row
            for row in self.live
            if (graph in row.offer.graphs and pool in row.offer.pools) or not row.offer.complete
        ]

    def pools(self, graph: str) -> list[str | None]:
        """Return the pools from which live workers claim runs of a graph."""
        named = [row.offer.pools for row in self.live if graph in row.offer.graphs]
        return list(dict.fromkeys(pool for pools in named for pool in pools))

    def newest(self, graph: str, serving: Sequence[WorkerRow]) -> int | None:
        """Return the newest version that these workers have; None if that is not known."""
        if any(graph not in row.offer.graphs for row in serving):
            return None
        return max((max(row.offer.graphs[graph]) for row in serving), default=None)

    @staticmethod
    def are_full(serving: Sequence[WorkerRow]) -> bool:
        """Return whether none of these workers has a slot for every tenant."""
        return all(
            row.running is not None
            and row.concurrency is not None
            and 8 * row.running >= _FULL_EIGHTHS * row.concurrency
            for row in serving
        )
