"""The primary keys of all items of the table.

=================================== ========================================= ======================
partition key                       sort key                                  item
=================================== ========================================= ======================
``RUN#{tenant}#{id}``               ``HEAD``                                  a run's row
the same                            ``J#{generation}#{position:08}``          its journal
the same                            ``J#{generation}#IN#{name}#{signal id}``  its inbox
the same                            ``J#{generation}#~{spool}#{number:08}``   streamed text
the same                            ``CHILD#{generation}#{child id}``         its children
the same                            ``CALL#{generation}#{call id}``           ambiguous calls
the same                            ``ACCOUNT#{generation}``                  its shared budget
the same                            ``GRANT#{generation}#{run id}``           a grant from it
the same                            ``FAN#{generation}#{map}``                its maps
the same                            ``FANLANE#{generation}#{map}#{lane:04}``  a lane of a map
the same                            ``FANONE#{generation}#{map}#{index:08}``  a retried item
the same                            ``FANOUT#{generation}#{map}#{kind}#…``    values and results
the same                            ``HOOK#{generation}#{webhook}``           its webhooks
the same                            ``REVIEW#{generation}#{name}…``           its reviews
``LANE#{tenant}#{user}#{session}``  ``LAST``                                  last ticket number
the same                            ``T#{number:012}``                        a ticket of a run
``ANSWER#{tenant}#{digest}``        ``ANSWER``                                a shared answer
``WORKER#{id}``                     ``WORKER``                                a worker and its lease
``QUOTA#{tenant}#{name}``           ``QUOTA``                                 the level of a quota
``GRAPH#{name}``                    ``{version:08}``                          facts about a graph
``APIKEY#{id}``                     ``APIKEY``                                an API key
``BULK#{tenant}``                   ``{id}``                                  a bulk job
``WEBHOOKS#{tenant}``               ``{webhook}``                             a webhook
``UPLOAD#{tenant}#{id}``            ``META``                                  an upload
the same                            ``PART#{number:05}``                      a part of an upload
``SETTINGS``                        ``SETTINGS``                              settings of the store
``REAPING``                         ``REAPING``                               repeated sweeps
``SIGNING``                         ``SIGNING``                               keys that sign tokens
``PROBE#{id}``                      ``PROBE``                                 a check of the store
=================================== ========================================= ======================

A spool is ``{epoch:08}#{id}``: the epoch of the owner that wrote it, and a UUIDv7. Streamed text
sorts after the journal and the inbox, so that it is read when a run is freed, but not when it is
resumed.

The tenant in the key of a quota is empty if all tenants share the quota.

A generation is a UUIDv7 that is created with the run, so that a run with a reused id never reads
the records of an earlier run.

See `index_keys` for the keys of the indexes, and `blob_keys` for those of blobs.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import JournalDamaged
from holdfast.storage import Between, Key, Prefix

__all__ = [
    "HEAD",
    "REAPING",
    "SETTINGS",
    "SIGNING",
    "SORTS_LAST",
    "RunKey",
    "SessionQueueKey",
    "SpoolKey",
    "account_key",
    "answer_key",
    "api_key_key",
    "bulk_key",
    "bulk_partition",
    "call_key",
    "child_key",
    "children_range",
    "grant_key",
    "graph_key",
    "inbox_key",
    "inbox_range",
    "is_inbox",
    "is_record",
    "journal_key",
    "journal_position",
    "journal_range",
    "map_contents_range",
    "map_key",
    "map_lane_key",
    "map_lanes_range",
    "map_part_key",
    "map_parts_range",
    "map_retries_range",
    "map_retry_key",
    "maps_range",
    "parsed_int",
    "parsed_text_key",
    "probe_key",
    "quota_key",
    "records_range",
    "related_items_range",
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
SIGNING = Key("SIGNING", "SIGNING")

# Sorts after all digits and letters in keys.
SORTS_LAST = "~"


class RunKey(NamedTuple):
    """Identifies a run: its tenant and its id."""

    tenant: str
    id: str

    @classmethod
    def parsed(cls, pk: str) -> RunKey:
        """Return the run of a partition."""
        _, tenant, id = pk.split("#")
        return cls(tenant, id)

    @property
    def pk(self) -> str:
        return f"RUN#{self.tenant}#{self.id}"

    @property
    def log_name(self) -> str:
        """The run as logs name it."""
        return f"run {self.id} of tenant {self.tenant}"

    @property
    def head(self) -> Key:
        """The key of the run's row."""
        return Key(self.pk, HEAD)


