"""Bugs to plant in how dead workers are reaped, how losses are counted, and what clocks may do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.engine.execution import driver
from holdfast.engine.worker import lease, reaper
from holdfast.records import reaping as turns
from tests.simulation.bugs.planting import bug

_DEAD = {"dead_workers": 1.0}
_JUMPS = {"clock_jumps": 1.0}
_FEW = {"few_resumes": 1.0}
# Workers die so often that a run seldom gets on in between.
_DEADLY = {"crash": 0.003, "restart_seconds_max": 5.0}


# --- dead workers ---------------------------------------------------------------------------------


@bug()
def dead_workers_are_not_swept_again(patch: pytest.MonkeyPatch) -> None:
    """What an index showed too late, or landed late, stays under a dead worker's name."""
    patch.setattr(reaper.Reaper, "_start_turn", lambda self: None)


@bug(late_write=0.06, late_seconds_max=100.0, abandoned=0.8)
def dead_workers_are_swept_again_only_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reaper, "RESWEEP_AGES_MS", (0,))


@bug(**_DEAD)
def a_turn_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    dead = reaper.Reaper._list_dead

    async def all_of_them(self: Any, cursor: str, until_ms: int, most: int) -> Any:
        return await dead(self, cursor, until_ms, 1000)

    patch.setattr(reaper.Reaper, "_list_dead", all_of_them)


@bug()
def every_worker_takes_every_turn(patch: pytest.MonkeyPatch) -> None:
    def due(item: Any) -> turns.SweepTurn:
        return msgspec.structs.replace(turns.sweep_turn_of(item), next_ms=0)

    patch.setattr(reaper, "sweep_turn_of", due)


@bug(**_FEW, late_write=0.06, late_seconds_max=60.0, abandoned=0.8)
def only_a_worker_that_lives_for_a_lease_takes_a_turn(patch: pytest.MonkeyPatch) -> None:
    def never_due(item: Any) -> turns.SweepTurn:
        return msgspec.structs.replace(turns.sweep_turn_of(item), next_ms=10**15)

    patch.setattr(reaper, "sweep_turn_of", never_due)


# --- workers lost in a row ------------------------------------------------------------------------


@bug(**_FEW, **_DEADLY)
def workers_count_as_lost_in_a_row_though_one_let_go(patch: pytest.MonkeyPatch) -> None:
    fences = property(lambda self: self.claimed.execution.fences)
    patch.setattr(driver.Driver, "_consecutive_losses", fences)


@bug(**_FEW)
def workers_count_as_lost_in_a_row_though_the_run_got_on(patch: pytest.MonkeyPatch) -> None:
    losses = property(lambda self: self.claimed.head.losses)
    patch.setattr(driver.Driver, "_consecutive_losses", losses)


# --- clocks ---------------------------------------------------------------------------------------


@bug(**_JUMPS)
def a_lease_far_ahead_is_believed(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Any, own: str) -> None: ...

    patch.setattr(reaper.Reaper, "_reap_overdue", nothing)
    # Else a worker that lives on reaps its own former names.
    patch.setattr(reaper.Reaper, "abandon", lambda self, worker: None)


@bug(**_JUMPS)
def a_lease_stays_long_when_the_clock_is_set_right(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "_CLOCK_SET_BACK_MS", 10**9)


@bug(**_JUMPS)
def a_worker_reaps_itself_when_its_clock_jumps(patch: pytest.MonkeyPatch) -> None:
    reap = reaper.Reaper.reap

    async def blind(self: Any, own: str) -> None:
        await reap(self, "")

    patch.setattr(reaper.Reaper, "reap", blind)
