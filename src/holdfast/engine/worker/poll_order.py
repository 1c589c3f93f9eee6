"""The order in which a worker polls the partitions of the due index."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.records.index_keys import DueQueue, shard_of

__all__ = ["PartitionOrder"]


class PartitionOrder:
    """The partitions of the due index that a worker polls, in the order of its next poll.

    Each worker has its own order, so that workers seldom compete for the same runs. A partition
    from which the worker took a run comes last in the next poll, so that a partition that is always
    full does not keep the others waiting.
    """

    def __init__(self, graphs: Iterable[str], pools: Iterable[str | None]) -> None:
        self._graph_pools = [(graph, pool) for graph in graphs for pool in pools]
        self._order_key = ("", 0)
        self._order: list[str] = []

    def partitions(self, worker: str, shards: int) -> list[str]:
        """Return the partitions in the order in which the worker polls them next."""
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
        """Let the next poll begin after a partition from which the worker took a run."""
        turn = self._order.index(partition) + 1
        self._order = self._order[turn:] + self._order[:turn]
