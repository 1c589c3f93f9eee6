"""Who of a run's branches waits for what, and which signal is meant for whom.

A branch whose node waits is parked: it is not run again before one of its waits is over. Where
thousands are parked, not all of them are asked whenever something happens: only when a time is up,
or something stirred that may answer them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from holdfast.model.call import is_ambiguous
from holdfast.model.child import is_childs_signal
from holdfast.model.execution import Execution
from holdfast.model.signals import Pending, Signal, Take, is_open, resolved
from holdfast.model.wait import Wait

__all__ = ["RETRY", "Parking", "limit_ms", "reason_of"]

RETRY = "%retry"
"""What the keys of waits for a further attempt begin with."""
_BUDGET = "%budget"


class Parking:
    """The branches that wait, and what they wait for."""

    def __init__(self) -> None:
        self.parked: dict[str, tuple[Wait, ...]] = {}
        self.due_ms = math.inf
        """When the first of their waits is over by itself."""
        # What each branch waited for the last time it waited in this process.
        self._waited: dict[str, tuple[Wait, ...]] = {}
        # Whether a wait may be over for another reason than that its time is up.
        self._stirred = False
        # By branch: the visit in which it was let go on, and for which signals.
        self._meant: dict[str, tuple[int, list[Signal]]] = {}
        # Signals whose taking is being written: no other wait may take them.
        self._taking: set[tuple[str, str]] = set()
        # Branches that are to ask again, though nothing answered them. One of them may wait for a
        # child whose end another one took: there will be no other.
        self._outrun: set[str] = set()
        # Branches that lack money, those that have waited longest first; some may wait no more.
        self._lacking: dict[str, None] = {}

    def begin(self, execution: Execution, waits: Iterable[Wait]) -> None:
        """Begin with a run as its journal and its row tell it."""
        self.parked.clear()
        self._meant.clear()
        self._taking.clear()
        self._lacking.clear()
        self.due_ms, self._stirred = math.inf, True
        if not execution.branches:
            return
        # A branch that waits, and has no answer yet, would only come to wait again.
        known: dict[str, dict[Wait, None]] = {}
        for wait in waits:  # those in the row may be in the journal as well
            if is_open(wait, execution) and not wait.asks_again:
                known.setdefault(wait.branch, {})[wait] = None
        told = {name for name, _ in execution.taken if is_childs_signal(name)}
        for branch, its in known.items():
            if all(wait.signal not in told for wait in its):
                self.park(branch, tuple(its))

    def park(self, branch: str, waits: tuple[Wait, ...]) -> None:
        """Let a branch wait."""
        self.parked[branch] = self._waited[branch] = waits
        self.due_ms = min((self.due_ms, *map(limit_ms, waits)))
        if any(wait.key.startswith(_BUDGET) for wait in waits):
            self._lacking[branch] = None
        if self._meant.pop(branch, None) is not None:
            self._stirred = True  # what it was let go on for, and did not take, others may

    def ask_again(self) -> bool:
        """Let the branches go on that have to ask again what they wait for; return whether any."""
        asking = [
            branch
            for branch, waits in self.parked.items()
            if any(wait.asks_again for wait in waits)
        ]
        for branch in asking:
            del self.parked[branch]
        return bool(asking)

    def relent(self) -> None:
        """Let one of the branches ask again that lack money: there may be enough by now.

        One at a time, since each runs its node again; one that gets what it asks for is followed
        by the next.
        """
        while self._lacking:
            branch = next(iter(self._lacking))
            del self._lacking[branch]
            if branch in self.parked:
                self._outrun.add(branch)
                self._stirred = True
                return

    def stir(self) -> None:
        """Hear of something that may answer a wait."""
        self._stirred = True

    def forget_ended(self, execution: Execution) -> None:
        """Forget the branches that were ended: they wait for nothing any more."""
        for branch in [path for path in self.parked if not execution.stands(path)]:
            del self.parked[branch]

    def waited(self, branch: str) -> tuple[Wait, ...]:
        """Return what a branch waited for the last time that it did."""
        return self._waited.get(branch, ())

    @property
    def has_waited(self) -> bool:
        """Whether any branch waited in this process."""
        return bool(self._waited)

    def still_waited(self, execution: Execution) -> tuple[Wait, ...]:
        """Return all that was waited for, and has no answer yet."""
        known = [wait for waits in self._waited.values() for wait in waits]
        return tuple(wait for wait in known if is_open(wait, execution))

    def waits(self) -> tuple[Wait, ...]:
        """Return what all that are parked wait for."""
        return tuple(wait for waits in self.parked.values() for wait in waits)

    # --- signals ----------------------------------------------------------------------------------

    def free(self, inbox: Iterable[Signal], execution: Execution) -> list[Signal]:
        """Return the signals that were not taken, nor are about to be."""
        gone = execution.taken | self._taking
        return [signal for signal in inbox if (signal.name, signal.id) not in gone]

    def was_taken(self, name: str, execution: Execution) -> bool:
        """Return whether a signal of that name was taken, or is about to be."""
        return any(taken == name for taken, _ in execution.taken | self._taking)

    def take(self, name: str, id: str) -> None:
        """Let nobody else have a signal whose taking is being written, or is about to be."""
        if (name, id) in self._taking:
            return
        self._taking.add((name, id))
        if is_childs_signal(name):
            self._stirred = True
            self._outrun |= {
                branch
                for branch, waits in self.parked.items()
                if any(wait.signal == name for wait in waits)
            }

    def give_back(self, name: str, id: str) -> None:
        """Let others have a signal: it could not be taken."""
        self._taking.discard((name, id))
        self._stirred = True

    def answered(self, inbox: Iterable[Signal], execution: Execution, now_ms: int) -> list[str]:
        """Return the branches of which a wait is over; they are not parked any more."""
        if not self.parked:
            self._outrun.clear()
            return []
        meant = self._spoken_for(execution)
        if not self._stirred and now_ms < self.due_ms:
            return []
        signals = [signal for signal in self.free(inbox, execution) if signal not in meant]
        over: list[str] = []
        for branch, waits in self.parked.items():
            answers = [resolved(wait, signals, (), now_ms) for wait in waits]
            waits_on = all(isinstance(answer, Pending) for answer in answers)
            if waits_on and branch not in self._outrun:
                continue
            over.append(branch)
            strand = execution.strand(branch)
            its = [answer.signal for answer in answers if isinstance(answer, Take)]
            self._meant[branch] = (strand.visit if strand else 0, its)
            signals = [signal for signal in signals if signal not in its]
        for branch in over:
            del self.parked[branch]
        self._outrun.clear()
        self._stirred = False
        self.due_ms = min(map(limit_ms, self.waits()), default=math.inf)
        return over

    def _spoken_for(self, execution: Execution) -> list[Signal]:
        """Return the signals for which branches were let go on, and that they may yet take.

        One signal is no reason to run the nodes of all branches that wait for its name.
        """
        standing = {
            branch: (visit, signals)
            for branch, (visit, signals) in self._meant.items()
            if execution.stands_in(branch, visit)
        }
        self._stirred = self._stirred or len(standing) < len(self._meant)
        self._meant = standing
        return [signal for _, signals in standing.values() for signal in signals]


def limit_ms(wait: Wait) -> float:
    """Return when something becomes of a wait by itself."""
    limits = (limit for limit in (wait.until_ms, wait.stale_ms) if limit is not None)
    return min(limits, default=math.inf)


def reason_of(waits: Sequence[Wait]) -> str:
    """Return why a run pauses, in a word."""
    if any(is_ambiguous(wait.signal) for wait in waits):
        return "ambiguous"
    for kind in ("budget", "quota", "retry"):
        if any(wait.key.startswith(f"%{kind}") for wait in waits):
            return kind
    return "signal" if any(wait.signal is not None for wait in waits) else "timer"
