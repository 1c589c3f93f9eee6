"""Raises the number of shards of the due index while workers run."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, InvalidRequest
from holdfast.records.settings import SHARDS_MAX, grow_shards_write, settings_of

__all__ = ["raise_shards"]


async def raise_shards(kernel: Kernel, shards: int) -> None:
    """Raise the number of shards of each graph's due index; existing runs stay in their shards.

    Raises:
        InvalidRequest: the number is invalid, or lower than the current one.
    """
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise InvalidRequest(
            f"shards must be an integer from 1 to {SHARDS_MAX}, got {shards!r:.80}",
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
            current = settings_of(failed.item)  # another process raised it meanwhile
    kernel.adopt_settings(current)
    if shards < current.shards:
        raise InvalidRequest(
            f"shards must be at least the current {current.shards}, got {shards}: runs are in them",
            field="shards",
        )
