"""Files that cannot be used, and files of other releases: typed errors, nothing lost."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import (
    AccessDenied,
    ItemDamaged,
    StoreCorrupt,
    StoreFull,
    StoreMismatched,
    StoreNotFound,
    Throttled,
)
from holdfast.storage.layout import Index, Key, Layout
from holdfast.storage.open import open as open_store
from holdfast.storage.sqlite import SqliteEngine, schema
from holdfast.storage.sqlite.errors import store_error
from holdfast.storage.table import Table
from holdfast.storage.writes import Absent, Put, Update

Opened = Callable[..., Table]
NOBODY = 65534


def test_a_file_that_is_no_database(path: str) -> None:
    Path(path).write_bytes(b"this is not a database, it only is long enough to be one" * 100)
    before = Path(path).read_bytes()
    with pytest.raises(StoreCorrupt, match=r"test\.db"):
        SqliteEngine(path)
    assert Path(path).read_bytes() == before


async def test_an_item_that_was_damaged(opened: Opened, path: str) -> None:
    table = opened(changes=True)
    await table.write(Put({"PK": "p", "SK": "good"}))
    await table.write(Put({"PK": "p", "SK": "bad"}))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE items SET body = x'c1ff' WHERE sk = 'bad'")
    connection.commit()
    connection.close()
    calls = [
        table.get(Key("p", "bad")),
        table.get(Key("p", "good")),
        table.query("p"),
        table.write(Update(key=Key("p", "bad"), set={"n": 1})),
        table.write(Update(key=Key("p", "good"), set={"n": 1})),
        table.read_changes(),
    ]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    broken = [isinstance(outcome, ItemDamaged) for outcome in outcomes]
    assert broken == [True, False, True, True, False, True]
    named = [outcome.key for outcome in outcomes if isinstance(outcome, ItemDamaged)]
    assert named == [("p", "bad")] * 4


async def test_opening_writes_nothing_where_nothing_has_to_be_changed(
    opened: Opened, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(changes=True).write(Put({"PK": "p", "SK": "s"}))
    monkeypatch.setattr(schema, "BUSY_MS", 50)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    # So it need not wait for a writer either.
    table = opened(changes=True)
    assert await table.get(Key("p", "s")) == {"PK": "p", "SK": "s"}
    with pytest.raises(Throttled):
        opened(changes=False)
    blocker.execute("ROLLBACK")
    blocker.close()


async def test_a_file_that_must_be_there(opened: Opened, path: str) -> None:
    with pytest.raises(StoreNotFound, match=r"no file .*test\.db"):
        opened(make=False)
    assert os.listdir(os.path.dirname(path)) == []
    opened()
    await opened(make=False).write(Put({"PK": "p", "SK": "s"}))


def damage(path: str) -> None:
    whole = Path(path).read_bytes()
    at, size = 4096 * 8, 4096 * 60  # past the header and the schema
    Path(path).write_bytes(whole[:at] + b"\xff" * size + whole[at + size :])


async def test_a_file_that_was_damaged(opened: Opened, path: str) -> None:
    table = opened()
    await table.write_many(
        Put({"PK": "p", "SK": f"{n:04}", "text": "x" * 3000}) for n in range(200)
    )
    await table.close()
    damage(path)
    with pytest.raises(StoreCorrupt, match=r"test\.db"):
        await opened().query("p")


def test_a_database_of_another_program(path: str) -> None:
    for statement in (
        "PRAGMA user_version = 1",
        "CREATE TABLE theirs (a)",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = 9",
    ):
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.close()
        before = Path(path).read_bytes()
        with pytest.raises(StoreMismatched, match="another program"):
            SqliteEngine(path)
        assert Path(path).read_bytes() == before


async def test_a_file_of_a_newer_release(opened: Opened, path: str) -> None:
    await opened().close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(StoreMismatched, match="upgrade holdfast"):
        opened()


async def test_a_file_of_an_older_release_is_brought_up_to_date(
    opened: Opened, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened().write(Put({"PK": "p", "SK": "s"}))

    def widen(connection: sqlite3.Connection, layout: Layout) -> None:
        connection.execute("ALTER TABLE items ADD COLUMN new_in_2 TEXT")

    def fail(connection: sqlite3.Connection, layout: Layout) -> None:
        connection.execute("DROP TABLE items")
        raise KeyError

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, widen, fail])
    with pytest.raises(KeyError):
        opened()
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:-1])
    table = opened()
    assert await table.get(Key("p", "s")) == {"PK": "p", "SK": "s"}
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT new_in_2 FROM items").fetchall() == [(None,)]
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


async def test_a_file_with_other_indexes(opened: Opened) -> None:
    opened(layout=Layout((Index("GSI1"),)))
    with pytest.raises(StoreMismatched, match="other indexes"):
        opened()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match=r"none/test\.db"):
        SqliteEngine(str(tmp_path / "none" / "test.db"))
    with pytest.raises(StoreNotFound):
        SqliteEngine(str(tmp_path))


READ_ONLY = """
import asyncio, os, sys
from holdfast.errors import StoreReadOnly
from holdfast.storage.sqlite import SqliteEngine
if os.getuid() == 0:
    os.setgid({nobody})
    os.setuid({nobody})
