"""A folder of blobs: what is on the disk, crashes, and all that a file system can do to it."""

# ruff: noqa: ASYNC240 (nothing else waits for the event loop of a test)

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import (
    AccessDenied,
    BlobDamaged,
    BlobNotFound,
    StoreClosed,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from holdfast.storage.blobs import BlobPage, BlobRef, Blobs
from holdfast.storage.folder_blobs import ATTEMPTS_MAX, LEFTOVER_SECONDS, FolderBlobs
from holdfast.storage.meter import Meter

DATA = b"some bytes"
CHILD_SECONDS_MAX = 60
NOBODY = 65534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
async def blobs(root: Path) -> AsyncIterator[Blobs]:
    blobs = Blobs(FolderBlobs(root), Meter())
    async with asyncio.timeout(60):
        yield blobs
    await blobs.close()


def ref_of(key: str, data: bytes = DATA) -> BlobRef:
    return BlobRef(key, hashlib.sha256(data).hexdigest(), len(data))


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def keys_of(blobs: Blobs) -> list[str]:
    return [entry.key for entry in (await blobs.list()).entries]


# --- what is on the disk -------------------------------------------------------------------------


async def test_files_keep_their_names(blobs: Blobs, root: Path) -> None:
    for key in ("scans/2026/Ünïcode name.pdf", "scans", "a~b/50%", "x%7Ey"):
        await blobs.put(DATA, key=key)
    assert files_in(root) == [
        "a%7Eb~/50%25",
        "scans",
        "scans~/2026~/Ünïcode name.pdf",
        "x%257Ey",
    ]
    assert (root / "scans").read_bytes() == DATA


async def test_the_folder_is_made_by_the_first_put(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there" / "yet"
    blobs = Blobs(FolderBlobs(root), Meter())
    assert await blobs.list("a/") == BlobPage([], None)
    with pytest.raises(BlobNotFound):
        await blobs.get(ref_of("a"))
    await blobs.delete("a")
    await blobs.delete_all("a/")
    assert not (tmp_path / "not").exists()
    assert await blobs.get(await blobs.put(DATA, key="a")) == DATA
    await blobs.close()


async def test_create_makes_the_folder(blobs: Blobs, root: Path) -> None:
    await blobs.create()
    assert root.is_dir()


async def test_a_relative_folder_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blobs = Blobs(FolderBlobs(Path("here")), Meter())
    monkeypatch.chdir("/")
    await blobs.put(DATA, key="a")
    assert (tmp_path / "here/a").read_bytes() == DATA
    await blobs.close()


async def test_empty_folders_do_not_stay(blobs: Blobs, root: Path) -> None:
    for key in ("a/b/c/d", "a/b/e", "f/g/h"):
        await blobs.put(DATA, key=key)
    await blobs.delete("a/b/c/d")
    assert not (root / "a~/b~/c~").exists()
    assert (root / "a~/b~/e").exists()
    await blobs.delete("a/b/e")
    await blobs.delete_all("f/g/")
    assert [path.name for path in root.iterdir()] == [".writing"]


async def test_on_close_is_called_after_all_else(root: Path) -> None:
    seen: list[list[str]] = []
    blobs = Blobs(FolderBlobs(root, on_close=lambda: seen.append(files_in(root))), Meter())
    put = asyncio.create_task(blobs.put(DATA, key="a"))
    begun = asyncio.Event()
    asyncio.get_running_loop().call_soon(begun.set)
    await begun.wait()
    await blobs.close()
    assert seen == [["a"]]
    await put


async def test_every_size_of_page_walks_the_same(blobs: Blobs) -> None:
    keys = [
        "/".join(parts) for depth in (1, 2, 3) for parts in itertools.product("a!~", repeat=depth)
    ]
    for key in keys:
        await blobs.put(b"", key=key)
    for limit in range(1, len(keys) + 2):
        found: list[str] = []
        after: str | None = None
        while True:
            page = await blobs.list(after=after, limit=limit)
            found += [entry.key for entry in page.entries]
            if (after := page.cursor) is None:
                break
        assert found == sorted(keys)


async def test_a_page_looks_only_where_it_must(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in itertools.product(range(20), range(3)):
        await blobs.put(b"", key=f"{folder:02}/{name}")
    looked: list[str] = []
    for function in ("open", "listdir"):
        monkeypatch.setattr(os, function, counted(looked, getattr(os, function)))
    page = await blobs.list(after="10/1", limit=3)
    assert [entry.key for entry in page.entries] == ["10/2", "11/0", "11/1"]
    assert sorted(looked) == ["listdir"] * 3 + ["open"] * 3  # of the root, 10 and 11
    looked.clear()
    assert len((await blobs.list("15/")).entries) == 3
    assert sorted(looked) == ["listdir"] + ["open"] * 2


def counted(calls: list[str], function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        calls.append(function.__name__)
        return function(*args, **kwargs)

    return called


# --- durability ----------------------------------------------------------------------------------


async def test_a_put_is_synced_in_the_right_order(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, object]] = []
    fsync, replace, mkdir = os.fsync, os.replace, os.mkdir

    def recorded_fsync(file: int) -> None:
        events.append(("fsync", os.fstat(file).st_ino))
        fsync(file)

    def recorded_replace(*args: Any, **kwargs: Any) -> None:
        events.append(("replace", None))
        replace(*args, **kwargs)

    def recorded_mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        events.append(("mkdir", os.fsdecode(os.path.basename(path))))
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    monkeypatch.setattr(os, "mkdir", recorded_mkdir)
    await blobs.put(DATA, key="x/y/z")

    def synced(path: Path) -> tuple[str, object]:
        return ("fsync", path.stat().st_ino)

    file, folder = root / "x~/y~/z", root / "x~/y~"
    assert events == [
        ("mkdir", root.name),
        synced(root.parent),
        ("mkdir", ".writing"),
        synced(root),
        synced(file),
        ("mkdir", "x~"),
        synced(root),
        ("mkdir", "y~"),
        synced(root / "x~"),
        ("replace", None),
        synced(folder),
    ]
    events.clear()
    await blobs.put(DATA, key="x/y/z")
    assert events == [synced(file), ("replace", None), synced(folder)]
    ref = await blobs.put(DATA, prefix="x/y/")
    events.clear()
    assert await blobs.put(DATA, prefix="x/y/") == ref
    assert events == [synced(folder)]
    events.clear()
    await blobs.delete("x/y/z")
    assert events == [synced(folder)]
    await blobs.put(DATA, key="x/y/z/1")
    events.clear()
    await blobs.delete_all("x/y/z/")
    assert events == [synced(folder)]
    (root / "x~/y~/.not ours").touch()
    events.clear()
    await blobs.delete_all("x/y/")
    assert events == [synced(folder), synced(root / "x~")]


# Each child says when it has come to a point, and then goes no further.
STOPPED_INSIDE = """
import asyncio, os, sys
from pathlib import Path
from holdfast.storage.blobs import Blobs
from holdfast.storage.folder_blobs import FolderBlobs
from holdfast.storage.meter import Meter

root, name = sys.argv[1:]
real = getattr(os, name)

def stopped(*args, **kwargs):
    if name == "write":
        real(args[0], args[1][: len(args[1]) // 2])
    sys.stdout.write("inside\\n")
    sys.stdout.flush()
    sys.stdin.read()

async def main():
    blobs = Blobs(FolderBlobs(Path(root)), Meter())
    await blobs.put(b"old", key="a/b")
    setattr(os, name, stopped)
    await blobs.put(b"new" * 1000, key="a/b")

asyncio.run(main())
"""

PUTTING = """
import asyncio, json, sys
from pathlib import Path
from holdfast.storage.blobs import Blobs
from holdfast.storage.folder_blobs import FolderBlobs
from holdfast.storage.meter import Meter

async def main():
    blobs = Blobs(FolderBlobs(Path(sys.argv[1])), Meter())

    async def put(start):
        for number in range(start, 10_000, 4):
            ref = await blobs.put(number.to_bytes(4, "big") * 100_000, prefix=f"{number % 3}/")
            sys.stdout.write(json.dumps(ref.as_item()) + "\\n")
            sys.stdout.flush()

    await asyncio.gather(*map(put, range(4)))

asyncio.run(main())
"""


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []

    def started(script: str, *args: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(process)
        return process

    yield started
    for process in children:
        process.kill()
        process.communicate(timeout=CHILD_SECONDS_MAX)


@pytest.mark.parametrize("inside", ["write", "fsync", "replace"])
async def test_a_process_killed_inside_a_put_leaves_the_old_blob(
    blobs: Blobs, root: Path, child: Callable[..., subprocess.Popen[str]], inside: str
) -> None:
    process = child(STOPPED_INSIDE, root, inside)
    assert process.stdout
    assert process.stdout.readline() == "inside\n"
    process.kill()
    process.wait(CHILD_SECONDS_MAX)
    assert await blobs.get(ref_of("a/b", b"old")) == b"old"
    assert await keys_of(blobs) == ["a/b"]
    assert len(list((root / ".writing").iterdir())) == 1
    assert await blobs.get(await blobs.put(DATA, key="a/b")) == DATA


async def test_a_process_killed_among_puts_leaves_whole_blobs(
    blobs: Blobs, root: Path, child: Callable[..., subprocess.Popen[str]]
) -> None:
    for answers in (1, 7, 20):
        process = child(PUTTING, root)
        assert process.stdout
        put = [json.loads(process.stdout.readline()) for _ in range(answers)]
        process.kill()
        process.wait(CHILD_SECONDS_MAX)
        for item in put:
            await blobs.get(BlobRef.from_item(item))
        for entry in (await blobs.list()).entries:
            await blobs.get(BlobRef(entry.key, entry.key.rpartition("/")[2], entry.size))


async def test_what_a_crash_left_behind_is_removed_a_day_later(root: Path) -> None:
    clock = ManualClock()
    scratch = root / ".writing"
    scratch.mkdir(parents=True)
    for name, age_seconds in (("old", LEFTOVER_SECONDS + 1), ("young", LEFTOVER_SECONDS - 1)):
        (scratch / name).write_bytes(b"half")
        changed = clock.now_ms() / 1000 - age_seconds
        os.utime(scratch / name, (changed, changed))
    (scratch / "folder").mkdir()
    os.utime(scratch / "folder", (0, 0))
    blobs = Blobs(FolderBlobs(root, clock=clock), Meter())
    await blobs.put(DATA, key="a")
    assert files_in(root) == [".writing/young", "a"]
    await blobs.close()


def aged(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


async def test_tidying_removes_what_was_left_before_a_time(blobs: Blobs, root: Path) -> None:
    ref = await blobs.put(DATA, key="x/y/a")
    for folder in ("x~/empty~", "old~/older~", "young~", "x~/mixed~/young~", "x~/mixed~/old~"):
        (root / folder).mkdir(parents=True)
    (root / ".writing" / "half").write_bytes(b"half")
    (root / ".writing" / "now").write_bytes(b"half")
    everything = [root / ".writing" / "half", *root.rglob("*~")]
    for path in everything:
        aged(path, 1_000)
    for young in ("young~", "x~/mixed~/young~", ".writing/now"):
        aged(root / young, 2_000)
    assert await blobs.remove_leftovers(before_ms=1_000_000) == 0
    # A folder above an empty one goes with it; one that holds something stays, however old.
    assert await blobs.remove_leftovers(before_ms=2_000_000) == 5
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}
    assert left == {".writing", "x~", "x~/y~", "young~", "x~/mixed~", "x~/mixed~/young~"}
    assert files_in(root) == [".writing/now", "x~/y~/a"]
    assert await blobs.get(ref) == DATA


async def test_tidying_leaves_alone_what_is_not_ours(
    blobs: Blobs, root: Path, tmp_path: Path
) -> None:
    for folder in ("plain", "lower%7e~", "x~/plain/deep~"):
        (root / folder).mkdir(parents=True)
    (tmp_path / "elsewhere~" / "empty~").mkdir(parents=True)
    (root / "link~").symlink_to(tmp_path / "elsewhere~")
    (root / "file~").write_bytes(b"not a folder")
    before = set(root.rglob("*"))
    assert await blobs.remove_leftovers(before_ms=10**13) == 0
    assert set(root.rglob("*")) == before
    assert (tmp_path / "elsewhere~" / "empty~").exists()


async def test_a_put_outlives_tidying(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FolderBlobs(root)

    def tidy() -> None:
        if len(times) <= 2:
            assert engine.remove_leftovers(10**13) >= 3

    times = before_replace(monkeypatch, tidy)
    assert await blobs.get(await blobs.put(DATA, key="a/b/c")) == DATA
    assert len(times) == 3


# --- others in the same folder -------------------------------------------------------------------


def before_replace(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[int]:
    """Do something each time before a file is renamed; return a list that grows each time."""
    replace, times = os.replace, list[int]()

    def acting(*args: Any, **kwargs: Any) -> None:
        times.append(1)
        act()
        replace(*args, **kwargs)

    monkeypatch.setattr(os, "replace", acting)
    return times


async def test_a_put_outlives_the_removal_of_its_folder(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove() -> None:
        if len(times) <= 3:
            (root / "a~/b~").rmdir()
            (root / "a~").rmdir()

    times = before_replace(monkeypatch, remove)
    assert await blobs.get(await blobs.put(DATA, key="a/b/c")) == DATA
    assert len(times) == 4
    assert files_in(root) == ["a~/b~/c"]


async def test_a_put_outlives_the_removal_of_its_scratch_file(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep() -> None:
        if len(times) == 1:
            for path in (root / ".writing").iterdir():
                path.unlink()

    times = before_replace(monkeypatch, sweep)
    assert await blobs.get(await blobs.put(DATA, key="a")) == DATA


async def test_a_put_gives_up_at_last(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = before_replace(monkeypatch, lambda: (root / "a~").rmdir())
    with pytest.raises(StoreUnavailable, match="'a/b'"):
        await blobs.put(DATA, key="a/b")
    assert len(times) == ATTEMPTS_MAX
    assert files_in(root) == []


async def test_links_are_not_followed(blobs: Blobs, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(DATA)
    root.mkdir()
    (root / "folder~").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "dangling").symlink_to(outside / "nothing")
    for key in ("folder/secret", "file", "dangling"):
        with pytest.raises(BlobNotFound):
            await blobs.get(ref_of(key))
        await blobs.delete(key)
    assert {path.name for path in root.iterdir()} == {"folder~", "file", "dangling"}
    assert await blobs.list() == await blobs.list("folder/") == BlobPage([], None)
    assert await blobs.delete_all("folder/") == 0
    with pytest.raises(StoreUnusable, match="folder~ is in the way"):
        await blobs.put(DATA, key="folder/new")
    assert await blobs.get(await blobs.put(b"new", key="file")) == b"new"
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == DATA


async def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    blobs = Blobs(FolderBlobs(tmp_path / "link"), Meter())
    assert await blobs.get(await blobs.put(DATA, key="a")) == DATA
    assert (tmp_path / "disk/a").exists()
    await blobs.close()


async def test_what_is_not_a_file_is_not_a_blob(blobs: Blobs, root: Path) -> None:
    root.mkdir()
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    for key in ("pipe", "folder"):
        with pytest.raises(BlobNotFound):
            await blobs.get(ref_of(key))
        await blobs.delete(key)
    assert await keys_of(blobs) == []
    with pytest.raises(StoreUnusable, match="folder is in the way"):
        await blobs.put(DATA, key="folder")
    assert files_in(root) == []


# --- a folder that cannot be used ----------------------------------------------------------------


@pytest.mark.parametrize("below", [".", "below"])
async def test_a_file_is_no_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    blobs = Blobs(FolderBlobs(tmp_path / "file" / below), Meter())
    with pytest.raises(StoreUnusable, match="file"):
        await blobs.put(DATA, key="a")
    with pytest.raises(StoreUnusable, match="file"):
        await blobs.create()
    for call in (blobs.list, lambda: blobs.get(ref_of("a")), lambda: blobs.delete("a")):
        with pytest.raises(StoreUnusable, match="is not a folder"):
            await call()
    assert (tmp_path / "file").read_bytes() == b"mine"
    await blobs.close()


# Root may do anything to any file, so the child becomes somebody else first.
AS_NOBODY = """
import asyncio, json, os, sys
from pathlib import Path
from holdfast.errors import HoldfastError
from holdfast.storage.blobs import BlobRef, Blobs
from holdfast.storage.folder_blobs import FolderBlobs
from holdfast.storage.meter import Meter

async def main(root, mode, ref, nobody):
    blobs = Blobs(FolderBlobs(root), Meter())
    await blobs.get(ref)
    root.chmod(int(mode, 8))
    if os.geteuid() == 0:
        os.setuid(int(nobody))
    for call in (
        lambda: blobs.get(ref),
        lambda: blobs.list(),
        lambda: blobs.put(b"new", key="new"),
        lambda: blobs.put(b"new", key="a/new"),
        lambda: blobs.delete("a/b"),
        lambda: blobs.delete_all("a/"),
    ):
        try:
            await call()
        except HoldfastError as error:
            print(json.dumps([type(error).__name__, str(error)]))
        else:
            print(json.dumps(["done", ""]))

root, mode, ref, nobody = sys.argv[1:]
asyncio.run(main(Path(root), mode, BlobRef.from_item(json.loads(ref)), nobody))
"""


@pytest.mark.parametrize(
    ("mode", "outcomes"),
    [
        ("555", ["done", "done"] + ["StoreReadOnly"] * 4),
        ("000", ["AccessDenied"] * 2 + ["StoreReadOnly"] * 4),
    ],
)
async def test_a_folder_of_somebody_else(
    child: Callable[..., subprocess.Popen[str]], mode: str, outcomes: list[str]
) -> None:
    # Not below tmp_path, which nobody else may enter.
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        root = Path(above, "blobs")
        blobs = Blobs(FolderBlobs(root), Meter())
        ref = await blobs.put(DATA, key="a/b")
        (root / "a~").chmod(0o555)
        (root / "a~" / "b").chmod(0o444)
        process = child(AS_NOBODY, root, mode, json.dumps(ref.as_item()), NOBODY)
        output, _ = process.communicate(timeout=CHILD_SECONDS_MAX)
        answers = [json.loads(line) for line in output.splitlines()]
        assert [kind for kind, _ in answers] == outcomes
        assert all(str(root) in message for kind, message in answers if kind != "done")
        root.chmod(0o755)
        (root / "a~").chmod(0o755)
        assert await blobs.get(ref) == DATA
        assert files_in(root) == ["a~/b"]
        await blobs.close()


# The kernel refuses to let a file of this process grow further, in the middle of a write.
WITHOUT_ROOM = """
import asyncio, resource, sys
from pathlib import Path
from holdfast.errors import StoreFull
from holdfast.storage.blobs import Blobs
from holdfast.storage.folder_blobs import FolderBlobs
from holdfast.storage.meter import Meter

async def main():
    blobs = Blobs(FolderBlobs(Path(sys.argv[1])), Meter())
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    try:
        await blobs.put(b"x" * 1_500_000, key="a/large")
    except StoreFull as error:
        print(error)
    await blobs.put(b"x" * 900_000, key="a/small")

asyncio.run(main())
"""


async def test_a_blob_for_which_there_is_no_room(
    blobs: Blobs, root: Path, child: Callable[..., subprocess.Popen[str]]
) -> None:
    output, _ = child(WITHOUT_ROOM, root).communicate(timeout=CHILD_SECONDS_MAX)
    assert "no room left" in output
    assert str(root) in output
    assert files_in(root) == ["a~/small"]
    assert await keys_of(blobs) == ["a/small"]


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EROFS, StoreReadOnly),
        (errno.EIO, StoreUnusable),
        (errno.EMFILE, StoreUnavailable),
    ],
    ids=errno.errorcode.get,
)
@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
async def test_what_the_system_refuses_is_told_and_leaves_nothing(
    blobs: Blobs,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    number: int,
    error: type[Exception],
) -> None:
    ref = await blobs.put(DATA, key="a/b")

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, refused)
        with pytest.raises(error, match=os.strerror(number)) as caught:
            await blobs.put(b"new", key="a/b")
    assert type(caught.value) is error
    assert str(root) in str(caught.value)
    assert await blobs.get(ref) == DATA
    assert files_in(root) == ["a~/b"]


async def test_a_folder_that_may_not_be_read(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    await blobs.put(DATA, key="a/b")

    def refused(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refused)
    for call in (blobs.list, lambda: blobs.get(ref_of("a/b"))):
        with pytest.raises(AccessDenied, match="may not be read"):
            await call()


async def test_a_damaged_blob_is_mended_by_putting_it_again(blobs: Blobs, root: Path) -> None:
    ref = await blobs.put(b"hello", prefix="a/")
    (root / "a~" / ref.sha256).write_bytes(b"jello")
    with pytest.raises(BlobDamaged):
        await blobs.get(ref)
    assert await blobs.put(b"hello", prefix="a/") == ref
    assert await blobs.get(ref) == b"hello"


async def test_folders_deeper_than_any_key_are_left_alone(blobs: Blobs, root: Path) -> None:
    ref = await blobs.put(b"hello", key="x/a")
    folder = os.open(root, os.O_RDONLY)
    for name in ["x~", *["y~"] * 1200]:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    assert [entry.key for entry in (await blobs.list()).entries] == ["x/a"]
    assert await blobs.delete_all("x/") == 1
    with pytest.raises(BlobNotFound):
        await blobs.get(ref)
    # Python's own way to remove a tree does not reach so deep either.
    await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(root)], check=True)


def test_a_fork_is_told_to_open_the_folder_anew(root: Path) -> None:
    async def use(blobs: Blobs) -> None:
        await asyncio.gather(*(blobs.put(b"x", key=f"{n}") for n in range(8)))

    blobs = Blobs(FolderBlobs(root), Meter())
    asyncio.run(use(blobs))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(asyncio.wait_for(use(blobs), 5))
        except StoreClosed as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        assert "fork" in told.read()
    asyncio.run(blobs.close())
