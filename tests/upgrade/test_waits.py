"""Waits that releases before the kinds of waits stored: each still has its kind.

The bytes were written by that release, and what is written now is the same.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.event import Snapshot, WaitDescribed, WaitsRecorded
from holdfast.model.fold import restored, snapshot
from holdfast.model.wait import (
    BackoffWait,
    BudgetWait,
    ChildWait,
    QuotaWait,
    ResolutionWait,
    SignalWait,
    TimerWait,
    Wait,
    WaitKind,
    group_digest,
    group_key,
)
from holdfast.records.codec import encode, unpack_events
from holdfast.records.head import head_of
from holdfast.records.run_attributes import as_map
from tests.upgrade.test_schema_1 import ROW

T = 1_700_000_000_000
ROWS: list[dict[str, Any]] = [
    {
        "visit": 2,
        "key": "go#1",
        "signal": "go",
        "since_ms": 1_700_000_000_000,
        "until_ms": 1_700_000_600_000,
        "stale_ms": 1_700_000_900_000,
    },
    {"visit": 2, "key": "#1", "since_ms": 1_700_000_000_000, "until_ms": 1_700_000_600_000},
    {"visit": 2, "key": "%child.doc.7#1", "signal": "%child.doc.7", "since_ms": 1_700_000_000_000},
    {
        "visit": 2,
        "key": "%call.0123456789abcdef#1",
        "signal": "%call.0123456789abcdef",
        "since_ms": 1_700_000_000_000,
        "about": "pay k-1",
    },
    {"visit": 2, "key": "%retry", "since_ms": 1_700_000_000_000, "until_ms": 1_700_000_060_000},
    {
        "visit": 2,
        "key": "%retry.mail#1",
        "since_ms": 1_700_000_000_000,
        "until_ms": 1_700_000_060_000,
        "about": "mail",
    },
    {
        "visit": 2,
        "key": "%quota.mail#1",
        "since_ms": 1_700_000_000_000,
        "until_ms": 1_700_000_060_000,
        "about": "quota mail",
    },
    {
        "visit": 2,
        "key": "%quota.a1f501906c390e2dc33f4cf7d5500c14",
        "branch": "1.0",
        "since_ms": 1_700_000_000_000,
        "until_ms": 1_700_000_060_000,
        "about": "quota mail",
    },
    {
        "visit": 2,
        "key": "%budget.model.a#1",
        "branch": "1.0",
        "since_ms": 1_700_000_000_000,
        "until_ms": 1_700_000_060_000,
        "about": "needs 100 tokens, and 50 are left",
    },
]
KINDS: list[WaitKind] = [
    SignalWait("go"),
    TimerWait(),
    ChildWait("doc.7"),
    ResolutionWait("0123456789abcdef"),
    BackoffWait(),
    BackoffWait("mail#1"),
    QuotaWait("mail#1"),
    QuotaWait("a1f501906c390e2dc33f4cf7d5500c14"),
    BudgetWait("model.a#1"),
]
RECORD = bytes.fromhex(
    "9193a777616974696e67cf0000018bcfe568009988a5766973697402a36b6579a4676f2331a66272616e6368a0"
    "a67369676e616ca2676fa873696e63655f6d73cf0000018bcfe56800a8756e74696c5f6d73cf0000018bcfee8f"
    "c0a87374616c655f6d73cf0000018bcff323a0a561626f7574a088a5766973697402a36b6579a22331a6627261"
    "6e6368a0a67369676e616cc0a873696e63655f6d73cf0000018bcfe56800a8756e74696c5f6d73cf0000018bcf"
    "ee8fc0a87374616c655f6d73c0a561626f7574a088a5766973697402a36b6579ae256368696c642e646f632e37"
    "2331a66272616e6368a0a67369676e616cac256368696c642e646f632e37a873696e63655f6d73cf0000018bcf"
    "e56800a8756e74696c5f6d73c0a87374616c655f6d73c0a561626f7574a088a5766973697402a36b6579b82563"
    "616c6c2e303132333435363738396162636465662331a66272616e6368a0a67369676e616cb62563616c6c2e30"
    "313233343536373839616263646566a873696e63655f6d73cf0000018bcfe56800a8756e74696c5f6d73c0a873"
    "74616c655f6d73c0a561626f7574a7706179206b2d3188a5766973697402a36b6579a6257265747279a6627261"
    "6e6368a0a67369676e616cc0a873696e63655f6d73cf0000018bcfe56800a8756e74696c5f6d73cf0000018bcf"
    "e65260a87374616c655f6d73c0a561626f7574a088a5766973697402a36b6579ad2572657472792e6d61696c23"
    "31a66272616e6368a0a67369676e616cc0a873696e63655f6d73cf0000018bcfe56800a8756e74696c5f6d73cf"
    "0000018bcfe65260a87374616c655f6d73c0a561626f7574a46d61696c88a5766973697402a36b6579ad257175"
    "6f74612e6d61696c2331a66272616e6368a0a67369676e616cc0a873696e63655f6d73cf0000018bcfe56800a8"
    "756e74696c5f6d73cf0000018bcfe65260a87374616c655f6d73c0a561626f7574aa71756f7461206d61696c88"
    "a5766973697402a36b6579d9272571756f74612e61316635303139303663333930653264633333663463663764"
    "35353030633134a66272616e6368a3312e30a67369676e616cc0a873696e63655f6d73cf0000018bcfe56800a8"
    "756e74696c5f6d73cf0000018bcfe65260a87374616c655f6d73c0a561626f7574aa71756f7461206d61696c88"
    "a5766973697402a36b6579b1256275646765742e6d6f64656c2e612331a66272616e6368a3312e30a67369676e"
    "616cc0a873696e63655f6d73cf0000018bcfe56800a8756e74696c5f6d73cf0000018bcfe65260a87374616c65"
    "5f6d73c0a561626f7574d9216e656564732031303020746f6b656e732c20616e6420353020617265206c656674"
)
SNAPSHOT = bytes.fromhex(
    "9195a8736e617073686f74cf0000018bcfe56800c50541de001ba46e6f6465a16ea5766973697402af6661696c"
    "65645f617474656d70747300ab72657472795f61745f6d7300a7616e737765727380a577616974739788a57669"
    "73697402a36b6579a4676f2331a66272616e6368a0a67369676e616ca2676fa873696e63655f6d73cf0000018b"
    "cfe56800a8756e74696c5f6d73cf0000018bcfee8fc0a87374616c655f6d73cf0000018bcff323a0a561626f75"
    "74a088a5766973697402a36b6579a22331a66272616e6368a0a67369676e616cc0a873696e63655f6d73cf0000"
    "018bcfe56800a8756e74696c5f6d73cf0000018bcfee8fc0a87374616c655f6d73c0a561626f7574a088a57669"
    "73697402a36b6579ae256368696c642e646f632e372331a66272616e6368a0a67369676e616cac256368696c64"
    "2e646f632e37a873696e63655f6d73cf0000018bcfe56800a8756e74696c5f6d73c0a87374616c655f6d73c0a5"
    "61626f7574a088a5766973697402a36b6579b82563616c6c2e303132333435363738396162636465662331a662"
    "72616e6368a0a67369676e616cb62563616c6c2e30313233343536373839616263646566a873696e63655f6d73"
    "cf0000018bcfe56800a8756e74696c5f6d73c0a87374616c655f6d73c0a561626f7574a7706179206b2d3188a5"
    "766973697402a36b6579a6257265747279a66272616e6368a0a67369676e616cc0a873696e63655f6d73cf0000"
    "018bcfe56800a8756e74696c5f6d73cf0000018bcfe65260a87374616c655f6d73c0a561626f7574a088a57669"
    "73697402a36b6579ad2572657472792e6d61696c2331a66272616e6368a0a67369676e616cc0a873696e63655f"
    "6d73cf0000018bcfe56800a8756e74696c5f6d73cf0000018bcfe65260a87374616c655f6d73c0a561626f7574"
    "a46d61696c88a5766973697402a36b6579ad2571756f74612e6d61696c2331a66272616e6368a0a67369676e61"
    "6cc0a873696e63655f6d73cf0000018bcfe56800a8756e74696c5f6d73cf0000018bcfe65260a87374616c655f"
    "6d73c0a561626f7574aa71756f7461206d61696ca76661696c757265c0a4666f726bc0a86368696c6472656e80"
    "a5656e64656400a86661696c7572657390a563616c6c7380a5737461746580a473656564a173a86272616e6368"
    "657381a3312e30de0010a46e6f6465a16ea5766973697402af6661696c65645f617474656d70747300ab726574"
    "72795f61745f6d7300a7616e737765727380a577616974739288a5766973697402a36b6579d9272571756f7461"
    "2e6131663530313930366333393065326463333366346366376435353030633134a66272616e6368a3312e30a6"
    "7369676e616cc0a873696e63655f6d73cf0000018bcfe56800a8756e74696c5f6d73cf0000018bcfe65260a873"
    "74616c655f6d73c0a561626f7574aa71756f7461206d61696c88a5766973697402a36b6579b125627564676574"
    "2e6d6f64656c2e612331a66272616e6368a3312e30a67369676e616cc0a873696e63655f6d73cf0000018bcfe5"
    "6800a8756e74696c5f6d73cf0000018bcfe65260a87374616c655f6d73c0a561626f7574d9216e656564732031"
    "303020746f6b656e732c20616e6420353020617265206c656674a76661696c757265c0a4666f726bc0a8636869"
    "6c6472656e80a5656e64656400a86661696c7572657390a563616c6c7380a564656c746180a36f707380a46f76"
    "6572c2a66661696c6564c0a574616b656e90a6656e64696e67c0a96e6f6465735f72756e00a87370656e745f6d"
    "7300a666656e63657300a772657472696564a0a374746c00a46b657074a0a57370656e74920000a57361766564"
    "920000a5647261776ec0a6736c696365738001c2"
)


def test_every_wait_of_an_old_row_has_its_kind() -> None:
    waits = head_of(ROW | {"waits": ROWS}).waits
    assert [wait.kind for wait in waits] == KINDS
    assert (waits[0].deadline_ms, waits[0].stale_ms) == (T + 600_000, T + 900_000)
    assert [as_map(wait) for wait in waits] == ROWS


def test_every_wait_of_an_old_record_has_its_kind() -> None:
    (event,) = unpack_events(b"\x00" + RECORD)
    assert isinstance(event, WaitsRecorded)
    assert event.waits == head_of(ROW | {"waits": ROWS}).waits
    assert [wait.kind for wait in event.waits] == KINDS
    assert encode([event]) == RECORD


def test_every_wait_of_an_old_snapshot_has_its_kind() -> None:
    (event,) = unpack_events(b"\x00" + SNAPSHOT)
    assert isinstance(event, Snapshot)
    execution = restored(event)
    assert [wait.kind for wait in execution.waits] == KINDS[:7]
    assert [wait.kind for wait in execution.branches["1.0"].waits] == KINDS[7:]
    assert encode([snapshot(execution, T, size=1, blobs=False)]) == SNAPSHOT


@pytest.mark.parametrize("row", ROWS, ids=[row["key"] for row in ROWS])
def test_a_wait_that_begins_now_is_stored_as_before(row: dict[str, Any]) -> None:
    (wait,) = head_of(ROW | {"waits": [row]}).waits
    begun = Wait.of(
        wait.kind,
        visit=wait.visit,
        branch=wait.branch,
        since_ms=wait.since_ms,
        deadline_ms=wait.deadline_ms,
        stale_ms=wait.stale_ms,
        about=wait.about,
    )
    assert as_map(begun) == row


def test_a_long_subject_is_hashed_as_before() -> None:
    assert QuotaWait("model.a>" * 20).key() == ROWS[7]["key"]


# The waits of a group, and what a node said about one, as this release stores them first.
GROUP: list[dict[str, Any]] = [
    {
        "visit": 2,
        "key": "%any.94d80840c82ba29a.1/0",
        "signal": "go",
        "since_ms": 1_700_000_000_000,
        "until_ms": 1_700_000_600_000,
        "packed_about": b"\x81\xa3doc\x07",
    },
    {
        "visit": 2,
        "key": "%any.94d80840c82ba29a.1/1",
        "since_ms": 1_700_000_000_000,
        "until_ms": 1_700_000_600_000,
    },
]


def test_the_waits_of_a_group_are_read_and_written_as_they_were_first() -> None:
    waits = head_of(ROW | {"waits": GROUP}).waits
    assert [wait.kind for wait in waits] == [SignalWait("go"), TimerWait()]
    assert [wait.about for wait in waits] == [{"doc": 7}, ""]
    assert [as_map(wait) for wait in waits] == GROUP
    assert group_key(group_digest([wait.kind for wait in waits]), 1) == "%any.94d80840c82ba29a.1"
    stored = encode([WaitsRecorded(T, waits), WaitDescribed(T, "n", 2, "go#1", {"doc": 7})])
    first, second = unpack_events(b"\x00" + stored)
    assert isinstance(first, WaitsRecorded)
    assert first.waits == waits
    assert second == WaitDescribed(T, "n", 2, "go#1", {"doc": 7})
    assert b"packed_about" in stored
    assert stored.count(b"packed_about") == 1
