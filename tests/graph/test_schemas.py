"""Types as JSON schemas, and functions as tools."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field

from holdfast.errors import InvalidAnswer, InvalidArguments, InvalidPrompt, InvalidRequest
from holdfast.graph.schemas import arguments_schema, schema_of, tool_of, validated
from holdfast.integrations.schema_samples import smallest_value


class Keyed(TypedDict):
    risk: Literal["low", "high"]
    notes: NotRequired[list[str]]


class Tree(msgspec.Struct):
    name: str
    branches: list[Tree] = []
    keyed: Keyed | None = None


@dataclass
class Held:
    tree: Tree
    due: date
    counts: dict[str, int] = field(default_factory=dict[str, int])


class Inner(BaseModel):
    size: int = Field(ge=3)


class Outer(BaseModel):
    inner: list[Inner]
    label: str = Field(alias="tag")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Recursive(BaseModel):
    within: list[Recursive] = []


class Mixed(msgspec.Struct):
    outer: Outer
    number: Annotated[int, msgspec.Meta(gt=4, multiple_of=5)]
    either: int | str
    pair: tuple[int, str]


class Verdict(TypedDict):
    reasons: list[str]
    innocent: bool


class Trial(TypedDict):
    verdict: Verdict
    judge: str


CLOSED_KEYED = {
    "title": "Keyed",
    "type": "object",
    "properties": {
        "risk": {"enum": ["high", "low"]},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["risk"],
    "additionalProperties": False,
}


def test_the_schema_of_a_typed_dict() -> None:
    schema = schema_of(Keyed)
    schema["properties"]["risk"]["enum"].sort()
    assert schema == CLOSED_KEYED


@pytest.mark.parametrize("kind", [Keyed, Tree, Held, Outer, Recursive, Mixed])
def test_the_whole_says_that_it_is_an_object(kind: Any) -> None:
    schema = schema_of(kind)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert "$ref" not in schema
    for name in json.dumps(schema).split("#/$defs/")[1:]:
        assert name.split('"')[0] in schema["$defs"]


@pytest.mark.parametrize(
    "kind", [Keyed, Tree, Held, Outer, Open, Recursive, Mixed, list[int], dict[str, Tree]]
)
def test_the_smallest_value_of_a_schema_fits_the_type(kind: Any) -> None:
    validated(smallest_value(schema_of(kind)), kind)


def test_fields_come_in_the_order_in_which_they_were_written() -> None:
    schema = schema_of(Trial)
    assert list(schema["properties"]) == schema["required"] == ["verdict", "judge"]
    (within,) = schema["$defs"].values()
    assert list(within["properties"]) == within["required"] == ["reasons", "innocent"]


def test_nothing_is_defined_that_nobody_needs() -> None:
    assert "$defs" not in schema_of(Keyed)
    assert list(schema_of(Held)["$defs"]) == ["Keyed", "Tree"]
    assert list(schema_of(Outer)["$defs"]) == ["Inner"]


def test_an_open_model_stays_open() -> None:
    assert schema_of(Open)["additionalProperties"] is True


class Unsayable:
    pass


class Astray(TypedDict):
    a: NoSuchType  # noqa: F821 # pyright: ignore[reportUndefinedVariable]


@pytest.mark.parametrize("kind", [Unsayable, complex, list[Unsayable], Astray])
def test_a_type_that_json_cannot_express(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="no JSON schema"):
        schema_of(kind)


def test_an_answer_becomes_its_type() -> None:
    assert validated({"risk": "low"}, Keyed) == {"risk": "low"}
    tree = validated({"name": "a", "branches": [{"name": "b"}]}, Tree)
    assert tree == Tree("a", [Tree("b")])
    held = validated({"tree": {"name": "a"}, "due": "2026-01-31"}, Held)
    assert held.due == date(2026, 1, 31)
    assert validated({"inner": [{"size": 3}], "tag": "t"}, Outer).label == "t"


@pytest.mark.parametrize(
    ("value", "kind", "at"),
    [
        ({}, Keyed, "risk"),
        ({"risk": "middling"}, Keyed, "risk"),
        ({"risk": "low", "notes": [1]}, Keyed, "notes[0]"),
        ({"name": 5}, Tree, "name"),
        ({"name": "a", "branches": [{"name": None}]}, Tree, "branches[0].name"),
        ({"inner": [{"size": 1}], "tag": "t"}, Outer, "inner.0.size"),
        ({"outer": {}, "number": 5, "either": 1, "pair": [1, "a"]}, Mixed, "outer"),
        ("text", Keyed, ""),
        ([], Outer, ""),
        (None, Tree, ""),
    ],
)
def test_an_answer_that_does_not_fit_says_where(value: Any, kind: Any, at: str) -> None:
    with pytest.raises(InvalidAnswer) as caught:
        validated(value, kind)
    assert caught.value.field == at
    assert kind.__name__ in str(caught.value)


async def book(
    room: Annotated[str, "Which one."],
    guests: Annotated[int, msgspec.Meta(ge=1, description="How many.")],
    *,
    day: date = date(2026, 1, 1),
    extras: tuple[str, ...] = ("towel",),
    outer: Outer | None = None,
    anything=None,  # pyright: ignore[reportMissingParameterType]
    ctx: Any,
    idempotency_key: str = "",
) -> str:
    """Book a room
    in the house.

    Nobody tells the model this.
    """
    return room


def test_a_function_is_a_tool() -> None:
    spec, _ = tool_of(book)
    assert spec.name == "book"
    assert spec.description == "Book a room in the house."
    assert spec.parameters["required"] == ["room", "guests"]
    assert spec.parameters["additionalProperties"] is False
    properties = spec.parameters["properties"]
    assert list(properties) == ["room", "guests", "day", "extras", "outer", "anything"]
    assert properties["room"] == {"type": "string", "description": "Which one."}
    assert properties["guests"] == {"type": "integer", "minimum": 1, "description": "How many."}
    assert properties["day"] == {"type": "string", "format": "date", "default": "2026-01-01"}
    assert properties["extras"]["default"] in (["towel"], ("towel",))
    assert properties["anything"] == {}


def test_a_tool_may_be_called_otherwise() -> None:
    spec, convert = tool_of(book, name="reserve", description="Reserve.")
    assert (spec.name, spec.description) == ("reserve", "Reserve.")
    with pytest.raises(InvalidArguments, match="reserve") as caught:
        convert({})
    assert caught.value.tool == "reserve"
    with pytest.raises(InvalidPrompt):
        tool_of(book, name="not a name")


def test_arguments_become_what_the_function_takes() -> None:
    _, convert = tool_of(book)
    assert convert({"room": "a", "guests": 2}) == {"room": "a", "guests": 2}
    full = convert(
        {
            "room": "a",
            "guests": 2,
            "day": "2026-02-03",
            "extras": ["soap"],
            "outer": {"inner": [], "tag": "t"},
            "anything": [1],
        }
    )
    assert full["day"] == date(2026, 2, 3)
    assert full["extras"] == ("soap",)
    assert isinstance(full["outer"], Outer)
    assert full["anything"] == [1]


@pytest.mark.parametrize(
    ("arguments", "at"),
    [
        ({"guests": 1}, "room"),
        ({"room": 5, "guests": 1}, "room"),
        ({"room": "a", "guests": 0}, "guests"),
        ({"room": "a", "guests": 1, "day": "soon"}, "day"),
        ({"room": "a", "guests": 1, "outer": {"inner": "x"}}, "outer"),
        ({"room": "a", "guests": 1, "view": "sea"}, "view"),
        ({"room": "a", "guests": 1, "ctx": {}}, "ctx"),
        ({"room": "a", "guests": 1, "idempotency_key": "k"}, "idempotency_key"),
    ],
)
def test_arguments_that_do_not_fit_can_be_told_to_the_model(
    arguments: dict[str, Any], at: str
) -> None:
    _, convert = tool_of(book)
    with pytest.raises(InvalidArguments, match=at) as caught:
        convert(arguments)
    assert (caught.value.tool, caught.value.field) == ("book", at)


class Desk:
    async def order(self, dish: str, count: int = 1) -> None:
        """Order a dish."""

    def __call__(self, dish: str) -> None:
        """Call the desk."""


def test_methods_and_objects_are_tools_too() -> None:
    spec, convert = tool_of(Desk().order)
    assert list(spec.parameters["properties"]) == ["dish", "count"]
    assert convert({"dish": "soup"}) == {"dish": "soup"}
    called, convert = tool_of(Desk())
    assert called.name == "Desk"
    assert convert({"dish": "soup"}) == {"dish": "soup"}


def test_a_function_that_takes_nothing() -> None:
    def now() -> str:
        return "now"

    schema, convert = arguments_schema(now)
    assert schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert convert({}) == {}


def test_a_default_that_json_cannot_say_is_left_out() -> None:
    def pick(how: Any = functools.partial) -> None: ...

    schema, convert = arguments_schema(pick)
    assert schema["properties"]["how"] == {}
    assert convert({}) == {}


def positional(a: int, /) -> None: ...
def many(*a: int) -> None: ...
def named(**a: int) -> None: ...
def unsayable(a: Unsayable) -> None: ...
def missing(a: NoSuchType) -> None: ...  # noqa: F821 # pyright: ignore[reportUndefinedVariable]


@pytest.mark.parametrize("function", [positional, many, named, unsayable, missing])
def test_a_function_that_no_model_can_call(function: Any) -> None:
    with pytest.raises(InvalidRequest):
        arguments_schema(function)
