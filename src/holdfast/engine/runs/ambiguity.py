"""Calls that may have been made: people list them, and say what became of each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.errors import ItemDamaged, JournalDamaged, NotAmbiguous, PayloadTooLarge
from holdfast.model.run import AmbiguousCall
from holdfast.model.wait import ResolutionWait
from holdfast.records.ambiguous_call import ambiguous_call_of
from holdfast.records.head import OPEN, ROW_WAITS_MAX, head_of, is_past_ttl
from holdfast.records.index_keys import calls_partition
from holdfast.records.keys import RunKey, call_key
from holdfast.storage import Key
from holdfast.storage.item import Item

__all__ = ["list_ambiguous_calls", "resolve_call"]

_RESOLUTION = "resolution"
_BATCH_ITEMS = 100


async def list_ambiguous_calls(kernel: Kernel, tenant: str) -> AsyncGenerator[AmbiguousCall, None]:
    """Yield a tenant's calls of which somebody has to say what became of them, oldest first.

    One that cannot be read, or whose run cannot, is left out.
    """
    batch: list[AmbiguousCall] = []
    async for item in kernel.lists.query_all(calls_partition(tenant), index="GSI2"):
        try:
            batch.append(ambiguous_call_of(item))
        except JournalDamaged as error:
            kernel.note_damage(item, error)
        if len(batch) == _BATCH_ITEMS:
            for call in await _select_waiting(kernel, batch):
                yield call
            batch = []
    for call in await _select_waiting(kernel, batch):
        yield call


async def _select_waiting(kernel: Kernel, calls: list[AmbiguousCall]) -> list[AmbiguousCall]:
    """Return those whose runs still wait: an entry may outlive what it tells of."""
    keys = list(dict.fromkeys(RunKey(call.tenant, call.run).head for call in calls))
    rows = await _load_rows(kernel, keys)
    return [
        call
        for call in calls
        if _waits_for(kernel, rows[RunKey(call.tenant, call.run).head], call.call)
    ]


async def _load_rows(kernel: Kernel, keys: Sequence[Key]) -> dict[Key, Item | None]:
    try:
        return dict(zip(keys, await kernel.heads.get_many(keys), strict=True))
    except ItemDamaged:
        if len(keys) == 1:
            return {keys[0]: None}
    # One of them hides the others only in a common request.
    return {key: row for each in keys for key, row in (await _load_rows(kernel, [each])).items()}


def _waits_for(kernel: Kernel, item: Item | None, call: str) -> bool:
    try:
        if item is None or is_past_ttl(item, kernel.clock.now_ms()):
            return False
        head = head_of(item)
    except JournalDamaged as error:
        kernel.note_damage(item or {}, error)
        return False
    if head.status not in OPEN:
        return False
    if head.owner is not None:  # another branch goes on, and the row says nothing of waits then
        return True
    kind = ResolutionWait(call)
    # Where there are many waits, the row does not show all of them.
    return len(head.waits) >= ROW_WAITS_MAX or any(wait.kind == kind for wait in head.waits)


async def resolve_call(
    kernel: Kernel, workers: LocalWorkers, run: RunKey, call: str, resolution: Mapping[str, Any]
) -> None:
    """Tell a run what became of a call.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: it has ended.
        NotAmbiguous: the call does not wait for that.
        AlreadyExists: somebody said something else before.
        PayloadTooLarge: the result has more bytes than it may have.
        InvalidInput: the result cannot be kept.
    """
    head = await read_row(kernel, run)
    if await kernel.lists.get(call_key(run, head.generation, call)) is None:
        raise NotAmbiguous(f"no call {call!r} of run {run.id!r} waits for a resolution")
    name = ResolutionWait(call).signal
    try:
        await send_signal(
            kernel,
            workers,
            run,
            name=name,
            id=_RESOLUTION,
            payload=dict(resolution),
            bytes_max=kernel.limits.answer_bytes_max,
        )
    except PayloadTooLarge as error:
        raise PayloadTooLarge(
            f"{error}; PayloadLimits.answer_bytes_max sets the limit",
            field=error.field,
            size=error.size,
            limit=error.limit,
        ) from None
