"""Raises the count of shards of the due index, while everything runs."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, InvalidRequest
from holdfast.records.settings import SHARDS_MAX, grown, settings_of

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
    standing = await kernel.settings()
    while shards > standing.shards:
        write = grown(standing, shards, token=kernel.ids.new())
        try:
            standing = settings_of(await kernel.settle(kernel.agreed, write))
        except ConditionFailed as failed:
            if failed.item is None:
                raise
            standing = settings_of(failed.item)  # somebody else raised it meanwhile
    kernel.learn(standing)
    if shards < standing.shards:
        raise InvalidRequest(
            f"there are {standing.shards} shards, and they never become fewer: runs stand in them",
            field="shards",
        )
