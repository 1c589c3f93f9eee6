"""Folders of blobs on a file system that takes capitals for small letters."""

from __future__ import annotations

import os
import random
import stat
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Graph, Holdfast, days, signal
from holdfast.clock import ManualClock
from holdfast.errors import StoreUnusable
from holdfast.storage.file_names import FileNames
from holdfast.storage.folder_blobs import FolderBlobs
from tests.storage.folding import fold

KEYS = ["Acme/Run", "acme/run", "ACME/run", "acme/Run", "é", unicodedata.normalize("NFD", "é"), "É"]
GRAPH = Graph("g", dict)


@GRAPH.node
async def waits(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("go"))
    return {"size": len(state["x"])}


def text_of(seed: int) -> str:
    return random.Random(seed).randbytes(100_000).hex()


async def swept(hf: Holdfast) -> Any:
    return [step async for step in hf.sweep_blobs()][-1]


async def start_two(hf: Holdfast) -> None:
    await hf.start(GRAPH, {"x": text_of(1)}, id="run-1", tenant="Acme", expires=days(30))
    await hf.start(GRAPH, {"x": text_of(2)}, id="run-2", tenant="acme", expires=days(30))


async def test_a_sweep_deletes_no_input_of_a_live_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold(monkeypatch)
    clock = ManualClock(2_000_000_000_000)
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) as hf:
        await start_two(hf)
        clock.advance(3 * 24 * 3600)
        done = await swept(hf)
        assert (done.kept, done.deleted, done.foreign) == (2, 0, 0)
        async with hf.worker([GRAPH], lease=10**8):
            for id, tenant in (("run-1", "Acme"), ("run-2", "acme")):
                await hf.run(id, tenant=tenant).signal("go")
                assert (await hf.run(id, tenant=tenant).result(timeout=60))["size"] == 200_000


async def test_a_folder_that_was_filled_before_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(2_000_000_000_000)
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) as hf:
        await hf.start(GRAPH, {"x": text_of(1)}, id="run-1", tenant="Acme", expires=days(30))
    fold(monkeypatch)  # it was always so, but the older release did not know
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) as hf:
        await hf.start(GRAPH, {"x": text_of(2)}, id="run-2", tenant="acme", expires=days(30))
        clock.advance(3 * 24 * 3600)
        with pytest.raises(StoreUnusable, match="ignores case"):
            await swept(hf)
        before = sorted(path.name for path in folder_of(tmp_path).rglob("input*"))
        assert before == ["input", "input"]


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "runs.db.blobs"


def test_no_two_keys_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold(monkeypatch)
    blobs = FolderBlobs(tmp_path / "blobs")
    for key in KEYS:
        blobs.write(key, key.encode(), "")
    again = FolderBlobs(tmp_path / "blobs")
    assert again.probe_exact_keys()
    assert [entry.key for entry in again.list_page("", None, 100).entries] == sorted(
        KEYS, key=str.encode
    )
    for key in KEYS:
        content = again.read(key, 1000)
        assert content is not None
        assert content.data == key.encode()
    again.delete("acme/Run")
    assert again.delete_all("ACME/") == 1
    left = {entry.key for entry in FolderBlobs(tmp_path / "blobs").list_page("", None, 100).entries}
    assert left == {*KEYS} - {"acme/Run", "ACME/run"}


def test_a_folder_keeps_its_names_wherever_it_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fold(patch)
        FolderBlobs(tmp_path / "blobs").write("Acme/a", b"x", "")
    moved = FolderBlobs(tmp_path / "blobs")
    moved.write("acme/a", b"y", "")
    assert [entry.key for entry in moved.list_page("", None, 9).entries] == ["Acme/a", "acme/a"]
    assert {path.name for path in (tmp_path / "blobs").iterdir()} >= {"acme~", ".folding"}


@given(st.binary(min_size=1).filter(lambda name: b"/" not in name and b"\0" not in name))
def test_a_name_stands_for_one_part_only(name: bytes) -> None:
    for names in (FileNames(hashed=True), FileNames(hashed=False)):
        part = names.part(name)
        assert part is None or names.name(part) == name
        for mine in (name, name + b"/"):
            assert names.part(names.name(mine)) == mine


# --- private -------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277], ids=oct)
def test_blobs_are_private(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        FolderBlobs(tmp_path / "above" / "blobs").write("a/b", b"x", "")
    finally:
        os.umask(before)
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    assert modes.pop("above/blobs/a~/b") == 0o600
    assert set(modes.values()) == {0o700}


def test_a_folder_of_ours_becomes_private(tmp_path: Path) -> None:
    for own in (True, False):
        folder = tmp_path / f"{own}"
        folder.mkdir()
        folder.chmod(0o755)
        FolderBlobs(folder, exclusive=own).write("a", b"x", "")
        assert stat.S_IMODE(folder.stat().st_mode) == (0o700 if own else 0o755)


def test_a_folder_behind_a_link_keeps_its_mode(tmp_path: Path) -> None:
    """Somebody put the link there, and may keep other things in the folder."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    (tmp_path / "blobs").symlink_to(shared)
    FolderBlobs(tmp_path / "blobs", exclusive=True).write("a", b"x", "")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o775


async def test_a_folder_beside_a_file_that_is_no_store_keeps_its_mode(tmp_path: Path) -> None:
    folder_of(tmp_path).mkdir()
    folder_of(tmp_path).chmod(0o775)
    (tmp_path / "runs.db").write_bytes(b"of another program" * 100)
    with pytest.raises(StoreUnusable):
        Holdfast(f"sqlite:///{tmp_path}/runs.db")
    assert stat.S_IMODE(folder_of(tmp_path).stat().st_mode) == 0o775
