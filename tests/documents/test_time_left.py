"""How long work will take: honest if unknown, never negative, whatever happened."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.documents.time_left import Progress, longest, noted, seconds_left

MINUTE = 60_000


def steady(count: int, *, every_ms: int, begin_ms: int = 0, begin_done: int = 0) -> list[Progress]:
    return [Progress(begin_ms + at * every_ms, begin_done + at) for at in range(count)]


def left(history: list[Progress], total: int | None, *, now_ms: int | None = None) -> float | None:
    return seconds_left(
        history, total=total, now_ms=history[-1].at_ms if now_ms is None else now_ms
    )


def test_a_steady_rate_gives_the_exact_time() -> None:
    history = steady(51, every_ms=2_000)
    assert left(history, 150) == 200.0
    # The next piece is half done by now.
    assert left(history, 150, now_ms=history[-1].at_ms + 1_000) == 199.0


def test_the_rate_is_that_of_the_last_minutes() -> None:
    slow = steady(600, every_ms=1_000)
    fast = steady(3_001, every_ms=100, begin_ms=slow[-1].at_ms + 100, begin_done=600)
    estimate = left([*slow, *fast], 4_600)
    assert estimate is not None
    assert 99 <= estimate <= 101


def test_nothing_is_said_that_is_not_known() -> None:
    history = steady(10, every_ms=1_000)
    assert left(history, None) is None
    assert seconds_left([], total=5, now_ms=0) is None
    assert left([Progress(0, 0)], 5) is None
    assert left([Progress(0, 0), Progress(9_000, 2)], 5) is None  # too little to tell
    assert left([Progress(5, 0), Progress(5, 4)], 5) is None  # in no time


def test_nothing_left_is_zero_and_only_that() -> None:
    history = steady(11, every_ms=1_000)
    assert left(history, 10) == 0.0
    assert left(history, 5) == 0.0
    overdue = left(history, 11, now_ms=history[-1].at_ms + 30_000)
    assert overdue == 1.0


def test_a_pause_is_no_work_and_makes_the_end_unknown_while_it_lasts() -> None:
    before = steady(61, every_ms=1_000)
    paused_ms = before[-1].at_ms + 30 * MINUTE
    assert left(before, 120, now_ms=paused_ms) is None
    after = steady(10, every_ms=1_000, begin_ms=paused_ms, begin_done=61)
    assert left([*before, *after], 120) == 50.0


def test_long_pieces_are_no_pauses() -> None:
    history = steady(6, every_ms=3 * MINUTE)
    assert left(history, 10) == 5 * 180
    assert left(history, 10, now_ms=history[-1].at_ms + 10 * MINUTE) is not None


def test_a_reader_that_comes_late_uses_the_whole_time_until_it_sees_more() -> None:
    joined = [Progress(0, 0), Progress(30 * MINUTE, 900)]
    assert left(joined, 1_800) == 1_800.0
    seen = [*joined, *steady(121, every_ms=500, begin_ms=30 * MINUTE + 500, begin_done=901)]
    assert left(seen, 1_800) == pytest.approx((1_800 - 1_021) * 0.5, rel=0.01)


def test_only_progress_is_noted_and_less_than_before_is_a_new_beginning() -> None:
    history: tuple[Progress, ...] = ()
    for seen in (Progress(0, 0), Progress(5, 0), Progress(9, 2), Progress(9, 3), Progress(12, 3)):
        history = noted(history, seen)
    assert history == (Progress(0, 0), Progress(9, 2), Progress(12, 3))
    assert noted(history, Progress(15, 1)) == (Progress(15, 1),)


def test_a_history_has_a_bound() -> None:
    history: tuple[Progress, ...] = ()
    for at in range(10_000):
        history = noted(history, Progress(at, at))
    assert len(history) == 200
    assert history[-1] == Progress(9_999, 9_999)


def test_the_slowest_of_parallel_steps_decides() -> None:
    assert longest([3.0, 70.5, 9.0]) == 70.5
    assert longest([3.0, None]) is None
    assert longest([]) is None


SEEN = st.builds(Progress, st.integers(0, 10**13), st.integers(0, 10**6))


@given(st.lists(SEEN, max_size=30), st.none() | st.integers(0, 10**6), st.integers(0, 10**13))
def test_it_is_never_negative_for_any_history(
    seen: list[Progress], total: int | None, now_ms: int
) -> None:
    history: tuple[Progress, ...] = ()
    for each in seen:
        history = noted(history, each)
    for observed in (history, seen):  # clocks that were set back, too
        estimate = seconds_left(observed, total=total, now_ms=now_ms)
        assert estimate is None or (estimate >= 0 and math.isfinite(estimate))
        if estimate == 0:
            assert observed[-1].done >= (total or 0)
