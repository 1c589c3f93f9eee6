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
    ChangesOff,
    ConditionFailed,
    InvalidItem,
    InvalidKey,
    InvalidQuery,
    InvalidRequest,
    InvalidTransaction,
    InvalidWrite,
    ItemTooLarge,
    StoreClosed,
    TransactionCancelled,
)
from holdfast.storage.layout import Key
from holdfast.storage.meter import Meter
from holdfast.storage.ranges import ALL, At, Between, From, Prefix, Range, UpTo
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


# --- queries -------------------------------------------------------------------------------------

SORT_KEYS = ["A", "B#1", "B#2", "B#10", "Bz", "C", "a", "é", "世", "🙂"]


@pytest.fixture
async def partition(table: Table, pk: str) -> str:
    await table.write_many(Put({"PK": pk, "SK": sk}) for sk in SORT_KEYS)
    await table.write(Put({"PK": f"{pk}-other", "SK": "B#1"}))
    return pk


@pytest.mark.parametrize(
    "where",
    [
        ALL,
        At("C"),
        At("D"),
        Prefix("B#"),
        Prefix("B"),
        Prefix("🙂"),
        Prefix("é"),
        From("B#2"),
        UpTo("B#2"),
        Between("B#1", "C"),
        Between("B#3", "B#9"),
        From("\U0010ffff"),
    ],
    ids=str,
)
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_a_query_reads_its_range_in_order(
    table: Table, partition: str, where: Range, forward: bool, limit: int | None
) -> None:
    def within(sk: str) -> bool:
        match where:
            case At(value):
                return sk == value
            case Prefix(value):
                return sk.startswith(value)
            case From(value):
                return sk >= value
            case UpTo(value):
                return sk <= value
            case Between(first, last):
                return first <= sk <= last
            case _:
                return True

    expected = sorted(filter(within, SORT_KEYS), key=str.encode, reverse=not forward)
    found: list[str] = []
    cursor = None
    while True:
        page = await table.query(
            partition, where, limit=limit, cursor=cursor, forward=forward, eventual=limit is None
        )
        assert limit is None or len(page.items) <= limit
        assert page.items or page.cursor is None
        found += [item["SK"] for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == expected
    everything = [item["SK"] async for item in table.every(partition, where, forward=forward)]
    assert everything == expected


async def test_a_page_ends_where_it_reaches_a_megabyte(kind: Kind, table: Table, pk: str) -> None:
    await table.write_many(Put({"PK": pk, "SK": f"{n}", "text": "x" * 300_000}) for n in range(8))
    sizes = []
    cursor = None
    while True:
        page = await table.query(pk, cursor=cursor)
        sizes.append(len(page.items))
        cursor = page.cursor
        if cursor is None:
            break
    # Four items of 300 KB are the first to reach a megabyte; what is read last may be nothing.
    assert sizes in ([4, 4], [4, 4, 0]) if kind.has("pages") else sizes == [3, 3, 2]
    assert len([item async for item in table.every(pk)]) == 8


async def test_a_cursor_stays_good_when_its_item_is_deleted(table: Table, pk: str) -> None:
    await table.write_many(Put({"PK": pk, "SK": f"{n}"}) for n in range(4))
    page = await table.query(pk, limit=2)
    await table.write_many([Delete(Key(pk, "1")), Put({"PK": pk, "SK": "15"})])
    page = await table.query(pk, cursor=page.cursor)
    assert [item["SK"] for item in page.items] == ["15", "2", "3"]


async def test_an_index_holds_those_that_have_its_keys(kind: Kind, table: Table, pk: str) -> None:
    entry = {"GSI1PK": f"due-{pk}", "GSI1SK": "1", "GSI2PK": f"list-{pk}", "GSI2SK": "1"}
    fields = {"status": "open", "show": {"name": "x"}, "other": "not projected"}
    await table.write(Put({"PK": pk, "SK": "both", **entry, **fields}))
    if kind.has("sparse_indexes"):
        await table.write(Put({"PK": pk, "SK": "half", "GSI1PK": f"due-{pk}"}))
    await table.write(Put({"PK": pk, "SK": "none"}))
    due = await table.query(f"due-{pk}", index="GSI1")
    assert due.items == [{"PK": pk, "SK": "both", "GSI1PK": f"due-{pk}", "GSI1SK": "1"}]
    listed = await table.query(f"list-{pk}", index="GSI2")
    assert listed.items == [
        {
            "PK": pk,
            "SK": "both",
            "GSI2PK": f"list-{pk}",
            "GSI2SK": "1",
            "status": "open",
            "show": {"name": "x"},
        }
    ]


async def test_an_item_moves_within_leaves_and_enters_an_index(table: Table, pk: str) -> None:
    key, due = Key(pk, "a"), f"due-{pk}"

    async def indexed() -> list[str]:
        return [item["GSI1SK"] for item in (await table.query(due, index="GSI1")).items]

    await table.write(Put({"PK": pk, "SK": "a", "GSI1PK": due, "GSI1SK": "1"}))
    assert await indexed() == ["1"]
    await table.write(Update(key=key, set={"GSI1SK": "2"}))
    assert await indexed() == ["2"]
    await table.write(Update(key=key, remove=("GSI1PK", "GSI1SK")))
    assert await indexed() == []
    await table.write(Update(key=key, set={"GSI1PK": due, "GSI1SK": "3"}))
    assert await indexed() == ["3"]
    await table.write(Delete(key))
    assert await indexed() == []


@pytest.mark.parametrize("forward", [True, False])
async def test_an_index_is_paged_also_through_equal_keys(
    table: Table, pk: str, forward: bool
) -> None:
    due = f"due-{pk}"
    await table.write_many(
        Put({"PK": f"{pk}-{n % 3}", "SK": f"{n:02}", "GSI1PK": due, "GSI1SK": f"{n // 5}"})
        for n in range(20)
    )
    seen: list[tuple[str, str]] = []
    cursor = None
    while True:
        page = await table.query(due, index="GSI1", limit=3, cursor=cursor, forward=forward)
        seen += [(item["GSI1SK"], item["SK"]) for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    order = [index_sk for index_sk, _ in seen]
    assert order == sorted(order, reverse=not forward)
    # The order among equal index keys is nobody's promise; that each comes once is.
    assert sorted(sk for _, sk in seen) == [f"{n:02}" for n in range(20)]


async def test_an_index_takes_ranges(table: Table, pk: str) -> None:
    due = f"due-{pk}"
    await table.write_many(
        Put({"PK": pk, "SK": f"{n}", "GSI2PK": due, "GSI2SK": f"{n:02}"}) for n in range(20)
    )
    page = await table.query(due, UpTo("03"), index="GSI2")
    assert [item["GSI2SK"] for item in page.items] == ["00", "01", "02", "03"]
    page = await table.query(due, Prefix("1"), index="GSI2", forward=False, limit=2)
    assert [item["GSI2SK"] for item in page.items] == ["19", "18"]


# --- what is refused -----------------------------------------------------------------------------

BAD_ITEMS: dict[str, tuple[type[InvalidRequest], dict[str, Any], str]] = {
    "too large": (ItemTooLarge, {"text": "x" * 401 * 1024}, "409,600"),
    "too large by its names": (
        ItemTooLarge,
        {"x" * 60_000 + str(n): 1 for n in range(7)},
        "400 KB",
    ),
    "NaN": (InvalidItem, {"n": float("nan")}, "not a number"),
    "decimal NaN": (InvalidItem, {"n": Decimal("NaN")}, "not a number"),
    "infinity": (InvalidItem, {"n": float("-inf")}, "not a number"),
    "an inexact float": (InvalidItem, {"n": 0.1}, r"Decimal\('0.1'\)"),
    "a nested inexact float": (InvalidItem, {"n": [{"deep": 0.1}]}, r"n\[0\].deep"),
    "39 digits": (InvalidItem, {"n": 10**38 + 1}, "39 significant digits; the limit is 38"),
    "too large a number": (InvalidItem, {"n": 10**126}, r"9.99E\+125"),
    "a huge number": (InvalidItem, {"n": 10**10_000}, "bits"),
    "too small a number": (InvalidItem, {"n": Decimal("1E-131")}, "1E-130"),
    "an empty set": (InvalidItem, {"n": set()}, "empty set"),
    "an empty string in a set": (InvalidItem, {"n": {"", "a"}}, "a set with an empty string"),
    "empty bytes in a set": (InvalidItem, {"n": {b""}}, "a set with an empty string"),
    "a mixed set": (InvalidItem, {"n": {1, "a"}}, "mixed"),
    "a set of booleans": (InvalidItem, {"n": {True}}, "unfit"),
    "a tuple": (InvalidItem, {"n": (1, 2)}, "a tuple"),
    "an object": (InvalidItem, {"n": object()}, "an object"),
    "a lone surrogate": (InvalidItem, {"n": "\ud800"}, "surrogate"),
    "an empty name": (InvalidItem, {"": 1}, "empty"),
    "an empty nested name": (InvalidItem, {"n": {"": 1}}, "empty"),
    "a name that is no string": (InvalidItem, {"n": {1: 1}}, "an int, not a string"),
    "a fractional ttl": (InvalidItem, {"ttl": Decimal("1.5")}, "whole seconds"),
    "a textual ttl": (InvalidItem, {"ttl": "1"}, "whole seconds"),
    "a ttl beyond all time": (InvalidItem, {"ttl": 2**63}, "whole seconds"),
    "an empty index key": (InvalidKey, {"GSI1PK": ""}, "GSI1PK is empty"),
    "an index key of another type": (InvalidKey, {"GSI2SK": 1}, "GSI2SK is a string, not int"),
    "an index key of None": (InvalidKey, {"GSI1PK": None}, "GSI1PK is a string"),
    "an index key too long": (
        InvalidKey,
        {"GSI1SK": "x" * 1025},
        "1,025 bytes; the limit is 1,024",
    ),
}


@pytest.mark.parametrize("name", BAD_ITEMS)
async def test_a_bad_item_is_refused_before_anything_is_written(
    table: Table, meter: Meter, pk: str, name: str
) -> None:
    error, attributes, message = BAD_ITEMS[name]
    put = Put({"PK": pk, "SK": "a", **attributes})
    with pytest.raises(error, match=message):
        await table.write(put)
    with pytest.raises(error, match=message):
        await table.transact([Put({"PK": pk, "SK": "b"}), put])
    with pytest.raises(error, match=message):
        await table.write_many([Put({"PK": pk, "SK": "b"}), put])
    if name not in ("too large", "too large by its names"):
        with pytest.raises(error, match=message):
            await table.write(Update(key=Key(pk, "a"), set=attributes))
    assert meter.report().calls == 0
    assert (await table.query(pk)).items == []


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


async def test_values_nest_32_deep(table: Table, pk: str) -> None:
    item = {"PK": pk, "SK": "a", "deep": nested(31)}  # the number is on level 32
    await table.write(Put(item))
    assert await table.get(Key(pk, "a")) == item
    with pytest.raises(InvalidItem, match="32 levels"):
        await table.write(Put({"PK": pk, "SK": "a", "deep": nested(32)}))
    with pytest.raises(InvalidItem, match="32 levels"):
        await table.write(Put({"PK": pk, "SK": "a", "deep": nested(5000)}))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (Key("", "a"), "PK is empty"),
        (Key("a", ""), "SK is empty"),
        (Key("x" * 2049, "a"), "PK has 2,049 bytes; the limit is 2,048"),
        (Key("a", "é" * 513), "SK has 1,026 bytes; the limit is 1,024"),
        (Key(1, "a"), "PK is a string, not int"),  # type: ignore[arg-type]
        (Key("a", b"b"), "SK is a string, not bytes"),  # type: ignore[arg-type]
        (Key("a", "\udc00"), "surrogate"),
        ("a", r"Key\(pk, sk\)"),
        (None, r"Key\(pk, sk\)"),
    ],
    ids=itertools.count(),
)
async def test_a_bad_key_is_refused(table: Table, meter: Meter, key: Any, message: str) -> None:
    calls = [
        table.get(key),
        table.get_many([key]),
        table.write(Delete(key)),
        table.write(Update(key=key, set={"n": 1})),
        table.transact([Check(key, NEW)]),
    ]
    for call in calls:
        with pytest.raises(InvalidKey, match=message):
            await call
    if isinstance(key, Key):
        with pytest.raises(InvalidRequest, match=message):
            await table.write(Put({"PK": key.pk, "SK": key.sk}))
    assert meter.report().calls == 0


