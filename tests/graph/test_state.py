"""What a state can be, what a node may return, and what is said of what does not fit."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import types
import uuid
from typing import Any

import pytest

from holdfast.errors import InvalidInput, InvalidResult, InvalidState
from holdfast.graph.state_codec import StateCodec
from tests.graph.states import (
    CLASSES,
    EVERY,
    NOON,
    Color,
    Keyed,
    Line,
    Model,
    PydanticLine,
    StrictModel,
    packed,
)


def test_a_field_comes_back_as_the_type_that_it_was_declared_with() -> None:
    state = StateCodec(Keyed)
    given: Keyed = {
        "id": 1,
        "note": "ü",
        "due": NOON,
        "price": decimal.Decimal("1.50"),
        "key": uuid.UUID(int=7),
        "tags": {"a", "b"},
        "raw": b"\xff",
        "color": Color.RED,
        "lines": [Line(decimal.Decimal(2))],
        "share": 1,
        "free": [None, {"a": (1, 2.5)}],
        "maybe": None,
    }
    kept = state.initial(given)
    assert kept == packed(kept)
    assert kept["due"] == "2026-01-02T12:00:00+02:00"
    entered = state.typed(kept)
    assert entered == {**given, "free": [None, {"a": [1, 2.5]}]}
    assert entered["due"].utcoffset() == datetime.timedelta(hours=2)
    assert str(entered["price"]) == "1.50"
    assert type(entered["share"]) is float
    assert state.delta(given, kept) == {}


@pytest.mark.parametrize("kind", CLASSES)
def test_an_object_is_filled_with_its_defaults(kind: Any) -> None:
    state = StateCodec(kind)
    kept = state.initial({"id": 5})
    assert kept == {"id": 5, "due": None, "tags": [], "lines": [], "free": None}
    assert state.typed(kept) == kind(id=5)
    assert state.initial(kind(id=5)) == kept


@pytest.mark.parametrize("kind", CLASSES)
def test_a_node_may_return_a_whole_state_and_only_what_differs_counts(kind: Any) -> None:
    state = StateCodec(kind)
    before = state.initial({"id": 5, "free": {"a": [1]}})
    entered = state.typed(before)
    assert state.delta(entered, before) == {}
    entered.due = NOON
    entered.free["a"].append(2)
    assert state.delta(entered, before) == {
        "due": "2026-01-02T12:00:00+02:00",
        "free": {"a": [1, 2]},
    }
    assert before["free"] == {"a": [1]}


@pytest.mark.parametrize("kind", EVERY)
def test_a_node_may_return_some_fields_or_nothing(kind: Any) -> None:
    state = StateCodec(kind)
    before = state.initial({"id": 5})
    assert state.delta(None, before) == {}
    assert state.delta({}, before) == {}
    assert state.delta({"id": 5}, before) == {}
    assert state.delta({"id": 6}, before) == {"id": 6}
    assert state.delta(types.MappingProxyType({"id": 6}), before) == {"id": 6}
    assert state.delta({"due": NOON}, before) == {"due": "2026-01-02T12:00:00+02:00"}
    line = {"price": "2", "count": 1}
    given = PydanticLine if kind is Model else Line
    assert state.delta({"lines": [given(price=decimal.Decimal(2))]}, before) == {"lines": [line]}


@pytest.mark.parametrize(
    ("before", "after"), [(1, True), (1, 1.0), (0.0, -0.0), ([1], [True]), ({"a": 0}, {"a": 0.0})]
)
def test_what_is_equal_is_not_always_the_same(before: Any, after: Any) -> None:
    state = StateCodec(dict)
    (changed,) = state.delta({"x": after}, {"x": before}).values()
    assert repr(changed) == repr(after)
    assert state.delta({"x": after}, {"x": changed}) == {}


@pytest.mark.parametrize("kind", [*EVERY, dict, dict[str, Any]], ids=repr)
def test_a_node_cannot_change_what_is_kept_by_changing_what_it_sees(kind: Any) -> None:
    state = StateCodec(kind)
    kept = state.initial({"id": 1, "free": {"a": [1]}})
    entered = state.typed(kept)
    free = entered["free"] if isinstance(entered, dict) else entered.free
    free["a"].append(2)
    free["b"] = 3
    assert kept["free"] == {"a": [1]}


@pytest.mark.parametrize("kind", [*EVERY, dict])
def test_nor_by_changing_what_it_returned(kind: Any) -> None:
    state = StateCodec(kind)
    free = {"a": [1]}
    delta = state.delta({"free": free}, state.initial({"id": 1}))
    free["a"].append(2)
    assert delta == {"free": {"a": [1]}}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"id": "1"}, "id"),
        ({"id": True}, "id"),
        ({"id": 1.5}, "id"),
        ({"id": None}, "id"),
        ({"id": 1, "tags": ["a", 2]}, "tags"),
        ({"id": 1, "lines": [{"price": "1"}, {"count": 2}]}, "lines"),
        ({"id": 1, "lines": [{"price": "1", "count": "x"}]}, "lines"),
        ({"id": 1, "free": Ellipsis}, "free"),
        ({"id": 1, "free": [2**64]}, "free"),
        ({}, "id"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_refused_by_field(kind: Any, given: Any, field: str) -> None:
    # A model reads its input as it was told to, which is not strictly by default.
    strict = StrictModel if kind is Model else kind
    with pytest.raises(InvalidInput, match=field) as caught:
        StateCodec(strict).initial(given)
    assert caught.value.field is not None
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize("kind", [*EVERY, dict])
@pytest.mark.parametrize("given", [None, 5, "text", [("id", 1)], {1: 2}], ids=str)
def test_inputs_that_are_no_fields_at_all(kind: Any, given: Any) -> None:
    with pytest.raises(InvalidInput):
        StateCodec(kind).initial(given)


@pytest.mark.parametrize("kind", EVERY)
def test_an_input_may_have_come_as_json(kind: Any) -> None:
    kept = StateCodec(kind).initial({"id": 1, "due": "2026-01-02T12:00:00+02:00"})
    assert kept["due"] == "2026-01-02T12:00:00+02:00"


def test_a_strict_model_is_entered_all_the_same() -> None:
    state = StateCodec(StrictModel)
    kept = state.initial({"id": 1, "due": NOON, "tags": {"a"}})
    assert state.typed(kept) == StrictModel(id=1, due=NOON, tags={"a"})


def circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def tower(height: int) -> Any:
    tower: Any = None
    for _ in range(height):
        tower = {"x": [tower]}
    return tower


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ({"id": "1"}, "id"),
        ({"id": True}, "id"),
        ({"id": 1.0}, "id"),
        ({"id": None}, "id"),
        ({"id": 2**64}, "id.*64 bits.*to a string"),
        ({"id": -(2**63) - 1}, "id.*64 bits.*to a string"),
        ({"unknown": 1}, "state: unknown field; the fields are: "),
        ({"duee": 1}, "did you mean 'due'"),
        ({"free": {(1, 2): 3}}, "free.*(got a tuple|not read back as the same)"),
        ({"due": "2026-01-02T12:00:00"}, "due"),
        ({"tags": {1}}, "tags"),
        ({"lines": [{"price": 1.5}]}, r"lines(\[0\]|\.0)\.price"),
        ({"lines": [{}]}, r"lines(\[0\]|\.0)\.price"),
        ({"free": object()}, "free.*an object has no durable form"),
        ({"free": {"a": [{1: object}]}}, "free.*no durable form"),
        ({"free": "\ud800"}, "free.*surrogate"),
        ({"free": {"\ud800": 1}}, "free.*surrogate"),
        ({"free": [2**64]}, "free.*64 bits"),
        ({"free": circle()}, "free.*nested deeper than 100 levels, or contains itself"),
        ({"free": tower(60)}, "free.*nested deeper than 100"),
        ({"free": tower(100_000)}, "free.*nested deeper than 100"),
        ({"free": Hostile()}, "RuntimeError"),
        ({"free": pytest}, "free.*a module has no durable form"),
        ({1: 2}, "strings, got int"),
        (5, "expected (an? [A-Za-z]+, or )?a dict of (its )?fields, got int"),
        ([("id", 1)], "got list"),
        ("id", "got str"),
        (Hostile(), "Hostile|RuntimeError"),
    ],
    ids=map(str, range(28)),
)
def test_results_that_do_not_fit(kind: Any, returned: Any, reason: str) -> None:
    state = StateCodec(kind)
    with pytest.raises(InvalidResult, match=reason) as caught:
        state.delta(returned, state.initial({"id": 1}))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", CLASSES)
def test_an_object_can_hold_what_its_class_would_not_let_in(kind: Any) -> None:
    state = StateCodec(kind)
    before = state.initial({"id": 1})
    for name, value in (("id", "1"), ("tags", 5), ("lines", [{"price": None}])):
        wrong = kind(id=1)
        setattr(wrong, name, value)
        with pytest.raises(InvalidResult, match=name):
            state.delta(wrong, before)
    line = PydanticLine if kind is Model else Line
    wrong = kind(id=1, lines=[line(price=decimal.Decimal(1))])
    wrong.lines[0].count = "many"
    with pytest.raises(InvalidResult, match="lines"):
        state.delta(wrong, before)


def test_a_coroutine_that_was_not_awaited_is_named_and_closed() -> None:
    async def node() -> None:
        await asyncio.Event().wait()

    coroutine = node()
    with pytest.raises(InvalidResult, match="got coroutine"):
        StateCodec(dict).delta(coroutine, {})
    with pytest.raises(RuntimeError, match="cannot reuse"):
        coroutine.send(None)


@pytest.mark.parametrize("kind", EVERY)
def test_what_was_kept_under_another_type_is_refused_on_entering(kind: Any) -> None:
    state = StateCodec(kind)
    with pytest.raises(InvalidState, match="id"):
        state.typed({"id": "one"})
    with pytest.raises(InvalidState, match="id"):
        state.typed({})
    with pytest.raises(InvalidState, match="due"):
        state.typed({"id": 1, "due": "yesterday"})


@pytest.mark.parametrize("kind", EVERY)
def test_a_field_that_the_type_no_longer_has_is_left_out(kind: Any) -> None:
    state = StateCodec(kind)
    entered = state.typed({"id": 1, "gone": 2})
    assert state.delta(entered, {"id": 1, "gone": 2}).get("gone") is None
