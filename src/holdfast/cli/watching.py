"""Follows a run on a terminal, and keeps its picture up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from holdfast.cli.flowchart import Flowchart, parsed_flowchart
from holdfast.cli.live_screen import LiveScreen, screen_size
from holdfast.cli.run_picture import RunPicture, picture_lines
from holdfast.clock import SystemClock
from holdfast.model.run import HistoryEntry, Run

__all__ = ["draw_run", "read_chart"]

# Events that arrive together are drawn together.
_QUIET_SECONDS = 0.05
# Times are redrawn this often.
_TICK_SECONDS = 1.0
_DRAW_SECONDS_MAX = 0.25


async def read_chart(holdfast: Any, row: Run) -> Flowchart:
    """Return the flowchart that a worker published for a run's graph; an empty one if none did."""
    for graph in await holdfast.fleet.graphs():
        if (graph.name, graph.version) == (row.graph, row.version):
            return parsed_flowchart(graph.drawing)
    return parsed_flowchart("")


async def draw_run(picture: RunPicture, events: AsyncIterator[HistoryEntry]) -> None:
    """Draw a run until its events end."""
    clock, screen = SystemClock(), LiveScreen()
    drawn_at, is_stale = clock.monotonic(), True
    upcoming = asyncio.ensure_future(anext(events))
    try:
        while True:
            seconds = _QUIET_SECONDS if is_stale else _TICK_SECONDS
            done, _ = await asyncio.wait({upcoming}, timeout=seconds)
            if done:
                picture.take(upcoming.result())
                is_stale = True
                upcoming = asyncio.ensure_future(anext(events))
            if not done or clock.monotonic() - drawn_at > _DRAW_SECONDS_MAX:
                _draw(screen, picture)
                drawn_at, is_stale = clock.monotonic(), False
    except StopAsyncIteration:
        return
    finally:
        upcoming.cancel()
        _draw(screen, picture)


def _draw(screen: LiveScreen, picture: RunPicture) -> None:
    width, height = screen_size()
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    screen.draw(picture_lines(picture, now=now, width=width, height=height))
