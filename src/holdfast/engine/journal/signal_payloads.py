"""What the signals in an inbox carry: read and unpacked when one is taken, and not before.

How children ended is read ahead, since a parent that asks for one mostly asks for all of them: each
of their blobs would cost it a round trip otherwise. What callers sent is not read ahead: a caller
decides how much there is of it, and a node may never ask for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.engine.journal.payloads import contents_of, unpacked
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import BlobNotFound, JournalDamaged, RecordTooLarge
from holdfast.model.child import is_childs_signal
from holdfast.model.signals import Signal
from holdfast.records.codec import unpack_value
from holdfast.records.keys import RunKey

__all__ = ["Payloads"]

# How many bytes are held that were read ahead, still packed.
_AHEAD_BYTES_MAX = 4 * 1024**2


class Payloads:
    """Reads what the signals to one run carry."""

    def __init__(self, kernel: Kernel, run: RunKey) -> None:
        self._kernel = kernel
        self._run = run
        # By name and id of the signal.
        self._ahead: dict[tuple[str, str], bytes] = {}

    async def read(self, signal: Signal, inbox: Iterable[Signal]) -> Any:
        """Return what a signal carries; ``inbox`` are those that may be taken besides.

        Raises:
            JournalDamaged: it cannot be read, or has more bytes than this process may unpack.
        """
        data = self._ahead.pop((signal.name, signal.id), None)
        if data is None:
            data = await self._read(signal, self._next(signal, inbox))
        return await unpacked(self._kernel, data, unpack_value)

    async def _read(self, signal: Signal, others: list[Signal]) -> bytes:
        try:
            try:
                bodies = [signal.body, *(other.body for other in others)]
                data, *ahead = await contents_of(self._kernel, bodies)
            except (BlobNotFound, RecordTooLarge):
                # One of the others may be damaged, which is no reason to fail here.
                (data,), ahead = await contents_of(self._kernel, [signal.body]), []
        except BlobNotFound as error:
            raise JournalDamaged(
                f"what run {self._run.id!r} keeps is not whole: {error}"
            ) from error
        for other, read in zip(others, ahead, strict=False):
            self._ahead[other.name, other.id] = read
        return data

    def _next(self, signal: Signal, inbox: Iterable[Signal]) -> list[Signal]:
        """Return the ends of children that are read together with one of them."""
        if signal.body.blob is None or not is_childs_signal(signal.name):
            return []
        others: list[Signal] = []
        room = _AHEAD_BYTES_MAX - sum(map(len, self._ahead.values()))
        for other in inbox:
            key = (other.name, other.id)
            if key == (signal.name, signal.id) or key in self._ahead:
                continue
            if other.body.blob is not None and is_childs_signal(other.name):
                room -= other.body.size
                if room < 0:
                    break
                others.append(other)
        return others
