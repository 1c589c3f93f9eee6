"""What calls take beyond what was reserved for them, in fleets whose budgets allow estimates.

Such a budget is overspent by no more than that, for calls in flight: from their reservation until
the run reserves again after their end is recorded, or makes them once more. By then what they took,
or an upper bound of it, counts.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from holdfast.model.event import CallFinished, CallReserved, Event
from holdfast.model.pricing import Usage
from tests.simulation.chronicle import Broken, Chronicle

if TYPE_CHECKING:
    from holdfast.engine.execution.context import Context
    from tests.simulation.once import Journey
    from tests.simulation.world import World

__all__ = ["INPUT_MAX", "Estimates"]

INPUT_MAX = 150
"""The upper bound of a question's input tokens, in these fleets; estimates are far below it."""
OUTPUT_MAX = 50
INPUT_MIN = 24
"""No estimate of a question is smaller."""
_CALM = 0.5
"""How many questions take as little as estimates expect."""

Name = tuple[str, str]
Place = tuple[str, int, str]
"""A call of a run: its branch, its visit, and its id."""


class Estimates:
    """Watches what calls take beyond their reservations. Off, nothing may be beyond them."""

    def __init__(self, world: World, seen: Counter[str]) -> None:
        self.on = False
        self._seen = seen
        self._draw = random.Random(f"{world.seed}/estimates")
        self._attempts: dict[tuple[Name, Place], int] = {}
        """How often each call was reserved."""
        self._under_way: dict[Journey, tuple[Place, int, int]] = {}
        """What is on its way: for which call, which attempt of it, and what is reserved for it."""
        self._excess: dict[Name, dict[Place, int]] = {}
        self._ended: dict[Name, set[Place]] = {}

    def usage(self) -> Usage:
        """Draw what a question takes: mostly as expected, then much more all of a sudden."""
        calm = self._draw.random() < _CALM
        taken = self._draw.randint(1, 40) if calm else self._draw.randint(100, INPUT_MAX)
        return Usage(taken, self._draw.randint(1, OUTPUT_MAX))

    def sets_out(self, journey: Journey, ctx: Context) -> None:
        """Hear that a question sets out."""
        if not self.on:
            return
        call = ctx._visit.call_ids._current_scope().path.removesuffix(">")
        chronicle, place = journey.chronicle, (ctx.branch, ctx.visit, call)
        reserved = self._reserved(chronicle, place)
        if reserved is not None:
            attempt = self._attempts.get((_name(chronicle), place), 0)
            self._under_way[journey] = (place, attempt, reserved)

    def paid(self, journey: Journey, tokens: int) -> None:
        """Hear what a question took."""
        if journey not in self._under_way:
            return
        place, attempt, reserved = self._under_way.pop(journey)
        name = _name(journey.chronicle)
        # Made again since, or over: its upper bound counts.
        latest = attempt >= self._attempts.get((name, place), 0)
        settled = not latest or place in self._ended.get(name, ())
        if tokens > reserved and not settled:
            self._seen["took more than estimated"] += 1
            self._note(name, place, tokens - reserved)

    def recorded(self, chronicle: Chronicle, event: Event, what: object) -> None:
        """Hear of one more event of a journal, before it is folded."""
        if not self.on:
            return
        name = _name(chronicle)
        if isinstance(event, CallReserved) and not event.instead and event.max_spending.tokens:
            place = (event.branch, event.visit, event.call)
            self._check_reservation(event, what)
            ended = self._ended.pop(name, set())
            known = self._excess.get(name, {})
            self._excess[name] = {
                other: more
                for other, more in known.items()
                if other != place and other not in ended
            }
            self._attempts[name, place] = self._attempts.get((name, place), 0) + 1
        elif isinstance(event, CallFinished):
            place = (event.branch, event.visit, event.call)
            more = event.spent.tokens - (self._reserved(chronicle, place) or 0)
            self._ended.setdefault(name, set()).add(place)
            if more > 0:
                self._note(name, place, more)

    def excess(self, name: Name) -> int:
        """Return what the calls of a run took beyond what its budget knew when it last gave."""
        return sum(self._excess.get(name, {}).values())

    def excess_in_flight(self, name: Name) -> int:
        """Return what the calls of a run took beyond what its journal says."""
        ended = self._ended.get(name, ())
        return sum(more for place, more in self._excess.get(name, {}).items() if place not in ended)

    def _check_reservation(self, event: CallReserved, what: object) -> None:
        input_tokens = event.max_spending.tokens - OUTPUT_MAX
        self._seen["reserved by an estimate"] += input_tokens < INPUT_MAX
        if not INPUT_MIN <= input_tokens <= INPUT_MAX:
            raise Broken(f"{what}, which is no bound of a question and its answer")

    def _note(self, name: Name, place: Place, more: int) -> None:
        excess = self._excess.setdefault(name, {})
        excess[place] = max(excess.get(place, 0), more)

    def _reserved(self, chronicle: Chronicle, place: Place) -> int | None:
        """Return what the journal says is reserved for a call."""
        branch, visit, call = place
        strand = None if chronicle.execution is None else chronicle.execution.strand(branch)
        if strand is None or strand.visit != visit or call not in strand.calls:
            return None
        return strand.calls[call].reserved.tokens or None


def _name(chronicle: Chronicle) -> Name:
    return (chronicle.key.pk, chronicle.generation)
