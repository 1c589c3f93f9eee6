"""A table on a file, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import ManualClock
from holdfast.storage.meter import Meter
from holdfast.storage.sqlite import SqliteEngine
from holdfast.storage.table import Table


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "test.db")


@pytest.fixture
async def opened(path: str, clock: ManualClock) -> AsyncIterator[Callable[..., Table]]:
    """Opens the file as often as a test likes, as so many processes would."""
    engines: list[SqliteEngine] = []

    def open_(**options: Any) -> Table:
        engine = SqliteEngine(path, **{"clock": clock, **options})
        engines.append(engine)
        opening = engine._opening
        if opening is not None:  # as without an event loop: the file is open, or it raised
            opening.result()
        return Table(engine, Meter())

    yield open_
    for engine in engines:
        await engine.close()
