"""Formats runs and their histories for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from holdfast.cli.text import columns, compact, say, utc, utc_of_ms
from holdfast.model.budget import BudgetLimits
from holdfast.model.durations import duration_text
from holdfast.model.event import Failure
from holdfast.model.run import HistoryEntry, Run, RunEntry, SessionQueueEntry
from holdfast.model.spending import NO_SPENDING
from holdfast.model.wait import BudgetWait, Wait
from holdfast.records.head import ROW_WAITS_MAX

__all__ = [
    "budget_needs",
    "cut_to_line",
    "entry_of",
    "facts_of",
    "money_facts",
    "result_facts",
    "row_of",
    "run_entry_of",
    "run_lines",
    "session_queue_lines",
    "show_entries",
    "wait_lines",
    "wait_of",
]

_DETAILS_MAX = 160
_RESULT_MAX = 500
# Leaves room for the result.
_ARGUMENTS_MAX = 80
# Fields that are shown even if they are empty: an empty answer is an answer.
_ANSWERS = ("payload", "result")
_FOR_MACHINES = ("digest", "kinds", "ops")
_SAYS_NOTHING = (None, "", NO_SPENDING.as_dict())
_TIMES = {
    "deadline_ms": "until_at",
    "expires_ms": "expires_at",
    "retry_at_ms": "retry_at",
    "since_ms": "since_at",
    "stale_ms": "stale_at",
}


def run_lines(runs: Sequence[RunEntry], damaged: Sequence[str] = ()) -> Iterable[str]:
    """Return runs as lines of a table; then the ids of runs with unreadable rows."""
    if not runs and not damaged:
        return ()
    rows = [("STARTED", "STATUS", "GRAPH", "ID", "LABELS", "PAUSED FOR")]
    for entry in runs:
        labels = " ".join(f"{name}={value}" for name, value in entry.labels.items())
        graph = f"{entry.graph} v{entry.version}"
        paused = cut_to_line(_pause_text(entry))
        rows.append((utc(entry.created_at), entry.status, graph, entry.id, labels, paused))
    rows += [("?", "damaged", "?", id, "", "") for id in damaged]
    return columns(rows)


def run_entry_of(entry: RunEntry) -> dict[str, Any]:
    """Return a line of a list as a dict, with times in ISO 8601."""
    waits = [wait_of(wait) for wait in entry.waits]
    return {**msgspec.structs.asdict(entry), "waits": waits}


def _pause_text(entry: RunEntry) -> str:
    """Return why a run is paused, and what its nodes said about what it waits for."""
    about = dict.fromkeys(compact(wait.about) for wait in entry.waits if wait.has_about)
    return " ".join([entry.reason or "", *about])


def session_queue_lines(entries: list[SessionQueueEntry]) -> Iterable[str]:
    """Return the session queue as lines of a table, in its order."""
    if not entries:
        return ()
    rows = [("NUMBER", "STARTED", "STATUS", "PAUSED FOR", "ID")]
    for entry in entries:
        started, reason = utc(entry.created_at), entry.reason or ""
        rows.append((str(entry.number), started, entry.status, reason, entry.id))
    return columns(rows)


def row_of(row: Run) -> dict[str, Any]:
    """Return a run's row as a dict, with times in ISO 8601."""
    shown = _readable_fields(msgspec.structs.asdict(row))
    return {**shown, "waits": [wait_of(wait) for wait in row.waits]}


def wait_of(wait: Wait) -> dict[str, Any]:
    """Return a wait as a dict, with its kind, and with times in ISO 8601."""
    fields = {"kind": wait.kind.tag, **_readable_fields(msgspec.structs.asdict(wait))}
    del fields["text"], fields["packed_about"], fields["payload_schema"]
    return {**fields, "about": wait.about}


def wait_lines(waits: Sequence[Wait]) -> Iterable[str]:
    """Return waits as lines of a table."""
    if not waits:
        return ()
    return columns([("BRANCH", "WAITS FOR"), *((wait.branch, _wait_text(wait)) for wait in waits)])


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
    if len(row.waits) >= ROW_WAITS_MAX:
        yield "", "there may be more: holdfast run waits"
    if row.due_at is not None:
        yield "due", utc(row.due_at)
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
    yield "started", utc(row.created_at)
    yield "changed", utc(row.updated_at)
    yield "expires", utc(row.expires_at)
    if row.failure is not None:
        yield "failure", f"{row.failure.type}: {row.failure.message}"


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
    details = entry_of(entry)["details"]
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
    return utc(entry.at), entry.kind, entry.node or "", shown


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


def entry_of(entry: HistoryEntry) -> dict[str, Any]:
    """Return an entry of a history as a dict, with times in ISO 8601."""
    return {**msgspec.structs.asdict(entry), "details": _readable_fields(entry.details)}


def _readable_fields(values: dict[str, Any]) -> dict[str, Any]:
    """Return fields with times in ISO 8601, and failures and budgets as dicts."""
    shown: dict[str, Any] = {}
    for name, value in values.items():
        if name in _TIMES:
            shown[_TIMES[name]] = None if value is None else utc_of_ms(value)
        elif isinstance(value, Failure):
            shown[name] = msgspec.structs.asdict(value)
        elif isinstance(value, BudgetLimits):
            shown[name] = value.as_dict()
        else:
            shown[name] = value
    return shown
