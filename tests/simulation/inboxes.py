"""Inboxes that are full: who fills them, what senders are told, and what rows count.

P1  a signal that was acknowledged is not refused as one too many when it is sent again
P8  an owner that has taken half of what an inbox holds says so before its next node, also if the
    run does not pause, and if an owner before it took some of them
P8  a row counts every signal that its own sender was told of and that was not taken; it counts none
    twice, save where the network repeats a write, where its answer was lost and the row has changed
    before the sender could ask again, or where a run pauses before the sender of a signal that it
    has seen has counted it; it counts none that was taken before the last pause; and no more
    signals lie in an inbox than it may hold, save what some senders put there at once
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast import PayloadLimits
from holdfast.errors import InboxFull, RunEnded, RunNotFound, StoreError
from holdfast.model.event import Event, SignalTaken
from holdfast.model.signals import is_caller_signal
from holdfast.records.head import OPEN, Head
from holdfast.records.keys import RunKey, inbox_key
from holdfast.storage.item import Item
from holdfast.storage.layout import TOKEN
from holdfast.storage.operations import WriteItem, WriteOperation
from holdfast.storage.writes import Update
from tests.simulation.chronicle import Broken, Chronicle, Chronicles
from tests.simulation.script import SLEEPER, Line, Script, Wish, asked

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from tests.simulation.members import Fleet
    from tests.simulation.process import Process
    from tests.simulation.world import World

__all__ = ["TRIES", "Crowd", "Inboxes", "drawn_crowd", "flood"]

TRIES = 6
"""How often a client sends a signal to a full inbox before it gives up."""
AT_ONCE = 8
"""So many senders may find the last room at the same time; there are fewer."""
PEST_SECONDS = 0.5
MORE = 2
"""An inbox has room for all signals that a run asks for, and so many more."""
LISTENER = "listener"
"""A run that takes more signals than its inbox holds, and does not pause meanwhile."""
LISTENING = 0.5
"""How many fleets with small inboxes have one."""
LISTENER_SECONDS = 3.0
"""How often it is sent a signal."""
AT_ONCE_TRIES = 2
"""So many more signals it may take while others come so fast that what it says is refused."""


@dataclass(frozen=True)
class Crowd:
    """How many signals a run of this fleet may have waiting, and which runs somebody floods."""

    items_max: int
    victims: tuple[str, ...]

    @property
    def limits(self) -> PayloadLimits:
        return PayloadLimits(inbox_items_max=self.items_max)


def drawn_crowd(world: World, script: Script) -> Crowd | None:
    """Draw whether the inboxes of a fleet are small; most are as large as any user's."""
    # Its own: what is drawn for the other fleets stays as it was.
    draw = random.Random(f"{world.seed}/crowd")
    if draw.random() >= world.plan.crowds:
        return None
    needed = max(len(asked(wish.plan)) for wish in script.wishes.values())
    # A run that waits for ever would hold up those behind it in its session.
    alone = [run for run, wish in script.wishes.items() if wish.session is None and run != SLEEPER]
    crowd = Crowd(needed + MORE, tuple(draw.sample(alone, min(len(alone), 6))))
    if draw.random() < LISTENING:
        _add_listener(script, crowd.items_max + MORE, 20 + 60 * draw.random())
    return crowd


def _add_listener(script: Script, signals: int, at_seconds: float) -> None:
    """Let a run ask for so many signals in one branch while another one works all the time."""
    asks = ";".join(["ask go"] * signals)
    # Not in one node: where workers stay for a short while only, it would not come to its end.
    works = ";".join([f"work {LISTENER_SECONDS:.3f}"] * (signals + MORE))
    script.wishes[LISTENER] = Wish(["work 0.1", f"fork {asks}|{works}"])
    script.clients[0].append(Line(at_seconds, "start", LISTENER))
    for number in range(signals):
        at_seconds += LISTENER_SECONDS
        script.clients[1].append(Line(at_seconds, "signal", LISTENER, "go", f"s{number}"))
    for lines in script.clients:
        lines.sort(key=lambda line: line.at_seconds)


async def flood(fleet: Fleet, process: Process, crowd: Crowd) -> None:
    """Send some runs more signals than they may have, one after the other."""
    hf: Holdfast = fleet.face(process)
    number = 0
    while not fleet.leaving.is_set():
        await process.clock.sleep(PEST_SECONDS * (0.5 + process.ids.random()))
        run = crowd.victims[number % len(crowd.victims)]
        key = RunKey(fleet.script.wishes[run].tenant, run)
        number += 1
        try:
            await fleet.send(process, hf, key, "noise", f"{process.name}-{number}")
        except (InboxFull, RunEnded, RunNotFound, StoreError):
            continue


@dataclass
class _Counting:
    """What the row of one run is known to count."""

    told: set[tuple[str, str]] = field(default_factory=set)
    """The signals whose sender put them there itself, and was told that they count."""
    taken: frozenset[tuple[str, str]] = frozenset()
    """What was taken when its owner last said what waits."""
    tokens: set[str] = field(default_factory=set)
    """Of the writes that counted something since the last pause."""
    repeated: int = 0
    """What was counted again because the network repeated some of them."""
    unheard: int = 0
    """How many signals lay there then whose senders had yet to count them, unless they died."""
    meanwhile: int = 0
    """How many were taken while an owner that went on said what it had taken."""
    was_full: bool = False


