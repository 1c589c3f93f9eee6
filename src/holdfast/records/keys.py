"""Every key of the product, and nothing but keys.

=================================== ========================================= ======================
partition key                       sort key                                  item
=================================== ========================================= ======================
``RUN#{tenant}#{id}``               ``HEAD``                                  a run's row
the same                            ``J#{generation}#{position:08}``          its journal
the same                            ``J#{generation}#IN#{name}#{signal id}``  its inbox
the same                            ``J#{generation}#~{spool}#{number:08}``   text as it comes
the same                            ``CHILD#{generation}#{child id}``         runs that it starts
the same                            ``CALL#{generation}#{call id}``           calls to be settled
the same                            ``ACCOUNT#{generation}``                  what its family spends
the same                            ``GRANT#{generation}#{run id}``           who was given how much
``LANE#{tenant}#{user}#{session}``  ``LAST``                                  the last number
the same                            ``T#{number:012}``                        a run in its session
``ANSWER#{tenant}#{digest}``        ``ANSWER``                                a shared answer
``WORKER#{id}``                     ``WORKER``                                a worker and its lease
``QUOTA#{tenant}#{name}``           ``QUOTA``                                 how much of it is used
``SETTINGS``                        ``SETTINGS``                              what all must agree on
``REAPING``                         ``REAPING``                               how far re-sweeps are
=================================== ========================================= ======================

A spool is ``{epoch:08}#{id}``: the epoch of whoever wrote it, and a UUIDv7. Text sorts behind the
journal and the inbox, so that whoever resumes a run does not read it, and whoever frees one does.

In ``GSI1``, what is due when:

================================ ================================================ =================
``DUE#{graph}#{shard:03}``       ``{due_ms:013}#{tenant}#{id}#{epoch}``           runs to be claimed
``OWN#{worker}``                 ``{graph}#{shard:03}#{tenant}#{id}#{epoch}``     runs that are
``WORKERS``                      ``{due_ms:013}#{id}``                            leases
``REAPED``                       ``{reaped_ms:013}#{id}``                         dead workers
================================ ================================================ =================

Of a run in a pool of some name, ``{graph}`` is ``{graph}@{pool}`` in both.

In ``GSI2``, what lists show: ``RUNS#{tenant}#{shard:02}`` and, for the rare runs in trouble,
``TROUBLE#{tenant}#{shard:02}``, both under ``{created_ms:013}#{id}``; and the calls of which
somebody has to say what became of them, ``CALLS#{tenant}`` under
``{since_ms:013}#{run id}#{call id}``.

The tenant of a quota is empty where all tenants share it; no tenant has that name.

A generation is a UUIDv7 made when the run is, so that a reused id never reads a dead run's
records. The epoch in an index key lets a conditional write compare the whole place, which then
never comes back.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from holdfast.errors import JournalDamaged
from holdfast.storage import Between, From, Key, Prefix, UpTo

__all__ = [
    "HEAD",
    "PROBE_BLOB",
    "REAPED",
    "REAPING",
    "SETTINGS",
    "WORKERS",
    "AnswerBlob",
    "DueQueue",
    "IndexKey",
    "RunBlobs",
    "RunKey",
    "SessionQueueKey",
    "SpoolKey",
    "account_key",
    "answer_blob_of",
    "answer_key",
    "blob_prefix",
    "call_key",
    "calls_partition",
    "child_key",
    "children_range",
    "due_after",
    "due_by",
    "grant_key",
    "inbox_key",
    "inbox_range",
    "is_inbox",
    "is_record",
    "journal_key",
    "journal_position",
    "journal_range",
    "list_index_key",
    "list_partition",
    "listed_ms",
    "owned_partition",
    "parsed_text_key",
    "quota_key",
    "reaped_between",
    "records_range",
    "run_blobs_of",
    "run_data_range",
    "run_id_of",
    "shard_of",
    "shard_of_run",
    "text_key",
    "text_range",
    "ticket_number",
    "worker_id_of",
    "worker_key",
]

HEAD = "HEAD"
WORKERS = "WORKERS"
REAPED = "REAPED"
SETTINGS = Key("SETTINGS", "SETTINGS")
REAPING = Key("REAPING", "REAPING")

# class / tenant / run / generation, a UUIDv7, and then a name.
_RUN_BLOB = re.compile(
    r"(keep-[0-9]+d)/([^/#]+)/([^/#]+)/"
    r"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})/."
)
# class / tenant / "answers" / digest / a UUIDv7. No generation is in the place of the digest.
_ANSWER_BLOB = re.compile(
    r"(keep-[0-9]+d)/([^/#]+)/answers/([0-9a-f]+)/"
    r"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
)
PROBE_BLOB = "keep-10d/probe"
"""What a worker writes and deletes to learn whether blobs can be used again."""
_TIME_MS_MAX = 9_999_999_999_999
# Sorts after every digit and letter that a key of ours has in its place.
_SORTS_LAST = "~"


class RunKey(NamedTuple):
    """Names a run: whose it is, and its id."""

    tenant: str
    id: str

    @classmethod
    def parsed(cls, pk: str) -> RunKey:
        """Return the run whose partition that is."""
        _, tenant, id = pk.split("#")
        return cls(tenant, id)

    @property
    def pk(self) -> str:
        return f"RUN#{self.tenant}#{self.id}"

    @property
    def log_name(self) -> str:
        """The run as a log names it."""
        return f"run {self.id} of tenant {self.tenant}"

    @property
    def head(self) -> Key:
        """The key of the run's row."""
        return Key(self.pk, HEAD)


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
        return cls(graph, pool or None, _parsed_int(shard))


