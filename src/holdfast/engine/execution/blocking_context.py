"""The context of a plain function: it blocks the thread of the function."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.effects.call_options import BlockingCaller
from holdfast.engine.effects.call_signatures import typed_blocking_call
from holdfast.engine.effects.model_signatures import typed_blocking_ask
from holdfast.engine.execution.child import Child
from holdfast.engine.execution.conditions import ChildCondition, takes_max_wait
from holdfast.engine.execution.context import Context
from holdfast.engine.execution.map_signatures import typed_blocking_map
from holdfast.engine.execution.mapped_results import BlockingMapResults
from holdfast.engine.execution.review_signatures import typed_blocking_review
from holdfast.engine.execution.visit import Visit, VisitClosed
from holdfast.model.arguments import Recording
from holdfast.model.budget import Budget
from holdfast.model.conditions import Timer, WaitAnswer
from holdfast.model.durations import Duration
from holdfast.model.event import BranchFailed
from holdfast.model.invocation import Answer
from holdfast.model.map import Mapped
from holdfast.model.node_progress import validated_progress
from holdfast.model.policy import Retry
from holdfast.model.program import Program, ResultT
from holdfast.model.quota import Quota
from holdfast.model.review import ReviewDecision
from holdfast.model.signals import SignalName

__all__ = ["BlockingChild", "BlockingContext", "context_of"]

T = TypeVar("T")
R = TypeVar("R")


def context_of(visit: Visit) -> Context:
    """Return the context of a visit; a plain function that its node calls gets a blocking one."""
    return Context(visit, BlockingContext)


class BlockingContext:
    """The context of a node that is a plain function: its methods block the node's thread."""

    # `Context` has these, too.
    run_id: str
    tenant: str
    labels: Mapping[str, str]
    node: str
    branch: str
    visit: int
    attempt: int
    key: str
    failures: tuple[BranchFailed, ...]
    expires_at: datetime
    index: int
    given: dict[str, Any]

    def __init__(self, context: Context, visit: Visit) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._threads = visit.external.threads
        # The last report that the event loop has not taken yet.
        self._reported: deque[tuple[float | None, str, bool]] = deque(maxlen=1)
        # Whether the event loop is about to take it.
        self._is_awaited = False

    if not TYPE_CHECKING:  # checkers would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

    @typed_blocking_call
    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do as `Context.call` does."""
        return self._run_blocking(self._context.call(function, *args, **kwargs))

    def with_options(
        self,
        *,
        key: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        quota: Quota | None = None,
        heartbeat: Duration | None = None,
        record: Recording | None = None,
    ) -> BlockingCaller:
        """Do as `Context.with_options` does."""
        caller = self._context.with_options(
            key=key,
            retry=retry,
            timeout=timeout,
            quota=quota,
            heartbeat=heartbeat,
            record=record,
        )
        return BlockingCaller(caller, self._run_blocking)

    def heartbeat(self) -> None:
        """Do as `Context.heartbeat` does."""
        self._loop.call_soon_threadsafe(self._context.heartbeat)

    def progress(self, fraction: float | None, message: str = "", *, stream: bool = False) -> None:
        """Do as `Context.progress` does."""
        validated_progress(fraction, message)
        # In this order: the loop clears the flag before it takes the report, so none is left over.
        self._reported.append((fraction, message, stream))
        if not self._is_awaited:
            self._is_awaited = True
            self._loop.call_soon_threadsafe(self._report_progress)

    def _report_progress(self) -> None:
        self._is_awaited = False
        with suppress(IndexError, VisitClosed):  # the node may have ended meanwhile
            fraction, message, stream = self._reported.pop()
            self._context.progress(fraction, message, stream=stream)

    @typed_blocking_ask
    def model(self, name: str, messages: Any, **options: Any) -> Answer[Any]:
        """Do as `Context.model` does."""
        return self._run_blocking(self._context.model(name, messages, **options))

    @takes_max_wait
    def wait(
        self, condition: SignalName[T], *, about: Any = None, max_wait: Duration | None = None
    ) -> T:
        """Do as `Context.wait` does."""
        return self._run_blocking(self._context.wait(condition, about=about, max_wait=max_wait))

    @takes_max_wait
    def wait_any(
        self,
        *conditions: SignalName | Timer | ChildCondition,
        about: Any = None,
        max_wait: Duration | None = None,
    ) -> WaitAnswer:
        """Do as `Context.wait_any` does."""
        return self._run_blocking(
            self._context.wait_any(*conditions, about=about, max_wait=max_wait)
        )

    def callback(self, condition: SignalName[Any] | str, *, expires: Duration | None = None) -> str:
        """Do as `Context.callback` does."""
        return self._run_blocking(self._context.callback(condition, expires=expires))

    @typed_blocking_review
    def review(
        self,
        question: str,
        *,
        show: Sequence[str] | Mapping[str, Any] | None = None,
        form: Any = None,
        values: Any = None,
        assignees: str | Sequence[str] = (),
        expires: Duration | None = None,
        remind_after: Duration | None = None,
        escalate_after: Duration | None = None,
        escalate_to: str | Sequence[str] = (),
        quorum: int = 1,
    ) -> ReviewDecision[Any]:
        """Do as `Context.review` does."""
        asked = self._context.review(
            question,
            show=show,
            form=form,
            values=values,
            assignees=assignees,
            expires=expires,
            remind_after=remind_after,
            escalate_after=escalate_after,
            escalate_to=escalate_to,
            quorum=quorum,
        )
        return self._run_blocking(asked)

    def sleep(self, duration: Duration) -> None:
        """Do as `Context.sleep` does."""
        return self._run_blocking(self._context.sleep(duration))

    def start(
        self,
        graph: Program[T, R],
        input: T | None = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        budget: Budget | None = None,
    ) -> BlockingChild[R]:
        """Do as `Context.start` does."""
        start = self._context.start(graph, input, id=id, labels=labels, pool=pool, budget=budget)
        return BlockingChild(self, self._run_blocking(start))

    def run(
        self,
        graph: Program[T, R],
        input: T | None = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        budget: Budget | None = None,
    ) -> R:
        """Do as `Context.run` does."""
        return self.start(graph, input, id=id, labels=labels, pool=pool, budget=budget).result()

    @typed_blocking_map
    def map(
        self,
        item: Any,
        count_or_items: Any,
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Mapping[str, Any] | None = None,
    ) -> Mapped:
        """Do as `Context.map` does."""
        mapping = self._context.map(
            item,
            count_or_items,
            chunk=chunk,
            concurrency=concurrency,
            tolerate=tolerate,
            given=given,
        )
        return self._run_blocking(mapping)

    def mapped(self, cursor: Mapped | Mapping[str, Any]) -> BlockingMapResults:
        """Do as `Context.mapped` does: ``for entry in …``."""
        return BlockingMapResults(self._context.mapped(cursor), self._run_blocking)

    def child(self, id: str, graph: Program[Any, ResultT] | None = None) -> BlockingChild[ResultT]:
        """Do as `Context.child` does."""
        return BlockingChild(self, self._context.child(id, graph))

    def result_of(self, child: Child[R]) -> R:
        """Do as `Context.result_of` does."""
        return self._run_blocking(self._context.result_of(child))

    def _run_blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        # What it waits for may be another plain function, which needs a thread.
        waiting = self._threads.await_for_thread(coroutine)
        return asyncio.run_coroutine_threadsafe(waiting, self._loop).result()


class BlockingChild(ChildCondition[ResultT]):
    """A run that a plain function started."""

    def __init__(self, context: BlockingContext, child: Child[ResultT]) -> None:
        self._context = context
        self._child = child
        self.graph = child.graph
        self.id = child.id

    def result(self) -> ResultT:
        """Do as `Child.result` does."""
        return self._context.result_of(self._child)
