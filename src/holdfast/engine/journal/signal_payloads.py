"""Reads the payload of a signal when the run takes it.

The results of children are prefetched, because a parent that awaits one child mostly awaits all of
them, and each blob would cost a round trip. Payloads from callers are not prefetched: callers
decide how many there are, and a node may never ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.engine.journal.payloads import load_payloads, unpack_payload
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import BlobNotFound, JournalDamaged, RecordTooLarge
from holdfast.model.child import is_child_signal
from holdfast.model.signals import Signal
from holdfast.records.codec import unpack_value
from holdfast.records.keys import RunKey

__all__ = ["SignalPayloads"]

# How many packed bytes may be prefetched.
_PREFETCH_BYTES_MAX = 4 * 1024**2


class SignalPayloads:
    """Reads the payloads of the signals to one run."""

    def __init__(self, kernel: Kernel, run: RunKey) -> None:
        self._kernel = kernel
        self._run = run
        # Keyed by the name and id of the signal.
        self._prefetched: dict[tuple[str, str], bytes] = {}

    async def read(self, signal: Signal, inbox: Iterable[Signal]) -> Any:
        """Return the payload of a signal; ``inbox`` are the other signals of the run.

        Raises:
            JournalDamaged: it cannot be read, or has more bytes than this process may unpack.
        """
        data = self._prefetched.pop((signal.name, signal.id), None)
        if data is None:
            data = await self._load(signal, self._prefetchable(signal, inbox))
        return await unpack_payload(self._kernel, data, unpack_value)

    async def _load(self, signal: Signal, others: list[Signal]) -> bytes:
        try:
            try:
                bodies = [signal.body, *(other.body for other in others)]
                data, *prefetched = await load_payloads(self._kernel, bodies)
            except (BlobNotFound, RecordTooLarge):
                # Only a prefetched one may be damaged, so try this one alone.
                (data,), prefetched = await load_payloads(self._kernel, [signal.body]), []
        except BlobNotFound as error:
            raise JournalDamaged(f"a blob of run {self._run.id!r} is missing: {error}") from error
        for other, read in zip(others, prefetched, strict=False):
            self._prefetched[other.name, other.id] = read
        return data

    def _prefetchable(self, signal: Signal, inbox: Iterable[Signal]) -> list[Signal]:
        """Return the results of other children that are read together with this one."""
        if signal.body.blob is None or not is_child_signal(signal.name):
            return []
        others: list[Signal] = []
        bytes_left = _PREFETCH_BYTES_MAX - sum(map(len, self._prefetched.values()))
        for other in inbox:
            key = (other.name, other.id)
            if key == (signal.name, signal.id) or key in self._prefetched:
                continue
            if other.body.blob is not None and is_child_signal(other.name):
                bytes_left -= other.body.size
                if bytes_left < 0:
                    break
                others.append(other)
        return others
