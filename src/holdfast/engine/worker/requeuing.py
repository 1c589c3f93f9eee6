"""Makes runs due again that a worker claimed and did not release."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, ItemDamaged
from holdfast.records.index_keys import IndexKey, owned_partition
from holdfast.records.keys import RunKey
from holdfast.records.run_writes import index_key_in, requeue_write
from holdfast.storage.item import Item

__all__ = ["CONCURRENCY_MAX", "for_each", "index_key_of", "requeue_run", "requeue_runs"]

T = TypeVar("T")

CONCURRENCY_MAX = 16
"""How many rows are written at once."""


async def requeue_runs(
    kernel: Kernel,
    worker: str,
    *,
    lost: bool,
    on_requeued: Callable[[IndexKey], None],
    skip: Callable[[RunKey], bool] | None = None,
) -> None:
    """Make every run due again whose row names a worker.

    ``lost`` says whether the worker is dead. ``on_requeued`` gets the new place of each run in the
    due index. ``skip`` is asked just before each write: a run for which it says yes stays as it is.

    Raises:
        StoreUnavailable, StoreUnusable, OutcomeUnknown: some rows may still name the worker.
    """

    async def requeue(place: IndexKey) -> None:
        try:
            place.owned_parts()
        except ValueError as error:
            kernel.note_damage({"PK": place.pk, "SK": place.sk}, error)
            return
        if skip is not None and skip(place.owned_parts()[1]):
            return
        requeued = await requeue_run(kernel, place, lost=lost)
        if requeued is not None:
            on_requeued(requeued)

    table = kernel.reaping if lost else kernel.due
    owned = table.query_all(owned_partition(worker), index="GSI1")
    await for_each(requeue, [index_key_of(entry) async for entry in owned])


async def requeue_run(
    kernel: Kernel, place: IndexKey, *, lost: bool, in_ms: int = 0
) -> IndexKey | None:
    """Make a claimed run due again, now or later; return its new place in the due index.

    Return None if the run is no longer at the old place, or its row cannot be read.

    Raises:
        StoreUnavailable, StoreUnusable, OutcomeUnknown: the store does not answer.
    """
    now = kernel.clock.now_ms()
    write = requeue_write(place, lost=lost, now_ms=now, in_ms=in_ms, token=kernel.ids.new())
    try:
        await kernel.resolve_write(kernel.heads, write)
    except (ConditionFailed, ItemDamaged):
        return None
    return index_key_in(write)


def index_key_of(entry: Item) -> IndexKey:
    """Return the place of an entry in the due index."""
    return IndexKey(entry["GSI1PK"], entry["GSI1SK"])


async def for_each(work: Callable[[T], Awaitable[None]], subjects: Sequence[T]) -> None:
    """Do some work for each subject, several at once; raise the first error when all are done."""
    first_error: BaseException | None = None
    for start in range(0, len(subjects), CONCURRENCY_MAX):
        batch = (work(subject) for subject in subjects[start : start + CONCURRENCY_MAX])
        done = await asyncio.gather(*batch, return_exceptions=True)
        first_error = first_error or next((error for error in done if error is not None), None)
    if first_error is not None:
        raise first_error
