"""Bugs to plant, one at a time: each takes out a clause of the protocol.

A simulator that does not find them proves nothing by finding nothing else.
"""

from __future__ import annotations

# Imported to make their bugs known.
from tests.simulation.bugs import (  # noqa: F401
    budgets,
    choices,
    effects,
    inboxes,
    kernel,
    maps,
    memory,
    reviews,
    signals,
    stores,
    strangers,
    telling,
    workers,
)
from tests.simulation.bugs.planting import BUGS, Bug, planted

__all__ = ["BUGS", "Bug", "planted"]
