"""What is wrong with a store, its graphs and its fleet, and how to repair it: pure.

``holdfast doctor`` gathers facts and shows these findings. Each function judges one kind of facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from holdfast.errors import HoldfastError
from holdfast.fleet.verdict import tenant_text
from holdfast.model.fleet import FleetOverview, RunCount, StalledPage, StalledRun, WorkerEntry
from holdfast.model.json_form import JsonForm
from holdfast.model.run import Status
from holdfast.storage.file_facts import FileFacts

__all__ = [
    "Finding",
    "StoreFacts",
    "TargetFacts",
    "WaitingFacts",
    "error_finding",
    "file_findings",
    "overview_findings",
    "stalled_findings",
    "store_findings",
    "target_findings",
    "troubled_findings",
    "waiting_findings",
    "worker_findings",
]

Level = Literal["ok", "warning", "problem"]

_NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4",
     "smb3", "smbfs", "fuse.glusterfs", "fuse.s3fs"}
)  # fmt: skip
_FREE_BYTES_MIN = 100 * 1024 * 1024
_FREE_BYTES_LOW = 1024 * 1024 * 1024
_LAG_SECONDS_MAX = 30.0
_SKEW_SECONDS_MAX = 5.0
_NAMES_MAX = 3
_NOT_NOTIFIED = "their reviewers do not know that they wait"
# What to do about an error of the store, by its code.
_REPAIRS = {
    "invalid_url": "correct the address: holdfast store --help shows the forms",
    "store_not_found": "holdfast store create {url}",
    "store_unusable": "do what the message says; extras are installed with "
    "pip install 'holdfast[aws]'",
    "store_mismatched": "use another file or table, or the release of Holdfast that made this one",
    "store_corrupt": "restore a backup: holdfast store restore FILE {url}",
    "store_full": "free space on the disk, or raise max_bytes in the address",
    "store_read_only": "let the user of this process write the file and its folder",
    "store_replaced": "restart every process that uses the store",
    "store_in_use": "stop the process that locks the file",
    "access_denied": "give the role the permissions that docs/guides/dynamodb.md lists",
    "credentials_missing": "configure credentials: aws configure, a profile, or a role",
    "credentials_expired": "log in again: aws sso login",
    "endpoint_unreachable": "check the network, the region and the endpoint in the address",
    "server_unavailable": "is holdfast serve running there? check --server, or HOLDFAST_SERVER",
    "throttled": "wait; if it stays, look for another process that floods the table",
}


class Finding(JsonForm, frozen=True, kw_only=True):
    """One thing that was checked."""

    level: Level
    check: str
    """What was checked, in one word."""
    what: str
    why: str = ""
    """Why it matters."""
    fix: str = ""
    """What to do about it."""


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What happened when the store was used."""

    url: str
    has_blobs: bool
    read_error: HoldfastError | None = None
    write_error: HoldfastError | None = None
    blob_error: HoldfastError | None = None
    read_ms: int = 0
    """How long one read took."""


class TargetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A target of a worker, and the graphs in it."""

    target: str
    error: str | None = None
    graphs: tuple[tuple[str, int], ...] = ()


class WaitingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Runs and calls of the tenant that wait for a person. A number may be that of one page."""

    tenant: str = "default"
    ambiguous: int = 0
    budget: int = 0
    quota: int = 0


def error_finding(check: str, error: HoldfastError, *, url: str) -> Finding:
    """Return the finding for an error of the store or the server."""
    repair = _REPAIRS.get(error.code, "read the message; docs/operations.md has a list of errors")
    return Finding(
        level="problem",
        check=check,
        what=f"{error} [{error.code}]",
        why="no run can be started or go on"
        if check != "server"
        else "through it, no run can be started or read",
        fix=repair.format(url=url),
    )


def store_findings(facts: StoreFacts) -> list[Finding]:
    """Return whether the store can be read, written, and used for blobs."""
    findings: list[Finding] = []
    if facts.read_error is not None:
        return [error_finding("read", facts.read_error, url=facts.url)]
    findings.append(_ok("read", f"the store answered in {facts.read_ms} ms"))
    if facts.write_error is not None:
        findings.append(error_finding("write", facts.write_error, url=facts.url))
    else:
        findings.append(_ok("write", "an item was written and deleted"))
    if not facts.has_blobs:
        findings.append(
            Finding(
                level="warning",
                check="blobs",
                what="the address names no bucket for blobs",
                why="inputs, payloads and results of more than 380 KB, compressed, are refused",
                fix=f"add &bucket=NAME to the address, then: holdfast store create {facts.url}",
            )
        )
    elif facts.blob_error is not None:
        findings.append(error_finding("blobs", facts.blob_error, url=facts.url))
    else:
        findings.append(_ok("blobs", "a blob was written, read and deleted"))
    return findings


