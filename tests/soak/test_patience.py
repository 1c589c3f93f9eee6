"""Patience: only the time counts in which the processes of a round could run."""

from __future__ import annotations

import os
import sys

import pytest

from soak.patience import STARVED_FACTOR, Patience, Starved, queued_seconds


class Machine:
    """A clock that the test sets, and how long each process has queued."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.queued: dict[int, float] = {1: 5.0, 2: 0.0}

    def patience(self, seconds: float) -> Patience:
        return Patience(
            seconds,
            lambda: list(self.queued),
            queued=lambda pid: self.queued[pid],
            monotonic=lambda: self.now,
        )

    def pass_(self, seconds: float, **queued: float) -> None:
        self.now += seconds
        for pid, more in queued.items():
            self.queued[int(pid[1:])] += more


def test_it_is_over_when_the_processes_had_their_time() -> None:
    machine = Machine()
    patience = machine.patience(10)
    assert not patience.is_over()
    machine.pass_(9, p1=1)
    assert not patience.is_over()
    machine.pass_(3)
    assert patience.is_over()


def test_a_span_in_which_a_process_queued_does_not_count() -> None:
    machine = Machine()
    patience = machine.patience(10)
    for _ in range(3):
        machine.pass_(10, p1=0, p2=3)
        assert not patience.is_over()
    machine.pass_(10)
    assert patience.is_over()


def test_a_process_that_was_started_within_a_span_may_have_queued_too() -> None:
    machine = Machine()
    patience = machine.patience(10)
    del machine.queued[1]
    machine.queued[3] = 9.0
    machine.pass_(10)
    assert not patience.is_over()
    machine.pass_(10)
    assert patience.is_over()


def test_a_machine_that_is_too_busy_does_not_judge() -> None:
    machine = Machine()
    patience = machine.patience(10)
    machine.pass_(10 * STARVED_FACTOR, p2=10 * STARVED_FACTOR)
    assert not patience.is_over()
    machine.pass_(4, p2=1)
    with pytest.raises(Starved):
        patience.is_over()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long a process queued")
def test_linux_tells_how_long_a_process_queued() -> None:
    before = queued_seconds(os.getpid())
    assert before > 0.0
    assert queued_seconds(os.getpid()) >= before


def test_a_process_that_is_gone_queues_for_nothing() -> None:
    assert queued_seconds(2**30) == 0.0
