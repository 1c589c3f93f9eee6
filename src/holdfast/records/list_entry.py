"""What lists show of a run: one attribute of its row, which the index of the lists repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.wait import Wait
from holdfast.records.head import Head

__all__ = ["listed_about", "listed_attributes", "values_of"]

_ABOUT_BYTES_MAX = 1_200
"""How much lists show of what a run waits for. What one wait is about always has room."""


def listed_attributes(head: Head) -> dict[str, Any]:
    """Return the attributes of a run that lists show."""
    shown: dict[str, Any] = {"graph": head.graph, "version": head.version}
    if head.labels:
        shown["labels"] = head.labels
    if head.session is not None:
        shown["session"] = head.session
    if head.listed_about:
        shown["about"] = head.listed_about
    return shown


def listed_about(waits: Sequence[Wait]) -> bytes:
    """Return what nodes said about waits, packed for lists; empty if they said nothing."""
    values: list[msgspec.Raw] = []
    room = _ABOUT_BYTES_MAX
    for wait in waits:
        if wait.packed_about is not msgspec.UNSET:
            room -= len(wait.packed_about)
            if room >= 0:
                values.append(msgspec.Raw(wait.packed_about))
    return msgspec.msgpack.encode(values) if values else b""


def values_of(listed: bytes) -> tuple[Any, ...]:
    """Return what `listed_about` packed.

    Raises:
        ValueError: the bytes are something else.
    """
    try:
        return tuple(msgspec.msgpack.decode(listed, type=list[Any])) if listed else ()
    except msgspec.MsgspecError as error:
        raise ValueError(f"what its waits are about cannot be read: {error}") from error