class SessionQueueKey(NamedTuple):
    """Identifies a session queue: the tenant, the user and the name of the session."""

    tenant: str
    user: str
    """The keyed hash of the user; a dash if there is none."""
    session: str

    @property
    def pk(self) -> str:
        return f"LANE#{self.tenant}#{self.user}#{self.session}"

    @property
    def last(self) -> Key:
        """The key of the last ticket number. It sorts before all tickets."""
        return Key(self.pk, "LAST")

    def ticket(self, number: int) -> Key:
        """Return the key of one ticket."""
        return Key(self.pk, f"T#{number:012d}")


def ticket_number(sk: str) -> int:
    """Return the number in the sort key of a ticket."""
    return parsed_int(sk.removeprefix("T#"))


def run_id_of(pk: str) -> str:
    """Return the id of the run of a partition, or the partition itself if it has none."""
    return pk.rpartition("#")[2] or pk


def worker_id_of(key: tuple[str, str]) -> str | None:
    """Return the worker whose row has this key; None if it is another item."""
    kind, _, worker = key[0].partition("#")
    return worker if kind == "WORKER" and worker else None


def journal_key(run: RunKey, generation: str, position: int) -> Key:
    """Return the key of one record."""
    return Key(run.pk, f"J#{generation}#{position:08d}")


def inbox_key(run: RunKey, generation: str, name: str, signal_id: str) -> Key:
    """Return the key of one signal."""
    return Key(run.pk, f"J#{generation}#IN#{name}#{signal_id}")


def child_key(run: RunKey, generation: str, child: str) -> Key:
    """Return the key of the entry of a child."""
    return Key(run.pk, f"CHILD#{generation}#{child}")


def children_range(generation: str) -> Prefix:
    """Return the range of the entries of a run's children."""
    return Prefix(f"CHILD#{generation}#")


def call_key(run: RunKey, generation: str, call: str) -> Key:
    """Return the key of an ambiguous call."""
    return Key(run.pk, f"CALL#{generation}#{call}")


def account_key(run: RunKey, generation: str) -> Key:
    """Return the key of the account of a run that has a budget."""
    return Key(run.pk, f"ACCOUNT#{generation}")


def grant_key(run: RunKey, generation: str, grantee: str) -> Key:
    """Return the key of a grant from an account."""
    return Key(run.pk, f"GRANT#{generation}#{grantee}")


def map_key(run: RunKey, generation: str, map: str) -> Key:
    """Return the key of a map."""
    return Key(run.pk, f"FAN#{generation}#{map}")


def maps_range(generation: str) -> Prefix:
    """Return the range of a run's maps."""
    return Prefix(f"FAN#{generation}#")


def map_lane_key(run: RunKey, generation: str, map: str, lane: int) -> Key:
    """Return the key of a lane of a map."""
    return Key(run.pk, f"FANLANE#{generation}#{map}#{lane:04d}")


def map_lanes_range(generation: str, map: str) -> Prefix:
    """Return the range of the lanes of a map."""
    return Prefix(f"FANLANE#{generation}#{map}#")


def map_retry_key(run: RunKey, generation: str, map: str, index: int) -> Key:
    """Return the key of the retries of one item of a map."""
    return Key(run.pk, f"FANONE#{generation}#{map}#{index:08d}")


def map_retries_range(generation: str, map: str) -> Prefix:
    """Return the range of the retried items of a map."""
    return Prefix(f"FANONE#{generation}#{map}#")


def map_part_key(run: RunKey, generation: str, map: str, name: str) -> Key:
    """Return the key of values or results of a map, where the store has no blobs."""
    return Key(run.pk, f"FANOUT#{generation}#{map}#{name}")


def map_parts_range(generation: str, map: str, *, after: str, until: str) -> Between:
    """Return the range of values or results of a map with names between two names."""
    stem = f"FANOUT#{generation}#{map}#"
    return Between(stem + after, stem + until)


def map_contents_range(generation: str) -> Prefix:
    """Return the range of the values and results of all maps of a run."""
    return Prefix(f"FANOUT#{generation}#")


def related_items_range() -> Between:
    """Return the range of the items beside a run's row: children, calls, account, grants, maps."""
    return Between("ACCOUNT#", f"GRANT#{SORTS_LAST}")


def journal_range(generation: str, position: int = 0) -> Between:
    """Return the range of a run's records from a position, followed by its inbox."""
    return Between(f"J#{generation}#{position:08d}", f"J#{generation}#{SORTS_LAST}")


