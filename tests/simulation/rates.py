"""Processes that crowd at one quota, some of them so slow that they miss what it grants them.

- No window sees more calls than the limit. The clocks are as far apart as a quota allows for, and
  calls count for their true moments.
- Everybody gets on: while somebody waits, calls begin.
"""

from __future__ import annotations

from collections import Counter

from holdfast.engine.effects.quotas import Permit, PermitDelay, QuotaLimiter
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import StoreUnavailable
from holdfast.model.quota import Quota
from tests.simulation.chronicle import Broken
from tests.simulation.faults import FaultPlan, calm
from tests.simulation.process import Process
from tests.simulation.world import World, simulate

__all__ = ["QUOTA", "Crowd", "crowding", "rates"]

PROCESSES = 4
CALLS = 40
QUOTA = Quota("crowd", requests=5, per=2)
SECONDS_MAX = 120.0
"""By then all have begun: seven times of what it takes those who are in time."""


class Crowd:
    """Calls that share a quota, as the callee sees them."""

    def __init__(self, world: World, quota: Quota) -> None:
        self.seen: Counter[str] = Counter()
        self.began: list[float] = []
        self._world = world
        self._quota = quota
        self._desks: dict[str, QuotaLimiter] = {}
        self._waiting = 0

    async def call(self, process: Process) -> None:
        """Begin a call as soon as the quota lets it."""
        self._waiting += 1
        told_ms: int | None = None
        while True:
            try:
                answer = await self._desk(process).acquire(self._quota, "acme", retry_at_ms=told_ms)
            except StoreUnavailable:
                continue
            if isinstance(answer, Permit):
                self._begins()
                return
            assert isinstance(answer, PermitDelay)
            told_ms = answer.retry_at_ms
            await process.clock.sleep((told_ms - process.clock.now_ms()) / 1000)

    def settled(self) -> None:
        """Check that nobody was left waiting."""
        for desk in self._desks.values():
            self.seen["missed its moment"] += desk.counts["late"]
        if self._waiting:
            raise Broken(
                f"P6: {len(self.began)} calls of the quota {self._quota.name} began within "
                f"{SECONDS_MAX:.0f} s, and {self._waiting} wait"
            )

    def _begins(self) -> None:
        self._waiting -= 1
        assert self._quota.requests is not None
        now, window = self._world.loop.time(), self._quota.window_us / 1_000_000
        self.began.append(now)
        within = sum(1 for at in self.began if at > now - window)
        self.seen["a window was full"] += within == self._quota.requests
        if within > self._quota.requests:
            told = f"the quota {self._quota.name} of {self._quota.requests}: {within} calls began"
            self._world.loop.fail(Broken(f"{told} within {window:g} s"))

    def _desk(self, process: Process) -> QuotaLimiter:
        if process.name not in self._desks:
            kernel = Kernel(process.store, process.clock, process.ids)
            self._desks[process.name] = QuotaLimiter(kernel)
        return self._desks[process.name]


def crowding() -> FaultPlan:
    """Return the plan of faults for processes that crowd at one quota."""
    allowed_us = QUOTA.span_us - QUOTA.window_us - QUOTA.grace_us
    return calm().evolve(
        throttled=0.01,
        lost_answer=0.01,
        slow=0.01,
        slow_seconds_max=1.0,
        stall=0.002,
        stall_seconds_max=2.0,
        sluggish=0.5,
        overshoot_seconds_max=0.02,
        skew_seconds_max=allowed_us / 2_000_000 - 0.001,
    )


def rates(seed: int | str, plan: FaultPlan | None = None, *, calls: int = CALLS) -> Counter[str]:
    """Let processes call as fast as they may; return how often what is to be tested happened."""

    async def scenario(world: World) -> Counter[str]:
        slow = world.random.choice([0.1, 0.5, 0.8])
        world.plan = world.plan.evolve(sluggish_seconds_max=slow)
        crowd = Crowd(world, QUOTA)
        for number in range(PROCESSES):
            process = world.process(f"p{number}")
            for _ in range(number, calls, PROCESSES):
                process.spawn(crowd.call(process))
        over = world.loop.create_future()
        world.at(SECONDS_MAX, over.set_result, None)
        await over
        crowd.settled()
        return crowd.seen

    return simulate(scenario, f"{seed}/rates", plan or crowding())
