"""The permits that the calls of one visit acquire from quotas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.engine.effects.quotas import Permit, PermitDelay, PermitUnavailable
from holdfast.engine.execution.visit import Visit
from holdfast.engine.execution.visit_waits import VisitWaits
from holdfast.model.quota import Cost, Quota
from holdfast.model.wait import QuotaWait

__all__ = ["VisitPermits"]


class VisitPermits:
    """Acquires the permits for the calls of one visit of a node."""

    def __init__(self, visit: Visit, waits: VisitWaits) -> None:
        self._visit = visit
        self._waits = waits

    async def acquire(self, call: str, quota: Quota | None, cost: Cost) -> Permit | None:
        """Return the permit for a call that is about to begin; pause the run if it comes late."""
        if quota is None:
            return None

        async def put_off(later: PermitDelay) -> None:
            await self.wait_for_quota(call, quota, later.retry_at_ms)

        return await self._acquire(quota, cost, self._promised_ms(call), put_off)

    async def acquire_in_place(self, call: str, quota: Quota | None, cost: Cost) -> Permit | None:
        """Return the permit for a call that is being made, if it comes soon.

        Raises:
            PermitUnavailable: it comes late. The call must end until then: other calls, of this
                node or of other runs, may wait for its result.
        """
        if quota is None:
            return None

        async def stay(later: PermitDelay) -> None:
            if later.retry_at_ms - self._visit.now_ms() > self._visit.hold_ms:
                raise PermitUnavailable(later, quota)
            await self._sleep_until(later)

        return await self._acquire(quota, cost, self._promised_ms(call), stay)

    async def reacquire(self, missed: Permit) -> Permit:
        """Return a new permit for a call that began too late to use its own.

        The call keeps its turn: the quota is told that it promised room for now.
        """
        return await self._acquire(
            missed.quota, missed.cost, self._visit.now_ms(), self._sleep_until
        )

    async def wait_for_quota(self, call: str, quota: Quota, retry_at_ms: int) -> None:
        """Return when the call may ask a quota again, or pause the run until then."""
        if not await self._visit.wait_for_other_calls():
            await self._waits.sleep_or_pause(QuotaWait(call), retry_at_ms, f"quota {quota.name}")

    async def _acquire(
        self,
        quota: Quota,
        cost: Cost,
        promised_ms: int | None,
        wait: Callable[[PermitDelay], Awaitable[None]],
    ) -> Permit:
        while not isinstance(
            answer := await self._visit.external.acquire_permit(quota, cost, promised_ms), Permit
        ):
            promised_ms = answer.retry_at_ms
            self._visit.claimed.owner.figures.quota_waits[quota.name] += 1
            await wait(answer)
        return answer

    async def _sleep_until(self, later: PermitDelay) -> None:
        span_ms = max(later.retry_at_ms - self._visit.now_ms(), 0)
        await self._visit.claimed.sleep(span_ms / 1000)

    def _promised_ms(self, call: str) -> int | None:
        """Return when a quota promised room to a call for which the run paused; None otherwise."""
        visit, key = self._visit, QuotaWait(call).key()
        waits = visit.claimed.known_waits(visit.branch)
        promised = [
            wait.deadline_ms for wait in waits if (wait.visit, wait.key) == (visit.visit, key)
        ]
        return promised[-1] if promised else None
