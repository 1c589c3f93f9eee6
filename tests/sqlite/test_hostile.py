"""Files that somebody spoiled on purpose, or bit rot did: typed errors, and nothing else stalls."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.errors import ItemDamaged, StoreCorrupt, StoreMismatched
from holdfast.storage.layout import Index, Key, Layout
from holdfast.storage.operations import Page
from holdfast.storage.ranges import At
from holdfast.storage.sqlite import SqliteEngine, schema
from holdfast.storage.sqlite.item_codec import Unreadable, decode_attributes, encode_attributes
from holdfast.storage.table import Table
from holdfast.storage.writes import Absent, Check, Delete, Present, Put, Update

Opened = Callable[..., Table]
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"

UNLOCK = "PRAGMA writable_schema = ON"
RENAME = (
    "UPDATE sqlite_master SET name = '{2}', sql = replace(sql, ' {1} ', ' {2} ') "
    "WHERE type = '{0}' AND name = '{1}'"
)


def ext(code: int, data: bytes) -> bytes:
    return b"\x81\xa1n" + msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data))


def number(text: str) -> bytes:
    return ext(1, text.encode())


BODIES: dict[str, Any] = {
    "not MessagePack": b"\xc1",
    "nested 5,000 deep": b"\x81\xa1a" + b"\x91" * 5000 + b"\x00",
    "nested 500 deep": b"\x81\xa1a" + b"\x91" * 500 + b"\x00",
    "nested 34 deep": b"\x81\xa1a" + b"\x91" * 34 + b"\x00",
    "a number of 5,000 digits": number("9" * 5000),
    "not a number": number("abc"),
    "a number that is none": number("NaN"),
    "a huge number": number("1E999999999"),
    "digits of other scripts": number("\u0663"),
    "a digit that is none": number("\u00b2"),
    "a sign too many": number("--1"),
    "a set of lists": ext(2, b"\x91\x91\x00"),
    "an empty set": ext(2, b"\x90"),
    "an unknown extension": ext(99, b"x"),
    "a time": b"\x81\xa1a\xd6\xff\x00\x00\x00\x01",
    "a float": b"\x81\xa1a" + msgspec.msgpack.encode(1.5),
    "a nested float": b"\x81\xa1a\x91" + msgspec.msgpack.encode(1.5),
    "names that are no text": b"\x81\x01\x02",
    "nested names that are no text": b"\x81\xa1a\x81\x01\x02",
    "text that is not UTF-8": b"\x81\xa1a\xa2\xff\xfe",
    "4 G elements": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "cut": b"\x82\xa1a\x00",
    "trailing bytes": b"\x80\x00",
    "a list": b"\x91\x00",
    "nothing": b"",
    "a key of its own": b"\x82\xa2PK\xa1x\xa1n\x01",
    "text": "x",
    "8 MB": b"\x81\xa1a\xc6\x00\x80\x00\x00" + bytes(8 * 1024**2),
}


def run_sql(path: str, *statements: str, values: tuple[Any, ...] = ()) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement, values)


def content(path: str) -> bytes:
    return Path(path).read_bytes()


async def filled(table: Table, names: str) -> None:
    await table.write_many(
        Put({"PK": f"k{name}", "SK": "s", "n": 1, "GSI1PK": "due", "GSI1SK": f"{name}"})
        for name in names
    )


# --- one item ------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_an_item_that_cannot_be_read_hides_no_other_one(
    opened: Opened, path: str, body: Any
) -> None:
    table = opened()
    await filled(table, "abc")
    run_sql(path, "UPDATE items SET body = ? WHERE pk = 'kb'", values=(body,))
    page = await table.query("due", index="GSI1")
    assert [item["PK"] for item in page.items] == ["ka", "kc"]
    assert [error.key for error in page.damaged] == [("kb", "s")]
    bad = Key("kb", "s")
    calls = [
        lambda: table.get(bad),
        lambda: table.get_many([Key("ka", "s"), bad]),
        lambda: table.query("kb"),
        lambda: table.write(Update(key=bad, set={"n": 2})),
        lambda: table.write(Put({"PK": "kb", "SK": "s"}, Absent("PK"))),
        lambda: table.write(Delete(bad, Present("PK"))),
        lambda: table.transact([Put({"PK": "kd", "SK": "s"}), Check(bad, Present("PK"))]),
    ]
    for call in calls:
        with pytest.raises(ItemDamaged, match="kb"):
            await call()
    # The others of the same commit are not concerned, and it can still be replaced.
    good = Update(key=Key("ka", "s"), set={"n": 5})
    outcomes = await asyncio.gather(
        table.write(Update(key=bad, set={"n": 2})), table.write(good), return_exceptions=True
    )
    assert [type(each) for each in outcomes] == [ItemDamaged, type(None)]
    await table.write(Put({"PK": "kb", "SK": "s", "n": 3}))
    assert await table.get(bad) == {"PK": "kb", "SK": "s", "n": 3}


async def test_an_error_does_not_keep_a_reader_in_the_past(opened: Opened, path: str) -> None:
    table = opened()
    await table.write_many(Put({"PK": "p", "SK": f"{n}"}) for n in range(5))
    run_sql(path, "UPDATE items SET body = x'c1' WHERE sk = '0'")
    errors: list[ItemDamaged] = []
    for _ in range(4):  # each of the readers
        with pytest.raises(ItemDamaged) as raised:
            await table.query("p")
        errors.append(raised.value)
    for n in range(8):
        await table.write(Put({"PK": "q", "SK": "s", "n": n}))
        assert await table.get(Key("q", "s")) == {"PK": "q", "SK": "s", "n": n}
    assert len(errors) == 4


async def test_an_item_that_cannot_be_read_can_be_deleted(opened: Opened, path: str) -> None:
    table = opened()
    await filled(table, "ab")
    run_sql(path, "UPDATE items SET body = x'c1'")
    await table.write_many([Delete(Key("ka", "s")), Delete(Key("kb", "s"))])
    assert await table.query("due", index="GSI1") == Page([], None)


async def test_a_page_goes_past_items_that_cannot_be_read(opened: Opened, path: str) -> None:
    table = opened()
    await table.write_many(
        Put({"PK": f"k{n:03}", "SK": "s", "GSI1PK": "due", "GSI1SK": f"{n:03}"}) for n in range(260)
    )
    run_sql(path, "UPDATE items SET body = x'c1' WHERE pk < 'k250'")
    for forward in (True, False):
        seen: list[str] = []
        bad = 0
        cursor, pages = None, 0
        while pages == 0 or cursor is not None:
            page = await table.query("due", index="GSI1", limit=3, cursor=cursor, forward=forward)
            seen += [item["GSI1SK"] for item in page.items]
            bad += len(page.damaged)
            cursor, pages = page.cursor, pages + 1
        assert sorted(seen) == [f"{n:03}" for n in range(250, 260)]
        assert (bad, pages <= 10) == (250, True)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE items SET GSI1SK = 'bb' WHERE pk = 'kb'",
        "UPDATE items SET pk = CAST(x'6bff62' AS TEXT) WHERE pk = 'kb'",
        "UPDATE items SET pk = x'6b62' WHERE pk = 'kb'",
        "UPDATE items SET sk = CAST(x'ff' AS TEXT) WHERE pk = 'kb'",
        "UPDATE items SET GSI1SK = CAST(x'62ff' AS TEXT) WHERE pk = 'kb'",
        "UPDATE items SET GSI1SK = x'62' WHERE pk = 'kb'",
    ],
)
async def test_a_row_whose_keys_are_wrong_hides_no_other_one(
    opened: Opened, path: str, statement: str
) -> None:
    table = opened()
    await filled(table, "abc")
    run_sql(path, statement)
    for limit in (None, 2):
        page = await table.query("due", index="GSI1", limit=limit)
        assert [item["PK"] for item in page.items] == ["ka", "kc"]
        assert len(page.damaged) == 1 or "x'62'" in statement
    assert await table.get(Key("kc", "s")) is not None


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("odd", ["CAST(? AS TEXT)", "?"], ids=["not UTF-8", "bytes"])
async def test_rows_at_one_place_whose_keys_are_no_text_do_not_lead_back(
    opened: Opened, path: str, odd: str, forward: bool
) -> None:
    """A cursor cannot name them, and one before them would lead to them again for ever."""
    table = opened()
    await filled(table, "abc")
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany(
            "INSERT INTO items (pk, sk, body, GSI1PK, GSI1SK) "
            f"VALUES ({odd}, 's', x'80', 'due', 'b')",
            [(b"kb\xff%03d" % n,) for n in range(150)],
        )
        connection.commit()
    expected = ["ka", "kb", "kc"] if forward else ["kc", "kb", "ka"]
    for limit in (1, 2, None):
        seen: list[str] = []
        bad: set[tuple[str, str]] = set()
        cursor, pages = None, 0
        while pages == 0 or cursor is not None:
            page = await table.query(
                "due", index="GSI1", limit=limit, cursor=cursor, forward=forward
            )
            seen += [item["PK"] for item in page.items]
            bad |= {error.key for error in page.damaged}
            cursor, pages = page.cursor, pages + 1
            assert pages < 10
        assert seen == expected
        # Not all of them need be named; those that are, in text that can be written anywhere.
        assert len(bad) >= 100
        assert all(pk.encode() and pk.startswith(("kb", "b'kb")) for pk, _ in bad)
    every = table.query_all("due", index="GSI1", forward=forward)
    assert [item["PK"] async for item in every] == expected


@pytest.mark.parametrize("odd", ["CAST(x'62ff' AS TEXT)", "x'62'"], ids=["not UTF-8", "bytes"])
async def test_a_key_of_a_partition_that_is_no_text_is_the_fault_of_that_partition(
    opened: Opened, path: str, odd: str
) -> None:
    table = opened()
    await table.write_many(Put({"PK": pk, "SK": sk}) for pk in "pq" for sk in "abc")
    run_sql(path, f"UPDATE items SET sk = {odd} WHERE pk = 'p' AND sk = 'b'")
    for _ in range(2):
        with pytest.raises(ItemDamaged, match="its key is not text") as raised:
            await table.query("p")
        pk, sk = raised.value.key
        assert (pk, sk.encode()[:1]) == ("p", b"b")
        assert [item["SK"] async for item in table.query_all("q")] == ["a", "b", "c"]
    assert (await table.query("p", At("a"))).items == [{"PK": "p", "SK": "a"}]


@given(st.binary(max_size=200))
def test_any_bytes_are_an_item_or_unreadable(body: bytes) -> None:
    try:
        item = decode_attributes(body)
    except Unreadable:
        return
    assert decode_attributes(encode_attributes(item)) == item


def test_what_is_written_is_readable() -> None:
    deep: Any = 1
    for _ in range(31):
        deep = [deep]
    item = {
        "deep": deep,
        "numbers": frozenset({Decimal("1E-130"), 10**37, -(10**120)}),
        "bytes": frozenset({b"a", b""}),
        "large": 9 * 10**125,
        "small": Decimal("-1.5E-130"),
    }
    assert decode_attributes(encode_attributes(item)) == item


# --- the whole file ------------------------------------------------------------------------------


HOSTILE = {
    "a view that never ends": (
        "DROP TABLE about",
        f"CREATE VIEW about AS {ENDLESS} SELECT 'layout' AS name, x AS value FROM n WHERE x < 0",
    ),
    "a view in the place of the items": (
        "ALTER TABLE items RENAME TO theirs",
        "CREATE VIEW items AS SELECT * FROM theirs",
    ),
    "a trigger": (
        "CREATE TRIGGER evil AFTER INSERT ON items BEGIN DELETE FROM items WHERE pk = 'ka'; END",
    ),
    "a further view": (f"CREATE VIEW v AS {ENDLESS} SELECT x FROM n",),
    "a virtual table": ("CREATE VIRTUAL TABLE v USING fts5(a)",),
    "a further table": ("CREATE TABLE sqlitestat1 (a)",),
    "a further index": ("CREATE INDEX mine ON items (body)",),
    "a missing index": ("DROP INDEX items_key",),
    "a missing table": ("DROP TABLE changes",),
    "a trigger of the same name": (
        "CREATE TRIGGER items_inserted AFTER INSERT ON items BEGIN DELETE FROM items; END",
    ),
    "a trigger that is named as statistics are": (
        "CREATE TRIGGER x AFTER INSERT ON items BEGIN DELETE FROM items WHERE pk = 'ka'; END",
        *(UNLOCK, RENAME.format("trigger", "x", "sqlite_stat9")),
    ),
    "an index that is named as statistics are": (
        "CREATE UNIQUE INDEX x ON items (ifnull(ttl, 0))",
        *(UNLOCK, RENAME.format("index", "x", "sqlite_stat4")),
    ),
    "statistics with a further column": (
        "ANALYZE",
        *(UNLOCK, "UPDATE sqlite_master SET sql = replace(sql, 'stat)', 'stat,x)')"),
    ),
    "a view in the place of a pragma": (
        f"CREATE VIEW pragma_user_version AS {ENDLESS} SELECT x AS user_version FROM n WHERE x < 0",
    ),
    "no version": ("PRAGMA user_version = 0",),
    "a negative version": ("PRAGMA user_version = -1",),
    "a feed that is half on": ("INSERT INTO moment VALUES (0, 0)",),
    "no layout": ("DELETE FROM about",),
    "a layout that is nonsense": ("UPDATE about SET value = x'ff'",),
    "a layout that is text": ("UPDATE about SET value = 'nonsense'",),
    "a deep layout": ("UPDATE about SET value = CAST(zeroblob(9000000) AS BLOB)",),
}


@pytest.mark.parametrize("statements", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_file_that_was_tampered_with_is_not_used(
    opened: Opened, path: str, statements: tuple[str, ...]
) -> None:
    table = opened()
    await filled(table, "a")
    await table.close()
    run_sql(path, "PRAGMA journal_mode = DELETE", *statements)
    before = content(path)
    with pytest.raises(StoreCorrupt, match=r"test\.db"):
        opened()
    assert content(path) == before


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE items (x)",),
        (f"CREATE VIEW moment AS {ENDLESS} SELECT x AS at_ms, x AS expired FROM n",),
        ("PRAGMA user_version = -1",),
        ("PRAGMA encoding = 'UTF-16'", "CREATE TABLE t (x)", "DROP TABLE t"),
    ],
)
def test_a_file_that_we_did_not_finish_is_not_changed(
    opened: Opened, path: str, statements: tuple[str, ...]
) -> None:
    run_sql(path, *statements, "PRAGMA application_id = 0x486F6C64")
    before = content(path)
    with pytest.raises(StoreCorrupt, match=r"test\.db"):
        opened()
    assert content(path) == before


async def test_a_record_of_the_feed_without_a_time_keeps_nothing_from_expiring(
    opened: Opened, path: str, clock: ManualClock
) -> None:
    table = opened(changes=True)
    await filled(table, "abc")
    run_sql(path, "UPDATE changes SET at_ms = 'x' WHERE pk = 'ka'")
    await table.write(Put({"PK": "p", "SK": "s", "ttl": clock.now_ms() // 1000 + 1}))
    clock.advance(25 * 3600)
    await table.close()
    engine = SqliteEngine(path, clock=clock)
    await engine.sweep()
    await engine.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT pk FROM items WHERE pk = 'p'").fetchall() == []
        # It went with the next one; what is left tells of the expiry.
        assert connection.execute("SELECT pk FROM changes").fetchall() == [("p",)]


def test_a_file_in_another_encoding(opened: Opened, path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16'")
        schema.MIGRATIONS[0](connection, schema_layout())
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    with pytest.raises(StoreCorrupt, match="UTF-16"):
        opened()


def schema_layout() -> Layout:
    return Layout((Index("GSI1"), Index("GSI2")))


async def test_statistics_and_the_feed_are_part_of_a_file(opened: Opened, path: str) -> None:
    table = opened(changes=True)
    await filled(table, "abc")
    run_sql(path, "ANALYZE")
    assert await opened().get(Key("ka", "s")) is not None
    await opened(changes=False).close()
    assert await opened().get(Key("ka", "s")) is not None
    with pytest.raises(StoreMismatched, match="other indexes"):
        opened(layout=schema_layout())
