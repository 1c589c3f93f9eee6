"""Raises the count of shards of the due index, while everything runs."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, InvalidRequest
from holdfast.records.settings import SHARDS_MAX, grow_shards_write, settings_of

__all__ = ["raise_shards"]


async def raise_shards(kernel: Kernel, shards: int) -> None:
    """Cut the due index of each graph into that many shards. Old runs stay where they are.

    Raises:
        InvalidRequest: too many, or fewer than there are.
    """
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise InvalidRequest(
            f"shards is a whole number from 1 to {SHARDS_MAX}, not {shards!r:.80}",
            field="shards",
            limit=SHARDS_MAX,
        )
    current = await kernel.get_settings()
    while shards > current.shards:
        write = grow_shards_write(current, shards, token=kernel.ids.new())
        try:
            current = settings_of(await kernel.resolve_write(kernel.settings_table, write))
        except ConditionFailed as failed:
            if failed.item is None:
                raise
            current = settings_of(failed.item)  # somebody else raised it meanwhile
    kernel.adopt_settings(current)
    if shards < current.shards:
        raise InvalidRequest(
            f"there are {current.shards} shards, and they never become fewer: runs stand in them",
            field="shards",
        )
