"""Rows of a file whose keys are no text, or that are odd: they concern nobody but their own run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from holdfast import Graph, signal
from holdfast.engine.history import lists
from holdfast.errors import HoldfastError, JournalDamaged, RunQuarantined
from holdfast.records.keys import RunKey
from holdfast.storage.sqlite.item_codec import decode_attributes, encode_attributes
from tests.engine.support import House, chain

GRAPH = chain("g", 1, lambda n: {"n": n})
TENANTS = [f"t{n}" for n in range(10)]
# How a key that is no text gets into a column of text.
ODD = {"not UTF-8": "CAST(? AS TEXT)", "bytes": "?"}


def insert(house: House, statement: str, *rows: tuple[Any, ...]) -> None:
    path = house.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany(statement, rows)
        connection.commit()


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
async def test_a_crowd_of_them_at_one_place_stalls_no_shard_and_no_list(
    house: House, odd: str
) -> None:
    hf = house.open()
    for tenant in TENANTS:
        await hf.start(GRAPH, {}, id="x", tenant=tenant)
        row = await hf._store.table.get(RunKey(tenant, "x").head)
        assert row is not None
        # In front of the run in its shard, and before it in the list of its tenant.
        insert(
            house,
            "INSERT INTO items (pk, sk, body, GSI1PK, GSI1SK, GSI2PK, GSI2SK) "
            f"VALUES ({odd}, 'HEAD', x'80', ?, ?, ?, ?)",
            *(
                (
                    f"RUN#{tenant}#".encode() + b"\xff%03d" % n,
                    row["GSI1PK"],
                    f"0000000000001#{tenant}#a#1",
                    row["GSI2PK"],
                    "9000000000000#a",
                )
                for n in range(150)
            ),
        )
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        await house.move(1, worker)
        for tenant in TENANTS:
            assert (await hf.run("x", tenant=tenant).get()).status == "finished"
            page = await hf.list(tenant=tenant)
            assert ([run.id for run in page.runs], page.cursor) == (["x"], None)
            assert page.damaged
        assert worker.health.ok
        assert worker.health.damaged >= 100


async def test_one_in_the_partition_of_a_run_quarantines_that_run_alone(house: House) -> None:
    waits = Graph("w", dict)

    @waits.node
    async def first(state: Any, ctx: Any) -> Any:
        return {"said": await ctx.wait(signal("go"))}

    hf = house.open()
    async with house.worker(hf, waits, resumes_max=2) as worker:
        for id in ("bad", "good"):
            await hf.start(waits, {}, id=id)
        await house.quiet(worker)
        generation = (await hf.run("bad").get()).generation
        insert(
            house,
            "INSERT INTO items (pk, sk, body) VALUES ('RUN#default#bad', CAST(? AS TEXT), x'80')",
            (f"J#{generation}#IN#go#".encode() + b"\xff",),
        )
        for id in ("bad", "good"):
            await hf.run(id).signal("go")
        for _ in range(6):
            await house.move(300, worker)
            assert worker.health.ok
        assert (await hf.run("good").get()).status == "finished"
        assert (await hf.run("bad").get()).status == "quarantined"
        with pytest.raises(RunQuarantined, match="its key is not text"):
            await hf.run("bad").result(timeout=1)
        with pytest.raises(HoldfastError):
            await hf.run("bad").signal("go")


async def test_a_list_names_so_many_damaged_runs_and_goes_past_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "_PAGE_DAMAGED_MAX", 120)
    hf = house.open()
    await hf.start(GRAPH, {}, id="x")
    for kind in ("RUNS", "TROUBLE"):
        rows = [(f"RUN#default#{kind}{n}", f"{kind}#default#00", f"9{n:012}#a") for n in range(150)]
        insert(
            house,
            "INSERT INTO items (pk, sk, body, GSI2PK, GSI2SK) VALUES (?, 'HEAD', x'c1', ?, ?)",
            *rows,
        )
    page = await hf.list()
    assert ([run.id for run in page.runs], page.cursor, len(page.damaged)) == (["x"], None, 120)


NO_TTL: dict[str, Callable[[dict[str, Any]], None]] = {
    "missing": lambda item: item.pop("ttl"),
    "text": lambda item: item.update(ttl="x"),
    "nothing": lambda item: item.update(ttl=None),
    "a list": lambda item: item.update(ttl=[]),
}


@pytest.mark.parametrize("spoil", NO_TTL.values(), ids=NO_TTL.keys())
async def test_a_signal_without_an_end_that_is_sent_again(
    house: House, spoil: Callable[[dict[str, Any]], None]
) -> None:
    hf = house.open()
    await hf.start(GRAPH, {}, id="x")
    await hf.run("x").signal("go", 1, signal_id="s")
    path = house.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        ((row, body),) = connection.execute("SELECT id, body FROM items WHERE sk LIKE 'J#%#IN#%'")
        item = decode_attributes(body)
        spoil(item)
        connection.execute("UPDATE items SET body = ? WHERE id = ?", (encode_attributes(item), row))
    with pytest.raises(JournalDamaged, match="the signal at RUN#default#x"):
        await hf.run("x").signal("go", 1, signal_id="s")


@pytest.mark.parametrize("position", ["0000000x", "00000002x", "1_0"])
async def test_a_record_at_no_position(house: House, position: str) -> None:
    hf = house.open()
    async with house.worker(hf, GRAPH):
        await (await hf.start(GRAPH, {}, id="x")).result()
    generation = (await hf.run("x").get()).generation
    insert(
        house,
        "INSERT INTO items (pk, sk, body) VALUES ('RUN#default#x', ?, ?)",
        (f"J#{generation}#{position}", encode_attributes({"data": b"\x00\x90"})),
    )
    with pytest.raises(JournalDamaged):
        await hf.run("x").history()
