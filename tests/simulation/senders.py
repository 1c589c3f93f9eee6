"""What senders of signals began, and what they were told.

P1  a signal that was acknowledged is not refused when it is sent again
P4  a signal comes after those of its name that its process was told of before it began to send it
P7  a signal that is refused leaves nothing in a run that has expired
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.model.event import SignalTaken
from holdfast.records.head import OPEN
from holdfast.records.keys import RunKey, inbox_key
from holdfast.storage.layout import TOKEN
from tests.simulation.chronicle import Broken, Chronicle, Chronicles

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

__all__ = ["MISFIT", "Senders"]

MISFIT = "-odd"
"""How the ids of signals end that do not fit what runs wait for."""


@dataclass
class _Sent:
    """A signal, as its senders know it; the moments are counted, not timed."""

    began: int
    """When it was first sent."""
    processes: set[str] = field(default_factory=set)
    """Which processes ever sent it."""
    told: int | None = None
    """When a sender was first told that it counts."""


class Senders:
    """Checks what senders are told, and that signals are taken in the order of what they know."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str]) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self._sent: dict[tuple[RunKey, str, str], _Sent] = {}
        self._moments = itertools.count()

    def begins(self, process: Process, key: RunKey, name: str, id: str) -> str:
        """Hear that a process begins to send a signal; return the last id that it made so far."""
        sent = self._sent.setdefault((key, name, id), _Sent(next(self._moments)))
        sent.processes.add(process.name)
        return process.ids.last

    def told(self, key: RunKey, name: str, id: str) -> None:
        """Hear that a sender was told that a signal counts."""
        sent = self._sent[key, name, id]
        head = self._runs.row(key)
        if head is not None and head.status in OPEN and sent.told is not None:
            self._seen["sent again past the expiry"] += self._world.now_ms() >= head.expires_ms
        if sent.told is None:
            sent.told = next(self._moments)

    def refused(
        self, process: Process, key: RunKey, name: str, id: str, *, status: str, since: str
    ) -> None:
        """Hear that a sender was told that the run takes nothing any more.

        ``since``: what `begins` returned when it began to send the signal.
        """
        head = self._runs.row(key)
        if head is None:
            return
        chronicle, what = self._runs.of_row(head), f"the signal {name}/{id} of {key.id}"
        if (name, id) in chronicle.acknowledged and head.status != "expired":
            execution = chronicle.execution
            taken = execution is not None and (name, id) in execution.taken
            if taken or status == "expired":
                raise Broken(
                    f"P1: {what} was acknowledged, and is refused as {status} when it is sent "
                    f"again; the run is {head.status}"
                )
        if head.status != "expired":
            return
        item = self._world.truth.item(inbox_key(key, head.generation, name, id))
        if item is None or item[TOKEN] in chronicle.deleted:
            return  # it is gone, or only the network brought it back
        # What it sent before, and was told of, goes when the run is freed. Only the order of the
        # ids tells the two apart: its clock may show one time for both, or be set back in between.
        if chronicle.put_by.get(item[TOKEN]) == process.name and item[TOKEN] > since:
            raise Broken(f"P7: {what} is refused, and left in a run that has expired")

    def check_order(
        self, chronicle: Chronicle, event: SignalTaken, names: Collection[str], *, beside: int
    ) -> str | None:
        """Return what came before a signal that is taken, if that ought to have been taken first.

        ``names``: of which signals the wait takes the first. ``beside``: how many of those may be
        about to be taken by others.
        """
        assert chronicle.execution is not None
        this = self._sent.get((chronicle.key, event.name, event.id))
        if this is None or len(this.processes) != 1:
            return None
        taken, accepted = chronicle.execution.taken, chronicle.accepted
        moment = accepted[event.name, event.id]
        earlier = [
            id
            for name, id in chronicle.acknowledged - taken
            if name in names
            and (other := self._sent.get((chronicle.key, name, id))) is not None
            and other.processes == this.processes
            and other.told is not None
            and other.told < this.began
            # Where the clock was set back, a wait may have ended between the two.
            and accepted[name, id] <= moment
        ]
        self._seen["taken in the order of one millisecond"] += any(
            name == event.name and accepted[name, id] == moment and id < event.id
            for name, id in accepted.keys() - taken - {(event.name, event.id)}
        )
        return f"{earlier} were acknowledged before it was sent" if len(earlier) > beside else None
