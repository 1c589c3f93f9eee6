"""What the watch over outages counts: whether a worker gave a run up when it should have."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from holdfast.records.keys import RunKey
from holdfast.storage.operations import WriteItem
from holdfast.storage.writes import Update
from tests.simulation.chronicle import Broken
from tests.simulation.outages import OutageWatch

_GENERATION = "018bcfe5-9e90-7000-8000-01dde8841ad4"
_KEY = f"keep-40d/acme/run-13/{_GENERATION}/00000004-4"
_WORKER: Any = SimpleNamespace(name="w0")


class _Watched:
    """A watch over one run that a worker holds, with a patience of twenty seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.broken: list[Broken] = []
        row = {"owner": "one", "epoch": 4, "generation": _GENERATION}
        world: Any = SimpleNamespace(
            loop=SimpleNamespace(time=lambda: self.now, fail=self.broken.append),
            truth=SimpleNamespace(item=lambda key: row),
        )
        self._watch = OutageWatch(world, Counter(), patience_seconds=20.0, shared=False)

    def fails(self, *, asked: float, heard: float | None = None, key: str = _KEY) -> None:
        self.now = asked if heard is None else heard
        self._watch.blob_failed(_WORKER, key, f"blob_read {key}", asked=asked)

    def works(self, *, heard: float, key: str = _KEY) -> None:
        self.now = heard
        self._watch.blob_worked(_WORKER, key)

    def sends(self, process: str, *, token: str, **changes: Any) -> None:
        key = RunKey("acme", "run-13").head
        by: Any = SimpleNamespace(name=process)
        self._watch.sends(by, WriteItem(Update(key=key, set=changes, token=token), "nothing"))


def test_a_worker_that_claims_though_it_cannot_use_its_store_is_blamed() -> None:
    watched = _Watched()
    watched.sends("w0", token="claim", owner="one")
    watched.sends("w0", token="release", reason="store_unusable", resume_failures=0)
    watched.sends("w0", token="again", owner="one")
    assert [str(broken) for broken in watched.broken] == [
        "P6: w0 claims run-13, though it cannot use its store"
    ]


def test_a_release_of_a_worker_that_lost_its_claim_blames_no_other_worker() -> None:
    """Seed 47546408470: the release was refused, and the run was another worker's by then."""
    watched = _Watched()
    watched.sends("w0", token="claim", owner="one")
    watched.sends("w1", token="release", reason="store_unusable", resume_failures=0)
    watched.sends("w0", token="again", owner="one")
    assert not watched.broken


def test_a_worker_that_goes_on_after_its_patience_is_blamed() -> None:
    watched = _Watched()
    for second in range(0, 25):
        watched.fails(asked=second)
    assert not watched.broken
    watched.fails(asked=25)
    assert [str(broken) for broken in watched.broken] == [
        "P6: w0 holds run-13, though it could not use its blobs for 25 s"
    ]


def test_a_worker_that_stood_still_has_its_patience_from_when_it_heard() -> None:
    watched = _Watched()
    watched.fails(asked=0, heard=17)
    for second in range(18, 38):
        watched.fails(asked=second)
    assert not watched.broken


def test_blobs_that_worked_in_between_begin_another_patience() -> None:
    watched = _Watched()
    for second in range(0, 15):
        watched.fails(asked=second)
    watched.works(heard=15)
    for second in range(30, 50):
        watched.fails(asked=second)
    assert not watched.broken


def test_blobs_of_another_run_tell_nothing() -> None:
    watched = _Watched()
    for second in range(0, 30):
        watched.fails(asked=second)
        watched.works(heard=second, key=_KEY.replace("run-13", "run-14"))
    assert watched.broken


def test_the_last_try_may_be_for_many_blobs() -> None:
    watched = _Watched()
    for second in (0.0, 10.0, 20.1):
        for number in range(12):
            watched.fails(asked=second, key=_KEY.replace("00000004", f"{number:08d}"))
    assert not watched.broken
