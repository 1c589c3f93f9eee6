"""The work that every contestant does, the clock it is measured with, and the line it prints.

Only the standard library is imported here: each contestant runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import resource
import sqlite3
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from pathlib import Path

STEPS = 10
NAMES = [f"step{step}" for step in range(STEPS)]
UPDATE_BYTES = 1024
WARM_UP_ROUNDS = 3  # for each place in flight: threads, connections and caches are there by then
_PROSE = (
    "Claim 4471-B was filed on Monday by Ms Okafor, whose photographs show a broken window above"
    " the north door and water on the stairs. The estimate of 1,840.50 came two days later, from"
    " another office, and nobody had signed it; so three more questions went to the customer, who"
    " answered them by telephone, politely but briefly. Yes, the alarm was on. No, the neighbours"
    " had heard nothing before half past four. The receipt for the carpet (2019, paid in cash) is"
    " lost, though a picture of the hall from last Christmas proves that it was there. Our"
    " adjuster, Jan Vries, suggests that we accept the glazier's bill in full, pay 60% of the"
    " flooring, and refuse the lamp, because its age cannot be shown. He rates his own confidence"
    " at 0.82 and asks that a person look at the second photograph, where the frame seems rotten:"
    " if damp was known, clause 7 would exclude it. Similar cases in this postcode were settled"
    " within eleven days, at between 1,200 and 2,100. Recommended next step: review by a senior"
    " colleague, then a letter. Draft of that letter follows. Dear Ms Okafor, thank you for your"
    " patience while we looked into what happened at 12 Quay Street. We are glad to say that most"
    " of your loss is covered, and would like to explain how we arrived at the sum below, item by"
    " item, before you decide anything."
)

Workflow = Callable[[int], Awaitable[dict[str, object]]]


def _texts(count: int) -> list[str]:
    """Return texts of the length that makes an update one KB of JSON.

    Each has the words of one piece of prose in another order: a contestant that compresses what it
    writes gains no more by it than in real life.
    """
    draw = random.Random(1)
    words = _PROSE.split()
    length = UPDATE_BYTES - len(json.dumps({NAMES[0]: ""}))
    assert len(_PROSE) > length
    return [" ".join(draw.sample(words, len(words)))[:length] for _ in range(count)]


_TEXTS = _texts(101)  # made beforehand, so that nobody is measured making text


def text(number: int, step: int) -> str:
    """Return what one step of one workflow has to say."""
    return _TEXTS[(number * STEPS + step) % len(_TEXTS)]


def result(number: int) -> dict[str, object]:
    """Return what a workflow must hand to its caller: its input, and the updates of ten steps."""
    return {"number": number} | {name: text(number, step) for step, name in enumerate(NAMES)}


def arguments() -> ArgumentParser:
    parser = ArgumentParser()
    parser.add_argument("--workflows", type=int, required=True)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--folder", type=Path, required=True)
    return parser


class Race:
    """Runs a fixed number of workflows at a time: each place starts the next when one is done."""

    def __init__(self, name: str, given: Namespace, *, packages: list[str]) -> None:
        self._name = name
        self._workflows: int = given.workflows
        self._in_flight: int = given.in_flight
        self._versions = {package: version(package) for package in packages}
        self._numbers = itertools.count()
        self._latencies: list[float] = []

    @property
    def started(self) -> int:
        """How many workflows the file must hold in the end, those that warmed up among them."""
        return self._workflows + self._in_flight * WARM_UP_ROUNDS

    async def run(self, workflow: Workflow) -> None:
        """Warm up, then measure from the first start to the last result."""
        await self._run(workflow, self._in_flight * WARM_UP_ROUNDS)
        self._latencies.clear()
        started, cpu_before = time.perf_counter(), _cpu_seconds()
        await self._run(workflow, self._workflows)
        self._seconds = time.perf_counter() - started
        self._cpu_seconds = _cpu_seconds() - cpu_before

    async def _run(self, workflow: Workflow, count: int) -> None:
        async def place(numbers: Iterator[int]) -> None:
            for number in numbers:
                started = time.perf_counter()
                returned = await workflow(number)
                self._latencies.append(time.perf_counter() - started)
                assert returned == result(number), f"workflow {number} returned {returned}"

        numbers = itertools.islice(self._numbers, count)
        async with asyncio.TaskGroup() as places:
            for _ in range(self._in_flight):
                places.create_task(place(numbers))

    def report(self, **settings: object) -> None:
        """Print the one line that the benchmark reads."""
        latencies_ms = sorted(seconds * 1000 for seconds in self._latencies)
        assert len(latencies_ms) == self._workflows
        line = {
            "name": self._name,
            "steps": self._workflows * STEPS,
            "seconds": self._seconds,
            "cpu_seconds": self._cpu_seconds,
            "p50_ms": latencies_ms[len(latencies_ms) // 2],
            "p99_ms": latencies_ms[len(latencies_ms) * 99 // 100],
            "versions": self._versions,
            "settings": settings,
        }
        print(json.dumps(line))


def ask(file: Path, query: str) -> object:
    """Ask the file itself, once the contestant has closed it."""
    connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchone()[0]
    finally:
        connection.close()


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)  # of all threads
    return usage.ru_utime + usage.ru_stime
