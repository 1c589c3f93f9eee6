"""What may be declared as a quota, and what follows from it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import InvalidName, InvalidRequest
from holdfast.model.durations import days, minutes
from holdfast.model.quota import Cost, Quota


def test_a_quota_is_a_value() -> None:
    quota = Quota("model", requests=100, tokens=40_000, usd=0.25, per=minutes(1), concurrency=8)
    assert quota == Quota(
        "model", requests=100, tokens=40_000, usd=0.25, per=timedelta(seconds=60), concurrency=8
    )
    assert hash(quota) == hash(quota)
    assert quota.nanodollars == 250_000_000
    assert quota.window_us == 60_000_000
    assert not quota.per_tenant
    with pytest.raises(AttributeError):
        quota.requests = 7  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "limits"),
    [
        ("requests", {}),
        ("requests", {"requests": 0}),
        ("requests", {"requests": -1}),
        ("requests", {"requests": 1.5}),
        ("requests", {"requests": True}),
        ("requests", {"requests": "10"}),
        ("requests", {"requests": 10**16}),
        ("tokens", {"tokens": 0}),
        ("usd", {"usd": 0}),
        ("usd", {"usd": 1e-10}),
        ("usd", {"usd": -1.0}),
        ("usd", {"usd": float("nan")}),
        ("usd", {"usd": float("inf")}),
        ("usd", {"usd": "5"}),
        ("concurrency", {"concurrency": 0}),
        ("concurrency", {"concurrency": 1_001}),
        ("per", {"requests": 1, "per": 0}),
        ("per", {"requests": 1, "per": 0.5}),
        ("per", {"requests": 1, "per": days(32)}),
        ("per", {"requests": 1, "per": "minute"}),
        ("per_tenant", {"requests": 1, "per_tenant": "yes"}),
    ],
)
def test_what_cannot_be_a_quota_is_refused_by_its_field(field: str, limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Quota("model", **limits)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "name",
    ["", None, 7, b"model", "a#b", "a/b", "x" * 129, " a", ".a", "a\x00", "\ud800", "~", "%"],
)
def test_an_invalid_name_is_refused_where_the_quota_is_declared(name: Any) -> None:
    with pytest.raises(InvalidName) as refused:
        Quota(name, requests=1)
    assert refused.value.field == "name"


@pytest.mark.parametrize("field", ["requests", "tokens", "nanodollars"])
@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, 10**16])
def test_a_cost_is_whole_numbers(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Cost(**{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize("requests", [1, 7, 100, 5_000])
@pytest.mark.parametrize("per", [1, 10, 60, 86_400, 31 * 86_400])
def test_grace_allowance_and_bursts_cost_less_than_a_tenth(requests: int, per: int) -> None:
    quota = Quota("model", requests=requests, per=per)
    assert quota.grace_us >= 20_000
    assert quota.span_us >= quota.window_us + quota.grace_us + 50_000
    assert requests * quota.window_us / quota.pace_us(requests) >= 0.92
    # The longer the window, the more may come at once.
    assert quota.burst >= Quota("model", requests=requests, per=1).burst == 1
