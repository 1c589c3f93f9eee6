"""What `Table` refuses, on every engine: before anything is sent, with an error that says why."""

from __future__ import annotations

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
)
from holdfast.storage.layout import Key
from holdfast.storage.meter import Meter
from holdfast.storage.ranges import At, Between, Prefix
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
    Put,
    Update,
)
from tests.contract.kinds import Kind

NEW = Absent("PK")

BAD_ITEMS: dict[str, tuple[type[InvalidRequest], dict[str, Any], str]] = {
    "too large": (ItemTooLarge, {"text": "x" * 401 * 1024}, "409,600"),
    "too large by its names": (
        ItemTooLarge,
        {"x" * 60_000 + str(n): 1 for n in range(7)},
        "400 KB",
    ),
    "NaN": (InvalidItem, {"n": float("nan")}, "finite number"),
    "decimal NaN": (InvalidItem, {"n": Decimal("NaN")}, "finite number"),
    "infinity": (InvalidItem, {"n": float("-inf")}, "finite number"),
    "an inexact float": (InvalidItem, {"n": 0.1}, r"Decimal\('0.1'\)"),
    "a nested inexact float": (InvalidItem, {"n": [{"deep": 0.1}]}, r"n\[0\].deep"),
    "39 digits": (InvalidItem, {"n": 10**38 + 1}, "38 significant digits, got 39"),
    "too large a number": (InvalidItem, {"n": 10**126}, r"9.99E\+125"),
    "a huge number": (InvalidItem, {"n": 10**10_000}, "bits"),
    "too small a number": (InvalidItem, {"n": Decimal("1E-131")}, "1E-130"),
    "an empty set": (InvalidItem, {"n": set()}, "empty set"),
    "an empty string in a set": (InvalidItem, {"n": {"", "a"}}, "a set with an empty string"),
    "empty bytes in a set": (InvalidItem, {"n": {b""}}, "a set with an empty string"),
    "a mixed set": (InvalidItem, {"n": {1, "a"}}, "only strings, only numbers or only bytes"),
    "a set of booleans": (InvalidItem, {"n": {True}}, "only strings, only numbers or only bytes"),
    "a tuple": (InvalidItem, {"n": (1, 2)}, "a tuple"),
    "an object": (InvalidItem, {"n": object()}, "an object"),
    "a lone surrogate": (InvalidItem, {"n": "\ud800"}, "surrogate"),
    "an empty name": (InvalidItem, {"": 1}, "empty"),
    "an empty nested name": (InvalidItem, {"n": {"": 1}}, "empty"),
    "a name that is no string": (InvalidItem, {"n": {1: 1}}, "a string, got an int"),
    "a fractional ttl": (InvalidItem, {"ttl": Decimal("1.5")}, "seconds since 1970"),
    "a textual ttl": (InvalidItem, {"ttl": "1"}, "seconds since 1970"),
    "a ttl beyond all time": (InvalidItem, {"ttl": 2**63}, "seconds since 1970"),
    "an empty index key": (InvalidKey, {"GSI1PK": ""}, "GSI1PK must not be empty"),
    "an index key of another type": (InvalidKey, {"GSI2SK": 1}, "GSI2SK must be a string, got int"),
    "an index key of None": (InvalidKey, {"GSI1PK": None}, "GSI1PK must be a string"),
    "an index key too long": (
        InvalidKey,
        {"GSI1SK": "x" * 1025},
        "1,024 bytes, got 1,025",
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
        (Key("", "a"), "PK must not be empty"),
        (Key("a", ""), "SK must not be empty"),
        (Key("x" * 2049, "a"), "PK must have at most 2,048 bytes, got 2,049"),
        (Key("a", "é" * 513), "SK must have at most 1,024 bytes, got 1,026"),
        (Key(1, "a"), "PK must be a string, got int"),  # type: ignore[arg-type]
        (Key("a", b"b"), "SK must be a string, got bytes"),  # type: ignore[arg-type]
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
    with pytest.raises(InvalidKey, match="list of keys"):
        await table.get_many(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="purpose must be a string"):
        table.with_purpose(None)  # type: ignore[arg-type]


async def test_the_longest_keys_are_taken(table: Table, pk: str) -> None:
    key = Key(pk + "x" * (2048 - len(pk)), "y" * 1024)
    await table.write(Put({"PK": key.pk, "SK": key.sk}))
    assert await table.get(key) == {"PK": key.pk, "SK": key.sk}


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (Put({"SK": "a"}), "have the attribute PK"),
        (Put({"PK": "a"}), "have the attribute SK"),
        (Put([1]), "a dict of attributes, got a list"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b")), "at least one"),
        (Update(key=Key("a", "b"), set={"PK": "c"}), "must not be changed"),
        (Update(key=Key("a", "b"), remove=("SK",)), "must not be changed"),
        (Update(key=Key("a", "b"), set={"n": 1}, remove=("n",)), "twice"),
        (Update(key=Key("a", "b"), set={"n": 1}, add={"n": 1}), "twice"),
        (Update(key=Key("a", "b"), add={"n": "text"}), "a number or a set"),
        (Update(key=Key("a", "b"), add={"n": True}), "a number or a set"),
        (Update(key=Key("a", "b"), add={"GSI1PK": 1}), "must not name"),
        (Update(key=Key("a", "b"), add={"ttl": 1}), "must not name ttl"),
        (Update(key=Key("a", "b"), set=None), "set must be a dict"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), add=[("n", 1)]), "add must be a dict"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), remove="on"), "remove must be a tuple"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), remove=(n for n in "a")), "remove must be a tuple"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), remove=([],)), "an attribute name must be a string, got a list"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), add={"\ud800": 1}), "surrogate"),
        (Update(key=Key("a", "b"), remove=("\ud800",)), "surrogate"),
        (Update(key=Key("a", "b"), add={"x" * 70_000: 1}), "65,535"),
        (Put({"PK": "a", "SK": "b"}, Absent("\ud800")), "surrogate"),
        (Put({"PK": "a", "SK": "b"}, AllOf(5)), "contain a tuple"),  # type: ignore[arg-type]
        (Put({"PK": "a", "SK": "b"}, AllOf(c for c in [NEW])), "contain a tuple"),  # type: ignore[arg-type]
        (Put({"PK": "a", "SK": "b"}, token="\ud800"), "1 to 64 ASCII characters"),
        (Put({"PK": "a", "SK": "b"}, token=7), "1 to 64 ASCII characters"),  # type: ignore[arg-type]
        (Update(key=Key("a", "b"), set={"_token": "t"}), "_token"),
        (Update(key=Key("a", "b"), remove=("_token",)), "_token"),
        (Update(key=Key("a", "b"), set={f"n{n}": 1 for n in range(101)}), "at most 100"),
        (Put({"PK": "a", "SK": "b"}, token=""), "1 to 64 ASCII characters"),
        (Put({"PK": "a", "SK": "b"}, token="x" * 65), "1 to 64 ASCII characters"),
        (Put({"PK": "a", "SK": "b"}, Less("n", [1])), "got list"),  # type: ignore[arg-type]
        (Put({"PK": "a", "SK": "b"}, Greater("n", True)), "got bool"),
        (Put({"PK": "a", "SK": "b"}, AllOf(())), "at least one condition"),
        (Put({"PK": "a", "SK": "b"}, Absent("")), "an attribute name must not be empty"),
        (Put({"PK": "a", "SK": "b"}, "absent"), "condition must be one of"),  # type: ignore[arg-type]
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


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


