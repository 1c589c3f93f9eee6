"""Packs records with the arguments of their calls, as long as these cost no write unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from holdfast.engine.journal.payloads import INLINE_BYTES_MAX, compress_payload
from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.arguments import COSTS_A_UNIT, TOO_LARGE, Arguments, Recorded
from holdfast.model.event import Event, RecordedCall, RecordedIntent, without_arguments
from holdfast.records.codec import encode
from holdfast.storage.units import WRITE_UNIT_BYTES

__all__ = ["arguments_bytes", "full_arguments_bytes", "has_arguments", "pack_with_arguments"]

# So many bytes of fitting arguments are tried at most: the compression takes time.
_FITTING_BYTES_MAX = 64 * 1024
# A record that goes to a blob costs the same for any size.
_BLOB = 0


def has_arguments(event: Event) -> bool:
    """Return whether an event carries the arguments of its call."""
    return isinstance(event, RecordedCall | RecordedIntent)


def arguments_bytes(event: Event) -> int:
    """Return the size of the arguments that an event carries."""
    return sum(map(_size, _arguments_of([event])))


def full_arguments_bytes(events: Sequence[Event]) -> int:
    """Return the size of the arguments that are recorded at any cost."""
    return sum(
        _size(arguments) for arguments in _arguments_of(events) if not _is_fitting(arguments)
    )


async def pack_with_arguments(
    kernel: Kernel, plain: bytes, events: Sequence[Event], *, overhead_bytes: int
) -> bytes:
    """Return packed events, with the arguments of their calls where those fit.

    ``plain`` are the encoded events without arguments. ``overhead_bytes`` is the size of the record
    without its content. A full record that no item can hold is packed without arguments.

    Raises:
        ResultTooLarge: the events exceed the limit up to which records are read.
    """
    recorded = _Packer(kernel, overhead_bytes)
    fitting = [arguments for arguments in _arguments_of(events) if _is_fitting(arguments)]
    if sum(map(_size, fitting)) <= _FITTING_BYTES_MAX:
        data = await recorded.pack(encode(events))
        # Nearly every record: with arguments it costs the least that a record can cost.
        if data is not None and (not fitting or recorded.units(data) == 1):
            return data
    else:
        data = None
    full = [_with_omission(event, None, only_fitting=True) for event in events]
    least = await recorded.pack(plain if not any(map(has_arguments, full)) else encode(full))
    reason, only_fitting = COSTS_A_UNIT, True
    if least is None:
        least, reason, only_fitting = await compress_payload(kernel, plain), TOO_LARGE, False
    if data is not None and recorded.units(data) == recorded.units(least):
        return data
    marked = [_with_omission(event, reason, only_fitting=only_fitting) for event in events]
    data = await recorded.pack(encode(marked))
    if data is not None and recorded.units(data) == recorded.units(least):
        return data
    return least


class _Packer:
    """Packs records, and tells what they cost."""

    def __init__(self, kernel: Kernel, overhead_bytes: int) -> None:
        self._kernel = kernel
        self._overhead_bytes = overhead_bytes

    async def pack(self, plain: bytes) -> bytes | None:
        """Return packed events; None if they are too large for this store."""
        kernel = self._kernel
        if len(plain) > kernel.limits.record_bytes_max:
            return None
        data = await compress_payload(kernel, plain)
        return data if kernel.blobs is not None or len(data) <= INLINE_BYTES_MAX else None

    def units(self, data: bytes) -> int:
        if len(data) > self._kernel.spill_bytes and self._kernel.blobs is not None:
            return _BLOB
        return -(-(self._overhead_bytes + len(data)) // WRITE_UNIT_BYTES)


def _arguments_of(events: Sequence[Event]) -> list[Recorded]:
    found = [e.arguments for e in events if isinstance(e, RecordedCall | RecordedIntent)]
    return [arguments for arguments in found if arguments is not None]


def _is_fitting(arguments: Recorded) -> bool:
    return not isinstance(arguments, Arguments) or arguments.fitting


def _size(arguments: Recorded) -> int:
    return len(cast(msgspec.Raw, arguments.values)) if isinstance(arguments, Arguments) else 1


def _with_omission(event: Event, reason: int | None, *, only_fitting: bool) -> Event:
    """Return an event with a reason instead of arguments; without any if there is no reason."""
    if not isinstance(event, RecordedCall | RecordedIntent) or event.arguments is None:
        return event
    if only_fitting and not _is_fitting(event.arguments):
        return event
    if reason is None:
        return without_arguments(event)
    known = reason if isinstance(event.arguments, Arguments) else event.arguments
    return msgspec.structs.replace(event, arguments=known)
