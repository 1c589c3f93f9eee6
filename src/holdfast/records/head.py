"""The row of a run. Conditional writes to it decide which worker owns the run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from holdfast.errors import JournalDamaged
from holdfast.model.budget import BudgetLimits
from holdfast.model.event import Failure
from holdfast.model.execution import Execution
from holdfast.model.map import MapChunk
from holdfast.model.run import Status
from holdfast.model.wait import Wait
from holdfast.records.budget_map import budget_from_map
from holdfast.records.index_keys import DueQueue, IndexKey
from holdfast.records.keys import RunKey, SessionQueueKey

__all__ = [
    "ATTRIBUTES",
    "ENDED",
    "OPEN",
    "PLAIN_SCHEMA",
    "ROW_ABOUT_BYTES_MAX",
    "ROW_WAITS_MAX",
    "SCHEMA",
    "TROUBLED",
    "Head",
    "InboxSize",
    "JournalExtent",
    "RetryRequest",
    "RunRef",
    "has_ended",
    "head_of",
    "is_from_newer_release",
    "is_past_ttl",
]

SCHEMA = 2
"""The newest version of rows that this release reads."""
PLAIN_SCHEMA = 1
"""The version of the rows of runs without maps, which earlier releases can read, too."""

OPEN = frozenset({"running", "waiting"})
"""In these statuses a run takes signals."""
ENDED = frozenset({"finished", "failed", "cancelled", "expired", "quarantined", "promoted"})
"""In these statuses only obligations have to be settled, and storage has to be freed."""
ROW_WAITS_MAX = 8
"""The number of waits that fit into the row. If there are more, the journal has all of them."""
ROW_ABOUT_BYTES_MAX = 2_048
"""How much nodes may say about the waits in the row. If it is more, the journal has all of it."""
TROUBLED = frozenset({"failed", "quarantined"})
"""Runs with these statuses have their own lists."""


class JournalExtent(msgspec.Struct, frozen=True):
    """How far the journal reached when the row was written."""

    position: int = 1
    """The next position of the journal."""
    size: int = 0
    """The size of the journal in bytes, with its blobs."""
    blobs: bool = False
    """Whether the journal has blobs."""


class InboxSize(msgspec.Struct, frozen=True):
    """The number and the size of the signals in an inbox."""

    items: int = 0
    bytes: int = 0
    """The size of the payloads before compression."""


class RetryRequest(msgspec.Struct, frozen=True):
    """A request to retry a failed run. The next owner carries it out once."""

    id: str
    node: str | None = None
    keep_answers: bool | None = None
    """True if waits keep the answers that they have; otherwise they ask again."""


class RunRef(msgspec.Struct, frozen=True):
    """A reference to another run: its parent, or the run whose account it uses."""

    id: str
    generation: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A run's row."""

    key: RunKey
    graph: str
    version: int
    schema: int = PLAIN_SCHEMA
    pool: str | None = None
    """Only workers of this pool claim the run; None is the default pool."""
    shard: int = 0
    list_shards: int
    status: Status
    generation: str
    epoch: int
    owner: str | None
    needs_fence: bool = False
    """Whether the last owner may not know that it lost the run. The next owner must fence."""
    index_key: IndexKey | None = None
    input_hash: bytes = b""
    input: bytes | None
    """The packed input; None if record 0 has it."""
    first: str = ""
    """The node at which the run started; empty if it was cancelled before its start."""
    created_ms: int
    updated_ms: int
    starts_ms: int
    expires_ms: int
    ttl: int
    kept: str
    """The retention class of its blobs."""
    kept_before: tuple[str, ...] = ()
    """Its retention classes before extensions. Older blobs have these."""
    extends_ms: int = 0
    """The new expiry to which the ttl belongs, while the run is being extended."""
    snapshot: int = 0
    """The position of the last snapshot, at which readers start; 0 if there is none. It only grows:
    after an extension the records before it may be gone."""
    user: str | None = None
    labels: dict[str, str] = {}
    node: str = ""
    waits: tuple[Wait, ...] = ()
    """What the run waited for at its last pause."""
    signals: int = 0
    """Grows with each signal that came while a worker owned the run."""
    inbox_items: int = 0
    """The number of signals in the inbox. Each signal adds one, and a pause sets the number to what
    is there. So it may include signals that were taken, but never misses an acknowledged one."""
    inbox_bytes: int = 0
    """The size of their payloads before compression, counted in the same way."""
    inbox_epoch: int = 0
    """The epoch of the pause that set these counters, if they are not 0."""
    reason: str | None = None
    """Why it is paused."""
    nodes_run: int = 0
    spent_ms: int = 0
    retries_left: int = 0
    extent: JournalExtent = JournalExtent()
    failure: Failure | None = None
    resume_failures: int = 0
    losses: int = 0
    """How many owners in a row died, since one last released the run."""
    cancel: str | None = None
    """The reason of a cancellation request. The next owner carries it out."""
    spilled: bool = False
    """Whether a signal with a blob as its payload came."""
    freed: bool = False
    """Whether its journal and its blobs are deleted."""
    retry: RetryRequest | None = None
    session: str | None = None
    ticket: int = 0
    """Its number in the session queue."""
    replaces: bool = False
    """Whether it cancels the runs before it in its session queue."""
    into: str | None = None
    """For a promoted run: the run whose wait its input answered."""
    parent: RunRef | None = None
    """The run that started it. It gets a signal when this run ends."""
    on_pause: bool = False
    """Whether it was started with ``durability="on_pause"``."""
    plain_hash: bytes = b""
    """The hash of its input without the session, if its keys derive from that."""
    children: bool = False
    """Whether it may have started children, which end with it."""
    maps: bool = False
    """Whether it may have begun maps, whose chunks end with it."""
    budget: BudgetLimits | None = None
    """What the run may spend."""
    fundings: int = 0
    """How often its budget was changed."""
    payer: RunRef | None = None
    """The run whose account it uses, if it shares a budget."""
    tokens: int = 0
    """The tokens that its calls used."""
    nanodollars: int = 0
    """What its calls cost, in nanodollars."""
    wrapped: bool = False
    """Whether its state holds its input and its result as fields: see `Program.wraps_values`."""
    chunk: MapChunk | None = None
    """Which part of a map of its parent it works on. Lists do not have it."""

    @property
    def seed(self) -> str:
        """The seed from which idempotency keys of the run derive.

        A run with ``durability="on_pause"`` may have started in the memory of a process that died.
        When it is started again, its calls have the same keys.
        """
        if not self.on_pause:
            return self.generation
        name = "#".join([*self.key, (self.plain_hash or self.input_hash).hex()])
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    @property
    def inbox(self) -> InboxSize:
        """The size of its inbox; empty if the counters are stale.

        An owner of an early release pauses a run without updating the counters. The signals that it
        took would count for ever, so the counters are ignored then.
        """
        return (
            InboxSize()
            if self.has_stale_inbox_counts
            else InboxSize(self.inbox_items, self.inbox_bytes)
        )

    @property
    def has_stale_inbox_counts(self) -> bool:
        """Whether an owner of an early release paused it, and the counters are not 0."""
        return (
            self.inbox_items > 0
            and self.is_paused
            and not self.needs_fence  # it was not paused
            and self.inbox_epoch != self.epoch
        )

    @property
    def is_paused(self) -> bool:
        """Whether the run waits and has no owner."""
        return self.status == "waiting" and self.owner is None

    @property
    def session_queue(self) -> SessionQueueKey | None:
        """The key of the session queue in which it has a ticket."""
        if self.session is None or self.into is not None:
            return None
        return SessionQueueKey(self.key.tenant, self.user or "-", self.session)

    @property
    def due_queue(self) -> DueQueue:
        """The queue of the due index from which it is claimed."""
        return DueQueue(self.graph, self.pool, self.shard)

    def due_index_key(self, due_ms: int, epoch: int) -> IndexKey:
        """Return the index key of the run when it is due at a time, at the latest at its expiry."""
        moment = min(due_ms, self.expires_ms)
        return IndexKey.due(self.due_queue, moment, self.key, epoch)

    def pending_retry(self, execution: Execution) -> RetryRequest | None:
        """Return the retry request, unless the journal says that it was carried out."""
        owed = self.retry is not None and self.retry.id != execution.retried
        return self.retry if owed else None

    def with_journal_lifetime(self, execution: Execution) -> Head:
        """Return the row with the ttl of the journal, if that is longer."""
        if execution.ttl <= self.ttl:
            return self
        return msgspec.structs.replace(self, ttl=execution.ttl, kept=execution.kept)

    def may_await(self, name: str) -> bool:
        """Return whether the run is paused and may wait for a signal of that name.

        A row that has no room for more waits may not show the one for it.
        """
        shown = any(wait.signal == name for wait in self.waits)
        return self.is_paused and (shown or len(self.waits) >= ROW_WAITS_MAX)

    @property
    def awaits_signal(self) -> bool:
        """Whether a signal can wake it."""
        return self.is_paused and any(wait.signal is not None for wait in self.waits)


