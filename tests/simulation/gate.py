"""What a quota lets through, checked whenever a call sets out: each has a slot, and nobody else's.

That no window sees more than its limit is tried with the quotas' own tests, where clocks agree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.model.quota import Quota
from holdfast.records.quota import level_of
from holdfast.storage.item import Item
from holdfast.storage.layout import Key
from tests.simulation.chronicle import Broken

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

__all__ = ["QUOTA", "Gate", "Passage"]

QUOTA = Quota("gate", requests=15, per=10, at_once=6)


@dataclass(eq=False)
class Passage:
    """A call under way, with who made it."""

    process: Process
    since: float

    @property
    def counts(self) -> bool:
        """Whether its slot is to be held: not where nobody was there to renew it."""
        return not self.process.crashed and self.process.stalled_until <= self.since


class Gate:
    """Watches a quota that all processes share."""

    def __init__(self, world: World, seen: Counter[str]) -> None:
        self._world = world
        self._seen = seen
        self._slots = 0
        self._held_until_ms = 0
        self._under_way: dict[Passage, None] = {}

    def item(self, key: Key, new: Item | None) -> None:
        """Hear what stands in a quota's item."""
        if not key.pk.endswith(f"#{QUOTA.name}"):
            return
        slots = {} if new is None else level_of(new).slots
        self._slots = len(slots)
        self._held_until_ms = max((slot.until_ms for slot in slots.values()), default=0)
        if self._slots > (QUOTA.at_once or 0):
            raise Broken(f"the quota {QUOTA.name} has {self._slots} slots taken")
        self._seen["all slots taken"] += self._slots == QUOTA.at_once

    def passes(self, process: Process) -> Passage:
        """Hear that a call sets out, and check that all that are under way have slots."""
        passage = Passage(process, self._world.loop.time())
        self._under_way[passage] = None
        for lost in [one for one in self._under_way if one.process.crashed]:
            del self._under_way[lost]
        under_way = sum(1 for one in self._under_way if one.counts)
        self._seen["passed a quota"] += 1
        if under_way > self._slots:
            # Not raised: in a node it would only make the node fail.
            told = f"{under_way} calls are under way, and {self._slots} slots are taken"
            self._world.loop.fail(Broken(told))
        return passage

    def settled(self) -> None:
        """Check that nobody holds a slot once everything has come to rest."""
        if self._held_until_ms > self._world.now_ms():
            raise Broken(f"the quota {QUOTA.name} has {self._slots} slots taken, and nothing runs")

    def leaves(self, passage: Passage) -> None:
        """Hear that a call is over."""
        self._under_way.pop(passage, None)
