"""Rows that cannot be read, or make no sense: they are named, and no other run waits for them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.errors import (
    HoldfastError,
    ItemDamaged,
    JournalDamaged,
    RunQuarantined,
    StoreNotFound,
    StoreReplaced,
)
from holdfast.storage.sqlite.body import decoded, encoded
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


def change(house: House, pk: str, by: Callable[[dict[str, Any]], None]) -> None:
    """Change a row as it would stand there if a bug, or another program, had written it."""
    with closing(sqlite3.connect(path_of(house), isolation_level=None)) as connection:
        (body,) = connection.execute(
            "SELECT body FROM items WHERE pk = ? AND sk = 'HEAD'", (pk,)
        ).fetchone()
        item = decoded(body)
        by(item)
        connection.execute(
            "UPDATE items SET body = ?, GSI1SK = ?, GSI2SK = ?, ttl = ? "
            "WHERE pk = ? AND sk = 'HEAD'",
            (encoded(item), item["GSI1SK"], item["GSI2SK"], item.get("ttl"), pk),
        )


async def all_but_one_finish(house: House, hf: Holdfast) -> int:
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        for _ in range(3):
            await house.move(70, worker)
        for tenant in ("victim", "other"):
            for id in IDS:
                if (tenant, id) != ("victim", "r0"):
                    run = await hf.get(id, tenant=tenant)
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
        lambda: hf.get("r0", tenant="victim"),
        lambda: hf.start(GRAPH, {}, id="r0", tenant="victim"),
        lambda: hf.signal("r0", "go", tenant="victim"),
        lambda: hf.cancel("r0", tenant="victim"),
        lambda: hf.history("r0", tenant="victim"),
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
        lambda: hf.get("r0", tenant="victim"),
        lambda: hf.signal("r0", "go", tenant="victim"),
        lambda: hf.history("r0", tenant="victim"),
        lambda: hf.cancel("r0", tenant="victim"),
    ]
    for call in calls:
        try:
            await call()
        except HoldfastError:  # and nothing else
            continue


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
                assert (await hf.get(id, tenant=tenant)).status == "finished"
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
        await hf.signal("bad", "stored")
        with closing(sqlite3.connect(path_of(house), isolation_level=None)) as connection:
            rows = connection.execute(
                "UPDATE items SET body = x'c1' WHERE pk = 'RUN#default#bad' AND sk LIKE 'J#%'"
            )
            assert rows.rowcount >= 1
        for id in ("bad", "good"):
            try:
                await hf.signal(id, "go")
            except HoldfastError:
                assert id == "bad"
        for _ in range(6):
            await house.move(300, worker)
        assert (await hf.get("good")).status == "finished"
        assert (await hf.get("bad")).status == "quarantined"
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

    lease = {"lease_seconds": 60, "poll_seconds": 0.2}
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
            if (await hf.get("held")).status == "finished":
                break
        assert (await hf.get("held")).status == "finished"
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
        error = await worker.broken()
    assert isinstance(error, StoreReplaced)
    assert isinstance(worker.health.error, StoreReplaced)
    told = [record for record in caplog.records if "cannot use its store" in record.getMessage()]
    assert len(told) == 1
    await worker.stop()
    if happens == "deleted":
        with pytest.raises(StoreNotFound, match="stands there"):
            house.open()


def copied(path: str) -> str:
    copy = f"{path}.copy"
    Path(copy).write_bytes(Path(path).read_bytes())
    return copy
