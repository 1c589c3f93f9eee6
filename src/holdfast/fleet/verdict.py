"""Whether a run makes no progress, why, and what to do about it: pure."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from holdfast.engine.runs.removal import freed_at_ms
from holdfast.fleet.coverage import Coverage
from holdfast.model.durations import duration_text
from holdfast.model.fleet import StalledRun, StallReason
from holdfast.model.wait_texts import with_group_about
from holdfast.records.head import ENDED, Head
from holdfast.records.shown_status import due_ms_of, shown_status
from holdfast.records.times import utc_datetime

__all__ = ["RECHECK_MS_MAX", "Patience", "StallKind", "Verdict", "stalled_run", "verdict_on"]

RECHECK_MS_MAX = 300_000
"""The longest backoff after which a worker tries a run again that it could not drive."""
_LEASE_MS = 60_000
# How late an index may show a run, and how long a claim may take.
_MARGIN_MS = 30_000
_RESUME_FAILURES = 2

StallKind = Literal["stuck", "unserved"]
_STUCK: frozenset[StallReason] = frozenset(
    {"overdue", "no_free_slot", "dead_worker", "resume_failed", "not_notified"}
)


class Patience(msgspec.Struct, frozen=True):
    """How long a run may be due before something is wrong."""

    grace_ms: int
    """How long a run may be due without a worker that serves it."""
    poll_ms: int
    """How long workers wait between two polls."""

    def stuck_after_ms(self, coverage: Coverage) -> int:
        """Return how long a run may be due that live workers serve: a lease, a poll, a margin."""
        leases = [row.lease_ms for row in coverage.live if row.lease_ms]
        return max(leases, default=_LEASE_MS) + self.poll_ms + _MARGIN_MS


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run makes no progress."""

    reason: StallReason
    since_ms: int
    detail: str
    advice: str

    @property
    def kind(self) -> StallKind:
        """Whether the run is stuck, or no worker serves it."""
        return "stuck" if self.reason in _STUCK else "unserved"


