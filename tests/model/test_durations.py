"""Durations: numbers, timedeltas and text mean the same, and text is read strictly."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.model.durations import days, duration_text, hours, milliseconds_of, minutes, seconds

CENTURY_MS = 100 * 365 * 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (seconds(2), 2_000),
        (minutes(1.5), 90_000),
        (hours(1), 3_600_000),
        (days(7), 604_800_000),
        (0, 0),
        (0.0001, 1),
        (timedelta(microseconds=1), 1),
        ("0s", 0),
        ("500ms", 500),
        ("90s", 90_000),
        ("90m", 5_400_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("0.0001s", 1),
        ("0.1s", 100),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1w1d1h1m1s1ms", 694_861_001),
        ("36500d", CENTURY_MS),
    ],
    ids=str,
)
def test_a_duration_is_whole_milliseconds_rounded_up(duration: Any, expected: int) -> None:
    assert milliseconds_of(duration, "max_wait") == expected


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        True,
        b"7d",
        "",
        " ",
        "7",
        "1.5",
        "d",
        "-3d",
        "+3d",
        "7 d",
        " 7d",
        "7d\n",
        "7D",
        "7 days",
        "P7D",
        "30m1h",
        "1h1h",
        "1h30",
        ".5h",
        "1.h",
        "1e3s",
        "1_000s",
        "\u0663d",
        "\uff17d",
        "1" * 13 + "s",
        "0.1234567s",
        "infs",
        "nans",
        "1s" * 10_000,
    ],
    ids=lambda wrong: repr(wrong)[:20],
)
def test_what_is_not_a_duration_is_refused_with_examples(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"max_wait must be .* '1h30m' or '7d', got"):
        milliseconds_of(wrong, "max_wait")


@pytest.mark.parametrize(
    "wrong",
    [-1, float("nan"), float("inf"), timedelta(-1), days(40_000), "36501d", "999999999999w"],
    ids=str,
)
def test_a_duration_out_of_range_is_refused_by_its_name(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="max_wait must be from 0 seconds to a hundred") as at:
        milliseconds_of(wrong, "max_wait")
    assert at.value.field == "max_wait"


@given(st.integers(0, CENTURY_MS))
def test_a_shown_duration_reads_back_as_itself(span_ms: int) -> None:
    assert milliseconds_of(duration_text(span_ms), "max_wait") == span_ms


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(0, "0s"), (1, "1ms"), (90_000, "1m30s"), (604_800_000, "7d"), (5_400_001, "1h30m1ms")],
)
def test_a_duration_is_shown_in_its_units(span_ms: int, text: str) -> None:
    assert duration_text(span_ms) == text