def file_findings(facts: FileFacts) -> list[Finding]:
    """Return whether the file of a SQLite store is at a safe place."""
    findings: list[Finding] = []
    if facts.file_system in _NETWORK_FILE_SYSTEMS:
        findings.append(
            Finding(
                level="problem",
                check="disk",
                what=f"{facts.file} is on a network file system ({facts.file_system})",
                why="locks do not work there: two processes may damage the file",
                fix="move the file to a local disk, or use DynamoDB",
            )
        )
    if facts.uses_wal is False:
        findings.append(
            Finding(
                level="warning",
                check="log",
                what=f"{facts.file} does not use a write-ahead log",
                why="readers and writers block each other",
                fix="open it once with Holdfast on a local disk: it turns the log on",
            )
        )
    free = facts.free_bytes
    if free is not None and free < _FREE_BYTES_LOW:
        findings.append(
            Finding(
                level="problem" if free < _FREE_BYTES_MIN else "warning",
                check="disk",
                what=f"only {free // (1024 * 1024):,} MB are free beside {facts.file}",
                why="when the disk is full, runs stop until there is room",
                fix="free space, or move the store to a larger disk",
            )
        )
    return findings or [_ok("disk", f"{facts.file} is on a local disk with room")]


def target_findings(targets: Iterable[TargetFacts]) -> list[Finding]:
    """Return whether the graphs of targets can be imported and run."""
    findings: list[Finding] = []
    for facts in targets:
        if facts.error is None:
            named = ", ".join(f"{name} (version {version})" for name, version in facts.graphs)
            findings.append(_ok("target", f"{facts.target} has {named}"))
            continue
        findings.append(
            Finding(
                level="problem",
                check="target",
                what=f"{facts.target}: {facts.error}",
                why="a worker or server with this target does not start",
                fix="correct the target or its module, then run holdfast doctor again",
            )
        )
    return findings


def worker_findings(workers: Sequence[WorkerEntry], *, now: datetime) -> list[Finding]:
    """Return which workers live, are dead, lag, or have other clocks."""
    live = [worker for worker in workers if worker.alive]
    findings: list[Finding] = []
    if not live:
        findings.append(
            Finding(
                level="warning",
                check="workers",
                what="no worker lives",
                why="runs can be started, but none goes on",
                fix="holdfast worker TARGET",
            )
        )
    else:
        running = sum(worker.running or 0 for worker in live)
        findings.append(
            _ok(
                "workers",
                f"{_number(len(live), 'live worker')}, {_number(running, 'run')} in progress",
            )
        )
    for worker in workers:
        findings += _worker_findings(worker, now, others_live=bool(live))
    releases = sorted({worker.release or "an older one" for worker in live})
    if len(releases) > 1:
        findings.append(
            Finding(
                level="warning",
                check="releases",
                what=f"live workers have different releases: {', '.join(releases)}",
                why="an older release does not resume what only a newer one can read",
                fix="finish the deploy; docs/guides/upgrading.md",
            )
        )
    return findings


def _worker_findings(worker: WorkerEntry, now: datetime, *, others_live: bool) -> list[Finding]:
    name = f"worker {worker.id}" + (f" on {worker.host}" if worker.host else "")
    if not worker.alive:
        fix = (
            "wait: a live worker takes them over within its lease"
            if others_live
            else "start a worker: holdfast worker TARGET"
        )
        return [
            Finding(
                level="warning",
                check="workers",
                what=f"{name} is dead and still owns {_number(worker.owned, 'run')}",
                why="these runs do not go on until another worker takes them over",
                fix=f"{fix}; look at the log of its host for the cause",
            )
        ]
    findings: list[Finding] = []
    if worker.lag_seconds is not None and worker.lag_seconds > _LAG_SECONDS_MAX:
        findings.append(
            Finding(
                level="warning",
                check="lag",
                what=f"{name} claimed a run that was {worker.lag_seconds:.0f} seconds overdue",
                why="runs wait for a slot",
                fix="start more workers, or raise --concurrency",
            )
        )
    # A heartbeat sets the end of the lease to one lease after the worker's own time.
    ahead = (worker.lease_until_at - now).total_seconds() - worker.lease_seconds
    if worker.lease_seconds and ahead > _SKEW_SECONDS_MAX:
        findings.append(
            Finding(
                level="problem",
                check="clocks",
                what=f"the clock of {name} is {ahead:.0f} seconds ahead of this machine's clock",
                why="clocks that differ by more than a lease make workers reap live workers",
                fix="set both clocks right: timedatectl set-ntp true",
            )
        )
    return findings