class SessionQueueKey(NamedTuple):
    """Names a lane: whose session it is, and its name."""

    tenant: str
    user: str
    """The keyed hash of the user; a dash where there is none."""
    session: str

    @property
    def pk(self) -> str:
        return f"LANE#{self.tenant}#{self.user}#{self.session}"

    @property
    def last(self) -> Key:
        """The key of the last number that was given out. It sorts before all tickets."""
        return Key(self.pk, "LAST")

    def ticket(self, number: int) -> Key:
        """Return the key of one ticket."""
        return Key(self.pk, f"T#{number:012d}")


def ticket_number(sk: str) -> int:
    """Return the number that the key of a ticket names."""
    return _parsed_int(sk.removeprefix("T#"))


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
        return DueQueue.parsed(kind, shard), RunKey(tenant, id), _parsed_int(epoch)

    def due_queue(self) -> DueQueue:
        """Return the queue of the place of a run that is to be claimed."""
        _, kind, shard = self.pk.split("#")
        return DueQueue.parsed(kind, shard)

    def due_parts(self) -> tuple[int, RunKey, int]:
        """Return time, run and epoch of the place of a run that is to be claimed."""
        due_ms, tenant, id, epoch = self.sk.split("#")
        return _parsed_int(due_ms), RunKey(tenant, id), _parsed_int(epoch)

    def worker_parts(self) -> tuple[int, str]:
        """Return time and worker of a worker's place, alive or reaped."""
        due_ms, worker = self.sk.split("#")
        return _parsed_int(due_ms), worker


def run_id_of(pk: str) -> str:
    """Return the id of the run whose partition that is, or the partition itself if it is none's."""
    return pk.rpartition("#")[2] or pk


def worker_id_of(key: tuple[str, str]) -> str | None:
    """Return the worker whose row has that key."""
    kind, _, worker = key[0].partition("#")
    return worker if kind == "WORKER" and worker else None


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
    first, last = f"{cursor}{_SORTS_LAST}", f"{max(until_ms, 0) + 1:013d}"
    return Between(first, last) if first <= last else None


