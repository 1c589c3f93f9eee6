"""Many seeds: the same is told of them in one process and in several, and none hangs for ever."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.simulation import seeds
from tests.simulation.__main__ import main
from tests.simulation.chronicle import Broken
from tests.simulation.reduction import Reduction
from tests.simulation.script import RUNS
from tests.simulation.seeds import run_seed, told_of

SMALL = Reduction(frozenset(f"run:run-{number:02d}" for number in range(2, RUNS)), 20.0)


def test_processes_tell_of_seeds_what_this_one_does() -> None:
    told: list[list[Any]] = []
    for jobs in (1, 2):
        with told_of(range(2), None, jobs, reduction=SMALL) as every:
            told.append(list(every))
    assert told[0] == told[1]
    assert [one.seed for one in told[0]] == [0, 1]
    assert all(one.broken is None and one.faults for one in told[0])


def test_a_seed_that_breaks_is_told_by_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(seed: int, **rest: Any) -> None:
        raise Broken("P1: a signal is lost")

    monkeypatch.setattr(seeds, "fleet", breaks)
    assert run_seed(7).broken == "Broken: P1: a signal is lost"


def test_a_seed_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(seed: int, **rest: Any) -> None:
        assert signal.alarm(seeds.SEED_SECONDS_MAX) > 0  # it would be rung
        signal.raise_signal(signal.SIGALRM)

    before = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(seeds, "fleet", hangs)
    assert run_seed(7).broken == f"Hung: a seed did not end within {seeds.SEED_SECONDS_MAX} s"
    assert signal.alarm(0) == 0
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize(("broken", "code"), [(None, 0), ("P1: lost", 1)])
def test_the_command_exits_with_what_became_of_the_seeds(
    broken: str | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_seed(seed: int, **rest: Any) -> seeds.Told:
        return seeds.Told(seed, broken=broken if seed == 8 else None)

    monkeypatch.setattr(seeds, "run_seed", run_seed)
    monkeypatch.setattr("logging.disable", lambda: None)  # or later tests had no logs
    monkeypatch.setattr("sys.argv", ["tests.simulation", "7-9"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == code


@pytest.mark.parametrize("text", ["abc", "5-1", "1-x", "-"])
def test_the_command_refuses_what_is_no_range(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tests.simulation", text])
    with pytest.raises(SystemExit):
        main()
    assert f"such as 0-99, got {text!r}" in capsys.readouterr().err
