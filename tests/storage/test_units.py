"""Capacity units by the documented rules, at the borders where a further one begins."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.storage.item import item_bytes
from holdfast.storage.layout import LAYOUT, Key
from holdfast.storage.meter import Meter
from holdfast.storage.prices import PRICES, PRICES_2024_11, PRICES_BEFORE_2024_11
from holdfast.storage.units import (
    Units,
    query_units,
    read_units,
    refused_units,
    transaction_units,
    write_units,
)
from holdfast.storage.writes import Check, Delete, Present, Put, TransactionWrite, Update

KEY = {"PK": "p", "SK": "s"}
PLACE = {"GSI1PK": "g", "GSI1SK": "1"}
LISTED = {"GSI2PK": "g", "GSI2SK": "1"}


def item(size: int, **attributes: Any) -> dict[str, Any]:
    """Return an item of exactly that many bytes."""
    bare = {**KEY, **attributes, "text": ""}
    return {**bare, "text": "x" * (size - item_bytes(bare))}


@pytest.mark.parametrize(
    ("old", "new", "units"),
    [
        (None, item(1024), 1),
        (None, item(1025), 2),
        (item(3000), item(100), 3),
        (item(100), item(3000), 3),
        (item(1024), None, 1),
        (item(2049), None, 3),
        (None, None, 1),
    ],
)
def test_a_write_costs_by_the_larger_image(old: Any, new: Any, units: int) -> None:
    assert write_units(old, new, LAYOUT) == Units(write=units)


@pytest.mark.parametrize(
    ("old", "new", "units"),
    [
        (None, PLACE, 1),
        (PLACE, PLACE, 0),
        (PLACE, {**PLACE, "other": 1}, 0),
        (PLACE, {**PLACE, "GSI1SK": "2"}, 2),
        (PLACE, {**PLACE, "GSI1PK": "h"}, 2),
        (PLACE, {}, 1),
        (PLACE, None, 1),
        ({}, PLACE, 1),
        ({}, {"GSI1PK": "g"}, 0),
        (None, {**PLACE, **LISTED}, 2),
        # Projected attributes alone: one write, by the larger entry.
        (LISTED, {**LISTED, "status": "open"}, 1),
        ({**LISTED, "status": "x" * 3000}, {**LISTED, "status": "open"}, 3),
        ({**LISTED, "show": {"a": 1}}, {**LISTED, "show": {"a": 1}}, 0),
        ({**LISTED, "show": {"a": True}}, {**LISTED, "show": {"a": 1}}, 1),
        # A moved entry is deleted and put, each by its own size.
        ({**LISTED, "status": "x" * 1400}, {**LISTED, "GSI2SK": "2", "status": "x" * 3400}, 6),
        # What an index does not project does not count there.
        (None, {**PLACE, "text": "x" * 9000}, 1),
    ],
)
def test_an_index_costs_by_what_changes_in_it(old: Any, new: Any, units: int) -> None:
    before = None if old is None else {**KEY, **old}
    after = None if new is None else {**KEY, **new}
    assert write_units(before, after, LAYOUT).index_write == units


@pytest.mark.parametrize(
    ("write", "standing", "units"),
    [
        (Put(item(3000, **PLACE)), None, 3),
        (Put(item(100)), item(3000, **PLACE), 3),
        (Put(item(3000)), item(2000), 3),
        (Update(key=Key("p", "s"), set={"more": "x" * 1000}), item(3000), 4),
        (Update(key=Key("p", "s"), add={"text": 1}), item(3000), 3),
        (Delete(Key("p", "s")), item(3000), 3),
        (Delete(Key("p", "s")), None, 1),
        (Check(Key("p", "s"), Present("PK")), None, 1),
    ],
)
def test_a_refused_write_costs_by_the_larger_of_what_stands_and_what_should(
    write: TransactionWrite, standing: Any, units: int
) -> None:
    assert refused_units(write, standing) == Units(write=units)


def test_a_transaction_doubles_the_table_but_not_its_indexes() -> None:
    assert transaction_units(write_units(None, item(1500, **PLACE), LAYOUT)) == Units(
        write=4, index_write=1
    )


def test_reads_round_to_four_kilobytes() -> None:
    assert read_units(None, eventual=False) == Units(read=1)
    assert read_units(None, eventual=True) == Units(read=0.5)
    assert read_units(item(4096), eventual=False) == Units(read=1)
    assert read_units(item(4097), eventual=True) == Units(read=1)
    assert query_units(4096 * 3, eventual=False, index=False) == Units(read=3)
    assert query_units(4096 * 3 + 1, eventual=True, index=False) == Units(read=2)
    assert query_units(100, eventual=False, index=True) == Units(index_read=0.5)


def test_the_meter_counts_by_purpose_and_operation() -> None:
    meter = Meter()
    meter.record("journal", "write", Units(write=1, index_write=2))
    meter.record("journal", "write", Units(write=3))
    meter.record("journal", "query", Units(read=0.5))
    meter.record("head", "write", Units(write=1))
    report = meter.report()
    assert [(row.purpose, row.operation, row.calls, row.units) for row in report.rows] == [
        ("head", "write", 1, Units(write=1)),
        ("journal", "query", 1, Units(read=0.5)),
        ("journal", "write", 2, Units(write=4, index_write=2)),
    ]
    assert report.by_purpose()["journal"] == Units(read=0.5, write=4, index_write=2)
    assert (report.calls, report.units.writes, report.units.reads) == (4, 7, 0.5)
    meter.reset()
    assert meter.report().rows == ()


def test_the_report_is_priced_from_a_dated_list() -> None:
    meter = Meter()
    meter.record("journal", "write", Units(write=1_000_000))
    meter.record("journal", "get", Units(read=2_000_000))
    # By AWS's price page: $0.625 and $0.125 a million since November 2024, twice that before.
    assert meter.report().usd == pytest.approx(0.625 + 2 * 0.125)
    assert meter.report(PRICES_BEFORE_2024_11).usd == pytest.approx(1.25 + 2 * 0.25)
    assert meter.report().usd_per_month(times_per_hour=2) == pytest.approx(0.875 * 2 * 730)
    assert PRICES is PRICES_2024_11
    assert "since 2024-11-01" in str(meter.report())
