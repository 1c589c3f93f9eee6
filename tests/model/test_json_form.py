"""What callers read, as JSON: plain types, stable names, a true schema."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest

from holdfast.model.budget import BudgetLimits
from holdfast.model.event import Failure
from holdfast.model.json_form import JsonForm, json_fields, json_schema
from holdfast.model.progress import BulkProgress, SweepProgress
from holdfast.model.review import (
    Review,
    ReviewAction,
    ReviewDecision,
    ReviewEntry,
    ReviewPage,
    ReviewVote,
)
from holdfast.model.run import (
    AmbiguousCall,
    HistoryEntry,
    HistoryPage,
    Run,
    RunEntry,
    RunPage,
    SessionQueueEntry,
    SetAsideSignal,
    SignalReceipt,
    Status,
    TextPiece,
    WaitPage,
)
from holdfast.model.spending import Spending
from holdfast.model.wait import Wait

AT = datetime(2026, 11, 17, 9, 30, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)
AT_TEXT = "2026-11-17T09:30:00.000Z"
# What only JSON lacks: bytes, a number that is none, a key that is no text, a set.
ODD: Any = {"bytes": b"\x00\xff", "nan": float("nan"), "when": AT, 7: {1}, "deep": [{"a": (1,)}]}
ODD_PLAIN = {
    "bytes": "AP8=",
    "nan": None,
    "when": "2026-11-17T09:30:00Z",
    "7": [1],
    "deep": [{"a": [1]}],
}

WAIT = Wait(
    visit=3,
    key="%any.0/1",
    branch="1.0",
    signal="go",
    since_ms=AT_MS,
    deadline_ms=AT_MS + 1,
    text="engine",
    packed_about=msgspec.msgpack.encode({"page": 2}),
)
WAIT_PLAIN = {
    "visit": 3,
    "key": "%any.0/1",
    "branch": "1.0",
    "signal": "go",
    "since_at": AT_TEXT,
    "until_at": "2026-11-17T09:30:00.001Z",
    "stale_at": None,
    "text": "engine",
    "kind": "signal",
    "about": {"page": 2},
    "description": "the signal go",
}
LIMITS = BudgetLimits(tokens=5, nanodollars=1_500_000_000, node_time_ms=2_500, wall_ms=60_000)
LIMITS_PLAIN = {
    "tokens": 5,
    "usd": 1.5,
    "node_time_seconds": 2.5,
    "estimate": False,
    "wall_seconds": 60.0,
}
FAILURE = Failure("OSError", "not today", "in pay")
FAILURE_PLAIN = {"type": "OSError", "message": "not today", "trace": "in pay"}
ENTRY = RunEntry(
    id="doc-42",
    tenant="default",
    graph="review",
    version=2,
    status="waiting",
    labels={"desk": "sales"},
    created_at=AT,
    reason="signal",
    waits=(WAIT,),
    node="ask",
    updated_at=AT,
    cost_usd=0.5,
    failure=FAILURE,
)
EVENT = HistoryEntry(
    at=AT,
    kind="attempt",
    node="pay",
    details={"retry_at_ms": AT_MS, "deadline_ms": None, "payload": ODD},
    cursor="3-1",
)
RUN = Run(
    id="doc-42",
    tenant="default",
    graph="review",
    version=2,
    schema=1,
    status="failed",
    labels={"desk": "sales"},
    user=None,
    node="pay",
    reason=None,
    waits=(WAIT,),
    due_at=None,
    owner=None,
    retries_left=0,
    nodes_run=4,
    spent_seconds=1.25,
    journal_records=7,
    journal_bytes=800,
    generation="g",
    epoch=2,
    resume_failures=0,
    failure=FAILURE,
    created_at=AT,
    updated_at=AT,
    expires_at=AT,
    budget=LIMITS,
    cost_usd=0.25,
)
CALL = AmbiguousCall(
    run="doc-42",
    tenant="default",
    graph="review",
    node="pay",
    call="3.pay#1",
    name="pay",
    key="k",
    since=AT,
    arguments=ODD,
)
VOTE = ReviewVote(by="ana", approve=True, comment="yes", at=AT, round=1)
DECISION: ReviewDecision[Any] = ReviewDecision(
    status="approved", by="ana", comment="yes", at=AT, values={"months": 12}, votes=(VOTE,)
)
ACTION = ReviewAction(
    position=0, kind="commented", by="ana", at=AT, data={"text": "hm"}, hash="ab12"
)
REVIEW_ENTRY = ReviewEntry(
    id="doc-42~5f0c1e7a9b3d2468",
    run="doc-42",
    tenant="default",
    graph="review",
    node="ask",
    question="Sell it?",
    status="approved",
    assignees=("ana", "bob"),
    claimed_by="ana",
    created_at=AT,
    expires_at=AT,
    due_at=AT,
    overdue=True,
    quorum=2,
    undelivered="refused",
    decided_by="ana",
    decided_at=AT,
)
REVIEW = Review(
    id="doc-42~5f0c1e7a9b3d2468",
    run="doc-42",
    tenant="default",
    graph="review",
    node="ask",
    question="Sell it?",
    status="approved",
    shown={"item": "lamp"},
    form={"type": "object"},
    values={"months": 24},
    tool="refund",
    assignees=("ana",),
    claimed_by="ana",
    quorum=2,
    votes=(VOTE,),
    created_at=AT,
    expires_at=AT,
    due_at=AT,
    overdue=True,
    undelivered="refused",
    decision=DECISION,
    trail=(ACTION,),
    digest="d1",
    rendered="d2",
)
SAMPLES: list[JsonForm] = [
    VOTE,
    DECISION,
    ACTION,
    REVIEW_ENTRY,
    ReviewPage([REVIEW_ENTRY], "c"),
    REVIEW,
    RUN,
    ENTRY,
    RunPage([ENTRY], "c", ("broken",)),
    EVENT,
    HistoryPage([EVENT], None),
    WaitPage([WAIT], None),
    SignalReceipt(repeated=False, answers_wait=True, waits_for=("go",)),
    SessionQueueEntry(number=1, id="a", status="waiting", reason="queued", created_at=AT),
    CALL,
    SetAsideSignal(name="go", id="1", payload=ODD, reason="no bool", node="ask", at=AT),
    TextPiece(call="1", name="small", text="Hé", cursor="1-2"),
    WAIT,
    LIMITS,
    FAILURE,
    BulkProgress(seen=3, errors=("one",)),
    SweepProgress(blobs=2),
    Spending(7, 10_000_000),
]
SAMPLED_MODULES = {type(sample).__module__ for sample in SAMPLES}
# How a field is called where JSON has it in another unit.
OTHER_NAMES = {
    "since_ms": "since_at",
    "deadline_ms": "until_at",
    "stale_ms": "stale_at",
    "nanodollars": "usd",
    "node_time_ms": "node_time_seconds",
    "wall_ms": "wall_seconds",
}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_every_field_is_in_it_and_json_takes_it(sample: JsonForm) -> None:
    shown = sample.as_dict()
    expected = {
        OTHER_NAMES.get(field, field)
        for field in sample.__struct_fields__
        if field not in sample._hidden_in_json
    }
    assert shown.keys() == expected | sample._added_to_json.keys()
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert vars(sample) == shown


def test_there_is_a_sample_of_each_class() -> None:
    def below(kind: type[JsonForm]) -> set[type[JsonForm]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    # Those of other modules are known if another test of this process has imported them.
    known = {kind for kind in below(JsonForm) if kind.__module__ in SAMPLED_MODULES}
    assert {type(sample) for sample in SAMPLES} == known - {JsonForm}


def test_only_what_the_engine_needs_is_left_out() -> None:
    hidden = {type(sample): sample._hidden_in_json for sample in SAMPLES if sample._hidden_in_json}
    assert hidden == {Wait: {"packed_about", "payload_schema"}}


def test_a_run_has_times_money_waits_and_its_failure_in_plain_types() -> None:
    shown = RUN.as_dict()
    assert shown["created_at"] == AT_TEXT
    assert shown["due_at"] is None
    assert shown["waits"] == [WAIT_PLAIN]
    assert shown["budget"] == LIMITS_PLAIN
    assert shown["failure"] == FAILURE_PLAIN
    assert (shown["cost_usd"], shown["labels"]) == (0.25, {"desk": "sales"})
    assert RUN.labels is not shown["labels"]


def test_spending_is_in_dollars() -> None:
    assert Spending(7, 10_000_000).as_dict() == {"tokens": 7, "usd": 0.01}


def test_a_page_holds_its_entries() -> None:
    shown = RunPage([ENTRY], "c", ("broken",)).as_dict()
    assert shown == {"runs": [ENTRY.as_dict()], "cursor": "c", "damaged": ["broken"]}


def test_values_of_users_become_json() -> None:
    assert CALL.as_dict()["arguments"] == ODD_PLAIN
    assert EVENT.as_dict()["details"] == {
        "retry_at": AT_TEXT,
        "until_at": None,
        "payload": ODD_PLAIN,
    }


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_the_schema_is_that_of_the_dict(sample: JsonForm) -> None:
    check(sample.as_dict(), json_schema(type(sample)))


def test_the_schema_says_which_texts_are_times() -> None:
    properties = json_schema(Run)["properties"]
    assert properties["created_at"] == {"type": "string", "format": "date-time"}
    assert {"type": "null"} in properties["due_at"]["anyOf"]
    assert set(properties["status"]["enum"]) == set(get_args(Status))


def test_a_budget_of_a_run_is_still_one_that_a_start_takes() -> None:
    assert RUN.budget is LIMITS
    assert [field.name for field in json_fields(BudgetLimits)] == list(LIMITS_PLAIN)


def check(value: Any, schema: dict[str, Any]) -> None:
    """Fail if a value does not fit a schema of the few kinds that ours have."""
    if "anyOf" in schema:
        assert any(fits(value, part) for part in schema["anyOf"])
    elif "enum" in schema:
        assert value in schema["enum"]
    elif schema.get("type") == "object" and "properties" in schema:
        assert value.keys() == schema["properties"].keys() == set(schema["required"])
        for name, part in schema["properties"].items():
            check(value[name], part)
    elif schema.get("type") == "array":
        for item in value:
            check(item, schema["items"])
    elif "type" in schema:
        kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
        assert isinstance(value, {**kinds, "null": type(None), "object": dict}[schema["type"]])
    if schema.get("format") == "date-time":
        assert datetime.fromisoformat(value).tzinfo is not None


def fits(value: Any, schema: dict[str, Any]) -> bool:
    try:
        check(value, schema)
    except (AssertionError, AttributeError):
        return False
    return True
