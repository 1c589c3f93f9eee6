"""A seed that breaks is made much smaller, and still breaks in the same way."""

from __future__ import annotations

import dataclasses
import random

import pytest

from soak.findings import kind_of
from soak.minimiser import Minimiser, Suspect, parts_in
from tests.simulation.bugs import BUGS, planted
from tests.simulation.fleet import TROUBLE_SECONDS, fleet, rough
from tests.simulation.reduction import REUSE, WHOLE, Reduction, parts_of
from tests.simulation.script import RUNS, Profile, drawn_script
from tests.simulation.seeds import shown

BUG = "trust_a_stale_index"
ATTEMPTS = 120
SEEDS = range(5_000, 5_150)
SMALL = Reduction(frozenset({REUSE, *(f"run:run-{n:02d}" for n in range(4, RUNS))}), 60.0)


def test_a_planted_bug_is_shown_by_a_fraction_of_its_seed() -> None:
    with planted(BUG):
        suspect, error = broken()
        minimiser = Minimiser(
            suspect, kind_of(shown(error)), attempts_max=ATTEMPTS, message=str(error)
        )
        least = minimiser.minimise()
        assert minimiser.attempts <= ATTEMPTS
        left = {
            kind: [part for part in parts if part not in least.without]
            for kind, parts in parts_in(suspect).items()
        }
        assert len(left["run"]) <= RUNS // 5
        assert len(left["fault"]) <= len(rough().kinds) // 2
        assert left["reuse"] == []
        assert least.trouble_seconds is not None
        assert least.trouble_seconds < TROUBLE_SECONDS
        # What is written down is all that is needed to see it again.
        again = suspect.run(Reduction.parse(str(least)))
        assert again is not None
        assert kind_of(shown(again)) == kind_of(shown(error))
        assert str(again) == minimiser.message
    assert suspect.run(least) is None


def broken() -> tuple[Suspect, Exception]:
    for seed in SEEDS:
        suspect = Suspect(seed, BUGS[BUG].plan)
        if (error := suspect.run()) is not None:
            return suspect, error
    pytest.fail(f"{BUG} was not found")


def test_it_stops_when_it_is_told_to() -> None:
    minimiser = Minimiser(Suspect(1), "no such kind", is_over=lambda: True)
    assert minimiser.minimise() == WHOLE
    assert minimiser.attempts == 0


@pytest.mark.parametrize(
    "text",
    ["", "dice:3", "fault:crash,line:7,reuse,run:run-03,step:run-04/2,trouble:37.5,dice:12"],
)
def test_a_reduction_is_read_as_it_is_written(text: str) -> None:
    assert str(Reduction.parse(text)) == text


@pytest.mark.parametrize("text", ["nonsense", "run:", "fault", "reuse:1x,crash"])
def test_a_reduction_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a part must be"):
        Reduction.parse(text)


def test_what_is_left_out_of_a_script_changes_nothing_else() -> None:
    whole = drawn_script(random.Random(1), TROUBLE_SECONDS, Profile())
    parts = parts_of(whole, rough())
    run = parts["run"][0].removeprefix("run:")
    other, _, number = parts["step"][-1].removeprefix("step:").partition("/")
    left_out = [f"run:{run}", parts["step"][-1], parts["line"][0]]
    reduced = WHOLE.leaving_out(left_out).reduced(whole)
    assert reduced.wishes.keys() == whole.wishes.keys() - {run}
    shorter = reduced.wishes[other].plan
    assert shorter == [s for n, s in enumerate(whole.wishes[other].plan) if n != int(number)]
    for name, wish in reduced.wishes.items():
        assert name == other or wish == whole.wishes[name]
    assert all(line in whole.lines and line.run != run for line in reduced.lines)


def test_a_fault_that_is_left_out_does_not_strike_and_the_dice_fall_as_before() -> None:
    whole = fleet(3, reduction=SMALL).world
    # A fleet without calls: faults of calls take no effect, and are not missed.
    spared = [f"fault:{kind}" for kind in rough().kinds if kind.startswith("effect")]
    assert spared
    same = fleet(3, reduction=SMALL.leaving_out(spared)).world
    assert same.trace.digest() == whole.trace.digest()
    struck = "stale_index"
    assert whole.faults[struck]
    assert not fleet(3, reduction=SMALL.leaving_out([f"fault:{struck}"])).world.faults[struck]


def test_other_dice_bring_other_trouble_and_the_same_once_more() -> None:
    one, other, again = (
        fleet(3, reduction=dataclasses.replace(SMALL, dice=dice)).world.trace.digest()
        for dice in (1, 2, 1)
    )
    assert one != other
    assert one == again
