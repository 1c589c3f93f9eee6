"""What the calls of one visit of a node need of its run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

import msgspec

from holdfast.engine.effects.call_host import Ambiguous, CallRequest
from holdfast.engine.effects.charges import CallPrice
from holdfast.engine.effects.resources import Resources
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.execution.run_spans import AttemptSpan
from holdfast.engine.execution.visit import Visit
from holdfast.engine.execution.visit_approvals import VisitApprovals
from holdfast.engine.execution.visit_permits import VisitPermits
from holdfast.engine.execution.visit_resources import await_worker_with
from holdfast.engine.execution.visit_waits import VisitWaits
from holdfast.engine.history.text_stream import TokenWriter
from holdfast.graph.values import durable
from holdfast.model.call import Call
from holdfast.model.event import Event, SignalTaken
from holdfast.model.needs import Needs
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.model.wait import ResolutionWait

__all__ = ["VisitCalls"]

T = TypeVar("T")


class VisitCalls:
    """The host of the calls of one visit: see `CallHost` and `ModelCallHost`."""

    def __init__(self, visit: Visit, waits: VisitWaits) -> None:
        self.node = visit.node
        self.branch = visit.branch
        self.visit = visit.visit
        self.call_ids = visit.call_ids
        self.requests = visit.requests
        self.run = visit.claimed.head.key
        self.limits = visit.claimed.kernel.limits
        self.waits = waits
        self.permits = VisitPermits(visit, waits)
        self.recorder = visit.external.resources.recorder
        self._visit = visit

    @property
    def key(self) -> str:
        """The unique name of the visit."""
        return self._visit.key

    @property
    def resources(self) -> Resources:
        """Models, quotas and shared answers."""
        return self._visit.external.resources

    @property
    def needs(self) -> Needs:
        """What the program of the run declares to use."""
        return self._visit.external.needs

    @property
    def threads(self) -> NodeThreads:
        """The threads in which plain functions run."""
        return self._visit.external.threads

    def now_ms(self) -> int:
        """Return the time."""
        return self._visit.now_ms()

    def text_writer(self, call: str, name: str) -> TokenWriter:
        """Return the writer of a model's text as it arrives."""
        # With the visit: calls of other visits and branches have the same ids.
        return self._visit.external.text_writer(f"{self._visit.path}.{call}", name)

    async def retry_store_errors(self, action: Callable[[], Awaitable[T]], /) -> T:
        """Repeat an action until the store answers; see `Claim.retry_store_errors`."""
        with self._visit.remember_loss():
            return await self._visit.claimed.claim.retry_store_errors(action)

    # --- before a call ----------------------------------------------------------------------------

    async def flush_before_call(self) -> None:
        """Return when all that the node acted on is durable, and the run is still ours."""
        self._visit.check_open()
        with self._visit.remember_loss():
            await self._visit.claimed.journal.wait_durable()

    async def reserve_budget(self, call: str, price: CallPrice) -> None:
        """Reserve what a call may cost, durably; pause the run if its budget does not allow it."""
        guard, known = self._visit.external.budget_guard, self.known_call(call)
        with self._visit.remember_loss():
            await guard.reserve(
                self._visit, call, price, before=NO_SPENDING if known is None else known.reserved
            )

    async def persist_run(self) -> None:
        """Store a run that is only in memory so far."""
        self._visit.check_open()
        with self._visit.remember_loss():
            await self._visit.claimed.persistence.store_from_node()

    async def await_worker_with_model(self, name: str) -> NoReturn:
        """Pause the run until a worker that has the model of that name may claim it."""
        await await_worker_with(self._visit, "model", name)

    @property
    def approvals(self) -> VisitApprovals:
        """Where people approve calls."""
        return VisitApprovals(self._visit, self.waits)

    # --- its record -------------------------------------------------------------------------------

    def known_call(self, call: str) -> Call | None:
        """Return the record of a call."""
        return self._visit.strand.calls.get(call)

    async def record(self, *events: Event, durable: bool) -> None:
        """Write events and fold them; see `JournalSession.record`."""
        await self._visit.record(*events, durable=durable)

    async def to_durable(self, value: Any) -> Any:
        """Return the durable form of a call's result; a large one is converted in a thread.

        Raises:
            TooLarge: it has more bytes than a result may have.
            Mismatch: it cannot be stored.
        """
        limit, offload = self.limits.answer_bytes_max, self._visit.claimed.kernel.offload
        size = await offload.measure(value, limit)
        return await offload.run(size, partial(durable, value, bytes_max=limit))

    def count_savings(self, spending: Spending) -> None:
        """Count a call that was answered without being made."""
        self.resources.savings.add(spending)

    def report_attempt(self, call: str, request: CallRequest) -> AttemptSpan | None:
        """Begin the span of an attempt of a call; return None without telemetry."""
        if self._visit.claimed.kernel.telemetry is None:
            return None
        known = self.known_call(call)
        failed, voided = (0, 0) if known is None else (known.failed, known.voided)
        # With the attempt of the node: a call that failed is made again in the next one.
        visit = self._visit
        return AttemptSpan.begin(
            self.node,
            f"call {visit.path} {visit.attempt} {call}~{voided}#{failed}",
            name=request.tool.name,
            model="" if request.prompt is None else request.prompt.model,
        )

    # --- calls that may have been made ------------------------------------------------------------

    async def await_resolution(self, ambiguous: Ambiguous) -> SignalTaken:
        """Return how a person resolved a call; pause the run until one has."""
        visit = self._visit
        kind = ResolutionWait(ambiguous.id)
        answer = visit.strand.answers.get(kind.key())
        if answer is None:
            about = f"{ambiguous.name} {ambiguous.key}"
            if ambiguous.mismatch:
                about += f"; not the result that was said: {ambiguous.mismatch}"
            wait = await self.waits.begin(kind, None, about=about)
            # It never goes stale: elsewhere the call would be made again, under another key.
            wait = msgspec.structs.replace(wait, stale_ms=None)
            if wait not in visit.claimed.known_waits(visit.branch):
                await visit.external.add_ambiguous_call(ambiguous, visit.node)
            self.call_ids.mark_done(ambiguous.call)
            answer = await self.waits.resolve(wait)
        assert isinstance(answer, SignalTaken)
        await self.flush_before_call()  # until then people must find the call
        await visit.external.remove_ambiguous_call(ambiguous.id)
        return answer
