"""Opening a file that another process has locked: the event loop goes on, and the wait ends."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast import Graph, Holdfast
from holdfast.errors import StoreClosed, StoreMismatched, Throttled
from holdfast.storage import Key, Put
from holdfast.storage import open as open_store
from holdfast.storage.sqlite import schema


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the file as another process does that creates it, or copies it in one transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        yield other


@pytest.fixture(params=["new", "known"])
async def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / "runs.db"
    if request.param == "known":
        async with open_store(f"sqlite:///{made}"):
            pass
    return made


async def counted(work: asyncio.Task[object], turns_max: int) -> int:
    """Return how many turns of the loop there were until the work was done, up to a maximum."""
    turns = 0
    while not work.done() and turns < turns_max:
        turns += 1
        await asyncio.wait([asyncio.ensure_future(_turn())])
    return turns


async def _turn() -> None: ...


async def test_the_event_loop_goes_on_while_a_file_is_locked(path: Path) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def node(state: object) -> dict[str, bool]:
        return {"done": True}

    with locked(path) as other:
        async with asyncio.timeout(20):
            async with Holdfast(f"sqlite:///{path}") as hf:
                starting = asyncio.create_task(hf.start(graph, id="doc-42"))
                assert await counted(starting, 1_000) == 1_000
                other.execute("COMMIT")
                other.close()
                run = await starting
                async with hf.worker([graph]):
                    assert await run.result(timeout=10) == {"done": True}


async def test_a_file_that_stays_locked_is_an_error_that_names_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BUSY_MS", 20)
    with locked(path) as other:
        async with open_store(f"sqlite:///{path}") as store:
            for _ in range(2):  # each operation tries again
                with pytest.raises(Throttled, match=r"runs\.db stayed locked by another process"):
                    await store.table.get(Key("p", "s"))
            other.execute("COMMIT")
            other.close()
            monkeypatch.setattr(schema, "BUSY_MS", 10_000)
            await store.table.write(Put({"PK": "p", "SK": "s"}))
            assert await store.table.get(Key("p", "s")) == {"PK": "p", "SK": "s"}


async def test_a_store_that_was_never_open_can_be_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BUSY_MS", 20)
    with locked(path):
        store = open_store(f"sqlite:///{path}")
        await store.close()
        with pytest.raises(StoreClosed):
            await store.table.get(Key("p", "s"))


async def test_a_reader_that_gives_up_leaves_the_opening_to_the_others(path: Path) -> None:
    with locked(path) as other:
        async with open_store(f"sqlite:///{path}") as store:
            first = asyncio.create_task(store.table.get(Key("p", "s")))
            second = asyncio.create_task(store.table.get(Key("p", "s")))
            assert await counted(first, 3) == 3
            first.cancel()
            other.execute("COMMIT")
            other.close()
            assert await second is None
    assert first.cancelled()


async def test_what_is_wrong_with_a_locked_file_is_told_by_its_first_use(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with locked(path) as other:
        async with open_store(f"sqlite:///{path}") as store:
            other.execute("CREATE TABLE customers (name TEXT)")
            other.execute("COMMIT")
            other.close()
            with pytest.raises(StoreMismatched, match="database of another program"):
                await store.table.get(Key("p", "s"))


async def test_two_stores_that_create_one_file_at_once_both_work(tmp_path: Path) -> None:
    def opened(number: int) -> None:
        url = f"sqlite:///{tmp_path}/{number}.db"

        async def write() -> None:
            async with open_store(url) as store:
                await store.table.write(Put({"PK": "p", "SK": "s"}))

        asyncio.run(write())

    for number in range(5):
        await asyncio.gather(*(asyncio.to_thread(opened, number) for _ in range(4)))


def test_without_an_event_loop_opening_waits_for_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BUSY_MS", 20)
    with locked(path), pytest.raises(Throttled, match=r"runs\.db stayed locked"):
        open_store(f"sqlite:///{path}")
