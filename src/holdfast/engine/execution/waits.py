"""Who of a run's branches waits for what, and which signal is meant for whom.

A branch whose node waits is parked: it is not run again before one of its waits is over. Where
thousands are parked, not all of them are asked whenever something happens: only when a time is up,
or something stirred that may answer them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from holdfast.model.call import is_resolution_signal
from holdfast.model.child import is_child_signal
from holdfast.model.execution import Execution
from holdfast.model.signals import Pending, Signal, TakeSignal, is_open_wait, resolved_wait
from holdfast.model.wait import Wait

__all__ = ["RETRY_KEY", "Waits", "pause_reason", "wait_deadline_ms"]

RETRY_KEY = "%retry"
"""What the keys of waits for a further attempt begin with."""
_BUDGET_KEY = "%budget"


class Waits:
    """The branches that wait, and what they wait for."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[Wait, ...]] = {}
        self.due_ms = math.inf
        """When the first of their waits is over by itself."""
        # What each branch waited for the last time it waited in this process.
        self._last_waits: dict[str, tuple[Wait, ...]] = {}
        # Whether a wait may be over for another reason than that its time is up.
        self._changed = False
        # By branch: the visit in which it was let go on, and for which signals.
        self._assigned: dict[str, tuple[int, list[Signal]]] = {}
        # Signals whose taking is being written: no other wait may take them.
        self._taking: set[tuple[str, str]] = set()
        # Branches that are to ask again, though nothing answered them. One of them may wait for a
        # child whose end another one took: there will be no other.
        self._recheck: set[str] = set()
        # Branches that lack money, those that have waited longest first; some may wait no more.
        self._short_of_budget: dict[str, None] = {}

    def reset(self, execution: Execution, waits: Iterable[Wait]) -> None:
        """Begin with a run as its journal and its row tell it."""
        self.waiting.clear()
        self._assigned.clear()
        self._taking.clear()
        self._short_of_budget.clear()
        self.due_ms, self._changed = math.inf, True
        if not execution.branches:
            return
        # A branch that waits, and has no answer yet, would only come to wait again.
        known: dict[str, dict[Wait, None]] = {}
        for wait in waits:  # those in the row may be in the journal as well
            if is_open_wait(wait, execution) and not wait.needs_recheck:
                known.setdefault(wait.branch, {})[wait] = None
        reported_children = {name for name, _ in execution.taken if is_child_signal(name)}
        for branch, its in known.items():
            if all(wait.signal not in reported_children for wait in its):
                self.set_waiting(branch, tuple(its))

    def set_waiting(self, branch: str, waits: tuple[Wait, ...]) -> None:
        """Let a branch wait."""
        self.waiting[branch] = self._last_waits[branch] = waits
        self.due_ms = min((self.due_ms, *map(wait_deadline_ms, waits)))
        if any(wait.key.startswith(_BUDGET_KEY) for wait in waits):
            self._short_of_budget[branch] = None
        if self._assigned.pop(branch, None) is not None:
            self._changed = True  # what it was let go on for, and did not take, others may

    def resume_polling(self) -> bool:
        """Let the branches go on that have to ask again what they wait for; return whether any."""
        asking = [
            branch
            for branch, waits in self.waiting.items()
            if any(wait.needs_recheck for wait in waits)
        ]
        for branch in asking:
            del self.waiting[branch]
        return bool(asking)

    def recheck_budget(self) -> None:
        """Let one of the branches ask again that lack money: there may be enough by now.

        One at a time, since each runs its node again; one that gets what it asks for is followed
        by the next.
        """
        while self._short_of_budget:
            branch = next(iter(self._short_of_budget))
            del self._short_of_budget[branch]
            if branch in self.waiting:
                self._recheck.add(branch)
                self._changed = True
                return

    def mark_changed(self) -> None:
        """Hear of something that may answer a wait."""
        self._changed = True

    def forget_ended(self, execution: Execution) -> None:
        """Forget the branches that were ended: they wait for nothing any more."""
        for branch in [path for path in self.waiting if not execution.is_at_node(path)]:
            del self.waiting[branch]

    def last_waits(self, branch: str) -> tuple[Wait, ...]:
        """Return what a branch waited for the last time that it did."""
        return self._last_waits.get(branch, ())

    @property
    def has_waited(self) -> bool:
        """Whether any branch waited in this process."""
        return bool(self._last_waits)

    def open_waits(self, execution: Execution) -> tuple[Wait, ...]:
        """Return all that was waited for, and has no answer yet."""
        known = [wait for waits in self._last_waits.values() for wait in waits]
        return tuple(wait for wait in known if is_open_wait(wait, execution))

    def pending(self) -> tuple[Wait, ...]:
        """Return what all that are parked wait for."""
        return tuple(wait for waits in self.waiting.values() for wait in waits)

    # --- signals ----------------------------------------------------------------------------------

    def untaken(self, inbox: Iterable[Signal], execution: Execution) -> list[Signal]:
        """Return the signals that were not taken, nor are about to be."""
        gone = execution.taken | self._taking
        return [signal for signal in inbox if (signal.name, signal.id) not in gone]

    def was_taken(self, name: str, execution: Execution) -> bool:
        """Return whether a signal of that name was taken, or is about to be."""
        return any(taken == name for taken, _ in execution.taken | self._taking)

    def mark_taking(self, name: str, id: str) -> None:
        """Let nobody else have a signal whose taking is being written, or is about to be."""
        if (name, id) in self._taking:
            return
        self._taking.add((name, id))
        if is_child_signal(name):
            self._changed = True
            self._recheck |= {
                branch
                for branch, waits in self.waiting.items()
                if any(wait.signal == name for wait in waits)
            }

    def unmark_taking(self, name: str, id: str) -> None:
        """Let others have a signal: it could not be taken."""
        self._taking.discard((name, id))
        self._changed = True

    def pop_answered(self, inbox: Iterable[Signal], execution: Execution, now_ms: int) -> list[str]:
        """Return the branches of which a wait is over; they are not parked any more."""
        if not self.waiting:
            self._recheck.clear()
            return []
        assigned = self._prune_assigned(execution)
        if not self._changed and now_ms < self.due_ms:
            return []
        signals = [signal for signal in self.untaken(inbox, execution) if signal not in assigned]
        over: list[str] = []
        for branch, waits in self.waiting.items():
            answers = [resolved_wait(wait, signals, (), now_ms) for wait in waits]
            waits_on = all(isinstance(answer, Pending) for answer in answers)
            if waits_on and branch not in self._recheck:
                continue
            over.append(branch)
            strand = execution.strand(branch)
            its = [answer.signal for answer in answers if isinstance(answer, TakeSignal)]
            self._assigned[branch] = (strand.visit if strand else 0, its)
            signals = [signal for signal in signals if signal not in its]
        for branch in over:
            del self.waiting[branch]
        self._recheck.clear()
        self._changed = False
        self.due_ms = min(map(wait_deadline_ms, self.pending()), default=math.inf)
        return over

    def _prune_assigned(self, execution: Execution) -> list[Signal]:
        """Return the signals for which branches were let go on, and that they may yet take.

        One signal is no reason to run the nodes of all branches that wait for its name.
        """
        standing = {
            branch: (visit, signals)
            for branch, (visit, signals) in self._assigned.items()
            if execution.is_at_visit(branch, visit)
        }
        self._changed = self._changed or len(standing) < len(self._assigned)
        self._assigned = standing
        return [signal for _, signals in standing.values() for signal in signals]


def wait_deadline_ms(wait: Wait) -> float:
    """Return when something becomes of a wait by itself."""
    limits = (limit for limit in (wait.until_ms, wait.stale_ms) if limit is not None)
    return min(limits, default=math.inf)


def pause_reason(waits: Sequence[Wait]) -> str:
    """Return why a run pauses, in a word."""
    if any(is_resolution_signal(wait.signal) for wait in waits):
        return "ambiguous"
    for kind in ("budget", "quota", "retry"):
        if any(wait.key.startswith(f"%{kind}") for wait in waits):
            return kind
    return "signal" if any(wait.signal is not None for wait in waits) else "timer"
