"""What the types of a state can be, and what becomes of values that have none."""

from __future__ import annotations

import collections
import datetime
import decimal
import math
import re
import types
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NotRequired, Required, TypedDict

import msgspec
import pydantic
import pytest
import typing_extensions

from holdfast.errors import InvalidGraph, InvalidInput, InvalidResult, InvalidState
from holdfast.graph import Graph
from holdfast.graph.state_codec import StateCodec, state_faults
from tests.graph.states import (
    EVERY,
    NOON,
    Color,
    Keyed,
    Line,
    Model,
    PydanticLine,
    packed,
)


class Base(TypedDict, total=False):
    a: Required[int]
    b: Annotated[str, msgspec.Meta(max_length=3)]


class Derived(Base):
    c: Annotated[NotRequired[int], "note"]
    d: int


class Extended(typing_extensions.TypedDict):
    a: typing_extensions.Required[typing_extensions.ReadOnly[int]]
    d: int
    b: typing_extensions.NotRequired[Annotated[str, msgspec.Meta(max_length=3)]]


@pytest.mark.parametrize("kind", [Derived, Extended])
def test_qualifiers_of_keys(kind: Any) -> None:
    state = StateCodec(kind)
    assert state.initial({"a": 1, "d": 2}) == {"a": 1, "d": 2}
    assert state.delta({"b": "abc"}, {"a": 1, "d": 2}) == {"b": "abc"}
    for missing, given in (("a", {"d": 1}), ("d", {"a": 1})):
        with pytest.raises(InvalidInput, match=f"{missing}: it is missing") as caught:
            state.initial(given)
        assert caught.value.field == missing
    with pytest.raises(InvalidResult, match="b: "):
        state.delta({"b": "abcd"}, {"a": 1, "d": 2})


class Named(
    msgspec.Struct, rename="camel", tag=True, omit_defaults=True, forbid_unknown_fields=True
):
    due_date: datetime.date | None = None
    how_many: int | msgspec.UnsetType = msgspec.UNSET


def test_a_struct_that_has_other_names_for_its_fields() -> None:
    state = StateCodec(Named)
    assert state.initial({}) == {"dueDate": None}
    before = state.initial({"dueDate": "2026-01-02"})
    assert before == {"dueDate": "2026-01-02"}
    assert state.typed(before) == Named(due_date=datetime.date(2026, 1, 2))
    assert state.delta({"due_date": None}, before) == {"dueDate": None}
    assert state.delta(Named(), before) == {"dueDate": None}
    assert state.delta({"how_many": 3}, before) == {"howMany": 3}
    with pytest.raises(InvalidResult, match="howMany: a field that was set must not become UNSET"):
        state.delta(Named(), {"howMany": 3})


@dataclass(frozen=True)
class Ordered:
    low: int = 0
    high: int = 10
    width: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is over high")
        if self.high > 1000:
            raise RuntimeError("too high")


class OrderedModel(pydantic.BaseModel):
    low: int = 0
    high: int = 10

    @pydantic.model_validator(mode="after")
    def _check(self) -> OrderedModel:
        if self.low > self.high:
            raise ValueError("low is over high")
        if self.high > 1000:
            raise RuntimeError("too high")
        return self


@pytest.mark.parametrize("kind", [Ordered, OrderedModel])
def test_fields_that_do_not_fit_together(kind: Any) -> None:
    state = StateCodec(kind)
    before = state.initial({})
    assert state.delta({"low": 20, "high": 30}, before) == {"low": 20, "high": 30}
    with pytest.raises(InvalidResult, match="low is over high"):
        state.delta({"low": 20}, before)
    with pytest.raises(InvalidInput, match="low is over high"):
        state.initial({"low": 20})
    with pytest.raises(InvalidState, match="low is over high"):
        state.typed({"low": 20})
    with pytest.raises(InvalidInput, match="RuntimeError: too high"):
        state.initial({"high": 2000})


