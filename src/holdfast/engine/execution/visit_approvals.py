"""What the approvals of the calls of one visit need of its run."""

from __future__ import annotations

from typing import Any

from holdfast.engine.execution.reviews import ReviewRequest, ask_reviewers
from holdfast.engine.execution.visit import Visit
from holdfast.engine.execution.visit_waits import VisitWaits
from holdfast.engine.runs.reviewing import LoadedReview, load_review, settle_review
from holdfast.graph.approval import ApprovalTerms
from holdfast.model.event import SignalTaken
from holdfast.model.wait import ReviewWait
from holdfast.records.review import ReviewContent, ReviewKey, review_name

__all__ = ["VisitApprovals"]


class VisitApprovals:
    """Asks people about the calls of one visit: see `ApprovalHost`."""

    def __init__(self, visit: Visit, waits: VisitWaits) -> None:
        self._visit = visit
        self._waits = waits

    def known_decision(self, subject: str) -> dict[str, Any] | None:
        """Return the decision that the journal has; None if it has none."""
        answer = self._visit.strand.answers.get(ReviewWait(self._key(subject).name).key())
        return answer.payload if isinstance(answer, SignalTaken) else None

    def is_awaited(self, subject: str) -> bool:
        """Return whether the run paused for a review."""
        visit, key = self._visit, ReviewWait(self._key(subject).name).key()
        waits = visit.claimed.known_waits(visit.branch)
        return any((wait.visit, wait.key) == (visit.visit, key) for wait in waits)

    async def await_decision(
        self, subject: str, content: ReviewContent, terms: ApprovalTerms
    ) -> dict[str, Any]:
        """Return the decision of a review; pause the run until there is one."""
        visit = self._visit
        with visit.call_ids.keep_running():
            # Calls that were approved by now must begin before the node waits for this one.
            await visit.call_ids.let_others_begin()
            # What people are asked must not depend on a result that a crash could still lose.
            visit.check_open()
            with visit.remember_loss():
                await visit.claimed.journal.wait_durable()
        request = ReviewRequest(
            content=content,
            expires_ms=terms.expires_ms,
            remind_after_ms=terms.remind_after_ms,
            escalate_after_ms=terms.escalate_after_ms,
            escalate_to=terms.escalate_to,
        )
        return (await ask_reviewers(visit, self._waits, request, subject)).payload

    async def settle(self, subject: str, decision: dict[str, Any]) -> None:
        """Let the entry of a review follow a decision that an earlier process took."""
        claimed, key = self._visit.claimed, self._key(subject)
        with self._visit.remember_loss(), self._visit.call_ids.keep_running():
            await claimed.claim.retry_store_errors(
                lambda: settle_review(claimed.kernel, key, decision, alive=claimed.claim.alive)
            )

    async def load_review(self, subject: str) -> LoadedReview | None:
        """Return a review as it stands in the store; None if there is none."""
        claimed, key = self._visit.claimed, self._key(subject)
        with self._visit.remember_loss(), self._visit.call_ids.keep_running():
            return await claimed.claim.retry_store_errors(lambda: load_review(claimed.kernel, key))

    def _key(self, subject: str) -> ReviewKey:
        head = self._visit.claimed.head
        name = review_name(head.generation, self._visit.path, subject)
        return ReviewKey(head.key, head.generation, name)
