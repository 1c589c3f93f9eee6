"""A run's row: what the outside sees of it, and the one place where ownership is decided."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from holdfast.errors import JournalDamaged
from holdfast.model.budget import BudgetLimits
from holdfast.model.event import Failure
from holdfast.model.execution import Execution
from holdfast.model.run import Status
from holdfast.model.wait import Wait
from holdfast.records.index_keys import DueQueue, IndexKey
from holdfast.records.keys import RunKey, SessionQueueKey

__all__ = [
    "ATTRIBUTES",
    "ENDED",
    "OPEN",
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

SCHEMA = 1

OPEN = frozenset({"running", "waiting"})
"""In these a run takes signals."""
ENDED = frozenset({"finished", "failed", "cancelled", "expired", "quarantined", "promoted"})
"""In these nothing is left to be done but to pay what the run owes, and to free what it keeps."""
ROW_WAITS_MAX = 8
"""So many waits stand in the row; where there are more, all of them are in the journal."""
TROUBLED = frozenset({"failed", "quarantined"})
"""Runs in these stand in lists of their own."""


class JournalExtent(msgspec.Struct, frozen=True):
    """Where the run's state lies, and what it weighs."""

    position: int = 1
    """The next position of the journal, as of when the row was written."""
    size: int = 0
    """The journal's bytes, blobs included."""
    blobs: bool = False
    """Whether any of it is a blob."""


class InboxSize(msgspec.Struct, frozen=True):
    """How much of what callers sent waits in an inbox."""

    items: int = 0
    bytes: int = 0
    """Of the payloads, before compression."""


class RetryRequest(msgspec.Struct, frozen=True):
    """Somebody asked for a failed run to go on; whoever claims it carries that out once."""

    id: str
    node: str | None = None


class RunRef(msgspec.Struct, frozen=True):
    """The run of which this one is a child."""

    id: str
    generation: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A run's row."""

    key: RunKey
    graph: str
    version: int
    schema: int = SCHEMA
    pool: str | None = None
    """Only workers of this pool take it; None is the pool without a name."""
    shard: int = 0
    list_shards: int
    status: Status
    generation: str
    epoch: int
    owner: str | None
    needs_fence: bool = False
    """Whether the last owner may still think that it is the owner: its successor must fence."""
    index_key: IndexKey | None = None
    input_hash: bytes = b""
    input: bytes | None
    """The packed input; None where record 0 has it."""
    first: str = ""
    """The node at which the run began; empty where it was cancelled before it was made."""
    created_ms: int
    updated_ms: int
    starts_ms: int
    expires_ms: int
    ttl: int
    kept: str
    """The retention class of its blobs."""
    kept_before: tuple[str, ...] = ()
    """Retention classes that it had before it was extended: older blobs lie there."""
    extends_ms: int = 0
    """The expiry for which its ttl was made, while it is being extended."""
    snapshot: int = 0
    """The position of its last snapshot, where readers begin; 0 where there is none. It only ever
    grows: records before it may be gone, once the run was extended."""
    user: str | None = None
    labels: dict[str, str] = {}
    node: str = ""
    waits: tuple[Wait, ...] = ()
    """What it waited for when it was last paused."""
    signals: int = 0
    """Grows with every signal that came while somebody held the run."""
    inbox_items: int = 0
    """How many signals of callers wait in its inbox. Each of them adds one; a pause sets it to what
    is there. So it may count some that were taken since, and never misses one that was
    acknowledged."""
    inbox_bytes: int = 0
    """How many bytes their payloads have before compression, counted alike."""
    inbox_epoch: int = 0
    """The epoch of the pause since which they are right, where there are any."""
    reason: str | None = None
    """Why it is paused."""
    nodes_run: int = 0
    spent_ms: int = 0
    retries_left: int = 0
    extent: JournalExtent = JournalExtent()
    failure: Failure | None = None
    resume_failures: int = 0
    losses: int = 0
    """How many workers in a row died while they held it, since one last let go of it itself."""
    cancel: str | None = None
    """Why somebody wants it to end; whoever holds it next carries that out."""
    spilled: bool = False
    """Whether a signal came whose payload is a blob."""
    freed: bool = False
    """Whether its journal and its blobs are gone."""
    retry: RetryRequest | None = None
    session: str | None = None
    ticket: int = 0
    """Its number in the queue of its session."""
    replaces: bool = False
    """Whether it is to cancel those before it in its session."""
    into: str | None = None
    """The run whose wait its input answered, where it was not run itself."""
    parent: RunRef | None = None
    """The run that started it, and waits to be told how it ended."""
    on_pause: bool = False
    """Whether it was started with ``durability="on_pause"``, in memory or not."""
    plain_hash: bytes = b""
    """The hash of its input without the session, where its keys derive from that one."""
    children: bool = False
    """Whether it may have started others, which end with it."""
    budget: BudgetLimits | None = None
    """What it may spend."""
    fundings: int = 0
    """How often it was given another budget."""
    payer: RunRef | None = None
    """The run on whose account it draws, where it shares that one's budget."""
    tokens: int = 0
    """How many its calls took."""
    nanodollars: int = 0
    """What its calls cost."""

    @property
    def seed(self) -> str:
        """What its keys derive from.

        A run with ``durability="on_pause"`` may have been begun in the memory of a process that
        died. Started again, in memory or not, it does the same under the same keys.
        """
        if not self.on_pause:
            return self.generation
        name = "#".join([*self.key, (self.plain_hash or self.input_hash).hex()])
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    @property
    def inbox(self) -> InboxSize:
        """How much waits in its inbox, as far as the row tells.

        An owner of an earlier release lets go of a run and leaves the counters as they are. What it
        took would count for ever, so they are not believed then.
        """
        return (
            InboxSize()
            if self.has_stale_inbox_counts
            else InboxSize(self.inbox_items, self.inbox_bytes)
        )

    @property
    def has_stale_inbox_counts(self) -> bool:
        """Whether an owner paused it that knows nothing of the counters, and they are not 0."""
        return (
            self.inbox_items > 0
            and self.is_paused
            and not self.needs_fence  # it was not paused
            and self.inbox_epoch != self.epoch
        )

    @property
    def is_paused(self) -> bool:
        """Whether it waits, and has no owner."""
        return self.status == "waiting" and self.owner is None

    @property
    def session_queue(self) -> SessionQueueKey | None:
        """The lane in which it has a ticket."""
        if self.session is None or self.into is not None:
            return None
        return SessionQueueKey(self.key.tenant, self.user or "-", self.session)

    @property
    def due_queue(self) -> DueQueue:
        """Where it stands when it is to be claimed."""
        return DueQueue(self.graph, self.pool, self.shard)

    def due_index_key(self, due_ms: int, epoch: int) -> IndexKey:
        """Return the run's place when it is to be claimed at that time, never after its expiry."""
        moment = min(due_ms, self.expires_ms)
        return IndexKey.due(self.due_queue, moment, self.key, epoch)

    def pending_retry(self, execution: Execution) -> RetryRequest | None:
        """Return the retry that was asked for, unless the journal says that it was carried out."""
        owed = self.retry is not None and self.retry.id != execution.retried
        return self.retry if owed else None

    def with_journal_lifetime(self, execution: Execution) -> Head:
        """Return the row with as long a life as the journal has, though the row lags behind."""
        if execution.ttl <= self.ttl:
            return self
        return msgspec.structs.replace(self, ttl=execution.ttl, kept=execution.kept)

    @property
    def awaits_signal(self) -> bool:
        """Whether a signal can wake it."""
        return self.is_paused and any(wait.signal is not None for wait in self.waits)