async def test_get_many_takes_keys(table: Table) -> None:
    with pytest.raises(InvalidKey, match="several keys"):
        await table.get_many(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="a purpose is a string"):
        table.purpose(None)  # type: ignore[arg-type]


async def test_the_longest_keys_are_taken(table: Table, pk: str) -> None:
    key = Key(pk + "x" * (2048 - len(pk)), "y" * 1024)
    await table.write(Put({"PK": key.pk, "SK": key.sk}))
    assert await table.get(key) == {"PK": key.pk, "SK": key.sk}


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (Put({"SK": "a"}), "no PK"),
        (Put({"PK": "a"}), "no SK"),
        (Put([1]), "a dict of attributes, not a list"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b")), "at least one"),
        (Update(key=Key("a", "b"), set={"PK": "c"}), "cannot be changed"),
        (Update(key=Key("a", "b"), remove=("SK",)), "cannot be changed"),
        (Update(key=Key("a", "b"), set={"n": 1}, remove=("n",)), "twice"),
        (Update(key=Key("a", "b"), set={"n": 1}, add={"n": 1}), "twice"),
        (Update(key=Key("a", "b"), add={"n": "text"}), "only a number or a set"),
        (Update(key=Key("a", "b"), add={"n": True}), "only a number or a set"),
        (Update(key=Key("a", "b"), add={"GSI1PK": 1}), "nothing can be added"),
        (Update(key=Key("a", "b"), add={"ttl": 1}), "nothing can be added to ttl"),
        (Update(key=Key("a", "b"), set=None), "set is a dict"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), add=[("n", 1)]), "add is a dict"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), remove="on"), "remove is a tuple"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), remove=(n for n in "a")), "remove is a tuple"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), remove=([],)), "an attribute name is a list"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), add={"\ud800": 1}), "surrogate"),
        (Update(key=Key("a", "b"), remove=("\ud800",)), "surrogate"),
        (Update(key=Key("a", "b"), add={"x" * 70_000: 1}), "65,535"),
        (Put({"PK": "a", "SK": "b"}, Absent("\ud800")), "surrogate"),
        (Put({"PK": "a", "SK": "b"}, AllOf(5)), "hold a tuple"),  # type: ignore[arg-type]
        (Put({"PK": "a", "SK": "b"}, AllOf(c for c in [NEW])), "hold a tuple"),  # type: ignore[arg-type]
        (Put({"PK": "a", "SK": "b"}, token="\ud800"), "1 to 64 bytes"),
        (Put({"PK": "a", "SK": "b"}, token=7), "1 to 64 bytes"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), set={"_token": "t"}), "_token"),
        (Update(key=Key("a", "b"), remove=("_token",)), "_token"),
        (Update(key=Key("a", "b"), set={f"n{n}": 1 for n in range(101)}), "at most 100"),
        (Put({"PK": "a", "SK": "b"}, token=""), "1 to 64 bytes"),
        (Put({"PK": "a", "SK": "b"}, token="x" * 65), "1 to 64 bytes"),
        (Put({"PK": "a", "SK": "b"}, Less("n", [1])), "not than list"),  # type: ignore[arg-type]
        (Put({"PK": "a", "SK": "b"}, Greater("n", True)), "not than bool"),
        (Put({"PK": "a", "SK": "b"}, AllOf(())), "at least one condition"),
        (Put({"PK": "a", "SK": "b"}, Absent("")), "an attribute name is empty"),
        (Put({"PK": "a", "SK": "b"}, "absent"), "not a condition"),  # type: ignore[arg-type]
        (Put({"PK": "a", "SK": "b"}, AnyOf((NEW,) * 100)), "at most 60 parts"),
        ("put", "a Put, an Update or a Delete"),
        (Check(Key("a", "b"), NEW), "a Put, an Update or a Delete"),
    ],
    ids=itertools.count(),
)
async def test_a_senseless_write_is_refused(
    table: Table, meter: Meter, write: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await table.write(write)
    assert meter.report().calls == 0


async def test_a_condition_nested_without_end_is_refused(table: Table, pk: str) -> None:
    condition: Condition = NEW
    for _ in range(10_000):
        condition = AllOf((condition,))
    with pytest.raises(InvalidWrite, match="at most 60 parts"):
        await table.write(Put({"PK": pk, "SK": "a"}, condition))


async def test_the_largest_condition_and_update_are_taken(table: Table, pk: str) -> None:
    condition = AllOf(tuple(AnyOf((Absent(f"name{n}"), Equals(f"n{n}", n))) for n in range(19)))
    names = [f"attribute{n}" for n in range(100)]
    update = Update(key=Key(pk, "a"), set_if_absent=dict.fromkeys(names, 1), condition=condition)
    await table.write(update)
    found = await table.get(Key(pk, "a"))
    assert found is not None
    assert len(found) == 102


async def test_a_bad_transaction_is_refused(table: Table, meter: Meter, pk: str) -> None:
    put = Put({"PK": pk, "SK": "a"})
    large = [Put({"PK": pk, "SK": f"{n}", "text": "x" * 390_000}) for n in range(11)]
    for writes, message in (
        ([], "1 to 100 writes, not 0"),
        ([Put({"PK": pk, "SK": f"{n}"}) for n in range(101)], "1 to 100 writes, not 101"),
        ([put, Check(Key(pk, "a"), NEW)], "twice"),
        (large, "4,194,304"),
        (None, "a list of writes"),
        ((put for _ in range(2)), "a list of writes"),
    ):
        with pytest.raises(InvalidTransaction, match=message):
            await table.transact(writes)  # type: ignore[arg-type]
    assert meter.report().calls == 0
    assert (await table.query(pk)).items == []


async def test_a_bad_batch_is_refused(table: Table, pk: str) -> None:
    put = Put({"PK": pk, "SK": "a"})
    for writes, message in (
        ([put, Delete(Key(pk, "a"))], "twice"),
        ([Put({"PK": pk, "SK": "a"}, NEW)], "condition"),
        ([Update(key=Key(pk, "a"), set={"n": 1})], "Puts and Deletes"),
        (None, "several writes"),
    ):
        with pytest.raises(InvalidWrite, match=message):
            await table.write_many(writes)  # type: ignore[arg-type]
    assert (await table.query(pk)).items == []


async def test_a_bad_query_is_refused(table: Table, meter: Meter, pk: str) -> None:
    await table.write_many(Put({"PK": pk, "SK": f"{n}"}) for n in range(3))
    cursor = (await table.query(pk, limit=1)).cursor
    calls = meter.report().calls
    for query, message in (
        (table.query(pk, index="GSI3"), "no index 'GSI3'; there are GSI1, GSI2"),
        (table.query(pk, limit=0), "limit is a whole number"),
        (table.query(pk, limit=1.5), "limit is a whole number"),  # type: ignore[arg-type]
        (table.query(pk, Between("b", "a")), "before it begins"),
        (table.query(pk, "a"), "a range is one of"),  # type: ignore[arg-type]
        (table.query(pk, cursor="???"), "damaged"),
        (table.query(pk, cursor=""), "damaged"),
        (table.query(pk, cursor=7), "damaged"),  # type: ignore[arg-type]
        (table.query("another", cursor=cursor), "another query"),
        (table.query(pk, index="GSI1", cursor=cursor), "another query"),
    ):
        with pytest.raises(InvalidQuery, match=message):
            await query
    for where in (Prefix(""), At("x" * 1025)):
        with pytest.raises(InvalidKey):
            await table.query(pk, where)
    with pytest.raises(InvalidKey):
        await table.query("")
    assert meter.report().calls == calls


async def test_changes_that_are_not_kept_cannot_be_read(table: Table) -> None:
    with pytest.raises(ChangesOff):
        await table.changes()
    with pytest.raises(InvalidQuery, match="1 to 1000"):
        await table.changes(limit=1001)


async def test_operations_are_metered_under_their_purpose(
    table: Table, meter: Meter, pk: str
) -> None:
    journal = table.purpose("journal")
    await journal.write(Put({"PK": pk, "SK": "a"}, NEW))
    with pytest.raises(ConditionFailed):
        await journal.write(Put({"PK": pk, "SK": "a"}, NEW))
    await table.get(Key(pk, "a"))
    await table.purpose("lists").query(pk)
    rows = [(row.purpose, row.operation, row.calls) for row in meter.report().rows]
    assert rows == [("journal", "write", 2), ("lists", "query", 1), ("other", "get", 1)]
    assert meter.report().by_purpose()["journal"].writes == 2


async def test_after_closing_nothing_is_taken(kind: Kind, meter: Meter, pk: str) -> None:
    table = Table(kind.open(), meter)
    await table.write(Put({"PK": pk, "SK": "a"}))
    await table.close()
    await table.close()
    with pytest.raises(StoreClosed):
        await table.get(Key(pk, "a"))
    with pytest.raises(StoreClosed):
        await table.write(Put({"PK": pk, "SK": "a"}))
