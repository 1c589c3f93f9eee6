"""The branches of a run that wait, what they wait for, and which signal each of them gets.

The engine does not run the node of a waiting branch before one of the branch's waits has ended.
Thousands of branches may wait, so the engine looks at their waits only when one of them is due, or
after something happened that may answer one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from holdfast.model.child import is_child_signal
from holdfast.model.execution import Execution
from holdfast.model.signals import (
    Pending,
    Signal,
    TakeSignal,
    is_open_wait,
    resolved_group,
    wait_groups,
)
from holdfast.model.wait import BudgetWait, Wait

__all__ = ["Waits", "wait_due_ms"]


class Waits:
    """The branches that wait, and what they wait for."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[Wait, ...]] = {}
        self.due_ms = math.inf
        """When the first of their waits ends without an answer."""
        # By branch: its waits when it last waited in this process.
        self._last_waits: dict[str, tuple[Wait, ...]] = {}
        # Whether something happened that may have ended a wait before its time.
        self._changed = False
        # By branch: the visit in which it resumed, and the signals that it resumed for.
        self._assigned: dict[str, tuple[int, list[Signal]]] = {}
        # Signals that a wait takes, in a write that is not done yet: no other wait may take them.
        self._taking: set[tuple[str, str]] = set()
        # Branches that resume to ask again, though no wait of them has ended. One may wait for a
        # child while another branch took the signal of the child's end: no second one comes.
        self._recheck: set[str] = set()
        # Branches that began to wait for a larger budget, in that order; some may have resumed.
        self._short_of_budget: dict[str, None] = {}

    def reset(self, execution: Execution, waits: Iterable[Wait], *, expires_ms: int) -> None:
        """Start from the waits in the run's row and journal."""
        self.waiting.clear()
        self._assigned.clear()
        self._taking.clear()
        self._short_of_budget.clear()
        self.due_ms, self._changed = math.inf, True
        if not execution.branches:
            return
        # A branch without an answer would run its node only to wait again.
        known: dict[str, dict[str, Wait]] = {}
        # A wait may be in both the row and the journal. Only the journal has all that it is about.
        for wait in waits:
            if is_open_wait(wait, execution) and not wait.needs_recheck:
                known.setdefault(wait.branch, {})[wait.key] = wait
        reported_children = {name for name, _ in execution.taken if is_child_signal(name)}
        for branch, its in known.items():
            if all(wait.signal not in reported_children for wait in its.values()):
                self.set_waiting(branch, tuple(its.values()), expires_ms=expires_ms)

    def set_waiting(self, branch: str, waits: tuple[Wait, ...], *, expires_ms: int) -> None:
        """Record that a branch of a run that expires at ``expires_ms`` waits."""
        self.waiting[branch] = self._last_waits[branch] = waits
        self.due_ms = min((self.due_ms, *(wait_due_ms(wait, expires_ms) for wait in waits)))
        if any(isinstance(wait.kind, BudgetWait) for wait in waits):
            self._short_of_budget[branch] = None
        if self._assigned.pop(branch, None) is not None:
            self._changed = True  # others may take the signals that this branch did not take

    def polling_branches(self) -> list[str]:
        """Return the waiting branches with a wait that needs a recheck."""
        return [
            branch
            for branch, waits in self.waiting.items()
            if any(wait.needs_recheck for wait in waits)
        ]

    def resume(self, branches: Iterable[str]) -> None:
        """Let waiting branches run their nodes again."""
        for branch in branches:
            del self.waiting[branch]

    def recheck_budget(self) -> None:
        """Resume one of the branches that lack budget, because there may be enough now.

        Only one, because each of them runs its node again. If it gets what it asks for, the next
        call resumes the next one.
        """
        while self._short_of_budget:
            branch = next(iter(self._short_of_budget))
            del self._short_of_budget[branch]
            if branch in self.waiting:
                self._recheck.add(branch)
                self._changed = True
                return

    def mark_changed(self) -> None:
        """Note that something happened that may have ended a wait."""
        self._changed = True

    def forget_ended(self, execution: Execution) -> None:
        """Forget the waits of branches that have ended."""
        for branch in [path for path in self.waiting if not execution.is_at_node(path)]:
            del self.waiting[branch]

    def last_waits(self, branch: str) -> tuple[Wait, ...]:
        """Return the waits of a branch when it last waited in this process."""
        return self._last_waits.get(branch, ())

    @property
    def has_waited(self) -> bool:
        """Whether any branch waited in this process."""
        return bool(self._last_waits)

    def open_waits(self, execution: Execution) -> tuple[Wait, ...]:
        """Return the waits of this process that have no answer yet."""
        known = [wait for waits in self._last_waits.values() for wait in waits]
        return tuple(wait for wait in known if is_open_wait(wait, execution))

    def pending(self) -> tuple[Wait, ...]:
        """Return the waits of all waiting branches."""
        return tuple(wait for waits in self.waiting.values() for wait in waits)

    # --- signals ----------------------------------------------------------------------------------

    def untaken(self, inbox: Iterable[Signal], execution: Execution) -> list[Signal]:
        """Return the signals that no wait has taken or is taking."""
        gone = execution.taken | self._taking
        return [signal for signal in inbox if (signal.name, signal.id) not in gone]

    def was_taken(self, name: str, execution: Execution) -> bool:
        """Return whether a wait has taken, or is taking, a signal of that name."""
        return any(taken == name for taken, _ in execution.taken | self._taking)

    def mark_taking(self, name: str, id: str) -> None:
        """Reserve a signal for the wait that takes it, until the journal says so."""
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
        """Let other waits have a signal, because its wait could not take it."""
        self._taking.discard((name, id))
        self._changed = True

    def pop_answered(
        self, inbox: Iterable[Signal], execution: Execution, now_ms: int, *, expires_ms: int
    ) -> list[str]:
        """Return the branches with a wait that has ended; they no longer count as waiting."""
        if not self.waiting:
            self._recheck.clear()
            return []
        assigned = self._prune_assigned(execution)
        if not self._changed and now_ms < self.due_ms:
            return []
        signals = [signal for signal in self.untaken(inbox, execution) if signal not in assigned]
        over: list[str] = []
        for branch, waits in self.waiting.items():
            answers = [
                resolved_group(its, signals, (), now_ms, expires_ms=expires_ms)
                for its in wait_groups(waits)
            ]
            waits_on = all(isinstance(answer, Pending) for answer in answers)
            if waits_on and branch not in self._recheck:
                continue
            over.append(branch)
            strand = execution.strand(branch)
            its = [answer.signal for answer in answers if isinstance(answer, TakeSignal)]
            self._assigned[branch] = (strand.visit if strand else 0, its)
            signals = [signal for signal in signals if signal not in its]
        self.resume(over)
        self._recheck.clear()
        self._changed = False
        due = (wait_due_ms(wait, expires_ms) for wait in self.pending())
        self.due_ms = min(due, default=math.inf)
        return over

    def _prune_assigned(self, execution: Execution) -> list[Signal]:
        """Drop the assignments of finished visits; return the signals that are still assigned.

        A branch resumed for each of them and may still take it. One signal must not resume every
        branch that waits for its name.
        """
        standing = {
            branch: (visit, signals)
            for branch, (visit, signals) in self._assigned.items()
            if execution.is_at_visit(branch, visit)
        }
        self._changed = self._changed or len(standing) < len(self._assigned)
        self._assigned = standing
        return [signal for _, signals in standing.values() for signal in signals]


def wait_due_ms(wait: Wait, expires_ms: int) -> float:
    """Return when a wait ends without an answer; infinity if it never does."""
    due_ms = wait.due_by(expires_ms)
    return math.inf if due_ms is None else due_ms
