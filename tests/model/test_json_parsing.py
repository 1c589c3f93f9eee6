"""What callers read as JSON becomes the same value again."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.model.budget import BudgetLimits
from holdfast.model.event import Failure
from holdfast.model.json_form import JsonForm
from holdfast.model.run import HistoryEntry, Run, RunEntry, RunPage, Status
from holdfast.model.spending import Spending
from holdfast.model.wait import WAIT_KINDS, Wait
from tests.model.test_json_form import RUN, SAMPLES

TEXT = st.text(max_size=20)
MS = st.integers(0, 9_999_999_999_999)
TIMES = MS.map(lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
FAILURES = st.builds(Failure, TEXT, TEXT, TEXT)
# Below eight million dollars, a float has every nanodollar.
NANODOLLARS = st.integers(0, 8_000_000 * 10**9)
LIMITS = st.builds(
    BudgetLimits,
    st.none() | st.integers(0, 10**15),
    st.none() | NANODOLLARS,
    st.none() | MS,
    st.booleans(),
    st.none() | MS,
)


@st.composite
def waits(draw: st.DrawFn) -> Wait:
    kind = draw(st.sampled_from(WAIT_KINDS))(draw(st.text("abc#1", min_size=1, max_size=9)))
    said = draw(st.none() | PLAIN)
    text = draw(TEXT)
    wait = Wait.of(
        kind,
        visit=draw(st.integers(0, 99)),
        branch=draw(TEXT),
        since_ms=draw(MS),
        deadline_ms=draw(st.none() | MS),
        stale_ms=draw(st.none() | MS),
        about=text,
    )
    if said is None or said == wait.text:
        return wait
    return msgspec.structs.replace(wait, packed_about=msgspec.msgpack.encode(said))


ENTRIES = st.builds(
    RunEntry,
    id=TEXT,
    tenant=TEXT,
    graph=TEXT,
    version=st.integers(1, 99),
    status=st.sampled_from(get_args(Status)),
    labels=st.dictionaries(TEXT, TEXT, max_size=3),
    created_at=TIMES,
    session=st.none() | TEXT,
    reason=st.none() | TEXT,
    waits=st.lists(waits(), max_size=2).map(tuple),
    node=TEXT,
    updated_at=TIMES,
    cost_usd=st.floats(0, 1e6),
    failure=st.none() | FAILURES,
)
VALUES: st.SearchStrategy[JsonForm] = st.one_of(
    waits(),
    LIMITS,
    ENTRIES,
    st.builds(Spending, st.integers(0, 10**15), NANODOLLARS),
    st.builds(RunPage, st.lists(ENTRIES, max_size=2), st.none() | TEXT, st.tuples(TEXT, TEXT)),
    st.builds(
        lambda budget, waits, due: msgspec.structs.replace(
            RUN, budget=budget, waits=tuple(waits), due_at=due
        ),
        st.none() | LIMITS,
        st.lists(waits(), max_size=3),
        st.none() | TIMES,
    ),
    st.builds(
        HistoryEntry,
        at=TIMES,
        kind=TEXT,
        node=st.none() | TEXT,
        details=st.fixed_dictionaries(
            {"payload": PLAIN}, optional={"retry_at_ms": MS, "deadline_ms": st.none() | MS}
        ),
        cursor=TEXT,
        ephemeral=st.booleans(),
    ),
)


def there_and_back(value: JsonForm) -> Any:
    return type(value).from_dict(json.loads(json.dumps(value.as_dict())))


@given(VALUES)
def test_a_value_is_the_same_after_json(value: JsonForm) -> None:
    read = there_and_back(value)
    assert read == value
    assert read.as_dict() == value.as_dict()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_every_class_is_read_back_with_what_json_carries(sample: JsonForm) -> None:
    assert there_and_back(sample).as_dict() == sample.as_dict()


@given(waits())
def test_a_wait_that_was_read_says_what_it_is(wait: Wait) -> None:
    read = there_and_back(wait)
    assert (read.kind, read.signal, read.text, read.description, read.about) == (
        wait.kind,
        wait.signal,
        wait.text,
        wait.description,
        wait.about,
    )


def test_what_a_newer_release_adds_does_not_matter() -> None:
    shown = {**RUN.as_dict(), "color": "blue", "status": "dreaming"}
    assert Run.from_dict(shown).status == "dreaming"


def test_what_an_older_release_lacks_has_its_default() -> None:
    shown = RUN.as_dict()
    del shown["tokens"]
    assert Run.from_dict(shown).tokens == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"created_at": "yesterday"}, "created_at"),
        ({"created_at": "2026-11-17T09:30:00"}, "created_at"),
        ({"created_at": 7}, "created_at"),
        ({"version": "two"}, "version"),
        ({"labels": []}, "labels"),
        ({"waits": {}}, "waits"),
        ({"waits": [{"visit": 1}]}, "waits"),
        ({"waits": ["go"]}, "waits"),
        ({"budget": {"usd": "1"}}, "budget.usd"),
        ({"budget": {"usd": True}}, "budget.usd"),
    ],
)
def test_a_wrong_form_is_an_error_that_names_the_field(change: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        Run.from_dict({**RUN.as_dict(), **change})
    assert raised.value.field == field


@pytest.mark.parametrize("shown", [None, [], "run", {}, {"id": "a"}])
def test_what_is_no_form_at_all_is_an_error(shown: Any) -> None:
    with pytest.raises(InvalidRequest, match="the form of a Run"):
        Run.from_dict(shown)