def records_range(generation: str, position: int, last: int | None = None) -> Between:
    """Return the range of a run's records from a position to the last one, without its inbox."""
    # The inbox starts with a letter, and ":" sorts between digits and letters.
    end = ":" if last is None else f"{last:08d}"
    return Between(f"J#{generation}#{position:08d}", f"J#{generation}#{end}")


def inbox_range(generation: str) -> Between:
    """Return the range of a run's inbox."""
    return Between(f"J#{generation}#IN#", f"J#{generation}#{SORTS_LAST}")


class SpoolKey(NamedTuple):
    """Identifies the streamed text of one owner of a run. Later spools are greater."""

    epoch: int
    id: str


def text_key(run: RunKey, generation: str, spool: SpoolKey, number: int) -> Key:
    """Return the key of a batch of streamed text."""
    return Key(run.pk, _text_sk(generation, spool, number))


def text_range(generation: str, spool: SpoolKey, number: int) -> Between:
    """Return the range of a run's streamed text from a position."""
    return Between(_text_sk(generation, spool, number), f"J#{generation}#{SORTS_LAST}:")


def parsed_text_key(sk: str) -> tuple[SpoolKey, int]:
    """Return the spool and the number in the sort key of streamed text.

    Raises:
        JournalDamaged: the key is not one of streamed text.
    """
    try:
        _, _, epoch, id, number = sk.split("#")
        return SpoolKey(parsed_int(epoch.removeprefix(SORTS_LAST)), id), parsed_int(number)
    except ValueError:
        raise JournalDamaged(f"{sk!r:.100} is not the key of a run's text") from None


def run_data_range(generation: str) -> Between:
    """Return the range of items that are freed with a run: journal, inbox and streamed text."""
    return Between(f"J#{generation}#", f"J#{generation}#{SORTS_LAST}:")


def _text_sk(generation: str, spool: SpoolKey, number: int) -> str:
    return f"J#{generation}#{SORTS_LAST}{spool.epoch:08d}#{spool.id}#{number:08d}"


def is_inbox(sk: str) -> bool:
    """Return whether a sort key is that of a signal."""
    return sk.split("#", 3)[2] == "IN"


def is_record(sk: str) -> bool:
    """Return whether a sort key is that of a record, and not of a signal or text."""
    return _is_digits(sk.split("#", 3)[2])


def journal_position(sk: str) -> int:
    """Return the position in the sort key of a record.

    Raises:
        JournalDamaged: the key is not one of a record.
    """
    try:
        return parsed_int(sk.rpartition("#")[2])
    except ValueError:
        raise JournalDamaged(f"{sk!r:.100} is not the key of a record") from None


def worker_key(worker: str) -> Key:
    """Return the key of a worker's row."""
    return Key(f"WORKER#{worker}", "WORKER")


def answer_key(tenant: str, digest: bytes) -> Key:
    """Return the key of an answer that runs of a tenant share."""
    return Key(f"ANSWER#{tenant}#{digest.hex()}", "ANSWER")


def quota_key(tenant: str, name: str) -> Key:
    """Return the key of a quota's item; the tenant is empty if all tenants share it."""
    return Key(f"QUOTA#{tenant}#{name}", "QUOTA")


def graph_key(name: str, version: int) -> Key:
    """Return the key of the item of a graph's version."""
    return Key(f"GRAPH#{name}", f"{version:08d}")


def bulk_partition(tenant: str) -> str:
    """Return the partition of the bulk jobs of a tenant."""
    return f"BULK#{tenant}"


def bulk_key(tenant: str, id: str) -> Key:
    """Return the key of a bulk job."""
    return Key(bulk_partition(tenant), id)


def api_key_key(id: str) -> Key:
    """Return the key of the item of an API key."""
    return Key(f"APIKEY#{id}", "APIKEY")


def probe_key(id: str) -> Key:
    """Return the key of an item that only shows that the store can be written."""
    return Key(f"PROBE#{id}", "PROBE")


def _is_digits(text: str) -> bool:
    # int() also accepts "٣", "1_0", "+1" and " 1", and isdigit() accepts "²".
    return text.isascii() and text.isdigit()


def parsed_int(text: str) -> int:
    """Return the number in a part of a key, which must be ASCII digits."""
    if not _is_digits(text):
        raise ValueError(f"{text!r:.40} is not a number")
    return int(text)
