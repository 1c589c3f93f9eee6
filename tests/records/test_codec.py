"""The hash of what a call is made with."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

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


def callback(n: int) -> str:
    return f"https://pay.example.org/v1/callbacks/v1.{'a' * n}.sig-_{n}"


@dataclasses.dataclass
class Question:
    text: str


WITH_CALLBACKS = [
    lambda address: address,
    lambda address: f"Pay at <{address}>, or not.",
    lambda address: {"deep": [{"to": (address, 65)}], address: 1},
    lambda address: Question(f"{address}?x"),
    lambda address: f"https://pay.example.org/?back={quote(address, safe='')}&a=b",
    lambda address: msgspec.json.encode({"to": address}),
    lambda address: (10**30, address),
    lambda address: [[address]] * 50_000,
]


@pytest.mark.parametrize("wrap", WITH_CALLBACKS, ids=range(len(WITH_CALLBACKS)))
def test_another_address_of_a_callback_is_the_same_argument(wrap: Callable[[str], Any]) -> None:
    one, other = ((wrap(callback(n)), 65) for n in (40, 41))
    assert one != other
    assert arguments_digest((one, {})) == arguments_digest((other, {}))
    assert arguments_digest((one, {})) != arguments_digest(((one[0], 66), {}))
    elsewhere = wrap(callback(40).replace("pay.", "elsewhere."))
    assert arguments_digest((one, {})) != arguments_digest(((elsewhere, 65), {}))


def test_the_address_of_a_callback_counts_with_its_size() -> None:
    with pytest.raises(ArgumentsTooLarge):
        arguments_digest(((callback(1_000),), {}), 1_000)
    many = [[] for _ in range(900)]
    assert arguments_digest(((callback(40), many), {}), 1_200)


def test_a_word_in_a_text_is_no_callback() -> None:
    text = "/v1/callbacks/ and v1.x"
    assert arguments_digest(((text,), {})).hex() == "6ab11a81cc7923de"
