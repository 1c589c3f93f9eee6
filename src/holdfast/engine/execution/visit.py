"""One visit of a node: who it is, what it writes, and why it ends early.

A wait that has no answer yet ends the node with `Paused`: what the node waits for becomes durable,
and its coroutine is dropped. When the answer has arrived the node runs again from its top. Waits
that were answered before then return at once, from the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import msgspec

from holdfast.engine.effects.begun_requests import BegunRequests
from holdfast.engine.effects.call_ids import CallIds
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.external_effects import ExternalEffects
from holdfast.engine.execution.journal_session import JournalConflict
from holdfast.engine.execution.outer_timeouts import outer_timeout
from holdfast.engine.execution.reserved_signals import ReservedSignals
from holdfast.engine.kernel.kernel import ClaimLost
from holdfast.errors import NotPausable, ResultTooLarge, WaitInsideTimeout
from holdfast.graph.mismatch import TooLarge
from holdfast.log_context import RunScope
from holdfast.model.event import Event
from holdfast.model.execution import Strand
from holdfast.model.program import Effect
from holdfast.model.wait import Wait, WaitKind

__all__ = ["ItemFacts", "Paused", "Visit", "VisitClosed"]

T = TypeVar("T")

WAITS_MAX = 1_000
"""How many things a node may wait for at once."""


class ItemFacts(msgspec.Struct, frozen=True):
    """What an item of a map knows of it."""

    index: int
    given: Any


class Paused(BaseException):
    """The node waits, and its branch goes on when one of its waits is answered.

    A BaseException, so that no ``except Exception`` in a node can swallow it.
    """


class VisitClosed(ClaimLost):
    """A context was used after its node had ended, perhaps by another node by mistake."""

    def __init__(self, visit: Visit) -> None:
        super().__init__(
            f"the ctx of node {visit.node!r} was used after that node had ended; "
            "a node must use the ctx that it was given, and only while it runs"
        )
        self.visit = visit


class Visit:
    """One visit of a node, in one of its attempts."""

    def __init__(
        self, claimed: ClaimedRun, external: ExternalEffects, effect: Effect, hold_ms: int
    ) -> None:
        self.claimed = claimed
        self.external = external
        self.node = effect.node
        self.branch = effect.branch
        strand = self._strand_of(claimed, effect.branch)
        self.visit = strand.visit
        self.attempt = strand.failed_attempts + 1
        self.call_ids = CallIds()
        self.requests = BegunRequests(self.call_ids)
        self.reserved_signals = ReservedSignals(claimed.waits)
        self.hold_ms = hold_ms
        """A sleep up to this long is waited for in the worker; for a longer one the run pauses."""
        self.may_wait = effect.pausable != "no"
        """Whether the run may pause while the node waits."""
        self.max_pause_ms = effect.max_pause_ms
        """After how long a wait of the node goes stale; None where it never does."""
        self.item: ItemFacts | None = None
        """In an item of a map: its index, and what the map was given."""
        self.timeout: asyncio.Timeout | None = None
        """The timeout of the node itself, while it runs."""
        self._began_ms = claimed.now_ms()
        self._pending: dict[str, Wait] = {}
        self._stale = False
        self._paused_tasks: list[asyncio.Task[Any]] = []
        self._refusal: NotPausable | None = None
        self._closed = False
        self._closers: tuple[Callable[[], None], ...] = ()
        self._lost_error: BaseException | None = None

    @property
    def strand(self) -> Strand:
        """The branch as the journal tells it; the run itself where it has not forked."""
        return self._strand_of(self.claimed, self.branch)

    @staticmethod
    def _strand_of(claimed: ClaimedRun, branch: str) -> Strand:
        strand = claimed.execution.strand(branch)
        if strand is None:  # ended, because another branch failed
            raise ClaimLost
        return strand

    @property
    def key(self) -> str:
        """The unique name of this visit."""
        return f"{self.claimed.head.seed}.{self.path}"

    @property
    def path(self) -> str:
        """The name of this visit, unique in its run."""
        return f"{self.branch}.{self.visit}" if self.branch else f"{self.visit}"

    def log_scope(self) -> RunScope:
        """Return where log lines and spans of the node come from."""
        head = self.claimed.head
        span = f"node {self.path} {self.attempt}"
        return RunScope(head.key.tenant, head.key.id, head.generation, self.node, span)

    def now_ms(self) -> int:
        """Return the time."""
        return self.claimed.now_ms()

    @property
    def elapsed_ms(self) -> int:
        """How long this attempt has been running."""
        return self.now_ms() - self._began_ms

    # --- ending -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse all further requests: the node has ended, though its thread may go on."""
        self._closed = True
        self.requests.close()
        self.reserved_signals.free_all()
        for task in self._paused_tasks:
            # The node may never have asked the task for its error, and asyncio would log that.
            if task.done() and not task.cancelled():
                task.exception()
        self._paused_tasks.clear()
        for closer in self._closers:
            closer()

    def call_on_close(self, closer: Callable[[], None]) -> None:
        """Call a function when the node has ended."""
        self._closers += (closer,)

    def check_open(self) -> None:
        """Check that the node still runs.

        Raises:
            VisitClosed: it has ended.
        """
        if self._closed:
            raise VisitClosed(self)

    def raise_if_paused(self) -> None:
        """Raise again what ended the node, in case the node swallowed it.

        Raises:
            Paused, ClaimLost, JournalConflict, NotPausable: as one of the node's requests did.
        """
        if self._lost_error is not None:
            raise self._lost_error
        if self._refusal is not None:
            raise self._refusal
        if self._stale or self._pending:
            raise Paused

    def remember_loss(self) -> _LossMemory:
        """Remember that the run was lost or its journal changed: see `raise_if_paused`."""
        return _LossMemory(self)

    def mark_lost(self, error: BaseException) -> None:
        """Let the node end with this error, whatever the node's code does with it."""
        self._lost_error = error

    # --- pausing ----------------------------------------------------------------------------------

    @property
    def pending(self) -> tuple[Wait, ...]:
        """The waits of the node that have no answer yet."""
        return tuple(self._pending.values())

    @property
    def stale(self) -> bool:
        """Whether a wait of the node took longer than the node's ``max_pause``."""
        return self._stale

    async def pause_until(self, kind: WaitKind, deadline_ms: int, about: str) -> NoReturn:
        """Pause until that time, or until a signal wakes the run."""
        now = self.now_ms()
        await self.pause_on(
            Wait.of(
                kind,
                visit=self.visit,
                branch=self.branch,
                since_ms=now,
                deadline_ms=deadline_ms,
                about=about,
            )
        )

    async def pause_on(self, *waits: Wait) -> NoReturn:
        """Pause until a wait is answered, after the node's other calls have finished.

        Other waits of the node first take the signals that they have reserved. A signal that this
        wait could take, too, would otherwise end the pause, and the node would run again and again.
        """
        # The results of both would be lost; after either of them the node may have begun the other.
        while await self.wait_for_other_calls() or await self.reserved_signals.wait_until_none():
            pass
        if len(self._pending) + len(waits) > WAITS_MAX:
            self._refusal = NotPausable(
                f"node {self.node!r} waits for more than {WAITS_MAX} things at once"
            )
            raise self._refusal
        self._pending.update((wait.key, wait) for wait in waits)
        self._pause()

    def check_outer_timeout(self) -> None:
        """Check that no timeout of the node's code is around a wait, which it could not end.

        Raises:
            WaitInsideTimeout: there is one. The node cannot swallow this error.
        """
        if self.call_ids.is_in_call():
            return  # calls have timeouts of their own, which end what a tool does
        around = outer_timeout(self.call_ids.task, self.timeout)
        if around is not None:
            self._refusal = WaitInsideTimeout(
                f"node {self.node!r:.80} waits inside of {around}, which would be lost when the "
                "run pauses: pass the time as max_wait=… to ctx.wait or ctx.wait_any instead"
            )
            raise self._refusal

    def pause_as_stale(self) -> NoReturn:
        """End the node because one of its waits went stale."""
        self._stale = True
        self._pause()

    def _pause(self) -> NoReturn:
        task = asyncio.current_task()
        if task is not None and task is not self.call_ids.task:
            self._paused_tasks.append(task)
        raise Paused

    async def wait_for_other_calls(self) -> bool:
        """Return when no other call of the node is being made; return whether any was."""
        return await self.call_ids.wait_for_others()

    # --- what the node writes ---------------------------------------------------------------------

    async def record(
        self, *events: Event, durable: bool, on_resolved: Callable[[], None] | None = None
    ) -> None:
        """Write events and fold them; see `JournalSession.record`."""
        self.check_open()
        with self.remember_loss():
            await self.claimed.journal.record(*events, durable=durable, on_resolved=on_resolved)

    async def run_in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Return what ``work`` returns; it handles a large state, and so runs in a thread."""
        return await self.claimed.kernel.offload.run_in_thread(work, *args)

    async def check_result_size(self, value: Any) -> None:
        """Check that the result of the node can be encoded; its state is measured later.

        A run that already holds more than ``state_bytes_max`` may return as much again.

        Raises:
            ResultTooLarge: it is larger than any state can be.
        """
        try:
            limits, memory = self.claimed.kernel.limits, self.claimed.journal.memory
            bytes_max = max(limits.state_bytes_max, memory.bytes)
            await self.claimed.kernel.offload.measure(value, bytes_max)
        except TooLarge as error:
            message = f"the result of node {self.node!r} is too large: {error}"
            raise ResultTooLarge(message, size=error.size, limit=error.limit) from None


class _LossMemory:
    """Tells a visit that the run was lost inside of a ``with`` block.

    A class and not a generator, because every call of a node enters several of these.
    """

    __slots__ = ("_visit",)

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, ClaimLost | JournalConflict):
            self._visit.mark_lost(error)
