"""The file of the search index: several processes, damage, and files of other programs."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.documents import search_file
from holdfast.documents.search_file import SearchFile
from holdfast.documents.search_query import fts_expression
from holdfast.documents.search_words import read_search
from holdfast.documents.sqlite_search import SqliteSegmentSearch
from holdfast.errors import SearchIndexDamaged, SearchUnavailable, StoreClosed
from holdfast.model.segment_search import SegmentEntry

WRITER = """
import asyncio, sys
from holdfast.documents.sqlite_search import SqliteSegmentSearch
from holdfast.model.segment_search import SegmentEntry

async def main(path, name):
    search = SqliteSegmentSearch(path)
    for part in range(20):
        entries = [SegmentEntry(10 * part + n, f"word {name}") for n in range(1, 11)]
        await search.add("t", "p", name, "w", entries)
    await search.close()

asyncio.run(main(*sys.argv[1:]))
"""
HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM segments").fetchall()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "runs.db.search")


@pytest.fixture
async def search(path: str) -> AsyncIterator[SqliteSegmentSearch]:
    opened = SqliteSegmentSearch(path)
    yield opened
    await opened.close()


async def fill(search: SqliteSegmentSearch, *, count: int = 200) -> None:
    text = " ".join(f"w{n}" for n in range(200))
    entries = [SegmentEntry(n, f"word {n} {text}") for n in range(1, count + 1)]
    await search.add("t", "p", "d", "w", entries)


def start(program: str, *given: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *given]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def content_of(path: str) -> bytes:
    return Path(path).read_bytes()


def files_beside(path: str) -> list[str]:
    return sorted(os.listdir(os.path.dirname(path)))


async def test_processes_write_to_one_index_at_the_same_time(
    path: str, search: SqliteSegmentSearch
) -> None:
    writers = [start(WRITER, path, name) for name in ("one", "two")]
    for writer in writers:
        await asyncio.to_thread(writer.communicate)
    assert [writer.returncode for writer in writers] == [0, 0]
    for name in ("one", "two"):
        assert len(await search.search("t", "word", document=name, limit=100)) == 100
        with sqlite3.connect(path) as connection:
            count = "SELECT count(*) FROM segments WHERE document = ?"
            assert connection.execute(count, (name,)).fetchone() == (200,)
        connection.close()


async def test_a_locked_index_is_unavailable(
    path: str, search: SqliteSegmentSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_file, "_BUSY_MS", 1)
    await fill(search, count=1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(SearchUnavailable, match="stayed locked") as raised:
            await fill(search, count=1)
        assert raised.value.retryable
        # Readers do not wait for it.
        assert len(await search.search("t", "word")) == 1
    finally:
        other.execute("ROLLBACK")
        other.close()
    await fill(search, count=2)
    assert len(await search.search("t", "word")) == 2


async def use(search: SqliteSegmentSearch) -> None:
    """Read all of the index, and write to it: a search alone may miss the damaged pages."""
    await search.search("t", "word", limit=100)
    await fill(search)


def damage(path: str, kind: str) -> None:
    match kind:
        case "no database":
            Path(path).write_bytes(b"not a database at all\n" * 2000)
        case "pages":
            with open(path, "r+b") as file:
                file.seek(4096)
                file.write(b"\xa5" * (os.path.getsize(path) - 4096))
        case "cut":
            os.truncate(path, os.path.getsize(path) // 2)
        case "tables":
            with sqlite3.connect(path) as connection:
                connection.execute("DROP TABLE segments")
            connection.close()
        case _:
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA user_version = 99")
            connection.close()


@pytest.mark.parametrize("kind", ["no database", "pages", "cut", "tables", "version"])
async def test_a_damaged_index_is_reported_and_built_again(
    path: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    search = SqliteSegmentSearch(path)
    await fill(search)
    await search.close()
    damage(path, kind)

    search = SqliteSegmentSearch(path)
    with pytest.raises(SearchIndexDamaged, match="holdfast documents reindex"):
        await use(search)
    with caplog.at_level(logging.WARNING, "holdfast.documents"):
        await search.clear("t")
    assert "may be removed" in caplog.text
    assert await search.search("t", "word") == []
    await fill(search, count=3)
    assert len(await search.search("t", "word")) == 3
    assert [name for name in files_beside(path) if ".damaged-" in name]
    await search.close()


async def test_a_damaged_index_is_not_moved_while_another_process_has_it_open(path: str) -> None:
    search = SqliteSegmentSearch(path)
    await fill(search)
    other = start(HOLDER, path)
    assert other.stdin is not None
    assert other.stdout is not None
    with other.stdin, other.stdout:
        assert await asyncio.to_thread(other.stdout.readline) == "open\n"
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(SearchUnavailable, match="another process has the search index"):
            await search.clear("t")
        assert "runs.db.search" in files_beside(path)
    assert await asyncio.to_thread(other.wait) == 0
    await search.clear("t")
    assert "runs.db.search" not in files_beside(path)
    await search.close()


async def test_the_file_of_another_program_is_left_alone(path: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
        connection.execute("INSERT INTO notes VALUES ('keep me')")
    connection.close()
    before = content_of(path)
    search = SqliteSegmentSearch(path)
    for call in (search.search("t", "keep"), fill(search), search.clear("t")):
        with pytest.raises(SearchIndexDamaged, match="choose another file"):
            await call
    await search.close()
    assert content_of(path) == before


async def test_an_index_that_was_removed_while_it_is_open_is_created_again(
    path: str, search: SqliteSegmentSearch
) -> None:
    await fill(search, count=5)
    assert len(await search.search("t", "word")) == 5
    for name in (path, f"{path}-wal", f"{path}-shm"):
        os.unlink(name)
    assert await search.search("t", "word") == []
    await fill(search, count=2)
    assert len(await search.search("t", "word")) == 2


async def test_a_folder_that_is_missing_is_unavailable(tmp_path: Path) -> None:
    search = SqliteSegmentSearch(str(tmp_path / "missing" / "x.search"))
    assert await search.search("t", "word") == []
    with pytest.raises(SearchUnavailable, match="cannot be opened"):
        await fill(search, count=1)
    await search.close()
    with pytest.raises(StoreClosed, match="search index"):
        await search.search("t", "word")


class HastyClock(SystemClock):
    """A clock on which a minute passes between two looks."""

    _seconds = 0.0

    def monotonic(self) -> float:
        self._seconds += 60
        return self._seconds


def test_a_search_that_takes_too_long_ends(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_file, "_CHECK_STEPS", 100)
    file = SearchFile(path, HastyClock())
    entries = [SegmentEntry(n, "word") for n in range(1, 1001)]
    file.add("t", "p", document="d", workflow="w", entries=entries)
    with pytest.raises(SearchUnavailable, match="took longer than 10 s"):
        file.search("t", read_search("word"), project=None, document=None, limit=20)
    file.close()


def test_sql_alone_keeps_tenants_apart(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry has a hash of its tenant; if two were alike, the tenants are compared, too."""
    monkeypatch.setattr(search_file, "_scopes", lambda *names: ["alike"])
    file = SearchFile(path, SystemClock())
    file.add("one", "p", document="d", workflow="w", entries=[SegmentEntry(1, "word")])
    asked = {"project": None, "document": None, "limit": 20}
    assert file.search("other", read_search("word"), **asked) == []  # type: ignore[arg-type]
    assert len(file.search("one", read_search("word"), **asked)) == 1  # type: ignore[arg-type]
    file.close()


def test_a_search_reads_only_what_its_narrowest_scope_contains(path: str) -> None:
    """Not all pages with the word: FTS5 intersects them with the word of the document."""
    file = SearchFile(path, SystemClock())
    for document in ("one", "other"):
        entries = [SegmentEntry(1, "word")]
        file.add("t", "p", document=document, workflow="w", entries=entries)
    file.close()
    with sqlite3.connect(path) as connection:
        scopes = [row[0].split() for row in connection.execute("SELECT scope FROM words")]
    connection.close()
    assert [len(words) for words in scopes] == [3, 3]
    assert scopes[0][:2] == scopes[1][:2]  # the tenant and the project
    assert scopes[0][2] != scopes[1][2]
    for words in scopes:
        asked = fts_expression(read_search("word"), scope=words[2])
        with sqlite3.connect(path) as connection:
            count = "SELECT count(*) FROM words WHERE words MATCH ?"
            assert connection.execute(count, (asked,)).fetchone() == (1,)
        connection.close()
