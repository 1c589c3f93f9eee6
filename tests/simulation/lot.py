"""What befalls the workers of some fleets: others that died before, clocks that jump, few resumes.

One of these is drawn for a fleet, or none: most fleets are as they would be without.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.records import worker as rows
from holdfast.records.reaping import SWEEPS_MAX
from holdfast.storage.operations import WriteItem
from tests.simulation.clock import EPOCH_MS
from tests.simulation.faults import FaultPlan
from tests.simulation.process import Process
from tests.simulation.script import Wish
from tests.simulation.world import World

__all__ = ["JUMP_SECONDS_MAX", "Lot", "drawn_lot", "jump_clocks", "lengthen", "plant_dead"]

DEAD_MIN, DEAD_MAX = 20, 50
FEW_SWEEPS = 16
DAY_MS = 24 * 3600 * 1000
JUMPS_MAX = 3
JUMP_SECONDS_MIN = 30.0
JUMP_SECONDS_MAX = 150.0
WRONG_SECONDS_MIN, WRONG_SECONDS_MAX = 6.0, 40.0
"""For how long a clock is wrong: for more than one beat."""
CRASH_SOON = 0.5
"""How many of those whose clock is set right crash before they can renew their lease."""


@dataclass(frozen=True)
class Lot:
    """What befalls the workers of one fleet."""

    dead: int = 0
    """How many workers died before."""
    sweeps_max: int = SWEEPS_MAX
    jumps: int = 0
    """How many clocks jump, and come back."""
    resumes_max: int = 50
    stay_seconds: tuple[float, float] = (20.0, 120.0)
    """How long a worker stays before it leaves in good order: at least, at most."""
    long_seconds: float = 0.0
    """How long a node of every third run takes: longer than many workers stay."""

    @property
    def skew_seconds_max(self) -> float:
        """By how much a clock may be wrong that jumped."""
        return JUMP_SECONDS_MAX if self.jumps else 0.0


def drawn_lot(world: World, plan: FaultPlan, *, calling: bool) -> Lot:
    """Draw what befalls a fleet.

    Where runs call the world outside no clock jumps: a quota goes by the clocks of who uses it.
    """
    # Its own: what is drawn for the other fleets stays as it was.
    draw = random.Random(f"{world.seed}/fortune")
    number = draw.random()
    if number < plan.dead_workers:
        return Lot(dead=draw.randint(DEAD_MIN, DEAD_MAX), sweeps_max=FEW_SWEEPS)
    number -= plan.dead_workers
    if number < plan.clock_jumps:
        return Lot() if calling else Lot(jumps=draw.randint(1, JUMPS_MAX))
    number -= plan.clock_jumps
    if number < plan.few_resumes:
        # They come and go, so that many runs are handed on inside a node.
        return Lot(resumes_max=draw.choice([2, 2, 3]), stay_seconds=(2.0, 20.0), long_seconds=12.0)
    return Lot()


def lengthen(wishes: Mapping[str, Wish], lot: Lot) -> None:
    """Give some runs a node in which they are handed on, and lost, more than once."""
    if lot.long_seconds:
        for wish in list(wishes.values())[::3]:
            wish.plan.insert(1, f"work {lot.long_seconds:.3f}")


def plant_dead(world: World, lot: Lot, lease_seconds: float) -> None:
    """Write the rows of workers that died within the last day, and that nobody reaped."""
    if not lot.dead:
        return
    past = world.process("past")
    for number in range(lot.dead):
        until_ms = EPOCH_MS - round(world.random.random() * DAY_MS)
        row = rows.register_write(
            f"dead-{number:02d}",
            lease_ms=round(lease_seconds * 1000),
            expires_ms=until_ms,
            now_ms=until_ms - round(lease_seconds * 1000),
            details={},
            token=f"dead-{number:02d}",
        )
        world.apply(past, WriteItem(row, "nothing"))


def jump_clocks(
    world: World, lot: Lot, seconds: float, *, is_worker: Callable[[Process], bool]
) -> None:
    """Let wall clocks of workers jump within that time, and come back."""
    draw = world.random

    def strike() -> None:
        running = [process for process in world.processes if is_worker(process)]
        if not running:
            return
        process = draw.choice(running)
        # Ahead, mostly: what was written then is in the future.
        sign = 1 if draw.random() < 0.8 else -1
        jump = sign * draw.uniform(JUMP_SECONDS_MIN, JUMP_SECONDS_MAX)
        process.clock.jump(jump)
        world.note(process, "clock_jump", f"{jump:+.3f} s", count=True)
        wrong = draw.uniform(WRONG_SECONDS_MIN, WRONG_SECONDS_MAX)
        world.at(world.loop.time() + wrong, come_back, process, jump)

    def come_back(process: Process, jump: float) -> None:
        if process.silent:
            return
        process.clock.jump(-jump)
        world.note(process, "clock_set_right", count=True)
        if draw.random() < CRASH_SOON:
            process.crash()

    for _ in range(lot.jumps):
        # Late rather than early: what is still in the future is looked for when all is calm.
        at = draw.random() ** 0.5 * (seconds - WRONG_SECONDS_MAX)
        world.at(world.loop.time() + at, strike)
