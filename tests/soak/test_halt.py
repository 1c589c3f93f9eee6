"""A soak ends when its time is up, and when somebody asks it to."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from soak.halt import Halt

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Give the signals back that a soak has caught."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_soak_and_its_parts(number: signal.Signals) -> None:
    halt = Halt(1_000)
    halt.catch_signals()
    part = halt.part(0.5)
    assert not part.is_over
    assert part.seconds_left < halt.seconds_left
    signal.raise_signal(number)
    assert halt.is_over
    assert part.is_over
    assert part.asked


def test_its_time_is_up() -> None:
    halt = Halt(0)
    assert halt.is_over
    assert halt.part(0.5).is_over
    assert not halt.asked
