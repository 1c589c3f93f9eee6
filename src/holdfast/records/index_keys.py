"""The keys of the two indexes of the table.

``GSI1``, the due index:

================================ ================================================ =================
``DUE#{graph}#{shard:03}``       ``{due_ms:013}#{tenant}#{id}#{epoch}``           runs to claim
``OWN#{worker}``                 ``{graph}#{shard:03}#{tenant}#{id}#{epoch}``     claimed runs
``WORKERS``                      ``{due_ms:013}#{id}``                            leases of workers
``REAPED``                       ``{reaped_ms:013}#{id}``                         dead workers
``APIKEYS``                      ``{tenant}#{created_ms:013}#{id}``               API keys
``BULKS``                        ``{due_ms:013}#{tenant}#{id}``                   bulk jobs to claim
``HOOKS#{shard:02}``             ``{due_ms:013}#{tenant}#{id}#{generation}#{webhook}``  webhooks
``NOTICES#{shard:02}``           ``{due_ms:013}#{tenant}#{id}#{generation}#{review}``   notices
``UPLOADS``                      ``{due_ms:013}#{tenant}#{id}``                   uploads to sweep
``GRAPHS``                       ``{name}#{version:08}``                          known graphs
================================ ================================================ =================

For a run in a named pool ``{graph}`` is ``{graph}@{pool}``. A key contains the epoch, so that a
conditional write that compares the whole key never succeeds twice.

``GSI2``, the lists: ``RUNS#{tenant}#{shard:02}`` and, for failed and quarantined runs,
``TROUBLE#{tenant}#{shard:02}``, both sorted by ``{created_ms:013}#{id}``. Ambiguous calls are in
``CALLS#{tenant}``, sorted by ``{since_ms:013}#{run id}#{call id}``. Deliveries of webhooks are in
``HOOKED#{tenant}#{webhook}``, sorted by ``{updated_ms:013}#{run id}#{generation}``. Pending reviews
are in ``REVIEWS#{tenant}#{shard:02}``, sorted by ``{created_ms:013}#{run id}#{review}``, decided
ones in ``REVIEWED#{tenant}#{shard:02}`` by the time of the decision.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from holdfast.records.keys import SORTS_LAST, RunKey, parsed_int
from holdfast.storage import Between, From, UpTo

__all__ = [
    "API_KEYS",
    "GRAPHS",
    "REAPED",
    "WORKERS",
    "DueQueue",
    "IndexKey",
    "call_index_key",
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
API_KEYS = "APIKEYS"
GRAPHS = "GRAPHS"
_TIME_MS_MAX = 9_999_999_999_999


class DueQueue(NamedTuple):
    """The queue of the due index in which workers find a run. It never changes."""

    graph: str
    pool: str | None
    """None is the default pool."""
    shard: int

    @property
    def name(self) -> str:
        # The name of a graph has no "@".
        kind = self.graph if self.pool is None else f"{self.graph}@{self.pool}"
        return f"{kind}#{self.shard:03d}"

    @property
    def partition(self) -> str:
        """The partition of runs to claim."""
        return f"DUE#{self.name}"

    @classmethod
    def parsed(cls, kind: str, shard: str) -> DueQueue:
        """Return the queue from the two parts of its name."""
        graph, _, pool = kind.partition("@")
        return cls(graph, pool or None, parsed_int(shard))


class IndexKey(NamedTuple):
    """The key of a row in the due index."""

    pk: str
    sk: str

    @classmethod
    def due(cls, queue: DueQueue, due_ms: int, run: RunKey, epoch: int) -> IndexKey:
        """Return the key of a run that can be claimed from a time."""
        moment = min(max(due_ms, 0), _TIME_MS_MAX)
        return cls(queue.partition, f"{moment:013d}#{run.tenant}#{run.id}#{epoch}")

    @classmethod
    def owned(cls, worker: str, queue: DueQueue, run: RunKey, epoch: int) -> IndexKey:
        """Return the key of a run that a worker owns."""
        return cls(owned_partition(worker), f"{queue.name}#{run.tenant}#{run.id}#{epoch}")

    @classmethod
    def worker(cls, worker: str, due_ms: int) -> IndexKey:
        """Return the key of a worker whose lease ends, or that is to be reaped, at a time."""
        return cls(WORKERS, f"{due_ms:013d}#{worker}")

    @classmethod
    def reaped_worker(cls, worker: str, reaped_ms: int) -> IndexKey:
        """Return the key of a dead worker whose runs were re-queued at a time."""
        return cls(REAPED, f"{reaped_ms:013d}#{worker}")

    @classmethod
    def graph(cls, name: str, version: int) -> IndexKey:
        """Return the key of a version of a graph in the list of all graphs."""
        return cls(GRAPHS, f"{name}#{version:08d}")

    def owned_parts(self) -> tuple[DueQueue, RunKey, int]:
        """Return the queue, the run and the epoch of an owned run."""
        kind, shard, tenant, id, epoch = self.sk.split("#")
        return DueQueue.parsed(kind, shard), RunKey(tenant, id), parsed_int(epoch)

    def due_queue(self) -> DueQueue:
        """Return the queue of a run to claim."""
        _, kind, shard = self.pk.split("#")
        return DueQueue.parsed(kind, shard)

    def due_parts(self) -> tuple[int, RunKey, int]:
        """Return the due time, the run and the epoch of a run to claim."""
        due_ms, tenant, id, epoch = self.sk.split("#")
        return parsed_int(due_ms), RunKey(tenant, id), parsed_int(epoch)

    def worker_parts(self) -> tuple[int, str]:
        """Return the time and the worker of a live or reaped worker."""
        due_ms, worker = self.sk.split("#")
        return parsed_int(due_ms), worker


def owned_partition(worker: str) -> str:
    """Return the partition of the runs that a worker owns."""
    return f"OWN#{worker}"


def due_by(now_ms: int) -> UpTo:
    """Return the range of keys that are due by a time."""
    # No key is a bare time, so the range includes the current millisecond.
    return UpTo(f"{now_ms + 1:013d}")


def due_after(after_ms: int) -> From:
    """Return the range of keys that are due after a time."""
    return From(f"{after_ms + 1:013d}")


def reaped_between(cursor: str, until_ms: int) -> Between | None:
    """Return the range of workers reaped after a cursor and by a time; None if it is empty."""
    # No key sorts between the cursor and the cursor with this suffix.
    first, last = f"{cursor}{SORTS_LAST}", f"{max(until_ms, 0) + 1:013d}"
    return Between(first, last) if first <= last else None


def calls_partition(tenant: str) -> str:
    """Return the partition of the ambiguous calls of a tenant."""
    return f"CALLS#{tenant}"


def call_index_key(since_ms: int, run: str, call: str) -> str:
    """Return the sort key of an ambiguous call in its list."""
    return f"{since_ms:013d}#{run}#{call}"


def list_index_key(run: RunKey, created_ms: int, shards: int, *, trouble: bool) -> tuple[str, str]:
    """Return the key of a run in the lists; failed and quarantined runs have their own."""
    kind = "TROUBLE" if trouble else "RUNS"
    shard = shard_of(run.id, shards)
    return list_partition(kind, run.tenant, shard), f"{created_ms:013d}#{run.id}"


def listed_ms(sk: str) -> int:
    """Return the time in the sort key of a list entry."""
    return parsed_int(sk.split("#")[0])


def list_partition(kind: str, tenant: str, shard: int) -> str:
    """Return one of the partitions of a tenant's list of runs."""
    return f"{kind}#{tenant}#{shard:02d}"


def shard_of(name: str, shards: int) -> int:
    """Return the shard of a name."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % shards


def shard_of_run(run: RunKey, shards: int) -> int:
    """Return the shard of a new run in the due index: one of two shards of its tenant.

    Two tenants rarely have the same two shards. So a flood of runs of one tenant leaves at least
    one shard free for almost every other tenant, and both for most of them.
    """
    digest = hashlib.blake2b(run.tenant.encode(), digest_size=8).digest()
    first = int.from_bytes(digest[:4], "big") % shards
    if shards == 1 or shard_of(run.id, 2) == 0:
        return first
    # One of the others, with equal probability.
    return (first + 1 + int.from_bytes(digest[4:], "big") % (shards - 1)) % shards
