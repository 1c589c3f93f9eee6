"""Whether the runs of a fleet have come to where their users sent them."""

from __future__ import annotations

from holdfast.records.keys import HEAD, RunKey
from tests.simulation.chronicle import Broken
from tests.simulation.flow import gains, is_hopeless
from tests.simulation.members import Fleet
from tests.simulation.script import (
    SLEEPER,
    Wish,
)
from tests.simulation.world import World

__all__ = ["check_results", "statuses_of"]

FEW_RESUMES = 10
"""Runs that lose so few workers in a row may be quarantined."""


def statuses_of(world: World) -> dict[str, str]:
    heads = [item for item in world.items("RUN#") if item["SK"] == HEAD]
    return {RunKey.parsed(item["PK"]).id: item["status"] for item in heads}


def check_results(world: World, state: Fleet) -> None:
    """Every run has come to the end that its plan, its signals and its session lead to."""
    statuses = statuses_of(world)
    for run, wish in state.script.wishes.items():
        lines = state.script.about(run)
        status = statuses.get(run, state.unwritten.get(run))
        if run in state.rejected or (run == SLEEPER and status == "waiting"):
            continue
        if any(line.refused for line in lines) and status in ("running", "waiting"):
            continue
        allowed = _allowed(state, run, wish)
        if status not in allowed:
            raise Broken(f"P6: {run} with {wish} is {status}, and should be {sorted(allowed)}")
        if status == "finished" and run in statuses:
            got = state.promises.state(RunKey(wish.tenant, run)).get("got", [])
            # What would wait beyond an expiry fails, and may be spared.
            if len(got) > gains(wish.plan) or (
                wish.expires is None and len(got) != gains(wish.plan)
            ):
                raise Broken(f"P2: {run} with {wish} is finished, and has got {got}")


def _allowed(state: Fleet, run: str, wish: Wish) -> set[str]:
    """Return how a run may have ended."""
    lines = state.script.about(run)
    cancels = [line for line in lines if line.verb == "cancel"]
    if any(not line.refused for line in cancels):
        return {"cancelled"}
    allowed = {"finished"}
    if is_hopeless(wish.plan):
        allowed.add("failed")
    if wish.expires is not None:
        allowed |= {"expired", "failed"}
        if cancels:  # a first try whose answer was lost may count, and the next come too late
            allowed.add("cancelled")
    if wish.on_busy == "promote":
        allowed.add("promoted")
    if state.lot.resumes_max < FEW_RESUMES:
        allowed |= {"quarantined", "failed"}  # a child of it may be quarantined, too
    others = [other for name, other in state.script.wishes.items() if name != run]
    if any(other.on_busy == "replace" and other.session == wish.session for other in others):
        allowed.add("cancelled")
    return allowed
