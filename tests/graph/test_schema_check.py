"""The check of a payload by its schema agrees with the conversion to its type."""

from __future__ import annotations

import dataclasses
import enum
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.graph.mismatch import Mismatch
from holdfast.graph.schema_check import schema_mismatch
from holdfast.graph.schemas import schema_of
from holdfast.graph.signal_types import SCHEMA_BYTES_MAX, signal_type_of, stored_signal_type
from holdfast.graph.values import converted


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


class Pair(NamedTuple):
    first: int
    second: str


@dataclasses.dataclass
class Leaf:
    text: str
    size: float | None = None


class Tree(msgspec.Struct):
    leaf: Leaf
    below: list[Tree] = []


class Row(TypedDict):
    ok: bool
    note: NotRequired[str]


class Strict(pydantic.BaseModel):
    count: int
    when: date | None = None


class Open(Strict, extra="allow"):
    pass


class Closed(Strict, extra="forbid"):
    pass


KINDS: list[Any] = [
    bool,
    int,
    float,
    str,
    bytes,
    None,
    Literal["yes", "no", 3],
    Color,
    Pair,
    Leaf,
    Tree,
    Row,
    list[int],
    dict[str, bool],
    tuple[int, str],
    tuple[int, ...],
    set[str],
    int | str | None,
    datetime,
    UUID,
    Decimal,
    Any,
    list[Row],
    Annotated[int, msgspec.Meta(ge=0, lt=10, multiple_of=2)],
    Annotated[str, msgspec.Meta(min_length=1, max_length=3, pattern="^[a-z]*$")],
    Annotated[list[bool], msgspec.Meta(min_length=1, max_length=2)],
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 12)
    | st.sampled_from([0.0, 1.5, float("inf")])
    | st.sampled_from(["", "yes", "no", "red", "ab", "2026-11-17", "true", "1", "abcd"])
    | st.binary(max_size=3)
)
NAMES = st.sampled_from(["ok", "note", "text", "size", "leaf", "below", "other"])
PAYLOADS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def has_lost_fields(payload: Any, kept: Any) -> bool:
    """Return whether a conversion dropped a field of an object."""
    if isinstance(payload, dict):
        return any(key not in kept or has_lost_fields(payload[key], kept[key]) for key in payload)
    if isinstance(payload, list) and len(payload) == len(kept):
        return any(map(has_lost_fields, payload, kept))
    return False


def fits(payload: Any, kind: Any) -> bool:
    """Return whether a payload can be converted as a whole."""
    try:
        kept = converted(payload, kind, objects=False)
    except Mismatch:
        return False
    return not has_lost_fields(payload, msgspec.to_builtins(kept, builtin_types=(bytes,)))


@given(kind=st.sampled_from(KINDS), payload=PAYLOADS)
def test_what_can_be_converted_passes_the_check(kind: Any, payload: Any) -> None:
    if fits(payload, kind):
        assert schema_mismatch(payload, schema_of(kind)) is None


@given(kind=st.sampled_from(KINDS), payload=PAYLOADS)
def test_a_check_that_allows_unknown_fields_passes_what_can_be_converted(
    kind: Any, payload: Any
) -> None:
    try:
        converted(payload, kind, objects=False)
    except Mismatch:
        return
    assert schema_mismatch(payload, schema_of(kind), allow_unknown=True) is None


@given(payload=PAYLOADS)
@pytest.mark.parametrize(
    "kind", [bool, int, float, str, None, Literal["yes", "no"], list[int], Row]
)
def test_the_check_refuses_what_cannot_be_converted(kind: Any, payload: Any) -> None:
    assert (schema_mismatch(payload, schema_of(kind)) is None) == fits(payload, kind)


