"""How `Table` reads partitions and indexes, on every engine: ranges, order, pages, cursors."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest

from holdfast.errors import StoreCorrupt
from holdfast.storage.cursors import cursor_at, position_of
from holdfast.storage.item import Item
from holdfast.storage.layout import LAYOUT, Key
from holdfast.storage.meter import Meter
from holdfast.storage.operations import Page, Reply, TableEngine
from holdfast.storage.ranges import ALL, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.table import Table
from holdfast.storage.writes import (
    Delete,
    Put,
    Update,
)
from tests.contract.kinds import Kind

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
    everything = [item["SK"] async for item in table.query_all(partition, where, forward=forward)]
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
    assert len([item async for item in table.query_all(pk)]) == 8


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


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("index", [None, "GSI1"])
async def test_a_cursor_always_advances(
    table: Table, pk: str, index: str | None, forward: bool
) -> None:
    await table.write_many(
        Put({"PK": pk, "SK": f"{sk}-{n}", "GSI1PK": pk, "GSI1SK": sk})
        for n, sk in enumerate([*SORT_KEYS, *SORT_KEYS[::3]])
    )
    chosen = next((each for each in LAYOUT.indexes if each.name == index), None)
    name = "SK" if chosen is None else chosen.sk
    places: list[str] = []
    cursors: list[str] = []
    cursor = None
    while not cursors or cursor is not None:
        page = await table.query(pk, index=index, limit=1, cursor=cursor, forward=forward)
        cursor = page.cursor
        if cursor is not None:
            places.append(position_of(cursor, pk, chosen)[name])
            assert [item[name] for item in page.items] == places[-1:]
            assert cursor not in cursors
            cursors.append(cursor)
    assert len(places) >= len(SORT_KEYS)
    assert places == sorted(places, key=str.encode, reverse=not forward)


class _Returning:
    """An engine whose pages end at the places that it is told, and of which there is no end."""

    def __init__(self, places: list[Item]) -> None:
        self.layout = LAYOUT
        self._places = itertools.cycle(places)
        self._asked = 0

    async def perform(self, operation: Any) -> Reply:
        self._asked += 1
        assert self._asked < 20, "it is read for ever"
        return Reply(Page([], cursor_at(next(self._places), operation.index)))


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("index", [None, "GSI1"])
@pytest.mark.parametrize("places", ["b", "bca", "acb"])
async def test_a_page_that_leads_back_is_an_error(
    places: str, index: str | None, forward: bool
) -> None:
    ends = [{"PK": "p", "SK": sk, "GSI1PK": "p", "GSI1SK": sk} for sk in places]
    table = Table(cast(TableEngine, _Returning(ends)), Meter())
    with pytest.raises(StoreCorrupt, match="ends where it began"):
        async for _ in table.query_all("p", index=index, forward=forward):
            pass


async def test_an_index_takes_ranges(table: Table, pk: str) -> None:
    due = f"due-{pk}"
    await table.write_many(
        Put({"PK": pk, "SK": f"{n}", "GSI2PK": due, "GSI2SK": f"{n:02}"}) for n in range(20)
    )
    page = await table.query(due, UpTo("03"), index="GSI2")
    assert [item["GSI2SK"] for item in page.items] == ["00", "01", "02", "03"]
    page = await table.query(due, Prefix("1"), index="GSI2", forward=False, limit=2)
    assert [item["GSI2SK"] for item in page.items] == ["19", "18"]
