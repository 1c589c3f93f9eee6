"""The kinds of waits: each says all that depends on it, and is read back from what is stored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.model import wait as waits
from holdfast.model.wait import (
    WAIT_KINDS,
    BackoffWait,
    BudgetWait,
    ChildWait,
    MapWait,
    QuotaWait,
    ResolutionWait,
    ResourceWait,
    ReviewWait,
    SignalWait,
    TimerWait,
    UnknownWait,
    Wait,
    WaitKind,
    pause_reason,
    signal_kind,
    wait_kind,
)

# What a row says and people read, for a wait about "this" of each kind.
TOLD = {
    ResolutionWait("c1"): ("ambiguous", "a person to say what became of call c1 (this)"),
    ResourceWait("model.haiku"): ("unserved", "a worker with this"),
    BudgetWait("c1"): ("budget", "a larger budget: it this"),
    QuotaWait("c1"): ("quota", "the this"),
    BackoffWait("c1"): ("retry", "another attempt at this"),
    ReviewWait("5f0c1e7a9b3d2468"): ("review", "a reviewer to decide: this"),
    SignalWait("go"): ("signal", "the signal go"),
    ChildWait("doc-7"): ("signal", "the end of run doc-7"),
    MapWait("0.1"): ("signal", "the end of map 0.1"),
    UnknownWait("%tide.x"): ("timer", "%tide.x, which only a newer release knows"),
    TimerWait(): ("timer", "a time"),
}


def of(kind: WaitKind) -> Wait:
    return Wait.of(kind, visit=0, branch="", since_ms=1, about="this")


def subclasses(kind: type[WaitKind]) -> Iterator[type[WaitKind]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_every_kind_is_listed_and_says_all_that_depends_on_it() -> None:
    variants = {
        kind
        for kind in subclasses(WaitKind)
        if not kind.__subclasses__() and kind.__module__ == waits.__name__
    }
    assert variants == set(WAIT_KINDS) == {type(kind) for kind in TOLD}
    assert len({kind.tag for kind in WAIT_KINDS}) == len(WAIT_KINDS)
    for kind, (reason, told) in TOLD.items():
        assert (kind.reason, kind.description("this")) == (reason, told)


@pytest.mark.parametrize("kind", [kind for kind in TOLD if not isinstance(kind, UnknownWait)])
def test_what_is_stored_tells_the_kind(kind: WaitKind) -> None:
    wait = of(kind)
    assert wait.kind == kind
    assert wait_kind(kind.key(3), kind.signal) == kind
    assert wait.needs_recheck == kind.needs_recheck
    assert (wait.signal is None) == (kind.needs_recheck or isinstance(kind, TimerWait))
    if kind.signal is not None:
        assert signal_kind(kind.signal) == kind


def test_the_next_attempt_of_a_node_has_no_subject() -> None:
    assert of(BackoffWait()).key == "%retry"
    assert of(BackoffWait()).kind == BackoffWait()
    assert BackoffWait().description("") == "another attempt"


@pytest.mark.parametrize("number", range(len(WAIT_KINDS)))
def test_of_several_reasons_the_first_in_the_order_of_kinds_counts(number: int) -> None:
    order = [ResolutionWait("c"), ResourceWait("model.m")]
    order += [BudgetWait("c"), QuotaWait("c"), BackoffWait("c"), ReviewWait("5f0c")]
    order += [SignalWait("go"), ChildWait("r"), MapWait("0.1"), UnknownWait("%tide.x"), TimerWait()]
    mixed = [of(kind) for kind in reversed(order[number:])]
    assert pause_reason(mixed) == order[number].reason
    assert pause_reason([]) == "timer"


@pytest.mark.parametrize(
    "name", ["%tide.x", "%", "%signal.go", "%timer", "%unknown.x", "%childish"]
)
def test_a_reserved_name_of_no_kind_is_left_to_a_newer_release(name: str) -> None:
    assert wait_kind(name, None) == signal_kind(name) == UnknownWait(name)
    asked = Wait(visit=0, key=name, since_ms=1)
    told = Wait(visit=0, key=f"{name}#1", signal=name, since_ms=1)
    assert asked.needs_recheck
    assert not told.needs_recheck
    assert not told.kind.takes_caller_signal


def test_a_wait_is_due_at_the_earlier_of_its_two_limits() -> None:
    def due(deadline_ms: int | None, stale_ms: int | None) -> int | None:
        wait = Wait(visit=0, key="#1", since_ms=1, deadline_ms=deadline_ms, stale_ms=stale_ms)
        return wait.due_ms

    assert [due(None, None), due(5, None), due(None, 7), due(5, 7), due(7, 5)] == [None, 5, 7, 5, 5]


def test_what_a_wait_is_about_is_cut_to_what_a_row_has_room_for() -> None:
    wait = Wait.of(TimerWait(), visit=0, branch="", since_ms=1, about="ä" * 150)
    assert wait.about == "ä" * 100
