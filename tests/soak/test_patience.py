"""Patience: only the time counts in which the processes of a round could run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from soak.patience import STARVED_FACTOR, Patience, Starved, queued_seconds


class Machine:
    """A clock that the test sets, and how long each thread has queued."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.queued: dict[int, float] = {1: 5.0, 2: 0.0}

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, queued=self.queued.copy, monotonic=lambda: self.now)

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


def test_a_span_in_which_a_thread_queued_does_not_count() -> None:
    machine = Machine()
    patience = machine.patience(10)
    for _ in range(3):
        machine.pass_(10, p1=0, p2=3)
        assert not patience.is_over()
    machine.pass_(10)
    assert patience.is_over()


def test_a_thread_that_was_started_within_a_span_may_have_queued_too() -> None:
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


BURN = """
import os, time
os.sched_setaffinity(0, [0])
print("ready", flush=True)
input()
end = time.process_time() + 0.5
while time.process_time() < end: pass
print("done", flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long a thread queued")
def test_linux_tells_how_long_threads_of_children_queued() -> None:
    """Two children burn half a second each on one core, so one of them waits for the other."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        for said in ("ready\n", "done\n"):
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == said
            queued = queued_seconds()
            for child in children:
                assert child.stdin is not None
                child.stdin.write("\n")
                child.stdin.flush()
    finally:
        for child in children:
            child.communicate()
    assert os.getpid() in queued
    assert sum(queued[child.pid] for child in children) > 0.3
