"""The events in the journal of a run.

Only completed facts are recorded. What is outstanding is derived from them, so that a node costs
one write. Journals outlive releases: fields may be added at the end with a default, and are never
removed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from holdfast.model.arguments import Recorded
from holdfast.model.json_form import JsonForm
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.model.wait import Wait

__all__ = [
    "AttemptFailed",
    "BranchFailed",
    "BudgetDrawn",
    "CallFinished",
    "CallIntended",
    "CallReserved",
    "CallRetried",
    "CallVoided",
    "Cancelled",
    "ChildGranted",
    "ChildStarted",
    "Event",
    "Expired",
    "Extended",
    "Failed",
    "Failure",
    "Fenced",
    "Finished",
    "Fork",
    "NodeFinished",
    "ProgramEvent",
    "RecordedCall",
    "RecordedIntent",
    "Rerouted",
    "SignalSetAside",
    "SignalTaken",
    "Snapshot",
    "TimerFired",
    "WaitDescribed",
    "WaitsRecorded",
    "without_arguments",
]


class Failure(JsonForm, frozen=True, array_like=True):
    """An error in a form that other processes can read."""

    type: str = ""
    message: str = ""
    trace: str = ""


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """Branches that run in parallel before the run goes on."""

    starts: tuple[str, ...]
    """The first node of each branch. Branches over items share one first node."""
    over: str = ""
    """The field whose items get one branch each; empty if each start is one branch."""
    into: str = ""
    """The field in which a branch over items finds its item."""
    count: int = 0
    """The number of branches over items."""
    spares: bool = False
    """Whether the other branches go on when one fails. Otherwise they are cancelled."""
    concurrency: int = 0
    """How many branches run at a time; 0 leaves that to the worker."""
    takes: dict[str, str] | None = None
    """For an included graph: each of its fields with the outer field it is copied from."""
    gives: dict[str, str] = {}
    """For an included graph: each outer field that it changes with the inner field."""
    ops: dict[str, str] = {}
    """The reducers of the fields in ``gives``."""

    @property
    def width(self) -> int:
        """The number of branches."""
        return self.count if self.over else len(self.starts)


class NodeFinished(msgspec.Struct, frozen=True, array_like=True, tag="node"):
    """A node returned, and the run goes on to the next node."""

    at_ms: int
    node: str
    visit: int
    delta: dict[str, Any]
    to: str | None
    """The next node; None if the run or the branch ends."""
    spent_ms: int = 0
    branch: str = ""
    ops: dict[str, str] = {}
    """The reducers of fields in the delta. Other fields are replaced."""
    fork: Fork | None = None
    """The branches that run before the next node. There is always a next node then."""


class AttemptFailed(msgspec.Struct, frozen=True, array_like=True, tag="attempt"):
    """A node raised an error and will be attempted again."""

    at_ms: int
    node: str
    visit: int
    failure: Failure
    retry_at_ms: int
    spent_ms: int = 0
    branch: str = ""


class SignalTaken(msgspec.Struct, frozen=True, array_like=True, tag="signal"):
    """A signal answered a wait of a node."""

    at_ms: int
    node: str
    visit: int
    wait: str
    """The key of the wait in the visit."""
    name: str
    id: str
    payload: Any = None
    branch: str = ""


class SignalSetAside(msgspec.Struct, frozen=True, array_like=True, tag="aside"):
    """A signal did not fit the type that a node waits for. No wait takes it; the inbox keeps it."""

    at_ms: int
    node: str
    visit: int
    name: str
    id: str
    reason: str
    """Why it does not fit. The text quotes nothing of the payload."""
    branch: str = ""


class ChildStarted(msgspec.Struct, frozen=True, array_like=True, tag="child"):
    """A node started a child run. The next attempt of the node finds the same child."""

    at_ms: int
    node: str
    visit: int
    number: int
    """The number of the child in the visit, from 1."""
    id: str
    graph: str
    branch: str = ""


class CallFinished(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A call of a node ended. The next attempt of the node gets the same result."""

    at_ms: int
    node: str
    visit: int
    call: str
    """The id of the call in the visit."""
    digest: bytes
    """A hash of the arguments."""
    result: Any = None
    failure: Failure | None = None
    """Why there is no result."""
    kinds: tuple[str, ...] = ()
    """The names of the error's type and of its base types."""
    lasts: bool = False
    """Whether the next attempts of the node get the same failure."""
    spent: Spending = NO_SPENDING
    saved: Spending = NO_SPENDING
    """What the call would have cost without a shared answer."""
    by: str = ""
    """The source of the result if the call was not made: ``probe``, ``person`` or ``cache``."""
    branch: str = ""


class CallIntended(msgspec.Struct, frozen=True, array_like=True, tag="intent"):
    """A call that is made at most once is about to be made."""

    at_ms: int
    node: str
    visit: int
    call: str
    digest: bytes
    branch: str = ""


class RecordedCall(CallFinished, frozen=True, tag="call"):
    """The end of a call with its arguments. Only the history reads them: the fold does not.

    Records of other calls end before this field. Fields that `CallFinished` needs later go here,
    behind it: all records of a kind have one order of fields.
    """

    arguments: Recorded | None = None


class RecordedIntent(CallIntended, frozen=True, tag="intent"):
    """The intent of a call with its arguments; see `RecordedCall`."""

    arguments: Recorded | None = None


