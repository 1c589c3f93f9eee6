"""What the checker demands of the records of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.model.event import SignalTaken
from holdfast.model.execution import Execution
from holdfast.records.keys import RunKey
from tests.simulation.chronicle import Broken, Chronicle
from tests.simulation.journals import Journals

OLD, NEW = 9, 11
EVENT = SignalTaken(3, "node", 1, "go#1", "go", "second", "payload")


@pytest.mark.parametrize(("epoch", "is_blamed"), [(OLD, False), (NEW, True)])
def test_an_owner_answers_for_the_signals_that_lay_there_when_it_claimed_the_run(
    epoch: int, is_blamed: bool
) -> None:
    """What a lost owner wrote may arrive when the next one has found an earlier signal."""
    chronicle = Chronicle(RunKey("acme", "run-01"), "generation")
    chronicle.execution = Execution(seed="seed", state={}, node="node")
    for id, stamp in (("first", "a"), ("second", "b")):
        chronicle.accepted["go", id] = 1
        chronicle.stamps["go", id] = stamp
    chronicle.seen = {OLD: {("go", "second")}, NEW: {("go", "first"), ("go", "second")}}
    checker: Any = SimpleNamespace(
        _senders=SimpleNamespace(check_order=lambda *_, **__: None),
        _choices=SimpleNamespace(names_of=lambda *_: {"go"}),
    )
    if not is_blamed:
        Journals._check_taken(checker, chronicle, EVENT, epoch, "it")
        return
    with pytest.raises(Broken, match="'first'"):
        Journals._check_taken(checker, chronicle, EVENT, epoch, "it")
