"""Where the file stands: private, and noticed when somebody deletes or replaces it."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import StoreNotFound, StoreReplaced, StoreUnusable
from holdfast.storage.layout import LAYOUT, Key
from holdfast.storage.meter import Meter
from holdfast.storage.sqlite import SqliteEngine, schema
from holdfast.storage.sqlite.file_guard import FileGuard
from holdfast.storage.sqlite.writer import SqliteWriter
from holdfast.storage.table import Table
from holdfast.storage.writes import Put

Opened = Callable[..., Table]
ITEM = Put({"PK": "p", "SK": "s"})


def content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# --- private -------------------------------------------------------------------------------------


async def test_a_file_and_what_is_beside_it_are_private(
    opened: Opened, path: str, umask: int
) -> None:
    await opened().write(ITEM)
    found = {name: mode(Path(path).parent / name) for name in os.listdir(Path(path).parent)}
    assert found == {"test.db": 0o600, "test.db-wal": 0o600, "test.db-shm": 0o600}


async def test_a_file_of_ours_becomes_private(
    opened: Opened, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    await opened().write(ITEM)  # still open, with its log
    for suffix in ("", "-wal", "-shm"):
        os.chmod(path + suffix, 0o664)
    with caplog.at_level(logging.WARNING, "holdfast.storage"):
        table = opened()
    assert {mode(path + suffix) for suffix in ("", "-wal", "-shm")} == {0o600}
    assert [record.getMessage() for record in caplog.records] == [
        f"{path!r} was open to other users (mode 664) and is now private"
    ]
    assert await table.get(Key("p", "s")) is not None


@pytest.mark.parametrize("make", [False, True])
def test_a_file_of_another_program_keeps_its_mode(path: str, make: bool) -> None:
    files = {path: b"root:x:0:0" * 100, path + "2": b""}
    for name, content in files.items():
        Path(name).write_bytes(content)
        os.chmod(name, 0o664)
    with closing(sqlite3.connect(path + "2")) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    for name in files:
        with pytest.raises(StoreUnusable):
            SqliteEngine(name, make=make)
        assert mode(name) == 0o664


async def test_a_link_to_a_file_that_is_still_to_be_made(tmp_path: Path) -> None:
    link, real = tmp_path / "link.db", tmp_path / "real.db"
    link.symlink_to(real)
    engine = SqliteEngine(str(link))
    assert mode(real) == 0o600
    await engine.close()


# --- deleted, moved or replaced ------------------------------------------------------------------


def delete(path: str) -> None:
    os.unlink(path)


def move(path: str) -> None:
    os.rename(path, path + ".old")


def replace(path: str) -> None:
    shutil.copyfile(path, path + ".copy")
    os.replace(path + ".copy", path)


def empty(path: str) -> None:
    os.truncate(path, 0)


def delete_log(path: str) -> None:
    os.unlink(path + "-wal")


def delete_index(path: str) -> None:
    os.unlink(path + "-shm")


@pytest.mark.parametrize("happens", [delete, move, replace, empty, delete_log, delete_index])
async def test_nothing_is_acknowledged_that_goes_nowhere(
    opened: Opened, path: str, happens: Callable[[str], None]
) -> None:
    table = opened()
    await table.write(ITEM)
    happens(path)
    for write in (lambda: table.write(ITEM), lambda: table.transact([ITEM])):
        with pytest.raises(StoreReplaced, match="while it was open"):
            await write()
    with pytest.raises(StoreReplaced):
        await table.get(Key("p", "s"))


@pytest.mark.parametrize("happens", [delete, move, replace])
async def test_a_process_that_only_reads_notices_it_too(
    opened: Opened, path: str, happens: Callable[[str], None]
) -> None:
    table = opened()
    await table.write(ITEM)
    happens(path)
    with pytest.raises(StoreReplaced):
        await table.get(Key("p", "s"))
    with pytest.raises(StoreReplaced):
        await table.query("p")


async def test_it_is_noticed_while_the_disk_is_slow(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced after the first look, and before the commit is through."""
    engine = SqliteEngine(path)
    table = Table(engine, Meter())
    check = FileGuard.check

    def check_then_delete(guard: FileGuard) -> None:
        check(guard)
        os.unlink(path)

    monkeypatch.setattr(FileGuard, "check", check_then_delete)
    with pytest.raises(StoreReplaced):
        await table.write(ITEM)
    await engine.close()


async def test_a_file_that_comes_back_is_opened_anew(opened: Opened, path: str) -> None:
    table = opened()
    await table.write(ITEM)
    move(path)
    with pytest.raises(StoreReplaced):
        await table.write(ITEM)
    os.rename(path + ".old", path)
    with pytest.raises(StoreReplaced):
        await table.write(ITEM)
    await table.close()
    assert await opened().get(Key("p", "s")) is not None