def head_of(item: Mapping[str, Any]) -> Head:
    """Return the row in an item.

    Raises:
        JournalDamaged: the item is not a row, or a newer release wrote it.
    """
    try:
        schema = item["schema"]
        if schema > SCHEMA:
            raise JournalDamaged(
                f"the run was written with schema {schema}; this release reads up to {SCHEMA}"
            )
        show = msgspec.convert(item["show"], _Show)
        values = _scalar_fields(item)
        return Head(
            key=RunKey.parsed(item["PK"]),
            graph=show.graph,
            version=show.version,
            labels=show.labels,
            session=show.session,
            index_key=IndexKey(item["GSI1PK"], item["GSI1SK"]) if "GSI1PK" in item else None,
            owner=_decoded_attribute(item, "owner", str),
            needs_fence=_decoded_attribute(item, "torn", bool) or False,
            input=_decoded_attribute(item, "input", bytes),
            kept_before=_decoded_attribute(item, "kept_before", tuple[str, ...]) or (),
            waits=_decoded_attribute(item, "waits", tuple[Wait, ...]) or (),
            extent=_decoded_attribute(item, "context", JournalExtent) or JournalExtent(),
            failure=_failure(item["failure"]) if "failure" in item else None,
            retry=_decoded_attribute(item, "retry", RetryRequest),
            parent=_decoded_attribute(item, "parent", RunRef),
            budget=budget_from_map(item["budget"]) if "budget" in item else None,
            payer=_decoded_attribute(item, "draws", RunRef),
            chunk=_decoded_attribute(item, "chunk", MapChunk),
            **values,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JournalDamaged(f"the row of a run cannot be read: {error!r:.300}") from error


class _Show(msgspec.Struct, frozen=True):
    """The attributes of a run that lists show."""

    graph: str
    version: int
    labels: dict[str, str] = {}
    session: str | None = None


# Attributes that are stored as the field of the same name, with their types.
ATTRIBUTES: dict[str, type] = {
    **dict.fromkeys(
        ("schema", "shard", "list_shards", "epoch", "created_ms", "updated_ms", "starts_ms",
         "expires_ms", "ttl", "nodes_run", "spent_ms", "retries_left", "resume_failures", "signals",
         "snapshot", "extends_ms", "ticket", "tokens", "nanodollars", "fundings", "losses",
         "inbox_items", "inbox_bytes", "inbox_epoch"), int
    ),
    **dict.fromkeys(
        ("status", "generation", "first", "kept", "user", "node", "reason", "cancel", "pool",
         "into"), str
    ),
    **dict.fromkeys(
        ("freed", "spilled", "replaces", "children", "maps", "on_pause", "wrapped"), bool
    ),
    **dict.fromkeys(("input_hash", "plain_hash"), bytes),
}  # fmt: skip
# A row never says ready: see engine/history/views.py.
_STATUSES = frozenset(get_args(Status)) - {"ready"}


def has_ended(item: Mapping[str, Any]) -> bool:
    """Return whether a row says that its run has ended."""
    status = item.get("status")
    return isinstance(status, str) and status in ENDED


def is_from_newer_release(item: Mapping[str, Any]) -> bool:
    """Return whether a newer release wrote a row. Then this release cannot read it."""
    schema = item.get("schema")
    return isinstance(schema, int) and schema > SCHEMA


def is_past_ttl(item: Mapping[str, Any], now_ms: int) -> bool:
    """Return whether the ttl of a row has passed. Then its id is free, even if the row exists.

    Raises:
        JournalDamaged: the item is not a row.
    """
    ttl = item.get("ttl")
    if type(ttl) is not int:
        raise JournalDamaged(f"the row of a run cannot be read: its ttl is {ttl!r:.80}")
    return ttl < now_ms // 1000


def _scalar_fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are stored as they are."""
    values: dict[str, Any] = {}
    for name, value in item.items():
        kind = ATTRIBUTES.get(name)
        if kind is None:
            continue
        if type(value) is not kind:
            raise TypeError(f"{name} is {value!r:.80}")
        values[name] = value
    if values["status"] not in _STATUSES:
        raise TypeError(f"status is {values['status']!r:.80}")
    return values


def _failure(values: Mapping[str, Any]) -> Failure:
    """Return a failure. Rows store it as a map, events as an array."""
    return msgspec.convert(msgspec.structs.astuple(Failure(**values)), Failure)


def _decoded_attribute(item: Mapping[str, Any], name: str, kind: Any) -> Any:
    return msgspec.convert(item[name], kind) if name in item else None
