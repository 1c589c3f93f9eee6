"""How documents arrive: by name, and by a drop into a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from documents.arrivals import Arrivals, FolderWatch
from holdfast.errors import ProjectNotFound
from tests.examples.documents.conftest import PROJECT, SENTENCE, Bench


class Drop:
    """A folder, and what a watch of it adds."""

    def __init__(self, path: Path, bench: Bench) -> None:
        path.mkdir()
        self.path = path
        self._watch, self._arrivals = FolderWatch(path), Arrivals(bench.hf, PROJECT)

    async def look(self) -> list[str]:
        return [added.name for added in await self._watch.look(self._arrivals)]

    def write(self, name: str, content: str = SENTENCE) -> None:
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


@pytest.fixture
def drop(tmp_path: Path, bench: Bench) -> Drop:
    return Drop(tmp_path / "drop", bench)


async def test_a_file_is_taken_once_when_it_is_complete(drop: Drop) -> None:
    drop.write("a.txt", "half")
    assert await drop.look() == []
    drop.write("a.txt", "half and half")
    assert await drop.look() == [], "it grew since the last look"
    assert await drop.look() == ["a.txt"]
    assert await drop.look() == []


async def test_what_is_no_document_is_left_alone(
    drop: Drop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in (".hidden.txt", "b.txt.part", ".git/c.txt"):
        drop.write(name)
    drop.write("program.pdf", "MZ\x90 this is a program")
    (tmp_path / "secret.txt").write_text("secret")
    os.symlink(tmp_path / "secret.txt", drop.path / "link.txt")
    drop.write("folder/good.txt")
    await drop.look()
    (name,) = await drop.look()
    assert name.endswith("good.txt")
    assert "left 'program.pdf': " in capsys.readouterr().out


async def test_the_same_file_is_the_same_document(bench: Bench, tmp_path: Path) -> None:
    arrivals = Arrivals(bench.hf, PROJECT)
    path = tmp_path / "a.txt"
    path.write_text(SENTENCE)
    first, again = await arrivals.add_file(path), await arrivals.add_file(path)
    assert (again.document, again.workflow) == (first.document, first.workflow)
    path.write_text(f"{SENTENCE} It was changed.")
    changed = await arrivals.add_file(path)
    assert changed.document != first.document
    for added in (first, changed):
        assert (await bench.ended(added)).status == "completed"
    assert await bench.hf.documents.counts() == {
        "pending": 0,
        "in_progress": 0,
        "completed": 2,
        "failed": 0,
    }


async def test_only_the_default_project_is_made(bench: Bench) -> None:
    await Arrivals(bench.hf).prepare()
    assert (await bench.hf.documents.projects.get("default")).name == "Documents"
    with pytest.raises(ProjectNotFound):
        await Arrivals(bench.hf, "another").prepare()
