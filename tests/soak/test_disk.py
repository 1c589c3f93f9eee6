"""A disk that fails below a real process: SQLite sees it, and nothing is acknowledged."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from soak.disk import Ailment, Disk
from tests.crash.processes import ended, line_of, running
from tests.servers.component import required

DEADLINE_SECONDS = 30
# Says what comes of writing a row, whenever it gets a line.
WRITER = """
import sqlite3, sys
from pathlib import Path
store = Path(sys.argv[1])
database = sqlite3.connect(store / "runs.db", isolation_level=None)
database.execute("PRAGMA journal_mode = WAL")
database.execute("PRAGMA synchronous = FULL")
database.execute("CREATE TABLE IF NOT EXISTS rows (value)")
print("ready", flush=True)
for line in sys.stdin:
    try:
        Path(sys.argv[2]).write_text("not of the store")
        database.execute("INSERT INTO rows VALUES (?)", [line])
        print("done", flush=True)
    except sqlite3.OperationalError as error:
        print(error, flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "store").mkdir()
    with required():
        return Disk(tmp_path / "store", tmp_path / "control")


@pytest.mark.parametrize(
    ("ailment", "complaint"), [("full", "disk is full"), ("broken", "disk I/O error")]
)
async def test_a_commit_that_the_disk_refuses_is_not_acknowledged(
    tmp_path: Path, disk: Disk, ailment: Ailment, complaint: str
) -> None:
    arguments = ("-c", WRITER, str(tmp_path / "store"), str(tmp_path / "elsewhere"))
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        running(*arguments, env=disk.environment(1)) as process,
    ):
        assert process.stdin is not None
        assert await line_of(process) == "ready"

        async def write(line: str) -> str:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n".encode())
            return await line_of(process)

        assert await write("first") == "done"
        assert disk.struck == 0
        disk.ail(ailment)
        assert complaint in await write("second")
        assert disk.struck > 0
        disk.heal()
        assert await write("third") == "done"
        process.stdin.close()
        assert (await ended(process))[0] == 0
    with closing(sqlite3.connect(tmp_path / "store" / "runs.db")) as database:
        assert database.execute("SELECT value FROM rows").fetchall() == [
            ("first\n",),
            ("third\n",),
        ]
    assert (tmp_path / "elsewhere").read_text() == "not of the store"


async def test_a_stalled_disk_answers_all_the_same(tmp_path: Path, disk: Disk) -> None:
    disk.ail("stalled", stall_seconds=0.001)
    arguments = ("-c", WRITER, str(tmp_path / "store"), str(tmp_path / "elsewhere"))
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        running(*arguments, env=disk.environment(1)) as process,
    ):
        assert await line_of(process) == "ready"
        assert (await process.communicate(b"row\n"))[0] == b"done\n"
    assert disk.struck > 0


def test_a_part_of_the_writes_fails_and_the_same_for_the_same_seed(
    tmp_path: Path, disk: Disk
) -> None:
    disk.ail("full", rate=0.5)
    assert 0 < fates(tmp_path, disk, 1).count("ENOSPC") < 40
    assert fates(tmp_path, disk, 1) == fates(tmp_path, disk, 1) != fates(tmp_path, disk, 2)


def fates(tmp_path: Path, disk: Disk, seed: int) -> list[str]:
    """Return what became of forty writes of a process with that seed."""
    source = f"""
import errno, json, os
file = os.open({str(tmp_path / "store" / "file")!r}, os.O_WRONLY | os.O_CREAT)
fates = []
for _ in range(40):
    try:
        fates.append(str(os.write(file, b"x")))
    except OSError as error:
        fates.append(errno.errorcode[error.errno])
print(json.dumps(fates))
"""
    env = disk.environment(seed)
    said = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, check=True)
    return json.loads(said.stdout)