async def test_what_cannot_even_be_shown_is_refused(table: Table) -> None:
    with pytest.raises(InvalidWrite, match="got a Unprintable"):
        await table.write(Unprintable())  # type: ignore[arg-type]


async def test_what_is_to_be_returned_is_checked(table: Table, pk: str) -> None:
    with pytest.raises(InvalidWrite, match="'nothing', 'old' or 'new'"):
        await table.write(Put({"PK": pk, "SK": "a"}), returning="both")  # type: ignore[arg-type]
    assert (await table.query(pk)).items == []


async def test_a_check_checks_something(table: Table, pk: str) -> None:
    with pytest.raises(InvalidWrite, match="without one it checks nothing"):
        await table.transact([Check(Key(pk, "a"), None)])  # type: ignore[arg-type]


async def test_an_update_that_is_too_large_by_itself(table: Table, meter: Meter, pk: str) -> None:
    with pytest.raises(ItemTooLarge, match="409,600"):
        await table.write(Update(key=Key(pk, "a"), set={"text": "x" * 410_000}))
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
        ([], "1 to 100 writes, got 0"),
        ([Put({"PK": pk, "SK": f"{n}"}) for n in range(101)], "1 to 100 writes, got 101"),
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
        (None, "list of writes"),
    ):
        with pytest.raises(InvalidWrite, match=message):
            await table.write_many(writes)  # type: ignore[arg-type]
    assert (await table.query(pk)).items == []


async def test_a_bad_query_is_refused(table: Table, meter: Meter, pk: str) -> None:
    await table.write_many(Put({"PK": pk, "SK": f"{n}"}) for n in range(3))
    cursor = (await table.query(pk, limit=1)).cursor
    calls = meter.report().calls
    for query, message in (
        (table.query(pk, index="GSI3"), "index must be one of GSI1, GSI2, got 'GSI3'"),
        (table.query(pk, limit=0), "limit must be an integer"),
        (table.query(pk, limit=1.5), "limit must be an integer"),  # type: ignore[arg-type]
        (table.query(pk, Between("b", "a")), "before it begins"),
        (table.query(pk, "a"), "a range must be one of"),  # type: ignore[arg-type]
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
        await table.read_changes()
    with pytest.raises(InvalidQuery, match="1 to 1000"):
        await table.read_changes(limit=1001)


async def test_operations_are_metered_under_their_purpose(
    table: Table, meter: Meter, pk: str
) -> None:
    journal = table.with_purpose("journal")
    await journal.write(Put({"PK": pk, "SK": "a"}, NEW))
    with pytest.raises(ConditionFailed):
        await journal.write(Put({"PK": pk, "SK": "a"}, NEW))
    await table.get(Key(pk, "a"))
    await table.with_purpose("lists").query(pk)
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