def journal_key(run: RunKey, generation: str, position: int) -> Key:
    """Return the key of one record."""
    return Key(run.pk, f"J#{generation}#{position:08d}")


def inbox_key(run: RunKey, generation: str, name: str, signal_id: str) -> Key:
    """Return the key of one signal."""
    return Key(run.pk, f"J#{generation}#IN#{name}#{signal_id}")


def child_key(run: RunKey, generation: str, child: str) -> Key:
    """Return the key of what a run's partition says about one of its children."""
    return Key(run.pk, f"CHILD#{generation}#{child}")


def children_range(generation: str) -> Prefix:
    """Return the range of what a run's partition says about its children."""
    return Prefix(f"CHILD#{generation}#")


def call_key(run: RunKey, generation: str, call: str) -> Key:
    """Return the key of a call of which somebody has to say what became of it."""
    return Key(run.pk, f"CALL#{generation}#{call}")


def account_key(run: RunKey, generation: str) -> Key:
    """Return the key of the account of a run that has a budget."""
    return Key(run.pk, f"ACCOUNT#{generation}")


def grant_key(run: RunKey, generation: str, grantee: str) -> Key:
    """Return the key of what a run was given from such an account."""
    return Key(run.pk, f"GRANT#{generation}#{grantee}")


def related_items_range() -> Between:
    """Return the range of what lies beside a run's row: children, calls, account and grants."""
    return Between("ACCOUNT#", f"GRANT#{_SORTS_LAST}")


def calls_partition(tenant: str) -> str:
    """Return the partition in which a tenant's ambiguous calls are listed."""
    return f"CALLS#{tenant}"


def journal_range(generation: str, position: int = 0) -> Between:
    """Return the range of a run's records from a position on, and of its inbox after them."""
    return Between(f"J#{generation}#{position:08d}", f"J#{generation}#{_SORTS_LAST}")


def records_range(generation: str, position: int) -> Between:
    """Return the range of a run's records from a position on, without its inbox."""
    # The inbox begins with a letter, and ":" sorts between digits and letters.
    return Between(f"J#{generation}#{position:08d}", f"J#{generation}#:")


def inbox_range(generation: str) -> Between:
    """Return the range of a run's inbox."""
    return Between(f"J#{generation}#IN#", f"J#{generation}#{_SORTS_LAST}")


class SpoolKey(NamedTuple):
    """Where the text goes that one process writes of a run it holds; later ones are greater."""

    epoch: int
    id: str


def text_key(run: RunKey, generation: str, spool: SpoolKey, number: int) -> Key:
    """Return the key of some text of a run, as it came."""
    return Key(run.pk, _text_sk(generation, spool, number))


def text_range(generation: str, spool: SpoolKey, number: int) -> Between:
    """Return the range of a run's text, from there on."""
    return Between(_text_sk(generation, spool, number), f"J#{generation}#{_SORTS_LAST}:")


def parsed_text_key(sk: str) -> tuple[SpoolKey, int]:
    """Return the spool and the number that the key of some text names.

    Raises:
        JournalDamaged: it names none.
    """
    try:
        _, _, epoch, id, number = sk.split("#")
        return SpoolKey(_parsed_int(epoch.removeprefix(_SORTS_LAST)), id), _parsed_int(number)
    except ValueError:
        raise JournalDamaged(f"{sk!r:.100} is not the key of a run's text") from None


def run_data_range(generation: str) -> Between:
    """Return the range of everything that goes when a run is freed: journal, inbox and text."""
    return Between(f"J#{generation}#", f"J#{generation}#{_SORTS_LAST}:")


def _text_sk(generation: str, spool: SpoolKey, number: int) -> str:
    return f"J#{generation}#{_SORTS_LAST}{spool.epoch:08d}#{spool.id}#{number:08d}"


def is_inbox(sk: str) -> bool:
    """Return whether a key of a journal is that of a signal."""
    return sk.split("#", 3)[2] == "IN"


