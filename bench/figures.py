"""A measured ratio and the bar that it must reach. One that could not be measured is NaN."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from statistics import median


@dataclass(frozen=True)
class Figure:
    what: str
    ratio: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def reached(self) -> bool:
        return (self.at_least is None or self.ratio >= self.at_least) and (
            self.at_most is None or self.ratio <= self.at_most
        )

    def __str__(self) -> str:
        bar = f">= {self.at_least}" if self.at_least is not None else f"<= {self.at_most}"
        verdict = "reached" if self.reached else "MISSED"
        verdict = "NOT MEASURED" if isnan(self.ratio) else verdict
        return f"{self.what:<72} {self.ratio:6.2f}   bar {bar:<8} {verdict}"


def in_turns(contestants: Mapping[str, Callable[[], float]], rounds: int) -> list[dict[str, float]]:
    """Run the contestants one after another, several times over, and return each round's results.

    What disturbs the machine then disturbs them alike: a ratio is taken within its round.
    """
    return [{name: run() for name, run in contestants.items()} for _ in range(rounds)]


def ratio(rounds: list[dict[str, float]], name: str, baseline: str) -> float:
    """Return the middle of the rounds' ratios."""
    return median(results[name] / results[baseline] for results in rounds)


def show(rounds: list[dict[str, float]], unit: str, *, digits: int = 0) -> None:
    for name in rounds[0]:
        values = sorted(results[name] for results in rounds)
        print(
            f"  {name:<48} {median(values):>12,.{digits}f} {unit}   "
            f"(from {values[0]:,.{digits}f} to {values[-1]:,.{digits}f})"
        )
