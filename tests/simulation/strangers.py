"""Users that ask for the runs of others: with the same id and the same input.

P10  a start for another user than the run's is refused, and never returns the run; no user is
     another one than a user
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from holdfast.errors import AlreadyExists, StoreError
from holdfast.records.keys import RunKey
from tests.simulation.chronicle import Broken

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from tests.simulation.members import Fleet
    from tests.simulation.process import Process
    from tests.simulation.world import World

__all__ = ["OWN", "are_strangers_there", "ask_for_others"]

OWN = "the run's own"
"""Stands for the user for whom a run is wished for."""
STRANGER_SECONDS = 6.0
"""How often a stranger asks for a run."""


def are_strangers_there(world: World) -> bool:
    """Draw whether other users ask for the runs of a fleet."""
    # Its own: what is drawn for the other fleets stays as it was.
    return random.Random(f"{world.seed}/strangers").random() < world.plan.strangers


async def ask_for_others(fleet: Fleet, process: Process) -> None:
    """Ask for runs that are there, each time for another user than theirs."""
    hf: Holdfast = fleet.face(process)
    while not fleet.leaving.is_set():
        await process.clock.sleep(STRANGER_SECONDS * (0.5 + process.ids.random()))
        # One that is not there would be the stranger's own.
        there = [
            run
            for run, wish in fleet.script.wishes.items()
            if fleet.promises.is_there(RunKey(wish.tenant, run))
        ]
        if there:
            await _ask_for(fleet, process, hf, there[int(process.ids.random() * len(there))])


async def _ask_for(fleet: Fleet, process: Process, hf: Holdfast, run: str) -> None:
    wish = fleet.script.wishes[run]
    user = None if wish.user is not None and process.ids.random() < 0.5 else "bob"
    try:
        await fleet.start(hf, run, wish, user=user)
    except AlreadyExists:
        fleet.promises.seen["refused to another user"] += 1
    except StoreError:
        return
    else:
        raise Broken(f"P10: {run} of {wish.user} was handed to {user}")
