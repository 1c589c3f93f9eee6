"""Where a worker looks for work, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.records.index_keys import DueQueue, shard_of

__all__ = ["PartitionOrder"]


class PartitionOrder:
    """The partitions of the due index that a worker looks at, round after round.

    Each worker has an order of its own, so that workers do not meet too often. Whoever was served
    last comes last in the next round: a partition that is always full keeps nobody waiting.
    """

    def __init__(self, graphs: Iterable[str], pools: Iterable[str | None]) -> None:
        self._graph_pools = [(graph, pool) for graph in graphs for pool in pools]
        self._order_key = ("", 0)
        self._order: list[str] = []

    def partitions(self, worker: str, shards: int) -> list[str]:
        """Return where the worker of that name looks now, the next first."""
        if self._order_key != (worker, shards):
            self._order_key = (worker, shards)
            every = [
                DueQueue(graph, pool, shard).partition
                for graph, pool in self._graph_pools
                for shard in range(shards)
            ]
            self._order = sorted(every, key=lambda name: shard_of(f"{worker}#{name}", 2**32))
        return self._order

    def rotate_past(self, partition: str) -> None:
        """Let the next round begin behind a partition from which something was taken."""
        turn = self._order.index(partition) + 1
        self._order = self._order[turn:] + self._order[:turn]
