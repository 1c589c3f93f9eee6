"""What `Table` promises, on every engine: the same file runs on all four.

Where an engine falls short of the service of today, `kind.has(...)` says so in the test.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from decimal import Decimal
from typing import Any

import pytest

from holdfast.errors import (
    ConditionFailed,
    InvalidRequest,
    InvalidWrite,
    ItemTooLarge,
    TransactionCancelled,
)
from holdfast.storage.layout import Key
from holdfast.storage.table import Table
from holdfast.storage.writes import (
    Absent,
    AllOf,
    AnyOf,
    Check,
    Condition,
    Delete,
    Equals,
    Greater,
    Less,
    Present,
    Put,
    Update,
)
from tests.contract.kinds import Kind

NEW = Absent("PK")

# Names that DynamoDB's expressions reserve, or that would break one which was put together as text.
AWKWARD_NAMES = ("ttl2", "status", "data", "size", "NULL", "a b", "a.b", "#n", ":v0", "é", "[0]")


# --- reading and writing whole items -------------------------------------------------------------


async def test_what_was_put_is_got(table: Table, pk: str) -> None:
    item = {
        "PK": pk,
        "SK": "a",
        "text": "grüße, 世界, 🙂",
        "whole": 42,
        "negative": -7,
        "large": 10**37,
        "exact": Decimal("0.1"),
        "bytes": b"\x00\xff",
        "yes": True,
        "no": False,
        "nothing": None,
        "list": [1, "two", [3, None]],
        "map": {"deep": {"deeper": [Decimal("1.5")]}},
        "strings": frozenset({"a", "b"}),
        "numbers": frozenset({1, Decimal("2.5")}),
        "binaries": frozenset({b"a", b"b"}),
    }
    await table.write(Put(item))
    found = await table.get(Key(pk, "a"))
    assert found == item
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in item.items()
    }


async def test_empty_text_and_bytes_are_kept(kind: Kind, table: Table, pk: str) -> None:
    item = {"PK": pk, "SK": "a", "text": "", "bytes": b"", "list": [""], "map": {"a": ""}}
    if kind.has("empty_strings"):
        await table.write(Put(item))
        assert await table.get(Key(pk, "a")) == item
    else:
        with pytest.raises(InvalidRequest):
            await table.write(Put(item))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (Decimal("1.0"), 1),
        (Decimal("1E+2"), 100),
        (Decimal("-0"), 0),
        (Decimal("0.10"), Decimal("0.1")),
        (Decimal("1E-130"), Decimal("1E-130")),
        (10**125, 10**125),
        (Decimal("1234567890123456789012345678901234567.8"),) * 2,
        (0.5, Decimal("0.5")),
        (-2.0, -2),
        ({1, 2}, frozenset({1, 2})),
    ],
    ids=itertools.count(),
)
async def test_numbers_and_sets_come_back_in_one_form(
    table: Table, pk: str, given: Any, kept: Any
) -> None:
    await table.write(Put({"PK": pk, "SK": "a", "value": given}))
    found = await table.get(Key(pk, "a"))
    assert found is not None
    assert found["value"] == kept
    assert type(found["value"]) is type(kept)


async def test_nothing_is_found_where_nothing_was_put(table: Table, pk: str) -> None:
    assert await table.get(Key(pk, "a")) is None
    assert await table.get(Key(pk, "a"), eventual=True) is None


async def test_a_put_replaces_the_whole_item(table: Table, pk: str) -> None:
    await table.write(Put({"PK": pk, "SK": "a", "old": 1}))
    await table.write(Put({"PK": pk, "SK": "a", "new": 2}))
    assert await table.get(Key(pk, "a")) == {"PK": pk, "SK": "a", "new": 2}


async def test_a_callers_item_is_not_kept_by_reference(table: Table, pk: str) -> None:
    item: dict[str, Any] = {"PK": pk, "SK": "a", "list": [1]}
    writing = asyncio.ensure_future(table.write(Put(item)))
    begun = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(begun.set_result, None)
    await begun  # the write is under way, and not yet answered
    assert not writing.done()
    item["list"].append(2)
    item["more"] = 1
    await writing
    assert await table.get(Key(pk, "a")) == {"PK": pk, "SK": "a", "list": [1]}


async def test_deleting_is_idempotent(table: Table, pk: str) -> None:
    await table.write(Put({"PK": pk, "SK": "a"}))
    await table.write(Delete(Key(pk, "a")))
    await table.write(Delete(Key(pk, "a")))
    assert await table.get(Key(pk, "a")) is None


async def test_a_write_returns_the_old_or_the_new_item(table: Table, pk: str) -> None:
    key, first, second = Key(pk, "a"), {"PK": pk, "SK": "a", "n": 1}, {"PK": pk, "SK": "a", "n": 2}
    assert await table.write(Put(first), returning="old") is None
    assert await table.write(Put(first), returning="new") == first
    assert await table.write(Put(second), returning="old") == first
    assert await table.write(Update(key=key, add={"n": 1}), returning="old") == second
    assert await table.write(Update(key=key, add={"n": 1}), returning="new") == {**second, "n": 4}
    assert await table.write(Update(key=key, add={"n": 1})) is None
    assert await table.write(Delete(key), returning="new") is None
    assert await table.write(Delete(key), returning="old") is None
    await table.write(Put(first))
    assert await table.write(Delete(key), returning="old") == first


async def test_many_items_are_got_in_the_order_of_their_keys(table: Table, pk: str) -> None:
    count = 230  # more than two batches of 100
    await table.write_many(Put({"PK": pk, "SK": f"{n:03}", "n": n}) for n in range(0, count, 2))
    keys = [Key(pk, f"{n:03}") for n in reversed(range(count))]
    found = await table.get_many(keys)
    assert [item and item["n"] for item in found] == [
        n if n % 2 == 0 else None for n in reversed(range(count))
    ]
    twice = await table.get_many([Key(pk, "000"), Key(pk, "000"), Key(pk, "001")], eventual=True)
    assert [item and item["n"] for item in twice] == [0, 0, None]
    assert await table.get_many([]) == []


async def test_many_writes_put_and_delete(table: Table, pk: str) -> None:
    await table.write_many(Put({"PK": pk, "SK": f"{n:03}", "text": "x" * 100}) for n in range(60))
    await table.write_many(
        [
            *(Delete(Key(pk, f"{n:03}")) for n in range(50)),
            Put({"PK": pk, "SK": "055", "n": 1}, token="t"),
        ]
    )
    items = (await table.query(pk)).items
    assert [item["SK"] for item in items] == [f"{n:03}" for n in range(50, 60)]
    assert items[5] == {"PK": pk, "SK": "055", "n": 1, "_token": "t"}
    await table.write_many([])


# --- updates -------------------------------------------------------------------------------------


async def test_an_update_changes_only_what_it_names(table: Table, pk: str) -> None:
    key = Key(pk, "a")
    await table.write(
        Put({"PK": pk, "SK": "a", "kept": 1, "set": 1, "sum": 1, "gone": 1, "tags": {"x"}})
    )
    new = await table.write(
        Update(
            key=key,
            set={"set": "two", "fresh": [1]},
            set_if_absent={"kept": 9, "default": 9},
            add={"sum": Decimal("0.5"), "count": 3, "tags": {"y"}, "more": {b"z"}},
            remove=("gone", "never"),
        ),
        returning="new",
    )
    assert new == await table.get(key)
    assert new == {
        "PK": pk,
        "SK": "a",
        "kept": 1,
        "set": "two",
        "fresh": [1],
        "default": 9,
        "sum": Decimal("1.5"),
        "count": 3,
        "tags": frozenset({"x", "y"}),
        "more": frozenset({b"z"}),
    }


async def test_an_update_makes_the_item_where_there_is_none(table: Table, pk: str) -> None:
    await table.write(Update(key=Key(pk, "a"), add={"n": 5}, remove=("other",)))
    assert await table.get(Key(pk, "a")) == {"PK": pk, "SK": "a", "n": 5}


@pytest.mark.parametrize("name", AWKWARD_NAMES)
async def test_no_attribute_name_is_in_the_way(table: Table, pk: str, name: str) -> None:
    key = Key(pk, "a")
    await table.write(Put({"PK": pk, "SK": "a", name: 1}, Absent(name)))
    await table.write(Update(key=key, add={name: 1}, condition=Equals(name, 1)))
    await table.write(Update(key=key, set={name: 3}, condition=Present(name)))
    assert await table.get(key) == {"PK": pk, "SK": "a", name: 3}
    await table.write(Update(key=key, remove=(name,), set_if_absent={f"{name}2": 1}))
    assert await table.get(key) == {"PK": pk, "SK": "a", f"{name}2": 1}


@pytest.mark.parametrize(
    ("standing", "added"),
    [("text", 1), (None, 1), (True, 1), ([1], 1), (1, {1}), ({"a"}, {1}), ({"a"}, 1), ("a", {"a"})],
    ids=itertools.count(),
)
async def test_adding_to_another_type_is_refused(
    table: Table, pk: str, standing: Any, added: Any
) -> None:
    item = {"PK": pk, "SK": "a", "value": standing}
    await table.write(Put(item))
    before = await table.get(Key(pk, "a"))
    with pytest.raises(InvalidWrite):
        await table.write(Update(key=Key(pk, "a"), add={"value": added}))
    with pytest.raises(InvalidWrite):
        await table.transact(
            [Update(key=Key(pk, "a"), add={"value": added}), Put({"PK": pk, "SK": "b"})]
        )
    assert await table.get(Key(pk, "a")) == before
    assert await table.get(Key(pk, "b")) is None


@pytest.mark.needs("exact_sums")
async def test_sums_are_exact_or_refused(table: Table, pk: str) -> None:
    key, most = Key(pk, "a"), 10**38 - 1
    await table.write(Put({"PK": pk, "SK": "a", "n": most - 1}))
    assert await table.write(Update(key=key, add={"n": 1}), returning="new") == {
        "PK": pk,
        "SK": "a",
        "n": most,
    }
    with pytest.raises(InvalidRequest):
        await table.write(Update(key=key, add={"n": Decimal("0.1")}))
    found = await table.write(Update(key=key, add={"n": 1}), returning="new")
    assert found is not None
    assert found["n"] == 10**38


@pytest.mark.needs("whole_updates")
async def test_an_update_that_is_refused_changes_nothing(table: Table, pk: str) -> None:
    item = {"PK": pk, "SK": "a", "text": "x", "gone": 1}
    await table.write(Put(item))
    update = Update(key=Key(pk, "a"), set={"new": 1}, add={"text": 1}, remove=("gone",))
    with pytest.raises(InvalidWrite):
        await table.write(update)
    assert await table.get(Key(pk, "a")) == item


async def test_an_update_cannot_make_an_item_too_large(table: Table, pk: str) -> None:
    key = Key(pk, "a")
    await table.write(Put({"PK": pk, "SK": "a", "first": "x" * 300_000}))
    with pytest.raises(ItemTooLarge, match="400 KB"):
        await table.write(Update(key=key, set={"second": "x" * 200_000}))
    found = await table.get(key)
    assert found is not None
    assert "second" not in found


# --- conditions ----------------------------------------------------------------------------------

TYPED = pytest.mark.needs("typed_comparisons")
STANDING = {"n": 5, "text": "m", "flag": True, "tags": frozenset({"a", "b"}), "list": [1, {"a": 1}]}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Absent("none"), True),
        (Absent("n"), False),
        (Present("n"), True),
        (Present("none"), False),
        (Equals("n", 5), True),
        (Equals("n", Decimal("5.00")), True),
        (Equals("n", 6), False),
        (Equals("n", "5"), False),
        (Equals("none", 5), False),
        pytest.param(Equals("none", None), False, marks=TYPED),
        (Equals("flag", True), True),
        pytest.param(Equals("flag", 1), False, marks=TYPED),
        pytest.param(Equals("n", True), False, marks=TYPED),
        (Equals("tags", {"b", "a"}), True),
        (Equals("tags", {"a"}), False),
        (Equals("list", [1, {"a": 1}]), True),
        pytest.param(Equals("list", [1, {"a": True}]), False, marks=TYPED),
        (Less("n", 6), True),
        (Less("n", Decimal("5.1")), True),
        (Less("n", 5), False),
        pytest.param(Less("n", "6"), False, marks=TYPED),
        (Less("none", 6), False),
        (Less("text", "n"), True),
        pytest.param(Less("text", b"n"), False, marks=TYPED),
        (Greater("n", 4), True),
        (Greater("n", 5), False),
        (Greater("text", "M"), True),
        (Greater("none", 0), False),
        (AllOf((Present("n"), Equals("text", "m"))), True),
        (AllOf((Present("n"), Equals("text", "x"))), False),
        (AnyOf((Present("none"), Equals("text", "m"))), True),
        (AnyOf((Present("none"), Equals("text", "x"))), False),
        (AnyOf((Absent("PK"), AllOf((Less("n", 9), Greater("n", 1))))), True),
        (AllOf((AnyOf((Absent("n"), Absent("text"))), Present("n"))), False),
    ],
    ids=itertools.count(),
)
async def test_a_condition_decides(
    table: Table, pk: str, condition: Condition, holds: bool
) -> None:
    key = Key(pk, "a")
    item = {"PK": pk, "SK": "a", **STANDING}
    await table.write(Put(item))
    writes = [
        Update(key=key, set={"seen": 1}, condition=condition),
        Put(item, condition),
        Delete(key, condition),
    ]
    for write in writes:
        if holds:
            await table.write(write)
        else:
            with pytest.raises(ConditionFailed):
                await table.write(write)
    assert await table.get(key) == (None if holds else item)


@pytest.mark.parametrize(
    "condition", [Present("PK"), Equals("n", 1), Less("n", 1), Greater("n", 1)]
)
async def test_conditions_where_nothing_stands(table: Table, pk: str, condition: Condition) -> None:
    for write in (
        Put({"PK": pk, "SK": "a"}, condition),
        Update(key=Key(pk, "a"), set={"n": 1}, condition=condition),
        Delete(Key(pk, "a"), condition),
    ):
        with pytest.raises(ConditionFailed) as failed:
            await table.write(write)
        assert failed.value.item is None
    assert await table.get(Key(pk, "a")) is None


async def test_a_failed_condition_shows_what_stood_in_the_way(table: Table, pk: str) -> None:
    item = {"PK": pk, "SK": "a", "epoch": 4, "owner": "somebody"}
    await table.write(Put(item, NEW))
    for write in (
        Put({"PK": pk, "SK": "a", "epoch": 1}, NEW),
        Update(key=Key(pk, "a"), set={"epoch": 5}, condition=Equals("epoch", 3)),
        Delete(Key(pk, "a"), Less("epoch", 4)),
    ):
        with pytest.raises(ConditionFailed) as failed:
            await table.write(write)
        assert failed.value.item == item
    assert await table.get(Key(pk, "a")) == item


@pytest.mark.needs("isolation")
async def test_one_of_many_racing_writers_wins(table: Table, pk: str) -> None:
    async def race(n: int) -> int | None:
        try:
            await table.write(Put({"PK": pk, "SK": "a", "winner": n}, NEW))
        except ConditionFailed as failed:
            obstacles.append(failed.item)
            return None
        return n

    obstacles: list[Any] = []
    winners = [n for n in await asyncio.gather(*map(race, range(20))) if n is not None]
    assert len(winners) == 1
    assert obstacles == [{"PK": pk, "SK": "a", "winner": winners[0]}] * 19
    assert await table.get(Key(pk, "a")) == {"PK": pk, "SK": "a", "winner": winners[0]}


@pytest.mark.needs("isolation")
async def test_concurrent_additions_all_count(table: Table, pk: str) -> None:
    key = Key(pk, "a")
    await asyncio.gather(*(table.write(Update(key=key, add={"n": 1})) for _ in range(30)))
    assert await table.get(key) == {"PK": pk, "SK": "a", "n": 30}


class Text(enum.StrEnum):
    """Text that is not quite plain text."""

    SK = "a"
    TOKEN = "t"


async def test_enumerations_serve_as_keys_and_tokens(table: Table, pk: str) -> None:
    key = Key(pk, Text.SK)
    await table.write(Put({"PK": pk, "SK": Text.SK, "n": 1}, token=Text.TOKEN))
    await table.write(Update(key=key, add={"n": 1}, token=Text.TOKEN))
    found = await table.get(key)
    assert found == {"PK": pk, "SK": "a", "n": 2, "_token": "t"}
    assert {type(found["SK"]), type(found["_token"])} == {str}


async def test_an_item_that_was_read_can_be_put_again(table: Table, pk: str) -> None:
    await table.write(Put({"PK": pk, "SK": "a", "n": 1}, token="first"))
    item = await table.get(Key(pk, "a"))
    assert item is not None
    await table.write(Put({**item, "n": 2}))
    assert await table.get(Key(pk, "a")) == {"PK": pk, "SK": "a", "n": 2}
    await table.write(Put({**item, "n": 3}, token="second"))
    assert await table.get(Key(pk, "a")) == {"PK": pk, "SK": "a", "n": 3, "_token": "second"}


async def test_a_token_is_kept_in_the_item(table: Table, pk: str) -> None:
    await table.write(Put({"PK": pk, "SK": "a", "n": 1}, NEW, token="first"))
    with pytest.raises(ConditionFailed) as failed:
        await table.write(Put({"PK": pk, "SK": "a", "n": 1}, NEW, token="second"))
    assert failed.value.item == {"PK": pk, "SK": "a", "n": 1, "_token": "first"}
    await table.write(Update(key=Key(pk, "a"), add={"n": 1}, token="third"))
    assert await table.get(Key(pk, "a")) == {"PK": pk, "SK": "a", "n": 2, "_token": "third"}


# --- transactions --------------------------------------------------------------------------------


async def test_a_transaction_does_all(table: Table, pk: str) -> None:
    await table.write_many(Put({"PK": pk, "SK": sk, "n": 1}) for sk in ("check", "gone", "sum"))
    await table.transact(
        [
            Put({"PK": pk, "SK": "put"}, NEW, token="t"),
            Update(key=Key(pk, "sum"), add={"n": 2}, condition=Equals("n", 1)),
            Delete(Key(pk, "gone"), Present("PK")),
            Check(Key(pk, "check"), Equals("n", 1)),
        ]
    )
    assert (await table.query(pk)).items == [
        {"PK": pk, "SK": "check", "n": 1},
        {"PK": pk, "SK": "put", "_token": "t"},
        {"PK": pk, "SK": "sum", "n": 3},
    ]


async def test_a_transaction_does_all_or_nothing(table: Table, pk: str) -> None:
    stands = {"PK": pk, "SK": "stands", "n": 1}
    await table.write(Put(stands))
    with pytest.raises(TransactionCancelled) as cancelled:
        await table.transact(
            [
                Put({"PK": pk, "SK": "put"}),
                Update(key=Key(pk, "stands"), add={"n": 2}, condition=Equals("n", 7)),
                Delete(Key(pk, "none"), Present("PK")),
                Check(Key(pk, "none2"), NEW),
            ]
        )
    assert cancelled.value.failed == (1, 2)
    assert cancelled.value.items == {1: stands}
    assert (await table.query(pk)).items == [stands]


async def test_a_hundred_writes_make_a_transaction(kind: Kind, table: Table, pk: str) -> None:
    count = 100 if kind.has("large_transactions") else 10
    await table.transact([Put({"PK": pk, "SK": f"{n:03}"}, NEW) for n in range(count)])
    assert len((await table.query(pk)).items) == count


@pytest.mark.needs("isolation")
async def test_racing_transactions_serialize(table: Table, pk: str) -> None:
    """Each moves 1 from one account to the other, while there is one: five succeed."""
    await table.write_many(
        [Put({"PK": pk, "SK": "from", "n": 5}), Put({"PK": pk, "SK": "to", "n": 0})]
    )

    async def move() -> bool:
        try:
            await table.transact(
                [
                    Update(key=Key(pk, "from"), add={"n": -1}, condition=Greater("n", 0)),
                    Update(key=Key(pk, "to"), add={"n": 1}),
                ]
            )
        except TransactionCancelled:
            return False
        return True

    moved = await asyncio.gather(*(move() for _ in range(8)))
    assert sum(moved) == 5
    assert [item["n"] for item in (await table.query(pk)).items] == [0, 5]
