"""The world: one truth, one source of randomness, one trace; and `simulate`, which runs in it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from contextvars import Context
from typing import Any, TypeAlias, TypeVar

from holdfast.records.keys import HEAD
from holdfast.storage.item import Item
from holdfast.storage.layout import LAYOUT, TTL, Key, Layout
from holdfast.storage.operations import (
    ChangePage,
    ReadOperation,
    Reply,
    WriteItem,
    WriteOperation,
)
from holdfast.storage.writes import Delete
from tests.simulation.blobs import MemoryBlobs
from tests.simulation.clock import EPOCH_MS
from tests.simulation.faults import FaultPlan, calm
from tests.simulation.loop import CALLBACKS_MAX, VirtualLoop, run
from tests.simulation.outages import Outages, OutageWatch
from tests.simulation.partitions import Place, Since
from tests.simulation.process import Boot, Process
from tests.simulation.supervisor import Supervisor
from tests.simulation.trace import Subject, Trace
from tests.simulation.truth import Step, Truth

__all__ = ["TTL_SWEEPER", "Applied", "Sent", "World", "simulate"]

T = TypeVar("T")

Applied: TypeAlias = Callable[[int, str, WriteOperation, Reply, list[Step]], None]
"""Is told of a write: true time in ms, process, operation, answer, (key, old, new) of each item."""

Sent: TypeAlias = Callable[[Process, WriteOperation], None]
"""Is told of a write when a process sends it."""

TTL_SWEEPER = "(ttl)"
"""In whose name the world deletes what has expired."""

_LATENCY_SECONDS_MIN = 0.0002
_LATENCY_SECONDS_MAX = 0.020
# A signal that comes late matters most where its run is gone by then.
_SOON_MS = 3_000
_SOON_FACTOR = 20
_EXACT_CLOCKS = 1 / 3
_SWEPT_SOON = 0.5
_SWEPT_SOON_SECONDS = 60.0


class World:
    """Everything that the processes of a simulation share. Lives in a running `VirtualLoop`."""

    def __init__(
        self,
        seed: int | str,
        plan: FaultPlan | None = None,
        *,
        layout: Layout = LAYOUT,
        metered: bool = False,
    ) -> None:
        """Make a world; ``metered`` says whether its operations tell what they cost."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.seed = seed
        self.random = random.Random(f"{seed}/world")
        self.metered = metered
        self.truth = Truth(layout, metered=metered)
        self.plan = plan or calm()
        """What goes wrong from now on; a scenario may set another one at any time."""
        self.blobs = MemoryBlobs()
        self.outages = Outages()
        """When stores cannot be used; a scenario may set others before it begins."""
        self.watch: OutageWatch | None = None
        """Checks what workers do meanwhile."""
        self.faults: Counter[str] = Counter()
        """How often each kind of fault has taken effect."""
        self.operations: Counter[str] = Counter()
        """How often each kind of operation was asked for."""
        self.trace = Trace()
        self.over = False
        """Whether the scenario is done: nothing has any effect any more."""
        self.processes: list[Process] = []
        self.users: object = None
        """Whatever a scenario has for the code that it runs, which finds it by its process."""
        self.context = Context()
        """For callbacks that run whatever becomes of any process."""
        self._serial = itertools.count(1)
        self._incarnations: Counter[str] = Counter()
        self._observers: list[Applied] = []
        self._sent_observers: list[Sent] = []
        self._expiring: list[tuple[float, int, Key, int]] = []
        loop.at_end(self._end)

    # --- what a scenario uses ---------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """Start an empty process."""
        return Process(self, name)

    def supervise(self, name: str, boot: Boot) -> Supervisor:
        """Start a process that does ``boot(process)``, and start it again after each crash."""
        return Supervisor(self, name, boot)

    def throw_anew(self, dice: int) -> None:
        """Let everything that is drawn from now on fall in another way."""
        self.random.seed(f"{self.seed}/world/{dice}")

    def on_applied(self, observer: Applied) -> None:
        """Call this after each write that was applied. What it raises ends the run."""
        self._observers.append(observer)

    def on_sent(self, observer: Sent) -> None:
        """Call this whenever a process sends a write."""
        self._sent_observers.append(observer)

    def now_ms(self) -> int:
        """Return the true wall clock."""
        return int(EPOCH_MS + self.loop.now * 1000)

    def item(self, key: Key) -> Item | None:
        """Return what truly stands under a key. Not to be changed."""
        self._sweep()
        return self.truth.item(key)

    def items(self, prefix: str = "") -> list[Item]:
        """Return what truly stands in partitions whose keys begin so. Not to be changed."""
        self._sweep()
        return self.truth.items(prefix)

    def entries(self, index: str, prefix: str = "") -> list[Item]:
        """Return what truly stands in an index, in partitions whose keys begin so."""
        self._sweep()
        return self.truth.entries(index, prefix)

    def is_up_to_something(self) -> bool:
        """Return whether a write is still to come, a process to go on or to be started again."""
        return self.loop.has_timers(self.context)

    # --- what its other parts use -----------------------------------------------------------------

    def at(self, moment: float, action: Callable[..., object], *args: Any) -> TimerHandle:
        """Do something at that moment, whatever becomes of whoever caused it."""
        return self.loop.call_at(moment, action, *args, context=self.context)

    def serial(self) -> int:
        return next(self._serial)

    def incarnation(self, name: str) -> str:
        """Return the name of a further process: w, w.2, w.3."""
        self._incarnations[name] += 1
        count = self._incarnations[name]
        return name if count == 1 else f"{name}.{count}"

    def admit(self, process: Process) -> None:
        self.processes.append(process)
        self.note(process, "starts", f"skew {process.clock.skew_seconds:+.3f} s")

    def note(
        self, process: Process, what: str, subject: Subject = "", *, count: bool = False
    ) -> None:
        """Add to the trace; count it as a fault that took effect, if asked to."""
        if count:
            self.faults[what] += 1
        self.trace.extend((self.loop.now, process.name, what, subject))

    def tell_sent(self, process: Process, operation: WriteOperation) -> None:
        """Tell whoever observes that a process sends a write."""
        for observer in self._sent_observers:
            observer(process, operation)

    def apply(self, process: Process, operation: WriteOperation) -> Reply:
        """Carry out a write, now, and tell whoever observes."""
        self._sweep()
        answer = self._apply(process.name, operation)
        outcome = "applied" if answer.error is None else "refused"
        self.trace.add(self.loop.now, process.name, outcome, operation)
        return answer

    def read(self, process: Process, operation: ReadOperation) -> Reply:
        """Carry out a read, now, of what is or of what was."""
        self._sweep()
        answer = self.truth.read(operation)
        if not operation.eventual:
            return answer
        index = getattr(operation, "index", None)
        rate = self.plan.stale_read if index is None else self.plan.stale_index
        if not rate or self.random.random() >= rate:
            return answer
        seen = self.truth.read(operation, self._draw_since())
        if seen.value != answer.value:
            kind = "stale_read" if index is None else "stale_index"
            self.note(process, kind, operation, count=True)
        return seen

    def read_changes(self, after: str | None, limit: int) -> ChangePage:
        """Read the change feed, in which expiry is told as well."""
        self._sweep()
        return self.truth.read_changes(after, limit)

    def draw_latency(self, process: Process) -> float:
        """Return how long an operation takes; mostly little."""
        plan, random = self.plan, self.random.random
        number = random()
        late = self.draw_lateness(process) if process.sluggish else 0.0
        if plan.slow and random() < plan.slow:
            self.note(process, "slow", count=True)
            return late + number * plan.slow_seconds_max
        spread = _LATENCY_SECONDS_MAX - _LATENCY_SECONDS_MIN
        return late + _LATENCY_SECONDS_MIN + number**3 * spread

    def draw_sluggish(self) -> bool:
        """Return whether a process is slow in everything that it does."""
        return bool(self.plan.sluggish) and self.random.random() < self.plan.sluggish

    def draw_lateness(self, process: Process) -> float:
        """Return by how much later a process wakes, or hears an answer, than it should."""
        plan = self.plan
        if not plan.sluggish:
            return 0.0
        self.faults["sluggish"] += 1
        return self.random.uniform(plan.sluggish_seconds_min, plan.sluggish_seconds_max)

    def draw_signal_delay(self, process: Process, run_pk: str) -> float:
        """Return how much longer a write into an inbox takes: often where the run expires soon."""
        head = self.truth.item(Key(run_pk, HEAD))
        soon = head is not None and 0 < head["expires_ms"] - self.now_ms() < _SOON_MS
        if self.random.random() >= self.plan.slow_signal * (_SOON_FACTOR if soon else 1):
            return 0.0
        self.note(process, "slow_signal", count=True)
        return self.random.random() * self.plan.slow_signal_seconds_max

    def draw_skew(self) -> float:
        """Return by how much a process' wall clock is off."""
        skew_max = self.plan.skew_seconds_max
        if not skew_max or self.random.random() < _EXACT_CLOCKS:
            return 0.0
        return self.random.uniform(-skew_max, skew_max)

    def _draw_since(self) -> Since:
        """Return how far back a stale read sees: one moment for all, or one for each item."""
        now, lag = self.loop.now, self.plan.lag_seconds_max
        if self.random.random() < 0.5:
            moment = now - self.random.random() * lag
            return lambda place: moment
        moments: dict[Place, float] = {}

        def since(place: Place) -> float:
            if place not in moments:
                moments[place] = now - self.random.random() * lag
            return moments[place]

        return since

    def _apply(self, name: str, operation: WriteOperation, *, expired: bool = False) -> Reply:
        now, now_ms = self.loop.now, self.now_ms()
        self.truth.remember(self.plan.lag_seconds_max)
        answer, steps = self.truth.apply(operation, at=now, at_ms=now_ms, expired=expired)
        for key, _, new in steps:
            if new is not None and TTL in new:
                self._expect_expiry(key, new[TTL])
        if answer.error is None:
            for observer in self._observers:
                observer(now_ms, name, operation, answer, steps)
        return answer

    def _expect_expiry(self, key: Key, ttl: Any) -> None:
        """Draw when an item will be deleted, should it stand till then."""
        if type(ttl) is not int or self.random.random() >= self.plan.ttl_deletion:
            return
        late_max = self.plan.ttl_seconds_max
        if self.random.random() < _SWEPT_SOON:
            late_max = min(late_max, _SWEPT_SOON_SECONDS)
        # `ttl` is the second after which it may go, on the true clock.
        moment = ttl + 1 - EPOCH_MS / 1000 + self.random.random() * late_max
        heapq.heappush(self._expiring, (moment, self.serial(), key, ttl))

    def _sweep(self) -> None:
        """Delete what should have been deleted since somebody last looked.

        Nobody can tell that from a deletion on time, and no timers keep a world busy for days.
        """
        expiring, now = self._expiring, self.loop.now
        while expiring and expiring[0][0] <= now:
            _, _, key, ttl = heapq.heappop(expiring)
            item = self.truth.item(key)
            if item is None or item.get(TTL) != ttl:
                continue
            self._apply(TTL_SWEEPER, WriteItem(Delete(key), "nothing"), expired=True)
            self.faults["ttl_deletion"] += 1
            self.trace.add(now, TTL_SWEEPER, "ttl_deletion", f"{key.pk}/{key.sk}")

    def _end(self) -> None:
        self.over = True


