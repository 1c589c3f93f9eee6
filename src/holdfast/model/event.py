"""What happened to a run: the facts of which its journal is made, and nothing else.

Only completed facts are recorded. What is outstanding is derived from them again, so that a node
costs one write. Fields may be added at the end, with a default; none is ever taken away, since
journals outlive releases.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

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
    "Rerouted",
    "SignalTaken",
    "Snapshot",
    "TimerFired",
    "WaitsRecorded",
]


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error, as far as it can be told to somebody in another process."""

    type: str = ""
    message: str = ""
    trace: str = ""


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """Branches that are to run side by side before the run goes on."""

    starts: tuple[str, ...]
    """The first node of each branch; where there is one for each item, the one node of all."""
    over: str = ""
    """The field of the state whose items have a branch each; otherwise there is one a start."""
    into: str = ""
    """The field in which such a branch finds its item."""
    count: int = 0
    """How many branches there are, where they go over items."""
    spares: bool = False
    """Whether a branch that fails leaves the others alone; otherwise it takes them with it."""
    concurrency: int = 0
    """How many of them run at a time; 0 leaves that to the worker."""
    takes: dict[str, str] | None = None
    """Where the branch has a state of its own: its fields, each with the one it is copied from."""
    gives: dict[str, str] = {}
    """And the fields that it gives back, each with the one of its own."""
    ops: dict[str, str] = {}
    """The reducers of the fields that it gives back."""

    @property
    def width(self) -> int:
        """How many branches there are."""
        return self.count if self.over else len(self.starts)


class NodeFinished(msgspec.Struct, frozen=True, array_like=True, tag="node"):
    """A node returned, and this is where the run goes next."""

    at_ms: int
    node: str
    visit: int
    delta: dict[str, Any]
    to: str | None
    """The next node, as it was decided then; None where the run, or the branch, ends."""
    spent_ms: int = 0
    branch: str = ""
    ops: dict[str, str] = {}
    """The reducers of what the delta contributes to; other fields are replaced."""
    fork: Fork | None = None
    """What runs before the next node does; there always is a next node then."""


class AttemptFailed(msgspec.Struct, frozen=True, array_like=True, tag="attempt"):
    """A node raised, and is to be tried again."""

    at_ms: int
    node: str
    visit: int
    failure: Failure
    retry_at_ms: int
    spent_ms: int = 0
    branch: str = ""


class SignalTaken(msgspec.Struct, frozen=True, array_like=True, tag="signal"):
    """A wait of a node was answered by a signal."""

    at_ms: int
    node: str
    visit: int
    wait: str
    """Which of the visit's waits it was."""
    name: str
    id: str
    payload: Any = None
    branch: str = ""


class ChildStarted(msgspec.Struct, frozen=True, array_like=True, tag="child"):
    """A node started a run; whoever runs the node again finds it here."""

    at_ms: int
    node: str
    visit: int
    number: int
    """Which of the visit's children it is, from 1 on."""
    id: str
    graph: str
    branch: str = ""


