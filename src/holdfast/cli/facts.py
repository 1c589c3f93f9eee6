"""Formats runs and their histories for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from holdfast.cli.text import columns, compact, say, utc_of_ms
from holdfast.model.budget import BudgetLimits
from holdfast.model.durations import duration_text
from holdfast.model.event import Failure
from holdfast.model.moments import utc_text
from holdfast.model.run import HistoryEntry, Run, RunEntry, SessionQueueEntry
from holdfast.model.spending import NO_SPENDING
from holdfast.model.wait import BudgetWait, ReviewWait, Wait
from holdfast.records.head import ROW_WAITS_MAX

__all__ = [
    "budget_needs",
    "cut_to_line",
    "facts_of",
    "money_facts",
    "result_facts",
    "run_lines",
    "session_queue_lines",
    "show_entries",
    "wait_lines",
]

# The columns of a list of runs that a narrow terminal loses first: labels, the reason, times.
_RUN_CUT = (7, 8, 1, 4, 6, 0, 3)
_WAIT_CUT = (1,)
_DETAILS_MAX = 160
_NODE_MAX = 30
_RESULT_MAX = 500
# Leaves room for the result.
_ARGUMENTS_MAX = 80
# Fields that are shown even if they are empty: an empty answer is an answer.
_ANSWERS = ("payload", "result")
_FOR_MACHINES = ("digest", "kinds", "ops")
_SAYS_NOTHING = (None, "", NO_SPENDING.as_dict())


def run_lines(runs: Sequence[RunEntry], damaged: Sequence[str] = ()) -> Iterable[str]:
    """Return runs as lines of a table; then the ids of runs with unreadable rows."""
    if not runs and not damaged:
        return ()
    return columns(
        [
            ("STARTED", "UPDATED", "STATUS", "GRAPH", "NODE", "ID", "COST", "LABELS", "REASON"),
            *map(_run_cells, runs),
            *(("?", "?", "damaged", "?", "?", id, "", "", "") for id in damaged),
        ],
        cut=_RUN_CUT,
    )


def _run_cells(entry: RunEntry) -> tuple[str, ...]:
    return (
        utc_text(entry.created_at),
        _updated_text(entry),
        entry.status,
        f"{entry.graph} v{entry.version}",
        cut_to_line(entry.node, _NODE_MAX),
        entry.id,
        usd_text(entry.cost_usd) if entry.cost_usd else "",
        " ".join(f"{name}={value}" for name, value in entry.labels.items()),
        cut_to_line(_reason_text(entry)),
    )


def _updated_text(entry: RunEntry) -> str:
    """Return when a run's row was last written, without the day if the run started on it."""
    started, updated = utc_text(entry.created_at), utc_text(entry.updated_at)
    day = started.partition("T")[0]
    return updated.removeprefix(f"{day}T")


def _reason_text(entry: RunEntry) -> str:
    """Return why a run is paused or failed, and what its nodes said about what it waits for."""
    if entry.failure is not None:
        return _failure_text(entry.failure)
    about = dict.fromkeys(compact(wait.about) for wait in entry.waits if wait.has_about)
    return " ".join([entry.reason or "", *about])


def _failure_text(failure: Failure) -> str:
    """Return an error in one line."""
    return f"{failure.type}: {failure.message}"


def session_queue_lines(entries: list[SessionQueueEntry]) -> Iterable[str]:
    """Return the session queue as lines of a table, in its order."""
    if not entries:
        return ()
    rows = [("NUMBER", "STARTED", "STATUS", "PAUSED FOR", "ID")]
    for entry in entries:
        started, reason = utc_text(entry.created_at), entry.reason or ""
        rows.append((str(entry.number), started, entry.status, reason, entry.id))
    return columns(rows)


