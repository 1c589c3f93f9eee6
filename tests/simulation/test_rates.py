"""A quota keeps its limit and its pace, however slow the processes are that share it."""

from __future__ import annotations

import pytest

from holdfast.engine.kernel import Kernel
from holdfast.engine.quotas import Later, Pass, QuotaDesk
from holdfast.model.quota import Quota
from tests.simulation.faults import FaultPlan, calm
from tests.simulation.process import Process
from tests.simulation.world import World, simulate

PROCESSES = 4
CALLS = 55
QUOTA = Quota("model", requests=40, per=2)


class Calls:
    """Calls of several processes that share a quota."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.began: list[float] = []

    async def call(self, process: Process, desk: QuotaDesk) -> None:
        """Begin a call as soon as the quota lets it."""
        told_ms: int | None = None
        while True:
            answer = await desk.admit(self.quota, "acme", told_ms=told_ms)
            if isinstance(answer, Pass):
                self.began.append(process.clock.now_ms() / 1000)
                return
            assert isinstance(answer, Later)
            told_ms = answer.until_ms
            await process.clock.sleep(told_ms / 1000 - process.clock.now_ms() / 1000)

    def most_in_a_window(self) -> int:
        began = sorted(self.began)
        window = self.quota.window_us / 1_000_000
        return max(sum(1 for at in began if first <= at < first + window) for first in began)


def called(plan: FaultPlan, seed: int, *, calls: int = CALLS, quota: Quota = QUOTA) -> Calls:
    """Let all processes call as fast as they may, for a minute at most."""
    made = Calls(quota)

    async def scenario(world: World) -> None:
        for number in range(PROCESSES):
            process = world.process(f"p{number}")
            desk = QuotaDesk(Kernel(process.store, process.clock, process.ids))
            for _ in range(number, calls, PROCESSES):
                process.spawn(made.call(process, desk))
        over = world.loop.create_future()
        world.at(60.0, over.set_result, None)
        await over

    simulate(scenario, seed, plan, callbacks_max=3_000_000)
    return made


@pytest.mark.parametrize("seconds", [(0.05, 0.1), (0.05, 0.5), (0.4, 0.8)])
@pytest.mark.parametrize("seed", range(3))
def test_processes_that_are_slow_in_everything_get_on(
    seconds: tuple[float, float], seed: int
) -> None:
    least, most = seconds
    plan = calm().evolve(sluggish=1, sluggish_seconds_min=least, sluggish_seconds_max=most)
    made = called(plan, seed)
    assert len(made.began) == CALLS
    assert made.most_in_a_window() <= 40
