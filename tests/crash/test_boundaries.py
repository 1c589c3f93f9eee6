"""kill -9 right before and right after each write: whoever comes next finishes the run."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from holdfast import Holdfast
from holdfast.errors import RunNotFound
from holdfast.model.event import AttemptFailed, SignalTaken
from holdfast.records.keys import RunKey, inbox_key
from holdfast.storage import open as open_store
from tests.crash.brink import Side
from tests.crash.doomed import OPTIONS, waiting
from tests.crash.flows import (
    EFFECTS,
    SIGNALS,
    VARIED_TRAIL,
    Effect,
    big_value,
    effects,
    effects_folder,
    varied,
)
from tests.crash.journals import Record, check_history, head_of, journal_of, visits_of
from tests.crash.processes import ended, running

PROCESSES = 2
RESCUES = 8
DEADLINE_SECONDS = 90
RUN = "run"
FINISHED = {"trail": VARIED_TRAIL, "blob": big_value(), "answers": list(SIGNALS)}
# Node, visit and attempt of everything that a run does.
EVERYTHING = {
    ("begin", 0, 1),
    ("flaky", 1, 1),
    ("flaky", 1, 2),
    ("big", 2, 1),
    ("ask", 3, 1),
    ("close", 4, 1),
}


class Place(NamedTuple):
    """A store of its own, and the side effects of what happens there."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/runs.db"

    @property
    def effects(self) -> Path:
        return self.folder / "effects"


class Death(NamedTuple):
    """What a process had said when it died at a write."""

    place: Place
    said: list[str]

    @property
    def writes(self) -> list[str]:
        return [line for line in self.said if line.startswith("write ")]

    def __str__(self) -> str:
        return f"{self.place.folder.name}: {self.writes[-1] if self.writes else 'no write'}"


def empty(folder: Path) -> Place:
    """Return a place where nothing has happened yet."""
    (folder / "effects").mkdir(parents=True)
    return Place(folder)


# --- the tests ------------------------------------------------------------------------------------


