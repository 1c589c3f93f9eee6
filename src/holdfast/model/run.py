"""Runs as callers and operators see them: rows, lists, histories."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self, TypeAlias

import msgspec

from holdfast.model.budget import BudgetLimits
from holdfast.model.event import Failure
from holdfast.model.json_form import JsonForm, with_readable_times, with_times_in_ms
from holdfast.model.map import MapChunk
from holdfast.model.wait import Wait

__all__ = [
    "PAUSE_REASONS",
    "AmbiguousCall",
    "HistoryEntry",
    "HistoryPage",
    "OnBusy",
    "Run",
    "RunEntry",
    "RunPage",
    "SessionQueueEntry",
    "SetAsideSignal",
    "SignalReceipt",
    "Status",
    "TextPiece",
    "WaitPage",
]

Status: TypeAlias = Literal[
    "ready", "running", "waiting", "closing", "finished", "failed", "cancelled", "expired",
    "quarantined", "promoted",
]  # fmt: skip
"""The status of a run. ``ready``: it can go on, and no worker has claimed it. ``closing``: past its
expiry, but it still carries out a decision.
``promoted``: it did not run, because its input answered a wait of another run."""

OnBusy: TypeAlias = Literal["queue", "reject", "replace", "promote"]
"""What happens to a start in a session that has an active run."""


PAUSE_REASONS: tuple[str, ...] = (
    "signal", "review", "timer", "retry", "ambiguous", "unserved", "quota", "budget", "scheduled",
    "queued", "draining", "newer_version", "resume_failed", "store_unusable",
)  # fmt: skip
"""Why a run is paused, or why its last worker released it."""


class RunEntry(JsonForm, frozen=True, kw_only=True):
    """One line of a list of runs."""

    id: str
    tenant: str
    graph: str
    version: int
    status: Status
    labels: dict[str, str]
    created_at: datetime
    session: str | None = None
    reason: str | None = None
    """Why it is paused, as in `Run`."""
    waits: tuple[Wait, ...] = ()
    """What it waits for, as in `Run`."""
    node: str = ""
    """The current node when the row was last written; several if the run has branches."""
    updated_at: datetime
    """When its row was last written."""
    cost_usd: float = 0.0
    """What its calls cost, when the row was last written."""
    failure: Failure | None = None
    """Why it failed or was cancelled, or is quarantined."""
    tokens: int = 0
    """The tokens that its calls used, when the row was last written."""


class RunPage(JsonForm, frozen=True):
    """A page of runs, the newest first."""

    runs: list[RunEntry]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""
    damaged: tuple[str, ...] = ()
    """Ids of runs whose rows cannot be read, at most a thousand."""


class Run(JsonForm, frozen=True, kw_only=True):
    """The row of a run, with everything that an operator needs to know."""

    id: str
    tenant: str
    graph: str
    version: int
    schema: int
    status: Status
    labels: dict[str, str]
    user: str | None
    """A keyed hash of the user of the run."""
    node: str
    """The current node when the row was last written."""
    reason: str | None
    """Why it is paused: signal, review, timer, retry, ambiguous, unserved (its last worker lacks a
    model or a task), quota, budget, scheduled, queued; or why its last worker released it:
    draining, newer_version, resume_failed, store_unusable. None while a worker owns it, and after
    its end."""
    waits: tuple[Wait, ...]
    """What the run waits for: at most eight waits. `RunHandle.waits` has all of them."""
    due_at: datetime | None
    """When the run can be claimed; None while a worker owns it, and after its end."""
    owner: str | None
    """The worker that owns the run."""
    retries_left: int
    """How many failures of its current nodes the run survives, when the row was last written: at
    its start, at a pause, by a retry. 0 after its end."""
    nodes_run: int
    spent_seconds: float
    """Time spent inside nodes."""
    journal_records: int
    """The position of the journal up to which the row is current."""
    journal_bytes: int
    """The size of the journal up to that position."""
    generation: str
    epoch: int
    resume_failures: int
    failure: Failure | None
    """Why the run failed or was cancelled, or why it could not be resumed."""
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    session: str | None = None
    """The session to whose queue the run belongs."""
    into: str | None = None
    """For a promoted run: the run whose wait its input answered."""
    parent: str | None = None
    """The run that started it. It ends with its parent."""
    chunk: MapChunk | None = None
    """Which part of a map of its parent it works on. Lists leave such runs out."""
    budget: BudgetLimits | None = None
    """What the run may spend; None if it has no budget of its own."""
    budget_of: str | None = None
    """The run whose budget this run shares."""
    tokens: int = 0
    """The tokens that its calls used, when the row was last written."""
    cost_usd: float = 0.0
    """What its calls cost, when the row was last written."""


class AmbiguousCall(JsonForm, frozen=True, kw_only=True):
    """A call with an unknown outcome. A person has to resolve it."""

    run: str
    tenant: str
    graph: str
    node: str
    call: str
    """The id of the call, for `RunHandle.resolve`."""
    name: str
    """The tool's name."""
    key: str
    """The idempotency key of the call."""
    since: datetime
    arguments: Any = None
    """The redacted arguments of the call by name; None if the list does not have them."""

    def __repr__(self) -> str:
        # Without the arguments: a repr goes into logs.
        shown = [name for name in self.__struct_fields__ if name != "arguments"]
        return f"AmbiguousCall({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class SessionQueueEntry(JsonForm, frozen=True, kw_only=True):
    """A run in a session queue."""

    number: int
    """The position in the queue. Numbers are never reused."""
    id: str
    status: Status
    reason: str | None
    """Why it is paused: ``queued`` if it waits for the runs before it."""
    created_at: datetime