def wait_lines(run: str, waits: Sequence[Wait]) -> Iterable[str]:
    """Return the waits of a run as lines of a table."""
    if not waits:
        return ()
    rows = [("BRANCH", "WAITS FOR")]
    for wait in waits:
        review = wait.kind.review_id(run) if isinstance(wait.kind, ReviewWait) else ""
        rows.append((wait.branch, _wait_text(wait) + (review and f", review {review}")))
    return columns(rows, cut=_WAIT_CUT)


def result_facts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the result of a run in one line, if it is among the values."""
    if values.get("result") is not None:
        result = compact(values["result"])
        if len(result) > _RESULT_MAX:
            result = result[: _RESULT_MAX - 1] + "… (--state shows all of it)"
        yield "result", result


def facts_of(row: Run) -> Iterator[tuple[str, str]]:
    """Yield the facts of a run as pairs of name and text, without empty ones."""
    yield "id", row.id
    yield "tenant", row.tenant
    yield "graph", f"{row.graph} v{row.version}"
    yield "status", row.status
    # The owner is ahead of the row, which learns node and counts when the run pauses or ends.
    known = "" if row.owner is None else ", as of its start or last pause"
    yield "node", row.node + known
    if row.reason is not None:
        yield "paused for", row.reason
    for wait in row.waits:
        yield "waits for", _wait_text(wait)
        if isinstance(wait.kind, ReviewWait):
            review = wait.kind.review_id(row.id)
            command = f"holdfast review approve {shlex.quote(review)}"
            yield "review", f"{review}: {command} (or show, reject)"
    if len(row.waits) >= ROW_WAITS_MAX:
        yield "", "there may be more: holdfast run waits"
    if row.due_at is not None:
        yield "due", utc_text(row.due_at)
    if row.owner is not None:
        yield "owner", f"worker {row.owner}"
    for name, value in row.labels.items():
        yield "label", f"{name}={value}"
    if row.user is not None:
        yield "user", row.user
    if row.session is not None:
        yield "session", row.session
    if row.parent is not None:
        yield "child of", f"run {row.parent}"
    if row.into is not None:
        yield "went into", f"run {row.into}"
    used = f"{_counted(row.nodes_run, 'node')}, {node_time_text(row)}"
    yield "used", used + known
    yield from money_facts(row)
    if row.retries_left:
        yield "retries left", str(row.retries_left)
    if row.resume_failures:
        yield "failed resumes", str(row.resume_failures)
    records = _counted(row.journal_records, "record")
    yield "journal", f"{records}, {_counted(row.journal_bytes, 'byte')}"
    yield "started", utc_text(row.created_at)
    yield "changed", utc_text(row.updated_at)
    yield "expires", utc_text(row.expires_at)
    if row.failure is not None:
        yield "failure", _failure_text(row.failure)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def money_facts(row: Run) -> Iterator[tuple[str, str]]:
    """Yield what a run may spend, and what it has spent."""
    if row.budget is not None:
        yield "budget", ", ".join(_limits(row.budget))
    if row.budget_of is not None:
        yield "budget", f"that of run {row.budget_of}"
    if row.tokens or row.cost_usd or row.budget is not None:
        yield "spent", f"{usd_text(row.cost_usd)}, {row.tokens:,} tokens"


def node_time_text(row: Run) -> str:
    """Return how long a run has been inside its nodes."""
    return f"{duration_text(round(1000 * row.spent_seconds))} inside nodes"


def budget_needs(row: Run) -> list[str]:
    """Return what a run that waits for a larger budget lacks."""
    return [wait.text for wait in row.waits if isinstance(wait.kind, BudgetWait)]


def _limits(limits: BudgetLimits) -> Iterator[str]:
    if limits.usd is not None:
        yield usd_text(limits.usd)
    if limits.tokens is not None:
        yield f"{limits.tokens:,} tokens"
    if limits.node_time_ms is not None:
        yield f"{duration_text(limits.node_time_ms)} inside nodes"
    if limits.wall_ms is not None:
        yield f"{duration_text(limits.wall_ms)} of wall time"
    if limits.estimate:
        yield "with estimates"


def usd_text(amount: float) -> str:
    """Return an amount of dollars as text."""
    return f"${amount:,.6f}"


def _wait_text(wait: Wait) -> str:
    told = f"{wait.description}, since {utc_of_ms(wait.since_ms)}"
    if wait.deadline_ms is not None:
        word = "rechecks at" if wait.needs_recheck else "until"
        told += f", {word} {utc_of_ms(wait.deadline_ms)}"
    if wait.stale_ms is not None:
        told += f", stale at {utc_of_ms(wait.stale_ms)}"
    if wait.has_about:
        told += f", about {compact(wait.about)}"
    return told


def cut_to_line(text: str, letters_max: int = _DETAILS_MAX) -> str:
    """Return the beginning of a text that fits into a line."""
    return text if len(text) <= letters_max else text[: letters_max - 1] + "…"


def show_entries(entries: Sequence[HistoryEntry], *, full: bool = False) -> None:
    """Print a line for each entry, and the places where errors were raised.

    Lines are cut unless they are shown in ``full``.
    """
    lines = columns([_event(entry, full=full) for entry in entries])
    for line, entry in zip(lines, entries, strict=True):
        click.echo(line)
        failure: dict[str, str] = entry.details.get("failure") or {}
        for place in failure.get("trace", "").splitlines():
            say(f"    {place}")


def _event(entry: HistoryEntry, *, full: bool) -> tuple[str, str, str, str]:
    if entry.ephemeral:
        told = " ".join(_ephemeral_facts(entry.details))
        return utc_text(entry.at), entry.kind, entry.node or "", told if full else cut_to_line(told)
    details: dict[str, Any] = entry.as_dict()["details"]
    if "arguments" in details and not full:
        details["arguments"] = cut_to_line(compact(details["arguments"]), _ARGUMENTS_MAX)
    if details.get("failure"):
        details["failure"] = "{type}: {message}".format(**details["failure"])
    if details.get("fork"):
        details["fork"] = _fork_text(details["fork"])
    told = " ".join(
        f"{name}={value if isinstance(value, str) else compact(value)}"
        for name, value in details.items()
        if _says_something(name, value)
    )
    shown = told if full else cut_to_line(told)
    return utc_text(entry.at), entry.kind, entry.node or "", shown


def _ephemeral_facts(details: dict[str, Any]) -> Iterator[str]:
    """Yield what an event that is not recorded says, for people."""
    if details.get("status"):
        yield details["status"]
    if details.get("graph"):
        yield f"{details['graph']} v{details['version']}"
    if details.get("attempt", 1) > 1:
        yield f"attempt {details['attempt']}"
    if details.get("branch"):
        yield f"branch {details['branch']}"
    yield from _progress_facts(details)
    for each in details.get("progress", ()):
        yield from _progress_facts(each)
    for wait in details.get("waits", ()):
        about = f" about {compact(wait['about'])}" if wait["about"] else ""
        until = f" until {wait['until']}" if wait["until"] else ""
        yield f"waits for {wait['description']}{about}{until}"
    if details.get("reason") and not details.get("waits"):
        yield details["reason"]
    if details.get("failure"):
        yield "{type}: {message}".format(**details["failure"])


def _progress_facts(details: dict[str, Any]) -> Iterator[str]:
    if details.get("fraction") is not None:
        yield f"{details['fraction']:.0%}"
    if details.get("message"):
        yield details["message"]


def _fork_text(fork: dict[str, Any]) -> str:
    """Return into which branches a run forks."""
    starts = ", ".join(fork["starts"])
    if fork["over"]:
        return f"{_counted(fork['count'], 'item')} of {fork['over']} at {starts}"
    return f"{len(fork['starts'])} branches at {starts}" if fork["starts"][1:] else starts


def _says_something(name: str, value: Any) -> bool:
    if name in _ANSWERS:
        return value is not None
    return name not in _FOR_MACHINES and value not in _SAYS_NOTHING and value is not False
