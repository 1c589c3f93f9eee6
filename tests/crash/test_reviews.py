"""kill -9 at every write from the pause to the mail, to the decision, to the reminder.

The reviewer gets at least one mail, the decision counts, and the reminder goes out under one key.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.errors import ReviewDecided
from holdfast.model.review import Review
from holdfast.records.keys import RunKey
from holdfast.records.review import stored_review_of
from holdfast.records.review_trail import is_action, is_vote
from holdfast.review import notifying
from holdfast.storage import Prefix
from holdfast.storage import open as open_store
from tests.crash.brink import Side
from tests.crash.processes import ended, running
from tests.crash.reviewed import (
    COMMENT,
    LEASE_MS,
    REVIEWER,
    RUN,
    folder,
    mailed,
    opened,
    warranty,
    working,
    written,
)

PROCESSES = 2
RESCUES = 8
DEADLINE_SECONDS = 300
SIDES: tuple[Side, ...] = ("before", "after")
FINISHED = {"risk": "high", "approved": True, "receipt": f"reminded of {RUN}"}


class Place(NamedTuple):
    """A store of its own, and the mails and reminders that went out there."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/runs.db"

    @property
    def sent(self) -> Path:
        return self.folder / "sent"


class Death(NamedTuple):
    """What a process had said when it died at a write."""

    place: Place
    said: list[str]

    @property
    def writes(self) -> list[str]:
        return [line for line in self.said if line.startswith("write ")]

    def __str__(self) -> str:
        return f"{self.place.folder.name}: {self.writes[-1] if self.writes else 'no write'}"


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "LEASE_MS", LEASE_MS)


def empty(folder: Path) -> Place:
    """Return a place where nothing has happened yet."""
    (folder / "sent").mkdir(parents=True)
    return Place(folder)


async def lived(role: str, place: Place, number: int = 0, side: Side = "before") -> Death:
    """Let a process die at a write; one that has fewer writes this time ends by itself."""
    module = ("-m", "tests.crash.reviewed")
    arguments = (role, place.url, str(place.sent), str(number), side)
    async with running(*module, *arguments) as process:
        code, said = await ended(process)
    death = Death(place, said)
    assert code == -signal.SIGKILL or (code == 0 and said[-1] == "ended"), f"{death} {said}"
    assert number or code == 0, f"{death} {said}"
    return death


async def died(role: str, numbers: Iterable[int], made: Callable[[str], Place]) -> list[Death]:
    """Let a process die before and after each of these writes, each in a place of its own."""
    room = asyncio.Semaphore(PROCESSES)

    async def one(number: int, side: Side) -> Death:
        async with room:
            return await lived(role, made(f"{side}-{number}"), number, side)

    return await asyncio.gather(*(one(number, side) for number in numbers for side in SIDES))


async def rescued_all(deaths: list[Death]) -> None:
    """Finish what each of them left behind, and check what came of it."""
    room = asyncio.Semaphore(RESCUES)

    async def one(death: Death) -> None:
        async with room:
            folder.set(death.place.sent)
            try:
                await rescued(death)
            except BaseException as error:
                error.add_note(f"{death}: {death.said}")
                raise

    await asyncio.gather(*map(one, deaths))


async def rescued(death: Death) -> None:
    async with AsyncExitStack() as stack:
        hf = await stack.enter_async_context(opened(death.place.url))
        await working(stack, hf)
        # What was acknowledged is not asked for again: it must not be lost.
        if "started" not in death.said:
            await hf.start(warranty, {"risk": "high"}, id=RUN)
        if "decided" not in death.said:
            await decided_again(hf)
        assert await hf.run(RUN).result() == FINISHED
        await check(hf, death.place)


async def decided_again(hf: Holdfast) -> None:
    """Decide, as a person does whose page showed an error: it counts, or it counted before."""
    entry = await mailed(hf)
    try:
        review = await hf.reviews.approve(entry.id, by=REVIEWER, comment=COMMENT)
        decision = review.decision
    except ReviewDecided as refused:
        decision = refused.decision
    assert decision is not None
    assert (decision.status, decision.by, decision.comment) == ("approved", REVIEWER, COMMENT)


async def check(hf: Holdfast, place: Place) -> None:
    """Check the mails, the reminder, the review and its trail once the run has finished."""
    mails = written("mails")
    assert mails
    assert {(kind, to) for kind, to, _ in mails} == {("requested", REVIEWER)}
    assert len({id for _, _, id in mails}) == 1, "a mail is repeated under its id"
    reminders = written("reminders")
    assert reminders
    assert len({key for _, key in reminders}) == 1, "the reminder goes out under one key"
    assert (await hf.reviews.list(status="pending")).reviews == []
    (entry,) = (await hf.reviews.list(run=RUN, status="decided")).reviews
    assert (entry.status, entry.decided_by) == ("approved", REVIEWER)
    review = await hf.reviews.get(entry.id)
    check_trail(review)
    await check_stored(place)


def check_trail(review: Review) -> None:
    assert review.decision is not None
    assert (review.status, review.decision.comment) == ("approved", COMMENT)
    assert [action.position for action in review.trail] == list(range(len(review.trail)))
    kinds = [action.kind for action in review.trail]
    assert kinds.count("decided") == 1
    assert set(kinds) <= {"notified", "decided"}


async def check_stored(place: Place) -> None:
    """Check that one review is there, and nothing of another."""
    async with open_store(place.url) as store:
        found = [
            item
            async for item in store.table.query_all(RunKey("default", RUN).pk, Prefix("REVIEW#"))
        ]
    entries = [item for item in found if "show" in item]
    assert [stored_review_of(item).status for item in entries] == ["approved"]
    rest = [item["SK"] for item in found if "show" not in item]
    assert not any(map(is_vote, rest))
    assert len([sk for sk in rest if not is_action(sk)]) == 1


async def test_kill_9_at_every_write_from_the_pause_to_the_reminder(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        clean = await lived("live", empty(tmp_path / "clean"))
        kinds = " ".join(clean.writes)
        # What is shown, the entry, the notice, the decision, the trail: each is one of the writes.
        for part in ("#SHOWN", "REVIEW#", "%review.", "#A#", "HEAD"):
            assert part in kinds, clean.writes
        # What comes before the review is the path of every run: see test_boundaries.
        first = next(n for n, write in enumerate(clean.writes, 1) if write.endswith("#SHOWN"))
        numbers = range(first, len(clean.writes) + 1)
        deaths = await died("live", numbers, lambda name: empty(tmp_path / name))
        await rescued_all(deaths)
        told = sum("decided" in death.said for death in deaths)
        print(f"\n{len(deaths)} deaths, {told} of them after the decision was acknowledged")


async def test_kill_9_at_every_write_of_the_reviewer(tmp_path: Path) -> None:
    """The reviewer decides again: it counts, or the first attempt did."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        origin = empty(tmp_path / "origin")
        async with opened(origin.url) as hf:
            await hf.start(warranty, {"risk": "high"}, id=RUN)
        await lived("work", origin)

        def copied(name: str) -> Place:
            return Place(shutil.copytree(origin.folder, tmp_path / name))

        clean = await lived("decide", copied("clean"))
        # The decision in the inbox, the row, the trail, the entry.
        assert len(clean.writes) >= 4, clean.writes
        deaths = await died("decide", range(1, len(clean.writes) + 1), copied)
        started = [Death(death.place, ["started", *death.said]) for death in deaths]
        await rescued_all(started)
        print(f"\n{len(deaths)} deaths of the reviewer")