UNKNOWN = "unknown field; the fields are: "


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        (Row, {"ok": True, "noet": "x"}, f"{UNKNOWN}ok, note; did you mean 'note'?"),
        (Leaf, {"text": "x", "siz": 1}, f"{UNKNOWN}text, size; did you mean 'size'?"),
        (Tree, {"leaf": {"text": "x", "a secret": 1}}, f"leaf: {UNKNOWN}text, size"),
        (list[Row], [{"ok": True, "a secret": 1}], f"[0]: {UNKNOWN}ok, note"),
        (Row | None, {"ok": True, "a secret": 1}, f"{UNKNOWN}ok, note"),
        (Strict, {"count": 1, "wen": "x"}, None),
        (dict[str, Strict], {"a": {"count": 1, "wen": "x"}}, None),
        (Open, {"count": 1, "wen": "x"}, None),
        (Closed, {"count": 1, "wen": "x"}, f"{UNKNOWN}count, when; did you mean 'when'?"),
        (dict[str, int], {"wen": 1}, None),
        (Any, {"wen": 1}, None),
    ],
)
def test_an_unknown_field_does_not_fit(kind: Any, payload: Any, message: str | None) -> None:
    here = signal_type_of(kind)
    assert here.misfit(payload) == message
    assert stored_signal_type(here.digest, here.schema).misfit(payload) == message


def test_an_unknown_field_of_a_payload_that_was_taken_is_ignored() -> None:
    taken = {"text": "x", "gone": 1}
    assert signal_type_of(Leaf).converted(taken) == Leaf("x")


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        (bool, "true", "it must be true or false, got a string"),
        (int, True, "it must be an integer, got true or false"),
        (Literal["yes", "no"], "maybe", "it must be one of 'no', 'yes'"),
        (Row, {"note": "x"}, "ok: it is missing"),
        (Row, {"ok": "yes"}, "ok: it must be true or false, got a string"),
        (list[Row], [{"ok": True}, 3], "[1]: it must be an object, got an integer"),
        (dict[str, int], {"secret": "x"}, "…: it must be an integer, got a string"),
        (Tree, {"leaf": {"text": 1}}, "leaf.text: it must be a string, got an integer"),
        (bool | None, 3, "it must be true or false, got an integer"),
        (Strict, {"count": "3"}, "count: it must be an integer, got a string"),
    ],
)
def test_a_misfit_is_told_in_one_line(kind: Any, payload: Any, message: str) -> None:
    assert str(schema_mismatch(payload, schema_of(kind))) == message


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"$ref": "#/$defs/gone"},
        {"$ref": 3},
        {"type": ["integer", "string"]},
        {"type": "newer"},
        {"newer": True},
        {"pattern": "("},
        {"minimum": "x", "minLength": None, "enum": "x", "anyOf": "x", "required": 3, "$defs": 3},
        {"properties": 3, "items": 3, "prefixItems": 3, "allOf": 3},
    ],
)
@pytest.mark.parametrize("payload", [None, True, 3, "text", [1], {"a": 1}])
def test_a_schema_that_is_not_understood_refuses_nothing(
    schema: dict[str, Any], payload: Any
) -> None:
    assert schema_mismatch(payload, schema) is None


def test_a_type_knows_its_schema_everywhere() -> None:
    here = signal_type_of(Row)
    assert here == signal_type_of(Row)
    assert here.digest != signal_type_of(bool).digest
    there = stored_signal_type(here.digest, here.schema)
    for payload in ({"ok": 1}, [], None):
        assert here.misfit(payload) == there.misfit(payload) is not None
    assert here.misfit({"ok": True}) is there.misfit({"ok": True}) is None


def test_pydantic_models_are_strict_and_read_dates_as_json_does() -> None:
    kind = signal_type_of(Strict)
    assert kind.converted({"count": 3, "when": "2026-11-17"}) == Strict(
        count=3, when=date(2026, 11, 17)
    )
    assert kind.misfit({"count": 3, "when": "tomorrow"}) is not None


def test_a_schema_that_is_too_large_is_not_stored() -> None:
    names = tuple(f"{'x' * 40}{number}" for number in range(SCHEMA_BYTES_MAX // 40))
    kind = signal_type_of(Literal[names])
    assert kind.digest == ""
    assert kind.misfit("y") is not None
