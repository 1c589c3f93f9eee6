"""How a bug is made known, and planted for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pytest

from tests.simulation.faults import FaultPlan
from tests.simulation.fleet import fleet, rough
from tests.simulation.mapping import mapping, scattering
from tests.simulation.promises import Broken
from tests.simulation.rates import rates
from tests.simulation.reviewing import quarrel, reviewing

__all__ = ["BUGS", "Bug", "Plant", "bug", "planted"]

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]
Scene: TypeAlias = Literal[
    "fleet", "calling", "telling", "rates", "estimating", "reviewing", "mapping"
]
"""Where it shows: in any fleet; where runs call the world outside; where they share answers, and
texts are followed; where many crowd at one quota; where budgets allow estimates; where people
decide reviews; where runs map."""


@dataclass(frozen=True)
class Bug:
    """A clause of the protocol that is taken out, and where that shows."""

    plant: Plant
    scene: Scene
    trouble: Mapping[str, float]

    @property
    def plan(self) -> FaultPlan:
        """What goes wrong beside it; more of what it takes to show."""
        return rough().evolve(**self.trouble)

    def breaks(self, seed: int) -> Broken | None:
        """Return what a seed finds."""
        try:
            if self.scene == "rates":
                rates(seed)
            elif self.scene == "reviewing":
                reviewing(seed, quarrel().evolve(**self.trouble))
            elif self.scene == "mapping":
                mapping(seed, scattering().evolve(**self.trouble))
            elif self.scene == "estimating":
                fleet(seed, self.plan, calling=True, telling=False, estimating=True)
            else:
                tells = self.scene == "telling"
                calls = True if tells or self.scene == "calling" else None
                fleet(seed, self.plan, calling=calls, telling=tells)
        except Broken as broken:
            return broken
        return None


BUGS: dict[str, Bug] = {}


def bug(scene: Scene = "fleet", **trouble: float) -> Callable[[Plant], Plant]:
    """Make a bug known by its name: where it shows, and what has to go wrong beside it."""

    def known(plant: Plant) -> Plant:
        BUGS[plant.__name__] = Bug(plant, scene, trouble)
        return plant

    return known


@contextmanager
def planted(name: str) -> Iterator[Bug]:
    """Have a bug in the product for a while."""
    with pytest.MonkeyPatch.context() as patch:
        BUGS[name].plant(patch)
        yield BUGS[name]
