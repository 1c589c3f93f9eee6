"""Backups and restores of a store on this machine: whole, also while everything runs."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.errors import (
    InvalidUrl,
    StoreCorrupt,
    StoreInUse,
    StoreNotFound,
    StoreUnusable,
)
from holdfast.storage import Blobs, Meter, backup_store, backups, restore_store
from holdfast.storage.files import FolderBlobs
from holdfast.storage.sqlite.copying import items_in

GRAPH = Graph("g", dict)


@GRAPH.node
async def waits(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("go"))
    return {"size": len(state["x"])}


def text_of(seed: int) -> str:
    return random.Random(seed).randbytes(20_000).hex()


async def started(url: str, *ids: str) -> None:
    async with Holdfast(url) as hf:
        for id in ids:
            await hf.start(GRAPH, {"x": text_of(len(id))}, id=id)


async def ids_in(url: str) -> set[str]:
    """Return the runs of a store, each of which must have its input."""
    async with Holdfast(url) as hf:
        page = await hf.list(limit=1000)
        assert page.damaged == ()
        for run in page.runs:
            await hf.cancel(run.id)  # which reads all that it keeps
        return {run.id for run in page.runs}


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def inputs_of(store: Path) -> list[Path]:
    return sorted(Path(f"{store}.blobs").rglob("input"))


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


# An operator's day: the process dies with a log that is not yet in the file.
DYING = """
import asyncio, os, sys
from holdfast import Holdfast
from holdfast.storage import backup_store
from tests.storage.test_backups import GRAPH, text_of
async def main():
    hf = Holdfast(sys.argv[1])
    for n in range(30):
        await hf.start(GRAPH, {"x": text_of(n)}, id=f"old{n}")
    backup_store(sys.argv[1], sys.argv[2])
    for n in range(40):
        await hf.start(GRAPH, {"x": text_of(n)}, id=f"new{n}")
    os._exit(9)
asyncio.run(main())
"""


async def test_a_restore_leaves_nothing_of_the_old_log(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    command = [sys.executable, "-c", DYING, url_of(store), str(copy)]
    done = await asyncio.to_thread(subprocess.run, command, timeout=120, check=False)
    assert done.returncode == 9
    assert len(names_in(tmp_path)) >= 6
    copied = restore_store(copy, url_of(store))
    assert (copied.missing, copied.damaged) == (0, 0)
    assert await ids_in(url_of(store)) == {f"old{n}" for n in range(30)}
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    # What stood there is whole, too, with its log and its blobs.
    assert copied.aside is not None
    assert len(await ids_in(f"sqlite:///{copied.aside}")) == 70


async def test_a_backup_is_a_store(store: Path, tmp_path: Path) -> None:
    await started(url_of(store), "a", "bb")
    copied = backup_store(url_of(store), tmp_path / "copy.db")
    assert (copied.blobs, copied.missing, copied.damaged) == (2, 0, 0)
    assert names_in(tmp_path) == ["copy.db", "copy.db.blobs", "runs.db", "runs.db.blobs"]
    modes = [stat.S_IMODE(os.stat(f"{tmp_path}/copy.db{end}").st_mode) for end in ("", ".blobs")]
    assert modes == [0o600, 0o700]
    assert await ids_in(url_of(tmp_path / "copy.db")) == {"a", "bb"}
    with pytest.raises(StoreUnusable, match="overwrites nothing"):
        backup_store(url_of(store), tmp_path / "copy.db")


async def test_a_backup_while_runs_come_and_go(store: Path, tmp_path: Path) -> None:
    """Whatever is written and deleted meanwhile, no row of the copy lacks its blob."""
    url = url_of(store)
    async with Holdfast(url) as hf:
        going = True

        async def churn() -> None:
            n = 0
            while going:
                await hf.start(GRAPH, {"x": text_of(n)}, id=f"r{n}")
                n += 1

        task = asyncio.create_task(churn())
        for number in range(3):
            copy = tmp_path / f"copy{number}.db"
            copied = await asyncio.to_thread(backup_store, url, copy)
            assert copied.missing == 0
            for ref in refs_in(copy):
                await Blobs(FolderBlobs(Path(f"{copy}.blobs")), Meter()).get(ref)
        going = False
        await task


def refs_in(copy: Path) -> list[Any]:
    return sorted(backups._contents(str(copy))[2], key=lambda ref: ref.key)


async def test_a_blob_that_is_deleted_while_it_is_copied(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy of the file names a blob that is gone since: the next one does not."""
    url = url_of(store)
    await started(url, "stays", "goes")
    copy_file, times = backups.copy_file, 0

    def copy_and_free(path: str, to: str) -> None:
        nonlocal times
        copy_file(path, to)
        times += 1
        if times == 1:
            shutil.rmtree(f"{store}.blobs")
            with closing(sqlite3.connect(store)) as connection:
                connection.execute("DELETE FROM items WHERE pk LIKE 'RUN#%'")
                connection.commit()

    monkeypatch.setattr(backups, "copy_file", copy_and_free)
    monkeypatch.setattr(backups, "_copy_blobs", skipping_first(backups._copy_blobs))
    copied = backup_store(url, tmp_path / "copy.db")
    assert (times, copied.blobs, copied.missing) == (2, 0, 0)


