"""Nodes that wait for the first of several, checked against what truly came first.

P4  exactly one condition is taken, and it is the one that came first of those that the owner must
    have found; a timer is the first only if no signal was accepted before its time
P3  a node that runs again is given the answer that was recorded

That what was not taken stays where it was shows in that every such node takes all of it in the end:
see `flow`. Which conditions a node waits for is known from the node, not from the kernel.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from holdfast.model.event import Event, Rerouted, SignalTaken, TimerFired
from holdfast.records.head import Head
from tests.simulation.chronicle import Broken, Chronicle, Chronicles

if TYPE_CHECKING:
    from holdfast.engine.execution.context import Context
    from tests.simulation.world import World

__all__ = ["Choices"]

GROUP = "%any."
"""With this the keys of all waits for the first of several begin."""

Place: TypeAlias = tuple[str, str, str, int]
"""A visit of a node: the run's partition, its generation, the branch, the visit."""


class Choices:
    """Hears what nodes wait for and are given, and checks what is recorded of it."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str]) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self._asked: dict[Place, dict[int, frozenset[str]]] = {}
        """The names of the signals that each wait of a visit waits for, by its number."""
        self._ended: dict[Place, dict[str, SignalTaken | TimerFired]] = {}
        """How the waits of a visit ended, by their keys, in their order."""
        self._deadlines: dict[tuple[Place, str], int | None] = {}

    # --- what nodes tell --------------------------------------------------------------------------

    def asks(self, context: Context, number: int, names: frozenset[str]) -> None:
        """Hear that a node waits for the first of these: signals, and ends of children."""
        self._asked.setdefault(self._place_of(context), {})[number] = names

    def answered(self, context: Context, number: int, signal: tuple[str, str] | None) -> None:
        """Hear what a node was given: a signal's name and payload, or None, for the time."""
        head = context._visit.claimed.head
        row = self._runs.row(head.key)
        if row is None or row.epoch > head.epoch:
            return  # what an owner is told that has lost its run comes to nothing
        recorded = list(self._ended.get(self._place_of(context), {}).values())
        if number >= len(recorded):
            return
        event = recorded[number]
        self._seen["first of several found again"] += 1
        told = (event.name, str(event.payload)) if isinstance(event, SignalTaken) else None
        if told is not None and told[0].startswith("%"):
            told = (told[0], "")  # of a child only that it ended
        if told != signal:
            self._world.loop.fail(
                Broken(f"P3: a node of {head.key.id} got {signal}, and {event!r:.200} is recorded")
            )

    @staticmethod
    def _place_of(context: Context) -> Place:
        visit = context._visit
        head = visit.claimed.head
        return (head.key.pk, head.generation, visit.branch, visit.visit)

    # --- every write ------------------------------------------------------------------------------

    def row(self, head: Head) -> None:
        """Check that what a run waits for keeps its time."""
        for wait in head.waits:
            if not wait.key.startswith(GROUP):
                continue
            place = (head.key.pk, head.generation, wait.branch, wait.visit)
            group = wait.key.partition("/")[0]
            known = self._deadlines.setdefault((place, group), wait.deadline_ms)
            if known != wait.deadline_ms:
                raise Broken(
                    f"P4: {head.key.id} was to wait until {known}, and waits until "
                    f"{wait.deadline_ms}: {wait}"
                )

    def names_of(self, chronicle: Chronicle, event: SignalTaken | TimerFired) -> frozenset[str]:
        """Return the names of the signals of which an event's wait takes the first."""
        if not event.wait.startswith(GROUP):
            return frozenset({event.name} if isinstance(event, SignalTaken) else ())
        place = (chronicle.key.pk, chronicle.generation, event.branch, event.visit)
        number = len(self._ended.get(place, {}))
        return self._asked.get(place, {}).get(number, frozenset())

    def recorded(
        self, chronicle: Chronicle, event: Event, what: object, *, epoch: int, beside: int
    ) -> None:
        """Check the answer to a wait for the first of several, before it is folded."""
        if isinstance(event, Rerouted) and event.reason == "retried":
            run = (chronicle.key.pk, chronicle.generation)
            self._ended = {place: ends for place, ends in self._ended.items() if place[:2] != run}
            self._deadlines = {
                wait: limit for wait, limit in self._deadlines.items() if wait[0][:2] != run
            }
            return
        if not isinstance(event, SignalTaken | TimerFired) or not event.wait.startswith(GROUP):
            return
        place = (chronicle.key.pk, chronicle.generation, event.branch, event.visit)
        group, names = event.wait.partition("/")[0], self.names_of(chronicle, event)
        ended = self._ended.setdefault(place, {})
        if group in ended:
            raise Broken(f"P4: {what}, and the wait had ended with {ended[group]!r:.200}")
        if isinstance(event, SignalTaken):
            if event.name not in names:
                raise Broken(f"P4: {what}, which waits for the first of {sorted(names)}")
            is_child = event.name.startswith("%")
            self._seen[f"first of several was {'a child' if is_child else 'a signal'}"] += 1
            self._note_loser(chronicle, event, names)
        else:
            self._seen["first of several was the time"] += 1
            self._check_time(chronicle, event, what, names, epoch=epoch, beside=beside)
        ended[group] = event

    def _note_loser(self, chronicle: Chronicle, event: SignalTaken, names: frozenset[str]) -> None:
        assert chronicle.execution is not None
        left = chronicle.accepted.keys() - chronicle.execution.taken - {(event.name, event.id)}
        losers = [signal for signal in left if signal[0] in names]
        self._seen["one of several stayed"] += bool(losers)
        moment = chronicle.accepted[event.name, event.id]
        self._seen["several came in one millisecond"] += any(
            chronicle.accepted[signal] == moment for signal in losers
        )

    def _check_time(
        self,
        chronicle: Chronicle,
        event: TimerFired,
        what: object,
        names: frozenset[str],
        *,
        epoch: int,
        beside: int,
    ) -> None:
        """Check that nothing came before the time of a wait that ended with its time."""
        assert chronicle.execution is not None
        place = (chronicle.key.pk, chronicle.generation, event.branch, event.visit)
        deadline_ms = self._deadlines.get((place, event.wait.partition("/")[0]))
        if deadline_ms is None:
            return  # it never paused
        head = self._runs.own_row(chronicle)
        if head is not None:
            deadline_ms = min(deadline_ms, head.expires_ms)  # what comes later no longer counts
        earlier = [
            signal
            for signal in chronicle.seen.get(epoch, set()) - chronicle.execution.taken
            if signal[0] in names and chronicle.accepted[signal] < deadline_ms
        ]
        if len(earlier) > beside:
            raise Broken(f"P4: {what}, and {sorted(earlier)} came before its time {deadline_ms}")
