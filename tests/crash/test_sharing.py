"""Two processes ask the same at once: one asks for both, unless it is killed or stands still."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.clock import SystemIds
from tests.crash.processes import ended, line_of, running

DEADLINE_SECONDS = 60
LEASE_SECONDS = 1.0
COUNT = 50


class Place(NamedTuple):
    """Where the answers are, and where each who was asked leaves its pid."""

    url: str
    file: Path

    def asked(self) -> list[int]:
        return [int(line) for line in self.file.read_text().splitlines()]


@pytest.fixture(params=["sqlite", "dynamodb"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    url = f"sqlite:///{tmp_path}/runs.db"
    if request.param == "dynamodb":
        local = request.getfixturevalue("dynamodb_local")
        url = f"dynamodb://sharing-{SystemIds().new()}?region=us-east-1&endpoint={local}"
        async with Holdfast(url) as hf:
            await hf.create()
    return Place(url, tmp_path / "asked")


@asynccontextmanager
async def asking(place: Place, count: int, *, lease_seconds: float) -> AsyncIterator[Process]:
    module = ("-m", "tests.crash.asker")
    async with running(*module, place.url, str(count), str(lease_seconds), str(place.file)) as made:
        assert await line_of(made) == "ready"
        yield made


def tell(process: Process, *, times: int = 1) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n" * times)


async def got(process: Process) -> list[list[object]]:
    """Return what its callers got, once it has ended."""
    code, lines = await ended(process)
    assert code == 0
    return json.loads(lines[-1])


async def answer_there(place: Place) -> list[object]:
    """Return what a process gets that comes later."""
    async with asking(place, 1, lease_seconds=LEASE_SECONDS) as later:
        tell(later, times=2)
        (answer,) = await got(later)
    return answer


async def test_a_hundred_equal_questions_of_two_processes_are_one(place: Place) -> None:
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        asking(place, COUNT, lease_seconds=600) as one,
        asking(place, COUNT, lease_seconds=600) as other,
    ):
        tell(one)
        tell(other)
        said = {asyncio.ensure_future(line_of(process)): process for process in (one, other)}
        done, waiting = await asyncio.wait(said, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result() for each in done] == ["asking"]
        leader = said[done.pop()]
        (follower,) = waiting  # it cannot have said anything else: its callers have no answer
        tell(leader)
        led = await got(leader)
        followed = json.loads(await follower)
    assert place.asked() == [leader.pid]
    assert led == [[leader.pid, False], *[[leader.pid, True]] * (COUNT - 1)]
    assert followed == [[leader.pid, True]] * COUNT


async def test_after_kill_9_of_the_one_who_asks_there_is_one_more_call(place: Place) -> None:
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        asking(place, COUNT, lease_seconds=LEASE_SECONDS) as victim,
        asking(place, COUNT, lease_seconds=LEASE_SECONDS) as survivor,
    ):
        tell(victim)
        assert await line_of(victim) == "asking"
        tell(survivor, times=2)
        victim.send_signal(signal.SIGKILL)
        answers = await got(survivor)
        assert answers == [[survivor.pid, False], *[[survivor.pid, True]] * (COUNT - 1)]
        assert await answer_there(place) == [survivor.pid, True]
    assert place.asked() == [victim.pid, survivor.pid]


async def test_one_who_stood_still_past_its_lease_shares_nothing(place: Place) -> None:
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        asking(place, COUNT, lease_seconds=LEASE_SECONDS) as stalled,
        asking(place, COUNT, lease_seconds=LEASE_SECONDS) as survivor,
    ):
        tell(stalled)
        assert await line_of(stalled) == "asking"
        stalled.send_signal(signal.SIGSTOP)
        tell(survivor, times=2)
        assert (await got(survivor))[0] == [survivor.pid, False]
        tell(stalled)
        stalled.send_signal(signal.SIGCONT)
        assert (await got(stalled))[0] == [stalled.pid, False]
        assert await answer_there(place) == [survivor.pid, True]
    assert place.asked() == [stalled.pid, survivor.pid]
