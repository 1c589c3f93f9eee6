"""Maps over HTTP and on the command line: progress, items, failures, and retries of one item."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from holdfast import Context, Graph, Holdfast
from holdfast.cli.commands import main
from holdfast.client import Client
from holdfast.errors import InvalidQuery, InvalidRequest, NotRetryable, RunNotFound
from holdfast.server import asgi


@dataclass
class Page:
    number: int
    text: str


@dataclass
class Book:
    pages: int


book = Graph("book", Book)
TORN: set[int] = set()


@book.item
async def read_page(number: int, ctx: Context) -> Page:
    if number in TORN:
        raise ValueError(f"page {number} is torn")
    return Page(number, f"text {number}")


@book.node
async def read(state: Book, ctx: Context) -> None:
    await ctx.map(read_page, state.pages, chunk=4, tolerate=3)


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[Holdfast]:
    TORN.clear()
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as opened:
        yield opened


@pytest.fixture
async def client(hf: Holdfast) -> AsyncIterator[Client]:
    app = asgi(hf, [book])
    async with (
        app.lifespan(),
        Client("http://localhost", transport=httpx.ASGITransport(app), timeout=30) as opened,
    ):
        yield opened


async def test_a_map_is_read_as_the_library_reads_it(client: Client, hf: Holdfast) -> None:
    TORN.update({2, 9})
    run = await client.start(book, Book(11), id="b")
    await run.result(timeout=30)
    there = hf.run("b", graph=book)
    assert await run.maps() == await there.maps()
    map, same = run.map("0.1"), there.map("0.1")
    assert await map.progress() == await same.progress()
    items = [entry async for entry in map.items()]
    assert items == [entry async for entry in same.items()]
    assert items[0].result == Page(0, "text 0")
    assert [entry.index async for entry in map.failed()] == [2, 9]
    assert [entry.index async for entry in map.items(after=3, limit=2)] == [4, 5]
    first = await map.page(limit=8)
    assert [entry.index for entry in first.items] == list(range(8))
    assert first.cursor is not None
    rest = await map.page(limit=8, cursor=first.cursor)
    assert ([entry.index for entry in rest.items], rest.cursor) == ([8, 9, 10], None)


async def test_one_item_is_retried(client: Client) -> None:
    TORN.add(5)
    run = await client.start(book, Book(8), id="b")
    await run.result(timeout=30)
    map = run.map("0.1")
    TORN.clear()
    again = client.run(await map.retry(5))
    await again.until("finished", timeout=30)
    assert [entry async for entry in map.failed()] == []
    progress = await map.progress()
    assert (progress.succeeded, progress.failed, progress.retried) == (8, 0, 1)
    with pytest.raises(NotRetryable):
        await map.retry(5)


async def test_what_a_map_refuses(client: Client) -> None:
    run = await client.start(book, Book(2), id="b")
    await run.result(timeout=30)
    with pytest.raises(RunNotFound):
        await run.map("7.1").progress()
    with pytest.raises(RunNotFound):
        await client.run("nobody").map("0.1").progress()
    with pytest.raises(InvalidQuery):
        await run.map("0.1").page(cursor="x")
    with pytest.raises((InvalidRequest, InvalidQuery)):
        await run.map("0.1").page(limit=0)
    with pytest.raises(InvalidRequest):
        await run.map("0.1").retry(2)
    with pytest.raises(InvalidRequest):
        await run.map("0.1").retry(-1)


async def test_the_command_line_shows_maps_and_retries_items(hf: Holdfast, tmp_path: Path) -> None:
    TORN.add(3)
    url = f"sqlite:///{tmp_path}/runs.db"
    async with hf.worker([book]):
        await (await hf.start(book, Book(6), id="b")).result(timeout=30)

    async def told(*arguments: str) -> str:
        command = ["run", "map", "--url", url, *arguments]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert result.exit_code == 0, result.output
        return result.output

    assert "5 of 6" in await told("b")
    assert "ValueError: page 3 is torn" in await told("b", "--failed")
    (shown,) = json.loads(await told("b", "0.1", "--failed", "--json"))
    assert shown["index"] == 3
    assert len(json.loads(await told("b", "--items", "--json"))) == 6
    TORN.clear()
    run = json.loads(await told("b", "0.1", "--retry", "3", "--json"))["run"]
    async with hf.worker([book]):
        await hf.run(run).until("finished", timeout=30)
    assert "6 of 6" in await told("b", "0.1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--after", "3"], "--after is for lists"),
        (["--retry", "3", "--items"], "pass one of them"),
        (["--retry", "3", "--failed"], "pass one of them"),
        (["--retry", "3", "--after", "3"], "--after is for lists"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    tmp_path: Path, options: list[str], message: str
) -> None:
    command = ["run", "map", "b", "0.1", "--url", f"sqlite:///{tmp_path}/runs.db", *options]
    (tmp_path / "runs.db").touch()
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, message in result.output) == (2, True), result.output