class CallFinished(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A call of a node came to an end; whoever runs the node again is given what it came to."""

    at_ms: int
    node: str
    visit: int
    call: str
    """Which of the visit's calls it is."""
    digest: bytes
    """A hash of its arguments."""
    result: Any = None
    failure: Failure | None = None
    """Why there is no result."""
    kinds: tuple[str, ...] = ()
    """What kinds of error that was."""
    lasts: bool = False
    """Whether the failure is that of the next attempts of the node as well."""
    spent: Spending = NO_SPENDING
    saved: Spending = NO_SPENDING
    """What it would have cost, had there not been an answer already."""
    by: str = ""
    """Who else said so: ``probe``, ``person`` or ``cache``."""
    branch: str = ""


class CallIntended(msgspec.Struct, frozen=True, array_like=True, tag="intent"):
    """A call that is made at most once is about to be made."""

    at_ms: int
    node: str
    visit: int
    call: str
    digest: bytes
    branch: str = ""


class CallVoided(msgspec.Struct, frozen=True, array_like=True, tag="void"):
    """A call that was made at most once did not come about, and under its key never will."""

    at_ms: int
    node: str
    visit: int
    call: str
    by: str
    """Who said so: ``probe``, ``person`` or ``tool``."""
    branch: str = ""


class CallRetried(msgspec.Struct, frozen=True, array_like=True, tag="call_attempt"):
    """A call failed, and is to be made again."""

    at_ms: int
    node: str
    visit: int
    call: str
    failure: Failure
    retry_at_ms: int
    branch: str = ""


class CallReserved(msgspec.Struct, frozen=True, array_like=True, tag="reserved"):
    """A call is about to be made that may cost up to so much."""

    at_ms: int
    node: str
    visit: int
    call: str
    max_spending: Spending
    branch: str = ""
    instead: bool = False
    """Whether it stands in the place of what was set aside before, which is known to be unspent."""


class BudgetDrawn(msgspec.Struct, frozen=True, array_like=True, tag="drawn"):
    """The run was given more of the budget that it shares with others."""

    at_ms: int
    total: Spending
    """All that it was given so far."""


class ChildGranted(msgspec.Struct, frozen=True, array_like=True, tag="granted"):
    """A child is about to be started that may spend so much of the run's budget."""

    at_ms: int
    id: str
    max_spending: Spending


class TimerFired(msgspec.Struct, frozen=True, array_like=True, tag="timer"):
    """A sleep of a node is over, or the longest that it would wait for a signal."""

    at_ms: int
    node: str
    visit: int
    wait: str
    branch: str = ""


class WaitsRecorded(msgspec.Struct, frozen=True, array_like=True, tag="waiting"):
    """Branches began to wait: written where there are more waits than a row holds."""

    at_ms: int
    waits: tuple[Wait, ...]


class BranchFailed(msgspec.Struct, frozen=True, array_like=True, tag="branch"):
    """A branch ended with an error, and the others of its fork go on."""

    at_ms: int
    branch: str
    node: str
    failure: Failure


class Rerouted(msgspec.Struct, frozen=True, array_like=True, tag="reroute"):
    """The run was sent to a node by something other than a route, with its state as it was."""

    at_ms: int
    to: str | None
    """None where it goes on at the node at which it stood."""
    reason: str
    """``stale``, ``escalated`` or ``retried``; another program may have reasons of its own."""
    request: str = ""
    """The id of the retry that asked for it, so that it is carried out once."""
    branch: str = ""


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
    """The run reached its end; its state is its result."""

    at_ms: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The run ended with an error."""

    at_ms: int
    failure: Failure
    node: str | None = None


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag="cancelled"):
    """Somebody ended the run."""

    at_ms: int
    reason: str = ""


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="expired"):
    """Nobody ended the run in time."""

    at_ms: int


class Fenced(msgspec.Struct, frozen=True, array_like=True, tag="fence"):
    """Another worker took the run over: whoever had it before cannot write from here on."""

    at_ms: int
    epoch: int
    worker: str


class Extended(msgspec.Struct, frozen=True, array_like=True, tag="extended"):
    """Somebody gave the run more time; whatever is written after this lasts as long as it says.

    Whether it took effect the row says: the run may have expired before.
    """

    at_ms: int
    expires_ms: int
    ttl: int
    kept: str
    """The retention class of the blobs that are written from here on."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """Everything before it, folded: the first event of its record, and where readers may begin."""

    at_ms: int
    fold: bytes
    """The execution, as `holdfast.model.fold.snapshot` encodes it."""
    size: int = 0
    """The bytes of the journal before it."""
    blobs: bool = False
    """Whether any of that is a blob."""


Event: TypeAlias = (
    NodeFinished
    | AttemptFailed
    | SignalTaken
    | TimerFired
    | ChildStarted
    | CallFinished
    | CallIntended
    | CallVoided
    | CallRetried
    | CallReserved
    | BudgetDrawn
    | ChildGranted
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
