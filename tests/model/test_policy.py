"""Retry policies and spans of time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.model.policy import Retry


@given(
    st.integers(1, 100),
    st.floats(0, 100),
    st.floats(1, 10),
    st.floats(0, 1000),
    st.floats(0, 1),
    st.text(max_size=20),
)
def test_a_pause_lies_between_the_whole_and_what_the_jitter_leaves(
    failed: int, first: float, factor: float, most: float, jitter: float, seed: str
) -> None:
    retry = Retry(backoff=first, factor=factor, backoff_max=most, jitter=jitter)
    full_ms = min(first * factor ** min(failed - 1, 64), most) * 1000
    pause = retry.backoff_ms(failed, seed)
    assert full_ms * (1 - jitter) - 1 <= pause <= full_ms + 1
    assert pause == retry.backoff_ms(failed, seed)


def test_backoffs_may_be_written_as_text() -> None:
    text = Retry(backoff="500ms", backoff_max="1m30s", factor=1_000, jitter=0)
    assert [text.backoff_ms(failed, "") for failed in (1, 2)] == [500, 90_000]


def test_runs_that_failed_together_do_not_come_back_together() -> None:
    pauses = {Retry(backoff=100).backoff_ms(1, f"run {number}") for number in range(50)}
    assert len(pauses) > 40


@pytest.mark.parametrize(
    "unfit",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"backoff": -1},
        {"backoff": "1"},
        {"factor": 0.5},
        {"backoff_max": -1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
        {"on": ValueError},
        {"on": (str,)},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(unfit: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Retry(**unfit)
    assert caught.value.field in unfit


def test_only_the_errors_that_are_named_are_covered() -> None:
    retry = Retry(on=(OSError, KeyError))
    assert retry.covers(FileNotFoundError())
    assert retry.covers(KeyError())
    assert not retry.covers(ValueError())
