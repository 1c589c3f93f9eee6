"""What the signals in an inbox carry: read and unpacked when one is taken, and not before.

How children ended is read ahead, since a parent that asks for one mostly asks for all of them: each
of their blobs would cost it a round trip otherwise. What callers sent is not read ahead: a caller
decides how much there is of it, and a node may never ask for it.
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

# How many bytes are held that were read ahead, still packed.
_PREFETCH_BYTES_MAX = 4 * 1024**2


class SignalPayloads:
    """Reads what the signals to one run carry."""

    def __init__(self, kernel: Kernel, run: RunKey) -> None:
        self._kernel = kernel
        self._run = run
        # By name and id of the signal.
        self._prefetched: dict[tuple[str, str], bytes] = {}

    async def read(self, signal: Signal, inbox: Iterable[Signal]) -> Any:
        """Return what a signal carries; ``inbox`` are those that may be taken besides.

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
                # One of the others may be damaged, which is no reason to fail here.
                (data,), prefetched = await load_payloads(self._kernel, [signal.body]), []
        except BlobNotFound as error:
            raise JournalDamaged(
                f"what run {self._run.id!r} keeps is not whole: {error}"
            ) from error
        for other, read in zip(others, prefetched, strict=False):
            self._prefetched[other.name, other.id] = read
        return data

    def _prefetchable(self, signal: Signal, inbox: Iterable[Signal]) -> list[Signal]:
        """Return the ends of children that are read together with one of them."""
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
