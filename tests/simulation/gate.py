"""What a quota lets through, checked whenever a call sets out: each has a slot, and nobody else's.

And no window sees more calls than the limit. Clocks here are further apart than a quota allows for,
so a call counts for the moment that the clock of its own process shows: that is the one by which
it was granted. What the quota allows for differences of clocks belongs to the window then. How
many crowd at one quota is tried in `rates`.
"""

from __future__ import annotations

from bisect import insort
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

QUOTA = Quota("gate", requests=15, per=10, concurrency=6)
_WINDOW_MS = (QUOTA.span_us - QUOTA.grace_us) // 1000 - 2
"""Without what is lost because a clock shows whole milliseconds."""


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
        self._began_ms: list[int] = []
        """When calls began of late, by the clocks of those who made them, in order."""

    def item(self, key: Key, new: Item | None) -> None:
        """Hear what stands in a quota's item."""
        if not key.pk.endswith(f"#{QUOTA.name}"):
            return
        slots = {} if new is None else level_of(new).permits
        self._slots = len(slots)
        self._held_until_ms = max((slot.expires_ms for slot in slots.values()), default=0)
        if self._slots > (QUOTA.concurrency or 0):
            raise Broken(f"the quota {QUOTA.name} has {self._slots} slots taken")
        self._seen["all slots taken"] += self._slots == QUOTA.concurrency

    def passes(self, process: Process) -> Passage:
        """Hear that a call sets out, and check that all that are under way have slots."""
        passage = Passage(process, self._world.loop.time())
        self._under_way[passage] = None
        for lost in [one for one in self._under_way if one.process.crashed]:
            del self._under_way[lost]
        under_way = sum(1 for one in self._under_way if one.counts)
        self._seen["passed a quota"] += 1
        self._check_windows(process.clock.now_ms())
        if under_way > self._slots:
            # Not raised: in a node it would only make the node fail.
            told = f"{under_way} calls are under way, and {self._slots} slots are taken"
            self._world.loop.fail(Broken(told))
        return passage

    def _check_windows(self, began_ms: int) -> None:
        """Check that no window which the new call is in has more calls than the limit."""
        assert QUOTA.requests is not None
        newest_ms = max(began_ms, self._began_ms[-1] if self._began_ms else 0)
        self._began_ms = [ms for ms in self._began_ms if ms > newest_ms - 3 * _WINDOW_MS]
        insort(self._began_ms, began_ms)
        for first, last in zip(self._began_ms, self._began_ms[QUOTA.requests :], strict=False):
            if last - first < _WINDOW_MS:
                told = f"{QUOTA.requests + 1} calls of the quota {QUOTA.name} began within"
                self._world.loop.fail(Broken(f"{told} {last - first} ms: {self._began_ms}"))

    def settled(self) -> None:
        """Check that nobody holds a slot once everything has come to rest."""
        if self._held_until_ms > self._world.now_ms():
            raise Broken(f"the quota {QUOTA.name} has {self._slots} slots taken, and nothing runs")

    def leaves(self, passage: Passage) -> None:
        """Hear that a call is over."""
        self._under_way.pop(passage, None)
