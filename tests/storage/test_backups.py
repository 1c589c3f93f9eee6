"""Backups and restores of a store on this machine: whole, also while everything runs."""

from __future__ import annotations

import asyncio
import errno
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
from holdfast.clock import SystemClock
from holdfast.engine.runs import removal
from holdfast.errors import (
    InvalidUrl,
    StoreCorrupt,
    StoreInUse,
    StoreNotFound,
    StoreReplaced,
    StoreUnusable,
)
from holdfast.storage import Blobs, Meter, Put, backup_store, restore_store
from holdfast.storage import open as open_store
from holdfast.storage.backups import copies
from holdfast.storage.backups.paths import StorePaths
from holdfast.storage.backups.restore_marker import RestoreMarker
from holdfast.storage.folder_blobs import FolderBlobs
from holdfast.storage.sqlite.file_copy import read_items

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
            await hf.run(run.id).cancel()  # which reads all that it keeps
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
    return sorted(copies._read_contents(str(copy))[2], key=lambda ref: ref.key)


async def test_a_blob_that_is_deleted_while_it_is_copied(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy of the file names a blob that is gone since: the next one does not."""
    url = url_of(store)
    await started(url, "stays", "goes")
    copy_file, times = copies.copy_file, 0

    def copy_and_free(path: str, to: str) -> None:
        nonlocal times
        copy_file(path, to)
        times += 1
        if times == 1:
            shutil.rmtree(f"{store}.blobs")
            with closing(sqlite3.connect(store)) as connection:
                connection.execute("DELETE FROM items WHERE pk LIKE 'RUN#%'")
                connection.commit()

    monkeypatch.setattr(copies, "copy_file", copy_and_free)
    monkeypatch.setattr(copies, "_copy_blobs", skipping_first(copies._copy_blobs))
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


async def test_a_store_that_lacks_blobs_is_not_backed_up(store: Path, tmp_path: Path) -> None:
    folder, copy = tmp_path / "named", tmp_path / "copy.db"
    url = f"{url_of(store)}?blobs={folder}"
    await started(url, "a", "bb")
    before = names_in(tmp_path)
    with pytest.raises(StoreCorrupt, match=r"2 of 2 blobs .* Did you forget \?blobs= in the addr"):
        backup_store(url_of(store), copy)
    os.unlink(next(folder.rglob("input")))
    with pytest.raises(StoreCorrupt, match=r"1 of 2 blobs .* no backup was made\. To"):
        backup_store(url, copy)
    assert names_in(tmp_path) == before
    assert backup_store(url, copy, missing_blobs=True).missing == 1
    assert len(inputs_of(copy)) == 1


async def test_a_backup_that_lacks_blobs_is_not_restored(store: Path, tmp_path: Path) -> None:
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a", "bb")
    backup_store(url, copy)
    inputs_of(copy)[0].write_bytes(b"damaged")
    with pytest.raises(StoreCorrupt, match=r"1 of 2 blobs .* in the backup, .*nothing was repl"):
        restore_store(copy, url)
    shutil.rmtree(f"{copy}.blobs")
    with pytest.raises(StoreCorrupt, match=r"2 of 2 blobs .* in the backup, .*nothing was repl"):
        restore_store(copy, url)
    assert names_in(tmp_path) == ["copy.db", "runs.db", "runs.db.blobs"]
    assert await ids_in(url) == {"a", "bb"}
    assert restore_store(copy, url, missing_blobs=True).missing == 2
    assert inputs_of(store) == []


async def named_by(url: str, **attributes: Any) -> None:
    """Write an item that names a blob, and delete the blob."""
    async with open_store(url) as opened:
        ref = await opened.blobs.put(b"x", key=f"blobs/{len(attributes)}")
        await opened.table.write(
            Put({"PK": "p", "SK": "record", "blob": ref.as_item()} | attributes)
        )
        await opened.blobs.delete(ref.key)


async def test_blobs_of_runs_that_are_freed_may_be_missing(store: Path, tmp_path: Path) -> None:
    """A worker deletes them an hour before the ttl, or when the run expires: that is no damage."""
    url, now = url_of(store), SystemClock().now_ms() // 1000
    assert copies._BLOBS_FREED_BEFORE_TTL_SECONDS * 1000 == removal._FREE_BEFORE_TTL_MS
    await named_by(url, ttl=now + 1800)
    assert backup_store(url, tmp_path / "near.db").missing == 0
    await named_by(url, ttl=now + 86_400)
    with pytest.raises(StoreCorrupt, match="1 of 1 blobs"):
        backup_store(url, tmp_path / "copy.db")
    for number, row in enumerate(({"freed": True}, {"status": "expired"})):
        async with open_store(url) as opened:
            await opened.table.write(Put({"PK": "p", "SK": "RUN"} | row))
        assert backup_store(url, tmp_path / f"freed{number}.db").missing == 0


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


# A restore that is killed right before one of its renames.
KILLED = """
import os, sys
from holdfast.storage import restore_store
rename, left = os.rename, int(sys.argv[3])
def rename_or_die(old, new):
    global left
    left -= 1
    if left == 0:
        os._exit(9)
    rename(old, new)
os.rename = rename_or_die
restore_store(sys.argv[1], sys.argv[2])
"""


async def crashed(url: str, store: Path, into: Path) -> None:
    """Copy a store as a crash leaves it: what was written last is in its log alone."""
    async with Holdfast(url) as hf:
        await hf.start(GRAPH, {"x": text_of(7)}, id="in the log")
        for end in ("", "-wal", "-shm"):
            shutil.copyfile(f"{store}{end}", f"{into}{end}")


@pytest.mark.parametrize("named", [False, True], ids=["its own folder", "a named folder"])
@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 6, 7])
async def test_a_restore_that_is_cut_short_is_finished_by_another(
    store: Path, tmp_path: Path, named: bool, cut: int
) -> None:
    origin, copy = tmp_path / "origin.db", tmp_path / "copy.db"
    folder = tmp_path / "named" if named else Path(f"{store}.blobs")
    blobs = f"?blobs={folder}"
    await started(url_of(origin) + blobs, "a")
    backup_store(url_of(origin) + blobs, copy)
    await crashed(url_of(origin) + blobs, origin, store)
    url = url_of(store) + (blobs if named else "")
    command = [sys.executable, "-c", KILLED, str(copy), url, str(cut)]
    done = await asyncio.to_thread(subprocess.run, command, timeout=60)
    assert done.returncode == (9 if cut < 7 else 0)
    if cut < 7:
        with pytest.raises(StoreUnusable, match="interrupted") as caught:
            Holdfast(url)
        assert "remove" not in str(caught.value)  # a worker would begin with an empty store
        restore_store(copy, url)
    assert await ids_in(url) == {"a"}
    # What stood there is whole, with its log and its blobs, and nothing else is left.
    found = [
        await ids_in(f"sqlite:///{store}.before-{id}" + (f"{blobs}/.before-{id}" if named else ""))
        for id in asides_of(store)
    ]
    assert {"a", "in the log"} in found
    assert all(ids in ({"a", "in the log"}, {"a"}) for ids in found)
    assert not find(tmp_path, "*partial*")
    assert not find(tmp_path, "*restoring*")


def asides_of(store: Path) -> list[str]:
    """Return the ids of the stores that restores have moved aside."""
    return [
        name[-36:]
        for name in names_in(store.parent)
        if name.startswith(f"{store.name}.before-")
        and not name.endswith((".blobs", "-wal", "-shm"))
    ]


def find(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


def content(path: Path | str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def test_a_restore_that_fails_is_undone(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a")
    backup_store(url, copy)
    await started(url, "newer")
    before = names_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refusing(f"{store}.blobs"))
        with pytest.raises(StoreUnusable, match="Device or resource busy"):
            restore_store(copy, url)
    assert names_in(tmp_path) == before
    assert await ids_in(url) == {"a", "newer"}


def refusing(name: str) -> Any:
    """Return a rename for which a folder is a mount."""
    rename = os.rename

    def rename_or_fail(old: Any, new: Any) -> None:
        if name in (str(old), str(new)):
            raise OSError(errno.EBUSY, "Device or resource busy", name)
        rename(old, new)

    return rename_or_fail


async def test_a_restore_leaves_a_named_folder_and_files_of_others_where_they_are(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copy = tmp_path / "disk", tmp_path / "copy.db"
    url = f"{url_of(store)}?blobs={folder}"
    await started(url, "a")
    others = {folder / "theirs.txt": "1", folder / "notes~": "1", folder / "theirs" / "x": "1"}
    (folder / "theirs").mkdir()
    for path, text in others.items():
        path.write_text(text)
    backup_store(url, copy)
    await started(url, "newer")
    others = dict.fromkeys(others, "2")
    for path, text in others.items():
        path.write_text(text)
    before = folder.stat().st_ino
    monkeypatch.setattr(os, "rename", refusing(str(folder)))
    copied = restore_store(copy, url)
    assert await ids_in(url) == {"a"}
    assert {path: path.read_text() for path in others} == others
    assert folder.stat().st_ino == before
    aside = f"sqlite:///{copied.aside}?blobs={copied.aside_blobs}"
    assert await ids_in(aside) == {"a", "newer"}


# A restore that is killed before it swaps.
DIED = """
import os, sys
from holdfast.storage import restore_store
from holdfast.storage.backups import copies
copies._read_contents = lambda path: os._exit(9)
restore_store(sys.argv[1], sys.argv[2])
"""


async def test_copies_of_processes_that_died_are_removed(store: Path, tmp_path: Path) -> None:
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a")
    backup_store(url, copy)
    command = [sys.executable, "-c", DIED, str(copy), url]
    await asyncio.to_thread(subprocess.run, command, timeout=60)
    died_in = [name for name in names_in(tmp_path) if "partial" in name]
    assert len(died_in) == 2
    place = StorePaths(store, Path(f"{store}.blobs"), owns_blobs_folder=True)
    with copies.PartialCopy(place) as lives:
        restore_store(copy, url)
        assert lives.blobs.is_dir()
    assert not [name for name in names_in(tmp_path) if "partial" in name]
    assert await ids_in(url) == {"a"}


async def test_two_restores_do_not_meet(store: Path, tmp_path: Path) -> None:
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a")
    backup_store(url, copy)
    place = StorePaths(store, Path(f"{store}.blobs"), owns_blobs_folder=True)
    with RestoreMarker(place), pytest.raises(StoreInUse, match="another process restores"):
        restore_store(copy, url)
    assert await ids_in(url) == {"a"}


async def test_a_marker_of_other_blobs_is_not_followed(store: Path, tmp_path: Path) -> None:
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a")
    backup_store(url, copy)
    marker = Path(f"{store}.restoring")
    hostile = b'{"id": "../../x", "blobs": "/", "whole": true}\n'
    for said in (b"nonsense\n", b"{}\n", hostile):
        write(marker, said)
        with pytest.raises(StoreUnusable):
            restore_store(copy, url)
        assert content(marker) == said
    for said in (b"", b'{"id": "cut'):  # of an older release, and of a crash
        write(marker, said)
        restore_store(copy, url)
        assert content(marker) is None
    assert await ids_in(url) == {"a"}


async def test_a_backup_that_is_damaged_is_not_restored(store: Path, tmp_path: Path) -> None:
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a")
    backup_store(url, copy)
    for name in ("evil", "sqlite_stat9"):
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.execute("CREATE TRIGGER evil AFTER INSERT ON items BEGIN SELECT 1; END")
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(
                "UPDATE sqlite_master SET name = ?, sql = replace(sql, 'evil', ?) "
                "WHERE name = 'evil'",
                (name, name),
            )
        with pytest.raises(StoreCorrupt, match=name):
            restore_store(copy, url)
        with closing(sqlite3.connect(copy)) as connection:
            connection.execute("DROP TRIGGER IF EXISTS evil")
    with pytest.raises(StoreNotFound):
        restore_store(tmp_path / "none.db", url)
    with pytest.raises(InvalidUrl):
        backup_store("sqlite://:memory:", tmp_path / "x.db")
    assert await ids_in(url) == {"a"}
    assert [item for item in read_items(str(store)) if item is None] == []


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


ODD_NAMES = ["", ".", "/", "a\0b", "\ud800", "x" * 250, "x" * 5000, "folder", "runs.db/below"]


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: f"{len(name)} {name[:10]!a}")
async def test_names_that_cannot_be_are_refused(store: Path, tmp_path: Path, name: str) -> None:
    await started(url_of(store), "a")
    (tmp_path / "folder").mkdir()
    odd = name if name in ("", ".", "/") else f"{tmp_path}/{name}"
    with pytest.raises(StoreUnusable):
        backup_store(url_of(store), odd)
    with pytest.raises(StoreUnusable):
        restore_store(odd, url_of(store))
    backup_store(url_of(store), tmp_path / "copy.db")
    with pytest.raises((StoreUnusable, InvalidUrl)):
        restore_store(tmp_path / "copy.db", url_of(Path(odd)))
    expected = ["copy.db", "copy.db.blobs", "folder", "runs.db", "runs.db.blobs"]
    assert names_in(tmp_path) == expected


async def test_a_restore_replaces_files_only(store: Path, tmp_path: Path) -> None:
    await started(url_of(store), "a")
    backup_store(url_of(store), tmp_path / "copy.db")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = names_in(tmp_path)
    for name in ("pipe", "loop"):
        with pytest.raises(StoreUnusable, match="not a regular file"):
            restore_store(tmp_path / "copy.db", url_of(tmp_path / name))
    with pytest.raises(StoreUnusable, match="a folder that has a name"):
        restore_store(tmp_path / "copy.db", f"{url_of(tmp_path / 'new.db')}?blobs=/")
    assert names_in(tmp_path) == before


async def test_a_backup_of_a_store_that_is_deleted_meanwhile(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crashed(url_of(tmp_path / "origin.db"), tmp_path / "origin.db", store)
    log = content(f"{store}-wal")
    copy_blobs = copies._copy_blobs

    def copy_and_delete(*given: Any) -> None:
        copy_blobs(*given)
        store.unlink(missing_ok=True)

    monkeypatch.setattr(copies, "_copy_blobs", copy_and_delete)
    with pytest.raises(StoreNotFound):
        backup_store(url_of(store), tmp_path / "copy.db")
    assert content(store) is None
    assert content(f"{store}-wal") == log


async def test_a_file_that_was_moved_is_moved_back(store: Path, tmp_path: Path) -> None:
    url = url_of(store)
    hf = Holdfast(url)
    await hf.start(GRAPH, {"x": text_of(1)}, id="a")
    os.rename(store, tmp_path / "elsewhere.db")
    with pytest.raises(
        StoreReplaced, match=r"move the file back to .*runs\.db, and start it again"
    ):
        await hf.start(GRAPH, {}, id="nowhere")
    await hf.close()
    with pytest.raises(
        StoreNotFound, match=r"move the file back to .*If .* gone, restore a backup"
    ):
        Holdfast(url)
    os.rename(tmp_path / "elsewhere.db", store)
    assert await ids_in(url) == {"a"}


async def test_the_old_file_is_opened_beside_its_log(store: Path, tmp_path: Path) -> None:
    """As the operator's guide says: under the name of the log, with the blobs where they stood."""
    url, copy = url_of(store), tmp_path / "copy.db"
    await started(url, "a")
    backup_store(url, copy)
    hf = Holdfast(url)
    await hf.start(GRAPH, {"x": text_of(1)}, id="in the log")
    os.rename(store, tmp_path / "old.db")
    os.rename(copy, store)
    with pytest.raises(StoreReplaced, match=r"open it with \?blobs="):
        await hf.start(GRAPH, {}, id="nowhere")
    await hf.close()
    (log,) = find(tmp_path, "runs.db.replaced-*-wal")
    replaced = str(log).removesuffix("-wal")
    os.rename(tmp_path / "old.db", replaced)
    assert await ids_in(f"sqlite:///{replaced}?blobs={store}.blobs") == {"a", "in the log"}


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
    assert "the old store is" in restored.stderr
    assert holdfast("check", url).returncode == 0
    assert "Traceback" not in holdfast("restore", "none.db", url).stderr