class Inboxes:
    """Checks what rows count, and what senders to full inboxes are told."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str]) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self._sendings: Counter[str] = Counter()
        """How often each write was sent that counts a signal, by its token."""
        self._counting: dict[tuple[str, str], _Counting] = {}
        self.items_max: int | None = None
        """How many signals a run may have waiting, where that is few."""
        world.on_sent(self._sent)

    def _sent(self, process: Process, operation: WriteOperation) -> None:
        if self.items_max is None or not isinstance(operation, WriteItem):
            return
        write = operation.write
        if isinstance(write, Update) and "inbox_items" in write.add and write.token is not None:
            self._sendings[write.token] += 1

    def mark(self, process: Process) -> str:
        """Return what is smaller than the token of every later write of the process."""
        return "" if self.items_max is None else process.ids.new()

    def told(self, process: Process, key: RunKey, signal: tuple[str, str], mark: str) -> None:
        """Hear that a sender was told that a signal counts, which it began to send at the mark."""
        head = self._runs.row(key)
        if self.items_max is None or head is None or head.status not in OPEN:
            return
        chronicle = self._runs.of_row(head)
        counting = self._of(chronicle)
        token = chronicle.stamps.get(signal, "")
        ours = token > mark and chronicle.put_by.get(token) == process.name
        if not ours and head.inbox_items >= self.items_max:
            self._seen["sent again to a full inbox"] += 1
        if ours:
            counting.told.add(signal)
            self._seen["room in an inbox that was full"] += counting.was_full
            counting.was_full = False
        self._check(head, chronicle)

    def refused(self, key: RunKey, signal: tuple[str, str]) -> None:
        """Hear that a sender was told that the inbox is full."""
        self._seen["inbox was full"] += 1
        head = self._runs.row(key)
        if head is None:
            return
        chronicle = self._runs.of_row(head)
        self._of(chronicle).was_full = True
        lies = self._world.truth.item(inbox_key(key, head.generation, *signal)) is not None
        if lies and signal in chronicle.acknowledged:
            raise Broken(
                f"P1: the signal {signal} of {key.id} was acknowledged, and is refused as one too "
                "many when it is sent again"
            )

    def row(self, before: Head | None, head: Head, item: Item, chronicle: Chronicle) -> None:
        """Check what a row counts once it was written."""
        if self.items_max is None or before is None or head.status not in OPEN:
            return
        counting = self._of(chronicle)
        let_go = before.owner is not None and head.owner is None
        # What a reaper makes due again is torn, and a worker that hands it on opens it.
        paused = let_go and head.status == "waiting" and not head.needs_fence
        if paused or head.inbox_items < before.inbox_items:
            execution = chronicle.execution
            taken = frozenset[tuple[str, str]]() if execution is None else execution.taken
            callers = _callers(chronicle)
            # An owner that goes on may take more while it says what it took: at least half of what
            # an inbox holds it took before.
            more = len(taken & callers - counting.taken) - self.items_max // 2
            beyond = head.inbox_items - len(callers - taken)
            counting.meanwhile = 0 if paused else max(0, min(more, beyond))
            counting.taken = taken
            counting.repeated = 0
            counting.unheard = len(callers - counting.told)
            if paused:
                counting.tokens.clear()
            else:
                # Repeated, it undoes a later one, until the next.
                counting.tokens.add(item[TOKEN])
        elif head.inbox_items > before.inbox_items:
            if item[TOKEN] in counting.tokens:
                counting.repeated += head.inbox_items - before.inbox_items
            counting.tokens.add(item[TOKEN])
        self._check(head, chronicle)

    def recorded(self, chronicle: Chronicle, event: Event, what: object) -> None:
        """Check that an owner which takes signals has said how many it took before."""
        if self.items_max is None or chronicle.key.id != LISTENER:
            return
        # Only there one node takes a signal after the other.
        if isinstance(event, SignalTaken) and chronicle.execution is not None:
            counting = self._of(chronicle)
            stale = len(counting.told & chronicle.execution.taken - counting.taken)
            self._seen["took half of an inbox"] += 2 * stale >= self.items_max
            if 2 * (stale - AT_ONCE_TRIES) >= self.items_max:
                raise Broken(
                    f"P8: {what}, and its row still counts {stale} signals that were taken before; "
                    f"its inbox holds {self.items_max}"
                )

    def _of(self, chronicle: Chronicle) -> _Counting:
        return self._counting.setdefault((chronicle.key.pk, chronicle.generation), _Counting())

    def _check(self, head: Head, chronicle: Chronicle) -> None:
        assert self.items_max is not None
        counting, execution = self._of(chronicle), chronicle.execution
        taken = frozenset[tuple[str, str]]() if execution is None else execution.taken
        least = len(counting.told - taken)
        what = f"the row of {head.key.id} counts {head.inbox_items} signals"
        if head.inbox_items < least:
            raise Broken(f"P8: {what}, and {least} that were acknowledged wait")
        callers = _callers(chronicle)
        # Its sender does not know whether the first sending counted, and counts once more.
        unsure = sum(self._sendings[token] > 1 for token in counting.tokens)
        most = len(callers - counting.taken) + counting.repeated + counting.unheard
        most += unsure + counting.meanwhile
        if head.inbox_items > most:
            raise Broken(f"P8: {what}, and no more than {most} can wait")
        if len(callers - taken) > self.items_max + AT_ONCE:
            raise Broken(
                f"P8: {len(callers - taken)} signals wait in the inbox of {head.key.id}, which may "
                f"hold {self.items_max}"
            )


def _callers(chronicle: Chronicle) -> set[tuple[str, str]]:
    """Return what callers sent a run."""
    return {signal for signal in chronicle.accepted if is_caller_signal(signal[0])}