class Rich(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    site: pydantic.HttpUrl | None = None
    secret: pydantic.SecretStr | None = None
    short: int = pydantic.Field(default=1, alias="theLongName")
    raw: bytes = b""

    @pydantic.computed_field
    @property
    def double(self) -> int:
        return self.short * 2


def test_a_pydantic_model_with_everything() -> None:
    state = StateCodec(Rich)
    before = state.initial(
        {"site": "https://example.com", "theLongName": 3, "raw": b"\xff", "x": 1}
    )
    assert before == {
        "site": "https://example.com/",
        "secret": None,
        "short": 3,
        "raw": b"\xff",
        "x": 1,
    }
    entered = state.typed(before)
    assert entered.site.host == "example.com"
    assert entered.double == 6
    assert state.delta({"short": 4, "more": [1]}, before) == {"short": 4, "more": [1]}
    assert state.delta(entered, before) == {}
    with pytest.raises(InvalidResult, match="secret: its JSON form does not read back"):
        state.delta({"secret": pydantic.SecretStr("x")}, before)
    with pytest.raises(InvalidResult, match=r"site: .*; short: "):
        state.delta({"site": 1, "short": "x"}, before)


class Holder(TypedDict, total=False):
    model: Model
    models: list[Model]


def test_a_pydantic_model_inside_of_another_state() -> None:
    state = StateCodec(Holder)
    delta = state.delta({"models": [Model(id=1, due=NOON)]}, {})
    assert packed(delta) == delta
    assert state.typed(delta) == {"models": [Model(id=1, due=NOON)]}
    with pytest.raises(InvalidResult, match=r"model: id: Input should be a valid integer"):
        state.delta({"model": {"id": "x"}}, {})


def test_a_plain_dict_takes_any_key() -> None:
    state = StateCodec(dict[str, int])
    assert state.initial({"a": 1}) == {"a": 1}
    assert state.typed({"a": 1}) == {"a": 1}
    with pytest.raises(InvalidResult, match="b: "):
        state.delta({"b": "1"}, {})
    with pytest.raises(InvalidResult, match="surrogate"):
        state.delta({"\ud800": 1}, {})
    with pytest.raises(InvalidState, match="a"):
        state.typed({"a": "1"})


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=True)
    short: int = pydantic.Field(alias="theLongName")


class HoldsAliased(TypedDict):
    inner: Aliased


def test_a_model_inside_is_kept_by_the_names_of_its_fields() -> None:
    state = StateCodec(HoldsAliased)
    kept = state.initial({"inner": Aliased(theLongName=1)})
    assert kept == {"inner": {"short": 1}}
    assert state.typed(kept) == {"inner": Aliased(theLongName=1)}


def test_a_model_takes_fields_by_their_names_and_by_their_aliases() -> None:
    state = StateCodec(Aliased)
    for name in ("short", "theLongName"):
        assert state.initial({name: 1}) == {"short": 1}
        assert state.delta({name: 2}, {"short": 1}) == {"short": 2}


class Open(TypedDict):
    some: int | dict[str, Any]


class Mixed(TypedDict, total=False):
    words: set[str]
    either: frozenset[int | str]
    free: Any


def test_a_dict_that_could_be_a_scalar_is_a_copy_too() -> None:
    state = StateCodec(Open)
    kept = state.initial({"some": {"a": [1]}})
    state.typed(kept)["some"]["a"].append(2)
    assert kept == {"some": {"a": [1]}}


@pytest.mark.parametrize("field", ["words", "free"])
def test_equal_sets_are_kept_alike(field: str) -> None:
    state = StateCodec(Mixed)
    words = [f"word {number}" for number in range(100)]
    kept = state.delta({field: set(words)}, {})
    assert kept == {field: sorted(words)}
    assert state.delta({field: set(dict.fromkeys(reversed(words)))}, kept) == {}
    assert state.delta({"free": [({"b", "a"},)]}, {}) == {"free": [[["a", "b"]]]}


def test_sets_of_what_cannot_be_compared_are_kept_as_they_come() -> None:
    state = StateCodec(Mixed)
    given = {"either": frozenset({1, "a"}), "free": {1, "a", None}}
    kept = state.delta(given, {})
    assert state.typed(kept)["either"] == {1, "a"}
    assert set(kept["free"]) == {1, "a", None}


