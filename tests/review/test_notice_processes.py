"""Notices of real ``holdfast worker`` processes: one that is killed, two at once, wrong options."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.review.notices import Claim, claims

URL = "sqlite:///runs.db"
DEADLINE_SECONDS = 60
# The lease is short, so that another process goes on soon.
MODULE = """
import os, signal
from pathlib import Path

import holdfast.review.notifying
from holdfast import ReviewOptions
from tests.review.notices import claims

holdfast.review.notifying.LEASE_MS = 1_500


class File:
    name = "file"

    async def send(self, notice):
        with open("sent", "a") as file:
            file.write(f"{notice.review.run} {notice.reviewer} {notice.id}\\n")
            file.flush()
            os.fsync(file.fileno())
        if Path("die").exists():
            Path("die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)


REVIEWS = ReviewOptions(notifiers=[File()], poll=1)
NOT_OPTIONS = {"notifiers": []}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(MODULE)
    return tmp_path


@asynccontextmanager
async def worker(*options: str) -> AsyncIterator[Process]:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root / "src"), str(root)])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "worker", "app:claims", "--url", URL, *options,
        stdout=PIPE, stderr=PIPE, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.communicate(), DEADLINE_SECONDS)


async def notified(hf: Holdfast, *ids: str) -> None:
    """Wait until the trails of the reviews of these runs say that all were notified."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        for id in ids:
            while True:
                reviews = (await hf.reviews.list(run=id)).reviews
                if reviews and (await hf.reviews.get(reviews[0].id)).trail:
                    break
                await hf.clock.sleep(0.05)


async def test_a_killed_process_lets_another_send_the_notice_again(folder: Path) -> None:
    (folder / "die").touch()
    async with Holdfast(URL) as hf:
        await hf.start(claims, Claim({"assignees": "ana"}), id="c-1")
        async with worker("--reviews", "app:REVIEWS", "--lease", "2s") as process:
            await asyncio.wait_for(process.communicate(), DEADLINE_SECONDS)
            assert process.returncode == -signal.SIGKILL
        first = (folder / "sent").read_text()
        assert len(first.splitlines()) == 1
        async with worker("--reviews", "app:REVIEWS", "--lease", "2s"):
            await notified(hf, "c-1")
        assert (folder / "sent").read_text() == first * 2


async def test_two_processes_send_each_notice_once(folder: Path) -> None:
    ids = [f"c-{number}" for number in range(8)]
    async with (
        Holdfast(URL) as hf,
        worker("--reviews", "app:REVIEWS"),
        worker("--reviews", "app:REVIEWS"),
    ):
        for id in ids:
            await hf.start(claims, Claim({"assignees": ["ana", "bob"]}), id=id)
        await notified(hf, *ids)
    sent = Counter((folder / "sent").read_text().splitlines())
    assert sorted(" ".join(line.split()[:2]) for line in sent) == sorted(
        f"{id} {name}" for id in ids for name in ("ana", "bob")
    )
    assert set(sent.values()) == {1}


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("app:NOT_OPTIONS", "--reviews must name ReviewOptions"),
        ("app:MISSING", "app has no 'MISSING'"),
        ("app", "must name ReviewOptions"),
    ],
)
async def test_wrong_options_are_said_before_anything_begins(
    folder: Path, target: str, told: str
) -> None:
    async with worker("--reviews", target) as process:
        _, errors = await asyncio.wait_for(process.communicate(), DEADLINE_SECONDS)
    assert process.returncode != 0
    assert told in errors.decode()
