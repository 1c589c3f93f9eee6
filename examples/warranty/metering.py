"""What the table is charged: for one document of each kind, and for a worker that waits.

Documents are metered: the sample documents run through the graph of this application in a store
that counts units as DynamoDB does. An idle worker is computed from its options.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast import Holdfast, Notice, ReviewOptions
from holdfast.records.review import notice_partitions
from holdfast.storage import PRICES, MeterRow, PriceList, Report
from warranty.application import SAMPLES, Application, application
from warranty.settings import Settings

__all__ = ["KINDS", "IdleWorker", "UnitsOfKind", "meter_documents"]

KINDS: Mapping[str, tuple[str, str]] = {
    "low": ("kettle.txt", ""),
    "medium": ("washing-machine.pdf", ""),
    "high, approved": ("compressor.pdf", "approve"),
    "high, rejected": ("compressor.pdf", "reject"),
}
"""The kinds of documents: a sample of each, and what a reviewer does with it."""

_REVIEWER = "meter@example.com"
_PATIENCE_SECONDS = 60
_POLL_SECONDS = 0.05
# What a worker does whether there are documents or not.
_WORKER_PURPOSES = frozenset({"due", "graph", "notice", "reaping", "settings", "worker"})
_SECONDS_PER_MONTH = 730 * 3600


@dataclass(frozen=True)
class UnitsOfKind:
    """What one document of a kind costs the table."""

    kind: str
    reads: float
    writes: float
    pause_writes: float
    """The write units that exist only because the run paused."""
    usd: float


async def meter_documents(store_url: str | None = None) -> list[UnitsOfKind]:
    """Run one document of each kind, with the models of rules, and meter them.

    Documents are added, and reviews decided, by another process than the worker's, as by Lambda
    and API Gateway. One reviewer is told of each review before the decision. Without a
    ``store_url`` the store is a file that is deleted again.
    """
    told = _Told()
    found: dict[str, list[MeterRow]] = {}
    with TemporaryDirectory() as folder:
        url = store_url or f"sqlite:///{folder}/metered.db"
        app = application(Settings(data=Path(folder), store_url=url, reviewers=(_REVIEWER,)))
        async with (
            app.open() as hf,
            app.open(reviews=ReviewOptions(notifiers=[told])) as other,
        ):
            for kind in KINDS:
                hf.meter.reset()
                other.meter.reset()
                await _handle(kind, app, hf, other, told=told)
                found[kind] = [*hf.meter.report().rows, *other.meter.report().rows]
    return [_units_of(kind, rows, found["low"]) for kind, rows in found.items()]


class _Told:
    """A notifier that sends nothing, and records the runs about which it was asked to send."""

    name = "metered"

    def __init__(self) -> None:
        self._runs: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def send(self, notice: Notice) -> None:
        self._runs[notice.review.run].set()

    async def wait(self, run: str) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await self._runs[run].wait()


async def _handle(
    kind: str, app: Application, hf: Holdfast, other: Holdfast, *, told: _Told
) -> None:
    """Add a document, and decide its review if there is one; ``other`` has the worker."""
    name, action = KINDS[kind]
    added = await app.arrivals(hf).add_upload(f"{kind}/{name}", (SAMPLES / name).read_bytes())
    # The process of the worker knows when a run pauses and ends: waiting there reads nothing.
    run = other.run(added.id)
    # Some writes come after what can be waited for: the end of a worker waits for them.
    if action:
        async with other.worker([app.graph], poll=_POLL_SECONDS):
            await run.until("waiting", timeout=_PATIENCE_SECONDS)
            await told.wait(run.id)
        (waiting,) = (await hf.reviews.list(run=run.id)).reviews
        decide = hf.reviews.approve if action == "approve" else hf.reviews.reject
        await decide(waiting.id, by=_REVIEWER)
    async with other.worker([app.graph], poll=_POLL_SECONDS):
        await run.result(timeout=_PATIENCE_SECONDS)


def _units_of(kind: str, rows: list[MeterRow], unpaused: list[MeterRow]) -> UnitsOfKind:
    """Return the units of a document; ``unpaused`` are those of one that did not pause."""
    ours = Report(tuple(row for row in rows if row.purpose not in _WORKER_PURPOSES), PRICES)
    pause = _writes(rows, "head", "inbox", "review") - _writes(unpaused, "head")
    return UnitsOfKind(kind, ours.units.reads, ours.units.writes, pause, ours.usd)


def _writes(rows: list[MeterRow], *purposes: str) -> float:
    return sum(row.units.writes for row in rows if row.purpose in purposes)


@dataclass(frozen=True, kw_only=True)
class IdleWorker:
    """What a worker costs that has nothing to do; the defaults are those on DynamoDB."""

    poll_seconds: float = 0.9
    notice_poll_seconds: float = 15.0
    """`ReviewOptions.poll`, in a process with notifiers and a store with reviews."""
    lease_seconds: float = 60.0
    shards: int = 8
    graphs: int = 1
    prices: PriceList = PRICES

    @property
    def polling_reads(self) -> float:
        """Read units a second: half a unit for each shard, on average after 0.9 of the interval."""
        return self.graphs * self.shards * 0.5 / (self.poll_seconds * 0.9)

    @property
    def notice_reads(self) -> float:
        """Read units a second: half a unit for each partition of notices."""
        return len(notice_partitions()) * 0.5 / self.notice_poll_seconds

    @property
    def upkeep_reads(self) -> float:
        """Read units a second: it looks for dead workers, and whether there are more shards."""
        return 2 * 0.5 / 5 + 0.5 / self._beat_seconds

    @property
    def heartbeat_writes(self) -> float:
        """Write units a second."""
        return 3 / self._beat_seconds

    @property
    def polling_usd(self) -> float:
        return self._monthly(self.polling_reads, self.prices.read_units_million_usd)

    @property
    def notices_usd(self) -> float:
        return self._monthly(self.notice_reads, self.prices.read_units_million_usd)

    @property
    def upkeep_usd(self) -> float:
        reads = self._monthly(self.upkeep_reads, self.prices.read_units_million_usd)
        return reads + self._monthly(self.heartbeat_writes, self.prices.write_units_million_usd)

    @property
    def usd(self) -> float:
        """What a month costs."""
        return self.polling_usd + self.notices_usd + self.upkeep_usd

    @property
    def _beat_seconds(self) -> float:
        return self.lease_seconds / 4

    def _monthly(self, units_per_second: float, million_usd: float) -> float:
        return units_per_second * _SECONDS_PER_MONTH * million_usd / 1_000_000
