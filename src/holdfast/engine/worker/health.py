"""Whether a worker can do its work: what fails, since when, and when it works again."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from holdfast.display import get_logger
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import BlobDamaged, BlobNotFound, HoldfastError
from holdfast.records.blob_keys import PROBE_BLOB

__all__ = ["Outages", "WorkerHealth", "probe_blobs"]

_log = get_logger("holdfast.worker")

# Large enough that it does not fit where a full disk has left a few bytes.
_PROBE_DATA = bytes(64 * 1024)


class WorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a worker can do its work."""

    what: str = ""
    """What it cannot do, such as 'drive runs'; empty where it can do everything."""
    error: HoldfastError | None = None
    """What the store raised last."""
    since: datetime | None = None
    """Since when it cannot do it."""
    damaged: int = 0
    """How many items its process met that cannot be read, and left out. They keep it from nothing
    else; the log of ``holdfast.storage`` names them."""

    @property
    def ok(self) -> bool:
        """Whether nothing keeps it from its work."""
        return self.error is None


class _Outage(msgspec.Struct):
    error: HoldfastError
    since_ms: int
    began: float


class Outages:
    """What a worker cannot do at the moment. Each outage is logged when it begins and ends."""

    def __init__(self, kernel: Kernel) -> None:
        self._clock = kernel.clock
        self._damage = kernel.store.damage
        self._outages: dict[str, _Outage] = {}

    def __contains__(self, what: str) -> bool:
        return what in self._outages

    @property
    def health(self) -> WorkerHealth:
        """The oldest outage."""
        damaged = self._damage.count
        for what, outage in self._outages.items():
            since = datetime.fromtimestamp(outage.since_ms / 1000, UTC)
            return WorkerHealth(what=what, error=outage.error, since=since, damaged=damaged)
        return WorkerHealth(damaged=damaged)

    def record_failure(
        self, worker: str, what: str, error: HoldfastError, *, level: int = logging.ERROR
    ) -> None:
        """Take in that something failed; log it unless it failed before in the same way."""
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
        """Take in that something works; log it if it failed before."""
        outage = self._outages.pop(what, None)
        if outage is not None:
            seconds = self._clock.monotonic() - outage.began
            _log.warning(
                "worker %s can %s again, after %.1f seconds", worker or "(new)", what, seconds
            )


async def probe_blobs(kernel: Kernel) -> None:
    """Write a small blob, read it and delete it, as runs do.

    Raises:
        StoreError: one of them cannot be done.
    """
    if not kernel.store.has_blobs:
        return
    blobs = kernel.store.blobs.with_purpose("worker")
    ref = await blobs.put(_PROBE_DATA, key=PROBE_BLOB)
    with suppress(BlobNotFound, BlobDamaged):  # another worker that probes deleted it
        await blobs.get(ref)
    await blobs.delete(PROBE_BLOB)
