"""Warns about waits that cannot fit into the runs of a graph, before the first run pays for it."""

from __future__ import annotations

from weakref import WeakSet

from holdfast.display import get_logger
from holdfast.model.program import Program

__all__ = ["warn_about_waits"]

_log = get_logger("holdfast.runs")

_warned: WeakSet[Program] = WeakSet()


def warn_about_waits(program: Program, expires_in_ms: int) -> None:
    """Log each wait of a program that a run cannot sit out; once for a program in this process."""
    if program in _warned:
        return
    texts = program.wait_warnings(expires_in_ms)
    if texts:
        _warned.add(program)
    for text in texts:
        _log.warning("graph %s: %s", program.name, text)