async def test_kill_9_at_every_write_of_a_run(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        clean = await lived("live", empty(tmp_path / "clean"))
        # The settings and the worker; the row; five nodes, an attempt that failed, three pauses
        # with their claims; two signals, each put into the inbox and taken; the end; the farewell.
        assert len(clean.writes) >= 20, clean.said
        began = time.monotonic()
        deaths = await died("live", len(clean.writes), lambda name: empty(tmp_path / name))
        repeated = await rescued_all(deaths)
        took = time.monotonic() - began
        print(f"\n{len(deaths)} deaths, {repeated} nodes ran again, {took:.1f} s")
        # Which node is in flight at a death is checked there, and that no death meets two. How many
        # deaths meet one is for the machine to say: a write that comes by the clock shifts the
        # numbers of those after it, and then two deaths may meet the same node.
        assert 0 < repeated < len(deaths)


async def test_kill_9_at_every_write_of_whoever_takes_over(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        # Somebody dies when the blob of the large delta is written, and its record is not.
        whole = await lived("live", empty(tmp_path / "whole"))
        number = next(n for n, write in enumerate(whole.writes, 1) if write.endswith("#00000004"))
        origin = empty(tmp_path / "origin")
        first = await lived("live", origin, number, "before")
        assert sorted(visits_of(await journal_at(origin))) == [0, 1]
        assert (origin.folder / "runs.db.blobs").exists()

        def copied(name: str) -> Place:
            return Place(shutil.copytree(origin.folder, tmp_path / name))

        clean = await lived("inherit", copied("clean"))
        # The worker; the burial; the run made due, claimed and fenced; the dead reaped; a node; the
        # pause; the farewell.
        assert len(clean.writes) >= 8, clean.said
        deaths = await died("inherit", len(clean.writes), copied)
        repeated = await rescued_all(
            Death(death.place, [*first.said, *death.said]) for death in deaths
        )
        print(f"\n{len(deaths)} deaths while taking over, {repeated} nodes ran again")


async def test_a_client_that_dies_while_it_sends_a_signal(tmp_path: Path) -> None:
    """It sends the signal again, under its id: the run goes on, and the signal counts once."""
    place = empty(tmp_path)
    effects_folder.set(place.effects)
    # First the inbox is written, then the row.
    deaths: list[tuple[int, Side, bool, str]] = [
        (1, "before", False, "waiting"),
        (1, "after", True, "waiting"),
        (2, "before", True, "waiting"),
        (2, "after", True, "running"),
    ]
    async with asyncio.timeout(DEADLINE_SECONDS), Holdfast(place.url) as hf:
        for number, side, is_in, status in deaths:
            run = f"{side}-{number}"
            async with hf.worker([varied], **OPTIONS):
                await hf.start(varied, {}, id=run)
                await waiting(hf, run, "answer#1")
            await lived("signal", place, number, side, run=run)
            async with open_store(place.url) as store:
                head = await head_of(store, run)
                key = inbox_key(RunKey("default", run), head["generation"], "answer", SIGNALS[0])
                assert (await store.table.get(key) is not None, head["status"]) == (is_in, status)
            await hf.run(run).signal("answer", SIGNALS[0], signal_id=SIGNALS[0])
            async with hf.worker([varied], **OPTIONS):
                await waiting(hf, run, "answer#2")
                # However often it is sent again, only another one answers the second wait.
                await hf.run(run).signal("answer", SIGNALS[0], signal_id=SIGNALS[0])
                await hf.run(run).signal("answer", SIGNALS[1], signal_id=SIGNALS[1])
                assert await hf.run(run).result() == FINISHED
            check_signals(await journal_at(place, run))


# --- those who die --------------------------------------------------------------------------------


async def lived(
    role: str,
    place: Place,
    number: int = 0,
    side: Side = "before",
    *,
    run: str = RUN,
    may_live: bool = False,
) -> Death:
    """Let a process die at a write, or none if its number is 0, or there are not so many."""
    arguments = ("-m", "tests.crash.doomed", role, place.url, run, str(number), side)
    async with running(*arguments, env={EFFECTS: str(place.effects)}) as process:
        code, said = await ended(process)
    death = Death(place, said)
    assert code == (-signal.SIGKILL if number else 0) or (may_live and code == 0), f"{death} {said}"
    return death


async def died(role: str, writes: int, made: Callable[[str], Place]) -> list[Death]:
    """Let a process die before and after each write, each in a place of its own."""
    room = asyncio.Semaphore(PROCESSES)
    sides: tuple[Side, ...] = ("before", "after")

    async def one(number: int, side: Side) -> Death:
        async with room:
            return await lived(role, made(f"{side}-{number}"), number, side)

    return await asyncio.gather(
        *(one(number, side) for number in range(1, writes + 1) for side in sides)
    )


# --- those who go on ------------------------------------------------------------------------------


async def rescued_all(deaths: Iterable[Death]) -> int:
    """Finish what all of them left behind; return how many nodes had to run again."""
    room = asyncio.Semaphore(RESCUES)

    async def one(death: Death) -> int:
        async with room:
            try:
                return await rescued(death)
            except BaseException as error:
                error.add_note(str(death))
                raise

    return sum(await asyncio.gather(*map(one, deaths)))


async def rescued(death: Death) -> int:
    """Finish what somebody left behind; return whether a node had to run again."""
    place = death.place
    effects_folder.set(place.effects)
    before = effects(place.effects)
    try:
        recorded = recorded_in(await journal_at(place))
    except RunNotFound:
        recorded = set()
    async with Holdfast(place.url) as hf, hf.worker([varied], **OPTIONS):
        # What was acknowledged is not asked for again: it must not be lost.
        if "started" not in death.said:
            await hf.start(varied, {}, id=RUN)
        for id in SIGNALS:
            if f"signalled {id}" not in death.said:
                await hf.run(RUN).signal("answer", id, signal_id=id)
        assert await hf.run(RUN).result() == FINISHED
    journal = await journal_at(place)
    check_history(journal)
    check_signals(journal)
    assert sorted(visits_of(journal)) == list(range(len(VARIED_TRAIL)))
    after = [effect for effect in effects(place.effects) if effect.pid == os.getpid()]
    return check_effects(before, after, recorded)


def recorded_in(journal: list[Record]) -> set[tuple[int, int]]:
    """Return the visit and attempt of everything that need not be done again."""
    finished = visits_of(journal)
    events = [event for record in journal for event in record.events]
    failed = Counter(event.visit for event in events if isinstance(event, AttemptFailed))
    return {
        (visit, attempt)
        for _, visit, attempt in EVERYTHING
        if visit in finished or attempt <= failed[visit]
    }


def check_effects(before: list[Effect], after: list[Effect], recorded: set[tuple[int, int]]) -> int:
    """Check that what was begun and not recorded ran again, and nothing else; return how many."""
    first, second = ([effect.what[1:] for effect in some] for some in (before, after))
    assert set(first) | set(second) == EVERYTHING
    assert max(Counter(second).values(), default=1) == 1
    again = set(first) & set(second)
    assert again == {what for what in first if what[1:] not in recorded}
    assert len(again) <= 1
    return len(again)


def check_signals(journal: list[Record]) -> None:
    events = [event for record in journal for event in record.events]
    assert [e.id for e in events if isinstance(e, SignalTaken)] == list(SIGNALS)


async def journal_at(place: Place, run: str = RUN) -> list[Record]:
    async with open_store(place.url) as store:
        if await store.table.get(RunKey("default", run).head) is None:
            raise RunNotFound(run)
        return await journal_of(store, run)