class SetAsideSignal(JsonForm, frozen=True, kw_only=True):
    """A signal that no wait takes, because its payload does not fit the type of the wait."""

    name: str
    id: str
    payload: Any
    reason: str
    """Why it does not fit."""
    node: str
    """The node that waited for it."""
    at: datetime
    """When the run set it aside."""


class SignalReceipt(JsonForm, frozen=True, kw_only=True):
    """What became of a signal when it was stored."""

    repeated: bool
    """Whether the run had the signal already, with the same id."""
    answers_wait: bool
    """Whether the run waited for it. If not, the inbox keeps it until a node waits for it."""
    waits_for: tuple[str, ...] = ()
    """The names of the signals that the run waited for; empty while a worker runs it."""
    waits_again: bool = False
    """Whether the run took this signal before, and now waits for another one of its name, as after
    a retry: send it with another ``signal_id``."""


class HistoryEntry(JsonForm, frozen=True, kw_only=True):
    """One event in the history of a run."""

    at: datetime
    kind: str
    node: str | None
    details: dict[str, Any]
    cursor: str
    """Pass it to read what follows; empty if the event is ephemeral."""
    ephemeral: bool = False
    """Whether the event is not recorded: it may be missed, and no other reader need get it."""

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain types, ready for ``json.dumps``, also the times among the details."""
        return {**super().as_dict(), "details": with_readable_times(self.details)}

    @classmethod
    def from_dict(cls, shown: Mapping[str, Any]) -> Self:
        """Return the entry of which `as_dict` returned this, also the times among the details.

        Raises:
            InvalidRequest: this is not the form of an entry; the error names the field.
        """
        entry = super().from_dict(shown)
        return msgspec.structs.replace(entry, details=with_times_in_ms(entry.details))


class HistoryPage(JsonForm, frozen=True):
    """A page of the history of a run, the oldest event first."""

    entries: list[HistoryEntry]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""


class WaitPage(JsonForm, frozen=True):
    """A page of what a run waits for, the longest wait first."""

    waits: list[Wait]
    cursor: str | None
    """Pass it to read the next page; None at the end."""


class TextPiece(JsonForm, frozen=True, kw_only=True):
    """A piece of a streamed answer."""

    call: str
    """The id of the call. A second attempt of the call has the same id."""
    name: str
    """The name under which the node asked."""
    text: str
    cursor: str
    """Pass it to read what follows."""
    last: bool = False
    """Whether this is the last piece of the answer."""
    restarted: bool = False
    """Whether the answer starts again: earlier pieces of this call are void."""