try:
    SqliteEngine(sys.argv[1])
except StoreReadOnly as error:
    print("read only:", error)
"""


async def test_a_file_that_may_not_be_written(opened: Opened, path: str, tmp_path: Path) -> None:
    table = opened()
    await table.write(Put({"PK": "p", "SK": "s"}))
    await table.close()
    # Root may write everything, so the question is asked by somebody who may not.
    for each in (tmp_path, *tmp_path.parents):
        if os.stat(each).st_uid == os.getuid() and each != Path("/tmp"):
            each.chmod(0o755)
        if each.name.startswith("pytest-of"):
            break
    os.chmod(path, 0o444)
    source = str(Path(schema.__file__).parents[3])
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", READ_ONLY.format(nobody=NOBODY), path],
        env={**os.environ, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("read only:"), done.stderr
    assert path in done.stdout


@pytest.mark.parametrize("stands", [True, False], ids=["file", "folder"])
def test_a_file_of_another_user(path: str, monkeypatch: pytest.MonkeyPatch, stands: bool) -> None:
    """Files are private, so that this is what another user meets. It is not a missing file."""
    if stands:
        Path(path).touch()
    monkeypatch.setattr(os, "access", lambda name, mode: False)  # root may do everything
    refused = sqlite3.OperationalError("unable to open database file")
    refused.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    assert isinstance(store_error(refused, path), AccessDenied)
    assert isinstance(store_error(refused, f"{path}/none/test.db"), StoreNotFound)


def test_a_folder_that_does_not_exist_is_named(path: str) -> None:
    folder = f"{os.path.realpath(path)}-none"
    with pytest.raises(StoreNotFound) as caught:
        open_store(f"sqlite:///{folder}/test.db")
    told = f"cannot be opened: the folder {folder} does not exist; create it first"
    assert str(caught.value) == f"{folder}/test.db {told}"


def test_a_disk_without_room_for_the_index_of_the_log(path: str) -> None:
    full = sqlite3.OperationalError("disk I/O error")
    full.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert isinstance(store_error(full, path), StoreFull)


async def test_a_full_disk(opened: Opened) -> None:
    table = opened(max_bytes=400_000)
    written = 0

    async def fill() -> None:
        nonlocal written
        while True:
            await table.write(Put({"PK": "p", "SK": f"{written:04}", "text": "x" * 5000}))
            written += 1

    with pytest.raises(StoreFull, match="cannot grow"):
        await fill()
    assert written > 10
    # What was acknowledged stands, what was refused does not, and reads go on.
    keys = [item["SK"] async for item in table.query_all("p")]
    assert keys == [f"{n:04}" for n in range(written)]
    with pytest.raises(StoreFull):
        await table.transact(
            [Put({"PK": "q", "SK": f"{n}", "text": "x" * 300_000}) for n in range(3)]
        )
    assert (await table.query("q")).items == []


async def test_one_write_too_large_for_the_disk_leaves_its_neighbours_alone(
    opened: Opened,
) -> None:
    table = opened(max_bytes=300_000)
    await table.write(Put({"PK": "p", "SK": "first"}))
    outcomes = await asyncio.gather(
        table.write(Put({"PK": "p", "SK": "small"})),
        table.write(Put({"PK": "p", "SK": "large", "text": "x" * 390_000})),
        table.write(Put({"PK": "p", "SK": "small too"})),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreFull, type(None)]
    assert [item["SK"] for item in (await table.query("p")).items] == [
        "first",
        "small",
        "small too",
    ]


async def test_a_file_that_another_process_keeps_locked(
    opened: Opened, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BUSY_MS", 50)
    table = opened()
    await table.write(Put({"PK": "p", "SK": "s", "n": 1}))
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(Throttled, match="locked") as throttled:
        await table.write(Put({"PK": "p", "SK": "t"}))
    assert throttled.value.retryable
    # A reader never waits for a writer.
    assert await table.get(Key("p", "s")) == {"PK": "p", "SK": "s", "n": 1}
    blocker.execute("COMMIT")
    blocker.close()
    await table.write(Put({"PK": "p", "SK": "t"}, Absent("PK")))


async def test_two_engines_on_one_file_see_each_other(opened: Opened) -> None:
    one, two = opened(), opened()
    await one.write(Put({"PK": "p", "SK": "s", "n": 1}))
    assert await two.get(Key("p", "s")) == {"PK": "p", "SK": "s", "n": 1}
    await two.write(Update(key=Key("p", "s"), add={"n": 1}))
    assert await one.get(Key("p", "s")) == {"PK": "p", "SK": "s", "n": 2}


async def test_what_was_answered_is_in_the_file(opened: Opened, path: str) -> None:
    table = opened()
    await table.write(Put({"PK": "p", "SK": "s"}))
    # Neither closed nor checkpointed: another connection finds it in the log.
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT pk, sk FROM items").fetchall() == [("p", "s")]
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    assert mode == "wal"
    connection.close()
