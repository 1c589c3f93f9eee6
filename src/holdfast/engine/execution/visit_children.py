"""The children of one visit of a node: runs that it starts, and waits for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from holdfast.engine.execution.visit import Visit
from holdfast.engine.execution.visit_waits import VisitWaits
from holdfast.engine.journal.endings import RunOutcome
from holdfast.engine.runs.children import ChildRequest
from holdfast.engine.runs.starting import PreparedInput, prepare_input
from holdfast.errors import ResultTaken
from holdfast.graph.values import deep_copied
from holdfast.model.event import ChildStarted, Failure, SignalTaken, TimerFired
from holdfast.model.program import Program
from holdfast.model.wait import ChildWait, Wait

__all__ = ["VisitChildren"]


class VisitChildren:
    """Starts and awaits the children of one visit of a node."""

    def __init__(self, visit: Visit, waits: VisitWaits) -> None:
        self._visit = visit
        self._waits = waits
        self._counts: Counter[int] = Counter()
        self._locks: dict[str, asyncio.Lock] = {}

    def next_number(self) -> int:
        """Return the number of the next child that the visit starts."""
        self._visit.check_open()
        offset = self._visit.call_ids.number_offset()
        self._counts[offset] += 1
        return offset + self._counts[offset]

    async def prepare_input(self, graph: Program, input: Any) -> PreparedInput:
        """Return the input of a child as it is stored."""
        return await prepare_input(self._visit.claimed.kernel, graph, input, None)

    async def start(self, wanted: ChildRequest) -> str:
        """Start a child, unless it exists, record it, and return its id."""
        visit = self._visit
        external = visit.external
        with visit.remember_loss():
            await visit.claimed.journal.wait_durable()  # its input may be the result of a call
            if wanted.budget is not None:
                limits = await external.budget_guard.inherited_limits(wanted.budget)
                wanted = msgspec.structs.replace(wanted, budget=limits)
                await external.budget_guard.grant_child_budget(
                    visit, external.child_id(wanted), limits
                )
            id = await external.start_child(wanted)
        name, number = wanted.graph.name, wanted.number
        started = ChildStarted(
            visit.now_ms(), visit.node, visit.visit, number, id, name, visit.branch
        )
        # It need not be durable: a node that runs again would only look for the child again.
        await visit.record(started, durable=False)
        return id

    async def wait_for(self, id: str) -> RunOutcome:
        """Return how a child ended; pause the run until it has.

        Raises:
            NotPausable: the node was declared with ``pausable="no"``.
            RunNotFound: there is no such child, or its result was deleted.
            ResultTaken: another visit took the result, and the child was not retried since.
        """
        self._visit.check_open()
        async with self.locked([id]):
            answer = self.known_end(id)
            if answer is None:
                wait = await self._waits.begin(ChildWait(id), None)
                await self.poll(id, wait)
                answer = await self._waits.resolve(wait)
        return await self.outcome(id, answer)

    @asynccontextmanager
    async def locked(self, ids: Collection[str]) -> AsyncGenerator[None]:
        """Keep the node's other tasks from awaiting these children: all get the one answer."""
        async with AsyncExitStack() as stack:
            for id in sorted(ids):  # in one order, so that no two tasks wait for each other
                await stack.enter_async_context(self._locks.setdefault(id, asyncio.Lock()))
            yield

    def known_end(self, id: str) -> SignalTaken | TimerFired | None:
        """Return the report of a child's end that a wait of this visit took."""
        answers = self._visit.strand.answers
        known = answers.get(ChildWait(id).key())
        if known is not None:
            return known
        name = ChildWait(id).signal
        taken = (answer for answer in answers.values() if isinstance(answer, SignalTaken))
        return next((answer for answer in taken if answer.name == name), None)

    async def outcome(self, id: str, answer: SignalTaken | TimerFired) -> RunOutcome:
        """Return how a child ended, with a copy of its state, and give back what it did not spend.

        The node may change the copy, and its next attempt gets the state unchanged.
        """
        if id in self._visit.claimed.execution.slices:
            with self._visit.remember_loss():
                await self._visit.external.budget_guard.return_rest()
        report: dict[str, Any] = answer.payload if isinstance(answer, SignalTaken) else {}
        failure = None if report["failure"] is None else Failure(**report["failure"])
        # Only a child that did not finish names its node; those of older releases do not.
        node, wrapped = report.get("node", ""), report.get("wrapped", False)
        state = deep_copied(report["state"])
        return RunOutcome(report["status"], state, failure, node, wrapped)

    async def poll(self, id: str, wait: Wait) -> None:
        """Ask whether a child has ended, unless its signal is here or is sure to come."""
        visit, name = self._visit, ChildWait(id).signal
        inbox = visit.claimed.inbox
        waits = wait in visit.claimed.known_waits(visit.branch)
        if self._has_signal(name) or (waits and not inbox.was_taken(name)):
            return
        with visit.remember_loss():
            ended = await visit.external.deliver_child_end(id)
        if ended and inbox.was_taken(name) and not self._has_signal(name):
            raise ResultTaken(
                f"another visit of a node took the result of run {id!r}; "
                "pass the result on in the state"
            )

    def _has_signal(self, name: str) -> bool:
        return any(signal.name == name for signal in self._visit.claimed.inbox.untaken())
