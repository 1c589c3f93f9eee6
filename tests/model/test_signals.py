"""Which signal answers which wait."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import ManualClock, SystemIds
from holdfast.model.event import (
    Failed,
    Failure,
    Rerouted,
    SignalSetAside,
    SignalTaken,
    TimerFired,
)
from holdfast.model.execution import Execution
from holdfast.model.fold import folded, restored, snapshot
from holdfast.model.signals import (
    Pending,
    Signal,
    TakeSignal,
    TimeOut,
    WaitStale,
    continues_past_expiry,
    resolved_wait,
)
from holdfast.model.wait import Wait

names = st.sampled_from(["go", "pay"])
signals = st.lists(
    st.builds(Signal, names, st.sampled_from("abcdef"), st.integers(0, 20)),
    unique_by=lambda signal: (signal.name, signal.id),
)
limits = st.none() | st.integers(0, 20)
waits = st.builds(
    Wait,
    visit=st.just(0),
    key=st.just("go#1"),
    signal=st.none() | names,
    since_ms=st.just(0),
    deadline_ms=limits,
    stale_ms=limits,
)


@given(waits, signals, st.sets(st.tuples(names, st.sampled_from("abcdef"))), st.integers(0, 25))
def test_the_first_that_fits_and_came_in_time_is_taken(
    wait: Wait, inbox: list[Signal], taken: set[tuple[str, str]], now: int
) -> None:
    ends = [limit for limit in (wait.deadline_ms, wait.stale_ms) if limit is not None]
    over = min(ends, default=10**9)
    in_time = [
        (signal.accepted_ms, signal.id, signal)
        for signal in inbox
        if signal.name == wait.signal
        and (signal.name, signal.id) not in taken
        and signal.accepted_ms < over
    ]
    answer = resolved_wait(wait, inbox, taken, now)
    if in_time:
        assert answer == TakeSignal(min(in_time)[2])
    elif now < over:
        assert answer == Pending(min(ends, default=None))
    else:
        assert answer == (TimeOut() if wait.deadline_ms == over else WaitStale())


@given(waits, signals, st.integers(0, 25), st.integers(0, 25))
def test_time_alone_never_takes_an_answer_back(
    wait: Wait, inbox: list[Signal], now: int, later: int
) -> None:
    first = resolved_wait(wait, inbox, set(), now)
    if not isinstance(first, Pending):
        assert resolved_wait(wait, inbox, set(), max(now, later)) == first


def test_signals_count_in_the_order_of_their_stamps() -> None:
    """Also where the clock was set back between two of them, or did not move."""
    clock = ManualClock(now_ms=100)
    ids = SystemIds(clock)
    inbox = [Signal("go", id, 100, stamp=ids.new()) for id in "cab"]
    inbox.append(Signal("go", "0", 90, stamp=ids.new()))
    assert in_order(inbox) == ["c", "a", "b", "0"]
    assert in_order(inbox[::-1]) == ["c", "a", "b", "0"]
    # One that came after the time was up does not keep those off that came in time.
    late = msgspec.structs.replace(waiting("go"), deadline_ms=95)
    assert resolved_wait(late, inbox, set(), 200) == TakeSignal(inbox[-1])


def test_signals_without_a_stamp_count_by_their_millisecond_and_their_id() -> None:
    clock = ManualClock(now_ms=100)
    stamp = SystemIds(clock).new()
    inbox = [Signal("go", "b", 100), Signal("go", "a", 100), Signal("go", "c", 99)]
    assert in_order(inbox) == ["c", "a", "b"]
    stamped = [Signal("go", "0", 100, stamp=stamp), Signal("go", "d", 101)]
    assert in_order([*inbox, *stamped]) == ["c", "a", "b", "0", "d"]


def in_order(inbox: list[Signal]) -> list[str]:
    """Return the ids of signals as waits take them, one after the other."""
    taken: list[tuple[str, str]] = []
    while isinstance(answer := resolved_wait(waiting("go"), inbox, taken, 200), TakeSignal):
        taken.append(("go", answer.signal.id))
    return [id for _, id in taken]


def waiting(name: str) -> Wait:
    return Wait(visit=0, key=f"{name}#1", signal=name, since_ms=0)


def at(visit: int = 0) -> Execution:
    return Execution(seed="", state={}, node="n", visit=visit)


def test_past_its_expiry_a_run_goes_on_for_the_signal_that_it_waits_for() -> None:
    in_time, late = Signal("go", "a", 9), Signal("go", "b", 10)
    assert continues_past_expiry([waiting("go")], [in_time], at(), 10)
    assert not continues_past_expiry([waiting("go")], [late], at(), 10)
    assert not continues_past_expiry([waiting("pay")], [in_time], at(), 10)


def test_past_its_expiry_a_run_goes_on_that_a_signal_had_brought_under_way() -> None:
    taken = SignalTaken(5, "n", 0, "go#1", "go", "a")
    under_way = folded(at(), [taken])
    assert continues_past_expiry([waiting("go")], [Signal("go", "a", 5)], under_way, 10)
    assert not continues_past_expiry([], [], at(), 10)
    assert continues_past_expiry([], [Signal("go", "early", 5)], at(), 10)


def test_a_timer_that_runs_does_not_undo_a_decision_that_was_taken() -> None:
    taken = SignalTaken(5, "n", 0, "go#1", "go", "a")
    retrying = Wait(visit=0, key="retry", since_ms=6, deadline_ms=12)
    assert continues_past_expiry([retrying], [], folded(at(), [taken]), 10)
    assert not continues_past_expiry([retrying], [], at(), 10)


def test_a_retry_where_the_run_stood_keeps_the_visit_and_its_answers() -> None:
    taken = SignalTaken(5, "n", 3, "go#1", "go", "a", "yes")
    failed = folded(at(3), [taken, Failed(6, Failure("E", "m"), "n")])
    again = folded(failed, [Rerouted(7, None, "retried", "r1")])
    assert (again.visit, again.answers, again.ending) == (3, {"go#1": taken}, None)
    assert (again.retried, again.failed_attempts) == ("r1", 0)
    elsewhere = folded(failed, [Rerouted(7, "m", "retried", "r1")])
    assert (elsewhere.node, elsewhere.visit, elsewhere.answers) == ("m", 4, {})
    assert elsewhere.taken == {("go", "a")}


def test_a_retry_drops_the_answers_of_callers_only() -> None:
    go = SignalTaken(5, "n", 3, "go#1", "go", "a", "yes")
    late = TimerFired(5, "n", 3, "stop#1")
    slept = TimerFired(5, "n", 3, "#1")
    child = SignalTaken(5, "n", 3, "%child.c#1", "%child.c", "end", {"status": "finished"})
    resolved = SignalTaken(5, "n", 3, "%call.pay#1#1", "%call.pay#1", "decision", {})
    failed = folded(at(3), [go, late, slept, child, resolved, Failed(6, Failure("E"), "n")])
    again = folded(failed, [Rerouted(7, None, "retried", "r1", asks_again=True)])
    assert again.answers.keys() == {"#1", "%child.c#1", "%call.pay#1#1"}
    assert again.taken == failed.taken
    kept = folded(failed, [Rerouted(7, None, "retried", "r1")])
    assert kept.answers == failed.answers


def test_a_signal_that_is_set_aside_is_not_taken_and_keeps_no_run_open() -> None:
    aside = SignalSetAside(5, "n", 0, "go", "odd", "it must be true or false")
    after = folded(at(), [aside])
    assert (after.taken, after.answered, after.set_aside) == ({("go", "odd")}, set(), (aside,))
    assert after.answers == {}
    assert not continues_past_expiry([], [], after, 10)
    assert not continues_past_expiry([waiting("go")], [Signal("go", "odd", 5)], after, 10)
    assert restored(snapshot(after, 6, size=0, blobs=False)) == after
    assert b"aside" not in snapshot(at(), 6, size=0, blobs=False).fold
