"""A quota's item: where it stands, how long it lasts, and when it may be changed."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidName, JournalDamaged
from holdfast.model.quota import Cost, Quota
from holdfast.model.quota_admission import acquired
from holdfast.model.quota_level import QuotaLevel
from holdfast.records.quota import level_of, level_write, quota_item_key
from holdfast.storage.item import canonical_item, item_bytes
from holdfast.storage.writes import holds

NOW_US = 1_700_000_000_000_000


def used(quota: Quota, times: int, every_us: int) -> QuotaLevel:
    level = QuotaLevel()
    for number in range(times):
        cost = Cost(tokens=12_345, nanodollars=123_456_789)
        now_us = NOW_US + number * every_us
        level, _ = acquired(level, quota, cost, now_us=now_us, token=f"{number:036}")
    return level


def test_tenants_have_items_of_their_own() -> None:
    shared, apart = Quota("model", requests=1), Quota("model", requests=1, per_tenant=True)
    assert (
        quota_item_key(shared, "acme")
        == quota_item_key(shared, "other")
        == ("QUOTA##model", "QUOTA")
    )
    assert quota_item_key(apart, "acme") == ("QUOTA#acme#model", "QUOTA")
    # No tenant's name makes its item the one that all share.
    with pytest.raises(InvalidName):
        quota_item_key(apart, "")
    with pytest.raises(InvalidName):
        quota_item_key(apart, "acme#model")
    with pytest.raises(InvalidName):
        quota_item_key(Quota("a#b", requests=1), "acme")


def test_an_item_is_read_as_it_was_written() -> None:
    quota = Quota("model", requests=100, tokens=10**6, usd=100, per=60, concurrency=10)
    level = used(quota, 300, 150_000)
    put = level_write(quota_item_key(quota, "acme"), level, quota, item_read=None, token="one")
    assert level_of(canonical_item(put.item)) == level
    assert level_of(None) == QuotaLevel()
    assert put.item["ttl"] * 1_000_000 > level.queue_end_us + 23 * 3600 * 1_000_000
    # One unit of write capacity, whatever it holds.
    assert item_bytes(canonical_item({**put.item, "_token": "x" * 36})) < 1_024


def test_only_what_was_read_may_be_changed() -> None:
    quota = Quota("model", requests=100)
    key = quota_item_key(quota, "acme")
    first = level_write(key, QuotaLevel(), quota, item_read=None, token="one")
    standing = {**first.item, "_token": "one"}
    second = level_write(key, QuotaLevel(), quota, item_read=standing, token="two")
    assert holds(first.condition, None)
    assert not holds(first.condition, standing)
    assert holds(second.condition, standing)
    # Not one that was forgotten, nor one that was made anew since.
    assert not holds(second.condition, None)
    assert not holds(second.condition, {**standing, "_token": "three"})


@pytest.mark.parametrize("data", [b"\x07?", b"\x00\xc0", b"\x00\x91\xa1x", b""])
def test_what_cannot_be_read_is_an_error(data: bytes) -> None:
    with pytest.raises(JournalDamaged):
        level_of({"PK": "QUOTA##model", "SK": "QUOTA", "level": data})
