"""What every contestant of the crash benchmark does: ten effects a run, at a ledger outside.

A contestant is called three times: it *begins* and is killed in the middle; then it tells which
receipts stand in its store, where nothing goes on meanwhile; then it *resumes* by the means it has
for that, and finishes all runs. Only the standard library is imported here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from argparse import ArgumentParser, Namespace
from asyncio import AbstractEventLoop, Future, StreamWriter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from weakref import WeakKeyDictionary

STEPS = 10
NAMES = [f"step{step}" for step in range(STEPS)]


def arguments() -> ArgumentParser:
    parser = ArgumentParser()
    parser.add_argument("part", choices=["begin", "recorded", "resume"])
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ledger", type=int, required=True, help="its port")
    return parser


class Ledger:
    """The way to the ledger: one connection for each event loop, many effects at once on it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lines: WeakKeyDictionary[AbstractEventLoop, Future[_Line]] = WeakKeyDictionary()

    async def effect(self, run: int, step: int, key: str | None) -> str:
        """Have an effect done; return its receipt."""
        line = await self._line()
        receipt = await line.ask({"run": run, "step": step, "key": key, "pid": os.getpid()})
        assert receipt is not None
        return receipt

    async def receipt_of(self, run: int, step: int) -> str | None:
        """Return the receipt of an effect that was done, or nothing if it was not."""
        line = await self._line()
        return await line.ask({"run": run, "step": step, "only_look": True})

    async def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            self._lines[loop] = asyncio.ensure_future(_Line.opened(self._port))
        return await asyncio.shield(self._lines[loop])


class _Line:
    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._numbers = itertools.count()
        self._asked: dict[int, Future[str | None]] = {}

    @classmethod
    async def opened(cls, port: int) -> _Line:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        line = cls(writer)
        line._reading = asyncio.ensure_future(line._read(reader))
        return line

    async def ask(self, request: dict[str, object]) -> str | None:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"id": number} | request).encode() + b"\n")
        return await answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            answer = json.loads(line)
            waiting = self._asked.pop(answer["id"])
            if not waiting.done():  # whoever asked may have been cancelled
                waiting.set_result(answer["receipt"])


async def all_runs(given: Namespace, run: Callable[[int], Awaitable[Iterable[str]]]) -> None:
    """Do all runs, so many at once, and check that each hands over the receipts of its effects."""

    async def place(numbers: Iterator[int]) -> None:
        for number in numbers:
            receipts = [receipt.split()[:2] for receipt in await run(number)]
            expected = [[str(number), str(step)] for step in range(STEPS)]
            assert receipts == expected, f"run {number} has {receipts}"

    numbers = iter(range(given.runs))
    async with asyncio.TaskGroup() as places:
        for _ in range(given.in_flight):
            places.create_task(place(numbers))


def tell_recorded(receipts: Iterable[str]) -> None:
    """Print the receipts that stand in the store."""
    print(json.dumps({"recorded": sorted(receipts)}))


def tell_finished(packages: list[str], **told: object) -> None:
    """Print what the benchmark wants to know once all runs have finished."""
    versions = {package: version(package) for package in packages}
    print(json.dumps({"versions": versions} | told))
