"""Processes that use one table and the same blobs, each of which can fail for one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Graph, Holdfast, Worker
from holdfast.clock import SeededIds
from holdfast.storage import Meter, Store
from holdfast.storage.blobs import Blobs
from holdfast.storage.sqlite import SqliteEngine
from tests.engine.fallible import Fallible, FallibleBlobs
from tests.engine.support import WAIT_SECONDS_MAX, StepClock

__all__ = ["Place", "Street", "holding"]


class Place:
    """One process: an instance with a table and blobs that can fail."""

    def __init__(self, path: Path, clock: StepClock, contents: dict[str, bytes], seed: int) -> None:
        meter = Meter()
        self.table = Fallible(SqliteEngine(str(path / "runs.db"), clock=clock))
        self.blobs = FallibleBlobs(contents)
        store = Store(self.table, Blobs(self.blobs, meter), url="sqlite://", meter=meter)
        self.hf = Holdfast("sqlite://", store=store, clock=clock, ids=SeededIds(seed, clock))


class Street:
    """Several processes that use one table and the same blobs."""

    def __init__(self, path: Path, clock: StepClock) -> None:
        self._path = path
        self.clock = clock
        self._contents: dict[str, bytes] = {}
        self._places: list[Place] = []

    def place(self) -> Place:
        place = Place(self._path, self.clock, self._contents, len(self._places) + 1)
        self._places.append(place)
        return place

    async def until(self, reached: Callable[[], Any], *, step_seconds: float = 0.5) -> None:
        """Move the clock on until something is so."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not (await found if asyncio.iscoroutine(found := reached()) else found):
                self.clock.advance(step_seconds)
                for _ in range(20):
                    await self.clock.sleep(0)

    async def close(self) -> None:
        for place in self._places:
            await place.hf.close()


def holding(place: Place, graph: Graph, **options: Any) -> Worker:
    """Return a worker that need not be kept alive while the clock is moved."""
    return place.hf.worker([graph], **{"lease": 1e7, "poll": 0.5, **options})
