"""A call as a node asks for it, and what it needs from the visit that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.engine.effects.begun_requests import BegunRequests
from holdfast.engine.effects.call_ids import CallIds
from holdfast.engine.effects.charges import FREE, CallPrice
from holdfast.engine.effects.quotas import Permit
from holdfast.engine.runs.reviewing import LoadedReview
from holdfast.graph.approval import ApprovalTerms
from holdfast.graph.tool import Tool
from holdfast.graph.tool_form import FilledForm
from holdfast.model.arguments import Recorded, Recording
from holdfast.model.call import Call
from holdfast.model.event import Event, SignalTaken
from holdfast.model.invocation import Request
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.policy import Retry
from holdfast.model.quota import Cost, Quota
from holdfast.model.spending import Spending
from holdfast.model.wait import WaitKind
from holdfast.records.keys import RunKey
from holdfast.records.review import ReviewContent

__all__ = [
    "Ambiguous",
    "ApprovalHost",
    "CallHost",
    "CallPermits",
    "CallRequest",
    "CallWaits",
    "RecordsArguments",
    "ReportedAttempt",
    "ReviewedCall",
    "TellEdit",
]

TellEdit: TypeAlias = Callable[[str], None]
"""Takes a sentence with the arguments that reviewers edited."""


class CallPermits(Protocol):
    """Acquires the permits of quotas for calls."""

    async def acquire(self, call: str, quota: Quota | None, cost: Cost) -> Permit | None:
        """Return the permit for a call that is about to begin; pause the run if it comes late."""
        ...

    async def acquire_in_place(self, call: str, quota: Quota | None, cost: Cost) -> Permit | None:
        """Return the permit for a call that is being made, if it comes soon."""
        ...

    async def reacquire(self, missed: Permit) -> Permit:
        """Return a new permit for a call that began too late to use its own."""
        ...

    async def wait_for_quota(self, call: str, quota: Quota, retry_at_ms: int) -> None:
        """Return when the call may ask a quota again, or pause the run until then."""
        ...


class CallWaits(Protocol):
    """Waits between the attempts of a call."""

    async def sleep_or_pause(self, kind: WaitKind, wake_at_ms: int, about: str) -> None:
        """Return at that time, or pause the run until then."""
        ...


class RecordsArguments(Protocol):
    """Prepares the arguments of calls for their records."""

    def recording_of(self, request: CallRequest) -> Recording:
        """Return which arguments of a call are recorded."""
        ...

    def recorded(
        self,
        recording: Recording,
        arguments: Mapping[str, Any],
        *,
        call: str,
        after: str = "",
        run: RunKey,
    ) -> Recorded | None:
        """Return the arguments of a call as its record holds them; None if it holds none."""
        ...


class ReportedAttempt(Protocol):
    """An attempt of a call, for telemetry: it is reported when its outcome is recorded."""

    def record(self, call: str, *, result: Any = None, error: str = "") -> None:
        """Report the attempt, with its recorded result or the type of its error."""
        ...

    def leave(self) -> None:
        """Note that the attempt is over, also where nothing is recorded."""
        ...


class CallHost(Protocol):
    """The visit of a node that makes the calls."""

    node: str
    branch: str
    visit: int
    call_ids: CallIds
    requests: BegunRequests

    @property
    def key(self) -> str:
        """A name of the visit that no other visit has."""
        ...

    @property
    def run(self) -> RunKey:
        """The run that the node belongs to."""
        ...

    @property
    def limits(self) -> PayloadLimits:
        """The size limits of values."""
        ...

    @property
    def recorder(self) -> RecordsArguments:
        """Prepares the arguments of calls for their records."""
        ...

    async def to_durable(self, value: Any) -> Any:
        """Return the durable form of what a call returned."""
        ...

    @property
    def threads(self) -> Executor:
        """The threads in which plain functions run."""
        ...

    def known_call(self, call: str) -> Call | None:
        """Return what the journal says about a call."""
        ...

    def now_ms(self) -> int:
        """Return the time of the wall clock."""
        ...

    async def flush_before_call(self) -> None:
        """Make all earlier records durable, and check that this process still holds the run."""
        ...

    async def record(self, *events: Event, durable: bool) -> None:
        """Record events; without ``durable`` they are written with the next record, or soon."""
        ...

    async def persist_run(self) -> None:
        """Make a run durable that existed only in memory so far."""
        ...

    def count_savings(self, spending: Spending) -> None:
        """Count a call that was answered without being made."""
        ...

    def report_attempt(self, call: str, request: CallRequest) -> ReportedAttempt | None:
        """Report that an attempt of a call begins; return None without telemetry."""
        ...

    async def reserve_budget(self, call: str, price: CallPrice) -> None:
        """Reserve the cost of a call durably; pause the run if its budget is too small."""
        ...

    @property
    def permits(self) -> CallPermits:
        """Where calls get their permits."""
        ...

    @property
    def waits(self) -> CallWaits:
        """Where calls wait."""
        ...

    async def await_resolution(self, ambiguous: Ambiguous) -> SignalTaken:
        """Return what a person says about an ambiguous call; pause the run until then."""
        ...

    @property
    def approvals(self) -> ApprovalHost | None:
        """Where calls are approved; None if no call needs an approval, as in a test of a node."""
        ...


class ApprovalHost(Protocol):
    """Asks people to approve calls. The subject of a review identifies it within the visit."""

    def known_decision(self, subject: str) -> dict[str, Any] | None:
        """Return the decision that the journal has; None if it has none."""
        ...

    def is_awaited(self, subject: str) -> bool:
        """Return whether the run paused for a review."""
        ...

    async def await_decision(
        self, subject: str, content: ReviewContent, terms: ApprovalTerms
    ) -> dict[str, Any]:
        """Return the decision of a review; pause the run until there is one."""
        ...

    async def settle(self, subject: str, decision: dict[str, Any]) -> None:
        """Let the entry of a review follow a decision that an earlier process took."""
        ...

    async def load_review(self, subject: str) -> LoadedReview | None:
        """Return a review as it stands in the store; None if there is none."""
        ...


class Ambiguous(msgspec.Struct, frozen=True):
    """A call that may or may not have been made."""

    id: str
    name: str
    key: str
    call: str
    """The call's identity within its visit."""
    arguments: Recorded | None = None
    mismatch: str = ""
    """Why the result that a person reported for it cannot be its result."""


class ReviewedCall(msgspec.Struct, frozen=True):
    """Where a call was approved."""

    subject: str
    """The review."""
    name: str = ""
    """The name of the call among the values; empty if the review is about this call only."""


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call as a node asks for it."""

    tool: Tool[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: str | None = None
    """The caller's own name for it."""
    needs_stored_run: bool = False
    """Whether other processes will see its effects, so that the run's row must exist before."""
    retry: Retry
    timeout_ms: int | None = None
    heartbeat_ms: int | None = None
    context: Any = None
    """What the tool receives if it takes ``ctx``."""
    price: CallPrice = FREE
    quota: Quota | None = None
    """The limit on such calls of all workers together."""
    record: Recording | None = None
    """Which of its arguments are recorded; None leaves that to the tool and the process."""
    prompt: Request | None = None
    """What a model is asked; None if another tool is called."""
    asked_by: str = ""
    """The model that wants the call; empty if the code of the node does."""
    reviewed: ReviewedCall | None = None
    """The review that decided about the call; None if it was not asked for, or not yet."""
    filled: FilledForm | None = None
    """The arguments as the node asks for them; None if the tool needs no approval."""
    tell_edit: TellEdit | None = None
    """Is told if the reviewers edited the arguments; None if it need not be."""