def is_record(sk: str) -> bool:
    """Return whether a key of a journal is that of a record: neither a signal nor text."""
    return _is_digits(sk.split("#", 3)[2])


def journal_position(sk: str) -> int:
    """Return the position that a record's key names.

    Raises:
        JournalDamaged: it names none.
    """
    try:
        return _parsed_int(sk.rpartition("#")[2])
    except ValueError:
        raise JournalDamaged(f"{sk!r:.100} is not the key of a record") from None


def worker_key(worker: str) -> Key:
    """Return the key of a worker's row."""
    return Key(f"WORKER#{worker}", "WORKER")


def answer_key(tenant: str, digest: bytes) -> Key:
    """Return the key of the answer that a tenant's runs share."""
    return Key(f"ANSWER#{tenant}#{digest.hex()}", "ANSWER")


def quota_key(tenant: str, name: str) -> Key:
    """Return the key of a quota's item; the tenant is empty where all of them share it."""
    return Key(f"QUOTA#{tenant}#{name}", "QUOTA")


def list_index_key(run: RunKey, created_ms: int, shards: int, *, trouble: bool) -> tuple[str, str]:
    """Return where lists find a run: by time, and apart if it is in trouble."""
    kind = "TROUBLE" if trouble else "RUNS"
    shard = shard_of(run.id, shards)
    return list_partition(kind, run.tenant, shard), f"{created_ms:013d}#{run.id}"


def listed_ms(sk: str) -> int:
    """Return since when an entry stands in a list: that is where its place begins."""
    return _parsed_int(sk.split("#")[0])


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


def blob_prefix(retention_class: str, run: RunKey, generation: str) -> str:
    """Return the prefix of everything that a run keeps beside the table."""
    return f"{retention_class}/{run.tenant}/{run.id}/{generation}/"


class RunBlobs(NamedTuple):
    """Everything that one life of a run keeps beside the table."""

    retention_class: str
    key: RunKey
    generation: str

    @property
    def prefix(self) -> str:
        return blob_prefix(*self)

    @property
    def made_ms(self) -> int:
        """When the generation was made."""
        return _made_ms(self.generation)


def run_blobs_of(blob_key: str) -> RunBlobs | None:
    """Return whose a blob is; None where it is not that of a run."""
    found = _RUN_BLOB.match(blob_key)
    return None if found is None else RunBlobs(found[1], RunKey(found[2], found[3]), found[4])


class AnswerBlob(NamedTuple):
    """A shared answer that lies beside the table."""

    retention_class: str
    tenant: str
    digest: str
    """In hexadecimal digits, as in the key of its item."""
    id: str

    @property
    def blob_key(self) -> str:
        return f"{self.retention_class}/{self.tenant}/answers/{self.digest}/{self.id}"

    @property
    def key(self) -> Key:
        """The key of the item that names it, unless that names another one by now."""
        return answer_key(self.tenant, bytes.fromhex(self.digest))

    @property
    def made_ms(self) -> int:
        """When it was made."""
        return _made_ms(self.id)


def answer_blob_of(blob_key: str) -> AnswerBlob | None:
    """Return which shared answer a blob is; None where it is none."""
    found = _ANSWER_BLOB.fullmatch(blob_key)
    return None if found is None or len(found[3]) % 2 else AnswerBlob(*found.groups())


def _is_digits(text: str) -> bool:
    # int() also takes "٣", "1_0", "+1" and " 1", and isdigit() takes "²".
    return text.isascii() and text.isdigit()


def _parsed_int(text: str) -> int:
    """Return the number that a part of a key is, as keys have them: digits of ASCII alone."""
    if not _is_digits(text):
        raise ValueError(f"{text!r:.40} is not a number")
    return int(text)


def _made_ms(id: str) -> int:
    """Return when an id was made: a UUIDv7 begins with its time."""
    return int(id[:8] + id[9:13], 16)
