"""What is left out of a seed, so that less of it still breaks.

Everything is drawn as for the whole seed, and left out afterwards: the other runs keep their plans,
their lines and the moments of these. What goes wrong with them changes nevertheless, since every
operation throws the same dice. So a reduction may also name other dice.

========================= ==========================================================================
``run:run-03``            a run, with everything that is done to it
``step:run-04/2``         a step of its plan, with the signals for which that waits
``line:17``               what a client does to a run without which the run still ends as planned
``fault:crash``           a kind of fault, by its rate in `FaultPlan`: drawn, but it does not strike
``reuse``                 what happens days later, under the ids of runs that are gone
``trouble:75``            everything goes wrong for that many seconds only
``dice:3``                other dice, from the moment on at which the workers start
========================= ==========================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulation.faults import FaultPlan
from tests.simulation.script import SLEEPER, Line, Script, Wish, asked

__all__ = ["REUSE", "WHOLE", "Reduction", "parts_of"]

REUSE = "reuse"
_SPARED = ("cancel", "retry", "extend", "grow")
"""What may not be done to a run without leaving it waiting for ever is not among these."""


@dataclass(frozen=True)
class Reduction:
    """Parts of a seed that are left out, how long it goes wrong, and with which dice."""

    without: frozenset[str] = frozenset()
    trouble_seconds: float | None = None
    dice: int = 0

    def __str__(self) -> str:
        words = sorted(self.without)
        if self.trouble_seconds is not None:
            words.append(f"trouble:{self.trouble_seconds:g}")
        if self.dice:
            words.append(f"dice:{self.dice}")
        return ",".join(words)

    @staticmethod
    def parse(text: str) -> Reduction:
        """Return the reduction that `str` wrote down.

        Raises:
            ValueError: A word is not one of those above.
        """
        without: set[str] = set()
        trouble_seconds, dice = None, 0
        for word in filter(None, text.split(",")):
            kind, _, value = word.partition(":")
            if kind == "trouble":
                trouble_seconds = float(value)
            elif kind == "dice":
                dice = int(value)
            elif word == REUSE or (kind in ("run", "step", "line", "fault") and value):
                without.add(word)
            else:
                raise ValueError(f"a part must be run:, step:, line:, fault: …, got {word!r}")
        return Reduction(frozenset(without), trouble_seconds, dice)

    def leaving_out(self, parts: Iterable[str]) -> Reduction:
        """Return this reduction with more left out."""
        return dataclasses.replace(self, without=self.without | frozenset(parts))

    @property
    def faults(self) -> frozenset[str]:
        """The kinds of fault that do not strike."""
        return frozenset(self._values("fault"))

    def reduced(self, script: Script) -> Script:
        """Return a script without what is left out."""
        runs, places = set(self._values("run")), set(self._values("line"))
        steps: dict[str, set[int]] = {}
        for step in self._values("step"):
            run, _, number = step.partition("/")
            steps.setdefault(run, set()).add(int(number))
        unasked = {
            (run, f"s{number}")
            for run, dropped in steps.items()
            if run in script.wishes
            for number in _signals_of(script.wishes[run].plan, dropped)
        }
        left = {
            id(line)
            for place, line in enumerate(script.lines)
            if line.run not in runs
            and str(place) not in places
            and not (line.verb == "signal" and (line.run, line.id) in unasked)
        }
        wishes = {
            run: _without_steps(wish, steps.get(run, set()))
            for run, wish in script.wishes.items()
            if run not in runs
        }
        clients = [[line for line in lines if id(line) in left] for lines in script.clients]
        return dataclasses.replace(script, wishes=wishes, clients=clients)

    def _values(self, kind: str) -> list[str]:
        return [
            part.partition(":")[2]
            for part in sorted(self.without)
            if part.partition(":")[0] == kind
        ]


WHOLE = Reduction()
"""Nothing is left out."""


def parts_of(script: Script, plan: FaultPlan) -> dict[str, list[str]]:
    """Return what can be left out of a seed, by kind, the largest parts first."""
    runs = [f"run:{run}" for run in script.wishes if run != SLEEPER]
    faults = [f"fault:{kind}" for kind in plan.kinds]
    seen: set[tuple[str, ...]] = set()
    lines: list[str] = []
    steps = [
        f"step:{run}/{number}"
        for run, wish in script.wishes.items()
        for number in range(1, len(wish.plan))
        if run != SLEEPER
    ]
    # Of what is asked for twice only the first is needed, by time and not by client.
    for place, line in sorted(enumerate(script.lines), key=lambda entry: entry[1].at_seconds):
        repeated = _same(line) in seen
        seen.add(_same(line))
        if repeated or (line.verb in _SPARED and line.run != SLEEPER):
            lines.append(f"line:{place}")
    return {"run": runs, REUSE: [REUSE], "fault": faults, "line": lines, "step": steps}


def _same(line: Line) -> tuple[str, ...]:
    return (line.verb, line.run, line.argument, line.id)


def _without_steps(wish: Wish, dropped: set[int]) -> Wish:
    plan = [step for number, step in enumerate(wish.plan) if number not in dropped]
    return dataclasses.replace(wish, plan=plan)


def _signals_of(plan: list[str], steps: set[int]) -> set[int]:
    """Return the numbers of the signals for which some steps of a plan wait."""
    found: set[int] = set()
    first = 0
    for number, step in enumerate(plan):
        count = len(asked([step]))
        if number in steps:
            found |= set(range(first, first + count))
        first += count
    return found
