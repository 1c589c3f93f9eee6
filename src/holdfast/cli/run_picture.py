"""The picture of a run that ``holdfast run watch`` draws: steps, marks, waits and money.

`RunPicture` takes the events of a run one by one. `picture_lines` lays it out; it is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from holdfast.cli.facts import cut_to_line, usd_text
from holdfast.cli.flowchart import NO_CHART, Flowchart
from holdfast.cli.step_finding import ANY_WAIT, StepFinder
from holdfast.cli.text import compact
from holdfast.display import printable
from holdfast.model.durations import duration_text
from holdfast.model.run import HistoryEntry

__all__ = ["Line", "RunPicture", "picture_lines"]

Mark: TypeAlias = Literal["pending", "running", "waiting", "done", "failed"]

_SIGNS: dict[Mark, str] = {
    "pending": "○",
    "running": "▶",
    "waiting": "⏸",
    "done": "✓",
    "failed": "✗",
}
_ENDS = {"finished": "done", "failed": "failed", "cancelled": "failed", "expired": "failed"}
_BAR_CELLS = 10


class Line(NamedTuple):
    """A line of text, and what its colour says."""

    text: str
    mark: Mark | None = None


@dataclass
class _Step:
    mark: Mark = "pending"
    times: int = 0
    retries: int = 0
    """Attempts that failed and were followed by another one."""
    branches: set[str] = field(default_factory=set[str])
    """The branches that are at the step now."""
    spent_ms: int = 0
    note: str = ""
    fraction: float | None = None


@dataclass
class RunPicture:
    """What is known of a run after the events so far."""

    id: str
    chart: Flowchart = NO_CHART
    graph: str = ""
    status: str = ""
    usd: float = 0.0
    tokens: int = 0
    waits: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    reason: str = ""
    failure: str = ""
    steps: dict[str, _Step] = field(default_factory=dict[str, _Step])

    def __post_init__(self) -> None:
        self.steps = {name: _Step() for name in self.chart.steps}
        self._finder = StepFinder(self.chart)

    def take(self, entry: HistoryEntry) -> None:
        """Take the next event; kinds that it does not know change nothing."""
        details = entry.details
        match entry.kind:
            case "snapshot":
                self._take_snapshot(entry)
            case "started":
                self.graph = f"{details['graph']} v{details['version']}"
            case "node_started":
                self._begin(entry)
            case "node":
                self._finish(entry.node, details)
            case "attempt":
                self._note_failure(entry.node, details.get("failure"))
                if self._is_workflow(entry.node) and details.get("failure"):
                    self.failure = f"an attempt failed: {_failure_text(details['failure'])}"
            case "call":
                self._take_call(entry)
            case "call_attempt":
                self._retry_call(entry)
            case "child":
                self._take_child(details)
            case "signal" | "timer":
                self._end_wait(entry)
            case "paused":
                self.status, self.waits = "waiting", list(details["waits"])
                self.reason = details.get("reason") or ""
            case "resumed":
                self.status, self.waits, self.reason = "running", [], ""
            case "progress":
                self._take_progress(entry.node, details)
            case "failed":
                self._fail(entry.node, details.get("failure"))
            case "finished" | "cancelled" | "expired":
                self.status, self.waits = entry.kind, []
                self._settle()
            case "ended":
                self.status, self.waits = details["status"], []
                self._settle()
            case _:
                pass

    def waiting_steps(self) -> set[str]:
        """Return the steps of a workflow at which the run waits."""
        told = [wait for wait in self.waits if wait.get("kind", "signal") in ("signal", "timer")]
        signals = [wait.get("signal") for wait in told]
        keys = [ANY_WAIT if len(told) > 1 else f"{signal or ''}#1" for signal in signals]
        found = map(self._finder.find_wait, keys, signals)
        return {step for step in found if step is not None}

    def _step(self, name: str | None) -> _Step | None:
        """Return a step; the picture of a workflow has its calls as steps, not its function."""
        if not name or (self.chart.steps and name not in self.chart.steps):
            return None
        return self.steps.setdefault(name, _Step())

    def _take_snapshot(self, entry: HistoryEntry) -> None:
        details = entry.details
        self.status = details["status"]
        self.waits = list(details["waits"])
        self.reason = details.get("reason") or ""
        if details.get("failure"):
            self.failure = _failure_text(details["failure"])
        for each in details.get("progress", ()):
            self._take_progress(each.get("node") or entry.node, each)

    def _begin(self, entry: HistoryEntry) -> None:
        step = self._step(entry.node)
        self.status, self.waits = "running", []
        if step is not None:
            step.mark, step.fraction = "running", None
            attempt = entry.details.get("attempt") or 1
            step.note = f"attempt {attempt}" if attempt > 1 else ""
            if entry.details.get("branch"):
                step.branches.add(entry.details["branch"])

    def _finish(self, name: str | None, details: Mapping[str, Any]) -> None:
        step = self._step(name)
        if step is None:
            return
        step.branches.discard(details.get("branch", ""))
        step.times += 1
        step.spent_ms += details.get("spent_ms") or 0
        step.mark, step.note, step.fraction = "running" if step.branches else "done", "", None

    def _take_call(self, entry: HistoryEntry) -> None:
        spent: dict[str, Any] = entry.details.get("spent") or {}
        self.usd += spent.get("usd", 0.0)
        self.tokens += spent.get("tokens", 0)
        step = self._call_step(entry)
        if step is not None and entry.details.get("failure"):
            step.mark, step.note = "failed", _failure_text(entry.details["failure"])
        elif step is not None:
            step.times += 1
            step.mark, step.note = "done", ""

    def _retry_call(self, entry: HistoryEntry) -> None:
        step = self._call_step(entry)
        if step is not None:
            step.retries += 1
            step.mark, step.note = "running", _failure_text(entry.details["failure"])

    def _call_step(self, entry: HistoryEntry) -> _Step | None:
        """Return the step of a call; None if it is a call of a node."""
        if not self._is_workflow(entry.node):
            return None
        return self._step(self._finder.pass_call(str(entry.details["call"])))

    def _is_workflow(self, node: str | None) -> bool:
        return bool(self.chart.steps) and node not in self.chart.steps

    def _take_child(self, details: Mapping[str, Any]) -> None:
        name, waits = self._finder.pass_child(str(details["id"]), str(details["graph"]))
        step = self._step(name)
        if step is not None and waits:
            step.mark = "running"
        else:
            self._finish(name, {})

    def _end_wait(self, entry: HistoryEntry) -> None:
        # What the run waits for now is known before the history of earlier waits arrives.
        self.waits = [wait for wait in self.waits if _begins_after(wait, entry.at)]
        self.reason = self.reason if self.waits else ""
        details, name = entry.details, entry.details.get("name")
        self._finish(self._finder.pass_wait(str(details.get("wait") or f"{name}#1"), name), {})

    def _take_progress(self, name: str | None, details: Mapping[str, Any]) -> None:
        step = self._step(name) or self._running_step()
        if step is not None:
            step.fraction, step.note = details.get("fraction"), details.get("message") or ""

    def _running_step(self) -> _Step | None:
        return next((step for step in self.steps.values() if step.mark == "running"), None)

    def _note_failure(self, name: str | None, failure: Any) -> None:
        step = self._step(name)
        if step is not None and failure:
            step.note = _failure_text(failure)

    def _fail(self, name: str | None, failure: Any) -> None:
        self.status = "failed"
        self.failure = _failure_text(failure) if failure else ""
        step = self._step(name) or self._running_step()
        if step is not None:
            step.mark, step.note = "failed", ""

    def _settle(self) -> None:
        if self.status != "finished":
            return
        self.failure = ""
        for step in self.steps.values():
            if step.mark == "running":
                step.mark = "done"


def picture_lines(picture: RunPicture, *, now: datetime, width: int, height: int) -> list[Line]:
    """Return the picture as lines that fit a terminal; the longest part is cut in the middle."""
    head = [_title(picture)]
    steps = list(_step_lines(picture, now))
    tail = list(_tail_lines(picture, now))
    room = max(1, height - len(head) - len(tail) - 1)
    lines = [*head, *_fitting(steps, room), *tail]
    return [Line(cut_to_line(printable(text), max(1, width)), mark) for text, mark in lines]


def _title(picture: RunPicture) -> Line:
    parts = [f"run {picture.id}", picture.graph, picture.status]
    if picture.usd or picture.tokens:
        parts.append(f"{usd_text(picture.usd)}, {picture.tokens:,} tokens")
    mark: Any = _ENDS.get(picture.status)
    return Line(" · ".join(part for part in parts if part), mark)


def _step_lines(picture: RunPicture, now: datetime) -> Iterator[Line]:
    names = list(picture.steps)
    padding = max(map(len, names), default=0)
    waiting = picture.waiting_steps()
    for number, (name, step) in enumerate(picture.steps.items()):
        if number:
            yield Line("  │" if _leads(picture, names[number - 1], name) else "")
        mark = step.mark
        if name in waiting or (mark == "running" and picture.status == "waiting"):
            mark = "waiting"
        aside = _aside(picture, name, names[number + 1] if names[number + 1 :] else None)
        text = f"  {_SIGNS[mark]} {name:{padding}}  {_facts(step)}{aside}"
        yield Line(text.rstrip(), mark)


def _leads(picture: RunPicture, name: str, to: str) -> bool:
    return not picture.chart.steps or to in picture.chart.arrows.get(name, ())


def _aside(picture: RunPicture, name: str, following: str | None) -> str:
    """Return where a step leads, unless that is only the step below it."""
    targets = picture.chart.arrows.get(name, ())
    return f"  → {', '.join(targets)}" if targets and targets != (following,) else ""


def _facts(step: _Step) -> str:
    facts: list[str] = []
    if step.times > 1 or step.branches:
        at_once = f", {len(step.branches)} at work" if step.branches else ""
        facts.append(f"{step.times} done{at_once}")
    if step.spent_ms:
        facts.append(duration_text(step.spent_ms))
    if step.retries:
        facts.append(f"{step.retries} {'retry' if step.retries == 1 else 'retries'}")
    if step.fraction is not None:
        facts.append(f"{progress_bar(step.fraction)} {step.fraction:.0%}")
    if step.note:
        facts.append(step.note)
    return "  ".join(facts)


def progress_bar(fraction: float) -> str:
    """Return a bar that is filled so far."""
    filled = round(max(0.0, min(1.0, fraction)) * _BAR_CELLS)
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def _tail_lines(picture: RunPicture, now: datetime) -> Iterator[Line]:
    if picture.waits or picture.reason:
        yield Line("")
    for wait in picture.waits:
        yield Line(f"waits for {wait['description']}{_since(wait, now)}", "waiting")
    if picture.reason and not picture.waits:
        yield Line(f"waits: {picture.reason}", "waiting")
    if picture.failure:
        yield Line(picture.failure, "failed")


def _since(wait: Mapping[str, Any], now: datetime) -> str:
    told = f" about {compact(wait['about'])}" if wait.get("about") else ""
    if wait.get("since"):
        waited = (now - datetime.fromisoformat(wait["since"])).total_seconds()
        told += f", since {duration_text(1000 * max(0, round(waited)))}"
    if wait.get("until"):
        told += f", until {wait['until']}"
    return told


def _begins_after(wait: Mapping[str, Any], at: datetime) -> bool:
    since = wait.get("since")
    return since is not None and datetime.fromisoformat(since) >= at


def _failure_text(failure: Any) -> str:
    return f"{failure['type']}: {failure['message']}"


def _fitting(lines: list[Line], room: int) -> Iterable[Line]:
    """Return lines that fit: the connections go first, then steps that are not at work."""
    if len(lines) <= room:
        return lines
    lines = [line for line in lines if line.mark is not None]
    if len(lines) <= room:
        return lines
    active = [n for n, line in enumerate(lines) if line.mark in ("running", "waiting", "failed")]
    last = active[-1] if active else sum(line.mark == "done" for line in lines)
    begin = max(0, min(last - (room - 1) // 2, len(lines) - (room - 1)))
    shown = lines[begin : begin + room - 1]
    return [*shown, Line(f"  … {len(lines) - len(shown)} more steps")]
