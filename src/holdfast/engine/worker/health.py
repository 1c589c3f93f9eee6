"""Whether a worker can do its work, and if not: what fails, since when, and why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from holdfast.display import get_logger
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import BlobDamaged, BlobNotFound, HoldfastError
from holdfast.records.blob_keys import PROBE_BLOB

__all__ = [
    "DRIVE_RUNS",
    "REGISTER",
    "USE_STORE",
    "Outages",
    "WorkerHealth",
    "probe_blobs",
    "store_backoffs",
]

_log = get_logger("holdfast.worker")

# What a worker cannot do while its store cannot be used; its log and its health say so.
DRIVE_RUNS, REGISTER, USE_STORE = "drive runs", "register", "use its store"

_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 30.0
# Large enough that a disk with only a few bytes left refuses it.
_PROBE_DATA = bytes(64 * 1024)


class WorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a worker can do its work."""

    what: str = ""
    """What it cannot do, such as 'drive runs'; empty if it can do everything."""
    error: HoldfastError | None = None
    """The last error of the store."""
    since: datetime | None = None
    """When it failed first."""
    damaged: int = 0
    """How many items its process could not read, and skipped. The worker does everything else;
    the log of ``holdfast.storage`` names the items."""

    @property
    def ok(self) -> bool:
        """Whether it can do its work."""
        return self.error is None


class _Outage(msgspec.Struct):
    error: HoldfastError
    since_ms: int
    began: float


class Outages:
    """What a worker cannot do at the moment. The beginning and the end of an outage are logged."""

    def __init__(self, kernel: Kernel) -> None:
        self._clock = kernel.clock
        self._damage = kernel.store.damage
        self._outages: dict[str, _Outage] = {}

    def __contains__(self, what: str) -> bool:
        return what in self._outages

    @property
    def health(self) -> WorkerHealth:
        """The oldest outage, if there is one."""
        damaged = self._damage.count
        for what, outage in self._outages.items():
            since = datetime.fromtimestamp(outage.since_ms / 1000, UTC)
            return WorkerHealth(what=what, error=outage.error, since=since, damaged=damaged)
        return WorkerHealth(damaged=damaged)

    def record_failure(
        self, worker: str, what: str, error: HoldfastError, *, level: int = logging.ERROR
    ) -> None:
        """Record that something failed; log it unless it failed before with such an error."""
        known = self._outages.get(what)
        if known is None:
            now_ms, now = self._clock.now_ms(), self._clock.monotonic()
            self._outages[what] = _Outage(error, now_ms, now)
        else:
            known_kind, known.error = type(known.error), error
            if known_kind is type(error):
                return
        kind = type(error).__name__
        _log.log(level, "worker %s cannot %s: %s: %s", worker or "(new)", what, kind, error)

    def record_success(self, worker: str, what: str) -> None:
        """Record that something works; log it if it failed before."""
        outage = self._outages.pop(what, None)
        if outage is not None:
            seconds = self._clock.monotonic() - outage.began
            _log.warning(
                "worker %s can %s again, after %.1f seconds", worker or "(new)", what, seconds
            )


def store_backoffs() -> Iterator[float]:
    """Yield how many seconds to wait before each attempt to use the store again."""
    seconds = _BACKOFF_SECONDS
    while True:
        yield seconds
        seconds = min(2 * seconds, _BACKOFF_SECONDS_MAX)


async def probe_blobs(kernel: Kernel) -> None:
    """Write a small blob, read it and delete it, as runs do.

    Raises:
        StoreError: one of the three failed.
    """
    if not kernel.store.has_blobs:
        return
    blobs = kernel.store.blobs.with_purpose("worker")
    ref = await blobs.put(_PROBE_DATA, key=PROBE_BLOB)
    with suppress(BlobNotFound, BlobDamaged):  # another worker probes too, and deleted it
        await blobs.get(ref)
    await blobs.delete(PROBE_BLOB)
