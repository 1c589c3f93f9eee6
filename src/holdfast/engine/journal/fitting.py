"""Packs records with the arguments of their calls, as long as these cost no write unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from holdfast.engine.journal.payloads import INLINE_BYTES_MAX, compress_payload
from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.arguments import COSTS_A_UNIT, TOO_LARGE, Arguments
from holdfast.model.event import Event, RecordedCall, RecordedIntent, without_arguments
from holdfast.records.codec import encode
from holdfast.storage.units import WRITE_UNIT_BYTES

__all__ = ["RecordedEvents", "merged", "pack_with_arguments", "recorded_events"]

# So many bytes of fitting arguments are tried at most: the compression takes time.
_FITTING_BYTES_MAX = 64 * 1024
# The keys and attributes of a record take less than the rest of a unit: names have limits.
_SURELY_ONE_UNIT_BYTES = 600
# A record that goes to a blob costs the same for any size.
_BLOB = 0


class RecordedEvents(msgspec.Struct, frozen=True):
    """Events with the arguments of their calls, and the encoded size of these."""

    events: Sequence[Event]
    fitting_bytes: int = 0
    """The size of the arguments that are recorded only where they fit."""
    full_bytes: int = 0
    """The size of the arguments that are recorded at any cost."""

    @property
    def bytes(self) -> int:
        """The size of all arguments."""
        return self.fitting_bytes + self.full_bytes


def recorded_events(events: Sequence[Event]) -> RecordedEvents | None:
    """Return events that carry arguments, with the size of these; None if they carry none."""
    fitting, full = 0, 0
    for event in events:
        if isinstance(event, RecordedCall | RecordedIntent):
            arguments = event.arguments
            if not isinstance(arguments, Arguments):
                fitting += 1
            elif arguments.fitting:
                fitting += len(cast(msgspec.Raw, arguments.values))
            else:
                full += len(cast(msgspec.Raw, arguments.values))
    return RecordedEvents(events, fitting, full) if fitting or full else None


def merged(
    parts: Sequence[tuple[Sequence[Event], RecordedEvents | None]],
) -> RecordedEvents | None:
    """Return parts of a record as one; of each part, its events and these with arguments."""
    if len(parts) == 1:
        return parts[0][1]
    found = [recorded for _, recorded in parts if recorded is not None]
    if not found:
        return None
    return RecordedEvents(
        [each for events, recorded in parts for each in (recorded.events if recorded else events)],
        sum(recorded.fitting_bytes for recorded in found),
        sum(recorded.full_bytes for recorded in found),
    )


async def pack_with_arguments(
    kernel: Kernel, plain: bytes, recorded: RecordedEvents, overhead_bytes: Callable[[], int]
) -> bytes:
    """Return packed events, with the arguments of their calls where those fit.

    ``plain`` are the encoded events without arguments. ``overhead_bytes`` returns the size of the
    record without its content. A record that no item can hold with its full arguments is packed
    without them.

    Raises:
        ResultTooLarge: the events exceed the limit up to which records are read.
    """
    packer, events, data = _Packer(kernel, overhead_bytes), recorded.events, None
    if recorded.fitting_bytes <= _FITTING_BYTES_MAX:
        data = await packer.pack(encode(events))
        # Nearly every record: with arguments it costs the least that a record can cost.
        if data is not None and (not recorded.fitting_bytes or packer.units(data) == 1):
            return data
    least = plain
    if recorded.full_bytes:
        least = encode([_with_reason(event, None, only_fitting=True) for event in events])
    without, reason = await packer.pack(least), COSTS_A_UNIT
    if without is None:
        without, reason = await compress_payload(kernel, plain), TOO_LARGE
    if data is None or packer.units(data) != packer.units(without):
        marked = [_with_reason(each, reason, only_fitting=reason != TOO_LARGE) for each in events]
        data = await packer.pack(encode(marked))
    if data is None or packer.units(data) != packer.units(without):
        return without  # even the reason would cost a unit
    return data


class _Packer:
    """Packs records, and tells what they cost."""

    def __init__(self, kernel: Kernel, overhead_bytes: Callable[[], int]) -> None:
        self._kernel = kernel
        self._overhead_bytes = overhead_bytes

    async def pack(self, plain: bytes) -> bytes | None:
        """Return packed events; None if they are too large for this store."""
        kernel = self._kernel
        if len(plain) > kernel.limits.record_bytes_max:
            return None
        data = await compress_payload(kernel, plain)
        if len(data) > INLINE_BYTES_MAX and kernel.blobs is None:
            return None
        return data

    def units(self, data: bytes) -> int:
        """Return the write units of a record."""
        if len(data) > self._kernel.spill_bytes and self._kernel.blobs is not None:
            return _BLOB
        if len(data) <= _SURELY_ONE_UNIT_BYTES:
            return 1
        return -(-(self._overhead_bytes() + len(data)) // WRITE_UNIT_BYTES)


def _with_reason(event: Event, reason: int | None, *, only_fitting: bool) -> Event:
    """Return an event with a reason instead of arguments; without any if there is no reason."""
    if not isinstance(event, RecordedCall | RecordedIntent):
        return event
    arguments = event.arguments
    if only_fitting and isinstance(arguments, Arguments) and not arguments.fitting:
        return event
    if reason is None:
        return without_arguments(event)
    known = reason if isinstance(arguments, Arguments) else arguments
    return msgspec.structs.replace(event, arguments=known)
