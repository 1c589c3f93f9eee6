"""The context of a plain function: it blocks the thread of the function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from holdfast.engine.effects.call_options import BlockingCaller
from holdfast.engine.execution.conditions import ChildCondition, takes_max_wait
from holdfast.engine.execution.context import Child, Context
from holdfast.engine.execution.visit import Visit
from holdfast.model.arguments import Recording
from holdfast.model.budget import Budget
from holdfast.model.conditions import Timer, WaitAnswer
from holdfast.model.durations import Duration
from holdfast.model.invocation import Answer
from holdfast.model.policy import Retry
from holdfast.model.program import Program
from holdfast.model.quota import Quota
from holdfast.model.signals import SignalName

__all__ = ["BlockingChild", "BlockingContext", "context_of"]

T = TypeVar("T")


def context_of(visit: Visit) -> Context:
    """Return the context of a visit; a plain function that its node calls gets a blocking one."""
    return Context(visit, BlockingContext)


class BlockingContext:
    """The context of a node that is a plain function: its methods block the node's thread."""

    def __init__(self, context: Context, visit: Visit) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._threads = visit.external.threads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

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

    def model(self, name: str, messages: Any, **options: Any) -> Answer:
        """Do as `Context.model` does."""
        return self._run_blocking(self._context.model(name, messages, **options))

    @takes_max_wait
    def wait(
        self, condition: SignalName, *, about: Any = None, max_wait: Duration | None = None
    ) -> Any:
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

    def sleep(self, duration: Duration) -> None:
        """Do as `Context.sleep` does."""
        return self._run_blocking(self._context.sleep(duration))

    def start(
        self,
        graph: Program,
        input: Any = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        budget: Budget | None = None,
    ) -> BlockingChild:
        """Do as `Context.start` does."""
        start = self._context.start(graph, input, id=id, labels=labels, pool=pool, budget=budget)
        return BlockingChild(self, self._run_blocking(start))

    def run(
        self,
        graph: Program,
        input: Any = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        budget: Budget | None = None,
    ) -> Any:
        """Do as `Context.run` does."""
        return self.start(graph, input, id=id, labels=labels, pool=pool, budget=budget).result()

    def child(self, id: str, graph: Program | None = None) -> BlockingChild:
        """Do as `Context.child` does."""
        return BlockingChild(self, self._context.child(id, graph))

    def result_of(self, child: Child) -> Any:
        """Do as `Context.result_of` does."""
        return self._run_blocking(self._context.result_of(child))

    def _run_blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        # What it waits for may be another plain function, which needs a thread.
        with self._threads.blocked():
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class BlockingChild(ChildCondition):
    """A run that a plain function started."""

    def __init__(self, context: BlockingContext, child: Child) -> None:
        self._context = context
        self._child = child
        self.graph = child.graph
        self.id = child.id

    def result(self) -> Any:
        """Do as `Child.result` does."""
        return self._context.result_of(self._child)
