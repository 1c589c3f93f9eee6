"""P6 of workers, checked after every write: the dead are reaped, in time and within bounds.

Also that a run is quarantined for the workers that it lost only if it truly lost so many, one after
the other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.records.head import Head
from holdfast.records.index_keys import REAPED, WORKERS, IndexKey
from holdfast.records.keys import worker_key
from holdfast.records.reaping import sweep_turn_of
from holdfast.storage.item import Item
from holdfast.storage.layout import Key
from tests.simulation.chronicle import Broken, Chronicle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.engine.worker.worker import Worker
    from tests.simulation.lot import Lot
    from tests.simulation.process import Process
    from tests.simulation.world import World

__all__ = ["Reaping"]

LOOK_SECONDS = 5.0
"""How often a worker looks for dead ones."""


class Reaping:
    """Watches the rows of workers, and the turns in which they are swept again."""

    def __init__(
        self, world: World, seen: Counter[str], *, lot: Lot, lease_seconds: float, skew_ms: int
    ) -> None:
        self._world = world
        self._seen = seen
        self._lot = lot
        self._lease_ms = round(lease_seconds * 1000)
        self._skew_ms = skew_ms
        self._turns: list[int] = []
        self._working: dict[Process, Worker] = {}
        self._written_ms: dict[str, int] = {}
        """When the row of each worker was last written: a registration may land late."""
        self._reaped_ms: dict[str, int] = {}
        """When each dead worker came to where those stand that are swept again."""

    def works(self, process: Process, worker: Worker) -> None:
        """Hear who a process is, as a worker."""
        self._working[process] = worker

    # --- rows of workers --------------------------------------------------------------------------

    def worker(
        self, key: Key, old: Item | None, new: Item | None, process: str, now_ms: int
    ) -> None:
        """Check what happens to the row of a worker."""
        if new is None:
            return
        name = key.pk.partition("#")[2]
        self._written_ms[name] = now_ms
        buried = "buried_ms" in new and (old is None or "buried_ms" not in old)
        for lives, worker in self._alive():
            if worker.id != name:
                continue
            if buried and lives.name == process:
                raise Broken(f"P6: {process} reaps itself, and lives")
            if not buried and lives.name == process:
                self._check_lease(lives, new, now_ms)
        if new["GSI1PK"] == REAPED:
            self._seen["reaped"] += 1
            self._reaped_ms[new["GSI1SK"]] = now_ms

    def _check_lease(self, process: Process, row: Item, now_ms: int) -> None:
        """A worker whose clock was right all along does not write a lease that is too long."""
        wrong_seconds = self._world.loop.time() - process.clock.right_since
        if wrong_seconds < self._world.plan.late_seconds_max or row["GSI1PK"] != WORKERS:
            return  # it may have been sent when the clock was wrong
        ahead_ms = IndexKey(WORKERS, row["GSI1SK"]).worker_parts()[0] - now_ms
        if ahead_ms > self._lease_ms + self._skew_ms:
            raise Broken(f"P6: {process.name} has a lease of {ahead_ms / 1000:.1f} s")

    def check_reaped(self) -> None:
        """Check that no dead worker is left, though others had the time to reap it."""
        now_ms = self._world.now_ms()
        alive = {worker.id for _, worker in self._alive()}
        late_ms = round(2 * LOOK_SECONDS * 1000) + self._skew_ms
        wait_ms = 2 * self._lease_ms + late_ms
        for entry in self._world.truth.entries("GSI1", WORKERS):
            until_ms, name = IndexKey(WORKERS, entry["GSI1SK"]).worker_parts()
            lapsed = until_ms < now_ms - late_ms and self._stood_ms(name) > late_ms
            ahead = until_ms > now_ms + self._lease_ms + self._skew_ms
            if name not in alive and (lapsed or (ahead and self._stood_ms(name) > wait_ms)):
                told = f"{abs(until_ms - now_ms) / 1000:.0f} s {'ahead' if ahead else 'ago'}"
                raise Broken(f"P6: the dead worker {name} is not reaped; its lease ends {told}")

    def _stood_ms(self, name: str) -> int:
        return self._world.now_ms() - self._written_ms[name]

    def _alive(self) -> Iterable[tuple[Process, Worker]]:
        return (
            (process, worker) for process, worker in self._working.items() if not process.crashed
        )

    # --- turns ------------------------------------------------------------------------------------

    def turn(self, old: Item | None, new: Item | None, now_ms: int) -> None:
        """Check what happens to the item of the fleet's turns."""
        before, after = sweep_turn_of(old), sweep_turn_of(new)
        if after.number != before.number:
            self._turns.append(now_ms)
            self._seen["swept again"] += 1
            # The first and the last may have taken their time.
            allowed = (now_ms - self._turns[0]) / (self._lease_ms - self._skew_ms) + 3
            if len(self._turns) > allowed and not self._lot.jumps:
                raise Broken(f"P6: {len(self._turns)} turns were taken, of {allowed:.1f}")
        # An index that lags may show a worker only when its cursor has moved past it.
        shown_ms = self._turns[-1] - round(self._world.plan.lag_seconds_max * 1000)
        standing = (entry["GSI1SK"] for entry in self._world.truth.entries("GSI1", REAPED))
        places = [place for place in standing if self._reaped_ms.get(place, 0) <= shown_ms]
        swept = sum(
            first < place <= last
            for first, last in zip(before.cursors, after.cursors, strict=True)
            for place in places
        )
        if swept > self._lot.sweeps_max:
            raise Broken(f"P6: {swept} dead workers were swept again in one turn")
        self._seen["a turn was full"] += swept == self._lot.sweeps_max

    # --- workers lost in a row --------------------------------------------------------------------

    def row(self, before: Head | None, head: Head, chronicle: Chronicle) -> None:
        """Count how many workers in a row truly were lost with a run."""
        if head.status == "quarantined" and before is not None and before.status != head.status:
            self._check_crash_loop(head, chronicle)
        if before is None or before.owner is None or head.owner is not None:
            return
        row = self._world.truth.item(worker_key(before.owner))
        if row is None or "buried_ms" in row:
            chronicle.lost += 1
        elif before.needs_fence or not head.needs_fence:  # else it was re-queued by its own worker
            self._seen["let go of between losses"] += chronicle.lost > 0
            chronicle.lost = 0

    def _check_crash_loop(self, head: Head, chronicle: Chronicle) -> None:
        """Check that a run that is quarantined for it has lost so many workers in a row."""
        if head.failure is None or head.failure.type != "CrashLoop":
            return
        fences = 0 if chronicle.execution is None else chronicle.execution.fences
        self._seen["crash loop"] += 1
        lost = min(chronicle.lost, fences)
        if lost < self._lot.resumes_max:
            raise Broken(
                f"{head.key.id} lost {chronicle.lost} workers in a row, {fences} since it got "
                f"anywhere, and is quarantined: {head.failure.message}"
            )