def verdict_on(head: Head, coverage: Coverage, patience: Patience) -> Verdict | None:
    """Return why a run makes no progress; None if it does, or waits as it should.

    Raises:
        JournalDamaged: the row has an impossible index key.
    """
    if head.owner is not None:
        return _verdict_on_owned(head, head.owner, coverage, patience)
    due_ms = due_ms_of(head)
    if due_ms is None or _waits_to_be_freed(head, due_ms):
        return None
    serving = coverage.serving(head.graph, head.pool)
    overdue_ms = coverage.now_ms - due_ms
    if not serving:
        return _without_worker(head, due_ms, coverage) if overdue_ms > patience.grace_ms else None
    newest = coverage.newest(head.graph, serving)
    if newest is not None and newest < head.version:
        waited_ms = coverage.now_ms - head.created_ms
        if head.reason == "newer_version" or min(overdue_ms, waited_ms) > patience.grace_ms:
            return _of_newer_version(head, newest)
    if head.is_paused and head.reason == "unserved":
        return _without_resource(head)
    if head.reason == "resume_failed" and head.resume_failures >= _RESUME_FAILURES:
        return _not_resumable(head)
    if overdue_ms <= patience.stuck_after_ms(coverage):
        return None
    shown = duration_text(overdue_ms // 1000 * 1000)
    if coverage.are_full(serving):
        return Verdict(
            reason="no_free_slot",
            since_ms=due_ms,
            detail=f"due for {shown}; the {len(serving)} workers that serve it have no free slot",
            advice="start more workers, or raise their --concurrency",
        )
    return Verdict(
        reason="overdue",
        since_ms=due_ms,
        detail=f"due for {shown}, although {len(serving)} live workers serve it",
        advice="look for WARNING and ERROR lines of holdfast.worker: the row may be unreadable, "
        "or the clocks differ",
    )


def _waits_to_be_freed(head: Head, due_ms: int) -> bool:
    """Return whether a run has ended, and is due only because its blobs are to be deleted."""
    freed_ms = freed_at_ms(head, head.extent)
    return head.status in ENDED and freed_ms is not None and due_ms >= freed_ms


def stalled_run(head: Head, verdict: Verdict, *, now_ms: int) -> StalledRun:
    """Return a run as a list of runs without progress shows it."""
    return StalledRun(
        id=head.key.id,
        tenant=head.key.tenant,
        graph=head.graph,
        version=head.version,
        pool=head.pool,
        status=shown_status(head, now_ms=now_ms),
        reason=verdict.reason,
        since_at=utc_datetime(verdict.since_ms),
        detail=verdict.detail,
        advice=verdict.advice,
    )


def _verdict_on_owned(
    head: Head, owner: str, coverage: Coverage, patience: Patience
) -> Verdict | None:
    row = coverage.workers.get(owner)
    if row is not None and coverage.is_alive(row):
        return None
    lapsed_ms = head.updated_ms if row is None else row.deadline_ms
    late_ms = coverage.now_ms - lapsed_ms
    if not coverage.live:
        if late_ms <= patience.grace_ms:
            return None
        return Verdict(
            reason="no_worker",
            since_ms=lapsed_ms,
            detail=f"its worker {owner} is dead, and no worker lives that could take it over",
            advice=_start_advice(head),
        )
    if late_ms <= patience.stuck_after_ms(coverage):
        return None
    return Verdict(
        reason="dead_worker",
        since_ms=lapsed_ms,
        detail=f"its worker {owner} is dead, and the live workers have not taken it over",
        advice="look for WARNING lines of holdfast.worker about reaping; restart one worker",
    )


def _without_worker(head: Head, due_ms: int, coverage: Coverage) -> Verdict:
    pools = coverage.pools(head.graph)
    if pools:
        named = ", ".join(_pool_text(pool) for pool in pools)
        return Verdict(
            reason="no_worker_for_pool",
            since_ms=due_ms,
            detail=f"workers serve graph {head.graph!r} only from {named}; this run is in "
            f"{_pool_text(head.pool)}",
            advice=_start_advice(head),
        )
    return Verdict(
        reason="no_worker",
        since_ms=due_ms,
        detail=f"no live worker serves graph {head.graph!r}",
        advice=_start_advice(head),
    )


def _of_newer_version(head: Head, newest: int) -> Verdict:
    return Verdict(
        reason="newer_version",
        since_ms=head.created_ms,
        detail=f"started with version {head.version} of graph {head.graph!r}; the newest that a "
        f"live worker has is {newest}",
        advice=f"deploy workers that have version {head.version} of {head.graph!r}",
    )


def _without_resource(head: Head) -> Verdict:
    waits = [wait for wait in with_group_about(head.waits) if wait.kind.reason == "unserved"]
    return Verdict(
        reason="missing_resource",
        since_ms=min((wait.since_ms for wait in waits), default=head.updated_ms),
        detail="it waits for " + (", ".join(wait.description for wait in waits) or "a resource"),
        advice="give the workers this model or task, or correct its name in the graph",
    )


def _not_resumable(head: Head) -> Verdict:
    why = "" if head.failure is None else f": {head.failure.type}: {head.failure.message:.200}"
    shown = f"holdfast run show {shlex.quote(head.key.id)}{tenant_text(head.key.tenant)}"
    return Verdict(
        reason="resume_failed",
        since_ms=head.updated_ms,
        detail=f"{head.resume_failures} attempts to resume it failed{why}",
        advice=f"repair the cause, then deploy; {shown} has the error",
    )


def tenant_text(tenant: str) -> str:
    """Return the option with which a command acts on a tenant, with a space before it."""
    return "" if tenant == "default" else f" --tenant {shlex.quote(tenant)}"


def _start_advice(head: Head) -> str:
    pool = "" if head.pool is None else f" --pool {head.pool}"
    return f"start a worker that has graph {head.graph!r}: holdfast worker TARGET{pool}"


def _pool_text(pool: str | None) -> str:
    return "the pool without a name" if pool is None else f"pool {pool!r}"
