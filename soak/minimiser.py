"""Reduces a seed that breaks to fewer runs, faults and steps that break in the same way.

Delta debugging: leave out half of the parts of a kind, then quarters, down to single ones. What is
left out changes how all further dice fall, so that a bug may hide though its cause is still there.
Therefore each attempt is made with several dice before it counts as failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from soak.findings import kind_of
from tests.simulation.faults import FaultPlan
from tests.simulation.fleet import TROUBLE_SECONDS, fleet, rough
from tests.simulation.reduction import WHOLE, Reduction, parts_of
from tests.simulation.script import Script
from tests.simulation.seeds import shown

__all__ = ["ATTEMPTS_MAX", "Minimiser", "Suspect", "parts_in"]

ATTEMPTS_MAX = 1_000
"""How many fleets a minimisation may run; each takes less time than the whole seed."""
_DICE_MIN = 3
_DICE_FOR_ONE = 10
_TROUBLE_SECONDS_MIN = 10.0


@dataclass(frozen=True)
class Suspect:
    """A fleet that breaks."""

    seed: int
    plan: FaultPlan | None = None
    calling: bool | None = None

    def run(self, reduction: Reduction = WHOLE) -> Exception | None:
        """Run what a reduction leaves of it; return what broke."""
        try:
            fleet(self.seed, self.plan, calling=self.calling, reduction=reduction)
        except Exception as error:
            return error
        return None


@dataclass
class Minimiser:
    """Looks for the least that breaks in the same way, for a bounded number of attempts."""

    suspect: Suspect
    kind: str
    attempts_max: int = ATTEMPTS_MAX
    is_over: Callable[[], bool] = lambda: False
    """Whether to stop early."""
    attempts: int = 0
    best: Reduction = field(default_factory=lambda: WHOLE)
    message: str = ""
    _runs: list[str] = field(default_factory=list[str])

    def minimise(self) -> Reduction:
        """Return the smallest reduction found; everything is left in where none breaks."""
        parts = parts_in(self.suspect)
        self._runs = parts["run"]
        # The end first: what comes after the break throws no other dice if it is left out.
        self._leave_out(parts["reuse"])
        self._shorten()
        self._single_out()
        for kind in ("run", "fault", "line", "step", "fault"):
            self._leave_out([part for part in parts[kind] if self._matters(part)])
        self._shorten()
        return self.best

    def _single_out(self) -> None:
        """Leave out every run that the message does not name."""
        others = [run for run in self._runs if run.partition(":")[2] not in self.message]
        if len(others) < len(self._runs):
            self._breaks(self.best.leaving_out(others), dice=self.attempts_max // 3)

    def _leave_out(self, parts: list[str]) -> None:
        """Leave out as many of the parts as possible: all, halves, quarters, single ones."""
        chunks = 1
        while parts and not self._exhausted:
            size = -(-len(parts) // chunks)
            for chunk in _chunks(parts, size):
                if self._breaks(self.best.leaving_out(chunk)):
                    parts = [part for part in parts if part not in chunk]
                    chunks = max(chunks - 1, 1)
                    break
            else:
                if size == 1:
                    return
                chunks = min(2 * chunks, len(parts))

    def _shorten(self) -> None:
        seconds = (self.best.trouble_seconds or TROUBLE_SECONDS) / 2
        while seconds >= _TROUBLE_SECONDS_MIN and not self._exhausted:
            if not self._breaks(dataclasses.replace(self.best, trouble_seconds=seconds)):
                return
            seconds /= 2

    def _matters(self, part: str) -> bool:
        """Whether a part is still there: not where it, or its run, was left out."""
        kind, _, value = part.partition(":")
        if part in self.best.without:
            return False
        return kind != "step" or f"run:{value.partition('/')[0]}" not in self.best.without

    def _breaks(self, candidate: Reduction, *, dice: int | None = None) -> bool:
        if dice is None:
            # The fewer runs, the less time a fleet takes, and the more seldom it breaks by chance.
            left = sum(run not in candidate.without for run in self._runs)
            dice = max(_DICE_MIN, _DICE_FOR_ONE // left if left else 0)
        for number in range(self.best.dice, self.best.dice + dice):
            if self._exhausted:
                return False
            self.attempts += 1
            tried = dataclasses.replace(candidate, dice=number)
            error = self.suspect.run(tried)
            if error is not None and kind_of(shown(error)) == self.kind:
                self.best, self.message = tried, str(error)
                return True
        return False

    @property
    def _exhausted(self) -> bool:
        return self.attempts >= self.attempts_max or self.is_over()


def parts_in(suspect: Suspect) -> dict[str, list[str]]:
    """Return what can be left out of a seed."""
    drawn = suspect.run(_Asking())
    assert isinstance(drawn, _Drawn), drawn
    return parts_of(drawn.script, suspect.plan or rough())


class _Drawn(Exception):
    """Ends a fleet as soon as its script is drawn."""

    def __init__(self, script: Script) -> None:
        self.script = script


class _Asking(Reduction):
    """Asks what would be done, so that only the fleet knows how its script is drawn."""

    def reduced(self, script: Script) -> Script:
        raise _Drawn(script)


def _chunks(parts: list[str], size: int) -> Iterator[list[str]]:
    for first in range(0, len(parts), size):
        yield parts[first : first + size]
