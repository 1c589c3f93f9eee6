"""Which signal answers which wait."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import ManualClock, SystemIds
from holdfast.model.event import (
    Failed,
    Failure,
    NodeFinished,
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
    is_open_wait,
    resolved_group,
    resolved_wait,
    wait_groups,
)
from holdfast.model.wait import SignalWait, TimerWait, Wait, answer_key, group_digest, group_key

names = st.sampled_from(["go", "pay"])
signals = st.lists(
    st.builds(Signal, names, st.sampled_from("abcdef"), st.integers(0, 20)),
    unique_by=lambda signal: (signal.name, signal.id),
)
limits = st.none() | st.integers(0, 20)
NEVER_MS = 10**9
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
    answer = resolved_wait(wait, inbox, taken, now, expires_ms=NEVER_MS)
    if in_time:
        assert answer == TakeSignal(min(in_time)[2])
    elif now < over:
        assert answer == Pending(min(ends, default=None))
    else:
        assert answer == (TimeOut() if wait.deadline_ms == over else WaitStale())


@given(waits, signals, st.integers(0, 25), st.integers(0, 25), st.integers(0, 25))
def test_time_alone_never_takes_an_answer_back(
    wait: Wait, inbox: list[Signal], now: int, later: int, expires_ms: int
) -> None:
    first = resolved_wait(wait, inbox, set(), now, expires_ms=expires_ms)
    if not isinstance(first, Pending):
        again = resolved_wait(wait, inbox, set(), max(now, later), expires_ms=expires_ms)
        assert again == first


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
    answer = resolved_wait(late, inbox, set(), 200, expires_ms=NEVER_MS)
    assert answer == TakeSignal(inbox[-1])


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
    while True:
        answer = resolved_wait(waiting("go"), inbox, taken, 200, expires_ms=NEVER_MS)
        if not isinstance(answer, TakeSignal):
            break
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


def test_a_wait_with_a_deadline_times_out_at_the_expiry_at_the_latest() -> None:
    def resolved(wait: Wait, now_ms: int) -> object:
        return resolved_wait(wait, [Signal("go", "late", 10)], (), now_ms, expires_ms=10)

    long = msgspec.structs.replace(waiting("go"), deadline_ms=50)
    assert resolved(long, 9) == Pending(10)
    assert resolved(long, 10) == TimeOut()
    assert resolved(msgspec.structs.replace(long, deadline_ms=5), 10) == TimeOut()
    assert resolved(msgspec.structs.replace(long, stale_ms=10), 10) == TimeOut()
    assert resolved(msgspec.structs.replace(long, stale_ms=9), 10) == WaitStale()
    # A sleep is not shortened, a wait without a deadline has none, and one that began after the
    # expiry keeps its own.
    assert resolved(msgspec.structs.replace(long, signal=None, key="#1"), 10) == Pending(50)
    assert resolved(waiting("pay"), 10) == Pending(None)
    assert resolved(msgspec.structs.replace(long, signal="pay", since_ms=10), 10) == Pending(50)


def test_past_its_expiry_a_run_goes_on_whose_wait_times_out_there() -> None:
    long = msgspec.structs.replace(waiting("go"), deadline_ms=50)
    assert continues_past_expiry([long], [], at(), 10)
    assert continues_past_expiry([waiting("pay"), long], [], at(), 10)
    # Its answer is in the journal after that, also when the node has finished.
    timed_out = folded(at(), [TimerFired(10, "n", 0, "go#1")])
    assert continues_past_expiry([long], [], timed_out, 10)
    assert continues_past_expiry([], [], folded(timed_out, [NodeFinished(11, "n", 0, {}, "m")]), 10)
    # Not for a timeout before the expiry, for a sleep, or after an extension.
    assert not continues_past_expiry([], [], folded(at(), [TimerFired(9, "n", 0, "go#1")]), 10)
    assert not continues_past_expiry([], [], folded(at(), [TimerFired(10, "n", 0, "#1")]), 10)
    assert not continues_past_expiry([], [], timed_out, 11)


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


# --- the first of several -------------------------------------------------------------------------


def group_of(
    *signals: str | None, deadline_ms: int | None = None, number: int = 1
) -> tuple[Wait, ...]:
    key = group_key("d", number)
    return tuple(
        Wait(visit=0, key=f"{key}/{i}", signal=name, since_ms=0, deadline_ms=deadline_ms)
        for i, name in enumerate(signals)
    )


@given(signals, st.sets(st.tuples(names, st.sampled_from("abcdef"))), limits, st.integers(0, 25))
def test_of_several_names_the_first_that_was_accepted_in_time_is_taken(
    inbox: list[Signal], taken: set[tuple[str, str]], limit: int | None, now: int
) -> None:
    over = 10**9 if limit is None else limit
    in_time = [
        (signal.accepted_ms, signal.id, signal.name, signal)
        for signal in inbox
        if (signal.name, signal.id) not in taken and signal.accepted_ms < over
    ]
    answer = resolved_group(
        group_of("go", "pay", None, deadline_ms=limit), inbox, taken, now, expires_ms=NEVER_MS
    )
    if in_time:
        assert isinstance(answer, TakeSignal)
        assert answer.signal.order == min(in_time)[3].order
    else:
        assert answer == (Pending(limit) if now < over else TimeOut())
    # A group of one is a plain wait.
    wait = group_of("go", deadline_ms=limit)[0]
    alone = resolved_group((wait,), inbox, taken, now, expires_ms=NEVER_MS)
    assert alone == resolved_wait(wait, inbox, taken, now, expires_ms=NEVER_MS)


def test_stamps_order_signals_of_several_names_within_a_millisecond() -> None:
    late, early = Signal("go", "a", 5, stamp="02"), Signal("pay", "b", 5, stamp="01")
    group = group_of("go", "pay")
    answer = resolved_group(group, [late, early], (), 9, expires_ms=NEVER_MS)
    assert answer == TakeSignal(early)


def test_one_answer_ends_a_group_and_no_other() -> None:
    first, other = group_of("go", "pay", None), group_of("go", "pay", None, number=2)
    alone = Wait(visit=0, key="go#1", signal="go", since_ms=0)
    assert wait_groups([*first, alone, *other]) == [[*first], [alone], [*other]]
    key = first[1].key
    assert (answer_key(key), answer_key("go#1"), answer_key("%child.a/b#1")) == (
        "%any.d.1", "go#1", "%child.a/b#1",
    )  # fmt: skip
    before = Execution(node="n", state={}, seed="s", waits=(*first, alone, *other))
    after = folded(before, [SignalTaken(1, "n", 0, key, "pay", "x", 7)])
    assert after.waits == (alone, *other)
    assert after.answers.keys() == {"%any.d.1"}
    assert [is_open_wait(wait, after) for wait in (*first, alone, other[0])] == [
        False, False, False, True, True,
    ]  # fmt: skip
    inbox = [Signal("go", "y", 3)]
    assert not continues_past_expiry(first, [], before, 10)
    assert continues_past_expiry(first, inbox, before, 10)


def test_what_a_group_waits_for_tells_it_from_others() -> None:
    go, pay, time = SignalWait("go"), SignalWait("pay"), TimerWait()
    groups = [(go, pay), (pay, go), (go, pay, time), (go,), (SignalWait("gopay"),)]
    assert len({group_digest(group) for group in groups}) == len(groups)
    assert group_digest((go, pay)) == group_digest((SignalWait("go"), SignalWait("pay")))
    assert [wait.kind for wait in group_of("go", None)] == [go, time]
    assert Wait(visit=0, key=group_key("d", 1), since_ms=0).kind == time
