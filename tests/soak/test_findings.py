"""What broke is kept from one soak to the next, and known by what is the same in every seed."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from soak.findings import Finding, Findings, kind_of
from soak.halt import Halt
from soak.simulator import SimulatorSoak
from tests.simulation.bugs import planted
from tests.simulation.chronicle import Broken
from tests.simulation.loop import Deadlock
from tests.simulation.seeds import shown

BUG = "trust_a_stale_index"
FIRST = 5_000
ATTEMPTS = 5
SECONDS_MAX = 120.0


class InThisProcess(Executor):
    """Does at once what is submitted, so that a bug which is planted here is there as well."""

    def __init__(self, cores: int, stopping: Event) -> None: ...

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclass
class UntilFound(Halt):
    """Is over once something was found, and reduced."""

    findings: Findings

    @property
    def is_over(self) -> bool:
        return any(finding.reduced is not None for finding in self.findings)


def soak_in(folder: Path) -> SimulatorSoak:
    return SimulatorSoak(
        Findings(folder), FIRST, cores=1, attempts_max=ATTEMPTS, executor=InThisProcess
    )


def test_a_soak_keeps_what_broke_and_the_next_one_tries_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with planted(BUG):
        first = soak_in(tmp_path)
        first.soak(UntilFound(first.findings))
        assert first.broken >= 1
        (found, *_) = (finding for finding in first.findings if finding.reduced)
        assert found.again == f"python -m tests.simulation {found.seed} --reduced {found.reduced}"
        known = len(list(first.findings))
        # Another soak, of which only the folder is the same.
        assert soak_in(tmp_path).retry_known(Halt(SECONDS_MAX)) == known
        assert f"still breaks: seed {found.seed}" in capsys.readouterr().out
    assert soak_in(tmp_path).retry_known(Halt(SECONDS_MAX)) == 0
    assert f"gone: seed {found.seed}" in capsys.readouterr().out
    assert {finding.status for finding in Findings(tmp_path)} == {"gone"}


def test_a_finding_is_kept_whole(tmp_path: Path) -> None:
    finding = Finding(
        where="processes", seed=7, kind="P1: lost", message="P1: r-7 is lost", commit="abc"
    )
    Findings(tmp_path).keep(finding)
    finding.status = "gone"
    Findings(tmp_path).keep(finding)
    assert list(Findings(tmp_path)) == [finding]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            Broken("P1: the signal pay/s1 of run-19 does not last"),
            Broken("P1: the signal go/s0 of run-03 does not last"),
        ),
        (
            Broken("P6: run-03 with Wish(plan=['a', 'b (1)'], expires=None) is running"),
            Broken("P6: sleeper-1 with Wish(plan=['c'], expires=3.0) is running"),
        ),
        (
            Broken("('RUN#a#run-1', 'g') gave [1300, 2] of {'tokens': 1200}"),
            Broken("('RUN#a#run-2', 'h') gave [7, 2] of {'tokens': 5}"),
        ),
        (Deadlock("nothing can happen\n1.2 s"), Deadlock("nothing can happen\n3.4 s")),
    ],
)
def test_errors_of_one_kind_differ_in_particulars_only(one: Exception, other: Exception) -> None:
    assert kind_of(shown(one)) == kind_of(shown(other))


def test_errors_of_two_kinds_are_told_apart() -> None:
    kinds = {
        kind_of(shown(error))
        for error in (
            Broken("P1: the signal pay/s1 of run-19 does not last"),
            Broken("P7: the signal pay/s1 of run-19 does not last"),
            Broken("P1: the signal pay/s1 of run-19 is lost"),
            Deadlock("nothing can happen"),
            KeyError("run-19"),
        )
    }
    assert len(kinds) == 5
