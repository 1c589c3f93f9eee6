"""Finds the review of an id, and refuses actions on one that is decided."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.review_outcomes import find_decision
from holdfast.engine.runs.reviewing import LoadedReview, load_review
from holdfast.engine.runs.rows import read_row
from holdfast.errors import InvalidName, ReviewDecided, ReviewNotFound, RunNotFound
from holdfast.model.moments import utc_text
from holdfast.model.names import validated_name
from holdfast.model.review import Review
from holdfast.records.head import TROUBLED, Head
from holdfast.records.keys import RunKey
from holdfast.records.review import ReviewKey
from holdfast.records.review_state import shown_decision
from holdfast.review.showing import shown_review

__all__ = ["OpenReview", "ReviewStore", "decided_error"]

_ID = re.compile(r"(.+)~([0-9a-f]{16})", re.DOTALL)


class OpenReview(msgspec.Struct, frozen=True):
    """A review as it was read, with the row of its run."""

    head: Head
    loaded: LoadedReview
    decision: Mapping[str, Any] | None
    """How it was decided; None while it is pending."""

    def check_pending(self) -> None:
        """Check that it can still be decided.

        Raises:
            ReviewDecided: it is decided, or its run has failed.
        """
        if self.decision is not None or self.head.status in TROUBLED:
            raise decided_error(self)


class ReviewStore(msgspec.Struct, frozen=True):
    """What reviews are read from and written to."""

    kernel: Kernel
    workers: LocalWorkers
    through: str = ""
    """Who acts on behalf of the person; empty if the person does. What is written says it."""

    async def find(self, id: object, tenant: str) -> OpenReview:
        """Return a review; do first what an earlier process left undone of its decision.

        Raises:
            ReviewNotFound: the tenant has no such review.
        """
        head, loaded = await self._load(id, tenant)
        loaded, decision = await find_decision(self.kernel, self.workers, head, loaded)
        return OpenReview(head, loaded, decision)

    async def _load(self, id: object, tenant: str) -> tuple[Head, LoadedReview]:
        parts = _ID.fullmatch(id) if isinstance(id, str) else None
        if parts is not None and _is_name(parts[1]):
            try:
                head = await read_row(self.kernel, RunKey(tenant, parts[1]))
            except RunNotFound:
                raise _not_found(id, tenant) from None
            key = ReviewKey(head.key, head.generation, parts[2])
            loaded = await load_review(self.kernel, key)
            if loaded is not None:
                return head, loaded
        raise _not_found(id, tenant)

    async def find_pending(self, id: object, tenant: str) -> OpenReview:
        """Return a review that can still be decided.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it is decided, or its run has failed.
        """
        found = await self.find(id, tenant)
        found.check_pending()
        return found

    def shown(self, found: OpenReview) -> Review:
        """Return a review as callers see it."""
        now_ms = self.kernel.clock.now_ms()
        return shown_review(found.head, found.loaded, found.decision, now_ms=now_ms)


def decided_error(found: OpenReview) -> ReviewDecided:
    """Return the error that a review cannot be decided any more, which says why."""
    id, head = found.loaded.key.id, found.head
    if found.decision is None:
        return ReviewDecided(
            f"review {id!r} cannot be decided: its run is {head.status}; retry the run first, then "
            "it waits for the review again"
        )
    decision = shown_decision(found.decision)
    by = f" by {decision.by}" if decision.by else ""
    return ReviewDecided(
        f"review {id!r} was {decision.status}{by} at {utc_text(decision.at)}",
        decision=decision,
    )


def _is_name(run: str) -> bool:
    try:
        validated_name(run, "run")
    except (InvalidName, UnicodeEncodeError):
        return False
    return True


def _not_found(id: object, tenant: str) -> ReviewNotFound:
    return ReviewNotFound(f"tenant {tenant!r} has no review {id!r:.160}")
