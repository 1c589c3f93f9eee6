"""What a server answers besides rows, lists and histories."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.model.json_form import JsonForm
from holdfast.model.progress import BulkProgress
from holdfast.model.run import AmbiguousCall, SessionQueueEntry, SetAsideSignal, Status

__all__ = [
    "AmbiguousCallPage",
    "BulkAction",
    "BulkJob",
    "BulkJobPage",
    "BulkRequest",
    "BulkStatus",
    "GraphDescription",
    "GraphPage",
    "QuotaPage",
    "QuotaUsage",
    "RunInput",
    "RunResult",
    "RunState",
    "SessionQueuePage",
    "SetAsidePage",
    "StartedRun",
]

BulkAction: TypeAlias = Literal["cancel", "retry"]
"""What a bulk job does to each run."""

BulkStatus: TypeAlias = Literal["pending", "running", "finished", "cancelled", "failed"]
"""The status of a bulk job. ``pending``: no server has claimed it yet."""


class StartedRun(JsonForm, frozen=True, kw_only=True):
    """A run whose start is stored."""

    id: str
    tenant: str
    url: str
    """The path of the run on this server."""
    status: Status | None = None
    """The status after the wait, if the request asked to wait for the end of the run."""
    result: Any = None
    """The result in its stored form, if the run finished meanwhile."""


class RunInput(JsonForm, frozen=True):
    """The input of a run, in its stored form."""

    input: Any


class RunState(JsonForm, frozen=True):
    """The state of a run, in its stored form."""

    state: Any


class RunResult(JsonForm, frozen=True):
    """The result of a run that finished, in its stored form."""

    result: Any


class GraphDescription(JsonForm, frozen=True, kw_only=True):
    """The newest version of a graph that a server has."""

    name: str
    version: int
    versions: list[int]
    """All versions that the server has, the newest first."""
    input_schema: dict[str, Any] | None
    """The JSON schema of the input; None if it is not known."""
    signals: dict[str, dict[str, Any] | None]
    """The JSON schemas of the signals by name; None where any payload fits."""
    takes_other_signals: bool
    """Whether its runs also take signals that are not named here."""


class GraphPage(JsonForm, frozen=True):
    """A page of graphs, by name."""

    graphs: list[GraphDescription]
    cursor: str | None
    """Pass it to read the next page; None at the end."""


class SessionQueuePage(JsonForm, frozen=True):
    """A page of a session queue, the oldest run first."""

    runs: list[SessionQueueEntry]
    cursor: str | None
    """Pass it to read the next page; None at the end."""


class SetAsidePage(JsonForm, frozen=True):
    """A page of the signals that a run has set aside, the oldest first."""

    signals: list[SetAsideSignal]
    cursor: str | None
    """Pass it to read the next page; None at the end."""


class AmbiguousCallPage(JsonForm, frozen=True):
    """A page of the calls that a person has to resolve, the oldest first."""

    calls: list[AmbiguousCall]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""


class QuotaUsage(JsonForm, frozen=True, kw_only=True):
    """A quota: its limits, and how much of it is used now."""

    name: str
    models: list[str]
    """The models that it limits in this process."""
    per_ms: int
    """The length of the window."""
    per_tenant: bool
    """Whether each tenant has its own limits."""
    requests: int | None
    """The limit on requests in a window; None if there is none. So for the next three."""
    tokens: int | None
    usd: float | None
    concurrency: int | None
    tokens_used: int
    """The tokens that count in the current window; reservations included."""
    usd_used: float
    """The money that counts in the current window; reservations included."""
    concurrent: int
    """How many calls hold a permit now."""
    next_ms: int
    """How long the next request has to wait for the requests before it."""
    queue_ms: int
    """How long the last caller in the queue has to wait."""


class QuotaPage(JsonForm, frozen=True):
    """A page of quotas, by name."""

    quotas: list[QuotaUsage]
    cursor: str | None
    """Pass it to read the next page; None at the end."""


class BulkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk job has to do. Fields are only ever added at the end."""

    action: BulkAction
    filter: dict[str, Any]
    reason: str = ""
    keep_answers: bool = False
    limit: int | None = None
    dry_run: bool = False
    everything: bool = False


class BulkJob(JsonForm, frozen=True, kw_only=True):
    """A bulk action that servers carry out, page by page, until its end."""

    id: str
    tenant: str
    action: BulkAction
    status: BulkStatus
    filter: dict[str, Any]
    """Which runs it acts on: the conditions as they were given."""
    reason: str
    keep_answers: bool
    limit: int | None
    dry_run: bool
    everything: bool
    progress: BulkProgress
    """What it has done. After the death of a server, one page of runs may be missing here."""
    created_at: datetime
    updated_at: datetime
    error: str | None
    """Why it failed."""


class BulkJobPage(JsonForm, frozen=True):
    """A page of bulk jobs, the newest first."""

    jobs: list[BulkJob]
    cursor: str | None
    """Pass it to read the next page; None at the end."""
