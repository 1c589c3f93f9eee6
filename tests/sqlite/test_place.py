"""Where the file stands: private, and noticed when somebody deletes or replaces it."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import StoreNotFound, StoreReplaced, StoreUnusable
from holdfast.storage.layout import LAYOUT, Key
from holdfast.storage.meter import Meter
from holdfast.storage.sqlite import SqliteEngine
from holdfast.storage.sqlite.core import SqliteCore
from holdfast.storage.sqlite.place import FileGuard
from holdfast.storage.table import Table
from holdfast.storage.writes import Put

Opened = Callable[..., Table]
ITEM = Put({"PK": "p", "SK": "s"})


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


def delete_log(path: str) -> None:
    os.unlink(path + "-wal")


def delete_index(path: str) -> None:
    os.unlink(path + "-shm")


@pytest.mark.parametrize("happens", [delete, move, replace, delete_log, delete_index])
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
    with pytest.raises(StoreNotFound, match=r"test\.db-wal stands there"):
        opened()
    assert sorted(os.listdir(Path(path).parent)) == ["test.db-shm", "test.db-wal"]


def test_a_file_whose_restore_was_cut_short(opened: Opened, path: str) -> None:
    Path(path + ".restoring").touch()
    with pytest.raises(StoreUnusable, match="cut short"):
        opened()


async def test_a_file_that_is_replaced_while_it_is_opened(
    opened: Opened, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened().write(ITEM)
    begin = FileGuard.begin
    times = 0

    def replace_first(guard: FileGuard) -> None:
        nonlocal times
        times += 1
        if times <= replaced:
            shutil.copyfile(path, path + ".copy")
            os.replace(path + ".copy", path)
        begin(guard)

    replaced = 1
    monkeypatch.setattr(FileGuard, "begin", replace_first)
    engine = SqliteEngine(path)
    assert times == 2
    await engine.close()
    times, replaced = 0, 100
    with pytest.raises(StoreReplaced):
        SqliteEngine(path)


def test_memory_has_no_place() -> None:
    core = SqliteCore(":memory:", layout=LAYOUT, clock=ManualClock())
    assert core.guard is None
    core.close()
