"""Rows that cannot be read, or make no sense: they are named, and no other run waits for them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from boto3.dynamodb.types import TypeSerializer

from holdfast import Graph, Holdfast, PayloadLimits, signal
from holdfast.errors import (
    HoldfastError,
    ItemDamaged,
    JournalDamaged,
    RunQuarantined,
    StoreNotFound,
    StoreReplaced,
)
from holdfast.records.keys import RunKey
from holdfast.storage import Key
from holdfast.storage.sqlite.item_codec import decode_attributes, encode_attributes
from tests import hostile
from tests.confinement import MB
from tests.engine.support import WAIT_SECONDS_MAX, House, chain, incompressible, kill

GRAPH = chain("g", 1, lambda n: {"n": n})
IDS = [f"r{n}" for n in range(12)]
DAY = 24 * 3600

UNREADABLE: dict[str, bytes] = {
    "bit rot": b"\xc1",
    "deep": b"\x81\xa1a" + b"\x91" * 5000 + b"\x00",
    "a number of 5,000 digits": b"\x81\xa6status\xc8\x13\x88\x01" + b"9" * 5000,
    "an empty map": b"\x80",
}


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda item: item.pop(name)


def having(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda item: item.update(values)


SENSELESS: dict[str, Callable[[dict[str, Any]], None]] = {
    "no ttl": without("ttl"),
    "no status": without("status"),
    "no show": without("show"),
    "no generation": without("generation"),
    "no schema": without("schema"),
    "a ttl that is text": having(ttl="soon"),
    "a status that is none": having(status="asleep"),
    "a status that is a list": having(status=["running"]),
    "show is a number": having(show=5),
    "labels that are text": having(show={"graph": "g", "version": 1, "labels": "x"}),
    "a graph that is a number": having(show={"graph": 7, "version": 1}),
    "a schema that is text": having(schema="x"),
    "an epoch that is text": having(epoch="x"),
    "waits that are a number": having(waits=5),
    "waits that make no sense": having(waits=[{"visit": {}}]),
    "a context that is a list": having(context=[1]),
    "a time that is text": having(created_ms="now"),
    "an input that is text": having(input="x"),
    "an input that is nonsense": having(input=b"\x07"),
    "a place that is nonsense": having(GSI1SK="0000000000000#nonsense"),
    "a place of another run": having(GSI1SK="0000000000000#victim#r1#1"),
    "a list's place that is nonsense": having(GSI2SK="4000000000000x#r0"),
}


def path_of(house: House) -> str:
    return house.url.removeprefix("sqlite:///")


def spoil(house: House, pk: str, body: bytes, sk: str = "HEAD") -> None:
    with closing(sqlite3.connect(path_of(house), isolation_level=None)) as connection:
        changed = connection.execute(
            "UPDATE items SET body = ? WHERE pk = ? AND sk = ?", (body, pk, sk)
        )
        assert changed.rowcount == 1


def change(house: House, pk: str, by: Callable[[dict[str, Any]], None], sk: str = "HEAD") -> None:
    """Change a row as it would stand there if a bug, or another program, had written it."""
    with closing(sqlite3.connect(path_of(house), isolation_level=None)) as connection:
        (body,) = connection.execute(
            "SELECT body FROM items WHERE pk = ? AND sk = ?", (pk, sk)
        ).fetchone()
        item = decode_attributes(body)
        by(item)
        ttl = item.get("ttl")
        if isinstance(ttl, int) and ttl >= 2**63:
            ttl = None  # no column can hold it
        connection.execute(
            "UPDATE items SET body = ?, GSI1SK = ?, GSI2SK = ?, ttl = ? WHERE pk = ? AND sk = ?",
            (encode_attributes(item), item.get("GSI1SK"), item.get("GSI2SK"), ttl, pk, sk),
        )


async def all_but_one_finish(house: House, hf: Holdfast) -> int:
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        for _ in range(3):
            await house.move(70, worker)
        for tenant in ("victim", "other"):
            for id in IDS:
                if (tenant, id) != ("victim", "r0"):
                    run = await hf.run(id, tenant=tenant).get()
                    assert run.status == "finished", (tenant, id)
        assert worker.health.ok
        seen = await hf.list(tenant="victim", limit=100)
        assert {run.id for run in seen.runs} | {*seen.damaged} == {*IDS}
        return worker.health.damaged


async def started(hf: Holdfast) -> None:
    for tenant in ("victim", "other"):
        for id in IDS:
            await hf.start(GRAPH, {}, id=id, tenant=tenant)


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_row_that_cannot_be_read_stalls_no_other_run(
    house: House, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    hf = house.open()
    await started(hf)
    spoil(house, "RUN#victim#r0", body)
    assert await all_but_one_finish(house, hf) == 1
    page = await hf.list(tenant="victim", limit=100)
    assert page.damaged == ("r0",)
    told = [record for record in caplog.records if record.name == "holdfast.storage"]
    assert len(told) == 1
    assert "RUN#victim#r0" in told[0].getMessage()
    calls = [
        lambda: hf.run("r0", tenant="victim").get(),
        lambda: hf.start(GRAPH, {}, id="r0", tenant="victim"),
        lambda: hf.run("r0", tenant="victim").signal("go"),
        lambda: hf.run("r0", tenant="victim").cancel(),
        lambda: hf.run("r0", tenant="victim").history(),
    ]
    for call in calls:
        with pytest.raises((ItemDamaged, JournalDamaged)):
            await call()


@pytest.mark.parametrize("by", SENSELESS.values(), ids=SENSELESS.keys())
async def test_a_row_that_makes_no_sense_stalls_no_other_run(
    house: House, by: Callable[[dict[str, Any]], None]
) -> None:
    hf = house.open()
    await started(hf)
    change(house, "RUN#victim#r0", by)
    await all_but_one_finish(house, hf)
    calls = [
        lambda: hf.run("r0", tenant="victim").get(),
        lambda: hf.run("r0", tenant="victim").signal("go"),
        lambda: hf.run("r0", tenant="victim").history(),
        lambda: hf.run("r0", tenant="victim").cancel(),
    ]
    for call in calls:
        try:
            await call()
        except HoldfastError:  # and nothing else
            continue


# --- on DynamoDB, and what both engines take ------------------------------------------------------

BOMBS: dict[str, Callable[[dict[str, Any]], None]] = {
    "an input that claims a terabyte": having(input=hostile.claiming(2**40)),
    "an input that unpacks to 200 MB": having(input=hostile.frame_bomb(200 * MB)),
    "an input that is half a frame": having(input=hostile.framed(b"x" * 5000)[:30]),
    "an input without a size": having(input=hostile.framed(b"x" * 5000, with_size=False)),
    "a thousand attributes": lambda item: item.update({f"x{n}": n for n in range(1000)}),
    "nested 25 deep": having(show=hostile.nested_value(25)),
    "a set": having(status=frozenset({"running"})),
    "numbers of 38 digits": having(epoch=10**37, ttl=10**37, created_ms=-(10**37)),
    "a fraction": having(epoch=Decimal("0.5")),
    "nothing": having(generation=None),
    "an input that holds nothing": having(input=b"\x00"),
    "a blob that is nowhere": having(input=None, blob={"key": "keep-10d/x/y/z/w", "size": 2**40}),
}


async def change_item(
    house: House, hf: Holdfast, key: Key, by: Callable[[dict[str, Any]], None]
) -> None:
    """Change an item as another program could: past everything that Holdfast checks."""
    item = await hf._store.table.get(key)
    assert item is not None
    if house.url.startswith("sqlite"):
        return change(house, key.pk, by, key.sk)
    by(item)
    url = urlsplit(house.url)
    client: Any = boto3.client("dynamodb", endpoint_url=parse_qs(url.query)["endpoint"][0])
    serialized = {name: TypeSerializer().serialize(value) for name, value in item.items()}
    await asyncio.to_thread(client.put_item, TableName=url.netloc, Item=serialized)


@pytest.mark.parametrize("either", ["sqlite", "dynamodb"], indirect=True)
async def test_damaged_rows_stall_no_other_run_on_any_engine(either: House) -> None:
    """Every kind of damage at once, in the shards and in the lists of runs that are well."""
    hf = either.open()
    kinds = {**SENSELESS, **BOMBS}
    bad = dict(zip((f"bad{n}" for n in range(len(kinds))), kinds, strict=True))
    for id in (*bad, *IDS):
        await hf.start(GRAPH, {}, id=id, tenant="victim")
    for id, kind in bad.items():
        await change_item(either, hf, RunKey("victim", id).head, kinds[kind])
    async with either.worker(hf, GRAPH) as worker:
        await either.quiet(worker)
        for _ in range(3):
            await either.move(70, worker)
        for id in IDS:
            assert (await hf.run(id, tenant="victim").get()).status == "finished"
        assert worker.health.ok
        page = await hf.list(tenant="victim", limit=100)
        assert {run.id for run in page.runs} | {*page.damaged} == {*bad, *IDS}
        for id, kind in bad.items():
            await all_typed(hf, id, kind)


async def all_typed(hf: Holdfast, id: str, kind: str) -> None:
    """Do everything with a damaged run; only errors of Holdfast's may come of it."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: hf.run(id, tenant="victim").get(),
        lambda: hf.start(GRAPH, {}, id=id, tenant="victim"),
        lambda: hf.run(id, tenant="victim").signal("go"),
        lambda: hf.run(id, tenant="victim").history(),
        lambda: hf.run(id, tenant="victim").children(),
        lambda: hf.run(id, tenant="victim").spending(),
        lambda: hf.run(id, tenant="victim").extend("40d"),
        lambda: hf.run(id, tenant="victim").retry(),
        lambda: hf.run(id, tenant="victim").cancel(),
    ]
    for number, call in enumerate(calls):
        try:
            await call()
        except HoldfastError:
            continue
        except Exception as error:
            raise AssertionError(f"{kind}, call {number}") from error


RECORDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "no data": without("data"),
    "data that is text": having(data="x"),
    "data that is a list": having(data=[1, {"a": b"x"}]),
    "bad zstd": having(data=b"\x01\x28\xb5\x2f\xfd\x07\x07\x07"),
    "a claim of a terabyte": having(data=hostile.claiming(2**40)),
    "200 MB": having(data=hostile.frame_bomb(200 * MB)),
    "a value that is no event": having(data=hostile.framed(b"\xdc\x01\x00" + b"\x90" * 256)),
    "deep": having(data=b"\x00" + b"\x91" * 5000 + b"\xc0"),
    "a blob that is none": having(blob=["x"]),
    "a blob that is text": having(blob="x"),
    "a thousand attributes": lambda item: item.update({f"x{n}": n for n in range(1000)}),
}


@pytest.mark.parametrize("either", ["sqlite", "dynamodb"], indirect=True)
async def test_damaged_records_end_their_own_runs_only(either: House) -> None:
    async def waiting(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"))
        return {"done": True}

    waits = chain("w", 2, lambda n: {"text": incompressible(n, 500)}, node1=waiting)
    limits = PayloadLimits(
        state_bytes_max=MB // 2, input_bytes_max=MB, answer_bytes_max=MB, record_bytes_max=MB
    )
    hf = either.open(limits=limits)
    async with either.worker(hf, waits, resumes_max=1) as worker:
        bad = dict(zip((f"bad{n}" for n in range(len(RECORDS))), RECORDS, strict=True))
        for id in (*bad, "good"):
            await hf.start(waits, {}, id=id, tenant="victim")
        await either.quiet(worker)
        for id, kind in bad.items():
            key = RunKey("victim", id)
            rows = [item async for item in hf._store.table.query_all(key.pk)]
            (record, *_) = [row for row in rows if row["SK"].startswith("J#")]
            await change_item(either, hf, Key(record["PK"], record["SK"]), RECORDS[kind])
        for id in (*bad, "good"):
            with suppress(HoldfastError):
                await hf.run(id, tenant="victim").signal("go")
        for _ in range(4):
            await either.move(300, worker)
        assert (await hf.run("good", tenant="victim").get()).status == "finished"
        for id, kind in bad.items():
            status = (await hf.run(id, tenant="victim").get()).status
            assert status == ("finished" if kind == "a thousand attributes" else "quarantined"), (
                kind
            )
            await all_typed(hf, id, kind)
        assert worker.health.ok


async def test_a_shard_full_of_rows_that_cannot_be_read(house: House) -> None:
    hf = house.open()
    for n in range(150):
        await hf.start(GRAPH, {}, id=f"bad{n}", tenant="victim")
    with closing(sqlite3.connect(path_of(house), isolation_level=None)) as connection:
        connection.execute("UPDATE items SET body = x'c1' WHERE sk = 'HEAD'")
    house.clock.advance(1)
    await started(hf)
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        await house.move(1, worker)
        for tenant in ("victim", "other"):
            for id in IDS:
                assert (await hf.run(id, tenant=tenant).get()).status == "finished"
        assert worker.health.damaged == 150


async def test_a_record_that_cannot_be_read_quarantines_its_run_alone(house: House) -> None:
    waits = Graph("w", dict)

    @waits.node
    async def first(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"))
        return {"done": True}

    hf = house.open()
    async with house.worker(hf, waits, resumes_max=2) as worker:
        for id in ("bad", "good"):
            await hf.start(waits, {"text": incompressible(1, 3000)}, id=id)
        await house.quiet(worker)
        await hf.run("bad").signal("stored")
        with closing(sqlite3.connect(path_of(house), isolation_level=None)) as connection:
            rows = connection.execute(
                "UPDATE items SET body = x'c1' WHERE pk = 'RUN#default#bad' AND sk LIKE 'J#%'"
            )
            assert rows.rowcount >= 1
        for id in ("bad", "good"):
            try:
                await hf.run(id).signal("go")
            except HoldfastError:
                assert id == "bad"
        for _ in range(6):
            await house.move(300, worker)
        assert (await hf.run("good").get()).status == "finished"
        assert (await hf.run("bad").get()).status == "quarantined"
        with pytest.raises(RunQuarantined, match="cannot be read"):
            await hf.run("bad").result(timeout=1)


async def test_a_dead_worker_whose_row_cannot_be_read_is_reaped(house: House) -> None:
    waits = Graph("w", dict)
    held = asyncio.Event()

    @waits.node
    async def first(state: Any, ctx: Any) -> Any:
        if not held.is_set():
            held.set()
            await asyncio.Event().wait()
        return {"done": True}

    lease = {"lease": 60, "poll": 0.2}
    dead_hf, hf = house.open(), house.open()
    dead = house.worker(dead_hf, waits, **lease)
    await dead.start()
    await dead_hf.start(waits, {}, id="held")
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        await held.wait()
    name = dead.id
    kill(dead)
    spoil(house, f"WORKER#{name}", b"\xc1", "WORKER")
    async with house.worker(hf, waits, **lease) as worker:
        await house.quiet(worker)
        for _ in range(30):
            await house.move(10, worker)
            if (await hf.run("held").get()).status == "finished":
                break
        assert (await hf.run("held").get()).status == "finished"
        assert await hf._store.table.get(("WORKER#" + name, "WORKER")) is None  # type: ignore[arg-type]


async def test_a_sweep_keeps_what_a_row_may_name_that_cannot_be_read(house: House) -> None:
    hf = house.open()
    for id in ("bad", "senseless", "good"):
        await hf.start(GRAPH, {"x": incompressible(1, 20_000)}, id=id)
    spoil(house, "RUN#default#bad", b"\xc1")
    change(house, "RUN#default#senseless", without("generation"))
    house.clock.advance(3 * DAY)
    steps = [step async for step in hf.sweep_blobs()]
    assert (steps[-1].kept, steps[-1].deleted) == (3, 0)


# --- the file goes away under a worker -----------------------------------------------------------


@pytest.mark.parametrize("happens", ["deleted", "replaced"])
async def test_a_worker_stops_when_its_file_is_gone(
    house: House, happens: str, caplog: pytest.LogCaptureFixture
) -> None:
    hf = house.open()
    path = path_of(house)
    worker = house.worker(hf, GRAPH)
    await worker.start()
    await house.quiet(worker)
    if happens == "deleted":
        os.unlink(path)
    else:
        os.replace(copied(path), path)
    with pytest.raises(StoreReplaced):
        await hf.start(GRAPH, {}, id="nowhere")
    house.clock.advance(60)
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        error = await worker.wait_closed()
    assert isinstance(error, StoreReplaced)
    assert isinstance(worker.health.error, StoreReplaced)
    told = [record for record in caplog.records if "cannot use its store" in record.getMessage()]
    assert len(told) == 1
    await worker.stop()
    if happens == "deleted":
        with pytest.raises(StoreNotFound, match="exists"):
            house.open()


def copied(path: str) -> str:
    copy = f"{path}.copy"
    Path(copy).write_bytes(Path(path).read_bytes())
    return copy