def stalled_findings(
    stuck: StalledPage, unserved: StalledPage, due: StalledPage, *, any_alive: bool
) -> list[Finding]:
    """Return which runs make no progress, with one finding for each graph, pool and reason.

    ``due`` has the runs that become unserved when their grace ends. ``any_alive`` says whether any
    worker lives.
    """
    findings: list[Finding] = []
    for check, page, why in (
        ("stuck", stuck, "workers should have claimed them by now"),
        ("unserved", unserved, "no live worker can run them"),
    ):
        groups: dict[tuple[str, str | None, str], list[StalledRun]] = {}
        for run in page.runs:
            groups.setdefault((run.graph, run.pool, run.reason), []).append(run)
        for (graph, _, reason), runs in sorted(groups.items(), key=lambda each: -len(each[1])):
            more = "at least " if page.cursor is not None else ""
            named = ", ".join(map(_run_text, runs[:_NAMES_MAX]))
            findings.append(
                Finding(
                    level="problem",
                    check=check,
                    what=f"{more}{_number(len(runs), 'run')} of graph {graph!r} "
                    f"{'is' if len(runs) == 1 else 'are'} {check}, such as "
                    f"{named}: {runs[0].detail}",
                    why=_NOT_NOTIFIED if reason == "not_notified" else why,
                    fix=runs[0].advice + _list_text(check, runs),
                )
            )
        if not page.runs and page.cursor is None and not (check == "unserved" and due.runs):
            findings.append(_ok(check, f"no run is {check}"))
    if due.runs and not unserved.runs:
        findings.append(_due_finding(due, any_alive=any_alive))
    return findings


def _due_finding(due: StalledPage, *, any_alive: bool) -> Finding:
    number = len(due.runs)
    more = "at least " if due.cursor is not None else ""
    named = ", ".join(map(_run_text, due.runs[:_NAMES_MAX]))
    cause = f"no live worker serves {'it' if number == 1 else 'them'}"
    return Finding(
        level="warning",
        check="unserved",
        what=f"{more}{_number(number, 'run')} {'is' if number == 1 else 'are'} due and "
        f"{cause if any_alive else 'no worker is alive'} (unserved after 30 s), such as {named}",
        why="it does not go on" if number == 1 else "they do not go on",
        fix=due.runs[0].advice + _list_text("unserved --grace 0s", due.runs),
    )


def _run_text(run: StalledRun) -> str:
    return run.id if run.tenant == "default" else f"{run.id} (tenant {run.tenant})"


def _list_text(command: str, runs: Sequence[StalledRun]) -> str:
    """Return which command lists these runs, unless that of the default tenant does."""
    tenants = {run.tenant for run in runs}
    if tenants == {"default"}:
        return ""
    option = tenant_text(*tenants) if len(tenants) == 1 else " --all-tenants"
    return f"; holdfast fleet {command}{option} lists the runs"


def overview_findings(overview: FleetOverview) -> list[Finding]:
    """Return how many runs of all tenants failed or are quarantined."""
    return [
        *troubled_findings("failed", overview.failed, overview.failed_tenants),
        *troubled_findings("quarantined", overview.quarantined, overview.quarantined_tenants),
    ]


def troubled_findings(status: Status, count: RunCount, tenants: Sequence[str]) -> list[Finding]:
    """Return how many runs of these tenants have a status that only a person ends."""
    if not count.runs:
        return []
    more = "at least " if count.capped else ""
    option = tenant_text(tenants[0] if tenants else "default")
    each = "for each tenant: " if len(tenants) > 1 else ""
    return [
        Finding(
            level="warning",
            check=status,
            what=f"{more}{_number(count.runs, 'run')}{_tenants_text(tenants)} {status}",
            why="they do not go on by themselves, and are deleted after their retention",
            fix=f"{each}holdfast run list --status {status}{option}; "
            f"then holdfast run retry ID{option}",
        )
    ]


def _tenants_text(tenants: Sequence[str]) -> str:
    """Return which tenants have the runs, unless it is only the default one."""
    if not set(tenants) - {"default"}:
        return ""
    named = ", ".join(tenants[:_NAMES_MAX])
    more = f" and {len(tenants) - _NAMES_MAX} more" if len(tenants) > _NAMES_MAX else ""
    return f" of {'tenant' if len(tenants) == 1 else 'tenants'} {named}{more}"


def waiting_findings(waiting: WaitingFacts) -> list[Finding]:
    """Return what waits for a person, or for room in a quota."""
    findings: list[Finding] = []
    of = _tenants_text([waiting.tenant])
    option = tenant_text(waiting.tenant)
    if waiting.ambiguous:
        findings.append(
            Finding(
                level="warning",
                check="ambiguous",
                what=f"{_number(waiting.ambiguous, 'call')}{of} may or may not have been made",
                why="their runs wait until a person says what became of them",
                fix=f"holdfast run ambiguous{option}; then holdfast run resolve RUN CALL{option}",
            )
        )
    if waiting.budget:
        findings.append(
            Finding(
                level="warning",
                check="budget",
                what=f"a larger budget is needed by {_number(waiting.budget, 'run')}{of}",
                why="they wait until they expire",
                fix=f"holdfast run list --paused-for budget{option}; "
                f"then holdfast run budget ID --usd N{option}",
            )
        )
    if waiting.quota:
        findings.append(
            Finding(
                level="warning",
                check="quota",
                what=f"room in a quota is awaited by {_number(waiting.quota, 'run')}{of}",
                why="they go on by themselves; if the number grows, the quota is too small",
                fix=f"holdfast run list --paused-for quota{option}; raise the quota in your code",
            )
        )
    return findings


def _number(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def _ok(check: str, what: str) -> Finding:
    return Finding(level="ok", check=check, what=what)
