"""Stores that cannot be used for a while: the table, or blobs alone, for one process or for all.

A window says from when to when each operation fails, and how. Windows are drawn apart from all
else, so that a fleet without them is what it would be otherwise. `OutageWatch` checks that a worker
without its blobs does not keep runs from those that have theirs.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast import errors
from holdfast.errors import (
    AccessDenied,
    CredentialsExpired,
    EndpointUnreachable,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnusable,
)
from holdfast.model.event import Event, Failure
from holdfast.records.blob_keys import run_blobs_of
from holdfast.records.keys import HEAD, RunKey
from holdfast.storage.operations import Operation, WriteItem
from holdfast.storage.writes import Update
from tests.simulation.chronicle import Broken
from tests.simulation.faults import FaultPlan

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

__all__ = ["OutageWatch", "Outages", "Window", "check_blame", "drawn_outages"]

Part = Literal["table", "blobs"]

_ERRORS: tuple[type[StoreError], ...] = (
    StoreFull,
    StoreReadOnly,
    StoreUnusable,
    AccessDenied,
    CredentialsExpired,
    EndpointUnreachable,
)
_BLAMELESS = {name for name in errors.__all__ if issubclass(getattr(errors, name), StoreError)}
_WINDOWS_MAX = 3
_SECONDS: dict[Part, tuple[float, ...]] = {
    "table": (1.0, 5.0, 15.0, 40.0),
    "blobs": (3.0, 15.0, 60.0, 120.0),
}
_SPILL_BYTES = 150
_ALL = 0.4
"""How many windows are those of all processes."""
_TRIES_MAX = 4
"""How often a worker that is out of patience may still try a blob: several may be at it."""
_OWNERS_BLOB = re.compile(r"/[0-9]{8}-[0-9]+$")


@dataclass(frozen=True)
class Window:
    """A time in which a store cannot be used."""

    part: Part
    begins: float
    ends: float
    process: str | None
    """Whose it is; None where it is everybody's."""
    error: type[StoreError]


class Outages:
    """The windows of one world."""

    def __init__(
        self, windows: list[Window] | None = None, *, spill_bytes: int | None = None
    ) -> None:
        self.windows = windows or []
        self.spill_bytes = spill_bytes
        """From how much on a record is kept in a blob, where that is not as usual."""

    def error(self, part: Part, process: Process) -> type[StoreError] | None:
        """Return what an operation of a process raises now; None where it is carried out."""
        now = process.world.loop.time()
        for window in self.windows:
            if window.part == part and window.begins <= now < window.ends:
                name = process.name.partition(".")[0]
                if window.process is None or window.process == name:
                    return window.error
        return None


def drawn_outages(
    seed: int | str, plan: FaultPlan, *, seconds: float, processes: list[str]
) -> Outages:
    """Draw when stores cannot be used within that time."""
    chance = random.Random(f"{seed}/outages")
    windows: list[Window] = []
    rates: dict[Part, float] = {"table": plan.table_outage, "blobs": plan.blob_outage}
    for part, rate in rates.items():
        if chance.random() >= rate:
            continue
        for _ in range(chance.randint(1, _WINDOWS_MAX)):
            begins = chance.random() * seconds
            lasts = chance.choice(_SECONDS[part]) * (0.5 + chance.random())
            whose = None if chance.random() < _ALL else chance.choice(processes)
            ends = min(begins + lasts, seconds)
            windows.append(Window(part, begins, ends, whose, chance.choice(_ERRORS)))
    small = any(window.part == "blobs" for window in windows) and chance.random() < plan.small_blobs
    return Outages(windows, spill_bytes=_SPILL_BYTES if small else None)


def check_blame(event: Event, what: object) -> None:
    """Check that no node and no call is said to have failed because the store could not be used."""
    failure: Failure | None = getattr(event, "failure", None)
    if failure is not None and failure.type in _BLAMELESS:
        raise Broken(f"P6: {what}, though it is the store that could not be used")


