"""Forms from JSON schemas: what a browser sends back unread is exactly what was stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Meta
from pydantic import BaseModel
from pydantic import Field as ModelField

from holdfast.graph.schemas import schema_of
from holdfast.server.pages.form_fields import FormField, leaves, review_form
from holdfast.server.pages.form_values import read_values
from holdfast.server.pages.shown_data import shown_parts, visible


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Inner:
    name: str
    size: int | None = None


@dataclass
class Everything:
    text: str
    count: Annotated[int, Meta(ge=0, description="How many.")]
    ratio: float
    flag: bool
    kind: Literal["a", "b", 3]
    colour: Colour
    day: date
    at: datetime
    inner: Inner
    words: list[str]
    numbers: list[int]
    either: int | str
    inners: list[Inner]
    table: dict[str, int]
    maybe: bool | None = None
    note: str | None = None
    limited: Annotated[str, Meta(min_length=2, max_length=5)] = "abc"
    wrapped: Inner | None = None


class Model(BaseModel):
    months: int = ModelField(title="Months <covered>", ge=1, le=60)
    note: str | None = ModelField(default=None, description="Say why.")
    tags: list[Literal["x", "y"]] = []


SCHEMA = schema_of(Everything)
FULL: dict[str, Any] = {
    "text": "one\ntwo",
    "count": 3,
    "ratio": 1.0,
    "flag": False,
    "kind": 3,
    "colour": "blue",
    "day": "2026-02-28",
    "at": "2026-02-28T10:00:00Z",
    "inner": {"name": "n"},
    "words": ["a b", "c"],
    "numbers": [1, -2],
    "either": "x",
    "inners": [{"name": "m", "size": None}],
    "table": {"a": 1},
    "maybe": None,
    "wrapped": {"name": "w", "size": 2},
}


def as_posted(form: FormField) -> dict[str, str]:
    """Return what a browser sends of a form that nobody touched."""
    return {
        each.name: each.text.replace("\n", "\r\n")
        for each in leaves(form)
        if each.kind != "check" or each.text
    }


def kinds(form: FormField) -> dict[str, str]:
    return {each.name.removeprefix("v/"): each.kind for each in leaves(form)}


def test_each_type_has_its_field() -> None:
    assert kinds(review_form(SCHEMA, FULL)) == {
        "text": "textarea",
        "count": "number",
        "ratio": "number",
        "flag": "check",
        "kind": "choice",
        "colour": "choice",
        "day": "date",
        "at": "text",
        "inner/name": "text",
        "inner/size": "number",
        "words": "lines",
        "numbers": "lines",
        "either": "json",
        "inners": "json",
        "table": "json",
        "maybe": "choice",
        "note": "text",
        "limited": "text",
        "wrapped/name": "text",
        "wrapped/size": "number",
    }
    assert kinds(review_form(SCHEMA, {**FULL, "wrapped": None}))["wrapped"] == "json"
    months, note, tags = review_form(schema_of(Model), {"months": 5}).fields
    assert (months.label, months.attributes["max"]) == ("Months <covered>", "60")
    assert (note.description, note.kind, note.nullable) == ("Say why.", "text", True)
    assert tags.kind == "lines"


def test_an_untouched_form_changes_nothing() -> None:
    form = review_form(SCHEMA, FULL)
    assert read_values(form, as_posted(form)) == FULL
    for optional in ("maybe", "wrapped"):
        fewer = {name: value for name, value in FULL.items() if name != optional}
        form = review_form(SCHEMA, fewer)
        assert read_values(form, as_posted(form)) == fewer


ODD_TEXTS = ["", "\n", "\r\n", "a\r\nb", " x ", "\u202e", "\x00"]
TEXTS = st.text(max_size=200) | st.sampled_from(ODD_TEXTS)
SIZES = st.none() | st.integers()
VALUES = st.fixed_dictionaries(
    {
        "text": TEXTS,
        "count": st.integers(0, 2**63),
        "ratio": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5),
        "flag": st.booleans(),
        "inner": st.fixed_dictionaries({"name": TEXTS}, optional={"size": SIZES}),
        "words": st.lists(TEXTS, max_size=4),
        "numbers": st.lists(st.integers(), max_size=4),
        "either": st.integers() | TEXTS,
        "table": st.dictionaries(TEXTS, st.integers(), max_size=3),
    },
    optional={"maybe": st.none() | st.booleans(), "note": st.none() | TEXTS},
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(changed=VALUES)
def test_an_untouched_form_changes_nothing_whatever_its_values(changed: dict[str, Any]) -> None:
    values = {**{name: FULL[name] for name in FULL if name != "maybe"}, **changed}
    form = review_form(SCHEMA, values)
    read = read_values(form, as_posted(form))
    assert read == values, [(each.name, each.error) for each in leaves(form) if each.error]
    assert type(read["ratio"]) is type(values["ratio"])


@pytest.mark.parametrize(
    ("entered", "path", "value"),
    [
        ({"v/count": " 12 "}, "count", 12),
        ({"v/ratio": "2.5"}, "ratio", 2.5),
        ({"v/ratio": "-1e3"}, "ratio", -1000.0),
        ({"v/flag": "1"}, "flag", True),
        ({"v/kind": "0"}, "kind", 3),
        ({"v/maybe": "0"}, "maybe", True),
        ({"v/day": "2027-01-01"}, "day", "2027-01-01"),
        ({"v/text": ""}, "text", ""),
        ({"v/text": "a\r\nb"}, "text", "a\nb"),
        ({"v/note": "x"}, "note", "x"),
        ({"v/words": "p\r\n\r\nq\r\n"}, "words", ["p", "q"]),
        ({"v/words": ""}, "words", []),
        ({"v/numbers": "5\n 6 "}, "numbers", [5, 6]),
        ({"v/table": '{"b": 2}'}, "table", {"b": 2}),
        ({"v/table": ""}, "table", None),
    ],
)
def test_what_is_entered_is_read(entered: dict[str, str], path: str, value: Any) -> None:
    form = review_form(SCHEMA, FULL)
    read = read_values(form, {**as_posted(form), **entered})
    if value is None:
        assert read is UNSET
        assert "v/table" in [each.name for each in leaves(form) if each.error]
    else:
        assert read[path] == value


@pytest.mark.parametrize(
    ("entered", "message"),
    [
        ({"v/count": "-1"}, "it must be at least 0"),
        ({"v/count": "1.5"}, "it must be an integer such as 12"),
        ({"v/count": "9" * 5_000}, "it must be an integer such as 12"),
        ({"v/ratio": "nan"}, "it must be a number such as 12.5"),
        ({"v/ratio": "1e999"}, "it must be a number such as 12.5"),
        ({"v/kind": "9"}, "choose one"),
        ({"v/numbers": "1\nx"}, "it must be an integer such as 12"),
        ({"v/limited": "abcdef"}, "it must have at most 5 characters"),
        ({"v/table": "{"}, "it must be JSON"),
        ({"v/table": "[" * 100_000}, "it must be JSON"),
        ({"v/table": '{"a": "b"}'}, "it must be an integer"),
        ({"v/either": "[]"}, "it fits none of its types"),
    ],
)
def test_what_does_not_fit_is_said_at_its_field(entered: dict[str, str], message: str) -> None:
    form = review_form(SCHEMA, FULL)
    assert read_values(form, {**as_posted(form), **entered}) is UNSET
    [(name, error)] = [(each.name, each.error) for each in leaves(form) if each.error]
    assert message in error
    assert [name] == list(entered)


def test_a_form_without_values_asks_for_them() -> None:
    form = review_form(schema_of(Inner), None)
    assert read_values(form, {"v/name": "n", "v/size": ""}) == {"name": "n"}
    flags = review_form(schema_of(Everything), None)
    assert kinds(flags)["flag"] == "choice"  # a box that is not ticked would be an answer
    number = review_form(schema_of(int), 5)
    assert read_values(number, {"v": "6"}) == 6


def test_many_fields_and_too_many() -> None:
    for count, kind in ((500, "number"), (5_000, "json")):
        names = [f"field{number}" for number in range(count)]
        schema = {
            "type": "object",
            "properties": {name: {"type": "integer"} for name in names},
            "additionalProperties": False,
        }
        values = dict.fromkeys(names, 7)
        form = review_form(schema, values)
        assert {each.kind for each in leaves(form)} == {kind}
        assert read_values(form, as_posted(form)) == values


def test_a_schema_that_refers_to_itself_or_to_nothing() -> None:
    schema = {
        "$defs": {"Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}}},
        "$ref": "#/$defs/Tree",
    }
    value: dict[str, Any] = {}
    for _ in range(50):
        value = {"left": value}
    form = review_form(schema, value)
    assert read_values(form, as_posted(form)) == value
    for odd in ({}, {"$ref": "#/$defs/gone"}, {"type": "object", "properties": 5}, {"anyOf": [5]}):
        form = review_form(odd, {"a": 1})
        assert read_values(form, as_posted(form)) == {"a": 1}


def test_data_is_cut_where_it_is_too_long() -> None:
    part = shown_parts({"text": "x" * 30_000, "list": list(range(10_000)), "n": None})
    text, numbers = part.parts[:2]
    assert text.cut == "10,000 more characters are not shown here"
    assert "more items are not shown here" in numbers.cut
    assert part.cut == "1 more fields are not shown here"
    assert len(numbers.parts) < 2_100
    assert visible("a\u202eb\x00c\r\nd") == "a\\u202eb\\x00c\nd"
