"""A run as the outside sees it: values that a list, a console or an operator shows."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.model.budget import BudgetLimits
from holdfast.model.event import Failure
from holdfast.model.wait import Wait

__all__ = [
    "AmbiguousCall",
    "HistoryEntry",
    "HistoryPage",
    "OnBusy",
    "Run",
    "RunEntry",
    "RunPage",
    "SessionQueueEntry",
    "Status",
    "TextPiece",
]

Status: TypeAlias = Literal[
    "running", "waiting", "closing", "finished", "failed", "cancelled", "expired", "quarantined",
    "promoted",
]  # fmt: skip
"""Where a run stands. ``closing`` is one past its expiry that still carries out a decision;
``promoted`` is one that was not run, since its input answered what another run waited for."""

OnBusy: TypeAlias = Literal["queue", "reject", "replace", "promote"]
"""What becomes of a start in a session in which another run goes on."""


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list of runs."""

    id: str
    tenant: str
    graph: str
    version: int
    status: Status
    labels: dict[str, str]
    created_at: datetime
    session: str | None = None


class RunPage(msgspec.Struct, frozen=True):
    """Some runs, the newest first."""

    runs: list[RunEntry]
    cursor: str | None
    """Pass it on to read what follows; None at the end. What follows may turn out to be nothing."""
    damaged: tuple[str, ...] = ()
    """Ids of runs among them whose rows cannot be read, a thousand at the most."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run's row: what an operator needs to know."""

    id: str
    tenant: str
    graph: str
    version: int
    schema: int
    status: Status
    labels: dict[str, str]
    user: str | None
    """A keyed hash of the user for whom it runs."""
    node: str
    """Where it stands, as of the last time that its row was written."""
    reason: str | None
    """Why it is paused: signal, timer, retry, ambiguous, quota, budget, scheduled, queued,
    draining, newer_version, resume_failed, store_unusable."""
    waits: tuple[Wait, ...]
    """What would let it go on."""
    due_at: datetime | None
    """When it is to be claimed; None while somebody holds it, and once it has ended."""
    owner: str | None
    """The worker that holds it."""
    retries_left: int
    nodes_run: int
    spent_seconds: float
    """Time spent inside nodes."""
    journal_records: int
    """The context pointer: up to which position of the journal the row speaks."""
    journal_bytes: int
    """The size of what the pointer points to."""
    generation: str
    epoch: int
    resume_failures: int
    failure: Failure | None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    session: str | None = None
    """The session in whose order it goes on."""
    into: str | None = None
    """The run whose wait its input answered, where it is promoted."""
    parent: str | None = None
    """The run that started it, and with which it ends."""
    budget: BudgetLimits | None = None
    """What it may spend; None where it has no budget of its own."""
    budget_of: str | None = None
    """The run whose budget it shares."""
    tokens: int = 0
    """How many tokens its calls took, as of the last time that its row was written."""
    cost_usd: float = 0.0
    """What its calls cost, likewise."""


class AmbiguousCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that may have been made, and of which somebody has to say what became of it."""

    run: str
    tenant: str
    graph: str
    node: str
    call: str
    """Names it, for `RunHandle.resolve`."""
    name: str
    """The tool's name."""
    key: str
    """The idempotency key with which it was made."""
    since: datetime


class SessionQueueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has its place in the order of a session."""

    number: int
    """Lower ones come first; numbers are never used again."""
    id: str
    status: Status
    reason: str | None
    """Why it is paused: ``queued`` where it waits for those before it."""
    created_at: datetime


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a run."""

    at: datetime
    kind: str
    node: str | None
    details: dict[str, Any]
    cursor: str
    """Names it: pass it on to read what follows."""


class HistoryPage(msgspec.Struct, frozen=True):
    """Some of what happened to a run, the oldest first."""

    entries: list[HistoryEntry]
    cursor: str | None
    """Pass it on to read what follows; None at the end. What follows may turn out to be nothing."""


class TextPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the text of an answer, as it came."""

    call: str
    """Names the call whose answer it is; it is the same when the call is made again."""
    name: str
    """What was asked, as the node calls it."""
    text: str
    cursor: str
    """Names the piece: pass it on to read what follows."""
    last: bool = False
    """Whether the answer ends with it."""
    restarted: bool = False
    """Whether the answer begins anew with it: what came of this call before, if anything, is void.
    """
