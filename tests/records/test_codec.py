"""The hash of what a call is made with."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from holdfast.errors import ArgumentsTooLarge
from holdfast.records.codec import arguments_digest


class Order(msgspec.Struct):
    amount: int


def itself() -> list[Any]:
    held: list[Any] = [1]
    held += [held, held]
    return held


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        ((("a", 1, 2.5, None, b"x"), {"k": [1, {"b": 2, "a": 1}]}), "603734ce2a9f15c9"),
        (((), {}), "6e10236cda338ff5"),
        (((object(), {3, 1, 2}), {"d": datetime.date(2026, 1, 2)}), "e960bf456912c671"),
    ],
    ids=["plain", "none", "foreign"],
)
def test_a_digest_stays_what_it_was_since_it_is_stored(arguments: Any, digest: str) -> None:
    assert arguments_digest(arguments).hex() == digest


UNFIT = [
    (10**30, "bob"),
    (10**31, "bob"),
    (10**30, "ann"),
    (-(10**30), "bob"),
    ("\ud800",),
    ("\udfff",),
    [10**30, "bob", ()],
    {10**30: "a"},
    {10**30: "b"},
    {10**30, 1},
    Order(10**30),
    Order(10**31),
]


def test_what_has_no_form_in_messagepack_has_a_digest_of_its_own() -> None:
    digests = [arguments_digest((args, {})) for args in UNFIT]
    assert len(set(digests)) == len(UNFIT)
    assert digests == [arguments_digest((args, {})) for args in UNFIT]
    one, other = {"a": 10**30, "b": 2}, {"b": 2, "a": 10**30}
    assert arguments_digest(((), one)) == arguments_digest(((), other))


def test_what_holds_itself_has_a_digest() -> None:
    with pytest.raises(ArgumentsTooLarge):
        arguments_digest((itself(), {}), 4_096)
    alone: list[Any] = []
    alone.append(alone)
    assert arguments_digest((alone, {}), 4_096) == arguments_digest((alone, {}), 4_096)


@pytest.mark.parametrize(
    "args",
    [(10**30, "a" * 5_000), (10**20_000,), ("\ud800" * 2_000,), (2**64, [0] * 5_000)],
    ids=["beside", "int", "text", "many"],
)
def test_what_has_no_form_in_messagepack_has_a_size(args: Any) -> None:
    assert arguments_digest((args, {}), 100_000)
    with pytest.raises(ArgumentsTooLarge, match="of a call of 'pay' have") as refused:
        arguments_digest((args, {}), 4_096, tool="pay")
    assert refused.value.limit == 4_096
    assert (refused.value.size or 0) > 4_096
