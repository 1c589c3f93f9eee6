"""Values are measured before they are copied, and what does not fit is told without quoting it."""

from __future__ import annotations

import dataclasses
import enum
import sys
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from holdfast.errors import InvalidAnswer, InvalidArguments
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.graph.schemas import arguments_schema, validated
from holdfast.graph.value_sizes import check_size, estimated_size
from holdfast.graph.values import converted, durable

KB = 1024
MB = KB * KB


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Page:
    words: Any


class Record(msgspec.Struct):
    words: Any


class Model(pydantic.BaseModel):
    words: Any = None


class Foreign:
    """What nobody can look into."""


@contextmanager
def memory_below(bytes_max: int) -> Iterator[None]:
    """Check how much memory is taken at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < bytes_max, f"{peak:,} bytes"


def steps_of(function: Callable[[], object]) -> int:
    """Return how many lines of Python a function takes."""
    steps = 0

    def traced(frame: Any, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += 1
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        function()
    finally:
        sys.settrace(before)
    return steps


# --- how much a value holds -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "each"),
    [
        (lambda count: ["ab"] * count, 1),
        (lambda count: [0] * count, 1),
        (lambda count: dict.fromkeys(range(count)), 2),
        (lambda count: {"deep": [{"er": ("ab",) * (count - 5)}]}, 1),
        (lambda count: set(range(count)), 1),
    ],
    ids=["texts", "numbers", "map", "nested", "set"],
)
def test_a_value_holds_an_element_for_each_8_bytes_of_its_limit(make: Any, each: int) -> None:
    limit = 64 * KB
    most = limit // 8 // each
    kept = durable(make(most), bytes_max=limit)
    check_size(kept, len(msgspec.msgpack.encode(kept)), limit)
    with pytest.raises(TooLarge, match="more than 8,192 elements, keys and values"):
        durable(make(most + 1), bytes_max=limit)
    larger = durable(make(most + 1))
    with pytest.raises(TooLarge, match="more than 8,192 elements, keys and values"):
        check_size(larger, len(msgspec.msgpack.encode(larger)), limit)


@pytest.mark.parametrize("wrap", [list, Page, Record, lambda held: Model(words=held)])
@pytest.mark.parametrize(
    "held",
    [[[] for _ in range(200_000)], [["ab" for _ in range(200_000)]]],
    ids=["containers", "texts"],
)
def test_what_holds_too_much_is_refused_before_it_is_copied(wrap: Any, held: Any) -> None:
    value = wrap(held)
    with memory_below(3 * MB), pytest.raises(TooLarge):
        durable(value, bytes_max=MB)


def test_what_a_limit_allows_takes_a_bounded_multiple_of_it() -> None:
    limit = MB
    for value in (["ab"] * (limit // 8), dict.fromkeys(range(limit // 16)), [[]] * (limit // 16)):
        with memory_below(32 * limit):
            durable(value, bytes_max=limit)


# --- a glimpse ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [Page, Record, lambda held: Model(words=held), OrderedDict, lambda held: [Page(Record(held))]],
    ids=["dataclass", "struct", "model", "mapping", "nested"],
)
def test_a_glimpse_looks_into_objects(wrap: Any) -> None:
    small = wrap({"a": "text"})
    assert estimated_size(small, MB).is_complete
    assert estimated_size(small, MB).bytes <= len(msgspec.msgpack.encode(durable(small)))
    large = estimated_size(wrap({str(number): None for number in range(50_000)}), MB)
    assert large.bytes > 256 * KB or not large.is_complete
    assert estimated_size(wrap({"a": "a" * 2 * MB}), MB).bytes > MB


def test_a_glimpse_looks_into_sets() -> None:
    assert estimated_size({"a" * 1_000}, MB) == (1_002, True)
    assert estimated_size([{1, 2}, frozenset({"ab"})], MB) == (8, True)


def test_what_a_glimpse_cannot_see_is_not_taken_for_small() -> None:
    assert not estimated_size({"a": [Foreign()]}, MB).is_complete
    assert not estimated_size(bytearray(10), MB).is_complete
    assert estimated_size({"a": [Colour.RED]}, MB).is_complete


def test_a_glimpse_takes_no_step_for_each_scalar() -> None:
    for value in ([[], *range(20_000)], ["text", b"bytes", *range(20_000)]):
        assert steps_of(lambda value=value: estimated_size(value, MB)) < 100
    # Of a type of their own there may be any number: it stops after some.
    assert steps_of(lambda: estimated_size([Colour.RED] * 100_000, MB)) < 100_000


# --- keys -----------------------------------------------------------------------------------------


class Pair(tuple[int, int]):
    """A tuple by another name."""


@pytest.mark.parametrize(
    "value",
    [{(1, 2): 3}, [{"a": {(): 1}}], {Pair((1, 2)): 3}, Page({(1, 2): 3}), OrderedDict({(1,): 2})],
    ids=["map", "nested", "subclass", "object", "mapping"],
)
def test_a_tuple_is_no_key_of_a_map(value: Any) -> None:
    with pytest.raises(Mismatch, match="keys of maps must be strings, numbers, bytes or None"):
        durable(value)


def test_every_scalar_is_a_key_of_a_map() -> None:
    keys = {"a": 1, 2: 1, 2.5: 1, True: 1, b"b": 1, None: 1}
    assert durable(keys) == keys
    assert durable({Colour.RED: 1}) == {"red": 1}


# --- what does not fit ----------------------------------------------------------------------------


class Tags(pydantic.BaseModel):
    tags: list[int] = []
    counts: dict[str, int] = {}
    inner: dict[str, Page] = {}


def complaint_about(value: Any) -> InvalidAnswer:
    with pytest.raises(InvalidAnswer) as caught:
        validated(value, Tags)
    return caught.value


def test_many_complaints_are_counted_and_not_built() -> None:
    value = {"tags": ["x"] * 20_000}
    with memory_below(MB):
        assert "20,000 parts of it do not fit" in str(complaint_about(value))


def test_few_complaints_are_told_by_field() -> None:
    error = complaint_about({"tags": ["x", 1, "y"]})
    assert error.field == "tags.0"
    assert "tags.0: Input should be a valid integer" in str(error)
    assert "tags.2: Input should be a valid integer" in str(error)


def test_the_keys_of_maps_are_not_told() -> None:
    error = complaint_about({"counts": {"hush": "x"}, "inner": {"hush": {}}, "tags": "hush"})
    assert error.field == "tags"
    assert "counts.…: Input should be a valid integer" in str(error)
    assert "inner.….words: Field required" in str(error)
    assert "hush" not in str(error)


def test_a_field_is_cut() -> None:
    assert len(str(Mismatch("a" * 10_000, "why").within("b" * 10_000))) < 300


@pytest.mark.parametrize(
    "kind", [set, frozenset, set[Any], list[set[Any]], set[tuple[Any, ...]]], ids=str
)
def test_what_cannot_be_hashed_does_not_fit(kind: Any) -> None:
    with pytest.raises(Mismatch, match="unhashable"):
        converted([[[]]], kind, objects=False)
    with pytest.raises(InvalidAnswer, match="unhashable"):
        validated([[[]]], kind)


def test_a_model_cannot_give_what_cannot_be_hashed() -> None:
    def look(tags: set[Any]) -> None: ...

    _, convert = arguments_schema(look)
    with pytest.raises(InvalidArguments):
        convert({"tags": [[1]]})


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    colour: Literal["red"] = "red"
    kind: Colour = Colour.RED


@pytest.mark.parametrize("value", [{"colour": "hush"}, {"kind": "hush"}, {"hush": 1}], ids=str)
def test_what_does_not_fit_is_not_quoted(value: Any) -> None:
    with pytest.raises(Mismatch) as caught:
        converted(value, Strict, objects=False)
    assert "hush" not in str(caught.value)
    assert "its type" in str(caught.value)
