"""Deletion of a document whose run has maps: nothing of what their items read is left."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import Graph, Holdfast, workflow
from holdfast.documents import run_removal
from holdfast.errors import DocumentNotFound, RunNotFound
from tests.documents.support import Killed, Town, begun
from tests.documents.test_deletion import patiently
from tests.engine.contents import blobs_in, stored
from tests.engine.support import Gate, House, incompressible

SECRET = "Kaltwassersatz"
COUNT, CHUNK = 7, 2
UNLUCKY = 3


def reading() -> tuple[Graph, Any]:
    """Return a graph that reads the pages of a document with a map, and the child of each page."""

    @workflow
    async def spelled(page: str) -> str:
        return f"{page} in letters"

    graph, scan = Graph("documents", dict), incompressible(1, 100_000).hex()

    @graph.item
    async def page(name: str, ctx: Any) -> str:
        if ctx.index == UNLUCKY:
            raise ValueError(f"{SECRET}: page {ctx.index} cannot be read")
        return f"{name} {ctx.given['title']} " + (scan if ctx.index == 1 else "")

    @graph.node
    async def read(state: Any, ctx: Any) -> Any:
        names = [f"{SECRET} {number}" for number in range(COUNT)]
        given = {"title": f"{SECRET} of 1903"}
        cursor = await ctx.map(page, names, chunk=CHUNK, concurrency=4, tolerate=1, given=given)
        spelt = await ctx.map(spelled, names[:3], chunk=CHUNK)
        return {"pages": cursor.as_dict(), "spelt": spelt.succeeded}

    return graph, spelled


async def read_document(hf: Holdfast, worker: Any, house: Any, graph: Graph) -> None:
    """Process a document with maps, and retry a page of it alone."""
    await begun(hf.documents)
    async with worker:
        run = await hf.start(graph, {}, id="w")
        assert (await run.result(timeout=60))["spelt"] == 3
        assert await run.map("0.1").retry(UNLUCKY)
        await house.patiently_quiet(worker)
        assert len([entry async for entry in run.map("0.1").items()]) == COUNT


async def test_nothing_of_what_the_items_of_a_map_read_is_left(
    house: House, tmp_path: Path
) -> None:
    hf = house.open()
    graph, spelled = reading()
    await read_document(hf, house.worker(hf, graph, spelled), house, graph)
    before = stored(tmp_path / "documents.db", blobs_in(tmp_path))
    assert before.count(SECRET) > 2 * COUNT
    await patiently(hf.documents.delete("d"), house.clock)
    assert SECRET not in stored(tmp_path / "documents.db", blobs_in(tmp_path))
    with pytest.raises(RunNotFound):
        await hf.run("w").map("0.1").retry(UNLUCKY)


@pytest.mark.parametrize("before", [False, True])
async def test_a_process_that_deletes_maps_may_die_at_any_write(
    town: Town, house: House, tmp_path: Path, before: bool
) -> None:
    town.file = tmp_path / "read.db"
    hf, _ = town.process()
    graph, spelled = reading()
    await read_document(hf, house.worker(hf, graph, spelled), house, graph)
    for lives in range(1, 200):
        copy = Town(tmp_path, town.clock)
        copy.file = tmp_path / "copy.db"
        copied(town.file, copy.file)
        copy.blobs.contents = dict(town.blobs.contents)
        hf, engine = copy.process()
        engine.writes_left, engine.before = lives, before
        survived = True
        try:
            await hf.documents.delete("d")
        except Killed:
            survived = False
        other, _ = copy.process()
        with suppress(DocumentNotFound):  # then nothing was left to do
            await other.documents.delete("d")
        assert SECRET not in stored(copy.file, iter(copy.blobs.contents.values())), lives
        await copy.close()
        if survived:
            assert lives > 3 * COUNT
            return
    pytest.fail("a delete took more than 200 writes")


def copied(file: Path, copy: Path) -> None:
    """Copy a file of SQLite, which may be open, in the place of another one."""
    for old in copy.parent.glob(f"{copy.name}*"):
        old.unlink()
    source, target = sqlite3.connect(file), sqlite3.connect(copy)
    with source, target:
        source.backup(target)
    source.close()
    target.close()


async def test_the_retry_of_a_page_that_runs_is_cancelled_and_deleted(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock of the test runs ahead of the worker.
    monkeypatch.setattr(run_removal, "_WAIT_SECONDS", 1e9)
    hf = house.open()
    graph = Graph("documents", dict)
    gate = Gate()

    began = list[int]()

    @graph.item
    async def page(index: int) -> str:
        began.append(index)
        if len(began) <= 2:
            raise ValueError(SECRET)
        await gate.pass_through()
        return SECRET

    @graph.node
    async def read(state: Any, ctx: Any) -> Any:
        return {"pages": (await ctx.map(page, 2, tolerate=2, given={"title": SECRET})).as_dict()}

    await begun(hf.documents)
    async with house.worker(hf, graph):
        run = await hf.start(graph, {}, id="w")
        await run.result(timeout=60)
        retry = hf.run(await run.map("0.1").retry(1))
        await gate.waited_at()
        await patiently(hf.documents.delete("d"), house.clock)
        assert (await retry.get()).status == "cancelled"
        gate.open()
    assert SECRET not in stored(tmp_path / "documents.db", blobs_in(tmp_path))
