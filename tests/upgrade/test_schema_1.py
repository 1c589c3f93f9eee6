"""What schema 1 wrote is read for ever: these bytes are not to be changed, only added to."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import JournalDamaged
from holdfast.model.event import (
    AttemptFailed,
    Cancelled,
    Event,
    Expired,
    Extended,
    Failed,
    Failure,
    Fenced,
    Finished,
    NodeFinished,
    Rerouted,
    SignalTaken,
    Snapshot,
    TimerFired,
)
from holdfast.model.execution import Execution
from holdfast.model.fold import restored
from holdfast.model.wait import Wait
from holdfast.records.codec import unpack_events
from holdfast.records.head import JournalExtent, RetryRequest, head_of
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import RunKey

PLAIN = bytes.fromhex(
    "009a97a46e6f6465cf0000018bcfe56801a4726561640082a474657874a2c384a16e01a361736b0c97a7617474656d"
    "7074cf0000018bcfe56802a361736b0193a74f534572726f72a26e6fa57472616365cf0000018bcfe56bea0398a673"
    "69676e616ccf0000018bcfe56803a361736b01a4676f2331a2676fa2733181a26f6bc395a574696d6572cf0000018b"
    "cfe56804a361736b01a2233195a77265726f757465cf0000018bcfe56805c0a772657472696564a2723194a566656e"
    "6365cf0000018bcfe5680604a17792a866696e6973686564cf0000018bcfe5680794a66661696c6564cf0000018bcf"
    "e5680893a145a16da0a361736b93a963616e63656c6c6564cf0000018bcfe56809a377687992a765787069726564cf"
    "0000018bcfe5680a"
)
COMPRESSED = bytes.fromhex(
    "0128b52ffd604200050100c89197a46e6f646501a16e0081a474657874da012c616263c00001004d545d13"
)
SNAPSHOT = bytes.fromhex(
    "009295a8736e617073686f74cf0000018bcfe5680bc50120de0010a5737461746583a474657874a2c384a16e01a473"
    "63616ec40200ffa473656564a83031386263666535a46e6f6465a361736ba5766973697402af6661696c65645f6174"
    "74656d70747301ab72657472795f61745f6d73cf0000018bcfe56809a7616e737765727382a4676f233198a6736967"
    "6e616ccf0000018bcfe56803a361736b02a4676f2331a2676fa2733181a26f6bc3a2233195a574696d6572cf000001"
    "8bcfe56804a361736b02a22331a574616b656e9192a2676fa27331a6656e64696e67c0a76661696c75726593a74f53"
    "4572726f72a26e6fa57472616365a96e6f6465735f72756e02a87370656e745f6d730fa666656e63657301a7726574"
    "72696564a27231a374746cce655fce80a46b657074a86b6565702d34306463c395a8657874656e646564cf0000018b"
    "cfe5680bcf0000018bf3f1ec00ce655fce80a86b6565702d343064"
)
EVENTS: list[Event] = [
    NodeFinished(1_700_000_000_001, "read", 0, {"text": "Ä", "n": 1}, "ask", 12),
    AttemptFailed(
        1_700_000_000_002, "ask", 1, Failure("OSError", "no", "trace"), 1_700_000_001_002, 3
    ),
    SignalTaken(1_700_000_000_003, "ask", 1, "go#1", "go", "s1", {"ok": True}),
    TimerFired(1_700_000_000_004, "ask", 1, "#1"),
    Rerouted(1_700_000_000_005, None, "retried", "r1"),
    Fenced(1_700_000_000_006, 4, "w"),
    Finished(1_700_000_000_007),
    Failed(1_700_000_000_008, Failure("E", "m"), "ask"),
    Cancelled(1_700_000_000_009, "why"),
    Expired(1_700_000_000_010),
]
ROW: dict[str, Any] = {
    "PK": "RUN#acme#doc-42",
    "SK": "HEAD",
    "GSI1PK": "DUE#warranty#002",
    "GSI1SK": "1700000600000#acme#doc-42#7",
    "GSI2PK": "RUNS#acme#01",
    "GSI2SK": "1700000000000#doc-42",
    "_token": "t",
    "ttl": 1_700_777_600,
    "status": "waiting",
    "show": {"graph": "warranty", "version": 3, "labels": {"kind": "scan"}},
    "schema": 1,
    "shard": 2,
    "list_shards": 4,
    "generation": "018bcfe5-6800-7000-8000-000000000000",
    "epoch": 7,
    "input": b"\x00\x80",
    "input_hash": b"0123456789abcdef",
    "first": "read",
    "node": "review",
    "created_ms": 1_700_000_000_000,
    "updated_ms": 1_700_000_000_500,
    "starts_ms": 1_700_000_000_000,
    "expires_ms": 1_700_604_800_000,
    "kept": "keep-10d",
    "user": "a" * 32,
    "waits": [
        {"visit": 2, "key": "ok#1", "signal": "ok", "since_ms": 1, "until_ms": 1_700_000_600_000}
    ],
    "reason": "signal",
    "signals": 2,
    "nodes_run": 2,
    "spent_ms": 35,
    "retries_left": 1,
    "context": {"position": 3, "size": 99, "blobs": True},
    "failure": {"type": "E", "message": "m"},
    "resume_failures": 1,
    "cancel": "why",
    "retry": {"id": "r1", "node": "read"},
    "spilled": True,
    "torn": True,
}


def test_every_kind_of_event_is_read() -> None:
    assert unpack_events(PLAIN) == EVENTS


def test_compressed_events_are_read() -> None:
    assert unpack_events(COMPRESSED) == [NodeFinished(1, "n", 0, {"text": "abc" * 100}, None)]


def test_a_row_is_read() -> None:
    head = head_of(ROW)
    assert (head.key, head.graph, head.version) == (RunKey("acme", "doc-42"), "warranty", 3)
    assert (head.status, head.epoch, head.owner, head.needs_fence) == ("waiting", 7, None, True)
    assert head.index_key == IndexKey("DUE#warranty#002", "1700000600000#acme#doc-42#7")
    assert head.waits == (
        Wait(visit=2, key="ok#1", signal="ok", since_ms=1, deadline_ms=1_700_000_600_000),
    )
    assert head.extent == JournalExtent(3, 99, True)
    assert head.retry == RetryRequest("r1", "read")
    assert head.failure == Failure("E", "m")
    assert (head.labels, head.signals, head.spilled) == ({"kind": "scan"}, 2, True)
    for name in ("generation", "input", "input_hash", "first", "node", "kept", "user", "reason"):
        assert getattr(head, name) == ROW[name]
    for name in ("created_ms", "updated_ms", "starts_ms", "expires_ms", "ttl", "nodes_run"):
        assert getattr(head, name) == ROW[name]


def test_a_snapshot_is_read() -> None:
    first, second = unpack_events(SNAPSHOT)
    assert second == Extended(1_700_000_000_011, 1_700_604_800_000, 1_700_777_600, "keep-40d")
    assert isinstance(first, Snapshot)
    assert (first.at_ms, first.size, first.blobs) == (1_700_000_000_011, 99, True)
    assert restored(first) == Execution(
        state={"text": "Ä", "n": 1, "scan": b"\x00\xff"},
        seed="018bcfe5",
        node="ask",
        visit=2,
        failed_attempts=1,
        retry_at_ms=1_700_000_000_009,
        answers={
            "go#1": SignalTaken(1_700_000_000_003, "ask", 2, "go#1", "go", "s1", {"ok": True}),
            "#1": TimerFired(1_700_000_000_004, "ask", 2, "#1"),
        },
        taken=frozenset({("go", "s1")}),
        failure=Failure("OSError", "no", "trace"),
        nodes_run=2,
        spent_ms=15,
        fences=1,
        retried="r1",
        ttl=1_700_777_600,
        kept="keep-40d",
    )


def test_the_row_of_an_extended_run_is_read() -> None:
    more = {"snapshot": 12, "kept": "keep-40d", "kept_before": ["keep-10d"], "extends_ms": 7}
    head = head_of(ROW | more)
    assert (head.snapshot, head.kept, head.kept_before) == (12, "keep-40d", ("keep-10d",))
    assert head.extends_ms == 7
    old = head_of(ROW)
    assert (old.snapshot, old.kept_before, old.extends_ms) == (0, (), 0)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x01abc", b"\x02abc", b"\x00\x91\x92\xa3odd\x01"])
def test_what_is_not_a_record_is_told_apart(data: bytes) -> None:
    with pytest.raises(JournalDamaged):
        unpack_events(data)


@pytest.mark.parametrize("missing", ["generation", "show", "epoch", "expires_ms"])
def test_what_is_not_a_row_is_told_apart(missing: str) -> None:
    with pytest.raises(JournalDamaged):
        head_of({name: value for name, value in ROW.items() if name != missing})
