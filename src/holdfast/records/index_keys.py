"""Keys of the two indexes: when a row is due, and where lists find it."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from holdfast.records.keys import SORTS_LAST, RunKey, parsed_int
from holdfast.storage import Between, From, UpTo

__all__ = [
    "REAPED",
    "WORKERS",
    "DueQueue",
    "IndexKey",
    "calls_partition",
    "due_after",
    "due_by",
    "list_index_key",
    "list_partition",
    "listed_ms",
    "owned_partition",
    "reaped_between",
    "shard_of",
    "shard_of_run",
]

WORKERS = "WORKERS"
REAPED = "REAPED"
_TIME_MS_MAX = 9_999_999_999_999


class DueQueue(NamedTuple):
    """Which workers can take a run, and in which shard they look for it; it never changes."""

    graph: str
    pool: str | None
    """None is the pool without a name."""
    shard: int

    @property
    def name(self) -> str:
        # The name of a graph has no "@".
        kind = self.graph if self.pool is None else f"{self.graph}@{self.pool}"
        return f"{kind}#{self.shard:03d}"

    @property
    def partition(self) -> str:
        """The partition in which its runs are due."""
        return f"DUE#{self.name}"

    @classmethod
    def parsed(cls, kind: str, shard: str) -> DueQueue:
        """Return the queue that the two parts of a name are."""
        graph, _, pool = kind.partition("@")
        return cls(graph, pool or None, parsed_int(shard))


class IndexKey(NamedTuple):
    """Where a row stands in the due index."""

    pk: str
    sk: str

    @classmethod
    def due(cls, queue: DueQueue, due_ms: int, run: RunKey, epoch: int) -> IndexKey:
        """Return the place of a run that is to be claimed at a time."""
        moment = min(max(due_ms, 0), _TIME_MS_MAX)
        return cls(queue.partition, f"{moment:013d}#{run.tenant}#{run.id}#{epoch}")

    @classmethod
    def owned(cls, worker: str, queue: DueQueue, run: RunKey, epoch: int) -> IndexKey:
        """Return the place of a run that a worker holds."""
        return cls(owned_partition(worker), f"{queue.name}#{run.tenant}#{run.id}#{epoch}")

    @classmethod
    def worker(cls, worker: str, due_ms: int) -> IndexKey:
        """Return the place of a worker whose lease ends, or that is to be reaped, at a time."""
        return cls(WORKERS, f"{due_ms:013d}#{worker}")

    @classmethod
    def reaped_worker(cls, worker: str, reaped_ms: int) -> IndexKey:
        """Return the place of a dead worker whose runs were re-queued at a time."""
        return cls(REAPED, f"{reaped_ms:013d}#{worker}")

    def owned_parts(self) -> tuple[DueQueue, RunKey, int]:
        """Return queue, run and epoch of the place of a run that a worker holds."""
        kind, shard, tenant, id, epoch = self.sk.split("#")
        return DueQueue.parsed(kind, shard), RunKey(tenant, id), parsed_int(epoch)

    def due_queue(self) -> DueQueue:
        """Return the queue of the place of a run that is to be claimed."""
        _, kind, shard = self.pk.split("#")
        return DueQueue.parsed(kind, shard)

    def due_parts(self) -> tuple[int, RunKey, int]:
        """Return time, run and epoch of the place of a run that is to be claimed."""
        due_ms, tenant, id, epoch = self.sk.split("#")
        return parsed_int(due_ms), RunKey(tenant, id), parsed_int(epoch)

    def worker_parts(self) -> tuple[int, str]:
        """Return time and worker of a worker's place, alive or reaped."""
        due_ms, worker = self.sk.split("#")
        return parsed_int(due_ms), worker


def owned_partition(worker: str) -> str:
    """Return the partition of what a worker holds."""
    return f"OWN#{worker}"


def due_by(now_ms: int) -> UpTo:
    """Return the range of what is due by now."""
    # No key is a bare time, so this takes in everything of the current millisecond.
    return UpTo(f"{now_ms + 1:013d}")


def due_after(after_ms: int) -> From:
    """Return the range of what is due only after a time."""
    return From(f"{after_ms + 1:013d}")


def reaped_between(cursor: str, until_ms: int) -> Between | None:
    """Return the range of workers reaped after a cursor and by a time; None where it is empty."""
    # Nothing sorts between a place and the same with the last letter behind it.
    first, last = f"{cursor}{SORTS_LAST}", f"{max(until_ms, 0) + 1:013d}"
    return Between(first, last) if first <= last else None


def calls_partition(tenant: str) -> str:
    """Return the partition in which a tenant's ambiguous calls are listed."""
    return f"CALLS#{tenant}"


def list_index_key(run: RunKey, created_ms: int, shards: int, *, trouble: bool) -> tuple[str, str]:
    """Return where lists find a run: by time, and apart if it is in trouble."""
    kind = "TROUBLE" if trouble else "RUNS"
    shard = shard_of(run.id, shards)
    return list_partition(kind, run.tenant, shard), f"{created_ms:013d}#{run.id}"


def listed_ms(sk: str) -> int:
    """Return since when an entry stands in a list: that is where its place begins."""
    return parsed_int(sk.split("#")[0])


def list_partition(kind: str, tenant: str, shard: int) -> str:
    """Return one of the partitions in which a tenant's runs are listed."""
    return f"{kind}#{tenant}#{shard:02d}"


def shard_of(name: str, shards: int) -> int:
    """Return a shard for a name, always the same."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % shards


def shard_of_run(run: RunKey, shards: int) -> int:
    """Return the shard in which a new run is due: one of the two that its tenant uses.

    Two tenants seldom use the same two. So a flood of one leaves to nearly every other one at least
    one shard, and to most of them both.
    """
    digest = hashlib.blake2b(run.tenant.encode(), digest_size=8).digest()
    first = int.from_bytes(digest[:4], "big") % shards
    if shards == 1 or shard_of(run.id, 2) == 0:
        return first
    # One of the others, each as likely as the next.
    return (first + 1 + int.from_bytes(digest[4:], "big") % (shards - 1)) % shards
