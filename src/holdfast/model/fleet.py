"""The fleet as operators see it: graphs, workers, runs that make no progress, and cost."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

from holdfast.model.json_form import JsonForm
from holdfast.model.run import Status

__all__ = [
    "CostGroup",
    "CostPage",
    "FleetOverview",
    "GraphEntry",
    "PurposeCost",
    "RunCount",
    "StallReason",
    "StalledPage",
    "StalledRun",
    "WorkerEntry",
]

StallReason: TypeAlias = Literal[
    "overdue", "no_free_slot", "dead_worker", "resume_failed", "not_notified",
    "no_worker", "no_worker_for_pool", "newer_version", "missing_resource",
]  # fmt: skip
"""Why a run makes no progress. The first five are those of stuck runs, the others of unserved
runs."""


class GraphEntry(JsonForm, frozen=True, kw_only=True):
    """A version of a graph that a worker, a server or a client has published."""

    name: str
    version: int
    drawing: str = ""
    """A Mermaid flowchart; empty if it is too large."""
    input_schema: dict[str, Any] | None = None
    """The JSON schema of the input; None if there is none."""
    signals: tuple[str, ...] | None = None
    """The names of all signals that its runs take; None if they take signals of any name."""
    signal_schemas: dict[str, tuple[dict[str, Any], ...]]
    """The JSON schemas of payloads by name of the signal, the newest last."""
    pools: tuple[str | None, ...] = ()
    """The pools whose workers have served it; None is the pool without a name."""
    published_at: datetime | None = None
    """When any of this changed last; None if an older release published it."""


class WorkerEntry(JsonForm, frozen=True, kw_only=True):
    """A worker that lives, or a dead one whose runs are not all taken over yet."""

    id: str
    alive: bool
    """Whether its lease has not ended."""
    since_at: datetime
    """When it was registered."""
    lease_until_at: datetime
    """When its lease ends unless it renews it. For a dead worker that is being reaped: when another
    worker continues to reap it."""
    lease_seconds: float
    """How long one lease lasts; 0 if an older release registered it."""
    host: str
    """Empty for an older release, and for a caller of a server who is not one of every tenant."""
    pid: int | None
    """None where ``host`` is empty."""
    release: str
    """The release of Holdfast; empty for an older one."""
    concurrency: int | None
    """How many runs it drives at most; None for an older release."""
    running: int | None
    """How many runs it drove at its last heartbeat."""
    lag_seconds: float | None
    """How overdue the most overdue run was that it claimed between its last two heartbeats."""
    graphs: dict[str, tuple[int, ...]]
    """The versions of each graph that it serves."""
    pools: tuple[str | None, ...]
    """The pools from which it claims runs; None is the pool without a name."""
    complete: bool
    """Whether ``graphs`` and ``pools`` are all that it serves: its row has room for about 20."""
    owned: int
    """How many runs name it as their owner, at most 1,000."""


class StalledRun(JsonForm, frozen=True, kw_only=True):
    """A run that makes no progress, why, and what to do."""

    id: str
    tenant: str
    graph: str
    version: int
    pool: str | None
    status: Status
    reason: StallReason
    since_at: datetime
    """Since when it could have made progress."""
    detail: str
    """What is wrong."""
    advice: str
    """What to do about it."""


class StalledPage(JsonForm, frozen=True, kw_only=True):
    """A page of runs that make no progress."""

    runs: list[StalledRun]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""


class RunCount(JsonForm, frozen=True, kw_only=True):
    """A number of runs."""

    runs: int = 0
    capped: bool = False
    """Whether there may be more: the count ended here."""


class FleetOverview(JsonForm, frozen=True, kw_only=True):
    """How many runs of all tenants are in which state, and how many workers there are.

    It counts the runs of graphs that were published. Failed and quarantined runs are those of the
    tenants that have open runs, and of the instance's own tenant.
    """

    ready: RunCount
    running: RunCount
    waiting: RunCount
    """Runs that are due later; also ended runs that have blobs, until these are deleted."""
    failed: RunCount
    quarantined: RunCount
    stuck: RunCount
    unserved: RunCount
    workers_alive: int
    workers_dead: int
    """Dead workers whose runs are not all taken over yet."""
    read_units: float
    """The read units that this overview cost."""
    counted_at: datetime
    failed_tenants: tuple[str, ...] = ()
    """The tenants of the failed runs that were counted."""
    quarantined_tenants: tuple[str, ...] = ()
    """The tenants of the quarantined runs that were counted."""


class CostGroup(JsonForm, frozen=True, kw_only=True):
    """What the runs of one group cost."""

    key: str
    """The graph, the day, the status or the value of the label; empty if a run has no such."""
    runs: int
    tokens: int
    cost_usd: float


class PurposeCost(JsonForm, frozen=True, kw_only=True):
    """What one process used the store for, and what that cost."""

    purpose: str
    calls: int
    read_units: float
    write_units: float
    cost_usd: float


class CostPage(JsonForm, frozen=True, kw_only=True):
    """What runs cost, in groups, and what the store cost this process."""

    groups: list[CostGroup]
    """The groups of the runs of this page, the most expensive first. Two pages may have the same
    group: add them."""
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""
    store: list[PurposeCost]
    """What this process did with the store since it opened it, whatever the filter says."""
    saved_calls: int
    """How many calls this process answered without making them."""
    saved_usd: float
    """What these calls would have cost."""
    damaged: tuple[str, ...] = ()
    """Ids of runs whose rows cannot be read."""
