"""Decides reviews, and finds out how they were decided, also if a decider died in the middle.

A decision is written in three steps: the signal in the inbox of the run, which counts; the wake of
the run; then the trail and the entry, which follow. So a decision that the trail records was told
to its run, and one that only the inbox has may have to be told again. A run that has ended takes no
decision any more: then the trail alone says what became of its reviews.

An edit or a reassignment is written in two steps: the action in the trail, then the fence in the
place of the decision. So an approval or a rejection counts only if its decider has read all changes
that were acknowledged. A reader completes what a process that died left undone of a change, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.inbox import SignalFenced
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.reviewing import (
    DECISION_BYTES_MAX,
    LoadedReview,
    fence_decisions,
    is_awaited,
    load_fenced_review,
    load_review,
    read_decision,
    review_expiry_ms,
    settle_review,
)
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.errors import RunClosing, RunEnded, RunNotFound
from holdfast.model.run import SignalReceipt
from holdfast.model.wait import ReviewWait
from holdfast.records.head import ENDED, OPEN, TROUBLED, Head
from holdfast.records.review import DECISION_ID, EVERY_FENCE

__all__ = ["decide_review", "find_decision", "is_same_decision"]

_NOT_OPEN = (RunClosing, RunEnded, RunNotFound)
_REASON_CHARS_MAX = 2_000


async def decide_review(
    kernel: Kernel,
    workers: LocalWorkers,
    loaded: LoadedReview,
    decision: Mapping[str, Any],
    *,
    deadline_ms: int | None = None,
) -> tuple[LoadedReview, bool]:
    """Decide a review; return it settled, and whether this decision was the first.

    If it was decided before, its run is woken again: the first decider may have died before that.

    Raises:
        RunEnded: the run has ended or expired, or ``deadline_ms`` has passed; nothing was written.
        RunClosing: the run has expired, and still executes.
        RunNotFound: the run is gone.
        SignalFenced: the review was changed since it was loaded; nothing was written. What is
            withdrawn or expired is so in any case.
    """
    is_about_page = decision["status"] in ("approved", "rejected")
    fences_below = loaded.next_position if is_about_page else EVERY_FENCE
    receipt = await _send(
        kernel, workers, loaded, decision, deadline_ms=deadline_ms, fences_below=fences_below
    )
    stands = decision
    if receipt.repeated:
        stands = (await read_decision(kernel, loaded.key)).decision or decision
    settled = await settle_review(kernel, loaded.key, stands, loaded=loaded) or loaded
    first = not receipt.repeated and is_same_decision(settled.settled or stands, decision)
    return settled, first


def is_same_decision(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Return whether two decisions are one: of the same person, at the same millisecond."""
    names = ("status", "by", "at_ms")
    return one is not None and all(one.get(name) == other.get(name) for name in names)


async def _send(
    kernel: Kernel,
    workers: LocalWorkers,
    loaded: LoadedReview,
    decision: Mapping[str, Any],
    *,
    deadline_ms: int | None = None,
    fences_below: int = EVERY_FENCE,
) -> SignalReceipt:
    key = loaded.key
    return await send_signal(
        kernel,
        workers,
        key.run,
        name=ReviewWait(key.name).signal,
        id=DECISION_ID,
        payload=dict(decision),
        generation=key.generation,
        first_counts=True,
        bytes_max=DECISION_BYTES_MAX,
        deadline_ms=deadline_ms,
        fences_below=fences_below,
    )


async def find_decision(
    kernel: Kernel, workers: LocalWorkers, head: Head, loaded: LoadedReview
) -> tuple[LoadedReview, Mapping[str, Any] | None]:
    """Return a review, and how it was decided; None while it is pending.

    What an earlier process left undone is done: a decision wakes its run, votes that decide become
    the decision, a change gets its fence, and a review that its run no longer awaits is withdrawn.
    """
    while True:
        try:
            return await _find_decision(kernel, workers, head, loaded)
        except SignalFenced:  # votes were counted, and the review was changed meanwhile
            loaded = await load_fenced_review(kernel, loaded)