async def test_the_folder_of_the_process_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = SqliteEngine("test.db")
    table = Table(engine, Meter())
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    await table.write(ITEM)
    await engine.close()


async def fill(table: Table, pk: str) -> None:
    await table.write_many(Put({"PK": pk, "SK": f"{n:03}", "v": "x" * 700}) for n in range(100))


async def make_backup(opened: Opened, path: str) -> str:
    """Return a copy of the file with the items "old"; the file has "new" ones, too."""
    table = opened()
    await fill(table, "old")
    await table.close()
    shutil.copyfile(path, path + ".copy")
    table = opened()
    await fill(table, "new")
    await table.close()
    return path + ".copy"


async def check_restored(opened: Opened, path: str) -> None:
    table = opened()
    assert len((await table.query("old")).items) == 100
    assert (await table.query("new")).items == []
    await table.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("notices", ["write", "read", "close"])
async def test_a_log_does_not_stay_beside_another_file(
    opened: Opened, path: str, notices: str
) -> None:
    """SQLite would take it for that of the new file when the process is started again."""
    copy = await make_backup(opened, path)
    table = opened()
    await fill(table, "new")
    os.replace(copy, path)
    if notices != "close":
        with pytest.raises(StoreReplaced, match=r"are in .*test\.db\.replaced-.*-wal"):
            await (table.write(ITEM) if notices == "write" else table.get(Key("old", "000")))
    else:
        await table.close()
    await check_restored(opened, path)
    left = [name for name in os.listdir(Path(path).parent) if "replaced" in name]
    assert sorted(name[-4:] for name in left) == ["-shm", "-wal"]


async def test_a_log_that_another_process_uses_stays_where_it_is(opened: Opened, path: str) -> None:
    copy = await make_backup(opened, path)
    table = opened()  # its log is empty, so that it does the new file no harm
    os.replace(copy, path)
    other = opened()
    await other.write(ITEM)
    with pytest.raises(StoreReplaced):
        await table.write(ITEM)
    await other.write(Put({"PK": "p", "SK": "t"}))
    await table.close()
    await other.close()
    assert len((await opened().query("p")).items) == 2


async def test_a_link_that_points_elsewhere_takes_no_log_along(tmp_path: Path) -> None:
    """The file that it pointed to is still there, and still has its log."""
    link = tmp_path / "link.db"
    for name in ("a.db", "b.db"):
        await SqliteEngine(str(tmp_path / name)).close()
    link.symlink_to(tmp_path / "a.db")
    engine = SqliteEngine(str(link))
    table = Table(engine, Meter())
    await table.write(ITEM)
    link.unlink()
    link.symlink_to(tmp_path / "b.db")
    with pytest.raises(StoreReplaced):
        await table.write(ITEM)
    assert (tmp_path / "a.db-wal").exists()
    await engine.close()


async def test_a_commit_looks_as_often_as_it_has_to(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened()
    await table.write(ITEM)
    stat, looks = os.stat, 0

    def counted(*given: Any, **options: Any) -> os.stat_result:
        nonlocal looks
        looks += 1
        return stat(*given, **options)

    monkeypatch.setattr(os, "stat", counted)
    await table.write(ITEM)
    assert looks == 4


async def test_a_file_is_let_go_at_once_when_it_is_closed(path: str) -> None:
    """Not when Python comes round to it: until then no other process could restore the store."""
    engine = SqliteEngine(path)
    gc.disable()
    try:
        await engine.sweep()
        await engine.close()
        assert os.listdir(Path(path).parent) == ["test.db"]
    finally:
        gc.enable()


async def test_others_come_and_go(opened: Opened) -> None:
    table = opened()
    for _ in range(3):
        other = opened()
        await other.write(ITEM)
        await other.close()
        await table.write(ITEM)


async def test_a_second_process_makes_no_new_file_beside_a_log(opened: Opened, path: str) -> None:
    table = opened()
    await table.write(ITEM)
    os.unlink(path)
    with pytest.raises(StoreNotFound, match=r"test\.db-wal exists"):
        opened()
    assert sorted(os.listdir(Path(path).parent)) == ["test.db-shm", "test.db-wal"]


async def test_an_empty_file_beside_a_log_is_no_new_store(opened: Opened, path: str) -> None:
    table = opened()
    await table.write(ITEM)
    os.truncate(path, 0)
    with pytest.raises(StoreNotFound, match="is empty, but"):
        opened()
    assert content(path + "-wal")
    os.truncate(path + "-wal", 0)


def at_connect(
    monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object], *, after: bool
) -> None:
    """Have something happen once, right before or after SQLite opens the file."""
    connect, times = sqlite3.connect, 0

    def connect_then(name: str, *given: Any, **options: Any) -> sqlite3.Connection:
        nonlocal times
        times += "test.db" in name
        if times == 1 and not after and "test.db" in name:
            happens()
        connection = connect(name, *given, **options)
        if times == 1 and after and "test.db" in name:
            happens()
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_then)