class MutedWorld(World):
    """A world in which some kinds of fault do not strike, whatever plan is set."""

    def __init__(
        self, seed: int | str, plan: FaultPlan | None, muted: Collection[str], **options: Any
    ) -> None:
        self._muted = muted
        super().__init__(seed, plan, **options)

    # Not in every world: there it is looked at too often.
    @property
    def plan(self) -> FaultPlan:  # type: ignore[override]
        return self._plan

    @plan.setter
    def plan(self, plan: FaultPlan) -> None:
        self._plan = plan.without(self._muted)


def simulate(
    scenario: Callable[[World], Coroutine[Any, Any, T]],
    seed: int | str,
    plan: FaultPlan | None = None,
    *,
    shuffle: bool = True,
    metered: bool = False,
    muted: Collection[str] = (),
    callbacks_max: int = CALLBACKS_MAX,
) -> T:
    """Run a scenario in a world of its own; an error tells the seed and what happened last.

    ``metered`` lets operations tell their units; to weigh them takes time. Faults of the kinds in
    ``muted`` do not strike.

    Raises:
        Deadlock: the scenario can never end.
        RanAway: it did not end within that many callbacks.
    """
    worlds: list[World] = []

    async def main() -> T:
        if muted:
            worlds.append(MutedWorld(seed, plan, muted, metered=metered))
        else:
            worlds.append(World(seed, plan, metered=metered))
        return await scenario(worlds[0])

    try:
        return run(main(), seed, shuffle=shuffle, callbacks_max=callbacks_max)
    except BaseException as error:
        if worlds:
            error.add_note(f"seed {seed!r}; what happened last:\n{worlds[0].trace.tail()}")
        raise