async def _find_decision(
    kernel: Kernel, workers: LocalWorkers, head: Head, loaded: LoadedReview
) -> tuple[LoadedReview, Mapping[str, Any] | None]:
    if loaded.settled is not None:
        return loaded, loaded.settled
    if head.status in ENDED and head.status not in TROUBLED:
        return await _settle(kernel, loaded, _ended_decision(head, loaded))
    place = await read_decision(kernel, loaded.key)
    if place.is_open_to(loaded) and not await fence_decisions(kernel, loaded):
        place = await read_decision(kernel, loaded.key)
    if (stands := place.decision) is not None:
        if head.status in OPEN:
            with suppress(*_NOT_OPEN):
                await _send(kernel, workers, loaded, stands)
        return await _settle(kernel, loaded, stands)
    if head.status in TROUBLED:  # it can be retried, and then waits for the review again
        return loaded, None
    return await _find_open_decision(kernel, workers, head, loaded)


async def _find_open_decision(
    kernel: Kernel, workers: LocalWorkers, head: Head, loaded: LoadedReview
) -> tuple[LoadedReview, Mapping[str, Any] | None]:
    """Return how a review of an open run was decided that has no decision in the inbox."""
    expires_ms, now_ms = review_expiry_ms(head, loaded.stored), kernel.clock.now_ms()
    expired = {"status": "expired", "at_ms": expires_ms}
    decision = loaded.votes_decision(expires_ms)
    if decision is None and expires_ms <= now_ms < head.expires_ms:
        decision = expired
    if decision is not None and head.status in OPEN:
        with suppress(*_NOT_OPEN):
            settled, _ = await decide_review(kernel, workers, loaded, decision)
            return settled, settled.settled
    if now_ms >= expires_ms:
        return await _find_after_expiry(kernel, workers, head, loaded, expired)
    if not is_awaited(head, loaded.stored):
        with suppress(RunNotFound):
            head = await read_row(kernel, head.key)  # the review may be newer than the row
        if head.status in OPEN and not is_awaited(head, loaded.stored):
            return await _settle(kernel, loaded, _ended_decision(head, loaded))
    return loaded, None


async def _find_after_expiry(
    kernel: Kernel,
    workers: LocalWorkers,
    head: Head,
    loaded: LoadedReview,
    expired: Mapping[str, Any],
) -> tuple[LoadedReview, Mapping[str, Any] | None]:
    """Return how a review was decided if its run has expired, by the clock of this process.

    Nothing is written: a caller may still extend the run. The process may have stalled after it
    read the row and the review, so it looks again whether either has changed.
    """
    stands = (await read_decision(kernel, loaded.key)).decision
    with suppress(RunNotFound):
        current = await read_row(kernel, head.key)
        if stands is not None or (current.status, current.expires_ms) != (
            head.status,
            head.expires_ms,
        ):
            reloaded = await load_review(kernel, loaded.key) or loaded
            return await find_decision(kernel, workers, current, reloaded)
    return loaded, expired


def _ended_decision(head: Head, loaded: LoadedReview) -> dict[str, Any]:
    """Return what becomes of a review that its run does not await any more."""
    expires_ms = review_expiry_ms(head, loaded.stored)
    # A wait that went stale ended before its run.
    if head.status == "expired" or expires_ms <= head.updated_ms:
        return {"status": "expired", "at_ms": expires_ms}
    withdrawn = {"status": "withdrawn", "at_ms": head.updated_ms}
    return withdrawn | {"comment": _cancellation(head)} if head.status == "cancelled" else withdrawn


def _cancellation(head: Head) -> str:
    """Return that a run was cancelled, and why."""
    reason = head.cancel or (head.failure.message if head.failure is not None else "")
    return f"the run was cancelled: {reason[:_REASON_CHARS_MAX]}"


async def _settle(
    kernel: Kernel, loaded: LoadedReview, decision: Mapping[str, Any]
) -> tuple[LoadedReview, Mapping[str, Any]]:
    settled = await settle_review(kernel, loaded.key, decision, loaded=loaded)
    settled = settled or await load_review(kernel, loaded.key) or loaded
    return settled, settled.settled or decision
