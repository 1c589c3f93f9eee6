"""Conditions, updates and ranges as expressions."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.dynamodb.expressions import (
    Placeholders,
    condition_text,
    range_text,
    update_text,
)
from holdfast.storage.layout import Key
from holdfast.storage.operations import WriteItem
from holdfast.storage.ranges import ALL, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.writes import (
    Absent,
    AllOf,
    AnyOf,
    Condition,
    Equals,
    Greater,
    Less,
    Present,
    Put,
    Update,
)


@pytest.mark.parametrize(
    ("condition", "text", "names", "values"),
    [
        (Absent("PK"), "attribute_not_exists(#0)", ["PK"], []),
        (Present("a"), "attribute_exists(#0)", ["a"], []),
        (Equals("a", None), "#0 = :0", ["a"], [{"NULL": True}]),
        (Less("a", 1), "#0 < :0", ["a"], [{"N": "1"}]),
        (Greater("a", b"x"), "#0 > :0", ["a"], [{"B": "eA=="}]),
        (
            AllOf((Equals("a", 1), Equals("a", 1), Absent("b"))),
            "#0 = :0 AND #0 = :1 AND attribute_not_exists(#1)",
            ["a", "b"],
            [{"N": "1"}, {"N": "1"}],
        ),
        (
            AllOf((Present("a"), AnyOf((Present("b"), Present("c"))))),
            "attribute_exists(#0) AND (attribute_exists(#1) OR attribute_exists(#2))",
            ["a", "b", "c"],
            [],
        ),
        # A group of one gets no parentheses, however deep: the service refuses redundant ones.
        (AllOf((AnyOf((AllOf((Present("a"),)),)),)), "attribute_exists(#0)", ["a"], []),
        (
            AnyOf((AllOf((AnyOf((Present("a"), Present("b"))),)), Present("c"))),
            "(attribute_exists(#0) OR attribute_exists(#1)) OR attribute_exists(#2)",
            ["a", "b", "c"],
            [],
        ),
    ],
)
def test_a_condition(condition: Condition, text: str, names: list[str], values: list[Any]) -> None:
    placeholders = Placeholders()
    assert condition_text(condition, placeholders) == text
    assert placeholders.fields() == fields(names, values)


def test_an_update() -> None:
    placeholders = Placeholders()
    update = Update(
        key=Key("p", "s"),
        set={"a": "x", "b": []},
        set_if_absent={"c": 1},
        add={"d": 2, "e": frozenset({"y"})},
        remove=("f", "g"),
    )
    assert update_text(update, placeholders) == (
        "SET #0 = :0, #1 = :1, #2 = if_not_exists(#2, :2) ADD #3 :3, #4 :4 REMOVE #5, #6"
    )
    values = [{"S": "x"}, {"L": []}, {"N": "1"}, {"N": "2"}, {"SS": ["y"]}]
    assert placeholders.fields() == fields(list("abcdefg"), values)


def test_an_update_that_only_removes_has_no_values() -> None:
    placeholders = Placeholders()
    assert update_text(Update(key=Key("p", "s"), remove=("a",)), placeholders) == "REMOVE #0"
    assert placeholders.fields() == fields(["a"], [])


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (ALL, "#0 = :0"),
        (At("x"), "#0 = :0 AND #1 = :1"),
        (Prefix("x"), "#0 = :0 AND begins_with(#1, :1)"),
        (From("x"), "#0 = :0 AND #1 >= :1"),
        (UpTo("x"), "#0 = :0 AND #1 <= :1"),
        (Between("x", "y"), "#0 = :0 AND #1 BETWEEN :1 AND :2"),
    ],
)
def test_a_range(where: Range, text: str) -> None:
    placeholders = Placeholders()
    assert range_text("p", where, placeholders, names=("GSI1PK", "GSI1SK")) == text
    names = ["GSI1PK"] if where is ALL else ["GSI1PK", "GSI1SK"]
    assert list(placeholders.fields()["ExpressionAttributeNames"].values()) == names


# A few of the service's reserved words, and names that no expression could hold as they are.
NAMES = ["status", "ttl", "data", "name", "set", "a.b", "a[0]", "#x", ":y", "a b", "ä", "-"]


async def test_no_name_is_ever_in_the_way(engine: DynamoEngine) -> None:
    key = Key("p", "s")
    await engine.perform(WriteItem(Put({"PK": "p", "SK": "s"}), "nothing"))
    update = Update(
        key=key,
        set=dict.fromkeys(NAMES, "x"),
        add={f"{name}+": 1 for name in NAMES},
        condition=AllOf(tuple(Absent(name) for name in NAMES)),
    )
    answer = await engine.perform(WriteItem(update, "new"))
    assert answer.error is None
    assert answer.value == {
        "PK": "p",
        "SK": "s",
        **dict.fromkeys(NAMES, "x"),
        **{f"{name}+": 1 for name in NAMES},
    }


def fields(names: list[str], values: list[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if names:
        fields["ExpressionAttributeNames"] = {f"#{n}": name for n, name in enumerate(names)}
    if values:
        fields["ExpressionAttributeValues"] = {f":{n}": value for n, value in enumerate(values)}
    return fields
