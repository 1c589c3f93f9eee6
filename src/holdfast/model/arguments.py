"""The recorded arguments of a call: when a call records them, and what its record holds."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.errors import InvalidRequest

__all__ = [
    "COSTS_A_UNIT",
    "NOT_REDACTED",
    "TOO_LARGE",
    "Arguments",
    "Recorded",
    "Recording",
    "omission_text",
    "recording_of",
    "validated_recording",
]

Recording: TypeAlias = Literal["fitting", "full", "none"]
"""Which arguments of calls are recorded.

``fitting``: those with which the record costs no more write units than without them. ``full``: all;
of a conversation with a model, each call records only the new messages. ``none``: no arguments.
"""


class Arguments(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of a call, as its record holds them."""

    values: Any
    """The redacted arguments by name. A writer holds them encoded, as a `msgspec.Raw`."""
    after: str = ""
    """The call of the same visit whose messages and answer come before these messages."""
    fitting: bool = True
    """Whether the record may be written without them."""


Recorded: TypeAlias = Arguments | int
"""The arguments of a call, or the number of the reason why they are not in its record."""

COSTS_A_UNIT = 1
TOO_LARGE = 2
NOT_REDACTED = 3

_OMISSIONS = {
    COSTS_A_UNIT: "the record would cost more with them; record='full' stores them",
    TOO_LARGE: "they are too large for the record",
    NOT_REDACTED: "redact raised an error",
}


def omission_text(number: int) -> str:
    """Return why a record does not have the arguments of its call."""
    return _OMISSIONS.get(number, f"for reason {number}, which a newer release knows")


def validated_recording(value: object) -> Recording:
    """Return a checked ``record`` option.

    Raises:
        InvalidRequest: it is not one of the options.
    """
    if value not in get_args(Recording):
        raise InvalidRequest(
            f"record must be 'fitting', 'full' or 'none', got {value!r:.80}", field="record"
        )
    return value  # pyright: ignore[reportReturnType] - one of the literals


def recording_of(
    process: Recording, *, tool: Recording | None, call: Recording | None
) -> Recording:
    """Return which arguments of a call are recorded: the narrowest option wins.

    The ``none`` of a tool always wins: its author knows that the arguments are secret.
    """
    if tool == "none":
        return "none"
    return call or tool or process
