"""What the waits of a run are about: said once for each group, and in a limited size."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.wait import Wait, answer_key

__all__ = ["with_group_about", "with_limited_about"]


def with_group_about(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Return waits in which each one of a group says what its group is about.

    Only the first one of a group stores it.
    """
    said = {
        (wait.branch, answer_key(wait.key)): wait.packed_about
        for wait in waits
        if wait.packed_about is not msgspec.UNSET
    }
    if not said:
        return tuple(waits)
    return tuple(
        msgspec.structs.replace(
            wait, packed_about=said.get((wait.branch, answer_key(wait.key)), msgspec.UNSET)
        )
        for wait in waits
    )


def with_limited_about(waits: Sequence[Wait], bytes_max: int) -> tuple[Wait, ...]:
    """Return waits of which only the first ones say what they are about, in so many bytes."""
    kept: list[Wait] = []
    for wait in waits:
        if wait.packed_about is not msgspec.UNSET:
            bytes_max -= len(wait.packed_about)
            if bytes_max < 0:
                wait = msgspec.structs.replace(wait, packed_about=msgspec.UNSET)
        kept.append(wait)
    return tuple(kept)