def without_arguments(event: Event) -> Event:
    """Return an event without the arguments of its call."""
    if isinstance(event, RecordedCall):
        return CallFinished(*msgspec.structs.astuple(event)[:-1])
    if isinstance(event, RecordedIntent):
        return CallIntended(*msgspec.structs.astuple(event)[:-1])
    return event


class CallVoided(msgspec.Struct, frozen=True, array_like=True, tag="void"):
    """An at-most-once call was not carried out, and its key never will be used."""

    at_ms: int
    node: str
    visit: int
    call: str
    by: str
    """The source of this finding: ``probe``, ``person`` or ``tool``."""
    branch: str = ""


class CallRetried(msgspec.Struct, frozen=True, array_like=True, tag="call_attempt"):
    """A call failed and will be made again."""

    at_ms: int
    node: str
    visit: int
    call: str
    failure: Failure
    retry_at_ms: int
    branch: str = ""


class CallReserved(msgspec.Struct, frozen=True, array_like=True, tag="reserved"):
    """Money and tokens were reserved for a call that is about to be made."""

    at_ms: int
    node: str
    visit: int
    call: str
    max_spending: Spending
    branch: str = ""
    instead: bool = False
    """Whether it replaces the reservation before it, which was not spent."""


class BudgetDrawn(msgspec.Struct, frozen=True, array_like=True, tag="drawn"):
    """The run drew more from a shared budget, or is about to return a part of what it drew."""

    at_ms: int
    total: Spending
    """Everything that the run has drawn so far and not returned."""


class ChildGranted(msgspec.Struct, frozen=True, array_like=True, tag="granted"):
    """Part of the run's budget was set aside for a child that is about to start."""

    at_ms: int
    id: str
    max_spending: Spending


class TimerFired(msgspec.Struct, frozen=True, array_like=True, tag="timer"):
    """A sleep of a node is over, or its wait for a signal timed out."""

    at_ms: int
    node: str
    visit: int
    wait: str
    branch: str = ""


class WaitDescribed(msgspec.Struct, frozen=True, array_like=True, tag="about"):
    """What a node said about a wait, recorded with the answer to the wait."""

    at_ms: int
    node: str
    visit: int
    wait: str
    """The key of the wait in the visit; for a group of waits, that of the group."""
    about: Any
    branch: str = ""


class WaitsRecorded(msgspec.Struct, frozen=True, array_like=True, tag="waiting"):
    """Branches started to wait. Recorded only if the waits do not fit into the row."""

    at_ms: int
    waits: tuple[Wait, ...]


class BranchFailed(msgspec.Struct, frozen=True, array_like=True, tag="branch"):
    """A branch ended with an error, and the other branches of its fork go on."""

    at_ms: int
    branch: str
    node: str
    failure: Failure


class Rerouted(msgspec.Struct, frozen=True, array_like=True, tag="reroute"):
    """The run was sent to a node by a stale pause or a retry. Its state did not change."""

    at_ms: int
    to: str | None
    """None if the run goes on at its current node."""
    reason: str
    """``stale``, ``escalated`` or ``retried``; another program may have reasons of its own."""
    request: str = ""
    """The id of the retry request, so that it is carried out once."""
    branch: str = ""
    asks_again: bool = False
    """Whether the waits for signals of the failed visit ask again, because a retry dropped their
    answers."""


class ProgramEvent(msgspec.Struct, frozen=True, array_like=True, tag="program"):
    """A program noted something of its own. The history of the run shows it."""

    at_ms: int
    kind: str
    """What the program calls it, such as ``TaskStateEntered``."""
    data: Any = None
    branch: str = ""
    notes: dict[str, Any] = {}
    """What the program wants to know again in this visit of the branch; see `Strand.notes`."""


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """The run reached its end. Its state is its result."""

    at_ms: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The run ended with an error."""

    at_ms: int
    failure: Failure
    node: str | None = None
    branch: str = ""
    """The branch of the node that failed; empty if the run has no branches."""


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag="cancelled"):
    """A caller cancelled the run."""

    at_ms: int
    reason: str = ""


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="expired"):
    """The run did not end before its expiry."""

    at_ms: int


class Fenced(msgspec.Struct, frozen=True, array_like=True, tag="fence"):
    """A worker took the run over. The previous owner can no longer write to the journal."""

    at_ms: int
    epoch: int
    worker: str


class Extended(msgspec.Struct, frozen=True, array_like=True, tag="extended"):
    """A caller extended the run. Records after this event have the new ttl.

    The row says whether the extension took effect: the run may have expired before.
    """

    at_ms: int
    expires_ms: int
    ttl: int
    kept: str
    """The retention class of blobs written after this event."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """The fold of all events before it. Readers can start at its record."""

    at_ms: int
    fold: bytes
    """The execution, as `holdfast.model.fold.snapshot` encodes it."""
    size: int = 0
    """The size in bytes of the journal before it."""
    blobs: bool = False
    """Whether the journal before it has blobs."""


Event: TypeAlias = (
    NodeFinished
    | AttemptFailed
    | SignalTaken
    | SignalSetAside
    | TimerFired
    | ChildStarted
    | CallFinished
    | CallIntended
    | CallVoided
    | CallRetried
    | CallReserved
    | BudgetDrawn
    | ChildGranted
    | WaitDescribed
    | WaitsRecorded
    | BranchFailed
    | Rerouted
    | ProgramEvent
    | Finished
    | Failed
    | Cancelled
    | Expired
    | Fenced
    | Extended
    | Snapshot
)
