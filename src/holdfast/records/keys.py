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

from typing import NamedTuple

from holdfast.errors import JournalDamaged
from holdfast.storage import Between, Key, Prefix

__all__ = [
    "HEAD",
    "REAPING",
    "SETTINGS",
    "SORTS_LAST",
    "RunKey",
    "SessionQueueKey",
    "SpoolKey",
    "account_key",
    "answer_key",
    "call_key",
    "child_key",
    "children_range",
    "grant_key",
    "inbox_key",
    "inbox_range",
    "is_inbox",
    "is_record",
    "journal_key",
    "journal_position",
    "journal_range",
    "parsed_int",
    "parsed_text_key",
    "quota_key",
    "records_range",
    "run_data_range",
    "run_id_of",
    "text_key",
    "text_range",
    "ticket_number",
    "worker_id_of",
    "worker_key",
]

HEAD = "HEAD"
SETTINGS = Key("SETTINGS", "SETTINGS")
REAPING = Key("REAPING", "REAPING")

# Sorts after every digit and letter that a key of ours has in its place.
SORTS_LAST = "~"


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
    return parsed_int(sk.removeprefix("T#"))


def run_id_of(pk: str) -> str:
    """Return the id of the run whose partition that is, or the partition itself if it is none's."""
    return pk.rpartition("#")[2] or pk


def worker_id_of(key: tuple[str, str]) -> str | None:
    """Return the worker whose row has that key."""
    kind, _, worker = key[0].partition("#")
    return worker if kind == "WORKER" and worker else None


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
    return Between("ACCOUNT#", f"GRANT#{SORTS_LAST}")


def journal_range(generation: str, position: int = 0) -> Between:
    """Return the range of a run's records from a position on, and of its inbox after them."""
    return Between(f"J#{generation}#{position:08d}", f"J#{generation}#{SORTS_LAST}")


def records_range(generation: str, position: int) -> Between:
    """Return the range of a run's records from a position on, without its inbox."""
    # The inbox begins with a letter, and ":" sorts between digits and letters.
    return Between(f"J#{generation}#{position:08d}", f"J#{generation}#:")


def inbox_range(generation: str) -> Between:
    """Return the range of a run's inbox."""
    return Between(f"J#{generation}#IN#", f"J#{generation}#{SORTS_LAST}")


class SpoolKey(NamedTuple):
    """Where the text goes that one process writes of a run it holds; later ones are greater."""

    epoch: int
    id: str


def text_key(run: RunKey, generation: str, spool: SpoolKey, number: int) -> Key:
    """Return the key of some text of a run, as it came."""
    return Key(run.pk, _text_sk(generation, spool, number))


def text_range(generation: str, spool: SpoolKey, number: int) -> Between:
    """Return the range of a run's text, from there on."""
    return Between(_text_sk(generation, spool, number), f"J#{generation}#{SORTS_LAST}:")


def parsed_text_key(sk: str) -> tuple[SpoolKey, int]:
    """Return the spool and the number that the key of some text names.

    Raises:
        JournalDamaged: it names none.
    """
    try:
        _, _, epoch, id, number = sk.split("#")
        return SpoolKey(parsed_int(epoch.removeprefix(SORTS_LAST)), id), parsed_int(number)
    except ValueError:
        raise JournalDamaged(f"{sk!r:.100} is not the key of a run's text") from None


def run_data_range(generation: str) -> Between:
    """Return the range of everything that goes when a run is freed: journal, inbox and text."""
    return Between(f"J#{generation}#", f"J#{generation}#{SORTS_LAST}:")


def _text_sk(generation: str, spool: SpoolKey, number: int) -> str:
    return f"J#{generation}#{SORTS_LAST}{spool.epoch:08d}#{spool.id}#{number:08d}"


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
        return parsed_int(sk.rpartition("#")[2])
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


def _is_digits(text: str) -> bool:
    # int() also takes "٣", "1_0", "+1" and " 1", and isdigit() takes "²".
    return text.isascii() and text.isdigit()


def parsed_int(text: str) -> int:
    """Return the number that a part of a key is, as keys have them: digits of ASCII alone."""
    if not _is_digits(text):
        raise ValueError(f"{text!r:.40} is not a number")
    return int(text)
