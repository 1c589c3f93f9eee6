"""How many chunks of a map the workers of this process keep, and how many they leave to others.

A worker that ends a chunk may run the next one of the lane at once, which saves a claim. But then
the lanes would stay where they began. So a process keeps its share of the lanes, by the number of
live workers, and further chunks are due for every worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.records.keys import RunKey

__all__ = ["ChunkShares"]

_AGE_SECONDS_MAX = 30.0


class ChunkShares:
    """Counts the chunks that this process runs, and remembers the number of live workers."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], set[RunKey]] = {}
        self._workers = 1
        self._counted_at: float | None = None

    def add(self, generation: str, map: str, run: RunKey) -> None:
        """Count a chunk that a worker of this process has begun to run."""
        self._running.setdefault((generation, map), set()).add(run)

    def discard(self, generation: str, map: str, run: RunKey) -> None:
        """Stop counting a chunk: it has ended, or another process runs it."""
        running = self._running.get((generation, map), set())
        running.discard(run)
        if not running:
            self._running.pop((generation, map), None)

    def running(self, generation: str, map: str) -> int:
        """Return how many chunks of a map this process runs."""
        return len(self._running.get((generation, map), ()))

    async def share(
        self, lanes: int, *, now: float, count_workers: Callable[[], Awaitable[int]]
    ) -> int:
        """Return how many of so many lanes this process keeps; ``now`` is monotonic."""
        if self._counted_at is None or now - self._counted_at >= _AGE_SECONDS_MAX:
            self._counted_at = now  # the first caller asks for all
            self._workers = max(await count_workers(), 1)
        return -(-lanes // self._workers)
