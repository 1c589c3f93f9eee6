"""What must hold when a round is over and everything has healed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.model.event import (
    CallFinished,
    Cancelled,
    Event,
    Expired,
    Failed,
    Finished,
    NodeFinished,
    SignalTaken,
)
from holdfast.storage import Store
from soak.errands import Errand
from soak.trouble import Span
from tests.crash.flows import (
    SIGNALS,
    TEN_CALLS,
    TEN_TRAIL,
    TOKENS_A_QUESTION,
    VARIED_TRAIL,
    WIDE_TRAIL,
    Called,
    big_value,
    calls,
    effects,
)
from tests.crash.journals import Record, check_history, finished_in, journal_of

__all__ = ["Evidence", "judge"]

LATE_MS = 1_000
"""A busy machine may let that much pass between the look at a lease and the effect."""
ALARMS = ("the driver broke", "was never retrieved", "Task was destroyed")
_ENDS = (Finished, Failed, Cancelled, Expired)


@dataclass
class Evidence:
    """What a round left behind."""

    hf: Holdfast
    store: Store
    folder: Path
    """Of the effects."""
    logs: Sequence[Path]
    errands: Sequence[Errand]
    acknowledged: dict[int, str]
    stops: Sequence[Span]

    @property
    def runs(self) -> dict[str, Errand]:
        """The errand that started each run whose start was acknowledged."""
        return {
            one.run: one
            for one in self.errands
            if one.verb == "start" and self.acknowledged.get(one.number) == "done"
        }

    @property
    def funded(self) -> set[str]:
        """Runs that were given plenty."""
        return {one.run for one in self.errands if one.verb == "fund"}


async def judge(evidence: Evidence) -> list[str]:
    """Return everything that does not hold."""
    broken = list(_unacknowledged(evidence))
    every = [entry.id async for entry in _listed(evidence.hf)]
    journals: dict[str, list[Record]] = {}
    for run in every:
        journals[run] = await journal_of(evidence.store, run)
    for run, errand in evidence.runs.items():
        if run in journals:
            broken += await _results(evidence, run, errand)
        else:
            broken.append(f"P1: the start of {run} was acknowledged, and it is gone")
    for run, journal in journals.items():
        broken += _histories(run, journal)
        broken += _signals(evidence, run, journal)
    broken += _calls(evidence, journals)
    broken += _nodes(evidence, journals)
    broken += await _budgets(evidence, journals)
    broken += _sessions(evidence, journals)
    broken += _alarms(evidence.logs)
    return broken


async def _listed(hf: Holdfast) -> Any:
    cursor: str | None = None
    while True:
        page = await hf.list(cursor=cursor)
        for entry in page.runs:
            yield entry
        cursor = page.cursor
        if cursor is None:
            return


def _unacknowledged(evidence: Evidence) -> Iterable[str]:
    for errand in evidence.errands:
        outcome = evidence.acknowledged.get(errand.number, "nothing")
        # What was sent twice may come again after the run has ended.
        if outcome not in ("done", "ended"):
            yield f"P1: {errand.verb} {errand.run} {errand.id} came to {outcome}"


async def _results(evidence: Evidence, run: str, errand: Errand) -> list[str]:
    found = await evidence.hf.run(run).get()
    if errand.graph == "paid" and run not in evidence.funded and found.status == "waiting":
        return []  # for money that nobody gives
    if found.status != "finished":
        why = found.reason if found.failure is None else found.failure.message[:300]
        return [f"P6: {run} is {found.status} ({why}), and should be finished"]
    result = await evidence.hf.run(run).result()
    wanted: dict[str, Any] = dict(errand.given)
    match errand.graph:
        case "ten":
            wanted["trail"] = TEN_TRAIL
        case "varied":
            wanted |= {"trail": VARIED_TRAIL, "blob": big_value(), "answers": list(SIGNALS)}
            # Which of the two was accepted first is chance.
            result["answers"] = sorted(result.get("answers", []))
        case "wide":
            wanted["trail"] = WIDE_TRAIL
        case "brief":
            wanted["trail"] = ["speak"]
        case "paid":
            asked = [str(number) for number in range(errand.given["questions"])]
            wanted["trail"] = asked * (1 + errand.given["heirs"])
        case _:
            wanted["trail"] = TEN_CALLS
    return [] if result == wanted else [f"P2: {run} came to {result!r:.300}"]


def _histories(run: str, journal: list[Record]) -> Iterable[str]:
    try:
        check_history(journal)
        finished_in(journal)
    except AssertionError as error:
        yield f"P2: the history of {run} is not one: {error!s:.300}"
    events = _events(journal)
    ends = [event for event in events if isinstance(event, _ENDS)]
    if len(ends) > 1:
        yield f"P2: {run} has ended {len(ends)} times"
    elif ends and events[-1] is not ends[0]:
        yield f"P2: {run} goes on after its end: {type(events[-1]).__name__}"


def _signals(evidence: Evidence, run: str, journal: list[Record]) -> Iterable[str]:
    events = _events(journal)
    taken = Counter((event.name, event.id) for event in events if isinstance(event, SignalTaken))
    twice = sorted(signal for signal, count in taken.items() if count > 1)
    if twice:
        yield f"P4: {run} has taken signals twice: {twice}"
    those = [one for one in evidence.errands if one.verb == "signal" and one.run == run]
    sent = {(one.name, one.id) for one in those if one.number in evidence.acknowledged}
    if lost := sorted(sent - taken.keys()):
        yield f"P4: {run} has not taken signals that were acknowledged: {lost}"


def _calls(evidence: Evidence, journals: dict[str, list[Record]]) -> Iterable[str]:
    made: dict[tuple[str, str], list[Called]] = {}
    for call in calls(evidence.folder):
        made.setdefault(call.what, []).append(call)
    recorded = {
        (run, str(event.result)): event.at_ms
        for run, journal in journals.items()
        for event in _events(journal)
        if isinstance(event, CallFinished)
    }
    for (run, name), those in made.items():
        if len({call.key for call in those}) > 1:
            yield f"P3: {run} made {name} under {len({c.key for c in those})} keys"
        if run.startswith("ten_calls_once") and len(those) > 1:
            yield f"P3: {run} made {name} {len(those)} times, and may once"
        at_ms = recorded.get((run, name))
        for call in those:
            if at_ms is not None and _is_late(evidence, call.pid, call.at_ms, at_ms):
                yield f"P3: {run} made {name} again {call.at_ms - at_ms} ms after its record"


def _nodes(evidence: Evidence, journals: dict[str, list[Record]]) -> Iterable[str]:
    finished = {
        (run, event.branch, event.node, event.visit): event.at_ms
        for run, journal in journals.items()
        for event in _events(journal)
        if isinstance(event, NodeFinished)
    }
    # Nodes of branches have visits of their own, and each name is in one branch only.
    at = {(run, node, visit): at_ms for (run, _, node, visit), at_ms in finished.items()}
    for effect in effects(evidence.folder):
        at_ms = at.get(effect.what[:3])
        if at_ms is not None and _is_late(evidence, effect.pid, effect.at_ms, at_ms):
            late_ms = effect.at_ms - at_ms
            yield f"P3: {effect.run} ran {effect.node} again {late_ms} ms after its record"


def _is_late(evidence: Evidence, pid: int, at_ms: int, recorded_ms: int) -> bool:
    """Whether an effect began after its record, and not by a process that stood still inside."""
    if at_ms <= recorded_ms + LATE_MS:
        return False
    return not any(
        stop.pid == pid and stop.from_ms <= at_ms <= stop.to_ms + LATE_MS for stop in evidence.stops
    )


async def _budgets(evidence: Evidence, journals: dict[str, list[Record]]) -> list[str]:
    paid = Counter(call.run for call in calls(evidence.folder) if call.name.startswith("question"))
    broken: list[str] = []
    for run, errand in evidence.runs.items():
        if errand.graph != "paid" or run not in journals:
            continue
        may = max(one.tokens or 0 for one in evidence.errands if one.run == run)
        family = [run, *(child.id for child in await evidence.hf.run(run).children())]
        spent = sum(paid[one] for one in family) * TOKENS_A_QUESTION
        if spent > may:
            broken.append(f"a budget was overspent: {run} paid {spent} of {may} tokens")
    return broken


def _sessions(evidence: Evidence, journals: dict[str, list[Record]]) -> Iterable[str]:
    """Runs of one session do not overlap."""
    began = {effect.run: effect.at_ms for effect in reversed(effects(evidence.folder))}
    sessions: dict[str, list[tuple[int, int, str]]] = {}
    for run, errand in evidence.runs.items():
        ends = [event.at_ms for event in _events(journals.get(run, [])) if isinstance(event, _ENDS)]
        if errand.session is not None and ends and run in began:
            sessions.setdefault(errand.session, []).append((ends[0], began[run], run))
    for session, spans in sessions.items():
        spans.sort()
        for (end, _, before), (_, start, after) in pairwise(spans):
            if start < end:
                yield f"P5: in {session} {after} began {end - start} ms before {before} had ended"


def _alarms(logs: Sequence[Path]) -> Iterable[str]:
    for log in logs:
        for line in log.read_text(errors="replace").splitlines():
            if any(alarm in line for alarm in ALARMS):
                yield f"a worker complains: {line:.300}"


def _events(journal: list[Record]) -> list[Event]:
    return [event for record in journal for event in record.events]