class OutageWatch:
    """Watches what workers do that cannot use their store."""

    def __init__(
        self, world: World, seen: Counter[str], *, patience_seconds: float, shared: bool
    ) -> None:
        """``shared`` is whether clients live in the workers' processes, and use blobs there."""
        self._world = world
        self._seen = seen
        self._patience_seconds = patience_seconds
        self._shared = shared
        self._since: dict[tuple[str, RunKey, int], float] = {}
        self._tries: Counter[tuple[str, RunKey, int, str]] = Counter()
        # Workers that released a run since they could not use their store, by process.
        self._cut_off: dict[str, str] = {}
        # The process of each worker that was seen to claim a run.
        self._process_of: dict[str, str] = {}
        # By their tokens, since either may be sent again later.
        self._claims: set[str | None] = set()
        self._releases: set[str | None] = set()

    def blob_failed(self, process: Process, key: str, subject: str, *, asked: float) -> None:
        """Check that a worker gives a run up whose blobs it could not use for too long.

        It is told when the worker hears of it: one that stood still has tried only once until then.
        Who cancels a run reads its journal, too: a client, perhaps in the process of a worker.
        """
        blobs = run_blobs_of(key)
        written = subject.startswith("blob_write") and _OWNERS_BLOB.search(key) is not None
        read = process.name.startswith("w") and not self._shared
        if blobs is None or not (written or read):
            return
        row = self._world.truth.item(blobs.key.head)
        if row is None or row.get("owner") is None or row["generation"] != blobs.generation:
            return
        now, claim = self._world.loop.time(), (process.name, blobs.key, row["epoch"])
        if asked <= self._since.setdefault(claim, now) + self._patience_seconds:
            return
        self._tries[(*claim, key)] += 1
        if self._tries[(*claim, key)] > _TRIES_MAX:
            seconds = asked - self._since[claim]
            self._fail(
                f"P6: {process.name} holds {blobs.key.id}, though it could not use its blobs for "
                f"{seconds:.0f} s"
            )

    def blob_worked(self, process: Process, key: str) -> None:
        """Let the workers of a process claim runs again, and bear with the next outage of this one.

        What it could use again, it may hold for another patience; other runs' blobs tell nothing.
        """
        blobs = run_blobs_of(key) if self._since else None
        if blobs is not None:
            usable = (process.name, blobs.key)
            self._since = {c: since for c, since in self._since.items() if c[:2] != usable}
            self._tries = Counter({c: n for c, n in self._tries.items() if c[:2] != usable})
        self._cut_off = {w: name for w, name in self._cut_off.items() if name != process.name}

    def sends(self, process: Process, operation: Operation) -> None:
        """Check that an outage is not counted, and that a worker without its store claims none."""
        if not isinstance(operation, WriteItem) or not isinstance(operation.write, Update):
            return
        write = operation.write
        if write.key.sk != HEAD:
            return
        worker, run = write.set.get("owner"), RunKey.parsed(write.key.pk).id
        if worker is not None:
            self._process_of[worker] = process.name
        if write.set.get("reason") == "store_unusable":
            row = self._world.truth.item(write.key) or {}
            if self._process_of.get(row.get("owner", ""), process.name) != process.name:
                return  # another worker has claimed the run since: the write will be refused
            if write.set["resume_failures"] > row.get("resume_failures", 0):
                self._fail(f"P6: {process.name} counts against {run} what ails the store")
            if "owner" in row and write.token not in self._releases:
                self._releases.add(write.token)
                self._seen["released by a worker without its store"] += 1
                self._cut_off[row["owner"]] = process.name
        elif worker is not None and worker not in self._cut_off:
            self._claims.add(write.token)
        elif worker is not None and write.token not in self._claims:
            self._fail(f"P6: {process.name} claims {run}, though it cannot use its store")

    def _fail(self, message: str) -> None:
        self._world.loop.fail(Broken(message))