def head_of(item: Mapping[str, Any]) -> Head:
    """Return the row that an item is.

    Raises:
        JournalDamaged: it is not a row, or one of a newer release.
    """
    try:
        schema = item["schema"]
        if schema > SCHEMA:
            raise JournalDamaged(f"the run was written with schema {schema}; this reads {SCHEMA}")
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
            budget=_decoded_attribute(item, "budget", BudgetLimits),
            payer=_decoded_attribute(item, "draws", RunRef),
            **values,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JournalDamaged(f"a run's row cannot be read: {error!r:.300}") from error


class _Show(msgspec.Struct, frozen=True):
    """What lists show of a run."""

    graph: str
    version: int
    labels: dict[str, str] = {}
    session: str | None = None


# Attributes that are the field of the same name, as it is, and their types.
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
    **dict.fromkeys(("freed", "spilled", "replaces", "children", "on_pause"), bool),
    **dict.fromkeys(("input_hash", "plain_hash"), bytes),
}  # fmt: skip
_STATUSES = frozenset(get_args(Status))


def has_ended(item: Mapping[str, Any]) -> bool:
    """Return whether a row says that its run has ended; one that says nothing has not."""
    status = item.get("status")
    return isinstance(status, str) and status in ENDED


def is_from_newer_release(item: Mapping[str, Any]) -> bool:
    """Return whether a newer release wrote a row, which this one cannot read."""
    schema = item.get("schema")
    return isinstance(schema, int) and schema > SCHEMA


def is_past_ttl(item: Mapping[str, Any], now_ms: int) -> bool:
    """Return whether the time of a row is over: its id is free, though it may still stand there.

    Raises:
        JournalDamaged: it is not a row.
    """
    ttl = item.get("ttl")
    if type(ttl) is not int:
        raise JournalDamaged(f"a run's row cannot be read: its ttl is {ttl!r:.80}")
    return ttl < now_ms // 1000


def _scalar_fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are fields as they are."""
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
    """Return a failure, which rows hold as a map, and events as an array."""
    return msgspec.convert(msgspec.structs.astuple(Failure(**values)), Failure)


def _decoded_attribute(item: Mapping[str, Any], name: str, kind: Any) -> Any:
    return msgspec.convert(item[name], kind) if name in item else None