def skipping_first(copy_blobs: Any) -> Any:
    skipped = False

    def copy(source: Any, to: Any) -> None:
        nonlocal skipped
        if skipped:
            copy_blobs(source, to)
        skipped = True

    return copy


async def test_what_the_store_itself_lacks_is_told(store: Path, tmp_path: Path) -> None:
    await started(url_of(store), "a", "bb")
    os.unlink(inputs_of(store)[0])
    assert backup_store(url_of(store), tmp_path / "copy.db").missing == 1


async def test_a_store_in_use_is_not_restored(store: Path, tmp_path: Path) -> None:
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a")
    backup_store(url, copy)
    async with Holdfast(url) as hf:
        with pytest.raises(StoreInUse, match="this process"):
            restore_store(copy, url)
        command = [sys.executable, "-c", RESTORING, str(copy), url]
        done = await asyncio.to_thread(
            subprocess.run, command, timeout=60, capture_output=True, text=True
        )
        assert done.stdout.startswith("StoreInUse"), done.stderr
        await hf.start(GRAPH, {}, id="goes on")
    assert not [name for name in names_in(tmp_path) if "partial" in name]
    assert await ids_in(url) == {"a", "goes on"}


RESTORING = """
import sys
from holdfast.storage import restore_store
try:
    restore_store(sys.argv[1], sys.argv[2])
except Exception as error:
    print(type(error).__name__, error)
"""


async def test_a_restore_that_is_cut_short_is_finished_by_another(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a")
    backup_store(url, copy)
    await started(url, "newer")
    cuts = 0
    for cut in range(1, 10):
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", dying_at(cut))
            try:
                restore_store(copy, url)
                break
            except KeyboardInterrupt:
                cuts += 1
        with pytest.raises(StoreUnusable, match="cut short"):
            Holdfast(url)
    assert cuts >= 3
    assert await ids_in(url) == {"a"}


def dying_at(cut: int) -> Any:
    rename, times = os.rename, 0

    def rename_or_die(old: Any, new: Any) -> None:
        nonlocal times
        times += 1
        if times == cut:
            raise KeyboardInterrupt
        rename(old, new)

    return rename_or_die


async def test_a_backup_that_is_damaged_is_not_restored(store: Path, tmp_path: Path) -> None:
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a")
    backup_store(url, copy)
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("CREATE TRIGGER evil AFTER INSERT ON items BEGIN SELECT 1; END")
    with pytest.raises(StoreCorrupt, match="evil"):
        restore_store(copy, url)
    with pytest.raises(StoreNotFound):
        restore_store(tmp_path / "none.db", url)
    with pytest.raises(InvalidUrl):
        backup_store("sqlite://:memory:", tmp_path / "x.db")
    assert await ids_in(url) == {"a"}
    assert [item for item in items_in(str(store)) if item is None] == []


async def test_no_folder_is_made_and_no_backup_is_restored_over_itself(
    store: Path, tmp_path: Path
) -> None:
    await started(url_of(store), "a")
    backup_store(url_of(store), tmp_path / "copy.db")
    before = names_in(tmp_path)
    with pytest.raises(StoreNotFound, match="there is no folder"):
        backup_store(url_of(store), tmp_path / "unmounted" / "copy.db")
    with pytest.raises(StoreNotFound, match="there is no folder"):
        restore_store(tmp_path / "copy.db", url_of(tmp_path / "mistyped" / "runs.db"))
    with pytest.raises(StoreUnusable, match="is the store itself"):
        restore_store(store, url_of(store))
    assert names_in(tmp_path) == before


def test_from_the_command_line(tmp_path: Path) -> None:
    def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast", "store", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    url = "sqlite:///runs.db"
    holdfast("create", url)
    done = holdfast("backup", url, "copy.db")
    assert (done.returncode, done.stdout[:35]) == (0, "copy.db is a copy of sqlite:///runs"), done
    again = holdfast("backup", url, "copy.db")
    assert again.returncode == 1
    assert "[store_unusable]" in again.stderr
    restored = holdfast("restore", "copy.db", url)
    assert restored.returncode == 0, restored.stderr
    assert "what stood there is" in restored.stderr
    assert holdfast("check", url).returncode == 0
    assert "Traceback" not in holdfast("restore", "none.db", url).stderr