class Text(str):
    def __str__(self) -> str:
        return "something else"


class Number(int): ...


class Share(float): ...


def test_what_becomes_of_values_without_a_declared_type() -> None:
    given = {
        "text": Text("text"),
        "number": Number(5),
        "share": Share(0.5),
        "nan": math.nan,
        "set": {1},
        "tuple": (1, (2,)),
        "date": datetime.date(2026, 1, 2),
        "aware": NOON,
        "naive": NOON.replace(tzinfo=None),
        "struct": Line(decimal.Decimal("1.0")),
        "model": PydanticLine(price=decimal.Decimal("1.0")),
        "color": Color.RED,
        "proxy": types.MappingProxyType({"a": 1}),
        "counter": collections.Counter("a"),
        "bytes": b"\xff",
        "ints": {1: 2},
    }
    kept = StateCodec(dict).delta(given, {})
    assert math.isnan(kept.pop("nan"))
    assert kept == packed(kept)
    assert kept == {
        "text": "text",
        "number": 5,
        "share": 0.5,
        "set": [1],
        "tuple": [1, [2]],
        "date": "2026-01-02",
        "aware": "2026-01-02T12:00:00+02:00",
        "naive": "2026-01-02T12:00:00",
        "struct": {"price": "1.0", "count": 1},
        "model": {"price": "1.0", "count": 1},
        "color": "red",
        "proxy": {"a": 1},
        "counter": {"a": 1},
        "bytes": b"\xff",
        "ints": {1: 2},
    }
    assert {type(kept[name]) for name in ("text", "number", "share")} == {str, int, float}


def test_large_values_are_no_trouble() -> None:
    state = StateCodec(Keyed)
    text = "ü" * 1_000_000
    assert state.delta({"note": text, "free": [text] * 3}, {})["free"][2] == text
    assert len(state.delta({"free": list(range(200_000))}, {})["free"]) == 200_000


class Custom: ...


class WithCustom(TypedDict):
    fine: int
    custom: dict[str, list[Custom]]
    nothing: int | Custom


class WithUnion(TypedDict):
    either: str | datetime.datetime


class Unresolved(TypedDict):
    lost: Nowhere  # noqa: F821


class Recursive(TypedDict):
    inner: NotRequired[Recursive]
    free: NotRequired[Any]
    anything: NotRequired[list[object]]


class ArrayLike(msgspec.Struct, array_like=True):
    id: int


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [
        (
            WithCustom,
            [
                "'custom' of the state: values of Custom cannot be stored",
                "'nothing' of the state: .*Custom",
            ],
        ),
        (WithUnion, ["'either' of the state: Type unions may not contain"]),
        (Unresolved, ["types of Unresolved cannot be resolved: name 'Nowhere' is not defined"]),
        (ArrayLike, ["must not be array_like, got ArrayLike"]),
        (Custom, ["the state must be a TypedDict, .*, got <class"]),
        (list[int], ["the state must be a TypedDict, .*, got list"]),
        (Recursive, []),
        *((kind, []) for kind in EVERY),
    ],
    ids=map(str, range(11)),
)
def test_types_that_could_not_be_kept(kind: Any, reasons: list[str]) -> None:
    found = list(state_faults(kind))
    assert len(found) == len(reasons), found
    for fault, reason in zip(found, reasons, strict=True):
        assert re.search(reason, fault)


def test_a_graph_says_so_before_it_runs() -> None:
    graph = Graph("test", WithUnion)
    graph.node(name="a")(lambda state: None)
    with pytest.raises(InvalidGraph, match="either"):
        graph.start({}, "seed")


def test_an_old_pydantic_is_named() -> None:
    class Old:
        model_fields: ClassVar[dict[str, Any]] = {}

        @classmethod
        def model_validate(cls, values: Any, *, strict: bool | None = None) -> None: ...

    assert list(state_faults(Old)) == ["Old needs pydantic 2.11 or newer"]