async def test_sqlite_makes_no_file(
    opened: Opened, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was deleted after it was looked for: its log is all that is left of it."""
    table = opened()
    await table.write(ITEM)
    log = content(path + "-wal")
    at_connect(monkeypatch, lambda: os.unlink(path), after=False)
    with pytest.raises(StoreNotFound):
        opened()
    assert sorted(os.listdir(Path(path).parent)) == ["test.db-shm", "test.db-wal"]
    assert content(path + "-wal") == log


@pytest.mark.parametrize("moment", ["connect", "check_schema", "_switch_to_wal"])
async def test_nothing_is_written_beside_a_file_that_is_restored_meanwhile(
    opened: Opened, path: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A process that stalls while it opens the file holds the old one, and the new one's name."""
    copy = await make_backup(opened, path)
    if moment == "connect":
        at_connect(monkeypatch, lambda: os.replace(copy, path), after=True)
    else:
        step = getattr(schema, moment)

        def replace_then(*given: Any, **options: Any) -> object:
            if os.path.exists(copy):
                os.replace(copy, path)
            return step(*given, **options)

        monkeypatch.setattr(schema, moment, replace_then)
    await opened(changes=True).close()
    await check_restored(opened, path)


@pytest.mark.parametrize("after", [False, True])
async def test_a_restore_that_begins_while_a_file_is_opened(
    opened: Opened, path: str, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    await opened().close()
    before = content(path)
    at_connect(monkeypatch, Path(path + ".restoring").touch, after=after)
    with pytest.raises(StoreUnusable, match="is being restored"):
        opened(changes=True)
    assert content(path) == before


async def test_a_restore_that_has_just_moved_a_file_away(
    opened: Opened, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened().close()

    def begin_restore() -> None:
        Path(path + ".restoring").touch()
        os.rename(path, path + ".before")

    at_connect(monkeypatch, begin_restore, after=False)
    with pytest.raises(StoreUnusable, match="is being restored"):
        opened()
    assert content(path) is None


@pytest.mark.parametrize("name", [b"a?mode=memory", b"a#b", b"a%20b", b"a%00b", b"\xff", b" "])
async def test_a_name_is_taken_as_it_is(tmp_path: Path, name: bytes) -> None:
    folder = os.fsencode(tmp_path)
    engine = SqliteEngine(os.fsdecode(b"/" + folder + b"/" + name))
    await Table(engine, Meter()).write(ITEM)
    assert {*os.listdir(folder)} == {name, name + b"-wal", name + b"-shm"}
    await engine.close()


async def test_a_file_with_two_names_is_refused(opened: Opened, path: str) -> None:
    """Each name has a log of its own, so that two processes overwrite what the other wrote."""
    await opened().close()
    os.link(path, path + ".link")
    for name in (path, path + ".link"):
        with pytest.raises(StoreUnusable, match="has 2 names"):
            SqliteEngine(name)
    os.unlink(path + ".link")
    await opened().write(ITEM)


def test_what_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.db")
    with pytest.raises(StoreNotFound, match="not a regular file"):
        SqliteEngine(str(tmp_path / "pipe.db"))


def test_a_file_whose_restore_was_cut_short(opened: Opened, path: str) -> None:
    Path(path + ".restoring").touch()
    with pytest.raises(StoreUnusable, match="interrupted"):
        opened()


async def test_a_file_that_is_replaced_while_it_is_opened(
    opened: Opened, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened().write(ITEM)
    begin = FileGuard.watch_log
    times = 0

    def replace_first(guard: FileGuard) -> None:
        nonlocal times
        times += 1
        if times <= replaced:
            shutil.copyfile(path, path + ".copy")
            os.replace(path + ".copy", path)
        begin(guard)

    replaced = 1
    monkeypatch.setattr(FileGuard, "watch_log", replace_first)
    engine = SqliteEngine(path)
    assert times == 2
    await engine.close()
    times, replaced = 0, 100
    with pytest.raises(StoreReplaced):
        SqliteEngine(path)


def test_memory_has_no_place() -> None:
    core = SqliteWriter(":memory:", layout=LAYOUT, clock=ManualClock())
    assert core.guard is None
    core.close()
